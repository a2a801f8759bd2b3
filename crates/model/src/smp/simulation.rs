//! The state of a run, and its event loop.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand_pcg::Pcg64;
use treecast_fabric::{HostId, Overlap, RouteFinder};
use treecast_plan::{Group, MemberId, Placement, Plan, Sends};
use treecast_terms::{Bytes, Picoseconds};

use super::figures::Figures;
use super::node::{Inbox, Node};
use super::packet::{Interface, Packet, Routes};
use super::parameters::Method;
use super::parameters::Parameters;
use super::policy::{Attachment, Policy};
use super::script::{PacketId, Piece, Step};
use crate::kernel::{EventQueue, LAST, Network};
use crate::task::{ModelError, Task};

/// The stream of a seed that loses and delays datagrams.
const LOSS_STREAM: u128 = 0x736d_7069;

#[derive(Debug)]
pub(super) enum Event {
    /// A process has done its work.
    Worked(MemberId),
    /// A condition that a process may wait for has changed.
    Woken(MemberId),
    /// A piece has arrived for a process of the same node.
    PieceArrived(MemberId, MemberId, Piece),
    /// A packet that the root has published is visible.
    Published(PacketId),
    /// An acknowledgment from the root's own node.
    Acknowledged(u32, MemberId),
    /// The retransmission timer of a broadcast has expired.
    Timeout(u32),
    Fetched(Packet),
    Sent(Packet),
    Arrived(HostId, Packet),
    Accepted(HostId, Packet),
    Received(HostId, Packet),
    Found(HostId, Packet, Vec<MemberId>),
    Moved(HostId, Packet, Vec<MemberId>),
}

/// The current work of a process's CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    Nothing,
    Step(Step),
    /// It copies a packet, from the process that forwards to it, or else from the buffers of
    /// datagrams.
    Packet {
        packet_id: PacketId,
        from: Option<MemberId>,
    },
    Acknowledgment,
}

/// The result of starting a step.
pub(super) enum StepResult {
    /// The step takes time.
    Work(Picoseconds, Activity),
    /// The step must wait.
    Blocked,
    /// The step is done.
    Done,
}

/// A process.
#[derive(Debug)]
pub(super) struct Member {
    pub script: VecDeque<Step>,
    pub activity: Activity,
    /// The broadcast that it entered last, and the packets of it that it has.
    pub broadcast: u32,
    pub received: Vec<bool>,
    pub received_count: u32,
    pub entered_at: Picoseconds,
    /// Whether it entered that broadcast before its leader.
    pub is_before_leader: bool,
    pub completed_at: Picoseconds,
    /// The number of broadcasts that its script has been filled with.
    scheduled: u32,
    /// The pieces from each other process.
    pub inboxes: BTreeMap<MemberId, Inbox>,
    /// Received datagrams that it has not copied.
    pub queue: BTreeSet<PacketId>,
    pub is_attached: bool,
    pub attachment: Attachment,
    pub busy: Picoseconds,
    /// The number of bytes received.
    pub bytes: u64,
}

/// A broadcast that not all members have acknowledged.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub unacknowledged: BTreeSet<MemberId>,
    /// Retransmissions that have not been sent.
    pub retransmissions_queued: u32,
}

/// The job of a run: broadcasts by a plan or by hardware multicast, or one message.
#[derive(Debug)]
pub(super) enum Job<'a> {
    Broadcasts { plan: Option<&'a Plan>, sends: Option<Sends> },
    Message { to: MemberId },
}

/// The state of a run.
pub(super) struct Simulation<'a> {
    pub parameters: &'a Parameters,
    pub job: Job<'a>,
    pub group: &'a Group,
    pub placement: &'a Placement,
    pub root: MemberId,
    pub root_host: HostId,
    pub message: Bytes,
    pub packets: u32,
    /// The number of broadcasts.
    pub broadcasts: u32,
    /// The members that take turns, each with the time of a single message from it to the root.
    pub turns: Vec<(MemberId, Picoseconds)>,
    /// The parent of each member in the plan, if there is one.
    pub parents: Vec<Option<MemberId>>,
    pub policy: Policy,
    pub events: EventQueue<'a, Event>,
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
        task: &Task<'a>,
        group: &'a Group,
        job: Job<'a>,
        message: Bytes,
    ) -> Self {
        let Task { fabric, seed, stop, .. } = *task;
        let placement = group.placement();
        let topology = fabric.topology();
        let packets = message.0.div_ceil(parameters.mtu.0) as u32;
        let root = group.root();
        let member = |_| Member {
            script: VecDeque::new(),
            activity: Activity::Nothing,
            broadcast: 0,
            received: Vec::new(),
            received_count: 0,
            entered_at: Picoseconds::ZERO,
            is_before_leader: false,
            completed_at: Picoseconds::ZERO,
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
            events: EventQueue::stopped_by(stop),
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
        simulation.place_members();
        if let Job::Broadcasts { plan: Some(plan), .. } = &simulation.job {
            simulation.parents = vec![None; simulation.members.len()];
            for worm in plan.worms() {
                simulation.parents[worm.to[0].index()] = Some(worm.from);
            }
        }
        simulation
    }

    /// Assigns members to nodes and leaders, and attaches the initial members.
    fn place_members(&mut self) {
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
            self.members[id.index()].received = vec![false; self.packets as usize];
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

    /// The nodes of members, without the root's.
    pub fn other_hosts(&self) -> Vec<HostId> {
        let hosts = (0..).map(HostId).zip(&self.nodes);
        let others = hosts.filter(|(host, node)| *host != self.root_host && !node.members.is_empty());
        others.map(|(host, _)| host).collect()
    }

    /// Computes the route of multicast packets, on a fabric with up*/down* routing.
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

    /// Runs until no event is left.
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
                Event::PieceArrived(from, to, piece) => self.piece_arrived(from, to, piece),
                Event::Published(packet_id) => self.published(packet_id),
                Event::Acknowledged(broadcast, from) => self.acknowledged(broadcast, from),
                Event::Timeout(broadcast) => self.timeout(broadcast),
                Event::Fetched(packet) => self.fetched(packet),
                Event::Sent(packet) => self.sent(packet),
                Event::Arrived(host, packet) => self.arrived(host, packet),
                Event::Accepted(host, packet) => self.accepted(host, packet),
                Event::Received(host, packet) => self.deliver(host, packet),
                Event::Found(host, packet, targets) => self.found(host, packet, targets),
                Event::Moved(host, packet, targets) => self.moved(host, packet, targets),
            }
        }
    }

    /// Whether the run ended because no event was left.
    pub fn has_stopped(&self) -> bool {
        self.events.now() < LAST
    }

    /// The processes that still wait, one line each.
    pub fn waiting(&self) -> Vec<String> {
        let line = |(id, member): (usize, &Member)| {
            let step = member.script.front().or(match &member.activity {
                Activity::Step(step) => Some(step),
                _ => None,
            });
            step.map(|step| format!("process {id} waits at {step:?}"))
        };
        self.members.iter().enumerate().filter_map(line).collect()
    }

    /// Wakes a process, which checks again what it waits for.
    pub fn wake(&mut self, id: MemberId) {
        self.events.schedule_after(Picoseconds::ZERO, Event::Woken(id));
    }

    /// Continues a process, if it is idle.
    pub fn proceed(&mut self, id: MemberId) {
        while self.members[id.index()].activity == Activity::Nothing {
            if id == self.root && !self.acknowledgments.is_empty() {
                return self.work(id, self.parameters.acknowledgment, Activity::Acknowledgment);
            }
            let Some(step) = self.members[id.index()].script.pop_front() else {
                if !self.refill(id) {
                    return;
                }
                continue;
            };
            match self.start_step(id, step) {
                StepResult::Done => {}
                StepResult::Blocked => return self.members[id.index()].script.push_front(step),
                StepResult::Work(span, activity) => self.work(id, span, activity),
            }
        }
    }

    fn work(&mut self, id: MemberId, span: Picoseconds, activity: Activity) {
        let member = &mut self.members[id.index()];
        member.activity = activity;
        if !matches!(activity, Activity::Step(Step::Delay(_))) {
            member.busy += span;
        }
        self.events.schedule_after(span, Event::Worked(id));
    }

    fn worked(&mut self, id: MemberId) {
        match std::mem::replace(&mut self.members[id.index()].activity, Activity::Nothing) {
            Activity::Nothing => unreachable!("an idle process completes no work"),
            Activity::Step(step) => self.complete(id, step),
            Activity::Packet { packet_id, from } => self.packet_copied(id, packet_id, from),
            Activity::Acknowledgment => self.process_acknowledgment(),
        }
        self.proceed(id);
    }

    /// Refills the empty script of a process; returns whether there were further steps.
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

    /// The length of a packet of the broadcast message.
    pub fn packet_length(&self, packet: u32) -> Bytes {
        let mtu = self.parameters.mtu;
        mtu.min(self.message - Bytes(u64::from(packet) * mtu.0))
    }

    /// The pieces from one process to another.
    pub fn inbox(&mut self, to: MemberId, from: MemberId) -> &mut Inbox {
        self.members[to.index()].inboxes.entry(from).or_default()
    }

    /// Whether two processes run on one node.
    pub fn are_together(&self, a: MemberId, b: MemberId) -> bool {
        self.placement.host_of(a) == self.placement.host_of(b)
    }

    /// Whether two processes of a node belong to different NUMA domains.
    pub fn is_far(&self, a: MemberId, b: MemberId) -> bool {
        let domain = |member| {
            let host = self.placement.host_of(member);
            let index = self.placement.members_of(host).position(|other| other == member);
            index.expect("a member is on its host") as u32 / self.parameters.domain_processes
        };
        self.are_together(a, b) && domain(a) != domain(b)
    }
}
