//! Unloaded latencies equal the closed forms that docs/simulation.md derives.

use proptest::prelude::*;
use treecast_fabric::{Fabric, FabricSpec, PortNumber, RoutingPolicy, SwitchId, TopologyBuilder};
use treecast_plan::{Arrangement, Group, MemberId, Placement, Plan, PlanOptions, plan};
use treecast_sim::{Offload, Operation, Outcome, Parameters, Run, Simulator, Status};
use treecast_terms::Flits;

/// A row of switches, each with the same number of hosts.
fn row(switches: u32, hosts: u32) -> Fabric {
    let mut builder = TopologyBuilder::new();
    for switch in 0..switches {
        let id = builder.switch(hosts + 2).unwrap();
        for port in 0..hosts {
            builder.host(id, PortNumber(port)).unwrap();
        }
        if switch > 0 {
            let before = SwitchId(switch - 1);
            builder.link((before, PortNumber(hosts)), (id, PortNumber(hosts + 1))).unwrap();
        }
    }
    Fabric::new(builder.build().unwrap(), RoutingPolicy::Auto).unwrap()
}

fn spec(text: &str) -> Fabric {
    Fabric::from_spec(&text.parse::<FabricSpec>().unwrap()).unwrap()
}

fn planned(fabric: &Fabric, root: u32, to: impl IntoIterator<Item = u32>, scheme: &str) -> Plan {
    let placement = Placement::one_per_host(fabric.topology().host_count());
    let group = Group::new(placement, MemberId(root), to.into_iter().map(MemberId).collect()).unwrap();
    plan(fabric, &group, &scheme.parse().unwrap(), &PlanOptions::default()).unwrap()
}

fn simulate(
    fabric: &Fabric,
    plan: &Plan,
    offload: Offload,
    message: u64,
    parameters: &Parameters,
) -> Outcome {
    let outcome = Run {
        fabric,
        plan,
        operation: Operation::Broadcast,
        offload,
        message: Flits(message),
        parameters,
        seed: 1,
        simulator: Simulator::Event,
    }
    .simulate()
    .unwrap();
    assert_eq!(outcome.status, Status::Complete);
    outcome
}

/// The latency of an all-reduce by one simulator, and the cycle in which the root has the result.
fn all_reduced(
    fabric: &Fabric,
    plan: &Plan,
    offload: Offload,
    message: u64,
    parameters: &Parameters,
    simulator: Simulator,
) -> (u64, u64) {
    let (operation, message) = (Operation::AllReduce, Flits(message));
    let run = Run { fabric, plan, operation, offload, message, parameters, seed: 1, simulator };
    let outcome = run.simulate().unwrap();
    assert_eq!(outcome.deliveries.len(), plan.destination_count() + 1);
    let root = outcome.deliveries.iter().find(|delivery| delivery.member == plan.root()).unwrap();
    (outcome.latency.unwrap().0, root.cycle.0)
}

fn latency(fabric: &Fabric, plan: &Plan, offload: Offload, message: u64, parameters: &Parameters) -> u64 {
    simulate(fabric, plan, offload, message, parameters).latency.unwrap().0
}

/// From the injection of the head flit to the arrival of the tail flit of a packet of `wire` flits,
/// over switches that each read `fields` flits before they route.
fn transit(parameters: &Parameters, switches: u64, fields: u64, wire: u64) -> u64 {
    let hop = fields - 1 + parameters.routing_delay.0 + parameters.crossbar_delay.0 + parameters.link_delay.0;
    parameters.link_delay.0 + switches * hop + wire - 1
}

/// The overheads of host and NIC, and the bus, at both ends.
fn ends(parameters: &Parameters, payload: u64) -> u64 {
    parameters.host_send_overhead.0
        + parameters.host_receive_overhead.0
        + parameters.nic_send_overhead.0
        + parameters.nic_receive_overhead.0
        + 2 * parameters.bus_time(Flits(payload)).0
}

prop_compose! {
    fn any_parameters()(
        hosts in (0_u64..2000, 0_u64..2000),
        nics in (0_u64..2000, 0_u64..2000),
        bus in 0_u64..1000,
        delays in (0_u64..5, 1_u64..5, 0_u64..5),
        header in 1_u64..6,
    ) -> Parameters {
        format!(
            "host_send_overhead={},host_receive_overhead={},nic_send_overhead={},nic_receive_overhead={},\
             bus_mb_per_s={bus},routing_delay={},crossbar_delay={},link_delay={},unicast_header_flits={header}",
            hosts.0, hosts.1, nics.0, nics.1, delays.0, delays.1, delays.2
        )
        .parse()
        .unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn one_packet_over_a_row_of_switches(
        parameters in any_parameters(), switches in 1_u32..7, payload in 1_u64..129
    ) {
        let fabric = row(switches, 2);
        let plan = planned(&fabric, 0, [2 * switches - 1], "separate");
        let header = parameters.unicast_header_flits.0;
        let expected = ends(&parameters, payload) + transit(&parameters, switches.into(), header, payload + header);
        for offload in [Offload::Host, Offload::Assisted, Offload::Nic] {
            prop_assert_eq!(latency(&fabric, &plan, offload, payload, &parameters), expected);
        }
    }

    #[test]
    fn one_packet_over_a_torus(parameters in any_parameters(), to in 1_u32..64, payload in 1_u64..129) {
        let fabric = spec("torus:k=8,n=2,uni");
        let plan = planned(&fabric, 0, [to], "separate");
        let header = parameters.unicast_header_flits.0;
        let routers = u64::from(to % 8 + to / 8) + 1;
        // Host and router are one node: the links between them take no time.
        let wire = transit(&parameters, routers, header, payload + header) - 2 * parameters.link_delay.0;
        prop_assert_eq!(
            latency(&fabric, &plan, Offload::Host, payload, &parameters),
            ends(&parameters, payload) + wire
        );
    }

    #[test]
    fn a_tree_worm_costs_one_message_whatever_the_group(
        parameters in any_parameters(), switches in 1_u32..6, payload in 1_u64..129
    ) {
        let fabric = row(switches, 3);
        let plan = planned(&fabric, 0, 1..3 * switches, "tree-worm");
        let header = u64::from(3 * switches).div_ceil(8);
        let expected = ends(&parameters, payload) + transit(&parameters, switches.into(), header, payload + header);
        prop_assert_eq!(latency(&fabric, &plan, Offload::Host, payload, &parameters), expected);
    }

    #[test]
    fn phases_through_hosts_add_up(parameters in any_parameters(), hosts in 2_u32..10, payload in 1_u64..129) {
        let fabric = spec(&format!("star:{hosts}"));
        let plan = planned(&fabric, 0, 1..hosts, "serial");
        let header = parameters.unicast_header_flits.0;
        let phase = ends(&parameters, payload) + transit(&parameters, 1, header, payload + header);
        prop_assert_eq!(
            latency(&fabric, &plan, Offload::Host, payload, &parameters),
            u64::from(hosts - 1) * phase
        );
    }

    #[test]
    fn phases_through_nics_leave_the_hosts_out(
        parameters in any_parameters(), hosts in 2_u32..10, payload in 1_u64..129
    ) {
        let fabric = spec(&format!("star:{hosts}"));
        let plan = planned(&fabric, 0, 1..hosts, "serial");
        let header = parameters.unicast_header_flits.0;
        let nics = parameters.nic_send_overhead.0 + parameters.nic_receive_overhead.0;
        let phase = nics + transit(&parameters, 1, header, payload + header);
        let expected = ends(&parameters, payload) - nics + u64::from(hosts - 1) * phase;
        prop_assert_eq!(latency(&fabric, &plan, Offload::Nic, payload, &parameters), expected);
    }

    /// Through NICs the way up ends in the NIC of the root, where the way down begins.
    #[test]
    fn an_all_reduce_over_a_chain_takes_its_hops_twice(
        parameters in any_parameters(), hosts in 2_u32..8, payload in 1_u64..129, cycles in any::<bool>()
    ) {
        let fabric = spec(&format!("star:{hosts}"));
        let plan = planned(&fabric, 0, 1..hosts, "serial");
        let header = parameters.unicast_header_flits.0;
        let wire = transit(&parameters, 1, header, payload + header);
        let nics = parameters.nic_send_overhead.0 + parameters.nic_receive_overhead.0;
        let through_nics = ends(&parameters, payload) - nics;
        let hops = 2 * u64::from(hosts - 1);
        let simulator = if cycles { Simulator::Cycle } else { Simulator::Event };
        let all_reduced = |offload| all_reduced(&fabric, &plan, offload, payload, &parameters, simulator).0;
        for offload in [Offload::Host, Offload::Assisted] {
            prop_assert_eq!(all_reduced(offload), hops * (ends(&parameters, payload) + wire));
        }
        prop_assert_eq!(all_reduced(Offload::Nic), through_nics + hops * (nics + wire));
    }

    /// All contribute at once: the slowest stage at the root paces their contributions. Then the
    /// result goes down as any message.
    #[test]
    fn an_all_reduce_at_one_root_is_paced_by_its_slowest_stage(
        parameters in any_parameters(), hosts in 2_u32..12, payload in 1_u64..129, cycles in any::<bool>()
    ) {
        let fabric = spec(&format!("star:{hosts}"));
        let plan = planned(&fabric, 0, 1..hosts, "separate");
        let wire = payload + parameters.unicast_header_flits.0;
        let bus = parameters.bus_time(Flits(payload)).0;
        let first =
            ends(&parameters, payload) + transit(&parameters, 1, parameters.unicast_header_flits.0, wire);
        let nic = wire.max(parameters.nic_receive_overhead.0);
        let slowest = nic.max(bus).max(parameters.host_receive_overhead.0);
        let others = u64::from(hosts - 2);
        let simulator = if cycles { Simulator::Cycle } else { Simulator::Event };
        let all_reduced = |offload| all_reduced(&fabric, &plan, offload, payload, &parameters, simulator);
        for offload in [Offload::Host, Offload::Assisted] {
            let up = first + others * slowest;
            let down = latency(&fabric, &plan, offload, payload, &parameters);
            prop_assert_eq!(all_reduced(offload), (up + down, up));
        }
        // The NIC combines the contributions. Its copies are the last thing that it does, and those
        // of a broadcast begin after the host and the bus.
        let up = first + others * nic;
        let host = parameters.host_send_overhead.0 + bus;
        let down = latency(&fabric, &plan, Offload::Nic, payload, &parameters) - host;
        let at_nic = up - bus - parameters.host_receive_overhead.0;
        prop_assert_eq!(all_reduced(Offload::Nic), (at_nic + down, up));
    }

    #[test]
    fn the_slowest_stage_paces_a_long_message(parameters in any_parameters(), packets in 1_u64..20) {
        let fabric = spec("star:2");
        let plan = planned(&fabric, 0, [1], "separate");
        let header = parameters.unicast_header_flits.0;
        let slowest = [
            parameters.bus_time(Flits(128)).0,
            parameters.nic_send_overhead.0,
            // A switch routes a packet when the previous one has left the buffer.
            128 + header + parameters.routing_delay.0,
            parameters.nic_receive_overhead.0,
        ];
        let first = ends(&parameters, 128) + transit(&parameters, 1, header, 128 + header);
        let expected = first + (packets - 1) * slowest.into_iter().max().unwrap();
        prop_assert_eq!(latency(&fabric, &plan, Offload::Host, packets * 128, &parameters), expected);
    }

    /// A NIC makes its copies back to back, and its link sends them back to back. In this the
    /// simulated binomial tree differs from ceil(log2 n) phases.
    #[test]
    fn a_binomial_tree_of_nics_queues_its_copies(
        parameters in any_parameters(), hosts in 2_u32..40, payload in 1_u64..129
    ) {
        let fabric = spec(&format!("star:{hosts}"));
        let plan = planned(&fabric, 0, 1..hosts, "binomial");
        let wire = payload + parameters.unicast_header_flits.0;
        let bus = parameters.bus_time(Flits(payload)).0;
        let mut ready = vec![0; hosts as usize];
        let (mut link_free, mut buffer_free) = (ready.clone(), ready.clone());
        ready[0] = parameters.host_send_overhead.0 + bus;
        let mut last = 0;
        for worm in plan.worms() {
            let (from, to) = (worm.from.index(), worm.to[0].index());
            let copied = ready[from] + (u64::from(worm.index) + 1) * parameters.nic_send_overhead.0;
            let injected = copied.max(link_free[from]);
            link_free[from] = injected + wire;
            let read = injected + parameters.link_delay.0 + parameters.unicast_header_flits.0 - 1;
            let granted = read.max(buffer_free[from]) + parameters.routing_delay.0;
            buffer_free[from] = granted + wire;
            let arrived = granted + parameters.crossbar_delay.0 + parameters.link_delay.0 + wire - 1;
            ready[to] = arrived + parameters.nic_receive_overhead.0;
            last = last.max(ready[to] + bus + parameters.host_receive_overhead.0);
        }
        prop_assert_eq!(latency(&fabric, &plan, Offload::Nic, payload, &parameters), last);
    }

    /// Four switches in a row of 3 ports, one destination on each of the last three: a header of 3
    /// times 1 + 1 flits. A switch with drops reads its two fields, and forwards the flits after
    /// them when they have arrived.
    #[test]
    fn a_path_worm_loses_two_fields_a_stop(parameters in any_parameters(), payload in 1_u64..129) {
        let fabric = row(4, 1);
        let plan = planned(&fabric, 0, 1..4, "path:policy=mdp-g");
        prop_assert_eq!(plan.worms().len(), 1);
        let outcome = simulate(&fabric, &plan, Offload::Host, payload, &parameters);
        let hop = parameters.crossbar_delay.0 + parameters.link_delay.0;
        let mut head = parameters.link_delay.0 + parameters.routing_delay.0 + hop;
        for (stop, delivery) in (1..4).zip(&outcome.deliveries) {
            // The first flit that is forwarded is the third; it cannot leave before it has arrived.
            head += (1 + parameters.routing_delay.0).max(2) + hop;
            let arrived = head + payload + 2 * (3 - stop) - 1;
            prop_assert_eq!(delivery.cycle.0, ends(&parameters, payload) + arrived);
        }
    }
}

#[test]
fn without_queueing_a_binomial_tree_takes_a_logarithmic_number_of_phases() {
    // With an overhead per copy as long as a whole phase, no copy waits for another: 2 t_h +
    // ceil(log2 n) (2 t_n + w).
    let parameters: Parameters =
        "nic_receive_overhead=0,nic_send_overhead=10000,bus_mb_per_s=0".parse().unwrap();
    let fabric = spec("star:16");
    let plan = planned(&fabric, 0, 1..16, "serial");
    let wire = 1 + 3 + 129 - 1;
    assert_eq!(latency(&fabric, &plan, Offload::Nic, 128, &parameters), 2 * 1000 + 15 * (10_000 + wire));
    let plan = planned(&fabric, 0, 1..16, "binomial");
    let last_leaf = 2 * 1000 + 4 * (10_000 + wire);
    assert_eq!(latency(&fabric, &plan, Offload::Nic, 128, &parameters), last_leaf);
}

#[test]
fn free_headers_leave_the_payload_alone_on_the_wire() {
    let parameters: Parameters = "headers=free".parse().unwrap();
    let fabric = row(4, 1);
    for scheme in ["path:policy=mdp-g", "tree-worm"] {
        let plan = planned(&fabric, 0, 1..4, scheme);
        let expected = ends(&parameters, 128) + transit(&parameters, 4, 1, 128);
        assert_eq!(latency(&fabric, &plan, Offload::Host, 128, &parameters), expected, "{scheme}");
    }
}

#[test]
fn offloads_differ_in_which_cpus_are_busy() {
    let fabric = spec("star:8");
    let plan = planned(&fabric, 0, 1..8, "binomial");
    let parameters = Parameters::default();
    let busy = |offload| {
        let outcome = simulate(&fabric, &plan, offload, 128, &parameters);
        (outcome.cpu_busy[0].0, outcome.cpu_busy.iter().map(|cycles| cycles.0).sum::<u64>())
    };
    // The root sends 3 copies; 7 hosts receive; 4 hosts send 7 copies in all.
    assert_eq!(busy(Offload::Host), (3_000, 14_000));
    assert_eq!(busy(Offload::Assisted), (1_000, 11_000));
    assert_eq!(busy(Offload::Nic), (1_000, 8_000));
    // Where the interface copies faster than the process sends, offloading the copies helps.
    let parameters: Parameters = "nic_overhead=200".parse().unwrap();
    let separate = planned(&fabric, 0, 1..8, "separate");
    let of = |plan, offload| latency(&fabric, plan, offload, 128, &parameters);
    assert!(of(&separate, Offload::Host) > of(&separate, Offload::Assisted));
    assert!(of(&plan, Offload::Assisted) > of(&plan, Offload::Nic));
}

#[test]
fn members_of_a_host_are_served_through_shared_memory() {
    // Members 0 to 2 on one host, 3 to 5 on the other. A local message costs 100 cycles and a copy
    // at either end; a copy of 128 bytes takes 26 cycles at 1,000 MB/s.
    let fabric = spec("star:2");
    let placement = Placement::new(2, 3, Arrangement::Block).unwrap();
    let group = Group::new(placement, MemberId(0), (1..6).map(MemberId).collect()).unwrap();
    let delivered = |scheme: &str| {
        let plan = plan(&fabric, &group, &scheme.parse().unwrap(), &PlanOptions::default()).unwrap();
        let outcome = simulate(&fabric, &plan, Offload::Host, 128, &Parameters::default());
        outcome.deliveries.iter().map(|delivery| delivery.cycle.0).collect::<Vec<_>>()
    };
    let (sent, leader, local) = (1000, 4326, 126);
    assert_eq!(
        delivered("leader:over=binomial"),
        [sent + 2 * local, sent + 3 * local, leader, leader + 2 * local, leader + 3 * local]
    );
    // Straight into shared memory: one copy in, none out; what the interface delivers is there for
    // all.
    let root_side = sent + local + 100;
    assert_eq!(
        delivered("leader:over=binomial,local=direct"),
        [root_side, root_side, leader, leader, leader]
    );
}

/// 16 packets along a chain of network interfaces, with the numbers of the ICPP'98 study at R = 1:
/// the interface in the middle forwards a packet per overhead with a processor for each direction,
/// per two overheads with one for both.
#[test]
fn a_chain_of_nics_forwards_a_packet_per_overhead_or_per_two() {
    let latency = |policy: &str, hosts: u32| {
        let fabric = spec(&format!("star:{hosts}"));
        let plan = planned(&fabric, 0, 1..hosts, "serial");
        latency(&fabric, &plan, Offload::Nic, 16 * 128, &policy.parse().unwrap())
    };
    let (host, nic, bus, wire) = (1000, 1000, 97, 132);
    for hosts in [3, 4, 8] {
        let first = 2 * host + 2 * bus + u64::from(hosts - 1) * (2 * nic + wire);
        assert_eq!(latency("nic_processors=per-direction", hosts), first + 15 * nic);
    }
    let first = 2 * host + 2 * bus + 2 * (2 * nic + wire);
    assert_eq!(latency("nic_processors=shared", 3), first + 15 * 2 * nic);
}
