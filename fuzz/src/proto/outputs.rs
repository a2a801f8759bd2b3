//! What nodes send is carried by the network of the trial, and checked.

use treecast_world::Packet;

use super::*;

impl Trial {
    /// Records the receive window of an acknowledgment, if it is valid.
    pub(super) fn record_window(&mut self, to: usize, bytes: &[u8]) {
        let Some(SessionId([number, ..])) = self.protocol(to).session(GROUP) else { return };
        let Ok(packet) = View::new(bytes).and_then(|view| view.check(&self.session_keys(number))) else {
            return;
        };
        let (Body::Acknowledgment(acknowledgment) | Body::Nak(acknowledgment, _)) = packet.header.body else {
            return;
        };
        let Some((_, next)) = self.protocol(to).readable(GROUP) else { return };
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
            match self.nodes[node].poll(self.now).expect("a node uses its memory well") {
                Act::Event(Event::Placed { slots, .. }) => {
                    // In a new place the reader starts again.
                    self.slots[node] = slots;
                    self.read[node] = None;
                }
                Act::Stray(_) => is_stray = true,
                Act::Event(_) => {}
                Act::Reclaim(group) => {
                    assert!(self.handed_off[node].is_some(), "{group} is not handed off");
                    self.reclaim(node, 0);
                }
                Act::Send(packet) => self.send(node, packet),
                Act::Wait(timeout) => {
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

    /// Puts a packet on its way.
    fn send(&mut self, from: usize, Packet { group, to, stream_of, bytes }: Packet) {
        assert_eq!(group, GROUP);
        let sent = View::new(&bytes).and_then(View::read).expect("a node sends valid packets");
        if let Body::Data(data) = sent.header.body {
            self.check_data(from, sent.header.sequence, &data);
        }
        let receivers = if to.ip().is_multicast() {
            0..NODES
        } else {
            let to = number_of(to).unwrap_or(NODES);
            to..to + 1
        };
        if stream_of.is_some() {
            // It is lost where the child has opened a stream to another node meanwhile.
            let stream = self.streams.get_mut(receivers.start).and_then(Option::as_mut);
            if let Some(stream) = stream.filter(|stream| stream.parent == from) {
                stream.packets.push_back(bytes);
            }
            return;
        }
        for to in receivers.filter(|to| *to != from) {
            if self.in_flight.len() < 1_000 {
                self.in_flight.push_back((from, to, bytes.clone()));
            }
        }
    }

    /// Checks that data that is sent is in its slot, and within a receive window.
    fn check_data(&self, node: usize, packet: Sequence, data: &Data) {
        let piece = self.protocol(node).piece(GROUP, packet).expect("a packet that is sent is in its slot");
        assert_eq!((piece.message, piece.length), (data.message, data.length));
        let end = self.ends[node].expect("a child has announced its receive window");
        assert!(
            packet.is_before(end),
            "packet {packet} is sent beyond the receive window, which ends before {end}"
        );
    }

    /// The invariants after every step.
    pub(super) fn check(&self) {
        for (node, slots) in self.nodes.iter().map(Node::protocol).zip(self.slots) {
            let Some((from, end)) = node.readable(GROUP) else { continue };
            let stable = node.stable(GROUP).expect("a node with packets has a place");
            assert!((0..=slots as i32).contains(&end.distance_from(from)), "{from} to {end} is readable");
            assert!(stable.distance_from(end) <= 1, "{stable} is stable, but {end} is not accepted");
            assert!(from == end || node.piece(GROUP, from).is_some());
            assert!(node.piece(GROUP, end + 1).is_none());
        }
    }
}
