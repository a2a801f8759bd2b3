//! Lets ways to broadcast take turns, and gathers what was measured.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use treecast_lab::LabSettings;
use treecast_node::EngineChoice;

use crate::order::{GroupOrder, Pace, RunOrder};
use crate::report::{Gathered, Killed, Report, Row};
use crate::team::{Team, Turn};
use crate::worker::now_ns;
use crate::{BenchError, Mode};

/// What is measured.
#[derive(Debug, Clone)]
pub struct Bench {
    /// Where.
    pub place: Place,
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
    /// A member that dies in the middle of the last message; then there is one way and one length.
    pub kill: Option<u32>,
    /// How long whoever waits looks again and again before it sleeps.
    pub spin: Duration,
    /// What is a worker.
    pub worker: Program,
}

/// A command that is a worker.
#[derive(Debug, Clone)]
pub struct Program {
    /// Where it lies.
    pub path: PathBuf,
    /// What makes it a worker.
    pub arguments: Vec<String>,
}

impl Program {
    pub(crate) fn given_to(&self, mut command: Command) -> Command {
        command.args(&self.arguments);
        command
    }
}

/// Where the hosts are.
#[derive(Debug, Clone)]
pub enum Place {
    /// Hosts of a lab.
    Lab(LabSettings),
    /// So many processes on this machine's loopback; that needs no rights.
    Loopback(u32),
    /// Machines that a remote shell reaches.
    Hosts(Hosts),
}

impl Place {
    /// How many hosts there are.
    pub fn hosts(&self) -> u32 {
        match self {
            Self::Lab(settings) => settings.hosts,
            Self::Loopback(hosts) => *hosts,
            Self::Hosts(hosts) => hosts.names.len() as u32,
        }
    }
}

/// Machines that a remote shell reaches.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// Their names, which the shell and the resolver know; the first is the root.
    pub names: Vec<String>,
    /// The shell's words, such as `ssh`: a name and a command come behind.
    pub shell: Vec<String>,
}

impl Hosts {
    /// The command that starts a worker on a host. It ends with its input, as the worker does.
    pub(crate) fn command(&self, host: usize, program: &Program) -> Command {
        let (shell, options) =
            self.shell.split_first().map_or(("ssh", &[][..]), |(shell, rest)| (shell, rest));
        let mut command = Command::new(shell);
        command.args(options).arg(&self.names[host]).arg(&program.path);
        program.given_to(command)
    }
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

/// Messages that are sent before any is measured, if they are not longer than that.
const WARM_UP: u32 = 10;
const WARM_UP_BYTES_MAX: usize = 1 << 20;

impl Bench {
    /// Measures; `progress` is told how many of how many turns are done.
    ///
    /// # Errors
    /// [`BenchError`], for numbers out of bounds, a lab that cannot be made, and nodes that fail.
    pub fn run(&self, mut progress: impl FnMut(usize, usize)) -> Result<Report, BenchError> {
        self.check()?;
        let mut engines: Vec<EngineChoice> = Vec::new();
        for mode in &self.modes {
            if !engines.contains(&mode.engine) {
                engines.push(mode.engine);
            }
        }
        let (mut team, members) = Team::start(&self.place, &self.worker, &engines, self.spin)?;
        let mut cases = Vec::new();
        for &bytes in &self.sizes {
            for mode in &self.modes {
                let group = cases.len() as u32 + 1;
                let engine = engines.iter().position(|engine| *engine == mode.engine).unwrap_or_default();
                let scheme = team.make_group(&GroupOrder {
                    group,
                    members: members[engine].clone(),
                    mode: mode.clone(),
                    message_bytes: bytes as u64,
                    mtu_bytes: self.mtu_bytes,
                    bytes_per_s_max: self.bytes_per_s_max,
                })?;
                let scheme = scheme.unwrap_or_else(|| "auto".into());
                cases.push((group, bytes, (mode.engine, mode.offload, scheme), Gathered::default()));
            }
        }
        let rounds = self.rounds.min(self.messages);
        let turns = rounds as usize * cases.len();
        let order = |group, bytes, messages, pace| RunOrder { group, bytes, messages, pace, dies: false };
        for &(group, bytes, ..) in &cases {
            // A message that takes seconds warms nothing up.
            if bytes <= WARM_UP_BYTES_MAX {
                team.run(&order(group, bytes, WARM_UP, Pace::OneByOne), None)?;
            }
        }
        let mut killed = None;
        for round in 0..rounds {
            let messages = share(self.messages, rounds, round);
            let victim = self.kill.filter(|_| round + 1 == rounds);
            for (place, (group, bytes, _, gathered)) in cases.iter_mut().enumerate() {
                let turn = team.run(&order(*group, *bytes, messages, self.pace(round)), victim)?;
                killed = victim.zip(turn.died_at_ns).map(|(member, at_ns)| killed_at(member, at_ns, &turn));
                gathered.add(*bytes, messages, &turn.measured, self.workload == Workload::Throughput);
                progress(round as usize * self.modes.len() * self.sizes.len() + place + 1, turns);
            }
        }
        let mut lost_members = Vec::new();
        for &(group, ..) in &cases {
            lost_members.extend(team.close(group)?);
        }
        let hosts = self.place.hosts();
        let rows = cases.into_iter().map(|(_, bytes, (engine, offload, scheme), gathered)| {
            let (root_us_p50, root_us_p99) = gathered.root.percentiles();
            let (last_delivery_us_p50, last_delivery_us_p99) = gathered.last_delivery.percentiles();
            let stored = gathered.last_stored.percentiles();
            let has_stored = !gathered.last_stored.is_empty();
            Row {
                engine: engine.to_string(),
                offload: offload.to_string(),
                scheme,
                hosts,
                bytes: bytes as u64,
                messages: self.messages,
                root_us_p50,
                root_us_p99,
                last_delivery_us_p50,
                last_delivery_us_p99,
                last_stored_us_p50: has_stored.then_some(stored.0),
                last_stored_us_p99: has_stored.then_some(stored.1),
                cpu_us_per_broadcast: gathered.cpu_us() / f64::from(self.messages),
                bcast_cpu_us_mean: gathered.in_call_us_mean(),
                call_cpu_us_mean: gathered.call_cpu_us_mean(),
                throughput_mb_s: gathered.throughput_mb_s(),
                packets_per_broadcast: gathered.packets as f64 / f64::from(self.messages),
                repeated_per_broadcast: gathered.repeated as f64 / f64::from(self.messages),
                lost: gathered.lost,
                doubled: gathered.doubled,
                killed: killed.clone(),
            }
        });
        Ok(Report::new(rows.collect(), lost_members, team.clock_error_ns))
    }

    fn check(&self) -> Result<(), BenchError> {
        let within = |what, given: u64, min, max| {
            if (min..=max).contains(&given) {
                Ok(())
            } else {
                Err(BenchError::Bounds { what, given, min, max })
            }
        };
        let hosts = u64::from(self.place.hosts());
        within("hosts", hosts, 2, 250)?;
        within("messages", self.messages.into(), 1, 100_000_000)?;
        within("rounds", self.rounds.into(), 1, 1_000_000)?;
        within("ways times sizes", (self.modes.len() * self.sizes.len()) as u64, 1, 500)?;
        for &bytes in &self.sizes {
            within("a size", bytes as u64, 0, 4 << 30)?;
        }
        if let Some(member) = self.kill {
            for &bytes in &self.sizes {
                within("a size, when a member is killed in its middle,", bytes as u64, 1, 4 << 30)?;
            }
            within("the member that is killed, which is not the root,", member.into(), 1, hosts - 1)?;
            within(
                "ways times sizes, when a member is killed,",
                (self.modes.len() * self.sizes.len()) as u64,
                1,
                1,
            )?;
        }
        Ok(())
    }

    fn pace(&self, round: u32) -> Pace {
        match self.workload {
            Workload::Latency => Pace::OneByOne,
            Workload::Throughput => Pace::Stream,
            Workload::Skew(Skew { average, seed }) => {
                let late_max_ns = 3 * average.as_nanos() as u64;
                // All have been told by then, and all are there again before the next one.
                let first_ns = now_ns() + 50_000_000;
                let period_ns = 2 * late_max_ns + 5_000_000;
                Pace::Scheduled { first_ns, period_ns, late_max_ns, seed: seed.wrapping_add(round.into()) }
            }
        }
    }
}

/// What came of the death of a member.
fn killed_at(member: u32, at_ns: u64, turn: &Turn) -> Killed {
    let since = |later_ns: u64| later_ns.saturating_sub(at_ns) as f64 / 1e3;
    let survivors = turn.measured.iter().skip(1).filter_map(|measured| measured.at_ns.last());
    let known = turn.measured.first().and_then(|root| root.losses.iter().find(|(lost, _)| *lost == member));
    Killed {
        member,
        root_knew_us: known.map(|&(_, at_ns)| since(at_ns)),
        survivors_complete_us: survivors.copied().max().map(since),
    }
}

fn share(total: u32, parts: u32, part: u32) -> u32 {
    total / parts + u32::from(part < total % parts)
}
