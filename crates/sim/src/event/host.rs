//! Hosts: processes on CPUs, the I/O bus, and the network interface with its processor.
//!
//! Every process has a CPU of its own; the processes of a host share its bus and its network interface. Each of these
//! does one piece of work at a time. What waits is served first come, first served; on ties the lower packet goes first,
//! then receiving before sending, then the worm that stands earlier in the plan. So a network interface that makes copies
//! serves them first-packet-first-served: packet 1 to every child, then packet 2.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use treecast_fabric::{Cycles, Flits, HostId};
use treecast_plan::{Local, MemberId, Plan, Scheme, Sends, WormKind};

use super::{Agenda, Event};
use crate::{Delivery, Offload, Parameters, Run};

/// Work that waits, first come first: when it came, then the order of ties.
type Waiting<T> = BinaryHeap<Reverse<(Cycles, T)>>;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CpuWork {
    /// Receives a message from the fabric.
    Receive,
    /// Receives a message from a process on the same host.
    ReceiveLocal,
    /// Sends one worm as a message of its own.
    Send { worm: u32 },
    /// Asks the network interface to send all worms of this process.
    Multisend,
    /// Copies a message to processes on the same host.
    SendLocal { worm: u32 },
}

/// A packet, and what is done with it; the order is that of ties.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PacketWork<T> {
    packet: u32,
    what: T,
}

/// What a bus moves a packet for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BusWork {
    /// To host memory, for the process that is the n-th of those that its worm reaches here.
    Deliver { worm: u32, nth: u32 },
    /// To the network interface for one worm.
    Fetch { worm: u32 },
    /// To the network interface, once for all worms of a process.
    FetchOnce { member: MemberId },
}

/// What a network interface does with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NicWork {
    /// Takes it in.
    Receive { worm: u32 },
    /// Sends a copy.
    Send { worm: u32 },
}

#[derive(Debug)]
struct Resource<T> {
    waiting: Waiting<T>,
    current: Option<T>,
}

impl<T: Ord + Copy> Resource<T> {
    fn new() -> Self {
        Self { waiting: BinaryHeap::new(), current: None }
    }

    fn ask(&mut self, now: Cycles, work: T) {
        self.waiting.push(Reverse((now, work)));
    }

    /// The piece of work that begins now, if there is one.
    fn start(&mut self) -> Option<T> {
        if self.current.is_none() {
            self.current = self.waiting.pop().map(|Reverse((_, work))| work);
            return self.current;
        }
        None
    }

    fn done(&mut self) -> T {
        self.current.take().expect("what ends has begun")
    }
}

pub(super) struct Hosts<'a> {
    plan: &'a Plan,
    parameters: &'a Parameters,
    offload: Offload,
    message: Flits,
    packets: u32,
    sends: Sends,
    /// The receivers of each worm, those on one host together, the hosts in order.
    receivers: Vec<Vec<MemberId>>,
    /// Whether what reaches a host is moved once for all its processes.
    shared_delivery: bool,
    cpus: Vec<Resource<CpuWork>>,
    buses: Vec<Resource<PacketWork<BusWork>>>,
    nics: Vec<Resource<PacketWork<NicWork>>>,
    /// Packets in memory, by member.
    packets_held: Vec<u32>,
    /// Resources to look at in this cycle.
    busy_members: Vec<MemberId>,
    busy_hosts: Vec<HostId>,
    pub deliveries: Vec<Delivery>,
    pub cpu_busy: Vec<Cycles>,
}

impl<'a> Hosts<'a> {
    pub fn new(run: &Run<'a>, packets: u32) -> Self {
        let placement = run.plan.placement();
        let hosts = placement.host_count();
        let receivers = run.plan.worms().iter().map(|worm| {
            let mut to = worm.to.clone();
            to.sort_unstable_by_key(|&member| (placement.host_of(member), member));
            to
        });
        Self {
            plan: run.plan,
            parameters: run.parameters,
            offload: run.offload,
            message: run.message,
            packets,
            sends: run.plan.sends(),
            receivers: receivers.collect(),
            shared_delivery: matches!(run.plan.scheme(), Scheme::Leader { local: Local::Direct, .. }),
            cpus: (0..placement.member_count()).map(|_| Resource::new()).collect(),
            buses: (0..hosts).map(|_| Resource::new()).collect(),
            nics: (0..hosts).map(|_| Resource::new()).collect(),
            packets_held: vec![0; placement.member_count() as usize],
            busy_members: Vec::new(),
            busy_hosts: Vec::new(),
            deliveries: Vec::with_capacity(run.plan.destination_count()),
            cpu_busy: vec![Cycles::ZERO; hosts as usize],
        }
    }

    /// The root's process begins to send.
    pub fn begin(&mut self) {
        self.send_from_host(Cycles::ZERO, self.plan.root());
    }

    /// The payload of a packet: the last one of a message has what is left.
    pub fn packet_flits(&self, packet: u32) -> Flits {
        let sent = u64::from(packet) * self.parameters.packet_flits.0;
        Flits((self.message.0 - sent).min(self.parameters.packet_flits.0))
    }

    fn kind(&self, worm: u32) -> WormKind {
        self.plan.worms()[worm as usize].kind
    }

    fn ask_cpu(&mut self, now: Cycles, member: MemberId, work: CpuWork) {
        self.cpus[member.index()].ask(now, work);
        self.busy_members.push(member);
    }

    fn ask_bus(&mut self, now: Cycles, host: HostId, packet: u32, what: BusWork) {
        self.buses[host.index()].ask(now, PacketWork { packet, what });
        self.busy_hosts.push(host);
    }

    fn ask_nic(&mut self, now: Cycles, host: HostId, packet: u32, what: NicWork) {
        self.nics[host.index()].ask(now, PacketWork { packet, what });
        self.busy_hosts.push(host);
    }

    /// A process that holds the message sends all its worms, in the plan's order.
    fn send_from_host(&mut self, now: Cycles, member: MemberId) {
        let mut asked = false;
        for index in 0..self.sends.of(member).len() {
            let worm = self.sends.of(member)[index];
            match (self.kind(worm), self.offload) {
                (WormKind::Local, _) => self.ask_cpu(now, member, CpuWork::SendLocal { worm }),
                (_, Offload::Host) => self.ask_cpu(now, member, CpuWork::Send { worm }),
                _ if asked => {}
                _ => {
                    asked = true;
                    self.ask_cpu(now, member, CpuWork::Multisend);
                }
            }
        }
    }

    /// The copies that a network interface makes of a packet for a process.
    fn copy_at_nic(&mut self, now: Cycles, host: HostId, member: MemberId, packet: u32) {
        for index in 0..self.sends.of(member).len() {
            let worm = self.sends.of(member)[index];
            if self.kind(worm) != WormKind::Local {
                self.ask_nic(now, host, packet, NicWork::Send { worm });
            }
        }
    }

    /// Starts the next piece of work on everything that is idle.
    pub fn start_work(&mut self, agenda: &mut Agenda) {
        let mut members = std::mem::take(&mut self.busy_members);
        members.sort_unstable();
        members.dedup();
        for &member in &members {
            if let Some(work) = self.cpus[member.index()].start() {
                agenda.after(self.cpu_time(work), Event::CpuDone(member));
            }
        }
        members.clear();
        self.busy_members = members;
        let mut hosts = std::mem::take(&mut self.busy_hosts);
        hosts.sort_unstable();
        hosts.dedup();
        for &host in &hosts {
            if let Some(work) = self.buses[host.index()].start() {
                agenda.after(self.parameters.bus_time(self.packet_flits(work.packet)), Event::BusDone(host));
            }
            if let Some(work) = self.nics[host.index()].start() {
                let time = match work.what {
                    NicWork::Receive { .. } => self.parameters.nic_receive_overhead,
                    NicWork::Send { .. } => self.parameters.nic_send_overhead,
                };
                agenda.after(time, Event::NicDone(host));
            }
        }
        hosts.clear();
        self.busy_hosts = hosts;
    }

    fn cpu_time(&self, work: CpuWork) -> Cycles {
        let parameters = self.parameters;
        match work {
            CpuWork::Receive => parameters.host_receive_overhead,
            CpuWork::Send { .. } | CpuWork::Multisend => parameters.host_send_overhead,
            // Shared memory is read where it lies if it is delivered to all at once, else copied out.
            CpuWork::ReceiveLocal if self.shared_delivery => parameters.local_overhead,
            CpuWork::ReceiveLocal | CpuWork::SendLocal { .. } => {
                parameters.local_overhead + parameters.local_copy_time(self.message)
            }
        }
    }

    pub fn cpu_done(&mut self, now: Cycles, member: MemberId) {
        let host = self.plan.placement().host_of(member);
        let work = self.cpus[member.index()].done();
        let time = self.cpu_time(work);
        self.cpu_busy[host.index()] += time;
        self.busy_members.push(member);
        match work {
            CpuWork::Receive | CpuWork::ReceiveLocal => self.received(now, member, work == CpuWork::Receive),
            CpuWork::Send { worm } => {
                for packet in 0..self.packets {
                    self.ask_bus(now, host, packet, BusWork::Fetch { worm });
                }
            }
            CpuWork::Multisend => {
                for packet in 0..self.packets {
                    self.ask_bus(now, host, packet, BusWork::FetchOnce { member });
                }
            }
            CpuWork::SendLocal { worm } => {
                let plan = self.plan;
                for &to in &plan.worms()[worm as usize].to {
                    self.ask_cpu(now, to, CpuWork::ReceiveLocal);
                }
            }
        }
    }

    /// A process has the message, and goes on with it.
    fn received(&mut self, now: Cycles, member: MemberId, from_fabric: bool) {
        let host = self.plan.placement().host_of(member);
        self.deliveries.push(Delivery { member, host, cycle: now });
        if self.offload == Offload::Nic && from_fabric {
            // The network interface has sent its copies already: what is left are those inside the host.
            for index in 0..self.sends.of(member).len() {
                let worm = self.sends.of(member)[index];
                if self.kind(worm) == WormKind::Local {
                    self.ask_cpu(now, member, CpuWork::SendLocal { worm });
                }
            }
        } else {
            self.send_from_host(now, member);
        }
    }

    pub fn bus_done(&mut self, now: Cycles, host: HostId) {
        let PacketWork { packet, what } = self.buses[host.index()].done();
        self.busy_hosts.push(host);
        match what {
            BusWork::Fetch { worm } => self.ask_nic(now, host, packet, NicWork::Send { worm }),
            BusWork::FetchOnce { member } => self.copy_at_nic(now, host, member, packet),
            BusWork::Deliver { worm, nth } => {
                let here = self.members_here(worm, host).len();
                let moved = if self.shared_delivery { 0..here } else { nth as usize..nth as usize + 1 };
                for index in moved {
                    let member = self.members_here(worm, host)[index];
                    let held = &mut self.packets_held[member.index()];
                    *held += 1;
                    assert!(*held <= self.packets, "nobody receives a packet twice");
                    if *held == self.packets {
                        self.ask_cpu(now, member, CpuWork::Receive);
                    }
                }
            }
        }
    }

    /// The receivers of a worm on a host.
    fn members_here(&self, worm: u32, host: HostId) -> &[MemberId] {
        let (receivers, placement) = (&self.receivers[worm as usize], self.plan.placement());
        let first = receivers.partition_point(|&member| placement.host_of(member) < host);
        let end = receivers.partition_point(|&member| placement.host_of(member) <= host);
        &receivers[first..end]
    }

    pub fn packet_arrived(&mut self, now: Cycles, host: HostId, worm: u32, packet: u32) {
        self.ask_nic(now, host, packet, NicWork::Receive { worm });
    }

    /// The network interface ends its piece of work; the answer is the copy that is ready for the link.
    pub fn nic_done(&mut self, now: Cycles, host: HostId) -> Option<(u32, u32)> {
        let PacketWork { packet, what } = self.nics[host.index()].done();
        self.busy_hosts.push(host);
        match what {
            NicWork::Send { worm } => Some((worm, packet)),
            NicWork::Receive { worm } => {
                let here = self.members_here(worm, host).len();
                // The interface moves the packet to one attached process after another, or once for all.
                let moves = if self.shared_delivery { 1 } else { here as u32 };
                for nth in 0..moves {
                    self.ask_bus(now, host, packet, BusWork::Deliver { worm, nth });
                }
                if self.offload == Offload::Nic {
                    for index in 0..here {
                        self.copy_at_nic(now, host, self.members_here(worm, host)[index], packet);
                    }
                }
                None
            }
        }
    }
}
