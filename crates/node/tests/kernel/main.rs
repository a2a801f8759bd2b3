//! Groups that the kernel's packet path runs. Each test has its own network namespace.

mod all_reduce;
#[path = "../common/bursts.rs"]
mod bursts;
#[path = "../common/mod.rs"]
mod common;
mod environment;
mod forged;
#[path = "../common/network.rs"]
mod network;

use std::time::{Duration, Instant};

use common::{TIMEOUT, check_all, groups, message, settings};
use network::in_own_network;
use treecast_node::{
    EngineChoice, Group, GroupId, GroupSettings, KernelCounters, Nanoseconds, Node, NodeSettings, Offload,
    Scheme, TreeScheme, status,
};

fn node(address: &str, groups_max: usize) -> Node {
    let mut settings = NodeSettings {
        bind: address.parse().unwrap(),
        engine: EngineChoice::Ebpf,
        ..NodeSettings::default()
    };
    settings.protocol.groups_max = groups_max;
    Node::open(&settings).unwrap()
}

fn nodes(count: usize, address: &str) -> Vec<Node> {
    (0..count).map(|_| node(address, 8)).collect()
}

/// Waits until a condition holds.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT.unwrap();
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn counts(group: &Group) -> KernelCounters {
    group.kernel_counters().expect("the group is in the kernel's table")
}

/// Sends messages, each after all members have the one before, and receives them at all members.
fn exchange(groups: &[Group], count: usize, length: usize) {
    for number in 0..count {
        let sent = message(number, length);
        groups[0].send(&sent).unwrap();
        for group in &groups[1..] {
            assert_eq!(group.receive(TIMEOUT).unwrap().as_deref(), Some(&sent[..]));
        }
        groups[0].flush(TIMEOUT).unwrap();
    }
}

/// User space seldom has a group in one of ten rounds at least, which return whether that is so,
/// and what they have counted: after a timeout of a busy machine, user space runs the group for a
/// while.
fn check_in_some_round(mut round: impl FnMut() -> (bool, String)) {
    let mut counted = Vec::new();
    let is_rare = (0..10).any(|_| {
        let (is_rare, counts) = round();
        counted.push(counts);
        is_rare
    });
    assert!(is_rare, "{counted:#?}");
}

fn binomial(nodes: &[Node]) -> GroupSettings {
    GroupSettings { scheme: Some(Scheme::tree(TreeScheme::Binomial)), ..settings(nodes) }
}

#[test]
fn every_member_receives_every_message_over_both_ips() {
    in_own_network(|| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let nodes = nodes(5, address);
            let settings = GroupSettings {
                slots: Some(64),
                root: 2,
                scheme: Some(Scheme::tree(TreeScheme::Binomial)),
                ..settings(&nodes)
            };
            check_all(groups(&nodes, &settings), 2, &[0, 1, 64, 1_388, 1_409, 16_384, 5, 300_000, 0, 77]);
        }
    });
}

#[test]
fn packets_of_the_fast_path_do_not_reach_user_space() {
    in_own_network(|| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let nodes = nodes(4, address);
            let groups = groups(&nodes, &binomial(&nodes));
            groups[0].wait_until_ready(TIMEOUT).unwrap();
            // The paths to all neighbours are known after the first packets.
            exchange(&groups, 20, 100);
            check_in_some_round(|| {
                let before: Vec<KernelCounters> = groups.iter().map(counts).collect();
                exchange(&groups, 200, 3_000);
                let (mut accepted, mut passed) = (0, 0);
                for (group, before) in groups[1..].iter().zip(&before[1..]) {
                    accepted += counts(group).group.accepted - before.group.accepted;
                    passed += counts(group).fast_path.slow_path - before.fast_path.slow_path;
                    assert_eq!(counts(group).fast_path.transmit_errors, 0);
                }
                // Three packets per message at each of three members.
                assert_eq!(accepted, 200 * 3 * 3);
                let deferred = counts(&groups[0]).fast_path.deferred - before[0].fast_path.deferred;
                let is_rare = deferred < 60 && passed < accepted / 10;
                (
                    is_rare,
                    format!(
                        "{deferred} of 600 packets were left to user space, and {passed} of {accepted} passed up"
                    ),
                )
            });
        }
    });
}

#[test]
fn the_status_of_a_group_in_the_kernel_is_that_of_the_program() {
    in_own_network(|| {
        let nodes = nodes(3, "127.0.0.1:0");
        let groups = groups(&nodes, &binomial(&nodes));
        groups[0].wait_until_ready(TIMEOUT).unwrap();
        exchange(&groups, 100, 3_000);
        let group = |node: &Node| {
            let found = status::find().unwrap().nodes;
            let document = found.iter().find(|found| found.address == node.address()).unwrap();
            assert_eq!(document.engine, "ebpf");
            document.groups[0].clone()
        };
        for node in &nodes {
            // After a timeout of a busy machine, user space has it for a while.
            wait_until("the kernel has the group", || group(node).in_kernel);
            let group = group(node);
            assert_eq!((group.next, group.stable, group.bytes), (300, 300, 300_000));
            assert!(
                group.children.iter().all(|child| (child.behind, child.in_flight) == (0, 0)),
                "{group:?}"
            );
        }
        assert_eq!(group(&nodes[0]).children.len(), 2);
    });
}

fn by_multicast(nodes: &[Node]) -> GroupSettings {
    GroupSettings { offload: Some(Offload::Switch), ..settings(nodes) }
}

#[test]
fn packets_by_multicast_do_not_reach_user_space() {
    in_own_network(|| {
        let nodes = nodes(2, "127.0.0.1:0");
        let groups = groups(&nodes, &by_multicast(&nodes));
        groups[0].wait_until_ready(TIMEOUT).unwrap();
        // The first heartbeat reaches the member.
        std::thread::sleep(Duration::from_millis(300));
        exchange(&groups, 20, 100);
        check_in_some_round(|| {
            let before: Vec<KernelCounters> = groups.iter().map(counts).collect();
            exchange(&groups, 200, 3_000);
            let after: Vec<KernelCounters> = groups.iter().map(counts).collect();
            let passed = [0, 1].map(|at| after[at].fast_path.slow_path - before[at].fast_path.slow_path);
            let accepted = after[1].group.accepted - before[1].group.accepted;
            let acknowledged = after[0].group.acks_received - before[0].group.acks_received;
            assert_eq!(accepted, 200 * 3);
            // What the program has taken does not reach user space as well, where each packet would
            // be a duplicate. A member that is late gets a few packets twice.
            let duplicates = after[1].group.duplicates - before[1].group.duplicates;
            let is_rare =
                duplicates < accepted / 10 && passed[1] < accepted / 2 && passed[0] < acknowledged / 2;
            (
                is_rare,
                format!(
                    "{duplicates} duplicates, {passed:?} of {acknowledged} acknowledgments and of {accepted} packets passed up"
                ),
            )
        });
    });
}

/// A packet that one node's program takes would not reach the other nodes.
#[test]
fn nodes_of_one_host_that_share_a_multicast_address_receive_all_packets() {
    in_own_network(|| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let nodes = nodes(3, address);
            let settings = GroupSettings { slots: Some(64), root: 2, ..by_multicast(&nodes) };
            check_all(groups(&nodes, &settings), 2, &[0, 1, 64, 1_388, 1_409, 16_384, 5, 300_000, 0, 77]);
        }
    });
}

#[test]
fn members_with_either_engine_are_in_one_group() {
    in_own_network(|| {
        let user = |_| {
            let settings = NodeSettings {
                bind: "127.0.0.1:0".parse().unwrap(),
                engine: EngineChoice::User,
                ..NodeSettings::default()
            };
            Node::open(&settings).unwrap()
        };
        let mut mixed = nodes(3, "127.0.0.1:0");
        mixed.extend((0..3).map(user));
        mixed.swap(1, 4);
        for root in [0, 5] {
            let settings = GroupSettings { root, group: GroupId(root as u32), ..binomial(&mixed) };
            check_all(groups(&mixed, &settings), root, &[64, 0, 16_384, 200_000, 1]);
        }
    });
}

#[test]
fn applications_forward_where_the_group_says_so() {
    in_own_network(|| {
        let nodes = nodes(4, "127.0.0.1:0");
        for (number, offload) in [(1, Offload::Assisted), (2, Offload::Host)] {
            let settings =
                GroupSettings { group: GroupId(number), offload: Some(offload), ..binomial(&nodes) };
            check_all(groups(&nodes, &settings), 0, &[64, 16_384, 100_000]);
        }
    });
}

#[test]
fn groups_side_by_side_fill_the_table_and_do_not_disturb_one_another() {
    in_own_network(|| {
        // The kernel's table has room for the node's maximum of groups; it does not contain groups
        // of other nodes.
        let further =
            |nodes: &[Node]| nodes[0].group(&GroupSettings { group: GroupId(5), ..binomial(nodes) });
        let nodes: Vec<Node> = (0..3).map(|_| node("127.0.0.1:0", 4)).collect();
        let all: Vec<Vec<Group>> = (1..=4)
            .map(|number| {
                let settings =
                    GroupSettings { group: GroupId(number), root: number as usize % 3, ..binomial(&nodes) };
                groups(&nodes, &settings)
            })
            .collect();
        for group in all.iter().flatten() {
            // A member's group is in the table once the member has its place.
            group.wait_until_ready(TIMEOUT).unwrap();
            assert!(group.kernel_counters().is_some(), "{group:?}");
        }
        let refused = further(&nodes).unwrap_err().to_string();
        assert_eq!(refused, "this node has 4 groups, and no room for another");
        std::thread::scope(|scope| {
            for (number, groups) in all.into_iter().enumerate() {
                scope.spawn(move || check_all(groups, (number + 1) % 3, &[10, 5_000, 0, 100_000, 64]));
            }
        });
    });
}

#[test]
fn members_come_and_go() {
    in_own_network(|| {
        let mut nodes = nodes(4, "127.0.0.1:0");
        let late = nodes.pop().unwrap();
        let settings = GroupSettings { admits: true, ..binomial(&nodes) };
        let mut groups = groups(&nodes, &settings);
        exchange(&groups, 10, 2_000);
        let newcomer = late.join_running(&settings).unwrap();
        newcomer.wait_until_ready(TIMEOUT).unwrap();
        groups.push(newcomer);
        exchange(&groups, 10, 2_000);
        let leaver = groups.remove(1);
        leaver.close(TIMEOUT).unwrap();
        exchange(&groups, 10, 2_000);
        assert!(groups[0].losses().iter().any(|lost| lost.member == 1));
        let root = groups.remove(0);
        std::thread::scope(|scope| {
            for group in &groups {
                scope.spawn(move || assert_eq!(group.receive(TIMEOUT).unwrap(), None));
            }
            root.close(TIMEOUT).unwrap();
        });
    });
}

#[test]
fn a_slow_reader_stops_the_root_and_loses_nothing() {
    in_own_network(|| {
        let nodes = nodes(3, "127.0.0.1:0");
        let settings = GroupSettings {
            slots: Some(16),
            scheme: Some(Scheme::tree(TreeScheme::Serial)),
            ..settings(&nodes)
        };
        let groups = groups(&nodes, &settings);
        groups[0].wait_until_ready(TIMEOUT).unwrap();
        let sent: Vec<Vec<u8>> = (0..200).map(|number| message(number, 700)).collect();
        std::thread::scope(|scope| {
            let root = &groups[0];
            let sending = scope.spawn(|| {
                for message in &sent {
                    root.send(message).unwrap();
                }
            });
            for message in &sent {
                assert_eq!(groups[2].receive(TIMEOUT).unwrap().as_ref(), Some(message));
                if groups[2].counters().unwrap().accepted == 16 {
                    break;
                }
            }
            // The first member's slots are full, or will be soon: it forwards nothing more.
            std::thread::sleep(Duration::from_millis(20));
            assert!(!sending.is_finished());
            for message in &sent {
                assert_eq!(groups[1].receive(TIMEOUT).unwrap().as_ref(), Some(message));
                let _ = groups[2].receive(Some(Duration::ZERO));
            }
            sending.join().unwrap();
        });
    });
}

#[test]
fn bursts_are_left_to_the_node_which_forgets_nothing_and_to_the_program() {
    in_own_network(|| {
        for (seed, scheme) in
            [(1, Scheme::tree(TreeScheme::Separate)), (2, Scheme::tree(TreeScheme::Binomial))]
        {
            let nodes = nodes(4, "127.0.0.1:0");
            let settings = GroupSettings { slots: Some(256), scheme: Some(scheme), ..settings(&nodes) };
            bursts::check(&groups(&nodes, &settings), seed);
        }
    });
}

/// The root does nothing after each burst, so that no later event sends a forgotten packet.
#[test]
fn delegated_packets_are_sent_without_further_events() {
    const BURST: usize = 150;
    in_own_network(|| {
        let open = |_| {
            let mut settings = NodeSettings {
                bind: "127.0.0.1:0".parse().unwrap(),
                engine: EngineChoice::Ebpf,
                ..NodeSettings::default()
            };
            settings.protocol.keepalive = Nanoseconds::from_ms(1_000_000);
            settings.protocol.peer_timeout = Nanoseconds::from_ms(4_000_000);
            Node::open(&settings).unwrap()
        };
        let nodes: Vec<Node> = (0..3).map(open).collect();
        let settings = GroupSettings {
            slots: Some(64),
            scheme: Some(Scheme::tree(TreeScheme::Separate)),
            ..settings(&nodes)
        };
        let groups = groups(&nodes, &settings);
        groups[0].wait_until_ready(TIMEOUT).unwrap();
        for round in 0..200 {
            std::thread::scope(|scope| {
                for group in &groups[1..] {
                    scope.spawn(move || {
                        for number in 0..BURST {
                            assert_eq!(group.receive(TIMEOUT).unwrap(), Some(message(round + number, 20)));
                        }
                    });
                }
                (0..BURST).for_each(|number| groups[0].send(&message(round + number, 20)).unwrap());
            });
        }
    });
}

#[test]
fn long_messages_pass_few_slots() {
    in_own_network(|| {
        let nodes = nodes(3, "127.0.0.1:0");
        let settings = GroupSettings {
            slots: Some(16),
            scheme: Some(Scheme::tree(TreeScheme::Serial)),
            ..settings(&nodes)
        };
        let groups = groups(&nodes, &settings);
        groups[0].wait_until_ready(TIMEOUT).unwrap();
        std::thread::scope(|scope| {
            for group in &groups[1..] {
                scope.spawn(move || {
                    for number in 0..20 {
                        assert_eq!(group.receive(TIMEOUT).unwrap(), Some(message(number, 100_000)));
                    }
                });
            }
            for number in 0..20 {
                groups[0].send(&message(number, 100_000)).unwrap();
            }
        });
        // Sleeping readers are woken by packets, which have to arrive.
        wait_until("no packet without a socket once all messages are delivered", || lost_by_ip() == 0);
    });
}

/// The number of IPv4 packets received in this network namespace without a socket for them.
fn lost_by_ip() -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = counts.lines().filter_map(|line| line.strip_prefix("Ip: ")).map(|line| line.split(' '));
    let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
    let of = |name: &str| {
        let (_, number) = names.clone().zip(numbers.clone()).find(|(other, _)| *other == name).unwrap();
        number.parse::<u64>().unwrap()
    };
    of("InReceives") - of("InDelivers")
}
