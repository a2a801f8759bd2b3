//! The settings of nodes and groups, from an application's texts and files to what is checked, and
//! the errors of both.

pub mod addresses;
pub mod config;
pub mod congestion;
pub mod costs;
pub mod error;
pub mod files;
pub mod hosts;
pub mod join_status;
mod keys;
pub mod offload;
pub mod socket;
pub mod stream_settings;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use treecast_fabric::Fabric;
use treecast_model::Network;
use treecast_plan::{Plan, Scheme, TreeScheme};
use treecast_proto::{Authentication, GroupId, GroupKey, Integrity, Offload, Transport};

use self::congestion::CongestionControl;
use self::error::NodeError;
use self::hosts::Hosts;
use self::stream_settings::Retention;

/// The packet engine of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// The daemon of this host, if it runs, accepts this process and listens where the node is to
    /// listen; else a thread. A daemon's node is one member of a group, so only one of several
    /// nodes of a process uses it, unless they name its socket.
    #[default]
    Auto,
    /// A thread of this process; needs no rights.
    User,
    /// The kernel's packet path, loaded by this process, or by the daemon if this process has no
    /// rights for it.
    Ebpf,
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::User => "user",
            Self::Ebpf => "ebpf",
        })
    }
}

impl FromStr for EngineChoice {
    type Err = NodeError;

    fn from_str(text: &str) -> Result<Self, NodeError> {
        [Self::Auto, Self::User, Self::Ebpf]
            .into_iter()
            .find(|engine| engine.to_string() == text)
            .ok_or_else(|| NodeError::NoSuchEngine(text.into()))
    }
}

/// Ports that a firewall lets pass.
///
/// ```
/// use treecast_node::PortRange;
///
/// let ports: PortRange = "7000-7099".parse()?;
/// assert_eq!(ports.numbers(), 7_000..=7_099);
/// assert!("7099-7000".parse::<PortRange>().is_err());
/// # Ok::<(), treecast_node::NodeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// The ports, from the first to the last.
    pub const fn numbers(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}", self.first, self.last)
    }
}

/// A port, or two with a hyphen between them; none is 0.
impl FromStr for PortRange {
    type Err = NodeError;

    fn from_str(text: &str) -> Result<Self, NodeError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let ports = first.parse().ok().zip(last.parse().ok()).map(|(first, last)| Self { first, last });
        let is_range = |ports: &Self| 0 < ports.first && ports.first <= ports.last;
        ports.filter(is_range).ok_or_else(|| NodeError::NoPortRange(text.into()))
    }
}

impl From<PortRange> for String {
    fn from(ports: PortRange) -> Self {
        ports.to_string()
    }
}

impl TryFrom<String> for PortRange {
    type Error = NodeError;

    fn try_from(text: String) -> Result<Self, NodeError> {
        text.parse()
    }
}

/// The settings of a node.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// The UDP address at which it listens; with port 0 one of `ports`.
    pub bind: SocketAddr,
    /// The node takes the first of these ports that is free for UDP and TCP, or else for UDP; none:
    /// the system chooses a port.
    pub ports: Option<PortRange>,
    /// The packet engine.
    pub engine: EngineChoice,
    /// The path of the daemon's socket; none: that of the variable `TREECAST_SOCKET`, or
    /// [`socket::SOCKET`].
    pub socket: Option<PathBuf>,
    /// Any text: the processes of one user on this host that give the same one share one node,
    /// which the first of them opens, unless they use the daemon. None: the process has a node of
    /// its own.
    pub share: Option<String>,
    /// The size of the socket's buffers, in bytes, within the system's bounds
    /// (`net.core.rmem_max`).
    pub buffer_bytes: usize,
    /// How long a waiting thread spins, and yields the processor after each check, before it
    /// sleeps; none: while recent waits were shorter than a millisecond on average, and other
    /// threads of the machine do not keep the processor.
    pub spin: Option<Duration>,
    /// Whether [`crate::status::find`] finds the node.
    pub status: bool,
    /// The settings of the protocol.
    pub protocol: treecast_proto::Settings,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            ports: None,
            engine: EngineChoice::Auto,
            socket: None,
            share: None,
            buffer_bytes: 4 << 20,
            spin: Some(Duration::ZERO),
            status: true,
            protocol: treecast_proto::Settings::default(),
        }
    }
}

/// The settings of a group, the same at every member.
#[derive(Debug, Clone)]
pub struct GroupSettings {
    /// The group's number. A node may be in many groups.
    pub group: GroupId,
    /// The address of each member's node, by the member's number. Members at the same address are
    /// processes of one host that share a node.
    pub members: Vec<SocketAddr>,
    /// The root's number.
    pub root: usize,
    /// This process's own number, where several members have the same address: processes of one
    /// host that share a node. The one setting that differs between members.
    pub member: Option<usize>,
    /// A secret of the members, which keeps packets of other nodes out of the group. The key of
    /// encryption comes from it.
    pub token: String,
    /// Whether members on several hosts do without a token: any host that reaches them can then
    /// take part.
    pub insecure: bool,
    /// What is authenticated of each packet of data; none: its payload too where data is sent by
    /// multicast, which needs that, and else its header.
    pub authentication: Option<Authentication>,
    /// At the root: whether what is sent is encrypted, with a key from the token. Members learn it
    /// from the root.
    pub is_encrypted: bool,
    /// When members verify the CRCs of payloads.
    pub integrity: Integrity,
    /// What carries data along the tree; none: streams where nodes forward in user space, and
    /// datagrams while streams lose packets; and else packets.
    pub transport: Option<Transport>,
    /// The congestion control of streams; none: that of the system, but another one than BBR to
    /// hosts that are near.
    pub tcp_congestion: Option<CongestionControl>,
    /// Who retains packets on streams until all members have them.
    pub retention: Retention,
    /// The scheme of the tree; none: one for the length of messages, unless a plan is given.
    pub scheme: Option<Scheme>,
    /// At the root, the measured costs of the network, by which the scheme is chosen where it is
    /// left open, and then the transport and multicast too; none: those of the file that the
    /// variable `TREECAST_NETWORK` names, or else costs seen in a lab.
    pub network: Option<Arc<Network>>,
    /// At the root, the plan to carry out; none: one that the scheme makes. Its worms are unicasts
    /// to one member each, or stay inside a host.
    pub plan: Option<Arc<Plan>>,
    /// At the root, the switches that join the members, for the tree; none: all members are equally
    /// far from each other.
    pub fabric: Option<Arc<Fabric>>,
    /// The name of each member's host on the fabric, by the member's number; empty: the IP
    /// addresses of the members. Members that join say theirs.
    pub hosts: Vec<String>,
    /// The expected length of messages, in bytes, for which the tree is made.
    pub message_bytes: u64,
    /// Where packets are forwarded; none: by multicast to three other hosts or more, as far as that
    /// reaches them, and else by the nodes (`Group::offload_status`).
    pub offload: Option<Offload>,
    /// The number of packets that each member holds: a power of two from 4 to 65,536; none: 512, or
    /// 1,024 where messages are expected to be longer than 512 KiB.
    pub slots: Option<u32>,
    /// The longest datagram that the network carries unfragmented, in bytes, with its IP header;
    /// none: the least MTU that the kernel knows of the paths between the root and its members, but
    /// at most 9,000, and 1,500 on a single machine.
    pub mtu_bytes: Option<u16>,
    /// Whether nodes can join the running group.
    pub admits: bool,
    /// The root's rate limit, in bytes per second; none: no limit.
    pub bytes_per_s_max: Option<u64>,
}

impl GroupSettings {
    /// The key that members derive from the token.
    pub fn key(&self) -> GroupKey {
        GroupKey::new(&self.token, self.group)
    }

    /// Whether the lambda of a postal tree is to be measured. Two members have only one tree.
    /// Members that share a node do not measure: their scheme is one for the length of messages.
    pub fn measures_lambda(&self) -> bool {
        !Hosts::of(&self.members).is_ok_and(|hosts| hosts.are_shared())
            && self.scheme == Some(Scheme::tree(TreeScheme::Postal { lambda: None }))
            && self.members.len() > 2
    }

    /// A group of these members; the first is the root.
    pub fn new(members: Vec<SocketAddr>) -> Self {
        Self {
            group: GroupId(1),
            members,
            root: 0,
            member: None,
            token: String::new(),
            insecure: false,
            authentication: None,
            is_encrypted: false,
            integrity: Integrity::default(),
            transport: None,
            tcp_congestion: None,
            retention: Retention::default(),
            scheme: None,
            network: None,
            plan: None,
            fabric: None,
            hosts: Vec::new(),
            message_bytes: 1 << 10,
            offload: Some(Offload::Nic),
            slots: None,
            mtu_bytes: None,
            admits: false,
            bytes_per_s_max: None,
        }
    }
}
