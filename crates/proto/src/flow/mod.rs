//! The packets of one group at one node: from its parent, into slots, to its children.
//!
//! This is what a programmable NIC does, and what the kernel's packet path does in its place; all that is rare (who is in
//! the tree, who is dead) is not here.

mod child;
mod lend;
mod receive;
mod send;

use std::net::SocketAddr;

use treecast_wire::{MemberId, Missing, Offload, PayloadChecksum, Sequence, Timestamp};

use crate::lent::Expected;
use crate::marks::Marks;
use crate::protocol::Piece;
use crate::{GroupCounters, Nanoseconds, Refused, Settings};

pub(crate) use send::Copy;

use child::Child;

/// What a flow is set to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub slots: u32,
    pub payload_bytes_max: u16,
    pub offload: Offload,
    pub start: Sequence,
    pub bytes_per_s_max: Option<u64>,
    /// Whether packets are queued here, and do not come from a parent.
    pub is_root: bool,
    pub timeouts: Timeouts,
}

/// The packets of one group at one node.
///
/// Numbers only grow, and `freed <= stable <= next <= freed + slots` as well as `freed <= consumed <= next`.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    terms: Terms,
    /// What is in each slot.
    slots: Box<[Slot]>,
    /// All before it are accepted; at the root, queued.
    next: Sequence,
    /// All before it have been sent, as far as is known; those from `next` on are held or missing.
    highest: Sequence,
    /// Packets that have come before their turn.
    held: Marks,
    /// What the piece in `next` has to go on from.
    expected: Expected,
    /// The number of the packet with which the root closes the group.
    closed: Option<Sequence>,
    /// The readers of this node need none before it.
    consumed: Sequence,
    /// All before it are accepted by every member of this node's subtree.
    stable: Sequence,
    /// All before it have left their slots.
    freed: Sequence,
    answer: Answer,
    children: Vec<Child>,
    /// The places of children by their numbers, in order.
    places: Vec<(MemberId, usize)>,
    /// The next child in turn, and the packet that this round of turns is about.
    turn: usize,
    round: Sequence,
    /// Children that have something to be repeated, and children that are to be asked.
    repeating: usize,
    probing: usize,
    /// All before it are accepted by every child's subtree, and so many have no more; none without children.
    least: Option<(Sequence, usize)>,
    /// With offload `host` or `assisted`, the application has sent packets before this one on to some child at least.
    forwarded: Sequence,
    /// At the root, no child is sent this packet or later ones: a newcomer is to begin with it.
    hold: Option<Sequence>,
    /// When the rate allows another packet.
    paced_until: Nanoseconds,
    /// When to look after the children.
    look_at: Nanoseconds,
    pub counters: GroupCounters,
}

/// What is in a slot.
#[derive(Debug, Clone, Copy)]
struct Slot {
    piece: Piece,
    /// Whether the root asked for an acknowledgment.
    ack_requested: bool,
    close: bool,
}

/// What is in a slot without a payload.
const NO_PIECE: Piece =
    Piece { message: 0, offset: 0, length: 0, message_length: 0, checksum: PayloadChecksum::EMPTY };

/// What the parent is to be told, and what it has been told.
#[derive(Debug, Clone)]
struct Answer {
    /// Whether something is to be told now.
    is_due: bool,
    /// When the packet was sent that asked, by the parent's clock.
    timestamp: Timestamp,
    /// The parent has asked about all packets before this one.
    asked: Sequence,
    /// The first packet of a gap that the parent has not been told of.
    gap: Option<Sequence>,
    told_stable: Sequence,
    /// The parent knows that there are slots for packets before this one.
    told_end: Sequence,
}

impl Flow {
    /// Nothing has come yet.
    pub fn new(terms: Terms) -> Self {
        let Terms { slots, start, .. } = terms;
        Self {
            terms,
            slots: vec![Slot { piece: NO_PIECE, ack_requested: false, close: false }; slots as usize].into(),
            next: start,
            highest: start,
            held: Marks::new(slots),
            expected: Expected::Beginning,
            closed: None,
            consumed: start,
            stable: start,
            freed: start,
            answer: Answer {
                is_due: false,
                timestamp: Timestamp(0),
                asked: start,
                gap: None,
                told_stable: start,
                told_end: start,
            },
            children: Vec::new(),
            places: Vec::new(),
            turn: 0,
            round: start,
            repeating: 0,
            probing: 0,
            least: None,
            forwarded: start,
            hold: None,
            paced_until: Nanoseconds::ZERO,
            look_at: Nanoseconds::ZERO,
            counters: GroupCounters::default(),
        }
    }

    /// How many packets may be queued.
    pub fn room(&self) -> u32 {
        if self.closed.is_some() { 0 } else { self.end().distance_from(self.next).max(0) as u32 }
    }

    /// Takes the piece that the root has put into the next slot.
    pub fn queue(&mut self, piece: Piece) -> Result<(), Refused> {
        if self.room() == 0 {
            return Err(Refused::Full(self.terms.slots));
        }
        if !self.is_possible(&piece) || !self.expected.fits(&piece) {
            let Piece { message, offset, length, .. } = piece;
            return Err(Refused::Piece { message, offset, length });
        }
        self.keep(self.next, Slot { piece, ack_requested: false, close: false });
        self.advance();
        Ok(())
    }

    /// Whether a piece lies within its message, and in a slot.
    fn is_possible(&self, piece: &Piece) -> bool {
        let &Piece { offset, length, message_length, .. } = piece;
        offset.checked_add(u64::from(length)).is_some_and(|end| end <= message_length)
            && message_length <= treecast_wire::MESSAGE_BYTES_MAX
            && length <= u32::from(self.terms.payload_bytes_max)
            && (length > 0 || message_length == 0)
    }

    /// The message of which a part has been queued or accepted, and how much.
    pub const fn unfinished(&self) -> Option<(u32, u64)> {
        match self.expected {
            Expected::Rest { message, offset, .. } => Some((message, offset)),
            _ => None,
        }
    }

    /// Queues the packet with which the root closes the group. It waits for a slot, since members take it as any other.
    pub fn queue_close(&mut self) -> bool {
        if self.room() == 0 {
            return false;
        }
        self.keep(self.next, Slot { piece: NO_PIECE, ack_requested: true, close: true });
        self.advance();
        true
    }

    /// The readers need no packet before this one.
    pub fn consume(&mut self, upto: Sequence) -> Result<(), Refused> {
        let (from, end) = self.readable();
        if upto.is_before(from) || end.is_before(upto) {
            return Err(Refused::Packet { given: upto, from, end });
        }
        self.consumed = upto;
        self.settle();
        Ok(())
    }

    /// Packets from the first that readers need to before the next one expected. The closing packet is not for readers.
    pub fn readable(&self) -> (Sequence, Sequence) {
        (self.consumed, self.closed.unwrap_or(self.next))
    }

    /// What is in the slot of a packet that has not left it.
    pub fn piece(&self, packet: Sequence) -> Option<&Piece> {
        let is_there = !packet.is_before(self.freed) && packet.is_before(self.next);
        is_there.then(|| &self.slot(packet).piece)
    }

    /// All before it are accepted by every member of this node's subtree.
    pub const fn stable(&self) -> Sequence {
        self.stable
    }

    /// All before it have left their slots.
    pub const fn freed(&self) -> Sequence {
        self.freed
    }

    /// Whether the closing packet has been accepted.
    pub const fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Whether the group is closed, and every member of the subtree has all packets.
    pub fn is_finished(&self) -> bool {
        self.closed.is_some_and(|close| close.is_before(self.stable))
    }

    /// Whether the readers need nothing more of what is here.
    pub fn is_read(&self) -> bool {
        let (from, end) = self.readable();
        from == end
    }

    /// Whether the parent has been told of everything that it has asked for.
    pub fn has_told_all(&self) -> bool {
        !self.answer.is_due && self.answer.told_stable == self.next
    }

    /// The first number beyond the slots.
    fn end(&self) -> Sequence {
        self.freed + self.terms.slots
    }

    const fn index(&self, packet: Sequence) -> usize {
        (packet.0 & (self.terms.slots - 1)) as usize
    }

    fn slot(&self, packet: Sequence) -> &Slot {
        &self.slots[self.index(packet)]
    }

    fn keep(&mut self, packet: Sequence, slot: Slot) {
        let index = self.index(packet);
        self.slots[index] = slot;
    }

    /// Accepts the packet in the slot of `next`.
    fn advance(&mut self) {
        let Slot { piece, close, .. } = *self.slot(self.next);
        if close {
            self.closed = Some(self.next);
            self.expected = Expected::Nothing;
        } else {
            self.expected = Expected::after(&piece);
        }
        self.next += 1;
        self.highest = self.highest.max(self.next);
        if self.terms.is_root && !close {
            self.consumed = self.next;
        }
        self.settle();
    }

    /// Works out what is stable and what leaves its slot, after something has moved on.
    fn settle(&mut self) {
        let accepted_below = self.least.map_or(self.next, |(least, _)| least);
        self.stable = self.stable.max(accepted_below.min(self.next));
        self.freed = self.freed.max(self.consumed.min(accepted_below));
        let answer = &mut self.answer;
        let has_reached = answer.told_stable.is_before(answer.asked) && !self.stable.is_before(answer.asked);
        let step = (self.terms.slots / 8).max(1) as i32;
        let has_grown = self.stable.distance_from(answer.told_stable) >= step;
        let has_room = (self.freed + self.terms.slots).distance_from(answer.told_end) >= 2 * step;
        answer.is_due |= !self.terms.is_root && (has_reached || has_grown || has_room);
        debug_assert!(!self.stable.is_before(self.freed) && !self.next.is_before(self.stable));
        debug_assert!(!self.consumed.is_before(self.freed) && !self.next.is_before(self.consumed));
        debug_assert!(self.next.distance_from(self.freed) <= self.terms.slots as i32);
    }
}

/// A neighbour that a flow sends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChildPlace {
    pub member: MemberId,
    pub address: SocketAddr,
}

/// What is wrong with a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It does not answer.
    Silent,
    /// It has forgotten what it had accepted.
    StateLost,
}

/// What an acknowledgment says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub epoch: u32,
    pub next: Sequence,
    pub stable: Sequence,
    pub window: u32,
    pub missing: Option<Missing>,
    pub timestamp: Timestamp,
}

/// No wait is shorter, whatever is set.
const MIN_RTO_FLOOR: Nanoseconds = Nanoseconds::from_us(4);

/// Bounds of time that a flow works with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub peer_timeout: Nanoseconds,
    pub keepalive: Nanoseconds,
    pub min_rto: Nanoseconds,
}

impl From<&Settings> for Timeouts {
    fn from(settings: &Settings) -> Self {
        let Settings { peer_timeout, keepalive, min_rto, .. } = *settings;
        // A wait of no time would be over before anything happens.
        Self { peer_timeout, keepalive: keepalive.max(MIN_RTO_FLOOR), min_rto: min_rto.max(MIN_RTO_FLOOR) }
    }
}

/// States of docs/protocol.md.
#[cfg(test)]
impl Flow {
    /// Tells of each packet and of each child in which of a diagram's states it is.
    pub fn states(&self, tell: &mut dyn FnMut(crate::diagrams::Diagram, u32, &'static str)) {
        use crate::diagrams::Diagram;
        let first = self.freed - self.terms.slots;
        for packet in first.until(self.end()).filter(|_| !self.terms.is_root) {
            let is_stable = packet.is_before(self.stable);
            let state = match packet.is_before(self.consumed) {
                _ if packet.is_before(self.freed) => "gone",
                _ if !packet.is_before(self.next) && self.held.has(packet) => "held",
                _ if !packet.is_before(self.next) => "awaited",
                true => "read",
                false if is_stable => "stable",
                false => "accepted",
            };
            tell(Diagram::Packet, packet.0, state);
        }
        for child in &self.children {
            tell(Diagram::Child, child.member.0, child.state(self.terms.timeouts));
        }
    }
}

#[cfg(test)]
impl Child {
    /// A state of docs/protocol.md.
    fn state(&self, timeouts: Timeouts) -> &'static str {
        let silence = self.unanswered.map_or(Nanoseconds::ZERO, |(since, _)| self.quiet_since.since(since));
        if self.has_lost_state {
            "state lost"
        } else if silence > timeouts.peer_timeout {
            "silent"
        } else if !self.is_open {
            "new"
        } else if self.misses > 0 {
            "missed"
        } else if self.in_flight() > 0 {
            "sent to"
        } else if self.stable.is_before(self.sent) {
            "relaying"
        } else if self.sent == self.end {
            "full"
        } else {
            "idle"
        }
    }
}
