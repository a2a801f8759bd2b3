//! A host of a world: its node, the memory of its slots, and its applications.

mod fast_path;
mod kernel;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use treecast_proto::{
    Carrier, Challenge, CreateGroup, Ending, Event, GroupId, Input, Integrity, MemberId, Nanoseconds,
    Offload, Output, Piece, Protocol, Sequence, SessionId, Settings, Store, StreamChange, Trace, Transmit,
    TransmitPayload, Transport, is_forward_due, is_wake_due,
};
use treecast_wire::{Keys, View};

use self::kernel::Kernel;
pub use self::kernel::{Alarm, Offer};
use crate::attacker::Packet;
use crate::oracle::{EndedReader, Oracle, ReaderId};
use crate::scenario::{GroupScenario, Scenario, Waiting, group_key, session};

/// A host.
#[derive(Debug)]
pub struct Host {
    pub number: usize,
    /// The number of restarts.
    pub life: u32,
    pub wake_at: Option<Nanoseconds>,
    /// Groups whose streams to the parent carry nothing.
    pub stalled: BTreeSet<u32>,
    /// Children whose streams are to be closed.
    pub detached: Vec<(u32, MemberId)>,
    /// Events that have not been reported.
    pub unreported_events: Vec<Event>,
    is_up: bool,
    protocol: Protocol,
    kernel: Kernel,
    groups: BTreeMap<u32, Application>,
    random: Pcg64,
    paused_until: Nanoseconds,
    reads_from: Nanoseconds,
    /// Datagrams in the socket during a pause.
    waiting: u32,
    /// The offset of its clock.
    clock: Nanoseconds,
    /// The recorded inputs of each of its lives, if requested.
    pub traces: Option<Vec<Trace>>,
}

/// The actions of a node.
#[derive(Debug)]
pub enum Action {
    /// It sends a datagram to a host.
    Send { to: usize, bytes: Vec<u8> },
    /// It sends a packet on the stream of a child.
    Record { group: u32, to: usize, bytes: Vec<u8> },
    /// It sends a datagram to a multicast address.
    Multicast { bytes: Vec<u8> },
    /// It waits until this time; `None`: until there is an input.
    Wait(Option<Nanoseconds>),
}

/// The application of a group at a host.
#[derive(Debug)]
struct Application {
    slots: u32,
    memory: Vec<Vec<u8>>,
    offload: Offload,
    is_root: bool,
    has_left: bool,
    ended: Option<Ending>,
    /// Whether it is no initial member, or was one before a restart.
    joined_late: bool,
    /// How often this host has joined in this life, from 0.
    join: u32,
    /// Its session, once it has its place.
    session: Option<u32>,
    /// The packet that it begins with.
    start: Sequence,
    /// At the root, the next piece to queue.
    message: u32,
    offset: u64,
    /// The next packet to queue, or to read.
    queued: Sequence,
    /// While it sleeps: the end of the packets, or at the root of those that have left their slots, that its node has looked at.
    asleep_at: Option<Sequence>,
    /// Its last pause between checks.
    idle: Nanoseconds,
    rest_until: Nanoseconds,
    /// With offload `host` or `assisted`, all packets before this one have been forwarded.
    forwarded: Sequence,
}

/// The size of the socket buffer of a paused host, in datagrams.
const WAITING_MAX: u32 = 200;

fn address(host: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host as u8 + 1)), 7_000)
}

fn multicast_address(group: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(239, 0, 0, group as u8)), 7_000)
}

/// The number of restarts of the root of a session.
fn life_of(SessionId(bytes): SessionId) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// How often a host joins the sessions of a group, at most.
const JOINS_MAX: u32 = 3;

fn settings() -> Settings {
    Settings { join_timeout: Nanoseconds::from_ms(5_000), ..Settings::default() }
}

impl Host {
    pub fn new(number: usize, life: u32, scenario: &Scenario) -> Self {
        // No life draws the nonces of another one.
        let seed = scenario.seed ^ (number as u64 + 1) << 40 ^ u64::from(life) << 48;
        let mut random = Pcg64::seed_from_u64(seed);
        Self {
            number,
            life,
            wake_at: None,
            stalled: BTreeSet::new(),
            detached: Vec::new(),
            unreported_events: Vec::new(),
            is_up: true,
            protocol: Protocol::new(settings()),
            kernel: Kernel::new(number, life, scenario),
            groups: BTreeMap::new(),
            paused_until: Nanoseconds::ZERO,
            reads_from: Nanoseconds::ZERO,
            waiting: 0,
            clock: Nanoseconds(random.random_range(0..1 << 50)),
            random,
            traces: None,
        }
    }

    pub const fn is_up(&self) -> bool {
        self.is_up
    }

    fn reader(&self, group: u32) -> ReaderId {
        let join = self.groups.get(&group).map_or(0, |application| application.join);
        ReaderId { group, host: self.number, life: self.life, join }
    }

    /// Its applications of all groups that it is a member of, or has asked to join.
    pub fn participants(&self) -> impl Iterator<Item = ReaderId> {
        self.groups.keys().map(|&group| self.reader(group))
    }

    pub fn unfinished(&self) -> impl Iterator<Item = u32> {
        self.groups.iter().filter(|(_, application)| application.ended.is_none()).map(|(&group, _)| group)
    }

    pub fn has_paused(&self, now: Nanoseconds) -> bool {
        now < self.paused_until
    }

    pub fn paused_until(&self, now: Nanoseconds) -> Option<Nanoseconds> {
        self.has_paused(now).then_some(self.paused_until)
    }

    /// Buffers a datagram in the socket of a paused host, if there is room; returns until when.
    pub fn wait_for_room(&mut self, now: Nanoseconds) -> Option<Nanoseconds> {
        let until = self.paused_until(now).filter(|_| self.is_up)?;
        self.waiting += 1;
        (self.waiting <= WAITING_MAX).then_some(until)
    }

    pub fn pause(&mut self, until: Nanoseconds) {
        self.paused_until = self.paused_until.max(until);
        self.waiting = 0;
    }

    pub fn stop_reading(&mut self, until: Nanoseconds) {
        self.reads_from = self.reads_from.max(until);
    }

    pub fn crash(&mut self) {
        self.is_up = false;
        self.wake_at = None;
        self.groups.clear();
        self.kernel.clear();
    }

    pub fn restart(&mut self, scenario: &Scenario) {
        let number = self.number;
        let life = self.life + 1;
        let traces = self.traces.take();
        let counts = self.kernel.counts;
        *self = Self::new(number, life, scenario);
        self.kernel.counts = counts;
        if let Some(traces) = traces {
            self.record_inputs(traces);
        }
    }

    /// Records its inputs from now on, after those of earlier lives. They are those of the protocol alone: no group is handed off.
    pub fn record_inputs(&mut self, mut traces: Vec<Trace>) {
        self.kernel.disable();
        traces.push(Trace::new(address(self.number), settings()));
        self.traces = Some(traces);
    }

    /// Gives the node an input, at the time of its own clock; `payload` is that of a packet to queue.
    fn ask(&mut self, now: Nanoseconds, input: Input<'static>, payload: &[u8]) -> Result<(), String> {
        if let Some(group) = input.group() {
            self.reclaim(now, group)?;
        }
        if let Some(trace) = self.traces.as_mut().and_then(|traces| traces.last_mut()) {
            trace.request(now, &input, payload);
        }
        self.protocol.handle(now, input).map_err(|error| error.to_string())
    }

    pub fn leave(&mut self, now: Nanoseconds, group: GroupId) -> Result<(), String> {
        let now = self.time(now);
        let Some(application) = self.groups.get_mut(&group.0) else { return Ok(()) };
        if !self.is_up || application.is_root || application.ended.is_some() {
            return Ok(());
        }
        application.has_left = true;
        self.ask(now, Input::Leave { group }, &[])
    }

    fn time(&self, now: Nanoseconds) -> Nanoseconds {
        now + self.clock
    }

    /// Asks to join a group; returns whether it was neither a member nor joining.
    pub fn join(
        &mut self,
        now: Nanoseconds,
        group: u32,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<bool, String> {
        let setting = &scenario.groups[group as usize];
        if setting.hosts.contains(&self.number) || self.groups.contains_key(&group) {
            return Ok(false);
        }
        self.groups.insert(group, Application::new(setting, false, true));
        oracle.begin(self.reader(group));
        self.ask_to_join(now, group, scenario)?;
        Ok(true)
    }

    fn ask_to_join(&mut self, now: Nanoseconds, group: u32, scenario: &Scenario) -> Result<(), String> {
        let (key, root) = (group_key(scenario, group), address(scenario.root_host(group)));
        let (time, seed) = (self.time(now), self.random.random());
        self.ask(time, Input::JoinGroup { group: GroupId(group), key, root, seed }, &[])?;
        self.tell_readers(now, group, scenario)
    }

    /// Tells the node which processes share it, if the group goes on here.
    pub fn tell_readers(&mut self, now: Nanoseconds, group: u32, scenario: &Scenario) -> Result<(), String> {
        let goes_on = self.groups.get(&group).is_some_and(|application| application.ended.is_none());
        match scenario.readers(group, self.number, now).filter(|_| goes_on) {
            Some(readers) => self.ask(self.time(now), Input::Readers { group: GroupId(group), readers }, &[]),
            None => Ok(()),
        }
    }

    /// Joins again after the session has ended without its root; returns whether it does.
    fn join_again(
        &mut self,
        now: Nanoseconds,
        group: u32,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<bool, String> {
        let setting = &scenario.groups[group as usize];
        let Some(before) = self.groups.get(&group).filter(|before| before.joins_again(setting)) else {
            return Ok(false);
        };
        let join = before.join + 1;
        let application = Application::new(setting, false, before.joined_late);
        self.groups.insert(group, Application { join, ..application });
        oracle.begin(self.reader(group));
        self.ask_to_join(now, group, scenario)?;
        Ok(true)
    }

    /// Creates or joins a group at the start of a life, if it is an initial member; returns whether it is.
    pub fn enter(
        &mut self,
        now: Nanoseconds,
        group: u32,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<bool, String> {
        let setting = &scenario.groups[group as usize];
        let root_host = scenario.root_host(group);
        let is_member = setting.hosts.contains(&self.number);
        let is_root = self.number == root_host;
        // A restarted root may create its group again, which is another session.
        if !is_member || (is_root && self.life > 0 && !setting.is_repeated) {
            return Ok(false);
        }
        let application = Application::new(setting, is_root, self.life > 0);
        self.groups.insert(group, Application { session: is_root.then_some(self.life), ..application });
        oracle.begin(self.reader(group));
        if is_root {
            oracle.create(group, self.life);
            let input = Input::CreateGroup(Box::new(CreateGroup {
                group: GroupId(group),
                key: group_key(scenario, group),
                session: session(self.life),
                authentication: setting.authentication,
                integrity: Integrity::default(),
                transport: setting.transport,
                root: setting.root,
                members: setting.hosts.iter().map(|&host| address(host)).collect(),
                children: setting.children.clone(),
                slots: setting.slots,
                payload_bytes_max: setting.payload_bytes_max,
                offload: setting.offload,
                multicast: (setting.offload == Offload::Switch).then(|| multicast_address(group)),
                start: setting.start,
                admits: setting.admits,
                readers: setting.shared_nodes(),
                members_max: CreateGroup::MEMBERS_MAX,
                bytes_per_s_max: setting.bytes_per_s_max,
            }));
            let time = self.time(now);
            self.ask(time, input, &[])?;
            self.tell_readers(now, group, scenario)?;
        } else {
            self.ask_to_join(now, group, scenario)?;
        }
        Ok(true)
    }

    /// Receives a datagram; what the node then sends is polled by [`Host::poll`].
    pub fn datagram(
        &mut self,
        now: Nanoseconds,
        &Packet { from, ref bytes, .. }: &Packet,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        let now = self.time(now);
        if let Some(trace) = self.traces.as_mut().and_then(|traces| traces.last_mut()) {
            trace.datagram(now, address(from), bytes);
        }
        if let Some(group) = self.protocol.group_to_reclaim(bytes) {
            self.reclaim(now, group)?;
        }
        let input = Input::Datagram { from: address(from), bytes };
        self.protocol.handle(now, input).map_err(|error| error.to_string())?;
        while let Some(output) = self.protocol.poll_local() {
            match output {
                Output::Store(store) => self.store(&store, bytes)?,
                Output::Event(event) => self.handle_event(&event, scenario, oracle)?,
                Output::Transmit(_) | Output::Timeout(_) => {
                    return Err("an output is not of a datagram".into());
                }
            }
        }
        Ok(())
    }

    /// A packet comes on the stream to the parent.
    pub fn record(
        &mut self,
        now: Nanoseconds,
        parent: usize,
        bytes: &[u8],
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        let now = self.time(now);
        let (header, payload) = bytes.split_first_chunk().ok_or("a record without a header")?;
        let input = Input::Record { from: address(parent), header, payload };
        self.protocol.handle(now, input).map_err(|error| error.to_string())?;
        while let Some(output) = self.protocol.poll_local() {
            match output {
                Output::Store(store) => self.store(&store, bytes)?,
                Output::Event(event) => self.handle_event(&event, scenario, oracle)?,
                Output::Transmit(_) | Output::Timeout(_) => {
                    return Err("an output is not of a record".into());
                }
            }
        }
        Ok(())
    }

    /// The first packet of a stream comes from a child; returns whether the stream is taken.
    pub fn attach(
        &mut self,
        now: Nanoseconds,
        child: usize,
        challenge: Challenge,
        bytes: &[u8],
    ) -> Result<bool, String> {
        let input = Input::Attach { stream: 0, from: address(child).ip(), challenge, bytes };
        self.protocol.handle(self.time(now), input).map_err(|error| error.to_string())?;
        match self.protocol.poll_local() {
            Some(Output::Event(Event::Attached { child, .. })) => Ok(child.is_some()),
            other => Err(format!("no answer to a stream, but {other:?}")),
        }
    }

    /// The stream of a child has changed.
    pub fn change_stream(
        &mut self,
        now: Nanoseconds,
        group: u32,
        child: usize,
        change: StreamChange,
    ) -> Result<(), String> {
        let group = GroupId(group);
        let Some((_, addresses)) = self.protocol.neighbours(group) else { return Ok(()) };
        let children: Vec<MemberId> = self.protocol.children(group).collect();
        let place = addresses.iter().position(|&known| known == address(child));
        let Some(&child) = place.and_then(|place| children.get(place)) else { return Ok(()) };
        let now = self.time(now);
        self.ask(now, Input::Stream { group, child, change }, &[])
    }

    /// The hosts of the parents to which this node has to open streams, by group.
    pub fn stream_parents(&self) -> Vec<(u32, Option<usize>)> {
        let host_of = |address: SocketAddr| match address.ip() {
            IpAddr::V4(ip) => usize::from(ip.octets()[3]).checked_sub(1),
            IpAddr::V6(_) => None,
        };
        let parent = |&group: &u32| (group, self.protocol.stream_parent(GroupId(group)).and_then(host_of));
        self.groups.keys().map(parent).collect()
    }

    /// The packet that opens a stream.
    pub fn attach_packet(&self, group: u32, challenge: Challenge) -> Option<Vec<u8>> {
        self.protocol.attach_packet(GroupId(group), challenge).map(|bytes| bytes.to_vec())
    }

    /// Whether a child of this node on that host has a stream.
    pub fn has_stream_of(&self, group: u32, host: usize) -> bool {
        let group = GroupId(group);
        let Some((_, addresses)) = self.protocol.neighbours(group) else { return false };
        let mut children = self.protocol.children(group).zip(addresses);
        children.any(|(child, known)| known == address(host) && self.protocol.has_stream(group, child))
    }

    /// The host of a child of this node.
    pub fn child_host(&self, group: u32, child: MemberId) -> Option<usize> {
        let (_, addresses) = self.protocol.neighbours(GroupId(group))?;
        let place = self.protocol.children(GroupId(group)).position(|known| known == child)?;
        match addresses.get(place)?.ip() {
            IpAddr::V4(ip) => usize::from(ip.octets()[3]).checked_sub(1),
            IpAddr::V6(_) => None,
        }
    }

    fn store(&mut self, store: &Store, datagram: &[u8]) -> Result<(), String> {
        let application =
            self.groups.get_mut(&store.group.0).ok_or("a packet is stored of a group that is not here")?;
        let slot =
            application.memory.get_mut(store.slot as usize).ok_or("a packet is stored beyond the slots")?;
        slot.clear();
        slot.extend_from_slice(&datagram[store.payload.clone()]);
        Ok(())
    }

    pub fn elapsed(&mut self, now: Nanoseconds) -> Result<(), String> {
        let now = self.time(now);
        self.ask(now, Input::Timeout, &[])
    }

    /// The next action of the node: a datagram, or nothing until a time.
    pub fn poll(
        &mut self,
        now: Nanoseconds,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<Action, String> {
        if let Some(action) = self.take_sent() {
            return Ok(action);
        }
        let now = self.time(now);
        self.reclaim_due(now)?;
        loop {
            match self.protocol.poll(now) {
                Output::Timeout(timeout) => {
                    self.hand_off()?;
                    return Ok(Action::Wait(timeout.map(|timeout| timeout.since(self.clock))));
                }
                Output::Transmit(transmit) => return self.send(transmit),
                Output::Event(event) => self.handle_event(&event, scenario, oracle)?,
                Output::Store(_) => {
                    return Err("a payload is stored without a datagram".into());
                }
            }
        }
    }

    fn send(&self, Transmit { to, header, payload, carrier }: Transmit) -> Result<Action, String> {
        let mut bytes = header.to_vec();
        match payload {
            TransmitPayload::Bytes(payload) => bytes.extend(payload),
            TransmitPayload::Slot { group, slot, length } => {
                let memory = self.groups.get(&group.0).and_then(|group| group.memory.get(slot as usize));
                let stored = memory.ok_or("a slot is sent that is not there")?;
                bytes.extend_from_slice(
                    stored.get(..length as usize).ok_or("more is sent than is in the slot")?,
                );
            }
        }
        if to.ip().is_multicast() {
            return Ok(Action::Multicast { bytes });
        }
        // Forgers with the token may name addresses that no host has.
        let host = match to.ip() {
            IpAddr::V4(ip) => usize::from(ip.octets()[3]).checked_sub(1),
            IpAddr::V6(_) => None,
        };
        let to = host.unwrap_or(usize::MAX);
        Ok(match carrier {
            Carrier::Datagram => Action::Send { to, bytes },
            Carrier::Stream(_) => {
                let group = View::new(&bytes).map_err(|error| error.to_string())?.group().0;
                Action::Record { group, to, bytes }
            }
        })
    }

    fn handle_event(
        &mut self,
        event: &Event,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        self.unreported_events.push(event.clone());
        match *event {
            Event::Placed { group, member, start, slots, .. } => {
                if let Some(application) = self.groups.get_mut(&group.0) {
                    application.slots = slots;
                    application.memory.resize(slots as usize, Vec::new());
                    application.forwarded = start;
                    application.queued = start;
                    application.session = self.protocol.session(group).map(life_of);
                    application.start = start;
                    let session = application.session.ok_or("a member has its place without a session")?;
                    oracle.place(self.reader(group.0), session, member);
                }
            }
            Event::Ready { group } => oracle.ready(scenario, self.life, group.0)?,
            Event::Joined { .. } | Event::Attached { .. } => {}
            Event::Stalled { group } => {
                self.stalled.insert(group.0);
            }
            Event::Detached { group, child } => self.detached.push((group.0, child)),
            Event::MemberLost { group, member, reader: None, loss } => {
                oracle.lose(scenario, self.life, group.0, member, loss)?;
            }
            Event::MemberLost { group, member, reader: Some(process), loss } => {
                oracle.lose_process(scenario, self.life, group.0, (member, process), loss)?;
            }
            Event::Ended { group, ending } => {
                let (id, setting) = (self.reader(group.0), &scenario.groups[group.0 as usize]);
                if let Some(application) = self.groups.get_mut(&group.0) {
                    application.ended = Some(ending);
                    let &mut Application { session, joined_late, has_left, .. } = application;
                    let begins_late = application.start != setting.start;
                    if !application.joins_again(setting) {
                        oracle.retire(id.group, id.host);
                    }
                    let ended = EndedReader { id, session, begins_late, joined_late, has_left };
                    oracle.end(scenario, &ended, ending)?;
                }
            }
        }
        Ok(())
    }

    /// Checks the bounds of buffers.
    pub fn check(&self, scenario: &Scenario, oracle: &Oracle) -> Result<(), String> {
        for (&group, application) in &self.groups {
            let slots = application.slots;
            if let Some((from, end)) = self.readable(GroupId(group))
                && end.distance_from(from) as u32 > slots
            {
                return Err(format!(
                    "host {} has packets {from} to {end} of group {group} in {slots} slots",
                    self.number
                ));
            }
            // An attacker that has the token can send a member a table with another number of slots.
            if slots != scenario.groups[group as usize].slots && !oracle.is_misled(group) {
                return Err(format!("host {} has other slots in group {group}", self.number));
            }
        }
        Ok(())
    }

    /// Runs the application; returns the pause before its next check, or `None` if it is done.
    pub fn work(
        &mut self,
        now: Nanoseconds,
        group: u32,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<Option<Nanoseconds>, String> {
        let setting = &scenario.groups[group as usize];
        let Some(application) = self.groups.get(&group) else { return Ok(None) };
        if application.ended.is_some() {
            let pause = Nanoseconds::from_ms(1);
            return Ok(self.join_again(now, group, scenario, oracle)?.then_some(pause));
        }
        let (is_root, queued) = (application.is_root, application.queued);
        if is_root {
            self.write(now, group, scenario, oracle)?;
        } else if now >= self.reads_from {
            self.read(now, group, scenario, oracle)?;
        }
        if setting.waiting == Waiting::Sleeps {
            return self.pause_or_sleep(now, group, setting);
        }
        let pause_max = if is_root { 100_000 } else { setting.read_pause_max.0 };
        let pause = Nanoseconds(self.random.random_range(1_000..=pause_max));
        let application = self.groups.get_mut(&group).ok_or("no such group")?;
        // The pause grows while there is nothing to do.
        application.idle =
            if application.queued == queued { Nanoseconds(application.idle.0 * 2) } else { pause };
        application.idle = application.idle.max(pause).min(Nanoseconds::from_ms(5));
        Ok(Some(application.idle))
    }

    /// The pause of an application that sleeps while it has nothing to do; `None` if it sleeps.
    fn pause_or_sleep(
        &mut self,
        now: Nanoseconds,
        group: u32,
        setting: &GroupScenario,
    ) -> Result<Option<Nanoseconds>, String> {
        let readable = self.readable(GroupId(group));
        let freed = self.freed(GroupId(group));
        let application = self.groups.get_mut(&group).ok_or("no such group")?;
        let until = if application.is_root { application.rest_until } else { self.reads_from };
        if now < until {
            return Ok(Some(until.since(now)));
        }
        let seen = if application.is_root { freed } else { readable.map(|(_, end)| end) };
        let seen = seen.unwrap_or(application.queued);
        if !application.is_root && application.queued != seen {
            return Ok(Some(Nanoseconds(self.random.random_range(1_000..=setting.read_pause_max.0))));
        }
        application.asleep_at = Some(seen);
        Ok(None)
    }

    /// The sleeping applications that the node wakes, as an engine does: for free slots, the end of a message, much to read or to forward,
    /// and the end of the group.
    pub fn wake_applications(&mut self) -> Vec<u32> {
        let Self { protocol, groups, kernel, .. } = self;
        let woken = groups.iter_mut().filter_map(|(&group, application)| {
            let id = GroupId(group);
            let is_woken = kernel.woken.remove(&group);
            let seen = application.asleep_at?;
            let (now, is_due) = if kernel.runs(id) {
                (seen, false)
            } else if application.is_root {
                let freed = protocol.freed(id).unwrap_or(seen);
                (freed, freed != seen)
            } else {
                let Application { offload, queued, slots, .. } = *application;
                // A member that gets its place begins there.
                let seen = seen.max(queued);
                let end = protocol.readable(id).map_or(seen, |(_, end)| end);
                let mut new = seen.until(end);
                let has_end = new.any(|packet| protocol.piece(id, packet).is_some_and(Piece::is_last));
                (end, has_end || is_wake_due(offload, queued, end, slots))
            };
            let is_woken = is_woken || is_due || application.ended.is_some();
            application.asleep_at = (!is_woken).then_some(now);
            is_woken.then_some(group)
        });
        woken.collect()
    }

    /// The root queues as many packets as there is room for.
    fn write(
        &mut self,
        now: Nanoseconds,
        group: u32,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        let time = self.time(now);
        let id = GroupId(group);
        let setting = &scenario.groups[group as usize];
        let (life, messages) = (self.life, scenario.messages(group, self.life));
        let has_crcs = setting.transport.has_crcs(Integrity::default());
        let keys = group_key(scenario, group).session_keys(session(life), setting.authentication);
        let keys = Keys { has_crcs, ..keys };
        while self.room(id) > 0 {
            let application = self.groups.get_mut(&group).ok_or("no such group")?;
            if now < application.rest_until {
                break;
            }
            let Some(&message_length) = messages.get(application.message as usize) else {
                oracle.close(group, life);
                return self.ask(time, Input::Close { group: id }, &[]);
            };
            let (message, offset) = (application.message, application.offset);
            let length = (message_length - offset).min(u64::from(setting.payload_bytes_max));
            let bytes: Vec<u8> =
                (offset..offset + length).map(|place| oracle.byte(group, life, message, place)).collect();
            let checksum = keys.data_checksum(application.queued, &bytes);
            let piece = Piece { message, offset, length: length as u32, message_length, checksum };
            let slot = application.queued.0 & (application.slots - 1);
            application.memory[slot as usize].clone_from(&bytes);
            if !self.send_by_kernel(time, id, piece)? {
                self.ask(time, Input::Queue { group: id, piece }, &bytes)?;
            }
            let application = self.groups.get_mut(&group).ok_or("no such group")?;
            application.queued += 1;
            application.offset += length;
            if piece.is_last() {
                (application.message, application.offset) = (message + 1, 0);
                application.rest_until = now + Nanoseconds(self.random.random_range(0..=setting.pause_max.0));
            }
            let queued = application.queued;
            self.forward(time, id, queued, piece.is_last())?;
            if setting.transport == Transport::Streams && piece.is_last() && self.random.random_bool(0.3) {
                self.ask(time, Input::Flush { group: id }, &[])?;
            }
        }
        Ok(())
    }

    /// A reader reads some packets.
    fn read(
        &mut self,
        now: Nanoseconds,
        group: u32,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        let time = self.time(now);
        let id = GroupId(group);
        let Some((from, end)) = self.readable(id) else { return Ok(()) };
        let most = self.random.random_range(1..=scenario.groups[group as usize].read_packets_max);
        let upto = end.min(from + most);
        for packet in from.until(upto) {
            let piece = *self.piece(id, packet).ok_or("a packet to be read is not there")?;
            let application = self.groups.get(&group).ok_or("no such group")?;
            let slot = packet.0 & (application.slots - 1);
            let bytes = &application.memory[slot as usize];
            let begins_late = application.start != scenario.groups[group as usize].start;
            let session = application.session.ok_or("a member reads that has no place")?;
            oracle.read(scenario, self.reader(group), session, begins_late, &piece, bytes)?;
            self.consume(time, id, packet + 1)?;
            let application = self.groups.get_mut(&group).ok_or("no such group")?;
            application.queued = packet + 1;
            self.forward(time, id, packet + 1, piece.is_last())?;
        }
        Ok(())
    }

    /// With offload `host` or `assisted`, forwards complete messages, and parts of long ones.
    fn forward(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        upto: Sequence,
        is_whole: bool,
    ) -> Result<(), String> {
        let application = self.groups.get_mut(&group.0).ok_or("no such group")?;
        let Application { offload, forwarded, slots, .. } = *application;
        if !is_forward_due(offload, forwarded, upto, is_whole, slots) {
            return Ok(());
        }
        application.forwarded = upto;
        let turns: Vec<Option<MemberId>> = if application.offload == Offload::Host {
            self.protocol.children(group).map(Some).collect()
        } else {
            vec![None]
        };
        for child in turns {
            self.ask(now, Input::Forward { group, upto, child }, &[])?;
        }
        Ok(())
    }
}

impl Application {
    fn new(setting: &GroupScenario, is_root: bool, joined_late: bool) -> Self {
        Self {
            slots: setting.slots,
            memory: vec![Vec::new(); setting.slots as usize],
            offload: setting.offload,
            is_root,
            has_left: false,
            ended: None,
            joined_late,
            join: 0,
            session: None,
            start: setting.start,
            message: 0,
            offset: 0,
            queued: setting.start,
            asleep_at: None,
            idle: Nanoseconds::ZERO,
            rest_until: Nanoseconds::ZERO,
            forwarded: setting.start,
        }
    }
    /// Whether it joins again: its session has ended without its root.
    fn joins_again(&self, setting: &GroupScenario) -> bool {
        let is_without_root = matches!(self.ended, Some(Ending::RootSilent(_) | Ending::RootRestarted));
        let may_join = setting.is_repeated && !self.is_root && !self.has_left;
        is_without_root && may_join && self.join + 1 < JOINS_MAX
    }
}
