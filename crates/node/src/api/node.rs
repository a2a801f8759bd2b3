//! A node that an application has opened.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use treecast_daemon::SharedNode;
use treecast_ebpf::HookTrouble;
use treecast_engine::backend::{Backend, RunningEngine};
use treecast_engine::query::Query;
use treecast_engine::settings::addresses::find_own;
use treecast_engine::settings::config::{GroupConfig, check_paths};
use treecast_engine::settings::error::NodeError;
use treecast_engine::settings::files::network_of_environment;
use treecast_engine::settings::hosts::Hosts;
use treecast_engine::settings::{GroupSettings, NodeSettings};
use treecast_engine::thread::NodeThread;
use treecast_engine::tree;
use treecast_proto::{MemberId, StrayCounters};
use treecast_shm::shared_group::SharedGroup;
use treecast_shm::sync::lock;

use super::cipher::Cipher;
use super::open;
use super::sender::SenderConfig;
use crate::api::group::Group;

/// A running node: a thread and a socket of this process, or a node of the daemon, which serves
/// several processes.
///
/// ```
/// use std::time::Duration;
/// use treecast_node::{GroupSettings, Node, NodeSettings};
///
/// let bind = NodeSettings { bind: "127.0.0.1:0".parse()?, ..NodeSettings::default() };
/// let (one, other) = (Node::open(&bind)?, Node::open(&bind)?);
/// let settings = GroupSettings::new(vec![one.address(), other.address()]);
/// let (root, member) = (one.group(&settings)?, other.group(&settings)?);
///
/// root.send(b"hello")?;
/// assert_eq!(member.receive(Some(Duration::from_secs(5)))?.as_deref(), Some(&b"hello"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Node {
    backend: Arc<dyn Backend>,
    thread: NodeThread,
    /// What serves other processes, if this one shares its node.
    shared: Mutex<Option<SharedNode>>,
}

/// How long a process that shares its node waits for the others when the node is dropped.
const SHARED_TIMEOUT: Duration = Duration::from_secs(5);

impl Node {
    /// Opens a node.
    ///
    /// # Errors
    /// [`NodeError::Bind`], [`NodeError::System`].
    pub fn open(settings: &NodeSettings) -> Result<Self, NodeError> {
        let (backend, shared) = open::open(settings)?;
        let thread = NodeThread::start(Arc::clone(&backend), settings.status, 1)?;
        Ok(Self { backend, thread, shared: Mutex::new(shared) })
    }

    /// The packet engine that the node uses.
    pub fn engine(&self) -> RunningEngine {
        self.backend.engine()
    }

    /// The address at which the node listens, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.backend.address()
    }

    /// Takes part in a group: as its root, if the root's address is this node's, and else as
    /// another member. A node that listens at the unspecified address is the member with its port
    /// and an address of this machine.
    ///
    /// For the scheme `postal` without a lambda the root measures the network first. That takes
    /// about fifty messages, and the root waits for the members up to three seconds.
    ///
    /// # Errors
    /// [`NodeError::Members`] if this node is not a member or the addresses are invalid;
    /// [`NodeError::Plan`], if the scheme has no tree for these members;
    /// [`NodeError::PlanNotExecutable`]; [`NodeError::NotOnFabric`]; [`NodeError::Refused`].
    pub fn group(&self, settings: &GroupSettings) -> Result<Group, NodeError> {
        // Invalid members are reported before the search for this node among them.
        let config = GroupConfig::new(settings.clone())?;
        tree::on_fabric::check(settings)?;
        let hosts = config.hosts();
        let host = find_own(self.address(), hosts.addresses())?;
        let here = hosts.members_of(host);
        let own = match (&here[..], settings.member) {
            (&[one], None) => one.index(),
            (_, Some(member)) if here.contains(&MemberId(member as u32)) => member,
            (_, Some(member)) => {
                let (address, here) = (self.address(), list(&here));
                return Err(NodeError::Members(format!(
                    "this node, at {address}, is that of members {here}, and not of member {member}"
                )));
            }
            (_, None) => {
                let (address, here) = (self.address(), list(&here));
                return Err(NodeError::Members(format!(
                    "this node, at {address}, is that of members {here}: say which of them this process is (member=N)"
                )));
            }
        };
        self.enter(config, own)
    }

    /// Asks the root of a group that is running to take this node in. Only the root has to be among
    /// the members of `settings`.
    ///
    /// # Errors
    /// Those of [`Node::group`]. Whether the root takes the node in, the group's calls report.
    pub fn join_running(&self, settings: &GroupSettings) -> Result<Group, NodeError> {
        check_paths(settings, None)?;
        self.join_group(settings, None)
    }

    /// At the root, the settings of a group, with what fits this node's engine and the network.
    ///
    /// # Errors
    /// [`NodeError::Setting`] if the network of the environment cannot be read.
    pub(crate) fn for_engine(&self, config: GroupConfig) -> Result<GroupConfig, NodeError> {
        let settings = config.settings();
        let is_open = (settings.scheme.is_none() || settings.measures_lambda()) && settings.plan.is_none();
        let of_environment =
            if is_open && settings.network.is_none() { network_of_environment()? } else { None };
        let config = match of_environment {
            Some(network) => config.with_network(network),
            None => config,
        };
        Ok(config.for_engine(self.backend.has_streams(), self.backend.has_kernel()))
    }

    pub(crate) fn create_group(&self, config: &GroupConfig) -> Result<Group, NodeError> {
        let settings = config.settings();
        let hosts = config.hosts();
        let plan = tree::plan_of(hosts, settings, self.backend.has_kernel())?;
        let children = tree::children(plan.as_deref(), hosts);
        let shared_group = self.shared_group(settings, hosts, Some(settings.root))?;
        let socket = self.backend.create_group(config, children, &shared_group)?;
        let sender_config = SenderConfig {
            offload: config.offload().clone(),
            transport: config.transport(),
            datagram_bytes: config.datagram_bytes(),
            keys: config.session_keys(),
            cipher: config.encrypted_session().map(|session| Cipher::new(&config.key(), session)),
            socket,
        };
        Ok(Group::new(
            Arc::clone(&self.backend),
            shared_group,
            settings,
            hosts.clone(),
            Some(settings.root),
            Some(sender_config),
        )
        .with_plan(plan))
    }

    /// Becomes a member of the root's group: as the member `own`, or as one that its root does not
    /// know yet.
    pub(crate) fn join_group(
        &self,
        settings: &GroupSettings,
        own: Option<usize>,
    ) -> Result<Group, NodeError> {
        let hosts = Hosts::of(&settings.members)?;
        let shared_group = self.shared_group(settings, &hosts, own)?;
        let config = GroupConfig::for_join(settings)?;
        self.backend.join_group(&config, &shared_group)?;
        Ok(Group::new(Arc::clone(&self.backend), shared_group, settings, hosts, own, None))
    }

    fn shared_group(
        &self,
        settings: &GroupSettings,
        hosts: &Hosts,
        own: Option<usize>,
    ) -> Result<Arc<SharedGroup>, NodeError> {
        let place = own.and_then(|own| hosts.place_of(own));
        if let Some(place) = place {
            if !self.engine().is_shared() {
                return Err(NodeError::Members(format!(
                    "{} is the address of {} members, and this node serves its own process only: use the daemon, or open the node with share",
                    self.address(),
                    place.count
                )));
            }
            if let Some(offload) = settings.offload.filter(|offload| !offload.is_by_node()) {
                return Err(NodeError::Members(format!(
                    "members that share a node forward by it: offload={offload} is for hosts of one member"
                )));
            }
        }
        let waker = self.backend.poller().waker();
        let progress = self.backend.progress();
        Ok(Arc::new(SharedGroup::new(settings.group, waker, progress).at_place(place)))
    }

    /// Closes the node, and ends its groups: a root aborts its group, another member leaves. Waits,
    /// for some seconds at most, until closed groups have sent what other members still need. If
    /// other processes of this host use the node (`share`), waits for them too: until the timeout,
    /// or without one for five seconds; the groups of those that still use it end then.
    ///
    /// # Errors
    /// [`NodeError::TimedOut`], after which it can be called again.
    pub fn close(&self, timeout: Option<Duration>) -> Result<(), NodeError> {
        let started = Instant::now();
        self.thread.close(timeout)?;
        let mut shared = lock(&self.shared);
        if let Some(node) = &*shared
            && !node.wait_until_unused(started + timeout.unwrap_or(SHARED_TIMEOUT))
            && timeout.is_some()
        {
            return Err(NodeError::TimedOut);
        }
        *shared = None;
        Ok(())
    }

    /// Problems of the kernel's packet path of this process: an interface that has disappeared, a
    /// program that was detached. All groups then run in user space. Checks now; the node itself
    /// checks once per second while it works. A daemon reports the same in its log, and the result
    /// is empty.
    pub fn troubles(&self) -> Vec<HookTrouble> {
        self.backend.troubles()
    }

    /// The counters of datagrams that belonged to no group; none once the process that has the node
    /// has ended.
    pub fn strays(&self) -> Option<StrayCounters> {
        self.backend.query(Query::Strays).into_numbers().map(StrayCounters::from_values)
    }
}

/// The numbers of members, for a message.
fn list(members: &[MemberId]) -> String {
    let numbers: Vec<String> = members.iter().map(ToString::to_string).collect();
    numbers.join(", ")
}

/// Closes the node, and waits for that.
impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.close(None);
    }
}
