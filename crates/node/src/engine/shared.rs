//! An engine, and what others need to reach it: its thread, and the applications' threads.

use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::time::{TimerfdClockId, TimerfdFlags};

use super::stop::{self, Stop};
use super::{Engine, Kernel, Request};
use crate::bell::{Bell, Notice, sleep};
use crate::datagrams::Datagrams;
use crate::{EngineChoice, NodeError, NodeSettings};

/// An engine and what others need to reach it.
#[derive(Debug)]
pub(crate) struct Shared {
    engine: Mutex<Engine>,
    requests: Mutex<VecDeque<Request>>,
    has_requests: AtomicBool,
    bell: Bell,
    is_stopping: AtomicBool,
    /// What the engine's thread sleeps on: the socket, unless a guest does, the timer and the bell.
    watch: OwnedFd,
    socket: OwnedFd,
    /// Whether the kernel's packet path is part of this node.
    has_kernel: bool,
    timer: Arc<OwnedFd>,
    /// The application's thread that drives the engine while it waits has this seat.
    seat: Mutex<()>,
    guest_bell: Arc<Bell>,
    address: SocketAddr,
    pub spin: Duration,
}

/// Whoever spins looks as often before it asks for the time.
const LOOKS: u32 = 32;

/// What the engine's thread is woken by.
const SOCKET: u64 = 0;
const TIMER: u64 = 1;
const BELL: u64 = 2;
const KERNEL: u64 = 3;

impl Shared {
    pub fn open(settings: &NodeSettings) -> Result<Self, NodeError> {
        let bind_error = |source| NodeError::Bind { address: settings.bind, source };
        let mut datagrams = Datagrams::bind(settings.bind, settings.buffer_bytes).map_err(bind_error)?;
        let address = datagrams.address();
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|source| NodeError::System { what: "cannot make a timer", source: source.into() })?;
        let system = |what| move |source| NodeError::System { what, source };
        let timer = Arc::new(timer);
        let new_bell = || Bell::new().map_err(system("cannot make an event descriptor"));
        let (bell, guest_bell) = (new_bell()?, Arc::new(new_bell()?));
        let socket = datagrams.as_fd().try_clone_to_owned().map_err(system("cannot share the socket"))?;
        let kernel = match settings.engine {
            EngineChoice::Ebpf => Some(Kernel::open(&mut datagrams, settings.protocol.groups_max as u32)?),
            EngineChoice::Auto | EngineChoice::User => None,
        };
        tracing::info!(%address, engine = if kernel.is_some() { "ebpf" } else { "user" }, "a node listens");
        let rung = kernel.as_ref().map(|kernel| kernel.bell().try_clone_to_owned()).transpose();
        let rung = rung.map_err(system("cannot share the kernel's bell"))?;
        let watched = [(socket.as_fd(), SOCKET), (timer.as_fd(), TIMER), (bell.as_fd(), BELL)];
        let watched = watched.into_iter().chain(rung.as_ref().map(|rung| (rung.as_fd(), KERNEL)));
        let watch = watch(watched).map_err(|source| NodeError::System {
            what: "cannot watch descriptors",
            source: source.into(),
        })?;
        let engine = Engine::new(settings, datagrams, kernel, Arc::clone(&timer));
        Ok(Self {
            engine: Mutex::new(engine),
            requests: Mutex::new(VecDeque::new()),
            has_requests: AtomicBool::new(false),
            bell,
            is_stopping: AtomicBool::new(false),
            watch,
            socket,
            has_kernel: rung.is_some(),
            timer,
            seat: Mutex::new(()),
            guest_bell,
            address,
            spin: settings.spin,
        })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the kernel's packet path is part of this node.
    pub const fn has_kernel(&self) -> bool {
        self.has_kernel
    }

    /// Asks for something, and sees to it that it is done.
    pub fn request(&self, request: Request) {
        lock(&self.requests).push_back(request);
        self.has_requests.store(true, Ordering::Release);
        self.kick();
    }

    /// Asks for something, and waits until it is done.
    pub fn request_and_wait(&self, request: Request) {
        lock(&self.requests).push_back(request);
        self.has_requests.store(true, Ordering::Release);
        lock(&self.engine).step(self);
    }

    /// What applications have asked for since.
    pub(super) fn take_requests(&self) -> VecDeque<Request> {
        if self.has_requests.swap(false, Ordering::AcqRel) {
            mem::take(&mut *lock(&self.requests))
        } else {
            VecDeque::new()
        }
    }

    /// There is something to do: does it here, unless somebody holds the engine, who then does it.
    pub fn kick(&self) {
        match self.engine.try_lock() {
            Ok(mut engine) => engine.step(self),
            Err(_) => self.bell.ring(),
        }
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut Engine) -> T) -> T {
        look(&mut lock(&self.engine))
    }

    /// Ends all groups, and then the engine's thread.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.bell.arm();
        self.bell.ring();
    }

    /// The engine's thread.
    pub fn run(&self) {
        let mut stop = Stop::default();
        loop {
            self.bell.arm();
            let is_stopping;
            {
                let mut engine = lock(&self.engine);
                engine.step(self);
                is_stopping = self.is_stopping.load(Ordering::Acquire);
                if is_stopping && stop.is_done(&mut engine) {
                    return;
                }
            }
            let mut events =
                [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(SOCKET) };
                    4];
            // An interruption by a signal is a wake-up as any other.
            let count =
                epoll::wait(&self.watch, &mut events[..], is_stopping.then_some(&stop::LOOK)).unwrap_or(0);
            let woken_by = |what| events[..count].iter().any(|event| event.data.u64() == what);
            self.bell.disarm();
            if woken_by(TIMER) {
                let _ = rustix::io::read(&self.timer, &mut [0; 8]);
            }
            if woken_by(BELL) {
                self.bell.clear();
            }
        }
    }

    /// A bell that wakes the guest, if there is one.
    pub fn guest_bell(&self) -> Arc<Bell> {
        Arc::clone(&self.guest_bell)
    }

    /// Waits until `find` finds something, or the time is over: as a guest that drives the engine meanwhile, if no other thread
    /// does, and else until the notice is rung.
    pub fn wait<T>(
        &self,
        notice: &Notice,
        until: Option<Instant>,
        mut find: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let found = find();
        if found.is_some() || until.is_some_and(|until| until <= Instant::now()) {
            return found;
        }
        let seat = match self.seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::Poisoned(seat)) => seat.into_inner(),
            Err(TryLockError::WouldBlock) => return notice.wait(until, self.spin, find),
        };
        let visit = Visit::begin(self, seat);
        notice.begin_sleep();
        let found = self.wait_as_guest(notice, until, find);
        notice.end_sleep();
        drop(visit);
        found
    }

    fn wait_as_guest<T>(
        &self,
        notice: &Notice,
        until: Option<Instant>,
        mut find: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let spun_until = Instant::now() + self.spin;
        // What the kernel's packet path takes in is seen without asking the system.
        while self.has_kernel && Instant::now() < spun_until {
            for _ in 0..LOOKS {
                let found = find();
                if found.is_some() {
                    return found;
                }
                std::hint::spin_loop();
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return None;
            }
        }
        loop {
            self.guest_bell.arm();
            notice.arm();
            let found = find();
            if found.is_some() {
                return found;
            }
            let now = Instant::now();
            let left = until.map(|until| until.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let left = if now < spun_until { Some(Duration::ZERO) } else { left };
            let mut descriptors = [self.socket.as_fd(), self.guest_bell.as_fd()]
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
            sleep(&mut descriptors, left);
            let [has_arrived, has_rung] = descriptors.map(|descriptor| !descriptor.revents().is_empty());
            self.guest_bell.disarm();
            if has_rung {
                self.guest_bell.clear();
            }
            if has_arrived {
                lock(&self.engine).step(self);
            }
        }
    }
}

/// While a guest is there, what comes does not wake the engine's thread.
struct Visit<'a> {
    shared: &'a Shared,
    _seat: MutexGuard<'a, ()>,
}

impl<'a> Visit<'a> {
    fn begin(shared: &'a Shared, seat: MutexGuard<'a, ()>) -> Self {
        shared.give_socket_to_thread(false);
        Self { shared, _seat: seat }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.shared.guest_bell.disarm();
        self.shared.give_socket_to_thread(true);
    }
}

impl Shared {
    /// Lets the engine's thread be woken by what comes, or not. What is there already wakes it at once.
    fn give_socket_to_thread(&self, is_given: bool) {
        let flags = if is_given { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        if let Err(error) = epoll::modify(&self.watch, &self.socket, epoll::EventData::new_u64(SOCKET), flags)
        {
            tracing::error!(%error, "what comes cannot be watched");
        }
    }
}

/// Descriptors to sleep on, by the number of each.
fn watch<'a>(descriptors: impl Iterator<Item = (BorrowedFd<'a>, u64)>) -> rustix::io::Result<OwnedFd> {
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (descriptor, number) in descriptors {
        epoll::add(&watch, descriptor, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
    }
    Ok(watch)
}

/// A lock whose holder has panicked is still a lock: what it guards is checked by the protocol's own rules.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
