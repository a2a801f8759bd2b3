//! Groups of the node with the program: posted, handed off to it, and reclaimed.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use treecast_ebpf::{CHILDREN_MAX, KernelGroup, ReceivedNak, WakeSocket};
use treecast_proto::{GroupId, HandOff, Input, Nanoseconds, Protocol, Sequence};

use super::compare::WAKE_NONCE;
use super::{Pair, text};

/// A group of the node with the program.
pub(super) struct Posted {
    pub(super) kernel: KernelGroup,
    pub(super) state: HandOff,
    pub(super) is_root: bool,
    /// With offload `switch`, the address to which the root sends data.
    pub(super) multicast: Option<SocketAddr>,
}

impl Pair<'_> {
    pub(super) fn post(
        &mut self,
        group: GroupId,
        start: Sequence,
        slots: u32,
        payload_bytes_max: u16,
        is_root: bool,
        multicast: Option<SocketAddr>,
    ) -> Result<(), String> {
        if let Some(before) = self.groups.remove(&group) {
            self.lab.remove_group(before.kernel);
        }
        let mut kernel = self.lab.add_group(group, slots);
        if usize::from(payload_bytes_max) > kernel.memory().payload_bytes_max() {
            return Err(format!("payloads of {payload_bytes_max} bytes are longer than the slots"));
        }
        kernel.memory().read().store(start.0, Ordering::Release);
        kernel.set_wake_socket(WakeSocket { port: self.wake_address().port(), nonce: WAKE_NONCE });
        if is_root {
            kernel.set_root_socket(self.lab.application());
        }
        self.groups.insert(group, Posted { kernel, state: HandOff::new(), is_root, multicast });
        Ok(())
    }

    /// Updates the reference by the application's page.
    pub(super) fn sync_consumed(&mut self, now: Nanoseconds, group: GroupId) {
        let posted = &self.groups[&group];
        let read = Sequence(posted.kernel.memory().read().load(Ordering::Acquire));
        if !posted.is_root && self.reference().readable(group).is_some_and(|(from, _)| from != read) {
            // An invalid number is refused, and changes nothing.
            let _ = self.reference.request(now, Input::Consumed { group, upto: read });
        }
    }

    /// The slow path reclaims a group, and reads its page. Then it handles the NAKs that the
    /// program has kept, before anything that has arrived after them.
    pub(super) fn reclaim(&mut self, now: Nanoseconds, group: GroupId) {
        let Some(Posted { kernel, state, is_root, .. }) = self.groups.get_mut(&group) else { return };
        reclaim(&mut self.subject, now, kernel, state);
        let read = Sequence(kernel.memory().read().load(Ordering::Acquire));
        if !*is_root && self.subject.readable(group).is_some_and(|(from, _)| from != read) {
            let _ = self.subject.handle(now, Input::Consumed { group, upto: read });
        }
        while let Some(ReceivedNak { from, arrived_at, header }) = kernel.take_nak() {
            assert_eq!(arrived_at, now, "user space is woken at once");
            let handled = self.subject.handle(now, Input::Datagram { from, bytes: &header });
            handled.expect("no datagram is refused");
        }
        take_contributions(&mut self.subject, now, kernel);
        kernel.forget_contributions();
    }

    /// At the root, the slow path takes a contribution that the program has left to it, and those
    /// that it has kept; returns whether the program keeps the group.
    pub(super) fn take_contributions(&mut self, group: GroupId, from: SocketAddr, bytes: &[u8]) -> bool {
        let Self { groups, subject, counts, .. } = self;
        let Some(Posted { kernel, .. }) = groups.get_mut(&group) else { return false };
        let next = kernel.next();
        if !subject.take_contribution(from, &subject.check(bytes), next) {
            return false;
        }
        for (from, bytes) in kernel.take_contributions() {
            assert!(subject.take_contribution(from, &subject.check(&bytes), next), "it was kept");
        }
        counts.taken += 1;
        true
    }

    /// Hands off every group that needs no slow path.
    pub(super) fn hand_off(&mut self, now: Nanoseconds) -> Result<(), String> {
        let gone: Vec<GroupId> =
            self.groups.keys().copied().filter(|&group| !self.subject.has(group)).collect();
        for group in gone {
            let posted = self.groups.remove(&group).expect("it was found among the groups");
            self.lab.remove_group(posted.kernel);
        }
        let Self { lab, address, subject, groups, .. } = self;
        for (&group, Posted { kernel, state, .. }) in groups {
            if kernel.is_handed_off() || !subject.hand_off_state(group, state) {
                continue;
            }
            let children: Vec<SocketAddr> = state.children.iter().map(|child| child.address).collect();
            let parent = state.parent.map(|(_, parent)| parent);
            kernel.post_neighbours(parent, &children);
            let is_handed_off = kernel.hand_off(state)
                || lab.learn_paths(*address, group, children.iter().copied().chain(parent)).is_ok()
                    && kernel.hand_off(state);
            if is_handed_off {
                subject.handle(now, Input::HandedOff { group }).map_err(text)?;
            } else if children.len() <= CHILDREN_MAX {
                return Err(format!("group {group} cannot be handed off: {state:?}"));
            }
        }
        Ok(())
    }
}

/// Gives a group back to the protocol, if the program runs it; returns whether it did.
pub fn reclaim(
    protocol: &mut Protocol,
    now: Nanoseconds,
    kernel: &mut KernelGroup,
    state: &mut HandOff,
) -> bool {
    let was_handed_off = kernel.reclaim(state);
    if was_handed_off {
        let group = state.group;
        let packets: Vec<_> =
            protocol.new_packets(group, state).map(|packet| kernel.packet(packet)).collect();
        let input = Input::Reclaimed { group, state, packets: &packets };
        assert_eq!(protocol.handle(now, input), Ok(()), "{state:?}");
    }
    was_handed_off
}

/// The slow path gets the contributions that the program has kept.
pub fn take_contributions(protocol: &mut Protocol, now: Nanoseconds, kernel: &KernelGroup) {
    for (from, bytes) in kernel.contributions() {
        let handled = protocol.handle(now, Input::Datagram { from, bytes: &bytes });
        handled.expect("no datagram is refused");
    }
}
