//! A node: the protocol on UDP sockets, in memory that it shares with the application.
//!
//! An application opens a [`Node`], and makes a [`Group`] from a list of addresses or of the
//! members that join at a [`Listener`]; then it sends and receives messages. None of this needs
//! rights. A [`Daemon`] is a node with the kernel's packet path that serves all processes of its
//! host.

mod api;
mod rendezvous;

/// The examples of docs/library.md, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Page;

pub use api::all_reduce::Number;
pub use api::group::Group;
pub use api::node::Node;
pub use api::owned::Owned;
pub use api::peek::Peeked;
pub use api::receive::{Capacity, Part};
pub use api::send::Sent;
pub use rendezvous::{JoinOptions, Listener};
pub use treecast_daemon::{Daemon, DaemonCounters, Policy, Stopper};
pub use treecast_engine::backend::RunningEngine;
pub use treecast_engine::random::draw_token;
pub use treecast_engine::settings::addresses::{
    Member, PORT, find_here, parse_members, read_members, resolve,
};
pub use treecast_engine::settings::congestion::CongestionControl;
pub use treecast_engine::settings::error::{Lost, NodeError, Unanswered};
pub use treecast_engine::settings::files::{
    FILE_BYTES_MAX, NETWORK_VARIABLE, read_fabric, read_file, read_network, read_plan,
};
pub use treecast_engine::settings::join_status::{JoinStatus, JoinedMember};
pub use treecast_engine::settings::offload::OffloadStatus;
pub use treecast_engine::settings::socket::{SOCKET, SOCKET_VARIABLE, socket_path};
pub use treecast_engine::settings::stream_settings::{Retention, UnknownRetention};
pub use treecast_engine::settings::{EngineChoice, GroupSettings, NodeSettings, PortRange};

pub use treecast_engine::status;

pub use treecast_ebpf::{FastPathCounters, HookTrouble, KernelCounters};
pub use treecast_plan::{Plan, Scheme, TreeScheme};
pub use treecast_proto::{
    AbortReason, Authentication, Element, Ending, Eviction, GroupCounters, GroupId, Integrity, MemberLoss,
    Nanoseconds, Offload, Operation, StrayCounters, Transport, Values,
};
pub use treecast_terms::Keyed;
