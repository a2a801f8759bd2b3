//! Whether multicast reaches a member, and how many packets it loses on the way.

use treecast_wire::{Distribution, Sequence, Timestamp};

use super::{Multicast, SlotMulticast};
use crate::Nanoseconds;
use crate::flow::{DataSource, Flow};
use crate::pause::Pause;

/// Whether multicast reaches this member, and how many packets it loses.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    pub is_reached: bool,
    pub heard_at: Nanoseconds,
    pub heartbeat: Timestamp,
    /// The number of packets that came only along the tree since the last one that came by
    /// multicast.
    pub repaired: u32,
    /// Of the present sample: the number of packets, and how many of them multicast has lost.
    pub sampled: u32,
    pub lost: u32,
    /// Whether an eighth of the last sample, or more, was lost.
    pub is_congested: bool,
}

/// The number of packets of which the losses are counted.
pub(super) const SAMPLE_PACKETS: u32 = 128;

/// A member is congested if one packet in this number, or more, is lost. What is lost at random is
/// less.
const CONGESTION_SHARE: u32 = 8;

impl Reach {
    /// Takes a packet that arrived by multicast; returns whether it is new.
    pub fn on_multicast(&mut self, now: Nanoseconds) -> bool {
        self.heard_at = now;
        self.repaired = 0;
        if self.is_reached {
            return false;
        }
        (self.sampled, self.lost, self.is_congested) = (0, 0, false);
        self.is_reached = true;
        true
    }

    /// A packet is new here; `is_lost` says that multicast did not bring it.
    pub fn sample(&mut self, is_lost: bool) {
        self.sampled += 1;
        self.lost += u32::from(is_lost);
        if self.sampled == SAMPLE_PACKETS {
            self.is_congested = is_congestion(self.lost);
            (self.sampled, self.lost) = (0, 0);
        }
    }

    /// Multicast has brought this number of packets: [`Reach::sample`] of each, in one step. The
    /// present sample has few losses.
    pub fn sample_accepted(&mut self, packets: u32) {
        let sampled = u64::from(self.sampled) + u64::from(packets);
        if sampled >= u64::from(SAMPLE_PACKETS) {
            (self.is_congested, self.lost) = (false, 0);
        }
        self.sampled = (sampled % u64::from(SAMPLE_PACKETS)) as u32;
    }
}

/// At a member.
impl Flow {
    /// New data is in its slot: what that says about multicast.
    pub(in crate::flow) fn on_new_data(
        &mut self,
        now: Nanoseconds,
        distribution: Distribution,
        source: DataSource,
    ) {
        let slots = self.config.slots;
        let Some(Multicast { reach, .. }) = &mut self.multicast else { return };
        let has_changed = if source.is_multicast() {
            reach.on_multicast(now)
        } else if distribution == Distribution::MulticastAndTree {
            reach.repaired = reach.repaired.saturating_add(1);
            // At most as many packets as there are slots are lost in one outage, since the root
            // waits for them.
            reach.is_reached && reach.repaired > slots
        } else {
            false
        };
        if has_changed && !source.is_multicast() {
            reach.is_reached = false;
        }
        let is_repaired = !source.is_multicast() && distribution == Distribution::MulticastAndTree;
        reach.sample(is_repaired);
        self.ack_request.is_due |= has_changed;
        let is_reached = reach.is_reached;
        self.mark_sent(now);
        if is_repaired && is_reached && self.held.is_empty() {
            self.probe_repaired();
        }
    }

    /// Multicast has not brought the last packets that are known here, and may not have brought
    /// them to the children either, which no later packet has told so. Each is asked now, since its
    /// timer would run once more at every level of the tree.
    fn probe_repaired(&mut self) {
        let next = self.state.next;
        for child in &mut self.children {
            if child.is_by_multicast() && child.state.acked.is_before(next) && !child.is_probe_due {
                child.is_probe_due = true;
                self.probing += 1;
            }
        }
    }

    /// Takes a heartbeat of the root; returns false for a replay.
    pub fn handle_heartbeat(&mut self, now: Nanoseconds, sent_at: Timestamp) -> bool {
        let Some(Multicast { reach, .. }) = &mut self.multicast else { return false };
        let is_later = reach.heartbeat < sent_at;
        if is_later {
            reach.heartbeat = sent_at;
            self.ack_request.is_due |= reach.on_multicast(now);
        } else {
            self.state.counters.stale += 1;
        }
        is_later
    }

    /// A packet is accepted: it counts as sent to the children that multicast reaches, and goes to
    /// those that have asked for it.
    pub(in crate::flow) fn on_accepted(&mut self, packet: Sequence) {
        let sent = self.slot(packet).multicast;
        let Some(multicast) = &mut self.multicast else { return };
        if sent != SlotMulticast::Not && !self.config.is_root {
            multicast.extend(packet, sent == SlotMulticast::AckRequested);
        }
        if multicast.awaited.remove(packet) {
            for index in 0..self.children.len() {
                self.count_retransmitting(index);
            }
        }
    }

    /// No packet has arrived by multicast for a time: it does not reach this member any more.
    pub(in crate::flow) fn expire_reach(&mut self, now: Nanoseconds) {
        if self.reach_timeout().is_some_and(|timeout| timeout <= now)
            && let Some(multicast) = &mut self.multicast
        {
            multicast.reach.is_reached = false;
            self.ack_request.is_due = true;
        }
    }

    pub(super) fn reach_timeout(&self) -> Option<Nanoseconds> {
        let Reach { is_reached, heard_at, .. } = self.multicast.as_ref()?.reach;
        let span = Nanoseconds(self.config.timeouts.peer_timeout.0 / 2);
        (is_reached && !self.config.is_root).then_some(heard_at + span)
    }

    /// This node did not run for a while.
    pub(in crate::flow) fn suspend_reach(&mut self, pause: Pause) {
        if let Some(multicast) = &mut self.multicast {
            pause.leave_out(&mut multicast.reach.heard_at);
        }
    }
}

/// Whether this number of losses in a sample says that a member is congested.
pub(super) const fn is_congestion(lost: u32) -> bool {
    lost * CONGESTION_SHARE >= SAMPLE_PACKETS
}

#[cfg(test)]
mod tests {
    use super::*;
    use treecast_wire::Sequence;

    #[test]
    fn packets_that_a_fast_path_has_accepted_are_sampled_as_one_by_one() {
        let address = "239.1.1.7:7000".parse().unwrap();
        let is_few = |lost: &u32| !is_congestion(*lost);
        for (sampled, lost) in [0, 1, 20, 127]
            .into_iter()
            .flat_map(|sampled| (0..=sampled.min(20)).filter(is_few).map(move |lost| (sampled, lost)))
        {
            for packets in [1, 2, 107, 127, 128, 129, 300] {
                let mut one_by_one = Multicast::new(address, 16, Sequence(0)).reach;
                (one_by_one.sampled, one_by_one.lost) = (sampled, lost);
                let mut at_once = one_by_one.clone();
                (0..packets).for_each(|_| one_by_one.sample(false));
                at_once.sample_accepted(packets);
                let state = |reach: &Reach| (reach.sampled, reach.lost, reach.is_congested);
                assert_eq!(state(&at_once), state(&one_by_one), "{packets} after {lost} of {sampled}");
            }
        }
    }
}
