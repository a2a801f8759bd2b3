//! Messages that are sent and received in parts, or read in place.

use super::*;

#[test]
fn a_message_is_sent_and_received_in_parts() {
    let (_nodes, root, member) = pair(|settings| GroupSettings { slots: Some(16), ..settings });
    let long = message(1, 300_000);
    let mut received = Vec::new();
    let mut sent = 0;
    // No member reads yet: there is no room for the whole message.
    while let Ok(part) = root.send_part(&long[sent..], 300_000, Some(Duration::ZERO)) {
        assert!(!part.is_last);
        sent += part.bytes;
    }
    let packet_bytes = root.packet_bytes().unwrap();
    assert!(sent > 0 && sent.is_multiple_of(packet_bytes));
    let mut is_received = false;
    while !is_received {
        if sent < long.len() {
            // What the application has of the message need not be all.
            let end = long.len().min(sent + 3 * packet_bytes + 100);
            match root.send_part(&long[sent..end], 300_000, Some(Duration::ZERO)) {
                Ok(part) => {
                    assert_eq!(part.is_last, sent + part.bytes == long.len());
                    sent += part.bytes;
                }
                Err(NodeError::TimedOut) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let before = received.len();
        let take = |length, bytes: &[u8]| {
            assert_eq!(length, 300_000);
            received.extend_from_slice(bytes);
        };
        let capacity = Capacity { message_bytes: u64::MAX, part_bytes: 2 * packet_bytes as u64 };
        match member.receive_part(Some(Duration::from_millis(1)), capacity, take) {
            Ok(part) => is_received = part.unwrap().is_last,
            Err(NodeError::TimedOut) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(received.len() - before <= 2 * packet_bytes);
    }
    assert!(received == long);
    // Fewer bytes than fill a packet wait for others; more than the message lacks are refused, as
    // is less room than for a packet.
    assert_eq!(root.send_part(&[1], 2, TIMEOUT).unwrap(), Sent { bytes: 0, is_last: false });
    assert_eq!(root.send_part(&[1, 2], 2, TIMEOUT).unwrap(), Sent { bytes: 2, is_last: true });
    assert_eq!(root.send_part(&[], 0, TIMEOUT).unwrap(), Sent { bytes: 0, is_last: true });
    assert!(matches!(root.send_part(&[1, 2], 1, TIMEOUT), Err(NodeError::Refused(_))));
    let small = Capacity { message_bytes: 2, part_bytes: 1 };
    assert!(matches!(member.receive_part(TIMEOUT, small, |_, _| ()), Err(NodeError::TooLong { .. })));
    assert_eq!(member.receive(TIMEOUT).unwrap(), Some(vec![1, 2]));
    assert_eq!(member.receive(TIMEOUT).unwrap(), Some(Vec::new()));
    assert_eq!(root.close(TIMEOUT).unwrap(), []);
    assert_eq!(member.receive_part(TIMEOUT, Capacity::of(u64::MAX), |_, _| ()).unwrap(), None);
}

#[test]
fn a_partly_sent_message_is_completed_first() {
    let (_nodes, root, member) = pair(|settings| GroupSettings { slots: Some(16), ..settings });
    let long = message(1, 100_000);
    let sent = root.send_part(&long, 100_000, TIMEOUT).unwrap();
    assert!(!sent.is_last);
    // The node sends a part without a further request.
    assert!(!member.receive_part(TIMEOUT, Capacity::of(u64::MAX), |_, _| ()).unwrap().unwrap().is_last);
    let begun = "message 0 is incomplete: its first ";
    assert!(root.send(b"other").unwrap_err().to_string().starts_with(begun));
    assert!(root.close(TIMEOUT).unwrap_err().to_string().starts_with(begun));
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(member.receive(TIMEOUT).unwrap().is_some()));
        let mut rest = &long[sent.bytes..];
        while !rest.is_empty() {
            rest = &rest[root.send_part(rest, 100_000, TIMEOUT).unwrap().bytes..];
        }
    });
    assert_eq!(root.close(TIMEOUT).unwrap(), []);
    assert_eq!(root.send(b"late").unwrap_err().to_string(), "the group is closed");
}

/// Reads a message in place; returns its bytes and the number of parts.
fn read_in_place(member: &Group) -> (Vec<u8>, usize) {
    let (mut bytes, mut parts) = (Vec::new(), 0);
    loop {
        let peeked = member.peek(TIMEOUT).unwrap().expect("the group is open");
        bytes.extend_from_slice(&peeked);
        parts += 1;
        let part = peeked.part();
        peeked.consume().unwrap();
        assert!(bytes.len() as u64 <= part.message_bytes);
        if part.is_last {
            assert_eq!(bytes.len() as u64, part.message_bytes);
            return (bytes, parts);
        }
    }
}

#[test]
fn messages_are_read_in_place() {
    for (transport, is_encrypted) in [
        (Transport::Packets, false),
        (Transport::Streams, false),
        (Transport::Both, false),
        (Transport::Streams, true),
    ] {
        let (_nodes, root, member) = pair(|settings| GroupSettings {
            slots: Some(16),
            transport: Some(transport),
            is_encrypted,
            ..settings
        });
        assert!(matches!(root.peek(TIMEOUT), Err(NodeError::WrongSide { .. })));
        assert!(matches!(member.peek(Some(Duration::ZERO)), Err(NodeError::TimedOut)));
        member.consume().unwrap();
        let lengths = [0, 1, 64, 5_000, 1_400, 300_000, 0, 77, 40_000, 8_192, 2_000_000, 3];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (number, length) in lengths.into_iter().enumerate() {
                    root.send(&message(number, length)).unwrap();
                }
                assert_eq!(root.close(TIMEOUT).unwrap(), []);
            });
            for (number, length) in lengths.into_iter().enumerate() {
                let expected = message(number, length);
                // What was seen comes again unless it is consumed, and so does what follows it.
                let seen = member.peek(TIMEOUT).unwrap().expect("the group is open").to_vec();
                assert!(expected.starts_with(&seen), "{number}");
                if number % 3 == 0 {
                    assert!(member.receive(TIMEOUT).unwrap() == Some(expected), "{number}");
                    continue;
                }
                let (received, parts) = read_in_place(&member);
                assert!(received == expected, "{number}");
                if length <= 64 {
                    assert_eq!(parts, 1);
                }
            }
            assert!(member.peek(TIMEOUT).unwrap().is_none());
        });
    }
}

/// The slots have a message that waits in one piece, unless it goes past the last slot.
#[test]
fn a_message_that_waits_is_seen_whole() {
    let (_nodes, root, member) =
        pair(|settings| GroupSettings { transport: Some(Transport::Streams), ..settings });
    for number in 0..20 {
        root.send(&message(number, 100_000)).unwrap();
        root.flush(TIMEOUT).unwrap();
        let (received, parts) = read_in_place(&member);
        assert!(received == message(number, 100_000) && parts <= 2, "{parts} parts");
    }
}

#[test]
fn what_follows_a_part_that_was_read_in_place_is_received() {
    let (_nodes, root, member) = pair(|settings| GroupSettings { slots: Some(16), ..settings });
    let long = message(1, 200_000);
    std::thread::scope(|scope| {
        scope.spawn(|| root.send(&long).unwrap());
        let peeked = member.peek(TIMEOUT).unwrap().expect("the group is open");
        let seen = peeked.len();
        assert!(peeked[..] == long[..seen] && !peeked.part().is_last);
        peeked.consume().unwrap();
        assert!(member.receive(TIMEOUT).unwrap().expect("the group is open") == long[seen..]);
    });
}
