//! Times in which a node did not run.

use crate::Nanoseconds;

/// A node was stopped, or got no processor. That others were not heard meanwhile means nothing.
/// Their silence before counts: else a node that is late again and again, on a busy machine, would
/// never learn that another one is dead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause {
    pub ended_at: Nanoseconds,
    /// Since the node ran last.
    pub span: Nanoseconds,
    /// The part of it that is no part of any wait: all but what the node was to sleep, of which the
    /// keepalive interval counts at most. If nothing of it counted, no wait would end at a node
    /// that is late at every timeout; if a long sleep did, the node would act on silence before it
    /// has read what came meanwhile.
    pub left_out: Nanoseconds,
}

impl Pause {
    /// Moves a time, from which a wait counts, so that the pause is no part of the wait.
    pub fn leave_out(self, since: &mut Nanoseconds) {
        *since = self.ended_at.min(*since + self.left_out);
    }
}
