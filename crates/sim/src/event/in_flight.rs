//! The multicasts in flight.

use std::ops::Index;

use slab::Slab;

use crate::multicast::{Awaited, Multicast};

/// The index of a multicast in flight. It is reused when the multicast is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(u32);

#[derive(Debug)]
struct Entry {
    multicast: Multicast,
    /// Packets in memory, by participant.
    stored: Vec<u32>,
    /// Contributions that each participant still waits for.
    awaited: Vec<Awaited>,
    /// Members that have not received.
    receivers_left: u32,
}

/// The multicasts in flight. Memory is proportional to the largest number that were in flight at
/// once.
#[derive(Debug, Default)]
pub(super) struct InFlight(Slab<Entry>);

impl InFlight {
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn insert(&mut self, multicast: Multicast) -> Slot {
        let stored = vec![0; multicast.participant_count() as usize];
        let (awaited, receivers_left) = (multicast.awaited.clone(), multicast.delivery_count());
        Slot(self.0.insert(Entry { multicast, stored, awaited, receivers_left }) as u32)
    }

    pub fn get_mut(&mut self, slot: Slot) -> &mut Multicast {
        &mut self.entry(slot).multicast
    }

    fn entry(&mut self, slot: Slot) -> &mut Entry {
        self.0.get_mut(slot.0 as usize).expect("the multicast is in flight")
    }

    /// Counts a packet in a participant's memory; returns whether it was the last of the message.
    pub fn store_packet(&mut self, slot: Slot, participant: u32) -> bool {
        let entry = self.entry(slot);
        let stored = &mut entry.stored[participant as usize];
        *stored += 1;
        assert!(*stored <= entry.multicast.packets, "a participant receives each packet once");
        *stored == entry.multicast.packets
    }

    /// Counts a contribution that a participant's process has; returns whether it has all.
    pub fn combine_at_host(&mut self, slot: Slot, participant: u32) -> bool {
        let awaited = &mut self.entry(slot).awaited[participant as usize];
        awaited.at_host -= 1;
        awaited.at_host == 0
    }

    /// Counts a contribution that a participant's network interface has; returns whether it has
    /// all.
    pub fn combine_at_nic(&mut self, slot: Slot, participant: u32) -> bool {
        let awaited = &mut self.entry(slot).awaited[participant as usize];
        awaited.at_nic -= 1;
        awaited.at_nic == 0
    }

    /// Counts a delivery. After the last one, no packet of the multicast is in the fabric: every
    /// copy ends at a destination, and has left the switches before it arrives there.
    pub fn delivered(&mut self, slot: Slot) {
        let entry = self.entry(slot);
        entry.receivers_left -= 1;
        if entry.receivers_left == 0 {
            self.0.remove(slot.0 as usize);
        }
    }
}

impl Index<Slot> for InFlight {
    type Output = Multicast;

    fn index(&self, slot: Slot) -> &Multicast {
        &self.0.get(slot.0 as usize).expect("the multicast is in flight").multicast
    }
}
