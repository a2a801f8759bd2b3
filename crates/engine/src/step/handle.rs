//! The engine of this process, as its own thread and the applications' threads use it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::{io, mem};

use rustix::time::{TimerfdClockId, TimerfdFlags};
use treecast_ebpf::HookTrouble;
use treecast_proto::{
    AbortReason, GroupId, Input, MemberId, Process, Sequence, StrayCounters, fast_path_combines,
};
use treecast_shm::message_buffer::LentBuffer;
use treecast_shm::progress::ProgressList;
use treecast_shm::shared_group::SharedGroup;
use treecast_shm::spin::SpinPolicy;
use treecast_shm::sync::{FairMutex, lock};
use treecast_shm::waker::Waker;

use super::backend::{Backend, RunningEngine};
use super::fast_path::FastPath;
use super::kernel::KernelPath;
use super::query::{Answer, Query};
use super::rings::RingMaker;
use super::root_socket::RootSocket;
use super::stop::{self, Stop};
use super::{Engine, Progress, Request, enter};
use crate::datagrams::Datagrams;
use crate::settings::config::GroupConfig;
use crate::settings::error::NodeError;
use crate::settings::{EngineChoice, NodeSettings};
use crate::streams::Streams;
use crate::wait::poller::{ATTEMPT, EventSource, Poller};

/// An engine behind its lock, with what threads need to reach it.
#[derive(Debug)]
pub struct EngineHandle {
    engine: FairMutex<Engine>,
    requests: Mutex<VecDeque<Request>>,
    has_requests: AtomicBool,
    /// Wakes the engine's own thread.
    waker: Arc<Waker>,
    progress: Arc<ProgressList>,
    /// Makes rings of groups, while others have the engine.
    rings: RingMaker,
    is_stopping: AtomicBool,
    timer: Arc<OwnedFd>,
    /// The engine's own thread sleeps on the timer, the wakers, and the socket unless a thread of
    /// the application polls that.
    poller: Poller,
    has_kernel: bool,
    has_streams: bool,
    address: SocketAddr,
}

/// How many ports are tried, where the system chooses them: it may have given the TCP port of the
/// same number to a connection.
const PORTS_MAX: usize = 16;

/// Binds the sockets of a node. Without its TCP port it can be in groups that send datagrams.
fn bind(settings: &NodeSettings, lanes: usize) -> Result<(Datagrams, Streams), NodeError> {
    let to = settings.bind;
    let is_shared = settings.share.is_some();
    let error = |source| NodeError::Bind { address: to, source, is_shared };
    let at = |port| {
        let datagrams = Datagrams::bind(SocketAddr::new(to.ip(), port), settings.buffer_bytes, lanes)?;
        let streams = Streams::new(datagrams.address())?;
        Ok::<_, io::Error>((datagrams, streams))
    };
    let ports = settings.ports.filter(|_| to.port() == 0);
    let candidates: Vec<u16> = match ports {
        Some(ports) => ports.numbers().collect(),
        None if to.port() == 0 => vec![0; PORTS_MAX],
        None => vec![to.port()],
    };
    let mut without_tcp = None;
    for port in candidates {
        match at(port) {
            Ok(bound) if bound.1.has_port() => return Ok(bound),
            Ok(bound) => without_tcp = Some(bound),
            Err(taken) if ports.is_some() && taken.kind() == io::ErrorKind::AddrInUse => {}
            Err(source) => return Err(error(source)),
        }
    }
    match (without_tcp, ports) {
        (Some(bound), _) => {
            let address = bound.0.address();
            tracing::info!(%address, "another process has this port for TCP: the groups of this root send datagrams");
            Ok(bound)
        }
        (None, Some(ports)) => Err(NodeError::NoFreePort { bind: to, ports }),
        (None, None) => Err(error(io::ErrorKind::AddrInUse.into())),
    }
}

/// What an engine counts that is about no group.
#[derive(Debug, Clone, Copy)]
pub struct Happened {
    /// How many groups ended because of invalid values in shared memory.
    pub invalid: u64,
    /// How many groups of clients ended because they exceeded their users' budgets.
    pub over_budget: u64,
    /// The datagrams that belong to no group.
    pub strays: StrayCounters,
}

/// The sources of input that a step reads, each with one or two system calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub datagrams: bool,
    pub streams: bool,
    /// Whether it looks for datagrams also where no event says that there are some, if groups send
    /// in datagrams: a root that sends without a pause learns of acknowledgments so.
    pub attempts: bool,
}

impl Look {
    pub const ALL: Self = Self { datagrams: true, streams: true, attempts: true };
    const WITHOUT_EVENTS: Self = Self { datagrams: false, streams: false, attempts: true };

    /// Whether nothing but streams has events.
    pub const fn is_streams_only(self) -> bool {
        self.streams && !self.datagrams && !self.attempts
    }

    /// Whether nothing but datagrams, or the kernel's packet path, has events.
    pub const fn is_datagrams_only(self) -> bool {
        self.datagrams && !self.streams && !self.attempts
    }

    /// At the sources with these tokens, a bit for each.
    const fn at(ready: u64) -> Self {
        let datagrams = ready & (1 << SOCKET | 1 << MULTICAST | 1 << KERNEL) != 0;
        // A timer may be that of a connection.
        Self { datagrams, streams: ready & (1 << STREAMS | 1 << TIMER) != 0, attempts: false }
    }
}

/// The tokens of what wakes the engine's own thread.
const SOCKET: u64 = 0;
const TIMER: u64 = 1;
const WAKER: u64 = 2;
const KERNEL: u64 = 3;
const MULTICAST: u64 = 4;
const STREAMS: u64 = 5;

/// An engine that has a buffer, until it is dropped.
struct Lending<'a> {
    engine: MutexGuard<'a, Engine>,
    buffer: &'a mut LentBuffer,
}

impl Drop for Lending<'_> {
    fn drop(&mut self) {
        self.engine.take_back(self.buffer);
    }
}

impl EngineHandle {
    /// Opens an engine whose socket has this number of lanes: one, or several if it serves several
    /// users.
    pub(crate) fn open(settings: &NodeSettings, lanes: usize) -> Result<Self, NodeError> {
        let (mut datagrams, streams) = bind(settings, lanes)?;
        let address = datagrams.address();
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|source| NodeError::System { what: "cannot make a timer", source: source.into() })?;
        let system = |what| move |source| NodeError::System { what, source };
        let timer = Arc::new(timer);
        let waker = Waker::new().map(Arc::new).map_err(system("cannot make an event descriptor"))?;
        let socket = datagrams.as_fd().try_clone_to_owned().map_err(system("cannot share the socket"))?;
        let fast_path = match settings.engine {
            EngineChoice::Ebpf => {
                let groups_max = settings.protocol.groups_max as u32;
                FastPath::Kernel(Box::new(KernelPath::open(&mut datagrams, groups_max)?))
            }
            EngineChoice::Auto | EngineChoice::User => FastPath::Absent,
        };
        let has_kernel = fast_path.is_there();
        let multicast = datagrams.multicast_descriptor().try_clone_to_owned();
        let multicast = multicast.map_err(system("cannot share the multicast sockets"))?;
        let has_streams = streams.has_port();
        let watched =
            streams.as_fd().try_clone_to_owned().map_err(system("cannot share an epoll instance"))?;
        let sources = vec![
            EventSource::new(socket, SOCKET),
            EventSource::unused(multicast, MULTICAST),
            EventSource::unused(watched, STREAMS),
        ];
        let watch = || {
            let poller = Poller::new(sources, SpinPolicy::new(settings.spin), has_kernel)?;
            poller.watch(&timer, TIMER)?;
            poller.watch(&waker, WAKER)?;
            // Only the engine's own thread serves several users.
            for lane in datagrams.descriptors().skip(1) {
                poller.watch(&lane, SOCKET)?;
            }
            if let Some(kernel) = fast_path.kernel() {
                poller.watch(&kernel.event_fd(), KERNEL)?;
            }
            Ok(poller)
        };
        let poller = watch().map_err(system("cannot watch descriptors"))?;
        let progress = Arc::new(ProgressList::default());
        let wakers = (Arc::clone(&timer), Arc::clone(&waker));
        let engine = Engine::new(settings, datagrams, streams, fast_path, wakers, Arc::clone(&progress));
        let rings = engine.rings().clone();
        Ok(Self {
            engine: FairMutex::new(engine),
            requests: Mutex::new(VecDeque::new()),
            has_requests: AtomicBool::new(false),
            waker,
            progress,
            rings,
            is_stopping: AtomicBool::new(false),
            timer,
            poller,
            has_kernel,
            has_streams,
            address,
        })
    }

    /// Ends a group whose application has exited.
    pub fn end_group(&self, group: GroupId, why: AbortReason) {
        self.send_request(Request::End(group, why));
    }

    /// Whether there is a group with this number that has not ended.
    pub fn knows(&self, group: GroupId) -> bool {
        self.with(|engine| engine.knows(group))
    }

    /// What has happened so far.
    pub fn happened(&self) -> Happened {
        self.with(|engine| Happened {
            invalid: engine.invalid(),
            over_budget: engine.over_budget(),
            strays: engine.strays(),
        })
    }

    /// Sends a request.
    pub(crate) fn send_request(&self, request: Request) {
        self.push_request(request);
        self.wake();
    }

    /// Sends a request, and waits until it is handled.
    pub(crate) fn request_and_wait(&self, request: Request) {
        self.push_request(request);
        self.step(self.engine.lock(), Look::ALL);
    }

    fn push_request(&self, request: Request) {
        lock(&self.requests).push_back(request);
        self.has_requests.store(true, Ordering::Release);
    }

    /// The requests since the last call.
    pub(super) fn take_requests(&self) -> VecDeque<Request> {
        if self.has_requests.swap(false, Ordering::AcqRel) {
            mem::take(&mut *lock(&self.requests))
        } else {
            VecDeque::new()
        }
    }

    /// Drives the engine once, and leaves the rest to its own thread.
    fn step(&self, mut engine: MutexGuard<'_, Engine>, look: Look) {
        if self.step_once(&mut engine, look) == Progress::More {
            self.waker.wake();
        }
    }

    fn step_once(&self, engine: &mut Engine, look: Look) -> Progress {
        let progress = engine.step(self, look);
        self.poller.use_source(MULTICAST, engine.receives_multicast());
        self.poller.use_source(STREAMS, engine.uses_streams());
        self.poller.set_attempts(engine.has_one_way_in());
        progress
    }

    /// Drives the engine once for these events, or attempts to read without one.
    fn step_at(&self, engine: &mut Engine, ready: u64) -> Progress {
        if ready & 1 << ATTEMPT == 0 {
            return self.step_once(engine, Look::at(ready));
        }
        let progress = engine.attempt();
        self.poller.set_attempts(engine.has_one_way_in());
        progress
    }

    /// Makes rings of groups, without the engine.
    pub(crate) const fn rings(&self) -> &RingMaker {
        &self.rings
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Engine) -> T) -> T {
        look(&mut self.engine.lock())
    }
}

impl Backend for EngineHandle {
    fn engine(&self) -> RunningEngine {
        if self.has_kernel { RunningEngine::Ebpf } else { RunningEngine::User }
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
        let mut stop = Stop::default();
        let mut look = Look::ALL;
        loop {
            self.waker.arm();
            let is_stopping;
            {
                let mut engine = self.engine.lock();
                let progress = self.step_once(&mut engine, look);
                is_stopping = self.is_stopping.load(Ordering::Acquire);
                if is_stopping && stop.is_done(&mut engine) {
                    return;
                }
                if progress == Progress::More {
                    // Threads that wait for the engine get it first.
                    look = Look::ALL;
                    continue;
                }
            }
            let woken = self.poller.sleep(is_stopping.then_some(&stop::CHECK_INTERVAL));
            let woken_by = |token: u64| woken & 1 << token != 0;
            // A step of another thread may have left something to do.
            look = if woken_by(WAKER) { Look::ALL } else { Look::at(woken) };
            self.waker.disarm();
            if woken_by(TIMER) {
                let _ = rustix::io::read(&self.timer, &mut [0; 8]);
            }
            if woken_by(WAKER) {
                self.waker.clear();
            }
        }
    }

    fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.waker.arm();
        self.waker.wake();
    }

    fn poller(&self) -> &Poller {
        &self.poller
    }

    fn progress(&self) -> Option<Arc<ProgressList>> {
        Some(Arc::clone(&self.progress))
    }

    fn drive(&self, ready: u64) {
        let mut engine = self.engine.lock();
        if self.step_at(&mut engine, ready) == Progress::More {
            self.waker.wake();
        }
    }

    fn drive_filling(&self, ready: u64, shared_group: &SharedGroup, buffer: &mut LentBuffer) {
        let mut engine = self.engine.lock();
        engine.lend(shared_group, *buffer);
        let mut lending = Lending { engine, buffer };
        let progress = self.step_at(&mut lending.engine, ready);
        drop(lending);
        if progress == Progress::More {
            self.waker.wake();
        }
    }

    fn settle(&self, shared_group: &SharedGroup, lent: &LentBuffer, stored: Range<Sequence>) {
        self.with(|engine| engine.settle(shared_group, lent, stored));
    }

    /// Drives the engine in the calling thread, unless another thread holds it and then does the
    /// work.
    fn wake(&self) {
        match self.engine.try_lock() {
            Some(engine) => self.step(engine, Look::WITHOUT_EVENTS),
            None => self.waker.wake(),
        }
    }

    fn wake_thread(&self) {
        self.waker.wake();
    }

    fn request(&self, input: Input<'static>) {
        if let Input::Contribute { group, process: Process::ONLY, contribution } = &input
            && self.has_kernel
            && fast_path_combines(contribution)
            && self.engine.lock().contribute_to_fast_path(*group, contribution)
        {
            return;
        }
        self.send_request(Request::Input(input));
    }

    fn create_group(
        &self,
        config: &GroupConfig,
        children: Vec<Vec<MemberId>>,
        shared_group: &Arc<SharedGroup>,
    ) -> Result<Option<RootSocket>, NodeError> {
        let Some(socket) = enter::create_group(self, config, children, shared_group)? else {
            return Ok(None);
        };
        let memory = shared_group.events.kernel_memory().cloned();
        Ok(memory.map(|memory| RootSocket::new(socket, config, memory)))
    }

    fn join_group(&self, config: &GroupConfig, shared_group: &Arc<SharedGroup>) -> Result<(), NodeError> {
        enter::join_group(self, config, shared_group)
    }

    fn query(&self, query: Query) -> Answer {
        self.with(|engine| engine.answer(query))
    }

    fn engine_here(self: Arc<Self>) -> Option<Arc<EngineHandle>> {
        Some(self)
    }

    fn as_engine(&self) -> Option<&EngineHandle> {
        Some(self)
    }

    fn troubles(&self) -> Vec<HookTrouble> {
        self.with(Engine::troubles)
    }
}
