//! Barriers and all-reduces among nodes on loopback.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{TIMEOUT, groups, settings};
use treecast_node::{
    Group, GroupSettings, Node, NodeError, NodeSettings, Offload, Operation, Scheme, Transport, TreeScheme,
    Values,
};

fn nodes(count: usize) -> Vec<Node> {
    nodes_that_spin(count, None)
}

fn nodes_that_spin(count: usize, spin: Option<Duration>) -> Vec<Node> {
    let settings = NodeSettings { bind: "127.0.0.1:0".parse().unwrap(), spin, ..NodeSettings::default() };
    (0..count).map(|_| Node::open(&settings).unwrap()).collect()
}

/// Runs this at every member, each in its own thread, and closes the group.
fn at_all(groups: &[Group], run: impl Fn(usize, &Group) + Sync) {
    thread::scope(|scope| {
        for (member, group) in groups.iter().enumerate() {
            let run = &run;
            scope.spawn(move || run(member, group));
        }
    });
    let root = groups.iter().find(|group| group.is_root()).unwrap();
    assert_eq!(root.close(TIMEOUT).unwrap(), []);
}

#[test]
fn all_members_get_the_same_result_by_every_way() {
    let packets = Some(Transport::Packets);
    let ways =
        [(Offload::Nic, packets), (Offload::Nic, None), (Offload::Host, None), (Offload::Switch, None)];
    for (offload, transport) in ways {
        let nodes = nodes(7);
        let settings =
            GroupSettings { offload: Some(offload), transport, root: 2, slots: Some(16), ..settings(&nodes) };
        at_all(&groups(&nodes, &settings), |member, group| {
            for round in 0..40_u64 {
                let own = member as u64 + round;
                let mut sums = [own, 1];
                assert_eq!(group.all_reduce(&mut sums, Operation::Sum, TIMEOUT).unwrap(), 7);
                assert_eq!(sums, [21 + 7 * round, 7]);
                let mut least = [-(own as f64), f64::NAN];
                group.all_reduce(&mut least, Operation::Min, TIMEOUT).unwrap();
                assert_eq!(least.map(f64::to_bits), [-(6.0 + round as f64), f64::NAN].map(f64::to_bits));
                let mut bits = [1_u32 << member];
                group.all_reduce(&mut bits, Operation::Or, TIMEOUT).unwrap();
                assert_eq!(bits, [0x7f]);
                assert_eq!(group.barrier(TIMEOUT).unwrap(), 7);
            }
        });
    }
}

#[test]
fn results_have_their_place_among_messages() {
    check_results_among_messages(&nodes(5));
}

/// The root, members that forward, and leaves each read in their own way while they spin.
#[test]
fn results_have_their_place_among_messages_where_members_spin() {
    for count in [2, 5] {
        check_results_among_messages(&nodes_that_spin(count, Some(Duration::from_secs(1))));
    }
}

fn check_results_among_messages(nodes: &[Node]) {
    at_all(&groups(nodes, &settings(nodes)), |member, group| {
        for round in 0..20 {
            let message = vec![round as u8; 3_000 * round];
            if member == 0 {
                group.send(&message).unwrap();
            } else {
                assert_eq!(group.receive(TIMEOUT).unwrap(), Some(message));
            }
            let mut values = [round as i64; 63];
            group.all_reduce(&mut values, Operation::Max, TIMEOUT).unwrap();
            assert_eq!(values, [round as i64; 63]);
        }
    });
}

#[test]
fn nobody_leaves_a_barrier_before_the_last_has_come() {
    let nodes = nodes(6);
    let settings = GroupSettings { scheme: Some(Scheme::tree(TreeScheme::Serial)), ..settings(&nodes) };
    let entered = AtomicUsize::new(0);
    at_all(&groups(&nodes, &settings), |member, group| {
        for round in 1..=10 {
            if member == round % 6 {
                thread::sleep(Duration::from_millis(20));
            }
            entered.fetch_add(1, Ordering::SeqCst);
            group.barrier(TIMEOUT).unwrap();
            assert!(entered.load(Ordering::SeqCst) >= 6 * round);
        }
    });
}

#[test]
fn sums_of_fractions_are_equal_bit_by_bit() {
    let nodes = nodes(7);
    let results = std::sync::Mutex::new(Vec::new());
    at_all(&groups(&nodes, &settings(&nodes)), |member, group| {
        let mut sum = [0.1 * (member as f64 + 1.0).powi(17)];
        group.all_reduce(&mut sum, Operation::Sum, TIMEOUT).unwrap();
        results.lock().unwrap().push(sum[0].to_bits());
    });
    let results = results.into_inner().unwrap();
    assert_eq!(results, vec![results[0]; 7]);
}

#[test]
fn a_call_that_has_timed_out_can_be_made_again() {
    let nodes = nodes(3);
    // Of the members before and after the late one.
    let tries = [const { AtomicUsize::new(0) }; 2];
    at_all(&groups(&nodes, &settings(&nodes)), |member, group| {
        if member == 1 {
            let end = Instant::now() + TIMEOUT.unwrap();
            while tries.iter().any(|tries| tries.load(Ordering::Relaxed) < 3) && Instant::now() < end {
                thread::sleep(Duration::from_millis(1));
            }
        }
        let mut sum = [member as i32];
        while let Err(error) = group.all_reduce(&mut sum, Operation::Sum, Some(Duration::from_millis(20))) {
            assert!(matches!(error, NodeError::TimedOut), "{error}");
            if member != 1 {
                tries[member / 2].fetch_add(1, Ordering::Relaxed);
            }
        }
        assert!(tries.iter().all(|tries| tries.load(Ordering::Relaxed) >= 3), "{tries:?}");
        assert_eq!(sum, [3]);
    });
}

#[test]
fn calls_that_differ_fail_at_all_members() {
    let nodes = nodes(4);
    at_all(&groups(&nodes, &settings(&nodes)), |member, group| {
        let mut values = [1_u64; 4];
        let values = &mut values[..if member == 3 { 3 } else { 4 }];
        let error = group.all_reduce(values, Operation::Sum, TIMEOUT).unwrap_err();
        assert!(matches!(error, NodeError::DifferentValues), "{error}");
        let operation = if member == 2 { Operation::Min } else { Operation::Max };
        let error = group.all_reduce(&mut [1_u64], operation, TIMEOUT).unwrap_err();
        assert!(matches!(error, NodeError::DifferentValues), "{error}");
        group.barrier(TIMEOUT).unwrap();
    });
}

#[test]
fn a_member_that_expects_a_result_and_gets_a_message_says_so() {
    let nodes = nodes(3);
    at_all(&groups(&nodes, &settings(&nodes)), |member, group| {
        if member == 0 {
            group.send(b"a message").unwrap();
            group.send(&[0; 8]).unwrap();
        } else {
            let error = group.barrier(TIMEOUT).unwrap_err();
            assert!(matches!(error, NodeError::OtherMessage), "{error}");
            // It was longer than a result, and can still be received.
            assert_eq!(group.receive(TIMEOUT).unwrap().unwrap(), b"a message");
            assert!(matches!(group.barrier(TIMEOUT), Err(NodeError::OtherMessage)));
        }
        group.barrier(TIMEOUT).unwrap();
    });
}

#[test]
fn values_that_cannot_be_combined_are_refused_at_once() {
    let nodes = nodes(1);
    let group = nodes[0].group(&GroupSettings::new(vec![nodes[0].address()])).unwrap();
    let refused = |result: Result<u32, NodeError>| {
        assert!(matches!(result, Err(NodeError::InvalidValues { .. })), "{result:?}");
    };
    refused(group.all_reduce(&mut [1.0_f32], Operation::And, TIMEOUT));
    refused(group.all_reduce(&mut [0_u64; Values::BYTES_MAX / 8 + 1], Operation::Sum, TIMEOUT));
    group.all_reduce(&mut [0_u64; Values::BYTES_MAX / 8], Operation::Sum, TIMEOUT).unwrap();
}

#[test]
fn members_that_are_lost_are_not_waited_for() {
    let mut nodes = nodes(5);
    let settings = GroupSettings { scheme: Some(Scheme::tree(TreeScheme::Serial)), ..settings(&nodes) };
    let mut groups = groups(&nodes, &settings);
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    // A member in the middle of the chain leaves when the others have contributed.
    let leaver = groups.remove(2);
    thread::scope(|scope| {
        for (member, group) in [0, 1, 3, 4].into_iter().zip(&groups) {
            scope.spawn(move || {
                let mut sum = [1_u32 << member];
                group.all_reduce(&mut sum, Operation::Sum, TIMEOUT).unwrap();
                assert_eq!(sum, [0b11011]);
                group.barrier(TIMEOUT).unwrap();
            });
        }
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            leaver.close(TIMEOUT).unwrap();
        });
    });
    assert_eq!(groups[0].losses().len(), 1);
    drop(groups);
    nodes.clear();
}
