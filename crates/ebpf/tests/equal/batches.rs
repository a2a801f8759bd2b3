//! Packets that pass the system as one: those of a parent on their way in, and those of a root's application on their way out.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::lab::Lab;
use super::random::{acts, run, settings, wrongs};
use super::stage::{Act, Fault, Setting};

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        20 => Just(Fault::Nothing),
        2 => (any::<u8>(), wrongs()).prop_map(|(place, twist)| Fault::Twisted(place, twist)),
        1 => any::<u8>().prop_map(Fault::Gap),
        1 => any::<u8>().prop_map(Fault::Swapped),
    ]
}

fn batches() -> impl Strategy<Value = Act> {
    let packets = prop_oneof![3 => 1..=8_u8, 3 => 1..=64_u8, 1 => Just(64_u8)];
    let pieces = prop_oneof![2 => Just(1_u8), 2 => 2..6_u8, 1 => any::<u8>()];
    let bytes = prop_oneof![1 => Just(0_u16), 4 => 1..200_u16, 2 => any::<u16>()];
    let one = (0..64_u32).prop_map(|place| 1 << place);
    let ack_requested = prop_oneof![4 => Just(0), 2 => one, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    (packets, pieces, bytes, any::<u16>(), any::<bool>(), ack_requested, faults()).prop_map(
        |(packets, pieces, bytes, last, goes_on, ack_requested, fault)| Act::Batch {
            packets,
            pieces,
            bytes,
            last,
            goes_on,
            ack_requested,
            fault,
        },
    )
}

fn acts_with_batches() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => batches(),
        4 => Just(Act::AllAcknowledge),
        2 => any::<u8>().prop_map(|packets| Act::Read { packets, is_nonsense: false }),
        6 => acts(),
    ]
}

#[test]
fn a_node_to_which_trains_come_does_as_if_their_packets_came_one_by_one() {
    let Some(lab) = Lab::for_batches() else { return };
    let tally = run(lab, 150, settings(2..=10), acts_with_batches());
    println!("batches: {tally:?}");
    assert!(tally.batches_taken * 4 > tally.batches, "the program takes many batches: {tally:?}");
    assert!(tally.segments_taken > 6 * tally.batches_taken, "and long ones: {tally:?}");
}

/// The system makes the batches of a socket, and leaves checksums and cutting to the interface.
#[test]
fn trains_of_an_application_s_own_socket_are_sent_on_as_they_should() {
    let Some(mut lab) = Lab::for_batches() else { return };
    lab.use_datagrams(Ipv4Addr::new(10, 1, 0, 1)).expect("the interface takes an address");
    let roots = settings(2..=10).prop_map(|setting| Setting { is_root: true, is_v6: false, ..setting });
    let tally = run(lab, 50, roots, acts_with_batches());
    println!("batches of sockets: {tally:?}");
    assert!(tally.batches_taken * 4 > tally.batches, "the program takes many batches: {tally:?}");
}
