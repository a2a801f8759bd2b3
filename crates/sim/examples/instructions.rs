//! Three short runs whose instructions are counted: `cargo run -p treecast-sim --example instructions CASE`.
//!
//! `make instructions` runs each under callgrind and holds the counts to those kept in benches/instructions.tsv.

#![expect(clippy::disallowed_methods, reason = "a case is named on the command line")]

use std::error::Error;

use treecast_fabric::{Cycles, Fabric, FabricSpec, Flits};
use treecast_plan::{Group, MemberId, MemberList, Order, Placement, PlanOptions, plan};
use treecast_sim::{Arrivals, DestinationSets, LoadRun, Offload, Parameters, Run, Simulator, Status};

/// Multicasts forwarded by network interfaces on the default system, or unicasts with nothing in the way but the wire.
fn load(scheme: &str, degree: u32, load: f64, settings: &str) -> Result<Status, Box<dyn Error>> {
    let fabric = Fabric::from_spec(&"icpp98".parse::<FabricSpec>()?)?;
    let (scheme, parameters) = (scheme.parse()?, settings.parse::<Parameters>()?);
    let run = LoadRun {
        fabric: &fabric,
        scheme: &scheme,
        order: Some(Order::Cco),
        offload: Offload::Nic,
        message: Flits(128),
        degree,
        load,
        arrivals: Arrivals::Exponential,
        sets: DestinationSets::Random,
        cycles: Cycles(200_000),
        warmup: Cycles(50_000),
        backlog_max: None,
        parameters: &parameters,
        seed: 1,
        simulator: Simulator::Event,
    };
    Ok(run.simulate()?.status)
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
        offload: Offload::Nic,
        message: Flits(128),
        parameters: &parameters,
        seed: 1,
        simulator: Simulator::Event,
    };
    Ok(run.simulate()?.status)
}

fn main() -> Result<(), Box<dyn Error>> {
    let case = std::env::args().nth(1).ok_or("name a case: ni-load, wire-load, broadcast")?;
    let status = match case.as_str() {
        "ni-load" => load("k-binomial", 3, 0.01, "")?,
        "wire-load" => load("separate", 1, 0.05, "host_overhead=0,nic_overhead=0,bus_mb_per_s=0")?,
        "broadcast" => broadcast()?,
        other => return Err(format!("no case '{other}': there are ni-load, wire-load, broadcast").into()),
    };
    if status != Status::Complete {
        return Err(format!("the run ended {}", status.name()).into());
    }
    Ok(())
}
