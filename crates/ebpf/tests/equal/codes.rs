//! The codes and checksums of the program are those of the library.

use treecast_proto::{Authentication, Integrity};

use super::acts::{Act, Defect};
use super::lab::Lab;
use super::stage::{GROUP, Setting, Stage};

const SETTING: Setting = Setting {
    is_root: false,
    is_multicast: false,
    is_v6: false,
    is_below_root: true,
    slots_log2: 4,
    payload_bytes_max: 1_408,
    children: 1,
    start: 0,
    has_checksum: true,
    authentication: Authentication::Header,
    integrity: Integrity::Crc32c,
    reads_silently: true,
    sleeps: false,
};

/// With `integrity=network` the program looks at the checksum of a datagram, and leaves the CRC to
/// the reader.
#[test]
fn the_program_verifies_the_checksum_of_datagrams_in_place_of_crcs() {
    let Some(mut lab) = Lab::new() else { return };
    for (is_v6, has_checksum) in [(false, true), (true, true), (false, false)] {
        let setting = Setting { is_v6, has_checksum, integrity: Integrity::Network, ..SETTING };
        let mut stage = Stage::new(&mut lab, &setting).unwrap();
        for bytes in (1..=200).chain([1_387]) {
            let data = |defect| Act::Data { ahead: 0, ack_requested: true, pieces: 1, bytes, defect };
            let before = stage.pair.counts.handled;
            let last_bit = (64 + bytes) * 8 - 1;
            stage.act(&data(Defect::BitFlip(last_bit))).unwrap();
            assert_eq!(stage.pair.counts.handled, before, "a wrong bit in {bytes} bytes");
            let packet = stage.next();
            stage.act(&data(Defect::None)).unwrap();
            assert_eq!(stage.pair.counts.handled, before + 1, "{bytes} bytes");
            assert_eq!(stage.pair.memory(GROUP).is_verified(packet), !has_checksum, "{bytes} bytes");
            stage.act(&Act::AllAcknowledge).unwrap();
            stage.act(&Act::Read { packets: 1, is_invalid: false }).unwrap();
        }
    }
}

/// The program handles a packet only if it computes the code and the checksum that the library has
/// written.
#[test]
fn the_program_computes_the_same_codes_and_checksums_for_payloads_of_any_length() {
    let Some(mut lab) = Lab::new() else { return };
    for authentication in [Authentication::Header, Authentication::Payload] {
        let mut stage = Stage::new(&mut lab, &Setting { authentication, ..SETTING }).unwrap();
        // Around the ends of blocks of 64 and 256 bytes, and with as many as there can be.
        for bytes in (0..=200).chain(248..=272).chain([511, 512, 513, 1_279, 1_280, 1_281, 1_408]) {
            let data = |defect| Act::Data { ahead: 0, ack_requested: true, pieces: 1, bytes, defect };
            let before = stage.pair.counts.handled;
            let last_bit = (64 + bytes) * 8 - 1;
            stage.act(&data(Defect::BitFlip(last_bit))).unwrap();
            assert_eq!(stage.pair.counts.handled, before, "{authentication}, a wrong bit in {bytes} bytes");
            stage.act(&data(Defect::None)).unwrap();
            assert_eq!(stage.pair.counts.handled, before + 1, "{authentication}, {bytes} bytes");
            stage.act(&Act::AllAcknowledge).unwrap();
            assert_eq!(stage.pair.counts.handled, before + 2, "{authentication}, the acknowledgment");
            stage.act(&Act::Read { packets: 1, is_invalid: false }).unwrap();
        }
    }
}
