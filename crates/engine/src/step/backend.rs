//! The interface of a node to its engine, in this process or in a daemon.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use treecast_ebpf::HookTrouble;
use treecast_proto::{Input, MemberId, Sequence};
use treecast_shm::message_buffer::LentBuffer;
use treecast_shm::progress::ProgressList;
use treecast_shm::shared_group::SharedGroup;

use super::EngineHandle;
use super::query::{Answer, Query};
use super::root_socket::RootSocket;
use crate::settings::EngineChoice;
use crate::settings::config::GroupConfig;
use crate::settings::error::NodeError;
use crate::wait::poller::{Poller, Polling};

/// The packet engine of an open node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunningEngine {
    /// A thread of this process.
    User,
    /// The kernel's packet path, loaded by this process.
    Ebpf,
    /// The daemon of this host.
    Daemon {
        /// The path of its socket.
        socket: PathBuf,
        /// Its engine: the kernel's packet path, or a thread.
        engine: EngineChoice,
    },
    /// A node that processes of one user share.
    Shared {
        /// The process that has it, which may be this one.
        process: i32,
        /// Its engine.
        engine: EngineChoice,
    },
}

impl RunningEngine {
    /// Whether other processes of this host can use the node too.
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Daemon { .. } | Self::Shared { .. })
    }

    /// Which engine it is, whichever process has it: [`EngineChoice::User`] or
    /// [`EngineChoice::Ebpf`].
    pub const fn kind(&self) -> EngineChoice {
        match self {
            Self::User => EngineChoice::User,
            Self::Ebpf => EngineChoice::Ebpf,
            Self::Daemon { engine, .. } | Self::Shared { engine, .. } => *engine,
        }
    }
}

impl fmt::Display for RunningEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => formatter.write_str("user"),
            Self::Ebpf => formatter.write_str("ebpf"),
            Self::Daemon { socket, engine } => {
                write!(formatter, "{engine}, of the daemon at {}", socket.display())
            }
            Self::Shared { process, engine } => {
                write!(formatter, "{engine}, of the node that process {process} shares")
            }
        }
    }
}

/// The engine of this process ([`super::EngineHandle`]), or a daemon's (`treecast-daemon`).
pub trait Backend: fmt::Debug + Send + Sync {
    /// The engine that runs.
    fn engine(&self) -> RunningEngine;

    /// Where the node listens.
    fn address(&self) -> SocketAddr;

    /// Whether groups run in the kernel's packet path.
    fn has_kernel(&self) -> bool;

    /// Whether groups of this root send on streams unless the settings say otherwise: in user
    /// space, where the node has its TCP port.
    fn has_streams(&self) -> bool;

    /// Runs on the node's own thread until the node is closed.
    fn run(&self);

    /// Ends all groups, and then the node's own thread.
    fn stop(&self);

    /// Where threads wait.
    fn poller(&self) -> &Poller;

    /// The groups whose applications have written or read, for the engine; none if it is in another
    /// process.
    fn progress(&self) -> Option<Arc<ProgressList>> {
        None
    }

    /// Handles the events that the polling thread has seen, of the sources with these tokens, a bit
    /// for each.
    fn drive(&self, ready: u64);

    /// The same for a thread that waits for a message of a group: the engine may store packets in
    /// its buffer, where it is in this process.
    fn drive_filling(&self, ready: u64, _group: &SharedGroup, _buffer: &mut LentBuffer) {
        self.drive(ready);
    }

    /// The call ends whose buffer has a part of a packet, or these packets: they go into their
    /// slots.
    fn settle(&self, _group: &SharedGroup, _lent: &LentBuffer, _stored: Range<Sequence>) {}

    /// The application has written or read: there is work for the engine.
    fn wake(&self);

    /// The application has delegated sending: there is work for the engine's own thread.
    fn wake_thread(&self);

    /// Sends a request, which is not answered.
    fn request(&self, input: Input<'static>);

    /// Creates a group at its root, with the children of each member. The result is the way into
    /// the kernel's packet path, if there is one.
    ///
    /// # Errors
    /// Why this node cannot have the group.
    fn create_group(
        &self,
        config: &GroupConfig,
        children: Vec<Vec<MemberId>>,
        shared_group: &Arc<SharedGroup>,
    ) -> Result<Option<RootSocket>, NodeError>;

    /// Becomes a member of the root's group.
    ///
    /// # Errors
    /// As [`Backend::create_group`].
    fn join_group(&self, config: &GroupConfig, shared_group: &Arc<SharedGroup>) -> Result<(), NodeError>;

    /// The answer is empty once the process that has the engine has ended.
    fn query(&self, query: Query) -> Answer;

    /// Takes the changes of groups of which the engine's process has not told yet: it writes slots
    /// before the message that explains them arrives. An engine of this process tells everything at
    /// once.
    fn take_updates(&self) {}

    /// The engine, if it is in this process.
    fn engine_here(self: Arc<Self>) -> Option<Arc<EngineHandle>> {
        None
    }

    /// The same for as long as it is borrowed.
    fn as_engine(&self) -> Option<&EngineHandle> {
        None
    }

    /// Problems of the hooks of this process's kernel path. A daemon reports its own in its log.
    fn troubles(&self) -> Vec<HookTrouble>;
}

impl dyn Backend {
    /// Waits until `find` returns a value, or until the deadline: as the polling thread, which
    /// drives the engine meanwhile, or asleep. The caller ends `polling` unless it waits again at
    /// once.
    ///
    /// A thread that waits for a message may lend its buffer meanwhile, which says afterwards what
    /// was stored there. If it has a part of a packet, the caller waits again, or calls
    /// [`Backend::settle`] before the buffer goes.
    pub fn wait<'a, T>(
        &'a self,
        shared_group: &SharedGroup,
        until: Option<Instant>,
        find: impl FnMut() -> Option<T>,
        mut lent: Option<&mut LentBuffer>,
        polling: &mut Polling<'a>,
    ) -> Option<T> {
        let drive = |ready| match &mut lent {
            Some(lent) => self.drive_filling(ready, shared_group, lent),
            None => self.drive(ready),
        };
        self.poller().wait(&shared_group.events, until, find, drive, polling)
    }
}
