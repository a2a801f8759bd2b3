//! Packets and events as text.

use treecast_proto::{Event, Offload, Sequence};
use treecast_wire::{
    Acknowledgment, Body, Contribution, Control, ControlHeader, Data, Distribution, Handshake, Header,
    Neighbour, Readers, Role, RootLoss, View,
};

use super::names::name;

/// A datagram as text.
pub fn datagram(bytes: &[u8]) -> String {
    let packet = match View::new(bytes).and_then(View::read) {
        Ok(packet) => packet,
        Err(malformed) => return format!("malformed: {malformed}"),
    };
    let Header { group, epoch, sequence, body, .. } = packet.header;
    let meaning = match body {
        Body::Data(data) => data_of(sequence, &data),
        Body::Acknowledgment(acknowledgment) => format!("ACK: {}", state(sequence, acknowledgment)),
        Body::Nak(acknowledgment, missing) => {
            let missing: Vec<String> = missing.numbers().map(|packet| packet.to_string()).collect();
            format!("NAK: missing {}; {}", missing.join(" "), state(sequence, acknowledgment))
        }
        Body::Probe => format!("probe: next {sequence}"),
        Body::PathProbe { length } => format!("path probe of {length} bytes: next {sequence}"),
        Body::Heartbeat => "heartbeat".to_owned(),
        Body::Attach(_) => format!("stream from {sequence}"),
        Body::Control(ControlHeader { operation, .. }) => match Control::read(operation, packet.payload) {
            Ok(meaning) => control(epoch, &meaning),
            Err(malformed) => format!("malformed control message: {malformed}"),
        },
        Body::Handshake(ControlHeader { operation, .. }) => {
            match Handshake::read(operation, packet.payload) {
                Ok(step) => handshake(step),
                Err(malformed) => format!("malformed handshake: {malformed}"),
            }
        }
    };
    if group.0 == 1 { meaning } else { format!("{meaning}   [group {group}]") }
}

fn handshake(step: Handshake) -> String {
    match step {
        Handshake::Invite(session) => format!("invitation to session {}", session.0[0]),
        Handshake::Hello => "hello".to_owned(),
        Handshake::Welcome { session, .. } => format!("welcome to session {}", session.0[0]),
    }
}

fn data_of(sequence: Sequence, data: &Data) -> String {
    let Data {
        message,
        offset,
        length,
        message_length,
        ack_requested,
        retransmitted,
        close,
        distribution,
        ..
    } = *data;
    let content = if close {
        format!("close after {message} messages of {message_length} bytes")
    } else {
        let end = offset + u64::from(length);
        format!("message {message}, bytes {offset} to {end} of {message_length}")
    };
    let flags = [
        (retransmitted, ", retransmitted"),
        (distribution == Distribution::MulticastAndTree && !retransmitted, ", sent by multicast too"),
        (ack_requested, ", ack requested"),
    ];
    let flags: String = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, text)| text).collect();
    format!("data {sequence}: {content}{flags}")
}

fn state(next: Sequence, acknowledgment: Acknowledgment) -> String {
    let Acknowledgment { stable, receive_window, is_reached, is_congested, .. } = acknowledgment;
    let flags = [(is_reached, ", reached"), (is_congested, ", congested")];
    let flags: String = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, text)| text).collect();
    format!("next {next}, stable {stable}, receive window {receive_window}{flags}")
}

fn control(epoch: u32, control: &Control) -> String {
    match control {
        Control::Table(table) => {
            let all = |role| {
                let neighbours = table.neighbours.iter().filter(move |neighbour| neighbour.role == role);
                let names: Vec<String> =
                    neighbours.map(|Neighbour { address, .. }| name(*address).to_string()).collect();
                if names.is_empty() { "none".to_owned() } else { names.join(" ") }
            };
            let (member, start) = (table.member, table.start);
            let (parent, children) = (all(Role::Parent), all(Role::Child));
            format!(
                "table of epoch {epoch}: member {member}, start {start}, parent {parent}, children {children}"
            )
        }
        Control::TableAck(None) => format!("table acknowledgment of epoch {epoch}"),
        Control::TableAck(Some(Readers { awaited, lost })) => format!(
            "table acknowledgment of epoch {epoch}, processes awaited {:?}, lost {:?}",
            awaited.iter().collect::<Vec<_>>(),
            lost.iter().collect::<Vec<_>>()
        ),
        Control::Suspect(member) => format!("suspects member {member}"),
        Control::StateLost(member) => format!("member {member} has lost its state"),
        Control::Join(_) => "join".to_owned(),
        Control::Leave => "leave".to_owned(),
        Control::Evicted(why) => format!("evicted: {why:?}"),
        Control::RootLost(RootLoss::Silent) => "the root is silent".to_owned(),
        Control::RootLost(RootLoss::Restarted) => "the root has started again".to_owned(),
        Control::Contribution(Contribution { packet, .. }) => format!("contribution to packet {packet}"),
    }
}

/// An event of a node as text.
pub fn event(event: &Event) -> String {
    match event {
        Event::Placed { group, member, start, slots, offload, .. } => {
            let (offload, _) =
                Offload::NAMES.iter().find(|(_, named)| named == offload).expect("every offload has a name");
            format!(
                "is placed in group {group}: member {member}, {slots} slots, start {start}, offload {offload}"
            )
        }
        Event::Ready { group } => format!("group {group} is ready"),
        Event::Joined { group, member, start } => {
            format!("member {member} has joined group {group}, start {start}")
        }
        Event::MemberLost { group, member, reader: None, loss } => {
            format!("group {group} has lost member {member}: {loss}")
        }
        Event::MemberLost { group, member, reader: Some(reader), loss } => {
            format!("group {group} has lost process {reader} of member {member}: {loss}")
        }
        Event::Attached { stream, child: None } => format!("stream {stream} is refused"),
        Event::Attached { child: Some((group, child)), .. } => {
            format!("child {child} of group {group} has its stream")
        }
        Event::Detached { group, child } => {
            format!("the stream of child {child} of group {group} is to be closed")
        }
        Event::Stalled { group } => format!("the stream to the parent in group {group} carries nothing"),
        Event::Reduced { group, result } => {
            format!("group {group} has the result for packet {}", result.packet)
        }
        Event::Ended { group, ending } => format!("group {group} has ended: {ending}"),
    }
}
