//! Short runs whose instructions are counted: `cargo run -p treecast-sim --example instructions
//! CASE`.
//!
//! `make instructions` runs three of them under callgrind and compares the counts with those in
//! benches/instructions.tsv. The others show how the cost of a run grows with the number of hosts:
//! `fat-tree-16-tree` is three-way multicasts by tree worms on `fat-tree:k=16`, `fat-tree-16-ni` by
//! network interfaces, `fat-tree-16-wire` unicasts without overheads.

#![expect(clippy::disallowed_methods, reason = "a case is named on the command line")]

use std::error::Error;

use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::{Group, MemberId, MemberList, Order, Placement, PlanOptions, plan};
use treecast_sim::{
    Arrivals, DestinationSets, LoadRun, Offload, Operation, Parameters, Run, Simulator, Status,
};
use treecast_terms::{Cycles, Flits};

/// A run under load.
struct Load<'a> {
    fabric: &'a str,
    scheme: &'a str,
    order: Option<Order>,
    offload: Offload,
    degree: u32,
    load: f64,
    cycles: u64,
    settings: &'a str,
}

/// Multicasts forwarded by network interfaces on the default system.
const NI: Load = Load {
    fabric: "icpp98",
    scheme: "k-binomial",
    order: Some(Order::Cco),
    offload: Offload::Nic,
    degree: 3,
    load: 0.01,
    cycles: 200_000,
    settings: "",
};

/// Unicasts without overheads.
const WIRE: Load = Load {
    scheme: "separate",
    degree: 1,
    load: 0.05,
    settings: "host_overhead=0,nic_overhead=0,bus_mb_per_s=0",
    ..NI
};

fn load(case: &Load) -> Result<Status, Box<dyn Error>> {
    let fabric = Fabric::from_spec(&case.fabric.parse::<FabricSpec>()?)?;
    let (scheme, parameters) = (case.scheme.parse()?, case.settings.parse::<Parameters>()?);
    let run = LoadRun {
        fabric: &fabric,
        scheme: &scheme,
        order: case.order,
        offload: case.offload,
        message: Flits(128),
        degree: case.degree,
        load: case.load,
        arrivals: Arrivals::Exponential,
        sets: DestinationSets::Random,
        cycles: Cycles(case.cycles),
        warmup: Cycles(case.cycles / 4),
        backlog_max: None,
        parameters: &parameters,
        seed: 1,
        simulator: Simulator::Event,
    };
    Ok(run.simulate()?.status)
}

/// The same load per host on fat trees of any size.
fn growth(case: &str) -> Option<Result<Status, Box<dyn Error>>> {
    let (k, way) = case.strip_prefix("fat-tree-")?.split_once('-')?;
    let fabric = format!("fat-tree:k={k}");
    let growing = Load { fabric: &fabric, order: None, cycles: 50_000, ..NI };
    match way {
        "ni" => Some(load(&growing)),
        "tree" => {
            let (scheme, settings) = ("tree-worm", "headers=free");
            Some(load(&Load { scheme, offload: Offload::Host, settings, ..growing }))
        }
        "wire" => Some(load(&Load { fabric: &fabric, load: 0.2, cycles: 20_000, ..WIRE })),
        _ => None,
    }
}

/// One broadcast to 1,024 hosts of a fat tree.
fn broadcast() -> Result<Status, Box<dyn Error>> {
    let fabric = Fabric::from_spec(&"fat-tree:k=16".parse::<FabricSpec>()?)?;
    let placement = Placement::one_per_host(fabric.topology().host_count());
    let destinations = MemberList::All.resolve(&placement, MemberId(0), 1)?;
    let group = Group::new(placement, MemberId(0), destinations)?;
    let plan = plan(&fabric, &group, &"k-binomial".parse()?, &PlanOptions::default())?;
    let parameters = Parameters::default();
    let run = Run {
        fabric: &fabric,
        plan: &plan,
        operation: Operation::Broadcast,
        offload: Offload::Nic,
        message: Flits(128),
        parameters: &parameters,
        seed: 1,
        simulator: Simulator::Event,
    };
    Ok(run.simulate()?.status)
}

fn main() -> Result<(), Box<dyn Error>> {
    const CASES: &str = "ni-load, wire-load, broadcast, fat-tree-K-ni, fat-tree-K-tree, fat-tree-K-wire";
    let case = std::env::args().nth(1).ok_or_else(|| format!("name a case: {CASES}"))?;
    let status = match case.as_str() {
        "ni-load" => load(&NI)?,
        "wire-load" => load(&WIRE)?,
        "broadcast" => broadcast()?,
        other => {
            growth(other).unwrap_or_else(|| Err(format!("no case '{other}': there are {CASES}").into()))?
        }
    };
    if status != Status::Complete {
        return Err(format!("the run ended {}", status.name()).into());
    }
    Ok(())
}
