//! GSO batches: those received from a parent (`UDP_GRO`), and those sent by a root's application
//! (`UDP_SEGMENT`).

use std::net::Ipv4Addr;

use proptest::prelude::*;
use treecast_proto::{Authentication, Integrity, PayloadChecksum};

use super::acts::{Act, Defect, Fault};
use super::lab::Lab;
use super::pair::payload_of;
use super::random::{acts, defects, run, settings, with_multicast};
use super::stage::{GROUP, Setting, Stage};

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        20 => Just(Fault::None),
        2 => (any::<u8>(), defects()).prop_map(|(place, defect)| Fault::Segment(place, defect)),
        1 => any::<u8>().prop_map(Fault::Missing),
        1 => any::<u8>().prop_map(Fault::Swapped),
        1 => any::<u8>().prop_map(Fault::Repeated),
    ]
}

fn batches() -> impl Strategy<Value = Act> {
    let packets = prop_oneof![3 => 1..=8_u8, 3 => 1..=64_u8, 1 => Just(64_u8)];
    let pieces = prop_oneof![2 => Just(1_u8), 2 => 2..6_u8, 1 => any::<u8>()];
    let bytes = prop_oneof![1 => Just(0_u16), 4 => 1..200_u16, 2 => any::<u16>()];
    let one_bit = (0..64_u32).prop_map(|place| 1 << place);
    let ack_requested = prop_oneof![4 => Just(0), 2 => one_bit, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    (packets, pieces, bytes, any::<u16>(), any::<bool>(), ack_requested, faults()).prop_map(
        |(packets, pieces, bytes, last, is_continued, ack_requested, fault)| Act::Batch {
            packets,
            pieces,
            bytes,
            last,
            is_continued,
            ack_requested,
            fault,
        },
    )
}

fn acts_with_batches() -> BoxedStrategy<Act> {
    prop_oneof![
        6 => batches(),
        4 => Just(Act::AllAcknowledge),
        2 => any::<u8>().prop_map(|packets| Act::Read { packets, is_invalid: false }),
        6 => acts(),
    ]
    .boxed()
}

const SETTING: Setting = Setting {
    is_root: false,
    is_multicast: false,
    is_v6: false,
    is_below_root: true,
    slots_log2: 5,
    payload_bytes_max: 1_000,
    children: 0,
    start: 0,
    has_checksum: true,
    authentication: Authentication::Header,
    integrity: Integrity::Network,
    reads_silently: false,
    sleeps: false,
};

/// Five segments of 500 bytes, each of which requests an acknowledgment.
const fn five(fault: Fault) -> Act {
    Act::Batch {
        packets: 5,
        pieces: 1,
        bytes: 500,
        last: 500,
        is_continued: false,
        ack_requested: u64::MAX,
        fault,
    }
}

/// No sender writes the timestamp 0, and none is echoed.
#[test]
fn a_segment_without_a_timestamp_is_not_answered_with_it() {
    let Some(mut lab) = Lab::for_batches() else { return };
    for segment in [0, 4] {
        let mut stage = Stage::new(&mut lab, &SETTING).unwrap();
        stage.act(&five(Fault::Segment(segment, Defect::Stale(u64::MAX)))).unwrap();
        assert_eq!(stage.pair.counts.batches_handled, 1);
    }
}

/// With `integrity=network`: a payload changes on the way of a batch.
#[test]
fn a_batch_with_a_corrupt_payload_is_handled_only_if_the_kernel_vouches_for_its_checksum() {
    let Some(mut lab) = Lab::for_batches() else { return };
    for is_v6 in [false, true] {
        for segment in [0, 2, 4] {
            let corrupt = five(Fault::Segment(segment, Defect::BitFlip(64 * 8 + 99)));
            let mut stage = Stage::new(&mut lab, &Setting { is_v6, ..SETTING }).unwrap();
            let first = stage.next();
            stage.act(&corrupt).unwrap();
            assert_eq!(stage.pair.counts.batches_handled, 0, "segment {segment}");
            // The protocol accepts what is before that segment.
            assert_eq!(stage.next(), first + u32::from(segment));
            drop(stage);

            let mut stage = Stage::new(&mut lab, &Setting { is_v6, ..SETTING }).unwrap();
            assert!(stage.program_handles(&corrupt), "segment {segment}");
            for packet in first.until(first + 5) {
                let memory = stage.pair.memory(GROUP);
                assert!(!memory.is_verified(packet), "the reader has to verify {packet}");
                let piece = memory.piece(packet);
                let payload = payload_of(memory, packet, piece.length);
                let is_intact = PayloadChecksum::crc(&payload) == piece.checksum;
                assert_eq!(is_intact, packet != first + u32::from(segment), "{packet}");
            }
        }
    }
}

#[test]
fn a_node_handles_a_batch_like_its_segments_one_by_one() {
    check_batches(settings(2..=10));
}

#[test]
fn a_node_handles_a_batch_by_multicast_like_its_segments_one_by_one() {
    check_batches(with_multicast(settings(2..=10)));
}

fn check_batches(settings: BoxedStrategy<Setting>) {
    let Some(lab) = Lab::for_batches() else { return };
    let counts = run(lab, 150, settings, acts_with_batches());
    println!("batches: {counts:?}");
    assert!(counts.batches_handled * 4 > counts.batches, "the program handles many batches: {counts:?}");
    assert!(counts.segments_handled > 6 * counts.batches_handled, "and they are long: {counts:?}");
}

/// The kernel makes the batches of a socket, and offloads segmentation and, where it can, checksums
/// to the interface.
#[test]
fn batches_of_an_application_s_socket_are_forwarded_correctly() {
    for checksums_by_interface in [true, false] {
        let Some(mut lab) = Lab::for_batches() else { return };
        lab.use_datagrams(Ipv4Addr::new(10, 1, 0, 1), checksums_by_interface)
            .expect("the interface takes an address");
        let roots = settings(2..=10).prop_map(|setting| Setting { is_root: true, is_v6: false, ..setting });
        let counts = run(lab, 50, roots.boxed(), acts_with_batches());
        println!("batches of sockets, checksums by the interface {checksums_by_interface}: {counts:?}");
        assert!(counts.batches_handled * 4 > counts.batches, "the program handles many batches: {counts:?}");
    }
}
