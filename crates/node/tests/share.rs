//! Processes of one host share a node and its slots. Here the processes are nodes of one process,
//! each with its own connection.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use treecast_node::{
    Ending, Group, GroupId, GroupSettings, JoinOptions, Keyed, Listener, MemberLoss, Nanoseconds, Node,
    NodeError, NodeSettings, Operation,
};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

/// A node that is shared by the processes with the same text, with this join timeout.
fn open(share: &str, join_timeout: Nanoseconds) -> Node {
    let bind = "127.0.0.1:0".parse().unwrap();
    // Tests run at the same time, and in several processes.
    let share = Some(format!("{share} of {}", std::process::id()));
    let mut settings = NodeSettings { bind, share, ..NodeSettings::default() };
    settings.protocol.join_timeout = join_timeout;
    Node::open(&settings).unwrap()
}

/// The nodes of members. They are closed in reverse order: the first one of a host waits for the
/// others.
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
    hosts_that_wait(name, members, Nanoseconds::from_ms(10_000))
}

fn hosts_that_wait(name: &str, members: &[usize], join_timeout: Nanoseconds) -> (Nodes, Vec<SocketAddr>) {
    let opened = (0..).zip(members).flat_map(|(host, &count)| {
        (0..count).map(move |_| open(&format!("{name} {host}"), join_timeout)).collect::<Vec<_>>()
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

/// Sends messages from the root, and checks that every other member receives them, and that all end
/// well.
fn broadcast(groups: Vec<Group>, root: usize, messages: usize) {
    broadcast_to(groups.into_iter().enumerate().collect(), root, messages);
}

/// The same for some of the members.
fn broadcast_to(groups: Vec<(usize, Group)>, root: usize, messages: usize) {
    thread::scope(|scope| {
        for (member, group) in groups {
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
    let cases =
        [(0, "nic", "off"), (4, "nic", "off"), (0, "switch", "off"), (1, "nic", "on"), (0, "switch", "on")];
    for (number, (root, offload, encrypt)) in cases.into_iter().enumerate() {
        let group = GroupId(number as u32);
        let mut settings =
            GroupSettings { group, root, slots: Some(64), ..GroupSettings::new(members.clone()) };
        settings.set_all(&format!("token=secret offload={offload} encrypt={encrypt}")).unwrap();
        broadcast(groups(&nodes, &settings), root, 100);
    }
}

#[test]
fn processes_that_join_a_root_share_nodes_also_with_it() {
    // The root's host has three members, another host four, and a third one member with a node of
    // its own.
    let (nodes, addresses) = hosts("joined", &[3, 4]);
    let alone = Node::open(&NodeSettings { bind: "127.0.0.1:0".parse().unwrap(), ..NodeSettings::default() });
    let alone = alone.unwrap();
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap(), 8).unwrap();
    listener.timeout = TIMEOUT;
    let place = listener.address();
    let join = |node: &Node, member: Option<u32>| {
        let options = JoinOptions { member, timeout: TIMEOUT, ..JoinOptions::new(place, "secret") };
        node.join(&options).unwrap()
    };
    let groups = thread::scope(|scope| {
        let joining: Vec<_> = (1..7)
            .map(|number| {
                let node = &nodes[number];
                // One requests a number; the others get what is free.
                scope.spawn(move || join(node, (number == 4).then_some(7)))
            })
            .collect();
        let joining_alone = scope.spawn(|| join(&alone, None));
        let settings = GroupSettings { token: "secret".into(), root: 2, ..GroupSettings::new(Vec::new()) };
        let root = nodes[0].listen(listener, &settings).unwrap();
        let mut groups = vec![root, joining_alone.join().unwrap()];
        groups.extend(joining.into_iter().map(|joining| joining.join().unwrap()));
        groups
    });
    let mut groups: Vec<(u32, Group)> =
        groups.into_iter().map(|group| (group.member().unwrap(), group)).collect();
    let (requested, _) = &groups[5];
    assert_eq!(*requested, 7);
    groups.sort_by_key(|(member, _)| *member);
    let (numbers, groups): (Vec<u32>, Vec<Group>) = groups.into_iter().unzip();
    assert_eq!(numbers, (0..8).collect::<Vec<_>>());
    let of = |address| groups[2].settings().members.iter().filter(|&&member| member == address).count();
    assert_eq!([addresses[0], addresses[3], alone.address()].map(of), [3, 4, 1]);
    assert_eq!(groups[2].settings().members[2], addresses[0]);
    broadcast(groups, 2, 50);
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
        assert_eq!(groups[0].counters().unwrap().sent, copies * 20, "{name}");
    }
}

#[test]
fn a_root_with_local_readers_only_needs_no_network() {
    let (nodes, members) = hosts("local", &[16]);
    let settings = GroupSettings { slots: Some(16), ..GroupSettings::new(members) };
    broadcast(groups(&nodes, &settings), 0, 200);
}

#[test]
fn sixty_four_readers_share_a_node() {
    for (name, members) in [("many here", &[65][..]), ("many there", &[1, 64])] {
        let (nodes, members) = hosts(name, members);
        let settings = GroupSettings { slots: Some(64), ..GroupSettings::new(members) };
        broadcast(groups(&nodes, &settings), 0, 50);
    }
}

#[test]
fn a_process_that_comes_late_delays_the_others_only_when_the_slots_are_full() {
    let (nodes, members) = hosts("late", &[2, 3]);
    let settings = GroupSettings { slots: Some(16), ..GroupSettings::new(members) };
    let of = |member: usize| {
        nodes[member].group(&GroupSettings { member: Some(member), ..settings.clone() }).unwrap()
    };
    let early: Vec<Group> = [0, 1, 2, 3].map(of).into();
    // The others get as many packets as there are slots, and wait for the next one.
    for number in 0..16 {
        early[0].send(&[number; 64]).unwrap();
        for group in &early[1..] {
            assert_eq!(group.receive(TIMEOUT).unwrap(), Some(vec![number; 64]));
        }
    }
    early[0].send(&[16; 64]).unwrap();
    assert!(matches!(early[2].receive(Some(Duration::from_millis(300))), Err(NodeError::TimedOut)));
    // The slots of the root's host fill up too, and then the root waits.
    let blocked = (17..100)
        .find(|&number| early[0].send_part(&[number; 64], 64, Some(Duration::from_millis(300))).is_err());
    let late = of(4);
    let received = (0..blocked.unwrap()).map(|number| (number, late.receive(TIMEOUT).unwrap()));
    received.for_each(|(number, message)| assert_eq!(message, Some(vec![number; 64])));
    assert_eq!(early[2].receive(TIMEOUT).unwrap(), Some(vec![16; 64]));
}

#[test]
fn a_process_that_comes_after_the_close_reads_everything() {
    for root in [0, 2] {
        let (nodes, members) = hosts(&format!("after {root}"), &[3, 3]);
        let settings = GroupSettings { root, ..GroupSettings::new(members) };
        let of = |member: usize| {
            nodes[member].group(&GroupSettings { member: Some(member), ..settings.clone() }).unwrap()
        };
        let (late, early): (Vec<usize>, Vec<usize>) = (0..6).partition(|member| [1, 4].contains(member));
        let early = early.into_iter().map(|member| (member, of(member))).collect();
        thread::scope(|scope| {
            // The root waits in its close for the processes that have not come.
            let done = scope.spawn(|| broadcast_to(early, root, 10));
            thread::sleep(Duration::from_millis(300));
            assert!(!done.is_finished());
            broadcast_to(late.into_iter().map(|member| (member, of(member))).collect(), root, 10);
        });
    }
}

#[test]
fn a_group_is_ready_when_all_processes_have_come() {
    let (nodes, members) = hosts("ready", &[2, 2]);
    let settings = GroupSettings::new(members);
    let of = |member: usize| {
        nodes[member].group(&GroupSettings { member: Some(member), ..settings.clone() }).unwrap()
    };
    let (root, third) = (of(0), of(2));
    for (missing, come) in [(vec![1, 3], 1), (vec![3], 3)] {
        let error = root.wait_until_ready(Some(Duration::from_millis(300))).unwrap_err();
        let NodeError::Unanswered(unanswered) = error else { panic!("{error}") };
        assert_eq!(unanswered.iter().map(|one| one.member).collect::<Vec<_>>(), missing);
        drop(of(come));
    }
    drop(third);
    // They have come, and have left again.
    let lost = root.wait_until_ready(TIMEOUT).unwrap();
    assert!(lost.iter().all(|lost| lost.loss == MemberLoss::Left), "{lost:?}");
}

#[test]
fn the_root_learns_which_processes_it_has_not_reached() {
    const JOIN_TIMEOUT: Nanoseconds = Nanoseconds::from_ms(5_000);
    let (mut nodes, members) = hosts_that_wait("lost", &[3, 4], JOIN_TIMEOUT);
    let settings = GroupSettings::new(members);
    let of = |nodes: &Nodes, member: usize| {
        nodes[member].group(&GroupSettings { member: Some(member), ..settings.clone() }).unwrap()
    };
    // Members 2 and 6 never come; the others do, also on a busy machine. Member 4 leaves, and the
    // node of member 5 closes, as that of a process that ends.
    let root = of(&nodes, 0);
    let others = [1, 3].map(|member| of(&nodes, member));
    let (leaves, dies) = (of(&nodes, 4), of(&nodes, 5));
    root.send(b"hello").unwrap();
    for group in others.iter().chain([&leaves, &dies]) {
        assert_eq!(group.receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
    }
    leaves.close(TIMEOUT).unwrap();
    drop(dies);
    drop(nodes.0.remove(5));
    let mut lost: Vec<(u32, MemberLoss)> =
        root.close(TIMEOUT).unwrap().iter().map(|lost| (lost.member, lost.loss)).collect();
    lost.sort_by_key(|(member, _)| *member);
    let never = MemberLoss::Unreachable(JOIN_TIMEOUT);
    assert_eq!(lost, [(2, never), (4, MemberLoss::Left), (5, MemberLoss::Left), (6, never)]);
    for group in others {
        assert_eq!(group.receive(TIMEOUT).unwrap(), None);
        assert_eq!(group.close(TIMEOUT).unwrap(), []);
    }
}

#[test]
fn a_process_whose_root_does_not_come_learns_it() {
    let (nodes, members) = hosts_that_wait("rootless", &[2], Nanoseconds::from_ms(300));
    let settings = GroupSettings { member: Some(1), ..GroupSettings::new(members) };
    let error = nodes[1].group(&settings).unwrap().receive(TIMEOUT).unwrap_err();
    assert!(matches!(error, NodeError::Ended(Ending::RootSilent(_))), "{error}");
    // It is the same group for those that come later.
    let root = nodes[0].group(&GroupSettings { member: Some(0), ..settings.clone() }).unwrap();
    let member = nodes[1].group(&settings).unwrap();
    broadcast(vec![root, member], 0, 5);
}

#[test]
fn a_member_that_leaves_or_dies_is_not_waited_for() {
    let (mut nodes, members) = hosts("leave", &[1, 4]);
    let settings = GroupSettings { slots: Some(8), ..GroupSettings::new(members) };
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
        assert!(matches!(keeper.close(Some(Duration::from_millis(100))), Err(NodeError::TimedOut)));
        drop(keeper);
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, NodeError::GroupFailed(_)), "{error:?}");
        let error = error.to_string();
        let expected = format!("the node of process {} is unusable: it has ended", std::process::id());
        assert!(error.contains(&expected), "{error}");
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

#[test]
fn processes_that_share_nodes_take_part_in_all_reduces_each() {
    for (name, members) in [("reduce", &[3, 2][..]), ("reduce alone", &[4][..])] {
        let (nodes, addresses) = hosts(name, members);
        let count = addresses.len() as u64;
        let settings = GroupSettings { root: 1, ..GroupSettings::new(addresses) };
        let groups = groups(&nodes, &settings);
        thread::scope(|scope| {
            for (member, group) in groups.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..30 {
                        if member == round % 3 {
                            thread::sleep(Duration::from_millis(2));
                        }
                        let mut sum = [1_u64 << (8 * member)];
                        let processes = group.all_reduce(&mut sum, Operation::Sum, TIMEOUT).unwrap();
                        assert_eq!(u64::from(processes), count);
                        assert_eq!(sum, [0x0101_0101_0101_0101 & ((1 << (8 * count)) - 1)]);
                    }
                });
            }
        });
        assert_eq!(groups[1].close(TIMEOUT).unwrap(), []);
    }
}
