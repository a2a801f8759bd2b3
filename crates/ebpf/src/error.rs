//! Errors of loading, attaching and using the program.

use std::io;
use std::net::IpAddr;

use thiserror::Error;

/// An error of the kernel's packet path.
#[derive(Debug, Error)]
pub enum EbpfError {
    /// The kernel rejects the program.
    #[error("the kernel rejects the BPF program: {why}{}", advice(.why))]
    Load {
        /// The kernel's error.
        why: String,
    },
    /// The program cannot be attached to an interface.
    #[error("cannot attach the BPF program to interface {interface}: {why}{}", advice(.why))]
    Attach {
        /// The name of the interface.
        interface: String,
        /// The kernel's error.
        why: String,
    },
    /// No interface for a node that is bound to this address.
    #[error("{}", no_interface(.0))]
    NoInterface(IpAddr),
    /// The address is on an interface without Ethernet frames, which the program cannot parse.
    #[error(
        "{address} is on interface {interface}, which is neither Ethernet nor loopback; the BPF program parses \
         only Ethernet frames: set engine=user (--engine user), or give an address on Ethernet"
    )]
    NotEthernet {
        /// The address that was requested.
        address: IpAddr,
        /// The interface that has it.
        interface: String,
    },
    /// The kernel's group table is full.
    #[error("the kernel's group table is full: it has room for {0} groups")]
    TooManyGroups(u32),
    /// A packet's payload does not fit into a slot.
    #[error("payloads of {payload_bytes} bytes do not fit into the program's slots of {slot_bytes}")]
    TooLong {
        /// The longest payload of the group.
        payload_bytes: u32,
        /// The length of the program's slots in bytes.
        slot_bytes: u32,
    },
    /// Another system call fails.
    #[error("{what}: {source}{}", advice(&.source.to_string()))]
    System {
        /// What failed.
        what: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

impl EbpfError {
    /// Whether the process lacks privileges, as opposed to a kernel that lacks a feature.
    pub fn is_permission_denied(&self) -> bool {
        match self {
            Self::Load { why } | Self::Attach { why, .. } => is_forbidden(why),
            Self::System { source, .. } => is_forbidden(&source.to_string()),
            _ => false,
        }
    }
}

fn no_interface(address: &IpAddr) -> String {
    if address.is_unspecified() {
        "no Ethernet interface is up that the BPF program could be attached to".into()
    } else {
        format!("no interface of this machine has the address {address}: see ip address")
    }
}

fn is_forbidden(why: &str) -> bool {
    why.contains("Operation not permitted") || why.contains("os error 1)")
}

fn advice(why: &str) -> &'static str {
    if is_forbidden(why) { ": this needs root, or CAP_BPF and CAP_NET_ADMIN" } else { "" }
}

/// An error with its causes: the outermost alone says too little.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
pub(crate) fn map_error(error: aya::maps::MapError) -> EbpfError {
    EbpfError::System { what: "cannot make a BPF map", source: io::Error::other(chain(&error)) }
}
