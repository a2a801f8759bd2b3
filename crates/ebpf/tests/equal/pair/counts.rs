//! How much of the work the program does.

/// How much of the work the program does.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// Data and acknowledgments that were received for posted groups.
    pub received: u64,
    /// Of these, those that the program handled.
    pub handled: u64,
    /// Of these, those by which the program woke a reader.
    pub wakeups: u64,
    /// Contributions that the program combines or sends.
    pub contributed: u64,
    /// Contributions that the slow path of a root takes while the program keeps the group.
    pub taken: u64,
    /// Packets that applications of roots sent.
    pub queued: u64,
    /// Of these, those that the program forwarded.
    pub forwarded: u64,
    /// GSO batches of two segments or more, received or sent by applications of roots, and their
    /// segments.
    pub batches: u64,
    pub segments: u64,
    /// Of these, those that the program handled.
    pub batches_handled: u64,
    pub segments_handled: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.handled += other.handled;
        self.wakeups += other.wakeups;
        self.contributed += other.contributed;
        self.taken += other.taken;
        self.queued += other.queued;
        self.forwarded += other.forwarded;
        self.batches += other.batches;
        self.segments += other.segments;
        self.batches_handled += other.batches_handled;
        self.segments_handled += other.segments_handled;
    }
}
