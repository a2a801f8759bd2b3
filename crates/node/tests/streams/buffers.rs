//! Messages that pass the slots: from the buffer of a call, and into that of another one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::connect_unspec;
use treecast_node::{
    Capacity, Group, GroupId, GroupSettings, Nanoseconds, Node, NodeError, NodeSettings, Retention,
};

use super::common::{TIMEOUT, groups, message};
use super::{LENGTHS, by_streams, chain, nodes, stream_ends};

/// What the calls of [`Group::receive_into`] and its kin return, in turn.
#[expect(unsafe_code, reason = "a part is received into memory that is not initialized")]
fn receive_somehow(group: &Group, number: usize, length: usize) -> Result<Vec<u8>, NodeError> {
    let mut received = vec![0; length + [0, 1, 40_000][number % 3]];
    match number % 5 {
        0 => Ok(group.receive(TIMEOUT)?.unwrap()),
        1 => {
            let mut whole = Vec::new();
            while whole.len() < length || length == 0 {
                let part = group.receive_part(TIMEOUT, Capacity::of(u64::MAX), |_, bytes| {
                    whole.extend_from_slice(bytes);
                })?;
                if part.unwrap().is_last {
                    break;
                }
            }
            Ok(whole)
        }
        2 => {
            let mut whole = Vec::with_capacity(length.max(20_000));
            loop {
                let (part, bytes) = group.receive_part_uninit(whole.spare_capacity_mut(), TIMEOUT)?.unwrap();
                // SAFETY: so many bytes are initialized.
                unsafe { whole.set_len(whole.len() + bytes) };
                whole.reserve(20_000);
                if part.is_last {
                    return Ok(whole);
                }
            }
        }
        _ => {
            let received_bytes = group.receive_into(&mut received, TIMEOUT)?.unwrap();
            received.truncate(received_bytes);
            Ok(received)
        }
    }
}

/// Packets for a leaf go from the socket into the buffers of its calls, whatever their lengths, and
/// what other calls have left in the slots.
#[test]
fn every_way_to_receive_gets_the_same() {
    const COUNT: usize = 120;
    let length = |number: usize| LENGTHS[number % LENGTHS.len()] / (1 + number % 2) + number % 3;
    for slots in [8, 64] {
        let nodes = nodes(4);
        let settings = GroupSettings { message_bytes: 100_000, slots: Some(slots), ..by_streams(&nodes) };
        let mut groups = groups(&nodes, &settings).into_iter();
        let root = groups.next().unwrap();
        std::thread::scope(|scope| {
            for (member, group) in groups.enumerate() {
                scope.spawn(move || {
                    for number in 0..COUNT {
                        let received = receive_somehow(&group, number + member, length(number)).unwrap();
                        assert!(received == message(number, length(number)), "message {number}");
                        if (number + member).is_multiple_of(7) {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                    }
                    assert_eq!(group.receive(TIMEOUT).unwrap(), None);
                });
            }
            for number in 0..COUNT {
                root.send(&message(number, length(number))).unwrap();
                if number.is_multiple_of(5) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            assert_eq!(root.close(TIMEOUT).unwrap(), []);
        });
    }
}

/// The node's own thread takes packets from the stream too, when its timers expire, and stores them
/// in slots: between the time at which a call lends its buffer and the time at which it reads.
#[test]
fn messages_stay_whole_whoever_reads_the_stream() {
    const COUNT: usize = 4_000;
    let bind = "127.0.0.1:0".parse().unwrap();
    let mut often = NodeSettings { bind, ..NodeSettings::default() };
    often.protocol.keepalive = Nanoseconds::from_us(200);
    let nodes: Vec<Node> = (0..2).map(|_| Node::open(&often).unwrap()).collect();
    let length = |number: usize| [10, 2_048, 3_000, 6_144, 0, 9_000][number * 7 % 6];
    let groups = groups(&nodes, &by_streams(&nodes));
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    std::thread::scope(|scope| {
        let member = &groups[1];
        let receiving = scope.spawn(move || {
            let mut buffer = vec![0; 65_536];
            let is_wrong = |&number: &usize| {
                let received = member.receive_into(&mut buffer, TIMEOUT).unwrap().unwrap();
                buffer[..received] != message(number, length(number))
            };
            (0..COUNT).filter(is_wrong).count()
        });
        for number in 0..COUNT {
            groups[0].send(&message(number, length(number))).unwrap();
            if number.is_multiple_of(3) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        assert_eq!(receiving.join().unwrap(), 0);
    });
}

/// A call for a part often ends in the middle of a packet, which goes on in its slot, and the next
/// call has packets in its buffer that follow it.
#[test]
#[expect(unsafe_code, reason = "parts are received into memory that is not initialized")]
fn parts_are_whole_where_slots_and_buffers_take_turns() {
    const COUNT: usize = 60;
    const LENGTH: usize = 1_000_000;
    let nodes = nodes(2);
    let settings = GroupSettings { message_bytes: LENGTH as u64, ..by_streams(&nodes) };
    let groups = groups(&nodes, &settings);
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    std::thread::scope(|scope| {
        let member = &groups[1];
        let receiving = scope.spawn(move || {
            let is_wrong = |number: &usize| {
                let mut received = Vec::with_capacity(LENGTH);
                loop {
                    let rest = received.spare_capacity_mut();
                    let (part, bytes) = member.receive_part_uninit(rest, TIMEOUT).unwrap().unwrap();
                    // SAFETY: so many bytes are initialized.
                    unsafe { received.set_len(received.len() + bytes) };
                    if part.is_last {
                        return received != message(*number, LENGTH);
                    }
                }
            };
            (0..COUNT).filter(is_wrong).count()
        });
        for number in 0..COUNT {
            groups[0].send(&message(number, LENGTH)).unwrap();
        }
        assert_eq!(receiving.join().unwrap(), 0);
    });
}

/// A newcomer gets its place below a member whose calls had packets in their buffers.
#[test]
fn a_leaf_that_gets_a_child_serves_it_from_its_slots() {
    let nodes = nodes(3);
    let all = GroupSettings { message_bytes: 100_000, admits: true, ..by_streams(&nodes) };
    let first = GroupSettings { members: all.members[..2].to_vec(), ..all.clone() };
    let root = nodes[0].group(&first).unwrap();
    let first = nodes[1].group(&first).unwrap();
    root.wait_until_ready(TIMEOUT).unwrap();
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            let mut buffer = vec![0; 100_000];
            let mut count = 0;
            while let Some(length) = first.receive_into(&mut buffer, TIMEOUT).unwrap() {
                assert!(buffer[..length] == message(count, 100_000), "message {count}");
                count += 1;
            }
            count
        });
        let (late, all) = (&nodes[2], &all);
        let joining = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            let late = late.group(all).unwrap();
            let mut received = Vec::new();
            for _ in 0..20 {
                received.push(late.receive(TIMEOUT).unwrap().unwrap());
            }
            is_over.store(true, Ordering::Release);
            received
        });
        let mut sent = 0;
        while !is_over.load(Ordering::Acquire) {
            root.send(&message(sent, 100_000)).unwrap();
            sent += 1;
            std::thread::sleep(Duration::from_micros(300));
        }
        let received = joining.join().unwrap();
        let start = (0..sent).find(|&number| received[0] == message(number, 100_000)).unwrap();
        for (number, received) in received.iter().enumerate() {
            assert!(*received == message(start + number, 100_000), "message {number}");
        }
        root.close(TIMEOUT).unwrap();
        assert_eq!(receiving.join().unwrap(), sent);
    });
}

/// A member with children receives into the buffers of its calls, and forwards from there. What a
/// child lacks after its stream has ended comes from the root, unless all members retain packets.
#[test]
fn what_a_relay_does_not_retain_comes_from_the_root() {
    // So long that packets are on their way to the child most of the time.
    const LENGTH: usize = 4_000_000;
    let pattern = message(0, LENGTH);
    let numbered = |number: usize| [&number.to_be_bytes()[..], &pattern[8..]].concat();
    for retention in [Retention::Root, Retention::All] {
        let nodes = nodes(4);
        let settings = GroupSettings { message_bytes: LENGTH as u64, retention, ..chain(&nodes) };
        let groups = groups(&nodes, &settings);
        groups[0].wait_until_ready(TIMEOUT).unwrap();
        let is_over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let numbered = &numbered;
            for group in &groups[1..] {
                scope.spawn(move || {
                    let mut buffer = vec![0; LENGTH];
                    let mut number = 0;
                    while let Some(received) = group.receive_into(&mut buffer, TIMEOUT).unwrap() {
                        assert!(buffer[..received] == numbered(number), "message {number}");
                        number += 1;
                    }
                });
            }
            let nodes = &nodes;
            let breaking = scope.spawn(move || {
                // Until the next break the relay has caught up, and its child waits for it.
                while !is_over.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(60));
                    let below = nodes[1].address();
                    for end in stream_ends(nodes) {
                        // What is in the queues of both ends is lost.
                        if end.here == below || end.peer == below {
                            connect_unspec(&end.socket).unwrap();
                        }
                    }
                }
            });
            let started = Instant::now();
            let mut sent = 0;
            while sent < 50 || retention == Retention::Root && groups[0].child_count() == 1 {
                assert!(Some(started.elapsed()) < TIMEOUT, "the relay retains all packets");
                groups[0].send(&numbered(sent)).unwrap();
                sent += 1;
            }
            is_over.store(true, Ordering::Release);
            breaking.join().unwrap();
            assert_eq!(groups[0].close(TIMEOUT).unwrap(), []);
        });
        let children = if retention == Retention::Root { 2 } else { 1 };
        assert_eq!(groups[0].child_count(), children, "{retention}");
    }
}

/// The root sends from the buffer of the call, and copies what members lack when the call ends.
#[test]
fn a_buffer_may_be_used_again_after_send() {
    let nodes = nodes(3);
    // Sockets take less than the slots hold.
    let settings = GroupSettings { message_bytes: 4_000_000, slots: Some(1_024), ..by_streams(&nodes) };
    let groups = groups(&nodes, &settings);
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    let mut sent = vec![0; 4_000_000];
    for number in 0..3 {
        sent.copy_from_slice(&message(number, 4_000_000));
        groups[0].send(&sent).unwrap();
        sent.fill(0);
    }
    for member in &groups[1..] {
        for number in 0..3 {
            assert!(member.receive(TIMEOUT).unwrap().unwrap() == message(number, 4_000_000));
        }
    }
}

/// A root waits for members that are in time, and copies what late ones lack. Two calls send at
/// once, from their own buffers.
#[test]
fn long_messages_of_two_groups_are_sent_side_by_side() {
    const LENGTH: usize = 700_000;
    let nodes = nodes(3);
    let settings = GroupSettings { message_bytes: LENGTH as u64, ..by_streams(&nodes) };
    let both =
        [1, 2].map(|group| groups(&nodes, &GroupSettings { group: GroupId(group), ..settings.clone() }));
    std::thread::scope(|scope| {
        for (of, groups) in both.into_iter().enumerate() {
            let mut groups = groups.into_iter();
            let root = groups.next().unwrap();
            for group in groups {
                scope.spawn(move || {
                    for number in 0..60 {
                        if number % 20 == 7 {
                            std::thread::sleep(Duration::from_millis(20));
                        }
                        let received = group.receive(TIMEOUT).unwrap();
                        assert!(received == Some(message(2 * number + of, LENGTH)), "message {number}");
                    }
                    assert_eq!(group.receive(TIMEOUT).unwrap(), None);
                });
            }
            scope.spawn(move || {
                let mut sent = vec![0; LENGTH];
                for number in 0..60 {
                    sent.copy_from_slice(&message(2 * number + of, LENGTH));
                    root.send(&sent).unwrap();
                    sent.fill(0);
                }
                assert_eq!(root.close(TIMEOUT).unwrap(), []);
            });
        }
    });
}

/// Two calls have lent the same bytes, from packets of the same number on. That of the first group
/// ends while the second one waits for its member.
#[test]
fn two_groups_send_the_same_buffer_at_once() {
    const LENGTH: usize = 4_000_000;
    let nodes = nodes(2);
    let settings = GroupSettings { message_bytes: LENGTH as u64, ..by_streams(&nodes) };
    let [fast, slow] =
        [1, 2].map(|group| groups(&nodes, &GroupSettings { group: GroupId(group), ..settings.clone() }));
    let sent = message(3, LENGTH);
    for groups in [&fast, &slow] {
        groups[0].wait_until_ready(TIMEOUT).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| slow[0].send(&sent).unwrap());
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            fast[0].send(&sent).unwrap();
        });
        assert!(fast[1].receive(TIMEOUT).unwrap().unwrap() == sent, "the fast group");
        std::thread::sleep(Duration::from_millis(100));
        let received = slow[1].receive(TIMEOUT).unwrap().unwrap();
        let wrong = received.iter().zip(&sent).filter(|(one, other)| one != other).count();
        assert_eq!(wrong, 0, "wrong bytes of the slow group");
    });
}

#[test]
fn a_message_longer_than_the_buffer_that_waits_for_it_can_still_be_received() {
    let nodes = nodes(2);
    let settings = GroupSettings { message_bytes: 100_000, ..by_streams(&nodes) };
    let groups = groups(&nodes, &settings);
    groups[0].wait_until_ready(TIMEOUT).unwrap();
    for number in 0..10 {
        std::thread::scope(|scope| {
            let member = &groups[1];
            scope.spawn(move || {
                let mut short = vec![0; 70_000];
                let error = member.receive_into(&mut short, TIMEOUT).unwrap_err();
                assert!(matches!(error, NodeError::TooLong { message_bytes: 100_000, .. }), "{error}");
                let mut long = vec![0; 100_000];
                assert_eq!(member.receive_into(&mut long, TIMEOUT).unwrap(), Some(100_000));
                assert!(long == message(number, 100_000));
            });
            std::thread::sleep(Duration::from_millis(5));
            groups[0].send(&message(number, 100_000)).unwrap();
        });
    }
}

/// The root ends in the middle of a message: the call of a member ends too, and the node does not
/// write into its buffer after that.
#[test]
fn a_call_that_fails_has_its_buffer_back() {
    for cut in [10_000, 16_384, 100_000, 140_000] {
        let nodes = nodes(2);
        let settings = GroupSettings { message_bytes: 200_000, ..by_streams(&nodes) };
        let mut groups = groups(&nodes, &settings);
        groups[0].wait_until_ready(TIMEOUT).unwrap();
        let (member, root) = (groups.pop().unwrap(), groups.pop().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut buffer = vec![0; 200_000];
                let error = member.receive_into(&mut buffer, TIMEOUT).unwrap_err();
                assert!(matches!(error, NodeError::Ended(_)), "{error}");
                buffer.fill(7);
                std::thread::sleep(Duration::from_millis(20));
                assert!(buffer.iter().all(|&byte| byte == 7));
            });
            let sent = message(1, 200_000);
            let mut rest = &sent[..cut];
            std::thread::sleep(Duration::from_millis(5));
            loop {
                let part = root.send_part(rest, 200_000, TIMEOUT).unwrap();
                if part.bytes == 0 {
                    break;
                }
                rest = &rest[part.bytes..];
            }
            std::thread::sleep(Duration::from_millis(5));
            root.abort();
        });
    }
}
