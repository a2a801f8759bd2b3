//! Hand-offs to a fast path, and back.

use std::net::SocketAddr;

use treecast_wire::{Body, Contribution, Control, Header, Nonce, Packet, Sequence, Timestamp};

use super::header::HeaderTemplate;
use super::reduction::{FromChild, Process};
use super::{Group, Role};
use crate::flow::Flow;
use crate::hand_off::{HandOff, HandOffPacket, fast_path_combines};
use crate::{Nanoseconds, Refused, Settings, Transmit};

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
        to.contributions_from = self.contributions_from();
        (to.contribution_sent_at, to.contribution_timestamp) = (Nanoseconds::ZERO, Timestamp(0));
        to.parent_heard_at = parent.map_or(Nanoseconds::ZERO, |(_, heard_at)| heard_at);
        flow.hand_off(to, root);
        true
    }

    /// The first packet of a result whose contributions a fast path may keep and combine.
    pub fn contributions_from(&self) -> Sequence {
        self.flow.as_ref().map_or(Sequence(0), |flow| self.reduction.untouched_from(flow.next()))
    }

    /// The only process of this node contributes to an all-reduce while a fast path has the group
    /// and takes contributions; `next` is the first packet that it has not accepted. It gets the
    /// packet that is returned, which is for the parent; none at the root.
    ///
    /// # Errors
    /// [`Refused::NeedsSlowPath`]: the fast path does not combine such values; and those of
    /// [`Reduction::contribute`].
    pub fn contribute_to_fast_path(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        contribution: &Contribution,
        next: Sequence,
    ) -> Result<Option<Transmit>, Refused> {
        let needs_slow_path = Refused::NeedsSlowPath(self.header.group);
        let Some(flow) = &self.flow else { return Err(needs_slow_path) };
        if !fast_path_combines(contribution) {
            return Err(needs_slow_path);
        }
        // Another one changes nothing, or replaces one that may have been sent.
        if contribution.packet != next || self.reduction.has_own(next) {
            return Err(needs_slow_path);
        }
        let has_children = flow.children().next().is_some();
        let contribution = Contribution { processes: 1, ..contribution.clone() };
        self.reduction.contribute(Process::ONLY, contribution.clone(), next)?;
        let Role::Member(membership) = &self.role else {
            self.hand_over_result();
            return Ok(None);
        };
        let Some((parent, _)) = membership.settled_parent() else { return Err(needs_slow_path) };
        self.reduction.note_sent(now, settings, self.header.epoch, has_children);
        let control = Control::Contribution(contribution);
        let before = self.header.timestamp();
        let mut transmit = self.header.control(now, parent.address, Nonce(0), &control);
        if has_children {
            Contribution::mark_own(&mut transmit.header);
            // The fast path says whether it has sent it.
            self.header.set_timestamp(before);
        }
        Ok(Some(transmit))
    }

    /// At the root, while a fast path has the group: a child contributes to the result that is to
    /// be `next`, the first packet that the fast path has not sent. False, and nothing has changed,
    /// if the slow path is to handle the packet.
    pub fn take_contribution(&mut self, from: SocketAddr, packet: &Packet<'_>, next: Sequence) -> bool {
        let Header { sender: child, timestamp: sent_at, epoch, body, .. } = packet.header;
        let (Role::Root(_), Some(flow), Body::Control(control)) = (&self.role, &self.flow, body) else {
            return false;
        };
        let Ok(Control::Contribution(contribution)) = Control::read(control.operation, packet.payload) else {
            return false;
        };
        if !flow.is_child(child, from) || contribution.packet != next {
            return false;
        }
        // If this contribution is not later than the known one, that may be forged, which the slow
        // path finds out.
        let new = FromChild { child, epoch, sent_at, contribution };
        if !self.reduction.handle_child(new, Timestamp(u64::MAX)) {
            return false;
        }
        self.hand_over_result();
        true
    }

    /// The packets that are new in slots with this state of a fast path.
    pub fn new_packets(&self, from: &HandOff) -> impl Iterator<Item = Sequence> + use<> {
        self.flow.as_ref().map(|flow| flow.new_packets(from)).into_iter().flatten()
    }

    /// Takes the state back from a fast path; false if it is invalid.
    pub fn reclaim(&mut self, settings: &Settings, from: &HandOff, packets: &[HandOffPacket]) -> bool {
        let Some(flow) = &mut self.flow else { return true };
        let is_valid = flow.reclaim(from, packets);
        let sent_at = Some(from.contribution_sent_at).filter(|&sent_at| sent_at > Nanoseconds::ZERO);
        self.reduction.reclaim(settings, self.header.epoch, sent_at);
        self.header.set_timestamp(from.contribution_timestamp.max(self.header.timestamp()));
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
