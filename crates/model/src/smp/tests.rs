use proptest::prelude::*;
use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::{Arrangement, Group, MemberId, Placement, PlanOptions, plan};
use treecast_sim::{Offload, Status};
use treecast_terms::{Bytes, Keyed, Picoseconds};

use super::{MEASURES, Parameters, broadcasts, run};
use crate::task::{ModelError, Outcome, Task};

const METHODS: [&str; 6] =
    ["ori_bcst", "nosmp_mcst", "smp_mcst", "smp_mcst_dynamic", "smp_mcst_moving", "smp_mcst_direct"];

/// A group of all processes on a number of nodes, and its operations.
#[derive(Debug, Clone)]
struct Setup {
    hosts: u32,
    processes: u32,
    arrangement: Arrangement,
    fabric: Option<&'static str>,
    root: u32,
    destinations: Option<Vec<u32>>,
    message: u64,
    seed: u64,
    settings: String,
}

fn setup(hosts: u32, processes: u32, message: u64, settings: &str) -> Setup {
    let (fabric, destinations, arrangement) = (None, None, Arrangement::Block);
    Setup {
        hosts,
        processes,
        arrangement,
        fabric,
        root: 0,
        destinations,
        message,
        seed: 1,
        settings: settings.into(),
    }
}

impl Setup {
    fn parameters(&self) -> Parameters {
        let mut parameters = Parameters::default();
        for setting in self.settings.split(',').filter(|setting| !setting.is_empty()) {
            let (key, value) = setting.split_once('=').unwrap();
            parameters.set_key(key, value).unwrap();
        }
        parameters
    }

    /// Calls a function with the parameters and the task.
    fn with<T>(&self, use_task: impl FnOnce(&Parameters, &Task) -> T) -> T {
        let spec = self.fabric.map_or(format!("star:{}", self.hosts), String::from);
        let fabric = Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap();
        let placement = Placement::new(self.hosts, self.processes, self.arrangement).unwrap();
        let all = (0..placement.member_count()).filter(|&member| member != self.root);
        let destinations = self.destinations.clone().unwrap_or_else(|| all.collect());
        let destinations = destinations.into_iter().map(MemberId).collect();
        let group = Group::new(placement, MemberId(self.root), destinations).unwrap();
        let task = Task {
            fabric: &fabric,
            group: &group,
            scheme: &"binomial".parse().unwrap(),
            order: None,
            offload: Offload::Host,
            message: Bytes(self.message),
            seed: self.seed,
            stop: None,
        };
        use_task(&self.parameters(), &task)
    }

    fn try_run(&self) -> Result<Outcome, ModelError> {
        self.with(run)
    }

    fn run(&self) -> Outcome {
        let outcome = self.try_run().unwrap();
        assert_eq!(outcome.status, Status::Complete, "{self:?} {:?}", outcome.deadlock);
        outcome
    }

    fn latency(&self) -> Picoseconds {
        self.run().latency.unwrap()
    }

    fn measured(&self, name: &str) -> f64 {
        self.run().measured.iter().find(|(known, _)| *known == name).unwrap().1
    }

    /// The number of bytes that each receiver has received in a run of broadcasts.
    fn received(&self) -> Vec<u64> {
        self.with(|parameters, task| {
            let plan = plan(task.fabric, task.group, task.scheme, &PlanOptions::default()).unwrap();
            let mut simulation = broadcasts(parameters, task, &plan).unwrap();
            simulation.run();
            assert!(simulation.waiting().is_empty(), "{self:?}: {:?}", simulation.waiting());
            assert!(simulation.pending.is_empty() || simulation.parameters.loss > 0.0);
            task.group.destinations().iter().map(|&id| simulation.members[id.index()].bytes).collect()
        })
    }
}

fn sum(spans: &[Picoseconds]) -> Picoseconds {
    spans.iter().copied().sum()
}

/// Step by step: the sender's CPU, bus and interface, two links over one switch, interface and bus
/// there, the receiver's CPU.
fn between_nodes(parameters: &Parameters, bytes: u64) -> Picoseconds {
    let Parameters { send, nic_gap, nic_send, hop, header, nic_receive, receive, .. } = *parameters;
    let bytes = Bytes(bytes);
    let (copy, bus) = (parameters.copy(bytes, false), bytes.time_at(parameters.bus_mb_per_s));
    let wire = (bytes + header).time_at(parameters.link_mb_per_s);
    let out = sum(&[send, copy, bus, nic_gap, nic_send]);
    out + sum(&[hop, hop, wire, nic_gap, nic_receive, bus, receive, copy])
}

/// Copied in, a flag, copied out.
fn inside_a_node(parameters: &Parameters, bytes: u64) -> Picoseconds {
    let copy = parameters.copy(Bytes(bytes), false);
    sum(&[parameters.shared, copy, parameters.flag, parameters.shared, copy])
}

#[test]
fn a_message_takes_the_sum_of_its_steps() {
    for bytes in [1, 100, 2048] {
        let mut between = setup(2, 1, bytes, "operation=point_to_point");
        assert_eq!(between.latency(), between_nodes(&between.parameters(), bytes));
        between.processes = 2;
        between.destinations = Some(vec![2]);
        assert_eq!(between.latency(), between_nodes(&between.parameters(), bytes));
        let inside = setup(1, 2, bytes, "operation=point_to_point");
        assert_eq!(inside.latency(), inside_a_node(&inside.parameters(), bytes));
    }
}

#[test]
fn the_calibration_is_reached() {
    let parameters = Parameters::default();
    let (between, inside) = (between_nodes(&parameters, 1).us(), inside_a_node(&parameters, 1).us());
    assert!((5.8..6.2).contains(&between), "about 6 us, not {between}");
    assert!((8.0..12.0).contains(&(between / inside)), "an order of magnitude below, not {inside}");
}

#[test]
fn a_long_message_inside_a_node_is_announced_and_comes_in_pieces() {
    let inside = setup(1, 2, 16384, "operation=point_to_point");
    let parameters = inside.parameters();
    let control = inside_a_node(&parameters, 0);
    // Two pieces: while the second is copied in, the first is copied out.
    let end = parameters.shared + parameters.copy(Bytes(8192), false);
    assert_eq!(inside.latency(), sum(&[control, control, end, end, parameters.flag, end]));
    // One slot: the second waits until the first is out.
    let one = setup(1, 2, 16384, "operation=point_to_point,queue_slots=1");
    let expected = sum(&[control, control, end, parameters.flag, end, end, parameters.flag, end]);
    assert_eq!(one.latency(), expected);
}

#[test]
fn memory_that_is_far_is_read_more_slowly() {
    let near = setup(1, 4, 4096, "operation=point_to_point,domain_processes=2,numa_factor=3");
    let far = Setup { destinations: Some(vec![2]), ..near.clone() };
    let copy = near.parameters().copy(Bytes(4096), false);
    let near = Setup { destinations: Some(vec![1]), ..near };
    assert_eq!(far.latency(), near.latency() + copy + copy);
}

/// From the root's call until a process of another node has a packet of `bytes` bytes.
fn by_multicast(parameters: &Parameters, bytes: u64) -> Picoseconds {
    let Parameters { post, nic_gap, nic_send, hop, header, nic_receive, nic_deliver, take, .. } = *parameters;
    let bytes = Bytes(bytes);
    let (copy, bus) = (parameters.copy(bytes, false), bytes.time_at(parameters.bus_mb_per_s));
    let wire = (bytes + header).time_at(parameters.link_mb_per_s);
    let out = sum(&[post, copy, bus, nic_gap, nic_send]);
    out + sum(&[hop, hop, wire, nic_gap, nic_receive, nic_deliver, bus, take, copy])
}

#[test]
fn a_broadcast_by_multicast_takes_the_sum_of_its_steps() {
    for method in ["nosmp_mcst", "smp_mcst"] {
        let two = setup(2, 1, 1000, &format!("method={method},iterations=3"));
        let parameters = two.parameters();
        // The acknowledgment is posted before the message of the turn.
        let expected = by_multicast(&parameters, 1000) + parameters.post;
        assert_eq!(two.latency(), expected, "{method}");
    }
}

#[test]
fn a_leader_serves_its_node_before_it_acknowledges() {
    let alone = setup(2, 2, 100, "method=smp_mcst,turns=nonleaders,iterations=3");
    let led = Setup { destinations: Some(vec![2, 3]), ..alone };
    let parameters = led.parameters();
    assert_eq!(led.latency(), by_multicast(&parameters, 100) + inside_a_node(&parameters, 100));
    // Its own turn comes when it has copied the packet for the other, and acknowledged.
    let both = Setup { settings: "method=smp_mcst,iterations=2".into(), ..led.clone() };
    let served = parameters.shared + parameters.copy(Bytes(100), false);
    let own = by_multicast(&parameters, 100) + served + parameters.post;
    assert_eq!(both.latency().0, (own + led.latency()).0 / 2);
}

#[test]
fn delivery_to_attached_processes_is_serial() {
    let latency = |processes: u32| {
        let all = setup(2, processes, 1, "method=nosmp_mcst,iterations=16");
        Setup { destinations: Some((processes..2 * processes).collect()), ..all }.latency()
    };
    let parameters = Parameters::default();
    let latencies = [1, 2, 4, 8].map(latency);
    for (few, many) in latencies.iter().zip(&latencies[1..]) {
        // On average over the turns, half of the additional wait of the last one.
        assert!(*many > *few + Picoseconds(parameters.nic_deliver.0 / 2), "{latencies:?}");
    }
    // The study's comparison: the same processes on twice the nodes.
    let [shared, alone] = [(4, 2), (8, 1)]
        .map(|(hosts, processes)| setup(hosts, processes, 8192, "method=nosmp_mcst,iterations=70").latency());
    assert!(shared > alone, "{shared} {alone}");
}

#[test]
fn leaders_alone_acknowledge() {
    let acknowledgments =
        |method| setup(4, 3, 5000, &format!("method={method},iterations=5")).measured("acknowledgments");
    assert!((acknowledgments("nosmp_mcst") - 5.0 * 11.0).abs() < 1e-9);
    for method in ["smp_mcst", "smp_mcst_dynamic", "smp_mcst_moving", "smp_mcst_direct"] {
        assert!((acknowledgments(method) - 5.0 * 3.0).abs() < 1e-9, "{method}");
    }
    assert!(acknowledgments("ori_bcst").abs() < 1e-9);
}

#[test]
fn whole_nodes_are_served_however_many_processes_they_have() {
    for method in METHODS {
        for (hosts, processes) in [(1, 8), (2, 1), (4, 4), (2, 64)] {
            for arrangement in [Arrangement::Block, Arrangement::Cyclic] {
                let settings = format!("method={method},iterations=3");
                let setup = Setup { arrangement, ..setup(hosts, processes, 5000, &settings) };
                setup.run();
                if method != "ori_bcst" {
                    assert!(setup.received().iter().all(|&bytes| bytes == 3 * 5000), "{method}");
                }
            }
        }
    }
}

#[test]
fn some_processes_of_some_nodes_of_a_fat_tree_may_be_the_group() {
    for method in METHODS {
        let settings = format!("method={method},iterations=4");
        let some = Setup {
            fabric: Some("fat-tree:k=4"),
            root: 9,
            destinations: Some(vec![2, 3, 8, 10, 11, 40, 63]),
            ..setup(16, 4, 10_000, &settings)
        };
        assert!(some.latency() > Picoseconds::ZERO);
    }
}

#[test]
fn long_messages_go_by_every_method() {
    for method in METHODS {
        let latency = |message| setup(4, 2, message, &format!("method={method},iterations=7")).latency();
        let latencies = [1, 100, 2048, 8192, 100_000, 1_000_000].map(latency);
        assert!(latencies.windows(2).all(|pair| pair[0] < pair[1]), "{method}: {latencies:?}");
    }
}

#[test]
fn where_no_buffer_is_free_packets_are_dropped_and_repeated() {
    for method in &METHODS[1..] {
        let few =
            setup(2, 2, 20_000, &format!("method={method},receive_buffers=1,iterations=3,copy_mb_per_s=100"));
        assert!(few.measured("dropped_datagrams") > 0.0, "{method}");
        assert!(few.measured("retransmissions") > 0.0, "{method}");
        assert!(few.received().iter().all(|&bytes| bytes == 60_000), "{method}");
    }
}

#[test]
fn a_late_leader_makes_others_attach() {
    let late = "method=smp_mcst_dynamic,leader_delay_us=1600,iterations=30,turns=nonleaders,minimum_broadcasts=3,lazy_broadcasts=99";
    let never = setup(4, 2, 1, &format!("{late},threshold_us=100000"));
    assert!(never.measured("attaches").abs() < 1e-9);
    for counted in ["waiting", "all"] {
        let ran = setup(4, 2, 1, &format!("{late},counted={counted}"));
        assert!((ran.measured("attaches") - 3.0).abs() < 1e-9, "one process of each node except the root's");
        assert!(ran.measured("nonleader_wait_us") < never.measured("nonleader_wait_us"));
        assert!(ran.received().iter().all(|&bytes| bytes == 30));
    }
    let punctual = setup(4, 2, 1, "method=smp_mcst_dynamic,iterations=30,counted=all");
    assert!(punctual.measured("attaches").abs() < 1e-9);
}

#[test]
fn nobody_waits_for_a_late_leader_where_nobody_needs_it() {
    let wait = |method| {
        let late = "leader_delay_us=1600,iterations=20,turns=nonleaders";
        setup(4, 2, 1, &format!("method={method},{late}")).measured("nonleader_wait_us")
    };
    for method in ["smp_mcst_moving", "smp_mcst_direct", "nosmp_mcst"] {
        assert!(10.0 * wait(method) < wait("smp_mcst"), "{method}");
    }
}

/// Datagrams and the leader's copies come about together, in either order, up to the last
/// broadcast.
#[test]
fn an_attached_process_takes_what_comes_first_and_leaves_the_other() {
    let attach =
        "counted=all,minimum_broadcasts=0,threshold_us=0,lazy_broadcasts=99,attach_us=0,queue_slots=1";
    for (deliver, flag) in [("0", "0.15"), ("0.3", "0.15"), ("0.7", "0.15"), ("1.5", "0.15"), ("0.7", "20")] {
        for (iterations, message) in [(8, 1), (9, 100), (10, 5000), (11, 20_000)] {
            let settings =
                format!("{attach},nic_deliver_us={deliver},flag_us={flag},iterations={iterations}");
            let both = setup(2, 3, message, &format!("method=smp_mcst_dynamic,{settings}"));
            assert!(both.measured("attaches") > 0.0, "{settings}");
            assert!(both.received().iter().all(|&bytes| bytes == iterations * message), "{settings}");
        }
    }
}

#[test]
fn a_delay_is_not_at_work() {
    let busy = |delay: u32| {
        setup(2, 2, 1, &format!("method=smp_mcst,iterations=6,leader_delay_us={delay}"))
            .measured("receiver_cpu_us")
    };
    assert!((busy(0) - busy(1000)).abs() < 1e-9);
}

#[test]
fn a_leader_sends_nothing_that_others_have() {
    let busy = |settings: &str| {
        let late = "leader_delay_us=1600,iterations=12,minimum_broadcasts=1,threshold_us=1,attach_us=0";
        setup(2, 2, 2000, &format!("{late},window_broadcasts=100,turns=nonleaders,{settings}"))
            .measured("receiver_cpu_us")
    };
    // The others take datagrams instead of what the leader would copy in for them.
    assert!(busy("method=smp_mcst_dynamic,counted=all,lazy_broadcasts=99") + 0.2 < busy("method=smp_mcst"));
}

#[test]
fn one_seed_makes_one_outcome() {
    for method in METHODS {
        let lossy = |seed| {
            let settings = format!("method={method},loss=0.2,reorder=0.2,iterations=20");
            Setup { seed, ..setup(4, 2, 9000, &settings) }.run()
        };
        assert_eq!(lossy(3), lossy(3));
        assert_eq!(lossy(3) == lossy(4), method == "ori_bcst", "{method}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_receiver_gets_every_packet_once_whatever_is_lost(
        seed in any::<u64>(),
        method in 1_usize..6,
        loss in 0_u32..=30,
        reorder in 0_u32..=30,
        hosts in 1_u32..5,
        processes in 1_u32..4,
        message in 1_u64..12_000,
        root in 0_u32..2,
        extra in prop::sample::select(vec![
            "", "receive_buffers=2", "queue_slots=1", "window_broadcasts=1",
            "counted=all,minimum_broadcasts=0,threshold_us=0,lazy_broadcasts=1,attach_us=1,detach_us=1,queue_slots=1",
            "leader_delay_us=300,counted=all,minimum_broadcasts=0,threshold_us=1,lazy_broadcasts=0,attach_us=5,detach_us=5",
        ]),
    ) {
        prop_assume!(hosts * processes > 1);
        let settings = format!(
            "method={},loss=0.{loss:02},reorder=0.{reorder:02},iterations=6,timeout_us=200,{extra}",
            METHODS[method]
        );
        let lossy = Setup { root, seed, ..setup(hosts, processes, message, &settings) };
        prop_assert!(lossy.received().iter().all(|&bytes| bytes == 6 * message));
        prop_assert_eq!(lossy.run().status, Status::Complete);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let error = |setup: Setup| setup.try_run().unwrap_err().to_string();
    assert_eq!(
        error(setup(2, 1, 0, "")),
        "a message has from 1 byte to 134217728 bytes, not 0 bytes: shorten it"
    );
    assert_eq!(
        error(setup(2, 1, 64, "iterations=1000000,warmup_iterations=1000000,piece_bytes=1")),
        "a run has at most 67108864 deliveries of packets, this one would have 256000000: take fewer iterations, shorter \
         messages or larger pieces"
    );
    let torus = Setup { fabric: Some("torus:k=2,n=1"), ..setup(2, 1, 1, "method=smp_mcst") };
    assert_eq!(error(torus), "hardware multicast needs up*/down* routing: choose with --routing up-down");
}

#[test]
fn every_key_reads_back_what_it_prints() {
    let mut parameters = Parameters::default();
    for (key, value) in Parameters::default().values() {
        parameters.set_key(key, &value.to_string()).unwrap();
    }
    assert_eq!(parameters, Parameters::default());
    for (key, value) in [("loss", "0.95"), ("loss", "nan"), ("numa_factor", "0.5"), ("method", "bcst")] {
        assert!(parameters.set_key(key, value).is_err(), "{key}={value}");
    }
    parameters.set_key("threshold_us", "500").unwrap();
    assert_eq!(parameters.policy(8).threshold, Picoseconds(500_000_000));
    assert_eq!(Parameters::default().policy(2).threshold, Picoseconds(500_000_000));
}

#[test]
fn what_is_measured_is_listed() {
    let names: Vec<&str> = setup(2, 1, 1, "").run().measured.iter().map(|(name, _)| *name).collect();
    assert!(names.into_iter().eq(MEASURES.iter().map(|measure| measure.name)));
}

#[test]
fn the_testbed_files_fit() {
    let set = |text: &str| {
        let mut parameters = Parameters::default();
        crate::keys::set_from_lines(&mut parameters, text);
        parameters
    };
    let a = set(include_str!("../../../../papers/smpib/testbed-a.toml"));
    let b = set(include_str!("../../../../papers/smpib/testbed-b.toml"));
    let c = set(include_str!("../../../../papers/smpib/testbed-c.toml"));
    assert_eq!(a, Parameters::default());
    assert!(b.bus_mb_per_s > a.bus_mb_per_s && c.numa_factor > 1.0);
}
