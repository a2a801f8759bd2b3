//! Hand-offs to a fast path, and back.

use treecast_wire::Sequence;

use super::header::HeaderTemplate;
use super::{Group, Role};
use crate::Nanoseconds;
use crate::hand_off::{HandOff, HandOffPacket};

impl Group {
    /// Copies the state for a fast path, if nothing needs the slow path; false if something does.
    pub fn hand_off(&self, to: &mut HandOff) -> bool {
        let Some(flow) = self
            .flow
            .as_ref()
            .filter(|flow| !self.has_ended && self.root_loss_notices.is_none() && flow.may_be_handed_off())
        else {
            return false;
        };
        let parent = match &self.role {
            Role::Root(table) if table.is_settled() => None,
            Role::Member(membership) => match membership.settled_parent() {
                Some(parent) => Some(parent),
                None => return false,
            },
            Role::Root(_) => return false,
        };
        let (&HeaderTemplate { group, member, epoch, .. }, Some(keys)) = (&self.header, self.header.keys())
        else {
            return false;
        };
        to.group = group;
        to.keys = *keys;
        to.member = member;
        to.epoch = epoch;
        to.parent = parent.map(|(parent, _)| (parent.member, parent.address));
        to.parent_heard_at = parent.map_or(Nanoseconds::ZERO, |(_, heard_at)| heard_at);
        let root = match &self.role {
            Role::Root(_) => None,
            Role::Member(membership) => membership.multicast_root(),
        };
        flow.hand_off(to, root);
        true
    }

    /// Takes the state back from a fast path; false if it is invalid.
    pub fn reclaim(&mut self, from: &HandOff, packet: impl FnMut(Sequence) -> HandOffPacket) -> bool {
        let Some(flow) = &mut self.flow else { return true };
        let is_valid = flow.reclaim(from, packet);
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
