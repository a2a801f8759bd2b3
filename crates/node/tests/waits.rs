//! Every call that waits for a group ends when nobody is left that it could wait for. crates/node/src/wait/mod.rs says who wakes whom.

mod common;
#[path = "common/network.rs"]
mod network;

use std::mem;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use common::{TIMEOUT, groups, message, settings};
use network::{in_own_network, run};
use treecast_node::{
    Ending, EngineChoice, Group, GroupId, GroupSettings, Lost, Nanoseconds, Node, NodeError, NodeSettings,
};

type Losses = Result<Vec<Lost>, NodeError>;

/// Who runs a member's engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The member's own process.
    Own,
    /// A node that several processes may share, as with a daemon.
    Shared,
}

const PLACES: [Place; 2] = [Place::Own, Place::Shared];

/// Longer than all timeouts of the protocol together: a call that takes so long hangs.
const FOREVER: Duration = Duration::from_secs(20);

/// More than the packets of all slots.
const MANY: usize = 1_000;

/// Numbers the nodes: one that is closing keeps its name.
static NODES: AtomicU32 = AtomicU32::new(0);

fn node(place: Place, name: &str) -> Node {
    let number = NODES.fetch_add(1, Ordering::Relaxed);
    let share = (place == Place::Shared).then(|| format!("{name} {number} of {}", std::process::id()));
    let bind = "127.0.0.1:0".parse().unwrap();
    let mut settings = NodeSettings { bind, engine: EngineChoice::Ebpf, share, ..NodeSettings::default() };
    settings.protocol.join_timeout = Nanoseconds::from_ms(1_000);
    Node::open(&settings).unwrap()
}

/// Calls in another thread, whose result is received. That thread remains if the call hangs.
fn calling<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(call()));
    receiver
}

fn result_of<T>(call: &Receiver<T>, what: &str) -> T {
    call.recv_timeout(FOREVER).unwrap_or_else(|error| panic!("{what} hangs: {error}"))
}

/// Datagrams from and to a node are lost from now on, as if its host were dead. The filter is behind the node's own program.
fn cut(node: &Node) {
    let port = node.address().port();
    // Classic BPF: the ports of a datagram over IPv4, and the verdict `TC_ACT_SHOT`, or none.
    let drop = format!("6,40 0 0 34,21 2 0 {port},40 0 0 36,21 0 1 {port},6 0 0 2,6 0 0 4294967295");
    run("tc qdisc replace dev lo clsact");
    let filter = ["filter", "add", "dev", "lo", "egress", "bpf", "da", "bytecode", &drop];
    assert!(Command::new("tc").args(filter).status().unwrap().success());
}

/// A node with the roots of two groups, and one with their only other members. Of the threads that wait for the two groups one leads, and
/// the other follows.
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

    /// Both roots make the same call.
    fn call(&self, call: impl Fn(&Group) -> Losses + Clone + Send + 'static) -> Vec<Receiver<Losses>> {
        let of = |root: &Arc<Group>| {
            let (root, call) = (Arc::clone(root), call.clone());
            calling(move || call(&root))
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
fn check_lost(calls: &[Receiver<Losses>], what: &str) {
    for call in calls {
        assert_eq!(result_of(call, what).unwrap().len(), 1, "{what}");
    }
}

/// Sends until members are lost, and then more than all slots hold.
fn send_past_the_loss(root: &Group) -> Losses {
    let mut rest = MANY;
    for number in 0.. {
        root.send(&message(number, 20))?;
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
            let sending = calling(move || {
                (0..10 * MANY).for_each(|number| root.send(&message(number, 20)).unwrap());
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
            // A client of a shared node may see the free slots before it learns of the loss.
            let flush = |root: &Group| {
                root.send(b"reaches nobody")?;
                root.flush(None)?;
                root.close(None)
            };
            let close = |root: &Group| root.send(b"reaches nobody").and_then(|()| root.close(None));
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
            let nodes = [node(place, "root"), node(place, "member")];
            let root = nodes[0].group(&settings(&nodes)).unwrap();
            let waiting = calling(move || root.wait_until_ready(None));
            assert_eq!(result_of(&waiting, "getting ready").unwrap().len(), 1);
        }
    });
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
            for call in calls {
                let ended = result_of(&call, "receiving").unwrap_err();
                assert!(matches!(ended, NodeError::Ended(Ending::RootSilent(_))), "{ended}");
            }
        }
    });
}
