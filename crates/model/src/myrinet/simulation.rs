//! The state of a run, and its events.

use std::collections::{BTreeMap, VecDeque};

use rand::RngExt;
use rand_pcg::Pcg64;
use treecast_fabric::{HostId, RouteFinder};
use treecast_sim::Offload;
use treecast_terms::{Bytes, Picoseconds};

use super::credits::{BufferCredits, Manager};
use super::node::{GmEvent, Job, Node, Packet, Post, Transmission};
use super::parameters::Parameters;
use super::policies::{Layer, Operation};
use super::row::Row;
use super::stream::Stream;
use super::transits::Transits;
use super::tree::{Tree, members};
use super::unicast_stream::UnicastStream;
use crate::kernel::{EventQueue, Network, Server};
use crate::task::Task;

/// The number of successive timeouts of a stream without an acknowledgment after which the run is
/// aborted.
pub(super) const TIMEOUTS_MAX: u32 = 64;

/// The time limit of a run: 19 minutes.
const TIME_MAX: Picoseconds = Picoseconds(1 << 50);

/// The size of an event record that the NIC writes into host memory.
pub(super) const EVENT: Bytes = Bytes(16);

const LOSS_STREAM: u128 = 0x6c6f_7373;
const SKEW_STREAM: u128 = 0x736b_6577;
const PAUSE_STREAM: u128 = 0x70_6175_7365;

/// An event. It is named after the stage that has completed.
#[derive(Debug)]
pub(super) enum Event {
    Entered(usize),
    Posted { node: usize, post: Post },
    TokenMade(Post),
    Fetched(Box<Job>),
    Prepared(Box<Job>),
    HeaderLeft(Box<Job>),
    Left { node: usize, job: Option<Box<Job>> },
    Arrived(Packet),
    Received { stream: usize, child: u32, number: u64, slot: usize },
    Copied { stream: usize, child: u32, slot: usize },
    Made { node: usize, transmission: Transmission },
    Acknowledged { stream: usize, child: u32, below: u64 },
    HousekeepingDone(usize),
    Credited { from: usize, to: usize },
    Raised { node: usize, notice: GmEvent },
    Noticed { node: usize, notice: GmEvent },
    Handled { node: usize, notice: GmEvent },
    GroupMade(usize),
    UnicastDue,
    TimedOut(usize),
}

/// The counters of a run.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub retransmissions: u64,
    pub lost: u64,
    /// Packets for which there was no receive token.
    pub refused: u64,
    /// Packets that were blocked in the network.
    pub held: u64,
}

/// A run.
#[derive(Debug)]
pub(super) struct Simulation<'a> {
    pub parameters: &'a Parameters,
    /// Which part of a host forwards.
    pub forwarder: Offload,
    /// Whether messages between hosts use a rendezvous.
    pub rendezvous: bool,
    /// Whether processes create the group before they return.
    pub makes_group: bool,
    pub message: Bytes,
    pub hosts: Vec<HostId>,
    pub trees: Vec<Tree>,
    pub events: EventQueue<'a, Event>,
    network: Network<'a>,
    finder: RouteFinder<'a>,
    loss: Pcg64,
    skew: Pcg64,
    /// How long the processes except for the root compute before each broadcast, round by round, as
    /// far as needed.
    computations: Vec<Picoseconds>,
    pub nodes: Vec<Node>,
    pub streams: Vec<Stream>,
    connections: BTreeMap<(usize, usize), usize>,
    queues: BTreeMap<(u32, usize), usize>,
    /// The number of users of the receive buffer of a message: by node, group, message.
    pub holds: BTreeMap<(usize, u32, u32), u32>,
    /// Rendezvous: the children of a node that have not been served.
    pub unserved: BTreeMap<(usize, u32, u32), VecDeque<usize>>,
    pub credits: Option<BufferCredits>,
    pub manager: Option<Manager>,
    pub unicasts: Option<UnicastStream>,
    /// The number of messages that the leaves of each group have not received.
    pub missing: Vec<u64>,
    /// The number of completions that the operation waits for.
    pub awaited: u64,
    pub row: Row,
    /// The mean time of a broadcast, once all are complete.
    pub completed: Option<Picoseconds>,
    pub aborted: bool,
    pub counts: Counts,
    pub transits: Transits,
    /// When the root's process has handled its last event, and the answer of the end of a path.
    pub root_event: Picoseconds,
    pub answered: Option<Picoseconds>,
    /// Packets as they reach host memory: node, stream, number.
    #[cfg(test)]
    pub journal: Vec<(usize, usize, u64)>,
    /// Barriers: node, round, and whether it has left.
    #[cfg(test)]
    pub barriers: Vec<(usize, u32, bool)>,
}

impl<'a> Simulation<'a> {
    /// A run before its first event.
    pub fn new(
        parameters: &'a Parameters,
        task: &Task<'a>,
        trees: Vec<Tree>,
        forwarder: Offload,
        rendezvous: bool,
    ) -> Self {
        let (fabric, placement) = (task.fabric, task.group.placement());
        let hosts: Vec<HostId> = members(task).into_iter().map(|member| placement.host_of(member)).collect();
        let mut simulation = Self {
            parameters,
            forwarder,
            rendezvous,
            makes_group: false,
            message: task.message,
            events: EventQueue::stopped_by(task.stop),
            network: Network::new(fabric, parameters.link_mb_per_s, parameters.hop),
            finder: RouteFinder::new(fabric.topology(), fabric.routing()),
            loss: Pcg64::new(u128::from(task.seed), LOSS_STREAM),
            skew: Pcg64::new(u128::from(task.seed), SKEW_STREAM),
            computations: Vec::new(),
            nodes: hosts.iter().map(|_| Node::default()).collect(),
            streams: Vec::new(),
            connections: BTreeMap::new(),
            queues: BTreeMap::new(),
            holds: BTreeMap::new(),
            unserved: BTreeMap::new(),
            credits: None,
            manager: None,
            unicasts: UnicastStream::new(
                parameters,
                &trees[0],
                Pcg64::new(u128::from(task.seed), PAUSE_STREAM),
            ),
            missing: Vec::new(),
            awaited: 0,
            row: Row::default(),
            completed: None,
            aborted: false,
            counts: Counts::default(),
            transits: Transits::default(),
            root_event: Picoseconds::ZERO,
            answered: None,
            #[cfg(test)]
            journal: Vec::new(),
            #[cfg(test)]
            barriers: Vec::new(),
            hosts,
            trees,
        };
        simulation.missing =
            (0..parameters.groups).map(|group| simulation.expected_at_leaves(group)).collect();
        simulation.awaited = simulation.completions();
        for node in 0..simulation.nodes.len() {
            simulation.start_round(node);
        }
        simulation.start_unicasts();
        simulation
    }

    /// How long a process that is not the root computes before a broadcast: a time drawn uniformly
    /// from a range of three times the average skew around 0; negative draws count as 0. All
    /// schemes of one seed get the same times.
    pub fn computation(&mut self, node: usize) -> Picoseconds {
        let span = 3 * self.parameters.skew.0;
        let index = self.nodes[node].round as usize * (self.nodes.len() - 1) + node - 1;
        while self.computations.len() <= index {
            self.computations.push(Picoseconds(self.skew.random_range(0..span).saturating_sub(span / 2)));
        }
        self.computations[index]
    }

    /// The number of messages of a group that its leaves receive in one broadcast.
    pub fn expected_at_leaves(&self, group: u32) -> u64 {
        u64::from(self.trees[group as usize].leaves) * u64::from(self.parameters.messages)
    }

    /// The number of completions that the operation waits for: where the root starts each
    /// broadcast, those of one.
    pub fn completions(&self) -> u64 {
        let Parameters { operation, groups, messages, broadcasts, .. } = *self.parameters;
        let nodes = self.nodes.len() as u64;
        let sends = if self.forwarder == Offload::Host { nodes - 1 } else { 1 };
        match operation {
            Operation::Multisend => u64::from(groups) * u64::from(messages) * sends,
            Operation::Multicast => u64::from(groups),
            Operation::Broadcast | Operation::Skew => nodes * u64::from(broadcasts),
        }
    }

    /// Runs until the operation is complete, no event is left, or the run is aborted.
    pub fn run(&mut self) {
        while self.completed.is_none()
            && !self.aborted
            && let Some(event) = self.events.advance()
        {
            self.process(event);
        }
    }

    /// Processes the events after the end of the operation.
    #[cfg(test)]
    pub fn drain(&mut self) {
        while let Some(event) = self.events.advance() {
            self.process(event);
        }
    }

    /// Processes the next event; returns whether there was one.
    pub fn step(&mut self) -> bool {
        let event = self.events.advance();
        let is_some = event.is_some();
        if let Some(event) = event {
            self.process(event);
        }
        is_some
    }

    fn process(&mut self, event: Event) {
        match event {
            Event::Entered(node) => self.entered(node),
            Event::Posted { node, post } => self.posted(node, post),
            Event::TokenMade(post) => self.token_made(post),
            Event::Fetched(job) => self.fetched(job),
            Event::Prepared(job) => self.prepared(job),
            Event::HeaderLeft(job) => self.prepare_next(job),
            Event::Left { node, job } => self.left(node, job),
            Event::Arrived(packet) => self.arrived(packet),
            Event::Received { stream, child, number, slot } => self.received(stream, child, number, slot),
            Event::Copied { stream, child, slot } => self.copied(stream, child, slot),
            Event::Made { node, transmission } => self.transmit(node, transmission),
            Event::Acknowledged { stream, child, below } => self.acknowledged(stream, child, below),
            Event::HousekeepingDone(node) => self.housekeeping_done(node),
            Event::Credited { from, to } => self.credited(from, to),
            Event::Raised { node, notice } => self.write_host(node, EVENT, Event::Noticed { node, notice }),
            Event::Noticed { node, notice } => self.noticed(node, notice),
            Event::Handled { node, notice } => self.handled(node, notice),
            Event::GroupMade(node) => self.returned(node),
            Event::UnicastDue => self.unicast_due(),
            Event::TimedOut(stream) => self.timed_out(stream),
        }
    }

    /// Schedules an event after work of a node's process.
    pub fn cpu(&mut self, node: usize, work: Picoseconds, event: Event) {
        self.serve(node, |node| &mut node.cpu, work, event);
    }

    /// Schedules an event after work of a NIC's processor.
    pub fn nic(&mut self, node: usize, work: Picoseconds, event: Event) {
        self.serve(node, |node| &mut node.processor, work, event);
    }

    /// Schedules an event after a NIC's transfer out of host memory.
    pub fn read_host(&mut self, node: usize, length: Bytes, event: Event) {
        self.bus(node, length.time_at(self.parameters.pci_read_mb_per_s), event);
    }

    /// Schedules an event after a NIC's transfer into host memory.
    pub fn write_host(&mut self, node: usize, length: Bytes, event: Event) {
        self.bus(node, length.time_at(self.parameters.pci_write_mb_per_s), event);
    }

    /// Schedules an event after a transfer on the bus, which both directions share.
    fn bus(&mut self, node: usize, transfer: Picoseconds, event: Event) {
        let work = self.parameters.pci_setup + transfer;
        self.serve(node, |node| &mut node.bus, work, event);
    }

    fn serve(&mut self, node: usize, part: fn(&mut Node) -> &mut Server, work: Picoseconds, event: Event) {
        if self.aborted {
            return;
        }
        let done = part(&mut self.nodes[node]).serve(self.events.now(), work.min(TIME_MAX));
        self.events.schedule(done, event);
        self.aborted |= done > TIME_MAX;
    }

    /// `count` times a span, bounded by the time limit.
    pub fn times(count: u64, span: Picoseconds) -> Picoseconds {
        Picoseconds(count.saturating_mul(span.0)).min(TIME_MAX)
    }

    /// Sends a packet; returns when it starts and ends to leave, and when it has arrived unless it
    /// is lost.
    pub fn wire(
        &mut self,
        from: usize,
        to: usize,
        length: Bytes,
    ) -> (Picoseconds, Picoseconds, Option<Picoseconds>) {
        let route = self.finder.route(self.hosts[from], self.hosts[to]);
        let transit = self.network.send_along(self.events.now(), &route, length);
        self.aborted |= transit.tail > TIME_MAX;
        let loss_ppm = (self.parameters.loss * 1e6).round() as u32;
        let lost = loss_ppm > 0 && self.loss.random_range(0..1_000_000) < loss_ppm;
        self.counts.lost += u64::from(lost);
        (transit.begins, transit.leaves, (!lost).then_some(transit.tail))
    }

    /// Records a packet of a copy of a message in transit.
    pub fn record_transit(
        &mut self,
        copy: (usize, u32, u64),
        from: usize,
        to: usize,
        begins: Picoseconds,
        tail: Picoseconds,
    ) {
        let route = self.finder.route(self.hosts[from], self.hosts[to]);
        self.transits.record(copy, &route, begins, tail);
    }

    /// The connection from one node to another.
    pub fn connection(&mut self, from: usize, to: usize) -> usize {
        let streams = &mut self.streams;
        *self.connections.entry((from, to)).or_insert_with(|| {
            streams.push(Stream::new(from, None, false, &[to]));
            streams.len() - 1
        })
    }

    /// The queue of a group at a node, to its children.
    pub fn queue(&mut self, group: u32, node: usize) -> usize {
        let (streams, tree) = (&mut self.streams, &self.trees[group as usize]);
        let forwards = self.forwarder == Offload::Nic && tree.root != node;
        *self.queues.entry((group, node)).or_insert_with(|| {
            streams.push(Stream::new(node, Some(group), forwards, &tree.children[node]));
            streams.len() - 1
        })
    }

    fn tree(&self, stream: usize) -> Option<&Tree> {
        self.streams[stream].group.map(|group| &self.trees[group as usize])
    }

    /// The number of destination names in the header of a packet to a child of a stream.
    pub fn names(&self, stream: usize, child: u32) -> u64 {
        let node = self.streams[stream].children[child as usize].node;
        self.tree(stream).map_or(0, |tree| u64::from(tree.names[node]))
    }

    /// The NIC time for these names.
    pub fn name_work(&self, stream: usize, child: u32) -> Picoseconds {
        Self::times(self.names(stream, child), self.parameters.nic_destination)
    }

    /// The NIC time for the names in a send event.
    pub fn posted_name_work(&self, stream: usize) -> Picoseconds {
        let names = self.tree(stream).map_or(0, |tree| tree.names[self.streams[stream].from]);
        Self::times(u64::from(names), self.parameters.nic_destination)
    }

    /// The maximum payload of the packets of a stream. Names reduce it.
    pub fn payload(&self, stream: usize) -> u64 {
        let names = self.tree(stream).map_or(0, Tree::names_max);
        self.parameters.packet.0 - self.parameters.destination.0 * names
    }

    /// The name of the host of a node.
    pub fn host_name(&self, node: usize) -> String {
        self.network.fabric().topology().host_name(self.hosts[node])
    }

    /// Whether messages are copied at both ends.
    pub fn is_eager(&self) -> bool {
        self.parameters.layer == Layer::Mpi && !self.rendezvous
    }
}
