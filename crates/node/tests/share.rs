//! Processes of one host share a node and its slots. Here the processes are nodes of one process, each with its own connection.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use treecast_node::{Group, GroupId, GroupSettings, Node, NodeError, NodeSettings};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

/// A node that those with the same text share.
fn open(share: &str) -> Node {
    let bind = "127.0.0.1:0".parse().unwrap();
    // Tests run at the same time, and in several processes.
    let share = Some(format!("{share} of {}", std::process::id()));
    Node::open(&NodeSettings { bind, share, ..NodeSettings::default() }).unwrap()
}

/// The nodes of members. They are closed in reverse order: the first one of a host waits for the others.
struct Nodes(Vec<Node>);

impl Drop for Nodes {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl std::ops::Deref for Nodes {
    type Target = Vec<Node>;

    fn deref(&self) -> &Vec<Node> {
        &self.0
    }
}

/// Hosts with this many members each, and the address of each member's node.
fn hosts(name: &str, members: &[usize]) -> (Nodes, Vec<SocketAddr>) {
    let opened = (0..).zip(members).flat_map(|(host, &count)| {
        (0..count).map(move |_| open(&format!("{name} {host}"))).collect::<Vec<_>>()
    });
    let nodes: Vec<Node> = opened.collect();
    let addresses = nodes.iter().map(Node::address).collect();
    (Nodes(nodes), addresses)
}

/// The group at each member, in the order of their numbers.
fn groups(nodes: &[Node], settings: &GroupSettings) -> Vec<Group> {
    let of = |member| GroupSettings { member: Some(member), ..settings.clone() };
    nodes.iter().enumerate().map(|(member, node)| node.group(&of(member)).unwrap()).collect()
}

fn message(number: usize) -> Vec<u8> {
    let length = [0, 1, 64, 1_500, 70_000][number % 5];
    (0..length).map(|place| (place * 7 + number * 13) as u8).collect()
}

/// Sends messages from the root, and checks that every other member receives them, and that all end well.
fn broadcast(groups: Vec<Group>, root: usize, messages: usize) {
    thread::scope(|scope| {
        for (member, group) in groups.into_iter().enumerate() {
            scope.spawn(move || {
                assert_eq!(group.member(), Some(member as u32));
                if member == root {
                    group.wait_until_ready(TIMEOUT).unwrap();
                    (0..messages).for_each(|number| group.send(&message(number)).unwrap());
                } else {
                    for number in 0..messages {
                        let received = group.receive(TIMEOUT).unwrap();
                        assert!(
                            received.as_deref() == Some(&message(number)[..]),
                            "message {number} at {member}"
                        );
                    }
                }
                if member != root {
                    assert_eq!(group.receive(TIMEOUT).unwrap(), None);
                }
                assert_eq!(group.close(TIMEOUT).unwrap(), []);
            });
        }
    });
}

#[test]
fn every_member_of_every_host_gets_every_message() {
    let (nodes, members) = hosts("all", &[3, 3]);
    assert_eq!(members[0], members[2]);
    for (number, (root, offload)) in [(0, "nic"), (4, "nic"), (0, "switch")].into_iter().enumerate() {
        let group = GroupId(number as u32);
        let offload = offload.parse().unwrap();
        let settings =
            GroupSettings { group, root, offload, slots: 64, ..GroupSettings::new(members.clone()) };
        broadcast(groups(&nodes, &settings), root, 100);
    }
}

#[test]
fn a_message_is_sent_once_to_each_other_host() {
    for (name, hosts_of, copies) in [("one", &[4][..], 0), ("two", &[1, 4], 1), ("three", &[4, 2, 3], 2)] {
        let (nodes, members) = hosts(&format!("copies {name}"), hosts_of);
        let groups = groups(&nodes, &GroupSettings::new(members));
        groups[0].wait_until_ready(TIMEOUT).unwrap();
        for number in 0..20 {
            groups[0].send(&[number; 64]).unwrap();
            for group in &groups[1..] {
                assert_eq!(group.receive(TIMEOUT).unwrap(), Some(vec![number; 64]));
            }
        }
        assert_eq!(groups[0].counters().sent, copies * 20, "{name}");
    }
}

#[test]
fn a_root_with_local_readers_only_needs_no_network() {
    let (nodes, members) = hosts("local", &[16]);
    let settings = GroupSettings { slots: 16, ..GroupSettings::new(members) };
    broadcast(groups(&nodes, &settings), 0, 200);
}

#[test]
fn a_process_that_comes_late_delays_the_others_only_when_the_slots_are_full() {
    let (nodes, members) = hosts("late", &[2, 3]);
    let settings = GroupSettings { slots: 16, ..GroupSettings::new(members) };
    let of = |member: usize| {
        nodes[member].group(&GroupSettings { member: Some(member), ..settings.clone() }).unwrap()
    };
    let early: Vec<Group> = [0, 1, 2, 3].map(of).into();
    for number in 0..10 {
        early[0].send(&[number; 64]).unwrap();
        for group in &early[1..] {
            assert_eq!(group.receive(TIMEOUT).unwrap(), Some(vec![number; 64]));
        }
    }
    // The slots of both hosts fill up, and then the root waits.
    let blocked = (10..100)
        .find(|&number| early[0].send_part(&[number; 64], Some(Duration::from_millis(300))).is_err());
    let late = of(4);
    let received = (0..blocked.unwrap()).map(|number| (number, late.receive(TIMEOUT).unwrap()));
    received.for_each(|(number, message)| assert_eq!(message, Some(vec![number; 64])));
}

#[test]
fn a_member_that_leaves_or_dies_is_not_waited_for() {
    let (mut nodes, members) = hosts("leave", &[1, 4]);
    let settings = GroupSettings { slots: 8, ..GroupSettings::new(members) };
    let mut groups = groups(&nodes, &settings);
    groups[0].send(b"first").unwrap();
    for group in &groups[1..] {
        assert_eq!(group.receive(TIMEOUT).unwrap().as_deref(), Some(&b"first"[..]));
    }
    // One leaves, and the node of another one closes, as that of a process that ends.
    assert_eq!(groups.remove(3).close(TIMEOUT).unwrap(), []);
    drop(groups.remove(3));
    drop(nodes.0.remove(4));
    for number in 0..100_u8 {
        groups[0].send(&[number; 64]).unwrap();
        for group in &groups[1..] {
            assert_eq!(group.receive(TIMEOUT).unwrap(), Some(vec![number; 64]));
        }
    }
}

#[test]
fn a_process_that_leaves_before_the_root_of_its_host_comes_can_come_again() {
    let (nodes, members) = hosts("again", &[3]);
    let settings = GroupSettings::new(members);
    let of = |member: usize| {
        nodes[member].group(&GroupSettings { member: Some(member), ..settings.clone() }).unwrap()
    };
    let stays = of(1);
    for _ in 0..3 {
        of(2).close(TIMEOUT).unwrap();
    }
    let returned = of(2);
    broadcast(vec![of(0), stays, returned], 0, 10);
}

#[test]
fn processes_learn_that_the_node_has_ended() {
    let (mut nodes, members) = hosts("ends", &[1, 2]);
    let settings = GroupSettings::new(members);
    let groups = groups(&nodes, &settings);
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    // The first process of the second host has the node.
    let keeper = nodes.0.remove(1);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| groups[2].receive(TIMEOUT));
        let started = Instant::now();
        assert!(matches!(keeper.close(Some(Duration::from_millis(100))), Err(NodeError::TimedOut)));
        drop(keeper);
        let error = waiting.join().unwrap().unwrap_err().to_string();
        let expected = format!("the node of process {} is unusable: it has ended", std::process::id());
        assert!(error.contains(&expected), "{error}");
        assert!(started.elapsed() < Duration::from_secs(10));
    });
}

#[test]
fn the_member_that_a_process_is_has_to_be_said_and_to_fit() {
    let (nodes, members) = hosts("numbers", &[2, 1]);
    let settings = GroupSettings::new(members.clone());
    let error = |node: &Node, settings: &GroupSettings| node.group(settings).unwrap_err().to_string();
    let address = members[0];
    assert_eq!(
        error(&nodes[0], &settings),
        format!(
            "this node, at {address}, is that of members 0, 1: say which of them this process is (member=N)"
        )
    );
    let wrong = GroupSettings { member: Some(2), ..settings.clone() };
    assert!(error(&nodes[0], &wrong).ends_with("is that of members 0, 1, and not of member 2"));
    let _first = nodes[0].group(&GroupSettings { member: Some(1), ..settings.clone() }).unwrap();
    let again = error(&nodes[1], &GroupSettings { member: Some(1), ..settings.clone() });
    assert!(again.contains("the group has that member already"), "{again}");
    let alone = Node::open(&NodeSettings { bind: "127.0.0.1:0".parse().unwrap(), ..NodeSettings::default() })
        .unwrap();
    let twice = GroupSettings { member: Some(1), ..GroupSettings::new(vec![alone.address(); 2]) };
    assert!(error(&alone, &twice).contains("this node serves its own process only"));
}

#[test]
fn processes_of_a_host_that_name_different_roots_are_told() {
    let (nodes, members) = hosts("roots", &[3, 1]);
    let enter = |group, root, member: usize| {
        let settings = GroupSettings { group: GroupId(group), root, ..GroupSettings::new(members.clone()) };
        nodes[member].group(&GroupSettings { member: Some(member), ..settings })
    };
    // The first process is the root, waits for the root of its host, or joins another host's.
    for (group, (root, first, other)) in (1..).zip([(0, 0, 1), (0, 0, 3), (0, 2, 3), (3, 2, 0), (3, 2, 1)]) {
        let _first = enter(group, root, first).unwrap();
        let error = enter(group, other, 1).unwrap_err().to_string();
        assert!(error.contains("with another root: give all processes the same root"), "{error}");
    }
}

#[test]
fn a_port_that_another_process_has_cannot_be_shared() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let bind = taken.local_addr().unwrap();
    let share = Some(format!("taken of {}", std::process::id()));
    let error = Node::open(&NodeSettings { bind, share, ..NodeSettings::default() }).unwrap_err().to_string();
    assert!(error.ends_with("are of one user, and give it the same address and the same share"), "{error}");
}

#[test]
fn groups_that_begin_at_the_same_time_on_one_host_are_one() {
    let (nodes, members) = hosts("race", &[4, 4]);
    for group in 1..=20 {
        let settings = GroupSettings { group: GroupId(group), ..GroupSettings::new(members.clone()) };
        let barrier = Barrier::new(nodes.len());
        thread::scope(|scope| {
            for (member, node) in nodes.iter().enumerate() {
                let (settings, barrier) =
                    (GroupSettings { member: Some(member), ..settings.clone() }, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let group = node.group(&settings).unwrap();
                    if member == 0 {
                        group.send(b"together").unwrap();
                    } else {
                        let received = group.receive(TIMEOUT);
                        let received =
                            received.unwrap_or_else(|error| panic!("member {member}: {error}: {group:?}"));
                        assert_eq!(received.as_deref(), Some(&b"together"[..]));
                        assert_eq!(group.receive(TIMEOUT).unwrap(), None);
                    }
                    let closed = group.close(TIMEOUT);
                    let closed = closed.unwrap_or_else(|error| panic!("member {member}: {error}: {group:?}"));
                    assert_eq!(closed, []);
                });
            }
        });
    }
}
