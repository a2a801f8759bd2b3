//! What the applications of both nodes do: the root's sends packets, a member's reads them, and any
//! contributes to all-reduces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;

use treecast_proto::{
    Contribution, GroupId, Input, MemberId, Nanoseconds, Piece, Process, Sequence, Transmit, TransmitPayload,
};
use treecast_wire::{Body, Header, MacKey, Timestamp};

use super::super::frame::{self, Style};
use super::super::lab::Sender;
use super::compare::equal;
use super::{Pair, data_of, refused, text, udp_frames, write};

impl Pair<'_> {
    /// The root's application sends a packet.
    pub(super) fn queue(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        piece: &Piece,
        payload: &[u8],
    ) -> Result<(), String> {
        let input = Input::Queue { group, piece: *piece };
        let Some(packet) = self.reference().readable(group).map(|(_, next)| next) else {
            return self.request(now, &input);
        };
        if !self.groups.get(&group).is_some_and(|posted| posted.is_root) {
            return self.request(now, &input);
        }
        let has_free_slot = self.reference().free_slots(group) > 0;
        let expected = refused(self.reference.queue(now, group, *piece, payload))?;
        self.counts.queued += 1;
        if has_free_slot {
            let memory = self.groups[&group].kernel.memory();
            write(memory, packet, payload);
            memory.describe(packet, piece, now);
        }
        let memory = self.groups[&group].kernel.memory().clone();
        let is_handed_off = self.groups[&group].kernel.is_handed_off();
        if is_handed_off {
            let frame = self.source_frame(&source_datagram(group, packet, piece, payload));
            self.lab.send(Sender::Application, &frame).map_err(text)?;
        }
        let sent = self.lab.frames();
        let found = if is_handed_off && Sequence(memory.forwarded().load(Ordering::Acquire)) == packet + 1 {
            self.counts.forwarded += 1;
            Ok(())
        } else {
            if !udp_frames(&sent).is_empty() {
                return Err("a packet that was not handled was sent nevertheless".into());
            }
            self.reclaim(now, group);
            self.subject.handle(now, input)
        };
        equal("the result of queueing a packet", &expected, &found)?;
        self.settle(now, sent)
    }

    /// The frame of datagrams that an application sends to the program.
    pub(super) fn source_frame(&self, bytes: &[u8]) -> Vec<u8> {
        let to: IpAddr = match self.address.ip() {
            IpAddr::V4(_) => Ipv4Addr::new(239, 255, 84, 67).into(),
            IpAddr::V6(_) => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x5443).into(),
        };
        let from = SocketAddr::new(self.address.ip(), self.address.port() ^ 1);
        frame::build(from, SocketAddr::new(to, self.address.port()), bytes, Style::OWN)
    }

    /// An application has read packets.
    pub(super) fn consumed(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        upto: Sequence,
    ) -> Result<(), String> {
        let Some(posted) = self.groups.get(&group).filter(|posted| !posted.is_root) else {
            return self.request(now, &Input::Consumed { group, upto });
        };
        posted.kernel.memory().read().store(upto.0, Ordering::Release);
        if self.behaviour.reads_silently && posted.kernel.is_handed_off() {
            return Ok(());
        }
        self.sync_consumed(now, group);
        self.reclaim(now, group);
        self.settle(now, Vec::new())
    }

    /// The application contributes to an all-reduce.
    pub(super) fn contribute(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        process: Process,
        contribution: &Contribution,
    ) -> Result<(), String> {
        let input = Input::Contribute { group, process, contribution: contribution.clone() };
        let with_program = self.groups.get(&group).filter(|posted| posted.kernel.is_handed_off());
        let Some(next) = with_program.filter(|_| process == Process::ONLY).map(|posted| posted.kernel.next())
        else {
            return self.request(now, &input);
        };
        let Ok(transmit) = self.subject.contribute_to_fast_path(now, group, contribution, next) else {
            return self.request(now, &input);
        };
        let expected = refused(self.reference.request(now, input))?;
        equal("the answer to a contribution", &expected, &Ok(()))?;
        self.counts.contributed += 1;
        let mut sent = Vec::new();
        if let Some(Transmit { to, header, payload: TransmitPayload::Bytes(payload), .. }) = transmit {
            let frame = frame::build(self.address, to, &[&header[..], &payload].concat(), Style::OWN);
            self.lab.send(Sender::Node, &frame).map_err(text)?;
            sent = self.lab.frames();
        }
        // The contributions differ in kind.
        while self.lab.program.take_wakeup().is_some() {
            self.sync_consumed(now, group);
            self.reclaim(now, group);
        }
        self.settle(now, sent)
    }
}

/// The datagram by which an application sends a packet, which is in its slot, to the program.
pub(super) fn source_datagram(group: GroupId, packet: Sequence, piece: &Piece, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        group,
        epoch: 0,
        sender: MemberId(0),
        sequence: packet,
        timestamp: Timestamp(0),
        body: Body::Data(data_of(piece, false)),
    };
    // The program must ignore the code and the version of the application.
    let mut bytes = header.write(&MacKey([0; 2])).to_vec();
    bytes[0] = u8::MAX;
    bytes.extend(payload);
    bytes
}
