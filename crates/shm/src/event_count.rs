//! Wakes all threads that wait for one group, and a descriptor that an application polls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use treecast_ebpf::SlotMemory;

use crate::readers::Readers;
use crate::spin::SpinPolicy;
use crate::sync::lock;
use crate::waker::Waker;

/// The event count of a group: any number of threads sleep on it; a notification wakes them, the
/// polling thread of their process, and the descriptor of [`EventCount::watch`].
#[derive(Debug)]
pub struct EventCount {
    /// Wakes the thread that polls at the moment, if one does.
    polling: Arc<Waker>,
    /// How many threads sleep at the gate, or are about to.
    gated: AtomicU32,
    gate: Mutex<()>,
    notified: Condvar,
    /// Made at the first call of [`EventCount::watch`].
    watched: OnceLock<OwnedFd>,
    /// The group's page, in which the kernel's packet path reads whether a thread sleeps.
    kernel: OnceLock<SlotMemory>,
    /// How many threads are between `begin_sleep` and `end_sleep`.
    sleepers: AtomicU32,
    /// Where several processes have the group: all their threads wait on one futex.
    readers: OnceLock<Arc<Readers>>,
}

impl EventCount {
    /// No thread waits; `polling` wakes the thread that polls.
    pub fn new(polling: Arc<Waker>) -> Self {
        Self {
            polling,
            gated: AtomicU32::new(0),
            gate: Mutex::new(()),
            notified: Condvar::new(),
            watched: OnceLock::new(),
            kernel: OnceLock::new(),
            sleepers: AtomicU32::new(0),
            readers: OnceLock::new(),
        }
    }

    /// Lets the kernel's packet path wake sleeping threads too; `memory` has the word by which it
    /// knows of them.
    pub fn attach_kernel(&self, memory: SlotMemory) {
        let _ = self.kernel.set(memory);
    }

    /// The memory that [`EventCount::attach_kernel`] was given.
    pub fn kernel_memory(&self) -> Option<&SlotMemory> {
        self.kernel.get()
    }

    /// Lets threads sleep together with those of the other processes of this host that have the
    /// group.
    pub fn attach_readers(&self, readers: Arc<Readers>) {
        if self.watched.get().is_some() {
            readers.add_watcher();
        }
        let _ = self.readers.set(readers);
    }

    /// What [`EventCount::attach_readers`] was given.
    pub fn readers(&self) -> Option<&Arc<Readers>> {
        self.readers.get()
    }

    /// Counts a thread that is going to sleep. It calls [`EventCount::arm`] before each sleep.
    pub fn begin_sleep(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// Tells the kernel's packet path that a thread is about to sleep. A notification resets it.
    /// Call it before the last check of the condition.
    pub fn arm(&self) {
        if let Some(memory) = self.kernel.get() {
            memory.is_waiting().store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    /// Reverts [`EventCount::begin_sleep`]. After the last sleeper the kernel's packet path wakes
    /// nothing. Where several processes have the group, others may sleep: then the next packet
    /// wakes once in vain.
    pub fn end_sleep(&self) {
        let was_last = self.sleepers.fetch_sub(1, Ordering::SeqCst) == 1;
        let may_disarm = was_last && self.watched.get().is_none() && self.readers.get().is_none();
        if let Some(memory) = self.kernel.get().filter(|_| may_disarm) {
            memory.is_waiting().store(0, Ordering::SeqCst);
            // A thread that has begun to sleep since may have armed the word before the store.
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                memory.is_waiting().store(1, Ordering::SeqCst);
            }
        }
    }

    /// As [`EventCount::notify`], also if the memory in which the sleeping threads of several
    /// processes are counted was taken back by the daemon: for changes of the state, one of which
    /// is that the daemon has disconnected this process.
    pub fn notify_always(&self) {
        if let Some(readers) = self.readers.get() {
            readers.notify_always();
        }
        self.notify();
    }

    /// Wakes all waiting threads. The caller has made its change visible before.
    pub fn notify(&self) {
        // The application may poll the descriptor at any time, so the kernel's packet path always
        // has to wake it.
        if let (Some(memory), Some(_)) = (self.kernel.get(), self.watched.get()) {
            memory.is_waiting().store(1, Ordering::SeqCst);
        }
        if let Some(readers) = self.readers.get() {
            readers.notify();
        }
        self.polling.wake();
        if self.gated.load(Ordering::SeqCst) > 0 {
            // A thread that holds the gate is counted: it either checks its condition after the
            // change, or sleeps already.
            drop(lock(&self.gate));
            self.notified.notify_all();
        }
        if let Some(watched) = self.watched.get() {
            let _ = rustix::io::write(watched, &1_u64.to_ne_bytes());
        }
    }

    /// Waits until `find` returns a value, or until the deadline. It may spin before it sleeps.
    pub fn wait<T>(
        &self,
        until: Option<Instant>,
        spin: &SpinPolicy,
        mut find: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let first = find();
        if first.is_some() {
            return first;
        }
        let mut spin = spin.begin();
        while spin.goes_on() {
            let found = find();
            if found.is_some() || until.is_some_and(|until| until <= Instant::now()) {
                return found;
            }
        }
        if let Some(readers) = self.readers.get() {
            return self.sleep_with(readers, until, find);
        }
        let mut gate = lock(&self.gate);
        self.gated.fetch_add(1, Ordering::SeqCst);
        self.begin_sleep();
        fence(Ordering::SeqCst);
        let found = loop {
            self.arm();
            let found = find();
            if found.is_some() {
                break found;
            }
            gate = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(rest) if rest.is_zero() => break None,
                Some(rest) => {
                    self.notified.wait_timeout(gate, rest).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.notified.wait(gate).unwrap_or_else(PoisonError::into_inner),
            };
        };
        self.end_sleep();
        self.gated.fetch_sub(1, Ordering::SeqCst);
        found
    }

    /// Sleeps until `find` returns a value, or until the deadline, on the word of all processes of
    /// this host that have the group.
    fn sleep_with<T>(
        &self,
        readers: &Readers,
        until: Option<Instant>,
        mut find: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.begin_sleep();
        readers.begin_sleep();
        let found = loop {
            let seen = readers.signal();
            self.arm();
            let found = find();
            if found.is_some() {
                break found;
            }
            let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
            if timeout.is_some_and(|timeout| timeout.is_zero()) {
                break None;
            }
            readers.sleep(seen, timeout);
        };
        readers.end_sleep();
        self.end_sleep();
        found
    }

    /// A descriptor that becomes readable at each notification from the first call on. The
    /// application reads its eight bytes, and then checks the group.
    ///
    /// # Errors
    /// Those of `eventfd(2)`.
    pub fn watch(&self) -> io::Result<BorrowedFd<'_>> {
        if self.watched.get().is_none() {
            let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Of two concurrent calls one uses the other's descriptor.
            let _ = self.watched.set(descriptor);
            if let Some(memory) = self.kernel.get() {
                memory.is_waiting().store(1, Ordering::SeqCst);
            }
            if let Some(readers) = self.readers.get() {
                readers.add_watcher();
            }
        }
        self.watched.get().map(AsFd::as_fd).ok_or_else(|| io::Error::from(io::ErrorKind::Other))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    fn event_count() -> EventCount {
        EventCount::new(Arc::new(Waker::new().unwrap()))
    }

    fn wait_for(events: &EventCount, number: &AtomicU64, round: u64) {
        events
            .wait(None, &SpinPolicy::new(None), || (number.load(Ordering::SeqCst) >= round).then_some(()))
            .unwrap();
    }

    #[test]
    fn no_notification_is_lost_with_several_sleepers() {
        const ROUNDS: u64 = 1_000;
        const SLEEPERS: u64 = 3;
        let shared = Arc::new((event_count(), AtomicU64::new(0), event_count(), AtomicU64::new(0)));
        let sleepers: Vec<_> = (0..SLEEPERS)
            .map(|_| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || {
                    let (events, number, echo, seen) = &*shared;
                    for round in 1..=ROUNDS {
                        wait_for(events, number, round);
                        seen.fetch_add(1, Ordering::SeqCst);
                        echo.notify();
                    }
                })
            })
            .collect();
        let (events, number, echo, seen) = &*shared;
        for round in 1..=ROUNDS {
            number.store(round, Ordering::SeqCst);
            events.notify();
            wait_for(echo, seen, round * SLEEPERS);
        }
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    }

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let until = Instant::now() + Duration::from_millis(5);
        assert_eq!(event_count().wait(Some(until), &SpinPolicy::new(None), || None::<()>), None);
        assert!(Instant::now() >= until);
    }

    /// Slots of a group, as one process of a host maps them.
    pub(crate) fn memory() -> SlotMemory {
        let new = |bytes: usize| {
            let descriptor = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&descriptor, bytes as u64).unwrap();
            descriptor
        };
        let slot_bytes = SlotMemory::slot_bytes_for(64);
        SlotMemory::over(new(4 * slot_bytes), new(SlotMemory::PAGE_BYTES), slot_bytes, 4, true).unwrap()
    }

    #[test]
    fn a_process_that_sleeps_no_more_leaves_the_kernel_to_wake_the_others() {
        let (memory, (readers, descriptor)) = (memory(), Readers::allocate(2).unwrap());
        let process = |readers| {
            let events = event_count();
            events.attach_kernel(memory.clone());
            events.attach_readers(Arc::new(readers));
            events
        };
        let (one, other) = (process(readers), process(Readers::map(descriptor, 2).unwrap()));
        for events in [&one, &other] {
            events.begin_sleep();
            events.arm();
        }
        one.end_sleep();
        assert_eq!(memory.is_waiting().load(Ordering::SeqCst), 1);
        other.end_sleep();

        let alone = event_count();
        alone.attach_kernel(memory.clone());
        alone.begin_sleep();
        alone.arm();
        alone.end_sleep();
        assert_eq!(memory.is_waiting().load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_notification_makes_the_descriptor_readable() {
        let events = event_count();
        events.notify();
        let watched = events.watch().unwrap();
        let mut counter = [0; 8];
        assert!(rustix::io::read(watched, &mut counter).is_err(), "no notification since it is watched");
        events.notify();
        events.notify();
        assert_eq!(rustix::io::read(watched, &mut counter), Ok(8));
        assert_eq!(u64::from_ne_bytes(counter), 2);
    }
}
