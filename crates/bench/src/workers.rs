//! The workers of a benchmark, seen from the coordinator.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use treecast_fabric::{Fabric, RoutingPolicy, read};
use treecast_lab::{Lab, UplinkBytes};
use treecast_node::EngineChoice;

use crate::clock::now_ns;
use crate::control::{GroupRequest, Measured, Pace, Request, Response, RunRequest};
use crate::error::BenchError;
use crate::hosts::{Hosts, WorkerCommand};

/// One worker per host; the first is the root.
#[derive(Debug)]
pub(crate) struct Workers {
    workers: Vec<Worker>,
    /// The name of each member's host.
    pub names: Vec<String>,
    /// The bound on the error of clock comparisons, in nanoseconds.
    pub clock_error_ns: u64,
    /// Declared last, so that it is dropped after the workers.
    lab: Option<Lab>,
}

/// The result of one run.
#[derive(Debug, Default)]
pub(crate) struct RunResult {
    /// The measurements of each worker, converted to the coordinator's clock; empty for one that was killed.
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
    /// Starts the workers, one on the host of each member in `places`, and lets each open a node for each engine. Returns the nodes'
    /// addresses by engine.
    pub fn start(
        hosts: &Hosts,
        places: &[usize],
        worker_command: &WorkerCommand,
        engines: &[EngineChoice],
        spin: Duration,
    ) -> Result<(Self, Vec<Vec<SocketAddr>>), BenchError> {
        let lab = match hosts {
            Hosts::Lab(settings) => Some(Lab::start(settings)?),
            Hosts::Loopback(_) | Hosts::Remote(_) => None,
        };
        let mut started = Self { workers: Vec::new(), names: Vec::new(), clock_error_ns: 0, lab: None };
        for (member, &place) in places.iter().enumerate() {
            let (name, command) = match (hosts, &lab) {
                (Hosts::Remote(remote), _) => {
                    (remote.names[place].clone(), remote.command(place, worker_command))
                }
                (_, Some(lab)) => {
                    let command = lab.command(place as u32, &worker_command.path)?;
                    (lab.hosts()[place].name.clone(), worker_command.with_arguments(command))
                }
                (_, None) => {
                    (LOOPBACK.to_string(), worker_command.with_arguments(Command::new(&worker_command.path)))
                }
            };
            let worker = Worker::start(member, command);
            started.workers.push(worker.map_err(|why| BenchError::Worker { host: place, why })?);
            started.names.push(name);
        }
        let mut members = vec![Vec::new(); engines.len()];
        for (&place, worker) in places.iter().zip(&mut started.workers) {
            let bind = match (hosts, &lab) {
                (Hosts::Remote(remote), _) => address_of(&remote.names[place])?,
                (_, Some(lab)) => SocketAddr::new(lab.hosts()[place].ipv4.into(), 0),
                (_, None) => SocketAddr::new(LOOPBACK.into(), 0),
            };
            for (&engine, members) in engines.iter().zip(&mut members) {
                match worker.request(&Request::Open { bind, engine, spin_us: spin.as_micros() as u64 })? {
                    Response::Opened { address } => members.push(address),
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

    /// Estimates the offsets of the remote clocks as NTP does (RFC 5905, section 8): the error is at most half of the round trip.
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

    /// The fabric of a lab with racks.
    pub fn racks(&self) -> Result<Option<Fabric>, BenchError> {
        let Some(lab) = &self.lab else { return Ok(None) };
        let topology = read::inventory("the racks of the lab", &lab.inventory())?.topology;
        Ok(Some(Fabric::new(topology, RoutingPolicy::Auto)?))
    }

    /// What went over the uplinks of the lab so far, over each in each direction; empty without racks.
    pub fn uplink_bytes(&self) -> Result<Vec<u64>, BenchError> {
        let uplinks = self.lab.as_ref().map(Lab::uplink_bytes).transpose()?.unwrap_or_default();
        Ok(uplinks.into_iter().flat_map(|UplinkBytes { up, down }| [up, down]).collect())
    }

    /// Creates a group of all workers. Returns the root's scheme, if it was given or has been chosen by measurement.
    pub fn create_group(&mut self, group: &GroupRequest) -> Result<Option<String>, BenchError> {
        let request = Request::Group(group.clone());
        self.workers.iter_mut().try_for_each(|worker| worker.send(&request))?;
        let mut of_root = None;
        for worker in &mut self.workers {
            match worker.receive()? {
                Response::Grouped { scheme } if worker.host == 0 => of_root = scheme,
                Response::Grouped { .. } => {}
                other => return Err(worker.unexpected(&other)),
            }
        }
        Ok(of_root)
    }

    /// Lets the root send and the others receive, and kills the victim, if there is one. Receivers get the request first.
    pub fn run(&mut self, run: &RunRequest, victim: Option<u32>) -> Result<RunResult, BenchError> {
        let before = self.uplink_bytes()?;
        for worker in self.workers.iter_mut().rev() {
            let is_concerned = worker.host == 0 || victim == Some(worker.host as u32);
            let run = RunRequest {
                dies: victim.is_some() && is_concerned,
                pace: worker.pace_on_its_clock(run.pace),
                ..run.clone()
            };
            worker.send(&Request::Run(run))?;
        }
        let mut result = RunResult::default();
        for worker in &mut self.workers {
            match worker.receive()? {
                Response::Ran(measured) => result.measured.push(worker.measured_on_our_clock(measured)),
                Response::Dying { at_ns } => {
                    worker.is_dead = true;
                    result.died_at_ns = Some(worker.to_ours(at_ns));
                    result.measured.push(Measured::default());
                }
                other => return Err(worker.unexpected(&other)),
            }
        }
        self.workers.retain(|worker| !worker.is_dead);
        result.uplink_bytes =
            self.uplink_bytes()?.iter().zip(before).map(|(after, before)| after - before).collect();
        Ok(result)
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
struct Worker {
    host: usize,
    process: Child,
    requests: Option<ChildStdin>,
    responses: BufReader<ChildStdout>,
    /// The offset of its clock, relative to ours.
    ahead_ns: i64,
    is_dead: bool,
}

impl Worker {
    fn start(host: usize, mut command: Command) -> io::Result<Self> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let requests = process.stdin.take();
        let responses = process.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
        Ok(Self {
            host,
            process,
            requests,
            responses: BufReader::new(responses),
            ahead_ns: 0,
            is_dead: false,
        })
    }

    fn request(&mut self, request: &Request) -> Result<Response, BenchError> {
        self.send(request)?;
        self.receive()
    }

    fn send(&mut self, request: &Request) -> Result<(), BenchError> {
        let host = self.host;
        let mut line = serde_json::to_vec(request).expect("requests serialize to JSON");
        line.push(b'\n');
        let sent = self.requests.as_mut().map_or_else(
            || Err(io::ErrorKind::BrokenPipe.into()),
            |requests| {
                requests.write_all(&line)?;
                requests.flush()
            },
        );
        sent.map_err(|why| BenchError::Worker { host, why: self.ending().unwrap_or(why) })
    }

    fn receive(&mut self) -> Result<Response, BenchError> {
        let host = self.host;
        let mut line = String::new();
        let received = self.responses.read_line(&mut line).and_then(|length| {
            if length == 0 { Err(io::Error::other("it has ended")) } else { Ok(serde_json::from_str(&line)?) }
        });
        received.map_err(|why| BenchError::Worker { host, why: self.ending().unwrap_or(why) })
    }

    /// How its process has ended, if it has: when it ends its pipes close first.
    fn ending(&mut self) -> Option<io::Error> {
        for _ in 0..100 {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Some(io::Error::other(match status.code() {
                    Some(code) => format!("it has ended with exit status {code}"),
                    None => format!("it has ended: {status}"),
                }));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    fn unexpected(&self, response: &Response) -> BenchError {
        let why = if let Response::Failed { why } = response {
            why.clone()
        } else {
            format!("unexpected response {response:?}")
        };
        BenchError::Failed { host: self.host, why }
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

    const fn pace_on_its_clock(&self, pace: Pace) -> Pace {
        match pace {
            Pace::Scheduled { first_ns, period_ns, late_max_ns, seed } => {
                let first_ns = first_ns.saturating_add_signed(self.ahead_ns);
                Pace::Scheduled { first_ns, period_ns, late_max_ns, seed }
            }
            _ => pace,
        }
    }
}

/// A worker ends when its input is closed. One that does not is killed.
impl Drop for Worker {
    fn drop(&mut self) {
        self.requests = None;
        for _ in 0..100 {
            if self.process.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
