//! The errors of nodes and groups.

use std::io;
use std::net::SocketAddr;

use thiserror::Error;
use treecast_ebpf::EbpfError;
use treecast_fabric::FabricError;
use treecast_plan::PlanError;
use treecast_proto::{Element, Ending, GroupId, MemberLoss, Operation, Refused, Values};

use super::PortRange;
use super::join_status::JoinStatus;

/// An error of a node or a group.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The socket cannot be bound.
    #[error("cannot listen at {address}: {source}{}", hint(.source, *.is_shared))]
    Bind {
        /// The address to bind.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
        /// Whether the node was to be shared with other processes, which would have it already.
        is_shared: bool,
    },
    /// An invalid range of ports.
    #[error("invalid ports {0}: expected a range such as 7000-7099")]
    NoPortRange(String),
    /// All ports of a range are taken.
    #[error("cannot listen at {}: no port of {ports} is free there", .bind.ip())]
    NoFreePort {
        /// The address to bind.
        bind: SocketAddr,
        /// The ports that were tried.
        ports: PortRange,
    },
    /// An unknown engine.
    #[error("invalid engine {0}: expected auto, user or ebpf")]
    NoSuchEngine(String),
    /// The kernel's packet path cannot be used.
    #[error(transparent)]
    Kernel(#[from] EbpfError),
    /// The daemon of this host, or the process that owns a shared node, refuses a request.
    #[error("{0}")]
    Daemon(String),
    /// The group has ended at this process, and not for all: the daemon, or the node that another
    /// process owns, has ended or has no memory for it.
    #[error("{0}")]
    GroupFailed(String),
    /// A daemon's policy is invalid.
    #[error("{0}")]
    Policy(String),
    /// A system call has failed.
    #[error("{what}: {source}")]
    System {
        /// The purpose of the call.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Datagrams exceed the MTU of the network.
    #[error(
        "datagrams{} exceed the MTU of the network: set a smaller mtu_bytes for the group, see ip link", of_bytes(*.datagram_bytes)
    )]
    DatagramTooLong {
        /// Their length in bytes, with the IP header; none at a member that does not know it.
        datagram_bytes: Option<u16>,
    },
    /// The path to a member, or from it, does not carry the datagrams that are asked for.
    #[error(
        "{member}: the MTU of the path to it is {path_mtu_bytes} bytes, and mtu_bytes={mtu_bytes}: leave mtu_bytes out at the root, or set {path_mtu_bytes} at most"
    )]
    PathMtu {
        /// The member, by its number or its name, with its address.
        member: String,
        /// The MTU of the path in bytes.
        path_mtu_bytes: u32,
        /// The group's setting.
        mtu_bytes: u16,
    },
    /// An algorithm for congestion control that the kernel does not have, or that this process may
    /// not use.
    #[error(
        "tcp_congestion={name} is not {}: the kernel of this host has {available}, and processes without CAP_NET_ADMIN may use {allowed} (net.ipv4.tcp_allowed_congestion_control)", if *.is_available { "allowed" } else { "available" }
    )]
    CongestionControl {
        /// The group's setting.
        name: String,
        /// Whether the kernel has it.
        is_available: bool,
        /// The algorithms that the kernel has.
        available: String,
        /// Those of them that processes without rights may use.
        allowed: String,
    },
    /// A payload has changed on its way, the network's checksums have not detected that
    /// ([`treecast_proto::Integrity::Network`]), and the parent has freed the packet. The group has
    /// ended at this member.
    #[error(
        "packet {packet} was corrupted: its payload differs from what the root sent, no checksum of the network detected that, and the member that forwarded it does not have it any more; the group has ended here (look for a host or a switch with bad memory; with integrity=crc32c such packets are sent again)"
    )]
    Corrupt {
        /// The packet's number.
        packet: u32,
    },
    /// A packet of an encrypted group is not what its root has sent. The group has ended at this
    /// member.
    #[error(
        "packet {packet} was altered: it does not decrypt with the key of the group, although its checksum is right; the group has ended here (a host on the path, or another member, forges packets)"
    )]
    Altered {
        /// The packet's number.
        packet: u32,
    },
    /// The scheme has no tree for these members.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A setting of a group, or a variable, names a file that cannot be used.
    #[error("{key}: {error}")]
    Setting {
        /// The key of the setting, or the name of the variable.
        key: &'static str,
        /// The error of the file.
        error: Box<NodeError>,
    },
    /// A file of a fabric, a plan or a network cannot be used.
    #[error("{path}: {reason}")]
    File {
        /// The path of the file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The members of the group cannot carry out the plan of its settings.
    #[error("this group cannot carry out the plan: {0}")]
    PlanNotExecutable(String),
    /// A member is on a host that the fabric does not have.
    #[error(
        "{member}: {error} (give the member the name that the fabric has for its host, or add the host to the fabric)"
    )]
    NotOnFabric {
        /// The member, by its number or its name.
        member: String,
        /// The fabric's error, which names the host.
        error: FabricError,
    },
    /// The list of members is invalid.
    #[error("{0}")]
    Members(String),
    /// A group of several hosts has no token.
    #[error(
        "the group has no token: set the same token at every member, or insecure=true if any host that reaches them may take part"
    )]
    NoToken,
    /// A group that is to be encrypted has no token.
    #[error("encrypt=on needs a token, from which the key comes: set the same one at every member")]
    NoEncryptionKey,
    /// A group is to have both carriers, and its packets do not show which one is theirs.
    #[error(
        "transport=both needs offload=nic, auth=header, integrity=network and encrypt=off: set transport=stream or transport=packets"
    )]
    NotBoth,
    /// An all-reduce of values in an encrypted group.
    #[error(
        "encrypt=on does not cover the values of an all-reduce, which would go to the root as they are: use a group with encrypt=off for them"
    )]
    UnencryptedValues,
    /// Not all members joined before the root's timeout.
    #[error("not all members joined in time: {0}")]
    Incomplete(Box<JoinStatus>),
    /// The root rejected this node, or the peer at its address is not a root.
    #[error("cannot join the group at {root}: rejected: {reason}")]
    Rejected {
        /// The address at which the root listens.
        root: SocketAddr,
        /// The root's reason.
        reason: String,
    },
    /// The group cannot be joined: the root is unreachable or has cancelled the group, or members
    /// are missing at the timeout.
    #[error("cannot join the group at {root}: {reason}")]
    JoinFailed {
        /// The address at which the root is expected to listen.
        root: SocketAddr,
        /// What happened.
        reason: String,
    },
    /// The caller cancelled listening or joining.
    #[error("listening or joining was cancelled")]
    Cancelled,
    /// Members have not taken their places in the tree in time.
    #[error("{}", unanswered(.0))]
    Unanswered(Vec<Unanswered>),
    /// The protocol refuses a request.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The group has ended.
    #[error("{0}")]
    Ended(Ending),
    /// The timeout is over.
    #[error("timed out")]
    TimedOut,
    /// The buffer is too small for the message.
    #[error("the message has {message_bytes} bytes, and the buffer {buffer_bytes}")]
    TooLong {
        /// The length of the message, in bytes.
        message_bytes: u64,
        /// The length of the buffer, in bytes.
        buffer_bytes: u64,
    },
    /// Values that an all-reduce cannot combine.
    #[error("{bytes} bytes of {} cannot be combined by {}: an all-reduce takes at most {} bytes of whole values, and combines bits of integers only", element_name(*.element), operation_name(*.operation), Values::BYTES_MAX)]
    InvalidValues {
        /// How they were to be combined.
        operation: Operation,
        /// Their type.
        element: Element,
        /// Their length in bytes.
        bytes: usize,
    },
    /// Members have called `Group::all_reduce` with different operations, types or numbers of
    /// values.
    #[error("the members' operations, types or numbers of values differ in this all-reduce")]
    DifferentValues,
    /// A member that waits for the result of an all-reduce gets another message.
    #[error(
        "the root has sent a message where this member expects the result of an all-reduce: all members call after the same message"
    )]
    OtherMessage,
    /// Only the root sends, and only the other members receive.
    #[error("member {member} is{} the root of group {group}, and only {}", if *.is_root { "" } else { " not" }, if *.is_root { "other members receive" } else { "the root sends" })]
    WrongSide {
        /// The group.
        group: GroupId,
        /// This member.
        member: u32,
        /// Whether this member is the root.
        is_root: bool,
    },
    /// The node has been closed.
    #[error("the node has been closed")]
    NodeClosed,
    /// A forked process uses a node of its parent.
    #[error(
        "this node belongs to process {owner}, and not to {here}, which was forked from it: open a node there"
    )]
    Forked {
        /// The process that has opened the node.
        owner: u32,
        /// This process.
        here: u32,
    },
    /// A message is too long.
    #[error("the message has {message_bytes} bytes, and a message has at most {bytes_max}: send it in parts")]
    MessageTooLong {
        /// Its length in bytes.
        message_bytes: u64,
        /// The longest message in bytes.
        bytes_max: u64,
    },
}

fn element_name(element: Element) -> &'static str {
    Element::NAMES.iter().find(|(_, named)| *named == element).map_or("", |(name, _)| name)
}

fn operation_name(operation: Operation) -> &'static str {
    Operation::NAMES.iter().find(|(_, named)| *named == operation).map_or("", |(name, _)| name)
}

fn of_bytes(bytes: Option<u16>) -> String {
    bytes.map(|bytes| format!(" of {bytes} bytes")).unwrap_or_default()
}

/// A member that has not taken its place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("member {member}{} has not answered within the timeout", address.map(|address| format!(" at {address}")).unwrap_or_default())]
pub struct Unanswered {
    /// The member's number.
    pub member: u32,
    /// The address of its node, if it was a member from the beginning.
    pub address: Option<SocketAddr>,
}

impl NodeError {
    /// No random number can be drawn.
    pub const fn no_random_number(source: io::Error) -> Self {
        Self::System { what: "cannot draw a random number", source }
    }

    /// Whether the error is a timeout.
    pub const fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut | Self::Unanswered(_) | Self::Incomplete(_) | Self::JoinFailed { .. })
    }
}

/// A member that was lost; the others continue without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("member {member}{} is lost: {loss}", address.map(|address| format!(" at {address}")).unwrap_or_default())]
pub struct Lost {
    /// The member's number.
    pub member: u32,
    /// The address of its node, if it was a member from the beginning.
    pub address: Option<SocketAddr>,
    /// The reason.
    pub loss: MemberLoss,
}

fn unanswered(all: &[Unanswered]) -> String {
    const NAMED_MAX: usize = 8;
    let named: Vec<String> = all.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    match all.len().saturating_sub(NAMED_MAX) {
        0 => named.join("; "),
        others => format!("{}; and {others} others", named.join("; ")),
    }
}

fn hint(error: &io::Error, is_shared: bool) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse if is_shared => {
            ": processes that share a node are of one user, and give it the same address and the same share"
        }
        io::ErrorKind::AddrInUse => ": choose another port, or 0 for a free one",
        io::ErrorKind::AddrNotAvailable => ": not an address of this machine",
        io::ErrorKind::PermissionDenied => ": ports below 1024 are privileged",
        _ => "",
    }
}
