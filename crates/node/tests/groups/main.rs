//! Groups of nodes on loopback, as applications use them.

#[path = "../common/mod.rs"]
mod common;
mod encryption;
mod ends;
mod parts;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{TIMEOUT, check_all, groups, message, settings};
use treecast_node::{
    Capacity, Ending, Group, GroupId, GroupSettings, Node, NodeError, NodeSettings, Offload, Scheme, Sent,
    Transport, TreeScheme,
};

fn open(count: usize, address: &str) -> Vec<Node> {
    let settings = NodeSettings { bind: address.parse().unwrap(), ..NodeSettings::default() };
    (0..count).map(|_| Node::open(&settings).unwrap()).collect()
}

fn nodes(count: usize) -> Vec<Node> {
    open(count, "127.0.0.1:0")
}

/// Pairs of a root and a member.
fn pair(settings: impl FnOnce(GroupSettings) -> GroupSettings) -> (Vec<Node>, Group, Group) {
    let nodes = nodes(2);
    let mut groups = groups(&nodes, &settings(self::settings(&nodes)));
    let member = groups.remove(1);
    (nodes, groups.remove(0), member)
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
    let packets = 100;
    let end = std::time::Instant::now() + TIMEOUT.unwrap();
    // The root sends by multicast once the first heartbeat has reached all members, and a packet
    // again that a busy machine delivers late.
    loop {
        let before = groups[0].counters().unwrap().sent;
        for number in 0..packets {
            groups[0].send(&message(number, 100)).unwrap();
            for member in &groups[1..] {
                assert_eq!(member.receive(TIMEOUT).unwrap(), Some(message(number, 100)));
            }
        }
        groups[0].flush(TIMEOUT).unwrap();
        let sent = groups[0].counters().unwrap().sent - before;
        if sent < 2 * packets as u64 {
            break;
        }
        assert!(std::time::Instant::now() < end, "{sent} packets were sent");
    }
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
                            // One thread flushes now and then, another waits for free slots only.
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
    // Some groups keep the engines busy, while packets of other groups are written, and forwarded
    // by a request each.
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
    // A socket in a member's place receives the root's invitation, which is then sent to members of
    // another group with this token.
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
        // The other member receives what fits the slots of the unread member and of the root, and
        // then nothing more.
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
