//! A member gets its place in the tree, and with it the ring of its group.

use std::sync::{Arc, Mutex};

use treecast_proto::{GroupId, Input, MemberId};
use treecast_shm::clock;
use treecast_shm::settings::RingSettings;
use treecast_shm::shared_group::{Placement, RingSide};
use treecast_wire::View;

use super::background::{Made, Placing};
use super::core::Core;
use super::rings::NewRing;

impl Core {
    /// A member has its place in the tree, and gets its ring.
    pub(super) fn place(&mut self, group: GroupId, member: MemberId, settings: RingSettings) {
        let Some(entry) = self.groups.get_mut(&group) else { return };
        let (shared_group, replaced) = (Arc::clone(&entry.shared_group), entry.side.take());
        if let Some(replaced) = replaced {
            self.background.free(replaced);
        }
        self.remove_from_kernel(group);
        let state_bytes = self.state_bytes(group);
        let placing = Placing { shared_group, member, settings, state_bytes };
        if self.rings().takes_long(settings) {
            self.hold(Input::Hold { group });
            self.background.place(placing);
        } else {
            let made = self.rings().make(&placing.shared_group, settings, state_bytes);
            self.on_ring_made(placing, made);
        }
    }

    /// Lets the members go on whose rings have been made.
    pub fn take_rings(&mut self) {
        while let Some((placing, made)) = self.background.next_made() {
            let group = placing.shared_group.group;
            let entry = self.groups.get(&group);
            let is_current =
                entry.is_some_and(|entry| Arc::ptr_eq(&entry.shared_group, &placing.shared_group));
            if is_current {
                self.hold(Input::Release { group });
                self.on_ring_made(placing, made);
            } else if let Ok(NewRing { kernel: Some(kernel), .. }) = made {
                self.background.unmake(kernel);
            }
        }
    }

    /// Holds a group back, or lets it go on. It may have ended.
    fn hold(&mut self, input: Input<'_>) {
        let _ = self.protocol.handle(clock::now(), input);
    }

    fn on_ring_made(&mut self, placing: Placing, made: Made) {
        let Placing { shared_group, member, settings, .. } = placing;
        let group = shared_group.group;
        let NewRing { writer, reader, kernel } = match made {
            Ok(ring) => ring,
            Err(reason) => return self.fail(group, &reason),
        };
        if let Some(kernel) = kernel {
            self.add_to_kernel(kernel, &shared_group, None);
        }
        if let Some(memory) = writer.shared_memory() {
            shared_group.events.attach_kernel(memory.clone());
        }
        if let Some(entry) = self.groups.get_mut(&group) {
            entry.consumed = settings.start;
            entry.side = Some(RingSide::Writer(writer));
            self.unpublished.insert(group);
        }
        let side = Mutex::new(Some(RingSide::Reader(reader)));
        let RingSettings { offload, encrypted_session, .. } = settings;
        shared_group.set_placement(Placement { side, member: member.0, offload, encrypted_session });
    }

    /// Whether a datagram is about a member that waits for its ring, and is dropped: it is sent
    /// again.
    pub fn awaits_ring(&self, datagram: &[u8]) -> bool {
        self.background.is_placing()
            && View::new(datagram).is_ok_and(|view| self.protocol.is_held(view.group()))
    }
}
