//! Switches and links: input buffers, outputs, and who gets them.
//!
//! Virtual cut-through: an output is granted to a packet when its link is free and the input buffer at its other end has
//! room for the whole packet. From then on the packet leaves at one flit a cycle without a pause, so one number says
//! when each of its flits is where. Copies of a replicated packet are granted one by one, each when it can go
//! (asynchronous replication); the packet leaves its buffer with the copy that was granted last.

use std::collections::VecDeque;

use rand::RngExt;
use rand_pcg::Pcg64;
use treecast_fabric::{Channel, Cycles, Flits, HostId, LinkId, SwitchId, Topology, Vertex};

use super::way::{Progress, Ways};
use super::{Agenda, Event};
use crate::{Adaptive, Arbitration, Parameters, Run};

/// An input buffer: a virtual channel of a link into a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InputId(u32);

/// A packet, or a copy of one, in the fabric.
#[derive(Debug, Clone)]
struct Packet {
    worm: u32,
    packet: u32,
    /// With what is left of its header.
    length: Flits,
    progress: Progress,
    /// When its first flit arrived in the buffer that it is in.
    arrived: Cycles,
}

/// What the packet at the head of an input buffer is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Head {
    /// There is none whose header has arrived, or it is being routed.
    Idle,
    /// So many of its copies wait for outputs.
    Waiting { copies: u32, stripped: Flits },
    /// All copies have outputs; the last one began to leave then.
    Leaving { since: Cycles, stripped: Flits },
}

#[derive(Debug)]
struct Input {
    /// Packets whose headers have arrived, the first of them at the head.
    queue: VecDeque<Packet>,
    /// Packets that were granted room and whose headers are under way.
    coming: VecDeque<Packet>,
    head: Head,
    /// Room taken by all of them, the flits that have left since the head began to leave still counted.
    taken: Flits,
}

/// A copy that waits for an output.
#[derive(Debug)]
struct Request {
    since: Cycles,
    input: InputId,
    outputs: Vec<Channel>,
    packet: Packet,
}

#[derive(Debug, Default)]
struct Switch {
    waiting: Vec<Request>,
    /// When it is looked at next anyway.
    wake: Option<Cycles>,
}

#[derive(Debug, Default)]
struct Injection {
    queue: VecDeque<(Channel, Packet)>,
    wake: Option<Cycles>,
}

pub(super) struct Network<'a> {
    topology: &'a Topology,
    parameters: &'a Parameters,
    ways: Ways<'a>,
    virtual_channels: u32,
    inputs: Vec<Input>,
    /// When each link is free again.
    free_at: Vec<Cycles>,
    switches: Vec<Switch>,
    injections: Vec<Injection>,
    /// Switches and injections to look at in this cycle.
    woken_switches: Vec<SwitchId>,
    woken_injections: Vec<HostId>,
    random: Pcg64,
    injected: Vec<bool>,
}

/// The stream of a seed that makes adaptive choices.
const ADAPTIVE_STREAM: u128 = 0x6164_6170;

impl<'a> Network<'a> {
    pub fn new(run: &Run<'a>, ways: Ways<'a>) -> Self {
        let topology = run.fabric.topology();
        let virtual_channels = u32::from(run.fabric.routing().virtual_channel_count());
        let input = || Input {
            queue: VecDeque::new(),
            coming: VecDeque::new(),
            head: Head::Idle,
            taken: Flits::ZERO,
        };
        Self {
            topology,
            parameters: run.parameters,
            ways,
            virtual_channels,
            inputs: (0..topology.link_count() * virtual_channels).map(|_| input()).collect(),
            free_at: vec![Cycles::ZERO; topology.link_count() as usize],
            switches: (0..topology.switch_count()).map(|_| Switch::default()).collect(),
            injections: (0..topology.host_count()).map(|_| Injection::default()).collect(),
            woken_switches: Vec::new(),
            woken_injections: Vec::new(),
            random: Pcg64::new(u128::from(run.seed), ADAPTIVE_STREAM),
            injected: vec![false; run.plan.worms().len()],
        }
    }

    /// How many worms have been put into the fabric.
    pub fn worms_injected(&self) -> u32 {
        self.injected.iter().filter(|&&injected| injected).count() as u32
    }

    /// Puts a packet of a worm into a host's injection queue. The queue is bounded by the packets of the message times
    /// the worms of its host.
    pub fn inject(&mut self, host: HostId, worm: u32, packet: u32, payload: Flits) {
        let (channel, progress) = self.ways.begin(worm, host);
        let length = payload + self.ways.header(worm);
        self.injected[worm as usize] = true;
        self.injections[host.index()]
            .queue
            .push_back((channel, Packet { worm, packet, length, progress, arrived: Cycles::ZERO }));
        self.woken_injections.push(host);
    }

    pub fn header_arrived(&mut self, agenda: &mut Agenda, input: InputId) {
        let state = &mut self.inputs[input.0 as usize];
        let packet = state.coming.pop_front().expect("a packet was granted room here");
        state.queue.push_back(Packet { arrived: agenda.now, ..packet });
        if state.queue.len() == 1 {
            self.begin_routing(agenda, input);
        }
    }

    /// Routes the packet at the head of a buffer, as soon as its header is there. What the switch takes off must have come
    /// before what follows it can leave.
    fn begin_routing(&mut self, agenda: &mut Agenda, input: InputId) {
        let packet = &self.inputs[input.0 as usize].queue[0];
        let fields = self.ways.fields(packet.worm, &packet.progress);
        let stripped = self.ways.stripped(packet.worm, &packet.progress);
        let read = packet.arrived + Cycles(fields.0 - 1);
        let routed = read.max(agenda.now) + self.parameters.routing_delay;
        agenda.at(routed.max(packet.arrived + Cycles(stripped.0)), Event::Routed(input));
    }

    pub fn routed(&mut self, now: Cycles, input: InputId) {
        let at = self.switch_of(input);
        let state = &mut self.inputs[input.0 as usize];
        let packet = &state.queue[0];
        let stripped = self.ways.stripped(packet.worm, &packet.progress);
        let mut branches = self.ways.branches(packet.worm, at, &packet.progress);
        if self.parameters.adaptive == Adaptive::Lowest {
            for branch in &mut branches {
                branch.outputs.truncate(1);
            }
        }
        debug_assert!(!branches.is_empty(), "a worm goes on from every switch that it comes to");
        state.head = Head::Waiting { copies: branches.len() as u32, stripped };
        let length = packet.length - stripped;
        let (worm, number) = (packet.worm, packet.packet);
        self.switches[at.index()].waiting.extend(branches.into_iter().map(|branch| Request {
            since: now,
            input,
            outputs: branch.outputs,
            packet: Packet { worm, packet: number, length, progress: branch.progress, arrived: Cycles::ZERO },
        }));
        self.woken_switches.push(at);
    }

    pub fn tail_left(&mut self, agenda: &mut Agenda, input: InputId) {
        let state = &mut self.inputs[input.0 as usize];
        let packet = state.queue.pop_front().expect("the packet that left was at the head");
        state.taken = state.taken - packet.length;
        state.head = Head::Idle;
        if !state.queue.is_empty() {
            self.begin_routing(agenda, input);
        }
    }

    pub fn wake_switch(&mut self, switch: SwitchId) {
        self.switches[switch.index()].wake = None;
        self.woken_switches.push(switch);
    }

    pub fn wake_injection(&mut self, host: HostId) {
        self.injections[host.index()].wake = None;
        self.woken_injections.push(host);
    }

    /// Looks at every switch and every injection link in this cycle.
    #[cfg(test)]
    pub fn wake_all(&mut self) {
        self.woken_switches.extend(self.topology.switches());
        self.woken_injections.extend(self.topology.hosts());
    }

    /// Grants injection links to whoever waits for them and can go now.
    pub fn grant_injections(&mut self, agenda: &mut Agenda) {
        let mut hosts = std::mem::take(&mut self.woken_injections);
        hosts.sort_unstable();
        hosts.dedup();
        for host in hosts.drain(..) {
            self.grant_injection(agenda, host);
        }
        self.woken_injections = hosts;
    }

    /// Grants outputs of switches to whoever waits for them and can go now.
    pub fn grant_switches(&mut self, agenda: &mut Agenda) {
        let mut switches = std::mem::take(&mut self.woken_switches);
        switches.sort_unstable();
        switches.dedup();
        for switch in switches.drain(..) {
            self.grant_switch(agenda, switch);
        }
        self.woken_switches = switches;
    }

    fn grant_injection(&mut self, agenda: &mut Agenda, host: HostId) {
        let Some((channel, packet)) = self.injections[host.index()].queue.front() else { return };
        let channel = *channel;
        match self.available(agenda.now, channel, packet.length) {
            Some(time) if time == agenda.now => {
                let (_, packet) = self.injections[host.index()].queue.pop_front().expect("looked at");
                // A host has no crossbar: the first flit goes onto the link at once.
                self.send(agenda, channel, packet, Cycles::ZERO);
                if !self.injections[host.index()].queue.is_empty() {
                    self.plan_injection(agenda, host, self.free_at[channel.link.index()]);
                }
            }
            Some(time) => self.plan_injection(agenda, host, time),
            // Woken when the buffer behind the link begins to empty.
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

    fn grant_switch(&mut self, agenda: &mut Agenda, switch: SwitchId) {
        let mut waiting = std::mem::take(&mut self.switches[switch.index()].waiting);
        waiting.sort_by_key(|request| rank(self.parameters.arbitration, request.since, request.input));
        let mut left = Vec::new();
        for request in waiting {
            match self.choose(agenda.now, &request) {
                Some(output) => self.grant_request(agenda, request, output),
                None => left.push(request),
            }
        }
        let wake = left
            .iter()
            .flat_map(|request| request.outputs.iter().map(|&output| (output, request.packet.length)))
            .filter_map(|(output, length)| self.available(agenda.now, output, length))
            .min();
        debug_assert!(wake.is_none_or(|time| time > agenda.now), "who could go now has been granted");
        let state = &mut self.switches[switch.index()];
        state.waiting = left;
        if let Some(time) = wake
            && state.wake.is_none_or(|planned| planned > time)
        {
            state.wake = Some(time);
            agenda.at(time, Event::SwitchWake(switch));
        }
    }

    /// The output that a request takes now, if it can go.
    fn choose(&mut self, now: Cycles, request: &Request) -> Option<Channel> {
        let length = request.packet.length;
        let mut free =
            request.outputs.iter().filter(|&&output| self.available(now, output, length) == Some(now));
        if self.parameters.adaptive != Adaptive::Random {
            return free.next().copied();
        }
        let free: Vec<Channel> = free.copied().collect();
        match free.len() {
            0 => None,
            1 => Some(free[0]),
            count => Some(free[self.random.random_range(0..count)]),
        }
    }

    fn grant_request(&mut self, agenda: &mut Agenda, request: Request, output: Channel) {
        let Request { input, mut packet, .. } = request;
        packet.progress = self.ways.onward(packet.progress, output.link);
        let length = packet.length;
        self.send(agenda, output, packet, self.parameters.crossbar_delay);
        let state = &mut self.inputs[input.0 as usize];
        let Head::Waiting { copies, stripped } = state.head else {
            unreachable!("a head with requests waits")
        };
        if copies > 1 {
            state.head = Head::Waiting { copies: copies - 1, stripped };
            return;
        }
        state.head = Head::Leaving { since: agenda.now, stripped };
        agenda.after(Cycles(length.0), Event::TailLeft(input));
        self.wake_upstream(agenda, input);
    }

    /// Whoever waits for room in a buffer that begins to empty looks again a cycle later.
    fn wake_upstream(&mut self, agenda: &mut Agenda, input: InputId) {
        let time = agenda.now + Cycles(1);
        match self.topology.link(self.link_of(input)).from {
            Vertex::Host(host) if !self.injections[host.index()].queue.is_empty() => {
                self.plan_injection(agenda, host, time);
            }
            Vertex::Switch(switch) if !self.switches[switch.index()].waiting.is_empty() => {
                let state = &mut self.switches[switch.index()];
                if state.wake.is_none_or(|planned| planned > time) {
                    state.wake = Some(time);
                    agenda.at(time, Event::SwitchWake(switch));
                }
            }
            _ => {}
        }
    }

    /// Sends a packet over a channel: it holds the link until its tail has gone, and takes room at the far end.
    fn send(&mut self, agenda: &mut Agenda, channel: Channel, packet: Packet, crossbar: Cycles) {
        let length = packet.length;
        self.free_at[channel.link.index()] = agenda.now + Cycles(length.0);
        let inside = self.topology.is_internal(channel.link);
        let link = if inside { Cycles::ZERO } else { self.parameters.link_delay };
        let arrival = agenda.now + crossbar + link;
        match self.topology.link(channel.link).to {
            Vertex::Host(host) => {
                let Packet { worm, packet, .. } = packet;
                let event = Event::PacketArrived { host, worm, packet };
                agenda.at(arrival + Cycles(length.0 - 1), event);
            }
            Vertex::Switch(_) => {
                let input = self.input_at(channel);
                let state = &mut self.inputs[input.0 as usize];
                state.taken += length;
                state.coming.push_back(packet);
                agenda.at(arrival, Event::HeaderArrived(input));
            }
        }
    }

    /// The earliest time at which a packet could go over a channel, by what is known now; `None` where it depends on
    /// packets that wait themselves.
    fn available(&self, now: Cycles, channel: Channel, length: Flits) -> Option<Cycles> {
        let link_free = self.free_at[channel.link.index()].max(now);
        let Vertex::Switch(_) = self.topology.link(channel.link).to else { return Some(link_free) };
        let state = &self.inputs[self.input_at(channel).0 as usize];
        let missing = (state.taken + length).0.saturating_sub(self.parameters.buffer_flits.0);
        if missing == 0 {
            return Some(link_free);
        }
        let Head::Leaving { since, stripped } = state.head else { return None };
        if missing > state.queue[0].length.0 {
            return None;
        }
        // What the switch strips goes with the first flit; then a flit leaves a cycle.
        let room_at = since + Cycles(missing.saturating_sub(stripped.0).max(1));
        Some(link_free.max(room_at))
    }

    fn input_at(&self, channel: Channel) -> InputId {
        InputId(channel.link.0 * self.virtual_channels + u32::from(channel.virtual_channel))
    }

    fn link_of(&self, input: InputId) -> LinkId {
        LinkId(input.0 / self.virtual_channels)
    }

    fn switch_of(&self, input: InputId) -> SwitchId {
        self.topology.link(self.link_of(input)).to.switch().expect("input buffers are at switches")
    }
}

/// Who is served first: the lowest rank.
fn rank(arbitration: Arbitration, since: Cycles, input: InputId) -> (Cycles, InputId) {
    match arbitration {
        Arbitration::OldestFirst => (since, input),
        Arbitration::LowestLink => (Cycles::ZERO, input),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arbitration_serves_the_oldest_or_the_lowest_link() {
        let earlier_higher = (Cycles(3), InputId(2));
        let later_lower = (Cycles(5), InputId(1));
        let before = |arbitration, a: (Cycles, InputId), b: (Cycles, InputId)| {
            rank(arbitration, a.0, a.1) < rank(arbitration, b.0, b.1)
        };
        assert!(before(Arbitration::OldestFirst, earlier_higher, later_lower));
        assert!(before(Arbitration::LowestLink, later_lower, earlier_higher));
        assert!(before(Arbitration::OldestFirst, (Cycles(5), InputId(1)), (Cycles(5), InputId(2))));
    }
}
