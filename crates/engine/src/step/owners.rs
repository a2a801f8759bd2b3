//! Whose groups an engine has, and how they share its socket.

use std::collections::BTreeMap;

use treecast_proto::OwnerId;

/// The owners of an engine's groups. Each has a lane of the socket ([`crate::datagrams`]); lane 0
/// is for datagrams of no group.
#[derive(Debug)]
pub(super) struct Owners {
    /// The number of lanes of the socket, and how many of them have ever had groups.
    lanes: usize,
    lanes_used: usize,
    owners: BTreeMap<OwnerId, Owner>,
    has_changed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Owner {
    groups: u32,
    lane: usize,
}

impl Owners {
    pub const fn new(lanes: usize) -> Self {
        Self { lanes, lanes_used: 1, owners: BTreeMap::new(), has_changed: false }
    }

    /// An owner has another group.
    pub fn add(&mut self, owner: OwnerId) {
        let lane = self.owners.get(&owner).map_or_else(|| self.emptiest_lane(), |owner| owner.lane);
        self.owners.entry(owner).or_insert(Owner { groups: 0, lane }).groups += 1;
        self.lanes_used = self.lanes_used.max(lane + 1);
        self.has_changed = true;
    }

    /// An owner has one group less.
    pub fn remove(&mut self, owner: OwnerId) {
        if let Some(known) = self.owners.get_mut(&owner) {
            known.groups -= 1;
            if known.groups == 0 {
                self.owners.remove(&owner);
            }
            self.has_changed = true;
        }
    }

    /// The lane with the fewest owners, except lane 0.
    fn emptiest_lane(&self) -> usize {
        let owners = |lane: usize| self.owners.values().filter(|owner| owner.lane == lane).count();
        (1..self.lanes).min_by_key(|&lane| owners(lane)).unwrap_or(0)
    }

    /// Whether the socket has lanes for several owners, and one for datagrams of no group.
    pub const fn have_lanes(&self) -> bool {
        self.lanes > 1
    }

    /// Whether several owners have groups now, and share the engine in turns.
    pub fn are_several(&self) -> bool {
        self.owners.len() > 1
    }

    /// The number of an owner's groups.
    pub fn groups(&self, owner: OwnerId) -> u32 {
        self.owners.get(&owner).map_or(0, |owner| owner.groups)
    }

    /// The lane of an owner.
    pub fn lane(&self, owner: OwnerId) -> usize {
        self.owners.get(&owner).map_or(0, |owner| owner.lane)
    }

    /// The number of lanes from the first one on that may have datagrams.
    pub const fn lanes_used(&self) -> usize {
        self.lanes_used
    }

    /// Whether datagrams are to be steered anew.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed) && self.have_lanes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_has_a_lane_while_there_are_enough() {
        let mut owners = Owners::new(4);
        let lanes: Vec<usize> = [7, 5, 7, 9, 1, 2]
            .map(|owner| {
                owners.add(OwnerId(owner));
                owners.lane(OwnerId(owner))
            })
            .into();
        assert_eq!(lanes, [1, 2, 1, 3, 1, 2]);
        assert_eq!((owners.groups(OwnerId(7)), owners.lanes_used()), (2, 4));
        assert!(owners.take_change() && !owners.take_change());
        assert!(owners.are_several());
        owners.remove(OwnerId(9));
        assert_eq!((owners.groups(OwnerId(9)), owners.lane(OwnerId(9))), (0, 0));
        owners.add(OwnerId(3));
        assert_eq!(owners.lane(OwnerId(3)), 3);
    }

    #[test]
    fn a_socket_of_one_lane_is_never_steered() {
        let mut owners = Owners::new(1);
        owners.add(OwnerId(0));
        assert!(!owners.take_change() && !owners.are_several());
        assert_eq!((owners.lane(OwnerId(0)), owners.lanes_used()), (0, 1));
    }
}
