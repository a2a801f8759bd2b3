//! The users of a daemon: what each may have and do, so that none harms another.
//!
//! # Threat model
//!
//! The processes of a host that the policy admits share a daemon, and each user's may be hostile to
//! the daemon and to the other users. Processes of one user are not protected from each other.
//! Hosts that send datagrams to the node's port are no users: what they can do is in
//! docs/security.md. The administrator (root, and the user that the daemon runs as) is trusted, and
//! always finds a connection.
//!
//! | what a user could do to others | the rule that bounds it | where |
//! |---|---|---|
//! | pass for another user | the kernel says who a process is | [`credentials`] |
//! | have groups without permission, too many, too large, or with others' numbers | the first rule of the policy that matches it | [`policy`] |
//! | read others' groups, or control them | a client has descriptors of its own groups only; others' do not exist for it | `crates/daemon/src/users/connection` |
//! | take the memory, and keep it when its groups have ended | each byte is charged to a user until nobody has it | `crates/daemon/src/account.rs`, `crates/engine/src/step/charge.rs` |
//! | take the connections and descriptors | each user has a share; the rest is a pool | [`connection_bounds`] |
//! | take the processor by messages | a thread for each user, which works at most half of the time while there are other users | [`user`] |
//! | take the node's thread by its groups | a step of the engine is bounded, and owners take turns in it | `crates/engine/src/step/owners.rs`, `crates/engine/src/step/core.rs`, `proto/src/turns.rs` |
//! | fill the receive buffer | lanes: a receive buffer for each user | `crates/engine/src/step/owners.rs`, `crates/engine/src/datagrams/lanes.rs` |
//! | keep the engine's lock | whoever waits has it next; memory is mapped and freed by another thread | `crates/shm/src/sync.rs`, `crates/engine/src/step/background.rs` |
//! | write invalid numbers into shared memory | they are checked; the group ends | `crates/shm/src/ring`, `bpf/` |
//! | send invalid messages, or not read answers | the connection ends | `crates/daemon/src/users/connection`, [`user`] |
//! | fill the log, and hide its other lines | lines are limited by kind, those about a user for each user | `crates/engine/src/step/audit.rs` |
//!
//! A user is `OwnerId` to the engine and the protocol, which know owners of groups and nothing of
//! users.
//!
//! Not bounded for each user: the time of the kernel's packet path, and the capacity of the
//! network. A user with many user ids (subuid(5)) counts as many users.

pub(crate) mod connection;
mod connection_bounds;
mod credentials;
mod duty;
mod policy;
mod user;

pub(crate) use connection_bounds::ConnectionBounds;
pub(crate) use credentials::{PeerCredentials, peer_credentials};
pub use policy::Policy;
pub(crate) use user::{Shared, User};
