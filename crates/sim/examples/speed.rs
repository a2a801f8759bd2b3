//! The speed of the simulators: simulated cycles and events per second for a fixed set of cases.
//!
//! `make bench`, or `cargo run --release -p treecast-sim --example speed [CASE]`: the median of
//! five runs of each case (whose name contains CASE). Runs under load are at half the load at which
//! the scheme saturates.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::error::Error;
use std::time::{Duration, Instant};

use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::{Group, MemberId, MemberList, Order, Placement, PlanOptions, plan};
use treecast_sim::{Arrivals, DestinationSets, LoadRun, Offload, Operation, Parameters, Run, Simulator};
use treecast_terms::{Cycles, Flits};

const RUNS: usize = 5;

/// A load point: its fabric, scheme, offload, degree and settings.
struct LoadCase {
    name: &'static str,
    fabric: &'static str,
    scheme: &'static str,
    order: Option<Order>,
    offload: Offload,
    degree: u32,
    settings: &'static str,
    simulator: Simulator,
    cycles: u64,
}

const DEFAULT: LoadCase = LoadCase {
    name: "",
    fabric: "icpp98",
    scheme: "separate",
    order: None,
    offload: Offload::Host,
    degree: 1,
    settings: "",
    simulator: Simulator::Event,
    cycles: 1_000_000,
};

const WIRE_ONLY: &str = "host_overhead=0,nic_overhead=0,bus_mb_per_s=0";

/// Forwarded by network interfaces.
const NI: LoadCase =
    LoadCase { scheme: "k-binomial", order: Some(Order::Cco), offload: Offload::Nic, ..DEFAULT };

/// Unicast, with nothing in the way but the wire.
const UNICAST: LoadCase = LoadCase { settings: WIRE_ONLY, ..DEFAULT };

const LOAD_CASES: [LoadCase; 10] = [
    LoadCase { name: "default: ni, 3-way", degree: 3, ..NI },
    LoadCase { name: "default: ni, 15-way", degree: 15, ..NI },
    LoadCase { name: "default: tree, 15-way", scheme: "tree-worm", degree: 15, ..DEFAULT },
    LoadCase { name: "default: path, 15-way", scheme: "path", degree: 15, ..DEFAULT },
    LoadCase {
        name: "default: uni, 3-way",
        scheme: "binomial",
        order: Some(Order::Cco),
        degree: 3,
        ..DEFAULT
    },
    LoadCase { name: "default: tree, 3-path, wire only", scheme: "tree-worm", degree: 3, ..UNICAST },
    LoadCase { name: "default: unicast, wire only", ..UNICAST },
    LoadCase { name: "torus k=8: unicast, wire only", fabric: "torus:k=8,n=2", cycles: 100_000, ..UNICAST },
    LoadCase {
        name: "fat-tree k=16: unicast, wire only",
        fabric: "fat-tree:k=16",
        cycles: 20_000,
        ..UNICAST
    },
    LoadCase {
        name: "default: unicast, wire only, every cycle",
        simulator: Simulator::Cycle,
        cycles: 20_000,
        ..UNICAST
    },
];

/// One broadcast to all hosts, including the construction of fabric and plan.
struct Broadcast {
    name: &'static str,
    fabric: &'static str,
    scheme: &'static str,
    offload: Offload,
    settings: &'static str,
}

const BROADCASTS: [Broadcast; 3] = [
    Broadcast {
        name: "fat-tree k=64: ni, 65,535-way",
        fabric: "fat-tree:k=64",
        scheme: "k-binomial",
        offload: Offload::Nic,
        settings: "",
    },
    Broadcast {
        name: "fat-tree k=64: tree, 65,535-way",
        fabric: "fat-tree:k=64",
        scheme: "tree-worm",
        offload: Offload::Host,
        settings: "buffer_flits=8320",
    },
    Broadcast {
        name: "leaf-spine: ni, 1,048,575-way",
        fabric: "leaf-spine:leaves=1024,spines=32,hosts=1048576",
        scheme: "k-binomial",
        offload: Offload::Nic,
        settings: "",
    },
];

/// The median time of some runs, and the result of the last one.
fn timed<T>(mut run: impl FnMut() -> Result<T, Box<dyn Error>>) -> Result<(f64, T), Box<dyn Error>> {
    let mut times: Vec<Duration> = Vec::new();
    loop {
        let start = Instant::now();
        let outcome = run()?;
        times.push(start.elapsed());
        if times.len() == RUNS {
            times.sort_unstable();
            return Ok((times[RUNS / 2].as_secs_f64(), outcome));
        }
    }
}

fn load_case(case: &LoadCase) -> Result<(), Box<dyn Error>> {
    let fabric = Fabric::from_spec(&case.fabric.parse::<FabricSpec>()?)?;
    let (scheme, parameters) = (case.scheme.parse()?, case.settings.parse::<Parameters>()?);
    let mut run = LoadRun {
        fabric: &fabric,
        scheme: &scheme,
        order: case.order,
        offload: case.offload,
        message: Flits(128),
        degree: case.degree,
        load: 0.0,
        arrivals: Arrivals::Exponential,
        sets: DestinationSets::Random,
        cycles: Cycles(case.cycles),
        warmup: Cycles(case.cycles / 2),
        backlog_max: None,
        parameters: &parameters,
        seed: 1,
        simulator: Simulator::Event,
    };
    run.load = run.find_saturation(0.05)?.offered_load.ok_or("nothing is sustained")? / 2.0;
    run.simulator = case.simulator;
    let (seconds, outcome) = timed(|| Ok(run.simulate()?))?;
    let (load, cycles, events) = (run.ejection_load(), case.cycles as f64, outcome.events as f64);
    let name = case.name;
    println!("{name:<42} {load:>8.4} {seconds:>9.4} {:>14.0} {:>12.0}", cycles / seconds, events / seconds);
    Ok(())
}

fn broadcast(broadcast: &Broadcast) -> Result<(), Box<dyn Error>> {
    let Broadcast { name, fabric, scheme, offload, settings } = *broadcast;
    let parameters: Parameters = settings.parse()?;
    let (seconds, latency) = timed(|| {
        let fabric = Fabric::from_spec(&fabric.parse::<FabricSpec>()?)?;
        let placement = Placement::one_per_host(fabric.topology().host_count());
        let destinations = MemberList::All.resolve(&placement, MemberId(0), 1)?;
        let group = Group::new(placement, MemberId(0), destinations)?;
        let plan = plan(&fabric, &group, &scheme.parse()?, &PlanOptions::default())?;
        let message = Flits(128);
        let run = Run {
            fabric: &fabric,
            plan: &plan,
            operation: Operation::Broadcast,
            offload,
            message,
            parameters: &parameters,
            seed: 1,
            simulator: Simulator::Event,
        };
        Ok(run.simulate()?.latency.ok_or("not complete")?)
    })?;
    println!("{name:<42} {:>8} {seconds:>9.4} {:>14.0}", "", latency.0 as f64 / seconds);
    Ok(())
}

/// The growth of the cost with the number of hosts, at the same load per host and the same number
/// of cycles.
fn growth(scheme: &str, offload: Offload, settings: &str) -> Result<(), Box<dyn Error>> {
    println!(
        "\n{:<42} {:>8} {:>9} {:>14}",
        format!("growth: {scheme}, 3-way"),
        "hosts",
        "seconds",
        "ns/(n log2 n)"
    );
    for k in [8, 16, 24, 32] {
        let fabric = Fabric::from_spec(&format!("fat-tree:k={k}").parse::<FabricSpec>()?)?;
        let (scheme, parameters) = (scheme.parse()?, settings.parse::<Parameters>()?);
        let run = LoadRun {
            fabric: &fabric,
            scheme: &scheme,
            order: None,
            offload,
            message: Flits(128),
            degree: 3,
            load: 0.01,
            arrivals: Arrivals::Exponential,
            sets: DestinationSets::Random,
            cycles: Cycles(50_000),
            warmup: Cycles(25_000),
            backlog_max: None,
            parameters: &parameters,
            seed: 1,
            simulator: Simulator::Event,
        };
        let (seconds, _) = timed(|| Ok(run.simulate()?))?;
        let hosts = f64::from(fabric.topology().host_count());
        println!("{:<42} {hosts:>8} {seconds:>9.4} {:>14.1}", "", seconds * 1e9 / (hosts * hosts.log2()));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    println!("{:<42} {:>8} {:>9} {:>14} {:>12}", "case", "load", "seconds", "cycles/s", "events/s");
    for case in LOAD_CASES.iter().filter(|case| case.name.contains(&wanted)) {
        load_case(case)?;
    }
    for case in BROADCASTS.iter().filter(|case| case.name.contains(&wanted)) {
        broadcast(case)?;
    }
    if "growth".contains(&wanted) {
        growth("k-binomial", Offload::Nic, "")?;
        // Headers of one bit per host would make the packets grow as well.
        growth("tree-worm", Offload::Host, "headers=free")?;
    }
    Ok(())
}
