//! What a root's application leaves to its node: to send on what it has written.

use treecast_ebpf::SlotMemory;

use crate::sync::{AtomicU32, Ordering, fence};

/// The word in the page of a group that says so, to both.
///
/// No packet is forgotten: the application makes it visible first, and then looks whether sending is left to the node; the node
/// says first that nothing is left, and then looks whether everything is sent on. Both are sequentially consistent, so at least one
/// of them sees the other. If both do, both send, and the kernel's packet path takes each packet once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left<'a>(&'a AtomicU32);

impl<'a> Left<'a> {
    /// Of that group.
    #[cfg(not(loom))]
    pub fn of(memory: &'a SlotMemory) -> Self {
        Self(memory.is_delegated())
    }

    #[cfg(loom)]
    pub fn of(_: &'a SlotMemory) -> Self {
        unreachable!("loom knows no memory of others")
    }

    /// Whether something is left.
    pub fn is_there(self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }

    /// Whether the node sends on what the application has just written.
    pub fn holds_what_is_written(self) -> bool {
        fence(Ordering::SeqCst);
        self.is_there()
    }

    /// The application leaves to the node what it has written, and what it will write until the node says that nothing is left. The
    /// node is to be told.
    pub fn begin(self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// The node says that nothing is left. What has been written before it sees from now on.
    pub fn end(self) {
        self.0.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The same, unless more has been written meanwhile.
    pub fn end_if(self, has_all: impl FnOnce() -> bool) {
        self.end();
        if !has_all() {
            self.begin();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::wait::{poll, waker::Waker};
    use rustix::event::{PollFd, PollFlags};
    use std::os::fd::AsFd;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    /// An application, its node, and how far both are.
    struct Pair {
        word: AtomicU32,
        waker: Waker,
        written: AtomicU32,
        taken: AtomicU32,
        is_over: AtomicBool,
    }

    impl Pair {
        /// As an engine's thread does.
        fn node(&self) {
            let left = Left(&self.word);
            while !self.is_over.load(Ordering::Acquire) {
                self.waker.arm();
                if left.is_there() {
                    self.taken.fetch_max(self.written.load(Ordering::Acquire), Ordering::AcqRel);
                    left.end_if(|| {
                        self.taken.load(Ordering::Acquire) == self.written.load(Ordering::Acquire)
                    });
                }
                if left.is_there() || self.is_over.load(Ordering::Acquire) {
                    continue;
                }
                poll(&mut [PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN)], None);
                self.waker.disarm();
                self.waker.clear();
            }
        }

        /// As an application does, which now and then finds that sending holds it up.
        fn write(&self, number: u32, is_held_up: bool) {
            let left = Left(&self.word);
            self.written.store(number, Ordering::Release);
            if left.holds_what_is_written() {
                return;
            }
            if is_held_up {
                left.begin();
                self.waker.wake();
            } else {
                self.taken.fetch_max(number, Ordering::AcqRel);
            }
        }
    }

    /// In each round the application leaves something to the node, and writes once more when the node is about to say that nothing
    /// is left; then it says nothing more, and waits until all is sent on.
    #[test]
    fn nothing_that_is_left_is_forgotten() {
        const ROUNDS: u32 = 50_000;
        let pair = Pair {
            word: AtomicU32::new(0),
            waker: Waker::new().unwrap(),
            written: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
        };
        let patience = Instant::now() + Duration::from_secs(20);
        let is_taken = |number| {
            while pair.taken.load(Ordering::Acquire) != number {
                if Instant::now() > patience {
                    return false;
                }
                std::hint::spin_loop();
            }
            true
        };
        let forgotten = std::thread::scope(|scope| {
            scope.spawn(|| pair.node());
            let forgotten = (0..ROUNDS).find(|round| {
                pair.write(2 * round + 1, true);
                let is_first_taken = is_taken(2 * round + 1);
                (0..round % 32).for_each(|_| std::hint::spin_loop());
                pair.write(2 * round + 2, false);
                !is_first_taken || !is_taken(2 * round + 2)
            });
            pair.is_over.store(true, Ordering::Release);
            pair.waker.arm();
            pair.waker.wake();
            forgotten
        });
        assert_eq!(forgotten, None, "the round after which something was never sent on");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// `make schedules` runs it.
    #[test]
    fn what_is_written_is_sent_on_by_one_of_both_whatever_the_schedule() {
        loom::model(|| {
            let words = Arc::new([1, 0, 0].map(AtomicU32::new));
            let of_node = Arc::clone(&words);
            let node = loom::thread::spawn(move || {
                let [word, written, taken] = &*of_node;
                let seen = written.load(Ordering::Acquire);
                taken.fetch_max(seen, Ordering::AcqRel);
                Left(word).end_if(|| written.load(Ordering::Acquire) == seen);
            });
            let [word, written, taken] = &*words;
            written.store(1, Ordering::Release);
            if !Left(word).holds_what_is_written() {
                taken.fetch_max(1, Ordering::AcqRel);
            }
            node.join().unwrap();
            let is_taken = taken.load(Ordering::Acquire) == 1;
            assert!(is_taken || Left(word).is_there(), "what is written is forgotten");
        });
    }
}
