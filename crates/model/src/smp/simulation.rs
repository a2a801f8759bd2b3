//! Processes that go through their steps, event by event.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand_pcg::Pcg64;
use treecast_fabric::{HostId, Overlap, RouteFinder};
use treecast_plan::{Group, MemberId, Placement, Plan, Sends};
use treecast_terms::{Bytes, Picoseconds};

use super::figures::Figures;
use super::node::{Inbox, Node};
use super::packet::{Flight, Interface, Routes};
use super::parameters::Method;
use super::parameters::Parameters;
use super::policy::{Attachment, Policy};
use super::script::{Part, Piece, Step};
use crate::kernel::{EventQueue, LAST, Network};
use crate::task::ModelError;

/// The stream of a seed that loses and delays datagrams.
const LOSS_STREAM: u128 = 0x736d_7069;

#[derive(Debug)]
pub(super) enum Event {
    /// A process has done its work.
    Worked(MemberId),
    /// Something has changed that a process may have waited for.
    Woken(MemberId),
    /// A piece has come for a process of the same node.
    Came(MemberId, MemberId, Piece),
    /// A packet that the root has published is seen.
    Published(Part),
    /// An acknowledgment from the root's own node.
    Acknowledged(u32, MemberId),
    /// A broadcast may have to be repeated.
    Timeout(u32),
    Fetched(Flight),
    Sent(Flight),
    Arrived(HostId, Flight),
    Accepted(HostId, Flight),
    Received(HostId, Flight),
    Found(HostId, Flight, Vec<MemberId>),
    Moved(HostId, Flight, Vec<MemberId>),
}

/// What the processor of a process is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Nothing,
    Step(Step),
    /// It copies a packet, from who serves the node or else from where datagrams come.
    Packet {
        part: Part,
        from: Option<MemberId>,
    },
    Acknowledgment,
}

/// What becomes of a step.
pub(super) enum Begin {
    /// It takes time.
    Work(Picoseconds, Doing),
    /// It must wait.
    Blocked,
    /// It is done.
    Passed,
}

/// A process.
#[derive(Debug)]
pub(super) struct Member {
    pub script: VecDeque<Step>,
    pub doing: Doing,
    /// The broadcast that it has come to last, and which packets of it it has.
    pub broadcast: u32,
    pub handled: Vec<bool>,
    pub handled_count: u32,
    pub entered: Picoseconds,
    pub had: Picoseconds,
    /// How many broadcasts its script has been filled with.
    scheduled: u32,
    /// What has come from each other process.
    pub inboxes: BTreeMap<MemberId, Inbox>,
    /// Datagrams that wait for it.
    pub queue: BTreeSet<Part>,
    pub is_attached: bool,
    pub attachment: Attachment,
    pub busy: Picoseconds,
    /// How much it has received.
    pub bytes: u64,
}

/// A broadcast that not all have acknowledged.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub silent: BTreeSet<MemberId>,
    /// Repetitions that are still to be sent.
    pub repeats: u32,
}

/// What processes do in all: broadcasts by a plan or by hardware multicast, or one message.
#[derive(Debug)]
pub(super) enum Job<'a> {
    Broadcasts { plan: Option<&'a Plan>, sends: Option<Sends> },
    Message { to: MemberId },
}

/// Everything there is.
pub(super) struct Simulation<'a> {
    pub parameters: &'a Parameters,
    pub job: Job<'a>,
    pub group: &'a Group,
    pub placement: &'a Placement,
    pub root: MemberId,
    pub root_host: HostId,
    pub message: Bytes,
    pub packets: u32,
    /// How many broadcasts there are.
    pub broadcasts: u32,
    /// Who takes turns, and how long a message from each to the root takes by itself.
    pub turns: Vec<(MemberId, Picoseconds)>,
    /// From whom each member receives, where a plan says so.
    pub parents: Vec<Option<MemberId>>,
    pub policy: Policy,
    pub events: EventQueue<Event>,
    pub network: Network<'a>,
    pub finder: RouteFinder<'a>,
    pub routes: Routes,
    pub interfaces: Vec<Interface>,
    pub nodes: Vec<Node>,
    pub members: Vec<Member>,
    pub random: Pcg64,
    pub pending: BTreeMap<u32, Pending>,
    pub acknowledgments: VecDeque<(u32, MemberId)>,
    pub publishing: u32,
    pub started: Picoseconds,
    pub figures: Figures,
}

impl<'a> Simulation<'a> {
    pub fn new(
        parameters: &'a Parameters,
        fabric: &'a treecast_fabric::Fabric,
        group: &'a Group,
        job: Job<'a>,
        message: Bytes,
        seed: u64,
    ) -> Self {
        let placement = group.placement();
        let topology = fabric.topology();
        let packets = message.0.div_ceil(parameters.mtu.0) as u32;
        let root = group.root();
        let member = |_| Member {
            script: VecDeque::new(),
            doing: Doing::Nothing,
            broadcast: 0,
            handled: Vec::new(),
            handled_count: 0,
            entered: Picoseconds::ZERO,
            had: Picoseconds::ZERO,
            scheduled: 0,
            inboxes: BTreeMap::new(),
            queue: BTreeSet::new(),
            is_attached: false,
            attachment: Attachment::default(),
            busy: Picoseconds::ZERO,
            bytes: 0,
        };
        let mut simulation = Self {
            parameters,
            job,
            group,
            placement,
            root,
            root_host: placement.host_of(root),
            message,
            packets,
            broadcasts: parameters.warmup_iterations + parameters.iterations,
            turns: Vec::new(),
            parents: Vec::new(),
            policy: parameters.policy(placement.processes()),
            events: EventQueue::default(),
            network: Network::new(fabric, parameters.link_mb_per_s, parameters.hop),
            finder: RouteFinder::new(topology, fabric.routing()),
            routes: Routes::default(),
            interfaces: vec![Interface::default(); topology.host_count() as usize],
            nodes: vec![Node::EMPTY; topology.host_count() as usize],
            members: (0..placement.member_count()).map(member).collect(),
            random: Pcg64::new(u128::from(seed), LOSS_STREAM),
            pending: BTreeMap::new(),
            acknowledgments: VecDeque::new(),
            publishing: 0,
            started: Picoseconds::ZERO,
            figures: Figures::default(),
        };
        simulation.settle();
        if let Job::Broadcasts { plan: Some(plan), .. } = &simulation.job {
            simulation.parents = vec![None; simulation.members.len()];
            for worm in plan.worms() {
                simulation.parents[worm.to[0].index()] = Some(worm.from);
            }
        }
        simulation
    }

    /// Who is where, and who is attached from the beginning.
    fn settle(&mut self) {
        let mut all = self.group.destinations().to_vec();
        all.push(self.root);
        all.sort_unstable();
        for &id in &all {
            let node = &mut self.nodes[self.placement.host_of(id).index()];
            if node.members.is_empty() || id == self.root {
                node.leader = id;
            }
            node.members.push(id);
            node.receivers += u32::from(id != self.root);
            self.members[id.index()].handled = vec![false; self.packets as usize];
        }
        for &id in self.group.destinations() {
            let is_leader = self.nodes[self.placement.host_of(id).index()].leader == id;
            self.members[id.index()].is_attached = match self.parameters.method {
                Method::NoSmp => true,
                Method::Smp | Method::Dynamic => is_leader,
                Method::Original | Method::Moving | Method::Direct => false,
            };
        }
    }

    /// The nodes that take part besides the root's.
    pub fn other_hosts(&self) -> Vec<HostId> {
        let hosts = (0..).map(HostId).zip(&self.nodes);
        let others = hosts.filter(|(host, node)| *host != self.root_host && !node.members.is_empty());
        others.map(|(host, _)| host).collect()
    }

    /// Sets the way of packets to the group, on a fabric routed up and down.
    pub fn route_multicast(&mut self, fabric: &treecast_fabric::Fabric) -> Result<(), ModelError> {
        let hosts = self.other_hosts();
        let (topology, root) = (fabric.topology(), self.root_host);
        let Some(routing) = fabric.routing().up_down() else {
            let reason = "hardware multicast needs up*/down* routing: choose with --routing up-down";
            return Err(ModelError::Unsupported(reason.into()));
        };
        if !hosts.is_empty() {
            let route = routing.tree_route(topology, root, &hosts, Overlap::default());
            let from = topology.switch_of(root);
            self.routes.multicast = route.ok_or(treecast_plan::PlanError::NoCoveringSwitch { from })?;
        }
        Ok(())
    }

    /// Runs until nothing is left to happen.
    pub fn run(&mut self) {
        let mut all = self.group.destinations().to_vec();
        all.insert(0, self.root);
        for id in all {
            self.proceed(id);
        }
        while self.events.now() < LAST {
            let Some(event) = self.events.advance() else { break };
            match event {
                Event::Worked(id) => self.worked(id),
                Event::Woken(id) => self.proceed(id),
                Event::Came(from, to, piece) => self.came(from, to, piece),
                Event::Published(part) => self.published(part),
                Event::Acknowledged(broadcast, from) => self.acknowledged(broadcast, from),
                Event::Timeout(broadcast) => self.timeout(broadcast),
                Event::Fetched(flight) => self.fetched(flight),
                Event::Sent(flight) => self.sent(flight),
                Event::Arrived(host, flight) => self.arrived(host, flight),
                Event::Accepted(host, flight) => self.accepted(host, flight),
                Event::Received(host, flight) => self.deliver(host, flight),
                Event::Found(host, flight, targets) => self.found(host, flight, targets),
                Event::Moved(host, flight, targets) => self.moved(host, flight, targets),
            }
        }
    }

    /// Whether nothing is left to happen.
    pub fn has_stopped(&self) -> bool {
        self.events.now() < LAST
    }

    /// Who still waits, and for what: a line each.
    pub fn waiting(&self) -> Vec<String> {
        let line = |(id, member): (usize, &Member)| {
            let step = member.script.front().or(match &member.doing {
                Doing::Step(step) => Some(step),
                _ => None,
            });
            step.map(|step| format!("process {id} waits at {step:?}"))
        };
        self.members.iter().enumerate().filter_map(line).collect()
    }

    /// Lets a process look again at what it waits for.
    pub fn wake(&mut self, id: MemberId) {
        self.events.schedule_after(Picoseconds::ZERO, Event::Woken(id));
    }

    /// A process goes on, if it is at nothing.
    pub fn proceed(&mut self, id: MemberId) {
        while self.members[id.index()].doing == Doing::Nothing {
            if id == self.root && !self.acknowledgments.is_empty() {
                return self.work(id, self.parameters.acknowledgment, Doing::Acknowledgment);
            }
            let Some(step) = self.members[id.index()].script.pop_front() else {
                if !self.refill(id) {
                    return;
                }
                continue;
            };
            match self.begin(id, step) {
                Begin::Passed => {}
                Begin::Blocked => return self.members[id.index()].script.push_front(step),
                Begin::Work(span, doing) => self.work(id, span, doing),
            }
        }
    }

    fn work(&mut self, id: MemberId, span: Picoseconds, doing: Doing) {
        let member = &mut self.members[id.index()];
        member.doing = doing;
        if !matches!(doing, Doing::Step(Step::Delay(_))) {
            member.busy += span;
        }
        self.events.schedule_after(span, Event::Worked(id));
    }

    fn worked(&mut self, id: MemberId) {
        match std::mem::replace(&mut self.members[id.index()].doing, Doing::Nothing) {
            Doing::Nothing => unreachable!("nobody works at nothing"),
            Doing::Step(step) => self.complete(id, step),
            Doing::Packet { part, from } => self.collected(id, part, from),
            Doing::Acknowledgment => self.settle_acknowledgment(),
        }
        self.proceed(id);
    }

    /// The next steps of a process whose script is empty, if there are any.
    fn refill(&mut self, id: MemberId) -> bool {
        let scheduled = self.members[id.index()].scheduled;
        let steps = match self.job {
            Job::Message { to } if scheduled == 0 => self.message_steps(id, to),
            Job::Broadcasts { .. } if scheduled < self.broadcasts => self.broadcast_steps(id, scheduled + 1),
            _ => return false,
        };
        let member = &mut self.members[id.index()];
        member.scheduled += 1;
        member.script.extend(steps);
        true
    }

    /// How long a packet of the broadcast message is.
    pub fn part_length(&self, packet: u32) -> Bytes {
        let mtu = self.parameters.mtu;
        mtu.min(self.message - Bytes(u64::from(packet) * mtu.0))
    }

    /// What has come for somebody from somebody.
    pub fn inbox(&mut self, to: MemberId, from: MemberId) -> &mut Inbox {
        self.members[to.index()].inboxes.entry(from).or_default()
    }

    /// Whether two processes run on one node.
    pub fn are_together(&self, a: MemberId, b: MemberId) -> bool {
        self.placement.host_of(a) == self.placement.host_of(b)
    }

    /// Whether two processes of a node have different parts of its memory.
    pub fn is_far(&self, a: MemberId, b: MemberId) -> bool {
        let domain = |member| {
            let host = self.placement.host_of(member);
            let index = self.placement.members_of(host).position(|other| other == member);
            index.expect("a member is on its host") as u32 / self.parameters.domain_processes
        };
        self.are_together(a, b) && domain(a) != domain(b)
    }
}
