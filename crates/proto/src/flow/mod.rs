//! The packets of one group at one node: from its parent, into slots, to its children.
//!
//! This is the part of a programmable NIC, and of the kernel's packet path where that takes it
//! over. What is rare (the members of the tree, their failures) is in `group/`.

mod ack;
mod carrier;
mod child;
mod child_stream;
mod data_source;
mod hand_off;
mod losses;
mod multicast;
mod receive;
mod repair;
mod send;
mod stall;
mod stream;

use std::net::SocketAddr;

use treecast_wire::{Integrity, Keys, MemberId, Missing, Offload, Sequence, Timestamp, Transport};
use zerocopy::FromZeros;

use crate::bitmap::Bitmap;
use crate::state::{Expected, FlowState, Start};
use crate::{GroupCounters, HandOffChild, Nanoseconds, Piece, PlaceStatus, Refused, Settings};

pub use carrier::Carrier;
pub(crate) use data_source::DataSource;
pub(crate) use receive::{ParentSeries, PendingAck, Received};
pub(crate) use send::{Probe, Segment};
pub use stream::StreamChange;

use child::Child;
use child_stream::StreamState;
use losses::StreamLosses;
use multicast::{Multicast, SlotMulticast};
use receive::AckRequest;
use repair::Repair;
use stream::ParentStream;

/// What stays the same while a flow lives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowConfig {
    pub slots: u32,
    pub payload_bytes_max: u16,
    pub offload: Offload,
    pub integrity: Integrity,
    pub transport: Transport,
    /// With offload `switch`, the address to which the root sends data.
    pub multicast: Option<SocketAddr>,
    pub start: Start,
    pub bytes_per_s_max: Option<u64>,
    /// Whether packets are queued here, and do not come from a parent.
    pub is_root: bool,
    pub timeouts: Timeouts,
}

/// The packets of one group at one node.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    config: FlowConfig,
    /// The state that a fast path takes over.
    state: FlowState,
    slots: Box<[Slot]>,
    /// All packets before it are known to have been sent; those from `next` on are held or missing.
    highest_sent: Sequence,
    /// Packets that arrived before their turn.
    held: Bitmap,
    /// The number of the packet with which the root closes the group.
    closed: Option<Sequence>,
    /// A packet that does not continue those before it, although it is authentic: nothing can
    /// follow.
    inconsistent: Option<Sequence>,
    ack_request: AckRequest,
    /// The latest timestamps of the parent's probes and of its control messages.
    parent_probe_timestamp: Timestamp,
    parent_control_timestamp: Timestamp,
    children: Vec<Child>,
    /// The indices of children by their numbers, sorted.
    child_indices: Vec<(MemberId, usize)>,
    /// The child whose turn it is in the round robin, and the first packet of this round.
    turn: usize,
    round: Sequence,
    /// The number of children with packets to be retransmitted, and with a probe to be sent.
    retransmitting: usize,
    probing: usize,
    /// With offload `host` or `assisted`, the application has forwarded packets before this one to
    /// some child at least.
    forwarded: Sequence,
    /// At the root, no child is sent this packet or later ones: a late member is to begin with it.
    barrier: Option<Start>,
    /// At the root, packets before this one may have been sent to a child that has gone, and from
    /// there to members that have freed them; or late members have begun after them. No late member
    /// begins before this one, since its parent might not have the packet.
    begun: Sequence,
    /// When the pacing rate allows another packet.
    paced_until: Nanoseconds,
    /// With offload `switch`.
    multicast: Option<Multicast>,
    /// A packet that was accepted with a corrupt payload.
    repair: Option<Repair>,
    /// Children whose streams are to be closed.
    detached: Vec<MemberId>,
    /// At the root: the application has waited for the packets before this one; and the first
    /// packet of the last message.
    flushed: Sequence,
    message_start: Sequence,
    parent_stream: ParentStream,
    /// Payloads of packets before this one may be in slots no more.
    forgotten: Sequence,
    /// At the root, the carrier of the packets that are queued.
    queue_carrier: Carrier,
    /// The parent has asked for the packets before this one: the root waits until all members have
    /// them, or the parent until this node has, before it sends those with another carrier.
    parent_awaits: Sequence,
    losses: StreamLosses,
}

/// The packet in a slot.
#[derive(Debug, Clone, Copy, FromZeros)]
struct Slot {
    piece: Piece,
    /// Whether the root requested an acknowledgment.
    ack_requested: bool,
    close: bool,
    carrier: Carrier,
    multicast: SlotMulticast,
}

impl Slot {
    /// A piece that goes along the tree.
    const fn new(piece: Piece, ack_requested: bool, close: bool, carrier: Carrier) -> Self {
        Self { piece, ack_requested, close, carrier, multicast: SlotMulticast::Not }
    }
}

/// Zeros for each slot. The system clears such memory when it is first used, and not here.
///
/// # Panics
/// If the system has no memory, as all other allocations do.
fn zeroed<T: FromZeros>(slots: u32) -> Box<[T]> {
    <[T]>::new_box_zeroed_with_elems(slots as usize).expect("the system has memory")
}

impl Flow {
    /// A flow before its first packet, without children.
    pub fn new(config: FlowConfig) -> Self {
        let FlowConfig { slots, start: first, multicast, .. } = config;
        let start = first.packet;
        Self {
            config,
            state: FlowState::new(first),
            slots: zeroed(slots),
            highest_sent: start,
            held: Bitmap::new(slots),
            closed: None,
            inconsistent: None,
            ack_request: AckRequest::NONE,
            parent_probe_timestamp: Timestamp(0),
            parent_control_timestamp: Timestamp(0),
            children: Vec::new(),
            child_indices: Vec::new(),
            turn: 0,
            round: start,
            retransmitting: 0,
            probing: 0,
            forwarded: start,
            barrier: None,
            begun: start,
            paced_until: Nanoseconds::ZERO,
            multicast: multicast.map(|address| Multicast::new(address, slots, start)),
            repair: None,
            detached: Vec::new(),
            flushed: start,
            message_start: start,
            parent_stream: ParentStream::default(),
            forgotten: start,
            queue_carrier: Carrier::of(config.transport),
            parent_awaits: start,
            losses: StreamLosses::default(),
        }
    }

    /// The memory that a flow allocates for `slots` slots and `children` children, in bytes.
    pub const fn heap_bytes(slots: u32, children: usize) -> usize {
        let child_bytes = size_of::<Child>() + Child::heap_bytes(slots) + size_of::<(MemberId, usize)>();
        slots as usize * size_of::<Slot>() + 2 * Bitmap::heap_bytes(slots) + children * child_bytes
    }

    /// The number of slots.
    pub const fn slot_count(&self) -> u32 {
        self.config.slots
    }

    /// The number of children that there is memory for.
    pub const fn child_capacity(&self) -> usize {
        self.children.capacity()
    }

    /// The number of packets that may be queued.
    pub fn free_slots(&self) -> u32 {
        if self.closed.is_some() { 0 } else { self.window_end().distance_from(self.state.next).max(0) as u32 }
    }

    /// Takes the piece that the root has put into the next slot.
    pub fn queue(&mut self, piece: Piece) -> Result<(), Refused> {
        if self.free_slots() == 0 {
            return Err(Refused::Full(self.config.slots));
        }
        if !self.is_valid(&piece) || !self.state.expected.fits(&piece) {
            let Piece { message, offset, length, .. } = piece;
            return Err(Refused::Piece { message, offset, length });
        }
        if piece.offset == 0 {
            self.message_start = self.state.next;
        }
        self.keep(self.state.next, Slot::new(piece, false, false, self.queue_carrier));
        self.advance();
        Ok(())
    }

    /// Whether a piece lies within its message and fits into a slot.
    fn is_valid(&self, piece: &Piece) -> bool {
        let &Piece { offset, length, message_length, .. } = piece;
        offset.checked_add(u64::from(length)).is_some_and(|end| end <= message_length)
            && message_length <= treecast_wire::MESSAGE_BYTES_MAX
            && length <= u32::from(self.config.payload_bytes_max)
            && (length > 0 || message_length == 0)
    }

    /// The message of which a part is queued or accepted, and how many bytes of it.
    pub const fn unfinished(&self) -> Option<(u32, u64)> {
        self.state.expected.unfinished()
    }

    /// Queues the packet with which the root closes the group; false while all slots are in use,
    /// since members take it as any other.
    pub fn queue_close(&mut self, keys: &Keys) -> bool {
        if self.free_slots() == 0 {
            return false;
        }
        let FlowState { expected: Expected { message, .. }, bytes, .. } = self.state;
        let checksum = keys.data_checksum(self.state.next, &[]);
        let piece = Piece { message, offset: 0, length: 0, message_length: bytes, checksum };
        self.keep(self.state.next, Slot::new(piece, true, true, self.queue_carrier));
        self.advance();
        true
    }

    /// The readers need no packet before this one.
    pub fn consume(&mut self, upto: Sequence) -> Result<(), Refused> {
        let (from, end) = self.readable();
        if upto.is_before(from) || end.is_before(upto) {
            return Err(Refused::Packet { given: upto, from, end });
        }
        self.state.consumed = upto;
        self.update_watermarks();
        Ok(())
    }

    /// Packets from the first one that readers need to before the next one expected. The closing
    /// packet is not for readers.
    pub fn readable(&self) -> (Sequence, Sequence) {
        (self.state.consumed, self.closed.unwrap_or(self.state.next))
    }

    /// The piece of an accepted packet that has not left its slot.
    pub fn piece(&self, packet: Sequence) -> Option<&Piece> {
        let is_there = !packet.is_before(self.state.freed) && packet.is_before(self.state.next);
        is_there.then(|| &self.slot(packet).piece)
    }

    pub const fn offload(&self) -> Offload {
        self.config.offload
    }

    /// The next packet expected.
    pub const fn next(&self) -> Sequence {
        self.state.next
    }

    pub const fn stable(&self) -> Sequence {
        self.state.stable
    }

    pub const fn freed(&self) -> Sequence {
        self.state.freed
    }

    /// The first packet, from the next expected one on, whose slot is not free: it is held, or
    /// there is no slot for it.
    pub fn free_end(&self) -> Sequence {
        let end = self.window_end();
        self.held.first(self.state.next, end).unwrap_or(end)
    }

    pub const fn counters(&self) -> &GroupCounters {
        &self.state.counters
    }

    pub const fn counters_mut(&mut self) -> &mut GroupCounters {
        &mut self.state.counters
    }

    /// A packet that does not continue those before it, if there is one.
    pub const fn inconsistent(&self) -> Option<Sequence> {
        self.inconsistent
    }

    /// Whether the closing packet is accepted.
    pub const fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// The place of this node, for people to look at.
    pub fn status(&self, member: MemberId, epoch: u32, parent: Option<SocketAddr>) -> PlaceStatus {
        let child = |child: &Child| HandOffChild { address: child.address, state: child.state };
        PlaceStatus {
            member,
            epoch,
            parent,
            offload: self.config.offload,
            transport: self.config.transport,
            carrier: (self.state.bytes > 0).then(|| self.slot(self.state.next - 1).carrier),
            slots: self.config.slots,
            is_closed: self.closed.is_some(),
            flow: self.state,
            children: self.children.iter().map(child).collect(),
        }
    }

    /// Whether half of the slots have packets that the readers have not read.
    pub const fn waits_for_readers(&self) -> bool {
        let unread = self.state.next.distance_from(self.state.consumed);
        !self.config.is_root && unread >= self.config.slots as i32 / 2
    }

    /// The children to which packets come slowly: a quarter of the slots have packets that the
    /// child lacks, and the child has room for twice as many. In a deep tree packets wait in the
    /// slots of all members above the slow path, so that those of its sender are never full. On
    /// streams a child that keeps up may acknowledge for half of the slots at a time, so that it
    /// seems to lack as many: there its socket has to be full, or three quarters of the slots have
    /// packets that it lacks.
    pub fn slow_children(&self) -> impl Iterator<Item = MemberId> {
        let (next, quarter) = (self.state.next, self.config.slots as i32 / 4);
        let is_slow = move |child: &&Child| {
            let crate::state::ChildState { acked, window_end, .. } = child.state;
            let is_in_time = child.carrier == Carrier::Stream && child.stream.state != StreamState::Full;
            let lacks_min = if is_in_time { 3 * quarter } else { quarter };
            next.distance_from(acked) >= lacks_min && window_end.distance_from(acked) >= 2 * quarter
        };
        self.children.iter().filter(is_slow).map(|child| child.state.member)
    }

    /// Whether the group is closed and every member of the subtree has all packets.
    pub fn is_finished(&self) -> bool {
        self.closed.is_some_and(|close| close.is_before(self.state.stable))
    }

    /// Whether the readers have read all packets.
    pub fn is_read(&self) -> bool {
        let (from, end) = self.readable();
        from == end
    }

    /// The first packet beyond the slots: the end of the receive window.
    fn window_end(&self) -> Sequence {
        self.state.freed + self.config.slots
    }

    /// The end of the receive window that the parent is told. Data by multicast comes to the whole
    /// subtree, and needs slots everywhere.
    fn advertised_window_end(&self) -> Sequence {
        let children = self.multicast.as_ref().and_then(Multicast::min_window_end);
        children.map_or(self.window_end(), |children| children.min(self.window_end()))
    }

    const fn index(&self, packet: Sequence) -> usize {
        (packet.0 & (self.config.slots - 1)) as usize
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
        let next = self.state.next;
        let Slot { piece, close, .. } = *self.slot(next);
        if close {
            self.closed = Some(next);
            self.state.expected = Expected::nothing();
        } else {
            self.state.expected = Expected::after(&piece);
            self.state.bytes += u64::from(piece.length);
        }
        self.state.next += 1;
        self.highest_sent = self.highest_sent.max(self.state.next);
        if self.config.is_root && !close {
            self.state.consumed = self.state.next;
        }
        self.on_accepted(next);
        self.update_watermarks();
        if self.config.transport == Transport::Both {
            self.ack_request.is_due |= self.parent_awaits == self.state.next;
            if self.slot(next).carrier != self.slot(next - 1).carrier {
                (0..self.children.len()).for_each(|index| self.ask_before_other_carrier(index));
            }
        }
    }

    /// Computes `stable` and `freed` anew, and whether an acknowledgment is due, after another
    /// number has grown.
    fn update_watermarks(&mut self) {
        let state = &mut self.state;
        let accepted_below = if state.min_stable_children == 0 { state.next } else { state.min_stable };
        state.stable = state.stable.max(accepted_below.min(state.next));
        state.freed = state.freed.max(state.consumed.min(accepted_below));
        self.forgotten = self.forgotten.max(state.freed);
        if let Some(multicast) = &mut self.multicast {
            multicast.free(state.freed);
        }
        self.ack_request.is_due |= !self.config.is_root && self.has_news();
        let state = &self.state;
        debug_assert!(!state.stable.is_before(state.freed) && !state.next.is_before(state.stable));
        debug_assert!(!state.consumed.is_before(state.freed) && !state.next.is_before(state.consumed));
        debug_assert!(state.next.distance_from(state.freed) <= self.config.slots as i32);
    }
}

/// A child as the table names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChildAddress {
    pub member: MemberId,
    pub address: SocketAddr,
}

/// Why a child has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerFailure {
    /// It does not answer.
    Silent,
    /// It has lost what it had accepted.
    StateLost,
    /// It answers, and datagrams with a payload of this length do not arrive there.
    PathTooSmall { length: u32 },
    /// It answers, and has accepted nothing for this time for another reason.
    AcceptsNothing { span: Nanoseconds },
    /// It lacks packets that this node does not retain; only the root retains all.
    Unserved,
}

/// An acknowledgment as it was received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ack {
    pub epoch: u32,
    pub next: Sequence,
    pub stable: Sequence,
    pub receive_window: u32,
    pub missing: Option<Missing>,
    pub timestamp: Timestamp,
    pub echo: Timestamp,
    pub is_reached: bool,
    pub is_congested: bool,
}

/// No RTO or keepalive interval is shorter, whatever the settings say: one of no length would have
/// passed before anything happens.
pub(crate) const TIMEOUT_MIN: Nanoseconds = Nanoseconds::from_us(4);

/// The timeouts of a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    pub peer_timeout: Nanoseconds,
    pub keepalive: Nanoseconds,
    pub min_rto: Nanoseconds,
}

impl Timeouts {
    /// A child that answers and accepts nothing of what is retransmitted to it for this time has
    /// failed.
    pub const fn accept_timeout(self) -> Nanoseconds {
        Nanoseconds(self.peer_timeout.0.saturating_mul(2))
    }
}

impl From<&Settings> for Timeouts {
    fn from(settings: &Settings) -> Self {
        let Settings { peer_timeout, keepalive, min_rto, .. } = *settings;
        Self { peer_timeout, keepalive: keepalive.max(TIMEOUT_MIN), min_rto: min_rto.max(TIMEOUT_MIN) }
    }
}

/// States of docs/protocol.md.
#[cfg(test)]
impl Flow {
    /// Reports the state of each packet and of each child in its diagram.
    pub fn states(&self, report: &mut dyn FnMut(crate::diagrams::Diagram, u32, &'static str)) {
        use crate::diagrams::Diagram;
        let state = &self.state;
        let first = state.freed - self.config.slots;
        for packet in first.until(self.window_end()).filter(|_| !self.config.is_root) {
            let is_stable = packet.is_before(state.stable);
            let name = match packet.is_before(state.consumed) {
                _ if packet.is_before(state.freed) => "freed",
                _ if !packet.is_before(state.next) && self.held.contains(packet) => "held",
                _ if !packet.is_before(state.next) => "expected",
                true => "read",
                false if is_stable => "stable",
                false => "accepted",
            };
            report(Diagram::Packet, packet.0, name);
        }
        for child in &self.children {
            report(Diagram::Child, child.member().0, child.state_name(self.config.timeouts));
        }
    }
}

#[cfg(test)]
impl Child {
    /// A state of docs/protocol.md.
    fn state_name(&self, timeouts: Timeouts) -> &'static str {
        let state = &self.state;
        let is_silent = state.unanswered > 0
            && state.timer_started_at.since(state.unanswered_since) > timeouts.peer_timeout;
        if self.has_lost_state {
            "state lost"
        } else if is_silent {
            "silent"
        } else if !self.is_established {
            "new"
        } else if state.backoff > 0 {
            "timed out"
        } else if self.in_flight() > 0 {
            "sent to"
        } else if state.stable.is_before(state.sent) {
            "relaying"
        } else if !state.sent.is_before(state.window_end) {
            "full"
        } else {
            "idle"
        }
    }
}
