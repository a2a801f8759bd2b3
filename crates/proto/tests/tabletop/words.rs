//! Packets and events in words.

use treecast_proto::{Event, Offload, Sequence};
use treecast_wire::{Acknowledgment, Body, Control, Data, Header, Neighbour, Role, View};

/// What a datagram says.
pub fn datagram(bytes: &[u8]) -> String {
    let packet = match View::new(bytes).and_then(View::check) {
        Ok(packet) => packet,
        Err(malformed) => return format!("no packet: {malformed}"),
    };
    let Header { group, epoch, sequence, body, .. } = packet.header;
    let meaning = match body {
        Body::Data(data) => data_of(sequence, &data),
        Body::Acknowledgment(acknowledgment) => acknowledged(sequence, acknowledgment),
        Body::Nak(acknowledgment, missing) => {
            let missing: Vec<String> = missing.numbers().map(|packet| packet.to_string()).collect();
            format!("misses {}; {}", missing.join(" "), acknowledged(sequence, acknowledgment))
        }
        Body::Probe => format!("probe: {sequence} is next"),
        Body::Control { operation, .. } => match Control::read(operation, packet.payload.bytes()) {
            Ok(meaning) => control(epoch, &meaning),
            Err(malformed) => format!("no control message: {malformed}"),
        },
    };
    if group.0 == 1 { meaning } else { format!("{meaning}   [group {group}]") }
}

fn data_of(sequence: Sequence, data: &Data) -> String {
    let Data { message, offset, length, message_length, ack_requested, retransmitted, close } = *data;
    let what = if close {
        "the group is closed".to_owned()
    } else {
        let end = offset + u64::from(length);
        format!("message {message}, bytes {offset} to {end} of {message_length}")
    };
    let flags = [(retransmitted, ", retransmitted"), (ack_requested, ", ack requested")];
    let flags: String = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, text)| text).collect();
    format!("data {sequence}: {what}{flags}")
}

fn acknowledged(next: Sequence, acknowledgment: Acknowledgment) -> String {
    let Acknowledgment { stable, receive_window } = acknowledgment;
    format!("has all before {next}, its subtree before {stable}, slots for {receive_window} more")
}

fn control(epoch: u32, control: &Control) -> String {
    match control {
        Control::Table(table) => {
            let all = |role| {
                let neighbours = table.neighbours.iter().filter(move |neighbour| neighbour.role == role);
                let names: Vec<String> =
                    neighbours.map(|Neighbour { address, .. }| super::name(*address).to_string()).collect();
                if names.is_empty() { "none".to_owned() } else { names.join(" ") }
            };
            let (member, start) = (table.member, table.start);
            let (parent, children) = (all(Role::Parent), all(Role::Child));
            format!(
                "table of epoch {epoch}: member {member}, from packet {start}, parent {parent}, children {children}"
            )
        }
        Control::TableAck => format!("has taken its place of epoch {epoch}"),
        Control::Suspect(member) => format!("member {member} is silent"),
        Control::StateLost(member) => format!("member {member} has forgotten what it had"),
        Control::Join => "asks to join".to_owned(),
        Control::Leave => "asks to leave".to_owned(),
        Control::Evicted(why) => format!("evicted: {why:?}"),
    }
}

/// What has happened at a node.
pub fn event(event: &Event) -> String {
    match event {
        Event::Placed { group, member, start, slots, offload, .. } => {
            let (offload, _) =
                Offload::NAMES.iter().find(|(_, named)| named == offload).expect("each has a name");
            format!(
                "has its place in group {group}: member {member}, {slots} slots, from packet {start}, offload {offload}"
            )
        }
        Event::Ready { group } => format!("is told that group {group} is ready"),
        Event::Joined { group, member, start } => {
            format!("is told that member {member} has joined group {group} from packet {start}")
        }
        Event::MemberLost { group, member, loss } => {
            format!("is told that group {group} has lost member {member}: {loss}")
        }
        Event::Ended { group, ending } => format!("is told that group {group} has ended: {ending}"),
    }
}
