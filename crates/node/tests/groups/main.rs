//! Groups of nodes on loopback, as applications use them.

#[path = "../common/mod.rs"]
mod common;
mod encryption;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{TIMEOUT, check_all, groups, message, settings};
use treecast_node::{
    Ending, Group, GroupId, GroupSettings, Node, NodeError, NodeSettings, Offload, Room, Scheme, Sent,
    TreeScheme,
};

fn open(count: usize, address: &str) -> Vec<Node> {
    let settings = NodeSettings { bind: address.parse().unwrap(), ..NodeSettings::default() };
    (0..count).map(|_| Node::open(&settings).unwrap()).collect()
}

fn nodes(count: usize) -> Vec<Node> {
    open(count, "127.0.0.1:0")
}

#[test]
fn every_member_receives_every_message_with_each_offload() {
    for offload in [Offload::Nic, Offload::Assisted, Offload::Host, Offload::Switch] {
        let nodes = nodes(7);
        let settings = GroupSettings { offload: Some(offload), slots: Some(64), root: 2, ..settings(&nodes) };
        check_all(groups(&nodes, &settings), 2, &[0, 1, 64, 1_408, 1_409, 16_384, 5, 300_000, 0, 77]);
    }
}

#[test]
fn a_member_has_the_roots_number_of_slots() {
    for offload in [Offload::Assisted, Offload::Host] {
        let nodes = nodes(3);
        let at_root = GroupSettings {
            offload: Some(offload),
            slots: Some(16),
            scheme: Some(Scheme::tree(TreeScheme::Serial)),
            ..settings(&nodes)
        };
        let elsewhere = GroupSettings { slots: Some(512), ..at_root.clone() };
        let groups = nodes
            .iter()
            .enumerate()
            .map(|(place, node)| node.group(if place == 0 { &at_root } else { &elsewhere }).unwrap());
        check_all(groups.collect(), 0, &[100_000]);
    }
}

#[test]
fn it_works_over_ipv6() {
    for offload in [Offload::Nic, Offload::Switch] {
        let nodes = open(4, "[::1]:0");
        let settings = GroupSettings { offload: Some(offload), ..settings(&nodes) };
        check_all(groups(&nodes, &settings), 0, &[10, 100_000]);
    }
}

#[test]
fn by_multicast_the_root_sends_each_packet_once() {
    let nodes = nodes(9);
    let settings = GroupSettings {
        offload: Some(Offload::Switch),
        scheme: Some(Scheme::tree(TreeScheme::Separate)),
        ..settings(&nodes)
    };
    let groups = groups(&nodes, &settings);
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    // The first heartbeat reaches all members, and they say so.
    std::thread::sleep(Duration::from_millis(300));
    let packets = 100;
    for number in 0..packets {
        groups[0].send(&message(number, 100)).unwrap();
    }
    groups[0].flush(TIMEOUT).unwrap();
    let sent = groups[0].counters().unwrap().sent;
    assert!(sent < 2 * packets as u64, "{sent} packets were sent");
}

#[test]
fn a_message_longer_than_the_slots_streams_through_them() {
    let nodes = nodes(3);
    let settings = GroupSettings { slots: Some(16), message_bytes: 3 << 20, ..settings(&nodes) };
    check_all(groups(&nodes, &settings), 0, &[3 << 20]);
}

#[test]
fn a_member_of_several_groups_receives_from_each_root() {
    let nodes = nodes(3);
    let all: Vec<Vec<Group>> = (0..3)
        .map(|root| groups(&nodes, &GroupSettings { group: GroupId(root as u32), root, ..settings(&nodes) }))
        .collect();
    for (root, groups) in all.iter().enumerate() {
        groups[root].send(&message(root, 20_000)).unwrap();
    }
    for (root, groups) in all.iter().enumerate() {
        for (_, group) in groups.iter().enumerate().filter(|(member, _)| *member != root) {
            assert_eq!(group.receive(TIMEOUT).unwrap(), Some(message(root, 20_000)));
        }
    }
}

#[test]
fn an_unread_group_does_not_block_another() {
    let nodes = nodes(2);
    let stuck = groups(&nodes, &GroupSettings { group: GroupId(1), slots: Some(8), ..settings(&nodes) });
    let free = groups(&nodes, &GroupSettings { group: GroupId(2), ..settings(&nodes) });
    for number in 0..8 {
        stuck[0].send(&message(number, 100)).unwrap();
    }
    for number in 0..100 {
        free[0].send(&message(number, 5_000)).unwrap();
        assert_eq!(free[1].receive(TIMEOUT).unwrap(), Some(message(number, 5_000)));
    }
    assert_eq!(stuck[1].receive(TIMEOUT).unwrap(), Some(message(0, 100)));
}

#[test]
fn a_message_is_received_into_a_buffer_if_it_fits() {
    let nodes = nodes(2);
    let groups = groups(&nodes, &settings(&nodes));
    groups[0].send(b"hello").unwrap();
    let mut small = [0; 4];
    let error = groups[1].receive_into(&mut small, TIMEOUT).unwrap_err();
    assert_eq!(error.to_string(), "the message has 5 bytes, and the buffer 4");
    let mut buffer = [0; 8];
    assert_eq!(groups[1].receive_into(&mut buffer, TIMEOUT).unwrap(), Some(5));
    assert_eq!(&buffer[..5], b"hello");
    assert!(matches!(groups[1].receive(Some(Duration::from_millis(5))), Err(NodeError::TimedOut)));
}

#[test]
fn a_missing_member_is_named_and_the_others_continue() {
    let nodes = nodes(3);
    let mut node_settings = NodeSettings { bind: "127.0.0.1:0".parse().unwrap(), ..NodeSettings::default() };
    node_settings.protocol.join_timeout = treecast_proto::Nanoseconds::from_ms(300);
    let root = Node::open(&node_settings).unwrap();
    let nowhere: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let members = [root.address(), nodes[1].address(), nowhere, nodes[2].address()];
    let settings = GroupSettings::new(members.to_vec());
    let (sender, one, other) = (
        root.group(&settings).unwrap(),
        nodes[1].group(&settings).unwrap(),
        nodes[2].group(&settings).unwrap(),
    );
    let lost = sender.wait_until_ready(TIMEOUT).unwrap();
    assert_eq!(lost, sender.losses());
    assert_eq!(lost[0].to_string(), "member 2 at 127.0.0.1:9 is lost: no answer within 300 ms");
    sender.send(b"hello").unwrap();
    for member in [&one, &other] {
        assert_eq!(member.receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
    }
    assert_eq!(sender.close(TIMEOUT).unwrap(), lost);
}

#[test]
fn a_root_that_is_dropped_notifies_its_members() {
    let nodes = nodes(2);
    let mut groups = groups(&nodes, &settings(&nodes));
    groups[0].send(b"hello").unwrap();
    groups[0].flush(TIMEOUT).unwrap();
    drop(groups.remove(0));
    assert_eq!(groups[0].receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
    let error = groups[0].receive(TIMEOUT).unwrap_err();
    assert_eq!(error.to_string(), "the root aborted the group: its application ended without closing it");
}

#[test]
fn a_group_is_aborted_while_threads_wait_for_it() {
    let nodes = nodes(3);
    let groups = groups(&nodes, &GroupSettings { slots: Some(4), ..settings(&nodes) });
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| groups[2].receive(None));
        groups[2].abort();
        let error = receiver.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "this member has left");
        // No member reads, so this fills the slots and waits.
        let sender = scope.spawn(|| groups[0].send(&message(0, 1 << 20)));
        while groups[1].counters().unwrap().accepted < 4 {
            std::thread::yield_now();
        }
        groups[0].abort();
        let error = sender.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the group was aborted at this node");
    });
}

#[test]
fn nothing_is_sent_after_the_end() {
    let nodes = nodes(2);
    let groups = groups(&nodes, &settings(&nodes));
    assert_eq!(groups[0].close(TIMEOUT).unwrap(), []);
    assert_eq!(groups[0].send(b"more").unwrap_err().to_string(), "the group is closed");
}

#[test]
fn a_node_that_is_dropped_ends_its_groups() {
    let mut nodes = nodes(3);
    let groups = groups(&nodes, &settings(&nodes));
    groups[0].send(b"hello").unwrap();
    for group in &groups[1..] {
        assert_eq!(group.receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
    }
    drop(nodes.remove(2));
    let error = groups[2].receive(TIMEOUT).unwrap_err();
    assert!(matches!(error, NodeError::Ended(_)), "{error}");
    drop(nodes.remove(0));
    assert!(groups[0].send(b"more").is_err());
    let error = groups[1].receive(TIMEOUT).unwrap_err();
    assert_eq!(error.to_string(), "the root aborted the group: its node was closed");
}

#[test]
fn a_member_that_leaves_is_named_and_the_others_continue() {
    let nodes = nodes(3);
    let mut groups = groups(&nodes, &settings(&nodes));
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    groups.remove(1).close(TIMEOUT).unwrap();
    groups[0].send(b"hello").unwrap();
    assert_eq!(groups[1].receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
    let lost = groups.remove(0).close(TIMEOUT).unwrap();
    assert!(lost.len() == 1 && lost[0].to_string().ends_with("is lost: left the group"), "{lost:?}");
}

#[test]
fn a_node_joins_a_running_group_at_the_next_message() {
    let nodes = nodes(3);
    let settings = GroupSettings { admits: true, ..settings(&nodes[..2]) };
    let groups = groups(&nodes[..2], &settings);
    groups[0].send(b"before").unwrap();
    assert_eq!(groups[1].receive(TIMEOUT).unwrap().as_deref(), Some(&b"before"[..]));
    let newcomer = nodes[2].join_running(&settings).unwrap();
    newcomer.wait_until_ready(TIMEOUT).unwrap();
    groups[0].send(b"after").unwrap();
    for member in [&groups[1], &newcomer] {
        assert_eq!(member.receive(TIMEOUT).unwrap().as_deref(), Some(&b"after"[..]));
    }
    assert_eq!(newcomer.member(), Some(2));
}

#[test]
fn a_late_node_is_refused_by_a_group_that_admits_none() {
    let nodes = nodes(3);
    let settings = settings(&nodes[..2]);
    let groups = groups(&nodes[..2], &settings);
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    let error = nodes[2].join_running(&settings).unwrap().receive(TIMEOUT).unwrap_err();
    assert_eq!(error.to_string(), "the group admits no late members");
}

#[test]
fn threads_share_a_group() {
    let nodes = nodes(2);
    let groups = groups(&nodes, &settings(&nodes));
    let (sender, receiver) = (Arc::new(&groups[0]), Arc::new(&groups[1]));
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let sender = Arc::clone(&sender);
            scope.spawn(move || (0..50).for_each(|_| sender.send(&[writer; 3_000]).unwrap()));
        }
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let receiver = Arc::clone(&receiver);
                scope.spawn(move || {
                    let mut counts = [0; 4];
                    for _ in 0..100 {
                        let message = receiver.receive(TIMEOUT).unwrap().unwrap();
                        assert!(message.len() == 3_000 && message.iter().all(|byte| *byte == message[0]));
                        counts[usize::from(message[0])] += 1;
                    }
                    counts
                })
            })
            .collect();
        let counts: Vec<[i32; 4]> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        assert!((0..4).all(|writer| counts[0][writer] + counts[1][writer] == 50));
    });
}

#[test]
fn threads_that_wait_for_different_groups_of_a_node_are_all_woken() {
    const GROUPS: u32 = 6;
    const MESSAGES: usize = 300;
    let nodes = nodes(3);
    let of = |number: u32| GroupSettings {
        group: GroupId(number),
        root: number as usize % nodes.len(),
        slots: Some(16),
        ..settings(&nodes)
    };
    std::thread::scope(|scope| {
        for number in 0..GROUPS {
            let settings = of(number);
            for (place, group) in groups(&nodes, &settings).into_iter().enumerate() {
                let is_root = place == settings.root;
                scope.spawn(move || {
                    for number in 0..MESSAGES {
                        if is_root {
                            group.send(&message(number, 40)).unwrap();
                            // One thread flushes now and then, another waits for room only.
                            if number % 7 == 0 {
                                group.flush(TIMEOUT).unwrap();
                            }
                        } else {
                            assert_eq!(group.receive(TIMEOUT).unwrap(), Some(message(number, 40)));
                        }
                    }
                    if is_root {
                        assert_eq!(group.close(TIMEOUT).unwrap(), []);
                    } else {
                        assert_eq!(group.receive(TIMEOUT).unwrap(), None);
                    }
                });
            }
        }
    });
}

#[test]
fn a_request_comes_after_the_packets_written_before() {
    const MESSAGES: usize = 1_000;
    let nodes = nodes(2);
    let of = |number, offload| GroupSettings {
        group: GroupId(number),
        offload: Some(offload),
        slots: Some(16),
        ..settings(&nodes)
    };
    // Some groups keep the engines busy, while packets of other groups are written, and forwarded by a request each.
    let all: Vec<_> = (0..24)
        .map(|number| groups(&nodes, &of(number, if number < 4 { Offload::Nic } else { Offload::Assisted })))
        .collect();
    std::thread::scope(|scope| {
        for group in &all[..8] {
            scope.spawn(|| (0..MESSAGES).for_each(|_| assert!(group[1].receive(TIMEOUT).unwrap().is_some())));
            scope.spawn(|| {
                for number in 0..MESSAGES {
                    group[0].send(&message(number, 10)).unwrap();
                    group[0].flush(TIMEOUT).unwrap();
                }
            });
        }
    });
}

#[test]
fn invalid_arguments_are_refused() {
    let nodes = nodes(2);
    let good = settings(&nodes);
    let error = |settings: &GroupSettings| nodes[0].group(settings).unwrap_err().to_string();
    assert_eq!(
        error(&GroupSettings { root: 5, ..good.clone() }),
        "the root is member 5 of 2: members are numbered from 0"
    );
    let elsewhere = GroupSettings::new(vec!["127.0.0.1:1".parse().unwrap()]);
    assert!(error(&elsewhere).contains("which is not the address of a member: 127.0.0.1:1"));
    let double = GroupSettings::new(vec![nodes[0].address(), nodes[0].address()]);
    assert!(error(&double).contains("say which of them this process is"));
    assert!(error(&GroupSettings { slots: Some(100), ..good.clone() }).contains("slots (a power of two)"));
    assert!(
        error(&GroupSettings { mtu_bytes: Some(300), ..good.clone() }).contains("mtu_bytes must be from 604")
    );
    let groups = groups(&nodes, &good);
    assert_eq!(error(&good), "there is a group 1 at this node already");
    let error = groups[1].send(b"x").unwrap_err().to_string();
    assert!(error.contains("not the root of group 1, and only the root sends"), "{error}");
    let error = groups[0].receive(TIMEOUT).unwrap_err().to_string();
    assert!(error.contains("is the root of group 1, and only other members receive"), "{error}");
    let taken = NodeSettings { bind: nodes[0].address(), ..NodeSettings::default() };
    assert!(
        Node::open(&taken).unwrap_err().to_string().ends_with("choose another port, or 0 for a free one")
    );
}

#[test]
fn a_node_with_a_wrong_token_does_not_join() {
    let nodes = nodes(2);
    let good = GroupSettings { token: "secret".into(), ..settings(&nodes) };
    let root = nodes[0].group(&good).unwrap();
    let outsider = nodes[1].group(&GroupSettings { token: "guess".into(), ..good.clone() }).unwrap();
    let error = root.wait_until_ready(Some(Duration::from_millis(200))).unwrap_err().to_string();
    assert_eq!(error, format!("member 1 at {} has not answered within the timeout", nodes[1].address()));
    let error = outsider.wait_until_ready(Some(Duration::from_millis(10))).unwrap_err().to_string();
    assert_eq!(error, format!("member 0 at {} has not answered within the timeout", nodes[0].address()));
    assert!(matches!(outsider.receive(Some(Duration::from_millis(10))), Err(NodeError::TimedOut)));
    assert!(nodes[1].strays().unwrap().unauthentic > 0);
}

/// Pseudo-random numbers: xorshift64* (Vigna, 2016).
fn random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

#[test]
fn random_datagrams_are_counted_and_traffic_continues() {
    let nodes = nodes(3);
    let mut all = groups(&nodes, &settings(&nodes));
    let addresses: Vec<SocketAddr> = nodes.iter().map(Node::address).collect();
    let noise = std::thread::spawn(move || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut state = 1;
        for number in 0..10_000_usize {
            let length = random(&mut state) as usize % 300;
            let bytes: Vec<u8> = (0..length).map(|_| random(&mut state) as u8).collect();
            socket.send_to(&bytes, addresses[number % 3]).unwrap();
        }
    });
    let root = all.remove(0);
    let mut number = 0;
    while number < 50 || !noise.is_finished() {
        root.send(&message(number, 3_000)).unwrap();
        for group in &all {
            assert_eq!(group.receive(TIMEOUT).unwrap(), Some(message(number, 3_000)));
        }
        number += 1;
    }
    noise.join().unwrap();
    assert_eq!(root.close(TIMEOUT).unwrap(), []);
    for node in &nodes {
        let strays = node.strays().unwrap();
        assert!(strays.malformed > 0, "{strays:?}");
    }
}

#[test]
fn truncated_control_messages_are_counted() {
    let nodes = nodes(3);
    // A socket in a member's place receives the root's invitation, which is then sent to members of another group with this token.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(TIMEOUT).unwrap();
    let members = vec![nodes[2].address(), socket.local_addr().unwrap()];
    let observed = GroupSettings { members, ..settings(&nodes) };
    let _root = nodes[2].group(&observed).unwrap();
    let mut invitation = [0; 2_000];
    let length = socket.recv(&mut invitation).unwrap();

    let groups = groups(&nodes[..2], &settings(&nodes[..2]));
    for node in &nodes[..2] {
        for end in 1..length {
            socket.send_to(&invitation[..end], node.address()).unwrap();
        }
        // It is whole, and its sender is not a member.
        socket.send_to(&invitation[..length], node.address()).unwrap();
        while node.strays().unwrap().malformed < length as u64 - 1 {
            std::thread::yield_now();
        }
    }
    groups[0].send(b"hello").unwrap();
    assert_eq!(groups[1].receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
    assert_eq!(nodes[1].strays().unwrap().malformed, length as u64 - 1);
}

#[test]
fn an_unread_member_stops_the_others_when_its_slots_are_full() {
    let nodes = nodes(3);
    let settings =
        GroupSettings { slots: Some(8), scheme: Some("separate".parse().unwrap()), ..settings(&nodes) };
    let groups = groups(&nodes, &settings);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            (0..100).for_each(|number| groups[0].send(&message(number, 1_000)).unwrap());
            groups[0].close(TIMEOUT)
        });
        // The other member receives what fits the slots of the unread member and of the root, and then nothing more.
        for number in 0..16 {
            assert_eq!(groups[1].receive(TIMEOUT).unwrap(), Some(message(number, 1_000)));
        }
        assert!(matches!(groups[1].receive(Some(Duration::from_millis(50))), Err(NodeError::TimedOut)));
        assert!(!sender.is_finished());
        assert_eq!(groups[2].counters().unwrap().accepted, 8, "a member holds no more packets than slots");
        // No member is lost by it: all continue when it reads.
        let late = scope.spawn(|| {
            (0..100).for_each(|number| {
                assert_eq!(groups[2].receive(TIMEOUT).unwrap(), Some(message(number, 1_000)));
            });
        });
        for number in 16..100 {
            assert_eq!(groups[1].receive(TIMEOUT).unwrap(), Some(message(number, 1_000)));
        }
        late.join().unwrap();
        assert_eq!(sender.join().unwrap().unwrap(), []);
    });
}

#[test]
fn every_call_after_the_end_reports_the_end() {
    let nodes = nodes(2);
    let mut groups = groups(&nodes, &settings(&nodes));
    groups[0].send(b"last").unwrap();
    let sender = groups.remove(0);
    let closer = std::thread::spawn(move || sender.close(TIMEOUT));
    assert_eq!(groups[0].receive(TIMEOUT).unwrap().as_deref(), Some(&b"last"[..]));
    for _ in 0..3 {
        match groups[0].receive(TIMEOUT) {
            Ok(None) | Err(NodeError::Ended(Ending::Closed)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(closer.join().unwrap().unwrap(), []);
}

#[test]
fn the_lambda_of_a_postal_tree_is_measured() {
    let nodes = nodes(4);
    // Long messages of many small packets: no member reads the probes.
    let settings = GroupSettings {
        scheme: Some("postal".parse().unwrap()),
        root: 1,
        message_bytes: 1 << 20,
        mtu_bytes: Some(604),
        ..settings(&nodes)
    };
    std::thread::scope(|scope| {
        for (place, node) in nodes.iter().enumerate() {
            let settings = &settings;
            scope.spawn(move || {
                let group = node.group(settings).unwrap();
                if place == settings.root {
                    let scheme = group.settings().scheme.as_ref().map(ToString::to_string);
                    assert!(
                        scheme.as_ref().is_some_and(|scheme| scheme.starts_with("postal:lambda=")),
                        "{scheme:?}"
                    );
                    group.send(b"by the tree that was made for it").unwrap();
                    assert_eq!(group.close(TIMEOUT).unwrap(), []);
                } else {
                    let received = group.receive(TIMEOUT).unwrap();
                    assert_eq!(received.as_deref(), Some(&b"by the tree that was made for it"[..]));
                    assert_eq!(group.receive(TIMEOUT).unwrap(), None);
                }
            });
        }
    });
}

#[test]
fn a_postal_tree_is_made_without_lambda_when_members_are_missing() {
    let nodes = nodes(1);
    let mut settings = GroupSettings { scheme: Some("postal".parse().unwrap()), ..settings(&nodes) };
    settings
        .members
        .extend(["127.0.0.1:9", "127.0.0.2:9"].map(|address| address.parse::<SocketAddr>().unwrap()));
    let group = nodes[0].group(&settings).unwrap();
    assert_eq!(group.settings().scheme, None);
}

#[test]
fn a_closed_unread_group_does_not_stay() {
    let nodes = nodes(2);
    let settings = settings(&nodes);
    let mut groups = groups(&nodes, &settings);
    let member = groups.pop().unwrap();
    groups[0].send(&message(0, 10_000)).unwrap();
    assert_eq!(groups[0].close(TIMEOUT).unwrap(), []);
    drop(member);
    // Its number is free again when the group has ended.
    let end = std::time::Instant::now() + TIMEOUT.unwrap();
    while let Err(error) = nodes[1].group(&settings) {
        assert!(std::time::Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Pairs of a root and a member.
fn pair(settings: impl FnOnce(GroupSettings) -> GroupSettings) -> (Vec<Node>, Group, Group) {
    let nodes = nodes(2);
    let mut groups = groups(&nodes, &settings(self::settings(&nodes)));
    let member = groups.remove(1);
    (nodes, groups.remove(0), member)
}

#[test]
fn a_message_is_sent_and_received_in_parts() {
    let (_nodes, root, member) = pair(|settings| GroupSettings { slots: Some(16), ..settings });
    let long = message(1, 300_000);
    let mut received = Vec::new();
    let mut sent = 0;
    // No member reads yet: there is no room for the whole message.
    while let Ok(part) = root.send_part(&long[sent..], 300_000, Some(Duration::ZERO)) {
        assert!(!part.is_last);
        sent += part.bytes;
    }
    let packet_bytes = root.packet_bytes().unwrap();
    assert!(sent > 0 && sent.is_multiple_of(packet_bytes));
    let mut is_received = false;
    while !is_received {
        if sent < long.len() {
            // What the application has of the message need not be all.
            let end = long.len().min(sent + 3 * packet_bytes + 100);
            match root.send_part(&long[sent..end], 300_000, Some(Duration::ZERO)) {
                Ok(part) => {
                    assert_eq!(part.is_last, sent + part.bytes == long.len());
                    sent += part.bytes;
                }
                Err(NodeError::TimedOut) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let before = received.len();
        let take = |length, bytes: &[u8]| {
            assert_eq!(length, 300_000);
            received.extend_from_slice(bytes);
        };
        let room = Room { message_bytes: u64::MAX, part_bytes: 2 * packet_bytes as u64 };
        match member.receive_part(Some(Duration::from_millis(1)), room, take) {
            Ok(part) => is_received = part.unwrap().is_last,
            Err(NodeError::TimedOut) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(received.len() - before <= 2 * packet_bytes);
    }
    assert!(received == long);
    // Fewer bytes than fill a packet wait for others; more than the message lacks are refused, as is less room than for a packet.
    assert_eq!(root.send_part(&[1], 2, TIMEOUT).unwrap(), Sent { bytes: 0, is_last: false });
    assert_eq!(root.send_part(&[1, 2], 2, TIMEOUT).unwrap(), Sent { bytes: 2, is_last: true });
    assert_eq!(root.send_part(&[], 0, TIMEOUT).unwrap(), Sent { bytes: 0, is_last: true });
    assert!(matches!(root.send_part(&[1, 2], 1, TIMEOUT), Err(NodeError::Refused(_))));
    let small = Room { message_bytes: 2, part_bytes: 1 };
    assert!(matches!(member.receive_part(TIMEOUT, small, |_, _| ()), Err(NodeError::TooLong { .. })));
    assert_eq!(member.receive(TIMEOUT).unwrap(), Some(vec![1, 2]));
    assert_eq!(member.receive(TIMEOUT).unwrap(), Some(Vec::new()));
    assert_eq!(root.close(TIMEOUT).unwrap(), []);
    assert_eq!(member.receive_part(TIMEOUT, Room::of(u64::MAX), |_, _| ()).unwrap(), None);
}

#[test]
fn a_partly_sent_message_is_completed_first() {
    let (_nodes, root, member) = pair(|settings| GroupSettings { slots: Some(16), ..settings });
    let long = message(1, 100_000);
    let sent = root.send_part(&long, 100_000, TIMEOUT).unwrap();
    assert!(!sent.is_last);
    // The node sends a part without a further request.
    assert!(!member.receive_part(TIMEOUT, Room::of(u64::MAX), |_, _| ()).unwrap().unwrap().is_last);
    let begun = "message 0 is incomplete: its first ";
    assert!(root.send(b"other").unwrap_err().to_string().starts_with(begun));
    assert!(root.close(TIMEOUT).unwrap_err().to_string().starts_with(begun));
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(member.receive(TIMEOUT).unwrap().is_some()));
        let mut rest = &long[sent.bytes..];
        while !rest.is_empty() {
            rest = &rest[root.send_part(rest, 100_000, TIMEOUT).unwrap().bytes..];
        }
    });
    assert_eq!(root.close(TIMEOUT).unwrap(), []);
    assert_eq!(root.send(b"late").unwrap_err().to_string(), "the group is closed");
}

#[test]
fn a_member_that_waits_is_woken_when_another_thread_leaves() {
    let (_nodes, root, member) = pair(|settings| settings);
    root.send(b"hello").unwrap();
    std::thread::scope(|scope| {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let waiting = scope.spawn({
            let member = &member;
            move || {
                member.receive(TIMEOUT).unwrap();
                ready.send(()).unwrap();
                member.receive(None)
            }
        });
        is_ready.recv().unwrap();
        member.close(TIMEOUT).unwrap();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "this member has left");
    });
}

#[test]
fn an_aborted_group_ends_waiting_calls_at_once() {
    let (_nodes, root, member) = pair(|settings| GroupSettings { slots: Some(4), ..settings });
    std::thread::scope(|scope| {
        // No member reads: there is room for four packets.
        let waiting = scope.spawn(|| root.send(&message(0, 100_000)));
        member.wait_until_ready(TIMEOUT).unwrap();
        root.abort();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the group was aborted at this node");
    });
}

#[test]
fn closing_can_be_repeated_after_a_timeout() {
    // The member holds four packets, and the other packets wait for room there.
    let (_nodes, root, member) = pair(|settings| GroupSettings { slots: Some(4), ..settings });
    for number in 0..6 {
        root.send(&message(number, 10)).unwrap();
    }
    assert!(matches!(root.close(Some(Duration::from_millis(20))), Err(NodeError::TimedOut)));
    for number in 0..6 {
        assert_eq!(member.receive(TIMEOUT).unwrap(), Some(message(number, 10)));
    }
    assert_eq!(root.close(TIMEOUT).unwrap(), []);
    assert_eq!(root.close(TIMEOUT).unwrap(), []);
}

#[test]
fn a_node_that_is_closed_ends_its_groups() {
    let (nodes, root, member) = pair(|settings| settings);
    root.wait_until_ready(TIMEOUT).unwrap();
    nodes[0].close(TIMEOUT).unwrap();
    nodes[0].close(TIMEOUT).unwrap();
    assert!(member.receive(TIMEOUT).is_err());
}

#[test]
fn a_member_that_stops_reading_does_not_keep_its_node_open() {
    for has_begun in [true, false] {
        let (nodes, root, member) = pair(|settings| settings);
        for _ in 0..3 {
            root.send(b"hello").unwrap();
        }
        if has_begun {
            member.receive(TIMEOUT).unwrap();
        }
        member.wait_until_ready(TIMEOUT).unwrap();
        assert_eq!(root.close(TIMEOUT).unwrap(), []);
        assert_eq!(member.close(TIMEOUT).unwrap(), []);
        for node in nodes {
            node.close(TIMEOUT).unwrap();
        }
    }
}
