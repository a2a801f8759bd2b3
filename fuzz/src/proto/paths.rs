//! Streams between the nodes, and hand-offs to a fast path.

use super::*;

impl Trial {
    /// A node opens its stream to its parent, with its first packet changed at a place, from a
    /// host.
    pub(super) fn attach(&mut self, node: usize, from: usize, place: u8, change: u8) {
        let Some(parent) = self.nodes[node].stream_parent(GROUP).and_then(number_of) else { return };
        let challenge = Challenge([self.lives[node]; Challenge::BYTES]);
        let Some(mut bytes) = self.nodes[node].attach_packet(GROUP, challenge) else { return };
        let place = usize::from(place) % bytes.len();
        bytes[place] ^= change;
        if parent >= NODES {
            return;
        }
        let input = Input::Attach { stream: 1, from: address(from).ip(), challenge, bytes: &bytes };
        self.nodes[parent].handle(self.now, input).expect("no first packet is refused");
        let child = loop {
            match self.nodes[parent].poll_local() {
                Some(Output::Event(Event::Attached { stream: 1, child })) => break child,
                Some(Output::Stray(_)) => {}
                other => panic!("no answer to a stream, but {other:?}"),
            }
        };
        if child.is_some() {
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
        let (header, payload) = bytes.split_first_chunk().expect("a packet has a header");
        let input = Input::Record { from: address(parent), header, payload };
        self.nodes[node].handle(self.now, input).expect("no packet is refused");
        if self.drain(node) {
            self.streams[node] = None;
        }
    }

    /// A node hands its group off, if nothing in it needs the slow path.
    pub(super) fn hand_off(&mut self, node: usize) {
        let mut state = HandOff::new();
        if self.nodes[node].hand_off_state(GROUP, &mut state) {
            let handled = self.nodes[node].handle(self.now, Input::HandedOff { group: GROUP });
            assert_eq!(handled, Ok(()), "{state:?}");
            self.drain(node);
            self.handed_off[node] = Some(state);
        }
    }

    /// A node reclaims its group, with numbers that are too low by as much as `lost`.
    pub(super) fn reclaim(&mut self, node: usize, lost: u8) {
        let Some(mut state) = self.handed_off[node].take() else { return };
        state.flow.next = Sequence(state.flow.next.0.wrapping_sub(lost.into()));
        assert_eq!(self.nodes[node].new_packets(GROUP, &state).count(), 0);
        let input = Input::Reclaimed { group: GROUP, state: &state, packets: &[] };
        let expected = if lost == 0 { Ok(()) } else { Err(Refused::InvalidState(GROUP)) };
        assert_eq!(self.nodes[node].handle(self.now, input), expected);
        self.drain(node);
    }
}
