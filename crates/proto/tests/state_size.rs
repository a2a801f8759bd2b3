//! The size of a group's state is what it allocates, with what it allocates later on: no less, and
//! not half as much again.

use std::net::SocketAddr;

use treecast_proto::{
    AbortReason, Authentication, CreateGroup, GroupId, GroupKey, Input, Integrity, MemberId, Nanoseconds,
    Offload, Output, PayloadChecksum, Piece, Protocol, Sequence, SessionId, Settings, StateSize,
    TransmitPayload, Transport,
};

const GROUP: GroupId = GroupId(1);

/// The number of groups of a node: its table of groups, which grows by doubling, is then more than
/// half full.
const GROUPS: u32 = 5;
const NOW: Nanoseconds = Nanoseconds::from_ms(1);

/// The greatest length of a datagram here.
const BYTES_MAX: usize = 64 + 512;

#[derive(Debug, Clone, Copy)]
enum Tree {
    Flat,
    Chain,
    /// The root has one child, and this all others.
    Relay,
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (node / 256) as u8, node as u8], 7_000))
}

fn key() -> GroupKey {
    GroupKey::new("a token", GROUP)
}

fn create(group: GroupId, tree: Tree, members: usize, slots: u32) -> CreateGroup {
    let ids = |range: std::ops::Range<usize>| range.map(|member| MemberId(member as u32)).collect();
    let children = (0..members).map(|member| match (tree, member) {
        (Tree::Flat, 0) => ids(1..members),
        (Tree::Relay, 1) => ids(2..members),
        (Tree::Relay, 0) => ids(1..2.min(members)),
        (Tree::Chain, _) => ids(member + 1..members.min(member + 2)),
        _ => Vec::new(),
    });
    CreateGroup {
        group,
        key: key(),
        session: SessionId([1; 16]),
        authentication: Authentication::Header,
        integrity: Integrity::default(),
        transport: Transport::Packets,
        root: MemberId(0),
        members: (0..members).map(address).collect(),
        children: children.collect(),
        slots,
        payload_bytes_max: 512,
        offload: Offload::Nic,
        multicast: None,
        start: Sequence(0),
        admits: false,
        readers: Vec::new(),
        members_max: CreateGroup::MEMBERS_MAX,
        bytes_per_s_max: None,
        is_encrypted: false,
    }
}

/// Polls a node, and keeps the datagrams to an address.
fn poll(node: &mut Protocol, to: SocketAddr, sent: &mut Vec<([u8; BYTES_MAX], usize)>) {
    loop {
        match node.poll(NOW) {
            Output::Transmit(transmit) if transmit.to == to => {
                let TransmitPayload::Bytes(payload) = transmit.payload else { continue };
                let mut bytes = [0; BYTES_MAX];
                bytes[..64].copy_from_slice(&transmit.header);
                bytes[64..64 + payload.len()].copy_from_slice(&payload);
                sent.push((bytes, 64 + payload.len()));
            }
            Output::Timeout(_) => return,
            _ => {}
        }
    }
}

fn groups() -> impl Iterator<Item = GroupId> {
    (0..GROUPS).map(|more| GroupId(GROUP.0 + more))
}

/// What is allocated only with the first packet that is sent to each child.
fn later(size: StateSize) -> i64 {
    let StateSize { slots, children, .. } = size;
    children as i64 * i64::from(8 * slots + slots / 8)
}

/// Checks that what was allocated is within what is stated for a size.
fn check(allocated: i64, sizes: &[StateSize], what: &str) {
    let stated = sizes.iter().map(|size| size.bytes() as i64).sum();
    assert!(
        allocated <= stated && stated * 2 <= allocated * 3,
        "{what}: {allocated} bytes are allocated, and {sizes:?} state {stated}"
    );
}

/// Joins groups at a member: that of the test, and others that are never found.
fn join(member: &mut Protocol) {
    for group in groups() {
        let join = Input::JoinGroup { group, key: key(), root: address(0), seed: [1, group.0.into()] };
        member.handle(NOW, join).unwrap();
    }
}

#[test]
fn a_root_allocates_what_the_size_of_its_group_states() {
    for tree in [Tree::Flat, Tree::Chain] {
        for (members, slots) in [(2, 64), (64, 16), (64, 512), (513, 64), (4_001, 16), (300, 4_096)] {
            let what = format!("{tree:?}, {members} members, {slots} slots");
            let mut root = Protocol::new(Settings::default());
            let mut planned = StateSize::default();
            let created = allocation_counter::measure(|| {
                for group in groups() {
                    let create = Box::new(create(group, tree, members, slots));
                    planned = create.state_size();
                    root.handle(NOW, Input::CreateGroup(create)).unwrap();
                }
            });
            assert_eq!(root.state_size(GROUP), Some(planned), "{what}");
            let later = i64::from(GROUPS) * later(planned);
            check(created.bytes_current + later, &[planned; GROUPS as usize], &what);
            // At the end it has a notice for each member.
            let ended = allocation_counter::measure(|| {
                groups().for_each(|group| {
                    root.handle(NOW, Input::Abort { group, why: AbortReason::Application }).unwrap();
                });
                while !matches!(root.poll(NOW), Output::Transmit(_)) {}
            });
            let allocated = created.bytes_current + ended.bytes_current + later;
            check(allocated, &[planned; GROUPS as usize], &format!("the end of {what}"));
        }
    }
}

#[test]
fn a_member_allocates_what_the_size_of_its_place_states() {
    for (members, slots) in [(2, 64), (40, 512), (200, 64), (100, 4_096)] {
        let what = format!("{members} members, {slots} slots");
        let mut root = Protocol::new(Settings::default());
        let create = Box::new(create(GROUP, Tree::Relay, members, slots));
        root.handle(NOW, Input::CreateGroup(create)).unwrap();
        let mut member = Protocol::new(Settings::default());
        let (mut up, mut down) = (Vec::with_capacity(100), Vec::with_capacity(100));
        let mut allocated = allocation_counter::measure(|| {
            join(&mut member);
            poll(&mut member, address(0), &mut up);
        })
        .bytes_current;
        let mut sizes = [StateSize::default(); GROUPS as usize];
        check(allocated, &sizes, "a member without a place");
        for _ in 0..8 {
            for (bytes, length) in up.drain(..) {
                root.handle(NOW, Input::Datagram { from: address(1), bytes: &bytes[..length] }).unwrap();
            }
            poll(&mut root, address(1), &mut down);
            allocated += allocation_counter::measure(|| {
                for (bytes, length) in down.drain(..) {
                    let input = Input::Datagram { from: address(0), bytes: &bytes[..length] };
                    member.handle(NOW, input).unwrap();
                    poll(&mut member, address(0), &mut up);
                }
            })
            .bytes_current;
        }
        let size = member.state_size(GROUP).unwrap();
        assert_eq!(size, StateSize { slots, members: 0, shared: 0, children: members - 2 });
        sizes[0] = size;
        check(allocated + later(size), &sizes, &what);
    }
}

#[test]
fn a_member_that_leaves_gives_its_children_to_the_root_whose_state_grows() {
    let mut root = Protocol::new(Settings::default());
    let mut before = StateSize::default();
    let mut relay = Protocol::new(Settings::default());
    let (mut up, mut down) = (Vec::with_capacity(100), Vec::with_capacity(100));
    let mut allocated = allocation_counter::measure(|| {
        let create = Box::new(create(GROUP, Tree::Relay, 100, 64));
        before = create.state_size();
        root.handle(NOW, Input::CreateGroup(create)).unwrap();
    })
    .bytes_current;
    let join = Input::JoinGroup { group: GROUP, key: key(), root: address(0), seed: [1, 2] };
    relay.handle(NOW, join).unwrap();
    for round in 0..16 {
        if round == 8 {
            relay.handle(NOW, Input::Leave { group: GROUP }).unwrap();
        }
        poll(&mut relay, address(0), &mut up);
        allocated += allocation_counter::measure(|| {
            for (bytes, length) in up.drain(..) {
                root.handle(NOW, Input::Datagram { from: address(1), bytes: &bytes[..length] }).unwrap();
            }
            poll(&mut root, address(1), &mut down);
        })
        .bytes_current;
        for (bytes, length) in down.drain(..) {
            relay.handle(NOW, Input::Datagram { from: address(0), bytes: &bytes[..length] }).unwrap();
        }
    }
    let after = root.state_size(GROUP).unwrap();
    assert_eq!((before.children, after.children), (1, 98));
    check(allocated + later(after), &[after], "the root");
}

/// A root and its children, which lose packets: everything that is allocated later on is allocated
/// then.
#[test]
fn a_root_that_sends_and_retransmits_allocates_no_more_than_is_stated() {
    const MEMBERS: usize = 9;
    let mut nodes: Vec<Protocol> = (0..MEMBERS).map(|_| Protocol::new(Settings::default())).collect();
    let mut now = NOW;
    // Others, so that the table of groups has room for one more.
    for group in groups().skip(2) {
        let join = Input::JoinGroup { group, key: key(), root: address(0), seed: [1, group.0.into()] };
        nodes[0].handle(now, join).unwrap();
    }
    let mut allocated = allocation_counter::measure(|| {
        let create = Box::new(create(GROUP, Tree::Flat, MEMBERS, 512));
        nodes[0].handle(now, Input::CreateGroup(create)).unwrap();
    })
    .bytes_current;
    for (number, node) in nodes.iter_mut().enumerate().skip(1) {
        let join = Input::JoinGroup { group: GROUP, key: key(), root: address(0), seed: [number as u64, 0] };
        node.handle(now, join).unwrap();
    }
    let mut in_flight = Vec::with_capacity(10_000);
    let mut message = 0;
    let mut sent = 0_u32;
    for _ in 0..400 {
        now += Nanoseconds::from_us(200);
        let arrived: Vec<(usize, usize, Vec<u8>)> = std::mem::take(&mut in_flight);
        in_flight.reserve(10_000);
        for (number, node) in nodes.iter_mut().enumerate() {
            let step = allocation_counter::measure(|| {
                for (from, _, bytes) in arrived.iter().filter(|(_, to, _)| *to == number) {
                    sent += 1;
                    if !sent.is_multiple_of(7) {
                        node.handle(now, Input::Datagram { from: address(*from), bytes }).unwrap();
                    }
                }
                if number > 0
                    && let Some((_, upto)) = node.readable(GROUP)
                {
                    node.handle(now, Input::Consumed { group: GROUP, upto }).unwrap();
                }
                while number == 0 && message < 2_000 && node.free_slots(GROUP) > 0 {
                    let checksum = PayloadChecksum::crc(&[]);
                    let piece = Piece { message, offset: 0, length: 0, message_length: 0, checksum };
                    node.handle(now, Input::Queue { group: GROUP, piece }).unwrap();
                    message += 1;
                }
                node.handle(now, Input::Timeout).unwrap();
            });
            let mut output = Output::Timeout(None);
            let mut polled = 0;
            loop {
                polled += allocation_counter::measure(|| output = node.poll(now)).bytes_current;
                match &output {
                    Output::Timeout(_) => break,
                    Output::Transmit(transmit) => {
                        let mut bytes = transmit.header.to_vec();
                        if let TransmitPayload::Bytes(payload) = &transmit.payload {
                            // It is dropped outside.
                            polled -= payload.capacity() as i64;
                            bytes.extend(payload);
                        }
                        let to = (0..MEMBERS).find(|&to| address(to) == transmit.to).unwrap();
                        in_flight.push((number, to, bytes));
                    }
                    _ => {}
                }
            }
            allocated += if number == 0 { step.bytes_current + polled } else { 0 };
        }
    }
    let counters = nodes[0].counters(GROUP).unwrap();
    // Every slot was used for every child.
    assert!(counters.sent > 8 * 512 && counters.retransmitted > 500, "{counters:?}");
    check(allocated, &[nodes[0].state_size(GROUP).unwrap()], "the root");
}
