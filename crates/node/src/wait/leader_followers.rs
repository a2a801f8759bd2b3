//! Leader and followers: one of the application's waiting threads, the leader, polls the node's sockets
//! in place of the node's own thread. So an event wakes one thread of the host, and not two.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::Timespec;

use super::event_count::EventCount;
use super::spin::{Spin, SpinPolicy};
use super::waker::Waker;
use crate::sync::lock;
use crate::watch::Watch;

/// The sockets of a node, and the lock of the thread that leads.
#[derive(Debug)]
pub(crate) struct LeaderFollowers {
    /// Held by the leader.
    leadership: Mutex<()>,
    waker: Arc<Waker>,
    watch: Arc<Watch>,
    /// The descriptors on which the node's own thread sleeps: among others its instance of `watch`, unless
    /// that is hidden from it.
    epoll: OwnedFd,
    own_waker: Arc<Waker>,
    /// One of [`FREE`], [`LED`] and [`HIDDEN`].
    state: AtomicU8,
    /// Held while events of the sockets are hidden from the node's own thread, or shown again.
    hiding: Mutex<()>,
    /// Whether a thread has left events that the node's own thread does not see.
    are_events_left: AtomicBool,
    spin: SpinPolicy,
    /// Whether a condition may become true without a system call of this process, so that spinning helps.
    is_seen_in_memory: bool,
}

/// No thread leads: events of the sockets wake the node's own thread.
const FREE: u8 = 0;

/// A thread leads. Events that come while it does not sleep wake the node's own thread, which hides them
/// from itself then.
const LED: u8 = 1;

/// A thread leads, and events of the sockets do not wake the node's own thread.
const HIDDEN: u8 = 2;

/// How often a spinning thread checks memory before it also polls the descriptors: other events may have to be handled.
const CHECKS_PER_POLL: u32 = 16;

/// The most events of one call.
const EVENTS_MAX: usize = 8;

/// The tokens of the sockets together, and of the leader's waker.
const SOCKETS: u64 = 62;
const LEADER_WAKER: u64 = 63;

impl LeaderFollowers {
    /// The sockets of `watch` have tokens below 62, and so has the waker of the node's own thread.
    pub fn new(
        watch: Arc<Watch>,
        own_waker: (Arc<Waker>, u64),
        spin: SpinPolicy,
        is_seen_in_memory: bool,
    ) -> io::Result<Self> {
        let (own_waker, token) = own_waker;
        let (epoll, waker) = (epoll::create(epoll::CreateFlags::CLOEXEC)?, Arc::new(Waker::new()?));
        let readable = epoll::EventFlags::IN;
        epoll::add(watch.leader(), &*waker, epoll::EventData::new_u64(LEADER_WAKER), readable)?;
        epoll::add(&epoll, watch.own(), epoll::EventData::new_u64(SOCKETS), readable)?;
        epoll::add(&epoll, &*own_waker, epoll::EventData::new_u64(token), readable)?;
        Ok(Self {
            leadership: Mutex::new(()),
            waker,
            watch,
            epoll,
            own_waker,
            state: AtomicU8::new(FREE),
            hiding: Mutex::new(()),
            are_events_left: AtomicBool::new(false),
            spin,
            is_seen_in_memory,
        })
    }

    /// Adds a descriptor that always wakes the node's own thread.
    pub fn watch(&self, descriptor: &impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
    }

    /// Wakes the leader.
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// The node's own thread sleeps. The result has the bit of each token that woke it.
    pub fn sleep(&self, timeout: Option<&Timespec>) -> u64 {
        let woken = wait(&self.epoll, timeout);
        let others = woken & !(1 << SOCKETS);
        if others == woken || self.leaves_to_leader() {
            return others;
        }
        others | wait(self.watch.own(), Some(&AT_ONCE))
    }

    /// Whether a thread leads, which looks at all events before it sleeps or ceases. Until it ceases they do
    /// not wake the node's own thread again.
    fn leaves_to_leader(&self) -> bool {
        if self.state.load(Ordering::SeqCst) == FREE {
            return false;
        }
        let _hiding = lock(&self.hiding);
        match self.state.compare_exchange(LED, HIDDEN, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {
                self.show_sockets(false);
                true
            }
            Err(state) => state == HIDDEN,
        }
    }

    /// Leaves events of the sockets to the node's own thread, which looks at all of them: who is woken by an
    /// event and does not handle all of it calls this.
    pub fn leave_events(&self) {
        self.are_events_left.store(true, Ordering::SeqCst);
        self.own_waker.wake();
    }

    /// Whether events were left since the last call. The node's own thread calls this once it has armed its
    /// waker.
    pub fn take_left_events(&self) -> bool {
        self.are_events_left.swap(false, Ordering::SeqCst)
    }

    /// Waits until `find` returns a value, or until the deadline: as the leader, which calls `drive` for events, with the bit of each token that has some, or, if another
    /// thread leads, as a follower on the event count.
    ///
    /// The thread stays the leader until the caller ends or drops `lead`, which it does unless it waits again
    /// within microseconds: events that come between two waits may wake the node's own thread, which leaves
    /// them to the leader.
    pub fn wait<'a, T>(
        &'a self,
        events: &EventCount,
        until: Option<Instant>,
        mut find: impl FnMut() -> Option<T>,
        drive: impl FnMut(u64),
        lead: &mut Lead<'a>,
    ) -> Option<T> {
        let found = find();
        if found.is_some() || until.is_some_and(|until| until <= Instant::now()) {
            return found;
        }
        if events.readers().is_some() {
            // Another process may make the condition true, and wakes the word of all of them.
            return events.wait(until, &self.spin, find);
        }
        let spin = self.spin.begin();
        if lead.0.is_none() {
            let guard = match self.leadership.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
                Err(TryLockError::WouldBlock) => return events.wait(until, &self.spin, find),
            };
            lead.0 = Some(Leadership::begin(self, guard, spin.spins()));
        }
        events.begin_sleep();
        let found = self.wait_as_leader(events, until, spin, find, drive);
        events.end_sleep();
        found
    }

    fn wait_as_leader<T>(
        &self,
        events: &EventCount,
        until: Option<Instant>,
        mut spin: Spin<'_>,
        mut find: impl FnMut() -> Option<T>,
        mut drive: impl FnMut(u64),
    ) -> Option<T> {
        let mut is_spinning = spin.goes_on();
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
                if self.is_seen_in_memory && !checks.is_multiple_of(CHECKS_PER_POLL) {
                    continue;
                }
            }
            let timeout = timeout.map(|timeout| Timespec {
                tv_sec: timeout.as_secs() as i64,
                tv_nsec: i64::from(timeout.subsec_nanos()),
            });
            let ready = wait(self.watch.leader(), timeout.as_ref());
            self.waker.disarm();
            if ready & 1 << LEADER_WAKER != 0 {
                self.waker.clear();
            }
            let ready = ready & !(1 << LEADER_WAKER);
            if ready != 0 {
                drive(ready);
            }
        }
    }

    /// Lets events of the sockets wake the node's own thread, or not. Those that it has not seen wake it at
    /// once.
    fn show_sockets(&self, are_shown: bool) {
        let flags = if are_shown { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(SOCKETS);
        if let Err(error) = epoll::modify(&self.epoll, self.watch.own(), data, flags) {
            tracing::error!(%error, "cannot watch the node's sockets");
        }
    }
}

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The bit of each token that has events. A signal is a spurious wake-up: callers check their condition again.
fn wait(epoll: impl AsFd, timeout: Option<&Timespec>) -> u64 {
    let empty = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let mut events = [empty; EVENTS_MAX];
    let count = epoll::wait(epoll, &mut events[..], timeout).unwrap_or(0);
    events[..count].iter().fold(0, |tokens, event| tokens | 1 << event.data.u64())
}

/// The leadership of a thread that waits several times in one call of the application; none as long as it has not led.
#[derive(Debug, Default)]
pub(crate) struct Lead<'a>(Option<Leadership<'a>>);

impl Lead<'_> {
    /// Ceases to lead.
    pub fn end(&mut self) {
        self.0 = None;
    }
}

/// While a thread leads, an event wakes it alone.
#[derive(Debug)]
struct Leadership<'a> {
    of: &'a LeaderFollowers,
    _guard: MutexGuard<'a, ()>,
}

impl<'a> Leadership<'a> {
    fn begin(of: &'a LeaderFollowers, guard: MutexGuard<'a, ()>, is_spinning: bool) -> Self {
        if is_spinning {
            // Who spins does not sleep, so that each event would wake the node's own thread.
            let _hiding = lock(&of.hiding);
            of.state.store(HIDDEN, Ordering::SeqCst);
            of.show_sockets(false);
        } else {
            of.state.store(LED, Ordering::SeqCst);
        }
        Self { of, _guard: guard }
    }
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        self.of.waker.disarm();
        if self.of.state.compare_exchange(LED, FREE, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            let _hiding = lock(&self.of.hiding);
            self.of.state.store(FREE, Ordering::SeqCst);
            self.of.show_sockets(true);
        }
        // What has woken this thread has not woken the node's own thread. From now on events wake that.
        if wait(self.of.watch.leader(), Some(&AT_ONCE)) & !(1 << LEADER_WAKER) != 0 {
            self.of.leave_events();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    const FIRST: u64 = 1;
    const SECOND: u64 = 2;
    const WAKER: u64 = 3;

    /// Long enough that another thread sleeps by then.
    const WHILE: Duration = Duration::from_millis(50);

    /// Two sockets with their tokens, and the peers that send to them.
    struct Sockets {
        leader_followers: LeaderFollowers,
        events: EventCount,
        own_waker: Arc<Waker>,
        sockets: [UnixDatagram; 2],
        peers: [UnixDatagram; 2],
    }

    impl Sockets {
        fn new(spin: Duration) -> Self {
            let watch = Arc::new(Watch::new().unwrap());
            let [(first, to_first), (second, to_second)] = [(); 2].map(|()| UnixDatagram::pair().unwrap());
            for (socket, token) in [(&first, FIRST), (&second, SECOND)] {
                socket.set_nonblocking(true).unwrap();
                watch.add(socket, token, epoll::EventFlags::IN).unwrap();
            }
            let own_waker = Arc::new(Waker::new().unwrap());
            let spin = SpinPolicy::new(Some(spin));
            let leader_followers =
                LeaderFollowers::new(watch, (Arc::clone(&own_waker), WAKER), spin, false).unwrap();
            let events = EventCount::new(leader_followers.waker());
            let (sockets, peers) = ([first, second], [to_first, to_second]);
            Self { leader_followers, events, own_waker, sockets, peers }
        }

        fn send(&self, token: u64) {
            self.peers[token as usize - 1].send(&[0]).unwrap();
        }

        /// Reads all that has come; how much.
        fn read(&self) -> u32 {
            let mut count = 0;
            for socket in &self.sockets {
                while socket.recv(&mut [0]).is_ok() {
                    count += 1;
                }
            }
            count
        }

        /// Leads until there is an event, and calls `drive` then; false if there is none.
        fn lead(&self, span: Duration, drive: impl Fn(u64)) -> bool {
            let is_driven = std::cell::Cell::new(false);
            let driven = |ready| {
                is_driven.set(true);
                drive(ready);
            };
            let find = || is_driven.get().then_some(());
            let until = Some(Instant::now() + span);
            let lead = &mut Lead::default();
            self.leader_followers.wait(&self.events, until, find, driven, lead).is_some()
        }

        /// What wakes the node's own thread at once.
        fn own(&self) -> u64 {
            self.leader_followers.sleep(Some(&AT_ONCE))
        }
    }

    #[test]
    fn an_event_wakes_the_leader_alone_or_without_one_the_own_thread() {
        let sockets = Sockets::new(Duration::ZERO);
        thread::scope(|scope| {
            let own = scope.spawn(|| {
                let timeout = Timespec { tv_sec: 0, tv_nsec: 4 * i64::from(WHILE.subsec_nanos()) };
                sockets.leader_followers.sleep(Some(&timeout))
            });
            let leader = scope.spawn(|| sockets.lead(Duration::from_secs(10), |_| _ = sockets.read()));
            thread::sleep(WHILE);
            sockets.send(FIRST);
            assert!(leader.join().unwrap());
            assert_eq!(own.join().unwrap(), 0);
        });
        assert!(!sockets.leader_followers.take_left_events());
        sockets.send(SECOND);
        assert_eq!(sockets.own(), 1 << SECOND);
    }

    #[test]
    fn the_own_thread_hides_events_from_itself_while_a_leader_is_awake() {
        let sockets = Sockets::new(Duration::ZERO);
        sockets.send(FIRST);
        assert!(sockets.lead(Duration::from_secs(10), |ready| {
            assert_eq!(ready, 1 << FIRST);
            for _ in 0..2 {
                sockets.send(SECOND);
                assert_eq!(sockets.own(), 0);
            }
            assert_eq!(sockets.leader_followers.state.load(Ordering::SeqCst), HIDDEN);
        }));
        assert_eq!(sockets.own() & 1 << SECOND, 1 << SECOND);
        assert_eq!(sockets.leader_followers.state.load(Ordering::SeqCst), FREE);
    }

    #[test]
    fn a_leader_that_spins_hides_all_events() {
        let sockets = Sockets::new(Duration::from_secs(10));
        sockets.send(FIRST);
        assert!(sockets.lead(Duration::from_secs(10), |_| {
            assert_eq!(sockets.leader_followers.state.load(Ordering::SeqCst), HIDDEN);
            assert_eq!(wait(&sockets.leader_followers.epoll, Some(&AT_ONCE)), 0);
        }));
        assert_eq!(sockets.own(), 1 << FIRST);
    }

    #[test]
    fn what_a_leader_has_not_handled_is_left_to_the_own_thread() {
        let sockets = Sockets::new(Duration::ZERO);
        thread::scope(|scope| {
            let leader = scope.spawn(|| sockets.lead(Duration::from_secs(10), |_| {}));
            thread::sleep(WHILE);
            sockets.own_waker.arm();
            sockets.send(FIRST);
            assert!(leader.join().unwrap());
        });
        assert_eq!(sockets.own(), 1 << WAKER);
        assert!(sockets.leader_followers.take_left_events());
        assert!(!sockets.leader_followers.take_left_events());
    }

    #[test]
    fn a_leader_that_was_woken_when_it_ceased_does_not_wake_the_own_thread() {
        let sockets = Sockets::new(Duration::ZERO);
        sockets.leader_followers.waker().arm();
        sockets.leader_followers.waker().wake();
        assert_eq!(sockets.own(), 0);
        assert!(!sockets.lead(Duration::from_millis(1), |_| {}));
    }

    /// Nobody comes back before each datagram is read, so that one that wakes nobody is found.
    #[test]
    fn no_event_is_lost_between_leaders_and_the_own_thread() {
        /// How long datagrams are sent: some thousands, on an idle machine.
        const SPAN: Duration = Duration::from_secs(1);
        /// Longer than a thread waits for a processor.
        const LONG: Duration = Duration::from_secs(20);
        let sockets = Sockets::new(Duration::ZERO);
        let (sent, read, is_over) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        let now = |count: &AtomicU32| count.load(Ordering::SeqCst);
        let over = || is_over.load(Ordering::SeqCst);
        let take = || {
            read.fetch_add(sockets.read(), Ordering::SeqCst);
            sockets.events.notify();
        };
        let wait_for = |count: &AtomicU32, number: u32| {
            let since = Instant::now();
            while now(count) < number && !over() {
                thread::yield_now();
                if since.elapsed() > LONG {
                    is_over.store(true, Ordering::SeqCst);
                    panic!("datagram {} has woken nobody", now(&read));
                }
            }
        };
        // Up to some tens of microseconds.
        let nap = |random: &mut u32| {
            *random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (0..*random >> 19).for_each(|_| std::hint::spin_loop());
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over() {
                    sockets.own_waker.arm();
                    if sockets.leader_followers.take_left_events() {
                        take();
                        continue;
                    }
                    let long = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
                    let woken = sockets.leader_followers.sleep(Some(&long));
                    sockets.own_waker.disarm();
                    if woken & 1 << WAKER != 0 {
                        sockets.own_waker.clear();
                    }
                    if woken & (1 << FIRST | 1 << SECOND) != 0 {
                        take();
                    }
                }
            });
            for seed in [1_u32, 2] {
                let (sockets, sent, read, take) = (&sockets, &sent, &read, &take);
                scope.spawn(move || {
                    let mut random = seed;
                    for number in (0..).take_while(|_| !over()) {
                        wait_for(sent, number);
                        nap(&mut random);
                        let find = || (now(read) > number).then_some(());
                        // Every third time it leaves to others what it was woken for.
                        let handles = !random.is_multiple_of(3);
                        let drive = |_| _ = handles.then(take);
                        let until = Some(Instant::now() + Duration::from_nanos((random >> 16).into()));
                        let mut lead = Lead::default();
                        sockets.leader_followers.wait(&sockets.events, until, find, drive, &mut lead);
                        lead.end();
                        wait_for(read, number + 1);
                    }
                });
            }
            let (mut random, since) = (3_u32, Instant::now());
            for number in (0..).take_while(|_| since.elapsed() < SPAN && !over()) {
                nap(&mut random);
                sockets.send(if u32::is_multiple_of(number, 3) { FIRST } else { SECOND });
                sent.store(number + 1, Ordering::SeqCst);
                wait_for(&read, number + 1);
            }
            is_over.store(true, Ordering::SeqCst);
            sockets.leader_followers.leave_events();
        });
        assert!(now(&read) > 0);
    }
}
