//! A few nodes on a table, joined by hand: what happens is told in words, one line a packet.
//!
//! Every datagram takes [`WAY`]; the clock jumps to the next thing that is due. Nodes are letters, and so are the members of
//! groups; a node reads what comes at once unless it is told not to.

pub mod script;
mod words;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;

use treecast_proto::{
    Cookie, CreateGroup, Event, GroupId, Input, MemberId, Nanoseconds, Offload, Output, PayloadChecksum,
    Piece, Protocol, Refused, Sequence, Settings, Store, Trace, Transmit, TransmitPayload,
};
use treecast_wire::{Header, Payload};

/// How long a datagram is under way.
const WAY: Nanoseconds = Nanoseconds::from_us(50);

/// The longest payload of a packet.
pub const PAYLOAD_BYTES: u64 = 512;

/// Nodes and what is under way between them.
#[derive(Default)]
pub struct Tabletop {
    now: Nanoseconds,
    nodes: BTreeMap<char, Node>,
    /// Those that have crashed.
    gone: Vec<Node>,
    /// When and in which order datagrams arrive.
    in_flight: BTreeMap<(Nanoseconds, u64), Datagram>,
    sent: u64,
    losses: Vec<Loss>,
    is_silent: bool,
    told: String,
}

/// A node with its memory and its reader.
struct Node {
    protocol: Protocol,
    trace: Trace,
    slots: BTreeMap<u32, Vec<Vec<u8>>>,
    wake_at: Option<Nanoseconds>,
    asleep_until: Nanoseconds,
    is_reading: bool,
    is_cut: bool,
    /// By group, the number of the message that the root begins next.
    messages: BTreeMap<u32, u32>,
}

struct Datagram {
    from: char,
    to: char,
    bytes: Vec<u8>,
}

/// Datagrams that do not arrive.
struct Loss {
    from: char,
    to: char,
    /// What they begin with, in words.
    what: String,
    times: u32,
}

/// A group as a script sets it up.
pub struct Setting {
    pub group: u32,
    /// Each parent with its children, the root first.
    pub tree: Vec<(char, Vec<char>)>,
    pub slots: u32,
    pub start: u32,
    pub offload: Offload,
    pub admits: bool,
    /// Whether members ask for their places from the beginning.
    pub sends_join: bool,
    pub bytes_per_s_max: Option<u64>,
}

/// Where a node is.
pub fn address(node: char) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8], 7_000))
}

/// Who is there.
pub fn name(address: SocketAddr) -> char {
    match address.ip() {
        std::net::IpAddr::V4(ip) => ip.octets()[3] as char,
        std::net::IpAddr::V6(_) => '?',
    }
}

const fn cookie(group: u32) -> Cookie {
    Cookie(0xc00c_1e00 + group as u64)
}

/// What the byte at that place of that message is.
fn byte(message: u32, place: u64) -> u8 {
    (message as u8).wrapping_mul(31).wrapping_add(place as u8)
}

impl Node {
    fn new(name: char) -> Self {
        Self {
            protocol: Protocol::new(Settings::default()),
            trace: Trace::new(address(name), Settings::default()),
            slots: BTreeMap::new(),
            wake_at: None,
            asleep_until: Nanoseconds::ZERO,
            is_reading: true,
            is_cut: false,
            messages: BTreeMap::new(),
        }
    }

    /// Does what a user asks for, with the payload of a packet that is queued.
    fn ask(&mut self, now: Nanoseconds, input: Input<'static>, payload: &[u8]) -> Result<(), String> {
        self.trace.request(now, &input, payload);
        self.protocol.handle(now, input).map_err(|refused: Refused| refused.to_string())
    }

    fn datagram(&mut self, now: Nanoseconds, from: SocketAddr, bytes: &[u8]) -> Result<(), String> {
        self.trace.datagram(now, from, bytes);
        self.protocol.handle(now, Input::Datagram { from, bytes }).map_err(|refused| refused.to_string())
    }
}

impl Tabletop {
    /// What has happened since this was asked last.
    pub fn take_told(&mut self) -> String {
        std::mem::take(&mut self.told)
    }

    /// Packets are told, or only what users of nodes see.
    pub fn tell_packets(&mut self, does: bool) {
        self.is_silent = !does;
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.told, "{:>8} us  {line}", self.now.0 / 1_000).expect("a string takes everything");
    }

    fn node(&mut self, name: char) -> Result<&mut Node, String> {
        self.nodes.get_mut(&name).ok_or_else(|| format!("there is no node {name}"))
    }

    /// Begins a group at all its members.
    pub fn begin(&mut self, setting: &Setting) -> Result<(), String> {
        let mut members: Vec<char> =
            setting.tree.iter().flat_map(|(parent, children)| [&[*parent], &children[..]].concat()).collect();
        members.sort_unstable();
        members.dedup();
        let number = |name: char| {
            MemberId(members.iter().position(|&member| member == name).expect("it is a member") as u32)
        };
        let mut children = vec![Vec::new(); members.len()];
        for (parent, names) in &setting.tree {
            children[number(*parent).0 as usize] = names.iter().map(|&child| number(child)).collect();
        }
        let root = setting.tree[0].0;
        let lead = CreateGroup {
            group: GroupId(setting.group),
            cookie: cookie(setting.group),
            root: number(root),
            members: members.iter().map(|&member| address(member)).collect(),
            children,
            slots: setting.slots,
            payload_bytes_max: PAYLOAD_BYTES as u16,
            offload: setting.offload,
            start: Sequence(setting.start),
            admits: setting.admits,
            bytes_per_s_max: setting.bytes_per_s_max,
        };
        for &member in members.iter().filter(|&&member| member != root) {
            self.follow(member, setting.group, root, setting.sends_join)?;
        }
        let node = self.nodes.entry(root).or_insert_with(|| Node::new(root));
        node.slots.insert(setting.group, vec![Vec::new(); setting.slots as usize]);
        self.ask(root, Input::CreateGroup(Box::new(lead)))
    }

    /// Makes a node a member, once the root says where; one that the root does not know `asks`.
    pub fn follow(&mut self, name: char, group: u32, root: char, sends_join: bool) -> Result<(), String> {
        self.nodes.entry(name).or_insert_with(|| Node::new(name));
        let (group, cookie) = (GroupId(group), cookie(group));
        self.ask(name, Input::JoinGroup { group, cookie, root: address(root), sends_join })
    }

    /// A request of a node's user.
    pub fn ask(&mut self, name: char, input: Input<'static>) -> Result<(), String> {
        let now = self.now;
        self.node(name)?.ask(now, input, &[])?;
        self.drain(name)
    }

    /// The root queues a message of so many bytes, or only its first packet.
    pub fn send(
        &mut self,
        root: char,
        group: u32,
        message_length: u64,
        is_whole: bool,
    ) -> Result<(), String> {
        let now = self.now;
        let node = self.node(root)?;
        let id = GroupId(group);
        let message = *node.messages.entry(group).or_default();
        let mut offset = 0;
        loop {
            let length = PAYLOAD_BYTES.min(message_length - offset);
            let bytes: Vec<u8> = (offset..offset + length).map(|place| byte(message, place)).collect();
            let checksum = PayloadChecksum::of(&bytes);
            let piece = Piece { message, offset, length: length as u32, message_length, checksum };
            let (_, next) = node.protocol.readable(id).ok_or("the group is not here")?;
            node.ask(now, Input::Queue { group: id, piece }, &bytes)?;
            let slots = node.slots.get_mut(&group).ok_or("the group has no slots")?;
            let slot = next.0 as usize & (slots.len() - 1);
            slots[slot] = bytes;
            offset += length;
            if offset == message_length || !is_whole {
                break;
            }
        }
        node.messages.insert(group, message + 1);
        self.drain(root)
    }

    /// The reader of a node stops, or goes on.
    pub fn read(&mut self, name: char, reads: bool) -> Result<(), String> {
        self.node(name)?.is_reading = reads;
        self.drain(name)
    }

    /// A node is gone, with all it knew.
    pub fn crash(&mut self, name: char) {
        self.gone.extend(self.nodes.remove(&name));
    }

    /// What was done to each node.
    #[allow(dead_code, reason = "tests that share the table differ in what they want of it")]
    pub fn into_traces(self) -> impl Iterator<Item = Trace> {
        self.gone.into_iter().chain(self.nodes.into_values()).map(|node| node.trace)
    }

    /// A node does nothing for a while; what is sent to it waits.
    pub fn sleep(&mut self, name: char, span: Nanoseconds) -> Result<(), String> {
        let until = self.now + span;
        self.node(name)?.asleep_until = until;
        Ok(())
    }

    /// A node hears nothing of others nor they of it, or does again.
    pub fn cut(&mut self, name: char, is_cut: bool) -> Result<(), String> {
        self.node(name)?.is_cut = is_cut;
        Ok(())
    }

    /// The next datagrams between two nodes that begin with these words are lost.
    pub fn lose(&mut self, from: char, to: char, what: &str, times: u32) {
        self.losses.push(Loss { from, to, what: what.to_owned(), times });
    }

    /// A datagram that no node has sent.
    pub fn forge(&mut self, from: char, to: char, header: &Header, payload: &[u8], is_spoilt: bool) {
        let mut bytes = [&header.write(Payload::new(payload).checksum())[..], payload].concat();
        if is_spoilt {
            bytes[63] ^= 1;
        }
        self.put(from, to, bytes);
    }

    /// What a forged packet of group 1 says about itself.
    pub fn header(&self, sender: u32, sequence: u32, body: treecast_wire::Body) -> Header {
        Header {
            group: GroupId(1),
            cookie: cookie(1),
            epoch: 1,
            sender: MemberId(sender),
            sequence: Sequence(sequence),
            timestamp: treecast_wire::Timestamp(self.now.0.max(1)),
            body,
        }
    }

    /// How things stand at a node.
    pub fn state(&mut self, name: char, group: u32) -> Result<String, String> {
        let protocol = &self.node(name)?.protocol;
        let id = GroupId(group);
        let mut lines = Vec::new();
        if let (Some((from, end)), Some(stable)) = (protocol.readable(id), protocol.stable(id)) {
            lines.push(format!(
                "{name}: to be read from {from} to before {end}, stable before {stable}, room for {}",
                protocol.room(id)
            ));
        }
        let counted = protocol.counters(id).into_iter().flat_map(treecast_proto::GroupCounters::values);
        let counted: Vec<String> = counted
            .chain(protocol.strays().values())
            .filter(|&(_, count)| count > 0)
            .map(|(what, count)| format!("{what} {count}"))
            .collect();
        lines.push(format!("{name}: {}", counted.join(", ")));
        Ok(lines.join("\n") + "\n")
    }

    /// Lets time pass.
    pub fn run(&mut self, span: Nanoseconds) -> Result<(), String> {
        let end = self.now + span;
        loop {
            let arrival = self.in_flight.keys().next().map(|&(at, _)| at);
            let wake = self.nodes.iter().filter_map(|(&name, node)| Some((node.wake_at?, name))).min();
            let Some(next) = arrival.into_iter().chain(wake.map(|(at, _)| at)).min().filter(|&at| at <= end)
            else {
                break;
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, datagram) = self.in_flight.pop_first().expect("one arrives");
                self.arrive(datagram)?;
            } else if let Some((_, name)) = wake {
                self.wake(name)?;
            }
        }
        self.now = end;
        Ok(())
    }

    fn arrive(&mut self, datagram: Datagram) -> Result<(), String> {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&datagram.to) else { return Ok(()) };
        if now < node.asleep_until {
            self.sent += 1;
            self.in_flight.insert((node.asleep_until, self.sent), datagram);
            return Ok(());
        }
        node.datagram(now, address(datagram.from), &datagram.bytes)?;
        while let Some(output) = self.node(datagram.to)?.protocol.poll_local() {
            self.carry_out(datagram.to, output, &datagram.bytes)?;
        }
        self.drain(datagram.to)
    }

    fn wake(&mut self, name: char) -> Result<(), String> {
        let now = self.now;
        let node = self.node(name)?;
        if now < node.asleep_until {
            node.wake_at = Some(node.asleep_until);
            return Ok(());
        }
        node.wake_at = None;
        node.ask(now, Input::Timeout, &[])?;
        self.drain(name)
    }

    /// Lets a node say what it has to say, and its reader read.
    fn drain(&mut self, name: char) -> Result<(), String> {
        let now = self.now;
        loop {
            let timeout = match self.node(name)?.protocol.poll(now) {
                Output::Timeout(timeout) => timeout,
                output => {
                    self.carry_out(name, output, &[])?;
                    continue;
                }
            };
            if timeout.is_some_and(|at| at <= now) {
                return Err(format!("{name} waits for a time that has passed"));
            }
            if !self.read_one(name)? {
                let asleep_until = self.node(name)?.asleep_until;
                self.node(name)?.wake_at = timeout.map(|at| at.max(now).max(asleep_until));
                return Ok(());
            }
        }
    }

    /// Carries out an output; `datagram` is what was handled last.
    fn carry_out(&mut self, name: char, output: Output, datagram: &[u8]) -> Result<(), String> {
        match output {
            Output::Store(Store { group, slot, payload, .. }) => {
                let slots =
                    self.node(name)?.slots.get_mut(&group.0).ok_or("a packet is stored without slots")?;
                slots[slot as usize] = datagram[payload].to_vec();
            }
            Output::Event(event) => {
                if let Event::Placed { group, slots, .. } = event {
                    self.node(name)?.slots.insert(group.0, vec![Vec::new(); slots as usize]);
                }
                self.tell(&format!("{name}       {}", words::event(&event)));
            }
            Output::Transmit(transmit) => self.transmit(name, transmit)?,
            Output::Timeout(_) => {}
        }
        Ok(())
    }

    fn transmit(&mut self, from: char, transmit: Transmit) -> Result<(), String> {
        let Transmit { to, header, payload } = transmit;
        let mut bytes = header.to_vec();
        match payload {
            TransmitPayload::Bytes(payload) => bytes.extend(payload),
            TransmitPayload::Slot { group, slot, length } => {
                let slots = self.node(from)?.slots.get(&group.0).ok_or("a packet is sent without slots")?;
                bytes.extend(&slots[slot as usize][..length as usize]);
            }
        }
        self.put(from, name(to), bytes);
        Ok(())
    }

    /// Puts a datagram on the wire, if nothing is the matter with it.
    fn put(&mut self, from: char, to: char, bytes: Vec<u8>) {
        let meaning = words::datagram(&bytes);
        let is_cut = [from, to].iter().any(|name| self.nodes.get(name).is_some_and(|node| node.is_cut));
        let loss = self.losses.iter_mut().find(|loss| {
            (loss.from, loss.to) == (from, to) && loss.times > 0 && meaning.starts_with(&loss.what)
        });
        let is_lost = loss.map(|loss| loss.times -= 1).is_some() || is_cut;
        if !self.is_silent {
            self.tell(&format!("{from} -> {to}  {meaning}{}", if is_lost { "   (lost)" } else { "" }));
        }
        if !is_lost {
            self.sent += 1;
            self.in_flight.insert((self.now + WAY, self.sent), Datagram { from, to, bytes });
        }
    }

    /// A reader reads a packet, if it reads and one is there, and makes sure of its bytes.
    fn read_one(&mut self, name: char) -> Result<bool, String> {
        let now = self.now;
        let node = self.node(name)?;
        let groups: Vec<GroupId> = node.protocol.groups().collect();
        for group in groups.into_iter().filter(|_| node.is_reading) {
            let Some((packet, end)) = node.protocol.readable(group) else { continue };
            if packet == end {
                continue;
            }
            let piece = *node.protocol.piece(group, packet).ok_or("a packet to be read is not there")?;
            let slots = &node.slots[&group.0];
            let bytes = &slots[packet.0 as usize & (slots.len() - 1)];
            let is_right =
                bytes.iter().zip(piece.offset..).all(|(&found, place)| found == byte(piece.message, place));
            if bytes.len() != piece.length as usize || !is_right {
                return Err(format!("{name} reads other bytes of message {}", piece.message));
            }
            node.ask(now, Input::Consumed { group, upto: packet + 1 }, &[])?;
            if piece.is_last() {
                let (message, length) = (piece.message, piece.message_length);
                self.tell(&format!("{name}       has read message {message}: {length} bytes"));
            }
            return Ok(true);
        }
        Ok(false)
    }
}
