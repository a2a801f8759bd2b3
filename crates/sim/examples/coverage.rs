//! How often the 95 % confidence interval of a run under load has the true mean latency, for one
//! server with constant service times (M/D/1): the table of docs/load.md. It takes about a minute.
//!
//!     cargo run --release --package treecast-sim --example coverage

use treecast_fabric::{Fabric, FabricSpec, RoutingPolicy};
use treecast_plan::{Scheme, TreeScheme};
use treecast_sim::{Arrivals, DestinationSets, LoadRun, Offload, Parameters, Simulator, Status};
use treecast_terms::{Cycles, Flits};

/// Two hosts that send to each other through one switch, which routes a packet of 128 flits in 256
/// cycles.
const SERVER: &str = "host_overhead=0,nic_overhead=0,bus_mb_per_s=0,routing_delay=128,headers=free";
const SERVICE: f64 = 256.0;
const UNLOADED: f64 = (1 + 130 + 127) as f64;

const SEEDS: u64 = 200;

fn main() {
    let topology = "star:2".parse::<FabricSpec>().expect("a fabric").topology().expect("a topology");
    let fabric = Fabric::new(topology, RoutingPolicy::default()).expect("a routing");
    let scheme = Scheme::tree(TreeScheme::Separate);
    let parameters: Parameters = SERVER.parse().expect("parameters");
    println!("{:>11} {:>10} {:>8} {:>8}", "utilization", "cycles", "complete", "covered");
    for utilization in [0.5, 0.8, 0.9, 0.95] {
        for cycles in [100_000, 300_000, 1_000_000, 3_000_000] {
            // The Pollaczek-Khinchine formula.
            let expected = UNLOADED + utilization * SERVICE / (2.0 * (1.0 - utilization));
            let outcomes = (0..SEEDS).map(|seed| {
                let run = LoadRun {
                    fabric: &fabric,
                    scheme: &scheme,
                    order: None,
                    offload: Offload::Host,
                    message: Flits(128),
                    degree: 1,
                    load: utilization * 128.0 / SERVICE,
                    arrivals: Arrivals::Exponential,
                    sets: DestinationSets::Random,
                    cycles: Cycles(cycles),
                    warmup: Cycles(cycles / 2),
                    backlog_max: None,
                    parameters: &parameters,
                    seed,
                    simulator: Simulator::Event,
                };
                run.simulate().expect("a run")
            });
            let complete: Vec<_> = outcomes.filter(|outcome| outcome.status == Status::Complete).collect();
            let covers = |figures: &treecast_sim::LoadFigures| {
                let error = (figures.latency_mean_cycles? - expected).abs();
                Some(error <= figures.latency_ci95_cycles?)
            };
            let covered = complete.iter().filter(|outcome| covers(&outcome.figures) == Some(true)).count();
            let share = 100.0 * covered as f64 / complete.len().max(1) as f64;
            println!("{utilization:>11} {cycles:>10} {:>8} {share:>7.1}%", complete.len());
        }
    }
}
