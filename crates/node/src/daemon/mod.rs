//! One node of a host that serves other processes: they need no rights, and each is given the memory of its own groups alone.
//!
//! The daemon ([`Daemon`]) listens on a Unix socket; `client` is what a [`crate::Node`] does in a process that uses it. Nothing that a
//! client says or writes is believed: what it says is read with bounds, and what it writes into memory is checked by whoever
//! reads it (`ring.rs`, and the program in bpf/).

mod client;
mod client_link;
mod messages;
mod policy;
mod seqpacket;
mod server;
mod session;

pub(crate) use client::{Client, Found};
pub(crate) use client_link::Line;
pub use policy::Policy;
pub use server::{Daemon, DaemonCounters, Stopper};

use std::path::PathBuf;

/// Where a daemon listens unless it is told otherwise.
pub const SOCKET: &str = "/run/treecast/node.sock";

/// The variable that says where the daemon listens.
pub const SOCKET_VARIABLE: &str = "TREECAST_SOCKET";

/// Where the daemon of this host listens: at the path that is given, or that the variable names, or at [`SOCKET`].
pub fn socket_path(given: Option<PathBuf>) -> PathBuf {
    given.or_else(|| std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from)).unwrap_or_else(|| SOCKET.into())
}
