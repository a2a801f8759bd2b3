//! A group that is lent, and given back with what cannot be: by a NIC that is broken, or whose slots somebody else has written.

use std::net::SocketAddr;

use proptest::prelude::*;
use treecast_proto::{
    Cookie, GroupId, Input, Lent, LentPacket, MemberId, Nanoseconds, Offload, Output, PayloadChecksum, Piece,
    Protocol, Sequence, Settings,
};
use treecast_wire::{Acknowledgment, Body, Control, Header, Neighbour, Role, Table, Timestamp};

const GROUP: GroupId = GroupId(1);
const COOKIE: Cookie = Cookie(0xc0de);
const NOW: Nanoseconds = Nanoseconds::from_ms(1);
const SLOTS: u32 = 16;
const PAYLOAD_BYTES_MAX: u16 = 512;
/// Numbers wrap on the way.
const START: Sequence = Sequence(u32::MAX - 20);
const CHILDREN: u32 = 2;

fn address(member: u32) -> SocketAddr {
    SocketAddr::from(([10, 2, 0, member as u8 + 1], 7_000))
}

fn hear(protocol: &mut Protocol, from: u32, body: Body, payload: &[u8]) {
    let header = Header {
        group: GROUP,
        cookie: COOKIE,
        epoch: 1,
        sender: MemberId(from),
        sequence: if from == 0 { Sequence(0) } else { START },
        timestamp: Timestamp(NOW.0),
        body,
    };
    let bytes = [&header.write(PayloadChecksum::of(payload))[..], payload].concat();
    protocol.handle(NOW, Input::Datagram { from: address(from), bytes: &bytes }).unwrap();
    while let Output::Transmit(_) = protocol.poll(NOW) {}
}

/// A member between the root and two children, lent.
fn lend() -> (Protocol, Lent) {
    let mut protocol = Protocol::new(Settings::default());
    let follow = Input::JoinGroup { group: GROUP, cookie: COOKIE, root: address(0), sends_join: false };
    protocol.handle(NOW, follow).unwrap();
    let neighbour = |member, role| Neighbour { member: MemberId(member), role, address: address(member) };
    let control = Control::Table(Table {
        member: MemberId(1),
        taken: 0,
        start: START,
        slots: SLOTS,
        payload_bytes_max: PAYLOAD_BYTES_MAX,
        offload: Offload::Nic,
        part: 0,
        parts: 1,
        neighbours: [neighbour(0, Role::Parent)]
            .into_iter()
            .chain((0..CHILDREN).map(|place| neighbour(2 + place, Role::Child)))
            .collect(),
    });
    let table = control.write();
    let body = Body::Control { operation: control.operation(), length: table.len() as u32 };
    hear(&mut protocol, 0, body, &table);
    // The first opens a child, the second answers that it was asked something.
    for child in (0..CHILDREN).flat_map(|place| [2 + place; 2]) {
        let acknowledgment = Acknowledgment { stable: START, window: SLOTS };
        hear(&mut protocol, child, Body::Acknowledgment(acknowledgment), &[]);
    }
    let mut lent = Lent::new();
    assert!(protocol.lend(GROUP, &mut lent, |_| true), "nothing is out of the ordinary");
    (protocol, lent)
}

/// The packet of that number, a message by itself.
fn packet(number: Sequence) -> LentPacket {
    let message = number.distance_from(START) as u32;
    let piece = Piece { message, offset: 0, length: 5, message_length: 5, checksum: PayloadChecksum::EMPTY };
    LentPacket { piece, ack_requested: false, sent_at: NOW }
}

/// What can happen to a node whose group has come back: nothing of it may break it.
fn go_on(mut protocol: Protocol) {
    for step in 0..50 {
        let now = NOW + Nanoseconds::from_ms(100 * step);
        while let Output::Transmit(_) = protocol.poll(now) {}
        while protocol.take_event().is_some() {}
        let _ = protocol.handle(now, Input::Elapsed);
    }
    let (from, end) = protocol.readable(GROUP).unwrap_or_default();
    assert!(!end.is_before(from) && end.distance_from(from) <= SLOTS as i32);
    let _ = protocol.handle(NOW + Nanoseconds::from_ms(6_000), Input::Leave { group: GROUP });
    while let Output::Transmit(_) = protocol.poll(NOW + Nanoseconds::from_ms(6_000)) {}
}

#[test]
fn what_was_done_meanwhile_is_taken_over() {
    let (mut protocol, mut lent) = lend();
    lent.next = START + 5;
    lent.counts.accepted = 5;
    lent.children.iter_mut().for_each(|child| child.sent = START + 5);
    assert!(protocol.take_back(GROUP, &lent, packet));
    assert_eq!(protocol.readable(GROUP), Some((START, START + 5)));
    assert_eq!(protocol.piece(GROUP, START + 4).map(|piece| piece.message), Some(4));
    assert_eq!(protocol.counters(GROUP).map(|counters| counters.accepted), Some(5));
    go_on(protocol);
}

#[test]
fn a_slot_that_a_packet_has_left_is_not_looked_at() {
    let (mut protocol, mut lent) = lend();
    (lent.next, lent.consumed, lent.stable, lent.freed) = (START + 5, START + 3, START + 3, START + 3);
    lent.least = Some((START + 3, CHILDREN as usize));
    lent.counts.accepted = 5;
    for child in &mut lent.children {
        (child.sent, child.acked, child.stable) = (START + 5, START + 5, START + 3);
    }
    // A root's application is writing there, and what is half written makes no sense.
    let mut looked_at = Vec::new();
    assert!(protocol.take_back(GROUP, &lent, |number| {
        looked_at.push(number);
        packet(number)
    }));
    assert_eq!(looked_at, [START + 3, START + 4]);
    go_on(protocol);
}

/// Numbers near those that are there, and any.
fn number() -> impl Strategy<Value = Sequence> {
    prop_oneof![(0..60_u32).prop_map(|ahead| START - 20 + ahead), any::<u32>().prop_map(Sequence)]
}

proptest! {
    #[test]
    fn numbers_that_cannot_be_change_nothing(
        numbers in prop::collection::vec((0..9_usize, number()), 1..4),
        children in 0..4_usize,
    ) {
        let (mut protocol, mut lent) = lend();
        for (place, number) in numbers {
            let child = &mut lent.children[0];
            *match place {
                0 => &mut lent.next,
                1 => &mut lent.consumed,
                2 => &mut lent.stable,
                3 => &mut lent.freed,
                4 => &mut lent.told_end,
                5 => &mut lent.asked,
                6 => &mut child.sent,
                7 => &mut child.acked,
                _ => &mut child.stable,
            } = number;
        }
        if children < 2 {
            lent.children.truncate(children);
        }
        let before = protocol.readable(GROUP);
        if !protocol.take_back(GROUP, &lent, packet) {
            prop_assert_eq!(protocol.readable(GROUP), before);
        }
        go_on(protocol);
    }

    #[test]
    fn packets_that_cannot_be_are_told(
        count in 1..=SLOTS,
        spoilt in 0..SLOTS,
        piece in (any::<u32>(), any::<u64>(), any::<u32>(), any::<u64>()),
    ) {
        let (mut protocol, mut lent) = lend();
        lent.next = START + count;
        lent.children.iter_mut().for_each(|child| child.sent = lent.next);
        let (message, offset, length, message_length) = piece;
        let checksum = PayloadChecksum::EMPTY;
        let wrong = Piece { message, offset, length, message_length, checksum };
        let is_wrong = |number| number == START + spoilt;
        let spoil = |number| match packet(number) {
            packet if is_wrong(number) => LentPacket { piece: wrong, ..packet },
            packet => packet,
        };
        // So long a payload is in no slot.
        prop_assume!(length > u32::from(PAYLOAD_BYTES_MAX));
        prop_assert_eq!(protocol.take_back(GROUP, &lent, spoil), spoilt >= count);
        go_on(protocol);
    }
}
