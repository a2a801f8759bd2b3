//! Hosts: processes on CPUs, the I/O bus, and the network interface with its processor.
//!
//! Every process has its own CPU; the processes of a host share its bus and its network interface.
//! Each of these resources does one job at a time. docs/simulation.md states the order of service.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use treecast_fabric::HostId;
use treecast_plan::{MemberId, WormKind};
use treecast_terms::Cycles;

use super::in_flight::{InFlight, Slot};
use super::{Event, EventQueue};
use crate::multicast::Multicast;
use crate::observer::{Observer, Slice, Track, Work};
use crate::parameters::{NicProcessors, Parameters};
use crate::setting::Setting;
use treecast_terms::Offload;

/// The priority of a job. The order of the fields is the order of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Priority {
    requested: Cycles,
    packet: u32,
    sending: bool,
    multicast: u64,
    worm: u32,
    /// For the bus: which of the worm's receivers on this host.
    nth: u32,
}

/// A job of a CPU, a bus or a network interface for a participant of a multicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Job {
    priority: Priority,
    work: Work,
    slot: Slot,
    participant: u32,
    /// Whether it serves all worms of the participant, or all receivers on the host.
    for_all: bool,
}

/// Resources of one kind, each of which does one job at a time. Those without a job take no memory
/// for jobs: at any time most hosts of a large fabric have none.
#[derive(Debug, Default)]
struct Resources {
    jobs: Vec<Option<Box<Jobs>>>,
    /// Those of resources that have become idle, for the next ones with a job: some, since
    /// allocating takes as long as serving a job.
    #[expect(clippy::vec_box, reason = "a box moves to a resource and back")]
    unused: Vec<Box<Jobs>>,
}

/// The jobs of a resource.
#[derive(Debug)]
struct Jobs {
    /// The job that is done, or, until it starts, the next one.
    current: Job,
    is_busy: bool,
    /// The other jobs that wait.
    waiting: BinaryHeap<Reverse<Job>>,
}

/// The most boxes that are kept for later. Waves of broadcasts to many hosts would leave more.
const UNUSED_MAX: usize = 1 << 12;

impl Resources {
    fn new(count: u32) -> Self {
        Self { jobs: (0..count).map(|_| None).collect(), unused: Vec::new() }
    }

    fn request(&mut self, resource: usize, mut job: Job) {
        match &mut self.jobs[resource] {
            Some(jobs) => {
                if !jobs.is_busy && job < jobs.current {
                    std::mem::swap(&mut jobs.current, &mut job);
                }
                jobs.waiting.push(Reverse(job));
            }
            idle => {
                let mut jobs = self.unused.pop().unwrap_or_else(|| {
                    Box::new(Jobs { current: job, is_busy: false, waiting: BinaryHeap::new() })
                });
                (jobs.current, jobs.is_busy) = (job, false);
                *idle = Some(jobs);
            }
        }
    }

    /// Starts the next job of a resource, if it is idle and a job waits.
    fn start(&mut self, resource: usize) -> Option<Job> {
        let jobs = self.jobs.get_mut(resource)?.as_deref_mut().filter(|jobs| !jobs.is_busy)?;
        jobs.is_busy = true;
        Some(jobs.current)
    }

    fn done(&mut self, resource: usize) -> Job {
        let jobs = self.jobs[resource].as_deref_mut().expect("a job that completes has started");
        let done = jobs.current;
        if let Some(Reverse(next)) = jobs.waiting.pop() {
            (jobs.current, jobs.is_busy) = (next, false);
        } else {
            let idle = self.jobs[resource].take();
            self.unused.extend(idle.filter(|_| self.unused.len() < UNUSED_MAX));
        }
        done
    }
}

/// A copy of a packet at a network interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PacketCopy {
    pub slot: Slot,
    pub worm: u32,
    pub packet: u32,
}

pub(super) struct Hosts<'a> {
    setting: &'a Setting<'a>,
    cpus: Resources,
    buses: Resources,
    nics: Resources,
    /// The processors that receive, where network interfaces have one for each direction; otherwise
    /// empty.
    nics_receiving: Resources,
    /// Members and hosts whose resources may start a job in this cycle.
    woken_members: Vec<MemberId>,
    woken_hosts: Vec<HostId>,
}

impl<'a> Hosts<'a> {
    pub fn new(setting: &'a Setting) -> Self {
        let hosts = setting.placement.host_count();
        let is_double = setting.parameters.nic_processors == NicProcessors::PerDirection;
        Self {
            setting,
            cpus: Resources::new(setting.placement.member_count()),
            buses: Resources::new(hosts),
            nics: Resources::new(hosts),
            nics_receiving: Resources::new(if is_double { hosts } else { 0 }),
            woken_members: Vec::new(),
            woken_hosts: Vec::new(),
        }
    }

    fn parameters(&self) -> &'a Parameters {
        self.setting.parameters
    }

    fn request_cpu(&mut self, multicast: &Multicast, job: Job) {
        let member = multicast.member(job.participant);
        self.cpus.request(member.index(), job);
        self.woken_members.push(member);
    }

    fn request_bus(&mut self, multicast: &Multicast, job: Job) {
        let host = multicast.host(job.participant);
        self.buses.request(host.index(), job);
        self.woken_hosts.push(host);
    }

    fn request_nic(&mut self, host: HostId, job: Job) {
        let receiving =
            job.work == Work::NicReceive && self.parameters().nic_processors == NicProcessors::PerDirection;
        let nics = if receiving { &mut self.nics_receiving } else { &mut self.nics };
        nics.request(host.index(), job);
        self.woken_hosts.push(host);
    }

    /// A multicast starts: the root sends, or all participants contribute that wait for no other.
    pub fn begin(&mut self, now: Cycles, multicast: &Multicast, slot: Slot) {
        if !multicast.parameters.reduces {
            return self.send(now, multicast, slot, Multicast::ROOT, false);
        }
        for (participant, awaited) in (0..).zip(&multicast.awaited) {
            if awaited.at_host == 0 {
                self.contribute(now, multicast, slot, participant);
            }
        }
    }

    /// A participant whose process has combined all that it waits for sends its contribution.
    fn contribute(&mut self, now: Cycles, multicast: &Multicast, slot: Slot, participant: u32) {
        let worm = multicast.contribution_of(participant);
        let local = multicast.worms[worm as usize].kind == WormKind::Local;
        let work = if local { Work::LocalSend } else { Work::HostSend };
        let priority = priority(now, multicast, worm, 0, true);
        self.request_cpu(multicast, Job { priority, work, slot, participant, for_all: false });
    }

    /// A participant's process has a contribution of a child. Returns the root if its process has
    /// the result by it.
    fn combine_at_host(
        &mut self,
        now: Cycles,
        in_flight: &mut InFlight,
        slot: Slot,
        participant: u32,
    ) -> Option<(Slot, u32)> {
        if !in_flight.combine_at_host(slot, participant) {
            return None;
        }
        let multicast = &in_flight[slot];
        if participant == Multicast::ROOT && !multicast.combines_at_nic(participant) {
            self.send(now, multicast, slot, participant, false);
            return Some((slot, participant));
        }
        self.contribute(now, multicast, slot, participant);
        None
    }

    /// A participant's network interface has a contribution, its own or that of a child. With the
    /// last one it sends what it has combined; that of the root copies the result to all, and to
    /// host memory.
    fn combine_at_nic(&mut self, now: Cycles, in_flight: &mut InFlight, slot: Slot, participant: u32) {
        if !in_flight.combine_at_nic(slot, participant) {
            return;
        }
        let multicast = &in_flight[slot];
        let worm = multicast.contribution_of(participant);
        let is_root = participant == Multicast::ROOT;
        let priority = priority(now, multicast, worm, 0, !is_root);
        let job = |work| Job { priority, work, slot, participant, for_all: false };
        if is_root {
            self.request_bus(multicast, job(Work::BusToMemory));
            self.copy_at_nic(now, multicast, slot, participant, 0);
        } else {
            self.request_nic(multicast.host(participant), job(Work::NicSend));
        }
    }

    /// A participant that has the message sends all its worms, or the local ones only.
    fn send(&mut self, now: Cycles, multicast: &Multicast, slot: Slot, participant: u32, local_only: bool) {
        let mut has_requested = false;
        for &worm in multicast.sends_of(participant) {
            let local = multicast.worms[worm as usize].kind == WormKind::Local;
            let for_all = !local && multicast.parameters.offload != Offload::Host;
            if !local && (local_only || (for_all && has_requested)) {
                continue;
            }
            has_requested |= for_all;
            let work = if local { Work::LocalSend } else { Work::HostSend };
            let priority = priority(now, multicast, worm, 0, true);
            self.request_cpu(multicast, Job { priority, work, slot, participant, for_all });
        }
    }

    /// Requests the copies of a packet that a network interface makes for a participant.
    fn copy_at_nic(&mut self, now: Cycles, multicast: &Multicast, slot: Slot, participant: u32, packet: u32) {
        for &worm in multicast.sends_of(participant) {
            if multicast.worms[worm as usize].kind != WormKind::Local {
                let priority = priority(now, multicast, worm, packet, true);
                let job = Job { priority, work: Work::NicSend, slot, participant, for_all: false };
                self.request_nic(multicast.host(participant), job);
            }
        }
    }

    /// Starts the next job on every idle resource.
    pub fn start_work(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
    ) {
        while let Some(member) = self.woken_members.pop() {
            if let Some(job) = self.cpus.start(member.index()) {
                let time = self.cpu_time(&in_flight[job.slot], job.work);
                report(observer, Track::Cpu(member), &job, events.now, time);
                events.schedule_after(time, Event::CpuDone(member));
            }
        }
        while let Some(host) = self.woken_hosts.pop() {
            if let Some(job) = self.buses.start(host.index()) {
                self.queue_next_packet(&in_flight[job.slot], host, job);
                let time = self.parameters().bus_time(in_flight[job.slot].payload(job.priority.packet));
                report(observer, Track::Bus(host), &job, events.now, time);
                events.schedule_after(time, Event::BusDone(host));
            }
            if let Some(job) = self.nics.start(host.index()) {
                self.nic_starts(events, observer, host, job, false);
            }
            if let Some(job) = self.nics_receiving.start(host.index()) {
                self.nic_starts(events, observer, host, job, true);
            }
        }
    }

    /// A processor of a network interface starts a job: the one that only receives, or the other.
    fn nic_starts(
        &self,
        events: &mut EventQueue,
        observer: &mut impl Observer,
        host: HostId,
        job: Job,
        receiving: bool,
    ) {
        let time = match job.work {
            Work::NicReceive => self.parameters().nic_receive_overhead,
            _ => self.parameters().nic_send_overhead,
        };
        let track = if receiving { Track::NicReceive(host) } else { Track::Nic(host) };
        report(observer, track, &job, events.now, time);
        events.schedule_after(time, Event::NicDone { host, receiving });
    }

    /// All packets of a message request the bus when the message does, and are served in order. So
    /// only the next one needs to be in the queue.
    fn queue_next_packet(&mut self, multicast: &Multicast, host: HostId, job: Job) {
        let packet = job.priority.packet + 1;
        if job.work == Work::BusToNic && packet < multicast.packets {
            let priority = Priority { packet, ..job.priority };
            self.buses.request(host.index(), Job { priority, ..job });
        }
    }

    fn cpu_time(&self, multicast: &Multicast, work: Work) -> Cycles {
        let parameters = self.parameters();
        match work {
            Work::HostReceive => parameters.host_receive_overhead,
            Work::HostSend => parameters.host_send_overhead,
            // With shared delivery the receivers read the message in place; otherwise each copies
            // it out.
            Work::LocalReceive if multicast.shared_delivery => parameters.local_overhead,
            _ => parameters.local_overhead + parameters.local_copy_time(multicast.parameters.message),
        }
    }

    /// A CPU completes its job. Returns the participant that has received the message by it, if
    /// any.
    pub fn cpu_done(
        &mut self,
        now: Cycles,
        in_flight: &mut InFlight,
        member: MemberId,
    ) -> Option<(Slot, u32)> {
        let job = self.cpus.done(member.index());
        self.woken_members.push(member);
        let Job { priority: Priority { worm, .. }, slot, participant, .. } = job;
        let multicast = &in_flight[slot];
        match job.work {
            Work::HostSend => {
                let priority = priority(now, multicast, worm, 0, true);
                self.request_bus(multicast, Job { priority, work: Work::BusToNic, ..job });
                None
            }
            Work::LocalSend => {
                for receiver in multicast.worms[worm as usize].receivers.clone() {
                    let priority = priority(now, multicast, worm, 0, false);
                    let (work, participant) = (Work::LocalReceive, receiver);
                    self.request_cpu(multicast, Job { priority, work, slot, participant, for_all: false });
                }
                None
            }
            _ if multicast.is_contribution(worm) => self.combine_at_host(now, in_flight, slot, participant),
            work => {
                // A network interface that forwards has sent the copies already.
                let local_only = multicast.parameters.offload == Offload::Nic && work == Work::HostReceive;
                self.send(now, multicast, slot, participant, local_only);
                Some((slot, participant))
            }
        }
    }

    pub fn bus_done(&mut self, now: Cycles, in_flight: &mut InFlight, host: HostId) {
        let job = self.buses.done(host.index());
        self.woken_hosts.push(host);
        let Job { priority: Priority { packet, worm, .. }, slot, participant, for_all, .. } = job;
        if job.work == Work::BusToNic {
            let multicast = &in_flight[slot];
            if multicast.is_combined_at_nic(worm, participant) {
                self.combine_at_nic(now, in_flight, slot, participant);
            } else if for_all {
                self.copy_at_nic(now, multicast, slot, participant, packet);
            } else {
                let priority = priority(now, multicast, worm, packet, true);
                self.request_nic(host, Job { priority, work: Work::NicSend, ..job });
            }
            return;
        }
        let receivers =
            if for_all { in_flight[slot].receivers_on(worm, host) } else { participant..participant + 1 };
        for receiver in receivers {
            // A contribution is one packet.
            if in_flight[slot].is_contribution(worm) || in_flight.store_packet(slot, receiver) {
                let multicast = &in_flight[slot];
                let priority = priority(now, multicast, worm, 0, false);
                let (work, participant) = (Work::HostReceive, receiver);
                self.request_cpu(multicast, Job { priority, work, slot, participant, for_all: false });
            }
        }
    }

    /// The last flit of a packet has arrived at a network interface.
    pub fn packet_arrived(&mut self, now: Cycles, in_flight: &InFlight, host: HostId, copy: PacketCopy) {
        let multicast = &in_flight[copy.slot];
        let priority = priority(now, multicast, copy.worm, copy.packet, false);
        let participant = multicast.receivers_on(copy.worm, host).start;
        let job = Job { priority, work: Work::NicReceive, slot: copy.slot, participant, for_all: true };
        self.request_nic(host, job);
    }

    /// A network interface completes its job. Returns the copy that is ready for injection, if any.
    pub fn nic_done(
        &mut self,
        now: Cycles,
        in_flight: &mut InFlight,
        host: HostId,
        receiving: bool,
    ) -> Option<PacketCopy> {
        let nics = if receiving { &mut self.nics_receiving } else { &mut self.nics };
        let job = nics.done(host.index());
        self.woken_hosts.push(host);
        let Job { priority: Priority { packet, worm, .. }, slot, .. } = job;
        if job.work == Work::NicSend {
            return Some(PacketCopy { slot, worm, packet });
        }
        let multicast = &in_flight[slot];
        let here = multicast.receivers_on(worm, host);
        let is_contribution = multicast.is_contribution(worm);
        if is_contribution && multicast.combines_at_nic(here.start) {
            self.combine_at_nic(now, in_flight, slot, here.start);
            return None;
        }
        // The packet is transferred to each receiver on the host in turn, or once for all.
        let for_all = multicast.shared_delivery;
        let moved = if for_all { here.start..here.start + 1 } else { here.clone() };
        for (participant, nth) in moved.zip(0..) {
            let priority = Priority { nth, ..priority(now, multicast, worm, packet, false) };
            self.request_bus(
                multicast,
                Job { priority, work: Work::BusToMemory, slot, participant, for_all },
            );
        }
        if multicast.parameters.offload == Offload::Nic && !is_contribution {
            for participant in here {
                self.copy_at_nic(now, multicast, slot, participant, packet);
            }
        }
        None
    }
}

fn priority(now: Cycles, multicast: &Multicast, worm: u32, packet: u32, sending: bool) -> Priority {
    Priority { requested: now, packet, sending, multicast: multicast.parameters.number, worm, nth: 0 }
}

/// Reports a job that starts now, if it takes any time.
fn report(observer: &mut impl Observer, track: Track, job: &Job, now: Cycles, time: Cycles) {
    if time > Cycles::ZERO {
        let Priority { multicast, worm, packet, .. } = job.priority;
        observer.worked(&Slice { track, from: now, to: now + time, work: job.work, multicast, worm, packet });
    }
}
