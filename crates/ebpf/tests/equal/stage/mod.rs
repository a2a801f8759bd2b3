//! One node of a small tree, with simulated neighbours and a simulated application.

mod batch;
mod setting;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use treecast_proto::{
    Contribution, CreateGroup, GroupId, Input, MemberId, Nanoseconds, Piece, Process, Sequence, Settings,
    Step,
};
use treecast_wire::{
    Acknowledgment, Body, Control, Data, Header, Missing, Neighbour, Nonce, Role, Table, Timestamp, Transport,
};

use super::acts::{self, Act, AnyValues, Defect, corrupt};
use super::frame::Style;
use super::lab::Lab;
use super::pair::{Behaviour, Pair, brief, data_of};
use super::session::Session;

pub use setting::Setting;

pub const GROUP: GroupId = GroupId(7);
pub const PORT: u16 = 7_000;

/// A pair of nodes with simulated neighbours.
pub struct Stage<'a> {
    setting: Setting,
    session: Session,
    pub pair: Pair<'a>,
    pub now: Nanoseconds,
    /// The packets of the group from the first one on, with their payloads.
    pieces: Vec<(Piece, Vec<u8>)>,
    /// The latest timestamp of each neighbour.
    timestamps: BTreeMap<u32, u64>,
    /// The datagrams that were sent, with their source; those of a batch together.
    log: Vec<(SocketAddr, Vec<Vec<u8>>)>,
    /// When data was last sent to children.
    sent_at: Nanoseconds,
}

impl<'a> Stage<'a> {
    pub fn new(lab: &'a mut Lab, setting: &Setting) -> Result<Self, String> {
        let behaviour = Behaviour {
            style: Style { hop_limit: 61, has_checksum: setting.has_checksum },
            reads_silently: setting.reads_silently,
            sleeps: setting.sleeps,
        };
        let pair = Pair::new(lab, setting.address(setting.member()), Settings::default(), behaviour);
        let now = Nanoseconds::from_ms(1);
        let mut stage = Self {
            setting: setting.clone(),
            session: Session::new(GROUP, setting.authentication),
            pair,
            now,
            pieces: Vec::new(),
            timestamps: BTreeMap::new(),
            log: Vec::new(),
            sent_at: now,
        };
        if setting.is_root {
            stage.create_group()?;
        } else {
            stage.join_group()?;
        }
        stage.acknowledge_all(Timestamp(0))?;
        stage.pass(Nanoseconds::from_us(20))?;
        stage.acknowledge_all(Timestamp(stage.sent_at.0))?;
        if setting.is_multicast && !setting.is_root {
            stage.heartbeat(&Defect::None)?;
        }
        Ok(stage)
    }

    fn create_group(&mut self) -> Result<(), String> {
        let setting = &self.setting;
        let members = 1 + setting.children;
        let mut children = vec![Vec::new(); members as usize];
        children[0] = (1..members).map(MemberId).collect();
        let create = CreateGroup {
            group: GROUP,
            key: Session::key(GROUP),
            session: Session::ID,
            authentication: setting.authentication,
            integrity: setting.integrity,
            transport: Transport::Packets,
            root: MemberId(0),
            members: (0..members).map(|member| setting.address(member)).collect(),
            children,
            slots: setting.slots(),
            payload_bytes_max: setting.payload_bytes_max,
            offload: setting.offload(),
            multicast: setting.multicast(),
            start: Sequence(setting.start),
            admits: false,
            readers: Vec::new(),
            members_max: CreateGroup::MEMBERS_MAX,
            bytes_per_s_max: None,
            is_encrypted: false,
        };
        self.request(Input::CreateGroup(Box::new(create)), &[])?;
        for child in 1..members {
            let nonce = Nonce(child.into());
            self.control(child, nonce, &Control::Join(self.setting.address(child)))?;
            self.control(child, nonce, &Control::TableAck(None))?;
        }
        Ok(())
    }

    fn join_group(&mut self) -> Result<(), String> {
        let setting = self.setting.clone();
        let root = setting.address(0);
        self.request(self.session.join(root), &[])?;
        let welcome = self.session.welcome(setting.address(setting.member()));
        self.send(root, welcome)?;
        let neighbour =
            |member, role| Neighbour { member: MemberId(member), role, address: setting.address(member) };
        let parent = neighbour(setting.parent(), Role::Parent);
        let children = (0..setting.children).map(|place| neighbour(setting.child(place), Role::Child));
        let multicast = setting.multicast().map(|address| Neighbour {
            member: MemberId(0),
            role: Role::Multicast,
            address,
        });
        let neighbours: Vec<Neighbour> = [parent].into_iter().chain(multicast).chain(children).collect();
        let parts: Vec<&[Neighbour]> = neighbours.chunks(20).collect();
        for (part, neighbours) in parts.iter().enumerate() {
            let control = Control::Table(Table {
                member: MemberId(setting.member()),
                start: Sequence(setting.start),
                slots: setting.slots(),
                message: 0,
                bytes: 0,
                payload_bytes_max: setting.payload_bytes_max,
                offload: setting.offload(),
                authentication: setting.authentication,
                integrity: setting.integrity,
                transport: Transport::Packets,
                is_encrypted: false,
                part: part as u16,
                parts: parts.len() as u16,
                neighbours: neighbours.to_vec(),
            });
            self.control(0, Session::nonce(), &control)?;
        }
        Ok(())
    }

    /// A control message from, or to, the member with this nonce.
    fn control(&mut self, sender: u32, nonce: Nonce, control: &Control) -> Result<(), String> {
        let (header, payload) = self.session.control(MemberId(sender), nonce, control);
        self.datagram(sender, header, &payload, &Defect::None)
    }

    pub fn act(&mut self, act: &Act) -> Result<(), String> {
        match act {
            Act::Data { ahead, ack_requested, pieces, bytes, defect } => {
                self.data(*ahead, *ack_requested, *pieces, *bytes, defect)
            }
            Act::Batch { fault, .. } if self.setting.is_root => self.queue_batch(act, fault),
            Act::Batch { ack_requested, fault, .. } => self.batch(act, *ack_requested, fault),
            Act::Acknowledgment { child, missing, ahead, subtree_missing, window, echoes, defect } => {
                let Some(child) = self.any_child(*child) else { return Ok(()) };
                let echo = Timestamp(if *echoes { self.sent_at.0 } else { 0 });
                let window = if *window == u8::MAX { u32::MAX } else { u32::from(*window) };
                let (missing, subtree_missing) = (u32::from(*missing), u32::from(*subtree_missing));
                let mut header = self.acknowledgment(child, missing, subtree_missing, window, echo);
                if self.setting.is_multicast {
                    header.sequence += u32::from(*ahead);
                }
                self.datagram(child, header, &[], defect)
            }
            Act::AllAcknowledge => self.acknowledge_all(Timestamp(self.sent_at.0)),
            Act::Nak { child, missing, bits, defect } => {
                let Some(child) = self.any_child(*child) else { return Ok(()) };
                let nak = self.nak(child, *missing, *bits);
                self.datagram(child, nak, &[], defect)
            }
            Act::NakAndAcknowledgment { child, missing, bits } => {
                let Some(child) = self.any_child(*child) else { return Ok(()) };
                let nak = self.nak(child, *missing, *bits);
                let nak = self.write(nak, &[], &Defect::None);
                let acknowledgment = self.acknowledgment(child, 0, 0, u32::MAX, Timestamp(self.sent_at.0));
                let acknowledgment = self.write(acknowledgment, &[], &Defect::None);
                let from = self.setting.address(child);
                self.pair
                    .datagrams(self.now, from, &[&nak, &acknowledgment])
                    .map_err(|what| format!("at {}, {act:?}: {what}", self.now))
            }
            Act::Contribution { child, ahead, processes, values, defect } => {
                let child = u32::from(*child) % (self.setting.children + 1);
                let packet = self.next() + i32::from(*ahead) as u32;
                let contribution =
                    Contribution { packet, processes: *processes, values: Some(values.values()) };
                self.contribute(child, contribution, defect)
            }
            Act::AllContribute { own_after, values, is_alike } => {
                self.all_contribute(u32::from(*own_after), values, *is_alike)
            }
            Act::Probe { defect } => {
                let parent = self.setting.parent();
                let header = self.header(parent, self.next(), Body::Probe);
                self.datagram(parent, header, &[], defect)
            }
            Act::Heartbeat { defect } => self.heartbeat(defect),
            Act::Replay { back } => self.replay(*back),
            Act::Read { packets, is_invalid } => {
                let Some((from, end)) = self.pair.reference().readable(GROUP) else { return Ok(()) };
                let there = end.distance_from(from) as u32;
                let upto = if *is_invalid {
                    from + u32::from(*packets)
                } else {
                    from + u32::from(*packets) % (there + 1)
                };
                self.request(Input::Consumed { group: GROUP, upto }, &[])
            }
            Act::Pass { us } => self.pass(Nanoseconds::from_us((*us).into())),
        }
    }

    pub fn next(&self) -> Sequence {
        self.pair.reference().readable(GROUP).map_or(Sequence(self.setting.start), |(_, next)| next)
    }

    /// The packet at this index in the group.
    fn piece(&mut self, place: usize, pieces: u8, bytes: u16) -> (Piece, Vec<u8>) {
        let max = u64::from(self.setting.payload_bytes_max);
        self.piece_of(place, pieces, max, u64::from(bytes) % (max + 1))
    }

    /// The packet at this index in the group. New messages have `pieces` pieces of `max` bytes, the
    /// final one of `last` bytes.
    fn piece_of(&mut self, place: usize, pieces: u8, max: u64, last: u64) -> (Piece, Vec<u8>) {
        while self.pieces.len() <= place {
            let message = self.pieces.last().map_or(0, |(piece, _)| piece.message + 1);
            let message_length = if pieces == 1 { last } else { max * (u64::from(pieces) - 1) + last.max(1) };
            let mut offset = 0;
            loop {
                let length = max.min(message_length - offset);
                let packet = Sequence(self.setting.start) + self.pieces.len() as u32;
                let payload: Vec<u8> =
                    (0..length).map(|byte| (byte * 7 + u64::from(message)) as u8).collect();
                let checksum = self.session.keys.data_checksum(packet, &payload);
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
        defect: &Defect,
    ) -> Result<(), String> {
        let next = self.next();
        let begun = next.distance_from(Sequence(self.setting.start));
        let Ok(place) = usize::try_from(begun + i32::from(ahead)) else { return Ok(()) };
        let (mut piece, payload) = self.piece(place, pieces, bytes);
        self.sent_at = self.now;
        if self.setting.is_root {
            if let Defect::Body { word, value } = defect {
                corrupt(&mut piece, *word, *value);
            }
            return self.request(Input::Queue { group: GROUP, piece }, &payload);
        }
        let (sender, distribution) = self.setting.way(defect);
        let data = Data { distribution, ..data_of(&piece, ack_requested) };
        let header = self.header(sender, Sequence(self.setting.start) + place as u32, Body::Data(data));
        self.datagram(sender, header, &payload, defect)
    }

    /// The child with this place contributes, or behind the children this node.
    fn contribute(&mut self, place: u32, contribution: Contribution, defect: &Defect) -> Result<(), String> {
        if place == self.setting.children {
            return self
                .request(Input::Contribute { group: GROUP, process: Process::ONLY, contribution }, &[]);
        }
        let child = self.setting.child(place);
        let control = Control::Contribution(contribution);
        let (header, payload) = self.session.control(MemberId(child), Nonce(0), &control);
        // The program does not know the timestamps of contributions to earlier results. No child's
        // clock goes back.
        let is_stale = matches!(defect, Defect::Stale(_));
        self.datagram(child, header, &payload, if is_stale { &Defect::None } else { defect })
    }

    fn all_contribute(&mut self, own_after: u32, values: &[AnyValues], is_alike: bool) -> Result<(), String> {
        let (packet, children) = (self.next(), self.setting.children);
        let mut places: Vec<u32> = (0..children).collect();
        places.insert((own_after % (children + 1)) as usize, children);
        for (number, place) in places.into_iter().enumerate() {
            let mut own = values[number % values.len()].clone();
            if is_alike {
                let AnyValues { operation, element, count, .. } = values[0];
                own = AnyValues { operation, element, count, ..own };
            }
            let contribution = Contribution::of_process(packet, Some(own.values()));
            self.contribute(place, contribution, &Defect::None)?;
        }
        Ok(())
    }

    fn heartbeat(&mut self, defect: &Defect) -> Result<(), String> {
        let header = self.header(0, Sequence(0), Body::Heartbeat);
        self.datagram(0, header, &[], defect)
    }

    /// The number of one of the children, if there are any.
    fn any_child(&self, place: u8) -> Option<u32> {
        let place = u32::from(place).checked_rem(self.setting.children)?;
        Some(self.setting.child(place))
    }

    /// All children acknowledge all packets.
    fn acknowledge_all(&mut self, echo: Timestamp) -> Result<(), String> {
        for place in 0..self.setting.children {
            let child = self.setting.child(place);
            let header = self.acknowledgment(child, 0, 0, u32::MAX, echo);
            self.datagram(child, header, &[], &Defect::None)?;
        }
        Ok(())
    }

    fn acknowledgment(
        &self,
        child: u32,
        missing: u32,
        subtree_missing: u32,
        window: u32,
        echo: Timestamp,
    ) -> Header {
        let next = self.next() - missing;
        let stable = next - subtree_missing;
        let receive_window = window.min(self.setting.slots() - subtree_missing.min(self.setting.slots()));
        let is_reached = self.setting.is_multicast;
        let acknowledgment = Acknowledgment { stable, receive_window, echo, is_reached, is_congested: false };
        self.header(child, next, Body::Acknowledgment(acknowledgment))
    }

    fn nak(&self, child: u32, missing: u8, bits: u64) -> Header {
        let next = self.next() - u32::from(missing);
        let missing = Missing { first: next, bits: bits | 1 };
        let echo = Timestamp(self.sent_at.0);
        let acknowledgment = Acknowledgment {
            stable: next,
            receive_window: self.setting.slots() / 2,
            echo,
            is_reached: self.setting.is_multicast,
            is_congested: false,
        };
        self.header(child, next, Body::Nak(acknowledgment, missing))
    }

    fn replay(&mut self, back: u8) -> Result<(), String> {
        let Some(last) = self.log.len().checked_sub(1) else { return Ok(()) };
        let (from, datagrams) = self.log[last - usize::from(back) % (last + 1)].clone();
        if let [datagram] = &datagrams[..] {
            self.step(&Step::Datagram { from, bytes: datagram.clone() })
        } else {
            self.receive_batch(from, &datagrams)
        }
    }

    /// The header of a packet, which is not written yet.
    const fn header(&self, sender: u32, sequence: Sequence, body: Body) -> Header {
        self.session.header(MemberId(sender), sequence, body)
    }

    /// Writes the next packet of a neighbour, which is later than those before, with a defect.
    fn write(&mut self, mut header: Header, payload: &[u8], defect: &Defect) -> Vec<u8> {
        let last = self.timestamps.entry(header.sender.0).or_default();
        header.timestamp = Timestamp(match *defect {
            Defect::Stale(back) => last.saturating_sub(back),
            _ => self.now.0.max(*last + 1),
        });
        *last = header.timestamp.0.max(*last);
        acts::write(&self.session, header, payload, defect)
    }

    fn datagram(&mut self, from: u32, header: Header, payload: &[u8], defect: &Defect) -> Result<(), String> {
        let mut from = self.setting.address(from);
        if matches!(defect, Defect::WrongSource) {
            from.set_port(PORT + 1);
        }
        let bytes = self.write(header, payload, defect);
        self.send(from, bytes)
    }

    fn send(&mut self, from: SocketAddr, bytes: Vec<u8>) -> Result<(), String> {
        self.log.push((from, vec![bytes.clone()]));
        self.step(&Step::Datagram { from, bytes })
    }

    fn request(&mut self, input: Input<'static>, payload: &[u8]) -> Result<(), String> {
        self.step(&Step::Request { input, payload: payload.to_vec() })
    }

    /// Lets time pass, and handles the timeouts that expire.
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
