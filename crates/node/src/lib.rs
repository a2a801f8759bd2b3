//! A running node: the protocol on sockets, in memory that readers share.
//!
//! A [`Node`] is opened in the process; a [`Group`] is made from a list of addresses, or of those that join at a [`Listener`],
//! and messages are sent and received. Nobody needs rights for it. A [`Daemon`] is a node with the kernel's packet path for all
//! processes of its host.

mod access;
mod addresses;
mod bell;
mod channel;
mod clock;
mod daemon;
mod datagrams;
mod engine;
mod enter;
mod error;
mod group;
mod keys;
mod left;
mod node;
mod probe;
mod rendezvous;
mod ring;
mod seat;
mod settings;
mod source;
mod sync;
mod tree;

/// Its examples run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Page;

pub use access::RunningEngine;
pub use addresses::{PORT, find_here, parse_members, read_members, resolve};
pub use daemon::{Daemon, DaemonCounters, Policy, SOCKET, SOCKET_VARIABLE, Stopper, socket_path};
pub use error::{Lost, NodeError, Unanswered};
pub use group::{Group, Part};
pub use node::Node;
pub use rendezvous::{JoinOptions, JoinStatus, JoinedMember, Listener};
pub use settings::{EngineChoice, GroupSettings, NodeSettings};

pub use treecast_ebpf::{Counts, HookTrouble};
pub use treecast_fabric::Keyed;
pub use treecast_plan::Scheme;
pub use treecast_proto::{
    Ending, Eviction, GroupCounters, GroupId, MemberLoss, Nanoseconds, Offload, StrayCounters,
};
