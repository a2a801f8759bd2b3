//! The kernel's packet path as a model: a copy of the protocol that runs one group while that is
//! handed off, and handles only what the program in `bpf/` handles. `crates/ebpf/tests/equal` holds
//! the program and the protocol equal; so worlds need no kernel.

use std::net::SocketAddr;

use treecast_proto::{
    GroupId, HandOff, HandOffChild, HandOffPacket, Input, Nanoseconds, Output, Piece, Protocol, Sequence,
    Store, Transmit, TransmitPayload,
};
use treecast_wire::{Body, Data, Distribution, Header, View};

/// A group that is handed off.
#[derive(Debug)]
pub struct FastPath {
    group: GroupId,
    /// Runs the group alone: the other groups of the node are held.
    protocol: Protocol,
    /// The state after the last input that was handled. That is what the slow path reclaims.
    state: HandOff,
    /// At the root, how many packets may be queued in this state.
    free_slots: u32,
    /// The packets that were accepted or queued since the hand-off, the first of which is `first`.
    packets: Vec<HandOffPacket>,
    first: Sequence,
    /// At another member than the root: the application has read all packets before it, as it says
    /// in shared memory.
    read: Sequence,
    /// NAKs that wait for the slow path, with their sources.
    naks: Vec<(SocketAddr, Vec<u8>)>,
    /// It has begun an input that it cannot handle, so that `protocol` differs from `state`.
    is_stuck: bool,
}

/// What the slow path reclaims.
#[derive(Debug)]
pub struct Returned {
    pub state: HandOff,
    pub packets: Vec<HandOffPacket>,
    /// To be handled next, in order.
    pub naks: Vec<(SocketAddr, Vec<u8>)>,
}

/// The fast path's verdict on a datagram.
#[derive(Debug)]
pub enum Verdict {
    /// It has handled the datagram.
    Handled(Handled),
    /// It keeps the datagram, a NAK, and wakes the slow path.
    Kept,
    /// Nothing has changed: the datagram is for the slow path.
    Passed,
}

/// The effects of an input.
#[derive(Debug, Default)]
pub struct Handled {
    pub transmits: Vec<Transmit>,
    pub store: Option<Store>,
    /// Whether an application that sleeps is woken.
    pub wakes: bool,
}

impl FastPath {
    /// Takes over a group that `protocol` has just handed off in this state
    /// ([`Input::HandedOff`]).
    pub fn new(
        now: Nanoseconds,
        protocol: &Protocol,
        group: GroupId,
        state: HandOff,
    ) -> Result<Self, String> {
        let mut own = protocol.clone();
        let others: Vec<GroupId> = own.groups().filter(|other| *other != group).collect();
        for other in others {
            own.handle(now, Input::Hold { group: other }).map_err(|refused| refused.to_string())?;
        }
        let input = Input::Reclaimed { group, state: &state, packets: &[] };
        own.handle(now, input).map_err(|refused| refused.to_string())?;
        let (first, read) = (state.flow.next, state.flow.consumed);
        Ok(Self {
            group,
            free_slots: own.free_slots(group),
            protocol: own,
            state,
            packets: Vec::new(),
            first,
            read,
            naks: Vec::new(),
            is_stuck: false,
        })
    }

    /// Gives the group back to the slow path, whose protocol says which packets are new there.
    pub fn reclaim(self, protocol: &Protocol) -> Returned {
        let Self { group, state, packets, first, naks, .. } = self;
        let packets = protocol
            .new_packets(group, &state)
            .map(|packet| packets[packet.distance_from(first) as usize])
            .collect();
        Returned { state, packets, naks }
    }

    /// A datagram arrives. `is_authentic` says whether it belongs to the group's session.
    pub fn receive(
        &mut self,
        now: Nanoseconds,
        from: SocketAddr,
        bytes: &[u8],
        is_authentic: bool,
    ) -> Verdict {
        let Some(header) = View::new(bytes).and_then(View::read).ok().map(|packet| packet.header) else {
            return Verdict::Passed;
        };
        if !is_authentic || self.is_stuck || header.epoch != self.state.epoch {
            return Verdict::Passed;
        }
        match header.body {
            Body::Data(data) if self.is_next(from, &header, &data) => self.receive_data(now, from, bytes),
            Body::Acknowledgment(_) | Body::Nak(..) => self.receive_ack(now, from, &header, bytes),
            _ => Verdict::Passed,
        }
    }

    /// Whether it is the next packet, on its way down the tree or by multicast for the first time.
    fn is_next(&self, from: SocketAddr, header: &Header, data: &Data) -> bool {
        let source = match self.state.multicast {
            Some(multicast) => multicast.source.map(|source| (source.root, source.from)),
            None => self.state.parent,
        };
        let is_by_multicast = data.distribution == Distribution::Multicast;
        source == Some((header.sender, from))
            && header.sequence == self.state.flow.next
            && !data.retransmitted
            && !data.close
            && is_by_multicast == self.state.multicast.is_some()
    }

    fn receive_data(&mut self, now: Nanoseconds, from: SocketAddr, bytes: &[u8]) -> Verdict {
        let number = self.state.flow.next;
        let Some(mut handled) = self.step(now, Input::Datagram { from, bytes }) else {
            return Verdict::Passed;
        };
        // A payload with a wrong checksum is not accepted.
        let piece = self.protocol.piece(self.group, number).copied();
        let Some(piece) = piece.filter(|_| self.state.flow.next == number + 1) else {
            self.is_stuck = true;
            return Verdict::Passed;
        };
        let ack_requested = matches!(
            View::new(bytes).and_then(View::read).map(|packet| packet.header.body),
            Ok(Body::Data(Data { ack_requested: true, .. }))
        );
        self.packets.push(HandOffPacket { piece, ack_requested, sent_at: now });
        let unread = self.state.flow.next.distance_from(self.state.flow.consumed) as u32;
        handled.wakes = piece.is_last() || unread >= self.state.slots / 4;
        Verdict::Handled(handled)
    }

    fn receive_ack(&mut self, now: Nanoseconds, from: SocketAddr, header: &Header, bytes: &[u8]) -> Verdict {
        let is_sender = |child: &&HandOffChild| child.state.member == header.sender && child.address == from;
        let Some(child) = self.state.children.iter().find(is_sender) else { return Verdict::Passed };
        // The slow path handles a NAK before the acknowledgments that follow it.
        if self.naks.iter().any(|(source, _)| *source == from) {
            return Verdict::Passed;
        }
        let is_nak = matches!(header.body, Body::Nak(..));
        if is_nak && header.timestamp > child.state.timestamp {
            self.naks.push((from, bytes.to_vec()));
            return Verdict::Kept;
        }
        let freed = self.state.flow.freed;
        let Some(mut handled) = self.step(now, Input::Datagram { from, bytes }) else {
            return Verdict::Passed;
        };
        let flow = &self.state.flow;
        let in_slots = flow.next.distance_from(flow.freed) as u32;
        handled.wakes =
            self.state.parent.is_none() && flow.freed != freed && in_slots <= self.state.slots / 2;
        Verdict::Handled(handled)
    }

    /// The root's application sends a packet that it has put into its slot; `None`: the slow path
    /// has to send it.
    pub fn queue(&mut self, now: Nanoseconds, piece: Piece) -> Option<Handled> {
        if self.state.multicast.is_some() {
            return None;
        }
        let handled = self.step(now, Input::Queue { group: self.group, piece })?;
        self.packets.push(HandOffPacket { piece, ack_requested: false, sent_at: now });
        Some(handled)
    }

    /// The timer has expired. Returns whether it is set again, to a later time: acknowledgments
    /// postpone timers.
    pub fn expire(&mut self, now: Nanoseconds) -> bool {
        let is_nothing = |handled: Handled| handled.transmits.is_empty();
        self.step(now, Input::Timeout).is_some_and(is_nothing) && now < self.state.flow.timer_at
    }

    /// When its timer expires.
    pub fn timer_at(&self) -> Option<Nanoseconds> {
        Some(self.state.flow.timer_at).filter(|at| at.0 != u64::MAX)
    }

    /// Handles an input, if nothing follows from it that needs the slow path.
    fn step(&mut self, now: Nanoseconds, input: Input<'_>) -> Option<Handled> {
        if self.is_stuck {
            return None;
        }
        let handled = self.try_step(now, input);
        self.is_stuck = handled.is_none();
        handled
    }

    fn try_step(&mut self, now: Nanoseconds, input: Input<'_>) -> Option<Handled> {
        let Self { group, read, .. } = *self;
        if self.state.parent.is_some() && read != self.state.flow.consumed {
            self.protocol.handle(now, Input::Consumed { group, upto: read }).ok()?;
        }
        self.protocol.handle(now, input).ok()?;
        let mut handled = Handled::default();
        loop {
            match self.protocol.poll(now) {
                Output::Store(store) => handled.store = Some(store),
                Output::Transmit(transmit) if self.sends(&transmit) => handled.transmits.push(transmit),
                Output::Stray(_) => {}
                Output::Transmit(_) | Output::Event(_) | Output::Reclaim(_) => return None,
                Output::Timeout(_) => break,
            }
        }
        let mut state = HandOff::new();
        self.state = self.protocol.hand_off_state(group, &mut state).then_some(state)?;
        self.free_slots = self.protocol.free_slots(group);
        Some(handled)
    }

    /// Whether the fast path sends such packets: new data to children, and acknowledgments to the
    /// parent.
    fn sends(&self, transmit: &Transmit) -> bool {
        let is_for_child = || self.state.children.iter().any(|child| child.address == transmit.to);
        let mut bytes = transmit.header.to_vec();
        match &transmit.payload {
            // The content of a payload is not read.
            TransmitPayload::Slot { length, .. } => bytes.resize(bytes.len() + *length as usize, 0),
            TransmitPayload::Bytes(payload) => bytes.extend(payload),
        }
        match View::new(&bytes).and_then(View::read).map(|packet| packet.header.body) {
            Ok(Body::Data(data)) => !data.retransmitted && !data.close && is_for_child(),
            Ok(Body::Acknowledgment(_)) => {
                self.state.parent.is_some_and(|(_, address)| address == transmit.to)
            }
            _ => false,
        }
    }
}

/// The application's view of shared memory.
impl FastPath {
    /// The packets that the application may read, as [`Protocol::readable`] tells them.
    pub fn readable(&self) -> (Sequence, Sequence) {
        let from = if self.state.parent.is_some() { self.read } else { self.state.flow.consumed };
        (from, self.state.flow.next)
    }

    /// The slot of a packet.
    pub fn piece(&self, packet: Sequence) -> Option<&Piece> {
        self.protocol.piece(self.group, packet)
    }

    /// At the root, how many packets may be queued.
    pub const fn free_slots(&self) -> u32 {
        self.free_slots
    }

    /// All packets before it have left their slots.
    pub const fn freed(&self) -> Sequence {
        self.state.flow.freed
    }

    /// The application has read the packets before `upto`. Returns whether the slow path has to
    /// tell the parent.
    pub fn consume(&mut self, upto: Sequence) -> bool {
        self.read = upto;
        let flow = &self.state.flow;
        let (quarter, half) = ((self.state.slots / 4) as i32, (self.state.slots / 2) as i32);
        flow.advertised_window_end.distance_from(flow.next) < half
            && (upto + self.state.slots).distance_from(flow.advertised_window_end) >= quarter
    }
}
