//! A node with what every host has around it, simulated or in a test: the protocol, the memory of
//! its slots, and, if requested, a trace of its inputs.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use treecast_proto::{
    Challenge, Event, GroupId, HandOff, HandOffPacket, Input, MemberId, Nanoseconds, Output, Piece, Protocol,
    Refused, Sequence, Settings, Step, Store, Stray, Trace, Transmit, TransmitPayload,
};
use treecast_wire::{HEADER_BYTES, View};

/// A node: what it sends are whole packets, and what it stores lies in its memory. The clock, the
/// network and the applications are its user's.
///
/// ```
/// use treecast_proto::{Input, Nanoseconds, Settings};
/// use treecast_world::{Act, Node};
///
/// let mut node = Node::new("192.0.2.1:7000".parse()?, Settings::default());
/// node.datagram(Nanoseconds(0), "192.0.2.2:7000".parse()?, b"hello")?;
/// assert!(matches!(node.poll(Nanoseconds(0))?, Act::Stray(_)));
/// assert!(matches!(node.poll(Nanoseconds(0))?, Act::Wait(None)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Node {
    protocol: Protocol,
    /// The payloads in the slots of each group.
    memory: BTreeMap<GroupId, Vec<Vec<u8>>>,
    /// What the last input has caused at once, and was not polled yet.
    local: VecDeque<Act>,
    trace: Option<Trace>,
    address: SocketAddr,
    settings: Settings,
}

/// What a node wants to be done.
#[derive(Debug, Clone)]
pub enum Act {
    /// A packet is to be sent.
    Send(Packet),
    /// Something has happened.
    Event(Event),
    /// The packet that was handled last belongs to no group.
    Stray(Stray),
    /// This group is due, and to be reclaimed from its fast path.
    Reclaim(GroupId),
    /// Nothing, until an input or this time.
    Wait(Option<Nanoseconds>),
}

/// A packet that a node sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Its group.
    pub group: GroupId,
    /// Where it goes.
    pub to: SocketAddr,
    /// As a datagram, or on the stream of a child.
    pub stream_of: Option<MemberId>,
    /// Header and payload.
    pub bytes: Vec<u8>,
}

/// A node that uses its memory wrongly, or refuses what it has to take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An input is refused.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// A slot is stored to, or sent, that is not there.
    #[error("group {group} has no slot {slot}")]
    NoSlot {
        /// The group.
        group: GroupId,
        /// The index of the slot.
        slot: u32,
    },
    /// More is sent than was stored.
    #[error("{length} bytes of slot {slot} of group {group} are sent, and {stored} are stored")]
    TooLong {
        /// The group.
        group: GroupId,
        /// The index of the slot.
        slot: u32,
        /// The bytes to be sent.
        length: u32,
        /// The bytes in the slot.
        stored: usize,
    },
    /// What comes on a stream is shorter than a header.
    #[error("{0} bytes on a stream are no packet")]
    NoHeader(usize),
    /// A payload is stored though no packet was handled.
    #[error("a payload is stored, and no packet was handled: {0:?}")]
    StoredNothing(Store),
}

/// A read from a stream may write this many slots.
const SCRIBBLED_PACKETS: usize = 4;

impl Node {
    /// A node without groups.
    pub fn new(address: SocketAddr, settings: Settings) -> Self {
        Self {
            protocol: Protocol::new(settings.clone()),
            memory: BTreeMap::new(),
            local: VecDeque::new(),
            trace: None,
            address,
            settings,
        }
    }

    /// Records its inputs from now on.
    pub fn record(&mut self) {
        self.trace = Some(Trace::new(self.address, self.settings.clone()));
    }

    /// What was recorded, if it was requested.
    pub const fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// What was recorded, if it was requested.
    pub fn into_trace(self) -> Option<Trace> {
        self.trace
    }

    /// Its protocol.
    pub const fn protocol(&self) -> &Protocol {
        &self.protocol
    }
}

/// Memory.
impl Node {
    /// The payload in the slot of a packet; `None` if the group is not here.
    pub fn payload(&self, group: GroupId, packet: Sequence) -> Option<&[u8]> {
        let slots = self.memory.get(&group)?;
        slots.get(packet.0 as usize & slots.len().checked_sub(1)?).map(Vec::as_slice)
    }

    /// Puts a payload into the slot of a packet, as an application does before it sends the packet.
    ///
    /// # Errors
    /// [`Fault::NoSlot`] if the group is not here.
    pub fn write(&mut self, group: GroupId, packet: Sequence, payload: &[u8]) -> Result<(), Fault> {
        let slots = self.memory.get(&group).map_or(0, Vec::len) as u32;
        self.put(group, packet.0 & slots.saturating_sub(1), payload)
    }

    /// Stores a part of a packet that was handled, here or by a fast path.
    ///
    /// # Errors
    /// [`Fault::NoSlot`].
    pub fn store(&mut self, store: &Store, packet: &[u8]) -> Result<(), Fault> {
        self.put(store.group, store.slot, &packet[store.payload.clone()])
    }

    /// Forgets the payloads of the packets before this one.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn forget(&mut self, now: Nanoseconds, group: GroupId, before: Sequence) -> Result<(), Fault> {
        self.request(now, Input::Forget { group, before })?;
        let freed = self.protocol.freed(group).unwrap_or(before);
        freed.until(before).try_for_each(|packet| self.write(group, packet, &[]))
    }

    fn put(&mut self, group: GroupId, slot: u32, payload: &[u8]) -> Result<(), Fault> {
        let memory = self.memory.get_mut(&group).and_then(|slots| slots.get_mut(slot as usize));
        let memory = memory.ok_or(Fault::NoSlot { group, slot })?;
        memory.clear();
        memory.extend_from_slice(payload);
        Ok(())
    }

    /// The bytes of a packet that is sent.
    ///
    /// # Errors
    /// [`Fault::NoSlot`] and [`Fault::TooLong`].
    pub fn packet(&self, transmit: Transmit) -> Result<Packet, Fault> {
        let Transmit { group, to, header, payload, stream_of } = transmit;
        let mut bytes = header.to_vec();
        match payload {
            TransmitPayload::Bytes(payload) => bytes.extend(payload),
            TransmitPayload::Slot { slot, length, .. } => {
                let stored = self.memory.get(&group).and_then(|slots| slots.get(slot as usize));
                let stored = stored.ok_or(Fault::NoSlot { group, slot })?;
                let too_long = Fault::TooLong { group, slot, length, stored: stored.len() };
                bytes.extend_from_slice(stored.get(..length as usize).ok_or(too_long)?);
            }
        }
        Ok(Packet { group, to, stream_of, bytes })
    }
}

/// Inputs.
impl Node {
    /// A datagram comes.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn datagram(&mut self, now: Nanoseconds, from: SocketAddr, bytes: &[u8]) -> Result<(), Fault> {
        self.note(now, || Step::Datagram { from, bytes: bytes.to_vec() });
        let datagram = self.protocol.check(bytes);
        let handled = self.protocol.handle(now, Input::Checked { from, datagram });
        self.take_local(bytes)?;
        Ok(handled?)
    }

    /// A packet comes on the stream to the parent.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn packet_on_stream(
        &mut self,
        now: Nanoseconds,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let (header, payload) =
            bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Fault::NoHeader(bytes.len()))?;
        self.scribble(header)?;
        self.note(now, || Step::Record { from, header: Box::new(*header), payload: payload.to_vec() });
        let handled = self.protocol.handle(now, Input::Record { from, header, payload });
        self.take_local(bytes)?;
        Ok(handled?)
    }

    /// A read from a stream may write into all slots that are free, before it is known which
    /// packets have come.
    fn scribble(&mut self, header: &[u8; HEADER_BYTES]) -> Result<(), Fault> {
        let group = View::of_parts(header, &[]).ok().map(|view| view.group());
        let free =
            group.and_then(|group| Some((group, self.protocol.next(group)?, self.protocol.free_end(group)?)));
        let Some((group, next, end)) = free else { return Ok(()) };
        next.until(end).take(SCRIBBLED_PACKETS).try_for_each(|packet| self.write(group, packet, b"scribbled"))
    }

    /// The first packet on a stream of a child comes; returns whether the stream is taken.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn attach(
        &mut self,
        now: Nanoseconds,
        from: IpAddr,
        challenge: Challenge,
        bytes: &[u8],
    ) -> Result<bool, Fault> {
        let stream = 0;
        self.note(now, || Step::Attach { stream, from, challenge, bytes: bytes.to_vec() });
        self.protocol.handle(now, Input::Attach { stream, from, challenge, bytes })?;
        self.take_local(bytes)?;
        let is_taken =
            self.local.iter().any(|act| matches!(act, Act::Event(Event::Attached { child: Some(_), .. })));
        self.local.retain(|act| !matches!(act, Act::Event(Event::Attached { .. })));
        Ok(is_taken)
    }

    /// Its application queues a packet, which is put into its slot.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn queue(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        piece: Piece,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let next = self.protocol.readable(group).map(|(_, next)| next);
        self.note(now, || Step::Request { input: Input::Queue { group, piece }, payload: payload.to_vec() });
        let handled = self.protocol.handle(now, Input::Queue { group, piece });
        self.take_local(&[])?;
        handled?;
        next.map_or(Ok(()), |next| self.write(group, next, payload))
    }

    /// The group that is to be reclaimed before a datagram is handled
    /// ([`Protocol::group_to_reclaim`]).
    pub fn group_to_reclaim(&self, bytes: &[u8]) -> Option<GroupId> {
        self.protocol.group_to_reclaim(&self.protocol.check(bytes))
    }

    /// Any other input.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn request(&mut self, now: Nanoseconds, input: Input<'static>) -> Result<(), Fault> {
        self.note(now, || Step::Request { input: input.clone(), payload: Vec::new() });
        let slots = match &input {
            Input::CreateGroup(create) => Some((create.group, create.slots)),
            _ => None,
        };
        let handled = self.protocol.handle(now, input);
        self.take_local(&[])?;
        handled?;
        if let Some((group, slots)) = slots {
            self.memory.insert(group, vec![Vec::new(); slots as usize]);
        }
        Ok(())
    }

    /// Hands a group off to a fast path, if nothing in it needs the slow path; returns its state.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn hand_off(&mut self, now: Nanoseconds, group: GroupId) -> Result<Option<HandOff>, Fault> {
        let mut state = HandOff::new();
        if !self.protocol.hand_off_state(group, &mut state) {
            return Ok(None);
        }
        self.request(now, Input::HandedOff { group })?;
        Ok(Some(state))
    }

    /// A fast path gives a group back, in this state and with the packets that are new in slots.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn reclaim(
        &mut self,
        now: Nanoseconds,
        state: &HandOff,
        packets: &[HandOffPacket],
    ) -> Result<(), Fault> {
        let group = state.group;
        self.note(now, || Step::Reclaimed {
            group,
            state: Box::new(state.clone()),
            packets: packets.to_vec(),
        });
        Ok(self.protocol.handle(now, Input::Reclaimed { group, state, packets })?)
    }

    fn note(&mut self, now: Nanoseconds, step: impl FnOnce() -> Step) {
        if let Some(trace) = &mut self.trace {
            trace.record(now, step());
        }
    }

    /// Takes what an input has caused at once; `packet` is what it was about.
    fn take_local(&mut self, packet: &[u8]) -> Result<(), Fault> {
        while let Some(output) = self.protocol.poll_local() {
            match output {
                Output::Store(store) => self.store(&store, packet)?,
                output => {
                    let act = self.act(output)?;
                    self.local.push_back(act);
                }
            }
        }
        Ok(())
    }
}

/// Outputs.
impl Node {
    /// What is to be done next. To be called until it is [`Act::Wait`].
    ///
    /// # Errors
    /// [`Fault`].
    pub fn poll(&mut self, now: Nanoseconds) -> Result<Act, Fault> {
        if let Some(act) = self.poll_local() {
            return Ok(act);
        }
        if let Some(trace) = &mut self.trace {
            trace.record_poll(now);
        }
        let output = self.protocol.poll(now);
        self.act(output)
    }

    /// What the last input has caused at once: [`Act::Event`] or [`Act::Stray`].
    pub fn poll_local(&mut self) -> Option<Act> {
        self.local.pop_front()
    }

    fn act(&mut self, output: Output) -> Result<Act, Fault> {
        Ok(match output {
            Output::Transmit(transmit) => Act::Send(self.packet(transmit)?),
            Output::Event(event) => {
                if let Event::Placed { group, slots, .. } = event {
                    self.memory.entry(group).or_default().resize(slots as usize, Vec::new());
                }
                Act::Event(event)
            }
            Output::Stray(stray) => Act::Stray(stray),
            Output::Reclaim(group) => Act::Reclaim(group),
            Output::Timeout(at) => Act::Wait(at),
            Output::Store(store) => return Err(Fault::StoredNothing(store)),
        })
    }
}
