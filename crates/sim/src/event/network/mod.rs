//! Switches and links: input buffers, outputs and arbitration.
//!
//! Virtual cut-through: an output is granted to a packet when its link is free and the input buffer
//! at the link's end has room for the whole packet. From then on the packet leaves at one flit per
//! cycle without a pause, so one number gives the position of each of its flits, and no events are
//! scheduled for them: a packet costs one event per switch, when it is routed. The room of a buffer
//! at a later time is computed from these numbers.

mod deadlock;
mod grant;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand_pcg::Pcg64;
use treecast_fabric::{Channel, HostId, LinkId, SwitchId, Topology, Vertex};
use treecast_terms::{Cycles, Flits};

use super::host::PacketCopy;
use super::in_flight::{InFlight, Slot};
use super::{Event, EventQueue};
use crate::observer::{Observer, Slice, Track, Work};
use crate::parameters::{Adaptive, Arbitration, Parameters};
use crate::path::{Branch, Progress, Router, random_stream};
use crate::setting::Setting;

/// An input buffer: a virtual channel of a link into a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InputId(u32);

impl InputId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A packet, or a copy of one, in the fabric.
#[derive(Debug, Clone, Copy)]
struct Packet {
    slot: Slot,
    worm: u32,
    packet: u32,
    /// With the rest of its header.
    length: Flits,
    progress: Progress,
    /// When its head flit arrives, or arrived, in its next or current buffer.
    arrival: Cycles,
}

/// The packet that started last to leave a buffer.
#[derive(Debug, Clone, Copy)]
struct Departure {
    since: Cycles,
    length: Flits,
    /// Stripped flits leave with the first flit that is forwarded.
    stripped: Flits,
}

impl Departure {
    /// The cycle from which the whole packet has left.
    fn ends_at(&self) -> Cycles {
        self.since + Cycles(self.length.0 - self.stripped.0)
    }

    /// The cycle from which `flits` of its flits have left.
    fn left_at(&self, flits: Flits) -> Cycles {
        self.since + Cycles(flits.0.saturating_sub(self.stripped.0).max(1))
    }
}

/// A copy of the packet at the head of a buffer.
#[derive(Debug, Clone)]
struct Copy {
    branch: Branch,
    /// Whether it is queued at its candidate outputs. A new copy is not.
    is_queued: bool,
    /// The granted output. With synchronous replication it is held until the other copies have
    /// theirs.
    output: Option<Channel>,
}

#[derive(Debug, Clone, Default)]
struct Input {
    /// Packets that have reserved room and have not started to leave, in their order.
    queue: VecDeque<Packet>,
    /// The copies of the first packet, once it is routed.
    copies: Vec<Copy>,
    /// The number of copies without an output.
    waiting: u32,
    /// The length of each copy.
    length_onward: Flits,
    departure: Option<Departure>,
    /// Room taken by the queued packets and by the departing one, including its flits that have
    /// left.
    taken: Flits,
}

impl Input {
    /// How many flits of the departing packet have left, as far as that is visible.
    fn left(&self, now: Cycles) -> u64 {
        let Some(Departure { since, length, stripped }) = self.departure else { return 0 };
        if since < now { length.0.min(now.0 - since.0 + stripped.0) } else { 0 }
    }
}

/// The request of a copy for an output. The order of the fields is the order of service; `since` is
/// zero where the arbitration ignores age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    since: Cycles,
    input: InputId,
    copy: u32,
}

/// The output side of a link.
#[derive(Debug, Clone, Default)]
struct Output {
    /// When it is free again; [`HELD`] while a copy holds it.
    free_at: Cycles,
    /// Its waiting requests, in the order of service.
    waiting: Vec<Request>,
    /// When its next check is scheduled.
    wake: Option<Cycles>,
    /// The input that it served last, for round-robin arbitration.
    last_served: Option<InputId>,
}

#[derive(Debug, Default)]
struct Injection {
    queue: VecDeque<Packet>,
    wake: Option<Cycles>,
}

/// `free_at` of a link that a copy holds under synchronous replication: not known.
const HELD: Cycles = Cycles(u64::MAX);

/// Appends to a queue. On most hosts of a large fabric it never holds more than one packet.
fn push(queue: &mut VecDeque<Packet>, packet: Packet) {
    if queue.capacity() == 0 {
        queue.reserve_exact(1);
    }
    queue.push_back(packet);
}

pub(super) struct Network<'a> {
    topology: &'a Topology,
    parameters: &'a Parameters,
    router: Router<'a>,
    virtual_channels: u32,
    seed: u64,
    inputs: Vec<Input>,
    /// By link, how many inputs those before it have, and all at the end. Links into hosts have
    /// none.
    inputs_before: Vec<u32>,
    /// The links that have inputs.
    links_with_inputs: Vec<LinkId>,
    /// By link.
    outputs: Vec<Output>,
    injections: Vec<Injection>,
    /// To be checked in this cycle: new requests, output links and injection links.
    new_requests: Vec<Request>,
    woken: Vec<LinkId>,
    woken_injections: Vec<HostId>,
    /// The generator of each switch, where routing is `adaptive=random`.
    random: Vec<Pcg64>,
    /// Scratch space, kept to avoid allocation.
    branches: Vec<Branch>,
    contenders: BinaryHeap<Reverse<(Request, Option<LinkId>)>>,
}

impl<'a> Network<'a> {
    pub fn new(setting: &Setting<'a>) -> Self {
        let (topology, parameters) = (setting.fabric.topology(), setting.parameters);
        let virtual_channels = u32::from(setting.fabric.routing().virtual_channel_count());
        let links = topology.link_count() as usize;
        let all_links = || (0..topology.link_count()).map(LinkId);
        let has_inputs = |&link: &LinkId| matches!(topology.link(link).to, Vertex::Switch(_));
        let links_with_inputs: Vec<LinkId> = all_links().filter(has_inputs).collect();
        let mut input_count = 0;
        let mut inputs_before = Vec::with_capacity(links + 1);
        for link in all_links() {
            inputs_before.push(input_count);
            input_count += if has_inputs(&link) { virtual_channels } else { 0 };
        }
        inputs_before.push(input_count);
        let stream = |switch| random_stream(setting.seed, switch);
        let chooses = parameters.adaptive == Adaptive::Random;
        Self {
            topology,
            parameters,
            router: Router::new(setting.fabric, parameters),
            virtual_channels,
            seed: setting.seed,
            inputs: vec![Input::default(); input_count as usize],
            inputs_before,
            links_with_inputs,
            outputs: vec![Output::default(); links],
            injections: topology.hosts().map(|_| Injection::default()).collect(),
            new_requests: Vec::new(),
            woken: Vec::new(),
            woken_injections: Vec::new(),
            random: if chooses { topology.switches().map(stream).collect() } else { Vec::new() },
            branches: Vec::new(),
            contenders: BinaryHeap::new(),
        }
    }

    /// Queues a packet for injection. The queue is bounded by the packets of the multicasts in
    /// flight times the worms of the host.
    pub fn inject(&mut self, in_flight: &InFlight, host: HostId, copy: PacketCopy) {
        let PacketCopy { slot, worm, packet } = copy;
        let multicast = &in_flight[slot];
        let path = &multicast.worms[worm as usize].path;
        let length = multicast.payload(packet) + path.header;
        let progress = path.initial_progress(self.seed, packet);
        let packet = Packet { slot, worm, packet, length, progress, arrival: Cycles::ZERO };
        push(&mut self.injections[host.index()].queue, packet);
        self.woken_injections.push(host);
    }

    /// The packet at the head of a buffer is routed: its copies request outputs.
    pub fn routed(&mut self, now: Cycles, in_flight: &mut InFlight, input: InputId) {
        let at = self.switch_of(input);
        let mut packet = self.inputs[input.index()].queue[0];
        let path = &in_flight[packet.slot].worms[packet.worm as usize].path;
        packet.progress = self.router.chosen(path, packet.progress, |link| self.waiting_for(now, link));
        let state = &mut self.inputs[input.index()];
        let path = &mut in_flight.get_mut(packet.slot).worms[packet.worm as usize].path;
        state.length_onward = packet.length - self.router.stripped(path, packet.progress);
        self.router.branches(path, at, packet.progress, &mut self.branches);
        debug_assert!(!self.branches.is_empty(), "a worm leaves every switch that it reaches");
        let copy = |branch| Copy { branch, is_queued: false, output: None };
        state.copies.reserve_exact(self.branches.len());
        state.copies.extend(self.branches.drain(..).map(copy));
        state.waiting = state.copies.len() as u32;
        // Where the arbitration ignores age, all requests are of the same age.
        let since = match self.parameters.arbitration {
            Arbitration::OldestFirst => now,
            Arbitration::LowestLink | Arbitration::RoundRobin => Cycles::ZERO,
        };
        self.new_requests.extend((0..state.waiting).map(|copy| Request { since, input, copy }));
    }

    /// The packet at the head of a buffer starts to leave.
    fn leave(&mut self, events: &mut EventQueue, in_flight: &InFlight, input: InputId, stripped: Flits) {
        let now = events.now;
        let state = &mut self.inputs[input.index()];
        let packet = state.queue.pop_front().expect("a packet that leaves is at the head");
        if let Some(before) =
            state.departure.replace(Departure { since: now, length: packet.length, stripped })
        {
            debug_assert!(before.ends_at() <= now, "a packet is routed after the previous one has left");
            state.taken = state.taken - before.length;
        }
        if !state.queue.is_empty() {
            self.schedule_routing(events, in_flight, input);
        }
        // Room is visible one cycle later. Requests that wait for the link itself are checked when
        // it becomes free.
        let link = self.link_of(input);
        let Output { free_at, waiting, .. } = &self.outputs[link.index()];
        if *free_at > now + Cycles(1) {
            return;
        }
        match self.topology.link(link).from {
            Vertex::Host(host) if !self.injections[host.index()].queue.is_empty() => {
                self.schedule_injection(events, host, now + Cycles(1));
            }
            Vertex::Switch(_) if !waiting.is_empty() => self.schedule_output(events, link, now + Cycles(1)),
            _ => {}
        }
    }

    /// Schedules the routing of the packet at the head of a buffer: after the previous packet has
    /// left and its header has arrived. The flits that the switch strips off must have arrived
    /// before the next one can leave.
    fn schedule_routing(&mut self, events: &mut EventQueue, in_flight: &InFlight, input: InputId) {
        let state = &self.inputs[input.index()];
        let Packet { slot, worm, progress, arrival, .. } = state.queue[0];
        let gone = state.departure.map_or(Cycles::ZERO, |departure| departure.ends_at());
        let path = &in_flight[slot].worms[worm as usize].path;
        let read = arrival + Cycles(self.router.flits_to_route(path, progress).0 - 1);
        let stripped = arrival + Cycles(self.router.stripped(path, progress).0);
        events.schedule((read.max(gone) + self.parameters.routing_delay).max(stripped), Event::Routed(input));
    }

    /// Sends a packet over a channel: it occupies the link until its tail has left, and reserves
    /// room at the link's end.
    fn send(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
        channel: Channel,
        packet: Packet,
        crossbar: Cycles,
    ) {
        let Packet { slot, worm, packet: number, length, .. } = packet;
        let (from, to) = (events.now, events.now + Cycles(length.0));
        self.outputs[channel.link.index()].free_at = to;
        let multicast = in_flight[slot].parameters.number;
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
                events.schedule(arrival + Cycles(length.0 - 1), Event::PacketArrived { host, copy });
            }
            Vertex::Switch(_) => {
                let input = self.input_at(channel);
                let state = &mut self.inputs[input.index()];
                state.taken += length;
                push(&mut state.queue, Packet { arrival, ..packet });
                if state.queue.len() == 1 {
                    self.schedule_routing(events, in_flight, input);
                }
            }
        }
    }

    /// The earliest cycle in which a packet can be sent over a channel; now only if it can be sent
    /// now. `None` where that depends on packets that wait themselves.
    fn available_at(&self, now: Cycles, channel: Channel, length: Flits) -> Option<Cycles> {
        match self.outputs[channel.link.index()].free_at {
            HELD => None,
            free_at if free_at > now => Some(free_at),
            _ => self.room_at(channel, length).map(|time| time.max(now)),
        }
    }

    /// The cycle from which the buffer at the end of a channel has room for a packet; `None` where
    /// that depends on packets that wait.
    fn room_at(&self, channel: Channel, length: Flits) -> Option<Cycles> {
        let Vertex::Switch(_) = self.topology.link(channel.link).to else { return Some(Cycles::ZERO) };
        let state = &self.inputs[self.input_at(channel).index()];
        let missing = Flits((state.taken + length).0.saturating_sub(self.parameters.buffer_flits.0));
        if missing == Flits::ZERO {
            return Some(Cycles::ZERO);
        }
        let departure = state.departure.filter(|departure| missing <= departure.length)?;
        Some(departure.left_at(missing))
    }

    /// The flits in the buffers at the end of a link, and those of the copies that have requested
    /// it in earlier cycles.
    fn waiting_for(&self, now: Cycles, link: LinkId) -> u64 {
        let buffers = self.inputs_of(link).map(|input| &self.inputs[input.index()]);
        let buffered = buffers.map(|state| state.taken.0 - state.left(now));
        let requests = self.outputs[link.index()].waiting.iter();
        let requested = requests.map(|request| self.inputs[request.input.index()].length_onward.0);
        buffered.chain(requested).sum()
    }

    fn inputs_of(&self, link: LinkId) -> impl Iterator<Item = InputId> + use<> {
        (self.inputs_before[link.index()]..self.inputs_before[link.index() + 1]).map(InputId)
    }

    fn input_at(&self, channel: Channel) -> InputId {
        InputId(self.inputs_before[channel.link.index()] + u32::from(channel.virtual_channel))
    }

    fn link_of(&self, input: InputId) -> LinkId {
        self.links_with_inputs[(input.0 / self.virtual_channels) as usize]
    }

    fn channel_of(&self, input: InputId) -> Channel {
        let virtual_channel = (input.0 % self.virtual_channels) as u8;
        Channel { link: self.link_of(input), virtual_channel }
    }

    fn switch_of(&self, input: InputId) -> SwitchId {
        self.topology.link(self.link_of(input)).to.switch().expect("input buffers are at switches")
    }
}
