//! Every plan on every fabric runs to its end.

use proptest::prelude::*;
use treecast_fabric::{Fabric, FabricSpec, RoutingPolicy};
use treecast_plan::{
    Arrangement, Group, MemberId, MemberList, Placement, Plan, PlanError, PlanOptions, WormKind, plan,
};
use treecast_sim::{Offload, Operation, Outcome, Parameters, Run, SimError, Simulator, Status};
use treecast_terms::{Cycles, Flits};

const SCHEMES: [&str; 15] = [
    "separate",
    "serial",
    "binary",
    "binomial",
    "k-binomial",
    "postal:lambda=2.5",
    "u-torus",
    "s-torus",
    "s-torus:form=worm",
    "md-torus:form=worm",
    "mu-torus:r=3,form=worm",
    "path",
    "path:policy=mdp-g",
    "tree-worm",
    "leader:over=k-binomial,local=direct",
];

fn fabrics() -> impl Strategy<Value = (String, &'static str)> {
    let irregular = (1_u32..12, 0.0..1.0, 0_u64..1000).prop_map(|(switches, connectivity, seed)| {
        let hosts = switches * 3;
        format!("irregular:switches={switches},ports=6,hosts={hosts},connectivity={connectivity},seed={seed}")
    });
    let grid = (2_u32..5, 1_u32..4, 0..3).prop_map(|(k, n, kind)| match kind {
        0 => format!("torus:k={k},n={n},uni"),
        1 => format!("torus:k={k},n={n}"),
        _ => format!("mesh:k={k},n={n}"),
    });
    let plain = prop_oneof![
        irregular,
        (2_u32..20).prop_map(|hosts| format!("star:{hosts}")),
        Just("fat-tree:k=4".into())
    ];
    prop_oneof![
        3 => plain.prop_map(|spec| (spec, "up-down")),
        2 => grid.prop_map(|spec| (spec, "dimension-order")),
        1 => Just(("torus:k=3,n=2".to_string(), "up-down")),
        1 => Just(("mesh:k=2,n=1".to_string(), "shortest-path")),
    ]
}

fn simulate(
    fabric: &Fabric,
    plan: &Plan,
    offload: Offload,
    message: u64,
    parameters: &Parameters,
) -> Outcome {
    Run {
        fabric,
        plan,
        operation: Operation::Broadcast,
        offload,
        message: Flits(message),
        parameters,
        seed: 3,
        simulator: Simulator::Event,
    }
    .simulate()
    .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn every_member_receives_once_and_the_processes_work_as_long_as_they_should(
        (spec, routing) in fabrics(),
        scheme in proptest::sample::select(&SCHEMES[..]),
        processes in 1_u32..4,
        cyclic in any::<bool>(),
        share in 0.0..1.0,
        seed in any::<u64>(),
        message in 1_u64..1500,
        reduces in any::<bool>(),
        offload in proptest::sample::select(vec![Offload::Host, Offload::Assisted, Offload::Nic]),
        policies in proptest::sample::select(vec![
            "", "adaptive=random", "adaptive=lowest,arbitration=lowest-link", "overlap=widest-first,buffer_flits=176",
            "routing_start=first-flit,routing_delay=0,headers=free", "host_overhead=0,nic_overhead=0,bus_mb_per_s=0",
        ]),
    ) {
        let topology = spec.parse::<FabricSpec>().unwrap().topology().unwrap();
        let fabric = Fabric::new(topology, routing.parse::<RoutingPolicy>().unwrap()).unwrap();
        let arrangement = if cyclic { Arrangement::Cyclic } else { Arrangement::Block };
        let placement = Placement::new(fabric.topology().host_count(), processes, arrangement).unwrap();
        prop_assume!(placement.member_count() > 1);
        let root = MemberId((seed % u64::from(placement.member_count())) as u32);
        let count = 1 + (share * f64::from(placement.member_count() - 2)) as u32;
        let destinations = MemberList::Random(count).resolve(&placement, root, seed).unwrap();
        let group = Group::new(placement, root, destinations).unwrap();
        let (operation, message) =
            if reduces { (Operation::AllReduce, message.min(128)) } else { (Operation::Broadcast, message) };
        let options = PlanOptions { packets: (message as u32).div_ceil(128), ..PlanOptions::default() };
        let plan = match plan(&fabric, &group, &scheme.parse().unwrap(), &options) {
            Err(
                PlanError::NeedsTorus { .. } | PlanError::NeedsUpDown { .. } | PlanError::NeedsDimensionOrder { .. },
            ) => return Ok(()),
            plan => plan.unwrap(),
        };
        let parameters: Parameters = policies.parse().unwrap();
        let outcome = match (Run { fabric: &fabric, plan: &plan, operation, offload, message: Flits(message), parameters: &parameters, seed, simulator: Simulator::Event }).simulate() {
            Err(SimError::PacketExceedsBuffer { .. }) => return Ok(()),
            outcome => outcome.unwrap(),
        };
        prop_assert_eq!(outcome.status, Status::Complete);
        let reached: Vec<MemberId> = outcome.deliveries.iter().map(|delivery| delivery.member).collect();
        let mut wanted = group.destinations().to_vec();
        wanted.extend(reduces.then_some(root));
        wanted.sort_unstable();
        prop_assert_eq!(reached, wanted);
        let network = plan.worms().iter().filter(|worm| worm.kind != WormKind::Local);
        let reduction = plan.reduction(&fabric).unwrap();
        let up = reduction.contributions().iter();
        let up = up.filter(|contribution| reduces && contribution.worm.kind != WormKind::Local).count();
        prop_assert_eq!(outcome.worms as usize, network.clone().count() + up);
        if processes == 1 {
            let (up, count) = (up as u64, u64::from(count));
            let down = match offload {
                Offload::Host => network.count(),
                Offload::Assisted => network.filter(|worm| worm.index == 0).count(),
                Offload::Nic | Offload::Switch => 1,
            } as u64;
            let (sends, receipts) = match offload {
                // All give their values to their network interfaces, the root as well, and get the
                // result back.
                Offload::Nic if reduces => (up + 1, count + 1),
                _ => (up + down, up + count),
            };
            let expected =
                sends * parameters.host_send_overhead.0 + receipts * parameters.host_receive_overhead.0;
            prop_assert_eq!(outcome.cpu_busy.iter().map(|busy| busy.0).sum::<u64>(), expected);
        }
    }
}

fn broadcast(spec: &str, scheme: &str) -> (Fabric, Plan) {
    let fabric = Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap();
    let placement = Placement::one_per_host(fabric.topology().host_count());
    let destinations = MemberList::All.resolve(&placement, MemberId(0), 1).unwrap();
    let group = Group::new(placement, MemberId(0), destinations).unwrap();
    let plan = plan(&fabric, &group, &scheme.parse().unwrap(), &PlanOptions::default()).unwrap();
    (fabric, plan)
}

#[test]
fn contributions_of_two_packets_and_barriers_with_values_are_refused() {
    let (fabric, plan) = broadcast("star:4", "binomial");
    let parameters = Parameters::default();
    let run = Run {
        fabric: &fabric,
        plan: &plan,
        operation: Operation::AllReduce,
        offload: Offload::Nic,
        message: Flits(129),
        parameters: &parameters,
        seed: 1,
        simulator: Simulator::Event,
    };
    let refused = SimError::ContributionTooLong { message: Flits(129), packet: Flits(128) };
    assert_eq!(run.simulate(), Err(refused));
    let barrier = Run { operation: Operation::Barrier, message: Flits(2), ..run };
    assert_eq!(barrier.simulate(), Err(SimError::BarrierWithValues(Flits(2))));
}

#[test]
fn a_seed_determines_the_run() {
    let (fabric, plan) =
        broadcast("irregular:switches=12,ports=8,hosts=48,seed=2,connectivity=1", "binomial");
    let parameters: Parameters =
        "adaptive=random,host_overhead=0,nic_overhead=0,bus_mb_per_s=0".parse().unwrap();
    let run = |seed| {
        let run = Run {
            fabric: &fabric,
            plan: &plan,
            operation: Operation::Broadcast,
            offload: Offload::Nic,
            message: Flits(2048),
            parameters: &parameters,
            seed,
            simulator: Simulator::Event,
        };
        run.simulate().unwrap()
    };
    assert_eq!(run(1), run(1));
    assert!((2..20).any(|seed| run(seed) != run(1)), "random choices depend on the seed");
}

#[test]
fn a_run_that_reaches_its_last_cycle_is_incomplete() {
    let (fabric, plan) = broadcast("icpp98", "binomial");
    let parameters: Parameters = "cycles_max=12000".parse().unwrap();
    let outcome = simulate(&fabric, &plan, Offload::Host, 128, &parameters);
    assert_eq!((outcome.status, outcome.latency), (Status::Incomplete, None));
    assert!(!outcome.deliveries.is_empty() && outcome.deliveries.len() < 31);
    assert!(outcome.deliveries.iter().all(|delivery| delivery.cycle <= Cycles(12_000)));
}

#[test]
fn invalid_runs_are_rejected_with_a_reason() {
    let (fabric, plan) = broadcast("icpp98", "tree-worm");
    let error = |message, parameters: &str| {
        let parameters: Parameters = parameters.parse().unwrap();
        let run = Run {
            fabric: &fabric,
            plan: &plan,
            operation: Operation::Broadcast,
            offload: Offload::Host,
            message: Flits(message),
            parameters: &parameters,
            seed: 1,
            simulator: Simulator::Event,
        };
        run.simulate().unwrap_err().to_string()
    };
    assert_eq!(error(0, ""), "the message has 0 flits: it needs at least 1");
    assert_eq!(
        error(128, "buffer_flits=131"),
        "a packet of 128 payload flits and 4 header flits does not fit an input buffer of 131 flits (set buffer_flits or \
         packet_flits)"
    );
    assert_eq!(
        error(u64::MAX, ""),
        "a message of 18446744073709551615 flits is too long: it has at most 1099511627776 flits"
    );
}

#[test]
fn worms_that_several_ports_could_serve_deliver_every_packet_once() {
    let mut overlaps = 0;
    for seed in 0..30 {
        let spec = format!("irregular:switches=10,ports=8,hosts=30,connectivity=1,seed={seed}");
        let (fabric, plan) = broadcast(&spec, "tree-worm");
        let (topology, routing) = (fabric.topology(), fabric.routing().up_down().unwrap());
        for switch in topology.switches() {
            let below: Vec<_> = topology
                .links_from(switch)
                .iter()
                .map(|&link| routing.reachable_hosts(topology, link))
                .collect();
            let all: usize = below.iter().map(|hosts| hosts.count_ones(..)).sum();
            let union = below.iter().fold(below[0].clone(), |union, hosts| &union | hosts);
            overlaps += usize::from(all > union.count_ones(..));
        }
        for policy in ["overlap=first-port", "overlap=widest-first"] {
            // The simulator itself asserts that each participant receives each packet once.
            let outcome = simulate(&fabric, &plan, Offload::Host, 300, &policy.parse().unwrap());
            assert_eq!((outcome.status, outcome.deliveries.len()), (Status::Complete, 29));
        }
    }
    assert!(overlaps > 30, "reachabilities overlap at {overlaps} switches");
}

#[test]
fn full_buffers_block_worms_and_drain() {
    // Sixteen packets to each of 31 hosts through buffers of one packet, without overheads.
    let (fabric, plan) = broadcast("icpp98", "separate");
    let wide: Parameters = "host_overhead=0,nic_overhead=0,bus_mb_per_s=0".parse().unwrap();
    let narrow: Parameters =
        "host_overhead=0,nic_overhead=0,bus_mb_per_s=0,buffer_flits=129".parse().unwrap();
    let (fast, slow) = (
        simulate(&fabric, &plan, Offload::Nic, 2048, &wide),
        simulate(&fabric, &plan, Offload::Nic, 2048, &narrow),
    );
    let floor = 31 * 16 * 129;
    assert!(fast.latency.unwrap().0 >= floor);
    assert!(slow.latency > fast.latency, "a buffer of one packet leaves gaps on the link");
}

#[test]
fn a_ring_without_virtual_channels_deadlocks() {
    let topology = "torus:k=4,n=1,uni".parse::<FabricSpec>().unwrap().topology().unwrap();
    let with = |routing: &str| Fabric::new(topology.clone(), routing.parse().unwrap()).unwrap();
    // The root starts three others at once by one packet each; then all four stream round the ring,
    // two or three hops each, through buffers of one packet.
    let parameters: Parameters =
        "host_overhead=0,nic_overhead=0,bus_mb_per_s=0,buffer_flits=129".parse().unwrap();
    let status = |routing: &str, processes: u32, scheme: &str| {
        let fabric = with(routing);
        let placement = Placement::new(4, processes, Arrangement::Cyclic).unwrap();
        let destinations = MemberList::All.resolve(&placement, MemberId(0), 1).unwrap();
        let group = Group::new(placement, MemberId(0), destinations).unwrap();
        let plan = plan(
            &fabric,
            &group,
            &scheme.parse().unwrap(),
            &PlanOptions { order: Some("random:seed=1".parse().unwrap()), packets: 64 },
        )
        .unwrap();
        simulate(&fabric, &plan, Offload::Nic, 64 * 128, &parameters).status
    };
    let deadlocks = (1..9).any(|processes| {
        ["binomial", "postal:lambda=2", "binary"]
            .iter()
            .any(|scheme| status("dimension-order:channels=none", processes, scheme) == Status::Deadlocked)
    });
    assert!(deadlocks);
    for processes in 1..9 {
        for scheme in ["binomial", "postal:lambda=2", "binary"] {
            assert_eq!(status("dimension-order", processes, scheme), Status::Complete);
        }
    }
}
