//! What runs groups beside the protocol: the kernel's packet path, where the engine has one.

use std::net::SocketAddr;

use treecast_ebpf::{HookTrouble, KernelCounters, KernelGroup};
use treecast_proto::{GroupCounters, GroupId, PlaceStatus, Protocol, Sequence};

use super::kernel::{HookCheck, KernelPath, Reclaimed};

/// The fast path of an engine. Without one each of these does nothing, and no group is there.
#[derive(Debug)]
pub(super) enum FastPath {
    /// The protocol runs all groups.
    Absent,
    /// The program runs the groups that need nothing of user space.
    Kernel(Box<KernelPath>),
}

impl FastPath {
    pub const fn is_there(&self) -> bool {
        matches!(self, Self::Kernel(_))
    }

    pub fn kernel(&self) -> Option<&KernelPath> {
        match self {
            Self::Absent => None,
            Self::Kernel(kernel) => Some(kernel),
        }
    }

    pub fn kernel_mut(&mut self) -> Option<&mut KernelPath> {
        match self {
            Self::Absent => None,
            Self::Kernel(kernel) => Some(kernel),
        }
    }

    /// Whether it runs a group, so that the protocol does not.
    pub fn runs(&self, group: GroupId) -> bool {
        self.kernel().is_some_and(|kernel| kernel.runs(group))
    }

    /// As [`KernelPath::next`].
    pub fn next(&self, group: GroupId) -> Option<Sequence> {
        self.kernel().and_then(|kernel| kernel.next(group))
    }

    /// As [`KernelPath::check_hooks`].
    pub fn check_hooks(&mut self, check: HookCheck) -> bool {
        self.kernel_mut().is_some_and(|kernel| kernel.check_hooks(check))
    }

    /// As [`KernelPath::forget_paths`].
    pub fn forget_paths(&mut self) {
        if let Some(kernel) = self.kernel_mut() {
            kernel.forget_paths();
        }
    }

    /// As [`KernelPath::troubles`].
    pub fn troubles(&self) -> &[HookTrouble] {
        self.kernel().map_or(&[], KernelPath::troubles)
    }

    /// As [`KernelPath::next_woken`].
    pub fn next_woken(&mut self) -> Option<GroupId> {
        self.kernel_mut().and_then(KernelPath::next_woken)
    }

    /// As [`KernelPath::remove`].
    pub fn remove(&mut self, group: GroupId) -> Option<KernelGroup> {
        self.kernel_mut().and_then(|kernel| kernel.remove(group))
    }

    /// As [`KernelPath::reclaim`].
    pub fn reclaim(&mut self, group: GroupId, protocol: &mut Protocol) -> Option<Reclaimed> {
        self.kernel_mut().and_then(|kernel| kernel.reclaim(group, protocol))
    }

    /// As [`KernelPath::take_contributions`].
    pub fn take_contributions(&mut self, group: GroupId) -> Vec<(SocketAddr, Vec<u8>)> {
        self.kernel_mut().map_or_else(Vec::new, |kernel| kernel.take_contributions(group))
    }

    /// As [`KernelPath::post_neighbours`].
    pub fn post_neighbours(&mut self, protocol: &Protocol) {
        if let Some(kernel) = self.kernel_mut() {
            kernel.post_neighbours(protocol);
        }
    }

    /// As [`KernelPath::hand_off`].
    pub fn hand_off(&mut self, protocol: &mut Protocol, may_be_taken: impl Fn(GroupId) -> bool) {
        if let Some(kernel) = self.kernel_mut() {
            kernel.hand_off(protocol, may_be_taken);
        }
    }

    /// As [`KernelPath::group_counters`].
    pub fn group_counters(&self, group: GroupId) -> Option<GroupCounters> {
        self.kernel().and_then(|kernel| kernel.group_counters(group))
    }

    /// As [`KernelPath::update`].
    pub fn update(&self, group: GroupId, status: &mut PlaceStatus) -> bool {
        self.kernel().is_some_and(|kernel| kernel.update(group, status))
    }

    /// As [`KernelPath::counters`].
    pub fn counters(&self, group: GroupId) -> Option<KernelCounters> {
        self.kernel().and_then(|kernel| kernel.counters(group))
    }
}
