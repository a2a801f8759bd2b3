//! A seat for one application's thread that waits: as long as it has it, it does what the node's own thread does otherwise, so
//! that what comes wakes one thread of a host and not two.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::time::Timespec;

use crate::wait::waker::{Bell, Notice, sleep};

/// The seat, and what whoever has it looks after.
#[derive(Debug)]
pub(crate) struct Seat {
    taken: Mutex<()>,
    bell: Arc<Bell>,
    /// What the node's own thread sleeps on.
    watch: OwnedFd,
    arrivals: Vec<Arrivals>,
    spin: Duration,
    /// Whether what is waited for may be seen in memory without asking the system.
    is_seen_in_memory: bool,
}

/// A descriptor by which things come.
#[derive(Debug)]
pub(crate) struct Arrivals {
    pub descriptor: OwnedFd,
    /// What it is called when it has woken the node's own thread.
    pub number: u64,
    /// Whether what there is to read wakes, or the other end's hanging up alone.
    pub wakes: bool,
}

/// Whoever spins looks as often before it asks for the time.
const LOOKS: u32 = 32;

/// As many descriptors things come by, and as many wake the node's own thread, at most.
const ARRIVALS_MAX: usize = 3;
const WOKEN_MAX: usize = 8;

impl Seat {
    /// An empty seat, for three kinds of arrivals at most.
    pub fn new(arrivals: Vec<Arrivals>, spin: Duration, is_seen_in_memory: bool) -> io::Result<Self> {
        assert!(arrivals.len() <= ARRIVALS_MAX, "all of them are watched");
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for Arrivals { descriptor, number, wakes } in &arrivals {
            epoll::add(&watch, descriptor, epoll::EventData::new_u64(*number), flags(*wakes))?;
        }
        let bell = Arc::new(Bell::new()?);
        Ok(Self { taken: Mutex::new(()), bell, watch, arrivals, spin, is_seen_in_memory })
    }

    /// The node's own thread is woken by this as well.
    pub fn watch(&self, descriptor: &impl AsFd, number: u64) -> io::Result<()> {
        Ok(epoll::add(&self.watch, descriptor, epoll::EventData::new_u64(number), flags(true))?)
    }

    /// A bell that wakes whoever has the seat.
    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// The node's own thread sleeps; the answer has a bit for each number that it was woken by.
    pub fn sleep(&self, time: Option<&Timespec>) -> u64 {
        let empty = epoll::Event { flags: flags(false), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; WOKEN_MAX];
        // An interruption by a signal is a wake-up as any other.
        let count = epoll::wait(&self.watch, &mut events[..], time).unwrap_or(0);
        events[..count].iter().fold(0, |woken, event| woken | 1 << event.data.u64())
    }

    /// Waits until `find` finds something, or the time is over: on the seat, where `drive` takes in what comes, or, if another
    /// thread has it, until the notice is rung.
    pub fn wait<T>(
        &self,
        notice: &Notice,
        until: Option<Instant>,
        mut find: impl FnMut() -> Option<T>,
        drive: impl FnMut(),
    ) -> Option<T> {
        let found = find();
        if found.is_some() || until.is_some_and(|until| until <= Instant::now()) {
            return found;
        }
        let taken = match self.taken.try_lock() {
            Ok(taken) => taken,
            Err(TryLockError::Poisoned(taken)) => taken.into_inner(),
            Err(TryLockError::WouldBlock) => return notice.wait(until, self.spin, find),
        };
        let visit = Visit::begin(self, taken);
        notice.begin_sleep();
        let found = self.wait_as_guest(notice, until, find, drive);
        notice.end_sleep();
        drop(visit);
        found
    }

    fn wait_as_guest<T>(
        &self,
        notice: &Notice,
        until: Option<Instant>,
        mut find: impl FnMut() -> Option<T>,
        mut drive: impl FnMut(),
    ) -> Option<T> {
        let spun_until = Instant::now() + self.spin;
        while self.is_seen_in_memory && Instant::now() < spun_until {
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
        let bell = PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN);
        let mut all: [PollFd<'_>; 1 + ARRIVALS_MAX] = std::array::from_fn(|place| {
            match place.checked_sub(1).and_then(|place| self.arrivals.get(place)) {
                Some(Arrivals { descriptor, wakes: true, .. }) => PollFd::new(descriptor, PollFlags::IN),
                Some(Arrivals { descriptor, .. }) => PollFd::new(descriptor, PollFlags::empty()),
                None => bell.clone(),
            }
        });
        let descriptors = &mut all[..=self.arrivals.len()];
        loop {
            self.bell.arm();
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
            descriptors.iter_mut().for_each(PollFd::clear_revents);
            sleep(descriptors, left);
            self.bell.disarm();
            if !descriptors[0].revents().is_empty() {
                self.bell.clear();
            }
            if descriptors[1..].iter().any(|descriptor| !descriptor.revents().is_empty()) {
                drive();
            }
        }
    }

    /// Lets the node's own thread be woken by what comes, or not. What is there already wakes it at once.
    fn give_arrivals_to_thread(&self, is_given: bool) {
        for Arrivals { descriptor, number, wakes } in &self.arrivals {
            let data = epoll::EventData::new_u64(*number);
            if let Err(error) = epoll::modify(&self.watch, descriptor, data, flags(is_given && *wakes)) {
                tracing::error!(%error, "what comes cannot be watched");
            }
        }
    }
}

fn flags(wakes: bool) -> epoll::EventFlags {
    if wakes { epoll::EventFlags::IN } else { epoll::EventFlags::empty() }
}

/// While a guest is there, what comes does not wake the node's own thread.
struct Visit<'a> {
    seat: &'a Seat,
    _taken: MutexGuard<'a, ()>,
}

impl<'a> Visit<'a> {
    fn begin(seat: &'a Seat, taken: MutexGuard<'a, ()>) -> Self {
        seat.give_arrivals_to_thread(false);
        Self { seat, _taken: taken }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.seat.bell.disarm();
        self.seat.give_arrivals_to_thread(true);
    }
}
