//! The state of a multicast between hosts on Ethernet, and its event loop.

use std::collections::VecDeque;

use treecast_fabric::{Channel, HostId, RouteFinder};
use treecast_plan::{MemberId, Plan, Sends};
use treecast_sim::{Offload, Status};
use treecast_terms::{Bytes, Picoseconds};

use super::arrival::{Arrival, Part};
use super::parameters::{EAGER_MAX, Parameters};
use super::pieces::{PACKET, Pieces, by_length};
use super::processors::{Job, Processors, ThreadId};
use crate::kernel::{EventQueue, LAST, Network, Transit};
use crate::task::{Outcome, Task};

/// The length of an acknowledgment: the shortest Ethernet frame.
pub(super) const ACKNOWLEDGMENT: Bytes = Bytes(64);

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A sleeping thread runs.
    Awake(ThreadId),
    /// A thread has done a job.
    Worked(ThreadId, Job),
    /// A member can begin with a unit: its last byte has arrived, or its first packet at a member
    /// that forwards while the unit arrives.
    Arrived { to: MemberId, unit: u32 },
    /// The last packet of the message was received and forwarded by a member that had begun with
    /// its last unit before.
    Completed(MemberId),
    /// An acknowledgment has arrived.
    Acknowledged(MemberId),
}

/// The state of a run.
#[derive(Debug)]
pub(super) struct Simulation<'a> {
    plan: &'a Plan,
    parameters: &'a Parameters,
    offload: Offload,
    message: Bytes,
    pieces: Pieces,
    units: u32,
    sends: Sends,
    /// The parent of each member in the plan.
    parents: Vec<Option<MemberId>>,
    finder: RouteFinder<'a>,
    /// The route of each worm of the plan, found when it is needed first.
    routes: Vec<Vec<Channel>>,
    /// The tree of links of multicast packets, with offload `switch`.
    multicast: Vec<Channel>,
    network: Network<'a>,
    processors: Processors,
    /// What a wake-up takes longer on shared processors, and each KB that is taken in.
    cold: (Picoseconds, Picoseconds),
    events: EventQueue<'a, Event>,
    /// The member on each host, if there is one.
    members: Vec<Option<MemberId>>,
    /// The units that each member has not yet begun to take in, if it forwards while they arrive.
    arrivals: Vec<VecDeque<Arrival>>,
    /// The number of units that each member has stored.
    stored: Vec<u32>,
    /// When each member's application had the message.
    pub delivered: Vec<Option<Picoseconds>>,
}

impl<'a> Simulation<'a> {
    pub fn new(
        parameters: &'a Parameters,
        task: &Task<'a>,
        plan: &'a Plan,
        pieces: Pieces,
        multicast: Vec<Channel>,
    ) -> Self {
        let members = plan.placement().member_count();
        let mut parents = vec![None; members as usize];
        for worm in plan.worms() {
            for to in &worm.to {
                parents[to.index()] = Some(worm.from);
            }
        }
        let topology = task.fabric.topology();
        let mut on_hosts = vec![None; topology.host_count() as usize];
        for &member in task.group.destinations() {
            on_hosts[plan.placement().host_of(member).index()] = Some(member);
        }
        Self {
            plan,
            parameters,
            offload: task.offload,
            message: task.message,
            pieces,
            units: pieces.units(),
            sends: plan.sends(),
            parents,
            finder: RouteFinder::new(topology, task.fabric.routing()),
            routes: plan.worms().iter().map(|worm| worm.route.clone()).collect(),
            multicast,
            network: Network::new(task.fabric, parameters.link_mb_per_s, parameters.hop),
            processors: Processors::new(members, parameters),
            cold: parameters.cold_of(task.group.size()),
            events: EventQueue::stopped_by(task.stop),
            members: on_hosts,
            arrivals: vec![VecDeque::new(); members as usize],
            stored: vec![0; members as usize],
            delivered: vec![None; members as usize],
        }
    }

    /// Runs until no event is left, and every acknowledgment has been handled.
    pub fn run(&mut self) {
        self.begin(Processors::node_of(self.plan.root().0), Job::Call);
        while self.events.now() < LAST {
            let Some(event) = self.events.advance() else { break };
            match event {
                Event::Awake(thread) => self.begin(thread, Job::Wake),
                Event::Worked(thread, job) => self.worked(thread, job),
                Event::Arrived { to, unit } => self.add(Processors::node_of(to.0), Job::Receive { unit }),
                Event::Completed(member) => self.complete(member),
                Event::Acknowledged(to) => self.add(Processors::node_of(to.0), Job::Acknowledgment),
            }
        }
    }

    /// Lets a thread that does not sleep begin with a job.
    fn begin(&mut self, thread: ThreadId, job: Job) {
        self.processors.run(thread, job);
        self.grant(thread);
    }

    /// Adds a job to a thread, and wakes it if it sleeps.
    fn add(&mut self, thread: ThreadId, job: Job) {
        if self.processors.add(thread, job) {
            self.events.schedule_after(self.parameters.wake, Event::Awake(thread));
        } else {
            self.grant(thread);
        }
    }

    /// Starts the threads that get the free processors of a thread's pool.
    fn grant(&mut self, thread: ThreadId) {
        while let Some((granted, job)) = self.processors.grant(thread) {
            self.start(granted, job);
        }
    }

    fn start(&mut self, thread: ThreadId, job: Job) {
        let job = self.read(thread, job);
        let work = self.work(job);
        self.processors.count(thread, work);
        self.events.schedule_after(work, Event::Worked(thread, job));
    }

    /// Lets a member that forwards while units arrive take in what has arrived of the next one.
    fn read(&mut self, thread: ThreadId, job: Job) -> Job {
        let Job::Receive { unit } = job else { return job };
        let member = Processors::member_of(thread);
        let arrival = self.arrivals[member as usize].pop_front();
        match arrival.and_then(|arrival| arrival.part_at(self.events.now())) {
            Some(part) => Job::ReceivePart(part),
            None => Job::Receive { unit },
        }
    }

    /// The CPU time of a job.
    fn work(&self, job: Job) -> Picoseconds {
        let costs = self.parameters;
        match job {
            Job::Wake => costs.wake_cpu + self.cold.0,
            Job::Call => costs.call + by_length(self.message, costs.call_per_kb),
            Job::Ask { .. } => costs.ask,
            Job::Copy { unit, .. } | Job::Multicast { unit } => self.copy_work(self.pieces.length(unit)),
            Job::SwitchCopies { unit } => {
                let copy = self.switch_copy(unit);
                Picoseconds(copy.0 * self.plan.destination_count() as u64)
            }
            Job::Receive { unit } => self.receive_work(self.pieces.length(unit)),
            Job::ReceivePart(part) => self.receive_work(part.first),
            Job::CopyPart { part, .. } => self.copy_work(part.first),
            Job::Rest { part, children } => self.rest_work(part, children),
            Job::Deliver => costs.deliver + by_length(self.message, costs.deliver_per_kb),
            Job::Acknowledgment => costs.ack,
        }
    }

    fn copy_work(&self, length: Bytes) -> Picoseconds {
        self.pieces.work(length, self.parameters.send, self.parameters.send_per_kb)
    }

    fn receive_work(&self, length: Bytes) -> Picoseconds {
        let costs = self.parameters;
        self.pieces.work(length, costs.receive, costs.receive_per_kb + self.cold.1)
    }

    /// The CPU time to take in the rest of a unit and to copy it to the first `children`.
    fn rest_work(&self, part: Part, children: u32) -> Picoseconds {
        let unit = self.pieces.length(part.unit);
        let receive = self.receive_work(unit) - self.receive_work(part.first);
        let copy = self.copy_work(unit) - self.copy_work(part.first);
        receive + Picoseconds(u64::from(children) * copy.0)
    }

    /// When a member has taken in the last packet of a unit that still arrives, and copied it to
    /// the first `children`. What the packet's piece costs beside its bytes was paid before.
    fn last_packet_copied(&self, part: Part, children: u32) -> Picoseconds {
        let costs = self.parameters;
        let copy = by_length(PACKET, costs.send_per_kb);
        let receive = by_length(PACKET, costs.receive_per_kb + self.cold.1);
        part.tail + receive + Picoseconds(u64::from(children) * copy.0)
    }

    /// The CPU time of the sender for one copy of a unit that a switch makes.
    fn switch_copy(&self, unit: u32) -> Picoseconds {
        let costs = self.parameters;
        self.pieces.work(self.pieces.length(unit), costs.switch_copy, costs.switch_copy_per_kb)
    }

    fn worked(&mut self, thread: ThreadId, job: Job) {
        let member = MemberId(Processors::member_of(thread));
        match job {
            Job::Wake | Job::Acknowledgment => {}
            Job::Call => self.called(thread, member),
            Job::Ask { child } => self.precede_copy(thread, member, 0, child, true),
            Job::Copy { unit, child, is_whole } => {
                self.send(member, unit, child);
                self.copied(thread, member, unit, child, is_whole);
            }
            Job::Multicast { unit } => self.multicast(thread, unit),
            Job::SwitchCopies { unit } => {
                if unit + 1 < self.units {
                    self.processors.precede(thread, Job::Multicast { unit: unit + 1 });
                }
            }
            Job::Receive { .. } => self.received(thread, member),
            Job::ReceivePart(part) => self.processors.precede(thread, Job::CopyPart { part, child: 0 }),
            Job::CopyPart { part, child } => {
                self.send_part(member, part, child);
                let children = self.child_count(member);
                let has_more_children = child + 1 < children;
                let copy = Job::CopyPart { part, child: child + 1 };
                let next = if has_more_children { copy } else { Job::Rest { part, children } };
                self.processors.precede(thread, next);
            }
            Job::Rest { part, children } => self.forwarded(member, part, children),
            Job::Deliver => self.deliver(member),
        }
        if let Some(next) = self.processors.next_job(thread) {
            self.start(thread, next);
        }
        self.grant(thread);
    }

    /// The root has called.
    fn called(&mut self, thread: ThreadId, root: MemberId) {
        match self.offload {
            Offload::Switch => self.processors.precede(thread, Job::Multicast { unit: 0 }),
            Offload::Nic => self.precede_copy(thread, root, 0, 0, true),
            Offload::Host | Offload::Assisted => self.processors.precede(thread, Job::Ask { child: 0 }),
        }
    }

    fn child_count(&self, member: MemberId) -> u32 {
        self.sends.of(member).len() as u32
    }

    /// Lets a copy be the next job of a thread, if the member has such a child.
    fn precede_copy(&mut self, thread: ThreadId, member: MemberId, unit: u32, child: u32, is_whole: bool) {
        if child < self.child_count(member) {
            self.processors.precede(thread, Job::Copy { unit, child, is_whole });
        }
    }

    /// Continues after a copy: with offload `host` child by child, otherwise piece by piece.
    fn copied(&mut self, thread: ThreadId, member: MemberId, unit: u32, child: u32, is_whole: bool) {
        let has_more_units = is_whole && unit + 1 < self.units;
        let has_more_children = child + 1 < self.child_count(member);
        let next = match self.offload {
            Offload::Host if has_more_units => Job::Copy { unit: unit + 1, child, is_whole },
            Offload::Host if has_more_children => Job::Ask { child: child + 1 },
            Offload::Host => return,
            _ if has_more_children => Job::Copy { unit, child: child + 1, is_whole },
            _ if has_more_units => Job::Copy { unit: unit + 1, child: 0, is_whole },
            Offload::Nic if member != self.plan.root() && unit + 1 == self.units => {
                return self.add_delivery(member);
            }
            _ => return,
        };
        self.processors.precede(thread, next);
    }

    /// Sends a unit to a child.
    fn send(&mut self, from: MemberId, unit: u32, child: u32) {
        self.send_until(from, unit, child, Picoseconds::ZERO);
    }

    /// Sends a unit that still arrives to a child: its first bytes now, and its last packet when
    /// the thread has copied all before it and the packet itself.
    fn send_part(&mut self, from: MemberId, part: Part, child: u32) {
        let children = child + 1;
        let other_children = u64::from(self.child_count(from) - children);
        let first_copies = Picoseconds(other_children * self.copy_work(part.first).0);
        let copied = self.events.now() + first_copies + self.rest_work(part, children);
        let last = copied.max(self.last_packet_copied(part, children));
        let packet = PACKET.time_at(self.parameters.link_mb_per_s);
        self.send_until(from, part.unit, child, last + packet);
    }

    /// Sends a unit to a child. Its last byte does not leave before `last`.
    fn send_until(&mut self, from: MemberId, unit: u32, child: u32, last: Picoseconds) {
        let worm = self.sends.of(from)[child as usize] as usize;
        let to = self.plan.worms()[worm].to[0];
        let (from, host) = (self.host_of(from), self.host_of(to));
        if self.routes[worm].is_empty() {
            self.routes[worm] = self.finder.route(from, host);
        }
        let (now, length) = (self.events.now(), self.pieces.length(unit));
        let mut transit = self.network.send_until(now, &self.routes[worm], length, last);
        let handshake = self.handshake(self.routes[worm].len());
        transit.head += handshake;
        transit.tail += handshake;
        let begins = self.begins(to, unit, transit);
        self.events.schedule(begins, Event::Arrived { to, unit });
    }

    /// What a message that is only sent when its receiver has answered takes longer on a route.
    fn handshake(&self, links: usize) -> Picoseconds {
        let costs = self.parameters;
        if costs.rendezvous == Picoseconds::ZERO || self.message <= EAGER_MAX {
            return Picoseconds::ZERO;
        }
        costs.rendezvous + Picoseconds(2 * links as u64 * costs.hop.0)
    }

    /// When a member can begin with a unit.
    fn begins(&mut self, to: MemberId, unit: u32, transit: Transit) -> Picoseconds {
        if self.offload != Offload::Nic || self.child_count(to) == 0 {
            return transit.tail;
        }
        let length = self.pieces.length(unit);
        self.arrivals[to.index()].push_back(Arrival { unit, length, head: transit.head, tail: transit.tail });
        transit.tail.min(transit.head + PACKET.min(length).time_at(self.parameters.link_mb_per_s))
    }

    /// Sends a unit to all destinations. Where switches copy in the context of the sender, they
    /// make one copy after another.
    fn multicast(&mut self, thread: ThreadId, unit: u32) {
        let copy = self.switch_copy(unit);
        let transits = self.network.send_tree(self.events.now(), &self.multicast, self.pieces.length(unit));
        let mut copied = Picoseconds::ZERO;
        for (host, transit) in transits {
            copied += copy;
            if let Some(to) = self.members[host.index()] {
                self.events.schedule(transit.tail + copied, Event::Arrived { to, unit });
            }
        }
        self.processors.precede(thread, Job::SwitchCopies { unit });
    }

    /// A member has stored a unit: its node forwards it, or its application the whole message.
    fn received(&mut self, thread: ThreadId, member: MemberId) {
        let unit = self.stored[member.index()];
        self.stored[member.index()] += 1;
        let is_last = self.stored[member.index()] == self.units;
        if is_last && self.parameters.ack > Picoseconds::ZERO {
            self.acknowledge(member);
        }
        if self.offload == Offload::Nic && self.child_count(member) > 0 {
            self.processors.precede(thread, Job::Copy { unit, child: 0, is_whole: false });
        } else if is_last {
            self.add_delivery(member);
        }
    }

    /// A member has done the work for a unit, whose last packet may arrive later.
    fn forwarded(&mut self, member: MemberId, part: Part, children: u32) {
        self.stored[member.index()] += 1;
        if self.stored[member.index()] < self.units {
            return;
        }
        let copied = self.last_packet_copied(part, children);
        if copied > self.events.now() {
            self.events.schedule(copied, Event::Completed(member));
        } else {
            self.complete(member);
        }
    }

    /// A member whose last unit was forwarded while it arrived has the whole message.
    fn complete(&mut self, member: MemberId) {
        if self.parameters.ack > Picoseconds::ZERO {
            self.acknowledge(member);
        }
        self.add_delivery(member);
    }

    /// A member has stored the message, and its node has forwarded it.
    fn add_delivery(&mut self, member: MemberId) {
        let application = self.processors.application_of(member.0);
        self.add(application, Job::Deliver);
    }

    fn acknowledge(&mut self, member: MemberId) {
        if let Some(parent) = self.parents[member.index()] {
            let (from, to) = (self.host_of(member), self.host_of(parent));
            let transit = self.network.send(self.events.now(), from, to, ACKNOWLEDGMENT);
            self.events.schedule(transit.tail, Event::Acknowledged(parent));
        }
    }

    /// A member's application has the message.
    fn deliver(&mut self, member: MemberId) {
        debug_assert!(self.delivered[member.index()].is_none(), "{member} has the message once");
        self.delivered[member.index()] = Some(self.events.now());
        let asks = matches!(self.offload, Offload::Host | Offload::Assisted);
        if asks && self.child_count(member) > 0 {
            self.add(Processors::node_of(member.0), Job::Ask { child: 0 });
        }
    }

    fn host_of(&self, member: MemberId) -> HostId {
        self.plan.placement().host_of(member)
    }

    /// The outcome.
    pub fn outcome(&self) -> Outcome {
        let times: Vec<Picoseconds> = self.delivered.iter().flatten().copied().collect();
        let is_complete = times.len() == self.plan.destination_count();
        let members = 0..self.plan.placement().member_count();
        let cpu: Picoseconds = members.map(|member| self.processors.busy(member)).sum();
        let mean = times.iter().map(|time| time.us()).sum::<f64>() / times.len().max(1) as f64;
        Outcome {
            status: if is_complete { Status::Complete } else { Status::Incomplete },
            latency: times.into_iter().max().filter(|_| is_complete),
            measured: vec![
                ("mean_delivery_us", mean),
                ("cpu_us", cpu.us()),
                ("root_cpu_us", self.processors.busy(self.plan.root().0).us()),
            ],
            deadlock: Vec::new(),
        }
    }
}
