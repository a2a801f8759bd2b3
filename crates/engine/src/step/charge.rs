//! The engine's memory for a group, which is charged to its user in a daemon.
//!
//! A group is charged when it is created, or when the member gets its place: the memory of its
//! slots, and the state for its members and children. It is charged anew whenever its tree changes,
//! and ends if that exceeds the budget.

use treecast_proto::{AbortReason, GroupId, StateSize};
use treecast_shm::clock;
use treecast_shm::ring;
use treecast_shm::shared_group::SharedGroup;

use super::audit::{self, AuditKind};
use super::core::Core;
use super::group_entry::{GroupEntry, end};
use super::kernel::KernelPath;

/// Memory of a group in the engine, in bytes. Whether the kernel's packet path runs the group is
/// not known in advance, so it is counted wherever there is one.
pub(crate) fn state_bytes(size: StateSize, has_kernel: bool) -> u64 {
    // The maps of groups are B-trees, whose nodes are at least half full.
    let entry_bytes = 2 * size_of::<(GroupId, GroupEntry)>();
    let kernel_bytes = if has_kernel { KernelPath::entry_bytes(size) } else { 0 };
    size.bytes() + (size_of::<SharedGroup>() + entry_bytes + ring::BYTES) as u64 + kernel_bytes
}

impl Core {
    /// The present memory of a group of the protocol, in bytes.
    pub(super) fn state_bytes(&self, group: GroupId) -> u64 {
        let size = self.protocol.state_size(group).unwrap_or_default();
        state_bytes(size, self.fast_path.is_there()) + self.multicast.buffer_bytes(group)
    }

    /// Charges those of these groups that clients have, and whose trees have changed.
    pub(super) fn charge_changed(&mut self, changed: &[GroupId]) {
        for &group in changed {
            if !self.of_clients.contains(group) {
                continue;
            }
            let (epoch, bytes) = (self.protocol.epoch(group), self.state_bytes(group));
            let entry = self.groups.get_mut(&group).filter(|entry| entry.charged_epoch != epoch);
            let Some(entry) = entry else { continue };
            entry.charged_epoch = epoch;
            let clients = entry.shared_group.clients.as_ref();
            let charged = clients.map_or(Ok(()), |clients| clients.charge_state(bytes));
            if let Err(reason) = charged {
                self.fail(group, &reason);
            }
        }
    }

    /// Ends the group of a client that exceeds its user's budget, or whose memory cannot be had.
    pub(super) fn fail(&mut self, group: GroupId, reason: &str) {
        self.over_budget += 1;
        if let Some(entry) = self.groups.get(&group) {
            let client = entry.shared_group.clients.as_ref().map_or("", |clients| clients.name());
            if self.audit.admits(clock::now(), AuditKind::EndedGroup) {
                tracing::warn!(target: audit::TARGET, %client, %group, %reason, "audit: a client's group ends");
            }
            entry.shared_group.fail(reason);
        }
        end(&mut self.protocol, group, AbortReason::NoMemory);
    }
}
