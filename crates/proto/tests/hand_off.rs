//! A group that is handed off and reclaimed with invalid state: from a broken NIC, or with slots
//! that an application has written.

use std::net::SocketAddr;

use proptest::prelude::*;
use treecast_proto::{
    AbortReason, Authentication, GroupId, GroupKey, HandOff, HandOffPacket, Input, Integrity, MemberId,
    Nanoseconds, Offload, Output, PayloadChecksum, Piece, Protocol, Refused, Sequence, SessionId, Settings,
    Transport,
};
use treecast_wire::{
    Acknowledgment, Body, Contribution, Control, ControlHeader, Handshake, Header, Keys, MacKey, Neighbour,
    Nonce, Role, Table, Timestamp,
};

const GROUP: GroupId = GroupId(1);
const SESSION: SessionId = SessionId([1; 16]);
const SEED: [u64; 2] = [1, 2];
const NOW: Nanoseconds = Nanoseconds::from_ms(1);
const SLOTS: u32 = 16;
const PAYLOAD_BYTES_MAX: u16 = 512;
/// Sequence numbers wrap during the tests.
const START: Sequence = Sequence(u32::MAX - 20);
const CHILDREN: u32 = 2;

fn address(member: u32) -> SocketAddr {
    SocketAddr::from(([10, 2, 0, member as u8 + 1], 7_000))
}

/// Drops what the node sends.
fn drain(protocol: &mut Protocol, now: Nanoseconds) {
    while !matches!(protocol.poll(now), Output::Timeout(_)) {}
}

fn key() -> GroupKey {
    GroupKey::new("a token", GROUP)
}

fn session_keys() -> Keys {
    key().session_keys(SESSION, Authentication::Header)
}

/// The header of a control message or a handshake for the member, whose nonce follows from its
/// seed.
fn control_header(keys: &Keys, operation: u32, payload: &[u8]) -> ControlHeader {
    let nonce = Nonce(MacKey(SEED).mac(&0_u64.to_be_bytes()));
    ControlHeader { operation, nonce, length: payload.len() as u32, checksum: keys.control_checksum(payload) }
}

fn datagram(keys: &Keys, from: u32, at: u64, body: Body, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        group: GROUP,
        epoch: 1,
        sender: MemberId(from),
        sequence: if from == 0 { Sequence(0) } else { START },
        timestamp: Timestamp(at),
        body,
    };
    [&header.write(&keys.header)[..], payload].concat()
}

fn receive(protocol: &mut Protocol, keys: &Keys, from: u32, at: u64, body: Body, payload: &[u8]) {
    let bytes = datagram(keys, from, at, body, payload);
    protocol.handle(NOW, Input::Datagram { from: address(from), bytes: &bytes }).unwrap();
    drain(protocol, NOW);
}

/// A member between the root and two children, handed off.
fn hand_off() -> (Protocol, HandOff) {
    hand_off_with(CHILDREN)
}

/// A member with `children` children, handed off.
fn hand_off_with(children: u32) -> (Protocol, HandOff) {
    let mut protocol = Protocol::new(Settings::default());
    let join = Input::JoinGroup { group: GROUP, key: key(), root: address(0), seed: SEED };
    protocol.handle(NOW, join).unwrap();
    let (keys, welcome) =
        (key().handshake_keys(), Handshake::Welcome { session: SESSION, address: address(1) });
    let payload = welcome.write();
    let body = Body::Handshake(control_header(&keys, welcome.operation(), &payload));
    receive(&mut protocol, &keys, 0, 1, body, &payload);
    let neighbour = |member, role| Neighbour { member: MemberId(member), role, address: address(member) };
    let control = Control::Table(Table {
        member: MemberId(1),
        start: START,
        slots: SLOTS,
        message: 0,
        bytes: 0,
        payload_bytes_max: PAYLOAD_BYTES_MAX,
        offload: Offload::Nic,
        authentication: Authentication::Header,
        integrity: Integrity::default(),
        transport: Transport::Packets,
        is_encrypted: false,
        part: 0,
        parts: 1,
        neighbours: [neighbour(0, Role::Parent)]
            .into_iter()
            .chain((0..children).map(|place| neighbour(2 + place, Role::Child)))
            .collect(),
    });
    let table = control.write();
    let keys = session_keys();
    let body = Body::Control(control_header(&keys, control.operation(), &table));
    receive(&mut protocol, &keys, 0, 2, body, &table);
    // The first acknowledgment establishes a child, the second answers the probe that was sent to
    // it.
    for (child, at) in (0..children).flat_map(|place| [(2 + place, 1), (2 + place, 2)]) {
        let acknowledgment = Acknowledgment {
            stable: START,
            receive_window: SLOTS,
            echo: Timestamp(0),
            is_reached: false,
            is_congested: false,
        };
        receive(&mut protocol, &keys, child, at, Body::Acknowledgment(acknowledgment), &[]);
    }
    let mut handed_off = HandOff::new();
    assert!(protocol.hand_off_state(GROUP, &mut handed_off), "nothing needs the slow path");
    assert_eq!(protocol.handle(NOW, Input::HandedOff { group: GROUP }), Ok(()));
    (protocol, handed_off)
}

/// The group comes back in this state, with its new packets.
fn reclaim(
    protocol: &mut Protocol,
    state: &HandOff,
    packet: impl Fn(Sequence) -> HandOffPacket,
) -> Result<(), Refused> {
    let packets: Vec<_> = protocol.new_packets(GROUP, state).map(packet).collect();
    protocol.handle(NOW, Input::Reclaimed { group: GROUP, state, packets: &packets })
}

/// The packet with this number, which is a whole message.
fn packet(number: Sequence) -> HandOffPacket {
    let message = number.distance_from(START) as u32;
    let piece =
        Piece { message, offset: 0, length: 5, message_length: 5, checksum: PayloadChecksum::crc(&[]) };
    HandOffPacket { piece, ack_requested: false, sent_at: NOW }
}

/// Time passes for a node whose group was reclaimed, and its user leaves: it must not panic.
fn run_to_the_end(mut protocol: Protocol) {
    for step in 0..50 {
        let now = NOW + Nanoseconds::from_ms(100 * step);
        drain(&mut protocol, now);
        let _ = protocol.handle(now, Input::Timeout);
    }
    let (from, end) = protocol.readable(GROUP).unwrap_or_default();
    assert!(!end.is_before(from) && end.distance_from(from) <= SLOTS as i32);
    let _ = protocol.handle(NOW + Nanoseconds::from_ms(6_000), Input::Leave { group: GROUP });
    drain(&mut protocol, NOW + Nanoseconds::from_ms(6_000));
}

#[test]
fn reclaiming_restores_the_state_of_the_fast_path() {
    let (mut protocol, mut handed_off) = hand_off();
    handed_off.flow.next = START + 5;
    handed_off.flow.counters.accepted = 5;
    handed_off.children.iter_mut().for_each(|child| child.state.sent = START + 5);
    assert_eq!(reclaim(&mut protocol, &handed_off, packet), Ok(()));
    assert_eq!(protocol.readable(GROUP), Some((START, START + 5)));
    assert_eq!(protocol.piece(GROUP, START + 4).map(|piece| piece.message), Some(4));
    assert_eq!(protocol.counters(GROUP).map(|counters| counters.accepted), Some(5));
    run_to_the_end(protocol);
}

#[test]
fn a_group_is_handed_off_once_and_reclaimed_once() {
    let (mut protocol, handed_off) = hand_off();
    let hand_off = |protocol: &mut Protocol| protocol.handle(NOW, Input::HandedOff { group: GROUP });
    assert_eq!(hand_off(&mut protocol), Err(Refused::NeedsSlowPath(GROUP)));
    assert!(!protocol.hand_off_state(GROUP, &mut HandOff::new()));
    assert_eq!(reclaim(&mut protocol, &handed_off, packet), Ok(()));
    assert_eq!(reclaim(&mut protocol, &handed_off, packet), Err(Refused::NotHandedOff(GROUP)));
    assert_eq!(hand_off(&mut protocol), Err(Refused::NeedsSlowPath(GROUP)), "outputs are to be polled first");
    drain(&mut protocol, NOW);
    assert_eq!(hand_off(&mut protocol), Ok(()));
    let packets = [packet(START)];
    let too_many = Input::Reclaimed { group: GROUP, state: &handed_off, packets: &packets };
    assert_eq!(protocol.handle(NOW, too_many), Err(Refused::InvalidState(GROUP)));
    run_to_the_end(protocol);
}

#[test]
fn a_freed_slot_is_not_read() {
    let (mut protocol, mut handed_off) = hand_off();
    (handed_off.flow.next, handed_off.flow.consumed, handed_off.flow.stable, handed_off.flow.freed) =
        (START + 5, START + 3, START + 3, START + 3);
    handed_off.flow.min_stable = START + 3;
    handed_off.flow.counters.accepted = 5;
    for child in &mut handed_off.children {
        (child.state.sent, child.state.acked, child.state.stable) = (START + 5, START + 5, START + 3);
    }
    // A root's application may be writing there.
    let read: Vec<_> = protocol.new_packets(GROUP, &handed_off).collect();
    assert_eq!(read, [START + 3, START + 4]);
    assert_eq!(reclaim(&mut protocol, &handed_off, packet), Ok(()));
    run_to_the_end(protocol);
}

/// Numbers near the valid ones, and any others. Strangers cannot make a node reclaim a group that
/// is handed off: their packets are not authentic.
#[test]
fn only_an_authentic_packet_reclaims_a_group() {
    let (protocol, handed_off) = hand_off();
    let probe = |keys: &Keys| datagram(keys, 0, 3, Body::Probe, &[]);
    let keys = session_keys();
    let authentic = probe(&keys);
    let to_reclaim = |bytes: &[u8]| protocol.group_to_reclaim(&protocol.check(bytes));
    assert_eq!(to_reclaim(&authentic), Some(GROUP));
    let stranger = GroupKey::new("another token", GROUP).session_keys(SESSION, Authentication::Header);
    let older = key().session_keys(SessionId([2; 16]), Authentication::Header);
    for keys in [stranger, older] {
        assert_eq!(to_reclaim(&probe(&keys)), None);
    }
    for bit in 0..authentic.len() * 8 {
        let mut changed = authentic.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(to_reclaim(&changed), None, "bit {bit}");
    }
    for length in 0..authentic.len() {
        assert_eq!(to_reclaim(&authentic[..length]), None, "{length} bytes");
    }
    let mut reclaimed = protocol;
    assert_eq!(reclaim(&mut reclaimed, &handed_off, packet), Ok(()));
    assert_eq!(reclaimed.group_to_reclaim(&reclaimed.check(&authentic)), None, "the protocol has it already");
}

/// Another member reclaims the group for a contribution that the fast path has left to it.
#[test]
fn only_a_root_takes_contributions_while_a_fast_path_has_the_group() {
    let (mut protocol, handed_off) = hand_off();
    let keys = session_keys();
    let control = Control::Contribution(Contribution::of_process(START, None));
    let payload = control.write();
    let body = Body::Control(control_header(&keys, control.operation(), &payload));
    let bytes = datagram(&keys, 2, 3, body, &payload);
    let checked = protocol.check(&bytes);
    assert_eq!(protocol.group_to_reclaim(&checked), Some(GROUP));
    assert!(!protocol.take_contribution(address(2), &checked, START));
    assert_eq!(reclaim(&mut protocol, &handed_off, packet), Ok(()));
    assert!(!protocol.take_contribution(address(2), &checked, START), "the protocol has the group");
    run_to_the_end(protocol);
}

/// A result that is kept too long opens no door: the group may have another session by then.
#[test]
fn a_checked_packet_is_verified_again_when_its_group_has_changed() {
    let (mut protocol, handed_off) = hand_off();
    let bytes = datagram(&session_keys(), 0, 3, Body::Probe, &[]);
    let checked = protocol.check(&bytes);
    assert_eq!(reclaim(&mut protocol, &handed_off, packet), Ok(()));
    let (from, datagram) = (address(0), checked.clone());
    protocol.handle(NOW, Input::Checked { from, datagram }).unwrap();
    drain(&mut protocol, NOW);
    assert_eq!(protocol.strays().unknown_group, 0, "it is a packet of the session");
    protocol.handle(NOW, Input::Abort { group: GROUP, why: AbortReason::Application }).unwrap();
    drain(&mut protocol, NOW);
    let join = Input::JoinGroup { group: GROUP, key: key(), root: address(0), seed: SEED };
    protocol.handle(NOW, join).unwrap();
    protocol.handle(NOW, Input::Checked { from, datagram: checked }).unwrap();
    assert!(matches!(protocol.poll(NOW), Output::Stray(_)));
    assert_eq!(protocol.strays().unknown_group, 1, "the new group has no session yet");
}

fn number() -> impl Strategy<Value = Sequence> {
    prop_oneof![(0..60_u32).prop_map(|ahead| START - 20 + ahead), any::<u32>().prop_map(Sequence)]
}

proptest! {
    #[test]
    fn invalid_numbers_change_nothing(
        numbers in prop::collection::vec((0..9_usize, number()), 1..4),
        children in 0..4_usize,
    ) {
        let (mut protocol, mut handed_off) = hand_off();
        for (place, number) in numbers {
            let child = &mut handed_off.children[0];
            *match place {
                0 => &mut handed_off.flow.next,
                1 => &mut handed_off.flow.consumed,
                2 => &mut handed_off.flow.stable,
                3 => &mut handed_off.flow.freed,
                4 => &mut handed_off.flow.advertised_window_end,
                5 => &mut handed_off.flow.ack_requested,
                6 => &mut child.state.sent,
                7 => &mut child.state.acked,
                _ => &mut child.state.stable,
            } = number;
        }
        if children < 2 {
            handed_off.children.truncate(children);
        }
        let before = protocol.readable(GROUP);
        if reclaim(&mut protocol, &handed_off, packet).is_err() {
            prop_assert_eq!(protocol.readable(GROUP), before);
        }
        run_to_the_end(protocol);
    }

    #[test]
    fn invalid_packets_are_reported(
        count in 1..=SLOTS,
        wrong_at in 0..SLOTS,
        piece in (any::<u32>(), any::<u64>(), any::<u32>(), any::<u64>()),
    ) {
        let (mut protocol, mut handed_off) = hand_off();
        handed_off.flow.next = START + count;
        handed_off.children.iter_mut().for_each(|child| child.state.sent = handed_off.flow.next);
        let (message, offset, length, message_length) = piece;
        let checksum = PayloadChecksum::crc(&[]);
        let wrong = Piece { message, offset, length, message_length, checksum };
        let is_wrong = |number| number == START + wrong_at;
        let packets = |number| match packet(number) {
            packet if is_wrong(number) => HandOffPacket { piece: wrong, ..packet },
            packet => packet,
        };
        // Longer than a slot's payload.
        prop_assume!(length > u32::from(PAYLOAD_BYTES_MAX));
        let expected = if wrong_at >= count { Ok(()) } else { Err(Refused::InvalidState(GROUP)) };
        prop_assert_eq!(reclaim(&mut protocol, &handed_off, packets), expected);
        run_to_the_end(protocol);
    }
}

#[test]
fn a_handed_off_group_is_due_when_the_node_was_suspended() {
    for pause_ms in 1..1_000 {
        // A leaf has no timeout before that of its parent, which is longer than a keepalive.
        let (mut protocol, handed_off) = hand_off_with(0);
        // The timeout of a second group tells the protocol that the node was suspended.
        let group = GroupId(2);
        let join = Input::JoinGroup { group, key: key(), root: address(0), seed: SEED };
        protocol.handle(NOW, join).unwrap();
        drain(&mut protocol, NOW);
        let now = NOW + Nanoseconds::from_ms(pause_ms);
        loop {
            match protocol.poll(now) {
                Output::Reclaim(_) => assert_eq!(reclaim(&mut protocol, &handed_off, packet), Ok(())),
                Output::Timeout(_) => break,
                _ => {}
            }
        }
    }
}
