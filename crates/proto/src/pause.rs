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
    /// Every wait is extended by this: the span without the keepalive interval. If the whole span
    /// was left out, no wait would end at a node that is late at every timeout.
    pub left_out: Nanoseconds,
}

impl Pause {
    /// Extends a wait that counts from this time.
    pub fn leave_out(self, since: &mut Nanoseconds) {
        *since = self.ended_at.min(*since + self.left_out);
    }
}
