//! One group of an engine.

use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;

use treecast_proto::{AbortReason, Carrier, GroupId, Input, Protocol, Sequence, is_wake_due};
use treecast_shm::clock;
use treecast_shm::delegation::SendDelegation;
use treecast_shm::shared_group::{RingSide, SharedGroup};

use super::audit;
use super::kernel::Reclaimed;
use crate::settings::stream_settings::StreamSettings;

/// A group of this node: the node's side of the ring, and what it shares with the application.
#[derive(Debug)]
pub(super) struct GroupEntry {
    pub shared_group: Arc<SharedGroup>,
    pub side: Option<RingSide>,
    /// At a member that is not the root: what the application has read, as far as the protocol
    /// knows.
    pub consumed: Sequence,
    /// At a daemon: the epoch of the tree for which the group is charged to its user.
    pub charged_epoch: Option<u32>,
    /// At a member that is not the root: whether to wake the application for published packets.
    pub is_wake_due: bool,
    pub stream_settings: StreamSettings,
    /// At a root whose group has both carriers: that of the last packet that was queued.
    pub carrier: Option<Carrier>,
    /// What its streams were opened for last.
    pub tended: Option<StreamNeeds>,
    /// The application has written invalid values, and the group is ending because of that.
    is_invalid: bool,
}

/// The streams that a group needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamNeeds {
    /// The address of the parent to which this node opens one.
    pub parent: Option<SocketAddr>,
    /// Whether children open others.
    pub has_children: bool,
}

impl GroupEntry {
    pub const fn new(
        shared_group: Arc<SharedGroup>,
        side: Option<RingSide>,
        stream_settings: StreamSettings,
    ) -> Self {
        let (consumed, charged_epoch) = (Sequence(0), None);
        let (is_wake_due, is_invalid) = (false, false);
        Self {
            shared_group,
            side,
            consumed,
            charged_epoch,
            is_wake_due,
            stream_settings,
            carrier: None,
            tended: None,
            is_invalid,
        }
    }

    /// Whether it is this group, and not another one with its number.
    pub fn is_of(&self, shared_group: &SharedGroup) -> bool {
        ptr::eq(&raw const *self.shared_group, &raw const *shared_group)
    }

    /// The streams that it needs now. A member without a ring has no place for packets yet.
    pub fn stream_needs(&self, protocol: &Protocol) -> StreamNeeds {
        let group = self.shared_group.group;
        StreamNeeds {
            parent: protocol.stream_parent(group).filter(|_| self.side.is_some()),
            has_children: protocol.children(group).next().is_some(),
        }
    }

    /// Shows the application the packets that have come. Notes whether it is to be woken: for a
    /// whole message, or when much waits for it.
    pub fn publish(&mut self, protocol: &Protocol) {
        let Some(RingSide::Writer(writer)) = &mut self.side else { return };
        let group = self.shared_group.group;
        let place = protocol.readable(group).zip(protocol.offload(group));
        let Some(((_, end), offload)) = place.filter(|((_, end), _)| *end != writer.written()) else {
            return;
        };
        self.is_wake_due |= is_wake_due(offload, writer.read(), end, writer.slots());
        for packet in writer.written().until(end) {
            if let Some(piece) = protocol.piece(group, packet) {
                writer.describe(packet, *piece);
                self.is_wake_due |= piece.is_last();
            }
        }
        writer.publish(end);
    }

    /// Continues where the kernel's packet path was.
    pub fn resume(&mut self, reclaimed: &Reclaimed) {
        match &mut self.side {
            Some(RingSide::Reader(reader)) => reader.resume(reclaimed.next, reclaimed.freed),
            Some(RingSide::Writer(writer)) => writer.resume(reclaimed.next, reclaimed.consumed),
            None => {}
        }
    }

    /// Whether the ring is in memory that is shared with the kernel's packet path or with another
    /// process.
    pub fn has_shared_memory(&self) -> bool {
        match &self.side {
            Some(RingSide::Reader(reader)) => reader.shared_memory().is_some(),
            Some(RingSide::Writer(writer)) => writer.shared_memory().is_some(),
            None => false,
        }
    }

    /// The delegation of sending by the root's application, if it is active.
    pub fn delegation(&self) -> Option<SendDelegation<'_>> {
        let Some(RingSide::Reader(reader)) = &self.side else { return None };
        reader.shared_memory().map(SendDelegation::of).filter(|delegation| delegation.is_active())
    }

    /// Ends the delegation: the protocol sends what the application has written.
    pub fn end_delegation(&self) {
        if let Some(delegation) = self.delegation() {
            delegation.end();
            self.shared_group.mark_progress();
        }
    }

    /// Whether the application has written an invalid number, and the group has to end.
    pub fn has_become_invalid(&self) -> bool {
        !self.is_invalid && self.side.as_ref().is_some_and(|side| !side.is_valid())
    }

    /// Ends the group if its application has written invalid values: `is_valid` is about the slots,
    /// and the numbers are checked here. Says whether it has ended it now. The protocol has the
    /// group.
    pub fn end_if_invalid(&mut self, protocol: &mut Protocol, is_valid: bool) -> bool {
        if self.is_invalid || is_valid && !self.has_become_invalid() {
            return false;
        }
        self.is_invalid = true;
        let group = self.shared_group.group;
        let client = self.shared_group.clients.as_ref().map_or("", |clients| clients.name());
        tracing::warn!(target: audit::TARGET, %client, %group, "audit: invalid values in shared memory: the group ends");
        end(protocol, group, AbortReason::InvalidMemory);
        true
    }
}

/// Ends a group without its application: a root aborts it for this reason, and another member
/// leaves.
pub(super) fn end(protocol: &mut Protocol, group: GroupId, why: AbortReason) {
    let now = clock::now();
    // A member of a closed group that has every packet waits for the root's last message; it does
    // not leave before.
    let end = protocol.readable(group).filter(|_| protocol.is_closed(group));
    let input = end.map_or(Input::Leave { group }, |(_, upto)| Input::Consumed { group, upto });
    if protocol.handle(now, input).is_err() {
        let _ = protocol.handle(now, Input::Abort { group, why });
    }
}
