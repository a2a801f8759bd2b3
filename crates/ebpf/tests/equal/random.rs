//! One node of a small tree with random inputs, most of which are valid.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use treecast_proto::{Authentication, Integrity};

use super::acts::{Act, AnyValues, Defect};
use super::lab::Lab;
use super::pair::Counts;
use super::stage::{Setting, Stage};

pub fn settings(slots_log2: RangeInclusive<u32>) -> BoxedStrategy<Setting> {
    let few = prop_oneof![4 => 0..4_u32, 1 => 0..=64_u32];
    let start = prop_oneof![any::<u32>(), (0..100_u32).prop_map(|back| u32::MAX - back)];
    let authentication = prop_oneof![Just(Authentication::Header), Just(Authentication::Payload)];
    let integrity = prop_oneof![Just(Integrity::Crc32c), Just(Integrity::Network)];
    let guards = (authentication, integrity);
    let flags = any::<(bool, bool, bool, bool, bool, bool)>();
    (flags, guards, slots_log2, 512..=1_388_u16, few, start)
        .prop_map(|(flags, (authentication, integrity), slots_log2, payload_bytes_max, children, start)| {
            let (is_root, is_v6, is_below_root, has_checksum, reads_silently, sleeps) = flags;
            // UDP over IPv6 always has a checksum (RFC 8200, section 8.1).
            let has_checksum = has_checksum || is_v6;
            Setting {
                is_root,
                is_multicast: false,
                is_v6,
                is_below_root,
                slots_log2,
                payload_bytes_max,
                children,
                start,
                has_checksum,
                authentication,
                integrity,
                reads_silently,
                sleeps,
            }
        })
        .boxed()
}

/// Members to which data comes by multicast, and some roots that send it.
pub fn with_multicast(settings: BoxedStrategy<Setting>) -> BoxedStrategy<Setting> {
    (settings, prop::bool::weighted(0.1))
        .prop_map(|(setting, is_root)| Setting {
            is_root,
            is_multicast: true,
            authentication: Authentication::Payload,
            ..setting
        })
        .boxed()
}

fn any_defects() -> BoxedStrategy<Defect> {
    prop_oneof![5 => Just(Defect::None), 1 => defects()].boxed()
}

pub fn defects() -> BoxedStrategy<Defect> {
    prop_oneof![
        1 => any::<u16>().prop_map(Defect::BitFlip),
        1 => Just(Defect::WrongCode),
        1 => Just(Defect::UnknownSender),
        1 => Just(Defect::WrongEpoch),
        1 => Just(Defect::WrongSource),
        1 => any::<bool>().prop_map(|is_multicast| Defect::AlongTree { is_multicast }),
        1 => prop_oneof![2 => Just(0_u64), 2 => 0..1_000_000_u64, 1 => Just(u64::MAX)].prop_map(Defect::Stale),
        1 => prop_oneof![0..4_u8, any::<u8>()].prop_map(Defect::Version),
        1 => prop_oneof![1..8_u16, any::<u16>()].prop_map(Defect::Flags),
        1 => any::<u8>().prop_map(Defect::Truncated),
        1 => any::<u8>().prop_map(Defect::Extended),
        1 => (any::<u8>(), prop_oneof![0..100_u32, any::<u32>()]).prop_map(|(word, value)| Defect::Body { word, value }),
    ]
    .boxed()
}

/// Values of a contribution, mostly of integers and few.
fn any_values() -> BoxedStrategy<AnyValues> {
    let element = prop_oneof![6 => 0..4_u8, 1 => 4..6_u8];
    let count = prop_oneof![2 => Just(0_u8), 6 => 1..9_u8, 1 => 8..64_u8];
    let words = prop::collection::vec(prop_oneof![any::<u64>(), 0..3_u64, Just(u64::MAX)], 1..9);
    (0..7_u8, element, count, words)
        .prop_map(|(operation, element, count, words)| AnyValues { operation, element, count, words })
        .boxed()
}

/// One `i64`, of a sum.
fn sum() -> BoxedStrategy<AnyValues> {
    any::<u64>().prop_map(|word| AnyValues { operation: 0, element: 1, count: 1, words: vec![word] }).boxed()
}

pub fn acts() -> BoxedStrategy<Act> {
    let ahead = prop_oneof![30 => Just(0_i8), 1 => -3..=3_i8, 1 => any::<i8>()];
    let bytes = prop_oneof![1 => Just(0_u16), 2 => 1..20_u16, 8 => any::<u16>()];
    let missing = || prop_oneof![6 => Just(0_u8), 3 => 0..4_u8, 1 => any::<u8>()];
    let ahead_by = prop_oneof![12 => Just(0_u8), 2 => 0..4_u8, 1 => any::<u8>()];
    let window = prop_oneof![3 => Just(u8::MAX), 1 => any::<u8>()];
    prop_oneof![
        24 => (ahead, any::<bool>(), 1..6_u8, bytes, any_defects())
            .prop_map(|(ahead, ack_requested, pieces, bytes, defect)| Act::Data { ahead, ack_requested, pieces, bytes, defect }),
        16 => (any::<u8>(), missing(), ahead_by, missing(), window, any::<bool>(), any_defects()).prop_map(
            |(child, missing, ahead, subtree_missing, window, echoes, defect)| {
                Act::Acknowledgment { child, missing, ahead, subtree_missing, window, echoes, defect }
            }
        ),
        6 => Just(Act::AllAcknowledge),
        1 => (any::<u8>(), 0..6_u8, any::<u64>(), any_defects())
            .prop_map(|(child, missing, bits, defect)| Act::Nak { child, missing, bits, defect }),
        1 => (any::<u8>(), 0..6_u8, any::<u64>())
            .prop_map(|(child, missing, bits)| Act::NakAndAcknowledgment { child, missing, bits }),
        2 => (any::<u8>(), prop_oneof![8 => Just(0_i8), 1 => -2..=2_i8], prop_oneof![4 => 0..9_u16, 1 => any::<u16>()], any_values(), any_defects())
            .prop_map(|(child, ahead, processes, values, defect)| Act::Contribution { child, ahead, processes, values, defect }),
        3 => (any::<u8>(), prop::collection::vec(any_values(), 1..6), prop::bool::weighted(0.9))
            .prop_map(|(own_after, values, is_alike)| Act::AllContribute { own_after, values, is_alike }),
        // One kind again and again: an earlier contribution is not to be taken for a later one.
        3 => (any::<u8>(), prop::collection::vec(sum(), 1..6))
            .prop_map(|(own_after, values)| Act::AllContribute { own_after, values, is_alike: true }),
        2 => any_defects().prop_map(|defect| Act::Probe { defect }),
        1 => any_defects().prop_map(|defect| Act::Heartbeat { defect }),
        1 => prop_oneof![0..4_u8, any::<u8>()].prop_map(|back| Act::Replay { back }),
        8 => (any::<u8>(), prop::bool::weighted(0.05))
            .prop_map(|(packets, is_invalid)| Act::Read { packets, is_invalid }),
        8 => prop_oneof![10 => 0..60_u32, 4 => 0..2_000_u32, 1 => 0..150_000_u32].prop_map(|us| Act::Pass { us }),
    ]
    .boxed()
}

/// Runs random nodes with random inputs. Strategies are boxed, so that the runner is compiled once.
pub fn run(lab: Lab, cases: u32, settings: BoxedStrategy<Setting>, acts: BoxedStrategy<Act>) -> Counts {
    let lab = RefCell::new(lab);
    let counts = RefCell::new(Counts::default());
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let strategy = (settings, prop::collection::vec(acts, 1..150));
    let run = runner.run(&strategy, |(setting, acts)| {
        let mut lab = lab.borrow_mut();
        let mut stage = Stage::new(&mut lab, &setting).map_err(TestCaseError::fail)?;
        for act in &acts {
            stage.act(act).map_err(TestCaseError::fail)?;
        }
        *counts.borrow_mut() += stage.pair.counts;
        Ok(())
    });
    if let Err(why) = run {
        panic!("{why}");
    }
    counts.into_inner()
}

#[test]
fn a_node_with_random_inputs_behaves_the_same_with_the_program() {
    let Some(lab) = Lab::new() else { return };
    let counts = run(lab, 150, settings(2..=6), acts());
    println!("random: {counts:?}");
    assert!(counts.handled * 3 > counts.received, "the program handles many packets: {counts:?}");
    assert!(counts.forwarded * 4 > counts.queued, "the program forwards many packets: {counts:?}");
    assert!(counts.contributed > 20, "the program combines contributions: {counts:?}");
    assert!(counts.taken > 20, "roots take them while the program keeps the group: {counts:?}");
}

#[test]
fn a_node_with_data_by_multicast_behaves_the_same_with_the_program() {
    let Some(lab) = Lab::new() else { return };
    let counts = run(lab, 150, with_multicast(settings(2..=8)), acts());
    println!("multicast: {counts:?}");
    // A NAK may name packets that have not come here either: the slow path handles the group until
    // they have.
    assert!(counts.handled * 5 > counts.received, "the program handles many packets: {counts:?}");
}

/// The kernel offloads checksums to the interface where it can, and the program updates the partial
/// checksums.
#[test]
fn packets_of_an_application_s_socket_are_forwarded_correctly() {
    for checksums_by_interface in [true, false] {
        let Some(mut lab) = Lab::new() else { return };
        lab.use_datagrams(Ipv4Addr::new(10, 1, 0, 1), checksums_by_interface)
            .expect("the interface takes an address");
        let roots = settings(2..=6).prop_map(|setting| Setting { is_root: true, is_v6: false, ..setting });
        let counts = run(lab, 50, roots.boxed(), acts());
        println!("sockets, checksums by the interface {checksums_by_interface}: {counts:?}");
        assert!(counts.forwarded * 4 > counts.queued, "the program forwards many packets: {counts:?}");
    }
}
