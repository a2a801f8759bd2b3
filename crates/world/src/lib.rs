//! Deterministic simulation of the protocol: a cluster of nodes on a network that loses,
//! duplicates, corrupts, reorders and delays packets, while hosts crash, pause and restart, readers
//! stop reading and members join and leave. Some hosts hand groups off to the kernel's packet path,
//! and reclaim them.
//!
//! A [`World`] is drawn from its seed and runs until no event is left. After every step it checks
//! the guarantees to users against a reference, and reports the first [`Violation`].
//!
//! ```
//! use treecast_world::World;
//!
//! let report = World::random(1).run()?;
//! assert!(report.delivered_messages > 0);
//! # Ok::<(), treecast_world::Violation>(())
//! ```

mod attacker;
mod host;
mod network;
mod node;
mod oracle;
mod report;
mod scenario;
mod script;
mod streams;
mod world;

pub use node::{Act, Fault, Node, Packet};
pub use report::{Report, Violation};
pub use script::run_script;
pub use world::World;
