//! Interleaves the configurations, and collects what their workers measure.

mod case;
mod check;
mod workload;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use treecast_fabric::Fabric;
use treecast_lab::LabSettings;
use treecast_model::Network;
use treecast_node::{CongestionControl, EngineChoice, draw_token};
use treecast_plan::Arrangement;
use treecast_terms::Operation;

use crate::clock::now_ns;
use crate::control::{Delay, GroupFabric, GroupRequest, Meeting, Pace, RunRequest};
use crate::error::BenchError;
use crate::hosts::{Hosts, WorkerCommand};
use crate::limits::LimitSamples;
use crate::mode::Mode;
use crate::peer::Peer;
use crate::peer_program::{PeerProgram, PeerRun, Schedule};
use crate::report::{KilledMember, LateProcess, NodesOpened, Report, Row};
use crate::workers::{Position, RunResult, Start, Workers};

use case::{Case, Subject};
pub use workload::{Late, Skew, Workload};

/// A benchmark.
#[derive(Debug, Clone)]
pub struct Bench {
    /// The hosts.
    pub hosts: Hosts,
    /// The number of processes of each host. If they are several, they share its node. The root is
    /// the first process of the first host.
    pub processes: u32,
    /// How processes are numbered over the hosts.
    pub placement: Arrangement,
    /// The fabric that joins the hosts, for configurations that know it; `None` for that of a lab
    /// with racks.
    pub fabric: Option<Arc<Fabric>>,
    /// The costs of the network, by which groups without a scheme choose their trees.
    pub network: Option<Arc<Network>>,
    /// The configurations to compare.
    pub modes: Vec<Mode>,
    /// Other software that is measured too, in the lab.
    pub peers: Vec<Peer>,
    /// The MPI shims that are preloaded into these peers' programs, for a further configuration.
    pub shims: Vec<(Peer, PathBuf)>,
    /// The message sizes, in bytes.
    pub sizes: Vec<usize>,
    /// What all members do, one message or call after the other.
    pub operation: Operation,
    /// How messages are sent and received.
    pub workload: Workload,
    /// Whether the root waits after each message until all members have it; otherwise only after
    /// the last one.
    pub flushes: bool,
    /// The number of messages per size and configuration, over all rounds.
    pub messages: u32,
    /// The number of rounds; each runs every configuration once, every second round in reverse
    /// order.
    pub rounds: u32,
    /// The longest datagram, in bytes.
    pub mtu_bytes: u16,
    /// The root's rate limit, in bytes per second.
    pub bytes_per_s_max: Option<u64>,
    /// The congestion control of streams; none: what groups choose.
    pub tcp_congestion: Option<CongestionControl>,
    /// Whether the limits of this machine are measured too, before the broadcasts and after them.
    pub limits: bool,
    /// A member that is killed in the middle of the last message; requires one configuration and
    /// one size.
    pub kill: Option<u32>,
    /// How long a waiting thread spins before it sleeps; none: as the node decides.
    pub spin: Option<Duration>,
    /// The command that runs a worker.
    pub worker: WorkerCommand,
}

/// The number of messages that are sent before the first measurement, unless they are longer than
/// `WARM_UP_BYTES_MAX`.
const WARM_UP_MESSAGES: u32 = 10;
const WARM_UP_BYTES_MAX: usize = 1 << 20;

/// How long it takes at most until a request has reached all workers.
const FIRST_PERIOD_NS: u64 = 50_000_000;

/// The shortest period of scheduled messages, and what each worker adds to it: all have to wake up.
const PERIOD_MIN_NS: u64 = 5_000_000;
const PERIOD_OF_WORKER_NS: u64 = 50_000;

impl Bench {
    /// Runs the benchmark; `progress` is called with the number of runs done and the number of all
    /// runs.
    ///
    /// # Errors
    /// [`BenchError`], for numbers out of bounds, a lab that cannot be created, and nodes that
    /// fail.
    pub fn run(&self, progress: impl FnMut(usize, usize)) -> Result<Report, BenchError> {
        self.measure(progress).map_err(|error| self.hosts.name_in(error))
    }

    /// The number of its runs: each case once in every round.
    pub fn runs(&self) -> usize {
        let programs = self.peers.iter().map(|&peer| 1 + self.shims_of(peer).count()).sum::<usize>();
        let cases = self.sizes.len() * self.delays().len() * (self.modes.len() + programs);
        self.rounds.min(self.messages) as usize * cases
    }

    fn measure(&self, mut progress: impl FnMut(usize, usize)) -> Result<Report, BenchError> {
        self.check()?;
        let programs = self.peer_programs()?;
        let mut engines: Vec<EngineChoice> = Vec::new();
        for mode in &self.modes {
            if !engines.contains(&mode.engine) {
                engines.push(mode.engine);
            }
        }
        let positions = self.positions();
        let token = draw_token().map_err(BenchError::NoToken)?;
        let (mut workers, members) = Workers::start(&Start {
            hosts: &self.hosts,
            positions: &positions,
            processes: self.processes,
            command: &self.worker,
            engines: &engines,
            spin: self.spin,
            token: &token,
        })?;
        let members = |mode: &Mode| {
            let engine = engines.iter().position(|engine| *engine == mode.engine);
            members[engine.unwrap_or_default()].clone()
        };
        let mut cases = self.cases(&mut workers, &token, members)?;
        for &bytes in &self.sizes {
            for program in &programs {
                let of_delay = |delay| Case::new(Subject::Peer(program), bytes, delay);
                cases.extend(self.delays().into_iter().map(of_delay));
            }
        }
        cases.sort_by_key(|case| self.sizes.iter().position(|&bytes| bytes == case.bytes));
        let groups = cases.iter().filter_map(Case::group).collect::<BTreeSet<_>>();
        let rounds = self.rounds.min(self.messages);
        let runs = self.runs();
        debug_assert_eq!(runs, rounds as usize * cases.len());
        let boards = tempfile::tempdir().map_err(BenchError::NoMeeting)?;
        let mut number_of_runs = 0;
        let mut request = |group, bytes, messages, pace| {
            number_of_runs += 1;
            let meeting = match &self.hosts {
                Hosts::Remote(_) => Meeting::Coordinator,
                Hosts::Lab(_) | Hosts::Loopback(_) => Meeting::Board {
                    path: boards.path().join(number_of_runs.to_string()),
                    members: self.hosts.count() * self.processes,
                },
            };
            let (operation, flushes) = (self.operation, self.flushes);
            RunRequest { group, operation, bytes, messages, pace, meeting, flushes, dies: false }
        };
        for &(group, bytes) in &groups {
            if bytes <= WARM_UP_BYTES_MAX {
                workers.run(&request(group, bytes, WARM_UP_MESSAGES, Pace::Stored), None)?;
            }
        }
        let mut limits = self.limits.then(|| LimitSamples::new(self.hosts.count() * self.processes - 1));
        limits.iter_mut().try_for_each(|samples| samples.measure(&self.worker))?;
        let mut killed = None;
        for round in 0..rounds {
            let messages = part_of(self.messages, rounds, round);
            let victim = self.kill.filter(|_| round + 1 == rounds);
            for (done, index) in order(cases.len(), round).enumerate() {
                let Case { subject, bytes, delay, statistics } = &mut cases[index];
                let result = match subject {
                    Subject::Group { group, .. } => {
                        let pace = self.pace(round, *delay);
                        workers.run(&request(*group, *bytes, messages, pace), victim)?
                    }
                    Subject::Peer(program) => {
                        let run = self.peer_run(*bytes, messages, self.pace(round, *delay));
                        workers.run_peer(program, self.processes, run)?
                    }
                };
                killed =
                    victim.zip(result.died_at_ns).map(|(member, at_ns)| killed_at(member, at_ns, &result));
                let is_stream = self.workload == Workload::Throughput;
                match self.operation {
                    Operation::Broadcast => statistics.add(*bytes, messages, &result.measured, is_stream),
                    Operation::AllReduce | Operation::Barrier => {
                        statistics.add_all_reduces(*bytes, &result.measured);
                    }
                }
                if let Workload::Late(late) = &self.workload {
                    let is_late = |member: usize| late.is_about(positions[member]);
                    statistics.add_others(&result.measured, is_late);
                }
                statistics.add_uplinks(&result.uplink_bytes);
                progress(round as usize * cases.len() + done + 1, runs);
            }
        }
        limits.iter_mut().try_for_each(|samples| samples.measure(&self.worker))?;
        let mut lost_members = Vec::new();
        for (group, _) in groups {
            lost_members.extend(workers.close(group)?);
        }
        let rows = cases.into_iter().map(|case| self.row(case, killed.clone()));
        let report = Report::new(rows.collect(), lost_members, workers.clock_error_ns);
        let nodes_opened =
            workers.opened_ns.iter().map(|(engine, ns)| NodesOpened::new(engine, ns)).collect();
        Ok(Report { limits: limits.map(LimitSamples::limits), nodes_opened, ..report })
    }

    /// Creates a group for each size and configuration.
    fn cases(
        &self,
        workers: &mut Workers,
        token: &str,
        members: impl Fn(&Mode) -> Vec<SocketAddr>,
    ) -> Result<Vec<Case<'_>>, BenchError> {
        let fabric = match &self.fabric {
            Some(fabric) => Some(fabric.topology().to_toml()),
            None => workers.racks()?.map(|fabric| fabric.topology().to_toml()),
        };
        let fabric = fabric.map(|toml| GroupFabric { toml, hosts: workers.names.clone() });
        let network = self.network.as_ref().map(|network| network.to_toml());
        let mut cases = Vec::new();
        let subjects = self.sizes.iter().flat_map(|&bytes| self.modes.iter().map(move |mode| (bytes, mode)));
        for (group, (bytes, mode)) in (1..).zip(subjects) {
            let created = workers.create_group(&GroupRequest {
                group,
                members: members(mode),
                member: 0,
                token: token.into(),
                mode: mode.clone(),
                message_bytes: bytes as u64,
                mtu_bytes: self.mtu_bytes,
                bytes_per_s_max: self.bytes_per_s_max,
                tcp_congestion: self.tcp_congestion.clone(),
                fabric: fabric.clone().filter(|_| mode.on_fabric),
                network: network.clone(),
            })?;
            cases.extend(self.delays().into_iter().map(|delay| {
                Case::new(Subject::Group { group, mode, created: created.clone() }, bytes, delay)
            }));
        }
        Ok(cases)
    }

    fn row(&self, case: Case<'_>, killed: Option<KilledMember>) -> Row {
        let Case { subject, bytes, delay, statistics } = case;
        let subject = subject.describe();
        let (root_us_p50, root_us_p99) = statistics.root.percentiles();
        let (last_delivery_us_p50, last_delivery_us_p99) = statistics.last_delivery.percentiles();
        let stored = statistics.last_stored.percentiles();
        let is_played = self.operation == Operation::Broadcast && self.processes == 1;
        let parents = subject.parents.filter(|_| is_played);
        let broadcast =
            parents.and_then(|parents| statistics.broadcasts.nearest(last_delivery_us_p50, &parents));
        let uplinks = statistics.uplinks();
        let per_broadcast = |bytes: f64| bytes / f64::from(self.messages);
        let has_stored = !statistics.last_stored.is_empty();
        let has_fabric = self.modes.iter().any(|mode| mode.on_fabric);
        let late = match &self.workload {
            Workload::Late(Late { process, host, .. }) => {
                let others = statistics.others_last_delivery.percentiles();
                Some(LateProcess {
                    process: *process,
                    host: *host,
                    delay_us: delay.as_nanos() as f64 / 1e3,
                    others_last_delivery_us_p50: others.0,
                    others_last_delivery_us_p99: others.1,
                    others_call_us_mean: statistics.others_call_us_mean(),
                })
            }
            _ => None,
        };
        let skew_us = matches!(self.workload, Workload::Skew(_)).then(|| delay.as_nanos() as f64 / 1e3);
        Row {
            operation: self.operation.to_string(),
            engine: subject.engine,
            offload: subject.offload,
            scheme: subject.scheme,
            auth: subject.auth,
            integrity: subject.integrity,
            transport: subject.transport,
            hosts: self.hosts.count(),
            processes: self.processes,
            bytes: bytes as u64,
            messages: self.messages,
            root_us_p50,
            root_us_p99,
            last_delivery_us_p50,
            last_delivery_us_p99,
            last_delivery_us_predicted: None,
            last_stored_us_p50: has_stored.then_some(stored.0),
            last_stored_us_p99: has_stored.then_some(stored.1),
            cpu_us_per_broadcast: statistics.cpu_us() / f64::from(self.messages),
            root_cpu_us_per_broadcast: statistics.root_cpu_us() / f64::from(self.messages),
            call_us_mean: statistics.call_us_mean(),
            call_cpu_us_mean: statistics.call_cpu_us_mean(),
            throughput_mb_s: statistics.throughput_mb_s(),
            packets_per_broadcast: statistics.packets as f64 / f64::from(self.messages),
            retransmitted_per_broadcast: statistics.retransmitted as f64 / f64::from(self.messages),
            lost: statistics.lost,
            duplicates: statistics.duplicates,
            on_fabric: has_fabric.then_some(subject.on_fabric),
            uplink_bytes_per_broadcast: uplinks.map(|(all, _)| per_broadcast(all)),
            busiest_uplink_bytes_per_broadcast: uplinks.map(|(_, busiest)| per_broadcast(busiest)),
            skew_us,
            late,
            killed,
            broadcast,
        }
    }

    /// The position of each member, by [`placement`](Self::placement). In a lab with racks hosts
    /// are taken from one rack after the other in turn: a tree that does not know the racks does
    /// not learn them from the numbers of members.
    fn positions(&self) -> Vec<Position> {
        let hosts = self.hosts.count();
        let (racks, in_rack) = match &self.hosts {
            Hosts::Lab(LabSettings { racks: Some(racks), .. }) => (racks.racks(), racks.hosts_per_rack()),
            Hosts::Lab(_) | Hosts::Loopback(_) | Hosts::Remote(_) => (1, hosts),
        };
        let host = |number| (number % racks * in_rack + number / racks) as usize;
        let position = |number, process| Position { host: host(number), process };
        match self.placement {
            Arrangement::Block => {
                let of_host = |number| (0..self.processes).map(move |process| position(number, process));
                (0..hosts).flat_map(of_host).collect()
            }
            Arrangement::Cyclic => {
                let of_process = |process| (0..hosts).map(move |number| position(number, process));
                (0..self.processes).flat_map(of_process).collect()
            }
        }
    }

    /// How late the late process is, or the average skew, in the order of the rows.
    fn delays(&self) -> Vec<Duration> {
        match &self.workload {
            Workload::Late(late) => late.delays.clone(),
            Workload::Skew(skew) => skew.averages.clone(),
            _ => vec![Duration::ZERO],
        }
    }

    /// The programs of the peers, and that of MPI with the shim too.
    fn peer_programs(&self) -> Result<Vec<PeerProgram>, BenchError> {
        let programs = self.peers.iter().flat_map(|&peer| {
            std::iter::once(None).chain(self.shims_of(peer).map(Some)).map(move |shim| (peer, shim))
        });
        programs.map(|(peer, shim)| PeerProgram::compile(peer, shim.cloned())).collect()
    }

    fn shims_of(&self, peer: Peer) -> impl Iterator<Item = &PathBuf> {
        self.shims.iter().filter(move |(of, _)| *of == peer).map(|(_, shim)| shim)
    }

    /// The task of a peer's program that is measured with a pace of ours.
    fn peer_run(&self, bytes: usize, messages: u32, pace: Pace) -> PeerRun {
        let schedule = match pace {
            Pace::Scheduled { period_ns, delay, .. } => Some(Schedule { period_ns, delay }),
            Pace::Barrier | Pace::Stored | Pace::Stream => None,
        };
        PeerRun {
            operation: self.operation,
            bytes,
            messages,
            warm_up_messages: if bytes > WARM_UP_BYTES_MAX { 1 } else { WARM_UP_MESSAGES },
            is_stream: self.workload == Workload::Throughput,
            schedule,
            placement: self.placement,
        }
    }

    /// The pace of a run; `delay` is that of the late process, or the average skew.
    fn pace(&self, round: u32, delay: Duration) -> Pace {
        match &self.workload {
            // All members wait for each other in the call itself.
            Workload::Latency if self.operation != Operation::Broadcast => Pace::Stream,
            Workload::Latency => Pace::Barrier,
            Workload::Stored => Pace::Stored,
            Workload::Throughput => Pace::Stream,
            Workload::Skew(Skew { averages, seed }) => {
                let range_ns = |average: Duration| 3 * average.as_nanos() as u64;
                let longest_ns = averages.iter().copied().map(range_ns).max().unwrap_or_default();
                let (max_ns, seed) = (range_ns(delay), seed.wrapping_add(round.into()));
                self.scheduled(longest_ns, Delay::Random { max_ns, seed })
            }
            Workload::Late(Late { process, host, delays }) => {
                let max_ns = delays.iter().max().map_or(0, Duration::as_nanos) as u64;
                let (process, host, ns) = (*process, *host, delay.as_nanos() as u64);
                self.scheduled(max_ns, Delay::OfProcess { process, host, ns })
            }
        }
    }

    /// One message per period, in which every call ends.
    fn scheduled(&self, delay_max_ns: u64, delay: Delay) -> Pace {
        let workers = u64::from(self.hosts.count() * self.processes);
        let period_ns = 2 * delay_max_ns + PERIOD_MIN_NS + workers * PERIOD_OF_WORKER_NS;
        Pace::Scheduled { first_ns: now_ns() + FIRST_PERIOD_NS, period_ns, delay }
    }
}

fn killed_at(member: u32, at_ns: u64, result: &RunResult) -> KilledMember {
    let since = |later_ns: u64| later_ns.saturating_sub(at_ns) as f64 / 1e3;
    let survivors = result.measured.iter().skip(1).filter_map(|measured| measured.at_ns.last());
    let known = result.measured.first().and_then(|root| root.losses.iter().find(|(lost, _)| *lost == member));
    KilledMember {
        member,
        root_knew_us: known.map(|&(_, at_ns)| since(at_ns)),
        survivors_complete_us: survivors.copied().max().map(since),
    }
}

/// The order in which the configurations run in a round: reversed every second time, so that what
/// grows during a round favours none.
fn order(cases: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..cases).map(move |index| if round.is_multiple_of(2) { index } else { cases - 1 - index })
}

/// The size of one of several nearly equal parts.
fn part_of(total: u32, parts: u32, part: u32) -> u32 {
    total / parts + u32::from(part < total % parts)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn every_second_round_is_reversed() {
        assert_eq!(order(3, 0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(order(3, 1).collect::<Vec<_>>(), [2, 1, 0]);
    }

    fn bench(hosts: Hosts, processes: u32) -> Bench {
        Bench {
            hosts,
            processes,
            placement: Arrangement::Block,
            fabric: None,
            network: None,
            modes: Vec::new(),
            peers: Vec::new(),
            shims: Vec::new(),
            sizes: Vec::new(),
            operation: Operation::Broadcast,
            workload: Workload::Latency,
            flushes: true,
            messages: 1,
            rounds: 1,
            mtu_bytes: 1_500,
            bytes_per_s_max: None,
            tcp_congestion: None,
            limits: false,
            kill: None,
            spin: None,
            worker: WorkerCommand { path: PathBuf::new(), arguments: Vec::new() },
        }
    }

    #[test]
    fn members_are_numbered_by_placement_and_hosts_are_taken_from_each_rack_in_turn() {
        let positions = |bench: Bench| {
            let positions = bench.positions();
            positions.iter().map(|position| (position.host, position.process)).collect::<Vec<_>>()
        };
        assert_eq!(positions(bench(Hosts::Loopback(3), 1)), [(0, 0), (1, 0), (2, 0)]);
        assert_eq!(positions(bench(Hosts::Loopback(2), 2)), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        let cyclic = Bench { placement: Arrangement::Cyclic, ..bench(Hosts::Loopback(2), 2) };
        assert_eq!(positions(cyclic), [(0, 0), (1, 0), (0, 1), (1, 1)]);
        let racks = Hosts::Lab(LabSettings::in_racks("2x2".parse().unwrap()));
        let expected = [(0, 0), (0, 1), (2, 0), (2, 1), (1, 0), (1, 1), (3, 0), (3, 1)];
        assert_eq!(positions(bench(racks, 2)), expected);
    }

    #[test]
    fn the_parts_of_a_total_are_nearly_equal() {
        assert_eq!([0, 1, 2].map(|part| part_of(8, 3, part)), [3, 3, 2]);
    }
}
