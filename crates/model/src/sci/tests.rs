use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::{Group, MemberId, Placement};
use treecast_sim::{Offload, Status};
use treecast_terms::{Bytes, Keyed, Picoseconds};

use super::{MEASURES, Parameters, run};
use crate::task::{ModelError, Outcome, Task};

fn torus(spec: &str) -> Fabric {
    let topology = spec.parse::<FabricSpec>().unwrap().topology().unwrap();
    Fabric::new(topology, "dimension-order:channels=none".parse().unwrap()).unwrap()
}

fn try_run(
    spec: &str,
    destinations: impl IntoIterator<Item = u32>,
    scheme: &str,
    message: u64,
    parameters: &Parameters,
) -> Result<Outcome, ModelError> {
    let fabric = torus(spec);
    let placement = Placement::one_per_host(fabric.topology().host_count());
    let destinations = destinations.into_iter().map(MemberId).collect();
    let group = Group::new(placement, MemberId(0), destinations).unwrap();
    let task = Task {
        fabric: &fabric,
        group: &group,
        scheme: &scheme.parse().unwrap(),
        order: None,
        offload: Offload::Host,
        message: Bytes(message),
        seed: 1,
        stop: None,
    };
    run(parameters, &task)
}

fn ran(destinations: impl IntoIterator<Item = u32>, scheme: &str, message: u64) -> Outcome {
    try_run("torus:k=4,n=2,uni", destinations, scheme, message, &Parameters::default()).unwrap()
}

fn with(settings: &[(&str, &str)]) -> Parameters {
    let mut parameters = Parameters::default();
    for (key, value) in settings {
        parameters.set_key(key, value).unwrap();
    }
    parameters
}

fn measured(outcome: &Outcome, name: &str) -> f64 {
    outcome.measured.iter().find(|(known, _)| *known == name).unwrap().1
}

const SCHEMES: [&str; 8] = [
    "separate",
    "u-torus",
    "s-torus",
    "md-torus",
    "mu-torus:r=4",
    "s-torus:form=worm",
    "md-torus:form=worm",
    "mu-torus:r=4,form=worm",
];

/// Step by step: the CPU prepares and copies, bus and adapter, the heads' hops, the whole packet on
/// each ringlet, the corner, adapter and bus, and a look at the flag.
fn one_way(parameters: &Parameters, bytes: u64, links: u64, ringlets: u64) -> Picoseconds {
    let bytes = Bytes(bytes);
    let bus = bytes.time_at(parameters.bus_mb_per_s);
    let wire = (parameters.header + bytes).time_at(parameters.link_mb_per_s);
    let times = |count: u64, span: Picoseconds| Picoseconds(count * span.0);
    parameters.send
        + bytes.time_at(parameters.write_mb_per_s)
        + bus
        + parameters.adapter_send
        + times(links, parameters.hop)
        + times(ringlets, wire)
        + times(ringlets - 1, parameters.corner)
        + parameters.adapter_receive
        + bus
        + parameters.poll
}

#[test]
fn a_small_message_takes_the_sum_of_its_steps() {
    let parameters = Parameters::default();
    // Two bytes and a flag of four; node 3 is three links along one ringlet, node 5 one link on
    // each of two.
    for (to, links, ringlets) in [(1, 1, 1), (3, 3, 1), (4, 1, 1), (5, 2, 2), (15, 6, 2)] {
        let outcome = ran([to], "separate", 2);
        assert_eq!(outcome.latency, Some(one_way(&parameters, 6, links, ringlets)), "to {to}");
        assert_eq!(outcome.status, Status::Complete);
    }
}

#[test]
fn the_calibration_is_reached() {
    let parameters = Parameters::default();
    let user = ran([1], "separate", 2).latency.unwrap();
    let hardware = user - parameters.send - parameters.poll;
    assert!((1.7..2.0).contains(&hardware.us()), "a little under 2 us, not {hardware}");
    assert!((17.0 / 12.0..17.0 / 8.0).contains(&user.us()), "a tenth of 17 us or so, not {user}");
}

#[test]
fn a_long_message_is_cut_and_its_flag_waits_for_all_answers() {
    let mut parameters = Parameters::default();
    // With one transaction outstanding every piece waits for the answer to the one before it.
    parameters.set_key("outstanding_transactions", "1").unwrap();
    let piece = |bytes: u64| one_way(&parameters, bytes, 1, 1) - parameters.send - parameters.poll;
    // A response goes back over the other three links.
    let response = parameters.response.time_at(parameters.link_mb_per_s);
    let answer = Picoseconds(3 * parameters.hop.0) + response;
    let expected = parameters.send
        + Picoseconds(3 * (piece(64) + answer).0)
        + (piece(8) + answer)
        + piece(4)
        + parameters.poll;
    let outcome = try_run("torus:k=4,n=2,uni", [1], "separate", 200, &parameters).unwrap();
    assert_eq!(outcome.latency, Some(expected));
    // With many, only the flag waits.
    let many = ran([1], "separate", 200).latency.unwrap();
    assert!(many < expected && many > expected - piece(64) - piece(64) - piece(64));
}

#[test]
fn a_relayed_message_takes_one_way_after_another() {
    let parameters = with(&[("library", "none")]);
    let hop = |links, ringlets| one_way(&parameters, 6, links, ringlets);
    // The chain 0, 1, 2: each hop's echo and response do not meet the next hop's packets.
    let outcome = try_run("torus:k=4,n=2,uni", [1, 2], "s-torus", 2, &parameters).unwrap();
    assert_eq!(outcome.latency, Some(hop(1, 1) + hop(1, 1)));
}

#[test]
fn a_relay_receives_a_short_message_in_a_slot_and_sends_it_in_another() {
    let parameters = Parameters::default();
    // Envelope, two bytes and a flag are one transaction; the receiver copies the two bytes.
    let hop = parameters.library_send
        + one_way(&parameters, 24 + 2 + 4, 1, 1)
        + parameters.library_receive
        + Bytes(2).time_at(parameters.copy_mb_per_s);
    assert_eq!(ran([1, 2], "s-torus", 2).latency, Some(hop + hop));
    // The root writes straight to a leaf.
    assert_eq!(ran([1], "separate", 2).latency, Some(one_way(&parameters, 6, 1, 1)));
}

#[test]
fn a_long_message_of_the_library_takes_a_handshake_and_its_blocks() {
    let parameters = |block, library| {
        with(&[
            ("library", library),
            ("outstanding_transactions", "64"),
            ("block_bytes", block),
            ("eager_bytes", "0"),
        ])
    };
    let time = |parameters: &Parameters| {
        try_run("torus:k=4,n=2,uni", [1], "separate", 4096, parameters).unwrap().latency.unwrap()
    };
    let whole = parameters("4096", "all");
    // Request and clear are seen after a slot each; the block is checked, announced by a slot
    // instead of a flag, and copied.
    let slot = one_way(&whole, 28, 1, 1) - whole.send;
    let clear = one_way(&whole, 28, 3, 1) - whole.send;
    let copy = Bytes(4096).time_at(whole.copy_mb_per_s);
    let handshake = whole.library_send + slot + whole.library_receive + clear;
    let expected = time(&parameters("4096", "none")) + handshake + whole.check + copy;
    let difference = time(&whole).us() - expected.us();
    // The announcement is longer than a flag by the envelope.
    assert!((0.0..0.3).contains(&difference), "{difference}");
    // With two blocks the first one is copied while the second one is written.
    let halves = time(&parameters("2048", "all"));
    assert!(halves < time(&whole), "{halves}");
    assert!(halves + copy > time(&whole));
    // An eager message needs no handshake, and its receiver works once, not for the request.
    let eager = Parameters { eager: Bytes(4096), ..whole.clone() };
    let saved = time(&whole).us() - time(&eager).us();
    assert!((saved - (slot + clear).us()).abs() < 0.05, "{saved} {slot} {clear}");
}

#[test]
fn a_root_knows_when_its_transactions_have_responses_or_the_end_of_its_path_has_the_message() {
    let user = |outcome: &Outcome| measured(outcome, "root_user_us");
    let fraction = |outcome: &Outcome| measured(outcome, "root_user_fraction");
    for message in [2, 65536] {
        let path = ran(1..16, "s-torus", message);
        assert!(user(&path) > path.latency.unwrap().us() + 2.0, "{message}");
        assert!((fraction(&path) - 1.0).abs() < 1e-9);
        let tree = ran(1..16, "md-torus", message);
        assert!(user(&tree) < tree.latency.unwrap().us() && fraction(&tree) < 1.0, "{message}");
    }
    // One destination is no path: the response to the only message tells the root.
    let one = ran([1], "s-torus", 2);
    let response = Bytes(16).time_at(663).us() + 3.0 * 0.07;
    assert!((user(&one) - (one.latency.unwrap().us() - 0.1 + response)).abs() < 1e-3);
}

#[test]
fn echoes_and_responses_take_their_share_of_the_links() {
    // 0 sends 64 KB to 2 on one ringlet. The CPU and the bus take no time, so slow links are what
    // limits.
    let mut parameters = Parameters::default();
    for (key, value) in [("link_mb_per_s", "20"), ("write_mb_per_s", "0"), ("bus_mb_per_s", "0")] {
        parameters.set_key(key, value).unwrap();
    }
    let run = |destinations: &[u32]| {
        let outcome = try_run("torus:k=4,n=1,uni", destinations.to_vec(), "separate", 65536, &parameters);
        outcome.unwrap().latency.unwrap().us()
    };
    // Each of the first two links carries a request and the echo of its response for each piece.
    let link_us = 1024.0 * (16.0 + 64.0 + 8.0) / 20.0;
    let alone = run(&[2]);
    assert!(alone > link_us && alone < 1.02 * link_us, "{alone} {link_us}");
}

#[test]
fn every_packet_and_its_echo_use_every_link_of_a_ringlet_once() {
    let packet = |length: u64, links: u64| length * links + 8 * (4 - links);
    // To node 1 on the same ringlet: the request one link, the response the other three.
    let one = ran([1], "separate", 2);
    assert!((measured(&one, "carried_bytes") - (packet(22, 1) + packet(16, 3)) as f64).abs() < 1e-9);
    // To node 6, two links on one ringlet and one on another; the response turns at another corner.
    let two = ran([6], "separate", 2);
    let [there, back] = [packet(22, 2) + packet(22, 1), packet(16, 2) + packet(16, 3)];
    assert!((measured(&two, "carried_bytes") - (there + back) as f64).abs() < 1e-9);
}

#[test]
fn a_worm_loses_an_address_at_each_receiver() {
    let parameters = Parameters::default();
    let outcome = ran([1, 2, 3], "s-torus:form=worm", 2);
    // The last byte leaves after three addresses, and arrives after one.
    let further = Bytes(2 * parameters.address.0).time_at(parameters.link_mb_per_s);
    let expected = one_way(&parameters, 6, 3, 1) + further;
    // Each address is rounded up to a picosecond.
    let late = outcome.latency.unwrap() - expected;
    assert!(late < Picoseconds(4), "{late}");
    // 26, 24 and 22 bytes on three links, and an echo; the response goes over one link.
    let carried = (26 + 24 + 22 + 8) + (16 + 3 * 8);
    assert!((measured(&outcome, "carried_bytes") - f64::from(carried)).abs() < 1e-9);
}

#[test]
fn concentration_in_the_run_is_that_of_the_plan() {
    for scheme in SCHEMES {
        for message in [2, 1000] {
            let outcome = ran([1, 2, 5, 6, 7, 10, 11, 12, 15], scheme, message);
            let [run, plan] =
                ["link_concentration_run", "link_concentration_plan"].map(|name| measured(&outcome, name));
            assert!((run - plan).abs() < 1e-9, "{scheme} {message}: {run} {plan}");
        }
    }
}

/// A step of a plan lasts as long as a message is in transit. Here a sender starts its next message
/// once it has copied the current one. So more messages are in transit than in the plan where a
/// sender has several, and as many where it has one or must wait for its response.
#[test]
fn concurrency_in_the_run_is_that_of_the_plan_where_nobody_sends_ahead() {
    let both = |outcome: &Outcome| {
        ["link_concurrency_run", "link_concurrency_plan"].map(|name| measured(outcome, name) as u32)
    };
    for message in [2, 65536] {
        assert_eq!(both(&ran(1..16, "s-torus", message)), [1, 1]);
        assert_eq!(both(&ran(1..16, "s-torus:form=worm", message)), [1, 1]);
    }
    let mut parameters = Parameters::default();
    assert_eq!(both(&ran(1..16, "separate", 2))[1], 1);
    assert!(both(&ran(1..16, "separate", 2))[0] > 1);
    parameters.set_key("outstanding_transactions", "1").unwrap();
    let one = try_run("torus:k=4,n=2,uni", 1..16, "separate", 2, &parameters).unwrap();
    assert_eq!(both(&one), [1, 1]);
}

#[test]
fn every_scheme_completes_with_any_group_and_length() {
    for scheme in SCHEMES {
        for count in [1, 3, 5, 15] {
            let latencies =
                [1, 60, 61, 64, 65, 4096].map(|message| ran(1..=count, scheme, message).latency.unwrap());
            assert!(latencies.windows(2).all(|pair| pair[0] <= pair[1]), "{scheme} {count}: {latencies:?}");
        }
        let one_dimension = try_run("torus:k=5,n=1,uni", 1..5, scheme, 100, &Parameters::default()).unwrap();
        let three = try_run("torus:k=3,n=3,uni", 1..27, scheme, 100, &Parameters::default()).unwrap();
        assert!(one_dimension.latency < three.latency, "{scheme}");
    }
}

#[test]
fn one_task_has_one_outcome() {
    assert_eq!(ran(1..16, "mu-torus:r=4", 1000), ran(1..16, "mu-torus:r=4", 1000));
}

#[test]
fn the_root_is_busier_the_more_it_sends_itself() {
    let utilization = |scheme| measured(&ran(1..16, scheme, 65536), "root_cpu_utilization");
    let order = ["s-torus", "md-torus", "u-torus", "separate"].map(utilization);
    assert!(order.windows(2).all(|pair| pair[0] < pair[1]), "{order:?}");
    assert!(order[3] <= 1.0);
}

#[test]
fn worms_take_fewer_steps_than_their_relays() {
    for scheme in ["s-torus", "md-torus", "mu-torus:r=4"] {
        let worm =
            if scheme.contains(':') { format!("{scheme},form=worm") } else { format!("{scheme}:form=worm") };
        for message in [2, 65536] {
            assert!(ran(1..16, &worm, message).latency < ran(1..16, scheme, message).latency, "{scheme}");
        }
    }
}

#[test]
fn large_tori_are_within_reach() {
    let outcome = try_run("torus:k=64,n=2,uni", 1..4096, "md-torus", 2, &Parameters::default()).unwrap();
    assert_eq!(outcome.status, Status::Complete);
}

#[test]
fn what_does_not_fit_is_refused() {
    let error = |outcome: Result<Outcome, ModelError>| outcome.unwrap_err().to_string();
    let parameters = Parameters::default();
    assert_eq!(
        error(try_run("torus:k=4,n=2", [1], "separate", 2, &parameters)),
        "SCI needs a unidirectional torus, such as torus:k=4,n=2,uni"
    );
    assert_eq!(
        error(try_run("torus:k=4,n=2,uni", [1], "separate", 0, &parameters)),
        "a message has from 1 byte to 67108800 bytes, not 0 bytes: shorten it, or raise data_bytes"
    );
    assert_eq!(
        error(try_run("torus:k=16,n=2,uni", 1..256, "separate", 60_000_000, &parameters)),
        "a run has at most 67108864 deliveries of packets, this one would have 239062500: take fewer destinations or a \
         shorter message"
    );
    assert_eq!(
        error(try_run("torus:k=4,n=2,uni", [1], "separate", 2, &with(&[("data_bytes", "16")]))),
        "envelope and flag are one transaction: lower envelope_bytes, or raise data_bytes"
    );
    assert_eq!(
        error(try_run("torus:k=4,n=2,uni", [1], "tree-worm", 2, &parameters)).split(';').next().unwrap(),
        "scheme tree-worm needs up*/down* routing"
    );
}

#[test]
fn every_key_reads_back_what_it_prints() {
    let mut parameters = Parameters::default();
    for (key, value) in Parameters::default().values() {
        parameters.set_key(key, &value.to_string()).unwrap();
    }
    assert_eq!(parameters, Parameters::default());
    assert!(parameters.set_key("link_mb_per_s", "0").is_err());
    assert!(parameters.set_key("outstanding_transactions", "0").is_err());
}

#[test]
fn the_testbed_file_holds_the_defaults() {
    let mut parameters = Parameters::default();
    crate::keys::set_from_lines(&mut parameters, include_str!("../../../../papers/sci/testbed-sci.toml"));
    assert_eq!(parameters, Parameters::default());
}

#[test]
fn what_is_measured_is_listed() {
    let names: Vec<&str> = ran([1], "separate", 2).measured.iter().map(|(name, _)| *name).collect();
    assert!(names.into_iter().eq(MEASURES.iter().map(|measure| measure.name)));
}
