//! The daemon: one thread admits clients, and gives each to the thread of its user
//! (`users/user.rs`).

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, socketpair};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::Timespec;
use treecast_ebpf::{WakeNonce, WakeSocket};
use treecast_engine::Happened;
use treecast_engine::audit::{self, Audit, AuditKind};
use treecast_engine::random;
use treecast_engine::settings::NodeSettings;
use treecast_engine::settings::error::NodeError;
use treecast_engine::thread::NodeThread;
use treecast_proto::StrayCounters;
use treecast_shm::clock;

use super::account::KernelMemory;
use super::client_link::ClientWaker;
use super::listening::ListeningSocket;
use super::messages::{DaemonMessage, VERSION};
use super::seqpacket;
use super::users::connection::Connection;
use super::users::{ConnectionBounds, PeerCredentials, Policy, Shared, User, peer_credentials};

/// The most descriptors that the daemon has for a group: its memory, its maps, and its multicast.
const DESCRIPTORS_PER_GROUP: u64 = 8;

/// The lanes of the node's socket: one for datagrams of no group, and the others for users, who
/// share them if they are more.
const LANES: usize = 16;

/// The tokens of what wakes the thread.
const LISTENER: u64 = 0;
const STOP: u64 = 1;

/// The pause after `accept` has failed.
const ACCEPT_BACKOFF: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// How long groups may take to end when the daemon ends.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A node of this process that serves other processes, on a Unix socket.
#[derive(Debug)]
pub struct Daemon {
    node: NodeThread,
    shared: Arc<Shared>,
    /// The users of which the daemon has anything ([`User::is_known`]).
    users: BTreeMap<u32, Arc<User>>,
    connection_bounds: ConnectionBounds,
    listener: ListeningSocket,
    watch: OwnedFd,
    clients: u64,
    rejected: u64,
    audit: Audit,
    /// Accepting has failed, because descriptors or memory are exhausted, and is tried again later.
    is_paused: bool,
}

/// The counters of a daemon.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DaemonCounters {
    /// Accepted clients.
    pub clients: u64,
    /// Rejected clients: the policy has no rule for them, or there are too many.
    pub rejected: u64,
    /// Clients that were disconnected because of an invalid message, or because they did not read
    /// their answers.
    pub disconnected: u64,
    /// Refused groups, also those that ended because they exceeded the budget of their user later
    /// on.
    pub refused_groups: u64,
    /// Groups that ended because their applications wrote invalid values into shared memory.
    pub invalid: u64,
    /// Datagrams that belong to no group.
    pub strays: StrayCounters,
}

/// Stops a daemon, from another thread.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// Stops it: [`Daemon::serve`] returns.
    pub fn stop(&self) {
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// Whether a daemon is in use.
#[derive(Debug)]
pub(super) struct Usage(Arc<Shared>);

impl Usage {
    /// Whether it has clients, or groups that wait for some.
    pub fn is_used(&self) -> bool {
        self.0.clients.load(Ordering::SeqCst) + self.0.awaiting.load(Ordering::SeqCst) > 0
    }
}

impl Daemon {
    /// The version of the messages between a daemon and its clients. A daemon serves only clients
    /// of its own version.
    pub const PROTOCOL_VERSION: u32 = VERSION;

    /// Opens a node in this process, and a socket at a path, whose directory is created if it is
    /// missing. The socket of a daemon that has died is replaced.
    ///
    /// # Errors
    /// Those of `Node::open`; [`NodeError::Daemon`], if a daemon listens at the path;
    /// [`NodeError::System`].
    pub fn open(settings: &NodeSettings, path: &Path, policy: Policy) -> Result<Self, NodeError> {
        raise_descriptor_limit();
        Self::with_listener(settings, LANES, policy, ListeningSocket::open(path)?)
    }

    /// Opens a node in this process, whose socket has this number of lanes, for clients of a
    /// socket.
    pub(super) fn with_listener(
        settings: &NodeSettings,
        lanes: usize,
        policy: Policy,
        listener: ListeningSocket,
    ) -> Result<Self, NodeError> {
        let (node, engine) = NodeThread::open(settings, lanes)?;
        let what = "cannot watch descriptors";
        let make = || {
            let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for (descriptor, number) in [(listener.descriptor(), LISTENER), (&stop, STOP)] {
                epoll::add(&watch, descriptor, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
            }
            Ok((stop, watch, KernelMemory::new()?))
        };
        let (stop, watch, kernel_memory) =
            make().map_err(|source: io::Error| NodeError::System { what, source })?;
        Ok(Self {
            node,
            shared: Arc::new(Shared::new(
                engine,
                policy,
                kernel_memory,
                Arc::new(stop),
                settings.protocol.join_timeout,
            )),
            users: BTreeMap::new(),
            connection_bounds: ConnectionBounds::new(
                getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
                DESCRIPTORS_PER_GROUP * settings.protocol.groups_max as u64,
            ),
            listener,
            watch,
            clients: 0,
            rejected: 0,
            audit: Audit::default(),
            is_paused: false,
        })
    }

    /// The address at which the node listens.
    pub fn address(&self) -> SocketAddr {
        self.node.address()
    }

    /// Stops the daemon.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared.stop))
    }

    /// Tells at any time whether the daemon is in use.
    pub(super) fn usage(&self) -> Usage {
        Usage(Arc::clone(&self.shared))
    }

    /// The counters.
    pub fn counters(&self) -> DaemonCounters {
        let Shared { engine, disconnected, refused_groups, .. } = &*self.shared;
        let Happened { invalid, over_budget, strays } = engine.happened();
        DaemonCounters {
            clients: self.clients,
            rejected: self.rejected,
            disconnected: disconnected.load(Ordering::SeqCst),
            refused_groups: refused_groups.load(Ordering::SeqCst) + over_budget,
            invalid,
            strays,
        }
    }

    /// Serves clients until it is stopped. Then it ends all groups, detaches the program from the
    /// interfaces, and removes the socket.
    ///
    /// # Errors
    /// [`NodeError::System`].
    pub fn serve(mut self) -> Result<DaemonCounters, NodeError> {
        loop {
            let empty =
                epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(STOP) };
            let mut events = [empty; 2];
            let time = self.is_paused.then_some(&ACCEPT_BACKOFF);
            let count = match epoll::wait(&self.watch, &mut events[..], time) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(source) => {
                    self.end();
                    return Err(NodeError::System { what: "cannot wait for clients", source: source.into() });
                }
            };
            if self.is_paused {
                self.pause(false);
            }
            for event in &events[..count] {
                match event.data.u64() {
                    STOP => return Ok(self.end()),
                    _ => self.accept(),
                }
            }
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(self.listener.descriptor(), flags) {
            Ok(socket) => socket,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {
                return;
            }
            Err(error) => {
                tracing::error!(%error, "cannot accept clients; the next attempt is in one second");
                return self.pause(true);
            }
        };
        match self.admit(&socket) {
            Ok(()) => {}
            Err(reason) => {
                self.rejected += 1;
                if self.audit.admits(clock::now(), AuditKind::RejectedClient) {
                    tracing::warn!(target: audit::TARGET, %reason, "audit: a client is rejected");
                }
                let text = serde_json::to_vec(&DaemonMessage::Refused { reason }).unwrap_or_default();
                let _ = seqpacket::send(&socket, &text, &[], false);
            }
        }
    }

    /// Accepts the connection of a client.
    ///
    /// # Errors
    /// Why the client is rejected.
    fn admit(&mut self, socket: &OwnedFd) -> Result<(), String> {
        let unknown = |error| format!("cannot read the credentials of the client: {error}");
        let peer = peer_credentials(socket).map_err(unknown)?;
        let Some((index, rule)) = self.shared.policy.rule_for(&peer) else {
            return Err(format!("the daemon's policy has no rule for {peer}"));
        };
        let overload = |error| format!("the daemon cannot serve another client, {peer}: {error}");
        self.users.retain(|_, user| user.is_known());
        let counts = self.users.iter().map(|(&user, known)| (user, known.client_count()));
        self.connection_bounds
            .admit(peer.user, counts)
            .map_err(|reason| format!("the daemon accepts no connection of {peer}: {reason}"))?;
        let new = || Arc::new(User::new(peer.user, &self.shared, rule));
        let user = Arc::clone(self.users.entry(peer.user).or_insert_with(new));
        let connection = new_connection(&self.node, socket, peer.clone(), index).map_err(overload)?;
        tracing::info!(client = %peer, rule = rule.name(), "a client has connected");
        user.serve(connection).map_err(overload)?;
        self.clients += 1;
        Ok(())
    }

    fn pause(&mut self, is_paused: bool) {
        let flags = if is_paused { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        let data = epoll::EventData::new_u64(LISTENER);
        let _ = epoll::modify(&self.watch, self.listener.descriptor(), data, flags);
        self.is_paused = is_paused;
    }

    /// Ends the connections of all clients, and the threads of the users.
    fn end(&mut self) -> DaemonCounters {
        self.stopper().stop();
        tracing::info!("the daemon stops");
        for user in self.users.values() {
            user.join();
        }
        if self.node.close(Some(END_TIMEOUT)).is_err() {
            tracing::warn!("groups have not ended within the timeout");
        }
        self.counters()
    }
}

pub(super) fn new_connection(
    node: &NodeThread,
    socket: &OwnedFd,
    peer: PeerCredentials,
    rule: usize,
) -> io::Result<Connection> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (daemon_end, client_end) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let wake = UdpSocket::bind((node.address().ip(), 0))?;
    wake.set_nonblocking(true)?;
    let name = peer.to_string();
    let wake_socket = WakeSocket { port: wake.local_addr()?.port(), nonce: WakeNonce(random::word()?) };
    let waker = ClientWaker { socket: daemon_end, wake_socket, name };
    Ok(Connection::new(socket.try_clone()?, peer, rule, waker, (client_end, wake)))
}

/// Raises the limit of descriptors: a client needs two, and each of its groups two until the client
/// has them.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}
