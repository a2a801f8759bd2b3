//! Everything that there is in a run, and what happens to it.

use std::collections::{BTreeMap, VecDeque};

use rand::RngExt;
use rand_pcg::Pcg64;
use treecast_fabric::{HostId, RouteFinder};
use treecast_sim::Offload;
use treecast_terms::{Bytes, Picoseconds};

use super::credits::{BufferCredits, Manager};
use super::node::{Job, Node, Notice, Packet, Post, Transmission};
use super::parameters::Parameters;
use super::policies::{Layer, Operation};
use super::stream::Stream;
use super::tree::{Tree, members};
use crate::kernel::{EventQueue, Network, Server};
use crate::task::Task;

/// A stream's timer may run out so often without an acknowledgment before the run is given up.
pub(super) const SILENT_MAX: u32 = 64;

/// Where a run ends whatever is left: 19 minutes.
const TIME_MAX: Picoseconds = Picoseconds(1 << 50);

/// What the NIC writes into host memory to raise an event.
pub(super) const EVENT: Bytes = Bytes(16);

const LOSS_STREAM: u128 = 0x6c6f_7373;
const SKEW_STREAM: u128 = 0x736b_6577;

/// What happens. A stage is named for what has just been done.
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
    HouseKept(usize),
    Credited { from: usize, to: usize },
    Raised { node: usize, notice: Notice },
    Noticed { node: usize, notice: Notice },
    Handled { node: usize, notice: Notice },
    GroupMade(usize),
    TimedOut(usize),
}

/// What is counted.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub retransmissions: u64,
    pub lost: u64,
    /// Packets for which there was no receive token.
    pub refused: u64,
    /// Packets that the network held up.
    pub held: u64,
}

/// A run.
#[derive(Debug)]
pub(super) struct Simulation<'a> {
    pub parameters: &'a Parameters,
    /// Who forwards.
    pub forwarder: Offload,
    /// Whether a message between hosts is asked for first.
    pub rendezvous: bool,
    /// Whether processes make the group before they return.
    pub makes_group: bool,
    pub message: Bytes,
    pub hosts: Vec<HostId>,
    pub trees: Vec<Tree>,
    pub events: EventQueue<Event>,
    network: Network<'a>,
    finder: RouteFinder<'a>,
    loss: Pcg64,
    pub nodes: Vec<Node>,
    pub streams: Vec<Stream>,
    connections: BTreeMap<(usize, usize), usize>,
    queues: BTreeMap<(u32, usize), usize>,
    /// Who still needs the receive buffer of a message at a node: node, group, message.
    pub holds: BTreeMap<(usize, u32, u32), u32>,
    /// Rendezvous: the children of a node that are still to be served.
    pub unserved: BTreeMap<(usize, u32, u32), VecDeque<usize>>,
    pub credits: Option<BufferCredits>,
    pub manager: Option<Manager>,
    /// Messages that leaves of each group still have to receive.
    pub missing: Vec<u64>,
    /// What the operation still waits for.
    pub awaited: u64,
    pub delivered: Picoseconds,
    pub completed: Option<Picoseconds>,
    pub given_up: bool,
    pub counts: Counts,
    /// Packets as they reach host memory: node, stream, number.
    #[cfg(test)]
    pub journal: Vec<(usize, usize, u64)>,
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
        let Parameters { operation, groups, messages, .. } = *parameters;
        let receivers = hosts.len() as u64 - 1;
        let each = if forwarder == Offload::Host { receivers } else { 1 };
        let mut simulation = Self {
            parameters,
            forwarder,
            rendezvous,
            makes_group: false,
            message: task.message,
            events: EventQueue::default(),
            network: Network::new(fabric, parameters.link_mb_per_s, parameters.hop),
            finder: RouteFinder::new(fabric.topology(), fabric.routing()),
            loss: Pcg64::new(u128::from(task.seed), LOSS_STREAM),
            nodes: hosts.iter().map(|_| Node::default()).collect(),
            streams: Vec::new(),
            connections: BTreeMap::new(),
            queues: BTreeMap::new(),
            holds: BTreeMap::new(),
            unserved: BTreeMap::new(),
            credits: None,
            manager: None,
            missing: trees.iter().map(|tree| u64::from(tree.leaves) * u64::from(messages)).collect(),
            awaited: match operation {
                Operation::Multisend => u64::from(groups) * u64::from(messages) * each,
                Operation::Multicast => u64::from(groups),
                Operation::Broadcast | Operation::Skew => hosts.len() as u64,
            },
            delivered: Picoseconds::ZERO,
            completed: None,
            given_up: false,
            counts: Counts::default(),
            #[cfg(test)]
            journal: Vec::new(),
            hosts,
            trees,
        };
        simulation.enter(task.seed);
        simulation
    }

    /// Lets the processes enter: the first root at once, each other so much later as it computes. It draws from a span of
    /// three times the average skew around 0, and computes as long as it draws if that is not negative.
    fn enter(&mut self, seed: u64) {
        let mut random = Pcg64::new(u128::from(seed), SKEW_STREAM);
        let messages = self.parameters.groups * self.parameters.messages;
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let span = 3 * self.parameters.skew.0;
            if index > 0 && self.parameters.operation == Operation::Skew && span > 0 {
                node.enters = Picoseconds(random.random_range(0..span).saturating_sub(span / 2));
            }
            // To send for the group of which it is the root, to receive for the others.
            node.tasks = messages;
            self.events.schedule(node.enters, Event::Entered(index));
        }
    }

    /// Lets everything happen until the operation is complete, nothing is left, or the run is given up.
    pub fn run(&mut self) {
        while self.completed.is_none()
            && !self.given_up
            && let Some(event) = self.events.advance()
        {
            self.happen(event);
        }
    }

    /// Lets everything happen that is left after that.
    #[cfg(test)]
    pub fn drain(&mut self) {
        while let Some(event) = self.events.advance() {
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
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
            Event::HouseKept(node) => self.house_kept(node),
            Event::Credited { from, to } => self.credited(from, to),
            Event::Raised { node, notice } => self.bus(node, EVENT, Event::Noticed { node, notice }),
            Event::Noticed { node, notice } => self.noticed(node, notice),
            Event::Handled { node, notice } => self.handled(node, notice),
            Event::GroupMade(node) => self.returned(node),
            Event::TimedOut(stream) => self.timed_out(stream),
        }
    }

    /// Something that the operation waits for has happened.
    pub fn arrived_at_end(&mut self) {
        self.awaited -= 1;
        if self.awaited == 0 {
            self.completed = Some(self.events.now());
        }
    }

    /// Has the process of a node work, then something happen.
    pub fn cpu(&mut self, node: usize, work: Picoseconds, event: Event) {
        self.serve(node, |node| &mut node.cpu, work, event);
    }

    /// Has the processor of a NIC work, then something happen.
    pub fn nic(&mut self, node: usize, work: Picoseconds, event: Event) {
        self.serve(node, |node| &mut node.processor, work, event);
    }

    /// Has something moved between host and NIC, then something happen.
    pub fn bus(&mut self, node: usize, length: Bytes, event: Event) {
        let work = self.parameters.pci_setup + length.time_at(self.parameters.pci_mb_per_s);
        self.serve(node, |node| &mut node.bus, work, event);
    }

    fn serve(&mut self, node: usize, part: fn(&mut Node) -> &mut Server, work: Picoseconds, event: Event) {
        if self.given_up {
            return;
        }
        let done = part(&mut self.nodes[node]).serve(self.events.now(), work.min(TIME_MAX));
        self.events.schedule(done, event);
        self.given_up |= done > TIME_MAX;
    }

    /// So many times a span, as far as a run can last.
    pub fn times(count: u64, span: Picoseconds) -> Picoseconds {
        Picoseconds(count.saturating_mul(span.0)).min(TIME_MAX)
    }

    /// Puts a packet on the wire; when it begins and ends to leave, and when it has arrived unless it is lost.
    pub fn wire(
        &mut self,
        from: usize,
        to: usize,
        length: Bytes,
    ) -> (Picoseconds, Picoseconds, Option<Picoseconds>) {
        let route = self.finder.route(self.hosts[from], self.hosts[to]);
        let transit = self.network.send_along(self.events.now(), &route, length);
        self.given_up |= transit.tail > TIME_MAX;
        let loss_ppm = (self.parameters.loss * 1e6).round() as u32;
        let lost = loss_ppm > 0 && self.loss.random_range(0..1_000_000) < loss_ppm;
        self.counts.lost += u64::from(lost);
        (transit.begins, transit.leaves, (!lost).then_some(transit.tail))
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
        let relays = self.forwarder == Offload::Nic && tree.root != node;
        *self.queues.entry((group, node)).or_insert_with(|| {
            streams.push(Stream::new(node, Some(group), relays, &tree.children[node]));
            streams.len() - 1
        })
    }

    fn tree(&self, stream: usize) -> Option<&Tree> {
        self.streams[stream].group.map(|group| &self.trees[group as usize])
    }

    /// How many names the header of a packet to a child of a stream carries.
    pub fn names(&self, stream: usize, child: u32) -> u64 {
        let node = self.streams[stream].children[child as usize].node;
        self.tree(stream).map_or(0, |tree| u64::from(tree.names[node]))
    }

    /// NIC time for these names.
    pub fn name_work(&self, stream: usize, child: u32) -> Picoseconds {
        Self::times(self.names(stream, child), self.parameters.nic_destination)
    }

    /// NIC time for the names that come with a send event.
    pub fn posted_name_work(&self, stream: usize) -> Picoseconds {
        let names = self.tree(stream).map_or(0, |tree| tree.names[self.streams[stream].from]);
        Self::times(u64::from(names), self.parameters.nic_destination)
    }

    /// The most payload of the packets of a stream: names take their room.
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
