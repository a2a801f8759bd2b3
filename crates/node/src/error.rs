//! What can go wrong.

use std::io;
use std::net::SocketAddr;

use thiserror::Error;
use treecast_ebpf::EbpfError;
use treecast_plan::PlanError;
use treecast_proto::{Ending, GroupId, Loss, Refused};

use crate::Roll;

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
    /// Not all members have come to a gathering in time.
    #[error("not all members came in time: {0}")]
    Incomplete(Box<Roll>),
    /// A root does not take this node in, or is none.
    #[error("{root} turns this node away: {why}")]
    TurnedAway {
        /// Where the root listens.
        root: SocketAddr,
        /// Why.
        why: String,
    },
    /// No group has come of a gathering, in time or at all.
    #[error("no group has come of the gathering at {root}: {why}")]
    NotGathered {
        /// Where the root listens, or should.
        root: SocketAddr,
        /// Why.
        why: String,
    },
    /// Whoever waits for a gathering has broken the wait off.
    #[error("the wait for the others has been broken off")]
    BrokenOff,
    /// Members have not taken their places in time.
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
        matches!(self, Self::TimedOut | Self::Unanswered(_) | Self::Incomplete(_) | Self::NotGathered { .. })
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
    pub loss: Loss,
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
