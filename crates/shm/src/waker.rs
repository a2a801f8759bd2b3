//! Wakes one thread that sleeps on descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// An event descriptor (`eventfd`) that one thread polls among others.
///
/// To wake is a system call only if the thread is about to sleep. No wake-up is lost: the thread
/// arms the waker first, then checks its condition, and polls last; the other side makes its change
/// visible first, and then checks whether the waker is armed. Both are sequentially consistent, so
/// at least one of the two sees the other.
#[derive(Debug)]
pub struct Waker {
    descriptor: OwnedFd,
    is_armed: AtomicBool,
}

impl Waker {
    /// A waker that is not armed.
    ///
    /// # Errors
    /// Those of `eventfd(2)`.
    pub fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor, is_armed: AtomicBool::new(false) })
    }

    /// Wakes the thread, if the waker is armed.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.is_armed.swap(false, Ordering::SeqCst) {
            // The write fails only if the counter is at its maximum; then the descriptor is
            // readable as well.
            let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }

    /// Lets the next [`Waker::wake`] make the descriptor readable. Call it before the last check of
    /// the condition.
    pub fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The thread does not sleep any more.
    pub fn disarm(&self) {
        self.is_armed.store(false, Ordering::SeqCst);
    }

    /// Makes the descriptor unreadable again.
    pub fn clear(&self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.descriptor, &mut counter);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
