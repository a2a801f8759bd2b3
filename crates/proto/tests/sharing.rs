//! A node that several owners share, and groups that are held back.

use std::net::SocketAddr;

use treecast_proto::{
    AbortReason, Authentication, CreateGroup, GroupId, GroupKey, Input, Integrity, MemberId, Nanoseconds,
    Offload, Output, OwnerId, Protocol, Sequence, SessionId, Settings, TURN_MAX, Transport,
};

const NOW: Nanoseconds = Nanoseconds::from_ms(1);

fn address(member: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (member >> 8) as u8, member as u8], 7_000))
}

/// Creates a group whose root has all other members as children, which it invites.
fn create(protocol: &mut Protocol, group: GroupId, members: usize) {
    let mut children = vec![Vec::new(); members];
    children[0] = (1..members as u32).map(MemberId).collect();
    let create = CreateGroup {
        group,
        key: GroupKey::new("a token", group),
        session: SessionId([1; 16]),
        authentication: Authentication::Header,
        integrity: Integrity::default(),
        transport: Transport::Packets,
        root: MemberId(0),
        members: (0..members).map(address).collect(),
        children,
        slots: 64,
        payload_bytes_max: 1_408,
        offload: Offload::Nic,
        multicast: None,
        start: Sequence(0),
        admits: false,
        readers: Vec::new(),
        members_max: CreateGroup::MEMBERS_MAX,
        bytes_per_s_max: None,
        is_encrypted: false,
    };
    protocol.handle(NOW, Input::CreateGroup(Box::new(create))).unwrap();
}

fn set_owner(protocol: &mut Protocol, group: GroupId, owner: OwnerId) {
    protocol.handle(NOW, Input::SetOwner { group, owner }).unwrap();
}

/// The groups of the datagrams that are sent now.
fn sent(protocol: &mut Protocol, now: Nanoseconds) -> Vec<GroupId> {
    let mut groups = Vec::new();
    loop {
        match protocol.poll(now) {
            Output::Transmit(transmit) => groups.push(transmit.group),
            Output::Timeout(_) => return groups,
            _ => {}
        }
    }
}

#[test]
fn an_owner_of_large_groups_waits_for_the_others_after_its_turn() {
    let mut protocol = Protocol::new(Settings::default());
    for number in 0..8 {
        create(&mut protocol, GroupId(number), 500);
        set_owner(&mut protocol, GroupId(number), OwnerId(1));
    }
    create(&mut protocol, GroupId(100), 3);
    set_owner(&mut protocol, GroupId(100), OwnerId(2));
    let groups = sent(&mut protocol, NOW);
    assert_eq!(groups.len(), 8 * 499 + 2);
    // Each of these is a message of its own.
    let turn = (TURN_MAX / 4) as usize;
    assert!(groups[..turn].iter().all(|group| group.0 < 8));
    assert_eq!(groups[turn..turn + 2], [GroupId(100); 2]);
}

#[test]
fn a_group_that_is_aborted_is_not_held_back_any_more() {
    let mut protocol = Protocol::new(Settings::default());
    let group = GroupId(1);
    let join = Input::JoinGroup { group, key: GroupKey::new("", group), root: address(0), seed: [1, 2] };
    protocol.handle(NOW, join).unwrap();
    protocol.handle(NOW, Input::Hold { group }).unwrap();
    protocol.handle(NOW, Input::Abort { group, why: AbortReason::Application }).unwrap();
    assert!(!protocol.is_held(group));
    sent(&mut protocol, NOW);
    assert!(!protocol.has(group));
}

#[test]
fn a_group_that_is_held_back_sends_nothing() {
    let mut protocol = Protocol::new(Settings::default());
    let group = GroupId(1);
    create(&mut protocol, group, 3);
    protocol.handle(NOW, Input::Hold { group }).unwrap();
    assert!(protocol.is_held(group));
    assert_eq!(protocol.poll(NOW), Output::Timeout(None));
    let later = NOW + Nanoseconds::from_ms(20_000);
    assert_eq!(protocol.poll(later), Output::Timeout(None));
    protocol.handle(later, Input::Release { group }).unwrap();
    assert!(!protocol.is_held(group));
    // Nobody could answer in the meantime; the node was not suspended, so that the members are
    // lost.
    assert!(!matches!(protocol.poll(later), Output::Timeout(None)));
}
