//! Streams between the nodes, and hand-offs to a fast path.

use super::*;

impl Trial {
    /// A node opens its stream to its parent, with its first packet changed at a place, from a
    /// host.
    pub(super) fn attach(&mut self, node: usize, from: usize, place: u8, change: u8) {
        let Some(parent) = self.protocol(node).stream_parent(GROUP).and_then(number_of) else { return };
        let challenge = Challenge([self.lives[node]; Challenge::BYTES]);
        let Some(mut bytes) = self.protocol(node).attach_packet(GROUP, challenge) else { return };
        let place = usize::from(place) % bytes.len();
        bytes[place] ^= change;
        if parent >= NODES {
            return;
        }
        if self.protocol(parent).group_to_reclaim_for_stream(&bytes).is_some() {
            self.reclaim(parent, 0);
        }
        let taken = self.nodes[parent].attach(self.now, address(from).ip(), challenge, &bytes);
        if taken.expect("no first packet is refused") {
            assert_eq!((from, change), (node, 0), "a stream is taken that its child has not opened");
            self.streams[node] = Some(Stream { parent, packets: VecDeque::new() });
        }
        self.drain(parent);
    }

    /// The oldest packet on the stream to a node arrives.
    pub(super) fn receive_record(&mut self, node: usize) {
        let Some(stream) = &mut self.streams[node] else { return };
        let parent = stream.parent;
        let Some(bytes) = stream.packets.pop_front() else { return };
        if self.protocol(node).group_to_reclaim_for_stream(&bytes).is_some() {
            self.reclaim(node, 0);
        }
        let received = self.nodes[node].packet_on_stream(self.now, address(parent), &bytes);
        received.expect("no packet is refused");
        if self.drain(node) {
            self.streams[node] = None;
        }
    }

    /// A node hands its group off, if nothing in it needs the slow path.
    pub(super) fn hand_off(&mut self, node: usize) {
        let state = self.nodes[node].hand_off(self.now, GROUP).expect("its state was given");
        if state.is_some() {
            self.drain(node);
            self.handed_off[node] = state;
        }
    }

    /// A node reclaims its group, with numbers that are too low by as much as `lost`.
    pub(super) fn reclaim(&mut self, node: usize, lost: u8) {
        let Some(mut state) = self.handed_off[node].take() else { return };
        state.flow.next = Sequence(state.flow.next.0.wrapping_sub(lost.into()));
        assert_eq!(self.protocol(node).new_packets(GROUP, &state).count(), 0);
        let expected = if lost == 0 { Ok(()) } else { Err(Fault::Refused(Refused::InvalidState(GROUP))) };
        assert_eq!(self.nodes[node].reclaim(self.now, &state, &[]), expected);
        self.drain(node);
    }
}
