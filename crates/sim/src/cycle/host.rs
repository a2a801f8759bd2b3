//! Hosts: CPUs, buses and the processors of network interfaces, each a server with a queue.

use std::collections::VecDeque;

use treecast_fabric::HostId;
use treecast_plan::{MemberId, WormKind};
use treecast_terms::Cycles;

use super::{Multicasts, PacketId};
use crate::multicast::Multicast;
use crate::observer::{Observer, Slice, Track, Work};
use crate::parameters::NicProcessors;
use crate::setting::Setting;
use treecast_terms::Offload;

/// The priority of a job: first come, first served. The other fields decide between jobs that
/// arrive in the same cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Priority {
    arrived: Cycles,
    packet: u32,
    /// Receiving comes before sending.
    sends: bool,
    multicast: u64,
    worm: u32,
    process: MemberId,
}

/// A job of a server.
#[derive(Debug, Clone, Copy)]
struct Job {
    work: Work,
    /// The packet. Packet 0 stands for a whole message, and the first worm of a process for all its
    /// worms.
    packet: PacketId,
    /// The participant that it is done for.
    participant: u32,
    time: Cycles,
}

/// A resource that does one job at a time.
#[derive(Debug)]
struct Server {
    track: Track,
    waiting: Vec<(Priority, Job)>,
    current: Option<(Job, Cycles)>,
}

impl Server {
    fn new(track: Track) -> Self {
        Self { track, waiting: Vec::new(), current: None }
    }

    /// Takes the job that completes in this cycle.
    fn end(&mut self, now: Cycles) -> Option<Job> {
        let (job, _) = self.current.take_if(|&mut (_, end)| end == now)?;
        Some(job)
    }

    /// Starts the job of the highest priority; returns whether there was one.
    fn start(&mut self, now: Cycles, observer: &mut impl Observer) -> bool {
        if self.current.is_some() {
            return false;
        }
        let priorities = self.waiting.iter().enumerate().map(|(place, &(priority, _))| (priority, place));
        let Some((_, place)) = priorities.min() else { return false };
        let (_, job) = self.waiting.remove(place);
        let end = now + job.time;
        self.current = Some((job, end));
        if end > now {
            let PacketId { multicast, worm, packet } = job.packet;
            let Job { work, .. } = job;
            observer.worked(&Slice { track: self.track, from: now, to: end, work, multicast, worm, packet });
        }
        true
    }
}

/// All hosts.
#[derive(Debug)]
pub(super) struct Hosts<'a> {
    setting: &'a Setting<'a>,
    cpus: Vec<Server>,
    buses: Vec<Server>,
    nics: Vec<Server>,
    /// The processors that receive, where network interfaces have one for each direction; otherwise
    /// unused.
    nics_receiving: Vec<Server>,
    /// The packets of each network interface that are ready for injection.
    pub ready: Vec<VecDeque<PacketId>>,
}

impl<'a> Hosts<'a> {
    pub fn new(setting: &'a Setting) -> Self {
        let hosts = || (0..setting.placement.host_count()).map(HostId);
        let members = (0..setting.placement.member_count()).map(MemberId);
        Self {
            setting,
            cpus: members.map(|member| Server::new(Track::Cpu(member))).collect(),
            buses: hosts().map(|host| Server::new(Track::Bus(host))).collect(),
            nics: hosts().map(|host| Server::new(Track::Nic(host))).collect(),
            nics_receiving: hosts().map(|host| Server::new(Track::NicReceive(host))).collect(),
            ready: hosts().map(|_| VecDeque::new()).collect(),
        }
    }

    fn servers(&mut self) -> impl Iterator<Item = &mut Server> {
        let nics = self.nics.iter_mut().chain(&mut self.nics_receiving);
        self.cpus.iter_mut().chain(&mut self.buses).chain(nics)
    }

    /// The next cycle in which a job completes.
    pub fn next_end(&self) -> Option<Cycles> {
        let servers = self.cpus.iter().chain(&self.buses).chain(&self.nics).chain(&self.nics_receiving);
        servers.filter_map(|server| server.current.as_ref().map(|&(_, end)| end)).min()
    }

    /// A multicast begins with the sends of the root, or with the contributions of all participants
    /// that wait for none.
    pub fn begin(&mut self, now: Cycles, multicast: &Multicast) {
        if multicast.parameters.reduces {
            for participant in 0..multicast.participant_count() {
                if multicast.awaited[participant as usize].at_host == 0 {
                    self.contribute(now, multicast, participant);
                }
            }
        } else {
            self.send(now, multicast, Multicast::ROOT, false);
        }
    }

    /// A process sends its contribution: to a process on its host, or to its network interface.
    fn contribute(&mut self, now: Cycles, multicast: &Multicast, participant: u32) {
        let worm = multicast.contribution_of(participant);
        let work = match multicast.worms[worm as usize].kind {
            WormKind::Local => Work::LocalSend,
            _ => Work::HostSend,
        };
        self.queue(now, multicast, work, worm, 0, participant);
    }

    /// A process has received a contribution; returns whether it is the root's, and has the result.
    fn received_contribution(
        &mut self,
        now: Cycles,
        multicasts: &mut Multicasts,
        number: u64,
        participant: u32,
    ) -> bool {
        let in_flight = multicasts.in_flight(number);
        in_flight.awaited[participant as usize].at_host -= 1;
        if in_flight.awaited[participant as usize].at_host > 0 {
            return false;
        }
        let multicast = &in_flight.multicast;
        let has_result = participant == Multicast::ROOT && !multicast.combines_at_nic(participant);
        if !has_result {
            self.contribute(now, multicast, participant);
        }
        has_result
    }

    /// A network interface that combines has a contribution.
    fn combine(&mut self, now: Cycles, multicasts: &mut Multicasts, number: u64, participant: u32) {
        let in_flight = multicasts.in_flight(number);
        in_flight.awaited[participant as usize].at_nic -= 1;
        if in_flight.awaited[participant as usize].at_nic > 0 {
            return;
        }
        let multicast = &in_flight.multicast;
        let worm = multicast.contribution_of(participant);
        if participant == Multicast::ROOT {
            self.queue(now, multicast, Work::BusToMemory, worm, 0, participant);
            self.copy(now, multicast, 0, participant);
        } else {
            self.queue(now, multicast, Work::NicSend, worm, 0, participant);
        }
    }

    /// A participant that has the message sends its worms, except those that its network interface
    /// has forwarded.
    fn send(&mut self, now: Cycles, multicast: &Multicast, participant: u32, forwarded: bool) {
        let mut asked = false;
        for &worm in multicast.sends_of(participant) {
            let local = multicast.worms[worm as usize].kind == WormKind::Local;
            if local {
                self.queue(now, multicast, Work::LocalSend, worm, 0, participant);
            } else if !forwarded && (multicast.parameters.offload == Offload::Host || !asked) {
                asked = true;
                self.queue(now, multicast, Work::HostSend, worm, 0, participant);
            }
        }
    }

    /// The last flit of a packet has arrived at a network interface.
    pub fn packet_arrived(&mut self, now: Cycles, multicast: &Multicast, host: HostId, packet: PacketId) {
        let receiver = multicast.receivers_on(packet.worm, host).start;
        self.queue(now, multicast, Work::NicReceive, packet.worm, packet.packet, receiver);
    }

    /// Queues a job at its server.
    fn queue(
        &mut self,
        now: Cycles,
        multicast: &Multicast,
        work: Work,
        worm: u32,
        packet: u32,
        participant: u32,
    ) {
        let parameters = self.setting.parameters;
        let message = multicast.parameters.message;
        let (process, host) = (multicast.member(participant), multicast.host(participant));
        let copy_time = parameters.local_copy_time(message);
        let bus_time = parameters.bus_time(multicast.payload(packet));
        let (server, sends, time) = match work {
            Work::HostSend => (&mut self.cpus[process.index()], true, parameters.host_send_overhead),
            Work::HostReceive => (&mut self.cpus[process.index()], false, parameters.host_receive_overhead),
            Work::LocalSend => (&mut self.cpus[process.index()], true, parameters.local_overhead + copy_time),
            Work::LocalReceive if multicast.shared_delivery => {
                (&mut self.cpus[process.index()], false, parameters.local_overhead)
            }
            Work::LocalReceive => {
                (&mut self.cpus[process.index()], false, parameters.local_overhead + copy_time)
            }
            Work::BusToNic => (&mut self.buses[host.index()], true, bus_time),
            Work::BusToMemory => (&mut self.buses[host.index()], false, bus_time),
            Work::NicSend => (&mut self.nics[host.index()], true, parameters.nic_send_overhead),
            Work::NicReceive => {
                let nics = match parameters.nic_processors {
                    NicProcessors::PerDirection => &mut self.nics_receiving,
                    NicProcessors::Shared => &mut self.nics,
                };
                (&mut nics[host.index()], false, parameters.nic_receive_overhead)
            }
            Work::Transfer => unreachable!("links are not servers"),
        };
        let multicast = multicast.parameters.number;
        let priority = Priority { arrived: now, packet, sends, multicast, worm, process };
        let packet = PacketId { multicast, worm, packet };
        server.waiting.push((priority, Job { work, packet, participant, time }));
    }

    /// Completes the jobs of this cycle; returns whether there were any.
    pub fn end_jobs(
        &mut self,
        now: Cycles,
        multicasts: &mut Multicasts,
        observer: &mut impl Observer,
    ) -> bool {
        let servers = self.servers();
        let ended: Vec<Job> = servers.filter_map(|server| server.end(now)).collect();
        for job in &ended {
            self.ended(now, job, multicasts, observer);
        }
        !ended.is_empty()
    }

    /// Starts the next job at every idle server; returns whether there were any.
    pub fn start_jobs(&mut self, now: Cycles, observer: &mut impl Observer) -> bool {
        let servers = self.servers();
        let mut any = false;
        for server in servers {
            any |= server.start(now, observer);
        }
        any
    }

    /// Queues the jobs that follow from a completed one.
    fn ended(&mut self, now: Cycles, job: &Job, multicasts: &mut Multicasts, observer: &mut impl Observer) {
        let Job { work, packet: PacketId { multicast: number, worm, packet }, participant, .. } = *job;
        if work == Work::BusToMemory {
            self.in_memory(now, multicasts, job);
            return;
        }
        let multicast = &multicasts[&number].multicast;
        let offload = multicast.parameters.offload;
        match work {
            Work::HostSend => {
                for packet in 0..multicast.packets {
                    self.queue(now, multicast, Work::BusToNic, worm, packet, participant);
                }
            }
            Work::BusToNic if multicast.is_combined_at_nic(worm, participant) => {
                self.combine(now, multicasts, number, participant);
            }
            Work::BusToNic if offload == Offload::Host || multicast.is_contribution(worm) => {
                self.queue(now, multicast, Work::NicSend, worm, packet, participant);
            }
            Work::BusToNic => self.copy(now, multicast, packet, participant),
            Work::NicSend => self.ready[multicast.host(participant).index()].push_back(job.packet),
            Work::NicReceive if multicast.is_contribution(worm) => {
                if multicast.combines_at_nic(participant) {
                    self.combine(now, multicasts, number, participant);
                } else {
                    self.queue(now, multicast, Work::BusToMemory, worm, packet, participant);
                }
            }
            Work::NicReceive => {
                for receiver in multicast.receivers_on(worm, multicast.host(participant)) {
                    // With shared delivery one transfer serves all of them.
                    if receiver == participant || !multicast.shared_delivery {
                        self.queue(now, multicast, Work::BusToMemory, worm, packet, receiver);
                    }
                    if offload == Offload::Nic {
                        self.copy(now, multicast, packet, receiver);
                    }
                }
            }
            Work::LocalSend => {
                for receiver in multicast.worms[worm as usize].receivers.clone() {
                    self.queue(now, multicast, Work::LocalReceive, worm, 0, receiver);
                }
            }
            Work::HostReceive | Work::LocalReceive if multicast.is_contribution(worm) => {
                if self.received_contribution(now, multicasts, number, participant) {
                    self.delivered(now, multicasts, number, participant, false, observer);
                }
            }
            Work::HostReceive | Work::LocalReceive => {
                let forwarded = work == Work::HostReceive && offload == Offload::Nic;
                self.delivered(now, multicasts, number, participant, forwarded, observer);
            }
            Work::BusToMemory | Work::Transfer => unreachable!("handled above, or not a job of a host"),
        }
    }

    /// A process has the message.
    fn delivered(
        &mut self,
        now: Cycles,
        multicasts: &mut Multicasts,
        number: u64,
        participant: u32,
        forwarded: bool,
        observer: &mut impl Observer,
    ) {
        let multicast = &multicasts[&number].multicast;
        self.send(now, multicast, participant, forwarded);
        let (member, host) = (multicast.member(participant), multicast.host(participant));
        observer.delivered(number, member, host, now);
        multicasts.delivered(number);
    }

    /// The network interface copies a packet to each worm of a participant that leaves the host.
    fn copy(&mut self, now: Cycles, multicast: &Multicast, packet: u32, participant: u32) {
        for &worm in multicast.sends_of(participant) {
            if multicast.worms[worm as usize].kind != WormKind::Local {
                self.queue(now, multicast, Work::NicSend, worm, packet, participant);
            }
        }
    }

    /// A packet is in host memory: a receiver that has the whole message receives it.
    fn in_memory(&mut self, now: Cycles, multicasts: &mut Multicasts, job: &Job) {
        let Job { packet: PacketId { multicast: number, worm, .. }, participant, .. } = *job;
        let multicast = &multicasts[&number].multicast;
        if multicast.is_contribution(worm) {
            self.queue(now, multicast, Work::HostReceive, worm, 0, participant);
            return;
        }
        // The result at a root whose network interface has combined it is for the root alone.
        let receivers = if multicast.shared_delivery && participant != Multicast::ROOT {
            multicast.receivers_on(worm, multicast.host(participant))
        } else {
            participant..participant + 1
        };
        for receiver in receivers {
            if multicasts.store_packet(number, receiver) {
                let multicast = &multicasts[&number].multicast;
                self.queue(now, multicast, Work::HostReceive, worm, 0, receiver);
            }
        }
    }
}
