//! The session of a group whose members a test simulates: its keys, and the packets by which a node
//! joins it.

use std::net::SocketAddr;

use treecast_proto::{Authentication, GroupId, GroupKey, Input, MemberId, Sequence, SessionId};
use treecast_wire::{
    Body, Control, ControlHeader, Handshake, Header, Keys, MacKey, Nonce, PayloadChecksum, Timestamp, View,
};

/// The random bits of the node, from which its nonce follows.
const SEED: [u64; 2] = [0x5eed, 0xc0de];

/// The number of bytes of a header that its code covers (docs/wire.md).
const AUTHENTIC_BYTES: usize = 56;

/// A session of a group.
#[derive(Debug, Clone, Copy)]
pub struct Session {
    pub group: GroupId,
    pub keys: Keys,
}

impl Session {
    pub const ID: SessionId = SessionId([7; 16]);

    pub fn new(group: GroupId, authentication: Authentication) -> Self {
        Self { group, keys: Self::key(group).session_keys(Self::ID, authentication) }
    }

    pub fn key(group: GroupId) -> GroupKey {
        GroupKey::new("a token", group)
    }

    /// The request of a node that joins.
    pub fn join(&self, root: SocketAddr) -> Input<'static> {
        Input::JoinGroup { group: self.group, key: Self::key(self.group), root, seed: SEED }
    }

    /// The nonce of the node, which joins once.
    pub fn nonce() -> Nonce {
        Nonce(MacKey(SEED).mac(&0_u64.to_be_bytes()))
    }

    /// The answer of the root, member 0, to the hello of the node at this address.
    pub fn welcome(&self, address: SocketAddr) -> Vec<u8> {
        let keys = Self::key(self.group).handshake_keys();
        let handshake = Handshake::Welcome { session: Self::ID, address };
        let payload = handshake.write();
        let body = Body::Handshake(control_header(&keys, handshake.operation(), Self::nonce(), &payload));
        [&self.header(MemberId(0), Sequence(0), body).write(&keys.header)[..], &payload].concat()
    }

    /// The header of a packet of the first epoch, with the first timestamp.
    pub const fn header(&self, sender: MemberId, sequence: Sequence, body: Body) -> Header {
        Header { group: self.group, epoch: 1, sender, sequence, timestamp: Timestamp(1), body }
    }

    /// The header and the payload of a control message from, or to, the member with this nonce.
    pub fn control(&self, sender: MemberId, nonce: Nonce, control: &Control) -> (Header, Vec<u8>) {
        let payload = control.write();
        let body = Body::Control(control_header(&self.keys, control.operation(), nonce, &payload));
        (self.header(sender, Sequence(0), body), payload)
    }

    /// A packet.
    pub fn write(&self, header: &Header, payload: &[u8]) -> Vec<u8> {
        [&header.write(&self.keys.header)[..], payload].concat()
    }

    /// Writes the code anew into a packet whose header was changed.
    pub fn sign(&self, packet: &mut [u8]) {
        let (authentic, rest) = packet.split_at_mut(AUTHENTIC_BYTES);
        rest[..8].copy_from_slice(&self.keys.header.mac(authentic).to_be_bytes());
    }
}

/// Whether a packet is data whose payload has another CRC than its header says.
pub fn has_wrong_crc(datagram: &[u8]) -> bool {
    let packet = View::new(datagram).and_then(View::read);
    let data = packet.map(|packet| (packet.header.body, packet.payload));
    matches!(data, Ok((Body::Data(data), payload)) if data.checksum != PayloadChecksum::crc(payload))
}

fn control_header(keys: &Keys, operation: u32, nonce: Nonce, payload: &[u8]) -> ControlHeader {
    ControlHeader { operation, nonce, length: payload.len() as u32, checksum: keys.control_checksum(payload) }
}
