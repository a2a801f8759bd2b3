//! What can go wrong.

use std::io;
use std::net::SocketAddr;

use thiserror::Error;
use treecast_ebpf::EbpfError;
use treecast_plan::PlanError;
use treecast_proto::{Ending, GroupId, MemberLoss, Refused};

use crate::JoinStatus;

/// What can go wrong with a node or a group.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The socket cannot be opened.
    #[error("cannot listen at {address}: {source}{}", advice(.source))]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// There is no such engine.
    #[error("there is no engine {0}: known are auto, user and ebpf")]
    NoSuchEngine(String),
    /// The kernel's packet path cannot be used.
    #[error(transparent)]
    Kernel(#[from] EbpfError),
    /// The daemon of this host refuses something, or is gone.
    #[error("{0}")]
    Daemon(String),
    /// A daemon's policy is wrong.
    #[error("{0}")]
    Policy(String),
    /// The system refuses something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Datagrams are longer than the network carries.
    #[error(
        "datagrams of {datagram_bytes} bytes do not fit through the network: give the group a smaller mtu_bytes"
    )]
    DatagramTooLong {
        /// How long they are, with their IP header.
        datagram_bytes: usize,
    },
    /// There is no such tree.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The members' addresses are wrong.
    #[error("{0}")]
    Members(String),
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
    /// There is no group to join: the root is unreachable or has cancelled the group, or members are missing at the timeout.
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
    /// The node's protocol refuses it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The group is over.
    #[error("{0}")]
    Ended(Ending),
    /// The time is over.
    #[error("nothing has come within the time given")]
    TimedOut,
    /// A message is longer than the room for it.
    #[error("the message has {message_bytes} bytes, and there is room for {room_bytes}")]
    TooLong {
        /// How long the message is.
        message_bytes: u64,
        /// How much room there is.
        room_bytes: u64,
    },
    /// Only the root sends, and only others receive.
    #[error("member {member} is{} the root of group {group}, and only {} may do this", if *.is_root { "" } else { " not" }, if *.is_root { "others" } else { "the root" })]
    WrongSide {
        /// The group.
        group: GroupId,
        /// Who asks.
        member: u32,
        /// Whether it is the root.
        is_root: bool,
    },
    /// The node has been closed.
    #[error("the node has been closed")]
    NodeClosed,
}

/// A member that has not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("member {member}{} has not answered in time", address.map(|address| format!(" at {address}")).unwrap_or_default())]
pub struct Unanswered {
    /// Its number.
    pub member: u32,
    /// Where its node should be.
    pub address: Option<SocketAddr>,
}

impl NodeError {
    /// Whether what was waited for has not come in the time given.
    pub const fn is_about_time(&self) -> bool {
        matches!(self, Self::TimedOut | Self::Unanswered(_) | Self::Incomplete(_) | Self::JoinFailed { .. })
    }
}

/// A member that others go on without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("member {member}{} is lost: {loss}", address.map(|address| format!(" at {address}")).unwrap_or_default())]
pub struct Lost {
    /// Its number.
    pub member: u32,
    /// Where its node was, if it was a member from the beginning.
    pub address: Option<SocketAddr>,
    /// Why.
    pub loss: MemberLoss,
}

fn unanswered(all: &[Unanswered]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = all.iter().take(SHOWN).map(ToString::to_string).collect();
    match all.len().saturating_sub(SHOWN) {
        0 => shown.join("; "),
        others => format!("{}; and {others} others", shown.join("; ")),
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => ": choose another port, or 0 for a free one",
        io::ErrorKind::AddrNotAvailable => ": that is no address of this machine",
        io::ErrorKind::PermissionDenied => ": ports below 1024 need rights",
        _ => "",
    }
}
