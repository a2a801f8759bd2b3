//! The settings of a node and of a group.

use std::net::SocketAddr;

use treecast_wire::{
    Authentication, GroupId, Integrity, MemberId, Offload, PAYLOAD_BYTES_MAX, ReaderSet, Sequence, SessionId,
    Table, Transport,
};

use crate::{GroupKey, Nanoseconds, Refused, StateSize};

/// The settings of all groups of a node.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A neighbour that does not answer for this time is declared dead.
    pub peer_timeout: Nanoseconds,
    /// How long the root waits for a member's first answer.
    pub join_timeout: Nanoseconds,
    /// The interval of keepalive probes to an idle child, which doubles twice while there is
    /// nothing for it. At most an eighth of `peer_timeout`.
    pub keepalive: Nanoseconds,
    /// The minimum RTO (RFC 6298, section 2.4).
    pub min_rto: Nanoseconds,
    /// The greatest number of groups.
    pub groups_max: usize,
    /// The greatest memory of a group's slots in bytes, with what is kept of each slot and for each
    /// child. A member does not join a group that needs more.
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
    /// The group's number.
    pub group: GroupId,
    /// The group's key.
    pub key: GroupKey,
    /// The session, which is this group's life: random.
    pub session: SessionId,
    /// The coverage of the codes of data packets; with offload `switch`, their payloads.
    pub authentication: Authentication,
    /// When members verify the CRCs of payloads.
    pub integrity: Integrity,
    /// What carries data along the tree; with offload `switch` [`Transport::Packets`].
    pub transport: Transport,
    /// Whether the applications encrypt payloads ([`GroupKey::encryption_key`]): members learn it
    /// with their places.
    pub is_encrypted: bool,
    /// The root's own number.
    pub root: MemberId,
    /// The address of each member's node, by the member's number.
    pub members: Vec<SocketAddr>,
    /// Of members whose nodes several processes share, the number of these: 2 to
    /// [`treecast_wire::ReaderSet::READERS_MAX`].
    pub readers: Vec<(MemberId, u32)>,
    /// The children of each member in the order in which they are sent to, by the member's number.
    /// They form a tree below the root; the number of a child is greater than its parent's unless
    /// that is the root.
    pub children: Vec<Vec<MemberId>>,
    /// The number of slots of each member: a power of two from [`CreateGroup::SLOTS_MIN`] to
    /// [`Table::SLOTS_MAX`].
    pub slots: u32,
    /// The longest payload of a packet in bytes: [`Table::PAYLOAD_BYTES_MIN`] to
    /// [`PAYLOAD_BYTES_MAX`].
    pub payload_bytes_max: u16,
    /// Which part of a host forwards.
    pub offload: Offload,
    /// The address to which the root sends data with offload `switch`, a multicast address; with
    /// any other offload there is none.
    pub multicast: Option<SocketAddr>,
    /// The number of the first packet.
    pub start: Sequence,
    /// Whether hosts that join later become members.
    pub admits: bool,
    /// The most members that are present at a time; further hosts are refused. At most
    /// [`CreateGroup::MEMBERS_MAX`] count.
    pub members_max: usize,
    /// The pacing rate of the root in bytes per second of whole datagrams; `None`: no pacing, only
    /// windows.
    pub bytes_per_s_max: Option<u64>,
}

impl CreateGroup {
    /// The least number of slots.
    pub const SLOTS_MIN: u32 = 4;

    /// The greatest number of members.
    pub const MEMBERS_MAX: usize = Table::NEIGHBOURS_MAX;

    /// The size of the group's state at its root when it is created.
    pub fn state_size(&self) -> StateSize {
        let children = self.children.get(self.root.index()).map_or(0, Vec::len);
        StateSize { slots: self.slots, members: self.members.len(), shared: self.readers.len(), children }
    }

    /// The parent of each member; the root has none.
    ///
    /// # Errors
    /// [`Refused`] for numbers out of bounds, and for children that form no tree below the root.
    pub(crate) fn parents(&self) -> Result<Vec<Option<MemberId>>, Refused> {
        let within = |what, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(Refused::Bounds { what, value, min, max }) }
        };
        within("members", self.members.len() as u64, 1, Self::MEMBERS_MAX as u64)?;
        for &(member, count) in &self.readers {
            within(
                "the number of a member whose node is shared",
                member.0.into(),
                0,
                self.members.len() as u64 - 1,
            )?;
            within("the number of processes of a node", count.into(), 2, ReaderSet::READERS_MAX.into())?;
        }
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
        let is_right = match self.multicast {
            Some(address) => self.offload == Offload::Switch && address.ip().is_multicast(),
            None => self.offload != Offload::Switch,
        };
        if !is_right {
            return Err(Refused::Multicast);
        }
        if self.multicast.is_some() && self.transport.has_streams() {
            return Err(Refused::MulticastStreams);
        }
        if self.multicast.is_some() && self.authentication == Authentication::Header {
            return Err(Refused::UnauthenticMulticast);
        }
        let members = self.members.len();
        if self.root.0 as usize >= members || self.children.len() != members {
            return Err(Refused::Tree(self.root));
        }
        let mut parents = vec![None; members];
        let mut reached = vec![self.root];
        while let Some(parent) = reached.pop() {
            for &child in &self.children[parent.0 as usize] {
                let place = parents.get_mut(child.0 as usize).ok_or(Refused::Tree(child))?;
                if child == self.root || place.is_some() {
                    return Err(Refused::Tree(child));
                }
                *place = Some(parent);
                reached.push(child);
            }
        }
        let orphan = (0..members as u32)
            .map(MemberId)
            .find(|member| *member != self.root && parents[member.0 as usize].is_none());
        orphan.map_or(Ok(parents), |orphan| Err(Refused::Tree(orphan)))
    }
}
