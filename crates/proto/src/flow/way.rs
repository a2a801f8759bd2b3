//! Which way packets go, in groups that have both: in datagrams or on streams.
//!
//! The root chooses for each packet, and members forward it as it came. Packets of both ways are
//! numbered alike, and arrive in order: where the way changes, a parent sends a child no more until
//! the child has acknowledged what went the other way. So all packets in flight to a child go the
//! same way, and neither way has to know what the other one carries.

use treecast_wire::Transport;
use zerocopy::FromZeros;

use super::Flow;
use super::child::Child;

/// How a packet goes from a parent to a child.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, FromZeros)]
#[repr(u8)]
pub enum Way {
    /// In a datagram.
    #[default]
    Datagram,
    /// On the child's stream.
    Stream,
}

impl Way {
    /// The way of a group's packets until the root chooses another one.
    pub(super) const fn of(transport: Transport) -> Self {
        match transport {
            Transport::Streams => Self::Stream,
            Transport::Packets | Transport::Both => Self::Datagram,
        }
    }
}

impl Flow {
    /// Whether packets may come and go this way.
    pub const fn has_way(&self, way: Way) -> bool {
        match self.config.transport {
            Transport::Packets => matches!(way, Way::Datagram),
            Transport::Streams => matches!(way, Way::Stream),
            Transport::Both => true,
        }
    }

    /// Whether children have streams.
    pub const fn has_streams(&self) -> bool {
        self.config.transport.has_streams()
    }

    /// At the root: packets that are queued from now on go this way, if the group has both.
    pub const fn set_way(&mut self, way: Way) {
        if self.has_way(way) {
            self.queue_way = way;
        }
    }

    /// The way of the next packet for a child: that of the last one, if there is none.
    pub(super) fn next_way(&self, child: &Child) -> Way {
        let sent = child.state.sent;
        if sent.is_before(self.state.next) { self.slot(sent).way } else { child.way }
    }

    /// Whether the next packet for a child has to wait until the child has acknowledged those that
    /// went the other way.
    pub(super) fn awaits_other_way(&self, child: &Child) -> bool {
        child.in_flight() > 0 && self.next_way(child) != child.way
    }

    /// The next packet for a child may go another way than what is in flight to it: asks the child
    /// to acknowledge that.
    pub(super) fn ask_before_other_way(&mut self, index: usize) {
        let child = &self.children[index];
        let sent = child.state.sent;
        if child.is_established && self.awaits_other_way(child) && child.asked_before != Some(sent) {
            let child = &mut self.children[index];
            child.asked_before = Some(sent);
            self.probing += usize::from(!child.is_probe_due);
            child.is_probe_due = true;
        }
    }
}
