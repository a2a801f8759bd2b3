//! The times of broadcasts in a row.

use treecast_terms::Picoseconds;

/// The times of a row of broadcasts.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// When the root called the broadcast that is timed; where calls are not separated, the first
    /// one.
    pub started: Picoseconds,
    /// When the last process returned, or the root had the last acknowledgment or answer.
    pub ended: Picoseconds,
    /// When the last process had the last message.
    pub delivered: Picoseconds,
    /// The sums over all broadcasts that have been timed, each from the call of the root.
    pub latencies: Picoseconds,
    pub deliveries: Picoseconds,
}

impl Row {
    /// The broadcast that is timed has ended.
    pub fn close(&mut self) {
        self.latencies += self.ended - self.started;
        self.deliveries += Picoseconds(self.delivered.0.saturating_sub(self.started.0));
    }

    /// The mean time until a message was delivered, of `broadcasts` broadcasts.
    pub fn mean_delivery(&self, broadcasts: u32) -> Picoseconds {
        mean(self.deliveries, broadcasts)
    }
}

/// The mean of a sum over some broadcasts.
pub(super) fn mean(sum: Picoseconds, broadcasts: u32) -> Picoseconds {
    Picoseconds(sum.0 / u64::from(broadcasts))
}
