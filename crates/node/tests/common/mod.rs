//! What tests of groups share.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use treecast_node::{Group, GroupSettings, Node};

pub const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// Says why a test does nothing, past the test harness, which keeps what tests that pass print, and in one piece.
#[allow(dead_code, reason = "not all tests can be skipped")]
pub fn skip(why: &dyn Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

pub fn settings(nodes: &[Node]) -> GroupSettings {
    GroupSettings::new(nodes.iter().map(Node::address).collect())
}

pub fn groups(nodes: &[Node], settings: &GroupSettings) -> Vec<Group> {
    nodes.iter().map(|node| node.group(settings).unwrap()).collect()
}

pub fn message(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 31 + number * 7) as u8).collect()
}

/// Everybody but the root receives these messages and the end, in threads of their own.
pub fn check_all(groups: Vec<Group>, root: usize, lengths: &[usize]) {
    let mut groups: Vec<Option<Group>> = groups.into_iter().map(Some).collect();
    let sender = groups[root].take().unwrap();
    std::thread::scope(|scope| {
        for group in groups.into_iter().flatten() {
            scope.spawn(move || {
                for (number, &length) in lengths.iter().enumerate() {
                    let received = group.receive(PATIENCE).unwrap();
                    assert!(
                        received.as_deref() == Some(&message(number, length)[..]),
                        "message {number} of {length} bytes"
                    );
                }
                assert_eq!(group.receive(PATIENCE).unwrap(), None);
            });
        }
        for (number, &length) in lengths.iter().enumerate() {
            sender.send(&message(number, length)).unwrap();
        }
        assert_eq!(sender.close(PATIENCE).unwrap(), []);
    });
}
