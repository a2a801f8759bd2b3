//! The polling thread: one of the application's waiting threads polls the node's
//! descriptors in place of the node's own thread. So an event wakes one thread of the host, and not
//! two.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::Timespec;
use treecast_shm::event_count::EventCount;
use treecast_shm::spin::SpinPolicy;
use treecast_shm::waker::Waker;

/// The descriptors of a node, and the lock of the polling thread.
#[derive(Debug)]
pub struct Poller {
    /// Held by the polling thread.
    turn: Mutex<()>,
    waker: Arc<Waker>,
    /// The descriptors on which the node's own thread sleeps: among others `ready`, unless a thread
    /// of the application polls.
    epoll: OwnedFd,
    /// The descriptors on which the polling thread sleeps in place of the node's own thread: the
    /// sources, and its waker.
    ready: OwnedFd,
    sources: Vec<EventSource>,
    spin: SpinPolicy,
    /// Whether a condition may become true without a system call of this process, so that spinning
    /// helps.
    is_seen_in_memory: bool,
    /// Whether a spinning thread attempts to read, in place of most polls.
    attempts: AtomicBool,
}

/// A descriptor that the polling thread takes over from the node's own thread.
#[derive(Debug)]
pub struct EventSource {
    descriptor: OwnedFd,
    token: u64,
    wakes: Wakes,
    /// Whether there may be events.
    is_used: AtomicBool,
}

/// The events of a descriptor that wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wakes {
    WhenReadable,
    OnHangUp,
}

impl EventSource {
    /// A descriptor that wakes when it is readable. The token identifies it in the result of
    /// [`Poller::sleep`].
    pub fn new(descriptor: OwnedFd, token: u64) -> Self {
        Self { descriptor, token, wakes: Wakes::WhenReadable, is_used: AtomicBool::new(true) }
    }

    /// A descriptor that only wakes when its peer hangs up.
    pub fn hang_up(descriptor: OwnedFd, token: u64) -> Self {
        Self { wakes: Wakes::OnHangUp, ..Self::new(descriptor, token) }
    }

    /// A descriptor that has no events yet: [`Poller::use_source`] says when it may have
    /// some.
    pub fn unused(descriptor: OwnedFd, token: u64) -> Self {
        Self { is_used: AtomicBool::new(false), ..Self::new(descriptor, token) }
    }

    fn is_used(&self) -> bool {
        self.is_used.load(Ordering::SeqCst)
    }

    /// The events that wake.
    fn flags(&self) -> epoll::EventFlags {
        flags(self.wakes == Wakes::WhenReadable && self.is_used())
    }
}

/// How often a spinning thread checks memory, or attempts to read, before it also polls the
/// descriptors: other events may have to be handled.
const CHECKS_PER_POLL: u32 = 16;

/// The most events of one call.
const EVENTS_MAX: usize = 8;

/// The tokens of the sources together, and of the polling thread's waker.
const READY: u64 = 62;
/// The bit of no descriptor: a spinning thread has not polled, and attempts to read where data
/// usually arrives.
pub const ATTEMPT: u64 = 61;
const POLLING_WAKER: u64 = 63;

impl Poller {
    /// Nobody waits yet for these sources. Threads spin only where a condition `is_seen_in_memory`:
    /// it may become true without a system call of this process.
    ///
    /// # Errors
    /// Those of `epoll_create(2)`, `epoll_ctl(2)` and `eventfd(2)`.
    pub fn new(sources: Vec<EventSource>, spin: SpinPolicy, is_seen_in_memory: bool) -> io::Result<Self> {
        let create = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let (own, ready, waker) = (create()?, create()?, Arc::new(Waker::new()?));
        for source in &sources {
            let data = epoll::EventData::new_u64(source.token);
            epoll::add(&ready, &source.descriptor, data, source.flags())?;
        }
        epoll::add(&ready, &*waker, epoll::EventData::new_u64(POLLING_WAKER), flags(true))?;
        epoll::add(&own, &ready, epoll::EventData::new_u64(READY), flags(true))?;
        let turn = Mutex::new(());
        let attempts = AtomicBool::new(false);
        Ok(Self { turn, waker, epoll: own, ready, sources, spin, is_seen_in_memory, attempts })
    }

    /// Adds a descriptor that always wakes the node's own thread.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`.
    pub fn watch(&self, descriptor: &impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(token), flags(true))?)
    }

    /// From now on a source that was made as [`EventSource::unused`] may have events, or has none
    /// any more. One thread calls this at a time. A polling thread that sleeps now is woken by its
    /// events too.
    pub fn use_source(&self, token: u64, is_used: bool) {
        for source in self.sources.iter().filter(|source| source.token == token) {
            if source.is_used() != is_used {
                source.is_used.store(is_used, Ordering::SeqCst);
                let data = epoll::EventData::new_u64(token);
                if let Err(error) = epoll::modify(&self.ready, &source.descriptor, data, source.flags()) {
                    tracing::error!(%error, "cannot watch a descriptor");
                }
            }
        }
    }

    /// Whether a spinning thread attempts to read from now on, with the bit of [`ATTEMPT`]: where
    /// all data arrives at one descriptor, to poll it before each read is a system call too many.
    pub fn set_attempts(&self, attempts: bool) {
        self.attempts.store(attempts, Ordering::Relaxed);
    }

    /// Wakes the polling thread.
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// The node's own thread sleeps. The result has the bit of each token that woke it.
    pub fn sleep(&self, timeout: Option<&Timespec>) -> u64 {
        let woken = wait(&self.epoll, timeout);
        if woken & 1 << READY == 0 {
            return woken;
        }
        let ready = wait(&self.ready, Some(&AT_ONCE));
        if ready & 1 << POLLING_WAKER != 0 {
            // A polling thread was woken when it had just stopped to poll.
            self.waker.clear();
        }
        (woken & !(1 << READY)) | (ready & !(1 << POLLING_WAKER))
    }

    /// Waits until `find` returns a value, or until the deadline: as the polling
    /// thread, which calls `drive` for events, with the bit of each token that has some, or, if
    /// another thread polls, asleep on the event count.
    ///
    /// The thread stays the polling thread until the caller ends or drops `polling`, which it does
    /// unless it waits again within microseconds: between two waits no thread polls the
    /// descriptors. Passing the turn to the node's own thread and taking it back costs two calls of
    /// `epoll_ctl(2)`, and may wake that thread.
    pub fn wait<'a, T>(
        &'a self,
        events: &EventCount,
        until: Option<Instant>,
        mut find: impl FnMut() -> Option<T>,
        drive: impl FnMut(u64),
        polling: &mut Polling<'a>,
    ) -> Option<T> {
        let found = find();
        if found.is_some() || until.is_some_and(|until| until <= Instant::now()) {
            return found;
        }
        if events.readers().is_some() {
            // Another process may make the condition true, and wakes the word of all of them.
            return events.wait(until, &self.spin, find);
        }
        if polling.turn.is_none() {
            let guard = match self.turn.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
                Err(TryLockError::WouldBlock) => return events.wait(until, &self.spin, find),
            };
            polling.turn = Some(Turn::begin(self, guard));
        }
        events.begin_sleep();
        let is_seen_in_memory = self.is_seen_in_memory && !polling.is_for_events;
        let found = self.wait_polling(events, until, find, drive, is_seen_in_memory);
        events.end_sleep();
        found
    }

    fn wait_polling<T>(
        &self,
        events: &EventCount,
        until: Option<Instant>,
        mut find: impl FnMut() -> Option<T>,
        mut drive: impl FnMut(u64),
        is_seen_in_memory: bool,
    ) -> Option<T> {
        let mut spin = self.spin.begin();
        // Others get the processor once before each poll. The first poll is to come as soon as the
        // later ones do.
        let mut is_spinning = spin.begins();
        let mut checks = 0_u32;
        loop {
            // A spinning thread checks the condition itself, and needs no wake-up.
            if !is_spinning {
                self.waker.arm();
                events.arm();
            }
            let found = find();
            if found.is_some() {
                return found;
            }
            let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
            if timeout.is_some_and(|timeout| timeout.is_zero()) {
                return None;
            }
            let timeout = if is_spinning { Some(Duration::ZERO) } else { timeout };
            if is_spinning {
                is_spinning = spin.goes_on();
                checks = checks.wrapping_add(1);
                if !checks.is_multiple_of(CHECKS_PER_POLL) {
                    if is_seen_in_memory {
                        continue;
                    }
                    if self.attempts.load(Ordering::Relaxed) {
                        drive(1 << ATTEMPT);
                        continue;
                    }
                }
            }
            let timeout = timeout.map(|timeout| Timespec {
                tv_sec: timeout.as_secs() as i64,
                tv_nsec: i64::from(timeout.subsec_nanos()),
            });
            let ready = wait(&self.ready, timeout.as_ref());
            self.waker.disarm();
            if ready & 1 << POLLING_WAKER != 0 {
                self.waker.clear();
            }
            let ready = ready & !(1 << POLLING_WAKER);
            if ready != 0 {
                drive(ready);
            }
        }
    }

    /// Lets events wake the node's own thread, or not. Pending events wake it at once.
    fn wake_own_thread(&self, is_woken: bool) {
        let data = epoll::EventData::new_u64(READY);
        if let Err(error) = epoll::modify(&self.epoll, &self.ready, data, flags(is_woken)) {
            tracing::error!(%error, "cannot watch the node's descriptors");
        }
    }
}

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The bit of each token that has events. A signal is a spurious wake-up: callers check their
/// condition again.
fn wait(epoll: &OwnedFd, timeout: Option<&Timespec>) -> u64 {
    let empty = epoll::Event { flags: flags(false), data: epoll::EventData::new_u64(0) };
    let mut events = [empty; EVENTS_MAX];
    let count = epoll::wait(epoll, &mut events[..], timeout).unwrap_or(0);
    events[..count].iter().fold(0, |tokens, event| tokens | 1 << event.data.u64())
}

fn flags(wakes_when_readable: bool) -> epoll::EventFlags {
    if wakes_when_readable { epoll::EventFlags::IN } else { epoll::EventFlags::empty() }
}

/// The turn of a thread that waits several times in one call of the application; none as long as it
/// has not polled.
#[derive(Debug, Default)]
pub struct Polling<'a> {
    turn: Option<Turn<'a>>,
    is_for_events: bool,
}

impl Polling<'_> {
    /// Of a thread whose condition no other process makes true: it polls at each check, because
    /// only an event that it handles itself can change what it finds.
    pub fn for_events() -> Self {
        Self { is_for_events: true, ..Self::default() }
    }

    /// Stops polling.
    pub fn end(&mut self) {
        self.turn = None;
    }
}

/// While a thread of the application polls, events do not wake the node's own thread.
#[derive(Debug)]
struct Turn<'a> {
    of: &'a Poller,
    _guard: MutexGuard<'a, ()>,
}

impl<'a> Turn<'a> {
    fn begin(of: &'a Poller, guard: MutexGuard<'a, ()>) -> Self {
        of.wake_own_thread(false);
        Self { of, _guard: guard }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.of.waker.disarm();
        self.of.wake_own_thread(true);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    const FIRST: u64 = 1;
    const SECOND: u64 = 2;

    /// A descriptor that is readable.
    fn readable() -> OwnedFd {
        eventfd(1, EventfdFlags::CLOEXEC).unwrap()
    }

    fn woken_by(poller: &Poller) -> u64 {
        poller.sleep(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
    }

    /// Polls until there is an event, and calls `drive` then; false if there is none before the
    /// deadline.
    fn polling(poller: &Poller, until: Option<Instant>, drive: impl Fn()) -> bool {
        let is_driven = Cell::new(false);
        let find = || is_driven.get().then_some(());
        let events = EventCount::new(poller.waker());
        let driven = |_| {
            is_driven.set(true);
            drive();
        };
        let found = poller.wait(&events, until, find, driven, &mut Polling::default());
        found.is_some()
    }

    /// A deadline for events that do not come.
    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[test]
    fn an_unused_source_wakes_nobody() {
        let sources = vec![EventSource::unused(readable(), FIRST)];
        let poller = Poller::new(sources, SpinPolicy::new(Some(Duration::ZERO)), false).unwrap();
        assert_eq!(woken_by(&poller), 0);
        assert!(!polling(&poller, Some(soon()), || {}));
        assert_eq!(woken_by(&poller), 0);
        poller.use_source(FIRST, true);
        assert_eq!(woken_by(&poller), 1 << FIRST);
        assert!(polling(&poller, None, || assert_eq!(woken_by(&poller), 0)));
        poller.use_source(FIRST, false);
        assert!(!polling(&poller, Some(soon()), || {}));
    }

    #[test]
    fn a_thread_polls_until_it_says_that_it_does_not_wait_again() {
        let poller = Poller::new(
            vec![EventSource::new(readable(), FIRST)],
            SpinPolicy::new(Some(Duration::ZERO)),
            false,
        );
        let poller = poller.unwrap();
        let events = EventCount::new(poller.waker());
        let mut polling = Polling::default();
        for _ in 0..3 {
            let is_driven = Cell::new(false);
            let find = || is_driven.get().then_some(());
            let found = poller.wait(&events, None, find, |_| is_driven.set(true), &mut polling);
            assert_eq!(found, Some(()));
            assert_eq!(woken_by(&poller), 0);
        }
        polling.end();
        assert_eq!(woken_by(&poller), 1 << FIRST);
    }

    #[test]
    fn a_source_that_is_used_while_a_thread_polls_wakes_that_thread() {
        let sources = vec![EventSource::new(readable(), FIRST), EventSource::unused(readable(), SECOND)];
        let poller = Poller::new(sources, SpinPolicy::new(Some(Duration::ZERO)), false).unwrap();
        assert_eq!(woken_by(&poller), 1 << FIRST);
        let events = EventCount::new(poller.waker());
        let seen = Cell::new(0);
        let driven = |ready| {
            seen.set(seen.get() | ready);
            assert_eq!(woken_by(&poller), 0);
            poller.use_source(SECOND, true);
        };
        let find = || (seen.get() == 1 << FIRST | 1 << SECOND).then_some(());
        let until = Some(Instant::now() + Duration::from_secs(10));
        assert_eq!(poller.wait(&events, until, find, driven, &mut Polling::default()), Some(()));
        assert_eq!(woken_by(&poller), 1 << FIRST | 1 << SECOND);
    }

    #[test]
    fn a_spinning_thread_attempts_to_read_and_still_polls() {
        let sources = vec![EventSource::new(readable(), FIRST)];
        let poller = Poller::new(sources, SpinPolicy::new(Some(Duration::from_mins(1))), false).unwrap();
        let events = EventCount::new(poller.waker());
        let (attempts, polls) = (Cell::new(0), Cell::new(0));
        let wait = || {
            attempts.set(0);
            polls.set(0);
            let driven = |ready| {
                let count = if ready == 1 << ATTEMPT { &attempts } else { &polls };
                count.set(count.get() + 1);
            };
            let find = || (polls.get() == 2).then_some(());
            assert_eq!(poller.wait(&events, None, find, driven, &mut Polling::default()), Some(()));
            attempts.get()
        };
        assert_eq!(wait(), 0);
        poller.set_attempts(true);
        assert_eq!(wait(), 2 * (CHECKS_PER_POLL - 1));
    }

    #[test]
    fn a_thread_that_waits_for_events_polls_at_each_check() {
        let sources = vec![EventSource::new(readable(), FIRST)];
        let poller = Poller::new(sources, SpinPolicy::new(Some(Duration::from_mins(1))), true).unwrap();
        let events = EventCount::new(poller.waker());
        let checks_until_a_poll = |begin: fn() -> Polling<'static>| {
            let (checks, is_polled) = (Cell::new(0), Cell::new(false));
            let find = || {
                checks.set(checks.get() + 1);
                is_polled.get().then_some(())
            };
            poller.wait(&events, None, find, |_| is_polled.set(true), &mut begin());
            // Without the first, before the thread polls, and the last, which finds.
            checks.get() - 2
        };
        assert_eq!(checks_until_a_poll(Polling::default), CHECKS_PER_POLL);
        assert_eq!(checks_until_a_poll(Polling::for_events), 1);
    }

    #[test]
    fn a_thread_that_does_not_spin_polls_at_once() {
        let poller = Poller::new(
            vec![EventSource::new(readable(), FIRST)],
            SpinPolicy::new(Some(Duration::ZERO)),
            false,
        );
        let poller = poller.unwrap();
        poller.set_attempts(true);
        assert!(polling(&poller, None, || {}));
    }

    #[test]
    fn a_polling_thread_that_was_woken_when_it_stopped_wakes_the_nodes_own_thread_once() {
        let poller = Poller::new(Vec::new(), SpinPolicy::new(Some(Duration::ZERO)), false).unwrap();
        poller.waker().arm();
        poller.waker().wake();
        assert_eq!(woken_by(&poller), 0);
        assert_eq!(wait(&poller.epoll, Some(&AT_ONCE)), 0);
    }
}
