//! A node that an application has opened.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use treecast_ebpf::{HookTrouble, SlotMemory};
use treecast_proto::{Input, Lead, MemberId, Sequence, StrayCounters};

use crate::addresses::find_own;
use crate::channel::{Channel, Placed, Side};
use crate::engine::{Request, RingTerms, Shared};
use crate::group::Group;
use crate::source::Source;
use crate::{GroupSettings, NodeError, NodeSettings};
use crate::{probe, tree};

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
            return self.lead(&probe::measured(self, settings)?);
        }
        let probes = probe::follow(self, settings, own)?;
        Ok(self.follow(settings, Some(own))?.with_probes(probes))
    }

    /// Asks the root of a group that runs already to take this node in. Only the root has to be among the members of `settings`.
    ///
    /// # Errors
    /// Those of [`Node::group`]. Whether the root takes it in is said by the group.
    pub fn join(&self, settings: &GroupSettings) -> Result<Group, NodeError> {
        self.follow(settings, None)
    }

    pub(crate) fn lead(&self, settings: &GroupSettings) -> Result<Group, NodeError> {
        settings.check()?;
        let children = tree::children(settings, self.shared.has_kernel())?;
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
        let terms = RingTerms { slots: settings.slots, payload_bytes_max, start, offload: settings.offload };
        let channel = self.channel(settings);
        let (writer, reader) = self.shared.with(|engine| engine.make_ring(settings.group, terms));
        let source = writer.kernel_memory().cloned().map(|memory| {
            channel.notice.watch_kernel(memory.clone());
            self.source(settings, memory)
        });
        let place = Placed {
            side: Mutex::new(Some(Side::Writer(writer))),
            member: settings.root as u32,
            offload: settings.offload,
        };
        channel.place(place);
        self.give(
            settings,
            Some(settings.root),
            channel,
            input,
            Some(Side::Reader(reader)),
            source.transpose()?,
        )
    }

    /// The way into the kernel's packet path for the packets of a group's root.
    fn source(&self, settings: &GroupSettings, memory: SlotMemory) -> Result<Source, NodeError> {
        let root = settings.members[settings.root];
        let source = Source::open(root, settings.group, settings.cookie(), memory)?;
        let socket = source.cookie()?;
        self.shared.with(|engine| engine.set_source(settings.group, socket));
        Ok(source)
    }

    fn channel(&self, settings: &GroupSettings) -> Arc<Channel> {
        Arc::new(Channel::new(settings.group, self.shared.guest_bell()))
    }

    /// Follows the root, as a member that it knows, or as one that asks to be one.
    pub(crate) fn follow(&self, settings: &GroupSettings, own: Option<usize>) -> Result<Group, NodeError> {
        let no_root = || tree::no_such_root(settings.root, settings.members.len());
        let root = *settings.members.get(settings.root).ok_or_else(no_root)?;
        let asks = own.is_none();
        let input = Input::Follow { group: settings.group, cookie: settings.cookie(), root, asks };
        self.give(settings, own, self.channel(settings), input, None, None)
    }

    /// Gives the group to the engine.
    fn give(
        &self,
        settings: &GroupSettings,
        own: Option<usize>,
        channel: Arc<Channel>,
        input: Input<'static>,
        side: Option<Side>,
        source: Option<Source>,
    ) -> Result<Group, NodeError> {
        self.shared.request_and_wait(Request::Enter { channel: Arc::clone(&channel), input, side });
        if let Some(refused) = channel.state().refused.clone() {
            return Err(refused.into());
        }
        Ok(Group::new(Arc::clone(&self.shared), channel, settings, own, source))
    }

    /// Closes the node, and ends the groups that are left: a root gives its group up, another member leaves. Waits until groups
    /// that are over have said what others still need, for some seconds at most.
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

    /// What is wrong with the kernel's packet path, if it has a part in this node: an interface that is gone, the program taken off.
    /// Groups are run by user space alone then. It is looked at every second, while there are groups.
    pub fn troubles(&self) -> Vec<HookTrouble> {
        self.shared.with(|engine| engine.troubles())
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
