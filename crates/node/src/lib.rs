//! A running node: the protocol on sockets, in memory that readers share.
//!
//! A [`Node`] is opened in the process; a [`Group`] is made from a list of addresses, or of those that join at a [`Listener`],
//! and messages are sent and received. Nobody needs rights for it. A [`Daemon`] is a node with the kernel's packet path for all
//! processes of its host.

mod api;
mod clock;
mod daemon;
mod datagrams;
mod engine;
mod memory;
mod rendezvous;
mod sync;
mod tree;
mod wait;

/// Its examples run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Page;

pub use api::addresses::{PORT, find_here, parse_members, read_members, resolve};
pub use api::error::{Lost, NodeError, Unanswered};
pub use api::group::Group;
pub use api::node::Node;
pub use api::receiver::Part;
pub use api::settings::{EngineChoice, GroupSettings, NodeSettings};
pub use daemon::{Daemon, DaemonCounters, Policy, SOCKET, SOCKET_VARIABLE, Stopper, socket_path};
pub use engine::backend::RunningEngine;
pub use rendezvous::{JoinOptions, JoinStatus, JoinedMember, Listener};

pub use treecast_ebpf::{FastPathCounters, HookTrouble, KernelCounters};
pub use treecast_plan::{Scheme, TreeScheme};
pub use treecast_proto::{
    Ending, Eviction, GroupCounters, GroupId, MemberLoss, Nanoseconds, Offload, StrayCounters,
};
pub use treecast_terms::Keyed;
