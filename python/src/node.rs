//! Nodes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use treecast_fabric::{Keyed as _, SpecError};
use treecast_node::{GroupSettings, NodeError, NodeSettings, resolve};

use crate::error::{failed, refused};
use crate::node_group::{Entered, NodeGroup};
use crate::number::Whole;
use crate::owned::Owned;
use crate::patience::Patience;

/// A running node within this process: a thread with a UDP socket, by which the process takes part in groups.
///
/// `bind` is the address that it listens at, as `192.0.2.1:7000` or `[2001:db8::1]:7000`; port 0 lets the system choose one, which
/// `address` tells. `buffer_bytes` is how large the socket's buffers should be; the system has bounds of its own. Whoever waits
/// looks again and again for `spin_us` microseconds before it sleeps: shorter latencies for more work of the CPU.
///
/// As a context manager a node is closed at the end. All threads may use it. A process that is forked has no node: what it
/// inherits raises TreecastError, and it opens its own. docs/library.md is about nodes and groups.
///
/// Raises OSError where the system does not let it listen, TreecastError for a text that is no address.
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

/// A node, shared by its groups: it is open as long as one of them is there.
pub struct Open {
    node: Option<Owned<treecast_node::Node>>,
    address: String,
    /// None, once it is closed.
    groups: Mutex<Option<Vec<Weak<Entered>>>>,
}

/// All nodes of the process, to be closed at its end.
static NODES: Mutex<Vec<Weak<Open>>> = Mutex::new(Vec::new());

#[pymethods]
impl Node {
    #[new]
    #[pyo3(signature = (bind, *, buffer_bytes = Whole(4 << 20), spin_us = Whole(0)))]
    #[pyo3(text_signature = "(bind, *, buffer_bytes=4194304, spin_us=0)")]
    fn new(bind: &str, buffer_bytes: Whole<u32>, spin_us: Whole<u32>) -> PyResult<Self> {
        let settings = NodeSettings {
            bind: resolve(bind).map_err(failed)?,
            buffer_bytes: buffer_bytes.0 as usize,
            spin: Duration::from_micros(spin_us.0.into()),
            ..NodeSettings::default()
        };
        let node = treecast_node::Node::open(&settings).map_err(failed)?;
        let address = node.address().to_string();
        let open = Open { node: Some(Owned::new(node)), address, groups: Mutex::new(Some(Vec::new())) };
        let open = Arc::new(open);
        let mut nodes = lock(&NODES);
        nodes.retain(|node| node.strong_count() > 0);
        nodes.push(Arc::downgrade(&open));
        Ok(Self(open))
    }

    /// Where the node listens, as members of its groups give it.
    #[getter]
    fn address(&self) -> &str {
        &self.0.address
    }

    /// Takes part in a group: as its root, if the root's address is this node's, and else as another member.
    ///
    /// `members` are the addresses of all members, and every member gives the same ones, with the same settings. Those are `group`,
    /// `root`, `token`, `scheme`, `offload`, `message_bytes`, `slots`, `mtu_bytes`, `admits` and `bytes_per_s_max`; docs/library.md
    /// has a table of them. It does not wait for the others.
    ///
    /// Raises TreecastError if this node is none of the members, and for members and settings that are not possible.
    ///
    /// >>> node = Node("127.0.0.1:0")
    /// >>> node.group(["192.0.2.1:7000", "192.0.2.2:7000"], slots=100)
    /// Traceback (most recent call last):
    /// treecast.TreecastError: slots=100 does not fit: a power of two from 4 to 65536
    #[pyo3(signature = (members, **settings))]
    fn group(
        &self,
        py: Python<'_>,
        members: Vec<String>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<NodeGroup> {
        self.enter(py, &members, settings, treecast_node::Node::group)
    }

    /// Asks the root of a group that runs already, and whose setting `admits` is true, to take this node in from the next message
    /// on. Only the root has to be among `members`. The answer comes with the first call that waits for something.
    ///
    /// Raises what `group` raises.
    ///
    /// >>> with Node("127.0.0.1:0") as root, Node("127.0.0.1:0") as newcomer:
    /// ...     group = root.group([root.address], admits=True)
    /// ...     joined = newcomer.join([root.address])
    /// ...     _ = joined.wait_until_ready(timeout=10)
    /// ...     joined.member
    /// 1
    #[pyo3(signature = (members, **settings))]
    fn join(
        &self,
        py: Python<'_>,
        members: Vec<String>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<NodeGroup> {
        self.enter(py, &members, settings, treecast_node::Node::join)
    }

    /// Datagrams that have come and belonged to no group of this node, by what was wrong with them: `malformed`,
    /// `unknown_group`, `wrong_cookie`, the last of which another token makes.
    #[getter]
    fn strays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let node = self.0.node()?;
        let strays = py.detach(|| node.strays());
        let counted = PyDict::new(py);
        strays.values().try_for_each(|(name, count)| counted.set_item(name, count))?;
        Ok(counted)
    }

    /// Closes the node. Groups that are still open are given up. It waits, for some seconds at most, until groups that are
    /// closed have said what others still need.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.close())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind = None, error = None, traceback = None))]
    #[expect(unused_variables, reason = "Python says how the block was left")]
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
        enter: fn(&treecast_node::Node, &GroupSettings) -> Result<treecast_node::Group, NodeError>,
    ) -> PyResult<NodeGroup> {
        let members = members.iter().map(|member| resolve(member)).collect::<Result<_, _>>();
        let mut settings = GroupSettings::new(members.map_err(failed)?);
        for (key, value) in keys.into_iter().flatten() {
            set(&mut settings, &key.extract::<String>()?, &value)?;
        }
        let node = self.0.node()?;
        py.detach(|| {
            let mut groups = lock(&self.0.groups);
            let groups = groups.as_mut().ok_or_else(|| failed(NodeError::NodeClosed))?;
            let group = enter(node, &settings).map_err(failed)?;
            let entered = Arc::new(Entered::new(group, settings.group.0, Arc::clone(&self.0)));
            groups.retain(|group| group.strong_count() > 0);
            groups.push(Arc::downgrade(&entered));
            Ok(NodeGroup(entered))
        })
    }
}

impl Open {
    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn node(&self) -> PyResult<&treecast_node::Node> {
        self.node.as_ref().ok_or_else(|| failed(NodeError::NodeClosed))?.get()
    }

    fn close(&self) -> PyResult<()> {
        let node = self.node()?;
        let groups = lock(&self.groups).take();
        for group in groups.iter().flatten().filter_map(Weak::upgrade) {
            group.give_up();
        }
        Patience::endless().wait(|slice| node.close(Some(slice)).map(Some))?.map_err(failed)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // It may wait, and others run meanwhile.
        let node = self.node.take();
        Python::try_attach(|py| py.detach(|| drop(node)));
    }
}

/// Closes all nodes of this process.
#[pyfunction]
pub fn close_nodes(py: Python<'_>) -> PyResult<()> {
    py.detach(|| {
        let nodes: Vec<Arc<Open>> = lock(&NODES).iter().filter_map(Weak::upgrade).collect();
        // Those of a process that this one was forked from stay as they are.
        nodes.iter().filter(|node| node.node().is_ok()).try_for_each(|node| node.close())
    })
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
        SpecError::UnknownKey { given, .. } => PyTypeError::new_err(format!(
            "a group has no setting {given}: there are {}",
            GroupSettings::keys().iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
        )),
        other => refused(other),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
