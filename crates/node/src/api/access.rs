//! How an application reaches the engine of its node: in this process, or in the daemon's.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use treecast_ebpf::{HookTrouble, KernelCounters};
use treecast_proto::{GroupCounters, GroupId, Input, MemberId, StrayCounters};

use crate::daemon::{Client, Found, socket_path};
use crate::engine::enter;
use crate::engine::root_socket::Source;
use crate::engine::{Engine, Request, Shared};
use crate::memory::shared_group::Channel;
use crate::wait::event_count::EventCount;
use crate::wait::waker::Waker;
use crate::{EngineChoice, GroupSettings, NodeError, NodeSettings};

/// What plays the NIC of a node that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunningEngine {
    /// A thread of this process.
    User,
    /// The kernel's packet path, loaded by this process.
    Ebpf,
    /// The daemon of this host.
    Daemon {
        /// Where it listens.
        socket: PathBuf,
        /// What plays the NIC there: the kernel's packet path, or a thread.
        engine: EngineChoice,
    },
}

impl fmt::Display for RunningEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => formatter.write_str("user"),
            Self::Ebpf => formatter.write_str("ebpf"),
            Self::Daemon { socket, engine } => {
                write!(formatter, "{engine}, of the daemon at {}", socket.display())
            }
        }
    }
}

/// An engine, here or in the daemon.
#[derive(Debug, Clone)]
pub(crate) enum Access {
    Here(Arc<Shared>),
    Daemon(Arc<Client>),
}

/// The process that uses the daemon though it has not named it; 0: none. A node of the daemon is one member of a group, and whoever
/// opens two nodes in a process means two members.
static CLIENT_PROCESS: AtomicU32 = AtomicU32::new(0);

impl Access {
    /// Finds what is to play the NIC.
    pub fn open(settings: &NodeSettings) -> Result<Self, NodeError> {
        let here = |engine| {
            let shared = Shared::open(&NodeSettings { engine, ..settings.clone() })?;
            Ok(Self::Here(Arc::new(shared)))
        };
        let access = match settings.engine {
            EngineChoice::User => here(EngineChoice::User)?,
            EngineChoice::Auto => match find_free_daemon(settings) {
                Ok(client) => Self::Daemon(client),
                Err(why) => {
                    tracing::debug!(%why, "no daemon is used");
                    here(EngineChoice::User)?
                }
            },
            EngineChoice::Ebpf => match here(EngineChoice::Ebpf) {
                Err(NodeError::Kernel(error)) if error.lacks_rights() => match find_daemon(settings) {
                    Ok(client) if client.has_kernel() => Self::Daemon(client),
                    Ok(client) => {
                        let path = client.path().display();
                        tracing::info!("the daemon at {path} has another engine");
                        return Err(error.into());
                    }
                    Err(why) => {
                        tracing::info!(%why, "no daemon is used");
                        return Err(error.into());
                    }
                },
                opened => opened?,
            },
        };
        tracing::info!(address = %access.address(), engine = %access.engine(), "a node listens");
        Ok(access)
    }

    pub fn engine(&self) -> RunningEngine {
        match self {
            Self::Here(shared) if shared.has_kernel() => RunningEngine::Ebpf,
            Self::Here(_) => RunningEngine::User,
            Self::Daemon(client) => RunningEngine::Daemon {
                socket: client.path().into(),
                engine: if client.has_kernel() { EngineChoice::Ebpf } else { EngineChoice::User },
            },
        }
    }

    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Here(shared) => shared.address(),
            Self::Daemon(client) => client.address(),
        }
    }

    /// What the node's own thread does.
    pub fn run(&self) {
        match self {
            Self::Here(shared) => shared.run(),
            Self::Daemon(client) => {
                client.run();
                let own = std::process::id();
                let _ = CLIENT_PROCESS.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst);
            }
        }
    }

    /// Ends all groups, and then the node's own thread.
    pub fn stop(&self) {
        match self {
            Self::Here(shared) => shared.stop(),
            Self::Daemon(client) => client.stop(),
        }
    }

    /// A bell that wakes the guest, if there is one.
    pub fn leader_waker(&self) -> Arc<Waker> {
        match self {
            Self::Here(shared) => shared.leader_waker(),
            Self::Daemon(client) => client.leader_waker(),
        }
    }

    /// Waits until `find` finds something, or the time is over.
    pub fn wait<T>(
        &self,
        events: &EventCount,
        until: Option<Instant>,
        find: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        match self {
            Self::Here(shared) => shared.wait(events, until, find),
            Self::Daemon(client) => client.wait(events, until, find),
        }
    }

    /// There is something for the engine to do.
    pub fn kick(&self) {
        match self {
            Self::Here(shared) => shared.kick(),
            Self::Daemon(client) => client.kick(),
        }
    }

    /// There is something to do for the node's own thread.
    pub fn rouse(&self) {
        match self {
            Self::Here(shared) => shared.rouse(),
            Self::Daemon(client) => client.kick(),
        }
    }

    /// Asks for something, and sees to it that it is done.
    pub fn request(&self, input: Input<'static>) {
        match self {
            Self::Here(shared) => shared.request(Request::Input(input)),
            Self::Daemon(client) => client.request(&input),
        }
    }

    /// Makes a group at its root.
    pub fn lead(
        &self,
        settings: &GroupSettings,
        channel: &Arc<Channel>,
    ) -> Result<Option<Source>, NodeError> {
        let shared = match self {
            Self::Here(shared) => shared,
            Self::Daemon(client) => return client.lead(settings, channel),
        };
        let Some(socket) = enter::lead(shared, settings, channel)? else { return Ok(None) };
        let memory = channel.events.kernel_memory().cloned();
        Ok(memory.map(|memory| Source::new(socket, settings, memory)))
    }

    /// Follows the root of a group.
    pub fn follow(
        &self,
        settings: &GroupSettings,
        sends_join: bool,
        channel: &Arc<Channel>,
    ) -> Result<(), NodeError> {
        match self {
            Self::Here(shared) => enter::follow(shared, settings, sends_join, channel),
            Self::Daemon(client) => client.follow(settings, sends_join, channel),
        }
    }

    pub fn children(&self, group: GroupId) -> Vec<MemberId> {
        match self {
            Self::Here(shared) => shared.with(|engine| engine.children(group)),
            Self::Daemon(client) => client.children(group),
        }
    }

    /// Who has not taken its place yet.
    pub fn awaited(&self, group: GroupId) -> Vec<MemberId> {
        match self {
            Self::Here(shared) => shared.with(|engine| engine.awaited(group)),
            Self::Daemon(client) => client.awaited(group),
        }
    }

    pub fn counters(&self, group: GroupId) -> Option<GroupCounters> {
        match self {
            Self::Here(shared) => shared.with(|engine| engine.counters(group)),
            Self::Daemon(client) => client.counters(group),
        }
    }

    pub fn kernel_counters(&self, group: GroupId) -> Option<KernelCounters> {
        match self {
            Self::Here(shared) => shared.with(|engine| engine.kernel_counters(group)),
            Self::Daemon(client) => client.kernel_counters(group),
        }
    }

    /// Whether groups are in the kernel's packet path.
    pub fn has_kernel(&self) -> bool {
        match self {
            Self::Here(shared) => shared.has_kernel(),
            Self::Daemon(client) => client.has_kernel(),
        }
    }

    pub fn troubles(&self) -> Vec<HookTrouble> {
        match self {
            Self::Here(shared) => shared.with(Engine::troubles),
            Self::Daemon(_) => Vec::new(),
        }
    }

    pub fn strays(&self) -> StrayCounters {
        match self {
            Self::Here(shared) => shared.with(|engine| engine.strays()),
            Self::Daemon(client) => client.strays(),
        }
    }
}

/// The daemon of this host, if it is there, lets this process in, and listens where the node is to.
fn find_daemon(settings: &NodeSettings) -> Result<Arc<Client>, String> {
    let path = socket_path(settings.socket.clone());
    match Client::find(&path, settings.spin) {
        Found::Nothing(why) => Err(why),
        Found::Daemon(client) if is_wanted(settings.bind, client.address()) => Ok(Arc::from(client)),
        Found::Daemon(client) => Err(format!(
            "{}: it listens at {}, and not at {}",
            path.display(),
            client.address(),
            settings.bind
        )),
    }
}

/// The same, if no other node of this process uses it, or it was named.
fn find_free_daemon(settings: &NodeSettings) -> Result<Arc<Client>, String> {
    if settings.socket.is_some() {
        return find_daemon(settings);
    }
    let own = std::process::id();
    let before = CLIENT_PROCESS.swap(own, Ordering::SeqCst);
    if before == own {
        return Err("another node of this process uses the daemon".into());
    }
    find_daemon(settings).inspect_err(|_| CLIENT_PROCESS.store(0, Ordering::SeqCst))
}

/// Whether a node that is to listen at `bind` can be one that listens at `address`.
fn is_wanted(bind: SocketAddr, address: SocketAddr) -> bool {
    let is_ip =
        bind.ip().is_unspecified() && bind.is_ipv4() == address.is_ipv4() || bind.ip() == address.ip();
    is_ip && (bind.port() == 0 || bind.port() == address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_used_where_it_listens_as_the_node_is_to() {
        for (bind, address, is) in [
            ("0.0.0.0:0", "10.0.0.1:7700", true),
            ("0.0.0.0:7700", "10.0.0.1:7700", true),
            ("0.0.0.0:7701", "10.0.0.1:7700", false),
            ("10.0.0.1:0", "10.0.0.1:7700", true),
            ("10.0.0.2:0", "10.0.0.1:7700", false),
            ("127.0.0.1:0", "0.0.0.0:7700", false),
            ("[::]:0", "10.0.0.1:7700", false),
            ("[::]:0", "[::]:7700", true),
        ] {
            assert_eq!(is_wanted(bind.parse().unwrap(), address.parse().unwrap()), is, "{bind} {address}");
        }
    }
}
