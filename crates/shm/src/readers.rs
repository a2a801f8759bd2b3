//! The memory that the processes of one host share for a group, beside its slots: their places, and
//! the word on which they sleep.

#![expect(unsafe_code, reason = "processes share memory")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::thread::futex;
use rustix::time::Timespec;
use treecast_ebpf::{Mapping, SlotMemory};
use treecast_proto::Sequence;

use crate::places::{Place, advance_read, least_read};
use crate::sync;

/// The most processes of a host in one group.
pub const READERS_MAX: u32 = 256;

/// The header before the places.
#[repr(C, align(64))]
struct Head {
    /// Sleeping processes wait for it to change (futex(2)).
    signal: AtomicU32,
    /// How many threads sleep, or are about to. Of a process that was killed they stay counted, and
    /// then a notification costs a system call more.
    sleepers: AtomicU32,
    /// How many processes poll a descriptor, and are woken by the node.
    watchers: AtomicU32,
    /// Not 0 while the root waits for free slots.
    wants_free_slots: AtomicU32,
}

/// The memory of a group's readers on one host.
///
/// All processes of the group on this host write it, and all belong to one user. What they write is
/// checked where it is used: a place can only hold back the slots of its own group (`places.rs`).
#[derive(Debug)]
pub struct Readers {
    mapping: Arc<Mapping>,
    count: u32,
}

impl Readers {
    /// Allocates the memory for this many readers, of which none has read packet `start`; returns
    /// it with its descriptor.
    ///
    /// # Errors
    /// Those of `memfd_create(2)` and `mmap(2)`; `InvalidInput` for no readers, or for more than
    /// [`READERS_MAX`].
    pub fn allocate(count: u32) -> io::Result<(Self, OwnedFd)> {
        let bytes = Self::bytes_for(count);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = memfd_create("treecast-readers", flags)?;
        ftruncate(&descriptor, bytes as u64)?;
        // A process that shortened the file would crash the others at their next access.
        fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&descriptor, count)?, descriptor))
    }

    /// Maps the memory that another process has allocated.
    ///
    /// # Errors
    /// As [`Readers::allocate`].
    pub fn map(descriptor: impl AsFd, count: u32) -> io::Result<Self> {
        if !(1..=READERS_MAX).contains(&count) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { mapping: Arc::new(Mapping::new(descriptor, Self::bytes_for(count), true)?), count })
    }

    /// The memory for this many readers, in bytes: whole pages of the machine.
    pub fn bytes_for(count: u32) -> usize {
        let bytes = size_of::<Head>() + count as usize * size_of::<Place>();
        bytes.next_multiple_of(rustix::param::page_size())
    }

    /// The memory.
    pub fn mapping(&self) -> Arc<Mapping> {
        Arc::clone(&self.mapping)
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping has at least this many bytes, zeroed at first, lives as long as this
        // value, and all processes use its words atomically alone.
        unsafe { &*self.mapping.address::<Head>() }
    }

    /// The places, by number.
    pub fn places(&self) -> &[Place] {
        // SAFETY: as in `head`: they follow the head, and `bytes_for` has counted them.
        unsafe { slice::from_raw_parts(self.mapping.address::<Head>().add(1).cast(), self.count as usize) }
    }

    /// Lets all readers begin with packet `start`. Only before anybody reads.
    pub fn set_start(&self, start: Sequence) {
        self.places().iter().for_each(|place| place.set_start(start));
    }

    /// The first packet that a reader has not read; none if all have left. All have read what comes
    /// before `base`.
    pub fn least_read(&self, base: Sequence) -> Option<Sequence> {
        least_read(self.places(), base)
    }

    /// Passes the slots that all readers have read back to the writer, which reads `read`. Returns
    /// that number before and after.
    pub fn advance_read(&self, read: &sync::AtomicU32) -> (Sequence, Sequence) {
        advance_read(self.places(), read)
    }

    /// The same for the slots of the group in shared memory.
    #[cfg(not(feature = "loom"))]
    pub fn advance_read_in(&self, memory: &SlotMemory) {
        self.advance_read(memory.read());
    }

    /// Loom models use private memory.
    #[cfg(feature = "loom")]
    pub fn advance_read_in(&self, _: &SlotMemory) {
        unreachable!("loom models use no shared memory")
    }

    /// The number that a thread which is about to sleep compares. Read it before the last check of
    /// the condition.
    pub fn signal(&self) -> u32 {
        self.head().signal.load(Ordering::SeqCst)
    }

    /// Counts a thread that is about to sleep. The count comes before the check of the condition,
    /// and the change of the condition before the check of the count, both sequentially consistent:
    /// so no notification is lost.
    pub fn begin_sleep(&self) {
        self.head().sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Reverts [`Readers::begin_sleep`].
    pub fn end_sleep(&self) {
        self.head().sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps until a notification that comes after [`Readers::signal`] has returned `seen`, or
    /// until the timeout. May return without either.
    pub fn sleep(&self, seen: u32, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        // Interrupted, timed out, or notified already: the caller checks its condition in any case.
        let _ = futex::wait(&self.head().signal, futex::Flags::empty(), seen, timeout.as_ref());
    }

    /// Wakes all sleeping threads of all processes. The caller has made its change visible before.
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.head().sleepers.load(Ordering::SeqCst) > 0 {
            self.notify_always();
        }
    }

    /// The same even if no thread is counted as sleeping: a daemon that takes the memory back also
    /// resets the count, but threads still sleep on the word.
    pub fn notify_always(&self) {
        self.head().signal.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(&self.head().signal, futex::Flags::empty(), i32::MAX as u32);
    }

    /// A process polls a descriptor from now on, which its node has to wake.
    pub fn add_watcher(&self) {
        self.head().watchers.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a process polls a descriptor.
    pub fn has_watchers(&self) -> bool {
        fence(Ordering::SeqCst);
        self.head().watchers.load(Ordering::SeqCst) > 0
    }

    /// The root waits for free slots, or does not any more.
    pub fn want_free_slots(&self, is_wanted: bool) {
        self.head().wants_free_slots.store(is_wanted.into(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// A reader has freed slots: wakes the root if that waits for them.
    pub fn notify_free_slots(&self) {
        fence(Ordering::SeqCst);
        if self.head().wants_free_slots.load(Ordering::SeqCst) != 0 {
            self.notify();
        }
    }
}

/// A descriptor of memory, to be sent to another process.
#[derive(Debug)]
pub struct SharedReaders {
    /// The memory.
    pub readers: Readers,
    descriptor: OwnedFd,
}

impl SharedReaders {
    /// Allocates it.
    ///
    /// # Errors
    /// Those of [`Readers::allocate`].
    pub fn allocate(count: u32) -> io::Result<Self> {
        let (readers, descriptor) = Readers::allocate(count)?;
        Ok(Self { readers, descriptor })
    }

    /// The descriptor.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_are_the_same_places() {
        let (one, descriptor) = Readers::allocate(70).unwrap();
        let other = Readers::map(&descriptor, 70).unwrap();
        one.set_start(Sequence(7));
        other.places()[69].set_read(Sequence(9));
        assert_eq!(one.places()[69].read(), Sequence(9));
        assert_eq!(one.least_read(Sequence(7)), Some(Sequence(7)));
        assert!(Readers::allocate(0).is_err() && Readers::allocate(READERS_MAX + 1).is_err());
    }

    #[test]
    fn threads_that_sleep_on_memory_that_was_taken_back_are_woken() {
        let readers = Readers::allocate(1).unwrap().0;
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                readers.begin_sleep();
                loop {
                    let seen = readers.signal();
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    readers.sleep(seen, None);
                }
            });
            while readers.head().sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            readers.mapping().free_pages().unwrap();
            is_over.store(true, Ordering::SeqCst);
            readers.notify_always();
        });
    }

    #[test]
    fn no_notification_is_lost_with_many_sleepers() {
        const ROUNDS: u32 = 2_000;
        const SLEEPERS: usize = 4;
        let readers = Readers::allocate(1 + SLEEPERS as u32).unwrap().0;
        let readers = &readers;
        let wait_for = |is_true: &dyn Fn() -> bool| {
            readers.begin_sleep();
            loop {
                let seen = readers.signal();
                if is_true() {
                    break;
                }
                readers.sleep(seen, None);
            }
            readers.end_sleep();
        };
        std::thread::scope(|scope| {
            for place in 1..=SLEEPERS {
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        wait_for(&|| readers.places()[0].read() == Sequence(round));
                        readers.places()[place].set_read(Sequence(round));
                        readers.notify();
                    }
                });
            }
            for round in 1..=ROUNDS {
                readers.places()[0].set_read(Sequence(round));
                readers.notify();
                wait_for(&|| readers.least_read(Sequence(round - 1)) == Some(Sequence(round)));
            }
        });
    }
}
