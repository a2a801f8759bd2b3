//! The hot loops: one load point, one broadcast, a plan and a step. `cargo bench -p treecast-sim`.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use treecast_fabric::{Fabric, FabricSpec, HostId, NextLinks};
use treecast_plan::{Group, MemberId, MemberList, Order, Placement, PlanOptions, Planner, Scheme, plan};
use treecast_sim::{Arrivals, DestinationSets, LoadRun, Offload, Operation, Parameters, Run, Simulator};
use treecast_terms::{Cycles, Flits};

fn fabric(spec: &str) -> Fabric {
    Fabric::from_spec(&spec.parse::<FabricSpec>().expect("a fabric")).expect("a fabric")
}

/// A load point of 100,000 cycles on the default system, about half of what each scheme sustains.
fn load_points(criterion: &mut Criterion) {
    let fabric = fabric("icpp98");
    let wire = "host_overhead=0,nic_overhead=0,bus_mb_per_s=0";
    let cases = [
        ("ni, 3-way", "k-binomial", Some(Order::Cco), Offload::Nic, 3, 0.0104, ""),
        ("tree, 15-way", "tree-worm", None, Offload::Host, 15, 0.0038, ""),
        ("path, 15-way", "path", None, Offload::Host, 15, 0.0022, ""),
        ("unicast, wire only", "separate", None, Offload::Host, 1, 0.086, wire),
    ];
    for (name, scheme, order, offload, degree, load, settings) in cases {
        let scheme: Scheme = scheme.parse().expect("a scheme");
        let parameters: Parameters = settings.parse().expect("parameters");
        let run = LoadRun {
            fabric: &fabric,
            scheme: &scheme,
            order,
            offload,
            message: Flits(128),
            degree,
            load,
            arrivals: Arrivals::Exponential,
            sets: DestinationSets::Random,
            cycles: Cycles(100_000),
            warmup: Cycles(50_000),
            backlog_max: None,
            parameters: &parameters,
            seed: 1,
            simulator: Simulator::Event,
        };
        criterion.bench_function(&format!("100,000 cycles: {name}"), |bencher| {
            bencher.iter(|| black_box(run.simulate().expect("a run")));
        });
    }
}

fn broadcasts(criterion: &mut Criterion) {
    let fabric = fabric("fat-tree:k=16");
    let placement = Placement::one_per_host(fabric.topology().host_count());
    let destinations = MemberList::All.resolve(&placement, MemberId(0), 1).expect("members");
    let group = Group::new(placement, MemberId(0), destinations).expect("a group");
    let parameters = Parameters::default();
    for (scheme, offload) in [("k-binomial", Offload::Nic), ("tree-worm", Offload::Host)] {
        let plan = plan(&fabric, &group, &scheme.parse().expect("a scheme"), &PlanOptions::default());
        let plan = plan.expect("a plan");
        let (message, simulator) = (Flits(128), Simulator::Event);
        let run = Run {
            fabric: &fabric,
            plan: &plan,
            operation: Operation::Broadcast,
            offload,
            message,
            parameters: &parameters,
            seed: 1,
            simulator,
        };
        criterion.bench_function(&format!("broadcast to 1,024 hosts: {scheme}"), |bencher| {
            bencher.iter(|| black_box(run.simulate().expect("a run")));
        });
    }
}

fn plans(criterion: &mut Criterion) {
    let fabric = fabric("icpp98");
    let placement = Placement::one_per_host(32);
    let group = Group::new(placement, MemberId(0), (1..16).map(MemberId).collect()).expect("a group");
    for scheme in ["k-binomial", "path", "tree-worm"] {
        let scheme: Scheme = scheme.parse().expect("a scheme");
        let mut planner = Planner::new(&fabric, &scheme, &PlanOptions::default()).expect("a planner");
        criterion.bench_function(&format!("plan for 15 of 32 hosts: {scheme}"), |bencher| {
            bencher.iter(|| black_box(planner.plan(&group).expect("a plan")));
        });
    }
}

fn next_links(criterion: &mut Criterion) {
    for spec in ["icpp98", "fat-tree:k=32"] {
        let fabric = fabric(spec);
        let topology = fabric.topology();
        let mut next = NextLinks::new(topology, fabric.routing()).expect("adaptive routing");
        let last = topology.switch_of(HostId(topology.host_count() - 1));
        let first = topology.switch_of(HostId(0));
        criterion.bench_function(&format!("next links: {spec}"), |bencher| {
            bencher.iter(|| black_box(next.towards(black_box(last), black_box(first), false).len()));
        });
    }
}

criterion_group!(benches, load_points, broadcasts, plans, next_links);
criterion_main!(benches);
