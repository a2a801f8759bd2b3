//! How far a copy is.

/// How far a copy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The bytes of files that were sent, of all.
    pub sent: u64,
    /// All bytes.
    pub total: u64,
    /// The hosts with what each has written; none that has failed.
    pub hosts: Vec<(&'a str, u64)>,
    /// The hosts that have failed, or have not started.
    pub failed: usize,
    /// The hosts whose receivers are being started.
    pub awaited: Vec<&'a str>,
    /// The uploads of the receiver, once some host has asked for it.
    pub upload: Option<Upload>,
}

/// How far the receiver has been sent to the hosts that lack it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upload {
    /// The hosts that wait for their turn.
    pub waiting: usize,
    /// The hosts to which it is being sent.
    pub receiving: usize,
    /// The hosts that have got it, or have failed meanwhile.
    pub ended: usize,
    /// The bytes that were sent to all of them.
    pub bytes: u64,
}

impl Progress<'_> {
    /// The host that has written the least.
    pub fn slowest(&self) -> Option<(&str, u64)> {
        self.hosts.iter().copied().min_by_key(|&(_, bytes)| bytes)
    }
}
