//! Groups are handed off to a fast path and reclaimed from it.

use treecast_wire::{GroupId, Sequence, View};

use super::{Protocol, Turn, not_first_of_stream};
use crate::hand_off::{HandOff, HandOffPacket};

/// Handing groups off to a fast path.
impl Protocol {
    /// Hands a group off, if nothing in it needs the slow path: copies its state, and passes it to
    /// the fast path by `give`, which returns whether that accepts it. Returns whether the group is
    /// handed off.
    ///
    /// The group is to be reclaimed before any input about it is handled, and at
    /// [`Output::Reclaim`](crate::Output::Reclaim). Getters meanwhile return the state at the
    /// hand-off.
    pub fn hand_off(
        &mut self,
        group: GroupId,
        to: &mut HandOff,
        give: impl FnOnce(&HandOff) -> bool,
    ) -> bool {
        let Some(entry) = self.indices.get(&group).and_then(|&index| self.groups[index].as_mut()) else {
            return false;
        };
        // A group that is ready may have something to send.
        entry.is_handed_off = entry.turn != Turn::Ready && entry.group.hand_off(to) && give(to);
        entry.is_handed_off
    }

    /// Reclaims a group from the fast path: takes its state, and reads the packets that are new in
    /// slots by `packet`.
    ///
    /// Returns whether all that is valid: applications may have written to slots. A group for which
    /// it is false has lost packets, and is to be aborted.
    #[must_use]
    pub fn reclaim(
        &mut self,
        group: GroupId,
        from: &HandOff,
        packet: impl FnMut(Sequence) -> HandOffPacket,
    ) -> bool {
        let Some(&index) = self.indices.get(&group) else { return true };
        let Some(entry) = self.groups[index].as_mut().filter(|entry| entry.is_handed_off) else {
            return true;
        };
        entry.is_handed_off = false;
        let is_valid = entry.group.reclaim(from, packet);
        self.make_ready(index);
        is_valid
    }

    /// The group that has to be reclaimed before a datagram is handled: an authentic packet of a
    /// group that is handed off. Any other datagram changes nothing in a group.
    pub fn group_to_reclaim(&self, bytes: &[u8]) -> Option<GroupId> {
        let is_handed_off = |group| {
            let entry = self.indices.get(&group).and_then(|&index| self.groups[index].as_ref());
            entry.is_some_and(|entry| entry.is_handed_off)
        };
        // Most groups of a node without a fast path are spared a second verification.
        let view = View::new(bytes).ok().filter(|view| is_handed_off(view.group()))?;
        let (_, packet) = self.authenticate(Ok(view)).and_then(not_first_of_stream).ok()?;
        Some(packet.header.group)
    }
}
