//! The guarantees of the wire format: packets round-trip, parsing never panics, the checksum covers every byte, and the test vectors of
//! each type do not change.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;
use treecast_wire::{
    Acknowledgment, Body, Control, Cookie, Data, Eviction, GroupId, HEADER_BYTES, Header, MESSAGE_BYTES_MAX,
    Malformed, MemberId, Missing, Neighbour, Offload, PAYLOAD_BYTES_MAX, Payload, Role, Sequence, Table,
    Timestamp, View,
};

fn datagram(header: &Header, payload: &[u8]) -> Vec<u8> {
    [&header.write(Payload::new(payload).checksum())[..], payload].concat()
}

fn piece(payload: &[u8], offset: u64, rest: u64, message: u32, bits: u8) -> Body {
    let length = payload.len() as u32;
    let message_length = if length == 0 { 0 } else { offset + u64::from(length) + rest };
    let close = bits & 4 != 0 && message_length == 0;
    let offset = if length == 0 { 0 } else { offset };
    Body::Data(Data {
        message,
        offset,
        length,
        message_length,
        ack_requested: bits & 1 != 0,
        retransmitted: bits & 2 != 0,
        close,
    })
}

prop_compose! {
    fn acknowledgments()(stable: u32, window: u32) -> Acknowledgment {
        Acknowledgment { stable: Sequence(stable), receive_window: window }
    }
}

/// Any valid packet.
fn packets() -> impl Strategy<Value = (Header, Vec<u8>)> {
    let data = (
        prop::collection::vec(any::<u8>(), 0..2_000),
        0..1_u64 << 31,
        0..1_u64 << 30,
        any::<u32>(),
        any::<u8>(),
    )
        .prop_map(|(payload, offset, rest, message, bits)| {
            (piece(&payload, offset, rest, message, bits), payload)
        });
    let control =
        (any::<u32>(), prop::collection::vec(any::<u8>(), 0..100)).prop_map(|(operation, payload)| {
            (Body::Control { operation, length: payload.len() as u32 }, payload)
        });
    let body = prop_oneof![
        data,
        control,
        acknowledgments().prop_map(|acknowledgment| (Body::Acknowledgment(acknowledgment), Vec::new())),
        (acknowledgments(), any::<u32>(), any::<u64>()).prop_map(|(acknowledgment, first, bits)| {
            (Body::Nak(acknowledgment, Missing { first: Sequence(first), bits: bits | 1 }), Vec::new())
        }),
        Just((Body::Probe, Vec::new())),
    ];
    (body, any::<(u32, u64, u32, u32, u32, u64)>()).prop_map(
        |((body, payload), (group, cookie, epoch, sender, sequence, timestamp))| {
            let header = Header {
                group: GroupId(group),
                cookie: Cookie(cookie),
                epoch,
                sender: MemberId(sender),
                sequence: Sequence(sequence),
                timestamp: Timestamp(timestamp),
                body,
            };
            (header, payload)
        },
    )
}

fn addresses() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        any::<(u32, u16)>().prop_map(|(ip, port)| SocketAddr::new(Ipv4Addr::from(ip).into(), port)),
        any::<(u64, u16)>().prop_map(|(ip, port)| {
            SocketAddr::new(Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(ip)).into(), port)
        }),
    ]
}

fn tables() -> impl Strategy<Value = Table> {
    let neighbour =
        (any::<u32>(), any::<bool>(), addresses()).prop_map(|(member, is_child, address)| Neighbour {
            member: MemberId(member),
            role: if is_child { Role::Child } else { Role::Parent },
            address,
        });
    let neighbours = prop::collection::vec(neighbour, 0..=Table::PART_NEIGHBOURS_MAX);
    (neighbours, any::<(u32, u32)>(), 0..=16_u32, 512..=60_000_u16, 0..3_usize, 1..=Table::PARTS_MAX)
        .prop_map(|(neighbours, (member, start), slots, payload_bytes_max, offload, parts)| Table {
            member: MemberId(member),
            acked_epoch: member / 2,
            start: Sequence(start),
            slots: 1 << slots,
            payload_bytes_max,
            offload: Offload::NAMES[offload].1,
            part: parts / 2,
            parts,
            neighbours,
        })
}

fn controls() -> impl Strategy<Value = Control> {
    prop_oneof![
        tables().prop_map(Control::Table),
        Just(Control::TableAck),
        any::<u32>().prop_map(|member| Control::Suspect(MemberId(member))),
        any::<u32>().prop_map(|member| Control::StateLost(MemberId(member))),
        Just(Control::Join),
        Just(Control::Leave),
        prop::sample::select(vec![Eviction::Silent, Eviction::Left, Eviction::Refused, Eviction::Aborted])
            .prop_map(Control::Evicted),
    ]
}

proptest! {
    #[test]
    fn packets_round_trip((header, payload) in packets()) {
        let bytes = datagram(&header, &payload);
        let view = View::new(&bytes).unwrap();
        prop_assert_eq!((view.group(), view.cookie()), (header.group, header.cookie));
        let packet = view.check().unwrap();
        prop_assert_eq!(packet.header, header);
        prop_assert_eq!(packet.payload.bytes(), &payload[..]);
    }

    #[test]
    fn a_changed_byte_is_detected((header, payload) in packets(), index: prop::sample::Index, change in 1..=255_u8) {
        let mut bytes = datagram(&header, &payload);
        let index = index.index(bytes.len());
        bytes[index] ^= change;
        prop_assert!(View::new(&bytes).and_then(View::check).is_err());
    }

    #[test]
    fn a_truncated_or_extended_packet_is_detected((header, payload) in packets(), length in 0..3_000_usize) {
        let mut bytes = datagram(&header, &payload);
        prop_assume!(length != bytes.len());
        bytes.resize(length, 0);
        prop_assert!(View::new(&bytes).and_then(View::check).is_err());
    }

    #[test]
    fn parsed_packets_are_written_as_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 64..200), kind in 0..7_u8) {
        let mut bytes = bytes;
        (bytes[0], bytes[1], bytes[2]) = (1, kind, 0);
        for (from, to) in [(3, 4), (40, 64)] {
            bytes[from..to].iter_mut().for_each(|byte| *byte &= 1);
        }
        // The checksum would hide all other checks, so it is corrected here.
        let correct = match View::new(&bytes).and_then(View::check) {
            Err(Malformed::Checksum { computed, .. }) => computed,
            other => panic!("a random checksum was right: {other:?}"),
        };
        bytes[4..8].copy_from_slice(&correct.to_be_bytes());
        if let Ok(packet) = View::new(&bytes).and_then(View::check) {
            prop_assert_eq!(datagram(&packet.header, packet.payload.bytes()), bytes);
        }
    }

    #[test]
    fn control_messages_round_trip(control in controls()) {
        let bytes = control.write();
        prop_assert!(bytes.len() <= usize::from(Table::PAYLOAD_BYTES_MIN));
        prop_assert_eq!(Control::read(control.operation(), &bytes), Ok(control));
    }

    #[test]
    fn no_control_message_panics(operation in 0..9_u32, bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Ok(control) = Control::read(operation, &bytes) {
            prop_assert_eq!((control.operation(), control.write()), (operation, bytes));
        }
    }
}

fn header(body: Body) -> Header {
    Header {
        group: GroupId(0x0102_0304),
        cookie: Cookie(0x1112_1314_1516_1718),
        epoch: 0x2122_2324,
        sender: MemberId(0x3132_3334),
        sequence: Sequence(0x4142_4344),
        timestamp: Timestamp(0x5152_5354_5556_5758),
        body,
    }
}

/// A hex dump in words of four bytes, sixteen bytes per line.
fn dump(name: &str, bytes: &[u8]) -> String {
    let word = |word: &[u8]| format!("{:08x}", u32::from_be_bytes(word.try_into().unwrap()));
    let lines = bytes.chunks(16).enumerate().map(|(line, bytes)| {
        let (whole, rest) = bytes.as_chunks::<4>();
        let mut words: Vec<String> = whole.iter().map(|bytes| word(bytes)).collect();
        words.extend(rest.iter().map(|byte| format!("{byte:02x}")));
        format!("  {:3}  {}\n", line * 16, words.join(" "))
    });
    format!("{name}\n{}", lines.collect::<String>())
}

/// The test vectors of docs/wire.md.
#[test]
fn packets_of_each_type_match_the_test_vectors() {
    let acknowledgment = Acknowledgment { stable: Sequence(0x4142_4340), receive_window: 60 };
    let missing = Missing { first: Sequence(0x4142_4344), bits: 0b1001 };
    let data = Data {
        message: 7,
        offset: 1_408,
        length: 5,
        message_length: 1_413,
        ack_requested: true,
        retransmitted: false,
        close: false,
    };
    let table = Table {
        member: MemberId(3),
        acked_epoch: 0,
        start: Sequence(9),
        slots: 256,
        payload_bytes_max: 1_408,
        offload: Offload::Nic,
        part: 0,
        parts: 1,
        neighbours: vec![
            Neighbour { member: MemberId(1), role: Role::Parent, address: "192.0.2.1:7000".parse().unwrap() },
            Neighbour {
                member: MemberId(5),
                role: Role::Child,
                address: "[2001:db8::5]:7001".parse().unwrap(),
            },
        ],
    };
    let control = |control: Control| {
        let payload = control.write();
        datagram(
            &header(Body::Control { operation: control.operation(), length: payload.len() as u32 }),
            &payload,
        )
    };
    let text = [
        dump("data", &datagram(&header(Body::Data(data)), b"hello")),
        dump("acknowledgment", &datagram(&header(Body::Acknowledgment(acknowledgment)), b"")),
        dump("NAK", &datagram(&header(Body::Nak(acknowledgment, missing)), b"")),
        dump("probe", &datagram(&header(Body::Probe), b"")),
        dump("control: table", &control(Control::Table(table))),
        dump("control: table acknowledgment", &control(Control::TableAck)),
        dump("control: suspect", &control(Control::Suspect(MemberId(4)))),
        dump("control: evicted", &control(Control::Evicted(Eviction::Refused))),
    ];
    let text = text.join("\n");
    insta::assert_snapshot!(text);
    let page = include_str!("../../../docs/wire.md");
    assert!(page.contains(text.trim_end()), "docs/wire.md does not show these test vectors");
}

#[test]
fn errors_name_the_defect() {
    let good = datagram(&header(Body::Probe), b"");
    let error = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        View::new(&bytes).and_then(View::check).unwrap_err()
    };
    assert_eq!(error(&|bytes| bytes.truncate(63)), Malformed::Short(63));
    assert_eq!(error(&|bytes| bytes.clear()), Malformed::Short(0));
    assert_eq!(error(&|bytes| bytes[0] = 2), Malformed::Version(2));
    assert!(matches!(error(&|bytes| bytes[63] = 1), Malformed::Checksum { .. }));
    assert_eq!(error(&|bytes| bytes[0] = 0).to_string(), "version 0 is not known: this is version 1");
}

#[test]
fn pieces_lie_within_their_message() {
    let check = |offset, length: u32, message_length, close| {
        let payload = vec![1; length as usize];
        let data = Data {
            message: 0,
            offset,
            length,
            message_length,
            ack_requested: false,
            retransmitted: false,
            close,
        };
        View::new(&datagram(&header(Body::Data(data)), &payload)).and_then(View::check).map(|_| ())
    };
    assert_eq!(check(0, 0, 0, false), Ok(()));
    assert_eq!(check(0, 0, 0, true), Ok(()));
    assert_eq!(check(MESSAGE_BYTES_MAX - 9, 9, MESSAGE_BYTES_MAX, false), Ok(()));
    assert!(matches!(check(0, 9, MESSAGE_BYTES_MAX + 1, false), Err(Malformed::Piece { .. })));
    assert!(matches!(check(1, 9, 9, false), Err(Malformed::Piece { .. })));
    assert!(matches!(check(u64::MAX, 9, 9, false), Err(Malformed::Piece { .. })));
    assert!(matches!(check(0, 0, 9, false), Err(Malformed::Piece { .. })));
    assert!(matches!(check(0, 9, 9, true), Err(Malformed::Flags(4))));
    assert_eq!(PAYLOAD_BYTES_MAX + HEADER_BYTES, 65_507);
}
