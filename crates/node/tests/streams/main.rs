//! Groups whose data goes on streams, on loopback.

mod buffers;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/network.rs"]
#[allow(dead_code, reason = "not all tests use all of it")]
mod network;
#[path = "../common/on_path.rs"]
mod on_path;

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{TIMEOUT, check_all, groups, message, settings};
use network::in_own_network;
use on_path::{OnPath, Segment};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketType, bind, connect, getpeername, getsockname, socket, sockopt,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use treecast_node::{
    Authentication, CongestionControl, Group, GroupId, GroupSettings, Integrity, Nanoseconds, Node,
    NodeError, NodeSettings, Offload, Scheme, Transport, TreeScheme,
};

fn open(count: usize, address: &str) -> Vec<Node> {
    let settings = NodeSettings { bind: address.parse().unwrap(), ..NodeSettings::default() };
    (0..count).map(|_| Node::open(&settings).unwrap()).collect()
}

fn nodes(count: usize) -> Vec<Node> {
    open(count, "127.0.0.1:0")
}

fn by_streams(nodes: &[Node]) -> GroupSettings {
    GroupSettings { transport: Some(Transport::Streams), ..settings(nodes) }
}

/// The root first, and each member below the one before.
fn chain(nodes: &[Node]) -> GroupSettings {
    GroupSettings { scheme: Some(Scheme::tree(TreeScheme::Serial)), ..by_streams(nodes) }
}

/// Lengths around those of a packet, which has 2 KiB or 16, of a read and of all slots.
const LENGTHS: [usize; 15] =
    [0, 1, 64, 2_048, 2_049, 16_383, 16_384, 16_385, 5, 131_072, 300_000, 0, 77, 3_000_000, 40_000];

#[test]
fn every_member_receives_every_message_with_each_offload() {
    for offload in [Offload::Nic, Offload::Assisted, Offload::Host] {
        let nodes = nodes(7);
        let settings = GroupSettings { offload: Some(offload), root: 2, ..by_streams(&nodes) };
        check_all(groups(&nodes, &settings), 2, &LENGTHS);
    }
}

#[test]
fn streams_are_the_default() {
    for (message_bytes, packet_bytes) in [(1_024, 2_048), (100_000, 8_192)] {
        let nodes = nodes(3);
        let groups = groups(&nodes, &GroupSettings { message_bytes, ..settings(&nodes) });
        assert_eq!(groups[0].packet_bytes(), Some(packet_bytes));
        check_all(groups, 0, &LENGTHS);
    }
}

/// An end of a stream: the parent's if this process has the port of one of the nodes there.
struct StreamEnd {
    socket: OwnedFd,
    here: SocketAddr,
    peer: SocketAddr,
}

/// Both ends of the streams between these nodes.
fn stream_ends(nodes: &[Node]) -> Vec<StreamEnd> {
    let address = |address: SocketAddrAny| SocketAddr::try_from(address).ok();
    let is_of_nodes = |address| nodes.iter().any(|node| node.address() == address);
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let number = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
        // Other tests may have closed it, and many descriptors are no TCP sockets.
        let Ok(socket) = pidfd_getfd(&this, number, PidfdGetfdFlags::empty()) else { continue };
        if sockopt::tcp_congestion(&socket).is_err() {
            continue;
        }
        let Ok(Some(peer)) = getpeername(&socket) else { continue };
        let (Some(here), Some(peer)) = (address(getsockname(&socket).unwrap()), address(peer)) else {
            continue;
        };
        // Another test may have a duplicate of the same socket.
        let is_known = found.iter().any(|end: &StreamEnd| (end.here, end.peer) == (here, peer));
        if !is_known && (is_of_nodes(here) || is_of_nodes(peer)) {
            found.push(StreamEnd { socket, here, peer });
        }
    }
    found
}

/// The congestion control of each end of the streams between these nodes, by whether it is the
/// parent's end.
fn congestion_of(nodes: &[Node]) -> Vec<(bool, String)> {
    let of_end = |end: StreamEnd| {
        let is_parent = nodes.iter().any(|node| node.address() == end.here);
        (is_parent, sockopt::tcp_congestion(&end.socket).unwrap())
    };
    stream_ends(nodes).into_iter().map(of_end).collect()
}

#[test]
fn streams_have_the_congestion_control_of_their_group() {
    let allowed = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap();
    for name in allowed.split_whitespace() {
        let nodes = nodes(3);
        let tcp_congestion = CongestionControl::new(name);
        let groups = groups(&nodes, &GroupSettings { tcp_congestion, ..chain(&nodes) });
        groups[0].wait_until_ready(TIMEOUT).unwrap();
        groups[0].send(b"hello").unwrap();
        groups[2].receive(TIMEOUT).unwrap();
        let found = congestion_of(&nodes);
        for is_parent in [false, true] {
            let end: Vec<_> = found.iter().filter(|(of_parent, _)| *of_parent == is_parent).collect();
            assert!(end.len() == 2 && end.iter().all(|(_, has)| has == name), "{name}: {found:?}");
        }
    }
}

#[test]
fn a_congestion_control_that_the_kernel_does_not_have_is_refused() {
    let nodes = nodes(2);
    let tcp_congestion = CongestionControl::new("nonsense");
    let settings = GroupSettings { tcp_congestion, ..settings(&nodes) };
    for node in &nodes {
        let error = node.group(&settings).unwrap_err().to_string();
        assert!(error.starts_with("tcp_congestion=nonsense is not available: the kernel of"), "{error}");
    }
    let error = nodes[1].join_running(&settings).unwrap_err();
    assert!(matches!(error, NodeError::CongestionControl { .. }), "{error}");
    let error = settings.check(nodes[0].address(), 2).unwrap_err();
    assert!(matches!(error, NodeError::CongestionControl { .. }), "{error}");
}

#[test]
fn a_root_without_its_tcp_port_sends_datagrams() {
    // A port that is free for both, and then for datagrams only.
    let taken = loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        if UdpSocket::bind(listener.local_addr().unwrap()).is_ok() {
            break listener;
        }
    };
    let mut nodes = open(1, &taken.local_addr().unwrap().to_string());
    nodes.extend(self::nodes(2));
    let groups = groups(&nodes, &settings(&nodes));
    assert!(!groups[0].packet_bytes().unwrap().is_power_of_two());
    check_all(groups, 0, &LENGTHS);
}

#[test]
fn a_node_whose_port_the_system_chooses_has_the_tcp_port_of_the_same_number() {
    let nodes = nodes(50);
    for node in &nodes {
        // As a connection does whose port the system chooses, and unlike the standard library's
        // listener, without SO_REUSEADDR.
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        assert_eq!(bind(&socket, &node.address()), Err(Errno::ADDRINUSE), "{}", node.address());
    }
}

#[test]
fn payloads_are_checked_as_the_settings_say() {
    for (authentication, integrity) in [
        (Authentication::Payload, Integrity::Network),
        (Authentication::Header, Integrity::Crc32c),
        (Authentication::Header, Integrity::Network),
    ] {
        let nodes = nodes(4);
        let settings = GroupSettings { authentication: Some(authentication), integrity, ..chain(&nodes) };
        check_all(groups(&nodes, &settings), 0, &LENGTHS);
    }
}

#[test]
fn it_works_over_ipv6_and_with_few_slots() {
    let nodes = open(5, "[::1]:0");
    let settings = GroupSettings { slots: Some(4), ..chain(&nodes) };
    check_all(groups(&nodes, &settings), 0, &LENGTHS);
}

#[test]
fn many_short_messages_arrive_in_order() {
    let nodes = nodes(4);
    let lengths: Vec<usize> = (0..3_000).map(|number| number % 97).collect();
    check_all(groups(&nodes, &by_streams(&nodes)), 0, &lengths);
}

/// Data is expected on the stream that was read last.
#[test]
fn a_group_whose_data_never_ends_does_not_hold_up_another_one() {
    let nodes = nodes(2);
    let [endless, other] =
        [1, 2].map(|group| groups(&nodes, &GroupSettings { group: GroupId(group), ..by_streams(&nodes) }));
    for groups in [&endless, &other] {
        groups[0].wait_until_ready(TIMEOUT).unwrap();
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| while endless[1].receive(TIMEOUT).unwrap().is_some() {});
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                endless[0].send(&[7; 64]).unwrap();
            }
            endless[0].close(TIMEOUT).unwrap();
        });
        let received: Vec<_> = (0..50)
            .map(|number| {
                other[0].send(&message(number, 64)).unwrap();
                other[1].receive(Some(Duration::from_secs(2)))
            })
            .collect();
        is_over.store(true, Ordering::Relaxed);
        for (number, received) in received.into_iter().enumerate() {
            assert_eq!(received.unwrap(), Some(message(number, 64)), "message {number}");
        }
    });
}

/// Acknowledgments are rare, and say nothing of a child that keeps up.
#[test]
fn a_child_that_keeps_up_is_not_slow() {
    let nodes = nodes(2);
    let settings = GroupSettings { message_bytes: 65_536, ..by_streams(&nodes) };
    let groups = groups(&nodes, &settings);
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    let is_slow = |&number: &usize| {
        groups[0].send(&message(number, 16_384)).unwrap();
        groups[1].receive(TIMEOUT).unwrap();
        // An acknowledgment may be on its way.
        std::thread::sleep(Duration::from_micros(200));
        !groups[0].slow_members().is_empty()
    };
    let slow = (0..400).filter(is_slow).count();
    assert!(slow < 40, "slow after {slow} messages of 400");
}

/// Acknowledgments wake processes. These 64 messages fill the slots four times, so that each member
/// has to say eight times that half of them are free again. A relay may say it twice: when it has
/// read the packets, and when its child has them.
#[test]
fn members_acknowledge_for_half_of_the_slots() {
    // Probes of idle children are answered too.
    let bind = "127.0.0.1:0".parse().unwrap();
    let mut rarely_idle = NodeSettings { bind, ..NodeSettings::default() };
    rarely_idle.protocol.peer_timeout = Nanoseconds::from_ms(80_000);
    rarely_idle.protocol.keepalive = Nanoseconds::from_ms(20_000);
    let nodes: Vec<Node> = (0..3).map(|_| Node::open(&rarely_idle).unwrap()).collect();
    let settings = GroupSettings { message_bytes: 65_536, slots: Some(64), ..chain(&nodes) };
    let groups = groups(&nodes, &settings);
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    for number in 0..64 {
        let sent = message(number, 65_536);
        groups[0].send(&sent).unwrap();
        for member in &groups[1..] {
            assert!(member.receive(TIMEOUT).unwrap() == Some(sent.clone()));
        }
    }
    for member in &groups[1..] {
        let acknowledgments = member.counters().unwrap().acks_sent;
        assert!((4..=24).contains(&acknowledgments), "{acknowledgments}");
    }
}

#[test]
fn a_flush_waits_until_all_members_have_the_messages() {
    let nodes = nodes(6);
    let groups = groups(&nodes, &chain(&nodes));
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    for (number, length) in [(0, 10), (1, 200_000), (2, 0)] {
        groups[0].send(&message(number, length)).unwrap();
        groups[0].flush(TIMEOUT).unwrap();
        for group in &groups[1..] {
            assert_eq!(group.receive(Some(Duration::ZERO)).unwrap(), Some(message(number, length)));
        }
    }
}

#[test]
fn a_reader_that_stops_holds_the_root_back_and_nobody_is_lost() {
    let nodes = nodes(3);
    let groups = groups(&nodes, &GroupSettings { slots: Some(8), ..chain(&nodes) });
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    // Far more than slots and sockets hold.
    let length = 30_000_000;
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| groups[0].send(&message(0, length)).unwrap());
        scope.spawn(|| assert!(groups[1].receive(TIMEOUT).unwrap() == Some(message(0, length))));
        // Longer than a member is waited for that does not answer.
        std::thread::sleep(Duration::from_millis(3_500));
        assert!(!sending.is_finished());
        assert!(groups[2].receive(TIMEOUT).unwrap() == Some(message(0, length)));
    });
    assert_eq!(groups[0].losses(), []);
}

#[test]
fn the_children_of_a_relay_that_dies_get_everything_once() {
    let nodes = nodes(5);
    let groups = groups(&nodes, &chain(&nodes));
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    std::thread::scope(|scope| {
        for (member, group) in groups.iter().enumerate().skip(1) {
            scope.spawn(move || {
                for number in 0..60 {
                    if (member, number) == (1, 20) {
                        // It stops in the middle of the stream, and answers nothing any more.
                        return group.abort();
                    }
                    let received = group.receive(TIMEOUT).unwrap();
                    assert!(received == Some(message(number, 100_000)), "message {number}");
                }
            });
        }
        for number in 0..60 {
            groups[0].send(&message(number, 100_000)).unwrap();
        }
        groups[0].flush(TIMEOUT).unwrap();
    });
    let lost: Vec<u32> = groups[0].losses().iter().map(|lost| lost.member).collect();
    assert_eq!(lost, [1]);
}

#[test]
fn hosts_without_members_cannot_connect() {
    let nodes = nodes(2);
    let groups = groups(&nodes, &chain(&nodes));
    groups[0].send(b"the port is open").unwrap();
    groups[0].flush(TIMEOUT).unwrap();
    let address = nodes[0].address();
    let mut strangers: Vec<TcpStream> = (0..100)
        .map(|_| {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            bind(&socket, &"127.0.0.9:0".parse::<SocketAddr>().unwrap()).unwrap();
            connect(&socket, &address).unwrap();
            socket.into()
        })
        .collect();
    for stranger in &mut strangers {
        stranger.set_read_timeout(TIMEOUT).unwrap();
        let read = stranger.read(&mut [0; 1]).map_err(|error| error.kind());
        assert!(matches!(read, Ok(0) | Err(ErrorKind::ConnectionReset)), "{read:?}");
    }
    groups[0].send(b"still here").unwrap();
    groups[0].flush(TIMEOUT).unwrap();
    assert_eq!(groups[1].receive(TIMEOUT).unwrap().unwrap(), b"the port is open");
    assert_eq!(groups[1].receive(TIMEOUT).unwrap().unwrap(), b"still here");
}

#[test]
fn nodes_take_the_free_ports_of_a_range() {
    let open = || {
        let bind = "127.9.9.9:0".parse().unwrap();
        Node::open(&NodeSettings {
            bind,
            ports: Some("7000-7003".parse().unwrap()),
            ..NodeSettings::default()
        })
    };
    // Others have the first port for UDP, and the second one for TCP.
    let _datagrams = UdpSocket::bind("127.9.9.9:7000").unwrap();
    let listener = TcpListener::bind("127.9.9.9:7001").unwrap();
    let nodes = [open().unwrap(), open().unwrap()];
    assert_eq!(nodes.each_ref().map(|node| node.address().port()), [7_002, 7_003]);
    let groups = groups(&nodes, &chain(&nodes));
    groups[0].send(b"by a stream").unwrap();
    assert_eq!(groups[1].receive(TIMEOUT).unwrap().unwrap(), b"by a stream");
    // One without its TCP port is better than none.
    let without_tcp = open().unwrap();
    assert_eq!(without_tcp.address().port(), 7_001);
    drop(listener);
    let error = open().unwrap_err().to_string();
    assert_eq!(error, "cannot listen at 127.9.9.9: no port of 7000-7003 is free there");
}

#[test]
fn strangers_at_the_port_are_answered_by_a_challenge_and_nothing_else() {
    let nodes = nodes(3);
    let groups = groups(&nodes, &chain(&nodes));
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    groups[0].send(b"the port is open").unwrap();
    groups[0].flush(TIMEOUT).unwrap();
    let address = nodes[0].address();
    let open = || {
        let stranger = TcpStream::connect(address).unwrap();
        stranger.set_read_timeout(TIMEOUT).unwrap();
        stranger
    };
    let challenge = |stranger: &mut TcpStream| {
        let mut challenge = [0; 16];
        stranger.read_exact(&mut challenge).unwrap();
        challenge
    };
    // Another challenge for each, and an answer that is no packet ends the connection.
    let (mut one, mut other) = (open(), open());
    assert_ne!(challenge(&mut one), challenge(&mut other));
    one.write_all(&[7; 64]).unwrap();
    assert_eq!(one.read(&mut [0; 1]).unwrap_or(0), 0);
    // So does silence, after a while.
    let began = Instant::now();
    assert_eq!(other.read(&mut [0; 1]).unwrap_or(0), 0);
    assert!(Some(began.elapsed()) < TIMEOUT, "it hangs");
    // Many of them at once do not keep the group from going on.
    let crowd: Vec<TcpStream> = (0..100).map(|_| open()).collect();
    groups[0].send(b"still here").unwrap();
    groups[0].flush(TIMEOUT).unwrap();
    drop(crowd);
    for group in &groups[1..] {
        assert_eq!(group.receive(TIMEOUT).unwrap().unwrap(), b"the port is open");
        assert_eq!(group.receive(TIMEOUT).unwrap().unwrap(), b"still here");
    }
}

/// TCP accepts any segment with the right addresses and sequence number. The test injects random
/// bytes, or a record that the parent sent before.
#[test]
fn what_a_host_on_the_path_puts_into_a_stream_is_not_received() {
    in_own_network(|| {
        for (authentication, is_replayed) in [
            (Authentication::Header, false),
            (Authentication::Header, true),
            (Authentication::Payload, false),
            (Authentication::Payload, true),
        ] {
            let path = OnPath::open();
            let nodes = nodes(3);
            let settings = GroupSettings { authentication: Some(authentication), ..chain(&nodes) };
            let groups = groups(&nodes, &settings);
            let (mut injected, mut connections) = (0, BTreeSet::new());
            for number in 0..20 {
                let sent = message(number, 300);
                groups[0].send(&sent).unwrap();
                groups[0].flush(TIMEOUT).unwrap();
                for group in &groups[1..] {
                    assert_eq!(group.receive(TIMEOUT).unwrap(), Some(sent.clone()), "message {number}");
                }
                let is_of_parent = |segment: &&Segment| {
                    let from = SocketAddr::from(segment.from);
                    nodes.iter().any(|node| node.address() == from) && segment.payload.len() > 300
                };
                let seen = path.segments();
                connections.extend(seen.iter().filter(is_of_parent).map(|segment| segment.to));
                if let Some(last) = seen.iter().rfind(is_of_parent).filter(|_| number % 4 == 3) {
                    let sequence = last.sequence.wrapping_add(last.payload.len() as u32);
                    let payload = if is_replayed { last.payload.clone() } else { message(number, 400) };
                    path.send(&Segment { sequence, payload, ..last.clone() });
                    injected += 1;
                }
            }
            assert!(injected > 2, "{injected} segments");
            assert!(connections.len() > 2, "no stream was opened again: {connections:?}");
            assert_eq!(groups[0].losses(), []);
        }
    });
}

#[test]
fn a_late_member_gets_what_follows() {
    let nodes = nodes(4);
    let all = GroupSettings { admits: true, ..by_streams(&nodes) };
    let first = GroupSettings { members: all.members[..3].to_vec(), ..all.clone() };
    let groups: Vec<Group> = nodes[..3].iter().map(|node| node.group(&first).unwrap()).collect();
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    groups[0].send(b"before").unwrap();
    groups[0].flush(TIMEOUT).unwrap();
    let late = nodes[3].group(&all).unwrap();
    late.wait_until_ready(TIMEOUT).unwrap();
    groups[0].send(&message(5, 100_000)).unwrap();
    groups[0].flush(TIMEOUT).unwrap();
    assert!(late.receive(TIMEOUT).unwrap() == Some(message(5, 100_000)));
}

#[test]
fn groups_side_by_side_have_streams_of_their_own() {
    let nodes = nodes(3);
    let all: Vec<Vec<Group>> = (0..3)
        .map(|root| {
            groups(&nodes, &GroupSettings { group: GroupId(root as u32), root, ..by_streams(&nodes) })
        })
        .collect();
    for (root, groups) in all.iter().enumerate() {
        groups[root].send(&message(root, 200_000)).unwrap();
    }
    for (root, groups) in all.iter().enumerate() {
        for (_, group) in groups.iter().enumerate().filter(|(member, _)| *member != root) {
            assert!(group.receive(TIMEOUT).unwrap() == Some(message(root, 200_000)));
        }
    }
}

#[test]
fn multicast_does_not_go_on_streams() {
    let nodes = nodes(4);
    let error =
        nodes[0].group(&GroupSettings { offload: Some(Offload::Switch), ..by_streams(&nodes) }).unwrap_err();
    assert!(matches!(error, NodeError::Refused(_)), "{error}");
    assert!(error.to_string().contains("transport=stream needs another offload"), "{error}");
}
