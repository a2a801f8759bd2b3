//! Which groups the kernel's packet path runs: handing them off, and reclaiming them; and what it
//! sends for a root.

use std::net::SocketAddr;

use treecast_ebpf::{HookTrouble, KernelGroup};
use treecast_proto::{Checked, GroupId, Input, Nanoseconds, Output, Protocol};
use treecast_shm::clock;
use treecast_shm::shared_group::SharedGroup;

use super::core::Core;
use super::group_entry::GroupEntry;
use super::kernel::{HookCheck, SendOutcome};
use super::root_socket::RootSocket;
use crate::datagrams::Datagrams;

impl Core {
    /// Problems of the hooks of the kernel's packet path; empty without one.
    pub fn troubles(&mut self) -> Vec<HookTrouble> {
        self.check_hooks(HookCheck::Now);
        self.fast_path.troubles().to_vec()
    }

    /// Reclaims all groups if packets do not pass the program any more.
    pub fn check_hooks(&mut self, check: HookCheck) {
        if self.fast_path.check_hooks(check) {
            self.reclaim_all();
            self.fast_path.forget_paths();
        }
    }

    /// Finds out which groups are alone at their multicast addresses, and reclaims those that are
    /// not any more.
    pub fn check_multicast(&mut self, now: Nanoseconds, datagrams: &Datagrams) {
        if self.fast_path.is_there() && self.multicast.is_check_due(now) {
            for group in self.multicast.set_alone_at(&datagrams.alone_at()) {
                self.reclaim(group);
            }
        }
    }

    pub(super) fn add_to_kernel(
        &mut self,
        added: KernelGroup,
        shared_group: &SharedGroup,
        socket: Option<(u64, RootSocket)>,
    ) {
        let Some(kernel) = self.fast_path.kernel_mut() else { return };
        let wake_socket = shared_group.clients.as_ref().and_then(|clients| clients.wake_socket());
        if let Err((added, error)) = kernel.add(added, wake_socket, socket) {
            tracing::warn!(%error, "group {} runs in user space only", shared_group.group);
            self.background.unmake(*added);
        }
    }

    /// Removes a group from the kernel's packet path.
    pub fn remove_from_kernel(&mut self, group: GroupId) {
        if let Some(removed) = self.fast_path.remove(group) {
            self.background.unmake(removed);
        }
    }

    /// Reclaims a group from the kernel's packet path, if that runs it.
    pub fn reclaim(&mut self, group: GroupId) {
        let Some(reclaimed) = self.fast_path.reclaim(group, &mut self.protocol) else { return };
        if let Some(entry) = self.groups.get_mut(&group) {
            entry.resume(&reclaimed);
            // The program may not have been able to wake the application.
            entry.shared_group.wake_always();
            self.invalid += u64::from(entry.end_if_invalid(&mut self.protocol, reclaimed.is_valid));
        }
    }

    /// At the root: takes a contribution that the kernel's packet path has left to user space, and
    /// those that it has kept. It keeps the group. False, and nothing has changed, if the group is
    /// to be reclaimed instead.
    pub fn take_contributions(&mut self, group: GroupId, from: SocketAddr, datagram: &Checked<'_>) -> bool {
        let Some(next) = self.fast_path.next(group) else { return false };
        if !self.protocol.take_contribution(from, datagram, next) {
            return false;
        }
        for (from, bytes) in self.fast_path.take_contributions(group) {
            let datagram = self.protocol.check(&bytes);
            if !self.protocol.take_contribution(from, &datagram, next) {
                self.reclaim(group);
                let _ = self.protocol.handle(clock::now(), Input::Datagram { from, bytes: &bytes });
            }
        }
        true
    }

    /// Applies the events that contributions have caused in a group that stays handed off.
    pub fn handle_results(&mut self) {
        while let Some(output) = self.protocol.poll_local() {
            if let Output::Event(event) = output {
                self.handle_event(&event);
            }
        }
    }

    pub fn reclaim_all(&mut self) {
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for group in groups {
            self.reclaim(group);
        }
    }

    /// Reclaims the groups for which the program has woken the engine.
    pub fn reclaim_woken(&mut self) {
        while let Some(group) = self.fast_path.next_woken() {
            self.reclaim(group);
        }
    }

    /// A group that the kernel's packet path runs, and whose application needs user space to run
    /// it.
    pub(super) fn find_group_for_user_space(&self) -> Option<GroupId> {
        let kernel = self.fast_path.kernel()?;
        let needs_user_space = |group: GroupId, entry: &GroupEntry| {
            let owes_window_update = |read| kernel.owes_window_update(group, read);
            entry.shared_group.has_progress()
                && entry.side.as_ref().is_some_and(|side| side.needs_user_space(owes_window_update))
        };
        let candidates = self.written_or_read.iter().chain(&*self.of_clients);
        let mut handed_off = candidates.copied().filter(|&group| kernel.runs(group));
        handed_off.find(|&group| self.groups.get(&group).is_some_and(|entry| needs_user_space(group, entry)))
    }

    /// Hands off all groups to the kernel's packet path that it can run.
    pub fn hand_off(&mut self) {
        let Self { fast_path, protocol, multicast, .. } = self;
        fast_path.hand_off(protocol, |group| multicast.may_be_taken(group));
    }

    /// Hands off those of these groups that the kernel's packet path can run, before their data is
    /// sent.
    pub fn hand_off_senders(&mut self, senders: &[GroupId]) {
        if !senders.is_empty() {
            self.fast_path.post_neighbours(&self.protocol);
            self.fast_path.hand_off(&mut self.protocol, |group| senders.contains(&group));
        }
    }

    /// Ends the delegation of sending, before a request that comes after the delegated packets.
    pub fn end_delegation(&self, group: GroupId) {
        if let Some(entry) = self.groups.get(&group) {
            entry.end_delegation();
        }
    }

    /// Sends a batch of each root's delegated packets by the kernel's packet path. What that
    /// refuses is for the protocol. While the protocol runs the group because of packets in flight,
    /// the rest waits.
    pub fn send_delegated(&mut self) {
        let Some(kernel) = self.fast_path.kernel_mut() else { return };
        for (&group, entry) in &self.groups {
            let Some(delegation) = entry.delegation().filter(|_| !kernel.is_window_wanted(group)) else {
                continue;
            };
            match kernel.send_written(group) {
                SendOutcome::Refused => entry.end_delegation(),
                SendOutcome::NotHandedOff if is_idle(&self.protocol, group) => entry.end_delegation(),
                SendOutcome::Partial | SendOutcome::AwaitsWindow | SendOutcome::NotHandedOff => {}
                // An application that writes after the end sends itself; what it has written before
                // is seen here.
                SendOutcome::Complete => delegation.end_if_complete(|| kernel.has_sent_all(group)),
            }
        }
    }

    /// Whether delegated packets can be sent now, by the kernel's packet path or by the protocol.
    pub fn can_send_delegated(&self) -> bool {
        let Some(kernel) = self.fast_path.kernel() else { return false };
        let can_send = |group| {
            if kernel.runs(group) { !kernel.is_window_wanted(group) } else { is_idle(&self.protocol, group) }
        };
        self.groups.iter().any(|(&group, entry)| entry.delegation().is_some() && can_send(group))
    }
}

/// Whether no packet of a root's group is in flight.
fn is_idle(protocol: &Protocol, group: GroupId) -> bool {
    let next = protocol.readable(group).map(|(_, next)| next);
    protocol.freed(group).is_none_or(|freed| next.is_none_or(|next| freed == next))
}
