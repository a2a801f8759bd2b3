use proptest::prelude::*;
use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::{Arrangement, Group, MemberId, Placement, Plan, PlanOptions, plan};
use treecast_sim::{Offload, Status};
use treecast_terms::{Bytes, Keyed, Picoseconds};

use super::pieces::Pieces;
use super::simulation::{ACKNOWLEDGMENT, Simulation};
use super::{MEASURES, Parameters, checked_pieces, checked_plan, multicast_route, run};
use crate::task::{ModelError, Outcome, Task};

/// A multicast to all other hosts of a star.
#[derive(Debug, Clone)]
struct Setup {
    fabric: String,
    processes: u32,
    scheme: &'static str,
    offload: Offload,
    message: u64,
    parameters: Parameters,
}

fn setup(hosts: u32, scheme: &'static str, message: u64, settings: &str) -> Setup {
    let mut parameters = Parameters::default();
    parameters.set_all(settings).unwrap();
    let (fabric, offload) = (format!("star:{hosts}"), Offload::Nic);
    Setup { fabric, processes: 1, scheme, offload, message, parameters }
}

impl Setup {
    fn by(self, offload: Offload) -> Self {
        Self { offload, ..self }
    }

    fn with<T>(&self, use_task: impl FnOnce(&Task) -> T) -> T {
        let fabric = Fabric::from_spec(&self.fabric.parse::<FabricSpec>().unwrap()).unwrap();
        let hosts = fabric.topology().host_count();
        let placement = Placement::new(hosts, self.processes, Arrangement::Block).unwrap();
        let destinations = (1..placement.member_count()).map(MemberId).collect();
        let group = Group::new(placement, MemberId(0), destinations).unwrap();
        use_task(&Task {
            fabric: &fabric,
            group: &group,
            scheme: &self.scheme.parse().unwrap(),
            order: None,
            offload: self.offload,
            message: Bytes(self.message),
            seed: 1,
            stop: None,
        })
    }

    fn try_run(&self) -> Result<Outcome, ModelError> {
        self.with(|task| run(&self.parameters, task))
    }

    fn latency(&self) -> Picoseconds {
        let outcome = self.try_run().unwrap();
        assert_eq!(outcome.status, Status::Complete);
        outcome.latency.unwrap()
    }

    fn measured_us(&self, name: &str) -> f64 {
        let outcome = self.try_run().unwrap();
        outcome.measured.iter().find(|(known, _)| *known == name).unwrap().1
    }

    /// When each member's application had the message, the root's excepted.
    fn deliveries(&self) -> Vec<Picoseconds> {
        self.with(|task| {
            let pieces = checked_pieces(&self.parameters, task).unwrap();
            let plan = checked_plan(task, pieces).unwrap();
            let route = match self.offload {
                Offload::Switch => multicast_route(task).unwrap(),
                _ => Vec::new(),
            };
            let mut simulation = Simulation::new(&self.parameters, task, &plan, pieces, route);
            simulation.run();
            assert_eq!(simulation.delivered[0], None, "the root has the message");
            simulation.delivered[1..].iter().map(|time| time.unwrap()).collect()
        })
    }
}

/// The steps of one piece that is the whole message, by default parameters or others.
#[derive(Debug, Clone, Copy)]
struct Steps {
    call: Picoseconds,
    ask: Picoseconds,
    send: Picoseconds,
    /// Two links and the bytes.
    network: Picoseconds,
    wake: Picoseconds,
    receive: Picoseconds,
    deliver: Picoseconds,
}

fn steps(setup: &Setup) -> Steps {
    let costs = &setup.parameters;
    let bytes = Bytes(setup.message);
    let with = |base: Picoseconds, per_kb: Picoseconds| {
        base + Picoseconds((setup.message * per_kb.0).div_ceil(1_000))
    };
    Steps {
        call: with(costs.call, costs.call_per_kb),
        ask: costs.ask,
        send: with(costs.send, costs.send_per_kb),
        network: costs.hop + costs.hop + bytes.time_at(costs.link_mb_per_s),
        wake: costs.wake + costs.wake_cpu,
        receive: with(costs.receive, costs.receive_per_kb),
        deliver: with(costs.deliver, costs.deliver_per_kb),
    }
}

fn times(count: u64, span: Picoseconds) -> Picoseconds {
    Picoseconds(count * span.0)
}

#[test]
fn a_small_message_takes_the_sum_of_its_steps() {
    for message in [1, 777, 1_400] {
        let two = setup(2, "separate", message, "");
        let Steps { call, ask, send, network, wake, receive, deliver } = steps(&two);
        let alone = call + send + network + wake + receive + deliver;
        assert_eq!(two.latency(), alone);
        for offload in [Offload::Host, Offload::Assisted] {
            assert_eq!(two.clone().by(offload).latency(), alone + ask, "{offload}");
        }
        assert_eq!(two.by(Offload::Switch).latency(), alone);
    }
}

#[test]
fn where_the_kernel_takes_pieces_in_only_the_application_is_woken() {
    let chain = setup(3, "serial", 100, "wake_for=message");
    let Steps { call, send, network, wake, receive, deliver, .. } = steps(&chain);
    assert_eq!(chain.latency(), call + times(2, send + network + receive) + wake + deliver);
}

#[test]
fn a_chain_takes_one_step_after_another() {
    let chain = setup(5, "serial", 100, "");
    let Steps { call, ask, send, network, wake, receive, deliver } = steps(&chain);
    let hop = send + network + wake + receive;
    assert_eq!(chain.latency(), call + times(4, hop) + deliver);
    let by_applications = call + times(4, ask + hop + deliver);
    assert_eq!(chain.clone().by(Offload::Host).latency(), by_applications);
    assert_eq!(chain.by(Offload::Assisted).latency(), by_applications);
}

#[test]
fn copies_to_children_take_linear_time() {
    for children in [1, 2, 7, 40] {
        let star = setup(children + 1, "separate", 100, "");
        let Steps { call, ask, send, network, wake, receive, deliver } = steps(&star);
        let copies = times(children.into(), send);
        let rest = network + wake + receive + deliver;
        assert_eq!(star.latency(), call + copies + rest);
        assert_eq!(star.clone().by(Offload::Assisted).latency(), call + ask + copies + rest);
        let asked = times(children.into(), ask);
        assert_eq!(star.clone().by(Offload::Host).latency(), call + asked + copies + rest);
        assert_eq!(star.by(Offload::Switch).latency(), call + send + rest, "the switch copies");
    }
}

#[test]
fn on_one_shared_processor_the_time_is_the_sum_of_work() {
    let settings = "shared_processors=1 wake_us=0 hop_us=0 link_mb_per_s=0 ack_us=0";
    for (scheme, message) in [("separate", 100), ("binomial", 100), ("serial", 100), ("binomial", 10_000)] {
        let shared = setup(9, scheme, message, settings);
        for offload in [Offload::Nic, Offload::Assisted, Offload::Host] {
            let shared = shared.clone().by(offload);
            assert!(
                (shared.latency().us() - shared.measured_us("cpu_us")).abs() < 1e-6,
                "{scheme} {offload}"
            );
        }
    }
    let work = |settings: &str| setup(9, "binomial", 100, settings).measured_us("cpu_us");
    assert!((work(settings) - work("ack_us=0")).abs() < 1e-6, "work does not depend on processors");
}

#[test]
fn wake_ups_are_cold_where_hosts_share_processors() {
    let cold = "cold_us=3 cold_ns_per_kb=1000";
    let cpu = |hosts, settings: &str| setup(hosts, "serial", 1_000, settings).measured_us("cpu_us");
    for (hosts, processors, doublings) in [(2, 2, 0.0), (3, 16, 0.0), (4, 2, 1.0), (16, 2, 3.0), (8, 1, 3.0)]
    {
        let shared = format!("shared_processors={processors} ack_us=0");
        let extra = cpu(hosts, &format!("{shared} {cold}")) - cpu(hosts, &shared);
        // Each member is woken once, and takes 1 KB in.
        let expected = f64::from(hosts - 1) * doublings * (3.0 + 1.0);
        assert!((extra - expected).abs() < 1e-6, "{hosts} hosts: {extra}, not {expected}");
    }
    assert!((cpu(16, cold) - cpu(16, "")).abs() < 1e-6, "hosts of their own have caches of their own");
}

#[test]
fn on_a_chain_pieces_follow_one_another_through_the_slowest_part() {
    // Nothing takes time but sending: each host of the chain works on another piece.
    let settings = "call_us=0 call_ns_per_kb=0 send_ns_per_kb=0 receive_us=0 receive_ns_per_kb=0 wake_us=0 \
                    wake_cpu_us=0 deliver_us=0 deliver_ns_per_kb=0 ack_us=0 hop_us=0 link_mb_per_s=0 \
                    piece_bytes=1000";
    let chain = |pieces: u64| setup(6, "serial", pieces * 1_000, settings);
    for pieces in [1, 2, 10, 100] {
        let chain = chain(pieces);
        let senders = 5;
        assert_eq!(chain.latency(), times(senders + pieces - 1, chain.parameters.send));
        let assisted = times(5, chain.parameters.ask) + times(senders * pieces, chain.parameters.send);
        assert_eq!(chain.by(Offload::Assisted).latency(), assisted);
    }
    // A link is the bottleneck: 1,000 bytes take 100 us on each of two links, which they cross at
    // once.
    let mut linked = chain(50);
    linked.parameters.set_all("link_mb_per_s=10 send_us=0").unwrap();
    assert_eq!(linked.latency(), times(5 + 50 - 1, Picoseconds(100_000_000)));
}

/// The settings of streams: pieces of 64 KB. Costs are for each piece, so that a first read costs
/// as much whatever has arrived.
const STREAM: &str = "piece_bytes=65536 call_ns_per_kb=0 send_ns_per_kb=0 receive_ns_per_kb=0 \
                      deliver_ns_per_kb=0 ack_us=0";

#[test]
fn relays_of_a_chain_forward_a_piece_while_it_arrives() {
    for (rate, hosts, message) in [(25, 3, 1 << 16), (25, 8, 1 << 16), (125, 8, 1 << 18), (125, 40, 1 << 20)]
    {
        let chain = setup(hosts, "serial", message, &format!("{STREAM} link_mb_per_s={rate}"));
        let Steps { call, send, wake, receive, deliver, .. } = steps(&chain);
        // All links carry the message at once. The head of a piece is later by one packet, and by
        // what a relay does with it, at each relay.
        let wire = Bytes(message).time_at(rate);
        let links = times(2 * (u64::from(hosts) - 1), chain.parameters.hop);
        let relays = times(u64::from(hosts) - 2, Bytes(1_400).time_at(rate) + wake + receive + send);
        assert_eq!(chain.latency(), call + send + links + wire + relays + wake + receive + deliver);
    }
}

#[test]
fn a_chain_is_late_by_packets_and_not_by_pieces() {
    // At 25 MB/s a packet takes 56 us, and a piece 2,621 us. The other costs are those of streams.
    let settings = "piece_bytes=65536 link_mb_per_s=25";
    for (hosts, pieces) in [(8, 1), (8, 16), (64, 16)] {
        let chain = setup(hosts, "serial", pieces << 16, settings);
        let wire = Bytes(pieces << 16).time_at(25).us();
        let late = chain.latency().us() - wire;
        let relays = f64::from(hosts - 1);
        assert!(late > relays * 56.0 && late < relays * 100.0 + 200.0, "{hosts} hosts: {late}");
    }
}

#[test]
fn pieces_that_arrive_at_once_are_forwarded_whole() {
    let chain = |rate: u32| setup(8, "serial", 1 << 16, &format!("piece_bytes=65536 link_mb_per_s={rate}"));
    let Steps { call, send, wake, receive, deliver, .. } = steps(&chain(0));
    let hop = chain(0).parameters.hop;
    let alone = call + times(7, send + hop + hop + wake + receive) + deliver;
    assert_eq!(chain(0).latency(), alone);
    // The first packet wakes a relay, and the others arrive before it runs.
    let [wire, packet] = [1 << 16, 1_400].map(|bytes| Bytes(bytes).time_at(10_000));
    assert!(wire < wake);
    assert_eq!(chain(10_000).latency(), alone + times(6, packet) + wire);
}

#[test]
fn forwarding_while_pieces_arrive_costs_no_more_cpu_time() {
    for scheme in SCHEMES {
        let cpu = |rate: u32| {
            let settings = format!("piece_bytes=65536 ack_us=0 wake_cpu_us=0 link_mb_per_s={rate}");
            setup(9, scheme, 300_000, &settings).measured_us("cpu_us")
        };
        assert!((cpu(25) - cpu(0)).abs() < 1e-6, "{scheme}");
    }
}

#[test]
fn with_host_a_child_gets_the_whole_message_before_the_next_one() {
    let settings = "piece_bytes=1000 ask_us=0 ack_us=0";
    let order = |offload| setup(4, "separate", 10_000, settings).by(offload).deliveries();
    let spread = |times: Vec<Picoseconds>| times[2] - times[0];
    assert!(spread(order(Offload::Host)) > times(15, Picoseconds(5_000_000)));
    assert!(spread(order(Offload::Nic)) < times(5, Picoseconds(5_000_000)));
}

#[test]
fn acknowledgments_cost_the_parent_and_wait_for_its_data() {
    let cpu = |settings: &str| setup(9, "separate", 100, settings).measured_us("root_cpu_us");
    let Parameters { ack, wake_cpu, .. } = Parameters::default();
    // The first acknowledgments come while the root still sends; it wakes for the others.
    let added = cpu("") - cpu("ack_us=0");
    assert!(added >= 8.0 * ack.us() && added <= 8.0 * (ack + wake_cpu).us(), "{added}");
    let latency = |settings: &str| setup(9, "separate", 100, settings).latency();
    assert_eq!(latency("ack_us=1000"), latency("ack_us=0"));
}

#[test]
fn copies_of_a_switch_in_the_context_of_the_sender_come_one_after_another() {
    let setup = setup(6, "binomial", 100, "switch_copy_us=3").by(Offload::Switch);
    let copy = setup.parameters.switch_copy;
    let times_of = setup.deliveries();
    assert!(times_of.windows(2).all(|pair| pair[1] - pair[0] == copy), "{times_of:?}");
    let without = Setup { parameters: Parameters::default(), ..setup.clone() };
    let added = setup.measured_us("root_cpu_us") - without.measured_us("root_cpu_us");
    assert!((added - 5.0 * copy.us()).abs() < 3.0 * without.parameters.wake_cpu.us(), "{added}");
    assert_eq!(Setup { scheme: "tree-worm", ..setup.clone() }.latency(), setup.latency());
}

/// When each member has a message of one piece, member by member down the tree: hosts with
/// processors of their own, on a star.
fn expected(setup: &Setup, plan: &Plan) -> Vec<Picoseconds> {
    let steps = steps(setup);
    let wire = Bytes(setup.message).time_at(setup.parameters.link_mb_per_s);
    let ack = if setup.parameters.ack == Picoseconds::ZERO { Bytes::ZERO } else { ACKNOWLEDGMENT };
    let ack = ack.time_at(setup.parameters.link_mb_per_s);
    let mut arrived = vec![None; plan.placement().member_count() as usize];
    let mut delivered = arrived.clone();
    let receivers = plan.worms().iter().flat_map(|worm| worm.to.iter().copied());
    for member in std::iter::once(plan.root()).chain(receivers) {
        let is_root = member == plan.root();
        let (mut now, mut link_free) = (steps.call, Picoseconds::ZERO);
        if !is_root {
            let arrival: Picoseconds = arrived[member.index()].expect("worms are in causal order");
            now = arrival + steps.wake + steps.receive;
            link_free = now + ack;
        }
        let by_application = setup.offload != Offload::Nic;
        if by_application && !is_root {
            now += steps.deliver;
            delivered[member.index()] = Some(now);
        }
        for (index, worm) in plan.worms().iter().filter(|worm| worm.from == member).enumerate() {
            if setup.offload == Offload::Host || by_application && index == 0 {
                now += steps.ask;
            }
            now += steps.send;
            let leaves = now.max(link_free);
            link_free = leaves + wire;
            arrived[worm.to[0].index()] = Some(leaves + steps.network);
        }
        if !by_application && !is_root {
            delivered[member.index()] = Some(now + steps.deliver);
        }
    }
    delivered[1..].iter().map(|time| time.unwrap()).collect()
}

const SCHEMES: [&str; 5] = ["separate", "serial", "binary", "binomial", "k-binomial:k=3"];

fn any_setup() -> impl Strategy<Value = Setup> {
    let hosts = 2..40_u32;
    let offloads = [Offload::Host, Offload::Assisted, Offload::Nic].as_slice();
    let costs = prop::collection::vec(0..50_u32, 7);
    let rates = prop::sample::select([0, 1, 10, 100, 1_250].as_slice());
    let message = 1..100_000_u64;
    (hosts, prop::sample::select(SCHEMES.as_slice()), prop::sample::select(offloads), costs, rates, message)
        .prop_map(|(hosts, scheme, offload, costs, rate, message)| {
            let keys = ["call_us", "ask_us", "send_us", "wake_us", "receive_us", "deliver_us", "ack_us"];
            let costs: Vec<String> =
                keys.iter().zip(costs).map(|(key, cost)| format!("{key}={cost}")).collect();
            let settings = format!("{} link_mb_per_s={rate}", costs.join(" "));
            setup(hosts, scheme, message, &settings).by(offload)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_message_of_one_piece_arrives_when_a_walk_down_the_tree_says(setup in any_setup()) {
        let setup = Setup { message: setup.message.min(1_400), ..setup };
        let expected = setup.with(|task| {
            let plan = plan(task.fabric, task.group, task.scheme, &PlanOptions::default()).unwrap();
            expected(&setup, &plan)
        });
        prop_assert_eq!(setup.deliveries(), expected);
    }

    #[test]
    fn every_member_has_the_message_once_and_one_task_has_one_outcome(setup in any_setup(), shared in 0..3_u32) {
        let mut setup = setup;
        setup.parameters.shared_processors = shared;
        prop_assert_eq!(setup.deliveries().len() as u32, setup.with(|task| task.group.size()) - 1);
        prop_assert_eq!(setup.try_run().unwrap(), setup.try_run().unwrap());
    }

    /// Of one piece: a thread then does its jobs in one order, whenever they become ready.
    #[test]
    fn shared_processors_deliver_nothing_earlier_than_processors_for_all(setup in any_setup(), shared in 1..4_u32) {
        let mut own = Setup { message: setup.message.min(1_400), ..setup };
        own.parameters.ack = Picoseconds::ZERO;
        let mut few = own.clone();
        few.parameters.shared_processors = shared;
        let pairs = few.deliveries().into_iter().zip(own.deliveries());
        for (member, (few, own)) in pairs.enumerate() {
            prop_assert!(few >= own, "{}: {few} {own}", member + 1);
        }
    }

    #[test]
    fn no_byte_is_forwarded_before_it_has_arrived(setup in any_setup(), shared in 0..3_u32, piece in 1_400..70_000_u32) {
        let mut setup = setup;
        setup.parameters.set_all(&format!("piece_bytes={piece} shared_processors={shared}")).unwrap();
        let costs = &setup.parameters;
        let parents = setup.with(|task| {
            let plan = plan(task.fabric, task.group, task.scheme, &PlanOptions::default()).unwrap();
            let mut parents = vec![0; task.group.size() as usize];
            for worm in plan.worms() {
                parents[worm.to[0].index()] = worm.from.index();
            }
            parents
        });
        let wire = Bytes(setup.message).time_at(costs.link_mb_per_s);
        let packet = Bytes(setup.message.min(1_400)).time_at(costs.link_mb_per_s);
        for (index, delivered) in setup.deliveries().into_iter().enumerate() {
            // The whole message crosses a link, and its last packet each link to the member.
            let (mut relays, mut parent) = (0, parents[index + 1]);
            while parent != 0 {
                (relays, parent) = (relays + 1, parents[parent]);
            }
            let least = costs.call + wire + times(relays, packet) + times(2 * (relays + 1), costs.hop);
            prop_assert!(delivered >= least, "{}: {delivered} {least}", index + 1);
        }
    }

    #[test]
    fn nothing_takes_less_than_its_work(setup in any_setup(), shared in 1..4_u32) {
        let mut setup = setup;
        setup.parameters.ack = Picoseconds::ZERO;
        setup.parameters.shared_processors = shared;
        let least = setup.measured_us("cpu_us") / f64::from(shared);
        prop_assert!(setup.latency().us() >= least - 1e-6);
    }
}

#[test]
fn multicast_and_the_kernel_reach_every_member_of_larger_fabrics() {
    for fabric in ["fat-tree:k=4", "leaf-spine:leaves=4,spines=2,hosts=20"] {
        for offload in [Offload::Nic, Offload::Switch] {
            for settings in ["", "shared_processors=2", "wake_for=message processors=2"] {
                let mut setup = setup(2, "binomial", 20_000, settings).by(offload);
                setup.fabric = fabric.into();
                setup.deliveries();
            }
        }
    }
}

#[test]
fn a_long_message_moves_in_units_and_takes_hardly_longer() {
    let long = setup(4, "serial", 64 << 20, "");
    let pieces = Pieces::new(Bytes(long.message), &long.parameters, 3);
    assert!(pieces.units() <= 2_048 && pieces.count() > 40_000);
    // A host in the middle receives and sends each piece.
    let busy = long.parameters.receive + long.parameters.send;
    let pieces_alone = times(pieces.count(), busy) + times(2 * (long.message / 1_000), Picoseconds(100_000));
    let call_and_delivery = times(2 * (long.message / 1_000), Picoseconds(100_000));
    let least = (pieces_alone + call_and_delivery).us();
    let latency = long.latency().us();
    assert!(latency > least && latency < 1.01 * least, "{latency} {least}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let error = |setup: Setup| setup.try_run().unwrap_err().to_string();
    let two = || setup(2, "separate", 1, "");
    assert_eq!(
        error(Setup { message: 0, ..two() }),
        "a message has from 1 byte to 1099511627776 bytes, not 0 bytes"
    );
    assert_eq!(
        error(Setup { processes: 2, ..two() }),
        "member 1 is not alone on its host: this model has one process on each"
    );
    assert_eq!(error(Setup { scheme: "tree-worm", ..two() }), "scheme tree-worm needs offload switch");
    let torus = Setup { fabric: "torus:k=4,n=2".into(), ..two().by(Offload::Switch) };
    assert_eq!(error(torus), "offload switch needs up*/down* routing: choose with --routing up-down");
    assert_eq!(
        error(setup(4_000, "separate", 1 << 40, "send_us=1000000")),
        "the multicast could take more than 26 days: take fewer destinations or a shorter message, or lower the costs"
    );
}

#[test]
fn the_highest_costs_and_longest_messages_are_run_or_refused() {
    let mut settings = String::new();
    for (key, _) in Parameters::default().values() {
        let value = match key {
            key if key.ends_with("_us") => "1099511",
            key if key.ends_with("_ns_per_kb") => "1099511627",
            _ => continue,
        };
        settings += &format!("{key}={value} ");
    }
    for offload in [Offload::Nic, Offload::Host, Offload::Switch] {
        for message in [1, 1_400, 1 << 20, 1 << 40, u64::MAX] {
            for rate in [0, 1] {
                let settings = format!("{settings}link_mb_per_s={rate}");
                let _ = setup(5, "binomial", message, &settings).by(offload).try_run();
            }
        }
    }
}

#[test]
fn every_key_reads_back_what_it_prints() {
    let mut parameters = Parameters::default();
    parameters.set_all("call_ns_per_kb=0.125 wake_for=message shared_processors=3").unwrap();
    let mut read = Parameters::default();
    for (key, value) in parameters.values() {
        read.set_key(key, &value.to_string()).unwrap();
    }
    assert_eq!(read, parameters);
    for (key, value) in [("processors", "0"), ("piece_bytes", "0"), ("send_ns_per_kb", "-1")] {
        assert!(read.set_key(key, value).is_err(), "{key}");
    }
    assert!(read.set_key("send_ns_per_kb", "nan").is_err());
}

#[test]
fn what_is_measured_is_listed() {
    let outcome = setup(2, "separate", 1, "").try_run().unwrap();
    let names: Vec<&str> = outcome.measured.iter().map(|(name, _)| *name).collect();
    assert!(names.into_iter().eq(MEASURES.iter().map(|measure| measure.name)));
}
