//! A small simulated network of protocol nodes, which prints one line per packet and event.
//!
//! Every datagram takes [`LATENCY`]; the clock jumps to the next arrival or timeout. Nodes have
//! letters as names. A node's application reads packets at once unless its reader is stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::SocketAddr;

use treecast_proto::{
    Authentication, CreateGroup, Event, GroupId, GroupKey, Input, Integrity, MemberId, Nanoseconds, Offload,
    Piece, Sequence, SessionId, Settings, Trace, Transport,
};
use treecast_wire::{Header, Keys, View};

use super::names::{address, name};
use super::words;
use crate::{Act, Node, Packet};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The latency of every datagram.
const LATENCY: Nanoseconds = Nanoseconds::from_us(50);

/// The longest payload of a packet.
pub const PAYLOAD_BYTES: u64 = 512;

/// Nodes, and the datagrams in flight between them.
#[derive(Default)]
pub struct Tabletop {
    now: Nanoseconds,
    hosts: BTreeMap<char, Host>,
    /// Hosts that have crashed.
    crashed: Vec<Host>,
    /// Datagrams by arrival time and order.
    in_flight: BTreeMap<(Nanoseconds, u64), Datagram>,
    sent: u64,
    /// All datagrams that were sent.
    log: Vec<Datagram>,
    forged: u64,
    losses: Vec<Loss>,
    /// The number of groups created so far, which tells sessions apart, and of members that have
    /// joined.
    sessions: u8,
    /// The keys of the last session of each group.
    keys: BTreeMap<u32, Keys>,
    joined: u64,
    hides_packets: bool,
    output: String,
}

/// A node with its reader and its part of the network.
struct Host {
    node: Node,
    wake_at: Option<Nanoseconds>,
    suspended_until: Nanoseconds,
    is_reading: bool,
    is_partitioned: bool,
    /// Longer datagrams do not arrive there.
    datagram_bytes_max: usize,
    /// The multicast addresses at which it receives, and whether the network delivers what is sent
    /// there.
    multicast: BTreeSet<SocketAddr>,
    is_deaf: bool,
    /// The number of the root's next message, by group.
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
    /// The beginning of their text.
    prefix: String,
    times: u32,
}

/// The settings of a group in a script.
pub struct Setting {
    pub group: u32,
    /// Each parent with its children, the root first.
    pub tree: Vec<(char, Vec<char>)>,
    /// The number of processes that share a node, of those that have several.
    pub readers: Vec<(char, u32)>,
    pub slots: u32,
    pub start: u32,
    pub offload: Offload,
    pub admits: bool,
    pub members_max: usize,
    /// Whether the members join; otherwise only the root creates the group.
    pub joins: bool,
    pub bytes_per_s_max: Option<u64>,
}

/// The multicast address of a group.
fn multicast_address(group: u32) -> SocketAddr {
    SocketAddr::from(([239, 0, 0, group as u8], 7_000))
}

fn key(group: u32) -> GroupKey {
    GroupKey::new("a token", GroupId(group))
}

/// The byte of a message at an offset.
fn byte(message: u32, offset: u64) -> u8 {
    (message as u8).wrapping_mul(31).wrapping_add(offset as u8)
}

impl Host {
    fn new(name: char) -> Self {
        let mut node = Node::new(address(name), Settings::default());
        node.record();
        Self {
            node,
            wake_at: None,
            suspended_until: Nanoseconds::ZERO,
            is_reading: true,
            is_partitioned: false,
            datagram_bytes_max: usize::MAX,
            multicast: BTreeSet::new(),
            is_deaf: false,
            messages: BTreeMap::new(),
        }
    }
}

impl Tabletop {
    /// The output since the last call.
    pub fn take_output(&mut self) -> String {
        std::mem::take(&mut self.output)
    }

    /// Sets whether packets are printed, or only events.
    pub fn print_packets(&mut self, prints: bool) {
        self.hides_packets = !prints;
    }

    fn print(&mut self, line: &str) {
        writeln!(self.output, "{:>8} us  {line}", self.now.0 / 1_000).expect("writing to a string succeeds");
    }

    fn host(&mut self, name: char) -> Result<&mut Host> {
        self.hosts.get_mut(&name).ok_or_else(|| format!("there is no node {name}").into())
    }

    /// Creates a group, and makes all its members join.
    pub fn create_group(&mut self, setting: &Setting) -> Result<()> {
        let mut members: Vec<char> =
            setting.tree.iter().flat_map(|(parent, children)| [&[*parent], &children[..]].concat()).collect();
        members.sort_unstable();
        members.dedup();
        let number = |name: char| {
            MemberId(members.iter().position(|&member| member == name).expect("the name is that of a member")
                as u32)
        };
        let mut children = vec![Vec::new(); members.len()];
        for (parent, names) in &setting.tree {
            children[number(*parent).0 as usize] = names.iter().map(|&child| number(child)).collect();
        }
        let root = setting.tree[0].0;
        self.sessions += 1;
        let session = SessionId([self.sessions; 16]);
        let authentication = match setting.offload {
            Offload::Switch => Authentication::Payload,
            _ => Authentication::Header,
        };
        let keys = key(setting.group).session_keys(session, authentication);
        self.keys.insert(setting.group, keys);
        let create = CreateGroup {
            group: GroupId(setting.group),
            key: key(setting.group),
            session,
            authentication: keys.authentication,
            integrity: Integrity::default(),
            transport: Transport::Packets,
            root: number(root),
            members: members.iter().map(|&member| address(member)).collect(),
            readers: setting.readers.iter().map(|&(member, count)| (number(member), count)).collect(),
            children,
            slots: setting.slots,
            payload_bytes_max: PAYLOAD_BYTES as u16,
            offload: setting.offload,
            multicast: (setting.offload == Offload::Switch).then(|| multicast_address(setting.group)),
            start: Sequence(setting.start),
            admits: setting.admits,
            members_max: setting.members_max,
            bytes_per_s_max: setting.bytes_per_s_max,
            is_encrypted: false,
        };
        for &member in members.iter().filter(|&&member| member != root && setting.joins) {
            self.join(member, setting.group, root)?;
        }
        self.hosts.entry(root).or_insert_with(|| Host::new(root)).messages.remove(&setting.group);
        self.request(root, Input::CreateGroup(Box::new(create)))
    }

    /// Makes a node join a group.
    pub fn join(&mut self, name: char, group: u32, root: char) -> Result<()> {
        self.hosts.entry(name).or_insert_with(|| Host::new(name));
        let (key, group) = (key(group), GroupId(group));
        self.joined += 1;
        let seed = [self.joined, 0];
        self.request(name, Input::JoinGroup { group, key, root: address(root), seed })
    }

    /// A request of a node's user.
    pub fn request(&mut self, name: char, input: Input<'static>) -> Result<()> {
        let now = self.now;
        self.host(name)?.node.request(now, input)?;
        self.drain(name)
    }

    /// The root queues a message, or only its first packet.
    pub fn send(&mut self, root: char, group: u32, message_length: u64, is_whole: bool) -> Result<()> {
        let now = self.now;
        let keys = *self.keys.get(&group).ok_or("there is no such group")?;
        let host = self.host(root)?;
        let id = GroupId(group);
        let message = *host.messages.entry(group).or_default();
        let mut offset = 0;
        loop {
            let length = PAYLOAD_BYTES.min(message_length - offset);
            let bytes: Vec<u8> = (offset..offset + length).map(|offset| byte(message, offset)).collect();
            let (_, next) = host.node.protocol().readable(id).ok_or("the node has no such group")?;
            let checksum = keys.data_checksum(next, &bytes);
            let piece = Piece { message, offset, length: length as u32, message_length, checksum };
            host.node.queue(now, id, piece, &bytes)?;
            offset += length;
            if offset == message_length || !is_whole {
                break;
            }
        }
        host.messages.insert(group, message + 1);
        self.drain(root)
    }

    /// The reader of a node stops or continues.
    pub fn read(&mut self, name: char, reads: bool) -> Result<()> {
        self.host(name)?.is_reading = reads;
        self.drain(name)
    }

    /// A node ends and loses its state.
    pub fn crash(&mut self, name: char) {
        self.crashed.extend(self.hosts.remove(&name));
    }

    /// The trace of each node.
    pub fn into_traces(self) -> impl Iterator<Item = Trace> {
        self.crashed.into_iter().chain(self.hosts.into_values()).filter_map(|host| host.node.into_trace())
    }

    /// A node is not scheduled for a time; datagrams to it wait.
    pub fn suspend(&mut self, name: char, span: Nanoseconds) -> Result<()> {
        let until = self.now + span;
        self.host(name)?.suspended_until = until;
        Ok(())
    }

    /// Begins or ends a partition: all datagrams from and to a node are lost.
    pub fn partition(&mut self, name: char, is_partitioned: bool) -> Result<()> {
        self.host(name)?.is_partitioned = is_partitioned;
        Ok(())
    }

    /// The paths to a node shrink: longer datagrams do not arrive there.
    pub fn shrink(&mut self, name: char, datagram_bytes_max: usize) -> Result<()> {
        self.host(name)?.datagram_bytes_max = datagram_bytes_max;
        Ok(())
    }

    /// Multicast reaches a node no more, or again.
    pub fn deafen(&mut self, name: char, is_deaf: bool) -> Result<()> {
        self.host(name)?.is_deaf = is_deaf;
        Ok(())
    }

    /// The next datagrams between two nodes whose text begins with `prefix` are lost.
    pub fn lose(&mut self, from: char, to: char, prefix: &str, times: u32) {
        self.losses.push(Loss { from, to, prefix: prefix.to_owned(), times });
    }

    /// The keys of group 1, of its session with this number, from 1; `None`: of the last one.
    pub fn keys(&self, session: Option<u8>) -> Keys {
        let session = SessionId([session.unwrap_or(self.sessions); 16]);
        let authentication = self.keys.get(&1).map_or(Authentication::Header, |keys| keys.authentication);
        key(1).session_keys(session, authentication)
    }

    /// Sends a forged datagram.
    pub fn forge(&mut self, from: char, to: char, keys: &Keys, header: &Header, payload: &[u8]) {
        let bytes = [&header.write(&keys.header)[..], payload].concat();
        self.send_datagram(from, to, bytes);
    }

    /// Sends the last datagram between two nodes whose text begins with `prefix` again.
    pub fn replay(&mut self, from: char, to: char, prefix: &str) -> Result<()> {
        let is_it = |datagram: &&Datagram| {
            (datagram.from, datagram.to) == (from, to) && words::datagram(&datagram.bytes).starts_with(prefix)
        };
        let found = self.log.iter().rev().find(is_it).ok_or("no such datagram was sent")?;
        let bytes = found.bytes.clone();
        self.send_datagram(from, to, bytes);
        Ok(())
    }

    /// The nonce of a member: that of its last control message.
    pub fn nonce_of(&self, member: char) -> Option<treecast_wire::Nonce> {
        let mut sent = self.log.iter().rev().filter(|datagram| datagram.from == member);
        sent.find_map(|datagram| match View::new(&datagram.bytes).and_then(View::read).ok()?.header.body {
            treecast_wire::Body::Control(header) => Some(header.nonce),
            _ => None,
        })
    }

    /// The header of a forged packet of group 1.
    pub fn header(&mut self, sender: u32, sequence: u32, body: treecast_wire::Body) -> Header {
        self.forged += 1;
        Header {
            group: GroupId(1),
            epoch: 1,
            sender: MemberId(sender),
            sequence: Sequence(sequence),
            timestamp: treecast_wire::Timestamp(self.now.0 + self.forged),
            body,
        }
    }

    /// The sequence numbers and counters of a node.
    pub fn state(&mut self, name: char, group: u32) -> Result<String> {
        let protocol = self.host(name)?.node.protocol();
        let id = GroupId(group);
        let mut lines = Vec::new();
        if let (Some((from, end)), Some(stable)) = (protocol.readable(id), protocol.stable(id)) {
            lines.push(format!(
                "{name}: readable {from}..{end}, stable {stable}, free slots {}",
                protocol.free_slots(id)
            ));
        }
        let counted = protocol.counters(id).into_iter().flat_map(treecast_proto::GroupCounters::values);
        let counted: Vec<String> = counted
            .chain(protocol.strays().values())
            .filter(|&(_, count)| count > 0)
            .map(|(what, count)| format!("{what} {count}"))
            .collect();
        lines.push(format!("{name}: {}", counted.join(", ")));
        let slow: Vec<String> = protocol.slow_members(id).iter().map(MemberId::to_string).collect();
        if !slow.is_empty() {
            lines.push(format!("{name}: packets wait for member {}", slow.join(", ")));
        }
        Ok(lines.join("\n") + "\n")
    }

    /// Lets time pass.
    pub fn run(&mut self, span: Nanoseconds) -> Result<()> {
        let end = self.now + span;
        loop {
            let arrival = self.in_flight.keys().next().map(|&(at, _)| at);
            let wake = self.hosts.iter().filter_map(|(&name, host)| Some((host.wake_at?, name))).min();
            let Some(next) = arrival.into_iter().chain(wake.map(|(at, _)| at)).min().filter(|&at| at <= end)
            else {
                break;
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, datagram) = self.in_flight.pop_first().expect("a datagram is in flight");
                self.arrive(datagram)?;
            } else if let Some((_, name)) = wake {
                self.wake(name)?;
            }
        }
        self.now = end;
        Ok(())
    }

    fn arrive(&mut self, datagram: Datagram) -> Result<()> {
        let now = self.now;
        let Some(host) = self.hosts.get_mut(&datagram.to) else { return Ok(()) };
        if now < host.suspended_until {
            self.sent += 1;
            self.in_flight.insert((host.suspended_until, self.sent), datagram);
            return Ok(());
        }
        host.node.datagram(now, address(datagram.from), &datagram.bytes)?;
        self.drain(datagram.to)
    }

    fn wake(&mut self, name: char) -> Result<()> {
        let now = self.now;
        let host = self.host(name)?;
        if now < host.suspended_until {
            host.wake_at = Some(host.suspended_until);
            return Ok(());
        }
        host.wake_at = None;
        host.node.request(now, Input::Timeout)?;
        self.drain(name)
    }

    /// Does all that a node wants to be done, and lets its reader read.
    fn drain(&mut self, name: char) -> Result<()> {
        let now = self.now;
        loop {
            let timeout = match self.host(name)?.node.poll(now)? {
                Act::Wait(timeout) => timeout,
                act => {
                    self.carry_out(name, act)?;
                    continue;
                }
            };
            if timeout.is_some_and(|at| at <= now) {
                return Err(format!("{name} returns a timeout that has passed").into());
            }
            if !self.read_one(name)? {
                let host = self.host(name)?;
                host.wake_at = timeout.map(|at| at.max(now).max(host.suspended_until));
                return Ok(());
            }
        }
    }

    fn carry_out(&mut self, from: char, act: Act) -> Result<()> {
        match act {
            Act::Event(event) => {
                if let Event::Placed { multicast, .. } = event {
                    self.host(from)?.multicast.extend(multicast);
                }
                self.print(&format!("{from}       {}", words::event(&event)));
            }
            Act::Send(Packet { to, bytes, .. }) if to.ip().is_multicast() => {
                self.send_multicast(from, to, &bytes);
            }
            Act::Send(Packet { to, bytes, .. }) => self.send_datagram(from, name(to), bytes),
            Act::Stray(_) | Act::Reclaim(_) | Act::Wait(_) => {}
        }
        Ok(())
    }

    /// Puts a datagram to a multicast address on the wire: the network replicates it.
    fn send_multicast(&mut self, from: char, to: SocketAddr, bytes: &[u8]) {
        let meaning = words::datagram(bytes);
        let listens = |(&name, host): (&char, &Host)| {
            (name != from && host.multicast.contains(&to) && !host.is_deaf).then_some(name)
        };
        let listeners: Vec<char> = self.hosts.iter().filter_map(listens).collect();
        let (lost, reached): (Vec<char>, Vec<char>) =
            listeners.into_iter().partition(|&listener| self.is_lost(from, listener, &meaning, bytes.len()));
        if !self.hides_packets {
            let lost: String = lost.into_iter().collect();
            let note = if lost.is_empty() { lost } else { format!("   (lost to {lost})") };
            self.print(&format!("{from} -> *  {meaning}{note}"));
        }
        for to in reached {
            self.put_in_flight(from, to, bytes.to_vec());
        }
    }

    /// Whether a datagram is to be lost.
    fn is_lost(&mut self, from: char, to: char, meaning: &str, bytes: usize) -> bool {
        let is_partitioned =
            [from, to].iter().any(|name| self.hosts.get(name).is_some_and(|host| host.is_partitioned));
        let loss = self.losses.iter_mut().find(|loss| {
            (loss.from, loss.to) == (from, to) && loss.times > 0 && meaning.starts_with(&loss.prefix)
        });
        let is_too_long = self.hosts.get(&to).is_some_and(|host| host.datagram_bytes_max < bytes);
        loss.map(|loss| loss.times -= 1).is_some() || is_partitioned || is_too_long
    }

    /// Puts a datagram on the wire, unless it is to be lost.
    fn send_datagram(&mut self, from: char, to: char, bytes: Vec<u8>) {
        let meaning = words::datagram(&bytes);
        let is_lost = self.is_lost(from, to, &meaning, bytes.len());
        if !self.hides_packets {
            self.print(&format!("{from} -> {to}  {meaning}{}", if is_lost { "   (lost)" } else { "" }));
        }
        self.log.push(Datagram { from, to, bytes: bytes.clone() });
        if !is_lost {
            self.put_in_flight(from, to, bytes);
        }
    }

    fn put_in_flight(&mut self, from: char, to: char, bytes: Vec<u8>) {
        self.sent += 1;
        self.in_flight.insert((self.now + LATENCY, self.sent), Datagram { from, to, bytes });
    }

    /// Reads and checks the next packet, if there is one and the reader is not stopped.
    fn read_one(&mut self, name: char) -> Result<bool> {
        let now = self.now;
        let Host { node, is_reading: true, .. } = self.host(name)? else { return Ok(false) };
        let groups: Vec<GroupId> = node.protocol().groups().collect();
        for group in groups {
            let Some((packet, end)) = node.protocol().readable(group) else { continue };
            if packet == end {
                continue;
            }
            let piece = *node.protocol().piece(group, packet).ok_or("a readable packet has no piece")?;
            let bytes = node.payload(group, packet).ok_or("a readable packet has no slot")?;
            let is_right =
                bytes.iter().zip(piece.offset..).all(|(&found, offset)| found == byte(piece.message, offset));
            if bytes.len() != piece.length as usize || !is_right {
                return Err(format!("{name} reads wrong bytes of message {}", piece.message).into());
            }
            node.request(now, Input::Consumed { group, upto: packet + 1 })?;
            if piece.is_last() {
                let (message, length) = (piece.message, piece.message_length);
                self.print(&format!("{name}       has read message {message}: {length} bytes"));
            }
            return Ok(true);
        }
        Ok(false)
    }
}
