//! Resources that a forked process must not use.

use std::process;

use treecast_engine::settings::error::NodeError;

/// A node or a group, owned by the process that created it. A forked process has a copy of its
/// memory, but not its threads, and must not send through its sockets: there the resource is
/// neither used nor dropped.
///
/// ```
/// use treecast_node::Owned;
///
/// let number = Owned::new(7);
/// assert_eq!(number.get()?, &7);
/// # Ok::<(), treecast_node::NodeError>(())
/// ```
#[derive(Debug)]
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
    /// [`NodeError::Forked`] in another process.
    pub fn get(&self) -> Result<&T, NodeError> {
        let own = self.value.as_ref().filter(|_| self.is_own());
        own.ok_or_else(|| NodeError::Forked { owner: self.process, here: process::id() })
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
