//! Clients that are processes of their own: of another user, and killed.
//!
//! Such a process is this program again, with [`a_client_process`] as its only test, and variables
//! that say what it does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use treecast_node::{EngineChoice, Group, GroupId, GroupSettings, Node, NodeError, NodeSettings, Policy};

use crate::{Served, TIMEOUT, client, engines, exchange, other, skip};

const OTHER_USER: u32 = 65_534;

/// The user that clients run as: another one, if the test runs as root.
fn other_user() -> Option<u32> {
    rustix::process::getuid().is_root().then_some(OTHER_USER)
}

/// A policy that allows groups to all users.
fn policy(bounds: &str) -> Policy {
    Policy::parse(&format!("[[rule]]\nname = \"all\"\nall_users = true\n{bounds}"), "policy").unwrap()
}

fn process(socket: &Path, does: &str, user: Option<u32>, peer: SocketAddr) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "processes::a_client_process", "--ignored", "--nocapture"])
        .env("TREECAST_TEST_DOES", does)
        .env("TREECAST_TEST_PEER", peer.to_string())
        .env("TREECAST_SOCKET", socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command.spawn().unwrap()
}

/// Reads a process's output until a line with this prefix; returns the rest of the line.
fn wait_for(child: &mut Child, beginning: &str) -> String {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    loop {
        let Some(line) = lines.next() else {
            let mut said = String::new();
            child.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
            panic!("it did not say {beginning}, but\n{said}");
        };
        if let Some((_, rest)) = line.unwrap().split_once(beginning) {
            return rest.into();
        }
    }
}

#[test]
#[ignore = "it is run by others"]
fn a_client_process() {
    let Ok(does) = std::env::var("TREECAST_TEST_DOES") else { return };
    let peer: SocketAddr = std::env::var("TREECAST_TEST_PEER").unwrap().parse().unwrap();
    let node = Node::open(&NodeSettings::default()).unwrap();
    println!("\nengine: {}", node.engine());
    let settings = |group, root| GroupSettings {
        group: GroupId(group),
        root,
        slots: Some(64),
        ..GroupSettings::new(vec![node.address(), peer])
    };
    let mut words = does.split(' ');
    let (what, group) = (words.next().unwrap(), words.next().unwrap_or("0").parse().unwrap());
    let groups: Vec<Group> = match what {
        "echo" => {
            let (there, back) =
                (node.group(&settings(group, 1)).unwrap(), node.group(&settings(group + 1, 0)).unwrap());
            while let Some(message) = there.receive(None).unwrap() {
                back.send(&message).unwrap();
            }
            back.close(TIMEOUT).unwrap();
            vec![there]
        }
        "hold" => {
            (0..2).map(|more| group_when_allowed(&node, &settings(group + more, more as usize))).collect()
        }
        "refused" => {
            println!("why: {}", node.group(&settings(group, 0)).unwrap_err());
            Vec::new()
        }
        _ => panic!("{does}"),
    };
    println!("\nready");
    std::io::stdout().flush().unwrap();
    if what == "hold" {
        // Until it is killed.
        let _ = std::io::stdin().read_to_string(&mut String::new());
    }
    drop(groups);
}

/// Takes part in a group once the daemon's policy allows it: groups of a client that was killed
/// count until they have ended.
fn group_when_allowed(node: &Node, settings: &GroupSettings) -> Group {
    let start = Instant::now();
    loop {
        match node.group(settings) {
            Ok(group) => return group,
            Err(NodeError::Daemon(why)) if why.contains(" allows ") && Some(start.elapsed()) < TIMEOUT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_user_without_rights_sends_and_receives() {
    for engine in engines() {
        let served = Served::new(engine, policy(""));
        let (there, address) = (other(), client(&served.socket()).address());
        let mut child = process(&served.socket(), "echo 5", other_user(), there.address());
        let said = wait_for(&mut child, "engine: ");
        assert!(said.starts_with(&format!("{engine}, of the daemon at ")), "{said}");
        let settings = |group, root| GroupSettings {
            group: GroupId(group),
            root,
            slots: Some(64),
            ..GroupSettings::new(vec![address, there.address()])
        };
        let (sends, receives) =
            (there.group(&settings(5, 1)).unwrap(), there.group(&settings(6, 0)).unwrap());
        for number in 0..300_u32 {
            let message = vec![number as u8; (number as usize * 37) % 9_000];
            sends.send(&message).unwrap();
            assert_eq!(receives.receive(TIMEOUT).unwrap().unwrap(), message);
        }
        assert!(sends.close(TIMEOUT).unwrap().is_empty());
        assert_eq!(receives.receive(TIMEOUT).unwrap(), None);
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_killed_client_releases_everything() {
    for engine in engines() {
        // The budget allows the memory of two groups, and the node four groups; clients use it
        // repeatedly. A slot of the kernel's has room for the long packets of the loopback
        // interface.
        let memory_max = if engine == EngineChoice::Ebpf { "1400K" } else { "256K" };
        let bounds = format!("groups_max = 2\nmemory_max = \"{memory_max}\"");
        let served = Served::with_groups_max(engine, policy(&bounds), 4);
        let there = other();
        let keeper = client(&served.socket());
        let address = keeper.address();
        let rounds = 8;
        for round in 0..rounds {
            let mut child =
                process(&served.socket(), &format!("hold {}", 2 * round), other_user(), there.address());
            let settings = |group, root| GroupSettings {
                group: GroupId(group),
                root,
                slots: Some(64),
                ..GroupSettings::new(vec![address, there.address()])
            };
            let groups: Vec<Group> =
                (0..2).map(|more| there.group(&settings(2 * round + more, more as usize)).unwrap()).collect();
            wait_for(&mut child, "ready");
            groups[1].wait_until_ready(TIMEOUT).unwrap();
            groups[1].send(b"not read").unwrap();
            // It is killed while it is the root of one group and a member of another.
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(matches!(groups[0].receive(TIMEOUT), Err(NodeError::Ended(_))), "round {round}");
            let lost = loop {
                let lost = groups[1].losses();
                if !lost.is_empty() {
                    break lost;
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            assert_eq!(lost[0].member, 0);
            drop(groups);
        }
        drop(keeper);
        assert_eq!(served.end().clients, u64::from(rounds) + 1);
    }
}

#[test]
fn a_refusal_of_the_policy_reaches_the_process() {
    let served = Served::new(EngineChoice::User, policy("numbers = [\"1000-1999\"]"));
    let there = other();
    let mut child = process(&served.socket(), "refused 5", other_user(), there.address());
    assert_eq!(wait_for(&mut child, "why: "), "rule \"all\" allows groups 1000-1999, and not 5");
    assert!(child.wait().unwrap().success());
    let Some(user) = other_user() else { return skip(&"a client of another user is for root") };
    // A user without a rule gets a node with a thread of its own.
    let served = Served::new(EngineChoice::User, Policy::default());
    let mut child = process(&served.socket(), "hold 5", Some(user), there.address());
    assert_eq!(wait_for(&mut child, "engine: "), "user");
    child.kill().unwrap();
    child.wait().unwrap();
    let here = client(&served.socket());
    let settings = GroupSettings::new(vec![here.address(), there.address()]);
    exchange(&here.group(&settings).unwrap(), &there.group(&settings).unwrap(), 3);
}
