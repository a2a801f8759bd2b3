//! The program attached to interfaces, beside other programs. Each test has a network namespace of
//! its own with a veth pair: what `one` sends, `two` receives.

#![expect(
    unsafe_code,
    reason = "bpf(2) detaches the links of others, and fcntl(2) passes descriptors to a child: their wrappers do not"
)]

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use aya::programs::links::LinkInfo;
use aya::programs::{SchedClassifier, TcAttachType, loaded_links};
use nix::sched::{CloneFlags, unshare};
use rustix::net::sockopt::socket_cookie;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use treecast_ebpf::{
    Direction, EbpfError, Hook, HookTrouble, Interface, Program, ProgramSettings, TCX_KERNEL_MIN, WakeNonce,
    WakeSocket, interfaces_for, kernel_version,
};

/// The hooks of this kernel.
fn hooks() -> impl Iterator<Item = Hook> {
    [Hook::Tcx, Hook::Clsact].into_iter().filter(|hook| *hook == Hook::Clsact || has_tcx())
}

fn has_tcx() -> bool {
    let has_tcx = kernel_version() >= TCX_KERNEL_MIN;
    if !has_tcx {
        skip(&"TCX links need a later kernel");
    }
    has_tcx
}
const CHILD_INTERFACE: &str = "TREECAST_TEST_ATTACH_AND_WAIT";

/// Other BPF programs, as bytecode for tc(8): one passes packets to the next program; one drops
/// those of IPv4 (the kernel sends packets of IPv6 on its own at any time).
const CONTINUE: &str = "1,6 0 0 4294967295,";
const DROP: &str = "4,40 0 0 12,21 0 1 2048,6 0 0 2,6 0 0 4294967295,";

/// Runs a test in a new network namespace, which ends with its thread; or skips it.
fn in_namespace(test: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        return skip(&"network namespaces need root");
    }
    if Command::new("tc").arg("-V").stdout(Stdio::null()).status().is_err() {
        return skip(&"tc is not installed: it is in iproute2");
    }
    std::thread::scope(|scope| {
        let test = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            run("ip link set lo up");
            add_veth_pair();
            test();
        };
        if let Err(panic) = scope.spawn(test).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Says why a test is skipped: in one write to stderr, since the test harness captures what passing
/// tests print.
fn skip(why: &dyn Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

fn add_veth_pair() {
    run("ip link add one address 02:00:00:00:00:01 type veth peer name two address 02:00:00:00:00:02");
    run("ip link set one up");
    run("ip link set two up");
    run("ip address add 10.7.0.1/24 dev one");
    run("ip neighbour add 10.7.0.2 lladdr 02:00:00:00:00:02 dev one nud permanent");
}

/// Runs a command whose arguments contain no blanks.
fn run(command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    run_words(&words)
}

fn run_words(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Adds another program.
fn add_filter(hook: &str, program: &str) {
    let words = format!("tc filter add {hook} bpf da bytecode");
    let words: Vec<&str> = words.split(' ').chain([program]).collect();
    run_words(&words);
}

fn filters(hook: &str) -> String {
    run(&format!("tc filter show {hook}"))
}

/// The number of packets that filters have dropped on an interface.
fn dropped(interface: &str) -> u64 {
    let shown = run(&format!("tc -s qdisc show dev {interface} clsact"));
    let (_, rest) = shown.split_once("(dropped ").unwrap();
    rest.split(',').next().unwrap().parse().unwrap()
}

fn interfaces(names: &[&str]) -> Vec<Interface> {
    let all = interfaces_for("0.0.0.0:0".parse().unwrap()).unwrap();
    all.into_iter().filter(|interface| names.contains(&interface.name.as_str())).collect()
}

/// A node without a protocol: a socket and the program.
struct Node {
    program: Program,
    socket: UdpSocket,
}

impl Node {
    fn new(hook: Hook, names: &[&str]) -> Self {
        let settings = ProgramSettings { groups_max: 1, hook: Some(hook), ..ProgramSettings::default() };
        let mut program = Program::load(settings).unwrap();
        let socket = UdpSocket::bind("10.7.0.1:0").unwrap();
        let wake_socket = WakeSocket { port: socket.local_addr().unwrap().port(), nonce: WakeNonce(1) };
        program.set_socket(socket_cookie(&socket).unwrap(), wake_socket);
        program.attach(&interfaces(names)).unwrap();
        Self { program, socket }
    }

    /// Sends a packet to the same port at the other end.
    fn send(&self) {
        let port = self.socket.local_addr().unwrap().port();
        self.socket.send_to(&[0; 64], ("10.7.0.2", port)).unwrap();
    }

    /// The numbers of packets that the program has seen on egress and ingress, once there are
    /// `ingress_count` on ingress.
    fn seen(&self, ingress_count: u32) -> (u32, u32) {
        for _ in 0..1_000 {
            if self.program.packet_counts().1 >= ingress_count {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.program.packet_counts()
    }
}

#[test]
fn packets_pass_the_program_in_both_directions_until_it_is_dropped() {
    in_namespace(|| {
        for hook in hooks() {
            let node = Node::new(hook, &["one", "two"]);
            node.send();
            assert_eq!(node.seen(1), (1, 1), "{hook:?}");
            assert_eq!(node.program.check(), []);
            // Nothing of it stays that could interfere with the next node.
            drop(node);
            for hook_point in ["dev one ingress", "dev one egress", "dev two ingress", "dev two egress"] {
                assert_eq!(filters(hook_point), "", "{hook:?}");
            }
            let node = Node::new(hook, &["one"]);
            node.send();
            assert_eq!(node.seen(0), (1, 0), "{hook:?}");
        }
    });
}

#[test]
fn attaching_again_detaches_from_the_first_interfaces() {
    in_namespace(|| {
        for hook in hooks() {
            let mut node = Node::new(hook, &["one", "two"]);
            node.program.attach(&interfaces(&["two"])).unwrap();
            node.send();
            assert_eq!(node.seen(1), (0, 1), "{hook:?}");
            node.program.attach(&[]).unwrap();
            node.program.attach(&interfaces(&["one", "two"])).unwrap();
            node.send();
            assert_eq!(node.seen(2), (1, 2), "{hook:?}");
        }
    });
}

/// A process that another thread is just starting has all descriptors until it executes its
/// program.
#[test]
fn a_program_is_detached_while_another_process_has_its_descriptors() {
    in_namespace(|| {
        for hook in hooks() {
            let mut node = Node::new(hook, &["one"]);
            let mut holder = Command::new("sleep");
            holder.arg("1000");
            let links = links();
            // Another test may have closed its own meanwhile.
            let keep_open = |link: i32| match keep(link) {
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(()),
                kept => kept,
            };
            // SAFETY: the closure only makes system calls, which are safe after a fork.
            unsafe { holder.pre_exec(move || links.iter().try_for_each(|&link| keep_open(link))) };
            let mut holder = holder.spawn().unwrap();
            node.program.attach(&[]).unwrap();
            let outcome = node.program.attach(&interfaces(&["one"]));
            holder.kill().unwrap();
            holder.wait().unwrap();
            outcome.unwrap();
            node.send();
            assert_eq!(node.seen(0), (1, 0), "{hook:?}");
        }
    });
}

/// The descriptors of this process that hold links of BPF programs.
fn links() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_link = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("bpf_link"))
    };
    let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().parse().unwrap();
    entries.filter(is_link).map(name).collect()
}

/// Leaves a descriptor open in the program that is executed.
fn keep(descriptor: i32) -> std::io::Result<()> {
    // SAFETY: the flags of a descriptor change; of one that is not open nothing does.
    let result = unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[test]
fn nodes_share_an_interface_with_any_combination_of_hooks() {
    in_namespace(|| {
        for (hook, other_hook) in
            [(Hook::Tcx, Hook::Tcx), (Hook::Tcx, Hook::Clsact), (Hook::Clsact, Hook::Clsact)]
        {
            if hook == Hook::Tcx && !has_tcx() {
                continue;
            }
            let node = Node::new(hook, &["one", "two"]);
            let mut other = Node::new(other_hook, &["one", "two"]);
            for round in 1..=2 {
                node.send();
                other.send();
                assert_eq!(node.seen(round), (round, round), "{hook:?} and {other_hook:?}");
                assert_eq!(other.seen(round), (round, round), "{hook:?} and {other_hook:?}");
                // Attached again, the other node is now first.
                other.program.attach(&interfaces(&["one", "two"])).unwrap();
            }
            drop(node);
            other.send();
            assert_eq!(other.seen(3), (3, 3), "{hook:?} and {other_hook:?}");
            assert_eq!(other.program.check(), []);
        }
    });
}

#[test]
fn other_programs_run_before_and_after_ours_and_stay() {
    in_namespace(|| {
        run("tc qdisc add dev one clsact");
        for hook in hooks() {
            add_filter("dev one egress pref 100", DROP);
            let before = filters("dev one egress");
            let node = Node::new(hook, &["one", "two"]);
            let dropped_before = dropped("one");
            node.send();
            // Our program saw the packet before the other one dropped it.
            assert_eq!(node.program.packet_counts(), (1, 0), "{hook:?}");
            assert_eq!(dropped("one"), dropped_before + 1, "{hook:?}");
            add_filter("dev one egress pref 1", CONTINUE);
            node.send();
            assert_eq!(node.program.packet_counts(), (2, 0), "{hook:?}");
            assert_eq!(dropped("one"), dropped_before + 2, "{hook:?}");
            assert_eq!(node.program.check(), []);
            run("tc filter del dev one egress pref 1");
            drop(node);
            assert_eq!(filters("dev one egress"), before, "{hook:?}");
            run("tc filter del dev one egress");
        }
    });
}

#[test]
fn a_filter_of_priority_1_stays_first() {
    in_namespace(|| {
        run("tc qdisc add dev one clsact");
        add_filter("dev one egress pref 1", CONTINUE);
        add_filter("dev one egress pref 2", CONTINUE);
        let before = filters("dev one egress");
        let node = Node::new(Hook::Clsact, &["one"]);
        assert!(filters("dev one egress").contains("pref 3 bpf chain 0 handle"));
        node.send();
        assert_eq!(node.program.packet_counts(), (1, 0));
        drop(node);
        assert_eq!(filters("dev one egress"), before);
    });
}

#[test]
fn an_older_qdisc_that_conflicts_with_clsact_is_reported() {
    in_namespace(|| {
        run("tc qdisc add dev one ingress");
        let settings =
            ProgramSettings { groups_max: 1, hook: Some(Hook::Clsact), ..ProgramSettings::default() };
        let error = Program::load(settings).unwrap().attach(&interfaces(&["one"])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot attach the BPF program to interface one: its qdisc 'ingress' conflicts with clsact; \
             remove it as root: tc qdisc del dev one ingress"
        );
        assert_eq!(filters("dev one ingress"), "");
    });
}

/// A process that has attached a program and waits until it is killed.
struct Other(Child);

impl Other {
    fn start(interface: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_process", "--nocapture"]).env(CHILD_INTERFACE, interface);
        let mut child = Self(command.stdout(Stdio::piped()).spawn().unwrap());
        let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("attached")));
        child
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Not a test, but the process that the next test starts and kills.
#[test]
fn child_process() {
    if let Ok(interface) = std::env::var(CHILD_INTERFACE) {
        let _node = Node::new(Hook::Clsact, &[&interface]);
        println!("attached");
        std::thread::sleep(Duration::MAX);
    }
}

#[test]
fn only_the_stale_filters_of_killed_processes_are_removed() {
    in_namespace(|| {
        let running = Other::start("one");
        let filters_of_running = filters("dev one egress");
        let killed = Other::start("one");
        let killed_elsewhere = Other::start("two");
        let filters_of_both = filters("dev one egress");
        assert_eq!(filters_of_both.matches(" name treecast_egress ").count(), 2);
        drop((killed, killed_elsewhere));
        assert_eq!(filters("dev one egress"), filters_of_both, "the filters of a killed process stay");
        assert!(filters("dev two ingress").contains("treecast_ingress"));
        for hook in hooks() {
            let node = Node::new(hook, &["one"]);
            let our_count = usize::from(hook == Hook::Clsact);
            assert_eq!(filters("dev one egress").matches(" name treecast_egress ").count(), 1 + our_count);
            assert_eq!(filters("dev two ingress"), "");
            drop(node);
            assert_eq!(filters("dev one egress"), filters_of_running);
        }
        drop(running);
    });
}

#[test]
fn an_interface_that_is_removed_or_replaced_is_reported() {
    in_namespace(|| {
        for hook in hooks() {
            let node = Node::new(hook, &["one"]);
            run("ip link del one");
            let interface = || "one".to_owned();
            assert_eq!(
                node.program.check(),
                [HookTrouble::InterfaceRemoved { interface: interface() }],
                "{hook:?}"
            );
            add_veth_pair();
            assert_eq!(
                node.program.check(),
                [HookTrouble::InterfaceReplaced { interface: interface() }],
                "{hook:?}"
            );
            let text = node.program.check()[0].to_string();
            assert_eq!(text, "interface one was replaced by another one of the same name");
        }
    });
}

#[test]
fn a_changed_mtu_is_reported() {
    in_namespace(|| {
        for hook in hooks() {
            let mut node = Node::new(hook, &["one"]);
            run("ip link set one mtu 1400");
            let trouble =
                HookTrouble::MtuChanged { interface: "one".into(), from_bytes: 1_500, to_bytes: 1_400 };
            assert_eq!(node.program.check(), [trouble], "{hook:?}");
            node.program.attach(&interfaces(&["one"])).unwrap();
            assert_eq!(node.program.check(), [], "{hook:?}");
            run("ip link set one mtu 1500");
        }
    });
}

fn removed(direction: Direction, instead: &[&str]) -> HookTrouble {
    let instead = instead.iter().copied().map(str::to_owned).collect();
    HookTrouble::ProgramRemoved { interface: "one".into(), direction, instead }
}

#[test]
fn a_filter_that_is_removed_or_replaced_is_reported() {
    in_namespace(|| {
        let mut node = Node::new(Hook::Clsact, &["one"]);
        run("tc filter del dev one egress");
        assert_eq!(node.program.check(), [removed(Direction::Egress, &[])]);
        add_filter("dev one egress", CONTINUE);
        assert_eq!(node.program.check(), [removed(Direction::Egress, &["bpf"])]);
        run("tc qdisc del dev one clsact");
        let troubles = [removed(Direction::Ingress, &[]), removed(Direction::Egress, &[])];
        assert_eq!(node.program.check(), troubles);

        node.program.attach(&interfaces(&["one"])).unwrap();
        assert_eq!(node.program.check(), []);
        let shown = filters("dev one egress");
        let handle = shown.split(' ').skip_while(|word| *word != "handle").nth(1).unwrap();
        let replace = format!("tc filter replace dev one egress pref 49152 handle {handle} bpf da bytecode");
        run_words(&replace.split(' ').chain([CONTINUE]).collect::<Vec<_>>());
        let replaced = filters("dev one egress");
        assert!(!replaced.contains("treecast"), "{replaced}");
        let troubles = node.program.check();
        assert_eq!(troubles, [removed(Direction::Egress, &["bpf"])]);
        assert_eq!(
            troubles[0].to_string(),
            "the BPF program was removed from the egress of interface one; attached instead: bpf"
        );
        // The filter that has replaced ours is not removed.
        drop(node);
        assert_eq!(filters("dev one egress"), replaced);
    });
}

/// Detaches a program by the ID of its link, as `bpftool link detach id` does.
fn detach(link: u32) {
    const BPF_LINK_GET_FD_BY_ID: libc::c_long = 30;
    const BPF_LINK_DETACH: libc::c_long = 34;
    // SAFETY: the attributes of both commands begin with a number, and contain no addresses.
    let bpf = |command: libc::c_long, number: u32| unsafe {
        libc::syscall(libc::SYS_bpf, command, &raw const number, 4)
    };
    let descriptor = bpf(BPF_LINK_GET_FD_BY_ID, link);
    assert!(descriptor >= 0, "{}", std::io::Error::last_os_error());
    assert_eq!(bpf(BPF_LINK_DETACH, descriptor as u32), 0, "{}", std::io::Error::last_os_error());
    // SAFETY: it is open, and nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
}

#[test]
fn a_detached_link_is_reported() {
    if !has_tcx() {
        return;
    }
    in_namespace(|| {
        let node = Node::new(Hook::Tcx, &["one"]);
        let (_, programs) = SchedClassifier::query_tcx("one", TcAttachType::Egress).unwrap();
        let is_its = |link: &LinkInfo| link.program_id() == programs[0].id();
        let link = loaded_links().map(Result::unwrap).find(is_its).unwrap();
        let _other = Node::new(Hook::Tcx, &["one"]);
        let (_, both) = SchedClassifier::query_tcx("one", TcAttachType::Egress).unwrap();
        assert_eq!(both[1].id(), programs[0].id(), "a program that is attached later comes first");
        detach(link.id());
        assert_eq!(node.program.check(), [removed(Direction::Egress, &["treecast_egress"])]);
    });
}

#[test]
fn without_privileges_the_error_names_the_missing_capabilities() {
    in_namespace(|| {
        let settings = |hook| ProgramSettings { groups_max: 1, hook, ..ProgramSettings::default() };
        let mut program = Program::load(settings(Some(Hook::Clsact))).unwrap();
        let interfaces = interfaces(&["one"]);
        // Capabilities are per thread.
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
            .unwrap();
        let advice = ": this needs root, or CAP_BPF and CAP_NET_ADMIN";
        for error in [program.attach(&interfaces).unwrap_err(), Program::load(settings(None)).unwrap_err()] {
            assert!(error.to_string().ends_with(advice), "{error}");
            assert!(error.is_permission_denied());
        }
    });
}

fn names(bind: &str) -> Vec<String> {
    let bind: SocketAddr = bind.parse().unwrap();
    interfaces_for(bind).unwrap().into_iter().map(|interface| interface.name).collect()
}

#[test]
fn interfaces_are_those_where_a_node_sends_and_receives() {
    in_namespace(|| {
        let found = interfaces_for("10.7.0.1:9".parse().unwrap()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].mtu_bytes), ("one", 1_500));
        assert_eq!(names("[::ffff:10.7.0.1]:9"), ["one"]);
        assert_eq!(names("127.0.0.9:9"), ["lo"]);
        assert_eq!(names("[::1]:9"), ["lo"]);

        let all = |bind| {
            let mut all = names(bind);
            all.sort();
            all
        };
        assert_eq!(all("0.0.0.0:9"), ["one", "two"]);
        assert_eq!(all("[::]:9"), ["one", "two"]);
        // The bridge has the addresses, not its ports.
        run("ip link add name bridge type bridge");
        run("ip link set bridge up");
        run("ip link set two master bridge");
        assert_eq!(all("0.0.0.0:9"), ["bridge", "one"]);
        run("ip link set two nomaster");
        run("ip link set bridge down");
        run("ip link set two down");
        assert_eq!(all("0.0.0.0:9"), ["one"]);
        run("ip link set one down");
        let error = interfaces_for("0.0.0.0:9".parse().unwrap()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no Ethernet interface is up that the BPF program could be attached to"
        );
    });
}

#[test]
fn a_link_local_address_is_looked_up_on_its_interface() {
    in_namespace(|| {
        run("ip address add fe80::7/64 dev one nodad");
        run("ip address add fe80::7/64 dev two nodad");
        for interface in interfaces(&["one", "two"]) {
            assert_eq!(names(&format!("[fe80::7%{}]:9", interface.index)), [interface.name]);
        }
    });
}

#[test]
fn addresses_of_no_interface_or_not_on_ethernet_are_rejected() {
    in_namespace(|| {
        let error = interfaces_for("10.9.9.9:9".parse().unwrap()).unwrap_err();
        assert!(matches!(error, EbpfError::NoInterface(_)));
        assert_eq!(
            error.to_string(),
            "no interface of this machine has the address 10.9.9.9: see ip address"
        );
        if Command::new("ip")
            .args(["tuntap", "add", "name", "tunnel", "mode", "tun"])
            .status()
            .unwrap()
            .success()
        {
            run("ip address add 10.8.0.1/24 dev tunnel");
            let error = interfaces_for("10.8.0.1:9".parse().unwrap()).unwrap_err();
            let error = error.to_string();
            assert!(
                error.starts_with("10.8.0.1 is on interface tunnel, which is neither Ethernet")
                    && error.ends_with("set engine=user (--engine user), or give an address on Ethernet"),
                "{error}"
            );
        }
    });
}
