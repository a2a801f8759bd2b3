//! A daemon: one node of a host that serves other processes. They need no rights, and each maps the
//! memory of its own groups only.
//!
//! [`Daemon`] listens on a Unix socket; [`Client`] is the engine of a `Node` in a process that uses
//! a daemon. The daemon trusts no client: its messages are parsed with bounds, and the readers of
//! shared memory check it (crates/shm/src/ring, and the program in bpf/). What keeps its users
//! apart is in `users`, with the threat model.

mod account;
mod client;
mod client_link;
mod kernel_wakeups;
mod listening;
mod messages;
mod seqpacket;
mod server;
mod shared_node;
mod users;

pub use client::{Client, find_daemon, find_unused_daemon};
pub use server::{Daemon, DaemonCounters, Stopper};
pub use shared_node::{SharedNode, open_shared};
pub use users::Policy;
