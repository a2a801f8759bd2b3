use std::sync::{Arc, Mutex, PoisonError, Weak};

use treecast_node::{AbortReason, Group};

/// Ends a copy, or a receiver, from another thread, such as that of a signal.
#[derive(Debug, Clone, Default)]
pub struct Stopper {
    groups: Arc<Mutex<(bool, Vec<Weak<Group>>)>>,
}

impl Stopper {
    /// Aborts the groups, or leaves them: receivers remove what is not complete.
    pub fn stop(&self) {
        let mut state = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        for group in state.1.iter().filter_map(Weak::upgrade) {
            group.abort_because(AbortReason::Interrupted);
        }
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn watch(&self, group: &Arc<Group>) {
        let mut state = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        state.1.retain(|group| group.strong_count() > 0);
        state.1.push(Arc::downgrade(group));
        if state.0 {
            group.abort_because(AbortReason::Interrupted);
        }
    }
}
