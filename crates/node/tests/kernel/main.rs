//! Groups that the kernel's packet path runs. Each test has its own network namespace.

#![expect(unsafe_code, reason = "system calls are refused by seccomp(2)")]

#[path = "common/bursts.rs"]
mod bursts;
mod common;
#[path = "common/network.rs"]
mod network;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use common::{TIMEOUT, check_all, groups, message, settings};
use network::{in_own_network, run};
use treecast_node::{
    Daemon, Ending, EngineChoice, Group, GroupId, GroupSettings, HookTrouble, KernelCounters, Nanoseconds,
    Node, NodeError, NodeSettings, Offload, Operation, Policy, RunningEngine, Scheme, Transport, TreeScheme,
    status,
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
fn all_reduces_have_their_place_among_messages_of_the_fast_path() {
    in_own_network(|| {
        for offload in [Offload::Nic, Offload::Switch] {
            let nodes = nodes(5, "127.0.0.1:0");
            let groups = groups(&nodes, &GroupSettings { offload: Some(offload), ..binomial(&nodes) });
            groups[0].wait_until_ready(TIMEOUT).unwrap();
            std::thread::scope(|scope| {
                for (member, group) in groups.iter().enumerate() {
                    scope.spawn(move || {
                        for round in 0..50 {
                            let sent = message(round, 3_000);
                            if member == 0 {
                                group.send(&sent).unwrap();
                            } else {
                                assert_eq!(group.receive(TIMEOUT).unwrap().as_deref(), Some(&sent[..]));
                            }
                            let mut sum = [member as u64 + round as u64];
                            group.all_reduce(&mut sum, Operation::Sum, TIMEOUT).unwrap();
                            assert_eq!(sum, [10 + 5 * round as u64]);
                        }
                    });
                }
            });
            let accepted = counts(&groups[1]).group.accepted;
            assert!(
                offload == Offload::Switch || accepted > 0,
                "the kernel's packet path has accepted nothing"
            );
            assert_eq!(groups[0].close(TIMEOUT).unwrap(), []);
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

/// The program combines barriers and short integers; floats go by the slow path, in the same group.
#[test]
fn all_reduces_are_combined_by_the_program() {
    in_own_network(|| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let nodes = nodes(6, address);
            let settings = GroupSettings { group: GroupId(1), root: 1, ..binomial(&nodes) };
            let groups = groups(&nodes, &settings);
            let run = |member: usize, group: &Group| {
                let slow_path = || counts(group).fast_path.slow_path;
                for round in 0..20_u64 {
                    let mut sums = [member as u64, round];
                    assert_eq!(group.all_reduce(&mut sums, Operation::Sum, TIMEOUT).unwrap(), 6);
                    assert_eq!(sums, [15, 6 * round]);
                    let mut least = [-(member as i32), i32::MAX];
                    group.all_reduce(&mut least, Operation::Min, TIMEOUT).unwrap();
                    assert_eq!(least, [-5, i32::MAX]);
                    let mut greatest = [member as f64];
                    group.all_reduce(&mut greatest, Operation::Max, TIMEOUT).unwrap();
                    assert_eq!(greatest.map(f64::to_bits), [5_f64.to_bits()]);
                }
                group.barrier(TIMEOUT).unwrap();
                let before = slow_path();
                for _ in 0..100 {
                    assert_eq!(group.barrier(TIMEOUT).unwrap(), 6);
                }
                // Contributions are sent again while a processor is busy, and so are probes.
                let passed = slow_path() - before;
                assert!(group.is_root() || passed < 50, "{passed} of 100 barriers left the program");
            };
            std::thread::scope(|scope| {
                for (member, group) in groups.iter().enumerate() {
                    scope.spawn(move || run(member, group));
                }
            });
            groups[1].close(TIMEOUT).unwrap();
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

/// A data packet of a host that does not know the keys of the session.
fn forged(from: u32, sequence: u32) -> Vec<u8> {
    use treecast_wire::{
        Authentication, Body, Crcs, Data, Distribution, Header, Keys, MacKey, MemberId, PayloadKey, Sequence,
        Timestamp,
    };
    let keys = Keys {
        header: MacKey([1, 2]),
        control: MacKey([3, 4]),
        data: PayloadKey { code: MacKey([5, 6]), hash: [7; PayloadKey::HASH_WORDS] },
        authentication: Authentication::Header,
        crcs: Crcs::All,
    };
    let data = Data {
        message: 0,
        offset: 0,
        length: 6,
        message_length: 6,
        checksum: keys.data_checksum(Sequence(sequence), b"forged"),
        ack_requested: true,
        retransmitted: false,
        close: false,
        distribution: Distribution::Tree,
    };
    let header = Header {
        group: GroupId(1),
        epoch: 1,
        sender: MemberId(from),
        sequence: Sequence(sequence),
        timestamp: Timestamp(1),
        body: Body::Data(data),
    };
    [&header.write(&keys.header)[..], b"forged"].concat()
}

#[test]
fn forged_packets_are_counted_and_do_nothing() {
    in_own_network(|| {
        let nodes = nodes(3, "127.0.0.1:0");
        let groups = groups(
            &nodes,
            &GroupSettings { scheme: Some(Scheme::tree(TreeScheme::Separate)), ..settings(&nodes) },
        );
        exchange(&groups, 10, 6);
        let outsider = UdpSocket::bind("127.0.0.1:0").unwrap();
        let member: SocketAddr = nodes[1].address();
        let send = |packet: &[u8]| outsider.send_to(packet, member).unwrap();
        let next = 10;
        // Of the parent, and of another member; the next packet, and one that was there; a wake-up;
        // and half a packet.
        send(&forged(0, next));
        send(&forged(2, next));
        send(&forged(0, 3));
        send(&{
            let mut waking = forged(0, next);
            waking[0] = 0;
            waking
        });
        send(&forged(0, next)[..40]);
        wait_until("every forged packet is counted", || {
            let strays = nodes[1].strays().unwrap();
            strays.unauthentic == 3 && strays.malformed == 2
        });
        exchange(&groups, 10, 6);
    });
}

#[test]
fn a_node_whose_interface_disappears_reports_it_and_its_groups_end() {
    in_own_network(|| {
        run("ip link add one type veth peer name two");
        run("ip address add 10.9.0.1/24 dev one");
        run("ip link set one up");
        run("ip link set two up");
        let nodes: Vec<Node> = (0..2).map(|_| node("10.9.0.1:0", 4)).collect();
        let groups = groups(&nodes, &settings(&nodes));
        exchange(&groups, 5, 100);
        run("ip link del one");
        wait_until("the interface is missed", || {
            nodes[0].troubles().iter().any(|trouble| matches!(trouble, HookTrouble::InterfaceRemoved { .. }))
        });
        // Packets in flight are lost, and the group ends by its timeouts, as after any network
        // failure.
        wait_until("the group is over", || {
            groups[1].receive(Some(Duration::from_millis(10))).is_err_and(|error| {
                matches!(error, treecast_node::NodeError::Ended(Ending::RootSilent(_) | Ending::Evicted(_)))
            })
        });
    });
}

/// Lets bpf(2) fail in this thread and in the threads that it starts, as on a kernel that lacks one
/// of its commands, or all.
fn without_bpf(command: Option<u32>, error: i32) {
    // Results that the process caches are cached before.
    drop(treecast_ebpf::Program::load(treecast_ebpf::ProgramSettings::default()).unwrap());
    let step = |code: u32, (jt, jf), k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let (compare, command) = command.map_or((libc::BPF_JGE, 0), |command| (libc::BPF_JEQ, command));
    // On the number of the system call, and on the lower half of its first argument (`struct
    // seccomp_data`).
    let mut filter = [
        step(load, (0, 0), 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (0, 3), libc::SYS_bpf as u32),
        step(load, (0, 0), 16),
        step(libc::BPF_JMP | compare | libc::BPF_K, (0, 1), command),
        step(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ERRNO | error as u32),
        step(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter has the given length, and the kernel copies it.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_kernel_without_bpf_is_reported_and_a_daemon_with_engine_auto_uses_a_thread() {
    in_own_network(|| {
        without_bpf(None, libc::ENOSYS);
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("node.sock");
        let settings = |engine| NodeSettings {
            bind: "127.0.0.1:0".parse().unwrap(),
            engine,
            socket: Some(socket.clone()),
            ..NodeSettings::default()
        };
        let error = Node::open(&settings(EngineChoice::Ebpf)).unwrap_err().to_string();
        assert!(error.contains("Function not implemented"), "{error}");
        let daemon = Daemon::open(&settings(EngineChoice::Auto), &socket, Policy::default()).unwrap();
        let stopper = daemon.stopper();
        std::thread::scope(|scope| {
            scope.spawn(|| daemon.serve().unwrap());
            let client = Node::open(&settings(EngineChoice::Auto)).unwrap();
            let by_a_thread = RunningEngine::Daemon { socket: socket.clone(), engine: EngineChoice::User };
            assert_eq!(client.engine(), by_a_thread);
            drop(client);
            stopper.stop();
        });
    });
}

#[test]
fn a_node_whose_program_is_detached_reports_it_and_continues() {
    in_own_network(|| {
        // BPF_LINK_CREATE, for this hook from Linux 6.6 on. Older kernels attach programs by
        // filters, which other tools can remove.
        without_bpf(Some(28), libc::EINVAL);
        let nodes = nodes(3, "127.0.0.1:0");
        let groups = groups(&nodes, &binomial(&nodes));
        exchange(&groups, 10, 2_000);
        assert!(groups[1..].iter().all(|group| counts(group).group.accepted > 0));
        run("tc qdisc del dev lo clsact");
        let is_removed = |trouble: &HookTrouble| matches!(trouble, HookTrouble::ProgramRemoved { .. });
        for node in &nodes {
            wait_until("the program is missed", || node.troubles().iter().any(is_removed));
        }
        let accepted =
            |groups: &[Group]| groups.iter().map(|group| counts(group).group.accepted).sum::<u64>();
        let before = accepted(&groups);
        exchange(&groups, 10, 2_000);
        assert_eq!(accepted(&groups), before);
    });
}

#[test]
fn another_mtu_is_said_and_what_fits_still_passes() {
    in_own_network(|| {
        run("ip link add one mtu 9000 type veth peer name two");
        run("ip address add 10.9.0.1/24 dev one");
        run("ip link set one up");
        run("ip link set two up");
        let nodes: Vec<Node> = (0..3).map(|_| node("10.9.0.1:0", 4)).collect();
        let groups = groups(&nodes, &binomial(&nodes));
        exchange(&groups, 5, 2_000);
        assert_eq!(nodes[1].troubles(), []);
        run("ip link set one mtu 1500");
        let trouble = HookTrouble::MtuChanged { interface: "one".into(), from_bytes: 9_000, to_bytes: 1_500 };
        wait_until("another MTU is seen", || nodes[1].troubles() == [trouble.clone()]);
        exchange(&groups, 5, 2_000);
    });
}

#[test]
fn payloads_that_do_not_fit_the_program_are_left_to_user_space() {
    in_own_network(|| {
        run("ip link add one type veth peer name two");
        run("ip address add 10.9.0.1/24 dev one");
        run("ip link set one up");
        run("ip link set two up");
        // The program is for interfaces with an MTU of 1,500 bytes; loopback packets may be longer.
        let nodes: Vec<Node> = (0..3).map(|_| node("10.9.0.1:0", 4)).collect();
        let long = groups(&nodes, &GroupSettings { mtu_bytes: Some(9_000), ..binomial(&nodes) });
        let usual = groups(&nodes, &GroupSettings { group: GroupId(2), ..binomial(&nodes) });
        exchange(&long, 5, 20_000);
        exchange(&usual, 5, 20_000);
        assert!(long.iter().all(|group| group.kernel_counters().is_none()));
        assert!(usual.iter().all(|group| group.kernel_counters().is_some()));
        check_all(long, 0, &[100_000, 1]);
    });
}

#[test]
fn datagrams_that_are_too_long_end_their_own_group_only() {
    in_own_network(|| {
        for engine in [EngineChoice::User, EngineChoice::Ebpf] {
            let bind = "127.0.0.1:0".parse().unwrap();
            let open = |_| Node::open(&NodeSettings { bind, engine, ..NodeSettings::default() }).unwrap();
            let nodes: Vec<Node> = (0..3).map(open).collect();
            let of_mtu = |mtu_bytes| GroupSettings {
                mtu_bytes: Some(mtu_bytes),
                transport: Some(Transport::Packets),
                ..binomial(&nodes)
            };
            let long = groups(&nodes, &of_mtu(1_500));
            let fits = groups(&nodes, &GroupSettings { group: GroupId(2), ..of_mtu(1_400) });
            // Packets that are short enough pass.
            run("ip link set lo mtu 1400");
            exchange(&long, 5, 1_000);
            exchange(&fits, 5, 5_000);
            let error = long[0].send(&message(0, 5_000)).and_then(|()| long[0].flush(TIMEOUT)).unwrap_err();
            assert!(matches!(error, NodeError::DatagramTooLong { datagram_bytes: Some(1_500) }), "{error}");
            exchange(&fits, 5, 5_000);
            // Whoever comes now learns it before it waits.
            let settings = GroupSettings { mtu_bytes: Some(1_500), ..binomial(&nodes) };
            let error = open(3).join_running(&settings).unwrap_err();
            let NodeError::PathMtu { path_mtu_bytes, mtu_bytes, .. } = error else { panic!("{error}") };
            assert_eq!((path_mtu_bytes, mtu_bytes), (1_400, 1_500));
            run("ip link set lo mtu 65536");
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
