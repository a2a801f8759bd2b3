//! The messages of the join protocol: one JSON object per line. docs/library.md lists them.
//!
//! The root greets each connection with a challenge. The node answers with a claim whose proof only
//! a holder of the token can compute; the root then proves that it knows the token too. The token
//! itself is never sent.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use treecast_engine::random;

/// The version of the join protocol.
pub(super) const VERSION: u32 = 5;

/// The longest line that the root reads, in bytes.
pub(super) const CLAIM_BYTES_MAX: usize = 1 << 10;

/// The longest line that other members read, in bytes: room for the addresses of the largest group.
pub(super) const ROOT_MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The first field of the first line of either side.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Version {
    pub treecast: u32,
}

/// The root's first line on each connection.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    pub treecast: u32,
    pub challenge: Hash,
}

/// A node's answer to the greeting.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Claim {
    pub treecast: u32,
    /// The challenge for the root's own proof.
    pub challenge: Hash,
    pub proof: Hash,
    /// Where its node listens; none: at all addresses of its host.
    pub ip: Option<IpAddr>,
    pub port: u16,
    /// Whether other processes of its host can use its node too.
    pub is_shared: bool,
    /// The member number that it requests.
    pub member: Option<u32>,
    /// The MTU of its path to the root, if its kernel knows one.
    pub mtu_bytes: Option<u32>,
    pub name: String,
}

/// The root's message after the claim, or instead of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RootMessage {
    /// The node has joined.
    Accepted { proof: Hash },
    /// The node cannot join. The last message.
    Rejected { reason: String },
    /// Which members have joined so far.
    Progress { text: String },
    /// There will be no group. The last message.
    Cancelled { reason: String },
    /// All members have joined: this node's number, all addresses, and the settings of the group.
    /// The last message.
    Start(Start),
}

/// The group that starts.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    /// The root's proof, over all other fields and both challenges.
    pub proof: Hash,
    pub member: u32,
    pub members: Vec<SocketAddr>,
    pub settings: String,
}

/// The challenges of a connection: the root's, and the member's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Challenges {
    pub root: Hash,
    pub member: Hash,
}

/// A challenge or a proof: 32 bytes, written in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Hash(blake3::Hash);

impl TryFrom<String> for Hash {
    type Error = blake3::HexError;

    fn try_from(text: String) -> Result<Self, blake3::HexError> {
        blake3::Hash::from_hex(text).map(Self)
    }
}

impl From<Hash> for String {
    fn from(Hash(hash): Hash) -> Self {
        hash.to_hex().as_str().into()
    }
}

impl Hash {
    /// A fresh challenge, from the system's random number generator.
    pub fn random() -> std::io::Result<Self> {
        Ok(Self(blake3::Hash::from_bytes(random::bytes()?)))
    }
}

/// The key that is derived from the token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key([u8; blake3::KEY_LEN]);

impl Key {
    pub fn new(token: &str) -> Self {
        Self(blake3::derive_key("Treecast: rendezvous, version 5", token.as_bytes()))
    }

    /// A member's proof, over all other fields of its claim.
    pub fn proof_of_member(&self, root_challenge: Hash, claim: &Claim) -> Hash {
        let Claim { challenge, ip, port, is_shared, member, mtu_bytes, name, .. } = claim;
        // Only the last field may contain a space, so the text is unambiguous.
        let ip = ip.map_or_else(|| "all".into(), |ip| ip.to_string());
        let shared = if *is_shared { "shared" } else { "own" };
        let member = member.map_or_else(|| "any".into(), |member| member.to_string());
        let mtu = mtu_bytes.map_or_else(|| "unknown".into(), |bytes| bytes.to_string());
        let (root, own) = (hex(root_challenge), hex(*challenge));
        self.prove(&format!("member {root} {own} {ip} {port} {shared} {member} {mtu} {name}"))
    }

    /// The root's proof.
    pub fn proof_of_root(&self, Challenges { root, member }: Challenges) -> Hash {
        self.prove(&format!("root {} {}", hex(root), hex(member)))
    }

    /// The root's proof of the group that starts.
    pub fn proof_of_start(&self, challenges: Challenges, start: &Start) -> Hash {
        let Start { member, members, settings, .. } = start;
        // Addresses have no spaces, and only the last field may contain one.
        let members: Vec<String> = members.iter().map(ToString::to_string).collect();
        let (Challenges { root, member: own }, members) = (challenges, members.join(","));
        self.prove(&format!("start {} {} {member} {members} {settings}", hex(root), hex(own)))
    }

    fn prove(&self, text: &str) -> Hash {
        Hash(blake3::keyed_hash(&self.0, text.as_bytes()))
    }
}

fn hex(hash: Hash) -> String {
    hash.into()
}
