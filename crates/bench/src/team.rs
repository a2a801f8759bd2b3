//! The workers of a benchmark, as who tells them what to do sees them.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use treecast_lab::Lab;
use treecast_node::EngineChoice;

use crate::BenchError;
use crate::coordinator::{Place, Program};
use crate::order::{Answer, GroupOrder, Measured, Order, Pace, RunOrder};
use crate::worker::now_ns;

/// A worker on every host; the first is the root.
#[derive(Debug)]
pub(crate) struct Team {
    workers: Vec<Worker>,
    /// How far clocks may be wrong, in nanoseconds.
    pub clock_error_ns: u64,
    /// It ends when its workers have.
    lab: Option<Lab>,
}

/// What has come of a turn.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// What each worker has measured, by its clock as the root's would say it; nothing of one that has died.
    pub measured: Vec<Measured>,
    /// When the one died that was to die.
    pub died_at_ns: Option<u64>,
}

/// As many answers say what a clock says: the quickest is nearest to the truth.
const CLOCK_READINGS: usize = 20;

impl Team {
    /// Starts the workers, and lets each open a node for each engine; the answer has the nodes' addresses by engine.
    pub fn start(
        place: &Place,
        program: &Program,
        engines: &[EngineChoice],
        spin: Duration,
    ) -> Result<(Self, Vec<Vec<SocketAddr>>), BenchError> {
        let lab = match place {
            Place::Lab(settings) => Some(Lab::start(settings)?),
            Place::Loopback(_) | Place::Hosts(_) => None,
        };
        let mut team = Self { workers: Vec::new(), clock_error_ns: 0, lab: None };
        for host in 0..place.hosts() as usize {
            let command = match (place, &lab) {
                (Place::Hosts(hosts), _) => hosts.command(host, program),
                (_, Some(lab)) => program.given_to(lab.command(host as u32, &program.path)?),
                (_, None) => program.given_to(Command::new(&program.path)),
            };
            let worker = Worker::start(host, command);
            team.workers.push(worker.map_err(|why| BenchError::Worker { host, why })?);
        }
        let mut members = vec![Vec::new(); engines.len()];
        for (host, worker) in team.workers.iter_mut().enumerate() {
            let bind = match (place, &lab) {
                (Place::Hosts(hosts), _) => address_of(&hosts.names[host])?,
                (_, Some(lab)) => SocketAddr::new(lab.hosts()[host].ipv4.into(), 0),
                (_, None) => SocketAddr::from(([127, 0, 0, 1], 0)),
            };
            for (&engine, members) in engines.iter().zip(&mut members) {
                match worker.ask(&Order::Open { bind, engine, spin_us: spin.as_micros() as u64 })? {
                    Answer::Opened { address } => members.push(address),
                    other => return Err(worker.unexpected(&other)),
                }
            }
        }
        if matches!(place, Place::Hosts(_)) {
            team.compare_clocks()?;
        }
        team.lab = lab;
        Ok((team, members))
    }

    /// Processes of one machine share its clock; of others' clocks we learn by asking, at least as well as half of the time
    /// that an answer takes.
    fn compare_clocks(&mut self) -> Result<(), BenchError> {
        for worker in &mut self.workers {
            let mut nearest = u64::MAX;
            for _ in 0..CLOCK_READINGS {
                let asked_ns = now_ns();
                let Answer::Clock { now_ns: theirs } = worker.ask(&Order::Clock)? else { continue };
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

    /// Lets all take part in a group; says what scheme the root has, if it was given or has measured one.
    pub fn make_group(&mut self, order: &GroupOrder) -> Result<Option<String>, BenchError> {
        let order = Order::Group(order.clone());
        self.workers.iter_mut().try_for_each(|worker| worker.tell(&order))?;
        let mut of_root = None;
        for worker in &mut self.workers {
            match worker.hear()? {
                Answer::Grouped { scheme } if worker.host == 0 => of_root = scheme,
                Answer::Grouped { .. } => {}
                other => return Err(worker.unexpected(&other)),
            }
        }
        Ok(of_root)
    }

    /// Lets the root send and the others receive. Receivers are told first. One of them may be to die.
    pub fn run(&mut self, order: &RunOrder, victim: Option<u32>) -> Result<Turn, BenchError> {
        for worker in self.workers.iter_mut().rev() {
            let is_concerned = worker.host == 0 || victim == Some(worker.host as u32);
            let order = RunOrder {
                dies: victim.is_some() && is_concerned,
                pace: worker.by_its_clock(order.pace),
                ..order.clone()
            };
            worker.tell(&Order::Run(order))?;
        }
        let mut turn = Turn::default();
        for worker in &mut self.workers {
            match worker.hear()? {
                Answer::Ran(measured) => turn.measured.push(worker.by_our_clock(measured)),
                Answer::Dying { at_ns } => {
                    worker.is_dead = true;
                    turn.died_at_ns = Some(worker.to_ours(at_ns));
                    turn.measured.push(Measured::default());
                }
                other => return Err(worker.unexpected(&other)),
            }
        }
        self.workers.retain(|worker| !worker.is_dead);
        Ok(turn)
    }

    /// Ends a group; says which members its root has lost.
    pub fn close(&mut self, group: u32) -> Result<Vec<String>, BenchError> {
        self.workers.iter_mut().try_for_each(|worker| worker.tell(&Order::Close { group }))?;
        let mut all = Vec::new();
        for worker in &mut self.workers {
            match worker.hear()? {
                Answer::Closed { lost } => all.extend(lost),
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

/// A process that obeys.
#[derive(Debug)]
struct Worker {
    host: usize,
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// How far its clock is ahead of ours.
    ahead_ns: i64,
    is_dead: bool,
}

impl Worker {
    fn start(host: usize, mut command: Command) -> io::Result<Self> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = process.stdin.take();
        let answers = process.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
        Ok(Self { host, process, orders, answers: BufReader::new(answers), ahead_ns: 0, is_dead: false })
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
        told.map_err(|why| BenchError::Worker { host, why })
    }

    fn hear(&mut self) -> Result<Answer, BenchError> {
        let host = self.host;
        let mut line = String::new();
        let heard = self.answers.read_line(&mut line).and_then(|length| {
            if length == 0 { Err(io::Error::other("it has ended")) } else { Ok(serde_json::from_str(&line)?) }
        });
        heard.map_err(|why| BenchError::Worker { host, why })
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

impl Worker {
    const fn to_ours(&self, theirs_ns: u64) -> u64 {
        theirs_ns.saturating_add_signed(-self.ahead_ns)
    }

    fn by_our_clock(&self, mut measured: Measured) -> Measured {
        let times = measured.at_ns.iter_mut().chain(&mut measured.stored_ns);
        times.for_each(|at_ns| *at_ns = self.to_ours(*at_ns));
        measured.losses.iter_mut().for_each(|(_, at_ns)| *at_ns = self.to_ours(*at_ns));
        measured
    }

    const fn by_its_clock(&self, pace: Pace) -> Pace {
        match pace {
            Pace::Scheduled { first_ns, period_ns, late_max_ns, seed } => {
                let first_ns = first_ns.saturating_add_signed(self.ahead_ns);
                Pace::Scheduled { first_ns, period_ns, late_max_ns, seed }
            }
            _ => pace,
        }
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
