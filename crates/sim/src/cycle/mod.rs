//! The reference simulator: every flit in every cycle, with any switching technique and any buffer
//! size.
//!
//! It follows docs/simulation.md line by line, and shares no scheduling with the event-driven
//! simulator.

mod deadlock;
mod grant;
mod host;
mod network;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Deref;

use treecast_terms::Cycles;

use crate::deadlock::DEADLOCK_INTERVAL;
use crate::error::SimError;
use crate::multicast::{Awaited, Multicast};
use crate::observer::Observer;
use crate::parameters::Switching;
use crate::path::WormPath;
use crate::setting::{Ending, Setting};
use host::Hosts;
use network::Network;

/// The number of simulated cycles after which the observer is told the cycle: some hundred
/// microseconds of work.
const CYCLES_UNTOLD: u32 = 64;

/// A packet of a worm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PacketId {
    multicast: u64,
    worm: u32,
    packet: u32,
}

/// A multicast in flight.
#[derive(Debug)]
struct InFlightMulticast {
    multicast: Multicast,
    /// Packets in memory, by participant.
    stored: Vec<u32>,
    /// Contributions that each participant still waits for.
    awaited: Vec<Awaited>,
    /// Members that have not received.
    receivers_left: u32,
}

/// The multicasts in flight, by number.
#[derive(Debug, Default)]
struct Multicasts(BTreeMap<u64, InFlightMulticast>);

impl Deref for Multicasts {
    type Target = BTreeMap<u64, InFlightMulticast>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Multicasts {
    fn begin(&mut self, multicast: Multicast) -> &Multicast {
        let in_flight = InFlightMulticast {
            stored: vec![0; multicast.participant_count() as usize],
            awaited: multicast.awaited.clone(),
            receivers_left: multicast.delivery_count(),
            multicast,
        };
        &self.0.entry(in_flight.multicast.parameters.number).or_insert(in_flight).multicast
    }

    fn in_flight(&mut self, number: u64) -> &mut InFlightMulticast {
        self.0.get_mut(&number).expect("the multicast is in flight")
    }

    fn path(&mut self, id: PacketId) -> &mut WormPath {
        &mut self.in_flight(id.multicast).multicast.worms[id.worm as usize].path
    }

    /// Counts a packet in a participant's memory; returns whether it was the last of the message.
    fn store_packet(&mut self, number: u64, participant: u32) -> bool {
        let InFlightMulticast { multicast, stored, .. } = self.in_flight(number);
        stored[participant as usize] += 1;
        stored[participant as usize] == multicast.packets
    }

    /// Counts a delivery.
    fn delivered(&mut self, number: u64) {
        let in_flight = self.in_flight(number);
        in_flight.receivers_left -= 1;
        if in_flight.receivers_left == 0 {
            self.0.remove(&number);
        }
    }
}

/// Simulates multicasts, given in the order of their starts, until all are delivered or a limit of
/// the setting is reached. Returns how the run ended, and the number of cycles.
///
/// # Errors
/// Errors of the multicasts, [`SimError::PacketExceedsBuffer`], [`SimError::HeaderExceedsBuffer`],
/// and
/// [`SimError::Interrupted`] by the observer.
pub(crate) fn simulate<O: Observer>(
    setting: &Setting,
    multicasts: impl Iterator<Item = Result<Multicast, SimError>>,
    observer: &mut O,
) -> Result<(Ending, u64), SimError> {
    let mut simulation = Simulation::new(setting, observer);
    let ending = simulation.run(multicasts.peekable())?;
    Ok((ending, simulation.now.0 + 1))
}

struct Simulation<'a, O> {
    setting: &'a Setting<'a>,
    /// The interval of deadlock detection.
    deadlock_interval: Cycles,
    now: Cycles,
    hosts: Hosts<'a>,
    network: Network<'a>,
    multicasts: Multicasts,
    observer: &'a mut O,
}

impl<'a, O: Observer> Simulation<'a, O> {
    fn new(setting: &'a Setting<'a>, observer: &'a mut O) -> Self {
        Self {
            setting,
            deadlock_interval: DEADLOCK_INTERVAL,
            now: Cycles::ZERO,
            hosts: Hosts::new(setting),
            network: Network::new(setting),
            multicasts: Multicasts::default(),
            observer,
        }
    }

    fn run(
        &mut self,
        mut multicasts: Peekable<impl Iterator<Item = Result<Multicast, SimError>>>,
    ) -> Result<Ending, SimError> {
        let mut untold = 0;
        loop {
            untold += 1;
            if untold == CYCLES_UNTOLD {
                untold = 0;
                if self.observer.reached(self.now).is_break() {
                    return Err(SimError::Interrupted);
                }
            }
            while let Some(next) = multicasts.next_if(|next| self.begins(next)) {
                if self.multicasts.len() >= self.setting.in_flight_max {
                    next?;
                    let deadlock = self.network.deadlock(self.now);
                    self.network.report_unfinished(self.now, self.observer);
                    return Ok(deadlock.map_or(Ending::BacklogLimit(self.now), Ending::Deadlocked));
                }
                self.begin(next?)?;
            }
            let next_start = match multicasts.peek() {
                Some(Ok(multicast)) => Some(multicast.parameters.start),
                Some(Err(error)) => return Err(error.clone()),
                None => None,
            };
            let has_changed = self.cycle();
            let is_drained = next_start.is_none() && self.multicasts.is_empty();
            if is_drained {
                return Ok(Ending::Drained);
            }
            let checks_deadlock =
                self.now > Cycles::ZERO && self.now.0.is_multiple_of(self.deadlock_interval.0);
            let is_last = self.now == self.setting.last_cycle;
            let deadlock = if checks_deadlock || is_last { self.network.deadlock(self.now) } else { None };
            if is_last || deadlock.is_some() {
                self.network.report_unfinished(self.now + Cycles(1), self.observer);
                return Ok(deadlock.map_or(Ending::CycleLimit, Ending::Deadlocked));
            }
            let end = [next_start, self.hosts.next_end(), self.network.next_end(self.now)]
                .into_iter()
                .flatten()
                .min();
            assert!(
                has_changed || end.is_some() || !checks_deadlock,
                "a run without further events is drained or deadlocked"
            );
            self.now = self.next(has_changed, end);
        }
    }

    /// The next cycle in which something may change. After a cycle without a change, nothing
    /// changes until a multicast starts, a job completes, a flit arrives, or a packet is routed.
    fn next(&self, has_changed: bool, end: Option<Cycles>) -> Cycles {
        if has_changed {
            return self.now + Cycles(1);
        }
        let look = Cycles((self.now.0 + 1).next_multiple_of(self.deadlock_interval.0));
        end.unwrap_or(look).min(look).min(self.setting.last_cycle)
    }

    fn begins(&self, next: &Result<Multicast, SimError>) -> bool {
        next.as_ref().map_or(true, |multicast| multicast.parameters.start == self.now)
    }

    fn begin(&mut self, multicast: Multicast) -> Result<(), SimError> {
        let buffer = self.setting.parameters.buffer_flits;
        if self.setting.parameters.switching == Switching::Wormhole {
            let fields =
                multicast.worms.iter().map(|worm| self.network.router.flits_to_route_max(&worm.path)).max();
            if let Some(header) = fields.filter(|&fields| fields > buffer) {
                return Err(SimError::HeaderExceedsBuffer { header: header.0, buffer: buffer.0 });
            }
        } else {
            let (payload, header) = multicast.longest_packet();
            if payload + header > buffer {
                let (packet, header, buffer) = (payload.0, header.0, buffer.0);
                return Err(SimError::PacketExceedsBuffer { packet, header, buffer });
            }
        }
        self.observer.started(multicast.parameters.number, self.now);
        let multicast = self.multicasts.begin(multicast);
        self.hosts.begin(self.now, multicast);
        Ok(())
    }

    /// Simulates a cycle after its multicasts have started; returns whether anything has changed.
    fn cycle(&mut self) -> bool {
        let Self { now, hosts, network, multicasts, observer, .. } = self;
        let now = *now;
        let mut has_changed = false;
        loop {
            let mut arrived = Vec::new();
            let mut again = hosts.end_jobs(now, multicasts, *observer);
            again |= network.arrive(now, &mut arrived);
            for (host, packet) in arrived {
                hosts.packet_arrived(now, &multicasts[&packet.multicast].multicast, host, packet);
            }
            again |= network.route(now, multicasts);
            again |= hosts.start_jobs(now, *observer);
            if !again && !network.inject(now, multicasts, &mut hosts.ready, *observer) {
                break;
            }
            has_changed = true;
        }
        has_changed |= network.grant(now, *observer);
        has_changed |= network.forward(now, *observer);
        network.end_cycle();
        has_changed
    }
}
