//! How groups end: members that leave, fail or are aborted, and nodes that close.

use super::*;

#[test]
fn a_missing_member_is_named_and_the_others_continue() {
    let nodes = nodes(3);
    let mut node_settings = NodeSettings { bind: "127.0.0.1:0".parse().unwrap(), ..NodeSettings::default() };
    node_settings.protocol.join_timeout = treecast_proto::Nanoseconds::from_ms(300);
    let root = Node::open(&node_settings).unwrap();
    let nowhere: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let members = [root.address(), nodes[1].address(), nowhere, nodes[2].address()];
    let settings = GroupSettings::new(members.to_vec());
    let (sender, one, other) = (
        root.group(&settings).unwrap(),
        nodes[1].group(&settings).unwrap(),
        nodes[2].group(&settings).unwrap(),
    );
    let lost = sender.wait_until_ready(TIMEOUT).unwrap();
    assert_eq!(lost, sender.losses());
    assert_eq!(lost[0].to_string(), "member 2 at 127.0.0.1:9 is lost: no answer within 300 ms");
    sender.send(b"hello").unwrap();
    for member in [&one, &other] {
        assert_eq!(member.receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
    }
    assert_eq!(sender.close(TIMEOUT).unwrap(), lost);
}

#[test]
fn a_root_that_is_dropped_notifies_its_members() {
    let nodes = nodes(2);
    let mut groups = groups(&nodes, &settings(&nodes));
    groups[0].send(b"hello").unwrap();
    groups[0].flush(TIMEOUT).unwrap();
    drop(groups.remove(0));
    assert_eq!(groups[0].receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
    let error = groups[0].receive(TIMEOUT).unwrap_err();
    assert_eq!(error.to_string(), "the root aborted the group: its application ended without closing it");
}

#[test]
fn a_group_is_aborted_while_threads_wait_for_it() {
    let nodes = nodes(3);
    let groups = groups(&nodes, &GroupSettings { slots: Some(4), ..settings(&nodes) });
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| groups[2].receive(None));
        groups[2].abort();
        let error = receiver.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "this member has left");
        // No member reads, so this fills the slots and waits.
        let sender = scope.spawn(|| groups[0].send(&message(0, 1 << 20)));
        while groups[1].counters().unwrap().accepted < 4 {
            std::thread::yield_now();
        }
        groups[0].abort();
        let error = sender.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the group was aborted at this node");
    });
}

#[test]
fn nothing_is_sent_after_the_end() {
    let nodes = nodes(2);
    let groups = groups(&nodes, &settings(&nodes));
    assert_eq!(groups[0].close(TIMEOUT).unwrap(), []);
    assert_eq!(groups[0].send(b"more").unwrap_err().to_string(), "the group is closed");
}

#[test]
fn a_node_that_is_dropped_ends_its_groups() {
    let mut nodes = nodes(3);
    let groups = groups(&nodes, &settings(&nodes));
    groups[0].send(b"hello").unwrap();
    for group in &groups[1..] {
        assert_eq!(group.receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
    }
    drop(nodes.remove(2));
    let error = groups[2].receive(TIMEOUT).unwrap_err();
    assert!(matches!(error, NodeError::Ended(_)), "{error}");
    drop(nodes.remove(0));
    assert!(groups[0].send(b"more").is_err());
    let error = groups[1].receive(TIMEOUT).unwrap_err();
    assert_eq!(error.to_string(), "the root aborted the group: its node was closed");
}

#[test]
fn a_member_that_leaves_is_named_and_the_others_continue() {
    let nodes = nodes(3);
    let mut groups = groups(&nodes, &settings(&nodes));
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    groups.remove(1).close(TIMEOUT).unwrap();
    groups[0].send(b"hello").unwrap();
    assert_eq!(groups[1].receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
    let lost = groups.remove(0).close(TIMEOUT).unwrap();
    assert!(lost.len() == 1 && lost[0].to_string().ends_with("is lost: left the group"), "{lost:?}");
}

#[test]
fn every_call_after_the_end_reports_the_end() {
    let nodes = nodes(2);
    let mut groups = groups(&nodes, &settings(&nodes));
    groups[0].send(b"last").unwrap();
    let sender = groups.remove(0);
    let closer = std::thread::spawn(move || sender.close(TIMEOUT));
    assert_eq!(groups[0].receive(TIMEOUT).unwrap().as_deref(), Some(&b"last"[..]));
    for _ in 0..3 {
        match groups[0].receive(TIMEOUT) {
            Ok(None) | Err(NodeError::Ended(Ending::Closed)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(closer.join().unwrap().unwrap(), []);
}

#[test]
fn a_closed_unread_group_does_not_stay() {
    let nodes = nodes(2);
    let settings = settings(&nodes);
    let mut groups = groups(&nodes, &settings);
    let member = groups.pop().unwrap();
    groups[0].send(&message(0, 10_000)).unwrap();
    assert_eq!(groups[0].close(TIMEOUT).unwrap(), []);
    drop(member);
    // Its number is free again when the group has ended.
    let end = std::time::Instant::now() + TIMEOUT.unwrap();
    while let Err(error) = nodes[1].group(&settings) {
        assert!(std::time::Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_member_that_waits_is_woken_when_another_thread_leaves() {
    let (_nodes, root, member) = pair(|settings| settings);
    root.send(b"hello").unwrap();
    std::thread::scope(|scope| {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let waiting = scope.spawn({
            let member = &member;
            move || {
                member.receive(TIMEOUT).unwrap();
                ready.send(()).unwrap();
                member.receive(None)
            }
        });
        is_ready.recv().unwrap();
        member.close(TIMEOUT).unwrap();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "this member has left");
    });
}

#[test]
fn an_aborted_group_ends_waiting_calls_at_once() {
    let (_nodes, root, member) = pair(|settings| GroupSettings { slots: Some(4), ..settings });
    std::thread::scope(|scope| {
        // No member reads: four slots are free.
        let waiting = scope.spawn(|| root.send(&message(0, 100_000)));
        member.wait_until_ready(TIMEOUT).unwrap();
        root.abort();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the group was aborted at this node");
    });
}

#[test]
fn closing_can_be_repeated_after_a_timeout() {
    // The member holds four packets, and the other packets wait for free slots there.
    let (_nodes, root, member) = pair(|settings| GroupSettings { slots: Some(4), ..settings });
    for number in 0..6 {
        root.send(&message(number, 10)).unwrap();
    }
    assert!(matches!(root.close(Some(Duration::from_millis(20))), Err(NodeError::TimedOut)));
    for number in 0..6 {
        assert_eq!(member.receive(TIMEOUT).unwrap(), Some(message(number, 10)));
    }
    assert_eq!(root.close(TIMEOUT).unwrap(), []);
    assert_eq!(root.close(TIMEOUT).unwrap(), []);
}

#[test]
fn a_node_that_is_closed_ends_its_groups() {
    let (nodes, root, member) = pair(|settings| settings);
    root.wait_until_ready(TIMEOUT).unwrap();
    nodes[0].close(TIMEOUT).unwrap();
    nodes[0].close(TIMEOUT).unwrap();
    assert!(member.receive(TIMEOUT).is_err());
}

#[test]
fn a_member_that_stops_reading_does_not_keep_its_node_open() {
    for has_begun in [true, false] {
        let (nodes, root, member) = pair(|settings| settings);
        for _ in 0..3 {
            root.send(b"hello").unwrap();
        }
        if has_begun {
            member.receive(TIMEOUT).unwrap();
        }
        member.wait_until_ready(TIMEOUT).unwrap();
        assert_eq!(root.close(TIMEOUT).unwrap(), []);
        assert_eq!(member.close(TIMEOUT).unwrap(), []);
        for node in nodes {
            node.close(TIMEOUT).unwrap();
        }
    }
}
