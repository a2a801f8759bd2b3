//! Invariants of a run, for all values of its parameters.

use std::collections::BTreeSet;

use proptest::prelude::*;
use treecast_terms::Keyed;

use super::*;

mod copies;
mod rows;
mod unicasts;

/// A task on a star of hosts, the first the root, all others destinations; parameters as
/// `key=value,...` over the defaults.
struct Case {
    fabric: Fabric,
    group: Group,
    scheme: Scheme,
    parameters: Parameters,
}

impl Case {
    fn new(hosts: u32, scheme: &str, settings: &str) -> Self {
        Self::on(&format!("star:{hosts}"), hosts, scheme, settings)
    }

    fn on(fabric: &str, members: u32, scheme: &str, settings: &str) -> Self {
        let fabric = Fabric::from_spec(&fabric.parse().unwrap()).unwrap();
        let placement = Placement::one_per_host(fabric.topology().host_count());
        let group = Group::new(placement, MemberId(0), (1..members).map(MemberId).collect()).unwrap();
        let mut parameters = Parameters::default();
        for (key, value) in settings.split(',').filter_map(|setting| setting.split_once('=')) {
            parameters.set_key(key, value).unwrap();
        }
        Self { fabric, group, scheme: scheme.parse().unwrap(), parameters }
    }

    fn task(&self, offload: Offload, bytes: u64) -> Task<'_> {
        let Self { fabric, group, scheme, .. } = self;
        Task { fabric, group, scheme, order: None, offload, message: Bytes(bytes), seed: 1, stop: None }
    }

    fn run(&self, offload: Offload, bytes: u64) -> Outcome {
        run(&self.parameters, &self.task(offload, bytes)).unwrap()
    }

    fn latency(&self, offload: Offload, bytes: u64) -> Picoseconds {
        self.run(offload, bytes).latency.unwrap()
    }

    fn measured(&self, offload: Offload, bytes: u64, name: &str) -> f64 {
        value(&self.run(offload, bytes), name)
    }
}

fn value(outcome: &Outcome, name: &str) -> f64 {
    outcome.measured.iter().find(|(known, _)| *known == name).unwrap().1
}

/// One packet to one destination, step by step: until the process has it, and until the sender's
/// process knows.
fn one_packet(parameters: &Parameters, bytes: u64) -> [Picoseconds; 2] {
    let bus = |bytes: u64, rate| parameters.pci_setup + Bytes(bytes).time_at(rate);
    let (read, write) = (parameters.pci_read_mb_per_s, parameters.pci_write_mb_per_s);
    let wire = |length: Bytes| parameters.hop + parameters.hop + length.time_at(parameters.link_mb_per_s);
    let in_host_memory = [
        parameters.host_post,
        parameters.nic_send_event,
        bus(bytes, read),
        parameters.nic_send,
        wire(parameters.header + Bytes(bytes)),
        parameters.nic_receive,
        bus(bytes, write),
        // The packet is acknowledged before its event is raised.
        parameters.nic_ack_send,
    ]
    .into_iter()
    .sum::<Picoseconds>();
    let event = bus(16, write) + parameters.host_event;
    let received = in_host_memory + parameters.nic_event + event;
    let acknowledged = wire(parameters.ack) + parameters.nic_ack_receive + parameters.nic_sent + event;
    [received, in_host_memory + acknowledged]
}

#[test]
fn one_packet_takes_its_steps_one_after_another() {
    for bytes in [0, 1, 100, 4096] {
        let case = |operation| Case::new(2, "separate", operation);
        let received = case("operation=broadcast").latency(Offload::Host, bytes);
        let known = case("operation=multisend").latency(Offload::Host, bytes);
        assert_eq!([received, known], one_packet(&Parameters::default(), bytes), "{bytes}");
        // MPI: a call and a copy at either end; the receiver is in its call before.
        let copies = Bytes(bytes).time_at(400);
        let eager = case("operation=broadcast,layer=mpi").latency(Offload::Host, bytes);
        assert_eq!(eager, received + Parameters::default().mpi_call + copies + copies, "{bytes}");
        // The answer of the leaf goes the same way back.
        let [answer, _] = one_packet(&Parameters::default(), 1);
        let answered = case("operation=multicast").latency(Offload::Host, bytes);
        // It is received, and its event is raised.
        assert!(is_just_after(answered, received + answer, 2), "{bytes}: {answered}");
    }
}

/// Whether `time` is at least `least`, and later only by slices of housekeeping: at most one
/// microsecond for each request to the NIC's processor.
fn is_just_after(time: Picoseconds, least: Picoseconds, requests: u64) -> bool {
    (least.0..=least.0 + requests * 1_000_000).contains(&time.0)
}

#[test]
fn a_rendezvous_asks_is_answered_and_sends() {
    let parameters = Parameters::default();
    let case = Case::new(2, "separate", "operation=broadcast,layer=mpi,eager_bytes=10");
    let [question, _] = one_packet(&parameters, 16);
    let [_, sent] = one_packet(&parameters, 100);
    let least = parameters.mpi_call + question + question + sent;
    let latency = case.latency(Offload::Host, 100);
    // The answer is received, its event is raised, the message is sent and prepared.
    assert!(is_just_after(latency, least, 4), "{latency} {least}");
}

#[test]
fn a_copy_costs_its_transmission_and_a_new_header() {
    let last = |replicas: &str, hosts| {
        let settings = format!("operation=multisend,replicas={replicas}");
        Case::new(hosts, "separate", &settings).latency(Offload::Nic, 2048)
    };
    let defaults = Parameters::default();
    let wire = (defaults.header + Bytes(2048)).time_at(defaults.link_mb_per_s);
    // With callbacks the wire idles while the header is rewritten; otherwise it does not.
    assert_eq!(last("callback", 3) - last("callback", 2), wire + defaults.nic_replica);
    assert_eq!(last("header-rewrite", 3) - last("header-rewrite", 2), wire);
    assert!(last("tokens", 9) > last("header-rewrite", 9));
    // With small messages the NIC's processor is the bottleneck, and each token costs it time.
    let small = |replicas: &str, offload| {
        let settings = format!("operation=multisend,replicas={replicas}");
        Case::new(9, "separate", &settings).latency(offload, 16)
    };
    assert!(small("callback", Offload::Nic) < small("tokens", Offload::Nic));
    assert!(small("tokens", Offload::Nic) < small("tokens", Offload::Host));
}

#[test]
fn a_nic_reads_host_memory_at_one_rate_and_writes_it_at_another() {
    let parts = ["pci_read_mb_per_s=100", "pci_write_mb_per_s=100", ""].map(|rate| {
        Case::new(2, "separate", &format!("operation=broadcast,{rate}")).latency(Offload::Host, 4096)
    });
    let slower = |rate| Bytes(4096).time_at(100) - Bytes(4096).time_at(rate);
    let defaults = Parameters::default();
    assert_eq!(parts[0] - parts[2], slower(defaults.pci_read_mb_per_s));
    // The event is written too.
    let event = Bytes(16).time_at(100) - Bytes(16).time_at(defaults.pci_write_mb_per_s);
    assert_eq!(parts[1] - parts[2], slower(defaults.pci_write_mb_per_s) + event);
}

#[test]
fn a_nic_may_forward_while_it_copies() {
    let latency = |forwarding: &str| {
        let settings = format!("operation=broadcast,forwarding={forwarding}");
        Case::new(3, "serial", &settings).latency(Offload::Nic, 4096)
    };
    let defaults = Parameters::default();
    let copy = defaults.pci_setup + Bytes(4096).time_at(defaults.pci_write_mb_per_s);
    assert_eq!(latency("copy-then-forward") - latency("copy-while-forwarding"), copy);
}

/// The geometric mean over 1, 2, 4 ... 128 bytes of how many times the multisend to four is as fast
/// as four sends.
fn multisend_factor() -> f64 {
    let case = Case::new(5, "separate", "operation=multisend");
    let factor = |power: u32| {
        let latency = |offload| case.latency(offload, 1 << power).us();
        latency(Offload::Host) / latency(Offload::Nic)
    };
    (0..8).map(factor).product::<f64>().powf(1.0 / 8.0)
}

#[test]
fn the_calibration_holds() {
    let one_way = Case::new(2, "separate", "operation=broadcast").latency(Offload::Host, 1).us();
    assert!((one_way / 7.0 - 1.0).abs() < 0.02, "one way takes {one_way} us");
    let factor = multisend_factor();
    assert!((factor / 2.05 - 1.0).abs() < 0.02, "the multisend is {factor} times as fast");
}

/// The lines `key = value` of a file of a testbed, as settings.
fn settings(file: &str) -> String {
    let (_, values) = file.split_once("\n[set]\n").expect("a testbed's file sets parameters");
    let lines = values.lines().map(|line| line.split('#').next().unwrap().replace('"', ""));
    lines.filter(|line| line.contains('=')).map(|line| line.replace(' ', "")).collect::<Vec<_>>().join(",")
}

#[test]
fn the_testbed_of_the_first_study_has_the_default_values() {
    let case = Case::new(2, "separate", &settings(include_str!("../../../../papers/gm/testbed-lanai9.toml")));
    assert_eq!(case.parameters, Parameters::default());
}

#[test]
fn the_calibration_of_the_other_testbed_holds() {
    let values = settings(include_str!("../../../../papers/sci/testbed-myrinet.toml"));
    let case = Case::new(2, "separate", &format!("{values},operation=broadcast"));
    let host = case.latency(Offload::Host, 1).us();
    assert!((host / 17.0 - 1.0).abs() < 0.02, "one way takes {host} us");
    let assisted = case.latency(Offload::Assisted, 1).us();
    assert!((assisted - host - 8.0).abs() < 0.16, "changed firmware adds {} us", assisted - host);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn every_receiver_gets_every_packet_once_in_order_and_gives_back_what_it_took(
        hosts in 2_u32..10,
        scheme in prop::sample::select(vec!["separate", "serial", "binary", "binomial", "postal:lambda=2"]),
        offload in prop::sample::select(vec![Offload::Host, Offload::Assisted, Offload::Nic]),
        policies in prop::sample::select(vec![
            "replicas=tokens", "replicas=header-rewrite,forwarding=copy-while-forwarding", "membership=mixed",
            "operation=broadcast,layer=mpi", "operation=broadcast,layer=mpi,eager_bytes=500",
            "operation=multisend", "operation=skew,layer=mpi,skew_us=300", "operation=broadcast,first_broadcast=yes",
        ]),
        bounds in prop::sample::select(vec![
            "receive_tokens=2,send_tokens=1,nic_send_buffers=1,nic_receive_buffers=2,window_packets=3", "loss=0",
        ]),
        flow in prop::sample::select(vec!["none", "fm-mc", "lfc"]),
        (groups, messages, bytes) in (1_u32..4, 1_u32..4, 0_u64..12_000),
        (loss, seed) in (0_u32..=30, any::<u64>()),
    ) {
        let flow = if offload == Offload::Nic { flow } else { "none" };
        let loss = if flow == "lfc" { 0 } else { loss };
        let bounds = if flow == "lfc" { "receive_tokens=1" } else { bounds };
        // Where hosts forward for several roots, few tokens may deadlock.
        let by_hosts = offload != Offload::Nic || policies.contains("eager_bytes") || policies.contains("first");
        let groups = if by_hosts { 1 } else { groups.min(hosts) };
        let settings =
            format!("{policies},{bounds},flow={flow},groups={groups},messages={messages},loss=0.{loss:02}");
        let case = Case::new(hosts, scheme, &settings);
        let task = Task { seed, ..case.task(offload, bytes) };
        let mut simulation = prepare(&case.parameters, &task, &case.scheme).unwrap();
        simulation.run();
        prop_assert!(simulation.completed.is_some(), "{:?}", simulation.deadlock());
        simulation.drain();

        // In order: the journal tells the numbers of each stream at each node one after another.
        let mut next = std::collections::BTreeMap::new();
        for &(node, stream, number) in &simulation.journal {
            let expected = next.entry((node, stream)).or_insert(0);
            prop_assert_eq!(number, *expected);
            *expected += 1;
        }
        // Every message of every group has reached every node except its root.
        let mut received = vec![0; hosts as usize];
        for (&(node, stream), &count) in &next {
            prop_assert_eq!(simulation.streams[stream].end(), count);
            let is_data = |number| matches!(simulation.streams[stream].queued_message(number).content, stream::Content::Data { .. });
            let messages = (0..count).filter(|&number| {
                is_data(number) && simulation.streams[stream].queued_message(number).first == number
            });
            received[node] += messages.count() as u32;
        }
        for (node, &received) in received.iter().enumerate() {
            let own = u32::from(simulation.trees.iter().any(|tree| tree.root == node));
            prop_assert_eq!(received, (groups - own) * messages);
        }
        // All resources are free again.
        prop_assert!(simulation.holds.is_empty());
        for node in &simulation.nodes {
            prop_assert_eq!((node.tasks, node.send_tokens_used, node.receive_tokens_used), (0, 0, 0));
            prop_assert_eq!((node.send_buffers_used, node.slots.len()), (0, node.free_slots.len()));
            prop_assert!(node.phase == node::Phase::Returned && node.held.is_empty() && node.unposted.is_empty());
            let (peak, most) = (&node.peak, &case.parameters);
            prop_assert!(peak.send_tokens <= most.send_tokens && peak.receive_tokens <= most.receive_tokens);
            prop_assert!(peak.send_buffers <= most.nic_send_buffers);
            prop_assert!(peak.receive_buffers <= most.nic_receive_buffers);
        }
        if simulation.counts.lost == 0 && simulation.counts.refused == 0 {
            prop_assert_eq!(simulation.counts.retransmissions, 0);
        }
    }
}

#[test]
fn one_seed_makes_one_run() {
    let case = Case::new(9, "binomial", "loss=0.2,messages=4");
    let with = |seed| run(&case.parameters, &Task { seed, ..case.task(Offload::Nic, 9_000) }).unwrap();
    assert_eq!(with(7), with(7));
    assert_ne!(with(7), with(8));
    assert!(value(&with(7), "retransmissions") > 0.0);
}

/// Rings in which each host forwards to the next: host 0 sends to 1, 1 to 2 and so on, whichever
/// host is the root.
fn ring(settings: &str, order: Option<treecast_plan::Order>) -> Outcome {
    let case = Case::new(4, "serial", &format!("groups=4,messages=4,nic_receive_buffers=3,{settings}"));
    run(&case.parameters, &Task { order, ..case.task(Offload::Nic, 64) }).unwrap()
}

#[test]
fn lfc_deadlocks_where_buffers_wait_in_a_ring_and_the_others_do_not() {
    let around = Some(treecast_plan::Order::Given);
    let outcome = ring("flow=lfc", around);
    assert_eq!((outcome.status, outcome.latency), (Status::Deadlocked, None));
    let lines = [[3, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 0]].map(|[from, node, to]: [u32; 3]| {
        // The copy that host `node` keeps began two hosts before the next.
        let group = from;
        format!(
            "the NIC of h{node} keeps a packet of group {group} in a buffer for h{from}, and waits for a buffer of the \
             NIC of h{to} for h{node}"
        )
    });
    let mut found = outcome.deadlock.clone();
    found.sort();
    let mut lines = lines.to_vec();
    lines.sort();
    assert_eq!(found, lines);
    for (settings, order) in
        [("flow=none", around), ("flow=fm-mc", around), ("flow=none", None), ("flow=lfc", None)]
    {
        let outcome = ring(settings, order);
        assert_eq!(outcome.status, Status::Complete, "{settings}");
        assert!(outcome.deadlock.is_empty());
    }
}

#[test]
fn last_receive_tokens_deadlock_in_a_ring_and_not_where_a_child_has_the_greater_id() {
    let outcome = ring("receive_tokens=1", Some(treecast_plan::Order::Given));
    assert_eq!(outcome.status, Status::Deadlocked);
    assert_eq!(outcome.deadlock.len(), 4, "{:?}", outcome.deadlock);
    assert!(outcome.deadlock[0].contains("which has no receive buffer left"));
    let outcome = ring("receive_tokens=1", None);
    assert_eq!(outcome.status, Status::Complete);
    assert!(value(&outcome, "refused_packets") > 0.0);
}

#[test]
fn messages_longer_than_the_window_deadlock_on_the_last_receive_tokens() {
    let outcome = |window: u32| {
        let settings = format!("groups=3,receive_tokens=1,window_packets={window}");
        let case = Case::new(6, "separate", &settings);
        let order = Some(treecast_plan::Order::Given);
        run(&case.parameters, &Task { order, ..case.task(Offload::Nic, 5_000) }).unwrap()
    };
    let line = |[node, group, to]: [u32; 3]| {
        format!(
            "h{node} has part of a message of group {group}, whose rest waits for h{to}, which has no receive buffer left"
        )
    };
    assert_eq!(outcome(1).deadlock, [[1, 0, 2], [2, 1, 3], [3, 2, 1]].map(line));
    assert_eq!(outcome(2).status, Status::Complete);
}

#[test]
fn send_tokens_of_roots_deadlock_where_hosts_forward_whatever_the_ids() {
    let settings = "groups=2,messages=3,send_tokens=1,receive_tokens=2";
    let case = Case::new(4, "serial", settings);
    let outcome = case.run(Offload::Host, 64);
    assert_eq!(outcome.status, Status::Deadlocked);
    assert!(
        outcome.deadlock.iter().any(|line| line.contains("has its send tokens with")),
        "{:?}",
        outcome.deadlock
    );
    assert_eq!(case.run(Offload::Nic, 64).status, Status::Complete);
}

#[test]
fn the_central_manager_has_a_greater_share_the_more_nodes_there_are() {
    let outcome = |flow: &str, hosts| {
        Case::new(hosts, "binomial", &format!("groups=4,messages=2,flow={flow}")).run(Offload::Nic, 64)
    };
    let sizes = [8, 16, 32, 64];
    let shares = sizes.map(|hosts| value(&outcome("fm-mc", hosts), "manager_utilization"));
    assert!(shares.windows(2).all(|pair| pair[0] < pair[1]), "{shares:?}");
    // The fewer credits the manager has, the fewer messages are in flight.
    let credits = |credits: u32| {
        let settings = format!("groups=4,messages=2,flow=fm-mc,manager_credits={credits}");
        Case::new(8, "binomial", &settings).latency(Offload::Nic, 64)
    };
    assert!(credits(1) > credits(2) && credits(2) > credits(8) && credits(8) == credits(9));
    // Its relative cost grows with the number of nodes.
    let slower = sizes.map(|hosts| {
        outcome("fm-mc", hosts).latency.unwrap().us() / outcome("none", hosts).latency.unwrap().us()
    });
    assert!(slower.windows(2).all(|pair| pair[0] < pair[1]), "{slower:?}");
}

#[test]
fn cpu_time_grows_with_skew_where_hosts_forward_and_hardly_where_nics_do() {
    let cpu = |offload, skew: u32| {
        let case = Case::new(16, "binomial", &format!("operation=skew,layer=mpi,skew_us={skew}"));
        let with = |seed| {
            let outcome = run(&case.parameters, &Task { seed, ..case.task(offload, 4) }).unwrap();
            value(&outcome, "host_cpu_us")
        };
        (0..10).map(with).sum::<f64>() / 10.0
    };
    let host = [100, 200, 400].map(|skew| cpu(Offload::Host, skew));
    let nic = [100, 200, 400].map(|skew| cpu(Offload::Nic, skew));
    assert!(host.windows(2).all(|pair| pair[0] < pair[1]), "{host:?}");
    assert!(nic[2] - nic[0] < (host[2] - host[0]) / 10.0, "{host:?} {nic:?}");
    assert!(host.iter().zip(&nic).all(|(host, nic)| host > nic), "{host:?} {nic:?}");
}

#[test]
fn busy_and_waiting_make_cpu_time() {
    let outcome = Case::new(8, "binomial", "operation=broadcast").run(Offload::Host, 4);
    let sum = value(&outcome, "host_busy_us") + value(&outcome, "host_waiting_us");
    assert!((sum - value(&outcome, "host_cpu_us")).abs() < 1e-9);
    // The root posts three sends and returns; it is busy with nothing else until then.
    let root = Case::new(8, "binomial", "operation=multisend").run(Offload::Nic, 4);
    assert!((value(&root, "root_cpu_us") - (0.8 + 0.4)).abs() < 1e-9);
}

#[test]
fn names_make_packets_longer_and_nics_busier() {
    let memberships = ["posted", "mixed,named_destinations=5", "named"];
    let outcomes = memberships.map(|membership| {
        Case::new(16, "binomial", &format!("membership={membership}")).run(Offload::Nic, 64)
    });
    for pair in outcomes.windows(2) {
        assert!(pair[0].latency < pair[1].latency);
        assert!(value(&pair[0], "nic_busy_us") < value(&pair[1], "nic_busy_us"));
    }
    // Two names in the send event, which the root's NIC reads; a receiver has no children.
    let multisend = |membership: &str| {
        Case::new(3, "separate", &format!("operation=multisend,membership={membership}"))
            .latency(Offload::Nic, 64)
    };
    let name = Parameters::default().nic_destination;
    assert_eq!(multisend("named") - multisend("posted"), name + name);
    let refused = Case::new(4, "serial", "membership=named,packet_bytes=8");
    let error = run(&refused.parameters, &refused.task(Offload::Nic, 64)).unwrap_err();
    assert!(error.to_string().contains("the names of 2 destinations take 8 bytes"), "{error}");
}

#[test]
fn the_first_broadcast_goes_by_the_hosts_and_makes_the_group() {
    let latency = |settings: &str| {
        let settings = format!("operation=broadcast,layer=mpi,{settings}");
        Case::new(16, "binomial", &settings).latency(Offload::Nic, 64)
    };
    let by_hosts = Case::new(16, "binomial", "operation=broadcast,layer=mpi").latency(Offload::Host, 64);
    let making = Picoseconds(16 * Parameters::default().group_member.0);
    assert_eq!(latency("first_broadcast=yes"), by_hosts + making);
    assert!(latency("first_broadcast=no") < by_hosts);
}

#[test]
fn long_messages_of_the_mpi_layer_go_by_the_hosts_after_a_rendezvous() {
    let case = Case::new(8, "binomial", "operation=broadcast,layer=mpi");
    assert_eq!(case.latency(Offload::Nic, 16_288), case.latency(Offload::Host, 16_288));
    assert!(case.latency(Offload::Nic, 16_287) < case.latency(Offload::Host, 16_287));
    let raised = Case::new(8, "binomial", "operation=broadcast,layer=mpi,eager_bytes=100000");
    assert!(raised.latency(Offload::Nic, 16_288) < case.latency(Offload::Nic, 16_288));
}

#[test]
fn lambda_is_a_number_of_destinations_at_least_one() {
    let case = Case::new(16, "postal", "");
    for bytes in [1, 64, 512, 1024, 2048, 4096, 8192, 16_384, 65_536] {
        let lambda = case.measured(Offload::Nic, bytes, "lambda");
        assert!(lambda >= 1.0 && lambda.fract().abs() < 1e-9, "{bytes}: {lambda}");
        // The ratio is rounded down: that many copies take the root no longer than one message
        // takes to arrive.
        let multisend =
            |hosts| Case::new(hosts, "separate", "operation=multisend").latency(Offload::Nic, bytes);
        let copy = multisend(3) - multisend(2);
        let arrives = Case::new(2, "separate", "operation=broadcast").latency(Offload::Nic, bytes);
        let copies = lambda as u64;
        assert!(copies == 1 || copies * copy.0 <= arrives.0, "{bytes}: {lambda}");
        assert!((copies + 1) * copy.0 > arrives.0, "{bytes}: {lambda}");
    }
    // A second copy leaves only after the first receiver could send: the tree is binomial.
    let slow = Case::new(16, "postal", "nic_replica_us=100");
    assert!((slow.measured(Offload::Nic, 1, "lambda") - 1.0).abs() < 1e-9);
    let binomial = Case::new(16, "binomial", "nic_replica_us=100").latency(Offload::Nic, 1);
    assert_eq!(slow.latency(Offload::Nic, 1), binomial);
}

#[test]
fn a_lambda_that_is_not_given_is_measured_and_falls_as_messages_grow() {
    let case = Case::new(16, "postal", "");
    let lambdas = [1, 512, 4096, 16_384].map(|bytes| case.measured(Offload::Nic, bytes, "lambda"));
    assert!(lambdas.windows(2).all(|pair| pair[0] >= pair[1]), "{lambdas:?}");
    assert!(lambdas[0] > lambdas[3], "{lambdas:?}");
    let given = |scheme: &str| Case::new(16, scheme, "").run(Offload::Nic, 1);
    assert!(given("postal:lambda=1").measured.iter().all(|(name, _)| *name != "lambda"));
    let latency = |scheme: &str| given(scheme).latency;
    assert_eq!(latency("postal"), latency(&format!("postal:lambda={}", lambdas[0])));
    assert_ne!(latency("postal"), latency("postal:lambda=1"));
}

#[test]
fn thousands_of_nodes_complete() {
    for offload in [Offload::Host, Offload::Assisted, Offload::Nic] {
        let case = Case::on("fat-tree:k=26", 4_096, "postal:lambda=2", "");
        assert_eq!(case.run(offload, 20_000).status, Status::Complete, "{offload}");
    }
}

#[test]
fn absurd_times_end_a_run_and_break_nothing() {
    for slow in
        ["nic_send_event_us=1000000", "host_post_us=1000000", "nic_destination_us=1000000,membership=named"]
    {
        let case = Case::new(4, "serial", &format!("messages=1200,receive_tokens=2000,{slow}"));
        let outcome = case.run(Offload::Nic, 1);
        assert_eq!((outcome.status, outcome.latency), (Status::Incomplete, None), "{slow}");
    }
}

#[test]
fn what_a_run_measures_is_in_the_list() {
    // No run measures both a manager and unicasts.
    let outcomes = ["flow=fm-mc", "unicasts=others"]
        .map(|settings| Case::new(4, "postal", settings).run(Offload::Nic, 64));
    let measured: BTreeSet<&str> =
        outcomes.iter().flat_map(|outcome| &outcome.measured).map(|&(name, _)| name).collect();
    assert_eq!(measured, MEASURES.iter().map(|measure| measure.name).collect());
}

#[test]
fn what_cannot_be_done_is_refused_with_what_can() {
    let error = |hosts, settings: &str, offload| {
        let case = Case::new(hosts, "binomial", settings);
        run(&case.parameters, &case.task(offload, 64)).unwrap_err().to_string()
    };
    assert_eq!(
        error(4, "flow=lfc", Offload::Host),
        "flow=fm-mc and flow=lfc are for NICs that forward: choose offload nic, or flow=none"
    );
    assert_eq!(
        error(4, "flow=lfc,loss=0.1", Offload::Nic),
        "flow=lfc takes the network to be reliable: set loss=0"
    );
    assert_eq!(
        error(70, "flow=lfc", Offload::Nic),
        "flow=lfc keeps a packet buffer for each of 69 peers: nic_receive_buffers=64 is too few"
    );
    assert!(error(4, "groups=5", Offload::Nic).contains("set groups to at most 4"));
    assert!(error(4, "groups=4,messages=1000000,packet_bytes=1", Offload::Nic).contains("take fewer groups"));
    let worms = Case::on("icpp98", 8, "tree-worm", "");
    let error = run(&worms.parameters, &worms.task(Offload::Nic, 64)).unwrap_err().to_string();
    assert!(error.contains("tree-worm is not a tree of unicasts"), "{error}");
}
