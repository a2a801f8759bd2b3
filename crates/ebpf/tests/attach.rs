//! The program on interfaces, among the programs of others. Each test has a network namespace of its own, with two interfaces
//! that are joined: what leaves by `one` comes in by `two`.

#![expect(unsafe_code, reason = "bpf(2) has no other way to take a program off a link")]

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use aya::programs::links::LinkInfo;
use aya::programs::{SchedClassifier, TcAttachType, loaded_links};
use nix::sched::{CloneFlags, unshare};
use rustix::net::sockopt::socket_cookie;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use treecast_ebpf::{
    Direction, EbpfError, Hook, HookTrouble, Interface, Program, ProgramSettings, interfaces_for,
};

const HOOKS: [Hook; 2] = [Hook::Tcx, Hook::Clsact];
const LEFT_BY_THE_KILLED: &str = "TREECAST_TEST_ATTACH_AND_WAIT";

/// BPF programs of others, as tc(8) takes them: one lets packets go on to the next program, one drops those of IPv4 (an
/// interface has packets of IPv6 of its own to send, whenever it likes).
const CONTINUES: &str = "1,6 0 0 4294967295,";
const DROPS: &str = "4,40 0 0 12,21 0 1 2048,6 0 0 2,6 0 0 4294967295,";

/// Runs a test in a new network namespace, which ends with its thread; or says why not.
fn in_namespace(test: impl FnOnce() + Send) {
    if let Err(error) = Program::is_built() {
        return skip(&error);
    }
    if !rustix::process::geteuid().is_root() {
        return skip(&"network namespaces are for root");
    }
    if Command::new("tc").arg("-V").stdout(Stdio::null()).status().is_err() {
        return skip(&"tc is not here; install iproute2");
    }
    std::thread::scope(|scope| {
        let test = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            run("ip link set lo up");
            pair();
            test();
        };
        if let Err(panic) = scope.spawn(test).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Says why a test does nothing, past the test harness, which keeps what tests that pass print, and in one piece.
fn skip(why: &dyn Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

fn pair() {
    run("ip link add one address 02:00:00:00:00:01 type veth peer name two address 02:00:00:00:00:02");
    run("ip link set one up");
    run("ip link set two up");
    run("ip address add 10.7.0.1/24 dev one");
    run("ip neighbour add 10.7.0.2 lladdr 02:00:00:00:00:02 dev one nud permanent");
}

/// Runs a command, of words without blanks.
fn run(command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    run_words(&words)
}

fn run_words(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Adds a program of others.
fn add_filter(place: &str, program: &str) {
    let words = format!("tc filter add {place} bpf da bytecode");
    let words: Vec<&str> = words.split(' ').chain([program]).collect();
    run_words(&words);
}

fn filters(place: &str) -> String {
    run(&format!("tc filter show {place}"))
}

/// How many packets filters have dropped on an interface.
fn dropped(interface: &str) -> u64 {
    let shown = run(&format!("tc -s qdisc show dev {interface} clsact"));
    let (_, behind) = shown.split_once("(dropped ").unwrap();
    behind.split(',').next().unwrap().parse().unwrap()
}

fn interfaces(names: &[&str]) -> Vec<Interface> {
    let all = interfaces_for("0.0.0.0:0".parse().unwrap()).unwrap();
    all.into_iter().filter(|interface| names.contains(&interface.name.as_str())).collect()
}

/// A node without protocol: its socket, and the program.
struct Node {
    program: Program,
    socket: UdpSocket,
}

impl Node {
    fn new(hook: Hook, names: &[&str]) -> Self {
        let settings = ProgramSettings { groups_max: 1, hook: Some(hook), ..ProgramSettings::default() };
        let mut program = Program::load(settings).unwrap();
        let socket = UdpSocket::bind("10.7.0.1:0").unwrap();
        program.set_socket(socket_cookie(&socket).unwrap(), socket.local_addr().unwrap().port());
        program.attach(&interfaces(names)).unwrap();
        Self { program, socket }
    }

    /// Sends a packet to the same port at the other end.
    fn send(&self) {
        let port = self.socket.local_addr().unwrap().port();
        self.socket.send_to(&[0; 64], ("10.7.0.2", port)).unwrap();
    }

    /// How many packets the program has seen on their way out and in, once so many have come in.
    fn seen(&self, in_count: u32) -> (u32, u32) {
        for _ in 0..1_000 {
            if self.program.packet_counts().1 >= in_count {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.program.packet_counts()
    }
}

#[test]
fn packets_pass_the_program_both_ways_until_it_is_dropped() {
    in_namespace(|| {
        for hook in HOOKS {
            let node = Node::new(hook, &["one", "two"]);
            node.send();
            assert_eq!(node.seen(1), (1, 1), "{hook:?}");
            assert_eq!(node.program.check(), []);
            // Nothing is left of it that the next could be disturbed by.
            drop(node);
            for place in ["dev one ingress", "dev one egress", "dev two ingress", "dev two egress"] {
                assert_eq!(filters(place), "", "{hook:?}");
            }
            let node = Node::new(hook, &["one"]);
            node.send();
            assert_eq!(node.seen(0), (1, 0), "{hook:?}");
        }
    });
}

#[test]
fn to_attach_again_is_to_leave_the_first_interfaces() {
    in_namespace(|| {
        for hook in HOOKS {
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

#[test]
fn nodes_share_an_interface_whichever_way_they_are_attached() {
    in_namespace(|| {
        for (hook, other_hook) in
            [(Hook::Tcx, Hook::Tcx), (Hook::Tcx, Hook::Clsact), (Hook::Clsact, Hook::Clsact)]
        {
            let node = Node::new(hook, &["one", "two"]);
            let mut other = Node::new(other_hook, &["one", "two"]);
            for round in 1..=2 {
                node.send();
                other.send();
                assert_eq!(node.seen(round), (round, round), "{hook:?} and {other_hook:?}");
                assert_eq!(other.seen(round), (round, round), "{hook:?} and {other_hook:?}");
                // Now the one that came first comes last.
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
fn programs_of_others_go_on_before_and_behind_and_stay() {
    in_namespace(|| {
        run("tc qdisc add dev one clsact");
        for hook in HOOKS {
            add_filter("dev one egress pref 100", DROPS);
            let before = filters("dev one egress");
            let node = Node::new(hook, &["one", "two"]);
            let dropped_before = dropped("one");
            node.send();
            // Ours saw it first, and then it was dropped.
            assert_eq!(node.program.packet_counts(), (1, 0), "{hook:?}");
            assert_eq!(dropped("one"), dropped_before + 1, "{hook:?}");
            add_filter("dev one egress pref 1", CONTINUES);
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
fn a_filter_that_is_first_already_stays_the_first() {
    in_namespace(|| {
        run("tc qdisc add dev one clsact");
        add_filter("dev one egress pref 1", CONTINUES);
        add_filter("dev one egress pref 2", CONTINUES);
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
fn an_older_discipline_in_the_place_of_clsact_is_told() {
    in_namespace(|| {
        run("tc qdisc add dev one ingress");
        let settings =
            ProgramSettings { groups_max: 1, hook: Some(Hook::Clsact), ..ProgramSettings::default() };
        let error = Program::load(settings).unwrap().attach(&interfaces(&["one"])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the BPF program cannot be put on interface one: its qdisc 'ingress' is in the place of clsact: \
             as root, tc qdisc del dev one ingress"
        );
        assert_eq!(filters("dev one ingress"), "");
    });
}

/// A process that has attached a program and waits to be killed.
struct Other(Child);

impl Other {
    fn start(interface: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_other_process", "--nocapture"]).env(LEFT_BY_THE_KILLED, interface);
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

/// Not a test, but what the next one starts: only a process of its own can be killed.
#[test]
fn the_other_process() {
    if let Ok(interface) = std::env::var(LEFT_BY_THE_KILLED) {
        let _node = Node::new(Hook::Clsact, &[&interface]);
        println!("attached");
        std::thread::sleep(Duration::MAX);
    }
}

#[test]
fn what_the_killed_have_left_is_removed_and_nobody_elses() {
    in_namespace(|| {
        let running = Other::start("one");
        let of_running = filters("dev one egress");
        let killed = Other::start("one");
        let killed_elsewhere = Other::start("two");
        let of_both = filters("dev one egress");
        assert_eq!(of_both.matches(" name treecast_egress ").count(), 2);
        drop((killed, killed_elsewhere));
        assert_eq!(filters("dev one egress"), of_both, "a killed process leaves its filters");
        assert!(filters("dev two ingress").contains("treecast_ingress"));
        for hook in HOOKS {
            let node = Node::new(hook, &["one"]);
            let of_ours = usize::from(hook == Hook::Clsact);
            assert_eq!(filters("dev one egress").matches(" name treecast_egress ").count(), 1 + of_ours);
            assert_eq!(filters("dev two ingress"), "");
            drop(node);
            assert_eq!(filters("dev one egress"), of_running);
        }
        drop(running);
    });
}

#[test]
fn an_interface_that_goes_is_told_and_so_is_one_that_takes_its_name() {
    in_namespace(|| {
        for hook in HOOKS {
            let node = Node::new(hook, &["one"]);
            run("ip link del one");
            let interface = || "one".to_owned();
            assert_eq!(node.program.check(), [HookTrouble::Gone { interface: interface() }], "{hook:?}");
            pair();
            assert_eq!(node.program.check(), [HookTrouble::Another { interface: interface() }], "{hook:?}");
            let text = node.program.check()[0].to_string();
            assert_eq!(text, "interface one is gone, and another one has its name");
        }
    });
}

#[test]
fn another_mtu_is_told() {
    in_namespace(|| {
        for hook in HOOKS {
            let mut node = Node::new(hook, &["one"]);
            run("ip link set one mtu 1400");
            let trouble = HookTrouble::Mtu { interface: "one".into(), from_bytes: 1_500, to_bytes: 1_400 };
            assert_eq!(node.program.check(), [trouble], "{hook:?}");
            node.program.attach(&interfaces(&["one"])).unwrap();
            assert_eq!(node.program.check(), [], "{hook:?}");
            run("ip link set one mtu 1500");
        }
    });
}

fn removed(direction: Direction, instead: &[&str]) -> HookTrouble {
    let instead = instead.iter().copied().map(str::to_owned).collect();
    HookTrouble::Removed { interface: "one".into(), direction, instead }
}

#[test]
fn a_filter_that_is_removed_or_replaced_is_told() {
    in_namespace(|| {
        let mut node = Node::new(Hook::Clsact, &["one"]);
        run("tc filter del dev one egress");
        assert_eq!(node.program.check(), [removed(Direction::Egress, &[])]);
        add_filter("dev one egress", CONTINUES);
        assert_eq!(node.program.check(), [removed(Direction::Egress, &["bpf"])]);
        run("tc qdisc del dev one clsact");
        let troubles = [removed(Direction::Ingress, &[]), removed(Direction::Egress, &[])];
        assert_eq!(node.program.check(), troubles);

        node.program.attach(&interfaces(&["one"])).unwrap();
        assert_eq!(node.program.check(), []);
        let shown = filters("dev one egress");
        let handle = shown.split(' ').skip_while(|word| *word != "handle").nth(1).unwrap();
        let replace = format!("tc filter replace dev one egress pref 49152 handle {handle} bpf da bytecode");
        run_words(&replace.split(' ').chain([CONTINUES]).collect::<Vec<_>>());
        let replaced = filters("dev one egress");
        assert!(!replaced.contains("treecast"), "{replaced}");
        let troubles = node.program.check();
        assert_eq!(troubles, [removed(Direction::Egress, &["bpf"])]);
        assert_eq!(
            troubles[0].to_string(),
            "the BPF program is not on the egress of interface one any more; there is bpf"
        );
        // What has taken our place is not ours to remove.
        drop(node);
        assert_eq!(filters("dev one egress"), replaced);
    });
}

/// Takes a program off by the number of its link, as `bpftool link detach id` does.
fn take_off(link: u32) {
    const BPF_LINK_GET_FD_BY_ID: libc::c_long = 30;
    const BPF_LINK_DETACH: libc::c_long = 34;
    // SAFETY: the attributes of both commands begin with a number, and have no addresses.
    let bpf = |command: libc::c_long, number: u32| unsafe {
        libc::syscall(libc::SYS_bpf, command, &raw const number, 4)
    };
    let descriptor = bpf(BPF_LINK_GET_FD_BY_ID, link);
    assert!(descriptor >= 0, "{}", std::io::Error::last_os_error());
    assert_eq!(bpf(BPF_LINK_DETACH, descriptor as u32), 0, "{}", std::io::Error::last_os_error());
    // SAFETY: it is open, and nobody else's.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
}

#[test]
fn a_link_that_is_taken_off_is_told() {
    in_namespace(|| {
        let node = Node::new(Hook::Tcx, &["one"]);
        let (_, programs) = SchedClassifier::query_tcx("one", TcAttachType::Egress).unwrap();
        let is_its = |link: &LinkInfo| link.program_id() == programs[0].id();
        let link = loaded_links().map(Result::unwrap).find(is_its).unwrap();
        let _other = Node::new(Hook::Tcx, &["one"]);
        let (_, both) = SchedClassifier::query_tcx("one", TcAttachType::Egress).unwrap();
        assert_eq!(both[1].id(), programs[0].id(), "who comes later is put before");
        take_off(link.id());
        assert_eq!(node.program.check(), [removed(Direction::Egress, &["treecast_egress"])]);
    });
}

#[test]
fn without_rights_the_error_says_which_are_missing() {
    in_namespace(|| {
        let settings = |hook| ProgramSettings { groups_max: 1, hook, ..ProgramSettings::default() };
        let mut program = Program::load(settings(Some(Hook::Clsact))).unwrap();
        let interfaces = interfaces(&["one"]);
        // Of this thread alone.
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
            .unwrap();
        let advice = ": it is for root, or for who has CAP_BPF and CAP_NET_ADMIN";
        for error in [program.attach(&interfaces).unwrap_err(), Program::load(settings(None)).unwrap_err()] {
            assert!(error.to_string().ends_with(advice), "{error}");
            assert!(error.lacks_rights());
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
        // A bridge has the addresses, and not its ports.
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
        assert_eq!(error.to_string(), "no Ethernet interface is up that the BPF program could be put on");
    });
}

#[test]
fn an_address_of_a_link_is_looked_for_on_its_link() {
    in_namespace(|| {
        run("ip address add fe80::7/64 dev one nodad");
        run("ip address add fe80::7/64 dev two nodad");
        for interface in interfaces(&["one", "two"]) {
            assert_eq!(names(&format!("[fe80::7%{}]:9", interface.index)), [interface.name]);
        }
    });
}

#[test]
fn addresses_that_are_nowhere_or_not_on_ethernet_are_refused() {
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
            assert!(
                error.to_string().starts_with("10.8.0.1 is on interface tunnel, which is neither Ethernet")
            );
        }
    });
}
