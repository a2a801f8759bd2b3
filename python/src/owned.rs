//! What does not outlive a fork.

use std::process;

use pyo3::prelude::*;

use crate::error::TreecastError;

/// Something with threads or sockets that belongs to the process that made it. A forked process has its memory, but none of its
/// threads, and must not speak through its sockets: there it is neither used nor dropped.
pub struct Owned<T> {
    value: Option<T>,
    process: u32,
}

impl<T> Owned<T> {
    /// Of this process.
    pub fn new(value: T) -> Self {
        Self { value: Some(value), process: process::id() }
    }

    /// The thing.
    ///
    /// # Errors
    /// [`TreecastError`] in another process.
    pub fn get(&self) -> PyResult<&T> {
        self.value.as_ref().filter(|_| self.is_own()).ok_or_else(|| {
            TreecastError::new_err(format!(
                "this node belongs to process {}, and not to {}, which was forked from it: open a node there",
                self.process,
                process::id()
            ))
        })
    }

    fn is_own(&self) -> bool {
        self.process == process::id()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.is_own() {
            std::mem::forget(self.value.take());
        }
    }
}
