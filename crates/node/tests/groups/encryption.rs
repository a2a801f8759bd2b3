//! What a root encrypts, members get as it was sent, and nobody else.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, eth, recv, socket_with, sockopt};
use treecast_node::{
    Capacity, GroupId, GroupSettings, Node, NodeError, Offload, Operation, Part, Scheme, Sent, Transport,
    TreeScheme,
};

use crate::common::{TIMEOUT, check_all, groups, message, settings, skip};
use crate::nodes;

fn encrypted(nodes: &[Node]) -> GroupSettings {
    GroupSettings { is_encrypted: true, ..settings(nodes) }
}

#[test]
fn members_receive_encrypted_messages_with_each_transport_and_offload() {
    let lengths = [0, 1, 15, 16, 64, 1_391, 1_392, 1_393, 1_408, 16_384, 5, 300_000, 0, 77];
    let chain = Some(Scheme::tree(TreeScheme::Serial));
    for (offload, transport) in [
        (Offload::Nic, Transport::Streams),
        (Offload::Nic, Transport::Packets),
        (Offload::Assisted, Transport::Packets),
        (Offload::Host, Transport::Packets),
        (Offload::Switch, Transport::Packets),
    ] {
        let nodes = nodes(4);
        let (offload, transport) = (Some(offload), Some(transport));
        let settings = GroupSettings { offload, transport, scheme: chain, ..encrypted(&nodes) };
        check_all(groups(&nodes, &settings), 0, &lengths);
    }
}

#[test]
fn members_learn_from_the_root_that_it_encrypts() {
    let nodes = nodes(3);
    let mut groups = vec![nodes[0].group(&encrypted(&nodes)).unwrap()];
    groups.extend(nodes[1..].iter().map(|node| node.group(&settings(&nodes)).unwrap()));
    check_all(groups, 0, &[100, 100_000]);
}

#[test]
fn parts_of_encrypted_messages_are_whole_packets() {
    let nodes = nodes(2);
    let transport = Some(Transport::Packets);
    let plain = GroupSettings { group: GroupId(9), transport, ..settings(&nodes) };
    let plain = groups(&nodes, &plain);
    plain[1].wait_until_ready(TIMEOUT).unwrap();
    let packet_bytes = plain[0].packet_bytes().unwrap() - 16;
    drop(plain);
    let groups = groups(&nodes, &GroupSettings { transport, ..encrypted(&nodes) });
    let [root, member] = &groups[..] else { unreachable!() };
    let sent = message(1, 3 * packet_bytes + 5);
    let length = sent.len() as u64;
    let part = root.send_part(&sent[..=packet_bytes], length, TIMEOUT).unwrap();
    assert_eq!(part, Sent { bytes: packet_bytes, is_last: false });
    let part = root.send_part(&sent[packet_bytes..], length, TIMEOUT).unwrap();
    assert_eq!(part, Sent { bytes: 2 * packet_bytes + 5, is_last: true });
    root.flush(TIMEOUT).unwrap();
    let capacity = |part_bytes| Capacity { message_bytes: length, part_bytes: part_bytes as u64 };
    let mut received = Vec::new();
    let mut receive = |capacity| {
        member.receive_part(TIMEOUT, capacity, |message_bytes, bytes| {
            assert_eq!(message_bytes, length);
            received.extend_from_slice(bytes);
        })
    };
    let too_long = receive(capacity(packet_bytes - 1)).unwrap_err();
    assert!(
        matches!(too_long, NodeError::TooLong { message_bytes, .. } if message_bytes == packet_bytes as u64)
    );
    assert!(
        matches!(receive(Capacity::of(length - 1)), Err(NodeError::TooLong { message_bytes, .. }) if message_bytes == length)
    );
    let part = receive(capacity(2 * packet_bytes)).unwrap();
    assert_eq!(part, Some(Part { message_bytes: length, is_last: false }));
    assert_eq!(
        receive(capacity(2 * packet_bytes)).unwrap(),
        Some(Part { message_bytes: length, is_last: true })
    );
    assert!(received == sent);
    assert_eq!(member.packet_bytes(), Some(packet_bytes));
}

#[test]
fn encryption_needs_a_token_and_covers_no_values_of_an_all_reduce() {
    let nodes = nodes(2);
    let without = GroupSettings { token: String::new(), ..encrypted(&nodes) };
    assert!(matches!(nodes[0].group(&without), Err(NodeError::NoEncryptionKey)));
    let groups = groups(&nodes, &encrypted(&nodes));
    std::thread::scope(|scope| {
        for group in &groups {
            scope.spawn(move || {
                let refused = group.all_reduce(&mut [1_u32], Operation::Sum, TIMEOUT).unwrap_err();
                assert!(matches!(refused, NodeError::UnencryptedValues), "{refused}");
                group.barrier(TIMEOUT).unwrap();
            });
        }
    });
}

/// A socket that gets each frame of the loopback interface, in both directions; none without the
/// right to have one.
fn sniffer() -> Option<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let sniffer = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(eth::ALL)).ok()?;
    // Other tests send much meanwhile.
    sockopt::set_socket_recv_buffer_size_force(&sniffer, 64 << 20).ok()?;
    Some(sniffer)
}

/// Whether a frame that has come has these bytes. Waits for it, for this time at most.
fn sees(sniffer: &OwnedFd, wanted: &[u8], span: Duration) -> bool {
    let until = Instant::now() + span;
    let mut frame = vec![0; 1 << 17];
    loop {
        match recv(sniffer, &mut frame[..], RecvFlags::empty()) {
            Ok((length, _)) if frame[..length].windows(wanted.len()).any(|bytes| bytes == wanted) => {
                return true;
            }
            Ok(_) => {}
            Err(_) if Instant::now() >= until => return false,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[test]
fn what_is_encrypted_cannot_be_read_on_the_network() {
    for transport in [Transport::Streams, Transport::Packets] {
        for is_encrypted in [false, true] {
            let nodes = nodes(2);
            let transport = Some(transport);
            let groups = groups(&nodes, &GroupSettings { transport, is_encrypted, ..settings(&nodes) });
            groups[0].wait_until_ready(TIMEOUT).unwrap();
            let secret = format!("what only {:?} and {:?} know", nodes[0].address(), nodes[1].address());
            let Some(sniffer) = sniffer() else { return skip(&"capturing frames needs root") };
            groups[0].send(secret.as_bytes()).unwrap();
            assert_eq!(groups[1].receive(TIMEOUT).unwrap().as_deref(), Some(secret.as_bytes()));
            let span = if is_encrypted { Duration::from_millis(100) } else { TIMEOUT.unwrap() };
            assert_eq!(sees(&sniffer, secret.as_bytes(), span), !is_encrypted);
        }
    }
}
