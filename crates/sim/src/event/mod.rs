//! The event-driven simulator: exact to the cycle where an input buffer holds a whole packet.
//!
//! Time advances from one cycle with events to the next. docs/simulation.md states the order of
//! events within a cycle. A grant takes effect elsewhere in a later cycle, so the order in which
//! switches are served makes no difference.

mod event_queue;
mod host;
mod in_flight;
mod network;

use std::iter::Peekable;

use treecast_fabric::{HostId, LinkId};
use treecast_plan::MemberId;
use treecast_terms::Cycles;

use crate::deadlock::DEADLOCK_INTERVAL;
use crate::error::SimError;
use crate::multicast::Multicast;
use crate::observer::Observer;
use crate::parameters::Switching;
use crate::setting::{Ending, Setting};
use event_queue::EventQueue;
use host::{Hosts, PacketCopy};
use in_flight::InFlight;
use network::Network;

/// The number of events after which the observer is told the cycle: some hundred microseconds of
/// work.
const EVENTS_UNTOLD: u64 = 4096;

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A CPU completes its job.
    CpuDone(MemberId),
    /// A bus completes its transfer.
    BusDone(HostId),
    /// A network interface completes its job.
    NicDone { host: HostId, receiving: bool },
    /// The last flit of a packet has arrived at a network interface.
    PacketArrived { host: HostId, copy: PacketCopy },
    /// The packet at the head of an input buffer is routed.
    Routed(network::InputId),
    /// An output link with waiting requests may be free, or have room in the buffer at its end.
    OutputWake(LinkId),
    /// The injection link of a host may be free.
    InjectionWake(HostId),
}

/// Simulates multicasts, given in the order of their starts, until no event is left or a limit of
/// the setting is reached. Returns how the run ended, and the number of events.
///
/// # Errors
/// Errors of the multicasts, [`SimError::PacketExceedsBuffer`], [`SimError::NeedsCycle`] with
/// wormhole switching, and
/// [`SimError::Interrupted`] by the observer.
pub(crate) fn simulate<O: Observer>(
    setting: &Setting,
    multicasts: impl Iterator<Item = Result<Multicast, SimError>>,
    observer: &mut O,
) -> Result<(Ending, u64), SimError> {
    if setting.parameters.switching == Switching::Wormhole {
        return Err(SimError::NeedsCycle);
    }
    let mut simulation = Simulation {
        setting,
        events: EventQueue::new(),
        hosts: Hosts::new(setting),
        network: Network::new(setting),
        in_flight: InFlight::default(),
        observer,
    };
    let ending = simulation.run(multicasts.peekable())?;
    Ok((ending, simulation.events.taken_total()))
}

struct Simulation<'a, O> {
    setting: &'a Setting<'a>,
    events: EventQueue,
    hosts: Hosts<'a>,
    network: Network<'a>,
    in_flight: InFlight,
    observer: &'a mut O,
}

impl<O: Observer> Simulation<'_, O> {
    fn run(
        &mut self,
        mut multicasts: Peekable<impl Iterator<Item = Result<Multicast, SimError>>>,
    ) -> Result<Ending, SimError> {
        let mut look = DEADLOCK_INTERVAL;
        let mut tell_at = EVENTS_UNTOLD;
        loop {
            let next_start = match multicasts.peek() {
                Some(Ok(multicast)) => Some(multicast.parameters.start),
                Some(Err(error)) => return Err(error.clone()),
                None => None,
            };
            let now = self.events.now;
            if next_start == Some(now) {
                let multicast = multicasts.next().expect("peeked")?;
                if self.in_flight.count() >= self.setting.in_flight_max {
                    return Ok(self
                        .network
                        .deadlock(&self.in_flight, now)
                        .map_or(Ending::BacklogLimit(now), Ending::Deadlocked));
                }
                self.start(multicast)?;
                continue;
            }
            self.step();
            if self.events.taken_total() >= tell_at {
                if self.observer.reached(now).is_break() {
                    return Err(SimError::Interrupted);
                }
                tell_at = self.events.taken_total() + EVENTS_UNTOLD;
            }
            let next = self.events.next().into_iter().chain(next_start).min();
            let Some(next) = next.filter(|&next| next <= self.setting.last_cycle) else {
                // No event is left before the deadlock check.
                return Ok(self.end(next.is_none(), look.min(self.setting.last_cycle)));
            };
            if next > look {
                // There is no event between now and the deadlock check.
                if let Some(deadlock) = self.network.deadlock(&self.in_flight, look) {
                    return Ok(Ending::Deadlocked(deadlock));
                }
                look = Cycles(next.0.next_multiple_of(DEADLOCK_INTERVAL.0));
            }
            self.events.advance(next);
        }
    }

    fn start(&mut self, multicast: Multicast) -> Result<(), SimError> {
        let (payload, header) = multicast.longest_packet();
        let buffer = self.setting.parameters.buffer_flits;
        if payload + header > buffer {
            return Err(SimError::PacketExceedsBuffer {
                packet: payload.0,
                header: header.0,
                buffer: buffer.0,
            });
        }
        self.observer.started(multicast.parameters.number, self.events.now);
        let slot = self.in_flight.insert(multicast);
        self.hosts.begin(self.events.now, &self.in_flight[slot], slot);
        Ok(())
    }

    /// Simulates the current cycle.
    fn step(&mut self) {
        let Self { events, hosts, network, in_flight, observer, .. } = self;
        let now = events.now;
        loop {
            while let Some(event) = events.next_now() {
                match event {
                    Event::CpuDone(member) => {
                        if let Some((slot, participant)) = hosts.cpu_done(now, in_flight, member) {
                            let multicast = &in_flight[slot];
                            let host = multicast.host(participant);
                            observer.delivered(multicast.parameters.number, member, host, now);
                            in_flight.delivered(slot);
                        }
                    }
                    Event::BusDone(host) => hosts.bus_done(now, in_flight, host),
                    Event::NicDone { host, receiving } => {
                        if let Some(copy) = hosts.nic_done(now, in_flight, host, receiving) {
                            network.inject(in_flight, host, copy);
                        }
                    }
                    Event::PacketArrived { host, copy } => hosts.packet_arrived(now, in_flight, host, copy),
                    Event::Routed(input) => network.routed(now, in_flight, input),
                    Event::OutputWake(link) => network.wake_output(link),
                    Event::InjectionWake(host) => network.wake_injection(host),
                }
            }
            hosts.start_work(events, in_flight, *observer);
            if !events.is_due() {
                network.grant_injections(events, in_flight, *observer);
            }
            if !events.is_due() {
                break;
            }
        }
        network.grant_outputs(events, in_flight, *observer);
    }

    fn end(&self, is_drained: bool, cycle: Cycles) -> Ending {
        match self.network.deadlock(&self.in_flight, cycle) {
            Some(deadlock) => Ending::Deadlocked(deadlock),
            None if is_drained => Ending::Drained,
            None => Ending::CycleLimit,
        }
    }
}
