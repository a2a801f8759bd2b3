//! The control protocol between the host that copies and a receiver: requests and responses, a line
//! of JSON each.

use std::io::BufRead;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use treecast_node::{
    CongestionControl, GroupId, GroupSettings, Nanoseconds, NodeSettings, PortRange, Retention,
};

use crate::sources::described;
use crate::stream::Hash;
use crate::waits::Waits;

/// The first message of a receiver: its version, and that of the protocol, which counts the changes
/// after which a receiver does not understand a sender.
pub const HELLO: &str = concat!("treecast-copy ", env!("CARGO_PKG_VERSION"), ", protocol 6");

/// A request to a receiver, in this order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Open a node, and look at the destination.
    Open {
        /// The address of the host that copies; without one it is that of the remote shell's
        /// client.
        root: Option<IpAddr>,
        /// The ports of which its node takes one; without them the system chooses.
        ports: Option<PortRange>,
        destination: PathBuf,
        writing: Writing,
    },
    /// Take part in the group, and write what it brings.
    Receive {
        members: Vec<SocketAddr>,
        member: usize,
        group: u32,
        token: String,
        /// That of the streams to its children; none: as its own system has it.
        tcp_congestion: Option<CongestionControl>,
        /// Who retains packets.
        retention: Retention,
        /// Whether files are written into the destination, and not as the destination.
        into: bool,
        /// The group of another host that serves messages: each empty message of this group stands
        /// for the next message of that one.
        served: Option<ServedGroup>,
    },
    /// Serve messages to a group, as its root, from the files at the destination.
    Serve {
        members: Vec<SocketAddr>,
        /// The settings of the group, as text.
        settings: String,
        into: bool,
        /// The level at which messages are compressed, if they are.
        compression: Option<i32>,
    },
    /// Build the message that has this hash and send it, or answer why not. The outline of the
    /// message follows the line.
    Outline { digest: Hash, bytes: usize },
    /// Wait no longer for a member whose receiver has ended.
    Evict(u32),
    /// All messages were sent.
    Close,
    /// The BLAKE3 hash of the next message of the stream: one such request for each message, before
    /// it is sent. The stream passes through other receivers, and this pipe does not, so a receiver
    /// acts on no message before it has compared it.
    Digest(Hash),
}

/// A group whose root is a host that serves. The other members are those of the group of the host
/// that copies.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ServedGroup {
    pub root: SocketAddr,
    pub group: u32,
    pub token: String,
}

impl ServedGroup {
    /// The settings of this group, by those of the group of the host that copies.
    pub fn settings(self, mut of_other: GroupSettings) -> GroupSettings {
        if let Some(first) = of_other.members.first_mut() {
            *first = self.root;
        }
        GroupSettings { group: GroupId(self.group), token: self.token, ..of_other }
    }
}

/// How long a host may be silent before it is lost, in milliseconds: a copy is worth waiting for a
/// process that is stopped for a while. One whose process has ended is not waited for.
const PEER_TIMEOUT_MS: u64 = 30_000;

/// The settings of the nodes of a copy.
pub(crate) fn node_settings(address: IpAddr, ports: Option<PortRange>) -> NodeSettings {
    let bind = SocketAddr::new(address, 0);
    let mut settings = NodeSettings { bind, ports, ..NodeSettings::default() };
    settings.protocol.peer_timeout = Nanoseconds::from_ms(PEER_TIMEOUT_MS);
    settings
}

/// Reads the next request.
///
/// # Errors
/// The input has ended or cannot be read, or its next line is not a request.
pub(crate) fn request(input: &mut impl BufRead) -> Result<Request, String> {
    let mut line = String::new();
    match input.read_line(&mut line) {
        Ok(0) => Err("the host that copies is gone".into()),
        Ok(_) => serde_json::from_str(&line).map_err(|error| format!("no request: {error}")),
        Err(error) => Err(described(&error)),
    }
}

/// How a receiver writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writing {
    /// Whether modes, times and, for root, owners are those of the sources. Otherwise modes are
    /// those of the sources without the bits of the umask.
    pub preserves: bool,
    /// The treatment of existing files.
    pub existing: Existing,
    /// If set, what is in copied directories and not among the sources is deleted in the end,
    /// except for what these patterns match.
    pub deletes_all_but: Option<Vec<String>>,
    /// Whether nothing is changed: receivers say what they lack, and what they would delete.
    pub is_dry: bool,
    /// Whether files that are not complete are kept under their other name when the copy fails.
    pub keeps_parts: bool,
}

/// The treatment of files that exist at the destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Existing {
    /// They are replaced if their length or time of modification differs, or their contents where
    /// hashes are compared.
    #[default]
    Changed,
    /// They are replaced.
    Replace,
    /// They are kept as they are.
    Keep,
    /// They are replaced if the source was modified later.
    Newer,
}

/// A receiver's response.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Response {
    /// The first line.
    Hello(String),
    /// There is no such version of the command here: a copy of it is to follow.
    Missing {
        /// Whether the host has gzip, so that the copy may be compressed.
        has_gzip: bool,
    },
    Opened {
        address: SocketAddr,
        /// The kind of the destination; none if it does not exist.
        is_directory: Option<bool>,
    },
    Progress {
        /// The number of bytes that have been written.
        bytes: u64,
        /// Whom its packets waited for since the last such response.
        waits: Waits,
    },
    /// The entries or chunks that are lacking: ranges of their numbers, the first one and the one
    /// after the last.
    Lacking { ranges: Vec<(u32, u32)> },
    /// The last response.
    Done {
        files: u64,
        kept: u64,
        deleted: u64,
        /// The first of what would have been deleted, of a receiver that changes nothing.
        deletions: Vec<String>,
        failures: Vec<String>,
        failure_count: u64,
        /// The digest of the stream that was received.
        stream: Hash,
    },
    /// The next message was sent, or why it cannot be built.
    Served { refusal: Option<String> },
    /// The last response of a host that serves.
    Closed,
    /// The last response of a receiver that cannot go on.
    Failed { why: String },
}
