//! Leader and followers: one of the application's waiting threads, the leader, polls the node's descriptors in place of the node's own
//! thread. So an event wakes one thread of the host, and not two.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::time::Timespec;

use super::event_count::EventCount;
use super::poll;
use super::waker::Waker;

/// The descriptors of a node, and the lock of the thread that leads.
#[derive(Debug)]
pub(crate) struct LeaderFollowers {
    /// Held by the leader.
    leadership: Mutex<()>,
    waker: Arc<Waker>,
    /// What the node's own thread sleeps on.
    epoll: OwnedFd,
    /// What the leader polls in place of the node's own thread.
    sources: Vec<EventSource>,
    spin: Duration,
    /// Whether a condition may become true without a system call of this process, so that spinning helps.
    is_seen_in_memory: bool,
}

/// A descriptor that the leader takes over from the node's own thread.
#[derive(Debug)]
pub(crate) struct EventSource {
    pub descriptor: OwnedFd,
    /// Identifies the descriptor in the result of [`LeaderFollowers::sleep`].
    pub token: u64,
    /// Whether a readable descriptor wakes; if not, only a hang-up does.
    pub wakes_when_readable: bool,
}

/// How often a spinning thread checks its condition before it reads the clock.
const CHECKS_PER_CLOCK_READ: u32 = 32;

/// The most event sources, and the most events that wake the node's own thread at once.
const EVENT_SOURCES_MAX: usize = 3;
const EVENTS_MAX: usize = 8;

impl LeaderFollowers {
    /// # Panics
    /// If there are more than [`EVENT_SOURCES_MAX`] sources: that would be our own bug.
    pub fn new(sources: Vec<EventSource>, spin: Duration, is_seen_in_memory: bool) -> io::Result<Self> {
        assert!(sources.len() <= EVENT_SOURCES_MAX, "the leader polls all event sources");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for EventSource { descriptor, token, wakes_when_readable } in &sources {
            epoll::add(&epoll, descriptor, epoll::EventData::new_u64(*token), flags(*wakes_when_readable))?;
        }
        let waker = Arc::new(Waker::new()?);
        Ok(Self { leadership: Mutex::new(()), waker, epoll, sources, spin, is_seen_in_memory })
    }

    /// Adds a descriptor that always wakes the node's own thread.
    pub fn watch(&self, descriptor: &impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(token), flags(true))?)
    }

    /// Wakes the leader.
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// The node's own thread sleeps. The result has the bit of each token that woke it.
    pub fn sleep(&self, timeout: Option<&Timespec>) -> u64 {
        let empty = epoll::Event { flags: flags(false), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; EVENTS_MAX];
        // A signal is a spurious wake-up.
        let count = epoll::wait(&self.epoll, &mut events[..], timeout).unwrap_or(0);
        events[..count].iter().fold(0, |tokens, event| tokens | 1 << event.data.u64())
    }

    /// Waits until `find` returns a value, or until the deadline: as the leader, which calls `drive` for events, or, if another
    /// thread leads, as a follower on the event count.
    pub fn wait<T>(
        &self,
        events: &EventCount,
        until: Option<Instant>,
        mut find: impl FnMut() -> Option<T>,
        drive: impl FnMut(),
    ) -> Option<T> {
        let found = find();
        if found.is_some() || until.is_some_and(|until| until <= Instant::now()) {
            return found;
        }
        if events.readers().is_some() {
            // Another process may make the condition true, and wakes the word of all of them.
            return events.wait(until, self.spin, find);
        }
        let guard = match self.leadership.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return events.wait(until, self.spin, find),
        };
        let leadership = Leadership::begin(self, guard);
        events.begin_sleep();
        let found = self.wait_as_leader(events, until, find, drive);
        events.end_sleep();
        drop(leadership);
        found
    }

    fn wait_as_leader<T>(
        &self,
        events: &EventCount,
        until: Option<Instant>,
        mut find: impl FnMut() -> Option<T>,
        mut drive: impl FnMut(),
    ) -> Option<T> {
        let spin_until = Instant::now() + self.spin;
        while self.is_seen_in_memory && Instant::now() < spin_until {
            for _ in 0..CHECKS_PER_CLOCK_READ {
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
        let waker = PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN);
        let mut all: [PollFd<'_>; 1 + EVENT_SOURCES_MAX] = std::array::from_fn(|index| {
            match index.checked_sub(1).and_then(|index| self.sources.get(index)) {
                Some(EventSource { descriptor, wakes_when_readable: true, .. }) => {
                    PollFd::new(descriptor, PollFlags::IN)
                }
                Some(EventSource { descriptor, .. }) => PollFd::new(descriptor, PollFlags::empty()),
                None => waker.clone(),
            }
        });
        let descriptors = &mut all[..=self.sources.len()];
        loop {
            self.waker.arm();
            events.arm();
            let found = find();
            if found.is_some() {
                return found;
            }
            let now = Instant::now();
            let timeout = until.map(|until| until.saturating_duration_since(now));
            if timeout.is_some_and(|timeout| timeout.is_zero()) {
                return None;
            }
            let timeout = if now < spin_until { Some(Duration::ZERO) } else { timeout };
            descriptors.iter_mut().for_each(PollFd::clear_revents);
            poll(descriptors, timeout);
            self.waker.disarm();
            if !descriptors[0].revents().is_empty() {
                self.waker.clear();
            }
            if descriptors[1..].iter().any(|descriptor| !descriptor.revents().is_empty()) {
                drive();
            }
        }
    }

    /// Lets events wake the node's own thread, or not. Pending events wake it at once.
    fn wake_own_thread(&self, is_woken: bool) {
        for EventSource { descriptor, token, wakes_when_readable } in &self.sources {
            let data = epoll::EventData::new_u64(*token);
            let flags = flags(is_woken && *wakes_when_readable);
            if let Err(error) = epoll::modify(&self.epoll, descriptor, data, flags) {
                tracing::error!(%error, "cannot watch a descriptor");
            }
        }
    }
}

fn flags(wakes_when_readable: bool) -> epoll::EventFlags {
    if wakes_when_readable { epoll::EventFlags::IN } else { epoll::EventFlags::empty() }
}

/// While a thread leads, events do not wake the node's own thread.
struct Leadership<'a> {
    of: &'a LeaderFollowers,
    _guard: MutexGuard<'a, ()>,
}

impl<'a> Leadership<'a> {
    fn begin(of: &'a LeaderFollowers, guard: MutexGuard<'a, ()>) -> Self {
        of.wake_own_thread(false);
        Self { of, _guard: guard }
    }
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        self.of.waker.disarm();
        self.of.wake_own_thread(true);
    }
}
