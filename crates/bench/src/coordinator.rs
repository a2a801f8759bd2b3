//! Interleaves the configurations, and collects what their workers measure.

use std::sync::Arc;
use std::time::Duration;

use treecast_fabric::Fabric;
use treecast_lab::LabSettings;
use treecast_node::{EngineChoice, draw_token};

use crate::clock::now_ns;
use crate::control::{GroupFabric, GroupRequest, Pace, RunRequest};
use crate::error::BenchError;
use crate::hosts::{Hosts, WorkerCommand};
use crate::mode::Mode;
use crate::report::{KilledMember, Report, Row, Statistics};
use crate::workers::{RunResult, Workers};

/// A benchmark.
#[derive(Debug, Clone)]
pub struct Bench {
    /// The hosts.
    pub hosts: Hosts,
    /// The fabric that joins the hosts, for configurations that know it; `None` for that of a lab with racks.
    pub fabric: Option<Arc<Fabric>>,
    /// The configurations to compare.
    pub modes: Vec<Mode>,
    /// The message sizes, in bytes.
    pub sizes: Vec<usize>,
    /// How messages are sent and received.
    pub workload: Workload,
    /// The number of messages per size and configuration, over all rounds.
    pub messages: u32,
    /// The number of rounds; each runs every configuration once, every second round in reverse order.
    pub rounds: u32,
    /// The longest datagram, in bytes.
    pub mtu_bytes: u16,
    /// The root's rate limit, in bytes per second.
    pub bytes_per_s_max: Option<u64>,
    /// A member that is killed in the middle of the last message; requires one configuration and one size.
    pub kill: Option<u32>,
    /// How long a waiting thread polls before it sleeps.
    pub spin: Duration,
    /// The command that runs a worker.
    pub worker: WorkerCommand,
}

/// How messages are sent and received.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Workload {
    /// One at a time, each when every member has the previous one.
    Latency,
    /// Back to back.
    Throughput,
    /// One per period, to members that enter their call late.
    Skew(Skew),
}

/// How late members enter their call, as in the experiment of Yu, Buntinas and Panda (OSU TR33, 2003): each draws a delay uniformly
/// from -max/2 to max/2, and a negative one means no delay. That experiment counts max/3 as the average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Skew {
    /// The average delay.
    pub average: Duration,
    /// The seed of the random delays.
    pub seed: u64,
}

/// The number of messages that are sent before the first measurement, unless they are longer than `WARM_UP_BYTES_MAX`.
const WARM_UP_MESSAGES: u32 = 10;
const WARM_UP_BYTES_MAX: usize = 1 << 20;

impl Bench {
    /// Runs the benchmark; `progress` is called with the number of runs done and the number of all runs.
    ///
    /// # Errors
    /// [`BenchError`], for numbers out of bounds, a lab that cannot be created, and nodes that fail.
    pub fn run(&self, progress: impl FnMut(usize, usize)) -> Result<Report, BenchError> {
        self.measure(progress).map_err(|error| self.hosts.name_in(error))
    }

    fn measure(&self, mut progress: impl FnMut(usize, usize)) -> Result<Report, BenchError> {
        self.check()?;
        let mut engines: Vec<EngineChoice> = Vec::new();
        for mode in &self.modes {
            if !engines.contains(&mode.engine) {
                engines.push(mode.engine);
            }
        }
        let token = draw_token().map_err(BenchError::NoToken)?;
        let (mut workers, members) =
            Workers::start(&self.hosts, &self.places(), &self.worker, &engines, self.spin)?;
        let fabric = match &self.fabric {
            Some(fabric) => Some(fabric.topology().to_toml()),
            None => workers.racks()?.map(|fabric| fabric.topology().to_toml()),
        };
        let fabric = fabric.map(|toml| GroupFabric { toml, hosts: workers.names.clone() });
        let mut cases = Vec::new();
        for &bytes in &self.sizes {
            for mode in &self.modes {
                let group = cases.len() as u32 + 1;
                let engine = engines.iter().position(|engine| *engine == mode.engine).unwrap_or_default();
                let scheme = workers.create_group(&GroupRequest {
                    group,
                    members: members[engine].clone(),
                    token: token.clone(),
                    mode: mode.clone(),
                    message_bytes: bytes as u64,
                    mtu_bytes: self.mtu_bytes,
                    bytes_per_s_max: self.bytes_per_s_max,
                    fabric: fabric.clone().filter(|_| mode.on_fabric),
                })?;
                let scheme = scheme.unwrap_or_else(|| "auto".into());
                cases.push((group, bytes, (mode, scheme), Statistics::default()));
            }
        }
        let rounds = self.rounds.min(self.messages);
        let runs = rounds as usize * cases.len();
        let request = |group, bytes, messages, pace| RunRequest { group, bytes, messages, pace, dies: false };
        for &(group, bytes, ..) in &cases {
            if bytes <= WARM_UP_BYTES_MAX {
                workers.run(&request(group, bytes, WARM_UP_MESSAGES, Pace::OneByOne), None)?;
            }
        }
        let mut killed = None;
        for round in 0..rounds {
            let messages = share(self.messages, rounds, round);
            let victim = self.kill.filter(|_| round + 1 == rounds);
            for (done, index) in order(cases.len(), round).enumerate() {
                let (group, bytes, _, statistics) = &mut cases[index];
                let result = workers.run(&request(*group, *bytes, messages, self.pace(round)), victim)?;
                killed =
                    victim.zip(result.died_at_ns).map(|(member, at_ns)| killed_at(member, at_ns, &result));
                statistics.add(*bytes, messages, &result.measured, self.workload == Workload::Throughput);
                statistics.add_uplinks(&result.uplink_bytes);
                progress(round as usize * cases.len() + done + 1, runs);
            }
        }
        let mut lost_members = Vec::new();
        for &(group, ..) in &cases {
            lost_members.extend(workers.close(group)?);
        }
        let hosts = self.hosts.count();
        let has_fabric = self.modes.iter().any(|mode| mode.on_fabric);
        let rows = cases.into_iter().map(|(_, bytes, (mode, scheme), statistics)| {
            let (root_us_p50, root_us_p99) = statistics.root.percentiles();
            let (last_delivery_us_p50, last_delivery_us_p99) = statistics.last_delivery.percentiles();
            let stored = statistics.last_stored.percentiles();
            let uplinks = statistics.uplinks();
            let per_broadcast = |bytes: f64| bytes / f64::from(self.messages);
            let has_stored = !statistics.last_stored.is_empty();
            Row {
                engine: mode.engine.to_string(),
                offload: mode.offload.to_string(),
                scheme,
                auth: mode.authentication.to_string(),
                hosts,
                bytes: bytes as u64,
                messages: self.messages,
                root_us_p50,
                root_us_p99,
                last_delivery_us_p50,
                last_delivery_us_p99,
                last_stored_us_p50: has_stored.then_some(stored.0),
                last_stored_us_p99: has_stored.then_some(stored.1),
                cpu_us_per_broadcast: statistics.cpu_us() / f64::from(self.messages),
                call_us_mean: statistics.call_us_mean(),
                call_cpu_us_mean: statistics.call_cpu_us_mean(),
                throughput_mb_s: statistics.throughput_mb_s(),
                packets_per_broadcast: statistics.packets as f64 / f64::from(self.messages),
                retransmitted_per_broadcast: statistics.retransmitted as f64 / f64::from(self.messages),
                lost: statistics.lost,
                duplicates: statistics.duplicates,
                on_fabric: has_fabric.then_some(mode.on_fabric),
                uplink_bytes_per_broadcast: uplinks.map(|(all, _)| per_broadcast(all)),
                busiest_uplink_bytes_per_broadcast: uplinks.map(|(_, busiest)| per_broadcast(busiest)),
                killed: killed.clone(),
            }
        });
        Ok(Report::new(rows.collect(), lost_members, workers.clock_error_ns))
    }

    /// The host of each member. In a lab with racks members are on one rack after the other in turn: a tree that does not know the racks
    /// does not learn them from the numbers of members.
    fn places(&self) -> Vec<usize> {
        let hosts = self.hosts.count() as usize;
        let (racks, in_rack) = match self.hosts {
            Hosts::Lab(LabSettings { racks: Some(racks), .. }) => (racks.racks(), racks.hosts_per_rack()),
            Hosts::Lab(_) | Hosts::Loopback(_) | Hosts::Remote(_) => (1, hosts as u32),
        };
        let place = |member| member % racks as usize * in_rack as usize + member / racks as usize;
        (0..hosts).map(place).collect()
    }

    fn check(&self) -> Result<(), BenchError> {
        let within = |what, given: u64, min, max| {
            if (min..=max).contains(&given) {
                Ok(())
            } else {
                Err(BenchError::Bounds { what, given, min, max })
            }
        };
        let hosts = u64::from(self.hosts.count());
        within("hosts", hosts, 2, 250)?;
        within("messages", self.messages.into(), 1, 100_000_000)?;
        within("rounds", self.rounds.into(), 1, 1_000_000)?;
        within("configurations times sizes", (self.modes.len() * self.sizes.len()) as u64, 1, 500)?;
        for &bytes in &self.sizes {
            within("a size", bytes as u64, 0, 4 << 30)?;
        }
        if let Some(member) = self.kill {
            for &bytes in &self.sizes {
                within("a size, with a member to kill,", bytes as u64, 1, 4 << 30)?;
            }
            within("the member to kill, which is not the root,", member.into(), 1, hosts - 1)?;
            within(
                "configurations times sizes, with a member to kill,",
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
                // The requests have reached all workers by then, and every call ends before the next period.
                let first_ns = now_ns() + 50_000_000;
                let period_ns = 2 * late_max_ns + 5_000_000;
                Pace::Scheduled { first_ns, period_ns, late_max_ns, seed: seed.wrapping_add(round.into()) }
            }
        }
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

/// The order in which the configurations run in a round: reversed every second time, so that what grows during a round favours none.
fn order(cases: usize, round: u32) -> impl Iterator<Item = usize> {
    (0..cases).map(move |index| if round.is_multiple_of(2) { index } else { cases - 1 - index })
}

/// The size of one of several nearly equal parts.
fn share(total: u32, parts: u32, part: u32) -> u32 {
    total / parts + u32::from(part < total % parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_round_is_reversed() {
        assert_eq!(order(3, 0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(order(3, 1).collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn the_parts_of_a_total_are_nearly_equal() {
        assert_eq!([0, 1, 2].map(|part| share(8, 3, part)), [3, 3, 2]);
    }
}
