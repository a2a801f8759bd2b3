//! What is measured in a row of the report: a program, a message size and a delay.

use std::time::Duration;

use treecast_node::{Integrity, Offload, Transport};

use crate::mode::Mode;
use crate::peer_program::PeerProgram;
use crate::report::Statistics;
use crate::workers::CreatedGroup;

/// A configuration with a message size and a delay.
pub(super) struct Case<'a> {
    pub subject: Subject<'a>,
    pub bytes: usize,
    /// That of the late process, or the average skew, if the workload has one.
    pub delay: Duration,
    pub statistics: Statistics,
}

/// The program that broadcasts.
pub(super) enum Subject<'a> {
    Group { group: u32, mode: &'a Mode, created: CreatedGroup },
    Peer(&'a PeerProgram),
}

/// A subject in a row.
pub(super) struct Description {
    pub engine: String,
    pub offload: String,
    pub scheme: String,
    pub auth: String,
    pub integrity: String,
    pub transport: String,
    pub on_fabric: bool,
    /// The parent of each member but the root, if that is known.
    pub parents: Option<Vec<u32>>,
}

impl<'a> Case<'a> {
    pub fn new(subject: Subject<'a>, bytes: usize, delay: Duration) -> Self {
        Self { subject, bytes, delay, statistics: Statistics::default() }
    }

    /// Its group, and the message size of that.
    pub const fn group(&self) -> Option<(u32, usize)> {
        match self.subject {
            Subject::Group { group, .. } => Some((group, self.bytes)),
            Subject::Peer(_) => None,
        }
    }
}

impl Subject<'_> {
    pub fn describe(self) -> Description {
        match self {
            Self::Group { mode, created, .. } => Description {
                engine: mode.engine.to_string(),
                offload: mode.offload.to_string(),
                scheme: created.scheme.unwrap_or_else(|| "auto".into()),
                auth: format!(
                    "{}{}",
                    mode.authentication,
                    if mode.is_encrypted { ", encrypted" } else { "" }
                ),
                integrity: mode.integrity.to_string(),
                transport: mode.transport.to_string(),
                on_fabric: mode.on_fabric,
                parents: created.parents,
            },
            // Its processes forward, over TCP.
            Self::Peer(program) => Description {
                engine: program.name(),
                offload: if program.has_shim() { "auto".into() } else { Offload::Host.to_string() },
                scheme: "auto".into(),
                auth: "none".into(),
                integrity: Integrity::Network.to_string(),
                transport: Transport::Streams.to_string(),
                on_fabric: false,
                parents: None,
            },
        }
    }
}
