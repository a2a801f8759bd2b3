//! A node: the protocol on UDP sockets, in memory that it shares with the application.
//!
//! An application opens a [`Node`], and makes a [`Group`] from a list of addresses or of the members that join at a [`Listener`]; then
//! it sends and receives messages. None of this needs rights. A [`Daemon`] is a node with the kernel's packet path that serves all
//! processes of its host.

mod api;
mod daemon;
mod datagrams;
mod engine;
mod random;
mod rendezvous;
mod settings;
pub mod status;
mod streams;
mod text;
mod tree;
mod wait;

/// The examples of docs/library.md, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Page;

pub use api::all_reduce::Number;
pub use api::group::Group;
pub use api::node::Node;
pub use api::owned::Owned;
pub use api::receive::{Part, Room};
pub use api::send::Sent;
pub use daemon::{Daemon, DaemonCounters, Policy, Stopper};
pub use engine::backend::RunningEngine;
pub use random::draw_token;
pub use rendezvous::{JoinOptions, Listener};
pub use settings::addresses::{Member, PORT, find_here, parse_members, read_members, resolve};
pub use settings::error::{Lost, NodeError, Unanswered};
pub use settings::files::{
    FILE_BYTES_MAX, NETWORK_VARIABLE, read_fabric, read_file, read_network, read_plan,
};
pub use settings::join_status::{JoinStatus, JoinedMember};
pub use settings::offload::OffloadStatus;
pub use settings::socket::{SOCKET, SOCKET_VARIABLE, socket_path};
pub use settings::{EngineChoice, GroupSettings, NodeSettings, PortRange};

pub use treecast_ebpf::{FastPathCounters, HookTrouble, KernelCounters};
pub use treecast_plan::{Plan, Scheme, TreeScheme};
pub use treecast_proto::{
    AbortReason, Authentication, Element, Ending, Eviction, GroupCounters, GroupId, Integrity, MemberLoss,
    Nanoseconds, Offload, Operation, StrayCounters, Transport, Values,
};
pub use treecast_terms::Keyed;
