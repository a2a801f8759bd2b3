//! A root's application may delegate sending to its node.

use treecast_ebpf::SlotMemory;

use crate::sync::{AtomicU32, Ordering, fence};

/// The word in a group's page that says whether sending is delegated.
///
/// No packet is forgotten: the application makes a packet visible first, and then checks whether
/// sending is delegated; the node ends the delegation first, and then checks whether everything is
/// sent. Both are sequentially consistent, so at least one of the two sees the other. If both do,
/// both send, and the kernel's packet path accepts each packet once.
#[derive(Debug, Clone, Copy)]
pub struct SendDelegation<'a>(&'a AtomicU32);

impl<'a> SendDelegation<'a> {
    #[cfg(not(feature = "loom"))]
    /// The word in this memory.
    pub fn of(memory: &'a SlotMemory) -> Self {
        Self(memory.is_delegated())
    }

    #[cfg(feature = "loom")]
    /// The word in this memory.
    pub fn of(_: &'a SlotMemory) -> Self {
        unreachable!("loom models use no shared memory")
    }

    /// Whether the node sends.
    pub fn is_active(self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }

    /// Whether the node sends the packets that the application has just written.
    pub fn covers_written(self) -> bool {
        fence(Ordering::SeqCst);
        self.is_active()
    }

    /// The application delegates the packets that it has written, and will write until the node
    /// ends the delegation. It wakes the node afterwards.
    pub fn begin(self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// The node ends the delegation. Afterwards it sees all packets that were written before.
    pub fn end(self) {
        self.0.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Ends the delegation, unless more packets were written meanwhile.
    pub fn end_if_complete(self, has_sent_all: impl FnOnce() -> bool) {
        self.end();
        if !has_sent_all() {
            self.begin();
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::waker::Waker;
    use rustix::event::poll;
    use rustix::event::{PollFd, PollFlags};
    use std::os::fd::AsFd;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    /// An application, its node, and the progress of both.
    struct Pair {
        word: AtomicU32,
        waker: Waker,
        written: AtomicU32,
        taken: AtomicU32,
        is_over: AtomicBool,
    }

    impl Pair {
        /// What an engine's thread does.
        fn node(&self) {
            let delegation = SendDelegation(&self.word);
            while !self.is_over.load(Ordering::Acquire) {
                self.waker.arm();
                if delegation.is_active() {
                    self.taken.fetch_max(self.written.load(Ordering::Acquire), Ordering::AcqRel);
                    delegation.end_if_complete(|| {
                        self.taken.load(Ordering::Acquire) == self.written.load(Ordering::Acquire)
                    });
                }
                if delegation.is_active() || self.is_over.load(Ordering::Acquire) {
                    continue;
                }
                let _ = poll(&mut [PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN)], None);
                self.waker.disarm();
                self.waker.clear();
            }
        }

        /// What an application does that sometimes delegates.
        fn write(&self, number: u32, delegates: bool) {
            let delegation = SendDelegation(&self.word);
            self.written.store(number, Ordering::Release);
            if delegation.covers_written() {
                return;
            }
            if delegates {
                delegation.begin();
                self.waker.wake();
            } else {
                self.taken.fetch_max(number, Ordering::AcqRel);
            }
        }
    }

    /// In each round the application delegates, and writes once more while the node is about to end
    /// the delegation; then it waits until everything is sent.
    #[test]
    fn no_delegated_packet_is_forgotten() {
        const ROUNDS: u32 = 50_000;
        let pair = Pair {
            word: AtomicU32::new(0),
            waker: Waker::new().unwrap(),
            written: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        let is_taken = |number| {
            while pair.taken.load(Ordering::Acquire) != number {
                if Instant::now() > deadline {
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
        assert_eq!(forgotten, None, "the round after which a packet was never sent");
    }
}

/// Models for loom.
#[cfg(feature = "loom")]
pub mod models {
    use super::{AtomicU32, Ordering, SendDelegation};
    use loom::sync::Arc;

    /// Each written packet is sent by the application or by the node.
    pub fn written_packets_are_sent_by_one_side() {
        loom::model(|| {
            let words = Arc::new([1, 0, 0].map(AtomicU32::new));
            let of_node = Arc::clone(&words);
            let node = loom::thread::spawn(move || {
                let [word, written, taken] = &*of_node;
                let seen = written.load(Ordering::Acquire);
                taken.fetch_max(seen, Ordering::AcqRel);
                SendDelegation(word).end_if_complete(|| written.load(Ordering::Acquire) == seen);
            });
            let [word, written, taken] = &*words;
            written.store(1, Ordering::Release);
            if !SendDelegation(word).covers_written() {
                taken.fetch_max(1, Ordering::AcqRel);
            }
            node.join().unwrap();
            let is_taken = taken.load(Ordering::Acquire) == 1;
            assert!(is_taken || SendDelegation(word).is_active(), "a written packet is forgotten");
        });
    }
}
