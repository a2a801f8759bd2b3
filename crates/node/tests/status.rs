//! What `treecast status` finds.

mod common;

use std::io::Read as _;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use common::{TIMEOUT, groups, message, settings, skip};
use rustix::process::getuid;
use rustix::thread::{Uid, set_thread_res_uid};
use treecast_node::status::{self, GroupDocument, NodeDocument};
use treecast_node::{
    Daemon, EngineChoice, GroupId, GroupSettings, Node, NodeSettings, Policy, Scheme, TreeScheme,
};

const LENGTHS: [usize; 3] = [10, 100_000, 0];

/// A user who need not exist.
const STRANGER: u32 = 3_100_000;

fn open(settings: &NodeSettings) -> Node {
    Node::open(&NodeSettings { bind: "127.0.0.1:0".parse().unwrap(), ..settings.clone() }).unwrap()
}

fn find(address: SocketAddr) -> Option<NodeDocument> {
    status::find().unwrap().nodes.into_iter().find(|node| node.address == address)
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT.unwrap();
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn group(node: &Node) -> Option<GroupDocument> {
    find(node.address()).unwrap().groups.pop()
}

#[test]
fn the_root_shows_its_members_and_how_far_its_children_are() {
    let nodes: Vec<Node> = (0..3).map(|_| open(&NodeSettings::default())).collect();
    let serial = Some(Scheme::tree(TreeScheme::Serial));
    let settings = GroupSettings { scheme: serial, ..settings(&nodes) };
    let root = nodes[0].group(&settings).unwrap();
    let alone = group(&nodes[0]).unwrap();
    assert_eq!(alone.members.iter().map(|member| member.joined).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(alone.on_streams, None);

    let members: Vec<_> = nodes[1..].iter().map(|node| node.group(&settings).unwrap()).collect();
    for (number, length) in LENGTHS.into_iter().enumerate() {
        root.send(&message(number, length)).unwrap();
        for member in &members {
            member.receive(TIMEOUT).unwrap();
        }
    }
    root.flush(TIMEOUT).unwrap();
    let [at_root, middle, last] = [0, 1, 2].map(|index| group(&nodes[index]).unwrap());
    assert!(at_root.is_root() && !middle.is_root());
    assert_eq!(
        at_root.members.iter().map(|member| member.parent).collect::<Vec<_>>(),
        [None, Some(0), Some(1)]
    );
    assert!(at_root.members.iter().all(|member| member.joined && member.lost.is_none()));
    assert_eq!((at_root.member, middle.member, last.member), (Some(0), Some(1), Some(2)));
    assert_eq!((middle.root, middle.parent), (Some(nodes[0].address()), Some(nodes[0].address())));
    assert_eq!((last.root, last.parent), (Some(nodes[0].address()), Some(nodes[1].address())));
    let bytes = LENGTHS.iter().sum::<usize>() as u64;
    for group in [&at_root, &middle, &last] {
        assert_eq!((group.bytes, group.stable, group.in_kernel), (bytes, group.next, false));
        assert_eq!((group.transport.as_deref(), group.on_streams), (Some("both"), Some(true)));
        assert!(group.slowest_child().is_none());
    }
    let [child] = &at_root.children[..] else { panic!("{:?}", at_root.children) };
    assert_eq!((child.member, child.address, child.behind, child.in_flight), (1, nodes[1].address(), 0, 0));
    assert!(child.rtt_us.is_some_and(|rtt| rtt > 0.0));

    root.close(TIMEOUT).unwrap();
    drop((root, members));
    // The root answers its members for a while.
    wait_until("the group is gone", || group(&nodes[0]).is_none());
}

#[test]
fn a_member_that_does_not_read_is_behind() {
    let nodes: Vec<Node> = (0..2).map(|_| open(&NodeSettings::default())).collect();
    let groups = groups(&nodes, &GroupSettings { slots: Some(8), ..settings(&nodes) });
    // As many packets as the member has slots, and then some.
    for number in 0..12 {
        groups[0].send(&message(number, 100)).unwrap();
    }
    wait_until("the member is behind", || {
        let group = group(&nodes[0]).unwrap();
        group.slowest_child().is_some_and(|child| child.member == 1 && child.behind > 0)
    });
    for number in 0..12 {
        assert_eq!(groups[1].receive(TIMEOUT).unwrap(), Some(message(number, 100)));
    }
}

#[test]
fn a_node_is_not_shown_after_it_is_dropped_or_where_it_does_not_want_that() {
    let node = open(&NodeSettings::default());
    let address = node.address();
    assert_eq!(find(address).map(|node| node.process), Some(std::process::id()));
    drop(node);
    assert_eq!(find(address), None);
    let hidden = open(&NodeSettings { status: false, ..NodeSettings::default() });
    assert_eq!(find(hidden.address()), None);
}

#[test]
fn a_process_that_does_not_answer_is_named_and_does_not_hide_others() {
    let node = open(&NodeSettings::default());
    // It accepts nothing, as a stopped process does; its process is this one.
    let name = format!("treecast-status.{}.0000000000000000", getuid().as_raw());
    let stopped = UnixListener::bind_addr(&UnixAddress::from_abstract_name(name).unwrap()).unwrap();
    let found = status::find().unwrap();
    drop(stopped);
    assert!(found.silent.contains(&(std::process::id() as i32)), "{:?}", found.silent);
    assert!(found.nodes.iter().any(|found| found.address == node.address()));
}

/// Acts as another user, which the kernel takes from the thread.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    let act = move || {
        set_thread_res_uid(Uid::ROOT, Uid::from_raw(user), Uid::ROOT).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

/// What a process of another user gets from all status sockets of this host.
fn as_stranger(user: u32) -> Vec<Vec<u8>> {
    as_user(user, || {
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        let names = table.lines().filter_map(|line| line.split_once("@treecast-status."));
        let answers = names.map(|(_, rest)| {
            let name = format!("treecast-status.{rest}");
            let address = UnixAddress::from_abstract_name(name).unwrap();
            let mut answer = Vec::new();
            if let Ok(mut stream) = UnixStream::connect_addr(&address) {
                stream.set_read_timeout(TIMEOUT).unwrap();
                // A reset is no answer either.
                let _ = stream.read_to_end(&mut answer);
            }
            answer
        });
        answers.filter(|answer| !answer.is_empty()).collect()
    })
}

#[test]
fn users_see_nothing_of_others() {
    if !getuid().is_root() {
        return skip(&"another user is for root");
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = directory.path().join("run/node.sock");
    let bind = "127.0.0.1:0".parse().unwrap();
    let engine = NodeSettings { bind, engine: EngineChoice::User, ..NodeSettings::default() };
    let policy = Policy::parse("[[rule]]\nname = \"all\"\nall_users = true", "policy").unwrap();
    let daemon = Daemon::open(&engine, &path, policy).unwrap();
    let stopper = daemon.stopper();
    let serving = std::thread::spawn(move || daemon.serve().unwrap());

    // A node of root's own, and a group of root at the daemon.
    let own = open(&NodeSettings::default());
    let client =
        NodeSettings { bind, socket: Some(path), engine: EngineChoice::Auto, ..NodeSettings::default() };
    let node = Node::open(&client).unwrap();
    let members = vec![node.address(), own.address()];
    let group_settings = GroupSettings { token: "a token".into(), ..GroupSettings::new(members) };
    let groups = [node.group(&group_settings).unwrap(), own.group(&group_settings).unwrap()];
    groups[0].wait_until_ready(TIMEOUT).unwrap();

    assert_eq!(find(node.address()).unwrap().groups.pop().unwrap().owner, Some(0));
    assert_eq!(find(own.address()).unwrap().groups.pop().unwrap().owner, None);
    assert_eq!(as_stranger(STRANGER), Vec::<Vec<u8>>::new());

    // A group of the other user beside it, with the same members.
    let theirs = as_user(STRANGER, || Node::open(&client).unwrap());
    let settings = GroupSettings { group: GroupId(2), ..group_settings.clone() };
    let their_groups = [theirs.group(&settings).unwrap(), own.group(&settings).unwrap()];
    their_groups[0].wait_until_ready(TIMEOUT).unwrap();
    let shown = as_user(STRANGER, || status::find().unwrap().nodes);
    let [daemon] = &shown[..] else { panic!("{shown:?}") };
    let seen: Vec<_> = daemon.groups.iter().map(|group| (group.group, group.owner)).collect();
    assert_eq!((daemon.address, seen), (node.address(), vec![(2, Some(STRANGER))]));
    assert!(daemon.strays.is_empty());
    let seen: Vec<_> = find(node.address()).unwrap().groups.iter().map(|group| group.owner).collect();
    assert_eq!(seen, [Some(0), Some(STRANGER)]);
    drop((groups, their_groups, node, theirs));
    stopper.stop();
    serving.join().unwrap();
}
