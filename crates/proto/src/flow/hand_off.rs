//! Handing a flow off to a fast path, and reclaiming it.

use std::net::SocketAddr;

use treecast_wire::{MemberId, Offload, Sequence, Timestamp};

use super::child::Child;
use super::multicast::SlotMulticast;
use super::stall::Stall;
use super::{Carrier, Flow, Slot};
use crate::hand_off::{HandOff, HandOffChild, HandOffMulticast, HandOffPacket, MulticastSource};
use crate::{Nanoseconds, Piece};

impl Flow {
    /// Whether nothing needs the slow path. Sending data by multicast does, and so does a member
    /// that multicast does not reach, or with a child that it does not reach. A root without
    /// children stays too: the fast path reports progress when a neighbour's packet arrives, and
    /// there is no neighbour.
    pub fn may_be_handed_off(&self) -> bool {
        let has_neighbours = !self.config.is_root || !self.children.is_empty();
        let request = &self.ack_request;
        let has_no_gap =
            self.highest_sent == self.state.next && self.held.is_empty() && request.gap.is_none();
        let has_acked = !request.is_due && request.timestamp == Timestamp(0);
        let is_unlimited = self.barrier.is_none() && self.config.bytes_per_s_max.is_none();
        let is_open = !self.state.expected.is_nothing();
        let is_by_node = match (self.config.offload, &self.multicast) {
            (Offload::Nic, _) => true,
            (Offload::Switch, Some(multicast)) => self.config.is_root || multicast.may_be_handed_off(),
            _ => false,
        };
        let has_all = |child: &Child| match &self.multicast {
            None => child.state.sent == self.state.next,
            Some(_) => {
                !child.state.sent.is_before(self.state.next)
                    && child.is_by_multicast()
                    && !child.multicast.is_congested
                    && child.missing.is_empty()
            }
        };
        let is_in_step = |child: &Child| {
            child.is_established
                && (child.carrier == Carrier::Datagram || child.in_flight() == 0)
                && has_all(child)
                && !child.has_lost_state
                && child.corrupt.is_none()
                && !child.is_probe_due
                && !child.stall.is_backed_off()
        };
        has_neighbours
            && self.queue_carrier == Carrier::Datagram
            && self.repair.is_none()
            && is_open
            && is_by_node
            && has_no_gap
            && has_acked
            && is_unlimited
            && self.retransmitting == 0
            && self.probing == 0
            && self.children.iter().all(is_in_step)
    }

    /// Copies the state of a flow that may be handed off. At a member with data by multicast,
    /// `root` is the root's number and address.
    pub fn hand_off(&self, to: &mut HandOff, root: Option<(MemberId, SocketAddr)>) {
        to.slots = self.config.slots;
        to.payload_bytes_max = self.config.payload_bytes_max;
        to.integrity = self.config.integrity;
        to.min_rto = self.config.timeouts.min_rto;
        to.keepalive = self.config.timeouts.keepalive;
        to.flow = self.state;
        to.multicast = self.multicast.as_ref().map(|multicast| HandOffMulticast {
            source: root.map(|(root, from)| MulticastSource { root, from, to: multicast.address() }),
            state: multicast.hand_off(),
        });
        if self.children.is_empty() {
            to.flow.timer_at = Nanoseconds(u64::MAX);
        }
        to.children.clear();
        to.children.reserve_exact(self.children.len());
        let children = self.children.iter();
        to.children.extend(children.map(|child| HandOffChild { address: child.address, state: child.state }));
    }

    /// The packets that a fast path has put into slots, and that are there yet: where others have
    /// left, applications may be writing. None with invalid numbers.
    pub fn new_packets(&self, from: &HandOff) -> impl Iterator<Item = Sequence> + use<> {
        let first = self.state.next.max(from.flow.freed);
        first.until(if self.may_become(from) { from.flow.next } else { first })
    }

    /// Takes the state back from a fast path, with the new packets. False if that is invalid, which
    /// applications may cause that write to slots: an invalid piece is then taken for an empty one,
    /// and with invalid numbers, or another number of packets, nothing has changed.
    pub fn reclaim(&mut self, from: &HandOff, packets: &[HandOffPacket]) -> bool {
        if !self.may_become(from) || self.new_packets(from).count() != packets.len() {
            return false;
        }
        let mut is_valid = true;
        let is_by_multicast = self.multicast.is_some();
        for (number, packet) in self.new_packets(from).zip(packets) {
            let &HandOffPacket { piece, ack_requested, sent_at } = packet;
            let piece = Some(piece).filter(|piece| self.is_valid(piece));
            is_valid &= piece.is_some();
            let slot = Slot::new(piece.unwrap_or(Piece::EMPTY), ack_requested, false, Carrier::Datagram);
            if is_by_multicast {
                self.keep(number, Slot { multicast: SlotMulticast::of(ack_requested), ..slot });
                continue;
            }
            self.keep(number, slot);
            let index = self.index(number);
            for child in &mut self.children {
                child.set_sent_at(index, self.config.slots, sent_at);
                child.carrier = Carrier::Datagram;
            }
        }
        if let (Some(multicast), Some(from_multicast)) = (&mut self.multicast, &from.multicast) {
            multicast.reclaim(&from_multicast.state, from.flow.next.distance_from(self.state.next) as u32);
        }
        self.state = from.flow;
        self.highest_sent = self.state.next;
        for (child, handed_off) in self.children.iter_mut().zip(&from.children) {
            if child.state.acked != handed_off.state.acked {
                child.stall = Stall::default();
            }
            child.state = handed_off.state;
        }
        self.find_min_window_end();
        self.turn = self.children.len();
        // Readers may have freed slots since the last acknowledgment to the parent.
        self.update_watermarks();
        is_valid
    }

    /// Whether the numbers have grown from this flow's, and are in their order.
    fn may_become(&self, from: &HandOff) -> bool {
        let rises = |numbers: &[Sequence]| numbers.windows(2).all(|pair| !pair[1].is_before(pair[0]));
        let (own, flow) = (&self.state, &from.flow);
        // By multicast a child may be ahead.
        let may_be_ahead = self.multicast.is_some() && !self.config.is_root;
        let sent_end = if may_be_ahead { flow.next + self.config.slots } else { flow.next };
        let child_rises = |(child, handed_off): (&Child, &HandOffChild)| {
            let state = &handed_off.state;
            state.member == child.state.member
                && rises(&[child.state.stable, state.stable, state.acked, state.sent, sent_end])
                && flow.min_stable_children > 0
                && rises(&[flow.freed, flow.min_stable, state.stable])
        };
        rises(&[own.next, flow.next, flow.freed + self.config.slots])
            && rises(&[own.freed, flow.freed, flow.stable, flow.next])
            && rises(&[own.consumed, flow.consumed, flow.next])
            && rises(&[flow.freed, flow.consumed])
            && self.children.len() == from.children.len()
            && self.children.iter().zip(&from.children).all(child_rises)
    }
}
