//! Messages that are sent and received in parts.

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
