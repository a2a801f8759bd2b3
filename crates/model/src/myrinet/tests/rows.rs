//! Broadcasts in a row, and the barriers between them.

use proptest::prelude::*;

use super::super::{node, prepare, run, simulation, stream};
use super::Case;
use crate::Task;
use treecast_sim::Offload;

/// Runs broadcasts in a row to their end, and everything that they leave.
fn drained<'a>(case: &'a Case, task: &'a Task<'a>) -> simulation::Simulation<'a> {
    let mut simulation = prepare(&case.parameters, task, &case.scheme).unwrap();
    simulation.run();
    assert!(simulation.completed.is_some(), "{:?}", simulation.deadlock());
    simulation.drain();
    simulation
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn nobody_leaves_a_barrier_before_the_last_has_entered(
        hosts in 2_u32..18,
        offload in prop::sample::select(vec![Offload::Host, Offload::Assisted, Offload::Nic]),
        operation in prop::sample::select(vec![
            "broadcast,layer=mpi", "skew,layer=mpi,skew_us=100", "broadcast,layer=mpi,eager_bytes=500", "multicast",
            "multisend",
        ]),
        tokens in prop::sample::select(vec!["send_tokens=1", "loss=0.05", "loss=0"]),
        (broadcasts, bytes, seed) in (1_u32..8, 1_u64..9_000, any::<u64>()),
    ) {
        let settings = format!("operation={operation},{tokens},broadcasts={broadcasts},barrier=dissemination");
        let case = Case::new(hosts, "binomial", &settings);
        let task = Task { seed, ..case.task(offload, bytes) };
        let simulation = drained(&case, &task);
        let mut entered = vec![0; broadcasts as usize];
        for &(_, round, has_left) in &simulation.barriers {
            if has_left {
                prop_assert_eq!(entered[round as usize], hosts, "round {}", round);
            } else {
                entered[round as usize] += 1;
            }
        }
        prop_assert_eq!(simulation.barriers.len() as u32, 2 * hosts * broadcasts);
        // In each barrier every process sends one message in each step.
        let of_barriers = |stream: &stream::Stream| {
            let content = |number| stream.queued_message(number).content;
            (0..stream.end()).filter(|&number| matches!(content(number), stream::Content::Barrier { .. })).count()
        };
        let messages = simulation.streams.iter().map(of_barriers).sum::<usize>() as u32;
        let steps = f64::from(hosts).log2().ceil() as u32;
        prop_assert_eq!(messages, broadcasts * hosts * steps);
        // Nothing is left over.
        for node in &simulation.nodes {
            prop_assert_eq!((node.tasks, node.send_tokens_used, node.receive_tokens_used), (0, 0, 0));
            prop_assert!(node.deferred.is_empty() && node.barrier_messages.is_empty() && node.unposted.is_empty());
            prop_assert_eq!((node.phase, node.round), (node::Phase::Returned, broadcasts - 1));
        }
    }
}

#[test]
fn a_broadcast_in_a_row_waits_for_what_the_one_before_has_left() {
    let on = |hosts, operation: &str, broadcasts: u32, offload| {
        let settings = format!("operation={operation},broadcasts={broadcasts}");
        Case::new(hosts, "binomial", &settings).latency(offload, 4)
    };
    let time = |operation: &str, broadcasts, offload| on(16, operation, broadcasts, offload);
    for offload in [Offload::Host, Offload::Nic] {
        // The root of a multisend waits for its last token, so a multisend leaves nothing.
        assert_eq!(time("multisend", 50, offload), time("multisend", 1, offload));
        // The tokens that a host has sent are still to be returned when the answer has come.
        assert!(time("multicast", 50, offload) >= time("multicast", 1, offload));
        // Without a barrier broadcasts overlap: their time is what the busiest part needs for one.
        assert!(time("broadcast", 50, offload) < time("broadcast", 1, offload));
    }
    assert!(on(4, "multicast", 200, Offload::Host) > on(4, "multicast", 1, Offload::Host));
}

#[test]
fn a_mean_over_hundreds_is_the_mean_over_five_thousand() {
    // Calls that overlap, or follow barriers, need more: tokens to be returned pile up slowly.
    for (settings, hosts, few) in [("operation=multisend", 5, 200), ("operation=multicast", 16, 200)] {
        for (offload, bytes) in [(Offload::Host, 4), (Offload::Nic, 4), (Offload::Nic, 4096)] {
            let [some, all] = [few, 5_000].map(|broadcasts| {
                let settings = format!("{settings},broadcasts={broadcasts}");
                Case::new(hosts, "binomial", &settings).latency(offload, bytes).us()
            });
            assert!((some / all - 1.0).abs() < 0.01, "{settings} {offload} {bytes}: {some} {all}");
        }
    }
}

#[test]
fn several_roots_and_the_first_broadcast_are_not_repeated() {
    let error = |settings: &str| {
        let case = Case::new(4, "binomial", &format!("broadcasts=2,{settings}"));
        run(&case.parameters, &case.task(Offload::Nic, 64)).unwrap_err().to_string()
    };
    assert_eq!(error("groups=2"), "broadcasts in a row have one root: set groups=1, or broadcasts=1");
    assert_eq!(
        error("operation=broadcast,first_broadcast=yes"),
        "first_broadcast=yes is a single broadcast: set broadcasts=1"
    );
}

#[test]
fn the_roots_measures_are_means_over_broadcasts_in_a_row() {
    let measured = |scheme, broadcasts: u32, name| {
        let settings = format!("operation=broadcast,broadcasts={broadcasts}");
        Case::new(8, scheme, &settings).measured(Offload::Host, 2048, name)
    };
    for scheme in ["separate", "binary"] {
        let concentration = |broadcasts| measured(scheme, broadcasts, "link_concentration_run");
        assert!((concentration(10) - concentration(1)).abs() < 1e-9, "{scheme}");
        let user = |broadcasts| measured(scheme, broadcasts, "root_user_us");
        assert!((0.3..1.1).contains(&(user(10) / user(1))), "{scheme} {} {}", user(10), user(1));
    }
    // A root that goes on at once has no pause.
    assert!(measured("binary", 10, "root_user_fraction") > measured("binary", 1, "root_user_fraction"));
}
