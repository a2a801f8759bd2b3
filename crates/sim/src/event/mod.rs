//! The event-driven simulator: exact to the cycle where an input buffer holds a whole packet.
//!
//! Time advances from one cycle in which something happens to the next. What happens in one cycle is ordered so:
//!
//! 1. Everything that ends or arrives takes effect, in the order in which it was scheduled.
//! 2. Every idle resource of a host (CPU, bus, network interface) starts the next piece of work that waits for it. Work
//!    that takes no time ends at once: steps 1 and 2 are repeated until nothing more happens.
//! 3. The injection links of hosts are granted. On tori and meshes a packet is at its router at once: then steps 1 to 3
//!    are repeated.
//! 4. Every output of a switch that somebody waits for and that is free is granted.
//!
//! A grant in step 4 takes effect in a later cycle, so the order of switches changes nothing.

mod host;
mod network;
mod way;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use treecast_fabric::{Cycles, Flits, HostId, SwitchId};
use treecast_plan::MemberId;

use crate::{Outcome, Run, SimError, Status};
use host::Hosts;
use network::Network;
use way::Ways;

/// What happens at a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A process ends its piece of work.
    CpuDone(MemberId),
    /// A bus ends its transfer.
    BusDone(HostId),
    /// A network interface ends its piece of work.
    NicDone(HostId),
    /// The last flit of a packet has arrived at a network interface.
    PacketArrived { host: HostId, worm: u32, packet: u32 },
    /// The first flit of a packet has arrived in an input buffer.
    HeaderArrived(network::InputId),
    /// The packet at the head of an input buffer knows where it wants to go.
    Routed(network::InputId),
    /// The packet at the head of an input buffer has left it whole.
    TailLeft(network::InputId),
    /// An output of a switch that somebody waits for may be free.
    SwitchWake(SwitchId),
    /// The injection link of a host may be free.
    InjectionWake(HostId),
}

/// What is scheduled, earliest first, and in the order of scheduling within a cycle.
#[derive(Debug, Default)]
struct Agenda {
    now: Cycles,
    events: BinaryHeap<Reverse<(Cycles, u64, Event)>>,
    scheduled: u64,
}

impl Agenda {
    fn at(&mut self, time: Cycles, event: Event) {
        debug_assert!(time >= self.now, "nothing is scheduled into the past");
        self.events.push(Reverse((time, self.scheduled, event)));
        self.scheduled += 1;
    }

    fn after(&mut self, span: Cycles, event: Event) {
        self.at(self.now + span, event);
    }

    /// Whether something is left to happen in the current cycle.
    fn is_due(&self) -> bool {
        self.events.peek().is_some_and(|Reverse((time, ..))| *time == self.now)
    }

    /// The next event of the current cycle.
    fn next_now(&mut self) -> Option<Event> {
        self.is_due().then(|| self.events.pop().expect("peeked").0.2)
    }

    /// Goes on to the next cycle in which something happens.
    fn advance(&mut self) -> Option<Cycles> {
        self.now = self.events.peek()?.0.0;
        Some(self.now)
    }
}

/// Simulates a run whose message has so many packets.
pub(crate) fn simulate(run: &Run, packets: u32) -> Result<Outcome, SimError> {
    let ways = Ways::new(run);
    let header = ways.longest_header();
    let packet = Flits(run.message.0.min(run.parameters.packet_flits.0));
    if packet + header > run.parameters.buffer_flits {
        return Err(SimError::PacketExceedsBuffer {
            packet: packet.0,
            header: header.0,
            buffer: run.parameters.buffer_flits.0,
        });
    }
    let mut agenda = Agenda::default();
    let mut network = Network::new(run, ways);
    let mut hosts = Hosts::new(run, packets);
    hosts.begin();
    let mut last = Cycles::ZERO;
    let ended = loop {
        step(&mut agenda, &mut hosts, &mut network);
        match agenda.advance() {
            None => break true,
            Some(now) if now > run.parameters.cycles_max => break false,
            Some(now) => last = now,
        }
    };
    debug_assert!(last <= run.parameters.cycles_max);
    let complete = hosts.deliveries.len() == run.plan.destination_count();
    let status = match (complete, ended) {
        (true, _) => Status::Complete,
        (false, false) => Status::Incomplete,
        (false, true) => Status::Deadlocked,
    };
    let mut deliveries = hosts.deliveries;
    deliveries.sort_unstable_by_key(|delivery| delivery.member);
    Ok(Outcome {
        status,
        latency: complete.then(|| deliveries.iter().map(|delivery| delivery.cycle).max().unwrap_or_default()),
        deliveries,
        worms: network.worms_injected(),
        cpu_busy: hosts.cpu_busy,
    })
}

/// All that happens in the current cycle.
fn step(agenda: &mut Agenda, hosts: &mut Hosts, network: &mut Network) {
    loop {
        while let Some(event) = agenda.next_now() {
            match event {
                Event::CpuDone(member) => hosts.cpu_done(agenda.now, member),
                Event::BusDone(host) => hosts.bus_done(agenda.now, host),
                Event::NicDone(host) => {
                    if let Some((worm, packet)) = hosts.nic_done(agenda.now, host) {
                        network.inject(host, worm, packet, hosts.packet_flits(packet));
                    }
                }
                Event::PacketArrived { host, worm, packet } => {
                    hosts.packet_arrived(agenda.now, host, worm, packet);
                }
                Event::HeaderArrived(input) => network.header_arrived(agenda, input),
                Event::Routed(input) => network.routed(agenda.now, input),
                Event::TailLeft(input) => network.tail_left(agenda, input),
                Event::SwitchWake(switch) => network.wake_switch(switch),
                Event::InjectionWake(host) => network.wake_injection(host),
            }
        }
        hosts.start_work(agenda);
        if !agenda.is_due() {
            network.grant_injections(agenda);
        }
        if !agenda.is_due() {
            break;
        }
    }
    network.grant_switches(agenda);
}
