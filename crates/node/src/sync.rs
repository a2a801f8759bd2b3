//! Locks, and atomics of the standard library or of loom.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Locks a mutex, also after a panic of its holder: the protocol's own rules check what it guards.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
