//! Switches and links: input buffers, outputs, and who gets them.
//!
//! Virtual cut-through: an output is granted to a packet when its link is free and the input buffer at its other end has
//! room for the whole packet. From then on the packet leaves at one flit a cycle without a pause, so one number says
//! when each of its flits is where, and nothing need be scheduled for them: a packet costs a switch one event, when it is
//! routed. What is asked of a buffer later (how much room, from when) is computed from these numbers.

use std::collections::VecDeque;

use rand::RngExt;
use rand_pcg::Pcg64;
use treecast_fabric::{Channel, Cycles, Flits, HostId, LinkId, SwitchId, Topology, Vertex};

use super::host::PacketCopy;
use super::live::{Live, Slot};
use super::{Agenda, Event};
use crate::deadlock::Wait;
use crate::observer::{Observer, Slice, Track, Work};
use crate::way::{Branch, Outputs, Progress, Router, random_choices};
use crate::{Adaptive, Arbitration, Parameters, Replication, Setting};

/// An input buffer: a virtual channel of a link into a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InputId(u32);

/// A packet, or a copy of one, in the fabric.
#[derive(Debug, Clone, Copy)]
struct Packet {
    slot: Slot,
    worm: u32,
    packet: u32,
    /// With what is left of its header.
    length: Flits,
    progress: Progress,
    /// When its first flit arrives in the buffer that it is in or on its way to.
    arrival: Cycles,
}

/// The packet that began to leave a buffer last.
#[derive(Debug, Clone, Copy)]
struct Leaving {
    since: Cycles,
    length: Flits,
    /// What the switch takes off goes with the first flit.
    stripped: Flits,
}

impl Leaving {
    /// From when on it is gone whole.
    fn gone(&self) -> Cycles {
        self.since + Cycles(self.length.0 - self.stripped.0)
    }

    /// From when on so many of its flits, at most all, have left.
    fn left(&self, flits: Flits) -> Cycles {
        self.since + Cycles(flits.0.saturating_sub(self.stripped.0).max(1))
    }
}

#[derive(Debug, Clone, Default)]
struct Input {
    /// Packets that were granted room and have not begun to leave, in their order.
    queue: VecDeque<Packet>,
    /// Copies of the first of them that wait for outputs.
    waiting: u32,
    leaving: Option<Leaving>,
    /// Room taken by those in the queue and by the one that leaves, the flits that have left still counted.
    taken: Flits,
}

/// A copy that waits for an output.
#[derive(Debug)]
struct Request {
    since: Cycles,
    input: InputId,
    outputs: Outputs,
    progress: Progress,
    length: Flits,
    /// The output that is held for it until the other copies of its packet have theirs (synchronous replication).
    held: Option<Channel>,
}

#[derive(Debug, Default)]
struct Switch {
    /// In the order of service, where that is fixed.
    waiting: Vec<Request>,
    /// When it is looked at next anyway.
    wake: Option<Cycles>,
}

#[derive(Debug, Default)]
struct Injection {
    queue: VecDeque<Packet>,
    wake: Option<Cycles>,
}

/// When a link is free again; that of a link that is held for a copy is not known.
const HELD: Cycles = Cycles(u64::MAX);

pub(super) struct Network<'a> {
    topology: &'a Topology,
    parameters: &'a Parameters,
    router: Router<'a>,
    virtual_channels: u32,
    inputs: Vec<Input>,
    free_at: Vec<Cycles>,
    switches: Vec<Switch>,
    injections: Vec<Injection>,
    /// Switches and injections to look at in this cycle.
    woken_switches: Vec<SwitchId>,
    woken_injections: Vec<HostId>,
    /// The stream of each switch that makes its random choices, where it makes any.
    random: Vec<Pcg64>,
    /// The input that each link has served last, for round-robin arbitration.
    served: Vec<Option<InputId>>,
    /// Kept to be used again.
    branches: Vec<Branch>,
}

impl<'a> Network<'a> {
    pub fn new(setting: &Setting<'a>) -> Self {
        let (topology, parameters) = (setting.fabric.topology(), setting.parameters);
        let virtual_channels = u32::from(setting.fabric.routing().virtual_channel_count());
        let links = topology.link_count() as usize;
        let stream = |switch| random_choices(setting.seed, switch);
        let chooses = parameters.adaptive == Adaptive::Random;
        let takes_turns = parameters.arbitration == Arbitration::RoundRobin;
        Self {
            topology,
            parameters,
            router: Router::new(setting.fabric, parameters),
            virtual_channels,
            inputs: vec![Input::default(); links * virtual_channels as usize],
            free_at: vec![Cycles::ZERO; links],
            switches: topology.switches().map(|_| Switch::default()).collect(),
            injections: topology.hosts().map(|_| Injection::default()).collect(),
            woken_switches: Vec::new(),
            woken_injections: Vec::new(),
            random: if chooses { topology.switches().map(stream).collect() } else { Vec::new() },
            served: vec![None; if takes_turns { links } else { 0 }],
            branches: Vec::new(),
        }
    }

    /// Puts a packet of a worm into a host's injection queue. The queue is bounded by the packets of the multicasts under
    /// way times the worms of its host.
    pub fn inject(&mut self, live: &Live, host: HostId, copy: PacketCopy) {
        let PacketCopy { slot, worm, packet } = copy;
        let multicast = &live[slot];
        let way = &multicast.worms[worm as usize].way;
        let length = multicast.payload(packet) + way.header;
        let progress = way.begin();
        self.injections[host.index()].queue.push_back(Packet {
            slot,
            worm,
            packet,
            length,
            progress,
            arrival: Cycles::ZERO,
        });
        self.woken_injections.push(host);
    }

    pub fn routed(&mut self, now: Cycles, live: &mut Live, input: InputId) {
        let at = self.switch_of(input);
        let packet = self.inputs[input.0 as usize].queue[0];
        let way = &mut live.get_mut(packet.slot).worms[packet.worm as usize].way;
        let length = packet.length - self.router.stripped(way, packet.progress);
        let mut branches = std::mem::take(&mut self.branches);
        self.router.branches(way, at, packet.progress, &mut branches);
        debug_assert!(!branches.is_empty(), "a worm goes on from every switch that it comes to");
        self.inputs[input.0 as usize].waiting = branches.len() as u32;
        let rank = rank(self.parameters.arbitration, now, input);
        let waiting = &mut self.switches[at.index()].waiting;
        let arbitration = self.parameters.arbitration;
        let place =
            waiting.partition_point(|other| self::rank(arbitration, other.since, other.input) <= rank);
        let requests = branches.drain(..).map(|Branch { outputs, progress }| Request {
            since: now,
            input,
            outputs,
            progress,
            length,
            held: None,
        });
        waiting.splice(place..place, requests);
        self.branches = branches;
        self.woken_switches.push(at);
    }

    pub fn wake_switch(&mut self, switch: SwitchId) {
        self.switches[switch.index()].wake = None;
        self.woken_switches.push(switch);
    }

    pub fn wake_injection(&mut self, host: HostId) {
        self.injections[host.index()].wake = None;
        self.woken_injections.push(host);
    }

    /// Grants injection links to whoever waits for them and can go now.
    pub fn grant_injections(&mut self, agenda: &mut Agenda, live: &Live, observer: &mut impl Observer) {
        while let Some(host) = self.woken_injections.pop() {
            self.grant_injection(agenda, live, observer, host);
        }
    }

    /// Grants outputs of switches to whoever waits for them and can go now.
    pub fn grant_switches(&mut self, agenda: &mut Agenda, live: &Live, observer: &mut impl Observer) {
        while let Some(switch) = self.woken_switches.pop() {
            self.grant_switch(agenda, live, observer, switch);
        }
    }

    fn grant_injection(
        &mut self,
        agenda: &mut Agenda,
        live: &Live,
        observer: &mut impl Observer,
        host: HostId,
    ) {
        let Some(&packet) = self.injections[host.index()].queue.front() else { return };
        let way = &live[packet.slot].worms[packet.worm as usize].way;
        let outputs = self.router.entries(way, host);
        let times = outputs.iter().map(|&output| (self.available(agenda.now, output, packet.length), output));
        // Of the channels that come free first the lowest.
        let first = times.filter_map(|(time, output)| Some((time?, output))).min_by_key(|&(time, _)| time);
        match first {
            Some((time, output)) if time == agenda.now => {
                self.injections[host.index()].queue.pop_front();
                // A host has no crossbar: the first flit goes onto the link at once.
                self.send(agenda, live, observer, output, packet, Cycles::ZERO);
                if !self.injections[host.index()].queue.is_empty() {
                    self.plan_injection(agenda, host, self.free_at[output.link.index()]);
                }
            }
            Some((time, _)) => self.plan_injection(agenda, host, time),
            // Woken when a buffer behind the link begins to empty.
            None => {}
        }
    }

    fn plan_injection(&mut self, agenda: &mut Agenda, host: HostId, time: Cycles) {
        let wake = &mut self.injections[host.index()].wake;
        if wake.is_none_or(|planned| planned > time) {
            *wake = Some(time);
            agenda.at(time, Event::InjectionWake(host));
        }
    }

    fn plan_switch(&mut self, agenda: &mut Agenda, switch: SwitchId, time: Cycles) {
        let wake = &mut self.switches[switch.index()].wake;
        if wake.is_none_or(|planned| planned > time) {
            *wake = Some(time);
            agenda.at(time, Event::SwitchWake(switch));
        }
    }

    fn grant_switch(
        &mut self,
        agenda: &mut Agenda,
        live: &Live,
        observer: &mut impl Observer,
        switch: SwitchId,
    ) {
        let mut waiting = std::mem::take(&mut self.switches[switch.index()].waiting);
        if self.parameters.arbitration == Arbitration::RoundRobin {
            self.serve_by_turns(agenda, live, observer, switch, &mut waiting);
        } else {
            self.serve_by_rank(agenda, live, observer, switch, &mut waiting);
        }
        let wake = waiting
            .iter()
            .filter(|request| request.held.is_none())
            .flat_map(|request| request.outputs.iter().map(|&output| (output, request.length)))
            .filter_map(|(output, length)| self.available(agenda.now, output, length))
            .min();
        debug_assert!(wake.is_none_or(|time| time > agenda.now), "who could go now has been granted");
        self.switches[switch.index()].waiting = waiting;
        if let Some(time) = wake {
            self.plan_switch(agenda, switch, time);
        }
    }

    /// Serves requests in the order of their ranks.
    fn serve_by_rank(
        &mut self,
        agenda: &mut Agenda,
        live: &Live,
        observer: &mut impl Observer,
        switch: SwitchId,
        waiting: &mut Vec<Request>,
    ) {
        let mut index = 0;
        while index < waiting.len() {
            match self.choose(agenda.now, switch, &waiting[index]) {
                Some(output) => {
                    let before = waiting.len();
                    self.grant(agenda, live, observer, waiting, index, output);
                    // What has been sent is off the list. To look at somebody twice does no harm: who could not go then
                    // cannot go now.
                    index = (index + 1).saturating_sub(before - waiting.len());
                }
                None => index += 1,
            }
        }
    }

    /// Serves requests in rounds: each asks for one output, and each output takes the input next after the one that it
    /// has served last; until nobody can go.
    fn serve_by_turns(
        &mut self,
        agenda: &mut Agenda,
        live: &Live,
        observer: &mut impl Observer,
        switch: SwitchId,
        waiting: &mut Vec<Request>,
    ) {
        loop {
            let mut asks = Vec::new();
            for request in waiting.iter() {
                if let Some(output) = self.choose(agenda.now, switch, request) {
                    let served = self.served[output.link.index()];
                    let behind = served.is_some_and(|served| request.input <= served);
                    asks.push((output.link, behind, request.input, output));
                }
            }
            if asks.is_empty() {
                break;
            }
            asks.sort_unstable();
            asks.dedup_by_key(|ask| ask.0);
            for (link, _, input, output) in asks {
                self.served[link.index()] = Some(input);
                let asker = |request: &Request| {
                    request.input == input && request.held.is_none() && request.outputs.contains(&output)
                };
                let index = waiting.iter().position(asker).expect("who was chosen waits");
                self.grant(agenda, live, observer, waiting, index, output);
            }
        }
    }

    /// The output that a request takes now, if it can go.
    fn choose(&mut self, now: Cycles, switch: SwitchId, request: &Request) -> Option<Channel> {
        if request.held.is_some() {
            return None;
        }
        let is_free = |&&output: &&Channel| self.available(now, output, request.length) == Some(now);
        if self.parameters.adaptive != Adaptive::Random {
            return request.outputs.iter().find(is_free).copied();
        }
        let free: Outputs = request.outputs.iter().filter(is_free).copied().collect();
        match free.len() {
            0 => None,
            1 => Some(free[0]),
            count => Some(free[self.random[switch.index()].random_range(0..count)]),
        }
    }

    /// Grants an output to a copy. It goes at once; with synchronous replication, when all copies of its packet have
    /// outputs.
    fn grant(
        &mut self,
        agenda: &mut Agenda,
        live: &Live,
        observer: &mut impl Observer,
        waiting: &mut Vec<Request>,
        index: usize,
        output: Channel,
    ) {
        let input = waiting[index].input;
        let packet = self.inputs[input.0 as usize].queue[0];
        let synchronous = self.parameters.replication == Replication::Synchronous;
        self.inputs[input.0 as usize].waiting -= 1;
        let last = self.inputs[input.0 as usize].waiting == 0;
        if synchronous && !last {
            waiting[index].held = Some(output);
            self.free_at[output.link.index()] = HELD;
            return;
        }
        let length = waiting[index].length;
        if last {
            self.leave(agenda, live, input, packet.length - length);
        }
        let granted = waiting.remove(index);
        self.send_copy(agenda, live, observer, packet, &granted, output);
        if synchronous {
            for held in waiting.extract_if(.., |request| request.input == input) {
                let output = held.held.expect("all copies have outputs");
                self.send_copy(agenda, live, observer, packet, &held, output);
            }
        }
    }

    fn send_copy(
        &mut self,
        agenda: &mut Agenda,
        live: &Live,
        observer: &mut impl Observer,
        packet: Packet,
        request: &Request,
        output: Channel,
    ) {
        let progress = self.router.onward(request.progress, output.link);
        let copy = Packet { length: request.length, progress, ..packet };
        self.send(agenda, live, observer, output, copy, self.parameters.crossbar_delay);
    }

    /// The packet at the head of a buffer begins to leave it.
    fn leave(&mut self, agenda: &mut Agenda, live: &Live, input: InputId, stripped: Flits) {
        let now = agenda.now;
        let state = &mut self.inputs[input.0 as usize];
        let packet = state.queue.pop_front().expect("a packet that leaves was at the head");
        if let Some(before) = state.leaving.replace(Leaving { since: now, length: packet.length, stripped }) {
            debug_assert!(before.gone() <= now, "a packet is routed when the one before it is gone");
            state.taken = state.taken - before.length;
        }
        if !state.queue.is_empty() {
            self.plan_routing(agenda, live, input);
        }
        // Whoever waits for room looks again a cycle later.
        match self.topology.link(self.link_of(input)).from {
            Vertex::Host(host) if !self.injections[host.index()].queue.is_empty() => {
                self.plan_injection(agenda, host, now + Cycles(1));
            }
            Vertex::Switch(switch) if !self.switches[switch.index()].waiting.is_empty() => {
                self.plan_switch(agenda, switch, now + Cycles(1));
            }
            _ => {}
        }
    }

    /// Plans when the packet at the head of a buffer will be routed: when the one before it is gone and its header is
    /// there; and what the switch takes off must have come before what follows it can leave.
    fn plan_routing(&mut self, agenda: &mut Agenda, live: &Live, input: InputId) {
        let state = &self.inputs[input.0 as usize];
        let Packet { slot, worm, progress, arrival, .. } = state.queue[0];
        let gone = state.leaving.map_or(Cycles::ZERO, |leaving| leaving.gone());
        let way = &live[slot].worms[worm as usize].way;
        let read = arrival + Cycles(self.router.fields(way, progress).0 - 1);
        let stripped = arrival + Cycles(self.router.stripped(way, progress).0);
        agenda.at((read.max(gone) + self.parameters.routing_delay).max(stripped), Event::Routed(input));
    }

    /// Sends a packet over a channel: it holds the link until its tail has gone, and takes room at the far end.
    fn send(
        &mut self,
        agenda: &mut Agenda,
        live: &Live,
        observer: &mut impl Observer,
        channel: Channel,
        packet: Packet,
        crossbar: Cycles,
    ) {
        let Packet { slot, worm, packet: number, length, .. } = packet;
        let (from, to) = (agenda.now, agenda.now + Cycles(length.0));
        self.free_at[channel.link.index()] = to;
        let multicast = live[slot].occasion.number;
        let track = Track::Link(channel);
        observer.carried(
            &Slice { track, from, to, work: Work::Transfer, multicast, worm, packet: number },
            length,
        );
        let inside = self.topology.is_internal(channel.link);
        let arrival = from + crossbar + if inside { Cycles::ZERO } else { self.parameters.link_delay };
        match self.topology.link(channel.link).to {
            Vertex::Host(host) => {
                let copy = PacketCopy { slot, worm, packet: number };
                agenda.at(arrival + Cycles(length.0 - 1), Event::PacketArrived { host, copy });
            }
            Vertex::Switch(_) => {
                let input = self.input_at(channel);
                let state = &mut self.inputs[input.0 as usize];
                state.taken += length;
                state.queue.push_back(Packet { arrival, ..packet });
                if state.queue.len() == 1 {
                    self.plan_routing(agenda, live, input);
                }
            }
        }
    }

    /// When it is worth while to look whether a packet can go over a channel: now only if it can. `None` where that depends
    /// on packets that wait themselves.
    fn available(&self, now: Cycles, channel: Channel, length: Flits) -> Option<Cycles> {
        match self.free_at[channel.link.index()] {
            HELD => None,
            free_at if free_at > now => Some(free_at),
            _ => self.room_at(channel, length).map(|time| time.max(now)),
        }
    }

    /// From when on the buffer behind a channel has room for a packet; `None` where that depends on packets that wait.
    fn room_at(&self, channel: Channel, length: Flits) -> Option<Cycles> {
        let Vertex::Switch(_) = self.topology.link(channel.link).to else { return Some(Cycles::ZERO) };
        let state = &self.inputs[self.input_at(channel).0 as usize];
        let missing = Flits((state.taken + length).0.saturating_sub(self.parameters.buffer_flits.0));
        if missing == Flits::ZERO {
            return Some(Cycles::ZERO);
        }
        let leaving = state.leaving.filter(|leaving| missing <= leaving.length)?;
        Some(leaving.left(missing))
    }

    fn input_at(&self, channel: Channel) -> InputId {
        InputId(channel.link.0 * self.virtual_channels + u32::from(channel.virtual_channel))
    }

    fn link_of(&self, input: InputId) -> LinkId {
        LinkId(input.0 / self.virtual_channels)
    }

    fn channel_of(&self, input: InputId) -> Channel {
        let virtual_channel = (input.0 % self.virtual_channels) as u8;
        Channel { link: self.link_of(input), virtual_channel }
    }

    fn switch_of(&self, input: InputId) -> SwitchId {
        self.topology.link(self.link_of(input)).to.switch().expect("input buffers are at switches")
    }

    /// The packets that will never go on, and a cycle among them; `None` where everything moves.
    ///
    /// A copy may still go if one of its outputs may: if its link is free or busy, or held for a packet that will leave,
    /// and the buffer behind it has room, or gets it from what leaves, or from a packet at its head that will leave. A
    /// packet will leave if all its copies may still go. What is left when nothing more can be said to leave waits for
    /// packets that wait in turn: whatever else happens, none of them goes on.
    pub fn deadlock(&self, live: &Live) -> Option<(usize, Vec<Wait>)> {
        let requests = || self.switches.iter().flat_map(|switch| &switch.waiting);
        let mut stuck: Vec<bool> = self.inputs.iter().map(|input| input.waiting > 0).collect();
        let mut holders = std::collections::BTreeMap::new();
        for request in requests() {
            holders.extend(request.held.map(|output| (output.link, request.input)));
        }
        // Whom a request waits for by each of its outputs; an error where it waits for nobody.
        let blocker = |output: Channel, length: Flits| -> Option<InputId> {
            if let Some(&holder) = holders.get(&output.link) {
                return Some(holder);
            }
            self.room_at(output, length).is_none().then(|| self.input_at(output))
        };
        loop {
            let mut moves: Vec<bool> = stuck.iter().map(|_| true).collect();
            for request in requests().filter(|request| request.held.is_none()) {
                let blocked = |&output: &Channel| {
                    blocker(output, request.length).is_some_and(|input| stuck[input.0 as usize])
                };
                moves[request.input.0 as usize] &= !request.outputs.iter().all(blocked);
            }
            let freed = stuck.iter().zip(&moves).filter(|&(&stuck, &moves)| stuck && moves).count();
            if freed == 0 {
                break;
            }
            for (stuck, moves) in stuck.iter_mut().zip(moves) {
                *stuck &= !moves;
            }
        }
        let mut waits = Vec::new();
        let mut place = vec![usize::MAX; self.inputs.len()];
        for request in requests().filter(|request| request.held.is_none() && stuck[request.input.0 as usize])
        {
            let wants = request.outputs[0];
            let Some(next) = blocker(wants, request.length).filter(|next| stuck[next.0 as usize]) else {
                continue;
            };
            let blocked_all = request
                .outputs
                .iter()
                .all(|&output| blocker(output, request.length).is_some_and(|next| stuck[next.0 as usize]));
            if blocked_all && place[request.input.0 as usize] == usize::MAX {
                place[request.input.0 as usize] = waits.len();
                waits.push((request.input, next, wants));
            }
        }
        if waits.is_empty() {
            return None;
        }
        let next: Vec<usize> = waits.iter().map(|&(_, next, _)| place[next.0 as usize]).collect();
        let cycle = crate::Deadlock::cycle_among(&next).into_iter().map(|index| {
            let (input, _, wants) = waits[index];
            let Packet { slot, worm, packet, .. } = self.inputs[input.0 as usize].queue[0];
            let multicast = live[slot].occasion.number;
            Wait { multicast, worm, packet, at: self.channel_of(input), wants }
        });
        Some((waits.len(), cycle.collect()))
    }
}

/// Who is served first: the lowest rank. Where inputs take turns it is the order in which they ask.
fn rank(arbitration: Arbitration, since: Cycles, input: InputId) -> (Cycles, InputId) {
    match arbitration {
        Arbitration::OldestFirst => (since, input),
        Arbitration::LowestLink | Arbitration::RoundRobin => (Cycles::ZERO, input),
    }
}
