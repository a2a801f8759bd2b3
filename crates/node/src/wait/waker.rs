//! Waking whoever sleeps, and nobody else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use treecast_ebpf::SlotMemory;

use rustix::event::{EventfdFlags, PollFd, Timespec, eventfd, poll};

/// What others ring when there is something to see, and one thread waits for, among other descriptors.
///
/// Ringing is a system call only if somebody waits. No ring is lost: whoever waits says so first, then looks, and sleeps last;
/// whoever rings makes its news visible first, and then looks whether somebody waits. Both are sequentially consistent, so at
/// least one of them sees the other.
#[derive(Debug)]
pub struct Bell {
    descriptor: OwnedFd,
    is_waited_for: AtomicBool,
}

impl Bell {
    /// A bell that has not been rung.
    pub fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor, is_waited_for: AtomicBool::new(false) })
    }

    /// Wakes whoever waits.
    pub fn ring(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.is_waited_for.swap(false, Ordering::SeqCst) {
            // The counter is at its bound only if nobody has read it 2^64 times: then it wakes as well.
            let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }

    /// From now on a ring makes the descriptor readable. To be called before the last look at what is waited for.
    pub fn arm(&self) {
        self.is_waited_for.store(true, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Nobody waits any more.
    pub fn disarm(&self) {
        self.is_waited_for.store(false, Ordering::SeqCst);
    }

    /// Takes the ring away that has been seen.
    pub fn clear(&self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.descriptor, &mut counter);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// What is rung for any number of threads that wait, for the engine's guest, and for a descriptor that others may watch.
#[derive(Debug)]
pub struct Notice {
    guest: Arc<Bell>,
    waiting: AtomicU32,
    gate: Mutex<()>,
    rung: Condvar,
    /// Made when somebody asks for it.
    watched: OnceLock<OwnedFd>,
    /// Where the kernel's packet path is told whether somebody sleeps, and how many do.
    kernel: OnceLock<SlotMemory>,
    sleepers: AtomicU32,
}

impl Notice {
    /// A notice that nobody waits for, and the bell of whom it wakes as well.
    pub fn new(guest: Arc<Bell>) -> Self {
        Self {
            guest,
            waiting: AtomicU32::new(0),
            gate: Mutex::new(()),
            rung: Condvar::new(),
            watched: OnceLock::new(),
            kernel: OnceLock::new(),
            sleepers: AtomicU32::new(0),
        }
    }

    /// From now on the kernel's packet path rings as well, if it is told that somebody sleeps.
    pub fn watch_kernel(&self, memory: SlotMemory) {
        let _ = self.kernel.set(memory);
    }

    /// The memory by which the kernel's packet path is told.
    pub fn kernel_memory(&self) -> Option<&SlotMemory> {
        self.kernel.get()
    }

    /// Somebody waits from now on, and says so to the kernel's packet path each time before it sleeps.
    pub fn begin_sleep(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// Somebody is about to sleep. To be called before the last look at what is waited for: a ring takes it away.
    pub fn arm(&self) {
        if let Some(memory) = self.kernel.get() {
            memory.sleeps().store(1, Ordering::SeqCst);
            std::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    /// Somebody waits no longer. The kernel's packet path rings no more if that was the last.
    pub fn end_sleep(&self) {
        let was_last = self.sleepers.fetch_sub(1, Ordering::SeqCst) == 1;
        if let Some(memory) = self.kernel.get().filter(|_| was_last && self.watched.get().is_none()) {
            memory.sleeps().store(0, Ordering::SeqCst);
            // Who has begun to sleep meanwhile may have said so before.
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                memory.sleeps().store(1, Ordering::SeqCst);
            }
        }
    }

    /// Wakes all who wait. What there is to see has been made visible before.
    pub fn ring(&self) {
        // A descriptor is watched at any time: whoever watches it is told of what comes from now on.
        if let (Some(memory), Some(_)) = (self.kernel.get(), self.watched.get()) {
            memory.sleeps().store(1, Ordering::SeqCst);
        }
        self.guest.ring();
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // Whoever holds the gate has counted itself and looks, or sleeps already: it sees what has changed, or is woken.
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
            self.rung.notify_all();
        }
        if let Some(watched) = self.watched.get() {
            let _ = rustix::io::write(watched, &1_u64.to_ne_bytes());
        }
    }

    /// Waits until `find` finds something, or the time is over. Looks again and again for a short while before it sleeps.
    pub fn wait<T>(
        &self,
        until: Option<Instant>,
        spin: Duration,
        mut find: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let first = find();
        if first.is_some() {
            return first;
        }
        let spun_until = Instant::now() + spin;
        while !spin.is_zero() && Instant::now() < spun_until {
            let found = find();
            if found.is_some() {
                return found;
            }
            std::hint::spin_loop();
        }
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.begin_sleep();
        std::sync::atomic::fence(Ordering::SeqCst);
        let found = loop {
            self.arm();
            let found = find();
            if found.is_some() {
                break found;
            }
            gate = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => break None,
                Some(left) => self.rung.wait_timeout(gate, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.rung.wait(gate).unwrap_or_else(PoisonError::into_inner),
            };
        };
        self.end_sleep();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        found
    }

    /// A descriptor that becomes readable whenever this is rung, from now on. Whoever watches it reads its eight bytes, and then
    /// looks.
    pub fn watch(&self) -> io::Result<BorrowedFd<'_>> {
        if self.watched.get().is_none() {
            let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Of two who ask at once one is given the other's.
            let _ = self.watched.set(descriptor);
            if let Some(memory) = self.kernel.get() {
                memory.sleeps().store(1, Ordering::SeqCst);
            }
        }
        self.watched.get().map(AsFd::as_fd).ok_or_else(|| io::Error::from(io::ErrorKind::Other))
    }
}

/// Sleeps until a descriptor is ready, the time is over, or a signal comes.
pub fn sleep(descriptors: &mut [PollFd<'_>], time: Option<Duration>) {
    let time =
        time.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) });
    // An interruption by a signal is a wake-up as any other: whoever sleeps looks again.
    let _ = poll(descriptors, time.as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn notice() -> Notice {
        Notice::new(Arc::new(Bell::new().unwrap()))
    }

    fn reach(notice: &Notice, number: &AtomicU64, round: u64) {
        notice.wait(None, Duration::ZERO, || (number.load(Ordering::SeqCst) >= round).then_some(())).unwrap();
    }

    #[test]
    fn no_ring_is_lost_however_many_wait() {
        const ROUNDS: u64 = 1_000;
        const OTHERS: u64 = 3;
        let shared = Arc::new((notice(), AtomicU64::new(0), notice(), AtomicU64::new(0)));
        let others: Vec<_> = (0..OTHERS)
            .map(|_| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || {
                    let (notice, number, echo, seen) = &*shared;
                    for round in 1..=ROUNDS {
                        reach(notice, number, round);
                        seen.fetch_add(1, Ordering::SeqCst);
                        echo.ring();
                    }
                })
            })
            .collect();
        let (notice, number, echo, seen) = &*shared;
        for round in 1..=ROUNDS {
            number.store(round, Ordering::SeqCst);
            notice.ring();
            reach(echo, seen, round * OTHERS);
        }
        for other in others {
            other.join().unwrap();
        }
    }

    #[test]
    fn a_wait_ends_with_its_time() {
        let until = Instant::now() + Duration::from_millis(5);
        assert_eq!(notice().wait(Some(until), Duration::ZERO, || None::<()>), None);
        assert!(Instant::now() >= until);
    }

    #[test]
    fn a_ring_makes_the_descriptor_readable() {
        let notice = notice();
        notice.ring();
        let watched = notice.watch().unwrap();
        let mut counter = [0; 8];
        assert!(rustix::io::read(watched, &mut counter).is_err(), "nothing was rung since it is watched");
        notice.ring();
        notice.ring();
        assert_eq!(rustix::io::read(watched, &mut counter), Ok(8));
        assert_eq!(u64::from_ne_bytes(counter), 2);
    }
}
