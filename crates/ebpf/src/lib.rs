//! The kernel's packet path as the programmable NIC of a node.
//!
//! A [`Program`] is loaded and attached to interfaces. A group is posted to it, and handed off
//! ([`KernelGroup::hand_off`]) while nothing in it needs the slow path: the program then receives
//! packets, stores them in memory that the application reads, acknowledges and forwards them, while
//! the node's process sleeps. For everything else the group is reclaimed
//! ([`KernelGroup::reclaim`]), and the protocol in user space goes on with it. docs/kernel.md
//! describes the path of a packet; the program is in bpf/.
//!
//! It needs Linux 5.17 ([`KERNEL_MIN`]), and the rights of root (or `CAP_BPF` and `CAP_NET_ADMIN`).

mod attach;
#[cfg(test)]
mod compiler;
mod counters;
mod error;
mod fields;
mod group;
mod group_maker;
mod group_state;
mod kernel_version;
mod layout;
mod memory;
mod object;
mod path;
mod program;
mod slots;
mod wake;

pub use attach::{Direction, Hook, HookTrouble, Interface, interfaces_for};
pub use counters::KernelCounters;
pub use error::EbpfError;
pub use group::{KernelGroup, ReceivedNak, SendWindow};
pub use group_maker::GroupMaker;
pub use kernel_version::{GSO_KERNEL_MIN, KERNEL_MIN, TCX_KERNEL_MIN, kernel_release, kernel_version};
pub use layout::{CHILDREN_MAX, FastPathCounters, SEGMENTS_MAX};
pub use memory::Mapping;
pub use program::{Program, ProgramSettings, WakeReason, Wakeup};
pub use slots::SlotMemory;
pub use wake::{WakeNonce, WakeSocket};
