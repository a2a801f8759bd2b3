//! One node of a small tree, to which happens what proptest draws: mostly what is in the ordinary.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::lab::Lab;
use super::pair::Tally;
use super::stage::{Act, Setting, Stage, Twist};

pub fn settings(slots_log2: RangeInclusive<u32>) -> impl Strategy<Value = Setting> {
    let few = prop_oneof![4 => 0..4_u32, 1 => 0..=64_u32];
    let start = prop_oneof![any::<u32>(), (0..100_u32).prop_map(|back| u32::MAX - back)];
    (any::<(bool, bool, bool, bool, bool, bool)>(), slots_log2, 512..=1_388_u16, few, start).prop_map(
        |(flags, slots_log2, payload_bytes_max, children, start)| {
            let (is_root, is_v6, is_below_root, has_checksum, reads_in_silence, sleeps) = flags;
            // UDP over IPv6 always has a checksum (RFC 8200, section 8.1).
            let has_checksum = has_checksum || is_v6;
            Setting {
                is_root,
                is_v6,
                is_below_root,
                slots_log2,
                payload_bytes_max,
                children,
                start,
                has_checksum,
                reads_in_silence,
                sleeps,
            }
        },
    )
}

fn twists() -> impl Strategy<Value = Twist> {
    prop_oneof![5 => Just(Twist::Nothing), 1 => wrongs()]
}

pub fn wrongs() -> impl Strategy<Value = Twist> {
    prop_oneof![
        1 => any::<u16>().prop_map(Twist::Spoilt),
        1 => Just(Twist::Cookie),
        1 => Just(Twist::Stranger),
        1 => Just(Twist::Epoch),
        1 => Just(Twist::Elsewhere),
        1 => prop_oneof![1..8_u16, any::<u16>()].prop_map(Twist::Flags),
        1 => any::<u8>().prop_map(Twist::Cut),
        1 => (any::<u8>(), prop_oneof![0..100_u32, any::<u32>()]).prop_map(|(word, value)| Twist::Body { word, value }),
    ]
}

pub fn acts() -> impl Strategy<Value = Act> {
    let ahead = prop_oneof![30 => Just(0_i8), 1 => -3..=3_i8, 1 => any::<i8>()];
    let bytes = prop_oneof![1 => Just(0_u16), 2 => 1..20_u16, 8 => any::<u16>()];
    let lacks = || prop_oneof![6 => Just(0_u8), 3 => 0..4_u8, 1 => any::<u8>()];
    let window = prop_oneof![3 => Just(u8::MAX), 1 => any::<u8>()];
    prop_oneof![
        12 => (ahead, any::<bool>(), 1..6_u8, bytes, twists())
            .prop_map(|(ahead, ack_requested, pieces, bytes, twist)| Act::Data { ahead, ack_requested, pieces, bytes, twist }),
        8 => (any::<u8>(), lacks(), lacks(), window, any::<bool>(), twists()).prop_map(
            |(child, lacks, subtree_lacks, window, echoes, twist)| {
                Act::Acknowledgment { child, lacks, subtree_lacks, window, echoes, twist }
            }
        ),
        3 => Just(Act::AllAcknowledge),
        1 => (any::<u8>(), 0..6_u8, any::<u64>())
            .prop_map(|(child, lacks, bits)| Act::Nak { child, lacks, bits }),
        1 => Just(Act::Probe),
        4 => (any::<u8>(), prop::bool::weighted(0.05))
            .prop_map(|(packets, is_nonsense)| Act::Read { packets, is_nonsense }),
        4 => prop_oneof![10 => 0..60_u32, 4 => 0..2_000_u32, 1 => 0..150_000_u32].prop_map(|us| Act::Pass { us }),
    ]
}

/// Draws nodes, and what happens to them.
pub fn run(
    lab: Lab,
    cases: u32,
    settings: impl Strategy<Value = Setting>,
    acts: impl Strategy<Value = Act>,
) -> Tally {
    let lab = RefCell::new(lab);
    let tally = RefCell::new(Tally::default());
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let strategy = (settings, prop::collection::vec(acts, 1..150));
    let run = runner.run(&strategy, |(setting, acts)| {
        let mut lab = lab.borrow_mut();
        let mut stage = Stage::new(&mut lab, &setting).map_err(TestCaseError::fail)?;
        for act in &acts {
            stage.act(act).map_err(TestCaseError::fail)?;
        }
        *tally.borrow_mut() += stage.pair.tally;
        Ok(())
    });
    if let Err(why) = run {
        panic!("{why}");
    }
    tally.into_inner()
}

#[test]
fn a_node_to_which_anything_happens_does_the_same_with_the_program() {
    let Some(lab) = Lab::new() else { return };
    let tally = run(lab, 150, settings(2..=6), acts());
    println!("random: {tally:?}");
    assert!(tally.taken * 3 > tally.came, "the program takes many packets: {tally:?}");
    assert!(tally.sent_on * 3 > tally.queued, "the program sends many packets on: {tally:?}");
}

/// The system leaves checksums to the interface, and the program changes what is there of them.
#[test]
fn packets_of_an_application_s_own_socket_are_sent_on_as_they_should() {
    let Some(mut lab) = Lab::new() else { return };
    lab.use_datagrams(Ipv4Addr::new(10, 1, 0, 1)).expect("the interface takes an address");
    let roots = settings(2..=6).prop_map(|setting| Setting { is_root: true, is_v6: false, ..setting });
    let tally = run(lab, 50, roots, acts());
    println!("sockets: {tally:?}");
    assert!(tally.sent_on * 3 > tally.queued, "the program sends many packets on: {tally:?}");
}
