//! What a copy is asked to do.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use treecast_node::{GroupSettings, PortRange};
use treecast_remote::RemoteShell;

use crate::Destination;
use crate::control::Writing;

/// How receivers are started, and how the group is made.
#[derive(Debug, Clone)]
pub struct CopySettings {
    /// The hosts, by names for the remote shell, such as `node01` or `admin@node01`.
    pub hosts: Vec<String>,
    /// A host that has everything from an earlier attempt, and serves the others from its files.
    pub served_by: Option<String>,
    /// Where files go on each of them.
    pub to: Destination,
    /// Whether the destination is a directory, as an earlier attempt has found; `None`: the hosts
    /// look.
    pub into: Option<bool>,
    /// How they are written there.
    pub writing: Writing,
    /// Whether hosts are asked what they have, so that it is not sent: chunks of files that are
    /// replaced, and of parts.
    pub compares: bool,
    /// Whether files are compared by the hashes of their contents, and not by their lengths and
    /// times of modification.
    pub compares_hashes: bool,
    /// The level of zstd, one of [`LEVELS`](crate::LEVELS), if messages are compressed.
    pub compression: Option<i32>,
    /// How receivers are started.
    pub shell: RemoteShell,
    /// How long a host may do nothing while its receiver is started; then the others start without
    /// it.
    pub start_timeout: Duration,
    /// The path of the command that is a receiver with the argument `copy-receiver`, and then calls
    /// [`receive`](crate::receive).
    pub program: PathBuf,
    /// A shorter command that is only the receiver, which hosts that lack the command are sent
    /// instead of it.
    pub receiver: Option<PathBuf>,
    /// Whether hosts that do not have the command keep it for the next copy, in the user's cache.
    pub keeps_program: bool,
    /// This host's address towards the others; without one that by which packets to the first of
    /// them go.
    pub bind: Option<IpAddr>,
    /// The ports of which each host takes the first free one; without them the system chooses.
    pub ports: Option<PortRange>,
    /// The group's settings; members, token and expected length are the copy's own.
    pub group: GroupSettings,
}
