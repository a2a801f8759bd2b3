//! The workers of a benchmark, seen from the coordinator.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::process::Command;
use std::time::Duration;

use treecast_fabric::{Fabric, RoutingPolicy, read};
use treecast_lab::{Lab, LabSettings, UplinkBytes};
use treecast_node::EngineChoice;
use treecast_remote::Process;

use crate::clock::now_ns;
use crate::control::{Delay, GroupRequest, Measured, Meeting, Pace, Request, Response, RunRequest};
use crate::delays::Delays;
use crate::error::{BenchError, WorkerId};
use crate::hosts::{Hosts, WorkerCommand};
use crate::peer_program::{PeerProgram, PeerRun, Schedule};

/// The position of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// The number of the host.
    pub host: usize,
    /// The number of the process on the host.
    pub process: u32,
}

/// The settings of all workers.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub hosts: &'a Hosts,
    /// The position of each member.
    pub positions: &'a [Position],
    /// The number of processes of each host, which share its node if they are several.
    pub processes: u32,
    pub command: &'a WorkerCommand,
    /// Each worker opens a node for each of them.
    pub engines: &'a [EngineChoice],
    pub spin: Option<Duration>,
    /// Known to no other benchmark on the hosts.
    pub token: &'a str,
}

/// One worker per member; the first is the root.
#[derive(Debug)]
pub(crate) struct Workers {
    /// In the order of the members, without those that were killed.
    workers: Vec<Worker>,
    /// The name of each member's host.
    pub names: Vec<String>,
    /// The bound on the error of clock comparisons, in nanoseconds.
    pub clock_error_ns: u64,
    /// Times to open the nodes, by engine.
    pub opened_ns: BTreeMap<String, Vec<u64>>,
    /// Declared last, so that it is dropped after the workers.
    lab: Option<Lab>,
}

/// What the root of a group knows of it.
#[derive(Debug, Default, Clone)]
pub(crate) struct CreatedGroup {
    /// The scheme that it was given or has chosen by measurement, if there is one.
    pub scheme: Option<String>,
    /// The parent of each other member, if it knows its plan.
    pub parents: Option<Vec<u32>>,
}

/// The result of one run.
#[derive(Debug, Default)]
pub(crate) struct RunResult {
    /// The measurements of each worker, converted to the coordinator's clock; empty for one that
    /// was killed.
    pub measured: Vec<Measured>,
    /// When the victim was killed.
    pub died_at_ns: Option<u64>,
    /// The bytes that went over each uplink in each direction; empty without racks.
    pub uplink_bytes: Vec<u64>,
}

/// The address of hosts that are processes of this machine.
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// The number of readings of each clock; the one with the shortest round trip counts.
const CLOCK_READINGS: usize = 20;

impl Workers {
    /// Starts the workers, and lets each open a node for each engine. Returns the addresses of the
    /// members' nodes by engine.
    pub fn start(with: &Start<'_>) -> Result<(Self, Vec<Vec<SocketAddr>>), BenchError> {
        let &Start { hosts, processes, command, .. } = with;
        let lab = match hosts {
            Hosts::Lab(settings) => Some(Lab::start(&LabSettings { processes, ..settings.clone() })?),
            Hosts::Loopback(_) | Hosts::Remote(_) => None,
        };
        let mut started = Self {
            workers: Vec::new(),
            names: Vec::new(),
            clock_error_ns: 0,
            opened_ns: BTreeMap::new(),
            lab: None,
        };
        for (member, &position) in with.positions.iter().enumerate() {
            let Position { host, process } = position;
            let (name, command) = match (hosts, &lab) {
                (Hosts::Remote(remote), _) => (remote.names[host].clone(), remote.command(host, command)),
                (_, Some(lab)) => {
                    let on_host = lab.process_command(host as u32, process, &command.path)?;
                    (lab.hosts()[host].name.clone(), command.with_arguments(on_host))
                }
                (_, None) => (LOOPBACK.to_string(), command.with_arguments(Command::new(&command.path))),
            };
            let id = WorkerId { host, process: (processes > 1).then_some(process) };
            let worker = Worker::start(id, member, process, command);
            started.workers.push(worker.map_err(|why| BenchError::Worker { worker: id, why })?);
            started.names.push(name);
        }
        let mut members = vec![Vec::new(); with.engines.len()];
        for (&Position { host, .. }, worker) in with.positions.iter().zip(&mut started.workers) {
            let bind = match (hosts, &lab) {
                (Hosts::Remote(remote), _) => address_of(&remote.names[host])?,
                (_, Some(lab)) => SocketAddr::new(lab.hosts()[host].ipv4.into(), 0),
                (_, None) => SocketAddr::new(LOOPBACK.into(), 0),
            };
            for (&engine, members) in with.engines.iter().zip(&mut members) {
                let share = (processes > 1).then(|| format!("{} {host} {engine}", with.token));
                let spin_us = with.spin.map(|spin| spin.as_micros() as u64);
                match worker.request(&Request::Open { bind, engine, spin_us, share })? {
                    Response::Opened { address, ns } => {
                        started.opened_ns.entry(engine.to_string()).or_default().push(ns);
                        members.push(address);
                    }
                    other => return Err(worker.unexpected(&other)),
                }
            }
        }
        if matches!(hosts, Hosts::Remote(_)) {
            started.compare_clocks()?;
        }
        started.lab = lab;
        Ok((started, members))
    }

    /// Estimates the offsets of the remote clocks as NTP does (RFC 5905, section 8): the error is
    /// at most half of the round trip.
    fn compare_clocks(&mut self) -> Result<(), BenchError> {
        for worker in &mut self.workers {
            let mut nearest = u64::MAX;
            for _ in 0..CLOCK_READINGS {
                let asked_ns = now_ns();
                let Response::Clock { now_ns: theirs } = worker.request(&Request::Clock)? else { continue };
                let took_ns = now_ns() - asked_ns;
                if took_ns < nearest {
                    nearest = took_ns;
                    worker.ahead_ns = theirs as i64 - (asked_ns + took_ns / 2) as i64;
                }
            }
            self.clock_error_ns = self.clock_error_ns.max(nearest / 2);
        }
        Ok(())
    }

    /// Measures a peer with as many processes on the same hosts of the lab, while the workers wait.
    pub fn run_peer(
        &self,
        program: &PeerProgram,
        processes: u32,
        run: PeerRun,
    ) -> Result<RunResult, BenchError> {
        let Some(lab) = &self.lab else { return Ok(RunResult::default()) };
        let before = self.uplink_bytes()?;
        // The names are those of the members' hosts.
        let of_first = self.workers.iter().zip(&self.names).filter(|(worker, _)| worker.process == 0);
        let hosts: Vec<&str> = of_first.map(|(_, name)| name.as_str()).collect();
        let delays = run.schedule.map(|Schedule { delay, .. }| {
            let of_worker = |worker: &Worker| Delays::new(worker.own_delay(delay), worker.member as u32);
            let all = self.workers.iter().flat_map(|worker| of_worker(worker).take(run.messages as usize));
            all.collect::<Vec<_>>()
        });
        let measured = program.run(lab, &hosts, processes, run, delays.as_deref())?;
        let uplink_bytes = self.uplink_bytes_since(&before)?;
        Ok(RunResult { measured, died_at_ns: None, uplink_bytes })
    }

    /// The fabric of a lab with racks.
    pub fn racks(&self) -> Result<Option<Fabric>, BenchError> {
        let Some(lab) = &self.lab else { return Ok(None) };
        let topology = read::inventory("the racks of the lab", &lab.inventory())?.topology;
        Ok(Some(Fabric::new(topology, RoutingPolicy::Auto)?))
    }

    /// Traffic over the uplinks of the lab so far, by uplink and direction; empty without racks.
    pub fn uplink_bytes(&self) -> Result<Vec<u64>, BenchError> {
        let uplinks = self.lab.as_ref().map(Lab::uplink_bytes).transpose()?.unwrap_or_default();
        Ok(uplinks.into_iter().flat_map(|UplinkBytes { up, down }| [up, down]).collect())
    }

    /// Traffic over them since then.
    fn uplink_bytes_since(&self, before: &[u64]) -> Result<Vec<u64>, BenchError> {
        Ok(self.uplink_bytes()?.iter().zip(before).map(|(after, before)| after - before).collect())
    }

    /// Creates a group of all workers. Returns the root's scheme, if it was given or has been
    /// chosen by measurement.
    pub fn create_group(&mut self, group: &GroupRequest) -> Result<CreatedGroup, BenchError> {
        for worker in &mut self.workers {
            worker.send(&Request::Group(GroupRequest { member: worker.member, ..group.clone() }))?;
        }
        let mut of_root = CreatedGroup::default();
        for worker in &mut self.workers {
            match worker.receive()? {
                Response::Grouped { scheme, parents } if worker.member == 0 => {
                    of_root = CreatedGroup { scheme, parents };
                }
                Response::Grouped { .. } => {}
                other => return Err(worker.unexpected(&other)),
            }
        }
        Ok(of_root)
    }

    /// Lets the root send and the others receive, and kills the victim, if there is one. Receivers
    /// get the request first.
    pub fn run(&mut self, run: &RunRequest, victim: Option<u32>) -> Result<RunResult, BenchError> {
        let before = self.uplink_bytes()?;
        for worker in self.workers.iter_mut().rev() {
            let is_concerned = worker.member == 0 || victim == Some(worker.member as u32);
            let run = RunRequest {
                dies: victim.is_some() && is_concerned,
                pace: worker.own_pace(run.pace),
                ..run.clone()
            };
            worker.send(&Request::Run(run))?;
        }
        if matches!(run.pace, Pace::Barrier) && run.meeting == Meeting::Coordinator {
            self.keep_barriers(run.messages)?;
        }
        let mut result = RunResult::default();
        for worker in &mut self.workers {
            match worker.receive_last()? {
                Response::Ran(measured) => {
                    let mut measured = worker.measured_on_our_clock(measured);
                    if worker.process > 0 {
                        // The first process has reported the packets of the host's node.
                        (measured.packets, measured.retransmitted) = (0, 0);
                    }
                    result.measured.push(measured);
                }
                Response::Dying { at_ns } => {
                    worker.is_dead = true;
                    result.died_at_ns = Some(worker.to_ours(at_ns));
                    result.measured.push(Measured::default());
                }
                other => return Err(worker.unexpected(&other)),
            }
        }
        self.workers.retain(|worker| !worker.is_dead);
        result.uplink_bytes = self.uplink_bytes_since(&before)?;
        Ok(result)
    }

    /// Lets the root send each message when all others wait for it.
    fn keep_barriers(&mut self, messages: u32) -> Result<(), BenchError> {
        let [root, others @ ..] = &mut self.workers[..] else { return Ok(()) };
        for number in 0..messages {
            others.iter_mut().try_for_each(|worker| worker.await_entry(number))?;
            root.send(&Request::Next)?;
        }
        Ok(())
    }

    /// Closes a group. Returns the members that its root has lost.
    pub fn close(&mut self, group: u32) -> Result<Vec<String>, BenchError> {
        self.workers.iter_mut().try_for_each(|worker| worker.send(&Request::Close { group }))?;
        let mut all = Vec::new();
        for worker in &mut self.workers {
            match worker.receive()? {
                Response::Closed { lost } => all.extend(lost),
                other => return Err(worker.unexpected(&other)),
            }
        }
        Ok(all)
    }
}

fn address_of(name: &str) -> Result<SocketAddr, BenchError> {
    let found = (name, 0).to_socket_addrs().map_err(|why| BenchError::Host { name: name.into(), why })?;
    found.into_iter().next().ok_or_else(|| BenchError::Host {
        name: name.into(),
        why: io::Error::new(io::ErrorKind::NotFound, "it has no address"),
    })
}

/// A worker process.
#[derive(Debug)]
pub(crate) struct Worker {
    id: WorkerId,
    /// The number of its member.
    member: usize,
    /// Its number on its host.
    process: u32,
    running: Process,
    /// The offset of its clock, relative to ours.
    ahead_ns: i64,
    is_dead: bool,
    /// In a run with barriers: the message whose call it has entered last, and its last response,
    /// if it has arrived already.
    entered: Option<u32>,
    last: Option<Response>,
}

impl Worker {
    fn start(id: WorkerId, member: usize, number: u32, mut command: Command) -> io::Result<Self> {
        Ok(Self {
            id,
            member,
            process: number,
            running: Process::start(&mut command)?,
            ahead_ns: 0,
            is_dead: false,
            entered: None,
            last: None,
        })
    }

    /// Starts one on this machine that is a member of no group.
    pub fn start_helper(number: usize, command: &WorkerCommand) -> io::Result<Self> {
        let id = WorkerId { host: number, process: None };
        Self::start(id, number, 0, command.with_arguments(Command::new(&command.path)))
    }

    fn request(&mut self, request: &Request) -> Result<Response, BenchError> {
        self.send(request)?;
        self.receive()
    }

    pub fn send(&mut self, request: &Request) -> Result<(), BenchError> {
        self.running.send(request).map_err(|why| BenchError::Worker { worker: self.id, why })
    }

    pub fn receive(&mut self) -> Result<Response, BenchError> {
        self.running.receive().map_err(|why| BenchError::Worker { worker: self.id, why })
    }

    /// Waits until it has entered the call for this message, or a later one if it has lost some, or
    /// has responded for the last time in the run.
    fn await_entry(&mut self, number: u32) -> Result<(), BenchError> {
        if number == 0 {
            self.entered = None;
        }
        while self.last.is_none() && self.entered.is_none_or(|entered| entered < number) {
            match self.receive()? {
                Response::Waits { number } => self.entered = Some(number),
                failed @ Response::Failed { .. } => return Err(self.unexpected(&failed)),
                last => self.last = Some(last),
            }
        }
        Ok(())
    }

    /// Its last response in a run.
    fn receive_last(&mut self) -> Result<Response, BenchError> {
        self.last.take().map_or_else(|| self.receive(), Ok)
    }

    pub fn unexpected(&self, response: &Response) -> BenchError {
        let why = if let Response::Failed { why } = response {
            why.clone()
        } else {
            format!("unexpected response {response:?}")
        };
        BenchError::Failed { worker: self.id, why }
    }
}

impl Worker {
    const fn to_ours(&self, theirs_ns: u64) -> u64 {
        theirs_ns.saturating_add_signed(-self.ahead_ns)
    }

    fn measured_on_our_clock(&self, mut measured: Measured) -> Measured {
        for at_ns in measured.at_ns.iter_mut().chain(&mut measured.stored_ns) {
            *at_ns = self.to_ours(*at_ns);
        }
        for (_, at_ns) in &mut measured.losses {
            *at_ns = self.to_ours(*at_ns);
        }
        measured
    }

    /// The pace on its clock, with its own delay.
    fn own_pace(&self, pace: Pace) -> Pace {
        let Pace::Scheduled { first_ns, period_ns, delay } = pace else { return pace };
        let first_ns = first_ns.saturating_add_signed(self.ahead_ns);
        Pace::Scheduled { first_ns, period_ns, delay: self.own_delay(delay) }
    }

    /// Its own delay. The root is in time.
    fn own_delay(&self, delay: Delay) -> Delay {
        const NONE: Delay = Delay::OfProcess { process: 0, host: None, ns: 0 };
        match delay {
            _ if self.member == 0 => NONE,
            Delay::OfProcess { process, host, .. }
                if process != self.process || host.is_some_and(|host| host as usize != self.id.host) =>
            {
                NONE
            }
            delay => delay,
        }
    }
}

/// The first process of a host has the node that the others use, and waits for them: it is the last
/// to end.
impl Drop for Workers {
    fn drop(&mut self) {
        self.workers.sort_by_key(|worker| Reverse(worker.process));
        for worker in self.workers.iter_mut().filter(|worker| worker.process > 0) {
            worker.running.close();
        }
        self.workers.clear();
    }
}
