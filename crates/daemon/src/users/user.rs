//! A user of the daemon: what its processes have together, and the thread that serves them.
//!
//! Each user has a thread of its own, from its first client to its last, so that the kernel's
//! scheduler shares the processors among users: the messages of one wait only for their own user's.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::Timespec;
use treecast_engine::EngineHandle;
use treecast_engine::audit::{self, Audit, AuditKind};
use treecast_engine::backend::Backend;
use treecast_proto::{AbortReason, Ending, GroupId, Nanoseconds};
use treecast_shm::clock;
use treecast_shm::sync::lock;

use super::duty::Duty;
use super::policy::{Policy, Rule};
use crate::account::{Account, KernelMemory};
use crate::client_link::{LinkedGroup, WeakGroup};
use crate::messages::{DaemonMessage, MESSAGE_BYTES_MAX};
use crate::seqpacket::{self, Received};
use crate::users::connection::Connection;

/// The most messages of a client that are handled before the user's other clients have their turn.
const MESSAGES_PER_TURN_MAX: usize = 16;

/// How often a user's thread checks whether awaited processes have come.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The tokens of what wakes a user's thread; those of clients follow.
const STOP: u64 = 0;
const ARRIVALS: u64 = 1;
const FIRST_CLIENT: u64 = 2;

/// What all threads of the daemon share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub engine: Arc<EngineHandle>,
    pub policy: Policy,
    pub kernel_memory: Arc<KernelMemory>,
    /// Becomes readable, and stays so, when the daemon stops.
    pub stop: Arc<OwnedFd>,
    /// The number of clients of all users.
    pub clients: AtomicUsize,
    /// The number of groups that wait for processes.
    pub awaiting: AtomicUsize,
    /// How long a group of several processes of a host waits for those that have not come: for its
    /// root, if that is one of them, and for the others when those that have come have left it.
    join_timeout: Nanoseconds,
    pub disconnected: AtomicU64,
    pub refused_groups: AtomicU64,
    /// The groups that clients are entering now: two users may ask for the same number at the same
    /// time.
    entering: Mutex<BTreeSet<GroupId>>,
}

/// A group that is being entered.
#[derive(Debug)]
pub(crate) struct Entering<'a> {
    shared: &'a Shared,
    group: GroupId,
}

/// A user: what all its processes have.
#[derive(Debug)]
pub(crate) struct User {
    pub shared: Arc<Shared>,
    pub account: Arc<Account>,
    pub audit: Mutex<Audit>,
    groups: Mutex<Vec<WeakGroup>>,
    /// The groups that no process has any more, and that others are to read yet: until when these
    /// may come.
    awaited: Mutex<Vec<(Instant, LinkedGroup)>>,
    /// The groups whose root is a process of this host that has not come: until when it may come.
    rootless: Mutex<Vec<(Instant, WeakGroup)>>,
    /// The number of its clients.
    clients: AtomicUsize,
    /// Whether its applications have written or read, and the engine does not know of it.
    has_progress: AtomicBool,
    arrivals: Mutex<Arrivals>,
}

/// Clients that were admitted and that the user's thread has not taken yet; and this thread.
#[derive(Debug, Default)]
struct Arrivals {
    connections: Vec<Connection>,
    /// None while the user has no clients: then it has no descriptor either.
    thread: Option<UserThread>,
}

#[derive(Debug)]
struct UserThread {
    handle: JoinHandle<()>,
    /// Wakes it for arrivals.
    waker: Arc<OwnedFd>,
}

impl Shared {
    pub fn new(
        engine: Arc<EngineHandle>,
        policy: Policy,
        kernel_memory: KernelMemory,
        stop: Arc<OwnedFd>,
        join_timeout: Nanoseconds,
    ) -> Self {
        Self {
            join_timeout,
            engine,
            policy,
            kernel_memory: Arc::new(kernel_memory),
            stop,
            clients: AtomicUsize::new(0),
            awaiting: AtomicUsize::new(0),
            disconnected: AtomicU64::new(0),
            refused_groups: AtomicU64::new(0),
            entering: Mutex::default(),
        }
    }

    /// Keeps others from entering a group of this number meanwhile; `None` if another client is
    /// entering it.
    pub fn begin_entering(&self, group: GroupId) -> Option<Entering<'_>> {
        lock(&self.entering).insert(group).then_some(Entering { shared: self, group })
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        lock(&self.shared.entering).remove(&self.group);
    }
}

impl User {
    pub fn new(user: u32, shared: &Arc<Shared>, rule: &Rule) -> Self {
        let kernel_memory = Arc::downgrade(&shared.kernel_memory);
        let account = Account::new(user, rule.name().into(), rule.memory_max(), kernel_memory);
        Self {
            shared: Arc::clone(shared),
            account: Arc::new(account),
            audit: Mutex::default(),
            groups: Mutex::default(),
            awaited: Mutex::default(),
            rootless: Mutex::default(),
            clients: AtomicUsize::new(0),
            has_progress: AtomicBool::new(false),
            arrivals: Mutex::default(),
        }
    }

    /// Whether the daemon has anything of it: clients, groups that have not been freed, charged
    /// memory, or a limit of its audit lines.
    pub fn is_known(&self) -> bool {
        self.client_count() > 0
            || lock(&self.arrivals).thread.is_some()
            || lock(&self.groups).iter().any(|group| group.shared.strong_count() > 0)
            || !self.account.is_empty()
            || !lock(&self.audit).is_idle(clock::now())
    }

    /// The number of its clients.
    pub fn client_count(&self) -> usize {
        self.clients.load(Ordering::SeqCst)
    }

    /// Whether other users have clients.
    fn has_neighbours(&self) -> bool {
        self.shared.clients.load(Ordering::SeqCst) > self.client_count()
    }

    /// The number of its groups. A group of a client that has gone counts until it has ended.
    pub fn group_count(&self) -> usize {
        let mut groups = lock(&self.groups);
        groups.retain(|group| group.shared.strong_count() > 0);
        groups.iter().filter_map(|group| group.shared.upgrade()).filter(|group| !group.has_ended()).count()
    }

    /// Its group with this number, if it has not ended, or waits for the process at this place.
    pub fn find_group(&self, group: GroupId, awaited_place: Option<u32>) -> Option<LinkedGroup> {
        let groups = lock(&self.groups).iter().filter_map(WeakGroup::upgrade).collect::<Vec<_>>();
        let awaited = lock(&self.awaited).iter().map(|(_, group)| group.clone()).collect::<Vec<_>>();
        let is_awaited = |found: &LinkedGroup| awaited_place.is_some_and(|place| found.link.awaits(place));
        let mut known = groups.into_iter().chain(awaited).filter(|found| found.shared.group == group);
        known.find(|found| !found.shared.has_ended() || is_awaited(found))
    }

    /// All processes that have come have left this group, and others are to come: it waits for them
    /// for a while.
    pub fn await_clients(&self, group: &LinkedGroup) {
        lock(&self.awaited).push((self.join_deadline(), group.clone()));
        self.shared.awaiting.fetch_add(1, Ordering::SeqCst);
    }

    /// The root of this group is a process of this host that has not come: it waits for that for a
    /// while.
    pub fn await_root(&self, group: &LinkedGroup) {
        let mut rootless = lock(&self.rootless);
        if rootless.iter().all(|(_, known)| !std::ptr::eq(known.shared.as_ptr(), Arc::as_ptr(&group.shared)))
        {
            rootless.push((self.join_deadline(), group.downgrade()));
        }
    }

    fn join_deadline(&self) -> Instant {
        Instant::now() + Duration::from_nanos(self.shared.join_timeout.0)
    }

    /// Ends the groups for which processes were awaited in vain until `now`. Returns whether others
    /// still wait.
    fn end_awaited(&self, now: Instant) -> bool {
        let mut awaited = lock(&self.awaited);
        let before = awaited.len();
        awaited.retain(|(until, group)| {
            // A process that joined since then is the last one, and ends the group itself.
            let is_left = group.link.is_left();
            // The engine does not know a group that still waits for its root, and may have another
            // one of this number.
            let is_entered = group.link.is_entered();
            if *until <= now && is_left && is_entered {
                self.shared.engine.end_group(group.shared.group, AbortReason::Dropped);
            }
            *until > now && is_left && !group.shared.has_ended()
        });
        self.shared.awaiting.fetch_sub(before - awaited.len(), Ordering::SeqCst);
        let mut rootless = lock(&self.rootless);
        rootless.retain(|(until, group)| {
            let group = group.upgrade();
            let waiting = group.filter(|group| !group.link.is_entered());
            if let Some(group) = waiting.as_ref().filter(|_| *until <= now) {
                group.shared.end(Ending::RootSilent(self.shared.join_timeout));
            }
            *until > now && waiting.is_some()
        });
        !awaited.is_empty() || !rootless.is_empty()
    }

    pub fn add_group(&self, group: &LinkedGroup) {
        lock(&self.groups).push(group.downgrade());
    }

    /// Its applications have written or read. The engine learns it when all messages that have
    /// arrived are handled.
    pub fn mark_progress(&self) {
        self.has_progress.store(true, Ordering::Relaxed);
    }

    /// Whether a line about this user may be written to the log.
    pub fn may_log(&self, kind: AuditKind) -> bool {
        lock(&self.audit).admits(clock::now(), kind)
    }

    /// Gives a new client to the user's thread, which is started for the first one.
    ///
    /// # Errors
    /// Those of the system: the client is not served.
    pub fn serve(self: &Arc<Self>, connection: Connection) -> io::Result<()> {
        let mut arrivals = lock(&self.arrivals);
        if arrivals.thread.is_none() {
            let server = UserServer::new(self)?;
            let waker = Arc::clone(&server.waker);
            let thread = thread::Builder::new().name("treecast-user".into());
            arrivals.thread = Some(UserThread { handle: thread.spawn(move || server.run())?, waker });
        }
        if let Some(thread) = &arrivals.thread {
            rustix::io::write(&*thread.waker, &1_u64.to_ne_bytes())?;
        }
        self.add(&mut arrivals, connection);
        Ok(())
    }

    fn add(&self, arrivals: &mut Arrivals, connection: Connection) {
        arrivals.connections.push(connection);
        self.clients.fetch_add(1, Ordering::SeqCst);
        self.shared.clients.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until its thread has ended, after the daemon was stopped.
    pub fn join(&self) {
        let thread = lock(&self.arrivals).thread.take();
        if let Some(thread) = thread {
            let _ = thread.handle.join();
        }
    }
}

/// The state of a user's thread.
#[derive(Debug)]
struct UserServer {
    user: Arc<User>,
    watch: OwnedFd,
    waker: Arc<OwnedFd>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Limits its share of a processor.
    duty: Duty,
}

impl UserServer {
    fn new(user: &Arc<User>) -> io::Result<Self> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        for (descriptor, number) in [(&*user.shared.stop, STOP), (&*waker, ARRIVALS)] {
            epoll::add(&watch, descriptor, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        }
        Ok(Self {
            user: Arc::clone(user),
            watch,
            waker,
            connections: BTreeMap::new(),
            next: FIRST_CLIENT,
            duty: Duty::default(),
        })
    }

    /// Serves the user's clients until the last one has gone, or the daemon stops.
    fn run(mut self) {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        loop {
            let empty =
                epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(STOP) };
            let mut events = [empty; 64];
            let timeout = self.user.end_awaited(Instant::now()).then_some(&CHECK_INTERVAL);
            let asleep = Instant::now();
            let count = match epoll::wait(&self.watch, &mut events[..], timeout) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "cannot wait for a user's clients");
                    return self.end();
                }
            };
            let awake = Instant::now();
            self.duty.on_waited(awake - asleep);
            for event in &events[..count] {
                match event.data.u64() {
                    STOP => return self.end(),
                    ARRIVALS => self.take_arrivals(),
                    number => self.serve_client(number, &mut buffer),
                }
            }
            if self.user.has_progress.swap(false, Ordering::Relaxed) {
                self.user.shared.engine.wake();
            }
            if self.connections.is_empty() && lock(&self.user.awaited).is_empty() && self.retire() {
                return;
            }
            self.duty.on_worked(awake.elapsed());
            if self.user.has_neighbours()
                && let Some(pause) = self.duty.take_pause()
            {
                thread::sleep(pause);
            }
        }
    }

    fn take_arrivals(&mut self) {
        let _ = rustix::io::read(&*self.waker, &mut [0; 8]);
        let arrived = std::mem::take(&mut lock(&self.user.arrivals).connections);
        for connection in arrived {
            let number = self.next;
            self.next += 1;
            let data = epoll::EventData::new_u64(number);
            let added = epoll::add(&self.watch, &connection.socket, data, epoll::EventFlags::IN);
            self.connections.insert(number, connection);
            if let Err(error) = added {
                tracing::error!(%error, "cannot wait for a client");
                self.remove(number);
            }
        }
    }

    fn serve_client(&mut self, number: u64, buffer: &mut [u8]) {
        for _ in 0..MESSAGES_PER_TURN_MAX {
            let Some(connection) = self.connections.get_mut(&number) else { return };
            let handled = match seqpacket::receive(&connection.socket, buffer, None, false) {
                Ok(Received::Message(length)) => connection.handle(&self.user, &buffer[..length]),
                Ok(Received::TooLong) => Err(format!("the message has more than {MESSAGE_BYTES_MAX} bytes")),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(Received::End) | Err(_) => return self.remove(number),
            };
            if let Err(reason) = handled {
                if self.user.may_log(AuditKind::DisconnectedClient) {
                    let client = &connection.peer;
                    tracing::warn!(target: audit::TARGET, %client, %reason, "audit: a client is disconnected");
                }
                let _ = connection.send(&DaemonMessage::Refused { reason }, &[]);
                self.user.shared.disconnected.fetch_add(1, Ordering::SeqCst);
                return self.remove(number);
            }
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else { return };
        connection.end(&self.user);
        let groups = connection.group_count();
        tracing::info!(client = %connection.peer, groups, "a client has disconnected");
        self.user.clients.fetch_sub(1, Ordering::SeqCst);
        self.user.shared.clients.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends the thread, unless another client has arrived.
    fn retire(&self) -> bool {
        let mut arrivals = lock(&self.user.arrivals);
        if !arrivals.connections.is_empty() {
            return false;
        }
        // Nobody joins it: it has nothing of the daemon's any more.
        arrivals.thread = None;
        true
    }

    /// Ends the thread with all connections, also those that arrive meanwhile, and with the groups
    /// that wait for processes.
    fn end(mut self) {
        self.user.account.leave_memory();
        loop {
            self.take_arrivals();
            while let Some(&number) = self.connections.keys().next() {
                self.remove(number);
            }
            // Nobody waits for longer than those who would begin to wait at this moment.
            self.user.end_awaited(self.user.join_deadline());
            if self.retire() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::new_connection;
    use crate::users::PeerCredentials;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use treecast_engine::settings::{EngineChoice, NodeSettings};
    use treecast_engine::thread::NodeThread;

    #[test]
    fn a_user_whose_thread_cannot_wait_is_forgotten() {
        let bind = "127.0.0.1:0".parse().unwrap();
        let settings = NodeSettings { bind, engine: EngineChoice::User, ..NodeSettings::default() };
        let (node, engine) = NodeThread::open(&settings, 1).unwrap();
        let event = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let memory = KernelMemory::new().unwrap();
        let join_timeout = settings.protocol.join_timeout;
        let shared = Arc::new(Shared::new(engine, Policy::of_user(1), memory, event(), join_timeout));
        let peer = PeerCredentials { user: 1, groups: Vec::new(), process: 1 };
        let (index, rule) = shared.policy.rule_for(&peer).unwrap();
        let user = Arc::new(User::new(1, &shared, rule));
        // One client whom the thread serves, and one that it has not taken yet.
        let mut server = UserServer::new(&user).unwrap();
        let mut clients = Vec::new();
        for _ in 0..2 {
            server.take_arrivals();
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (ours, client) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
            user.add(&mut lock(&user.arrivals), new_connection(&node, &ours, peer.clone(), index).unwrap());
            clients.push(client);
        }
        // The descriptor is not an epoll instance.
        server.watch = event().try_clone().unwrap();
        server.run();
        assert_eq!((user.client_count(), shared.clients.load(Ordering::SeqCst)), (0, 0));
        assert!(!user.is_known());
        for client in clients {
            assert!(matches!(seqpacket::receive(&client, &mut [0; 8], None, false), Ok(Received::End)));
        }
    }
}
