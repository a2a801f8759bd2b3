use std::sync::{Arc, Mutex, PoisonError, Weak};

use treecast_node::{AbortReason, Group};

/// Ends a copy, or a receiver, from another thread, such as that of a signal.
#[derive(Debug, Clone, Default)]
pub struct Stopper {
    group: Arc<Mutex<(bool, Weak<Group>)>>,
}

impl Stopper {
    /// Aborts the group, or leaves it: receivers remove what is not complete.
    pub fn stop(&self) {
        let mut state = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        if let Some(group) = state.1.upgrade() {
            group.abort_because(AbortReason::Interrupted);
        }
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.group.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn watch(&self, group: &Arc<Group>) {
        let mut state = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 = Arc::downgrade(group);
        if state.0 {
            group.abort_because(AbortReason::Interrupted);
        }
    }
}
