//! How far a copy is.

use std::fmt;

/// How far a copy is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The bytes of files that were sent, of all.
    pub sent: u64,
    /// All bytes; 0 where the length is unknown, as that of standard input is until its end.
    pub total: u64,
    /// The hosts with what each has written; none that has failed.
    pub hosts: Vec<(&'a str, u64)>,
    /// The hosts that have failed, or have not started.
    pub failed: usize,
    /// The hosts whose receivers are being started.
    pub awaited: Vec<&'a str>,
    /// The hosts whose receivers have started and have not joined the group yet.
    pub joining: Vec<&'a str>,
    /// The hosts that are to say yet what they lack of the files.
    pub comparing: Vec<&'a str>,
    /// The uploads of the receiver, once some host has asked for it.
    pub upload: Option<Upload>,
    /// What all wait for, if it is one host or path.
    pub slow: Option<Slow<'a>>,
    /// What was slow when its sender became a leaf of the tree, in order.
    pub relieved: Vec<Slow<'a>>,
}

/// What all hosts wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slow<'a> {
    /// This host writes slowly, by its processor, or for an unknown reason.
    Writing(&'a str),
    /// This host writes slowly, by its disk.
    Disk(&'a str),
    /// This host forwards slowly, by its link or its processor.
    Forwarding(&'a str),
    /// Data passes slowly from a host to another one, by the link of one of the two.
    Path(&'a str, &'a str),
}

impl fmt::Display for Slow<'_> {
    /// For example `n3 writes slowly`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writing(host) => write!(f, "{host} writes slowly"),
            Self::Disk(host) => write!(f, "the disk of {host} is slow"),
            Self::Forwarding(host) => write!(f, "{host} forwards slowly"),
            Self::Path(from, to) => write!(f, "the path from {from} to {to} is slow"),
        }
    }
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
