//! The kernel's packet path as the programmable NIC of a node.
//!
//! A [`Program`] is loaded and attached to interfaces; a group is posted to it, and lent ([`KernelGroup::give`]) while nothing in
//! it is out of the ordinary: the program then takes in packets, stores them in memory that the application reads, answers and
//! forwards them, while the node's process sleeps. For all else the group is taken back ([`KernelGroup::take`]), and the protocol
//! goes on with it. docs/kernel.md tells the way of a packet; the program is in bpf/.
//!
//! It needs Linux 5.17, the rights of root (or `CAP_BPF` and `CAP_NET_ADMIN`), and clang when this crate was built.

mod attach;
mod error;
mod fields;
mod group;
mod layout;
mod memory;
mod program;
mod slots;

pub use attach::{Direction, Hook, HookTrouble, Interface, interfaces_for};
pub use error::EbpfError;
pub use group::{KernelGroup, Note, Room};
pub use layout::{CHILDREN_MAX, Counts};
pub use memory::Mapping;
pub use program::{Program, ProgramSettings, Woken, WokenBy};
pub use slots::SlotMemory;
