//! What nodes send is carried by the network of the trial, and checked.

use super::*;

impl Trial {
    /// Records the receive window of an acknowledgment, if it is valid.
    pub(super) fn record_window(&mut self, to: usize, bytes: &[u8]) {
        let Some(SessionId([number, ..])) = self.nodes[to].session(GROUP) else { return };
        let Ok(packet) = View::new(bytes).and_then(|view| view.check(&self.session_keys(number))) else {
            return;
        };
        let (Body::Acknowledgment(acknowledgment) | Body::Nak(acknowledgment, _)) = packet.header.body else {
            return;
        };
        let Some((_, next)) = self.nodes[to].readable(GROUP) else { return };
        let said = packet.header.sequence;
        let slots = self.slots[to];
        // By multicast a child may be ahead of its parent.
        let is_valid = said.distance_from(next) <= slots as i32
            && next.distance_from(said) <= 2 * slots as i32
            && acknowledgment.receive_window <= slots;
        if is_valid {
            let end = said + acknowledgment.receive_window;
            self.ends[to] = Some(self.ends[to].map_or(end, |known| known.max(end)));
        }
    }

    /// Carries out all outputs of a node; whether the packet that it has handled belongs to no
    /// group.
    pub(super) fn drain(&mut self, node: usize) -> bool {
        let mut is_stray = false;
        for _ in 0..TRANSMITS_MAX {
            match self.nodes[node].poll(self.now) {
                Output::Store(Store { group, slot, .. }) => {
                    assert_eq!(group, GROUP);
                    assert!(slot < self.slots[node], "a payload is stored beyond the slots");
                }
                Output::Event(Event::Placed { slots, .. }) => {
                    // In a new place the reader starts again.
                    self.slots[node] = slots;
                    self.read[node] = None;
                }
                Output::Stray(_) => is_stray = true,
                Output::Event(_) => {}
                Output::Reclaim(group) => {
                    assert!(self.handed_off[node].is_some(), "{group} is not handed off");
                    self.reclaim(node, 0);
                }
                Output::Transmit(transmit) => {
                    let mut bytes = transmit.header.to_vec();
                    match transmit.payload {
                        TransmitPayload::Slot { slot, length, .. } => {
                            assert_eq!((transmit.group, slot < self.slots[node]), (GROUP, true));
                            let payload = self.check_data(node, &transmit.header);
                            assert_eq!(length as usize, payload.len());
                            bytes.extend(payload);
                        }
                        TransmitPayload::Bytes(payload) => bytes.extend(payload),
                    }
                    let to = number_of(transmit.to).unwrap_or(9);
                    if let Carrier::Stream(_) = transmit.carrier {
                        // It is lost where the child has opened a stream to another node meanwhile.
                        let stream = self.streams.get_mut(to).and_then(Option::as_mut);
                        if let Some(stream) = stream.filter(|stream| stream.parent == node) {
                            stream.packets.push_back(bytes);
                        }
                        continue;
                    }
                    let receivers = if transmit.to.ip().is_multicast() { 0..NODES } else { to..to + 1 };
                    for to in receivers.filter(|to| *to != node) {
                        if self.in_flight.len() < 1_000 {
                            self.in_flight.push_back((node, to, bytes.clone()));
                        }
                    }
                }
                Output::Timeout(timeout) => {
                    assert!(
                        timeout.is_none_or(|at| at > self.now),
                        "a node returns a timeout that has passed"
                    );
                    return is_stray;
                }
            }
        }
        panic!("a node never stops sending");
    }

    /// Checks that a packet that is sent is in its slot, and within a receive window.
    pub(super) fn check_data(&self, node: usize, header: &[u8]) -> Vec<u8> {
        let packet = Sequence(u32::from_be_bytes(header[24..28].try_into().expect("four bytes")));
        let piece = self.nodes[node].piece(GROUP, packet).expect("a packet that is sent is in its slot");
        let end = self.ends[node].expect("a child has announced its receive window");
        assert!(
            packet.is_before(end),
            "packet {packet} is sent beyond the receive window, which ends before {end}"
        );
        payload_of(piece.message, piece.length)
    }

    /// The invariants after every step.
    pub(super) fn check(&self) {
        for (node, slots) in self.nodes.iter().zip(self.slots) {
            let Some((from, end)) = node.readable(GROUP) else { continue };
            let stable = node.stable(GROUP).expect("a node with packets has a place");
            assert!((0..=slots as i32).contains(&end.distance_from(from)), "{from} to {end} is readable");
            assert!(stable.distance_from(end) <= 1, "{stable} is stable, but {end} is not accepted");
            assert!(from == end || node.piece(GROUP, from).is_some());
            assert!(node.piece(GROUP, end + 1).is_none());
        }
    }
}
