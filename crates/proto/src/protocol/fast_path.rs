//! Groups are handed off to a fast path and reclaimed from it.

use std::net::SocketAddr;

use treecast_wire::{Contribution, GroupId, Sequence, View};

use super::{Checked, Entry, Protocol, Turn, find_mut};
use crate::hand_off::{HandOff, HandOffPacket};
use crate::{Nanoseconds, Refused, Transmit};

impl Entry {
    /// A group that is ready may have something to send.
    fn may_be_handed_off(&self) -> bool {
        self.turn != Turn::Ready && !self.is_handed_off
    }
}

/// Handing groups off to a fast path.
impl Protocol {
    /// Copies the state of a group for a fast path, if nothing in it needs the slow path; false if
    /// something does. [`Input::HandedOff`](crate::Input::HandedOff) tells that the fast path has
    /// accepted it.
    pub fn hand_off_state(&self, group: GroupId, to: &mut HandOff) -> bool {
        let entry = self.indices.get(&group).and_then(|&index| self.groups.get(index));
        entry.is_some_and(|entry| entry.may_be_handed_off() && entry.group.hand_off(to))
    }

    /// The packets that are new in slots with this state of a fast path: those that
    /// [`Input::Reclaimed`](crate::Input::Reclaimed) is to bring. None if the state is invalid.
    pub fn new_packets(&self, group: GroupId, state: &HandOff) -> impl Iterator<Item = Sequence> + use<> {
        let entry = self.indices.get(&group).and_then(|&index| self.groups.get(index));
        let packets = entry.filter(|entry| entry.is_handed_off).map(|entry| entry.group.new_packets(state));
        packets.into_iter().flatten()
    }

    pub(super) fn set_handed_off(&mut self, group: GroupId) -> Result<(), Refused> {
        let (_, entry) = self.entry_mut(group)?;
        if !entry.may_be_handed_off() || !entry.group.may_be_handed_off() {
            return Err(Refused::NeedsSlowPath(group));
        }
        entry.is_handed_off = true;
        entry.contributions_from = entry.group.contributions_from();
        Ok(())
    }

    /// The only process of this node contributes to an all-reduce of a group that a fast path has.
    /// `next` is the first packet that the fast path has not accepted.
    /// The packet that is returned is to be sent: the fast path sees it and sends it on to the
    /// parent, combined with those of the children. None at the root, where
    /// [`Protocol::take_contribution`] is told those of the children.
    ///
    /// # Errors
    /// [`Refused::NotHandedOff`], [`Refused::NeedsSlowPath`]: the group is to be reclaimed, and the
    /// contribution an input. [`Refused::Contribution`].
    pub fn contribute_to_fast_path(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        contribution: &Contribution,
        next: Sequence,
    ) -> Result<Option<Transmit>, Refused> {
        let Self { settings, groups, indices, timeouts, events, .. } = self;
        let (index, entry) = find_mut(indices, groups, group)?;
        if !entry.is_handed_off {
            return Err(Refused::NotHandedOff(group));
        }
        if contribution.packet.is_before(entry.contributions_from) {
            return Err(Refused::NeedsSlowPath(group));
        }
        let transmit = entry.group.contribute_to_fast_path(now, settings, contribution, next)?;
        entry.group.poll_events(events);
        // The timers of the flow are still user space's.
        timeouts.set(index, entry.group.timeout(settings));
        Ok(transmit)
    }

    /// At the root of a group that a fast path has: takes the contribution of a child to the result
    /// that is to be `next`, the first packet that the fast path has not sent, and hands the result
    /// over ([`Event::Reduced`](crate::Event::Reduced)) once all have contributed. The fast path
    /// keeps the group. False, and nothing has changed, if the group is to be reclaimed instead and
    /// the datagram an input.
    pub fn take_contribution(&mut self, from: SocketAddr, datagram: &Checked<'_>, next: Sequence) -> bool {
        let Ok((index, packet)) = self.found(datagram.clone()) else { return false };
        let Some(entry) = self.groups.get_mut(index).filter(|entry| entry.is_handed_off) else {
            return false;
        };
        let is_taken = entry.group.take_contribution(from, &packet, next);
        entry.group.poll_events(&mut self.events);
        is_taken
    }

    pub(super) fn reclaim(
        &mut self,
        group: GroupId,
        state: &HandOff,
        packets: &[HandOffPacket],
    ) -> Result<(), Refused> {
        let Self { settings, groups, indices, .. } = self;
        let (index, entry) = find_mut(indices, groups, group)?;
        if !std::mem::replace(&mut entry.is_handed_off, false) {
            return Err(Refused::NotHandedOff(group));
        }
        let is_valid = entry.group.reclaim(settings, state, packets);
        self.make_ready(index);
        if is_valid { Ok(()) } else { Err(Refused::InvalidState(group)) }
    }

    /// The group that has to be reclaimed before a datagram is handled: an authentic packet of a
    /// group that is handed off. Any other datagram changes nothing in a group.
    pub fn group_to_reclaim(&self, datagram: &Checked<'_>) -> Option<GroupId> {
        let entry = self.groups.get(datagram.index()?).filter(|entry| entry.is_handed_off)?;
        Some(entry.group.id())
    }

    /// The same before a packet that came on a stream is handled, the first one
    /// ([`crate::Input::Attach`]) or a later one.
    pub fn group_to_reclaim_for_stream(&self, packet: &[u8]) -> Option<GroupId> {
        let (index, _) = self.authenticate(View::new(packet)).ok()?;
        let entry = self.groups.get(index).filter(|entry| entry.is_handed_off)?;
        Some(entry.group.id())
    }
}
