//! A node that an application has opened.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use treecast_proto::{Input, Lead, MemberId, Sequence, StrayCounters};

use crate::channel::{Channel, Placed, Side};
use crate::engine::{Request, Shared};
use crate::group::Group;
use crate::ring::ring;
use crate::tree;
use crate::{GroupSettings, NodeError, NodeSettings};

/// A running node within this process: a thread and a socket.
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
    shared: Arc<Shared>,
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
        let shared = Arc::new(Shared::open(settings)?);
        let engine = Arc::clone(&shared);
        let (runs, is_running): (Sender<Infallible>, _) = channel();
        let run = move || {
            engine.run();
            drop(runs);
        };
        let thread = std::thread::Builder::new()
            .name("treecast".into())
            .spawn(run)
            .map_err(|source| NodeError::System { what: "cannot start a thread", source })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)), is_running: Mutex::new(is_running) })
    }

    /// Where the node listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address()
    }

    /// Takes part in a group: as its root, if the root's address is this node's, and else as another member.
    ///
    /// # Errors
    /// [`NodeError::Members`] if this node is none of them or the addresses are wrong; [`NodeError::Plan`], if there is no such
    /// tree; [`NodeError::Refused`].
    pub fn group(&self, settings: &GroupSettings) -> Result<Group, NodeError> {
        let own = settings.members.iter().position(|&member| member == self.address());
        match own {
            Some(own) if own == settings.root => self.lead(settings),
            Some(_) => self.follow(settings, false),
            None => Err(NodeError::Members(format!(
                "this node listens at {}, which is none of the members: {}",
                self.address(),
                settings.members.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
            ))),
        }
    }

    /// Asks the root of a group that runs already to take this node in. Only the root has to be among the members of `settings`.
    ///
    /// # Errors
    /// Those of [`Node::group`]. Whether the root takes it in is said by the group.
    pub fn join(&self, settings: &GroupSettings) -> Result<Group, NodeError> {
        self.follow(settings, true)
    }

    fn lead(&self, settings: &GroupSettings) -> Result<Group, NodeError> {
        settings.check()?;
        let children = tree::children(settings)?;
        let payload_bytes_max = settings.payload_bytes_max();
        let start = Sequence(0);
        let input = Input::Lead(Box::new(Lead {
            group: settings.group,
            cookie: settings.cookie(),
            root: MemberId(settings.root as u32),
            members: settings.members.clone(),
            children,
            slots: settings.slots,
            payload_bytes_max,
            offload: settings.offload,
            start,
            admits: settings.admits,
            bytes_per_s_max: settings.bytes_per_s_max,
        }));
        let (writer, reader) = ring(settings.slots, usize::from(payload_bytes_max), start);
        let channel = self.channel(settings);
        let place = Placed {
            side: Mutex::new(Some(Side::Writer(writer))),
            member: settings.root as u32,
            offload: settings.offload,
        };
        channel.place(place);
        self.enter(settings, channel, input, Some(Side::Reader(reader)))
    }

    fn channel(&self, settings: &GroupSettings) -> Arc<Channel> {
        Arc::new(Channel::new(settings.group, self.shared.guest_bell()))
    }

    fn follow(&self, settings: &GroupSettings, asks: bool) -> Result<Group, NodeError> {
        let Some(&root) = settings.members.get(settings.root) else {
            return Err(NodeError::Members(format!("there is no member {} to be the root", settings.root)));
        };
        let input = Input::Follow { group: settings.group, cookie: settings.cookie(), root, asks };
        self.enter(settings, self.channel(settings), input, None)
    }

    fn enter(
        &self,
        settings: &GroupSettings,
        channel: Arc<Channel>,
        input: Input<'static>,
        side: Option<Side>,
    ) -> Result<Group, NodeError> {
        self.shared.request_and_wait(Request::Enter { channel: Arc::clone(&channel), input, side });
        if let Some(refused) = channel.state().refused.clone() {
            return Err(refused.into());
        }
        Ok(Group::new(Arc::clone(&self.shared), channel, settings))
    }

    /// Closes the node. Waits until its groups are over and have said what others still need, for some seconds at most; groups
    /// that go on are given up or closed before.
    ///
    /// # Errors
    /// [`NodeError::TimedOut`], after which it can be called again.
    pub fn close(&self, timeout: Option<Duration>) -> Result<(), NodeError> {
        self.shared.stop();
        let is_running = self.is_running.lock().unwrap_or_else(PoisonError::into_inner);
        let still_runs = match timeout {
            Some(timeout) => is_running.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout),
            // Nothing is ever sent: it comes back when the thread is over.
            None => is_running.recv().is_ok(),
        };
        if still_runs {
            return Err(NodeError::TimedOut);
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread has been printed; there is nobody to give it to.
            let _ = thread.join();
        }
        Ok(())
    }

    /// What has come that belonged to no group.
    pub fn strays(&self) -> StrayCounters {
        self.shared.with(|engine| engine.strays())
    }
}

/// Closes it, however long that takes.
impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.close(None);
    }
}
