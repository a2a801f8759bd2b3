//! The machine around nodes: kernels without bpf(2), programs and interfaces that are removed, and
//! MTUs that change or do not suffice.

#![expect(unsafe_code, reason = "system calls are refused by seccomp(2)")]

use std::time::Duration;

use treecast_node::{
    Daemon, Ending, EngineChoice, Group, GroupId, GroupSettings, HookTrouble, Node, NodeError, NodeSettings,
    Policy, RunningEngine, Transport,
};

use crate::common::{TIMEOUT, check_all, groups, message, settings};
use crate::network::{in_own_network, run};
use crate::{binomial, counts, exchange, node, nodes, wait_until};

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
            // A member that joins now gets the error before it waits.
            let settings = GroupSettings { mtu_bytes: Some(1_500), ..binomial(&nodes) };
            let error = open(3).join_running(&settings).unwrap_err();
            let NodeError::PathMtu { path_mtu_bytes, mtu_bytes, .. } = error else { panic!("{error}") };
            assert_eq!((path_mtu_bytes, mtu_bytes), (1_400, 1_500));
            run("ip link set lo mtu 65536");
        }
    });
}
