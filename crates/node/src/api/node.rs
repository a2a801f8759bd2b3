//! A node that an application has opened.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use treecast_ebpf::HookTrouble;
use treecast_proto::StrayCounters;

use crate::api::access::{Access, RunningEngine};
use crate::api::addresses::find_own;
use crate::api::group::Group;
use crate::engine::Shared;
use crate::memory::shared_group::Channel;
use crate::sync::lock;
use crate::tree::{self, measure};
use crate::{EngineChoice, GroupSettings, NodeError, NodeSettings};

/// A running node: a thread and a socket of this process, or the daemon's, which serves others too.
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
    access: Access,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Disconnected when the thread is over.
    is_running: Mutex<Receiver<Infallible>>,
}

impl Node {
    /// Opens a node.
    ///
    /// # Errors
    /// [`NodeError::Bind`], [`NodeError::System`].
    pub fn open(settings: &NodeSettings) -> Result<Self, NodeError> {
        Self::run(Access::open(settings)?)
    }

    /// Opens a node whose engine is in this process.
    pub(crate) fn open_here(settings: &NodeSettings) -> Result<Self, NodeError> {
        let here = |engine| Shared::open(&NodeSettings { engine, ..settings.clone() });
        let shared = match settings.engine {
            EngineChoice::Auto => here(EngineChoice::Ebpf).or_else(|error| {
                tracing::info!(why = %error, "the engine is user");
                here(EngineChoice::User)
            }),
            engine => here(engine),
        };
        Self::run(Access::Here(Arc::new(shared?)))
    }

    fn run(access: Access) -> Result<Self, NodeError> {
        let engine = access.clone();
        let (runs, is_running): (Sender<Infallible>, _) = channel();
        let run = move || {
            engine.run();
            drop(runs);
        };
        let thread = std::thread::Builder::new()
            .name("treecast".into())
            .spawn(run)
            .map_err(|source| NodeError::System { what: "cannot start a thread", source })?;
        Ok(Self { access, thread: Mutex::new(Some(thread)), is_running: Mutex::new(is_running) })
    }

    /// What plays the NIC.
    pub fn engine(&self) -> RunningEngine {
        self.access.engine()
    }

    /// What the daemon serves.
    ///
    /// # Panics
    /// If it is the daemon's own: that would be our own bug.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        match &self.access {
            Access::Here(shared) => Arc::clone(shared),
            Access::Daemon(_) => unreachable!("a daemon has its engine in its own process"),
        }
    }

    /// Where the node listens.
    pub fn address(&self) -> SocketAddr {
        self.access.address()
    }

    /// Takes part in a group: as its root, if the root's address is this node's, and else as another member. A node that
    /// listens at all addresses of its machine is the member with its port and one of them.
    ///
    /// For the scheme `postal` without a lambda the root measures the network first, which takes as long as fifty messages do,
    /// and waits for the members up to three seconds for it.
    ///
    /// # Errors
    /// [`NodeError::Members`] if this node is none of them or the addresses are wrong; [`NodeError::Plan`], if there is no such
    /// tree; [`NodeError::Refused`].
    pub fn group(&self, settings: &GroupSettings) -> Result<Group, NodeError> {
        // That the list makes sense is said before what this node is in it.
        tree::check(settings)?;
        self.enter(settings, find_own(self.address(), &settings.members)?)
    }

    /// Takes part in a group as this one of its members.
    pub(crate) fn enter(&self, settings: &GroupSettings, own: usize) -> Result<Group, NodeError> {
        if own == settings.root {
            return self.lead(&measure::measured(self, settings)?);
        }
        let probes = measure::follow(self, settings, own)?;
        Ok(self.follow(settings, Some(own))?.with_probes(probes))
    }

    /// Asks the root of a group that runs already to take this node in. Only the root has to be among the members of `settings`.
    ///
    /// # Errors
    /// Those of [`Node::group`]. Whether the root takes it in is said by the group.
    pub fn join_running(&self, settings: &GroupSettings) -> Result<Group, NodeError> {
        self.follow(settings, None)
    }

    pub(crate) fn lead(&self, settings: &GroupSettings) -> Result<Group, NodeError> {
        settings.check()?;
        let channel = self.channel(settings);
        let source = self.access.lead(settings, &channel)?;
        Ok(Group::new(self.access.clone(), channel, settings, Some(settings.root), source))
    }

    fn channel(&self, settings: &GroupSettings) -> Arc<Channel> {
        Arc::new(Channel::new(settings.group, self.access.leader_waker()))
    }

    /// Follows the root, as a member that it knows, or as one that asks to be one.
    pub(crate) fn follow(&self, settings: &GroupSettings, own: Option<usize>) -> Result<Group, NodeError> {
        let channel = self.channel(settings);
        self.access.follow(settings, own.is_none(), &channel)?;
        Ok(Group::new(self.access.clone(), channel, settings, own, None))
    }

    /// Closes the node, and ends the groups that are left: a root gives its group up, another member leaves. Waits until groups
    /// that are over have said what others still need, for some seconds at most.
    ///
    /// # Errors
    /// [`NodeError::TimedOut`], after which it can be called again.
    pub fn close(&self, timeout: Option<Duration>) -> Result<(), NodeError> {
        self.access.stop();
        let is_running = lock(&self.is_running);
        let still_runs = match timeout {
            Some(timeout) => is_running.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout),
            // Nothing is ever sent: it comes back when the thread is over.
            None => is_running.recv().is_ok(),
        };
        if still_runs {
            return Err(NodeError::TimedOut);
        }
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A panic of the thread has been printed; there is nobody to give it to.
            let _ = thread.join();
        }
        Ok(())
    }

    /// What is wrong with the kernel's packet path, if it has a part in this node: an interface that is gone, the program taken off.
    /// Groups are run by user space alone then. It is looked at now, and now and then while there is something to do. Of a daemon's
    /// interfaces the daemon says it in its log, and nothing is said here.
    pub fn troubles(&self) -> Vec<HookTrouble> {
        self.access.troubles()
    }

    /// What has come that belonged to no group.
    pub fn strays(&self) -> StrayCounters {
        self.access.strays()
    }
}

/// Closes it, however long that takes.
impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.close(None);
    }
}
