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

    /// Goes on to the next cycle, if anything is left to happen.
    fn advance(&mut self, pace: Pace) -> Option<Cycles> {
        let next = self.events.peek()?.0.0;
        self.now = match pace {
            Pace::Events => next,
            #[cfg(test)]
            Pace::EveryCycle => self.now + Cycles(1),
        };
        Some(self.now)
    }
}

/// From which cycle to which the simulator goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// To the next in which something happens, looking at what that concerns.
    Events,
    /// From each to the next, looking at every switch and host: slow, and what the other pace must equal.
    #[cfg(test)]
    EveryCycle,
}

/// Simulates a run whose message has so many packets.
pub(crate) fn simulate(run: &Run, packets: u32) -> Result<Outcome, SimError> {
    simulate_at(Pace::Events, run, packets)
}

fn simulate_at(pace: Pace, run: &Run, packets: u32) -> Result<Outcome, SimError> {
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
        #[cfg(test)]
        if pace == Pace::EveryCycle {
            network.wake_all();
        }
        step(&mut agenda, &mut hosts, &mut network);
        match agenda.advance(pace) {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use treecast_fabric::{Fabric, FabricSpec};
    use treecast_plan::{Group, MemberList, Placement, PlanOptions, plan};

    use super::*;
    use crate::{Offload, Parameters};

    const SCHEMES: [(&str, &str); 8] = [
        ("irregular:switches=6,ports=6,hosts=18", "separate"),
        ("irregular:switches=6,ports=6,hosts=18", "binomial"),
        ("irregular:switches=6,ports=6,hosts=18,connectivity=0.2", "path"),
        ("irregular:switches=6,ports=6,hosts=18,connectivity=1", "tree-worm"),
        ("torus:k=4,n=2,uni", "binomial"),
        ("torus:k=3,n=2", "separate"),
        ("torus:k=4,n=2,uni", "md-torus:form=worm"),
        ("fat-tree:k=4", "postal:lambda=2"),
    ];

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

        /// Nobody who could go is forgotten: looking at everybody in every cycle finds the same.
        #[test]
        fn going_from_event_to_event_misses_nothing(
            (spec, scheme) in proptest::sample::select(&SCHEMES[..]),
            seed in 0_u64..1000,
            message in 1_u64..400,
            buffer in 40_u64..120,
            overheads in (0_u64..4, 0_u64..4),
            offload in proptest::sample::select(vec![Offload::Host, Offload::Assisted, Offload::Nic]),
            policy in proptest::sample::select(vec!["first-free", "lowest"]),
        ) {
            let spec = if spec.starts_with("irregular") { format!("{spec},seed={seed}") } else { spec.to_string() };
            let fabric = Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap();
            let placement = Placement::one_per_host(fabric.topology().host_count());
            let root = MemberId((seed % u64::from(placement.member_count())) as u32);
            let destinations = MemberList::All.resolve(&placement, root, seed).unwrap();
            let group = Group::new(placement, root, destinations).unwrap();
            let plan = plan(&fabric, &group, &scheme.parse().unwrap(), &PlanOptions::default()).unwrap();
            let parameters: Parameters = format!(
                "host_overhead={},nic_overhead={},bus_mb_per_s=0,packet_flits=32,buffer_flits={buffer},adaptive={policy}",
                overheads.0, overheads.1
            )
            .parse()
            .unwrap();
            let message = Flits(message);
            let run = Run { fabric: &fabric, plan: &plan, offload, message, parameters: &parameters, seed };
            let packets = crate::packet_count(message, parameters.packet_flits).unwrap();
            prop_assert_eq!(simulate_at(Pace::EveryCycle, &run, packets), simulate(&run, packets));
        }
    }
}
