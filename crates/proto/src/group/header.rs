//! What every packet of a group at one node carries.

use std::net::SocketAddr;

use treecast_wire::{
    Acknowledgment, Authentication, Body, Challenge, Control, ControlHeader, Crcs, GroupId, HEADER_BYTES,
    Handshake, Header, Keys, MemberId, Nonce, Sequence, SessionId, Timestamp,
};

use crate::flow::{Flow, PendingAck, Probe, Segment};
use crate::{GroupKey, Nanoseconds, Transmit, TransmitPayload};

/// The fields that all headers of a group at one node have in common, and the keys of their codes.
#[derive(Debug, Clone)]
pub(super) struct HeaderTemplate {
    pub group: GroupId,
    pub member: MemberId,
    pub epoch: u32,
    key: GroupKey,
    handshake_keys: Keys,
    session: Option<Session>,
    /// The last timestamp of a probe, a control message or a handshake.
    timestamp: Timestamp,
}

/// A session that is known, with its keys.
#[derive(Debug, Clone, Copy)]
struct Session {
    id: SessionId,
    keys: Keys,
}

impl HeaderTemplate {
    pub fn new(group: GroupId, key: GroupKey, member: MemberId, epoch: u32) -> Self {
        let handshake_keys = key.handshake_keys();
        Self { group, member, epoch, key, handshake_keys, session: None, timestamp: Timestamp(0) }
    }

    /// The session becomes known.
    pub fn set_session(&mut self, id: SessionId, authentication: Authentication) {
        self.session = Some(Session { id, keys: self.key.session_keys(id, authentication) });
    }

    /// The session has ended before this member had a place in it.
    pub const fn forget_session(&mut self) {
        self.session = None;
    }

    /// What the codes of data cover becomes known, and whether payloads without codes have CRCs.
    pub const fn set_payload_checks(&mut self, authentication: Authentication, crcs: Crcs) {
        if let Some(session) = &mut self.session {
            session.keys.authentication = authentication;
            session.keys.crcs = crcs;
        }
    }

    pub fn session(&self) -> Option<SessionId> {
        self.session.map(|session| session.id)
    }

    /// The keys of the session, if it is known.
    pub fn keys(&self) -> Option<&Keys> {
        self.session.as_ref().map(|session| &session.keys)
    }

    pub const fn handshake_keys(&self) -> &Keys {
        &self.handshake_keys
    }

    /// The keys of packets that are sent. Nothing but handshakes is sent before the session is
    /// known.
    fn own_keys(&self) -> &Keys {
        debug_assert!(self.session.is_some(), "the session is known");
        self.keys().unwrap_or(&self.handshake_keys)
    }

    /// A probe: what is sent next has this number.
    pub fn probe(&mut self, now: Nanoseconds, to: SocketAddr, sequence: Sequence) -> Transmit {
        let timestamp = self.next_timestamp(now);
        self.transmit(self.own_keys(), to, timestamp, sequence, Body::Probe)
    }

    /// An acknowledgment.
    pub fn ack(&self, to: SocketAddr, ack: &PendingAck) -> Transmit {
        self.transmit(self.own_keys(), to, ack.timestamp, ack.next, ack.body)
    }

    /// A control message from, or to, the member with this nonce.
    pub fn control(&mut self, now: Nanoseconds, to: SocketAddr, nonce: Nonce, control: &Control) -> Transmit {
        let (keys, payload) = (*self.own_keys(), control.write());
        let header = control_header(&keys, control.operation(), nonce, &payload);
        let timestamp = self.next_timestamp(now);
        let transmit = self.transmit(&keys, to, timestamp, Sequence(0), Body::Control(header));
        Transmit { payload: TransmitPayload::Bytes(payload), ..transmit }
    }

    /// A step of a handshake.
    pub fn handshake(
        &mut self,
        now: Nanoseconds,
        to: SocketAddr,
        nonce: Nonce,
        handshake: &Handshake,
    ) -> Transmit {
        let (keys, payload) = (self.handshake_keys, handshake.write());
        let header = control_header(&keys, handshake.operation(), nonce, &payload);
        let timestamp = self.next_timestamp(now);
        let transmit = self.transmit(&keys, to, timestamp, Sequence(0), Body::Handshake(header));
        Transmit { payload: TransmitPayload::Bytes(payload), ..transmit }
    }

    /// The next packet of a flow: probes first, since they are small and rare.
    pub fn next_of(&mut self, now: Nanoseconds, flow: &mut Flow) -> Option<Transmit> {
        if let Some(Probe { to, sent, length }) = flow.poll_probe(now, self.following_timestamp(now)) {
            let Some(length) = length else { return Some(self.probe(now, to, sent)) };
            let timestamp = self.next_timestamp(now);
            let probe = self.transmit(self.own_keys(), to, timestamp, sent, Body::PathProbe { length });
            return Some(Transmit { payload: TransmitPayload::Bytes(vec![0; length as usize]), ..probe });
        }
        if let Some(to) = flow.poll_heartbeat(now) {
            let timestamp = self.next_timestamp(now);
            return Some(self.transmit(self.own_keys(), to, timestamp, Sequence(0), Body::Heartbeat));
        }
        let Segment { to, packet, data, slot, stream_of } = flow.poll_segment(now)?;
        let sent_at = Timestamp(now.0.max(1));
        let transmit = self.transmit(self.own_keys(), to, sent_at, packet, Body::Data(data));
        let payload = TransmitPayload::Slot { packet, slot, length: data.length };
        Some(Transmit { payload, stream_of, ..transmit })
    }

    /// The packet that opens the stream to the parent, which is to begin with packet `next`.
    pub fn attach(&self, challenge: Challenge, next: Sequence) -> Option<[u8; HEADER_BYTES]> {
        let Self { group, member, epoch, .. } = *self;
        let body = Body::Attach(challenge);
        let header = Header { group, epoch, sender: member, sequence: next, timestamp: Timestamp(0), body };
        self.keys().map(|keys| header.write(&keys.header))
    }

    /// The timestamp of a probe or a control message: each is later than those before. 0 means
    /// none.
    fn next_timestamp(&mut self, now: Nanoseconds) -> Timestamp {
        self.timestamp = self.following_timestamp(now);
        self.timestamp
    }

    /// The timestamp of the last probe or control message.
    pub const fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// The last probe or control message that was sent had this timestamp.
    pub const fn set_timestamp(&mut self, timestamp: Timestamp) {
        self.timestamp = timestamp;
    }

    fn following_timestamp(&self, now: Nanoseconds) -> Timestamp {
        Timestamp(now.0.max(self.timestamp.0 + 1))
    }

    /// An acknowledgment that is not for the parent: its timestamp is one of the control messages'.
    pub fn ack_root(
        &mut self,
        now: Nanoseconds,
        to: SocketAddr,
        next: Sequence,
        acknowledgment: Acknowledgment,
    ) -> Transmit {
        let timestamp = self.next_timestamp(now);
        self.ack(to, &PendingAck { next, timestamp, body: Body::Acknowledgment(acknowledgment) })
    }

    fn transmit(
        &self,
        keys: &Keys,
        to: SocketAddr,
        timestamp: Timestamp,
        sequence: Sequence,
        body: Body,
    ) -> Transmit {
        let Self { group, member, epoch, .. } = *self;
        let header = Header { group, epoch, sender: member, sequence, timestamp, body };
        let (header, payload) = (header.write(&keys.header), TransmitPayload::Bytes(Vec::new()));
        Transmit { group, to, header, payload, stream_of: None }
    }
}

fn control_header(keys: &Keys, operation: u32, nonce: Nonce, payload: &[u8]) -> ControlHeader {
    ControlHeader { operation, nonce, length: payload.len() as u32, checksum: keys.control_checksum(payload) }
}
