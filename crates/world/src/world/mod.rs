//! A world runs: its events in the order of their times, until none is left.

mod streams;
mod watch;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use treecast_proto::{GroupId, Nanoseconds, Trace, Transport};
use treecast_wire::View;

use crate::attacker::Packet;
use crate::host::{Action, Alarm, Host, Offer};
use crate::network::Network;
use crate::oracle::Oracle;
use crate::report::{Report, Violation};
use crate::scenario::{Fault, Scenario};
use crate::streams::{StreamStep, Streams};

use watch::watch_step;

/// A cluster with its network, its applications and its faults.
#[derive(Debug)]
pub struct World {
    scenario: Scenario,
    hosts: Vec<Host>,
    network: Network,
    streams: Streams,
    oracle: Oracle,
    events: BinaryHeap<Reverse<ScheduledEvent>>,
    scheduled: u64,
    now: Nanoseconds,
    steps: u64,
}

/// A scheduled event.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ScheduledEvent {
    at: Nanoseconds,
    /// Events of the same time are ordered by the time of their scheduling.
    number: u64,
    kind: EventKind,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    Arrive(Packet),
    Wake(usize),
    /// The application checks its group.
    Work {
        host: usize,
        group: u32,
        life: u32,
    },
    /// The kernel's packet path of a host wakes up, or wakes the node.
    Alarm {
        host: usize,
        life: u32,
        alarm: Alarm,
    },
    Fault(usize),
    /// A step in the life of a stream.
    Stream(u64, StreamStep),
    /// A child opens its stream again.
    Dial {
        host: usize,
        life: u32,
        group: u32,
    },
}

/// The time limit of a world, beyond which it counts as hanging.
const END: Nanoseconds = Nanoseconds::from_ms(240_000);

/// The limit of events of a world.
const STEPS_MAX: u64 = 3_000_000;

impl World {
    /// The world of this seed.
    pub fn random(seed: u64) -> Self {
        Self::new(Scenario::random(seed))
    }

    /// Runs the world of this seed; a panic within it is a violation too.
    ///
    /// # Errors
    /// Those of [`World::run`].
    pub fn check(seed: u64) -> Result<Report, Violation> {
        std::panic::catch_unwind(|| Self::random(seed).run()).unwrap_or_else(|_| {
            Err(Violation { seed, now: Nanoseconds::ZERO, what: "the node panicked".to_owned() })
        })
    }

    /// The scenario of the world as text.
    pub fn describe(&self) -> String {
        format!("{:#?}", self.scenario)
    }

    fn new(scenario: Scenario) -> Self {
        let hosts = (0..scenario.hosts).map(|host| Host::new(host, 0, &scenario)).collect();
        let mut world = Self {
            network: Network::new(&scenario),
            streams: Streams::new(&scenario),
            oracle: Oracle::new(&scenario),
            hosts,
            events: BinaryHeap::new(),
            scheduled: 0,
            now: Nanoseconds::ZERO,
            steps: 0,
            scenario,
        };
        for (number, (at, _)) in world.scenario.faults.clone().into_iter().enumerate() {
            world.schedule(at, EventKind::Fault(number));
        }
        world
    }

    fn schedule(&mut self, at: Nanoseconds, kind: EventKind) {
        self.scheduled += 1;
        self.events.push(Reverse(ScheduledEvent { at, number: self.scheduled, kind }));
    }

    /// Runs the world to its end.
    ///
    /// # Errors
    /// The first [`Violation`]: a packet that readers get twice, out of turn or changed; a member
    /// that is lost without a reason or misses something; a buffer beyond its bound; a cluster that
    /// never comes to its end.
    pub fn run(mut self) -> Result<Report, Violation> {
        self.play(None)
    }

    /// Runs the world to its end, and reports every datagram that arrives, every event and every
    /// fault, one line each.
    ///
    /// # Errors
    /// Those of [`World::run`].
    pub fn run_watched(mut self, watch: &mut dyn FnMut(String)) -> Result<Report, Violation> {
        self.play(Some(watch))
    }

    /// The same world without streams and fast paths, so that the protocols see every datagram.
    #[must_use]
    pub fn by_datagrams(mut self) -> Self {
        for group in &mut self.scenario.groups {
            group.transport = Transport::Packets;
        }
        self.scenario.kernels.hosts = 0;
        Self::new(self.scenario)
    }

    /// Runs the world to its end; returns a trace of the inputs of each node, one per start of its
    /// host.
    ///
    /// # Errors
    /// Those of [`World::run`].
    pub fn record(mut self) -> Result<Vec<Trace>, Violation> {
        self.record_inputs();
        self.play(None)?;
        Ok(self.hosts.into_iter().flat_map(Host::into_traces).collect())
    }

    fn record_inputs(&mut self) {
        for host in &mut self.hosts {
            host.record_inputs();
        }
    }

    fn play(&mut self, mut watch: Option<&mut dyn FnMut(String)>) -> Result<Report, Violation> {
        for host in 0..self.hosts.len() {
            self.begin(host).map_err(|what| self.violation(what))?;
        }
        while let Some(Reverse(due)) = self.events.pop() {
            self.now = due.at;
            self.oracle.now = due.at;
            self.steps += 1;
            if due.at > END || self.steps > STEPS_MAX {
                let what = format!("not finished after {} steps: {}", self.steps, self.unfinished());
                return Err(self.violation(what));
            }
            if let Some(watch) = &mut watch {
                watch_step(self.now, &due.kind, &self.scenario, watch);
            }
            let step = self.step(due.kind);
            for host in self.hosts.iter_mut().filter(|host| !host.unreported_events.is_empty()) {
                for event in host.unreported_events.drain(..) {
                    if let Some(watch) = &mut watch {
                        watch(format!("{:>14}  {:>2}        {event:?}", self.now.0, host.number));
                    }
                }
            }
            step.map_err(|what| self.violation(what))?;
        }
        self.check_end().map_err(|what| self.violation(what))?;
        Ok(Report {
            delivered_messages: self.oracle.delivered_messages(),
            lost_members: self.oracle.lost_members(),
            misled_groups: self.oracle.misled_groups(),
            restarts: self.hosts.iter().map(|host| u64::from(host.life)).sum(),
            attacks: self.network.attacks,
            datagrams: self.network.datagrams,
            records: self.streams.records,
            hand_offs: self.hosts.iter().map(Host::hand_offs).sum(),
            handled_by_kernel: self.hosts.iter().map(Host::handled_by_kernel).sum(),
            steps: self.steps,
            ended_at: self.now,
        })
    }

    fn check_end(&self) -> Result<(), String> {
        let hosts = self.hosts.iter().filter(|host| host.is_up());
        self.oracle.at_end(&self.scenario, hosts.flat_map(Host::participants))
    }

    fn violation(&self, what: String) -> Violation {
        Violation { seed: self.scenario.seed, now: self.now, what }
    }

    fn unfinished(&self) -> String {
        let hosts = self.hosts.iter().filter(|host| host.is_up());
        let groups = hosts.flat_map(|host| {
            host.unfinished().map(move |group| format!("host {} in group {group}", host.number))
        });
        groups.collect::<Vec<_>>().join(", ")
    }

    fn begin(&mut self, host: usize) -> Result<(), String> {
        for group in 0..self.scenario.groups.len() as u32 {
            if self.hosts[host].enter(self.now, group, &self.scenario, &mut self.oracle)? {
                let life = self.hosts[host].life;
                self.schedule(self.now, EventKind::Work { host, group, life });
            }
        }
        self.drain(host)
    }

    fn step(&mut self, kind: EventKind) -> Result<(), String> {
        match kind {
            EventKind::Arrive(packet) => {
                let to = packet.to;
                if self.hosts[to].is_up() && !packet.is_passed_up && self.offer(&packet)? {
                    return Ok(());
                }
                if self.hosts[to].is_up() && !self.hosts[to].has_paused(self.now) {
                    if let Some(group) = packet.forged {
                        self.oracle.mislead(group);
                    }
                    self.hosts[to].datagram(self.now, &packet)?;
                    return self.drain(to);
                }
                if let Some(until) = self.hosts[to].wait_in_socket(self.now) {
                    self.schedule(until, EventKind::Arrive(packet));
                }
                Ok(())
            }
            EventKind::Wake(host) => {
                if !self.hosts[host].is_up() {
                    return Ok(());
                }
                if let Some(until) = self.hosts[host].paused_until(self.now) {
                    self.schedule(until, EventKind::Wake(host));
                    return Ok(());
                }
                if self.hosts[host].wake_at.is_some_and(|at| at <= self.now) {
                    self.hosts[host].wake_at = None;
                    self.hosts[host].elapsed(self.now)?;
                    return self.drain(host);
                }
                Ok(())
            }
            EventKind::Work { host, group, life } => self.work(host, group, life),
            EventKind::Alarm { host, life, alarm } => self.alarm(host, life, alarm),
            EventKind::Fault(number) => self.fault(number),
            EventKind::Stream(stream, step) => self.step_stream(stream, step),
            EventKind::Dial { host, life, group } => {
                self.dial(host, life, group);
                Ok(())
            }
        }
    }

    /// The kernel's packet path of a host receives a datagram; returns whether user space does not
    /// get it now.
    fn offer(&mut self, packet: &Packet) -> Result<bool, String> {
        let to = packet.to;
        match self.hosts[to].offer(self.now, packet)? {
            Offer::Handled => {
                if let Some(group) = packet.forged {
                    self.oracle.mislead(group);
                }
                self.carry_out_kernel(to)?;
                Ok(true)
            }
            Offer::PassedUp(at) => {
                let packet = Packet { is_passed_up: true, ..packet.clone() };
                self.schedule(at, EventKind::Arrive(packet));
                self.carry_out_kernel(to)?;
                Ok(true)
            }
            Offer::NotHandedOff => Ok(false),
        }
    }

    fn alarm(&mut self, host: usize, life: u32, alarm: Alarm) -> Result<(), String> {
        if !self.hosts[host].is_up() || self.hosts[host].life != life {
            return Ok(());
        }
        match alarm {
            Alarm::Timer(group) => {
                self.hosts[host].expire_kernel_timer(self.now, group);
                self.carry_out_kernel(host)
            }
            Alarm::Wakeup(_) if let Some(until) = self.hosts[host].paused_until(self.now) => {
                self.schedule(until, EventKind::Alarm { host, life, alarm });
                Ok(())
            }
            Alarm::Wakeup(group) => {
                self.hosts[host].wake_node(self.now, group)?;
                self.drain(host)
            }
        }
    }

    /// Sends what the kernel's packet path of a host sends, wakes its applications, and sets its
    /// alarms.
    fn carry_out_kernel(&mut self, host: usize) -> Result<(), String> {
        while let Some(action) = self.hosts[host].take_sent() {
            self.carry_out(host, action)?;
        }
        self.wake_applications(host);
        self.hosts[host].check(&self.scenario, &self.oracle)
    }

    /// Runs the application of a group at a host, and schedules its next check.
    fn work(&mut self, host: usize, group: u32, life: u32) -> Result<(), String> {
        if !self.hosts[host].is_up() || self.hosts[host].life != life {
            return Ok(());
        }
        if let Some(until) = self.hosts[host].paused_until(self.now) {
            self.schedule(until, EventKind::Work { host, group, life });
            return Ok(());
        }
        let goes_on = self.hosts[host].work(self.now, group, &self.scenario, &mut self.oracle)?;
        self.drain(host)?;
        if let Some(pause) = goes_on {
            self.schedule(self.now + pause, EventKind::Work { host, group, life });
        }
        Ok(())
    }

    /// Polls a node until it has no output.
    fn drain(&mut self, host: usize) -> Result<(), String> {
        loop {
            match self.hosts[host].poll(self.now, &self.scenario, &mut self.oracle)? {
                Action::Wait(deadline) => {
                    let wake_at = self.hosts[host].wake_at;
                    if let Some(deadline) = deadline
                        && wake_at.is_none_or(|at| deadline < at)
                    {
                        let deadline = deadline.max(self.now);
                        self.hosts[host].wake_at = Some(deadline);
                        self.schedule(deadline, EventKind::Wake(host));
                    }
                    break;
                }
                action => self.carry_out(host, action)?,
            }
        }
        self.wake_applications(host);
        self.tend_streams(host);
        self.hosts[host].check(&self.scenario, &self.oracle)
    }

    /// Sends what a host sends.
    fn carry_out(&mut self, host: usize, action: Action) -> Result<(), String> {
        let now = self.now;
        match action {
            Action::Send { to, bytes } if to >= self.hosts.len() => {
                // A hello that was sent again from another address is answered like any other.
                let may_answer =
                    |view: View<'_>| view.is_handshake() || self.oracle.is_misled(view.group().0);
                if !View::new(&bytes).is_ok_and(may_answer) {
                    return Err(format!("host {host} has answered a stranger without the token"));
                }
            }
            Action::Multicast { bytes } => {
                for (at, packet) in self.network.send_multicast(now, host, &bytes) {
                    self.schedule(at, EventKind::Arrive(packet));
                }
            }
            Action::Send { to, bytes } => {
                for (at, packet) in self.network.send(now, host, to, &bytes) {
                    self.schedule(at, EventKind::Arrive(packet));
                }
            }
            Action::Record { group, to, bytes } => self.send_record(host, group, to, bytes)?,
            Action::Wait(_) => {}
        }
        Ok(())
    }

    fn wake_applications(&mut self, host: usize) {
        let life = self.hosts[host].life;
        for group in self.hosts[host].wake_applications(&self.scenario) {
            self.schedule(self.now, EventKind::Work { host, group, life });
        }
        for (at, alarm) in self.hosts[host].take_alarms() {
            self.schedule(at.max(self.now), EventKind::Alarm { host, life, alarm });
        }
    }

    fn fault(&mut self, number: usize) -> Result<(), String> {
        match self.scenario.faults[number].1 {
            Fault::Crash(host) => {
                self.hosts[host].crash();
                self.break_streams(host);
            }
            Fault::Restart(host) => {
                if !self.hosts[host].is_up() {
                    self.hosts[host].restart(&self.scenario);
                    return self.begin(host);
                }
            }
            Fault::Pause { host, span } => self.hosts[host].pause(self.now + span),
            Fault::StopReading { host, span } => self.hosts[host].stop_reading(self.now + span),
            Fault::BreakPath { from, to, span } => self.network.break_path(self.now, from, to, span),
            Fault::Shrink { from, to, datagram_bytes_max } => {
                self.network.shrink(from, to, datagram_bytes_max);
            }
            Fault::Partition { side, span } => self.network.partition(self.now, side, span),
            Fault::Join { host, group } => {
                if self.hosts[host].is_up()
                    && self.hosts[host].join(self.now, group, &self.scenario, &mut self.oracle)?
                {
                    let life = self.hosts[host].life;
                    self.schedule(self.now, EventKind::Work { host, group, life });
                    return self.drain(host);
                }
            }
            Fault::Come { host, group, .. } | Fault::Kill { host, group, .. } => {
                if self.hosts[host].is_up() {
                    self.hosts[host].tell_readers(self.now, group, &self.scenario)?;
                    self.hosts[host].contribute(self.now, group, &self.scenario, &mut self.oracle)?;
                    return self.drain(host);
                }
            }
            Fault::Relieve { group, member } => {
                let root = self.scenario.root_host(group);
                if self.hosts[root].is_up() {
                    self.hosts[root].relieve(self.now, GroupId(group), member)?;
                    return self.drain(root);
                }
            }
            Fault::Leave { host, group } => {
                if !self.hosts[host].is_up() {
                    return Ok(());
                }
                self.hosts[host].leave(self.now, GroupId(group))?;
                return self.drain(host);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use treecast_proto::Step;

    use super::*;

    /// Whatever happens to a node: datagrams, streams, requests, hand-offs to a fast path.
    #[test]
    fn a_trace_leads_another_node_to_the_same_state() {
        let (mut reclaimed, mut records) = (0, 0);
        for seed in 0..40 {
            let mut world = World::random(seed);
            world.record_inputs();
            world.play(None).unwrap_or_else(|violation| panic!("{violation}"));
            for host in &world.hosts {
                assert!(host.is_as_recorded(), "seed {seed}, host {}", host.number);
            }
            for trace in world.hosts.into_iter().flat_map(Host::into_traces) {
                for (_, step) in &trace.steps {
                    reclaimed += u32::from(matches!(step, Step::Reclaimed { .. }));
                    records += u32::from(matches!(step, Step::Record { .. }));
                }
            }
        }
        assert!(reclaimed > 0 && records > 0, "{reclaimed} hand-offs, {records} packets on streams");
    }
}
