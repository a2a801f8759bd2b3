//! What a node and a group are set to.

use std::net::SocketAddr;

use treecast_wire::{Cookie, GroupId, MemberId, Offload, PAYLOAD_BYTES_MAX, Sequence, Table};

use crate::{Nanoseconds, Refused};

/// What holds for all groups of a node.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A neighbour that has been asked for so long, and has said nothing, is taken for dead.
    pub peer_timeout: Nanoseconds,
    /// How long the root waits for a member that has never answered.
    pub join_timeout: Nanoseconds,
    /// A quiet neighbour is asked for a sign of life as often. At most a quarter of `peer_timeout`.
    pub keepalive: Nanoseconds,
    /// The shortest wait before an answer is missed.
    pub min_rto: Nanoseconds,
    /// The most groups.
    pub groups_max: usize,
    /// The most memory of a group's slots, in bytes. A group that asks for more is not followed.
    pub slot_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            peer_timeout: Nanoseconds::from_ms(800),
            join_timeout: Nanoseconds::from_ms(10_000),
            keepalive: Nanoseconds::from_ms(100),
            min_rto: Nanoseconds::from_us(300),
            groups_max: 1_024,
            slot_bytes_max: 1 << 30,
        }
    }
}

/// A group as its root sets it up.
#[derive(Debug, Clone)]
pub struct CreateGroup {
    /// Its number.
    pub group: GroupId,
    /// What tells it from others of that number: random.
    pub cookie: Cookie,
    /// The root's own number.
    pub root: MemberId,
    /// Where each member's node is, by the member's number.
    pub members: Vec<SocketAddr>,
    /// Whom each member sends to, in that order, by the member's number. A tree with the root at its top; the number of a
    /// child is above its parent's unless that is the root.
    pub children: Vec<Vec<MemberId>>,
    /// How many packets each member holds: a power of two from [`CreateGroup::SLOTS_MIN`] to [`Table::SLOTS_MAX`].
    pub slots: u32,
    /// The longest payload of a packet, in bytes: [`Table::PAYLOAD_BYTES_MIN`] to [`PAYLOAD_BYTES_MAX`].
    pub payload_bytes_max: u16,
    /// Who forwards.
    pub offload: Offload,
    /// The number of the first packet.
    pub start: Sequence,
    /// Whether hosts that ask later become members.
    pub admits: bool,
    /// How fast the root sends at most, in bytes a second of whole datagrams; none: as fast as the windows let it.
    pub bytes_per_s_max: Option<u64>,
}

impl CreateGroup {
    /// The fewest slots.
    pub const SLOTS_MIN: u32 = 4;

    /// The most members.
    pub const MEMBERS_MAX: usize = Table::NEIGHBOURS_MAX;

    /// Each member's parent; the root has none.
    ///
    /// # Errors
    /// [`Refused`] for what is out of bounds, and for children that form no tree under the root.
    pub(crate) fn parents(&self) -> Result<Vec<Option<MemberId>>, Refused> {
        let within = |what, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(Refused::Bounds { what, value, min, max }) }
        };
        within("members", self.members.len() as u64, 1, Self::MEMBERS_MAX as u64)?;
        within("slots", self.slots.into(), Self::SLOTS_MIN.into(), Table::SLOTS_MAX.into())?;
        within(
            "payload_bytes_max",
            self.payload_bytes_max.into(),
            Table::PAYLOAD_BYTES_MIN.into(),
            PAYLOAD_BYTES_MAX as u64,
        )?;
        if !self.slots.is_power_of_two() {
            return Err(Refused::Slots(self.slots));
        }
        let members = self.members.len();
        if self.root.0 as usize >= members || self.children.len() != members {
            return Err(Refused::Tree(self.root));
        }
        let mut parents = vec![None; members];
        for (parent, children) in self.children.iter().enumerate() {
            let parent = MemberId(parent as u32);
            for &child in children {
                let place = parents.get_mut(child.0 as usize).ok_or(Refused::Tree(child))?;
                let keeps_id_rule = parent == self.root || child > parent;
                if child == self.root || place.is_some() || !keeps_id_rule {
                    return Err(Refused::Tree(child));
                }
                *place = Some(parent);
            }
        }
        // By the id rule parents lead to smaller numbers until they lead to the root: there are no cycles.
        let orphan = (0..members as u32)
            .map(MemberId)
            .find(|member| *member != self.root && parents[member.0 as usize].is_none());
        orphan.map_or(Ok(parents), |orphan| Err(Refused::Tree(orphan)))
    }
}
