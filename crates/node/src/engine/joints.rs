//! The groups of an engine, each with the node's side of its ring.

use std::collections::BTreeMap;
use std::sync::Arc;

use treecast_proto::{GroupId, Input, Protocol, Sequence};

use super::kernel::{Kernel, Onward, Reclaimed};
use crate::clock;
use crate::engine::delegation::Left;
use crate::memory::shared_group::{Channel, Side};

/// A group here: the node's side of the ring, and what leads to the application.
#[derive(Debug)]
pub(super) struct Joint {
    pub channel: Arc<Channel>,
    pub side: Option<Side>,
    /// At another member than the root, what the application has read, as far as the protocol knows.
    pub consumed: Sequence,
    /// What the application has written cannot be, so the group has been given up.
    is_given_up: bool,
}

impl Joint {
    pub const fn new(channel: Arc<Channel>, side: Option<Side>) -> Self {
        Self { channel, side, consumed: Sequence(0), is_given_up: false }
    }

    fn resume(&mut self, returned: &Reclaimed) {
        match &mut self.side {
            Some(Side::Reader(reader)) => reader.resume(returned.next, returned.freed),
            Some(Side::Writer(writer)) => writer.resume(returned.next, returned.consumed),
            None => {}
        }
    }

    /// What a root's application has left to be sent on; none if it has not.
    fn left(&self) -> Option<Left<'_>> {
        let Some(Side::Reader(reader)) = &self.side else { return None };
        reader.shared_memory().map(Left::of).filter(|left| left.is_there())
    }

    /// What the application has left to be sent on is for the protocol.
    fn leave_nothing(&self) {
        if let Some(left) = self.left() {
            left.end();
            self.channel.give_news();
        }
    }

    fn is_to_be_given_up(&self) -> bool {
        !self.is_given_up && self.side.as_ref().is_some_and(|side| !side.is_valid())
    }

    /// Gives the group up if what its application has written cannot be; says whether it has done so now. The protocol
    /// has the group.
    pub fn give_up_nonsense(&mut self, protocol: &mut Protocol, is_possible: bool) -> bool {
        if self.is_given_up || is_possible && !self.is_to_be_given_up() {
            return false;
        }
        self.is_given_up = true;
        let group = self.channel.group;
        tracing::warn!(%group, "its application has written what cannot be: the group is given up");
        end(protocol, group);
        true
    }
}

/// Ends a group whose application has not asked for its end: the root gives it up, and another member leaves.
pub(super) fn end(protocol: &mut Protocol, group: GroupId) {
    let now = clock::now();
    // Who has everything waits for the root's farewell, and does not leave before.
    let end = protocol.readable(group).filter(|_| protocol.is_closed(group));
    let input = end.map_or(Input::Leave { group }, |(_, upto)| Input::Consumed { group, upto });
    if protocol.handle(now, input).is_err() {
        let _ = protocol.handle(now, Input::Abort { group });
    }
}

/// Whether nothing of a root's group is under way.
fn is_quiet(protocol: &Protocol, group: GroupId) -> bool {
    let next = protocol.readable(group).map(|(_, next)| next);
    protocol.freed(group).is_none_or(|freed| next.is_none_or(|next| freed == next))
}

/// All groups of an engine.
#[derive(Debug, Default)]
pub(super) struct Joints {
    pub groups: BTreeMap<GroupId, Joint>,
    /// Groups that were given up since what their applications had written cannot be.
    pub invalid: u64,
}

impl Joints {
    /// Takes a group back from the kernel's packet path, if that has it: before anything of it is looked at or handled.
    pub fn take_back(&mut self, kernel: &mut Option<Kernel>, protocol: &mut Protocol, group: GroupId) {
        let Some(returned) = kernel.as_mut().and_then(|kernel| kernel.reclaim(group, protocol)) else { return };
        if let Some(joint) = self.groups.get_mut(&group) {
            joint.resume(&returned);
            // Whom the program could not wake looks now.
            joint.channel.ring_anyway();
            self.invalid += u64::from(joint.give_up_nonsense(protocol, returned.is_valid));
        }
    }

    /// Sends on a batch of what each root's application has left to the node, by the kernel's packet path: what that does not take is
    /// for the protocol. As long as the protocol has the group for what is under way, the rest waits for that.
    pub fn send_on(&self, kernel: &mut Option<Kernel>, protocol: &Protocol) {
        let Some(kernel) = kernel else { return };
        for (&group, joint) in &self.groups {
            let Some(left) = joint.left().filter(|_| !kernel.is_room_wanted(group)) else { continue };
            match kernel.send_on(group) {
                Onward::Refused => joint.leave_nothing(),
                Onward::NotHandedOff if is_quiet(protocol, group) => joint.leave_nothing(),
                Onward::More | Onward::Waits | Onward::NotHandedOff => {}
                // Who writes more from now on sends that on, and who has done so before is seen here.
                Onward::All => left.end_if(|| kernel.has_all(group)),
            }
        }
    }

    /// What an application has left to be sent on is for the protocol now: something is asked that comes after it.
    pub fn leave_nothing(&self, group: GroupId) {
        self.groups.get(&group).inspect(|joint| joint.leave_nothing());
    }

    /// Whether applications have left something that can be sent on now, by the kernel's packet path or by the protocol.
    pub fn is_anything_left(&self, kernel: Option<&Kernel>, protocol: &Protocol) -> bool {
        let Some(kernel) = kernel else { return false };
        let can_go_on = |group| {
            if kernel.has(group) { !kernel.is_room_wanted(group) } else { is_quiet(protocol, group) }
        };
        self.groups.iter().any(|(&group, joint)| joint.left().is_some() && can_go_on(group))
    }

    /// Gives up groups whose applications have written what cannot be.
    pub fn give_up_nonsense(&mut self, kernel: &mut Option<Kernel>, protocol: &mut Protocol) {
        while let Some(joint) = self.groups.values().find(|joint| joint.is_to_be_given_up()) {
            let group = joint.channel.group;
            self.take_back(kernel, protocol, group);
            if let Some(joint) = self.groups.get_mut(&group) {
                self.invalid += u64::from(joint.give_up_nonsense(protocol, true));
            }
        }
    }
}
