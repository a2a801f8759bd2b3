//! An engine, and what others need to reach it: its thread, and the applications' threads.

use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use rustix::time::{TimerfdClockId, TimerfdFlags};

use super::stop::{self, Stop};
use super::{Engine, Kernel, Progress, Request};
use crate::datagrams::Datagrams;
use crate::sync::lock;
use crate::wait::event_count::EventCount;
use crate::wait::leader_followers::{EventSource, LeaderFollowers};
use crate::wait::waker::Waker;
use crate::{EngineChoice, NodeError, NodeSettings};

/// An engine and what others need to reach it.
#[derive(Debug)]
pub(crate) struct Shared {
    engine: Mutex<Engine>,
    requests: Mutex<VecDeque<Request>>,
    has_requests: AtomicBool,
    waker: Waker,
    is_stopping: AtomicBool,
    timer: Arc<OwnedFd>,
    /// What the engine's thread sleeps on: the timer, the bells, and the socket, unless a guest looks after that.
    leader_followers: LeaderFollowers,
    has_kernel: bool,
    address: SocketAddr,
}

/// What the engine's thread is woken by.
const SOCKET: u64 = 0;
const TIMER: u64 = 1;
const WAKER: u64 = 2;
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
        let waker = Waker::new().map_err(system("cannot make an event descriptor"))?;
        let socket = datagrams.as_fd().try_clone_to_owned().map_err(system("cannot share the socket"))?;
        let kernel = match settings.engine {
            EngineChoice::Ebpf => Some(Kernel::open(&mut datagrams, settings.protocol.groups_max as u32)?),
            EngineChoice::Auto | EngineChoice::User => None,
        };
        let has_kernel = kernel.is_some();
        let sources = vec![EventSource { descriptor: socket, token: SOCKET, wakes_when_readable: true }];
        let watch = || {
            let leader_followers = LeaderFollowers::new(sources, settings.spin, has_kernel)?;
            leader_followers.watch(&timer, TIMER)?;
            leader_followers.watch(&waker, WAKER)?;
            kernel.as_ref().map_or(Ok(()), |kernel| leader_followers.watch(&kernel.wakeups(), KERNEL))?;
            Ok(leader_followers)
        };
        let leader_followers = watch().map_err(system("cannot watch descriptors"))?;
        let engine = Engine::new(settings, datagrams, kernel, Arc::clone(&timer));
        Ok(Self {
            engine: Mutex::new(engine),
            requests: Mutex::new(VecDeque::new()),
            has_requests: AtomicBool::new(false),
            waker,
            is_stopping: AtomicBool::new(false),
            timer,
            leader_followers,
            has_kernel,
            address,
        })
    }

    /// Whether the kernel's packet path is part of it.
    pub const fn has_kernel(&self) -> bool {
        self.has_kernel
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
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
        self.drive(lock(&self.engine));
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
            Ok(engine) => self.drive(engine),
            Err(_) => self.waker.wake(),
        }
    }

    /// There is something to do for the engine's own thread.
    pub fn rouse(&self) {
        self.waker.wake();
    }

    /// Does what there is to do, and leaves to the engine's own thread what takes longer.
    fn drive(&self, mut engine: MutexGuard<'_, Engine>) {
        if engine.step(self) == Progress::More {
            self.waker.wake();
        }
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut Engine) -> T) -> T {
        look(&mut lock(&self.engine))
    }

    /// Ends all groups, and then the engine's thread.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.waker.arm();
        self.waker.wake();
    }

    /// The engine's thread.
    pub fn run(&self) {
        let mut stop = Stop::default();
        loop {
            self.waker.arm();
            let is_stopping;
            {
                let mut engine = lock(&self.engine);
                let progress = engine.step(self);
                is_stopping = self.is_stopping.load(Ordering::Acquire);
                if is_stopping && stop.is_done(&mut engine) {
                    return;
                }
                if progress == Progress::More {
                    continue;
                }
            }
            let woken = self.leader_followers.sleep(is_stopping.then_some(&stop::LOOK));
            let woken_by = |what: u64| woken & 1 << what != 0;
            self.waker.disarm();
            if woken_by(TIMER) {
                let _ = rustix::io::read(&self.timer, &mut [0; 8]);
            }
            if woken_by(WAKER) {
                self.waker.clear();
            }
        }
    }

    /// Wakes the leader.
    pub fn leader_waker(&self) -> Arc<Waker> {
        self.leader_followers.waker()
    }

    /// Waits until `find` finds something, or the time is over: as a guest that drives the engine meanwhile, if no other thread
    /// does, and else until the events is rung.
    pub fn wait<T>(
        &self,
        events: &EventCount,
        until: Option<Instant>,
        find: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.leader_followers.wait(events, until, find, || self.drive(lock(&self.engine)))
    }
}
