//! Hand-offs to a fast path, and back.

use treecast_wire::Sequence;

use super::header::HeaderTemplate;
use super::{Group, Role};
use crate::Nanoseconds;
use crate::flow::Flow;
use crate::hand_off::{HandOff, HandOffPacket};

impl Group {
    /// Whether nothing needs the slow path.
    pub fn may_be_handed_off(&self) -> bool {
        let is_settled = match &self.role {
            Role::Root(table) => table.is_settled(),
            Role::Member(membership) => membership.settled_parent().is_some(),
        };
        is_settled
            && !self.has_ended
            && self.root_loss_notices.is_none()
            && self.header.keys().is_some()
            && self.flow.as_ref().is_some_and(Flow::may_be_handed_off)
    }

    /// Copies the state for a fast path, if nothing needs the slow path; false if something does.
    pub fn hand_off(&self, to: &mut HandOff) -> bool {
        if !self.may_be_handed_off() {
            return false;
        }
        let (Some(flow), Some(keys)) = (&self.flow, self.header.keys()) else { return false };
        let (parent, root) = match &self.role {
            Role::Root(_) => (None, None),
            Role::Member(membership) => (membership.settled_parent(), membership.multicast_root()),
        };
        let &HeaderTemplate { group, member, epoch, .. } = &self.header;
        to.group = group;
        to.keys = *keys;
        to.member = member;
        to.epoch = epoch;
        to.parent = parent.map(|(parent, _)| (parent.member, parent.address));
        to.parent_heard_at = parent.map_or(Nanoseconds::ZERO, |(_, heard_at)| heard_at);
        flow.hand_off(to, root);
        true
    }

    /// The packets that are new in slots with this state of a fast path.
    pub fn new_packets(&self, from: &HandOff) -> impl Iterator<Item = Sequence> + use<> {
        self.flow.as_ref().map(|flow| flow.new_packets(from)).into_iter().flatten()
    }

    /// Takes the state back from a fast path; false if it is invalid.
    pub fn reclaim(&mut self, from: &HandOff, packets: &[HandOffPacket]) -> bool {
        let Some(flow) = &mut self.flow else { return true };
        let is_valid = flow.reclaim(from, packets);
        match &mut self.role {
            Role::Root(table) => {
                for (child, address) in from.children.iter().zip(flow.addresses()) {
                    table.handle_heard(child.state.heard_at, child.state.member, address);
                }
            }
            Role::Member(membership) => {
                membership
                    .reclaim(from.parent_heard_at, from.multicast.map(|multicast| multicast.state.heard_at));
            }
        }
        is_valid
    }
}
