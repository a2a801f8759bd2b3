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
    /// The part of it in which the node was to run.
    pub late: Nanoseconds,
}

impl Pause {
    /// Moves a time, from which a wait counts, so that the pause is no part of the wait. What the
    /// node would have slept in any case is: otherwise no wait would end at one that is late at
    /// every timeout.
    pub fn leave_out(self, since: &mut Nanoseconds) {
        *since = self.ended_at.min(*since + self.late);
    }
}
