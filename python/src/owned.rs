//! Resources that a forked process must not use.

use std::process;

use pyo3::prelude::*;

use crate::error::TreecastError;

/// A resource with threads or sockets, owned by the process that created it. A forked process has a copy of its memory, but not its
/// threads, and must not send through its sockets: there the resource is neither used nor dropped.
pub struct Owned<T> {
    value: Option<T>,
    process: u32,
}

impl<T> Owned<T> {
    /// A resource of this process.
    pub fn new(value: T) -> Self {
        Self { value: Some(value), process: process::id() }
    }

    /// The resource.
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
