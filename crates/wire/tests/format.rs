//! The guarantees of the wire format: packets round-trip, parsing never panics, a changed byte is
//! detected, and the test vectors of each type do not change.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;
use treecast_wire::{
    Acknowledgment, Authentication, Body, Challenge, Contribution, Control, ControlHeader, Crcs, Data,
    Distribution, Element, Eviction, GroupId, HEADER_BYTES, Handshake, Header, Integrity, Keys,
    MESSAGE_BYTES_MAX, MacKey, Malformed, MemberId, Missing, Neighbour, Nonce, Offload, Operation,
    PAYLOAD_BYTES_MAX, PayloadKey, ReaderSet, Readers, Role, RootLoss, Sequence, SessionId, Table, Timestamp,
    Transport, Values, View,
};

const KEYS: Keys = Keys {
    header: MacKey([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]),
    control: MacKey([0x1716_1514_1312_1110, 0x1f1e_1d1c_1b1a_1918]),
    data: PayloadKey { code: MacKey([0x2726_2524_2322_2120, 0x2f2e_2d2c_2b2a_2928]), hash: hash_key() },
    authentication: Authentication::Header,
    crcs: Crcs::All,
};

/// A key of NH whose bytes count up from 30.
const fn hash_key() -> [u64; PayloadKey::HASH_WORDS] {
    let mut words = [0; PayloadKey::HASH_WORDS];
    let mut byte = 0;
    while byte < words.len() * 8 {
        words[byte / 8] |= ((0x30 + byte as u64) & 0xff) << (8 * (byte % 8));
        byte += 1;
    }
    words
}

const PAYLOAD_KEYS: Keys = Keys { authentication: Authentication::Payload, ..KEYS };

fn datagram(header: &Header, payload: &[u8]) -> Vec<u8> {
    [&header.write(&KEYS.header)[..], payload].concat()
}

fn check<'a>(datagram: &'a [u8], keys: &Keys) -> Result<treecast_wire::Packet<'a>, Malformed> {
    View::new(datagram)?.check(keys)
}

fn piece(payload: &[u8], offset: u64, rest: u64, message: u32, bits: u8) -> Body {
    let length = payload.len() as u32;
    let close = bits & 4 != 0 && length == 0;
    let message_length = match length {
        0 if close => rest << 10,
        0 => 0,
        _ => offset + u64::from(length) + rest,
    };
    let offset = if length == 0 { 0 } else { offset };
    Body::Data(Data {
        message,
        offset,
        length,
        message_length,
        checksum: KEYS.data_checksum(Sequence(0), payload),
        ack_requested: bits & 1 != 0,
        retransmitted: bits & 2 != 0,
        close,
        distribution: [Distribution::Tree, Distribution::Multicast, Distribution::MulticastAndTree]
            [usize::from(bits >> 3) % 3],
    })
}

prop_compose! {
    fn acknowledgments()(stable: u32, receive_window: u32, echo: u64, is_reached: bool, is_congested: bool) -> Acknowledgment {
        Acknowledgment { stable: Sequence(stable), receive_window, echo: Timestamp(echo), is_reached, is_congested }
    }
}

fn control_header(operation: u32, nonce: u64, payload: &[u8]) -> ControlHeader {
    let checksum = KEYS.control_checksum(payload);
    ControlHeader { operation, nonce: Nonce(nonce), length: payload.len() as u32, checksum }
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
    let control = (any::<(u32, u64, bool)>(), prop::collection::vec(any::<u8>(), 0..100)).prop_map(
        |((operation, nonce, is_handshake), payload)| {
            let header = control_header(operation, nonce, &payload);
            (if is_handshake { Body::Handshake(header) } else { Body::Control(header) }, payload)
        },
    );
    let body = prop_oneof![
        data,
        control,
        acknowledgments().prop_map(|acknowledgment| (Body::Acknowledgment(acknowledgment), Vec::new())),
        (acknowledgments(), any::<u32>(), any::<u64>()).prop_map(|(acknowledgment, first, bits)| {
            (Body::Nak(acknowledgment, Missing { first: Sequence(first), bits: bits | 1 }), Vec::new())
        }),
        Just((Body::Probe, Vec::new())),
        (0..2_000_u32).prop_map(|length| (Body::PathProbe { length }, vec![0; length as usize])),
        Just((Body::Heartbeat, Vec::new())),
        any::<[u8; Challenge::BYTES]>()
            .prop_map(|challenge| (Body::Attach(Challenge(challenge)), Vec::new())),
    ];
    (body, any::<(u32, u32, u32, u32, u64)>()).prop_map(
        |((body, payload), (group, epoch, sender, sequence, timestamp))| {
            let header = Header {
                group: GroupId(group),
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
    let neighbour = (any::<u32>(), 0..3_usize, addresses()).prop_map(|(member, role, address)| {
        let role = [Role::Parent, Role::Child, Role::Multicast][role];
        let group_address = SocketAddr::new(Ipv4Addr::new(239, 1, 2, 3).into(), address.port());
        let address = if role == Role::Multicast { group_address } else { address };
        Neighbour { member: MemberId(member), role, address }
    });
    let neighbours = prop::collection::vec(neighbour, 0..=Table::PART_NEIGHBOURS_MAX);
    (neighbours, any::<(u32, u32, u64)>(), 0..=16_u32, 512..=60_000_u16, 0..12_usize, 1..=Table::PARTS_MAX)
        .prop_map(|(neighbours, (member, start, bytes), slots, payload_bytes_max, choice, parts)| Table {
            member: MemberId(member),
            start: Sequence(start),
            slots: 1 << slots,
            message: member / 2,
            bytes,
            payload_bytes_max,
            offload: Offload::NAMES[choice % 4].1,
            authentication: Authentication::NAMES[choice % 2].1,
            integrity: Integrity::NAMES[choice / 2 % 2].1,
            transport: Transport::NAMES[choice / 3 % 3].1,
            is_encrypted: choice % 2 == 1,
            part: parts / 2,
            parts,
            neighbours,
        })
}

fn readers() -> impl Strategy<Value = Readers> {
    let set = || {
        prop::collection::vec(0..ReaderSet::READERS_MAX, 0..20).prop_map(|places| {
            let mut set = ReaderSet::default();
            for place in places {
                set.insert(place);
            }
            set
        })
    };
    (set(), set()).prop_map(|(awaited, lost)| Readers { awaited, lost })
}

/// Processes 0 and 2 have not come, and process 1 is lost.
fn shared_readers() -> Readers {
    let mut readers = Readers { awaited: ReaderSet::first(3), lost: ReaderSet::default() };
    readers.awaited.remove(1);
    readers.lost.insert(1);
    readers
}

fn contributions() -> impl Strategy<Value = Contribution> {
    let operation = prop::sample::select(Operation::NAMES.map(|(_, operation)| operation).to_vec());
    let element = prop::sample::select(Element::NAMES.map(|(_, element)| element).to_vec());
    let values = (operation, element, prop::collection::vec(any::<u8>(), 0..=Values::BYTES_MAX))
        .prop_filter_map("bits of integers only", |(operation, element, mut bytes)| {
            bytes.truncate(bytes.len() / element.bytes() * element.bytes());
            let values = Values { operation, element, bytes };
            values.are_valid().then_some(values)
        });
    (any::<u32>(), any::<u16>(), proptest::option::of(values))
        .prop_map(|(packet, processes, values)| Contribution { packet: Sequence(packet), processes, values })
}

fn controls() -> impl Strategy<Value = Control> {
    prop_oneof![
        tables().prop_map(Control::Table),
        proptest::option::of(readers()).prop_map(Control::TableAck),
        any::<u32>().prop_map(|member| Control::Suspect(MemberId(member))),
        any::<u32>().prop_map(|member| Control::StateLost(MemberId(member))),
        addresses().prop_map(Control::Join),
        Just(Control::Leave),
        prop::sample::select(Eviction::ALL.to_vec()).prop_map(Control::Evicted),
        prop::sample::select(vec![RootLoss::Silent, RootLoss::Restarted]).prop_map(Control::RootLost),
        contributions().prop_map(Control::Contribution),
    ]
}

#[test]
fn the_page_lists_the_codes_of_evictions() {
    let page = include_str!("../../../docs/wire.md");
    let (_, table) = page.split_once("| code | why a host is no member |\n|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let codes: Vec<u32> = rows.map(|row| row.split('|').nth(1).unwrap().trim().parse().unwrap()).collect();
    assert_eq!(codes, Eviction::ALL.map(Eviction::code));
    assert_eq!(Eviction::from_code(codes.len() as u32), None);
}

proptest! {
    #[test]
    fn packets_round_trip((header, payload) in packets()) {
        let bytes = datagram(&header, &payload);
        prop_assert_eq!(View::new(&bytes).unwrap().group(), header.group);
        let packet = check(&bytes, &KEYS).unwrap();
        prop_assert_eq!(packet.header, header);
        prop_assert_eq!(packet.payload, &payload[..]);
    }

    #[test]
    fn a_changed_byte_is_detected((header, payload) in packets(), index: prop::sample::Index, change in 1..=255_u8) {
        let mut bytes = datagram(&header, &payload);
        let index = index.index(bytes.len());
        bytes[index] ^= change;
        prop_assert!(check(&bytes, &KEYS).is_err());
    }

    #[test]
    fn a_truncated_or_extended_packet_is_detected((header, payload) in packets(), length in 0..3_000_usize) {
        let mut bytes = datagram(&header, &payload);
        prop_assume!(length != bytes.len());
        bytes.resize(length, 0);
        prop_assert!(check(&bytes, &KEYS).is_err());
    }

    #[test]
    fn a_packet_of_other_keys_is_detected((header, payload) in packets(), keys: [u64; 2]) {
        let bytes = datagram(&header, &payload);
        prop_assert_eq!(check(&bytes, &Keys { header: MacKey(keys), ..KEYS }).unwrap_err(), Malformed::Mac);
    }

    #[test]
    fn a_change_that_keeps_the_crc_is_detected_where_codes_cover_payloads(
        payload in prop::collection::vec(any::<u8>(), 5..100), index: prop::sample::Index,
    ) {
        // The polynomial of the CRC, its bits in the order of transmission: a multiple of it
        // changes no checksum.
        let pattern = [0xf1, 0x76, 0xec, 0x05, 0x01];
        let mut forged = payload.clone();
        let from = index.index(payload.len() - 4);
        forged[from..].iter_mut().zip(pattern).for_each(|(byte, bits)| *byte ^= bits);
        let number = Sequence(1);
        prop_assert_eq!(KEYS.data_checksum(number, &forged), KEYS.data_checksum(number, &payload));
        prop_assert_ne!(PAYLOAD_KEYS.data_checksum(number, &forged), PAYLOAD_KEYS.data_checksum(number, &payload));
        prop_assert_ne!(KEYS.control_checksum(&forged), KEYS.control_checksum(&payload));
    }

    #[test]
    fn parsed_packets_are_written_as_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 64..200), kind in 0..8_u8) {
        let mut bytes = bytes;
        (bytes[0], bytes[1], bytes[2]) = (2, kind, 0);
        for (from, to) in [(3, 4), (28, 56)] {
            bytes[from..to].iter_mut().for_each(|byte| *byte &= 1);
        }
        // The code and the checksum would hide all other checks, so they are corrected here.
        let correct = |bytes: &mut Vec<u8>| {
            let code = KEYS.header.mac(&bytes[..56]);
            bytes[56..64].copy_from_slice(&code.to_be_bytes());
        };
        correct(&mut bytes);
        if let Err(Malformed::Checksum { computed, .. }) = check(&bytes, &KEYS) {
            bytes[32..40].copy_from_slice(&computed.to_be_bytes());
            correct(&mut bytes);
        }
        if let Ok(packet) = check(&bytes, &KEYS) {
            prop_assert_eq!(datagram(&packet.header, packet.payload), bytes);
        }
    }

    #[test]
    fn control_messages_round_trip(control in controls()) {
        let bytes = control.write();
        prop_assert!(bytes.len() <= usize::from(Table::PAYLOAD_BYTES_MIN));
        prop_assert_eq!(Control::read(control.operation(), &bytes), Ok(control));
    }

    #[test]
    fn no_control_message_panics(operation in 0..12_u32, bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Ok(control) = Control::read(operation, &bytes) {
            prop_assert_eq!((control.operation(), control.write()), (operation, bytes.clone()));
        }
        if let Ok(handshake) = Handshake::read(operation, &bytes) {
            prop_assert_eq!((handshake.operation(), handshake.write()), (operation, bytes));
        }
    }
}

const NONCE: u64 = 0x7172_7374_7576_7778;

fn header(body: Body) -> Header {
    Header {
        group: GroupId(0x0102_0304),
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

/// A contribution of two numbers to a maximum.
fn maximum() -> Control {
    let numbers = [1_u32, 2].into_iter().flat_map(u32::to_le_bytes).collect();
    let values = Values { operation: Operation::Max, element: Element::U32, bytes: numbers };
    Control::Contribution(Contribution {
        packet: Sequence(0x4142_4344),
        processes: 0x4546,
        values: Some(values),
    })
}

/// The test vectors of docs/wire.md.
#[test]
fn packets_of_each_type_match_the_test_vectors() {
    let acknowledgment = Acknowledgment {
        stable: Sequence(0x4142_4340),
        receive_window: 60,
        echo: Timestamp(0x6162_6364),
        is_reached: false,
        is_congested: false,
    };
    let reached = Acknowledgment { is_reached: true, is_congested: true, ..acknowledgment };
    let missing = Missing { first: Sequence(0x4142_4344), bits: 0b1001 };
    let data = Data {
        message: 7,
        offset: 1_408,
        length: 5,
        message_length: 1_413,
        checksum: KEYS.data_checksum(Sequence(0), b"hello"),
        ack_requested: true,
        retransmitted: false,
        close: false,
        distribution: Distribution::Tree,
    };
    let multicast = Data { distribution: Distribution::Multicast, ..data };
    let table = Table {
        member: MemberId(3),
        start: Sequence(9),
        slots: 256,
        message: 6,
        bytes: 12_000,
        payload_bytes_max: 1_408,
        offload: Offload::Nic,
        authentication: Authentication::Header,
        integrity: Integrity::Network,
        transport: Transport::Packets,
        is_encrypted: false,
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
    let coded = |payload: &[u8]| {
        let length = payload.len() as u32;
        let checksum = PAYLOAD_KEYS.data_checksum(header(Body::Probe).sequence, payload);
        let body = Data { length, message_length: 1_408 + u64::from(length), checksum, ..data };
        datagram(&header(Body::Data(body)), payload)
    };
    let mut multicast_table = Table { offload: Offload::Switch, ..table.clone() };
    multicast_table.neighbours.insert(
        1,
        Neighbour { member: MemberId(0), role: Role::Multicast, address: "239.1.2.3:7003".parse().unwrap() },
    );
    let control = |control: Control| {
        let payload = control.write();
        datagram(&header(Body::Control(control_header(control.operation(), NONCE, &payload))), &payload)
    };
    let handshake = |handshake: Handshake, nonce| {
        let payload = handshake.write();
        datagram(&header(Body::Handshake(control_header(handshake.operation(), nonce, &payload))), &payload)
    };
    let session = SessionId(std::array::from_fn(|index| 0x80 + index as u8));
    let text = [
        dump("data", &datagram(&header(Body::Data(data)), b"hello")),
        dump("acknowledgment", &datagram(&header(Body::Acknowledgment(acknowledgment)), b"")),
        dump("NAK", &datagram(&header(Body::Nak(acknowledgment, missing)), b"")),
        dump("probe", &datagram(&header(Body::Probe), b"")),
        dump("control: table", &control(Control::Table(table))),
        dump("control: table acknowledgment", &control(Control::TableAck(None))),
        dump(
            "control: table acknowledgment of a shared node: processes 0 and 2 have not come, 1 is lost",
            &control(Control::TableAck(Some(shared_readers()))),
        ),
        dump("control: suspect", &control(Control::Suspect(MemberId(4)))),
        dump("control: evicted", &control(Control::Evicted(Eviction::Refused))),
        dump("control: join", &control(Control::Join("192.0.2.3:7002".parse().unwrap()))),
        dump("control: contribution of two numbers, 1 and 2, to a maximum", &control(maximum())),
        dump("handshake: invite", &handshake(Handshake::Invite(session), 0)),
        dump("handshake: hello", &handshake(Handshake::Hello, NONCE)),
        dump(
            "handshake: welcome",
            &handshake(Handshake::Welcome { session, address: "192.0.2.3:7002".parse().unwrap() }, NONCE),
        ),
        dump("data, to the multicast address", &datagram(&header(Body::Data(multicast)), b"hello")),
        dump(
            "acknowledgment of a member that multicast reaches",
            &datagram(&header(Body::Acknowledgment(reached)), b""),
        ),
        dump("heartbeat", &datagram(&header(Body::Heartbeat), b"")),
        dump("control: table with a multicast address", &control(Control::Table(multicast_table))),
        dump("path probe", &datagram(&header(Body::PathProbe { length: 5 }), &[0; 5])),
        dump("data with the code of its payload", &coded(&[5; 5])),
        dump("data with the code of its payload, of two blocks", &coded(&[6; 300])),
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
        check(&bytes, &KEYS).unwrap_err()
    };
    assert_eq!(error(&|bytes| bytes.truncate(63)), Malformed::Short(63));
    assert_eq!(error(&|bytes| bytes.clear()), Malformed::Short(0));
    assert_eq!(error(&|bytes| bytes[0] = 1), Malformed::Version(1));
    assert_eq!(error(&|bytes| bytes[63] ^= 1), Malformed::Mac);
    assert_eq!(error(&|bytes| bytes[0] = 0).to_string(), "version 0 is not known: this is version 2");
}

#[test]
fn a_table_names_no_unicast_address_as_that_of_multicast() {
    let neighbour = |ip: &str| Neighbour {
        member: MemberId(0),
        role: Role::Multicast,
        address: SocketAddr::new(ip.parse().unwrap(), 7_000),
    };
    let is_valid = |ip| {
        let table = Table {
            member: MemberId(3),
            start: Sequence(9),
            slots: 256,
            message: 6,
            bytes: 12_000,
            payload_bytes_max: 1_408,
            offload: Offload::Switch,
            authentication: Authentication::Header,
            integrity: Integrity::Network,
            transport: Transport::Packets,
            is_encrypted: false,
            part: 0,
            parts: 1,
            neighbours: vec![neighbour(ip)],
        };
        Control::read(1, &Control::Table(table).write()).is_ok()
    };
    assert!(is_valid("239.1.2.3") && is_valid("ff15::1"));
    assert!(!is_valid("192.0.2.1") && !is_valid("2001:db8::1"));
}

#[test]
fn pieces_lie_within_their_message() {
    let result = |offset, length: u32, message_length, close| {
        let payload = vec![1; length as usize];
        let data = Data {
            message: 0,
            offset,
            length,
            message_length,
            checksum: KEYS.data_checksum(Sequence(0), &payload),
            ack_requested: false,
            retransmitted: false,
            close,
            distribution: Distribution::Tree,
        };
        check(&datagram(&header(Body::Data(data)), &payload), &KEYS).map(|_| ())
    };
    assert_eq!(result(0, 0, 0, false), Ok(()));
    assert_eq!(result(0, 0, 0, true), Ok(()));
    // The bytes of all messages.
    assert_eq!(result(0, 0, u64::MAX, true), Ok(()));
    assert_eq!(result(MESSAGE_BYTES_MAX - 9, 9, MESSAGE_BYTES_MAX, false), Ok(()));
    for (offset, length, message_length, close) in [
        (0, 9, MESSAGE_BYTES_MAX + 1, false),
        (1, 9, 9, false),
        (u64::from(u32::MAX), 9, 9, false),
        (0, 0, 9, false),
        (0, 9, 9, true),
        (1, 0, 9, true),
    ] {
        assert!(matches!(result(offset, length, message_length, close), Err(Malformed::Piece { .. })));
    }
    assert_eq!(PAYLOAD_BYTES_MAX + HEADER_BYTES, 65_507);
}
