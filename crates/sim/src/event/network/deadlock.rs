//! Deadlock detection.
//!
//! A copy can still be sent if one of its candidate outputs can serve it: if only packets that will
//! leave hold the link, and the buffer at its end has room, or gets room from departing flits or
//! from a head packet that will leave. A packet will leave if all its copies can be sent. All other
//! packets are stuck: each waits for a stuck packet, so none of them can ever proceed.

use fixedbitset::FixedBitSet;
use treecast_fabric::{Channel, LinkId};
use treecast_terms::{Cycles, Flits};

use super::{Copy, HELD, InFlight, Input, InputId, Network, Packet};
use crate::deadlock::{Deadlock, Stuck, Wait};

impl Network<'_> {
    /// The deadlock, if packets are stuck.
    pub fn deadlock(&self, in_flight: &InFlight, cycle: Cycles) -> Option<Deadlock> {
        let stuck = self.stuck();
        let show = |input: usize| {
            let state = &self.inputs[input];
            let mut obstacles = state.copies.iter().filter_map(|copy| self.obstacle(&stuck, state, copy));
            let (wants, behind) = obstacles.next().expect("a stuck packet waits for a stuck packet");
            let Packet { slot, worm, packet, .. } = state.queue[0];
            let (multicast, at) = (in_flight[slot].parameters.number, self.channel_of(InputId(input as u32)));
            let shown = Some(Wait { multicast, worm, packet, at, wants });
            Stuck { at, behind: self.channel_of(behind), shown }
        };
        Deadlock::among(cycle, stuck.ones().map(show).collect())
    }

    /// The inputs whose head packet can never leave: all waiting inputs, less those whose packet
    /// can leave, repeated to a fixed point.
    fn stuck(&self) -> FixedBitSet {
        let waits = |&input: &usize| self.inputs[input].waiting > 0;
        let mut stuck: FixedBitSet = (0..self.inputs.len()).filter(waits).collect();
        loop {
            let will_leave = |&input: &usize| {
                let state = &self.inputs[input];
                state.copies.iter().all(|copy| self.obstacle(&stuck, state, copy).is_none())
            };
            let leaving: Vec<usize> = stuck.ones().filter(will_leave).collect();
            if leaving.is_empty() {
                return stuck;
            }
            for input in leaving {
                stuck.remove(input);
            }
        }
    }

    /// The permanent obstacle of a copy: the first of its outputs, and the stuck packet that holds
    /// it or blocks its buffer. `None` if one of its outputs may become free, or if the copy has an
    /// output.
    fn obstacle(&self, stuck: &FixedBitSet, input: &Input, copy: &Copy) -> Option<(Channel, InputId)> {
        if copy.output.is_some() {
            return None;
        }
        let outputs = &copy.branch.outputs;
        let blocker = |&output: &Channel| self.blocker(stuck, output, input.length_onward);
        let first = blocker(&outputs[0])?;
        outputs.iter().all(|output| blocker(output).is_some()).then_some((outputs[0], first))
    }

    /// The stuck packet that prevents an output from ever being granted.
    fn blocker(&self, stuck: &FixedBitSet, output: Channel, length: Flits) -> Option<InputId> {
        let holder = self.holder(output.link);
        if let Some((holder, _)) = holder.filter(|(holder, _)| stuck.contains(holder.index())) {
            return Some(holder);
        }
        // A holder that will be sent takes room, if it goes to this buffer.
        let taken = holder.filter(|&(_, held)| held == output);
        let taken = taken.map_or(Flits::ZERO, |(holder, _)| self.inputs[holder.index()].length_onward);
        if self.room_at(output, taken + length).is_some() {
            return None;
        }
        let behind = self.input_at(output);
        stuck.contains(behind.index()).then_some(behind)
    }

    /// The packet that holds a link, and on which channel (synchronous replication).
    fn holder(&self, link: LinkId) -> Option<(InputId, Channel)> {
        if self.outputs[link.index()].free_at != HELD {
            return None;
        }
        let switch = self.topology.link(link).from.switch()?;
        let mut inputs = self.topology.links_into(switch).iter().flat_map(|&link| self.inputs_of(link));
        inputs.find_map(|input| {
            let outputs = self.inputs[input.index()].copies.iter().filter_map(|copy| copy.output);
            outputs.into_iter().find(|output| output.link == link).map(|output| (input, output))
        })
    }
}
