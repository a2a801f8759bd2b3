//! Nodes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBool, PyDict};
use treecast_node::{
    AbortReason, Group, GroupSettings, JoinOptions, Listener, Member, NodeError, NodeSettings, Owned,
    parse_members, resolve,
};
use treecast_terms::{Keyed as _, SpecError};

use crate::deadline::{Deadline, seconds};
use crate::error::{failed, read_text, refused};
use crate::fabric::Fabric;
use crate::node_group::{Entered, NodeGroup};
use crate::number::Whole;
use crate::plan::Plan;

/// A running node, which connects this process to groups: a thread with a UDP socket, or the daemon
/// of this host.
///
/// `bind` is its UDP address, such as `192.0.2.1:7000` or `[2001:db8::1]:7000`; with port 0 the
/// system chooses a port, which `address` has. The default, all IPv4 addresses and a free port, is
/// sufficient for `listen` and `join`. `engine` is the packet engine: `user`, a thread of this
/// process; `ebpf`, the kernel's packet path; `auto`, the daemon with the socket path `socket`, if
/// there is one, and otherwise a thread; docs/node.md describes the daemon. Processes of one user
/// on this host that give the same text as `share` share one node, which the first of them opens.
/// If the address has no port, the node takes the first free one of `ports`, such as `7000-7099`.
/// `buffer_bytes` is the requested size of the socket buffers, which the system may limit. A
/// waiting thread spins for `spin_us` microseconds before it sleeps, and yields the processor after
/// each check: lower latency for more CPU time; None lets the node decide, by how long recent waits
/// were. `status` is whether the command `treecast status` finds the node. `peer_timeout_ms` is how
/// long a silent neighbour is waited for, `join_timeout_ms` how long a member may take to join.
///
/// As a context manager a node is closed at the end. It is thread-safe. A forked process cannot use
/// the node of its parent: that raises TreecastError, and the child opens its own. docs/library.md
/// describes nodes and groups.
///
/// Raises OSError if the address cannot be bound, TreecastError for an invalid address.
///
/// >>> with Node("127.0.0.1:0") as one, Node("127.0.0.1:0") as other:
/// ...     members = [one.address, other.address]
/// ...     with other.group(members) as receiver:
/// ...         with one.group(members) as sender:
/// ...             sender.send(b"hello")
/// ...         list(receiver)
/// [b'hello']
#[pyclass(frozen, module = "treecast")]
pub struct Node(Arc<Open>);

/// A node, shared with its groups: it stays open until the last of them is dropped.
struct Open {
    node: Option<Owned<treecast_node::Node>>,
    address: String,
    /// `None` after the node has been closed.
    groups: Mutex<Option<Vec<Weak<Entered>>>>,
}

/// All nodes of the process, which are closed when it exits.
static NODES: Mutex<Vec<Weak<Open>>> = Mutex::new(Vec::new());

#[pymethods]
impl Node {
    #[new]
    #[pyo3(signature = (
        bind = "0.0.0.0:0", *, engine = "auto", socket = None, share = None, ports = "any", buffer_bytes = Whole(4 << 20),
        spin_us = Some(Whole(0)), status = true, peer_timeout_ms = Whole(800), join_timeout_ms = Whole(10_000)
    ))]
    #[pyo3(
        text_signature = "(bind='0.0.0.0:0', *, engine='auto', socket=None, share=None, ports='any', buffer_bytes=4194304, spin_us=0, status=True, peer_timeout_ms=800, join_timeout_ms=10000)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        bind: &str,
        engine: &str,
        socket: Option<PathBuf>,
        share: Option<String>,
        ports: &str,
        buffer_bytes: Whole<u32>,
        spin_us: Option<Whole<u32>>,
        status: bool,
        peer_timeout_ms: Whole<u32>,
        join_timeout_ms: Whole<u32>,
    ) -> PyResult<Self> {
        let mut settings =
            NodeSettings { bind: address_of(py, bind)?, socket, share, status, ..NodeSettings::default() };
        settings.set_key("engine", engine).map_err(refused)?;
        settings.set_key("ports", ports).map_err(refused)?;
        for (key, value) in [
            ("buffer_bytes", Some(buffer_bytes)),
            ("spin_us", spin_us),
            ("peer_timeout_ms", Some(peer_timeout_ms)),
            ("join_timeout_ms", Some(join_timeout_ms)),
        ] {
            let Some(value) = value else {
                settings.set_key(key, "auto").map_err(refused)?;
                continue;
            };
            settings.set_key(key, &value.0.to_string()).map_err(refused)?;
        }
        let node = treecast_node::Node::open(&settings).map_err(failed)?;
        let address = node.address().to_string();
        let open = Open { node: Some(Owned::new(node)), address, groups: Mutex::new(Some(Vec::new())) };
        let open = Arc::new(open);
        let mut nodes = lock(&NODES);
        nodes.retain(|node| node.strong_count() > 0);
        nodes.push(Arc::downgrade(&open));
        Ok(Self(open))
    }

    /// The UDP address of the node, as it appears in member lists. For a node that binds all
    /// addresses of its machine, member lists have one of them with its port.
    #[getter]
    fn address(&self) -> &str {
        &self.0.address
    }

    /// Listens until all members have joined, this node included, and takes part in their group as
    /// its root. The others call `join`, before or after.
    ///
    /// `listen` is the TCP address at which they join, as `0.0.0.0:7000`. `settings` are those of
    /// `group`, and hold for all. `root` is the number of this node, 0 if not given. `timeout` is
    /// in seconds, None is for ever; Ctrl-C interrupts.
    ///
    /// Raises TimeoutError, which names the members that have joined and those that are missing;
    /// OSError if the address cannot be bound; TreecastError for invalid arguments.
    ///
    /// >>> import threading
    /// >>> def join():
    /// ...     with Node() as node, node.join("127.0.0.1:7123", token="secret") as group:
    /// ...         print(f"member {group.member} has received {group.receive()}")
    /// >>> other = threading.Thread(target=join)
    /// >>> other.start()
    /// >>> with Node() as node, node.listen("127.0.0.1:7123", 2, token="secret") as group:
    /// ...     group.send(b"hello")
    /// ...     other.join()
    /// member 1 has received b'hello'
    #[pyo3(signature = (listen, members, *, timeout = 60.0, **settings))]
    #[pyo3(text_signature = "($self, listen, members, *, timeout=60.0, **settings)")]
    fn listen(
        &self,
        py: Python<'_>,
        listen: &str,
        members: Whole<u32>,
        timeout: Option<f64>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<NodeGroup> {
        self.listen_checking(py, listen, members, timeout, settings, None)
    }

    /// Joins the group of a root that listens, or will listen before the timeout.
    ///
    /// `root` is the TCP address at which it listens; `token` is the group's, and all other
    /// settings are the root's. `member` is the number that this node requests; None is any.
    /// `insecure` allows a root on another host without a token. `timeout` is in seconds, None is
    /// for ever; Ctrl-C interrupts.
    ///
    /// Raises TimeoutError if the root or other members are missing, with their names;
    /// TreecastError if the root rejects this node: a token mismatch, a number that is taken, a
    /// complete group.
    ///
    /// >>> Node().join("127.0.0.1:7123", timeout=0)
    /// Traceback (most recent call last):
    /// TimeoutError: cannot join the group at 127.0.0.1:7123: Connection refused (os error 111)
    #[pyo3(signature = (root, token = "", member = None, timeout = 60.0, insecure = false))]
    #[pyo3(text_signature = "($self, root, token='', member=None, timeout=60.0, insecure=False)")]
    fn join(
        &self,
        py: Python<'_>,
        root: &str,
        token: &str,
        member: Option<Whole<u32>>,
        timeout: Option<f64>,
        insecure: bool,
    ) -> PyResult<NodeGroup> {
        self.join_checking(py, root, token, member, timeout, insecure, None)
    }

    /// For asyncio: `listen`, which calls `check` periodically; an exception of `check` ends it.
    #[pyo3(name = "_listen", signature = (listen, members, timeout, settings, check))]
    fn listen_checking(
        &self,
        py: Python<'_>,
        listen: &str,
        members: Whole<u32>,
        timeout: Option<f64>,
        settings: Option<&Bound<'_, PyDict>>,
        check: Option<Py<PyAny>>,
    ) -> PyResult<NodeGroup> {
        let settings = set_all(Vec::new(), settings)?;
        let listen = address_of(py, listen)?;
        settings.check(listen, members.0).map_err(failed)?;
        let mut listener = Listener::bind(listen, members.0).map_err(failed)?;
        listener.timeout = seconds(timeout)?;
        self.meet(py, check, |node, goes_on| node.listen_while(listener, &settings, &mut |_| goes_on()))
    }

    /// For asyncio: `join`, as `_listen`.
    #[pyo3(name = "_join", signature = (root, token, member, timeout, insecure, check))]
    #[expect(clippy::too_many_arguments, reason = "they are arguments of Python")]
    fn join_checking(
        &self,
        py: Python<'_>,
        root: &str,
        token: &str,
        member: Option<Whole<u32>>,
        timeout: Option<f64>,
        insecure: bool,
        check: Option<Py<PyAny>>,
    ) -> PyResult<NodeGroup> {
        let mut options = JoinOptions::new(address_of(py, root)?, token);
        options.insecure = insecure;
        options.member = member.map(|member| member.0);
        options.timeout = seconds(timeout)?;
        self.meet(py, check, |node, goes_on| node.join_while(&options, &mut |_| goes_on()))
    }

    /// Creates a group from a list of members, as its root if the root's address is this node's,
    /// and otherwise as another member.
    ///
    /// `members` are the addresses of all members, for example from `read_members`; every member
    /// passes the same list and the same settings, except for `member`, the number of this process
    /// where several share a node. These are `plan` (a `Plan` to carry out, at the root, whose root
    /// is that of the group), `fabric` (a `Fabric` with the hosts that `members` names, on which
    /// the root makes the plan), `network` (the path of a file that `treecast tune` has written, by
    /// whose costs the root chooses the tree), `group`, `root`, `token`, `insecure`, `auth`,
    /// `encrypt`, `integrity`, `transport`, `tcp_congestion`, `scheme`, `offload`, `message_bytes`,
    /// `slots`, `mtu_bytes`, `admits` and `bytes_per_s_max`; docs/library.md has a table of them.
    /// The call does not wait for the other members, except that the root waits for up to three
    /// seconds if it measures the network for the scheme `postal`.
    ///
    /// Raises TreecastError if this node is not among the members, and for invalid members and
    /// settings.
    ///
    /// >>> node = Node("127.0.0.1:0")
    /// >>> node.group(["192.0.2.1:7000", "192.0.2.2:7000"], slots=100)
    /// Traceback (most recent call last):
    /// treecast.TreecastError: invalid value slots=100: expected auto, or a power of two from 4 to 65536
    #[pyo3(signature = (members, **settings))]
    fn group(
        &self,
        py: Python<'_>,
        members: Vec<String>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<NodeGroup> {
        self.enter(py, &members, settings, treecast_node::Node::group)
    }

    /// Asks the root of a running group, whose setting `admits` is true, to admit this node from
    /// the next message on. `members` must contain the root. The call does not wait: the first call
    /// of the group that waits reports a rejection.
    ///
    /// Raises the same exceptions as `group`.
    ///
    /// >>> with Node("127.0.0.1:0") as root, Node("127.0.0.1:0") as newcomer:
    /// ...     group = root.group([root.address], admits=True)
    /// ...     joined = newcomer.join_running([root.address])
    /// ...     _ = joined.wait_until_ready(timeout=10)
    /// ...     joined.member
    /// 1
    #[pyo3(signature = (members, **settings))]
    fn join_running(
        &self,
        py: Python<'_>,
        members: Vec<String>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<NodeGroup> {
        self.enter(py, &members, settings, treecast_node::Node::join_running)
    }

    /// The numbers of datagrams that were dropped because they belong to no group of this node, by
    /// reason: `malformed`, `unknown_group`, `unauthentic` (of another session, or of a host
    /// without the token). None once the process that has the node has ended.
    #[getter]
    fn strays<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let node = self.0.node()?;
        let strays = py.detach(|| node.strays());
        strays.map(|strays| strays.values().into_py_dict(py)).transpose()
    }

    /// Closes the node. Open groups are aborted. The call waits, for some seconds at most, until
    /// closed groups have sent what other members still need.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.close())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind = None, error = None, traceback = None))]
    #[expect(unused_variables, reason = "Python passes the exception of the block")]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        error: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<Node at {}>", self.0.address)
    }
}

impl Node {
    fn enter(
        &self,
        py: Python<'_>,
        members: &[String],
        keys: Option<&Bound<'_, PyDict>>,
        enter: fn(&treecast_node::Node, &GroupSettings) -> Result<Group, NodeError>,
    ) -> PyResult<NodeGroup> {
        let members = members.iter().map(|member| member_of(py, member)).collect::<PyResult<_>>()?;
        let settings = set_all(members, keys)?;
        let node = self.0.node()?;
        py.detach(|| {
            self.0.check_open()?;
            self.0.take(enter(node, &settings).map_err(failed)?)
        })
    }

    /// Waits for other members until the node is closed, a signal handler raises, or `check`
    /// raises.
    fn meet(
        &self,
        py: Python<'_>,
        check: Option<Py<PyAny>>,
        meet: impl FnOnce(&treecast_node::Node, &mut dyn FnMut() -> bool) -> Result<Group, NodeError> + Send,
    ) -> PyResult<NodeGroup> {
        let node = self.0.node()?;
        py.detach(|| {
            let mut deadline = Deadline::never();
            let mut checked = Ok(());
            let met = meet(node, &mut || {
                let check = |py: Python<'_>| {
                    py.check_signals()?;
                    check.as_ref().map_or(Ok(()), |check| check.call0(py).map(drop))
                };
                checked = self.0.check_open().and_then(|()| deadline.poll(check));
                checked.is_ok()
            });
            checked?;
            self.0.take(met.map_err(failed)?)
        })
    }
}

impl Open {
    fn node(&self) -> PyResult<&treecast_node::Node> {
        self.node.as_ref().ok_or_else(|| failed(NodeError::NodeClosed))?.get().map_err(failed)
    }

    fn check_open(&self) -> PyResult<()> {
        lock(&self.groups).as_ref().map(drop).ok_or_else(|| failed(NodeError::NodeClosed))
    }

    /// Registers a new group, unless the node has been closed meanwhile.
    fn take(self: &Arc<Self>, group: Group) -> PyResult<NodeGroup> {
        let mut groups = lock(&self.groups);
        let groups = groups.as_mut().ok_or_else(|| failed(NodeError::NodeClosed))?;
        let entered = Arc::new(Entered::new(group, self.address.clone(), Arc::<Self>::clone(self)));
        groups.retain(|group| group.strong_count() > 0);
        groups.push(Arc::downgrade(&entered));
        Ok(NodeGroup(entered))
    }

    fn close(&self) -> PyResult<()> {
        let node = self.node()?;
        let groups = lock(&self.groups).take();
        for group in groups.iter().flatten().filter_map(Weak::upgrade) {
            group.abort_because(AbortReason::NodeClosed);
        }
        Ok(Deadline::never().wait(|slice| node.close(Some(slice)).map(Some))?)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Dropping the node may wait, so the GIL is released.
        let node = self.node.take();
        Python::try_attach(|py| py.detach(|| drop(node)));
    }
}

/// Closes all nodes of this process.
#[pyfunction]
pub fn close_nodes(py: Python<'_>) -> PyResult<()> {
    py.detach(|| {
        let nodes: Vec<Arc<Open>> = lock(&NODES).iter().filter_map(Weak::upgrade).collect();
        // Nodes that were inherited by a fork belong to the parent process.
        nodes.iter().filter(|node| node.node().is_ok()).try_for_each(|node| node.close())
    })
}

/// Reads a list of members from a file, as `host:port` for `Node.group`.
///
/// The file has one member per line, from member 0 on: `host:port`, or `host` with port 7700; or
/// several by a hostlist, such as `n[1-16]` or `n[1-16]:7000`. `#` begins a comment. Names are
/// resolved, and kept for the `fabric` of a group.
///
/// Raises OSError if the file cannot be read; TreecastError, with the line number, for an invalid
/// line, a duplicate address and a name that cannot be resolved.
///
/// >>> import pathlib, tempfile
/// >>> with tempfile.TemporaryDirectory() as directory:
/// ...     path = pathlib.Path(directory, "members")
/// ...     _ = path.write_text("192.0.2.1:7000  # the root\n192.0.2.[2-3]\n")
/// ...     read_members(path)
/// ['192.0.2.1:7000', '192.0.2.2:7700', '192.0.2.3:7700']
#[pyfunction]
pub fn read_members(path: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let path = path.py().import("pathlib")?.getattr("Path")?.call1((path,))?;
    let text = read_text(&path)?;
    let source = path.str()?.to_string();
    let members = path.py().detach(|| parse_members(&text, &source)).map_err(failed)?;
    Ok(members.iter().map(ToString::to_string).collect())
}

/// Resolves an address, without the GIL.
fn address_of(py: Python<'_>, text: &str) -> PyResult<SocketAddr> {
    py.detach(|| resolve(text)).map_err(failed)
}

/// Resolves the address of a member, without the GIL.
fn member_of(py: Python<'_>, text: &str) -> PyResult<Member> {
    py.detach(|| Member::resolve(text)).map_err(failed)
}

/// The settings of a group of these members.
fn set_all(members: Vec<Member>, keys: Option<&Bound<'_, PyDict>>) -> PyResult<GroupSettings> {
    let mut settings = GroupSettings::of(members);
    if let Some(plan) = keys.map(|keys| keys.get_item("plan")).transpose()?.flatten()
        && !plan.is_none()
    {
        settings = settings.with_plan(plan.cast::<Plan>()?.get().plan.clone());
    }
    if let Some(fabric) = keys.map(|keys| keys.get_item("fabric")).transpose()?.flatten()
        && !fabric.is_none()
    {
        settings = settings.with_fabric(fabric.cast::<Fabric>()?.get().fabric.clone());
    }
    for (key, value) in keys.into_iter().flatten() {
        match key.extract::<String>()?.as_str() {
            "plan" | "fabric" => {}
            "network" if value.is_none() => {}
            "network" => {
                let path: String = value.py().import("os")?.call_method1("fspath", (&value,))?.extract()?;
                value.py().detach(|| settings.set_file("network", &path)).map_err(failed)?;
            }
            key => set(&mut settings, key, &value)?,
        }
    }
    Ok(settings)
}

fn set(settings: &mut GroupSettings, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let text = if value.is_none() {
        "none".into()
    } else if let Ok(value) = value.cast::<PyBool>() {
        value.is_true().to_string()
    } else {
        value.str()?.to_string()
    };
    settings.set_key(key, &text).map_err(|error| match error {
        // A scheme has keys too.
        SpecError::UnknownKey { given, .. } if given == key => PyTypeError::new_err(format!(
            "unknown setting {given} of a group: known are {}",
            GroupSettings::keys().iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
        )),
        other => refused(other),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
