//! A running node: the protocol on sockets, in memory that readers share.
//!
//! A [`Node`] is opened in the process; a [`Group`] is made from a list of addresses, and messages are sent and received.
//! Nobody needs rights for it.

mod bell;
mod channel;
mod datagrams;
mod engine;
mod error;
mod group;
mod keys;
mod node;
mod ring;
mod settings;
mod sync;
mod tree;

pub use error::{Lost, NodeError};
pub use group::{Group, Part};
pub use node::Node;
pub use settings::{GroupSettings, NodeSettings, parse_address};

pub use treecast_plan::Scheme;
pub use treecast_proto::{Ending, GroupCounters, GroupId, Loss, Offload, StrayCounters};
