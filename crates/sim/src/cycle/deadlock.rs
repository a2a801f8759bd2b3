//! Deadlock detection.
//!
//! The attainable progress of each packet, in flits, is computed as a least fixed point from the
//! current state upwards: a flit counts as sent only if other progress makes it possible. Packets
//! queued behind a packet that leaves its buffer are assumed to leave as well.

use treecast_fabric::Channel;
use treecast_terms::Cycles;

use super::PacketId;
use super::network::{Buffer, Head, Network, Sender};
use crate::deadlock::{Deadlock, Stuck, Wait};
use crate::parameters::Replication;

/// The attainable progress of the packet at the head of a buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Progress {
    /// The number of its flits that reach the buffer.
    comes: u64,
    /// The number of flits that each copy sends; `None` if it never gets an output.
    sends: Vec<Option<u64>>,
}

impl Progress {
    /// The progress so far.
    fn so_far(head: &Head) -> Self {
        let sends = head.copies.iter().map(|copy| copy.output.map(|_| copy.sent)).collect();
        Self { comes: head.left, sends }
    }

    /// The number of its flits that leave the buffer. A packet that is not yet routed is assumed to
    /// proceed.
    fn leaves(&self, head: &Head) -> u64 {
        if head.copies.is_empty() {
            return self.comes;
        }
        self.sends.iter().min().copied().flatten().map_or(0, |sent_by_all| head.stripped + sent_by_all)
    }
}

impl Network<'_> {
    /// The deadlock, if packets are stuck.
    pub fn deadlock(&self, cycle: Cycles) -> Option<Deadlock> {
        let attainable = self.attainable();
        let is_stuck =
            |&buffer: &usize| self.buffers[buffer].head.is_some() && !self.is_gone(&attainable, buffer);
        let stuck = (0..self.buffers.len()).filter(is_stuck).map(|buffer| self.stuck(&attainable, buffer));
        Deadlock::among(cycle, stuck.collect())
    }

    fn attainable(&self) -> Vec<Progress> {
        let so_far = |buffer: &Buffer| buffer.head.as_ref().map(Progress::so_far);
        let mut attainable: Vec<Progress> =
            self.buffers.iter().map(|buffer| so_far(buffer).unwrap_or_default()).collect();
        loop {
            let mut has_changed = false;
            for (buffer, head) in self.buffers.iter().map(|buffer| buffer.head.as_ref()).enumerate() {
                let Some(head) = head else { continue };
                let progress = self.progress(&attainable, buffer, head);
                has_changed |= progress != attainable[buffer];
                attainable[buffer] = progress;
            }
            if !has_changed {
                return attainable;
            }
        }
    }

    /// The attainable progress of a packet, given that of the others.
    fn progress(&self, attainable: &[Progress], buffer: usize, head: &Head) -> Progress {
        let known = &attainable[buffer];
        let room = known.leaves(head) + self.setting.parameters.buffer_flits.0;
        let comes = known.comes.max(self.supply(attainable, buffer, head).min(room));
        let mut sends: Vec<Option<u64>> =
            (0..head.copies.len()).map(|copy| self.reach(attainable, comes, head, copy)).collect();
        if self.setting.parameters.replication == Replication::Synchronous {
            let together = sends.iter().min().copied().flatten();
            sends = known.sends.iter().map(|sent| together.or(*sent)).collect();
        }
        Progress {
            comes,
            sends: sends.into_iter().zip(&known.sends).map(|(new, old)| new.max(*old)).collect(),
        }
    }

    /// Whether a whole packet leaves its buffer.
    fn is_gone(&self, attainable: &[Progress], buffer: usize) -> bool {
        let head = self.head(buffer);
        attainable[buffer].leaves(head) == head.packet.length
    }

    /// The number of flits of a packet that are sent to its buffer.
    fn supply(&self, attainable: &[Progress], buffer: usize, head: &Head) -> u64 {
        match self.fed_by(buffer, head) {
            Some((behind, copy)) => attainable[behind].sends[copy].unwrap_or(0),
            None => head.packet.length,
        }
    }

    /// The copy at the previous switch that still sends flits of the packet at the head of a
    /// buffer.
    fn fed_by(&self, buffer: usize, head: &Head) -> Option<(usize, usize)> {
        let Some(Sender::Copy { buffer: behind, copy }) = self.senders[buffer] else { return None };
        let sent = self.head(behind).copies[copy].sent;
        // The sender's copy is of this packet if all flits that it has sent have arrived here or
        // are in transit.
        let come = head.left + self.buffers[buffer].flits.len() as u64 + self.in_transit_on(buffer);
        (sent == come).then_some((behind, copy))
    }

    /// The number of flits that a copy can send, of those that arrive; `None` if it never gets an
    /// output.
    fn reach(&self, attainable: &[Progress], comes: u64, head: &Head, copy: usize) -> Option<u64> {
        let present = comes.saturating_sub(head.stripped);
        self.bound(attainable, head, copy).map(|bound| bound.min(present))
    }

    /// The number of flits of a copy that find room at the end of its channel; `None` if it never
    /// gets an output.
    fn bound(&self, attainable: &[Progress], head: &Head, copy: usize) -> Option<u64> {
        let copy = &head.copies[copy];
        if let Some((channel, _)) = copy.output {
            // With virtual cut-through the room is reserved.
            let is_sure = !self.is_wormhole();
            let length = head.length_onward();
            return Some(if is_sure {
                length
            } else {
                self.accepted(attainable, length, copy.sent, channel)
            });
        }
        let outputs = copy.branch.outputs.iter().copied();
        let possible = outputs.filter(|&channel| self.comes_free(attainable, channel));
        let bounds = possible.map(|channel| self.accepted(attainable, head.length_onward(), 0, channel));
        // With virtual cut-through an output is granted only if there is room for the whole packet.
        bounds.filter(|&bound| self.is_wormhole() || bound == head.length_onward()).max()
    }

    /// The number of flits of a copy that find room at the end of a channel, if the copy holds the
    /// channel.
    fn accepted(&self, attainable: &[Progress], length: u64, sent: u64, channel: Channel) -> u64 {
        let next = self.index(channel);
        let Some(front) = &self.buffers[next].head else { return length };
        let leaves = attainable[next].leaves(front);
        let accepted = match self.fed_by(next, front) {
            Some(_) if sent > 0 => leaves + self.setting.parameters.buffer_flits.0,
            _ if leaves == front.packet.length => length,
            _ => sent.saturating_add(self.room(channel)) + (leaves - front.left),
        };
        accepted.min(length)
    }

    /// Whether a channel is free, or becomes free.
    fn comes_free(&self, attainable: &[Progress], channel: Channel) -> bool {
        self.holders(channel).all(|sender| self.finishes(attainable, sender))
    }

    /// The senders that prevent the grant of a channel.
    fn holders(&self, channel: Channel) -> impl Iterator<Item = Sender> {
        let on_channel = self.senders[self.index(channel)].filter(|_| self.is_wormhole());
        on_channel.into_iter().chain(self.senders_on(channel.link).filter(|_| !self.is_wormhole()))
    }

    /// Whether a sender sends its tail flit.
    fn finishes(&self, attainable: &[Progress], sender: Sender) -> bool {
        let Sender::Copy { buffer, copy } = sender else { return true };
        attainable[buffer].sends[copy] == Some(self.head(buffer).length_onward())
    }

    /// A stuck packet, and what blocks it.
    fn stuck(&self, attainable: &[Progress], buffer: usize) -> Stuck {
        let (head, comes) = (self.head(buffer), attainable[buffer].comes);
        let at = self.channel(buffer);
        let waits_for = |wants: Channel, behind: usize| {
            let PacketId { multicast, worm, packet } = head.packet.id;
            let shown = Some(Wait { multicast, worm, packet, at, wants });
            Stuck { at, behind: self.channel(behind), shown }
        };
        let waits_for_itself = |other: usize| Stuck { at, behind: self.channel(other), shown: None };

        let copies = 0..head.copies.len();
        let least = copies.min_by_key(|&copy| self.bound(attainable, head, copy));
        let present = comes.saturating_sub(head.stripped).min(head.length_onward() - 1);
        let least =
            least.filter(|&copy| self.bound(attainable, head, copy).is_none_or(|bound| bound <= present));
        let Some(copy) = least else {
            // All flits that arrive are forwarded, so the rest does not arrive.
            let (source, _) =
                self.fed_by(buffer, head).expect("a packet that no switch sends has arrived completely");
            return waits_for_itself(source);
        };
        let copy = &head.copies[copy];
        let Some((wants, _)) = copy.output else {
            let wants = copy.branch.outputs[0];
            let holder = self.holders(wants).find(|&holder| !self.finishes(attainable, holder));
            return match holder {
                Some(Sender::Copy { buffer: holder, .. }) => waits_for(wants, holder),
                _ => waits_for(wants, self.index(wants)),
            };
        };
        let next = self.index(wants);
        if copy.sent > 0 && self.fed_by(next, self.head(next)).is_some() {
            waits_for_itself(next)
        } else {
            waits_for(wants, next)
        }
    }
}
