//! What can go wrong.

use std::io;
use std::net::IpAddr;

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
    /// No interface for a node that is bound to this address.
    #[error("{}", nowhere(.0))]
    NoInterface(IpAddr),
    /// An address on an interface that the program cannot read the frames of.
    #[error(
        "{address} is on interface {interface}, which is neither Ethernet nor loopback, and the BPF program reads \
         frames of Ethernet alone: bind the node to an address on Ethernet"
    )]
    NotEthernet {
        /// What was asked for.
        address: IpAddr,
        /// Which interface has it.
        interface: String,
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
    #[error("{what}: {source}{}", advice(&.source.to_string()))]
    System {
        /// What was tried.
        what: &'static str,
        /// What it says.
        source: io::Error,
    },
}

impl EbpfError {
    /// Whether rights are missing, rather than something that the kernel could do.
    pub fn lacks_rights(&self) -> bool {
        match self {
            Self::Load { why } | Self::Attach { why, .. } => is_forbidden(why),
            Self::System { source, .. } => is_forbidden(&source.to_string()),
            _ => false,
        }
    }
}

fn nowhere(address: &IpAddr) -> String {
    if address.is_unspecified() {
        "no Ethernet interface is up that the BPF program could be put on".into()
    } else {
        format!("no interface of this machine has the address {address}: see ip address")
    }
}

fn is_forbidden(why: &str) -> bool {
    why.contains("Operation not permitted") || why.contains("os error 1)")
}

fn advice(why: &str) -> &'static str {
    if is_forbidden(why) { ": it is for root, or for who has CAP_BPF and CAP_NET_ADMIN" } else { "" }
}

/// An error with its causes: the outermost says least.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
