//! The protocol with a script of arbitrary steps: three nodes, a network that the script controls,
//! and forged packets, in datagrams and on streams.
//!
//! A (0) is the root, B (1) its child, C (2) a child of B; D (3) is no member: the script forges
//! its packets.

use std::collections::VecDeque;
use std::net::SocketAddr;

use arbitrary::{Arbitrary, Unstructured};
use treecast_proto::{
    AbortReason, Authentication, Carrier, Challenge, Contribution, CreateGroup, Element, Event, GroupId,
    GroupKey, HandOff, Input, Integrity, MemberId, Nanoseconds, Offload, Operation, PayloadChecksum, Piece,
    Process, Protocol, ReaderSet, Readers, Refused, Sequence, SessionId, Settings, StreamChange, Transport,
    Values,
};
use treecast_wire::{
    Acknowledgment, Body, Control, ControlHeader, Data, Distribution, Eviction, Handshake, Header, Keys,
    MacKey, Missing, Neighbour, Nonce, Role, RootLoss, Table, Timestamp, View,
};
use treecast_world::{Act, Fault, Node};

mod forge;
mod outputs;
mod paths;
mod script;

use script::{Number, Setting, Step};

const GROUP: GroupId = GroupId(7);
const PAYLOAD_BYTES: u16 = 512;
const NODES: usize = 3;

/// The greatest number of outputs of a node in a row.
const TRANSMITS_MAX: usize = 10_000;

/// Runs a script; an incomplete final step is ignored. The invariants are checked after every step.
///
/// # Panics
/// If an invariant is broken.
pub fn proto(bytes: &[u8]) {
    let mut bytes = Unstructured::new(bytes);
    let Ok(setting) = Setting::arbitrary(&mut bytes) else { return };
    let mut trial = Trial::new(&setting);
    while !bytes.is_empty() {
        let Ok(step) = Step::arbitrary(&mut bytes) else { return };
        trial.step(&step);
        trial.check();
    }
}

struct Trial {
    now: Nanoseconds,
    /// The settings of the group, and the number of its sessions.
    create: CreateGroup,
    sessions: u8,
    /// How often each node was started.
    lives: [u8; NODES],
    /// By node; 0 before it has its place.
    slots: [u32; NODES],
    start: Sequence,
    nodes: [Node; NODES],
    in_flight: VecDeque<(usize, usize, Vec<u8>)>,
    /// By child: the stream from its parent.
    streams: [Option<Stream>; NODES],
    /// By node: the state in which its group was handed off, to a fast path that does nothing.
    handed_off: [Option<HandOff>; NODES],
    /// The message that the root is queueing: its number, its queued bytes and its length.
    queued: (u32, u64, u64),
    /// The piece that each node has read last.
    read: [Option<Piece>; NODES],
    /// The end of the greatest receive window that was announced to each node. It is not kept per
    /// child: in a forged tree two children may have the same number.
    ends: [Option<Sequence>; NODES],
}

/// What a parent has sent to a child, and the child has not received.
struct Stream {
    parent: usize,
    packets: VecDeque<Vec<u8>>,
}

fn key() -> GroupKey {
    GroupKey::new("a token", GROUP)
}

const fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

const fn seed(node: u8, life: u8) -> [u64; 2] {
    [node as u64, life as u64]
}

/// What carries data: no streams where it is sent by multicast.
const fn transport(offload: u8) -> Transport {
    match (offload % 4, (offload / 4) % 4) {
        (3, _) | (_, 0 | 2) => Transport::Packets,
        (_, 1) => Transport::Streams,
        _ => Transport::Both,
    }
}

/// Payloads have codes where data is sent by multicast.
fn authentication(is_multicast: bool) -> Authentication {
    if is_multicast { Authentication::Payload } else { Authentication::Header }
}

/// The first nonce of a node.
fn nonce(node: u8, life: u8) -> Nonce {
    Nonce(MacKey(seed(node, life)).mac(&0_u64.to_be_bytes()))
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8], 7_000))
}

/// The node with this address, or a number that no node has.
fn number_of(address: SocketAddr) -> Option<usize> {
    match address {
        SocketAddr::V4(address) => Some(usize::from(address.ip().octets()[3])),
        SocketAddr::V6(_) => None,
    }
}

fn multicast_address() -> SocketAddr {
    SocketAddr::from(([239, 0, 0, 1], 7_000))
}

/// The payload of every piece of a message: its number, repeated.
fn payload_of(message: u32, length: u32) -> Vec<u8> {
    vec![message as u8; length as usize]
}

fn settings() -> Settings {
    Settings { groups_max: 2, ..Settings::default() }
}

/// A node that has not taken any input.
fn new_node(node: usize) -> Node {
    Node::new(address(node), settings())
}

fn control_header(keys: &Keys, operation: u32, nonce: Nonce, payload: &[u8]) -> ControlHeader {
    ControlHeader { operation, nonce, length: payload.len() as u32, checksum: keys.control_checksum(payload) }
}

impl Trial {
    fn new(setting: &Setting) -> Self {
        let slots = 4 << (setting.slots % 5);
        let start = if setting.is_near_wrap { u32::MAX - setting.start % 64 } else { setting.start };
        let create = CreateGroup {
            group: GROUP,
            key: key(),
            session: session(0),
            authentication: authentication(setting.offload % 4 == 3),
            integrity: Integrity::default(),
            transport: transport(setting.offload),
            root: MemberId(0),
            members: (0..3).map(address).collect(),
            children: vec![vec![MemberId(1)], vec![MemberId(2)], vec![]],
            slots,
            payload_bytes_max: PAYLOAD_BYTES,
            offload: Offload::NAMES[usize::from(setting.offload) % 4].1,
            multicast: (setting.offload % 4 == 3).then(multicast_address),
            start: Sequence(start),
            admits: setting.admits,
            // Two processes share the node of the root, or of B.
            readers: match setting.offload / 64 {
                2 => vec![(MemberId(0), 2)],
                3 => vec![(MemberId(1), 2)],
                _ => Vec::new(),
            },
            members_max: CreateGroup::MEMBERS_MAX,
            is_encrypted: false,
            bytes_per_s_max: setting.rate.map(|rate| u64::from(rate) * 1_000),
        };
        let mut trial = Self {
            now: Nanoseconds::from_ms(1),
            create,
            sessions: 0,
            lives: [0; NODES],
            slots: [slots, 0, 0],
            start: Sequence(start),
            nodes: std::array::from_fn(new_node),
            in_flight: VecDeque::new(),
            streams: [const { None }; NODES],
            handed_off: [const { None }; NODES],
            queued: (0, 0, 0),
            read: [None; NODES],
            ends: [None; NODES],
        };
        trial.create();
        trial.join(1);
        trial.join(2);
        trial.deliver(50);
        (1..NODES).for_each(|node| trial.attach(node, node, 0, 0));
        trial
    }

    fn create(&mut self) {
        let create = CreateGroup { session: session(self.sessions), ..self.create.clone() };
        self.sessions += 1;
        self.request(0, Input::CreateGroup(Box::new(create)));
    }

    fn join(&mut self, node: usize) {
        let seed = seed(node as u8, self.lives[node]);
        self.request(node, Input::JoinGroup { group: GROUP, key: key(), root: address(0), seed });
    }

    /// A node starts again, without its state.
    fn restart(&mut self, node: usize) {
        self.nodes[node] = new_node(node);
        self.lives[node] = self.lives[node].wrapping_add(1);
        self.read[node] = None;
        self.ends[node] = None;
        self.streams[node] = None;
        self.handed_off[node] = None;
        for child in 1..NODES {
            self.streams[child].take_if(|stream| stream.parent == node);
        }
        if node == 0 {
            self.queued = (0, 0, 0);
            self.slots[0] = self.create.slots;
            self.create();
        } else {
            self.slots[node] = 0;
            self.join(node);
        }
    }

    /// A request, which may be refused.
    fn request(&mut self, node: usize, input: Input<'static>) -> bool {
        if input.group().is_some() {
            self.reclaim(node, 0);
        }
        let is_done = self.nodes[node].request(self.now, input).is_ok();
        self.drain(node);
        is_done
    }

    /// The root queues a packet, which may be refused.
    fn queue_piece(&mut self, piece: Piece) -> bool {
        self.reclaim(0, 0);
        let payload = payload_of(piece.message, piece.length.min(PAYLOAD_BYTES.into()));
        let is_done = self.nodes[0].queue(self.now, GROUP, piece, &payload).is_ok();
        self.drain(0);
        is_done
    }

    fn protocol(&self, node: usize) -> &Protocol {
        self.nodes[node].protocol()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Deliver { count } => self.deliver(1 + usize::from(count % 32)),
            Step::Overtake => {
                if let Some((from, to, bytes)) = self.in_flight.pop_back() {
                    self.arrive(from, to, &bytes);
                }
            }
            Step::Lose => {
                self.in_flight.pop_front();
            }
            Step::Duplicate => {
                if let Some((from, to, bytes)) = self.in_flight.front().cloned() {
                    self.arrive(from, to, &bytes);
                }
            }
            Step::Corrupt { place, change } => {
                if let Some((_, _, bytes)) = self.in_flight.front_mut() {
                    let place = usize::from(place) % bytes.len();
                    bytes[place] ^= change;
                }
            }
            Step::Wait { us } => self.wait(Nanoseconds::from_us(us.into())),
            Step::WaitLong { ms } => self.wait(Nanoseconds::from_ms(u64::from(ms) * 8)),
            Step::Queue { bytes, count } => (0..=count % 32).for_each(|_| self.queue(bytes.into())),
            Step::QueueAny { message, offset, length, message_length } => {
                let checksum = self.checksum(&payload_of(message, length.min(PAYLOAD_BYTES.into())));
                let piece = Piece { message, offset, length, message_length, checksum };
                if self.queue_piece(piece) {
                    self.queued = if piece.is_last() {
                        (message.wrapping_add(1), 0, 0)
                    } else {
                        (message, offset + u64::from(length), message_length)
                    };
                }
            }
            Step::Read { count } => {
                (0..=count % 16).for_each(|_| (1..NODES).for_each(|node| self.read(node)));
            }
            Step::Consume { node, upto } => {
                let (node, upto) = (usize::from(node) % NODES, self.number(upto));
                if self.request(node, Input::Consumed { group: GROUP, upto }) {
                    // Skipped packets are not checked.
                    self.read[node] = None;
                }
            }
            Step::Forward { node, upto, child } => {
                let (upto, child) = (self.number(upto), child.map(|child| MemberId(child.into())));
                self.request(usize::from(node) % NODES, Input::Forward { group: GROUP, upto, child });
            }
            Step::Disrupt { what, node } => self.disrupt(what, usize::from(node) % NODES),
            Step::Forge { .. } => self.forge(step),
            Step::Bytes { from, to, bytes, length } => {
                let bytes = &bytes[..usize::from(length) % (bytes.len() + 1)];
                self.arrive(usize::from(from) % 4, usize::from(to) % NODES, bytes);
            }
            Step::Attach { node, from, place, change } => {
                let node = usize::from(node) % NODES;
                let from = from.map_or(node, |from| usize::from(from) % 4);
                self.attach(node, from, place, change);
            }
            Step::Records { node, count } => {
                (0..=count % 32).for_each(|_| self.receive_record(usize::from(node) % NODES));
            }
            Step::CorruptRecord { node, place, change } => {
                let stream = self.streams[usize::from(node) % NODES].as_mut();
                if let Some(bytes) = stream.and_then(|stream| stream.packets.front_mut()) {
                    let place = usize::from(place) % bytes.len();
                    bytes[place] ^= change;
                }
            }
            Step::Stream { node, child, change } => {
                let changes = [StreamChange::Full, StreamChange::Writable, StreamChange::Closed];
                let change = changes[usize::from(change) % changes.len()];
                let (node, child) = (usize::from(node) % NODES, usize::from(child) % 5);
                if change == StreamChange::Closed && child < NODES {
                    self.streams[child].take_if(|stream| stream.parent == node);
                }
                let child = MemberId(child as u32);
                self.request(node, Input::Stream { group: GROUP, child, change });
            }
            Step::Flush { node } => {
                _ = self.request(usize::from(node) % NODES, Input::Flush { group: GROUP })
            }
            Step::Carrier { node, is_stream } => {
                let carrier = if is_stream { Carrier::Stream } else { Carrier::Datagram };
                self.request(usize::from(node) % NODES, Input::SetCarrier { group: GROUP, carrier });
            }
            Step::StreamLosses { node, child } => {
                let child = MemberId(u32::from(child) % 5);
                self.request(usize::from(node) % NODES, Input::StreamLosses { group: GROUP, child });
            }
        }
    }

    fn disrupt(&mut self, what: u8, node: usize) {
        match what % 64 {
            0 => _ = self.request(node, Input::Close { group: GROUP }),
            1 => _ = self.request(node, Input::Leave { group: GROUP }),
            2 => _ = self.request(node, Input::Abort { group: GROUP, why: AbortReason::Application }),
            3 | 4 => self.restart(node),
            // A member whose group has ended joins again.
            5 if node > 0 => self.join(node),
            6..12 => {
                let set = |bits: u8| {
                    let mut set = ReaderSet::first(2);
                    (0..2).filter(|place| bits & (1 << place) == 0).for_each(|place| set.remove(place));
                    set
                };
                let readers = Readers { awaited: set(what / 64), lost: set(what % 4) };
                self.request(node, Input::Readers { group: GROUP, readers });
            }
            12 => {
                let member = MemberId(u32::from(what / 64));
                self.request(node, Input::Evict { group: GROUP, member });
            }
            13..18 => self.contribute(node, what),
            19..24 => self.hand_off(node),
            24 => self.reclaim(node, what / 64),
            18 => {
                let member = MemberId(u32::from(what / 64));
                self.request(node, Input::Relieve { group: GROUP, member });
            }
            _ => {}
        }
    }

    /// A process of a node contributes to an all-reduce, perhaps to another one than the others.
    fn contribute(&mut self, node: usize, what: u8) {
        let next = self.protocol(node).readable(GROUP).map_or(self.start, |(_, next)| next);
        let contribution = contribution(next + u32::from(what / 128), what);
        let process = Process { place: u32::from(what / 64 % 2), count: 2 };
        self.request(node, Input::Contribute { group: GROUP, process, contribution });
    }

    fn number(&self, number: Number) -> Sequence {
        match number {
            Number::Near(step) => {
                let near = self.protocol(1).readable(GROUP).map_or(self.start, |(_, next)| next);
                Sequence(near.0.wrapping_add_signed(step.into()))
            }
            Number::Any(number) => Sequence(number),
        }
    }

    fn session_keys(&self, number: u8) -> Keys {
        key().session_keys(session(number), self.create.authentication)
    }

    /// The checksum of the next packet that the root queues.
    fn checksum(&self, payload: &[u8]) -> PayloadChecksum {
        let next = self.protocol(0).readable(GROUP).map_or(self.start, |(_, next)| next);
        self.session_keys(self.sessions - 1).data_checksum(next, payload)
    }

    fn queue(&mut self, message_bytes: u64) {
        let (message, offset, known_length) = self.queued;
        let message_length = if offset == 0 { message_bytes % 4_096 } else { known_length };
        let length = (message_length - offset).min(PAYLOAD_BYTES.into());
        let checksum = self.checksum(&payload_of(message, length as u32));
        let piece = Piece { message, offset, length: length as u32, message_length, checksum };
        if self.protocol(0).free_slots(GROUP) > 0 {
            assert!(self.queue_piece(piece), "a packet is accepted while there is room");
            let end = offset + length;
            self.queued = if end == message_length {
                (message.wrapping_add(1), 0, 0)
            } else {
                (message, end, message_length)
            };
        }
    }

    fn read(&mut self, node: usize) {
        let Some((packet, end)) = self.protocol(node).readable(GROUP) else { return };
        if packet == end {
            return;
        }
        let piece = *self.protocol(node).piece(GROUP, packet).expect("a readable packet is in its slot");
        if let Some(before) = self.read[node] {
            let follows = if before.is_last() {
                (piece.message, piece.offset) == (before.message.wrapping_add(1), 0)
            } else {
                (piece.message, piece.offset, piece.message_length)
                    == (before.message, before.offset + u64::from(before.length), before.message_length)
            };
            assert!(follows, "{piece:?} is read after {before:?}");
        }
        self.read[node] = Some(piece);
        assert!(self.request(node, Input::Consumed { group: GROUP, upto: packet + 1 }));
    }

    fn wait(&mut self, span: Nanoseconds) {
        self.now += span;
        for node in 0..NODES {
            self.request(node, Input::Timeout);
        }
    }

    fn deliver(&mut self, count: usize) {
        for _ in 0..count {
            let Some((from, to, bytes)) = self.in_flight.pop_front() else { return };
            self.now += Nanoseconds::from_us(10);
            self.arrive(from, to, &bytes);
        }
    }

    fn arrive(&mut self, from: usize, to: usize, bytes: &[u8]) {
        if to >= NODES {
            return;
        }
        self.record_window(to, bytes);
        if self.nodes[to].group_to_reclaim(bytes).is_some() {
            self.reclaim(to, 0);
        }
        self.nodes[to].datagram(self.now, address(from), bytes).expect("no datagram is refused");
        self.drain(to);
    }
}

/// A contribution to an all-reduce; one in three has no values.
fn contribution(packet: Sequence, what: u8) -> Contribution {
    let bytes = vec![what; 4 * usize::from(what % 3)];
    let values = Values { operation: Operation::Sum, element: Element::U32, bytes };
    Contribution { packet, processes: what.into(), values: (what != 0).then_some(values) }
}
