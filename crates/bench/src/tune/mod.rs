//! Measures what broadcasts cost on the network at hand, as parameters of its model.

mod costs;
mod crowd;
mod fit;

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use treecast_lab::Rate;
use treecast_model::ethernet::Parameters;
use treecast_model::{Network, Way, openmpi};
use treecast_node::{Authentication, EngineChoice, Integrity, Offload, Scheme, Transport, TreeScheme};
use treecast_plan::Arrangement;
use treecast_terms::{Bytes, Operation, Picoseconds};

use crate::coordinator::{Bench, Workload};
use crate::error::BenchError;
use crate::hosts::{Hosts, RemoteHosts, WorkerCommand};
use crate::mode::Mode;
use crate::peer::Peer;
use crate::report::{Report, Row};
use costs::{Call, Measurement, Times};
use crowd::Observation;

/// A measurement of what broadcasts cost between the first four of some hosts, and between all of
/// them if they share the processors of one machine.
///
/// Hosts of a lab that are bound to processors ([`LabSettings::pin`](treecast_lab::LabSettings))
/// stand for hosts of their own: in a pair each has a processor, and so have neighbours in a chain,
/// whose relays are measured. Of the star only CPU times are used, which are those of processes.
#[derive(Debug, Clone)]
pub struct Tune {
    /// The hosts.
    pub hosts: Hosts,
    /// The engines.
    pub engines: Vec<EngineChoice>,
    /// Whether Open MPI is measured too, in a lab.
    pub with_openmpi: bool,
    /// The sizes of messages in bytes; the smallest is at most [`Tune::PIECE`].
    pub sizes: Vec<usize>,
    /// The number of messages for each size, way and shape.
    pub messages: u32,
    /// The longest datagram, in bytes.
    pub mtu_bytes: u16,
    /// How long a waiting thread spins before it sleeps; none: as the node decides.
    pub spin: Option<Duration>,
    /// The command that runs a worker.
    pub worker: WorkerCommand,
}

/// The rounds of each benchmark, which interleave sizes and shapes.
const ROUNDS: u32 = 2;

/// The time of a copy in memory for each KB, in microseconds, where the limits of the machine are
/// not measured: 10 GB/s.
const COPY_US_PER_KB: f64 = 0.1;

/// The ways of an engine to send, those first whose costs others are computed from.
fn ways(engine: EngineChoice) -> Vec<Way> {
    let by = |offload, transport| Way { engine: engine.to_string(), offload, transport };
    let packets = Transport::Packets;
    match engine {
        EngineChoice::Ebpf => vec![by(Offload::Nic, packets), by(Offload::Switch, packets)],
        // Where the application forwards, the engine makes no difference.
        EngineChoice::User | EngineChoice::Auto => vec![
            by(Offload::Nic, Transport::Streams),
            by(Offload::Nic, packets),
            by(Offload::Assisted, packets),
            by(Offload::Host, packets),
            by(Offload::Switch, packets),
        ],
    }
}

fn mode(engine: EngineChoice, way: &Way, scheme: TreeScheme) -> Mode {
    let is_multicast = way.offload == Offload::Switch;
    Mode {
        engine,
        offload: way.offload,
        scheme: Some(Scheme::tree(scheme)),
        authentication: if is_multicast { Authentication::Payload } else { Authentication::Header },
        is_encrypted: false,
        integrity: Integrity::default(),
        transport: way.transport,
        on_fabric: false,
    }
}

impl Tune {
    /// What engines send, receive and forward at once: a batch of datagrams, or what is written to
    /// a stream.
    pub const PIECE: Bytes = Bytes(64 << 10);

    /// The number of hosts whose CPU times are measured.
    pub const HOSTS: u32 = 4;

    /// Measures; `progress` is called with the number of runs done and the number of all runs.
    ///
    /// # Errors
    /// [`BenchError`], as for benchmarks; [`BenchError::Bounds`] for fewer than four hosts, if all
    /// sizes are longer than [`Tune::PIECE`], or for hosts that are bound to a single processor.
    pub fn run(&self, about: String, mut progress: impl FnMut(usize, usize)) -> Result<Network, BenchError> {
        self.check()?;
        let ways: Vec<(EngineChoice, Way)> = self
            .engines
            .iter()
            .flat_map(|&engine| ways(engine).into_iter().map(move |way| (engine, way)))
            .collect();
        let all = ways
            .iter()
            .flat_map(|(engine, way)| self.benches(*engine, way))
            .chain(self.with_openmpi.then(|| self.benches_of_openmpi()).into_iter().flatten())
            .map(|bench| bench.runs())
            .sum();
        let mut before = 0;
        let mut copy_us_per_kb = None;
        let mut network = Network { about, ways: BTreeMap::new() };
        let mut of_nic = None;
        let mut base = self.base();
        for (engine, way) in ways {
            let mut reports = Vec::new();
            // One way after the other, so that a node has few groups, whose keepalives cost time
            // too.
            for mut bench in self.benches(engine, &way) {
                bench.limits &= copy_us_per_kb.is_none();
                reports.push(bench.run(|done, _| progress(before + done, all))?);
                before += bench.runs();
            }
            let limits = reports.iter().find_map(|report| report.limits.as_ref());
            copy_us_per_kb = copy_us_per_kb.or_else(|| Some(1e9 / limits?.copy_bytes_per_s));
            let measurements = self.measurements(&way, &reports);
            // The first way, which forwards by nodes, tells the rate of the links for all.
            if network.ways.is_empty() && !self.are_here() {
                base.link_mb_per_s = costs::link_mb_per_s(&measurements);
            }
            let of_nodes = of_nic.as_ref().unwrap_or(&base);
            let costs = match way.offload {
                Offload::Nic => {
                    costs::of_nodes(&base, engine, &measurements, copy_us_per_kb.unwrap_or(COPY_US_PER_KB))
                }
                Offload::Assisted | Offload::Host => costs::of_applications(of_nodes, &measurements),
                Offload::Switch => costs::of_switches(of_nodes, &measurements),
            };
            if way.offload == Offload::Nic && way.transport == Transport::Packets {
                of_nic = Some(costs.clone());
            }
            let costs = match reports.get(3) {
                Some(_) => crowd::fitted(costs, &way, &self.observations(&way, &reports)),
                None => costs,
            };
            network.ways.insert(way, costs);
        }
        if self.with_openmpi {
            let mut reports = Vec::new();
            for bench in self.benches_of_openmpi() {
                reports.push(bench.run(|done, _| progress(before + done, all))?);
                before += bench.runs();
            }
            let way = way_of_openmpi();
            let costs = Self::costs_of_openmpi(&base, &way, &reports);
            network.ways.insert(way, costs);
        }
        Ok(network)
    }

    /// The benchmarks of Open MPI between the same hosts as those of an engine, whose workers wait
    /// meanwhile: pairs, and all hosts that share processors.
    fn benches_of_openmpi(&self) -> Vec<Bench> {
        let way = Way { engine: "user".into(), offload: Offload::Nic, transport: Transport::Streams };
        let benches = self.benches(EngineChoice::User, &way).into_iter();
        let of_openmpi = |bench: Bench| {
            let modes = bench.modes.into_iter().take(1).collect();
            Bench { modes, peers: vec![Peer::OpenMpi], limits: false, ..bench }
        };
        benches.filter(|bench| bench.hosts.count() != Self::HOSTS).map(of_openmpi).collect()
    }

    fn costs_of_openmpi(base: &Parameters, way: &Way, reports: &[Report]) -> Parameters {
        let of_openmpi = |row: &&Row| row.engine == way.engine;
        let rows: Vec<&Row> = reports.iter().flat_map(|report| &report.rows).filter(of_openmpi).collect();
        let call = |row: &&&Row| Call {
            bytes: Bytes(row.bytes),
            last_delivery_us: row.last_delivery_us_p50,
            root_us: row.root_cpu_us_per_broadcast,
        };
        let pairs: Vec<Call> = rows.iter().filter(|row| row.hosts == 2).map(|row| call(&row)).collect();
        let costs = costs::of_openmpi(base, &pairs);
        if rows.len() == pairs.len() {
            return costs;
        }
        let observation = |row: &&Row| Observation {
            hosts: row.hosts,
            scheme: TreeScheme::Separate,
            bytes: row.bytes,
            last_delivery_us: row.last_delivery_us_p50,
            cpu_us: None,
        };
        crowd::fitted(costs, way, &rows.iter().map(observation).collect::<Vec<_>>())
    }

    /// The benchmarks of a way. Pairs are measured before and after four hosts, so that a change of
    /// the machine's speed is in both. If more hosts share this machine's processors, all of them
    /// are measured last.
    fn benches(&self, engine: EngineChoice, way: &Way) -> Vec<Bench> {
        let pair = || self.bench(engine, way, 2, &[TreeScheme::Separate], self.messages.div_ceil(2));
        let shapes = [TreeScheme::Separate, TreeScheme::Serial];
        // Multicast makes no use of a tree while nothing is lost.
        let shapes = if way.offload == Offload::Switch { &shapes[..1] } else { &shapes };
        let mut benches = vec![pair(), self.bench(engine, way, Self::HOSTS, shapes, self.messages), pair()];
        if self.share_processors() && self.hosts.count() > Self::HOSTS {
            benches.push(self.bench(engine, way, self.hosts.count(), shapes, self.messages.div_ceil(2)));
        }
        benches
    }

    /// Whether the hosts are on this machine.
    fn are_here(&self) -> bool {
        !matches!(self.hosts, Hosts::Remote(_))
    }

    /// Whether each host of a lab is bound to a processor.
    fn are_pinned(&self) -> bool {
        matches!(&self.hosts, Hosts::Lab(settings) if settings.pin)
    }

    /// Whether the costs are those of hosts that share the processors of this machine.
    fn share_processors(&self) -> bool {
        self.are_here() && !self.are_pinned()
    }

    fn check(&self) -> Result<(), BenchError> {
        let hosts = self.hosts.count();
        if hosts < Self::HOSTS {
            let (given, min) = (hosts.into(), Self::HOSTS.into());
            return Err(BenchError::Bounds { what: "the number of hosts", given, min, max: 250 });
        }
        let least = self.sizes.iter().min().copied().unwrap_or_default() as u64;
        if !(1..=Self::PIECE.0).contains(&least) {
            let max = Self::PIECE.0;
            return Err(BenchError::Bounds { what: "the smallest message size", given: least, min: 1, max });
        }
        if self.are_pinned() && processors_here() < 2 {
            let what = "the number of processors that hosts are bound to";
            return Err(BenchError::Bounds { what, given: 1, min: 2, max: 1_024 });
        }
        Ok(())
    }

    /// What is known of the network before anything is measured.
    fn base(&self) -> Parameters {
        Parameters {
            processors: if self.are_pinned() { 1 } else { 2 },
            shared_processors: if self.share_processors() { processors_here() } else { 0 },
            // What the links take is in the costs of a relay, unless they have a limit.
            link_mb_per_s: self.link_mb_per_s(),
            hop: Picoseconds::ZERO,
            piece: Self::PIECE,
            ..Parameters::default()
        }
    }

    /// The rate of a lab's links; 0 for no limit.
    fn link_mb_per_s(&self) -> u64 {
        match &self.hosts {
            Hosts::Lab(settings) => settings.rate.map_or(0, Rate::mb_per_s),
            Hosts::Loopback(_) | Hosts::Remote(_) => 0,
        }
    }

    /// Broadcasts between the first hosts.
    fn bench(
        &self,
        engine: EngineChoice,
        way: &Way,
        hosts: u32,
        shapes: &[TreeScheme],
        messages: u32,
    ) -> Bench {
        let hosts = match &self.hosts {
            Hosts::Lab(settings) => Hosts::Lab(treecast_lab::LabSettings { hosts, ..settings.clone() }),
            Hosts::Loopback(_) => Hosts::Loopback(hosts),
            Hosts::Remote(RemoteHosts { names, shell }) => {
                let names = names.iter().take(hosts as usize).cloned().collect();
                Hosts::Remote(RemoteHosts { names, shell: shell.clone() })
            }
        };
        let limits = hosts.count() == Self::HOSTS && !matches!(hosts, Hosts::Remote(_));
        Bench {
            operation: Operation::Broadcast,
            modes: shapes.iter().map(|&shape| mode(engine, way, shape)).collect(),
            hosts,
            processes: 1,
            placement: Arrangement::Block,
            fabric: None,
            network: None,
            peers: Vec::new(),
            shims: Vec::new(),
            sizes: self.sizes.clone(),
            workload: Workload::Latency,
            flushes: false,
            messages,
            rounds: ROUNDS,
            mtu_bytes: self.mtu_bytes,
            bytes_per_s_max: None,
            tcp_congestion: None,
            limits,
            kill: None,
            spin: self.spin,
            worker: self.worker.clone(),
        }
    }

    fn measurements(&self, way: &Way, reports: &[Report]) -> Vec<Measurement> {
        let [first, four, last, ..] = reports else { return Vec::new() };
        let times = |report: &Report, bytes: u64, scheme: TreeScheme| {
            // CPU times are those of processes: the node's own thread has a part in the work.
            let row = row_of(report, way, bytes, scheme)?;
            let (root_us, members) = (row.root_cpu_us_per_broadcast, f64::from(row.hosts - 1));
            let member_us = (row.cpu_us_per_broadcast - root_us) / members;
            Some(Times { last_delivery_us: row.last_delivery_us_p50, root_us, member_us })
        };
        let measurement = |&bytes: &usize| {
            let bytes = bytes as u64;
            let pair = |report| times(report, bytes, TreeScheme::Separate);
            Some(Measurement {
                bytes,
                pair: pair(first)?.mean(pair(last)?),
                star: times(four, bytes, TreeScheme::Separate)?,
                chain: times(four, bytes, TreeScheme::Serial),
            })
        };
        self.sizes.iter().filter_map(measurement).collect()
    }

    /// The last deliveries and CPU times of all benchmarks of a way.
    fn observations(&self, way: &Way, reports: &[Report]) -> Vec<Observation> {
        let shapes = [TreeScheme::Separate, TreeScheme::Serial];
        let cases = self.sizes.iter().flat_map(|&bytes| shapes.map(|scheme| (bytes as u64, scheme)));
        let of_case = |(bytes, scheme)| {
            let rows = reports.iter().filter_map(move |report| row_of(report, way, bytes, scheme));
            rows.map(move |row| {
                let (last_delivery_us, cpu_us) = (row.last_delivery_us_p50, Some(row.cpu_us_per_broadcast));
                Observation { hosts: row.hosts, scheme, bytes, last_delivery_us, cpu_us }
            })
        };
        cases.flat_map(of_case).collect()
    }
}

/// The way of Open MPI, whose ranks forward over TCP.
fn way_of_openmpi() -> Way {
    Way { engine: openmpi::ENGINE.into(), offload: Offload::Host, transport: Transport::Streams }
}

/// The processors of this machine on which this process may run.
fn processors_here() -> u32 {
    thread::available_parallelism().map_or(1, |count| count.get() as u32).min(1_024)
}

/// The row of a way, a size and a shape.
fn row_of<'a>(report: &'a Report, way: &Way, bytes: u64, scheme: TreeScheme) -> Option<&'a Row> {
    let scheme = Scheme::tree(scheme).to_string();
    report.rows.iter().find(|row| {
        row.bytes == bytes
            && row.engine == way.engine
            && row.offload == way.offload.to_string()
            && row.transport == way.transport.to_string()
            && row.scheme == scheme
    })
}
