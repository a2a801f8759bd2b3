//! A daemon and its clients. Tests that need other users or the kernel's packet path run as root,
//! and report when they are skipped.

#[path = "../common/bursts.rs"]
mod bursts;
mod hostile;
mod messages;
mod policy;
mod processes;
mod raw;

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;
use treecast_node::{
    Daemon, DaemonCounters, EngineChoice, Group, GroupId, GroupSettings, Node, NodeError, NodeSettings,
    Offload, Policy, RunningEngine, Stopper, Transport,
};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

/// A daemon in a thread of this process.
struct Served {
    directory: TempDir,
    stopper: Stopper,
    thread: Option<JoinHandle<DaemonCounters>>,
}

impl Served {
    fn new(engine: EngineChoice, policy: Policy) -> Self {
        Self::with_groups_max(engine, policy, 1_024)
    }

    /// A daemon whose tables have room for `groups_max` groups.
    fn with_groups_max(engine: EngineChoice, policy: Policy, groups_max: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let bind = "127.0.0.1:0".parse().unwrap();
        let mut settings = NodeSettings { bind, engine, ..NodeSettings::default() };
        settings.protocol.groups_max = groups_max;
        let daemon = Daemon::open(&settings, &socket(&directory), policy).unwrap();
        let stopper = daemon.stopper();
        let thread = Some(std::thread::spawn(move || daemon.serve().unwrap()));
        Self { directory, stopper, thread }
    }

    fn socket(&self) -> PathBuf {
        socket(&self.directory)
    }

    fn end(mut self) -> DaemonCounters {
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn socket(directory: &TempDir) -> PathBuf {
    directory.path().join("run/node.sock")
}

fn client(socket: &Path) -> Node {
    let settings = NodeSettings { socket: Some(socket.into()), ..NodeSettings::default() };
    let node = Node::open(&settings).unwrap();
    assert!(matches!(node.engine(), RunningEngine::Daemon { .. }), "{}", node.engine());
    node
}

fn other() -> Node {
    let bind = "127.0.0.1:0".parse().unwrap();
    Node::open(&NodeSettings { bind, engine: EngineChoice::User, ..NodeSettings::default() }).unwrap()
}

fn engines() -> Vec<EngineChoice> {
    let mut engines = vec![EngineChoice::User];
    if rustix::process::getuid().is_root() {
        engines.push(EngineChoice::Ebpf);
    } else {
        skip(&"a daemon with the engine ebpf: it is for root");
    }
    engines
}

/// Prints what a test skips, in one write to standard error: the test harness captures the output
/// of passing tests.
fn skip(why: &dyn Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

/// Sends messages from the first group to the second, which reads every other one in place.
fn exchange(root: &Group, member: &Group, count: u32) {
    for number in 0..count {
        let message: Vec<u8> = (0..=number % 7 * 1_000).map(|byte| (byte + number) as u8).collect();
        root.send(&message).unwrap();
        if number.is_multiple_of(2) {
            assert_eq!(member.receive(TIMEOUT).unwrap().unwrap(), message);
            continue;
        }
        let mut rest = &message[..];
        while !rest.is_empty() {
            let peeked = member.peek(TIMEOUT).unwrap().expect("the group is open");
            rest = rest.strip_prefix(&peeked[..]).expect("the bytes that were sent");
            assert_eq!(peeked.part().is_last, rest.is_empty());
            peeked.consume().unwrap();
        }
    }
}

#[test]
fn a_daemon_that_has_ended_has_no_counters() {
    let served = Served::new(EngineChoice::User, Policy::default());
    let (one, two) = (client(&served.socket()), other());
    let group = one.group(&GroupSettings::new(vec![one.address(), two.address()])).unwrap();
    assert!(group.counters().is_some() && one.strays().is_some());
    served.end();
    assert_eq!((group.counters(), one.strays()), (None, None));
}

#[test]
fn clients_send_and_receive_as_nodes_of_their_own_do() {
    for engine in engines() {
        let served = Served::new(engine, Policy::default());
        let (one, two) = (client(&served.socket()), other());
        let settings = GroupSettings::new(vec![one.address(), two.address()]);
        let groups = [
            (GroupSettings { group: GroupId(1), ..settings.clone() }, true),
            // Its root, in user space, would choose streams.
            (
                GroupSettings { group: GroupId(2), root: 1, transport: Some(Transport::Packets), ..settings },
                false,
            ),
        ];
        for (settings, is_root) in groups {
            let (here, there) = (one.group(&settings).unwrap(), two.group(&settings).unwrap());
            let (root, member) = if is_root { (&here, &there) } else { (&there, &here) };
            root.wait_until_ready(TIMEOUT).unwrap();
            exchange(root, member, 200);
            root.flush(TIMEOUT).unwrap();
            assert!(here.counters().unwrap().acks_received + here.counters().unwrap().accepted > 0);
            assert_eq!(here.kernel_counters().is_some(), engine == EngineChoice::Ebpf);
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(member.receive(TIMEOUT).unwrap(), None));
                assert!(root.close(TIMEOUT).unwrap().is_empty());
            });
        }
        one.close(TIMEOUT).unwrap();
        let counters = served.end();
        assert_eq!((counters.clients, counters.rejected, counters.disconnected), (1, 0, 0));
        assert_eq!((counters.refused_groups, counters.invalid, counters.strays.unauthentic), (0, 0, 0));
    }
}

#[test]
fn bursts_of_a_client_are_left_to_its_daemon_which_forgets_nothing() {
    if engines().contains(&EngineChoice::Ebpf) {
        let served = [(); 4].map(|()| Served::new(EngineChoice::Ebpf, Policy::default()));
        let nodes = served.each_ref().map(|served| client(&served.socket()));
        let settings = GroupSettings::new(nodes.iter().map(Node::address).collect());
        let groups: Vec<Group> = nodes.iter().map(|node| node.group(&settings).unwrap()).collect();
        bursts::check(&groups, 3);
    }
}

/// Two clients of one daemon, each with a group whose other member is at another node.
#[test]
fn clients_that_are_members_of_one_group_share_its_slots() {
    for engine in engines() {
        let served = Served::new(engine, Policy::default());
        let (clients, there) = ([(); 3].map(|()| client(&served.socket())), other());
        let here = clients[0].address();
        for root in [3, 1] {
            let settings = GroupSettings {
                group: GroupId(root as u32),
                root,
                slots: Some(16),
                ..GroupSettings::new(vec![here, here, here, there.address()])
            };
            let of = |member: usize, node: &Node| {
                node.group(&GroupSettings { member: Some(member), ..settings.clone() }).unwrap()
            };
            let mut groups: Vec<Group> = (0..).zip(&clients).map(|(member, node)| of(member, node)).collect();
            groups.push(of(3, &there));
            let sender = groups.remove(root);
            assert_eq!(sender.wait_until_ready(TIMEOUT).unwrap(), []);
            std::thread::scope(|scope| {
                for receiver in &groups {
                    scope.spawn(move || {
                        for number in 0..100_u8 {
                            let expected = vec![number; 1 + 50 * usize::from(number)];
                            assert_eq!(receiver.receive(TIMEOUT).unwrap(), Some(expected));
                        }
                        assert_eq!(receiver.receive(TIMEOUT).unwrap(), None);
                    });
                }
                (0..100_u8)
                    .for_each(|number| sender.send(&vec![number; 1 + 50 * usize::from(number)]).unwrap());
                assert_eq!(sender.close(TIMEOUT).unwrap(), []);
            });
        }
        drop(clients);
        served.end();
    }
}

#[test]
fn groups_with_multicast_come_and_go_beside_a_busy_one() {
    let served = Served::new(EngineChoice::User, Policy::default());
    let (here, there) = (client(&served.socket()), other());
    let both = |group: u32| {
        let settings = GroupSettings {
            group: GroupId(group),
            offload: Some(Offload::Switch),
            ..GroupSettings::new(vec![there.address(), here.address()])
        };
        (there.group(&settings).unwrap(), here.group(&settings).unwrap())
    };
    let (busy_root, busy_member) = both(1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (is_over, busy_root, busy_member) = (&is_over, &busy_root, &busy_member);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                busy_root.send(&[1; 10_000]).unwrap();
            }
            busy_root.send(b"last").unwrap();
        });
        scope.spawn(move || while busy_member.receive(TIMEOUT).unwrap().unwrap() != b"last" {});
        for group in 2..30 {
            let (root, member) = both(group);
            exchange(&root, &member, 5);
            root.close(TIMEOUT).unwrap();
            assert_eq!(member.receive(TIMEOUT).unwrap(), None);
            member.close(TIMEOUT).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    served.end();
}

#[test]
fn clients_have_groups_side_by_side_and_see_each_others_not() {
    for engine in engines() {
        let served = Served::new(engine, Policy::default());
        let (one, two, there) = (client(&served.socket()), client(&served.socket()), other());
        let settings = |group| GroupSettings {
            group: GroupId(group),
            ..GroupSettings::new(vec![one.address(), there.address()])
        };
        let (first, second) = (one.group(&settings(1)).unwrap(), two.group(&settings(2)).unwrap());
        let members = [1, 2].map(|group| there.group(&settings(group)).unwrap());
        exchange(&first, &members[0], 20);
        exchange(&second, &members[1], 20);
        let taken = two.group(&settings(1)).unwrap_err();
        assert!(taken.to_string().contains("there is a group 1 at this node already"), "{taken}");
        drop(one);
        exchange(&second, &members[1], 20);
        assert!(matches!(members[0].receive(TIMEOUT), Err(NodeError::Ended(_))));
    }
}

#[test]
fn a_group_is_open_with_each_offload_and_is_watched() {
    for engine in engines() {
        let served = Served::new(engine, Policy::default());
        let (here, there) = (client(&served.socket()), other());
        for (group, offload) in (1..).zip([Offload::Host, Offload::Assisted, Offload::Nic]) {
            for root in [0, 1] {
                let settings = GroupSettings {
                    group: GroupId(group * 2 + root as u32),
                    root,
                    offload: Some(offload),
                    slots: Some(16),
                    ..GroupSettings::new(vec![here.address(), there.address()])
                };
                let groups = [here.group(&settings).unwrap(), there.group(&settings).unwrap()];
                let (root, member) = (&groups[root], &groups[1 - root]);
                // A message of more packets than slots.
                let message = vec![7; 100_000];
                std::thread::scope(|scope| {
                    scope.spawn(|| root.send(&message).unwrap());
                    assert_eq!(member.receive(TIMEOUT).unwrap().unwrap(), message);
                });
                let watched = member.watch().unwrap();
                root.send(b"watched").unwrap();
                let mut fds = [PollFd::new(&watched, PollFlags::IN)];
                let time = Timespec { tv_sec: 20, tv_nsec: 0 };
                assert_eq!(poll(&mut fds, Some(&time)), Ok(1), "{offload} {engine}");
                assert_eq!(member.receive(TIMEOUT).unwrap().unwrap(), b"watched");
            }
        }
    }
}

#[test]
fn a_daemon_that_stops_notifies_its_clients_and_leaves_no_files() {
    let served = Served::new(EngineChoice::User, Policy::default());
    let (here, there) = (client(&served.socket()), other());
    let settings = |root| GroupSettings {
        group: GroupId(root as u32),
        root,
        ..GroupSettings::new(vec![here.address(), there.address()])
    };
    let pairs =
        [0, 1].map(|root| (here.group(&settings(root)).unwrap(), there.group(&settings(root)).unwrap()));
    exchange(&pairs[0].0, &pairs[0].1, 3);
    exchange(&pairs[1].1, &pairs[1].0, 3);
    let directory = served.socket().parent().unwrap().to_owned();
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    std::thread::scope(|scope| {
        let waiting = [&pairs[0].1, &pairs[1].0].map(|group| scope.spawn(|| group.receive(TIMEOUT)));
        served.stopper.stop();
        for waits in waiting {
            let error = waits.join().unwrap().unwrap_err();
            assert!(matches!(error, NodeError::Ended(_) | NodeError::GroupFailed(_)), "{error}");
        }
    });
    here.close(TIMEOUT).unwrap();
    assert_eq!(served.end().clients, 1);
    assert!(!directory.join("node.sock").exists());
}

/// A group of a root and a member, to which three messages have been sent that it has not received:
/// of 2,000 bytes with the values 1, 2 and 3.
fn with_unread_messages(nodes: &[Node; 2]) -> [Group; 2] {
    let settings = GroupSettings::new(nodes.iter().map(Node::address).collect());
    let groups = nodes.each_ref().map(|node| node.group(&settings).unwrap());
    exchange(&groups[0], &groups[1], 1);
    for number in 1..=3 {
        groups[0].send(&[number; 2_000]).unwrap();
    }
    groups[0].flush(TIMEOUT).unwrap();
    groups
}

#[test]
fn what_has_arrived_can_be_received_when_the_daemon_has_stopped() {
    for engine in engines() {
        let served = Served::new(engine, Policy::default());
        let nodes = [other(), client(&served.socket())];
        let [_root, member] = with_unread_messages(&nodes);
        served.end();
        for number in 1..=3 {
            assert_eq!(member.receive(TIMEOUT).unwrap(), Some(vec![number; 2_000]), "{engine}");
        }
        let error = member.receive(TIMEOUT).unwrap_err();
        assert!(matches!(error, NodeError::Ended(_) | NodeError::GroupFailed(_)), "{engine}: {error}");
    }
}

#[test]
fn a_stale_socket_is_replaced_but_one_in_use_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = socket(&directory);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    // The socket of a daemon that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let bind = "127.0.0.1:0".parse().unwrap();
    let settings = NodeSettings { bind, engine: EngineChoice::User, ..NodeSettings::default() };
    let daemon = Daemon::open(&settings, &path, Policy::default()).unwrap();
    let error = Daemon::open(&settings, &path, Policy::default()).unwrap_err().to_string();
    assert!(error.contains("another daemon listens there"), "{error}");
    drop(daemon);
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    let error = Daemon::open(&settings, &path, Policy::default()).unwrap_err().to_string();
    assert!(error.contains("not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}
