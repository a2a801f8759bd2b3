//! The state of the nodes of this host, for people and for tools.
//!
//! Every process that has an engine answers on a socket with an abstract name (unix(7)), which
//! `/proc/net/unix` lists: so nodes are found in their network namespace, leave nothing behind, and
//! need no directory. It answers root and its own user with everything, other users of a daemon
//! with their own groups, and nobody else. Names can be taken by anybody: a reader believes only
//! processes of root, of its own user, of the daemon's, and, as root, those of the user in the
//! name.

pub(crate) mod document;
mod reader;

pub use document::{ChildDocument, FORMAT, GroupDocument, MemberDocument, NodeDocument};
pub use reader::{Found, find};

/// The beginning of the names of sockets; the user's number and random digits follow.
pub(crate) const PREFIX: &str = "treecast-status.";
