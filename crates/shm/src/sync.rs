//! Locks, and atomics of the standard library or of loom.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

#[cfg(feature = "loom")]
pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(feature = "loom"))]
pub use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Locks a mutex, also after a panic of its holder: the protocol's own rules check what it guards.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mutex without barging: a thread that waits for it gets it before a thread that releases it and
/// locks it again.
///
/// Each thread holds the entrance while it waits for the value. So a thread that has just released
/// the value waits for the entrance until the one before it has the value. No thread calls
/// `sched_yield`, which would cost it a time slice where all processors are busy.
#[derive(Debug)]
pub struct FairMutex<T> {
    entrance: Mutex<()>,
    value: Mutex<T>,
}

impl<T> FairMutex<T> {
    /// A mutex that nobody holds.
    pub const fn new(value: T) -> Self {
        Self { entrance: Mutex::new(()), value: Mutex::new(value) }
    }

    /// Locks it, after all threads that wait for it already.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let _entrance = lock(&self.entrance);
        lock(&self.value)
    }

    /// Locks it unless another thread holds it or waits for it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let _entrance = try_lock(&self.entrance)?;
        try_lock(&self.value)
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_thread_that_only_tries_comes_after_one_that_waits() {
        let mutex = FairMutex::new(0);
        assert!(mutex.try_lock().is_some());
        let entrance = lock(&mutex.entrance);
        assert!(mutex.try_lock().is_none());
        drop(entrance);
        let _guard = mutex.lock();
        assert!(mutex.try_lock().is_none());
    }

    #[test]
    fn a_waiting_thread_comes_before_the_one_that_releases() {
        for _ in 0..100 {
            let mutex = FairMutex::new(0);
            let guard = mutex.lock();
            std::thread::scope(|scope| {
                scope.spawn(|| *mutex.lock() += 1);
                let end = Instant::now() + Duration::from_secs(10);
                while mutex.entrance.try_lock().is_ok() && Instant::now() < end {
                    std::thread::yield_now();
                }
                drop(guard);
                assert_eq!(*mutex.lock(), 1);
            });
        }
    }
}
