//! What a node and a group are set to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use treecast_plan::Scheme;
use treecast_proto::{Cookie, CreateGroup, GroupId, Offload, Refused};
use treecast_wire::{HEADER_BYTES, Table};

use crate::NodeError;

/// What is to play the NIC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// The daemon of this host, if it is there, lets this process in and listens where the node is to; else a thread. Of several
    /// nodes of a process that do not name its socket one uses it: a node of the daemon is one member of a group.
    #[default]
    Auto,
    /// A thread of this process, which needs no rights.
    User,
    /// The kernel's packet path, loaded by this process, which needs the rights for it, or by the daemon, if they are missing.
    Ebpf,
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::User => "user",
            Self::Ebpf => "ebpf",
        })
    }
}

impl FromStr for EngineChoice {
    type Err = NodeError;

    fn from_str(text: &str) -> Result<Self, NodeError> {
        [Self::Auto, Self::User, Self::Ebpf]
            .into_iter()
            .find(|engine| engine.to_string() == text)
            .ok_or_else(|| NodeError::NoSuchEngine(text.into()))
    }
}

/// What a node is set to.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Where it listens; port 0 lets the system choose.
    pub bind: SocketAddr,
    /// What plays the NIC.
    pub engine: EngineChoice,
    /// Where the daemon of this host listens; none: where the variable `TREECAST_SOCKET` says, or [`crate::SOCKET`].
    pub socket: Option<PathBuf>,
    /// As large the socket's buffers should be, in bytes. The system's bounds hold (`net.core.rmem_max`).
    pub buffer_bytes: usize,
    /// How long whoever waits looks again and again before it sleeps.
    pub spin: Duration,
    /// Bounds of the protocol.
    pub protocol: treecast_proto::Settings,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            engine: EngineChoice::Auto,
            socket: None,
            buffer_bytes: 4 << 20,
            spin: Duration::ZERO,
            protocol: treecast_proto::Settings::default(),
        }
    }
}

/// What a group is set to, the same at every member.
#[derive(Debug, Clone)]
pub struct GroupSettings {
    /// Its number; a node may be in many groups.
    pub group: GroupId,
    /// Where each member's node is, by the member's number.
    pub members: Vec<SocketAddr>,
    /// The root's place among them.
    pub root: usize,
    /// What all members know and others do not: it keeps packets of others out of the group. It is no encryption.
    pub token: String,
    /// How the tree is made; none: by the length of messages.
    pub scheme: Option<Scheme>,
    /// How long messages are, more or less, in bytes.
    pub message_bytes: u64,
    /// Who forwards.
    pub offload: Offload,
    /// How many packets each member holds: a power of two from 4 to 65,536.
    pub slots: u32,
    /// The longest datagram that the network carries whole, in bytes, with its IP header.
    pub mtu_bytes: u16,
    /// Whether hosts that ask later become members.
    pub admits: bool,
    /// How fast the root sends at most, in bytes a second; none: as fast as it arrives.
    pub bytes_per_s_max: Option<u64>,
}

impl GroupSettings {
    /// A group of these members whose root is the first.
    pub fn new(members: Vec<SocketAddr>) -> Self {
        Self {
            group: GroupId(1),
            members,
            root: 0,
            token: String::new(),
            scheme: None,
            message_bytes: 1 << 10,
            offload: Offload::Nic,
            slots: 512,
            mtu_bytes: 1_500,
            admits: false,
            bytes_per_s_max: None,
        }
    }

    /// Whether the numbers are within their bounds, before memory is taken.
    pub(crate) fn check(&self) -> Result<(), NodeError> {
        let payload = u64::from(self.payload_bytes_max());
        let (min, max) = (u64::from(Table::PAYLOAD_BYTES_MIN), u64::from(u16::MAX));
        if payload < min {
            let overhead = u64::from(self.mtu_bytes) - payload;
            return Err(bounds("mtu_bytes", self.mtu_bytes.into(), min + overhead, max));
        }
        let slots_are_possible =
            (CreateGroup::SLOTS_MIN..=Table::SLOTS_MAX).contains(&self.slots) && self.slots.is_power_of_two();
        if !slots_are_possible {
            return Err(bounds(
                "slots (a power of two)",
                self.slots.into(),
                CreateGroup::SLOTS_MIN.into(),
                Table::SLOTS_MAX.into(),
            ));
        }
        Ok(())
    }

    /// What every packet of the group carries: from the token, so that members need not speak before the first packet. It does
    /// not tell the token.
    pub(crate) fn cookie(&self) -> Cookie {
        let key = blake3::derive_key("Treecast: the cookie of a group, version 1", self.token.as_bytes());
        let hash = blake3::keyed_hash(&key, &self.group.0.to_be_bytes());
        let bytes = hash.as_bytes().first_chunk().expect("a hash has 32 bytes");
        Cookie(u64::from_be_bytes(*bytes))
    }

    /// The longest payload: what is left of a datagram behind the headers of IP, UDP and our own.
    pub(crate) fn payload_bytes_max(&self) -> u16 {
        let is_v6 = self.members.iter().any(SocketAddr::is_ipv6);
        let below = if is_v6 { 40 + 8 } else { 20 + 8 };
        self.mtu_bytes.saturating_sub(below + HEADER_BYTES as u16)
    }
}

fn bounds(what: &'static str, value: u64, min: u64, max: u64) -> NodeError {
    Refused::Bounds { what, value, min, max }.into()
}
