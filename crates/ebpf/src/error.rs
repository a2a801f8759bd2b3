//! What can go wrong.

use std::io;

use thiserror::Error;

/// What can go wrong with the kernel's packet path.
#[derive(Debug, Error)]
pub enum EbpfError {
    /// It was built without the program.
    #[error(
        "this was built without the BPF program ({0}): install clang and libbpf's headers, and build it again"
    )]
    NotBuilt(&'static str),
    /// The kernel does not take the program.
    #[error("the kernel does not take the BPF program: {why}{}", advice(.why))]
    Load {
        /// What it says.
        why: String,
    },
    /// An interface that the program cannot be put on.
    #[error("the BPF program cannot be put on interface {interface}: {why}{}", advice(.why))]
    Attach {
        /// Which.
        interface: String,
        /// What the kernel says.
        why: String,
    },
    /// No more groups.
    #[error("the kernel's table has room for {0} groups, and all of it is taken")]
    TooManyGroups(u32),
    /// A packet's payload does not fit into a slot.
    #[error("payloads of {payload_bytes} bytes do not fit into the program's slots of {slot_bytes}")]
    TooLong {
        /// The longest payload of the group.
        payload_bytes: u32,
        /// What there is room for.
        slot_bytes: u32,
    },
    /// The system refuses something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it says.
        source: io::Error,
    },
}

fn advice(why: &str) -> &'static str {
    if why.contains("Operation not permitted") || why.contains("os error 1)") {
        ": it is for root, or for who has CAP_BPF and CAP_NET_ADMIN"
    } else {
        ""
    }
}
