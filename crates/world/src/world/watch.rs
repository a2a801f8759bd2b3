//! The lines that a watched world reports.

use treecast_proto::Nanoseconds;
use treecast_wire::{Body, Control, ControlHeader, Handshake, Header, View};

use super::EventKind;
use crate::attacker::Packet;
use crate::scenario::Scenario;

/// Reports an event that is about to happen, if it is one of the network or a fault.
pub(super) fn watch_step(
    now: Nanoseconds,
    kind: &EventKind,
    scenario: &Scenario,
    watch: &mut dyn FnMut(String),
) {
    match kind {
        EventKind::Arrive(Packet { to, from, bytes, .. }) => {
            let meaning = View::new(bytes).and_then(View::read).map_or_else(
                |malformed| malformed.to_string(),
                |packet| {
                    let Header { group, epoch, sender, sequence, body, .. } = packet.header;
                    let control = match body {
                        Body::Control(ControlHeader { operation, .. }) => {
                            Control::read(operation, packet.payload)
                                .ok()
                                .map(|control| format!("{control:?}"))
                        }
                        Body::Handshake(ControlHeader { operation, .. }) => {
                            Handshake::read(operation, packet.payload).ok().map(|step| format!("{step:?}"))
                        }
                        _ => None,
                    };
                    let body = control.unwrap_or_else(|| format!("{body:?}"));
                    format!("group {group} epoch {epoch} member {sender} packet {sequence} {body}")
                },
            );
            watch(format!("{:>14}  {from:>2} -> {to:>2}  {meaning}", now.0));
        }
        EventKind::Fault(number) => {
            watch(format!("{:>14}            {:?}", now.0, scenario.faults[*number].1));
        }
        EventKind::Stream(stream, step) => {
            watch(format!("{:>14}            stream {stream} {step:?}", now.0));
        }
        EventKind::Wake(_) | EventKind::Work { .. } | EventKind::Alarm { .. } | EventKind::Dial { .. } => {}
    }
}
