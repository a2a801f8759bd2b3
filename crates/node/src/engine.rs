//! The user engine: a thread that plays the NIC, with the protocol, a socket and the groups' slots.
//!
//! Whoever holds the engine drives it: its own thread when something comes or a time is over, and an application's thread that
//! has just given it something to do, or that waits for something to come. So neither what is sent nor what is received waits
//! for another thread to wake.

#![expect(unsafe_code, reason = "the kernel reads packets where they lie")]

mod stop;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use std::{io, mem};

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use treecast_proto::{
    Event, GroupCounters, GroupId, Input, MemberId, Nanoseconds, Output, Protocol, Refused, Source,
    StrayCounters, Transmit,
};

use crate::bell::{Bell, Notice, sleep};
use crate::channel::{Channel, Placed, Side};
use crate::datagrams::{BATCH, Datagrams};
use crate::ring::ring;
use crate::{NodeError, NodeSettings};
use stop::Stop;

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
    timer: Arc<OwnedFd>,
    /// The application's thread that drives the engine while it waits has this seat.
    seat: Mutex<()>,
    guest_bell: Arc<Bell>,
    address: SocketAddr,
    pub spin: Duration,
}

/// What an application asks for. What is asked for often goes by the ring instead.
#[derive(Debug)]
pub(crate) enum Request {
    Input(Input<'static>),
    /// Take part in a group; at its root with the node's side of the ring.
    Enter {
        channel: Arc<Channel>,
        input: Input<'static>,
        side: Option<Side>,
    },
}

/// The protocol on its socket.
#[derive(Debug)]
pub(crate) struct Engine {
    protocol: Protocol,
    datagrams: Datagrams,
    origin: Instant,
    groups: BTreeMap<GroupId, Joint>,
    timer: Arc<OwnedFd>,
    armed: Option<Nanoseconds>,
}

/// A group here: the node's side of the ring, and what leads to the application.
#[derive(Debug)]
struct Joint {
    channel: Arc<Channel>,
    side: Option<Side>,
}

/// What the engine's thread is woken by.
const SOCKET: u64 = 0;
const TIMER: u64 = 1;
const BELL: u64 = 2;

/// A step takes in so many batches at most before others may hold the engine.
const BATCHES_MAX: usize = 16;

impl Shared {
    pub fn open(settings: &NodeSettings) -> Result<Self, NodeError> {
        let bind_error = |source| NodeError::Bind { address: settings.bind, source };
        let datagrams = Datagrams::bind(settings.bind, settings.buffer_bytes).map_err(bind_error)?;
        let address = datagrams.address();
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|source| NodeError::System { what: "cannot make a timer", source: source.into() })?;
        let system = |what| move |source| NodeError::System { what, source };
        let timer = Arc::new(timer);
        let new_bell = || Bell::new().map_err(system("cannot make an event descriptor"));
        let (bell, guest_bell) = (new_bell()?, Arc::new(new_bell()?));
        let socket = datagrams.as_fd().try_clone_to_owned().map_err(system("cannot share the socket"))?;
        let watch = watch([(socket.as_fd(), SOCKET), (timer.as_fd(), TIMER), (bell.as_fd(), BELL)]).map_err(
            |source| NodeError::System { what: "cannot watch descriptors", source: source.into() },
        )?;
        let engine = Engine {
            protocol: Protocol::new(settings.protocol.clone()),
            datagrams,
            origin: Instant::now(),
            groups: BTreeMap::new(),
            timer: Arc::clone(&timer),
            armed: None,
        };
        Ok(Self {
            engine: Mutex::new(engine),
            requests: Mutex::new(VecDeque::new()),
            has_requests: AtomicBool::new(false),
            bell,
            is_stopping: AtomicBool::new(false),
            watch,
            socket,
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
                    3];
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
        let found = self.wait_as_guest(until, find);
        drop(visit);
        found
    }

    fn wait_as_guest<T>(&self, until: Option<Instant>, mut find: impl FnMut() -> Option<T>) -> Option<T> {
        let spun_until = Instant::now() + self.spin;
        loop {
            self.guest_bell.arm();
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
fn watch<const COUNT: usize>(descriptors: [(BorrowedFd<'_>, u64); COUNT]) -> rustix::io::Result<OwnedFd> {
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

impl Engine {
    fn now(&self) -> Nanoseconds {
        Nanoseconds(self.origin.elapsed().as_nanos() as u64)
    }

    pub fn counters(&self, group: GroupId) -> Option<GroupCounters> {
        self.protocol.counters(group).copied()
    }

    pub fn strays(&self) -> StrayCounters {
        *self.protocol.strays()
    }

    pub fn children(&self, group: GroupId) -> Vec<MemberId> {
        self.protocol.children(group).collect()
    }

    /// Who has not taken its place yet.
    pub fn awaited(&self, group: GroupId) -> Vec<MemberId> {
        self.protocol.awaited(group)
    }

    /// Does all there is to do now.
    pub fn step(&mut self, shared: &Shared) {
        // What is to be forwarded has been written or read before that was asked for.
        self.take_from_applications();
        if shared.has_requests.swap(false, Ordering::AcqRel) {
            let requests = mem::take(&mut *lock(&shared.requests));
            for request in requests {
                self.request(request);
            }
        }
        self.send_all();
        for _ in 0..BATCHES_MAX {
            let count = self.receive();
            if count == 0 {
                break;
            }
            self.send_all();
            self.give_to_applications();
            if count < BATCH {
                break;
            }
        }
        self.give_to_applications();
    }

    fn request(&mut self, request: Request) {
        let now = self.now();
        let outcome = match request {
            Request::Input(input) => self.protocol.handle(now, input).map(|_| ()),
            Request::Enter { channel, input, side } => match self.protocol.handle(now, input) {
                Ok(_) => {
                    self.groups.insert(channel.group, Joint { channel, side });
                    Ok(())
                }
                Err(refused) => {
                    channel.refuse(refused);
                    Ok(())
                }
            },
        };
        // The group may have ended before the request came.
        if let Err(refused) = outcome
            && !matches!(refused, Refused::UnknownGroup(_))
        {
            tracing::warn!(%refused, "a request of the application");
        }
    }

    /// Takes over what applications have written or read.
    fn take_from_applications(&mut self) {
        let now = self.now();
        for (&group, Joint { channel, side }) in &self.groups {
            match side {
                Some(Side::Reader(reader)) if channel.take_news() => {
                    let Some((_, next)) = self.protocol.readable(group) else { continue };
                    for packet in next.until(reader.written()) {
                        let piece = reader.piece(packet);
                        if let Err(refused) = self.protocol.handle(now, Input::Queue { group, piece }) {
                            tracing::warn!(%refused, "a packet of the application");
                            break;
                        }
                    }
                }
                Some(Side::Writer(writer)) if channel.take_news() => {
                    let _ = self.protocol.handle(now, Input::Consumed { group, upto: writer.read() });
                }
                _ => {}
            }
        }
    }

    /// Takes in a batch of datagrams; says how many arrivals there were.
    fn receive(&mut self) -> usize {
        let count = match self.datagrams.receive() {
            Ok(count) => count,
            Err(error) => {
                tracing::warn!(%error, "datagrams cannot be received");
                return 0;
            }
        };
        let now = self.now();
        for arrival in 0..count {
            for part in 0..self.datagrams.parts(arrival) {
                let Some((from, bytes)) = self.datagrams.received(arrival, part) else { continue };
                let stored = self.protocol.handle(now, Input::Datagram { from, bytes });
                if let Ok(Some(store)) = stored
                    && let Some(Side::Writer(writer)) =
                        self.groups.get_mut(&store.group).and_then(|joint| joint.side.as_mut())
                {
                    writer.put(store.packet, store.payload);
                }
                // A place in the tree needs memory before the next datagram comes.
                self.take_events();
            }
        }
        count
    }

    /// Sends all that is to be sent now, and sees to it that it wakes for what comes next.
    fn send_all(&mut self) {
        let now = self.now();
        let deadline = loop {
            match self.protocol.poll(now) {
                Output::Wait(deadline) => break deadline,
                Output::Transmit(transmit) => self.add(transmit),
            }
            if self.datagrams.is_full() {
                self.flush();
            }
        };
        self.flush();
        self.take_events();
        self.wake_at(now, deadline);
    }

    fn add(&mut self, Transmit { to, header, payload }: Transmit) {
        match payload {
            Source::Bytes(bytes) => self.datagrams.add(to, &header, bytes),
            Source::Slot { group, slot, length } => {
                let address = match self.groups.get(&group).and_then(|joint| joint.side.as_ref()) {
                    Some(Side::Writer(writer)) => writer.address(slot),
                    Some(Side::Reader(reader)) => reader.address(slot),
                    None => return,
                };
                // SAFETY: the protocol names slots of packets that have not left them. At a member the engine alone writes
                // slots, and does so in `receive`, before which every batch is sent. At the root such slots are the
                // reader's, which the engine is, and it gives them back only in `give_to_applications`, also later.
                unsafe { self.datagrams.add_from(to, &header, address, length as usize) };
            }
        }
    }

    fn flush(&mut self) {
        if let Err(error) = self.datagrams.send() {
            if error.raw_os_error() == Some(libc::EMSGSIZE) {
                for joint in self.groups.values() {
                    joint.channel.does_not_fit();
                }
            }
            tracing::debug!(%error, "a datagram cannot be sent");
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.protocol.take_event() {
            let (Event::Placed { group, .. }
            | Event::Ready { group }
            | Event::Joined { group, .. }
            | Event::Lost { group, .. }
            | Event::Ended { group, .. }) = event;
            let Some(Joint { channel, side }) = self.groups.get_mut(&group) else { continue };
            match event {
                Event::Placed { member, start, slots, payload_bytes_max, offload, .. } => {
                    let (writer, reader) = ring(slots, usize::from(payload_bytes_max), start);
                    *side = Some(Side::Writer(writer));
                    let for_application = Mutex::new(Some(Side::Reader(reader)));
                    channel.place(Placed { side: for_application, member: member.0, offload });
                }
                Event::Ready { .. } => channel.ready(),
                Event::Joined { member, .. } => channel.joined(member),
                Event::Lost { member, loss, .. } => channel.lost(member, loss),
                Event::Ended { ending, .. } => channel.end(ending),
            }
        }
    }

    /// Shows applications what has come, and what there is room for.
    fn give_to_applications(&mut self) {
        for (&group, Joint { channel, side }) in &mut self.groups {
            match side {
                Some(Side::Reader(reader)) => {
                    if let Some(freed) =
                        self.protocol.freed(group).filter(|&freed| reader.read().is_before(freed))
                    {
                        reader.give_back(freed.min(reader.written()));
                        channel.notice.ring();
                    }
                }
                Some(Side::Writer(writer)) => {
                    let Some((_, end)) = self.protocol.readable(group) else { continue };
                    if writer.written() != end {
                        // Whoever waits for a message is woken when it is whole, or so long that room has to be made.
                        let mut is_worth_it = end.distance_from(writer.read()) as u32 >= writer.slots() / 4;
                        for packet in writer.written().until(end) {
                            if let Some(piece) = self.protocol.piece(group, packet) {
                                writer.describe(packet, *piece);
                                is_worth_it |= piece.is_last();
                            }
                        }
                        writer.give(end);
                        if is_worth_it {
                            channel.notice.ring();
                        }
                    }
                    if self.protocol.is_closed(group) {
                        channel.close();
                    }
                }
                None => {}
            }
        }
        let protocol = &self.protocol;
        self.groups.retain(|&group, joint| !joint.channel.has_ended() || protocol.has(group));
    }

    /// Sets the timer, if what comes next comes before what it is set to.
    fn wake_at(&mut self, now: Nanoseconds, deadline: Option<Nanoseconds>) {
        let Some(deadline) = deadline else { return };
        if self.armed.is_some_and(|armed| now < armed && armed <= deadline) {
            return;
        }
        let span = deadline.since(now).0.max(1);
        let value =
            Timespec { tv_sec: (span / 1_000_000_000) as i64, tv_nsec: (span % 1_000_000_000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        if let Err(error) = rustix::time::timerfd_settime(&*self.timer, TimerfdTimerFlags::empty(), &once) {
            tracing::error!(error = %io::Error::from(error), "the timer cannot be set");
        }
        self.armed = Some(deadline);
    }
}
