//! What tests of groups share.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use treecast_node::{Group, GroupSettings, Node};

pub const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

/// Prints why a test is skipped, in one write to standard error: the test harness captures the
/// output of passing tests.
#[allow(dead_code, reason = "not all tests can be skipped")]
pub fn skip(why: &dyn Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

pub fn settings(nodes: &[Node]) -> GroupSettings {
    let members = nodes.iter().map(Node::address).collect();
    GroupSettings { token: "a token".into(), ..GroupSettings::new(members) }
}

pub fn groups(nodes: &[Node], settings: &GroupSettings) -> Vec<Group> {
    nodes.iter().map(|node| node.group(settings).unwrap()).collect()
}

pub fn message(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 31 + number * 7) as u8).collect()
}

/// All members but the root receive these messages and the close, each in its own thread.
#[allow(dead_code, reason = "not all tests use all of it")]
pub fn check_all(groups: Vec<Group>, root: usize, lengths: &[usize]) {
    let mut groups: Vec<Option<Group>> = groups.into_iter().map(Some).collect();
    let sender = groups[root].take().unwrap();
    std::thread::scope(|scope| {
        for group in groups.into_iter().flatten() {
            scope.spawn(move || {
                for (number, &length) in lengths.iter().enumerate() {
                    let received = group.receive(TIMEOUT).unwrap();
                    assert!(
                        received.as_deref() == Some(&message(number, length)[..]),
                        "message {number} of {length} bytes"
                    );
                }
                assert_eq!(group.receive(TIMEOUT).unwrap(), None);
            });
        }
        for (number, &length) in lengths.iter().enumerate() {
            sender.send(&message(number, length)).unwrap();
        }
        assert_eq!(sender.close(TIMEOUT).unwrap(), []);
    });
}
