//! What is said while members gather: a line of JSON each. docs/library.md has them all.
//!
//! Who connects is greeted with a challenge, and answers with a claim that only those who know the token can make; the root
//! then proves that it knows the token too. The token itself is never said.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// The version of these words.
pub(super) const VERSION: u32 = 1;

/// The longest line that the root reads, in bytes.
pub(super) const CLAIM_BYTES_MAX: usize = 1 << 10;

/// The longest line that others read, in bytes: room for the addresses of as many members as a group may have.
pub(super) const WORD_BYTES_MAX: usize = 1 << 20;

/// What the first line of either side says first.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Version {
    pub treecast: u32,
}

/// Root to whoever connects.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    pub treecast: u32,
    pub challenge: Hash,
}

/// A node's answer: who it is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Claim {
    pub treecast: u32,
    /// What the root is to prove that it knows the token with.
    pub challenge: Hash,
    pub proof: Hash,
    /// Where its node listens; none: at all addresses of its host.
    pub ip: Option<IpAddr>,
    pub port: u16,
    /// The number that it wants to have.
    pub member: Option<u32>,
    pub name: String,
}

/// Root to a node that has made its claim, or that is turned away before.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// You are among those who have come.
    Welcome { proof: Hash },
    /// Who has come by now.
    News { text: String },
    /// You cannot be a member.
    TurnedAway { why: String },
    /// There will be no group.
    Over { why: String },
    /// All have come: this is the group.
    Begin { member: u32, members: Vec<SocketAddr>, settings: String },
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
    /// Bytes that nobody can know before.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; blake3::OUT_LEN];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self(blake3::Hash::from_bytes(bytes)))
    }
}

/// What only those can compute who know the token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key([u8; blake3::KEY_LEN]);

impl Key {
    pub fn new(token: &str) -> Self {
        Self(blake3::derive_key("Treecast: members that gather, version 1", token.as_bytes()))
    }

    /// What a member says to be one. The claim's own proof does not count.
    pub fn proof_of_member(&self, roots: Hash, claim: &Claim) -> Hash {
        let Claim { challenge, ip, port, member, name, .. } = claim;
        // No field but the last may hold a blank.
        let ip = ip.map_or_else(|| "all".into(), |ip| ip.to_string());
        let member = member.map_or_else(|| "any".into(), |member| member.to_string());
        self.prove(&format!("member {} {} {ip} {port} {member} {name}", hex(roots), hex(*challenge)))
    }

    /// What the root says to be one.
    pub fn proof_of_root(&self, roots: Hash, members: Hash) -> Hash {
        self.prove(&format!("root {} {}", hex(roots), hex(members)))
    }

    fn prove(&self, text: &str) -> Hash {
        Hash(blake3::keyed_hash(&self.0, text.as_bytes()))
    }
}

fn hex(hash: Hash) -> String {
    hash.into()
}
