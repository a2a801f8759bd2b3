//! Who sends next: the owners of groups take turns, and so do the groups of an owner.

use std::collections::VecDeque;

/// Who a group of a node belongs to, such as the user of a daemon. Owners share the node's time in
/// equal parts, however many groups each has.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub u32);

/// Groups, by their indices, that may have something to send: round robin among owners, and among
/// the groups of each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns {
    /// Owners with groups; the first has its turn.
    owners: VecDeque<(OwnerId, VecDeque<usize>)>,
    /// The cost of the datagrams that the first owner has sent in its turn.
    sent: u32,
    /// Empty queues, whose memory is used again.
    spare: Vec<VecDeque<usize>>,
}

/// The most that an owner's datagrams may cost before others have their turn
/// ([`crate::Transmit::cost`]): a burst of data to one child (`flow/send.rs`), or 11 other
/// datagrams. The last datagram may exceed it.
pub const TURN_MAX: u32 = 44;

impl Turns {
    /// Adds a group that is not there, behind the other groups of its owner.
    pub fn push(&mut self, owner: OwnerId, index: usize) {
        if let Some((_, groups)) = self.owners.iter_mut().find(|(other, _)| *other == owner) {
            groups.push_back(index);
        } else {
            let mut groups = self.spare.pop().unwrap_or_default();
            groups.push_back(index);
            self.owners.push_back((owner, groups));
        }
    }

    /// The group whose turn it is.
    pub fn first(&self) -> Option<usize> {
        self.owners.front().and_then(|(_, groups)| groups.front().copied())
    }

    /// The first group has sent a datagram of this cost; the next one has its turn.
    pub fn on_sent(&mut self, cost: u32) {
        let Some((_, groups)) = self.owners.front_mut() else { return };
        groups.rotate_left(1);
        self.sent += cost;
        if self.sent >= TURN_MAX {
            self.owners.rotate_left(1);
            self.sent = 0;
        }
    }

    /// Removes a group, wherever it is.
    pub fn remove(&mut self, index: usize) {
        for (_, groups) in &mut self.owners {
            groups.retain(|&other| other != index);
        }
        if self.owners.front().is_some_and(|(_, groups)| groups.is_empty()) {
            self.sent = 0;
        }
        self.owners.retain(|(_, groups)| !groups.is_empty());
    }

    /// The first group has nothing more to send.
    pub fn pop(&mut self) {
        let Some((_, groups)) = self.owners.front_mut() else { return };
        groups.pop_front();
        if groups.is_empty() {
            self.spare.extend(self.owners.pop_front().map(|(_, groups)| groups));
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever groups owners have: between two turns of an owner with something to send each
        /// other one sends a turn at most.
        #[test]
        fn owners_share_equally(groups in prop::collection::vec(1..20_usize, 1..6), costs in prop::collection::vec(1..5_u32, 6)) {
            let mut turns = Turns::default();
            let mut owner_of = Vec::new();
            for (owner, &count) in groups.iter().enumerate() {
                for _ in 0..count {
                    turns.push(OwnerId(owner as u32), owner_of.len());
                    owner_of.push(owner);
                }
            }
            let rounds = 3_u32;
            let mut sent = vec![0_u32; groups.len()];
            let turns_of = |sent: &[u32]| -> Vec<u32> {
                sent.iter().zip(&costs).map(|(sent, cost)| sent / TURN_MAX.div_ceil(*cost)).collect()
            };
            while turns_of(&sent).contains(&0) || turns_of(&sent).iter().sum::<u32>() < rounds * groups.len() as u32 {
                let owner = owner_of[turns.first().unwrap()];
                sent[owner] += 1;
                turns.on_sent(costs[owner]);
                let of = turns_of(&sent);
                prop_assert!(of.iter().max().unwrap() - of.iter().min().unwrap() <= 1, "{of:?}");
            }
            prop_assert_eq!(turns_of(&sent), vec![rounds; groups.len()]);
        }
    }

    #[test]
    fn groups_of_an_owner_take_turns_and_leave() {
        let mut turns = Turns::default();
        for index in 0..3 {
            turns.push(OwnerId(0), index);
        }
        turns.push(OwnerId(1), 9);
        let mut order = Vec::new();
        for _ in 0..4 {
            order.extend(turns.first());
            turns.on_sent(1);
        }
        // The group of index 1 is first now.
        turns.pop();
        order.extend(turns.first());
        turns.pop();
        turns.pop();
        order.extend(turns.first());
        turns.pop();
        order.extend(turns.first());
        assert_eq!(order, [0, 1, 2, 0, 2, 9]);
    }
}
