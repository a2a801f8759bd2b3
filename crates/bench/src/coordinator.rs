//! Starts workers, lets ways to broadcast take turns, and gathers what was measured.

use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use treecast_lab::{Lab, LabSettings};

use crate::report::{Gathered, Report, Row};
use crate::worker::{Answer, GroupOrder, Measured, Order, Pace, RunOrder, now_ns};
use crate::{BenchError, Engine, Mode};

/// What is measured.
#[derive(Debug, Clone)]
pub struct Bench {
    /// Where.
    pub place: Place,
    /// What plays the NIC.
    pub engine: Engine,
    /// The ways to broadcast that take turns.
    pub modes: Vec<Mode>,
    /// The lengths of messages, in bytes.
    pub sizes: Vec<usize>,
    /// What is done with them.
    pub workload: Workload,
    /// How many messages of each length a mode sends, in all rounds together.
    pub messages: u32,
    /// How many times the modes take turns.
    pub rounds: u32,
    /// The longest datagram, in bytes.
    pub mtu_bytes: u16,
    /// How fast the root sends at most, in bytes a second.
    pub bytes_per_s_max: Option<u64>,
    /// The command that is a worker when it is given [`Bench::worker_arguments`].
    pub worker: PathBuf,
    /// What makes it one.
    pub worker_arguments: Vec<String>,
}

/// Where the hosts are.
#[derive(Debug, Clone)]
pub enum Place {
    /// Hosts of a lab.
    Lab(LabSettings),
    /// So many processes on this machine's loopback; that needs no rights.
    Loopback(u32),
}

/// What is done with messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Workload {
    /// One at a time, each when every member has the one before.
    Latency,
    /// All at once.
    Throughput,
    /// One a period, and members come late.
    Skew(Skew),
}

/// How late members come, as the published experiment has it: each draws a number from -max/2 to max/2, and below 0 comes at
/// once. The average is then a third of the maximum, as that experiment counts it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Skew {
    /// The average.
    pub average: Duration,
    /// The seed of the draws.
    pub seed: u64,
}

/// Messages that are sent before any is measured.
const WARM_UP: u32 = 10;

impl Bench {
    /// How many hosts there are.
    pub const fn hosts(&self) -> u32 {
        match &self.place {
            Place::Lab(settings) => settings.hosts,
            Place::Loopback(hosts) => *hosts,
        }
    }

    /// Measures; `progress` is told how many of how many turns are done.
    ///
    /// # Errors
    /// [`BenchError`], for numbers out of bounds, a lab that cannot be made, and nodes that fail.
    pub fn run(&self, mut progress: impl FnMut(usize, usize)) -> Result<Report, BenchError> {
        self.check()?;
        let lab = match &self.place {
            Place::Lab(settings) => Some(Lab::start(settings)?),
            Place::Loopback(_) => None,
        };
        let mut workers = self.start(lab.as_ref())?;
        let members = self.open(&mut workers, lab.as_ref())?;
        let mut cases = Vec::new();
        for (size, &bytes) in self.sizes.iter().enumerate() {
            for (place, mode) in self.modes.iter().enumerate() {
                let group = (size * self.modes.len() + place + 1) as u32;
                self.make_group(&mut workers, group, &members, mode, bytes)?;
                cases.push((group, bytes, mode, Gathered::default()));
            }
        }
        let rounds = self.rounds.min(self.messages) as usize;
        let turns = rounds * cases.len();
        for (group, bytes, ..) in &cases {
            run(
                &mut workers,
                &RunOrder { group: *group, bytes: *bytes, messages: WARM_UP, pace: Pace::OneByOne },
            )?;
        }
        for round in 0..rounds {
            let messages = share(self.messages, rounds as u32, round as u32);
            for (place, (group, bytes, _, gathered)) in cases.iter_mut().enumerate() {
                let order = RunOrder { group: *group, bytes: *bytes, messages, pace: self.pace(round) };
                gathered.add(
                    *bytes,
                    messages,
                    &run(&mut workers, &order)?,
                    self.workload == Workload::Throughput,
                );
                progress(round * self.modes.len() * self.sizes.len() + place + 1, turns);
            }
        }
        let mut lost_members = Vec::new();
        for (group, ..) in &cases {
            lost_members.extend(close(&mut workers, *group)?);
        }
        let rows = cases.into_iter().map(|(_, bytes, mode, gathered)| {
            let (root_us_p50, root_us_p99) = gathered.root.percentiles();
            let (last_delivery_us_p50, last_delivery_us_p99) = gathered.last_delivery.percentiles();
            Row {
                engine: self.engine.to_string(),
                offload: crate::offload_name(mode.offload).into(),
                scheme: mode.scheme_name(),
                hosts: self.hosts(),
                bytes: bytes as u64,
                messages: self.messages,
                root_us_p50,
                root_us_p99,
                last_delivery_us_p50,
                last_delivery_us_p99,
                cpu_us_per_broadcast: gathered.cpu_us() / f64::from(self.messages),
                bcast_cpu_us_mean: gathered.in_call_us_mean(),
                throughput_mb_s: gathered.throughput_mb_s(),
                packets_per_broadcast: gathered.packets as f64 / f64::from(self.messages),
                repeated_per_broadcast: gathered.repeated as f64 / f64::from(self.messages),
                lost: gathered.lost,
                doubled: gathered.doubled,
            }
        });
        Ok(Report::new(rows.collect(), lost_members))
    }

    fn check(&self) -> Result<(), BenchError> {
        let within = |what, given: u64, min, max| {
            if (min..=max).contains(&given) {
                Ok(())
            } else {
                Err(BenchError::Bounds { what, given, min, max })
            }
        };
        within("hosts", self.hosts().into(), 2, 250)?;
        within("messages", self.messages.into(), 1, 100_000_000)?;
        within("rounds", self.rounds.into(), 1, 1_000_000)?;
        within("modes times sizes", (self.modes.len() * self.sizes.len()) as u64, 1, 500)?;
        for &bytes in &self.sizes {
            within("a size", bytes as u64, 0, 4 << 30)?;
        }
        Ok(())
    }

    fn pace(&self, round: usize) -> Pace {
        match self.workload {
            Workload::Latency => Pace::OneByOne,
            Workload::Throughput => Pace::Stream,
            Workload::Skew(Skew { average, seed }) => {
                let late_max_ns = 3 * average.as_nanos() as u64;
                // All have been told by then, and all are there again before the next one.
                let first_ns = now_ns() + 50_000_000;
                let period_ns = 2 * late_max_ns + 5_000_000;
                Pace::Scheduled { first_ns, period_ns, late_max_ns, seed: seed.wrapping_add(round as u64) }
            }
        }
    }

    fn start(&self, lab: Option<&Lab>) -> Result<Vec<Worker>, BenchError> {
        (0..self.hosts() as usize)
            .map(|host| {
                let mut command = match lab {
                    Some(lab) => lab.command(host as u32, &self.worker)?,
                    None => Command::new(&self.worker),
                };
                command.args(&self.worker_arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
                Worker::new(host, command.spawn()).map_err(|source| BenchError::Worker { host, source })
            })
            .collect()
    }

    fn open(&self, workers: &mut [Worker], lab: Option<&Lab>) -> Result<Vec<SocketAddr>, BenchError> {
        let mut members = Vec::new();
        for worker in workers {
            let ip = lab.map_or_else(
                || "127.0.0.1".parse().expect("an address"),
                |lab| lab.hosts()[worker.host].ipv4.into(),
            );
            let bind = SocketAddr::new(ip, 0);
            match worker.ask(&Order::Open { bind, engine: self.engine })? {
                Answer::Opened { address } => members.push(address),
                other => return Err(worker.unexpected(&other)),
            }
        }
        Ok(members)
    }

    fn make_group(
        &self,
        workers: &mut [Worker],
        group: u32,
        members: &[SocketAddr],
        mode: &Mode,
        bytes: usize,
    ) -> Result<(), BenchError> {
        let order = Order::Group(GroupOrder {
            group,
            members: members.to_vec(),
            mode: mode.clone(),
            message_bytes: bytes as u64,
            mtu_bytes: self.mtu_bytes,
            bytes_per_s_max: self.bytes_per_s_max,
        });
        for worker in workers.iter_mut() {
            worker.tell(&order)?;
        }
        for worker in workers {
            match worker.hear()? {
                Answer::Grouped => {}
                other => return Err(worker.unexpected(&other)),
            }
        }
        Ok(())
    }
}

fn share(total: u32, parts: u32, part: u32) -> u32 {
    total / parts + u32::from(part < total % parts)
}

/// Receivers are told first, and then the root, which is the first worker.
fn run(workers: &mut [Worker], order: &RunOrder) -> Result<Vec<Measured>, BenchError> {
    let order = Order::Run(order.clone());
    for worker in workers.iter_mut().rev() {
        worker.tell(&order)?;
    }
    let hear = |worker: &mut Worker| match worker.hear()? {
        Answer::Ran(measured) => Ok(measured),
        other => Err(worker.unexpected(&other)),
    };
    workers.iter_mut().map(hear).collect()
}

fn close(workers: &mut [Worker], group: u32) -> Result<Vec<String>, BenchError> {
    for worker in workers.iter_mut() {
        worker.tell(&Order::Close { group })?;
    }
    let mut all = Vec::new();
    for worker in workers {
        match worker.hear()? {
            Answer::Closed { lost } => all.extend(lost),
            other => return Err(worker.unexpected(&other)),
        }
    }
    Ok(all)
}

/// A process that obeys.
#[derive(Debug)]
struct Worker {
    host: usize,
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn new(host: usize, process: io::Result<Child>) -> io::Result<Self> {
        let mut process = process?;
        let orders = process.stdin.take();
        let answers = process.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
        Ok(Self { host, process, orders, answers: BufReader::new(answers) })
    }

    fn ask(&mut self, order: &Order) -> Result<Answer, BenchError> {
        self.tell(order)?;
        self.hear()
    }

    fn tell(&mut self, order: &Order) -> Result<(), BenchError> {
        let host = self.host;
        let mut line = serde_json::to_vec(order).expect("orders are written as JSON");
        line.push(b'\n');
        let told = self.orders.as_mut().map_or_else(
            || Err(io::ErrorKind::BrokenPipe.into()),
            |orders| {
                orders.write_all(&line)?;
                orders.flush()
            },
        );
        told.map_err(|source| BenchError::Worker { host, source })
    }

    fn hear(&mut self) -> Result<Answer, BenchError> {
        let host = self.host;
        let mut line = String::new();
        let heard = self.answers.read_line(&mut line).and_then(|length| {
            if length == 0 { Err(io::Error::other("it has ended")) } else { Ok(serde_json::from_str(&line)?) }
        });
        heard.map_err(|source| BenchError::Worker { host, source })
    }

    fn unexpected(&self, answer: &Answer) -> BenchError {
        let why = if let Answer::Failed { why } = answer {
            why.clone()
        } else {
            format!("unexpected answer {answer:?}")
        };
        BenchError::Failed { host: self.host, why }
    }
}

/// A worker ends with its input. One that does not is ended.
impl Drop for Worker {
    fn drop(&mut self) {
        self.orders = None;
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
