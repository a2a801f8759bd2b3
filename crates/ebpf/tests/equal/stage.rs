//! One node of a small tree, and what its neighbours and its application do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use treecast_proto::{
    Cookie, CreateGroup, GroupId, Input, MemberId, Nanoseconds, Offload, PayloadChecksum, Piece, Sequence,
    Settings, Step,
};
use treecast_wire::{
    Acknowledgment, Body, Control, Data, Header, Missing, Neighbour, Role, Table, Timestamp,
};

use super::frame::Style;
use super::lab::Lab;
use super::pair::{Manner, Pair, brief};

pub const GROUP: GroupId = GroupId(7);
pub const COOKIE: Cookie = Cookie(0x5eed_c00c_1e00_0007);
pub const PORT: u16 = 7_000;

/// As many bytes are in a batch at most, with their headers: those that a root sends at once.
const TRAIN_BYTES_MAX: u64 = 24_000;

/// A node and its neighbours.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is drawn for itself")]
pub struct Setting {
    pub is_root: bool,
    pub is_v6: bool,
    /// Whether the parent is the root.
    pub is_below_root: bool,
    pub slots_log2: u32,
    pub payload_bytes_max: u16,
    pub children: u32,
    pub start: u32,
    pub has_checksum: bool,
    pub reads_in_silence: bool,
    pub sleeps: bool,
}

/// Something that happens; numbers are taken modulo what makes sense.
#[derive(Debug, Clone)]
pub enum Act {
    /// The next packet comes, or is queued at a root; or one that is `ahead` of it.
    Data { ahead: i8, ack_requested: bool, pieces: u8, bytes: u16, twist: Twist },
    /// As many packets as one, of so many bytes each but the last: `asks` has a bit for each, and messages have so many pieces,
    /// of which the last message may go on behind the batch.
    Batch { packets: u8, pieces: u8, bytes: u16, last: u16, goes_on: bool, ack_requested: u64, fault: Fault },
    /// A child has so many packets less than there are, and its subtree so many less than that.
    Acknowledgment { child: u8, lacks: u8, subtree_lacks: u8, window: u8, echoes: bool, twist: Twist },
    /// All children have everything.
    AllAcknowledge,
    /// A child misses packets.
    Nak { child: u8, lacks: u8, bits: u64 },
    /// The parent asks.
    Probe,
    /// The application has read some packets; sometimes it says what cannot be.
    Read { packets: u8, is_nonsense: bool },
    /// Time passes.
    Pass { us: u32 },
}

/// What is wrong with a packet.
#[derive(Debug, Clone)]
pub enum Twist {
    Nothing,
    /// A bit is another.
    Spoilt(u16),
    Cookie,
    Stranger,
    Epoch,
    Elsewhere,
    Flags(u16),
    Cut(u8),
    /// One of the last six words of the header is another.
    Body {
        word: u8,
        value: u32,
    },
}

/// What is wrong with a batch, at one of its packets.
#[derive(Debug, Clone)]
pub enum Fault {
    Nothing,
    Twisted(u8, Twist),
    /// One is missing.
    Gap(u8),
    /// One comes after its next.
    Swapped(u8),
}

/// A pair of nodes, and what its neighbours know.
pub struct Stage<'a> {
    setting: Setting,
    pub pair: Pair<'a>,
    pub now: Nanoseconds,
    /// The packets of the group, from the first one on, and the byte that they are full of.
    pieces: Vec<(Piece, Vec<u8>)>,
    /// When something was last sent to children.
    sent_at: Nanoseconds,
}

impl Setting {
    fn address(&self, member: u32) -> SocketAddr {
        let ip: IpAddr = if self.is_v6 {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, member as u16 + 1).into()
        } else {
            Ipv4Addr::new(10, 1, 0, member as u8 + 1).into()
        };
        SocketAddr::new(ip, PORT)
    }

    /// The node's own number. The root is 0, and whoever sends to it 1 where that is another.
    const fn member(&self) -> u32 {
        if self.is_root { 0 } else { 2 }
    }

    const fn parent(&self) -> u32 {
        if self.is_below_root { 0 } else { 1 }
    }

    const fn child(&self, place: u32) -> u32 {
        self.member() + 1 + place
    }

    const fn slots(&self) -> u32 {
        1 << self.slots_log2
    }
}

impl<'a> Stage<'a> {
    pub fn new(lab: &'a mut Lab, setting: &Setting) -> Result<Self, String> {
        let manner = Manner {
            style: Style { hops: 61, has_checksum: setting.has_checksum },
            reads_in_silence: setting.reads_in_silence,
            sleeps: setting.sleeps,
        };
        let pair = Pair::new(lab, setting.address(setting.member()), Settings::default(), manner);
        let now = Nanoseconds::from_ms(1);
        let mut stage = Self { setting: setting.clone(), pair, now, pieces: Vec::new(), sent_at: now };
        if setting.is_root {
            stage.lead()?;
        } else {
            stage.follow()?;
        }
        for child in 0..setting.children {
            stage.acknowledge(child, 0, 0, u32::MAX, Timestamp(0), &Twist::Nothing)?;
        }
        stage.pass(Nanoseconds::from_us(20))?;
        for child in 0..setting.children {
            stage.acknowledge(child, 0, 0, u32::MAX, Timestamp(stage.sent_at.0), &Twist::Nothing)?;
        }
        Ok(stage)
    }

    fn lead(&mut self) -> Result<(), String> {
        let setting = &self.setting;
        let members = 1 + setting.children;
        let mut children = vec![Vec::new(); members as usize];
        children[0] = (1..members).map(MemberId).collect();
        let lead = CreateGroup {
            group: GROUP,
            cookie: COOKIE,
            root: MemberId(0),
            members: (0..members).map(|member| setting.address(member)).collect(),
            children,
            slots: setting.slots(),
            payload_bytes_max: setting.payload_bytes_max,
            offload: Offload::Nic,
            start: Sequence(setting.start),
            admits: false,
            bytes_per_s_max: None,
        };
        self.request(Input::CreateGroup(Box::new(lead)), &[])?;
        for child in 1..members {
            let operation = Control::TableAck.operation();
            let header = self.header(child, Sequence(0), Body::Control { operation, length: 0 });
            self.datagram(child, &header, &[], &Twist::Nothing)?;
        }
        Ok(())
    }

    fn follow(&mut self) -> Result<(), String> {
        let root = self.setting.address(0);
        self.request(Input::JoinGroup { group: GROUP, cookie: COOKIE, root, sends_join: false }, &[])?;
        let setting = self.setting.clone();
        let neighbour =
            |member, role| Neighbour { member: MemberId(member), role, address: setting.address(member) };
        let parent = neighbour(setting.parent(), Role::Parent);
        let children = (0..setting.children).map(|place| neighbour(setting.child(place), Role::Child));
        let neighbours: Vec<Neighbour> = [parent].into_iter().chain(children).collect();
        let parts: Vec<&[Neighbour]> = neighbours.chunks(20).collect();
        for (part, neighbours) in parts.iter().enumerate() {
            let control = Control::Table(Table {
                member: MemberId(setting.member()),
                acked_epoch: 0,
                start: Sequence(setting.start),
                slots: setting.slots(),
                payload_bytes_max: setting.payload_bytes_max,
                offload: Offload::Nic,
                part: part as u16,
                parts: parts.len() as u16,
                neighbours: neighbours.to_vec(),
            });
            let payload = control.write();
            let body = Body::Control { operation: control.operation(), length: payload.len() as u32 };
            let header = self.header(0, Sequence(0), body);
            self.datagram(0, &header, &payload, &Twist::Nothing)?;
        }
        Ok(())
    }

    pub fn act(&mut self, act: &Act) -> Result<(), String> {
        match act {
            Act::Data { ahead, ack_requested, pieces, bytes, twist } => {
                self.data(*ahead, *ack_requested, *pieces, *bytes, twist)
            }
            Act::Batch { fault, .. } if self.setting.is_root => self.queue_batch(act, fault),
            Act::Batch { ack_requested, fault, .. } => self.batch(act, *ack_requested, fault),
            Act::Acknowledgment { child, lacks, subtree_lacks, window, echoes, twist } => {
                let children = self.setting.children;
                if children == 0 {
                    return Ok(());
                }
                let timestamp = Timestamp(if *echoes { self.sent_at.0 } else { 0 });
                let window = if *window == u8::MAX { u32::MAX } else { u32::from(*window) };
                let (lacks, subtree_lacks) = (u32::from(*lacks), u32::from(*subtree_lacks));
                self.acknowledge(u32::from(*child) % children, lacks, subtree_lacks, window, timestamp, twist)
            }
            Act::AllAcknowledge => {
                let timestamp = Timestamp(self.sent_at.0);
                for child in 0..self.setting.children {
                    self.acknowledge(child, 0, 0, u32::MAX, timestamp, &Twist::Nothing)?;
                }
                Ok(())
            }
            Act::Nak { child, lacks, bits } => self.nak(*child, *lacks, *bits),
            Act::Probe => {
                let parent = self.setting.parent();
                let header = self.header(parent, self.next(), Body::Probe);
                self.datagram(parent, &header, &[], &Twist::Nothing)
            }
            Act::Read { packets, is_nonsense } => {
                let Some((from, end)) = self.pair.reference().readable(GROUP) else { return Ok(()) };
                let there = end.distance_from(from) as u32;
                let upto = if *is_nonsense {
                    from + u32::from(*packets)
                } else {
                    from + u32::from(*packets) % (there + 1)
                };
                self.request(Input::Consumed { group: GROUP, upto }, &[])
            }
            Act::Pass { us } => self.pass(Nanoseconds::from_us((*us).into())),
        }
    }

    fn next(&self) -> Sequence {
        self.pair.reference().readable(GROUP).map_or(Sequence(self.setting.start), |(_, next)| next)
    }

    /// The packet of that place in the group.
    fn piece(&mut self, place: usize, pieces: u8, bytes: u16) -> (Piece, Vec<u8>) {
        let most = u64::from(self.setting.payload_bytes_max);
        self.piece_of(place, pieces, most, u64::from(bytes) % (most + 1))
    }

    /// The packet of that place in the group; messages from there on have so many pieces of `most` bytes, and a last one.
    fn piece_of(&mut self, place: usize, pieces: u8, most: u64, last: u64) -> (Piece, Vec<u8>) {
        while self.pieces.len() <= place {
            let message = self.pieces.last().map_or(0, |(piece, _)| piece.message + 1);
            let message_length =
                if pieces == 1 { last } else { most * (u64::from(pieces) - 1) + last.max(1) };
            let mut offset = 0;
            loop {
                let length = most.min(message_length - offset);
                let payload: Vec<u8> =
                    (0..length).map(|byte| (byte * 7 + u64::from(message)) as u8).collect();
                let checksum = PayloadChecksum::of(&payload);
                self.pieces.push((
                    Piece { message, offset, length: length as u32, message_length, checksum },
                    payload,
                ));
                offset += length;
                if offset == message_length {
                    break;
                }
            }
        }
        self.pieces[place].clone()
    }

    fn data(
        &mut self,
        ahead: i8,
        ack_requested: bool,
        pieces: u8,
        bytes: u16,
        twist: &Twist,
    ) -> Result<(), String> {
        let next = self.next();
        let begun = next.distance_from(Sequence(self.setting.start));
        let Ok(place) = usize::try_from(begun + i32::from(ahead)) else { return Ok(()) };
        let (mut piece, payload) = self.piece(place, pieces, bytes);
        self.sent_at = self.now;
        if self.setting.is_root {
            if let Twist::Body { word, value } = twist {
                spoil(&mut piece, *word, *value);
            }
            return self.request(Input::Queue { group: GROUP, piece }, &payload);
        }
        let Piece { message, offset, length, message_length, .. } = piece;
        let data = Data {
            message,
            offset,
            length,
            message_length,
            ack_requested: ack_requested,
            retransmitted: false,
            close: false,
        };
        let parent = self.setting.parent();
        let header = self.header(parent, Sequence(self.setting.start) + place as u32, Body::Data(data));
        self.datagram(parent, &header, &payload, twist)
    }

    /// The next packets, as far as they can be one batch.
    fn segments(&mut self, act: &Act) -> Vec<(Piece, Vec<u8>)> {
        let &Act::Batch { packets, pieces, bytes, last, goes_on, .. } = act else { return Vec::new() };
        let begun = self.next().distance_from(Sequence(self.setting.start)) as usize;
        let mut segments: Vec<(Piece, Vec<u8>)> = Vec::new();
        let mut each = u64::from(bytes) % (u64::from(self.setting.payload_bytes_max) + 1);
        let mut most = usize::from(packets).clamp(1, 64);
        while segments.len() < most {
            let left = most - segments.len();
            // A message without bytes is one packet.
            let pieces = if each == 0 { 1 } else { usize::from(pieces.max(1)) };
            let ends = pieces == left || pieces > left && !goes_on;
            let (pieces, length) = if ends { (left, u64::from(last) % (each + 1)) } else { (pieces, each) };
            let (piece, payload) = self.piece_of(begun + segments.len(), pieces as u8, each, length);
            let length = u64::from(piece.length);
            if segments.is_empty() {
                each = length;
                most = most.min((TRAIN_BYTES_MAX / (64 + each)) as usize);
            }
            if length > each {
                break;
            }
            segments.push((piece, payload));
            if length < each {
                break;
            }
        }
        segments
    }

    fn queue_batch(&mut self, act: &Act, fault: &Fault) -> Result<(), String> {
        let mut segments = self.segments(act);
        let count = segments.len();
        match fault {
            Fault::Twisted(place, Twist::Body { word, value }) => {
                spoil(&mut segments[usize::from(*place) % count].0, *word, *value);
            }
            Fault::Gap(place) if count > 1 => drop(segments.remove(usize::from(*place) % count)),
            _ => {}
        }
        self.sent_at = self.now;
        self.pair
            .queue_batch(self.now, GROUP, &segments)
            .map_err(|what| format!("at {}, {act:?}: {what}", self.now))
    }

    fn batch(&mut self, act: &Act, ack_requested: u64, fault: &Fault) -> Result<(), String> {
        let next = self.next();
        let segments = self.segments(act);
        let count = segments.len();
        let parent = self.setting.parent();
        let mut from = self.setting.address(parent);
        let mut datagrams = Vec::new();
        for (place, (piece, payload)) in segments.into_iter().enumerate() {
            let Piece { message, offset, length, message_length, .. } = piece;
            let ack_requested = ack_requested >> place & 1 == 1;
            let data = Data {
                message,
                offset,
                length,
                message_length,
                ack_requested,
                retransmitted: false,
                close: false,
            };
            let mut header = self.header(parent, next + place as u32, Body::Data(data));
            // It is seen about which packet an answer is.
            header.timestamp.0 += place as u64;
            let twist = match fault {
                Fault::Twisted(spoilt, twist) if usize::from(*spoilt) % count == place => twist,
                _ => &Twist::Nothing,
            };
            match twist {
                Twist::Elsewhere => from.set_port(PORT + 1),
                // What is cut off is shorter than the others: that is the last one.
                Twist::Cut(_) if place + 1 < count => {}
                _ => {
                    datagrams.push(write(header, &payload, twist));
                    continue;
                }
            }
            datagrams.push(write(header, &payload, &Twist::Nothing));
        }
        match fault {
            Fault::Gap(place) if count > 1 => drop(datagrams.remove(usize::from(*place) % count)),
            Fault::Swapped(place) if count > 2 => {
                // The last one may be shorter.
                let place = usize::from(*place) % (count - 2);
                datagrams.swap(place, place + 1);
            }
            _ => {}
        }
        self.sent_at = self.now;
        self.pair
            .batch(self.now, from, &datagrams)
            .map_err(|what| format!("at {}, {act:?}: {what}", self.now))
    }

    fn acknowledge(
        &mut self,
        child: u32,
        lacks: u32,
        subtree_lacks: u32,
        window: u32,
        timestamp: Timestamp,
        twist: &Twist,
    ) -> Result<(), String> {
        let next = self.next() - lacks;
        let stable = next - subtree_lacks;
        let window = window.min(self.setting.slots() - subtree_lacks.min(self.setting.slots()));
        let child = self.setting.child(child);
        let mut header =
            self.header(child, next, Body::Acknowledgment(Acknowledgment { stable, receive_window: window }));
        header.timestamp = timestamp;
        self.datagram(child, &header, &[], twist)
    }

    fn nak(&mut self, child: u8, lacks: u8, bits: u64) -> Result<(), String> {
        if self.setting.children == 0 {
            return Ok(());
        }
        let child = self.setting.child(u32::from(child) % self.setting.children);
        let next = self.next() - u32::from(lacks);
        let missing = Missing { first: next, bits: bits | 1 };
        let acknowledgment = Acknowledgment { stable: next, receive_window: self.setting.slots() / 2 };
        let mut header = self.header(child, next, Body::Nak(acknowledgment, missing));
        header.timestamp = Timestamp(self.sent_at.0);
        self.datagram(child, &header, &[], &Twist::Nothing)
    }

    fn header(&self, sender: u32, sequence: Sequence, body: Body) -> Header {
        Header {
            group: GROUP,
            cookie: COOKIE,
            epoch: 1,
            sender: MemberId(sender),
            sequence,
            timestamp: Timestamp(self.now.0),
            body,
        }
    }

    fn datagram(&mut self, from: u32, header: &Header, payload: &[u8], twist: &Twist) -> Result<(), String> {
        let mut from = self.setting.address(from);
        if matches!(twist, Twist::Elsewhere) {
            from.set_port(PORT + 1);
        }
        let bytes = write(*header, payload, twist);
        self.step(&Step::Datagram { from, bytes })
    }

    fn request(&mut self, input: Input<'static>, payload: &[u8]) -> Result<(), String> {
        self.step(&Step::Request { input, payload: payload.to_vec() })
    }

    /// Time passes, and what is due by then is done.
    fn pass(&mut self, span: Nanoseconds) -> Result<(), String> {
        let end = self.now + span;
        while let Some(deadline) = self.pair.deadline().filter(|&deadline| deadline <= end) {
            self.now = self.now.max(deadline);
            self.request(Input::Timeout, &[])?;
        }
        self.now = end;
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        self.pair.step(self.now, step).map_err(|what| format!("at {}, {}: {what}", self.now, brief(step)))
    }
}

/// A datagram with what is wrong with it.
fn write(mut header: Header, payload: &[u8], twist: &Twist) -> Vec<u8> {
    match twist {
        Twist::Cookie => header.cookie.0 ^= 1 << 40,
        Twist::Stranger => header.sender.0 ^= 5,
        Twist::Epoch => header.epoch += 1,
        _ => {}
    }
    let checksum = PayloadChecksum::of(payload);
    let mut bytes = [&header.write(checksum)[..], payload].concat();
    match *twist {
        Twist::Spoilt(bit) => {
            let bit = usize::from(bit) % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        Twist::Flags(flags) => {
            bytes[2..4].copy_from_slice(&flags.to_be_bytes());
            complete(&mut bytes);
        }
        Twist::Body { word, value } => {
            let place = 40 + usize::from(word % 6) * 4;
            bytes[place..place + 4].copy_from_slice(&value.to_be_bytes());
            complete(&mut bytes);
        }
        Twist::Cut(end) => {
            let length = bytes.len().saturating_sub(1 + usize::from(end));
            bytes.truncate(length.max(1));
        }
        _ => {}
    }
    bytes
}

/// Makes something else of a piece.
fn spoil(piece: &mut Piece, word: u8, value: u32) {
    match word % 4 {
        0 => piece.message = value,
        1 => piece.offset = u64::from(value) << (value % 33),
        2 => piece.message_length = u64::from(value) << (value % 33),
        _ => piece.checksum.0 ^= value,
    }
}

/// Computes the checksum of a datagram anew (docs/wire.md).
fn complete(bytes: &mut [u8]) {
    let (header, payload) = bytes.split_at_mut(64);
    header[4..8].fill(0);
    let whole = [&*payload, &*header].concat();
    header[4..8].copy_from_slice(&PayloadChecksum::of(&whole).0.to_be_bytes());
}
