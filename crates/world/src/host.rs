//! A host of a world: its node and its applications.

mod application;
mod fast_path;
mod inputs;
mod kernel;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use treecast_proto::{
    CreateGroup, Event, GroupId, Input, Integrity, MemberId, Nanoseconds, Offload, SessionId, Settings, Trace,
};

use self::application::Application;
use self::kernel::Kernel;
pub use self::kernel::{Alarm, Offer};
use crate::attacker;
use crate::node::{Act, Node, Packet};
use crate::oracle::{EndedReader, Oracle, ReaderId};
use crate::scenario::{Scenario, group_key, session};

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
    node: Node,
    kernel: Kernel,
    groups: BTreeMap<u32, Application>,
    random: Pcg64,
    /// Decides when it forgets payloads.
    forgetting: Pcg64,
    paused_until: Nanoseconds,
    reads_from: Nanoseconds,
    /// Datagrams in the socket during a pause.
    waiting: u32,
    /// The offset of its clock.
    clock: Nanoseconds,
    /// The recorded inputs of its earlier lives, if requested.
    traces: Vec<Trace>,
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

/// The size of the socket buffer of a paused host, in datagrams.
const WAITING_MAX: u32 = 200;

fn address(host: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host as u8 + 1)), 7_000)
}

/// The host at an address; `None` if no host can have it.
fn host_at(address: SocketAddr) -> Option<usize> {
    match address.ip() {
        IpAddr::V4(ip) => usize::from(ip.octets()[3]).checked_sub(1),
        IpAddr::V6(_) => None,
    }
}

fn multicast_address(group: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(239, 0, 0, group as u8)), 7_000)
}

fn action_of(Packet { group, to, stream_of, bytes }: Packet) -> Action {
    if to.ip().is_multicast() {
        return Action::Multicast { bytes };
    }
    // Forgers with the token may name addresses that no host has.
    let to = host_at(to).unwrap_or(usize::MAX);
    match stream_of {
        None => Action::Send { to, bytes },
        Some(_) => Action::Record { group: group.0, to, bytes },
    }
}

/// The number of restarts of the root of a session.
fn life_of(SessionId(bytes): SessionId) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

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
            node: Node::new(address(number), settings()),
            kernel: Kernel::new(number, life, scenario),
            groups: BTreeMap::new(),
            paused_until: Nanoseconds::ZERO,
            reads_from: Nanoseconds::ZERO,
            waiting: 0,
            clock: Nanoseconds(random.random_range(0..1 << 50)),
            random,
            forgetting: Pcg64::seed_from_u64(seed ^ 0x666f_7267_6574_0000),
            traces: Vec::new(),
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
    pub fn wait_in_socket(&mut self, now: Nanoseconds) -> Option<Nanoseconds> {
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
        let before = std::mem::replace(self, Self::new(number, life, scenario));
        self.kernel.counts = before.kernel.counts;
        if before.node.trace().is_some() {
            self.record_inputs();
        }
        self.traces = before.into_traces().collect();
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
        self.ask(time, Input::JoinGroup { group: GroupId(group), key, root, seed })?;
        self.tell_readers(now, group, scenario)
    }

    /// Tells the node which processes share it, if the group goes on here.
    pub fn tell_readers(&mut self, now: Nanoseconds, group: u32, scenario: &Scenario) -> Result<(), String> {
        let goes_on = self.groups.get(&group).is_some_and(|application| application.ended.is_none());
        match scenario.readers(group, self.number, now).filter(|_| goes_on) {
            Some(readers) => self.ask(self.time(now), Input::Readers { group: GroupId(group), readers }),
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

    /// Creates or joins a group at the start of a life, if it is an initial member; returns whether
    /// it is.
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
                is_encrypted: false,
            }));
            let time = self.time(now);
            self.ask(time, input)?;
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
        &attacker::Packet { from, ref bytes, .. }: &attacker::Packet,
    ) -> Result<(), String> {
        let now = self.time(now);
        if let Some(group) = self.node.group_to_reclaim(bytes) {
            self.reclaim(now, group)?;
        }
        self.node.datagram(now, address(from), bytes).map_err(|fault| fault.to_string())
    }

    pub fn elapsed(&mut self, now: Nanoseconds) -> Result<(), String> {
        let now = self.time(now);
        self.ask(now, Input::Timeout)
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
        loop {
            match self.node.poll(now).map_err(|fault| fault.to_string())? {
                Act::Wait(timeout) => {
                    self.forget(now, scenario)?;
                    self.hand_off(now)?;
                    return Ok(Action::Wait(timeout.map(|timeout| timeout.since(self.clock))));
                }
                Act::Send(packet) => return Ok(action_of(packet)),
                Act::Event(event) => self.handle_event(&event, scenario, oracle)?,
                Act::Reclaim(group) if self.kernel.runs(group) => self.reclaim(now, group)?,
                Act::Reclaim(group) => {
                    return Err(format!("group {group} is due as handed off, and is not in the kernel"));
                }
                Act::Stray(_) => {}
            }
        }
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
                    application.forwarded = start;
                    application.queued = start;
                    application.session = self.node.protocol().session(group).map(life_of);
                    application.start = start;
                    let session = application.session.ok_or("a member has its place without a session")?;
                    oracle.place(self.reader(group.0), session, member);
                }
            }
            Event::Ready { group } => {
                oracle.ready(scenario, self.life, group.0)?;
                if let Some(application) = self.groups.get_mut(&group.0) {
                    application.reduction.is_ready = true;
                }
            }
            Event::Reduced { group, ref result } => {
                oracle.reduce(scenario, group.0, self.life, result)?;
                if let Some(application) = self.groups.get_mut(&group.0) {
                    application.reduction.result = Some(result.packet);
                    application.reduction.is_result_new = true;
                }
            }
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
            // An attacker that has the token can send a member a table with another number of
            // slots.
            if slots != scenario.groups[group as usize].slots && !oracle.is_misled(group) {
                return Err(format!("host {} has other slots in group {group}", self.number));
            }
        }
        Ok(())
    }
}
