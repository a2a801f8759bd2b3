//! Groups with offload `switch` in a network of several interfaces, which is the network namespace
//! of a thread.

#[allow(dead_code, reason = "not all tests use all of it")]
mod common;
#[path = "common/network.rs"]
mod network;

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use common::{TIMEOUT, groups, skip};
use network::{Network, run};
use nix::sched::{CloneFlags, unshare};
use treecast_node::{Group, GroupId, GroupSettings, Node, NodeSettings, Offload, Scheme, TreeScheme};

/// Runs a test on a host with two interfaces, whose other ends are in the network of another host,
/// for which the test gets a handle: number 1 with an MTU of 9,000 bytes and networks 10.1.0.0/16
/// and `fd01::/64`, and number 2 with an MTU of 1,500 bytes, 10.2.0.0/16 and `fd02::/64`. The
/// test's host has address 1 in each, the other one 2 to 9.
fn in_two_networks(test: impl FnOnce(&Network) + Send) {
    if !nix::unistd::geteuid().is_root() {
        return skip(&"network namespaces are for root");
    }
    std::thread::scope(|scope| {
        let test = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let other = Network::new();
            let path = other.path();
            for (number, mtu) in [(1, 9_000), (2, 1_500)] {
                run(&format!(
                    "ip link add d{number} mtu {mtu} type veth peer name d{number} mtu {mtu} netns {path}"
                ));
                add_addresses(number, 1..2);
                other.enter(|| add_addresses(number, 2..10));
            }
            test(&other);
        };
        if let Err(panic) = scope.spawn(test).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn add_addresses(number: u32, hosts: Range<u32>) {
    run("ip link set lo up");
    run(&format!("ip link set d{number} up"));
    for host in hosts {
        run(&format!("ip address add 10.{number}.0.{host}/16 dev d{number}"));
        run(&format!("ip address add fd0{number}::{host}/64 dev d{number} nodad"));
    }
}

fn open(address: &str) -> Node {
    Node::open(&NodeSettings { bind: address.parse().unwrap(), ..NodeSettings::default() }).unwrap()
}

/// Settings of a group whose root sends to every other member.
fn settings(members: Vec<SocketAddr>) -> GroupSettings {
    GroupSettings {
        offload: Some(Offload::Switch),
        scheme: Some(Scheme::tree(TreeScheme::Separate)),
        token: "a token".into(),
        ..GroupSettings::new(members)
    }
}

/// Sends messages until each of some of them is sent once for all members.
fn check_is_sent_once(root: &Group, members: &[Group]) {
    const COUNT: u64 = 20;
    let end = Instant::now() + TIMEOUT.unwrap();
    loop {
        let before = root.counters().unwrap().sent;
        for number in 0..COUNT {
            root.send(&[number as u8; 1_000]).unwrap();
            for member in members {
                assert_eq!(member.receive(TIMEOUT).unwrap(), Some(vec![number as u8; 1_000]));
            }
        }
        root.flush(TIMEOUT).unwrap();
        let sent = root.counters().unwrap().sent - before;
        if sent == COUNT {
            return;
        }
        assert!(Instant::now() < end, "{sent} packets were sent for {COUNT} messages");
    }
}

/// The address of the test's host, at which a node is that listens at all addresses.
fn address_here(node: &Node, number: u32) -> SocketAddr {
    let ip = if node.address().is_ipv6() { format!("[fd0{number}::1]") } else { format!("10.{number}.0.1") };
    format!("{ip}:{}", node.address().port()).parse().unwrap()
}

/// Nodes of the other host.
fn open_there(there: &Network, is_v6: bool, number: u32) -> Vec<Node> {
    let address =
        |host| if is_v6 { format!("[fd0{number}::{host}]:0") } else { format!("10.{number}.0.{host}:0") };
    there.enter(|| (2..6).map(|host| open(&address(host))).collect())
}

#[test]
fn multicast_over_ipv6_reaches_all_members() {
    in_two_networks(|there| {
        let members = open_there(there, true, 1);
        let nodes: Vec<Node> = [open("[fd01::1]:0")].into_iter().chain(members).collect();
        let settings = settings(nodes.iter().map(Node::address).collect());
        let groups = groups(&nodes, &settings);
        groups[0].wait_until_ready(TIMEOUT).unwrap();
        check_is_sent_once(&groups[0], &groups[1..]);
    });
}

#[test]
fn groups_of_one_root_are_sent_by_the_interfaces_of_their_members() {
    in_two_networks(|there| {
        for (any, is_v6) in [("0.0.0.0:0", false), ("[::]:0", true)] {
            let root = open(any);
            let mut all: Vec<(Group, Vec<Group>, Vec<Node>)> = Vec::new();
            for number in [1, 2] {
                let nodes = open_there(there, is_v6, number);
                let members = [address_here(&root, number)]
                    .into_iter()
                    .chain(nodes.iter().map(Node::address))
                    .collect();
                let settings = GroupSettings { group: GroupId(number), ..settings(members) };
                let group = root.group(&settings).unwrap();
                let others = groups(&nodes, &settings);
                group.wait_until_ready(TIMEOUT).unwrap();
                all.push((group, others, nodes));
            }
            for (root, members, _) in &all {
                check_is_sent_once(root, members);
            }
        }
    });
}

#[test]
fn a_root_that_was_alone_sends_by_the_interface_of_those_that_join() {
    in_two_networks(|there| {
        let (root, nodes) = (open("0.0.0.0:0"), open_there(there, false, 2));
        let settings = GroupSettings { admits: true, ..settings(vec![address_here(&root, 2)]) };
        let group = root.group(&settings).unwrap();
        group.wait_until_ready(TIMEOUT).unwrap();
        let members: Vec<Group> = nodes.iter().map(|node| node.join_running(&settings).unwrap()).collect();
        for member in &members {
            assert_eq!(member.wait_until_ready(TIMEOUT).unwrap(), []);
        }
        check_is_sent_once(&group, &members);
    });
}
