//! What carries packets, in groups that have both carriers: datagrams or streams.
//!
//! The root chooses for each packet, and members forward it as it came. All packets are numbered
//! alike, and arrive in order: where the carrier changes, a parent sends a child no more until the
//! child has acknowledged what went before. So all packets in flight to a child have one carrier,
//! and neither has to know what the other one carries.

use treecast_wire::Transport;
use zerocopy::FromZeros;

use super::Flow;
use super::child::Child;
use super::stall::Stall;
use crate::Nanoseconds;

/// How a packet goes from a parent to a child.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, FromZeros)]
#[repr(u8)]
pub enum Carrier {
    /// In a datagram.
    #[default]
    Datagram,
    /// On the child's stream.
    Stream,
}

impl Carrier {
    /// That of a group's packets until the root chooses another one.
    pub(super) const fn of(transport: Transport) -> Self {
        match transport {
            Transport::Streams => Self::Stream,
            Transport::Packets | Transport::Both => Self::Datagram,
        }
    }
}

impl Flow {
    /// Whether packets of the group may have this carrier.
    pub const fn has_carrier(&self, carrier: Carrier) -> bool {
        match self.config.transport {
            Transport::Packets => matches!(carrier, Carrier::Datagram),
            Transport::Streams => matches!(carrier, Carrier::Stream),
            Transport::Both => true,
        }
    }

    /// Whether children have streams.
    pub const fn has_streams(&self) -> bool {
        self.config.transport.has_streams()
    }

    /// At the root: packets that are queued from now on have this carrier, if the group has both.
    pub const fn set_carrier(&mut self, carrier: Carrier) {
        if self.has_carrier(carrier) {
            self.queue_carrier = carrier;
        }
    }

    /// The carrier of the next packet for a child: that of the last one, if there is none.
    pub(super) fn next_carrier(&self, child: &Child) -> Carrier {
        let sent = child.state.sent;
        if child.has_only_streams {
            Carrier::Stream
        } else if sent.is_before(self.state.next) {
            self.slot(sent).carrier
        } else {
            child.carrier
        }
    }

    /// Datagrams of the group are too long for the paths from here: all packets to the children go
    /// on streams from now on.
    pub fn on_datagrams_too_long(&mut self, now: Nanoseconds) {
        (0..self.children.len()).for_each(|index| self.leave_datagrams(now, index));
    }

    /// All packets to a child go on its stream from now on, also those in flight, which may not
    /// arrive.
    pub(super) fn leave_datagrams(&mut self, now: Nanoseconds, index: usize) {
        if self.config.transport != Transport::Both {
            return;
        }
        let child = &mut self.children[index];
        child.has_only_streams = true;
        if child.carrier == Carrier::Datagram {
            for packet in child.state.acked.until(child.state.sent) {
                child.missing.remove(packet);
            }
            child.carrier = Carrier::Stream;
            child.state.sent = child.state.acked;
            child.state.timer_started_at = now;
            child.stall = Stall::default();
            child.corrupt = None;
            self.count_retransmitting(index);
        }
    }

    /// Whether the next packet for a child has to wait until the child has acknowledged those that
    /// have another carrier.
    pub(super) fn awaits_other_carrier(&self, child: &Child) -> bool {
        child.in_flight() > 0 && self.next_carrier(child) != child.carrier
    }

    /// The next packet for a child may have another carrier than what is in flight to it: asks the
    /// child to acknowledge that.
    pub(super) fn ask_before_other_carrier(&mut self, index: usize) {
        let child = &self.children[index];
        let sent = child.state.sent;
        if child.is_established && self.awaits_other_carrier(child) && child.asked_before != Some(sent) {
            let child = &mut self.children[index];
            child.asked_before = Some(sent);
            self.probing += usize::from(!child.is_probe_due);
            child.is_probe_due = true;
        }
    }
}
