//! The engine of a node whose groups a daemon runs: the client's end of the connection.

mod discovery;
mod exchange;
mod mapping;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use rustix::process::getuid;
use rustix::time::Timespec;
use treecast_ebpf::{HookTrouble, WakeNonce};
use treecast_proto::{
    Contribution, Ending, GroupId, Input, MemberId, Offload, Refused, SessionId, StrayCounters,
};

use super::kernel_wakeups::KernelWakeups;
use super::listening::SocketName;
use super::messages::{
    AbortMessage, ClientMessage, DaemonMessage, GroupUpdate, MemoryLayout, PlacementMessage, SettingsMessage,
    VERSION, Wakeup,
};
use super::seqpacket::{self, Received};
use super::users::peer_credentials;

pub use discovery::{find_daemon, find_unused_daemon};
pub(super) use exchange::{ANSWER_TIMEOUT, ConnectError};

use exchange::{WithDescriptors, open, request, set_timeout};
use mapping::{Mapped, descriptors_of};
use treecast_engine::backend::{Backend, RunningEngine};
use treecast_engine::query::{Answer, Query};
use treecast_engine::root_socket::RootSocket;
use treecast_engine::settings::EngineChoice;
use treecast_engine::settings::config::GroupConfig;
use treecast_engine::settings::error::NodeError;
use treecast_engine::wait::poller::{EventSource, Poller};
use treecast_shm::ring::ReaderPlace;
use treecast_shm::shared_group::{Placement, RingSide, SharedGroup};
use treecast_shm::spin::SpinPolicy;
use treecast_shm::sync::lock;
use treecast_shm::waker::Waker;

/// The connection of a process to a daemon.
#[derive(Debug)]
pub struct Client {
    name: SocketName,
    /// The process that has the node.
    process: i32,
    address: SocketAddr,
    has_kernel: bool,
    has_streams: bool,
    socket: Arc<OwnedFd>,
    /// Held from a request to its answer.
    exchange: Mutex<()>,
    /// The daemon's wake-ups.
    wakeups: OwnedFd,
    /// The wake-ups of the kernel's packet path.
    kernel_wakeups: KernelWakeups,
    groups: Mutex<BTreeMap<GroupId, Arc<SharedGroup>>>,
    poller: Poller,
    /// Wakes the node's own thread.
    waker: Waker,
    is_stopping: AtomicBool,
    is_over: AtomicBool,
}

/// The tokens of what wakes the node's own thread.
const WAKEUPS: u64 = 0;
const KERNEL_WAKEUPS: u64 = 1;
const HANG_UP: u64 = 2;
const WAKER: u64 = 3;

/// How long groups may take to end when the node closes.
const END_TIMEOUT: Duration = Duration::from_secs(6);

/// How often the thread checks whether all groups have ended.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The most wake-ups that are read at once.
const WAKEUPS_MAX: usize = 256;

/// After this many wake-ups at once the socket's buffer may have been full, and an update may be
/// missing.
const WAKEUPS_BEFORE_UPDATE: usize = 64;

impl Client {
    /// Connects to the daemon at a socket, or to another process of this user that shares its node,
    /// which may take until the timeout to accept and to answer.
    ///
    /// # Errors
    /// Nobody listens there, or the peer rejects this process.
    pub(super) fn connect(
        name: &SocketName,
        spin: Option<Duration>,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let failed = |error: &dyn std::fmt::Display| ConnectError::Rejected(format!("{name}: {error}"));
        let socket =
            open(name, timeout).map_err(|source| ConnectError::Unreachable { name: name.clone(), source })?;
        let peer = peer_credentials(&socket).map_err(|error| failed(&error))?;
        if matches!(name, SocketName::Abstract(_)) && peer.user != getuid().as_raw() {
            return Err(ConnectError::Foreign { name: name.clone(), peer });
        }
        let hello = ClientMessage::Hello { version: VERSION };
        let (answer, descriptors) = request(&socket, &hello).map_err(|source| ConnectError::Silent {
            name: name.clone(),
            process: peer.process,
            source,
        })?;
        set_timeout(&socket, ANSWER_TIMEOUT).map_err(|error| failed(&error))?;
        let (address, has_kernel, has_streams, wake_nonce) = match answer {
            DaemonMessage::Welcome { address, has_kernel, has_streams, wake_nonce } => {
                (address, has_kernel, has_streams, WakeNonce(wake_nonce))
            }
            DaemonMessage::Refused { reason } => return Err(failed(&reason)),
            _ => return Err(failed(&"the peer is not a daemon of this version")),
        };
        let Ok([wakeups, kernel_wakeups]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err(failed(&"the daemon sent no descriptors: this process may have too many open"));
        };
        let open = || {
            let sources = vec![
                EventSource::new(wakeups.try_clone()?, WAKEUPS),
                EventSource::new(kernel_wakeups.try_clone()?, KERNEL_WAKEUPS),
                EventSource::hang_up(socket.try_clone()?, HANG_UP),
            ];
            let poller = Poller::new(sources, SpinPolicy::new(spin), true)?;
            let waker = Waker::new()?;
            poller.watch(&waker, WAKER)?;
            Ok((poller, waker))
        };
        let (poller, waker) = open().map_err(|error: io::Error| failed(&error))?;
        Ok(Self {
            name: name.clone(),
            process: peer.process,
            address,
            has_kernel,
            has_streams,
            socket: Arc::new(socket),
            exchange: Mutex::new(()),
            wakeups,
            kernel_wakeups: KernelWakeups::new(kernel_wakeups.into(), wake_nonce),
            groups: Mutex::default(),
            poller,
            waker,
            is_stopping: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    /// The name of the socket where its daemon listens.
    pub const fn name(&self) -> &impl std::fmt::Display {
        &self.name
    }

    /// Adds the datagrams at this process's own socket to the daemon's strays.
    fn with_own_strays(&self, answer: Answer) -> Answer {
        let strays = answer.into_numbers().map(|numbers| {
            let of_daemon = StrayCounters::from_values(numbers);
            let malformed = of_daemon.malformed + self.kernel_wakeups.strays();
            StrayCounters { malformed, ..of_daemon }.values().map(|(_, count)| count).collect()
        });
        Answer::Numbers(strays)
    }

    fn send(&self, message: &ClientMessage, may_block: bool) -> io::Result<()> {
        seqpacket::send(&self.socket, &serde_json::to_vec(message)?, &[], may_block)
    }

    /// Takes part in a group. The caller holds the exchange, so that no update of the group arrives
    /// before it is in the table.
    fn enter(
        &self,
        message: &ClientMessage,
        shared_group: &Arc<SharedGroup>,
    ) -> Result<(Option<MemoryLayout>, Vec<OwnedFd>), NodeError> {
        let group = shared_group.group;
        if lock(&self.groups).get(&group).is_some_and(|known| !known.has_ended()) {
            return Err(Refused::GroupExists(group).into());
        }
        if self.is_over.load(Ordering::Acquire) {
            return Err(NodeError::NodeClosed);
        }
        match self.request_in_exchange(message)? {
            (DaemonMessage::Entered { memory }, descriptors) => {
                lock(&self.groups).insert(group, Arc::clone(shared_group));
                Ok((memory, descriptors))
            }
            _ => Err(self.unusable("unexpected answer")),
        }
    }

    /// Sends a request, and waits for its answer. The caller holds the exchange.
    fn request_in_exchange(&self, message: &ClientMessage) -> Result<WithDescriptors, NodeError> {
        match request(&self.socket, message) {
            Ok((DaemonMessage::Refused { reason }, _)) => Err(NodeError::Daemon(reason)),
            Ok(answer) => Ok(answer),
            Err(error) => {
                let error = self.unusable(&error.to_string());
                self.finish(&error.to_string());
                Err(error)
            }
        }
    }

    fn unusable(&self, reason: &str) -> NodeError {
        NodeError::Daemon(match &self.name {
            SocketName::Path(path) => format!("the daemon at {} is unusable: {reason}", path.display()),
            SocketName::Abstract(_) => format!("the node of process {} is unusable: {reason}", self.process),
        })
    }

    fn wake_group(&self, group: GroupId) {
        let shared_group = lock(&self.groups).get(&group).cloned();
        if let Some(shared_group) = shared_group {
            shared_group.events.notify();
        }
    }

    /// Takes all updates.
    fn poll_updates(&self) {
        let _exchange = lock(&self.exchange);
        while let Ok((DaemonMessage::Update { update, is_last }, descriptors)) =
            self.request_in_exchange(&ClientMessage::PollUpdate)
        {
            if let Some(update) = update {
                self.apply(*update, &descriptors);
            }
            if is_last {
                return;
            }
        }
    }

    fn apply(&self, update: GroupUpdate, descriptors: &[OwnedFd]) {
        let group = GroupId(update.group);
        let Some(shared_group) = lock(&self.groups).get(&group).cloned() else { return };
        if let Some(PlacementMessage { member, offload, encrypted_session, memory, is_at_root }) =
            &update.placement
        {
            let offload = offload.parse().unwrap_or(Offload::Nic);
            match self.map(memory, descriptors, &shared_group, false) {
                Ok(Mapped { reader, readers, .. }) => {
                    let place = readers.zip(shared_group.place).map(|(readers, place)| {
                        let (number, is_at_root) = (place.number as usize, *is_at_root);
                        ReaderPlace { readers, number, is_at_root }
                    });
                    let reader = reader.at_place(place);
                    let side = Mutex::new(Some(RingSide::Reader(reader)));
                    let (member, encrypted_session) = (*member, encrypted_session.map(SessionId));
                    shared_group.set_placement(Placement { side, member, offload, encrypted_session });
                }
                Err(error) => shared_group.fail(&error.to_string()),
            }
        }
        for loss in update.losses {
            shared_group.add_loss(loss.into());
        }
        if update.is_ready {
            shared_group.set_ready();
        }
        if let Some(result) = update.reduced.as_deref().and_then(Contribution::read) {
            shared_group.set_reduced(result);
        }
        if update.datagrams_too_long {
            shared_group.set_datagrams_too_long();
        }
        if update.is_closed {
            shared_group.close();
        }
        if let Some(reason) = update.failure {
            shared_group.fail(&reason);
        }
        if let Some(ending) = update.ending {
            lock(&self.groups).remove(&group);
            shared_group.end(ending.into());
        }
    }

    /// The connection has ended: so have all groups.
    fn finish(&self, reason: &str) {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        if !self.is_stopping.load(Ordering::Acquire) {
            tracing::info!(%reason, "the groups of the node have ended");
        }
        for shared_group in std::mem::take(&mut *lock(&self.groups)).into_values() {
            shared_group.fail(reason);
            shared_group.end(Ending::Aborted);
        }
        self.waker.wake();
    }

    /// Whether all groups have ended, or the time for that is over. Ends those that the application
    /// still has, each time: a member may have got its place since.
    fn have_groups_ended(&self, since: Instant) -> bool {
        let groups: Vec<Arc<SharedGroup>> = lock(&self.groups).values().cloned().collect();
        // One reference is in `groups`, one in the table, and one at the application.
        for shared_group in groups.iter().filter(|shared_group| Arc::strong_count(shared_group) > 2) {
            let _ = self.send(&ClientMessage::End { group: shared_group.group.0 }, false);
        }
        groups.iter().all(|shared_group| shared_group.has_ended()) || since.elapsed() > END_TIMEOUT
    }
}

impl Backend for Client {
    fn engine(&self) -> RunningEngine {
        let engine = if self.has_kernel { EngineChoice::Ebpf } else { EngineChoice::User };
        match &self.name {
            SocketName::Path(path) => RunningEngine::Daemon { socket: path.clone(), engine },
            SocketName::Abstract(_) => RunningEngine::Shared { process: self.process, engine },
        }
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn has_kernel(&self) -> bool {
        self.has_kernel
    }

    fn has_streams(&self) -> bool {
        self.has_streams
    }

    fn run(&self) {
        let mut stopping_since = None;
        while !self.is_over.load(Ordering::Acquire) {
            self.waker.arm();
            let is_stopping = self.is_stopping.load(Ordering::Acquire);
            if is_stopping && self.have_groups_ended(*stopping_since.get_or_insert_with(Instant::now)) {
                break;
            }
            if self.is_over.load(Ordering::Acquire) {
                break;
            }
            let woken = self.poller.sleep(is_stopping.then_some(&CHECK_INTERVAL));
            self.waker.disarm();
            if woken & 1 << WAKER != 0 {
                self.waker.clear();
            }
            self.drive(u64::MAX);
        }
        self.finish("the node has been closed");
        let _ = shutdown(&self.socket, Shutdown::Both);
        discovery::release_process();
    }

    fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.waker.arm();
        self.waker.wake();
    }

    fn poller(&self) -> &Poller {
        &self.poller
    }

    /// Reads the wake-ups, and takes updates.
    fn drive(&self, _ready: u64) {
        let mut bytes = [0; 64];
        let mut count = 0;
        let mut has_update = false;
        while count < WAKEUPS_MAX
            && let Ok(Received::Message(length)) = seqpacket::receive(&self.wakeups, &mut bytes, None, false)
        {
            count += 1;
            match Wakeup::read(&bytes[..length]) {
                Wakeup::Ring(group) => self.wake_group(GroupId(group)),
                Wakeup::Update => has_update = true,
            }
        }
        self.kernel_wakeups.take(WAKEUPS_MAX, |group| self.wake_group(group));
        if has_update || count >= WAKEUPS_BEFORE_UPDATE {
            self.poll_updates();
        }
        let peeked = recv(&self.socket, &mut [0_u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        if peeked.is_ok_and(|(length, _)| length == 0) {
            self.finish(&self.unusable("it has ended").to_string());
        }
    }

    fn wake(&self) {
        // A daemon with a full buffer of this client's messages checks the rings when it reads
        // them.
        let _ = self.send(&ClientMessage::Wake, false);
    }

    fn wake_thread(&self) {
        self.wake();
    }

    fn request(&self, input: Input<'static>) {
        let message = match input {
            Input::Close { group } => ClientMessage::Close { group: group.0 },
            Input::Leave { group } => ClientMessage::Leave { group: group.0 },
            Input::Evict { group, member } => ClientMessage::Evict { group: group.0, member: member.0 },
            Input::Relieve { group, member } => ClientMessage::Relieve { group: group.0, member: member.0 },
            Input::Abort { group, why } => ClientMessage::Abort { group: group.0, why: AbortMessage(why) },
            Input::Contribute { group, contribution, .. } => {
                ClientMessage::Contribute { group: group.0, contribution: contribution.write() }
            }
            Input::Flush { group } => ClientMessage::Flush { group: group.0 },
            Input::Repair { group, packet } => ClientMessage::Repair { group: group.0, packet: packet.0 },
            Input::Forward { group, upto, child } => {
                ClientMessage::Forward { group: group.0, upto: upto.0, child: child.map(|child| child.0) }
            }
            _ => unreachable!("an application sends no other request"),
        };
        // The thread finds out that the daemon has ended.
        let _ = self.send(&message, true);
    }

    fn create_group(
        &self,
        config: &GroupConfig,
        children: Vec<Vec<MemberId>>,
        shared_group: &Arc<SharedGroup>,
    ) -> Result<Option<RootSocket>, NodeError> {
        let settings = config.settings();
        let message = ClientMessage::CreateGroup {
            settings: SettingsMessage::of(settings),
            children,
            session: config.session().0,
            place: shared_group.place,
        };
        let exchange = lock(&self.exchange);
        let (memory, mut descriptors) = self.enter(&message, shared_group)?;
        let memory = memory.ok_or_else(|| self.unusable("it sent no memory"))?;
        let Mapped { writer, readers, .. } = self.map(&memory, &descriptors, shared_group, true)?;
        let writer = writer.with_readers(readers);
        let socket = descriptors.drain(descriptors_of(shared_group).min(descriptors.len())..).next();
        let socket = socket.map(UdpSocket::from).zip(writer.shared_memory().cloned());
        let socket = socket.map(|(socket, memory)| RootSocket::new(socket, config, memory));
        shared_group.set_placement(Placement {
            side: Mutex::new(Some(RingSide::Writer(writer))),
            member: config.hosts().host_of(settings.root) as u32,
            offload: config.offload().offload,
            encrypted_session: config.encrypted_session(),
        });
        drop(exchange);
        Ok(socket)
    }

    fn join_group(&self, config: &GroupConfig, shared_group: &Arc<SharedGroup>) -> Result<(), NodeError> {
        let settings = SettingsMessage::of(config.settings());
        let _exchange = lock(&self.exchange);
        let message = ClientMessage::JoinGroup { settings, place: shared_group.place };
        self.enter(&message, shared_group).map(|_| ())
    }

    fn query(&self, query: Query) -> Answer {
        let _exchange = lock(&self.exchange);
        match self.request_in_exchange(&ClientMessage::Query(query)) {
            Ok((DaemonMessage::Answer(answer), _)) if query == Query::Strays => self.with_own_strays(answer),
            Ok((DaemonMessage::Answer(answer), _)) => answer,
            _ => query.empty_answer(),
        }
    }

    fn take_updates(&self) {
        self.poll_updates();
    }

    fn troubles(&self) -> Vec<HookTrouble> {
        Vec::new()
    }
}
