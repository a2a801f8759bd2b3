//! What every packet of a group at one node carries.

use std::net::SocketAddr;

use treecast_wire::{Body, Control, Cookie, GroupId, Header, MemberId, PayloadChecksum, Sequence, Timestamp};

use crate::flow::{Flow, PendingAck, Segment};
use crate::{Nanoseconds, Transmit, TransmitPayload};

/// The fields that all headers of a group at one node have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeaderTemplate {
    pub group: GroupId,
    pub cookie: Cookie,
    pub member: MemberId,
    pub epoch: u32,
}

impl HeaderTemplate {
    /// A packet without payload.
    pub fn packet(&self, now: Nanoseconds, to: SocketAddr, sequence: Sequence, body: Body) -> Transmit {
        self.empty(to, sent_at(now), sequence, body)
    }

    /// An acknowledgment. Its timestamp is that of the packet that requested it.
    pub fn ack(&self, to: SocketAddr, ack: &PendingAck) -> Transmit {
        self.empty(to, ack.timestamp, ack.next, ack.body)
    }

    /// A control message.
    pub fn control(&self, now: Nanoseconds, to: SocketAddr, control: &Control) -> Transmit {
        let payload = control.write();
        let body = Body::Control { operation: control.operation(), length: payload.len() as u32 };
        let header = self.header(sent_at(now), Sequence(0), body).write(PayloadChecksum::of(&payload));
        Transmit { to, header, payload: TransmitPayload::Bytes(payload) }
    }

    /// The next packet of a flow: probes first, since they are small and rare.
    pub fn next_of(&self, now: Nanoseconds, flow: &mut Flow) -> Option<Transmit> {
        if let Some((to, sent)) = flow.poll_probe(now) {
            return Some(self.packet(now, to, sent, Body::Probe));
        }
        let Segment { to, packet, data, checksum, slot } = flow.poll_segment(now)?;
        let header = self.header(sent_at(now), packet, Body::Data(data)).write(checksum);
        let payload = TransmitPayload::Slot { group: self.group, slot, length: data.length };
        Some(Transmit { to, header, payload })
    }

    fn empty(&self, to: SocketAddr, timestamp: Timestamp, sequence: Sequence, body: Body) -> Transmit {
        let header = self.header(timestamp, sequence, body).write(PayloadChecksum::EMPTY);
        Transmit { to, header, payload: TransmitPayload::Bytes(Vec::new()) }
    }

    fn header(&self, timestamp: Timestamp, sequence: Sequence, body: Body) -> Header {
        let Self { group, cookie, member, epoch } = *self;
        Header { group, cookie, epoch, sender: member, sequence, timestamp, body }
    }
}

/// 0 in a timestamp means none.
fn sent_at(now: Nanoseconds) -> Timestamp {
    Timestamp(now.0.max(1))
}
