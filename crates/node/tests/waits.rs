//! Every call that waits for a group ends when nobody is left that it could wait for.
//! crates/engine/src/wait/mod.rs says who wakes whom.

mod common;
#[path = "common/network.rs"]
mod network;

use std::mem;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use common::{TIMEOUT, groups, message, settings};
use network::{in_own_network, run};
use rustix::event::{PollFd, PollFlags, poll};
use treecast_node::{
    Daemon, Ending, EngineChoice, Group, GroupId, GroupSettings, Lost, Nanoseconds, Node, NodeError,
    NodeSettings, Policy,
};

type Losses = Result<Vec<Lost>, NodeError>;

/// Who runs a member's engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The member's own process.
    Own,
    /// The first of the processes that share a node.
    Shared,
    /// The daemon of the host, with this engine.
    Daemon(EngineChoice),
}

const PLACES: [Place; 4] =
    [Place::Own, Place::Shared, Place::Daemon(EngineChoice::User), Place::Daemon(EngineChoice::Ebpf)];

/// Longer than all timeouts of the protocol together: a call that takes longer hangs.
const FOREVER: Duration = Duration::from_secs(20);

/// More than the packets of all slots.
const MANY: usize = 1_000;

/// More than is sent before a loss is known.
const MOST: usize = 10_000_000;

/// Numbers the nodes: one that is closing keeps its name.
static NODES: AtomicU32 = AtomicU32::new(0);

/// How long the nodes of a host wait for one that never comes.
const SHORT_JOIN: Nanoseconds = Nanoseconds::from_ms(1_000);

/// The nodes of processes of one host. A daemon serves them until the process of the tests ends.
fn host(place: Place, name: &str, processes: usize) -> Vec<Node> {
    host_that_waits(place, name, processes, NodeSettings::default().protocol.join_timeout)
}

fn host_that_waits(place: Place, name: &str, processes: usize, join_timeout: Nanoseconds) -> Vec<Node> {
    let number = NODES.fetch_add(1, Ordering::Relaxed);
    let share = (place != Place::Own).then(|| format!("{name} {number} of {}", std::process::id()));
    let bind = "127.0.0.1:0".parse().unwrap();
    let mut settings = NodeSettings { bind, engine: EngineChoice::Ebpf, share, ..NodeSettings::default() };
    settings.protocol.join_timeout = join_timeout;
    let directory = tempfile::tempdir().unwrap();
    if let Place::Daemon(engine) = place {
        let socket = directory.path().join("node.sock");
        let daemon = NodeSettings { engine, ..settings.clone() };
        let daemon = Daemon::open(&daemon, &socket, Policy::default()).unwrap();
        calling(move || daemon.serve());
        settings = NodeSettings { engine: EngineChoice::Auto, socket: Some(socket), ..settings };
    }
    (0..processes).map(|_| Node::open(&settings).unwrap()).collect()
}

fn node(place: Place, name: &str) -> Node {
    host(place, name, 1).remove(0)
}

/// The nodes of a root and of a member, of which one never has the group.
fn nodes_in_vain(place: Place) -> [Node; 2] {
    ["root", "member"].map(|name| host_that_waits(place, name, 1, SHORT_JOIN).remove(0))
}

/// Calls in another thread, which remains if one of them hangs.
struct Calls<T> {
    result: Receiver<T>,
    /// How many of them have ended.
    ended: Arc<AtomicU32>,
}

fn calling<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Calls<T> {
    calling_often(move |_| call())
}

/// As [`calling`], for several calls, which are counted.
fn calling_often<T: Send + 'static>(calls: impl FnOnce(&AtomicU32) -> T + Send + 'static) -> Calls<T> {
    let (sender, result) = channel();
    let ended = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ended);
    thread::spawn(move || sender.send(calls(&count)));
    Calls { result, ended }
}

/// A thread may take its time for many calls, on a busy machine: none of them hangs.
fn result_of<T>(calls: &Calls<T>, what: &str) -> T {
    loop {
        let before = calls.ended.load(Ordering::Relaxed);
        match calls.result.recv_timeout(FOREVER) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) if calls.ended.load(Ordering::Relaxed) != before => {}
            Err(error) => panic!("{what} hangs: {error}"),
        }
    }
}

/// Datagrams from and to a node are lost from now on, as if its host were dead. The filter is
/// behind the node's own program.
fn cut(node: &Node) {
    let port = node.address().port();
    // Classic BPF: the ports of a datagram over IPv4, and the verdict `TC_ACT_SHOT`, or none.
    let drop = format!("6,40 0 0 34,21 2 0 {port},40 0 0 36,21 0 1 {port},6 0 0 2,6 0 0 4294967295");
    run("tc qdisc replace dev lo clsact");
    let filter = ["filter", "add", "dev", "lo", "egress", "bpf", "da", "bytecode", &drop];
    assert!(Command::new("tc").args(filter).status().unwrap().success());
}

/// A node with the roots of two groups, and one with their only other members. Of the threads that
/// wait for the two groups one leads, and the other follows.
struct Pair {
    roots: Vec<Arc<Group>>,
    members: Vec<Arc<Group>>,
    nodes: Vec<Node>,
}

impl Pair {
    fn start(place: Place) -> Self {
        let nodes: Vec<Node> = ["root", "member"].map(|name| node(place, name)).into();
        let (mut roots, mut members) = (Vec::new(), Vec::new());
        for group in [1, 2].map(GroupId) {
            let settings = GroupSettings { group, slots: Some(64), ..settings(&nodes) };
            let [root, member] = <[Group; 2]>::try_from(groups(&nodes, &settings)).unwrap();
            root.wait_until_ready(TIMEOUT).unwrap();
            roots.push(Arc::new(root));
            members.push(Arc::new(member));
        }
        Self { roots, members, nodes }
    }

    /// Receives at the members, as long as they have a group.
    fn receive(&self) {
        for member in &self.members {
            let member = Arc::clone(member);
            calling(move || while member.receive(None).is_ok_and(|message| message.is_some()) {});
        }
    }

    /// Both roots make the same calls.
    fn call(
        &self,
        calls: impl Fn(&Group, &AtomicU32) -> Losses + Clone + Send + 'static,
    ) -> Vec<Calls<Losses>> {
        let of = |root: &Arc<Group>| {
            let (root, calls) = (Arc::clone(root), calls.clone());
            calling_often(move |ended| calls(&root, ended))
        };
        self.roots.iter().map(of).collect()
    }
}

/// The node of a host that is cut off takes seconds to close, which no test waits for.
impl Drop for Pair {
    fn drop(&mut self) {
        let nodes = mem::take(&mut self.nodes);
        calling(move || drop(nodes));
    }
}

/// Each of the calls ends, and its root has lost its only member.
fn check_lost(calls: &[Calls<Losses>], what: &str) {
    for call in calls {
        assert_eq!(result_of(call, what).unwrap().len(), 1, "{what}");
    }
}

/// Sends until members are lost, and then more than all slots hold.
fn send_past_the_loss(root: &Group, ended: &AtomicU32) -> Losses {
    let mut rest = MANY;
    for number in 0..MOST {
        root.send(&message(number, 20))?;
        ended.fetch_add(1, Ordering::Relaxed);
        rest -= usize::from(!root.losses().is_empty());
        if rest == 0 {
            break;
        }
    }
    Ok(root.losses())
}

#[test]
fn a_root_without_other_members_sends_as_much_as_it_likes() {
    in_own_network(|| {
        for place in PLACES {
            let nodes = [node(place, "alone")];
            let root = groups(&nodes, &GroupSettings { slots: Some(64), ..settings(&nodes) }).remove(0);
            let sending = calling_often(move |ended| {
                for number in 0..10 * MANY {
                    root.send(&message(number, 20)).unwrap();
                    ended.fetch_add(1, Ordering::Relaxed);
                }
                root.flush(TIMEOUT).and_then(|()| root.close(TIMEOUT))
            });
            assert_eq!(result_of(&sending, "sending").unwrap(), []);
        }
    });
}

#[test]
fn a_root_that_waits_for_room_goes_on_when_its_last_member_dies() {
    in_own_network(|| {
        for place in PLACES {
            let pair = Pair::start(place);
            pair.receive();
            let calls = pair.call(send_past_the_loss);
            thread::sleep(Duration::from_millis(100));
            cut(&pair.nodes[1]);
            check_lost(&calls, "sending to members that receive");
        }
    });
}

#[test]
fn a_root_that_waits_for_a_reader_goes_on_when_its_last_member_dies() {
    in_own_network(|| {
        for place in PLACES {
            let pair = Pair::start(place);
            let calls = pair.call(send_past_the_loss);
            thread::sleep(Duration::from_millis(100));
            cut(&pair.nodes[1]);
            check_lost(&calls, "sending to members that do not read");
        }
    });
}

#[test]
fn a_root_that_flushes_or_closes_goes_on_when_its_last_member_dies() {
    in_own_network(|| {
        for place in PLACES {
            let flush = |root: &Group, _: &AtomicU32| {
                root.send(b"reaches nobody")?;
                root.flush(None)?;
                Ok(root.losses())
            };
            let close = |root: &Group, _: &AtomicU32| {
                root.send(b"reaches nobody")?;
                root.close(None)
            };
            let pair = Pair::start(place);
            cut(&pair.nodes[1]);
            check_lost(&pair.call(flush), "flushing");
            let pair = Pair::start(place);
            cut(&pair.nodes[1]);
            check_lost(&pair.call(close), "closing");
        }
    });
}

#[test]
fn a_root_whose_last_member_leaves_goes_on() {
    in_own_network(|| {
        for place in PLACES {
            let pair = Pair::start(place);
            pair.receive();
            let calls = pair.call(send_past_the_loss);
            thread::sleep(Duration::from_millis(100));
            pair.members.iter().for_each(|member| member.abort());
            check_lost(&calls, "sending");
        }
    });
}

#[test]
fn a_root_whose_members_never_come_gets_ready() {
    in_own_network(|| {
        for place in PLACES {
            let nodes = nodes_in_vain(place);
            let root = nodes[0].group(&settings(&nodes)).unwrap();
            let waiting = calling(move || root.wait_until_ready(None));
            assert_eq!(result_of(&waiting, "getting ready").unwrap().len(), 1);
        }
    });
}

/// Each of the calls ends, because the root is silent.
fn check_root_silent<T: std::fmt::Debug>(calls: Vec<Calls<Result<T, NodeError>>>, what: &str) {
    for call in calls {
        let ended = result_of(&call, what).unwrap_err();
        assert!(matches!(ended, NodeError::Ended(Ending::RootSilent(_))), "{what}: {ended}");
    }
}

#[test]
fn members_that_wait_for_messages_learn_that_the_root_is_dead() {
    in_own_network(|| {
        for place in PLACES {
            let pair = Pair::start(place);
            pair.roots.iter().for_each(|root| root.send(b"hello").unwrap());
            let calls = pair.members.iter().map(|member| {
                let member = Arc::clone(member);
                calling(move || member.receive(None).and_then(|_| member.receive(None)))
            });
            let calls: Vec<_> = calls.collect();
            thread::sleep(Duration::from_millis(100));
            cut(&pair.nodes[0]);
            check_root_silent(calls, "receiving");
        }
    });
}

#[test]
fn members_that_wait_for_their_places_learn_that_the_root_does_not_come() {
    in_own_network(|| {
        for place in PLACES {
            let nodes = nodes_in_vain(place);
            let member = |group| {
                let settings = GroupSettings { group: GroupId(group), ..settings(&nodes) };
                nodes[1].group(&settings).unwrap()
            };
            let (waits, receives) = (member(1), member(2));
            check_root_silent(vec![calling(move || waits.wait_until_ready(None))], "waiting for a place");
            check_root_silent(vec![calling(move || receives.receive(None))], "receiving without a place");
        }
    });
}

/// Attempts a call whenever the descriptor of the group says that it has changed, as programs do
/// that wait for several things.
fn watching<T>(
    group: &Group,
    mut attempt: impl FnMut(&Group) -> Result<T, NodeError>,
) -> Result<T, NodeError> {
    let descriptor = group.watch().unwrap();
    loop {
        match attempt(group) {
            Err(NodeError::TimedOut) => {}
            done => return done,
        }
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None).unwrap();
        rustix::io::read(descriptor, &mut [0; 8]).unwrap();
    }
}

#[test]
fn a_root_that_watches_its_descriptor_goes_on_when_its_last_member_dies() {
    in_own_network(|| {
        for place in PLACES {
            let pair = Pair::start(place);
            let calls = pair.call(|root, ended| {
                for number in 0..MANY {
                    let message = message(number, 20);
                    watching(root, |root| root.send_part(&message, 20, Some(Duration::ZERO)))?;
                    ended.fetch_add(1, Ordering::Relaxed);
                }
                watching(root, |root| root.close(Some(Duration::ZERO)))
            });
            thread::sleep(Duration::from_millis(100));
            cut(&pair.nodes[1]);
            check_lost(&calls, "sending by the descriptor");
        }
    });
}

#[test]
fn members_that_watch_their_descriptors_learn_that_the_root_is_dead() {
    in_own_network(|| {
        for place in PLACES {
            let pair = Pair::start(place);
            pair.roots.iter().for_each(|root| root.send(b"hello").unwrap());
            let receive = |member: &Group| watching(member, |member| member.receive(Some(Duration::ZERO)));
            let calls = pair.members.iter().map(|member| {
                let member = Arc::clone(member);
                calling(move || receive(&member).and_then(|_| receive(&member)))
            });
            let calls: Vec<_> = calls.collect();
            thread::sleep(Duration::from_millis(100));
            cut(&pair.nodes[0]);
            check_root_silent(calls, "receiving by the descriptor");
        }
    });
}

/// A host with the root and one reader, and a host with two more; all wait in calls that end when
/// the other host is cut off.
#[test]
fn processes_that_share_a_node_learn_that_the_other_host_is_dead() {
    in_own_network(|| {
        for place in PLACES.into_iter().filter(|place| *place != Place::Own) {
            for is_root_cut in [false, true] {
                let mut nodes = host(place, "root", 2);
                nodes.extend(host(place, "members", 2));
                let settings = GroupSettings { slots: Some(64), ..settings(&nodes) };
                let of = |member: usize| {
                    nodes[member].group(&GroupSettings { member: Some(member), ..settings.clone() })
                };
                let [root, local, remote, other] = [0, 1, 2, 3].map(|member| of(member).unwrap());
                root.wait_until_ready(TIMEOUT).unwrap();
                let read = |group: Group| {
                    calling_often(move |ended| {
                        loop {
                            if group.receive(None)?.is_none() {
                                return group.close(None);
                            }
                            ended.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                };
                let (local, remote) = (read(local), read(remote));
                // The root waits for a process that does not read, which is on the host that is cut
                // off.
                let sending = calling_often(move |ended| {
                    let losses = send_past_the_loss(&root, ended);
                    root.close(None).and(losses)
                });
                thread::sleep(Duration::from_millis(100));
                cut(&nodes[if is_root_cut { 0 } else { 2 }]);
                let lost = result_of(&sending, "sending").unwrap();
                let mut lost: Vec<u32> = lost.iter().map(|lost| lost.member).collect();
                lost.sort_unstable();
                assert_eq!(lost, [2, 3], "{place:?}");
                assert_eq!(result_of(&local, "receiving at the root's host").unwrap(), []);
                check_root_silent(vec![remote], "receiving at the other host");
                drop(other);
                calling(move || while nodes.pop().is_some() {});
            }
        }
    });
}

#[test]
fn a_root_that_waits_for_a_process_that_shares_a_node_goes_on_when_that_ends() {
    in_own_network(|| {
        for place in PLACES.into_iter().filter(|place| *place != Place::Own) {
            for silent in [1, 3] {
                let mut nodes = host(place, "root", 2);
                nodes.extend(host(place, "members", 2));
                let settings = GroupSettings { slots: Some(64), ..settings(&nodes) };
                let of = |member: usize| {
                    nodes[member].group(&GroupSettings { member: Some(member), ..settings.clone() })
                };
                let mut groups: Vec<Group> = [0, 1, 2, 3].map(|member| of(member).unwrap()).into();
                let not_reading = groups.remove(silent);
                let root = groups.remove(0);
                root.wait_until_ready(TIMEOUT).unwrap();
                for group in groups {
                    calling(move || while group.receive(None).is_ok_and(|message| message.is_some()) {});
                }
                let sending = calling_often(move |ended| {
                    for number in 0..MANY {
                        root.send(&message(number, 20))?;
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                    root.close(None)
                });
                thread::sleep(Duration::from_millis(100));
                drop(nodes.remove(silent));
                let lost = result_of(&sending, "sending").unwrap();
                let lost: Vec<u32> = lost.iter().map(|lost| lost.member).collect();
                assert_eq!(lost, [silent as u32], "{place:?}");
                drop(not_reading);
                calling(move || while nodes.pop().is_some() {});
            }
        }
    });
}
