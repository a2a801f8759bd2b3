//! Groups in the kernel's packet path on hosts whose interfaces compute no checksums, segment no
//! batches, or merge received datagrams.

#![expect(unsafe_code, reason = "offloads of interfaces are set by ioctl(2)")]

#[allow(dead_code, reason = "not all tests use all of it")]
mod common;
#[path = "common/network.rs"]
mod network;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use common::{TIMEOUT, message, settings};
use network::{Network, in_own_network, run};
use treecast_node::{EngineChoice, Group, GroupId, GroupSettings, Node, NodeSettings, Scheme, TreeScheme};

/// The commands of the ioctl `SIOCETHTOOL` (linux/ethtool.h).
const TRANSMIT_CHECKSUM: u32 = 0x17;
const SEGMENTATION: u32 = 0x24;
const MERGING: u32 = 0x2c;

/// Switches an offload of this network's interface on or off, as `ethtool -K eth0 tx off` does.
fn set_offload(command: u32, is_on: bool) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let mut value = [command, is_on.into()];
    // SAFETY: zeros are a request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(b"eth0") {
        *place = *byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
    // SAFETY: the request and the value outlive the call.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw const request) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

/// The datagrams with a wrong checksum that this network has received.
fn wrong_checksums(is_v6: bool) -> u64 {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
    if is_v6 {
        let counts = read("snmp6");
        let mut words = counts.lines().map(str::split_whitespace);
        let found = words.find_map(|mut line| (line.next() == Some("Udp6InCsumErrors")).then(|| line.next()));
        return found.flatten().unwrap().parse().unwrap();
    }
    let counts = read("snmp");
    let mut lines = counts.lines().filter_map(|line| line.strip_prefix("Udp: ")).map(|line| line.split(' '));
    let (names, mut numbers) = (lines.next().unwrap(), lines.next().unwrap());
    let place = names.into_iter().position(|name| name == "InCsumErrors").unwrap();
    numbers.nth(place).unwrap().parse().unwrap()
}

/// Networks of hosts whose `eth0` lead to one bridge, in the network of this thread.
fn hosts(count: usize) -> Vec<Network> {
    run("ip link add bridge type bridge");
    run("ip link set bridge up");
    let host = |number: usize| {
        let host = Network::new();
        let path = host.path();
        run(&format!("ip link add port{number} type veth peer name eth0 netns {path}"));
        run(&format!("ip link set port{number} master bridge up"));
        host.enter(|| {
            run("ip link set lo up");
            run(&format!("ip address add 10.0.0.{}/24 dev eth0", number + 1));
            run(&format!("ip address add fd00::{}/64 dev eth0 nodad", number + 1));
            run("ip link set eth0 up");
        });
        host
    };
    (0..count).map(host).collect()
}

/// The root's long messages leave in batches, and short ones in datagrams of their own.
fn exchange(groups: &[Group]) {
    for (number, length) in [300_000, 10, 100_000, 1_000, 3_000].into_iter().cycle().take(20).enumerate() {
        let sent = message(number, length);
        std::thread::scope(|scope| {
            scope.spawn(|| groups[0].send(&sent).unwrap());
            for group in &groups[1..] {
                scope.spawn(|| assert!(group.receive(TIMEOUT).unwrap().as_ref() == Some(&sent)));
            }
        });
    }
}

#[test]
fn checksums_are_right_whatever_the_interfaces_compute() {
    const ROLES: [&str; 3] = ["root", "relay", "leaf"];
    let mut cases = vec![vec![]];
    for command in [TRANSMIT_CHECKSUM, SEGMENTATION] {
        let [root, relay] = [0, 1].map(|place| (place, command, false));
        // What the root has segmented is merged again before the relay's program sees it.
        cases.extend([vec![root], vec![root, (1, MERGING, true)], vec![relay]]);
    }
    in_own_network(|| {
        let hosts = hosts(ROLES.len());
        for is_v6 in [false, true] {
            let open = |(place, host): (usize, &Network)| {
                let ip = if is_v6 { format!("fd00::{}", place + 1) } else { format!("10.0.0.{}", place + 1) };
                let bind = SocketAddr::new(ip.parse().unwrap(), 0);
                let settings = NodeSettings { bind, engine: EngineChoice::Ebpf, ..NodeSettings::default() };
                host.enter(|| Node::open(&settings).unwrap())
            };
            let nodes: Vec<Node> = hosts.iter().enumerate().map(open).collect();
            for (number, case) in cases.iter().enumerate() {
                for &(place, command, is_on) in case {
                    hosts[place].enter(|| set_offload(command, is_on));
                }
                let settings = GroupSettings {
                    group: GroupId(number as u32 + 1),
                    scheme: Some(Scheme::tree(TreeScheme::Serial)),
                    ..settings(&nodes)
                };
                let pairs = hosts.iter().zip(&nodes);
                let groups: Vec<Group> =
                    pairs.map(|(host, node)| host.enter(|| node.group(&settings).unwrap())).collect();
                groups[0].wait_until_ready(TIMEOUT).unwrap();
                // After a timeout of a busy machine, user space runs the group for a while.
                let is_in_kernel = (0..10).any(|_| {
                    exchange(&groups);
                    groups[1..].iter().all(|group| {
                        let counts = group.kernel_counters().expect("the group is in the kernel's table");
                        counts.fast_path.slow_path < counts.group.accepted / 2
                    })
                });
                for (host, role) in hosts.iter().zip(ROLES) {
                    let wrong = host.enter(|| wrong_checksums(is_v6));
                    assert_eq!(wrong, 0, "at the {role}, IPv6 {is_v6}, with {case:#x?}");
                }
                let counts: Vec<_> = groups[1..].iter().map(Group::kernel_counters).collect();
                assert!(is_in_kernel, "most packets were passed up with {case:#x?}: {counts:?}");
                for &(place, command, is_on) in case {
                    hosts[place].enter(|| set_offload(command, !is_on));
                }
            }
        }
    });
}
