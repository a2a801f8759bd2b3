//! What a node's user asks about the node and its groups.

use std::net::SocketAddr;

use treecast_wire::{Challenge, GroupId, HEADER_BYTES, MemberId, Offload, Sequence, SessionId};

use super::Protocol;
use crate::group::Group;
use crate::{GroupCounters, GroupStatus, Nanoseconds, Piece, StateSize, StrayCounters};

/// Queries.
impl Protocol {
    /// The packets that readers may read: from the first one kept to before the next one expected.
    /// `None` if the group is not at this node, or has no place yet.
    pub fn readable(&self, group: GroupId) -> Option<(Sequence, Sequence)> {
        self.group(group)?.readable()
    }

    /// The next packet expected; at the root, the next one to be queued.
    pub fn next(&self, group: GroupId) -> Option<Sequence> {
        self.group(group)?.next()
    }

    /// The piece of a packet that may be read.
    pub fn piece(&self, group: GroupId, packet: Sequence) -> Option<&Piece> {
        self.group(group)?.piece(packet)
    }

    /// At the root, the number of packets that may be queued now; 0 if the group is not at this
    /// node.
    pub fn free_slots(&self, group: GroupId) -> u32 {
        self.group(group).map_or(0, Group::free_slots)
    }

    /// All packets before it are accepted by every member of this node's subtree.
    pub fn stable(&self, group: GroupId) -> Option<Sequence> {
        self.group(group)?.stable()
    }

    /// The first packet that some child has not been sent on its stream, or may not have, since
    /// that has ended.
    pub fn unsent(&self, group: GroupId) -> Option<Sequence> {
        self.group(group)?.unsent()
    }

    /// All packets before it have left their slots.
    pub fn freed(&self, group: GroupId) -> Option<Sequence> {
        self.group(group)?.freed()
    }

    /// The first packet, from the next expected one on, whose slot is not free: it came before its
    /// turn, or there is no slot for it.
    pub fn free_end(&self, group: GroupId) -> Option<Sequence> {
        self.group(group)?.free_end()
    }

    /// Whether the root has closed the group and everything has arrived.
    pub fn is_closed(&self, group: GroupId) -> bool {
        self.group(group).is_some_and(Group::is_closed)
    }

    /// Which part of a host forwards, once this node has its place.
    pub fn offload(&self, group: GroupId) -> Option<Offload> {
        self.group(group)?.offload()
    }

    /// The children of this node, in the order in which they are sent to.
    pub fn children(&self, group: GroupId) -> impl Iterator<Item = MemberId> {
        self.group(group).into_iter().flat_map(Group::children)
    }

    /// The children in the tree that multicast reaches, with
    /// [`Offload::Switch`](crate::Offload::Switch).
    pub fn reached_children(&self, group: GroupId) -> impl Iterator<Item = MemberId> {
        self.group(group).into_iter().flat_map(Group::reached_children)
    }

    /// The members that the packets in this node's slots wait for: children to which they come
    /// slowly, and this member itself if its readers are slow. Children whose slots are full are
    /// not among them: they wait for others.
    pub fn slow_members(&self, group: GroupId) -> Vec<MemberId> {
        self.group(group).map_or_else(Vec::new, Group::slow_members)
    }

    /// The session of the group, once this node knows it.
    pub fn session(&self, group: GroupId) -> Option<SessionId> {
        self.group(group)?.session()
    }

    /// The epoch of the tree in which this node has its place; `None` without a place.
    pub fn epoch(&self, group: GroupId) -> Option<u32> {
        self.group(group)?.epoch()
    }

    /// At another member, the address of the root's node.
    pub fn root(&self, group: GroupId) -> Option<SocketAddr> {
        self.group(group)?.root()
    }

    /// The addresses of this node's parent, which the root does not have, and of its children in
    /// the order in which they are sent to.
    pub fn neighbours(&self, group: GroupId) -> Option<(Option<SocketAddr>, Vec<SocketAddr>)> {
        self.group(group)?.neighbours()
    }

    /// At the root of a group with both carriers: until when datagrams are preferred, since streams
    /// in its tree lose packets.
    pub fn datagrams_until(&self, group: GroupId) -> Nanoseconds {
        self.group(group).map_or(Nanoseconds::ZERO, Group::datagrams_until)
    }

    /// With streams, the address of this node's parent, to which it is to open its
    /// stream.
    pub fn stream_parent(&self, group: GroupId) -> Option<SocketAddr> {
        self.group(group)?.stream_parent()
    }

    /// The packet that answers the challenge of the parent, and opens this node's stream.
    pub fn attach_packet(&self, group: GroupId, challenge: Challenge) -> Option<[u8; HEADER_BYTES]> {
        self.group(group)?.attach_packet(challenge)
    }

    /// Whether a child of this node has a stream.
    pub fn has_stream(&self, group: GroupId, child: MemberId) -> bool {
        self.group(group).is_some_and(|group| group.has_stream(child))
    }

    /// At the root, the processes of shared nodes that have not come, by member and place.
    pub fn awaited_readers(&self, group: GroupId) -> Vec<(MemberId, u32)> {
        self.group(group).map_or_else(Vec::new, Group::awaited_readers)
    }

    /// At the root, the members that have never acknowledged a table.
    pub fn awaited(&self, group: GroupId) -> Vec<MemberId> {
        self.group(group).map_or_else(Vec::new, Group::awaited)
    }

    /// The size of the group's state. It changes only when the tree does, and so the epoch.
    pub fn state_size(&self, group: GroupId) -> Option<StateSize> {
        self.group(group).map(Group::state_size)
    }

    /// The counters of a group.
    pub fn counters(&self, group: GroupId) -> Option<&GroupCounters> {
        self.group(group).map(Group::counters)
    }

    /// The counters of datagrams that belong to no group.
    pub const fn strays(&self) -> &StrayCounters {
        &self.strays
    }

    /// Whether the group is at this node.
    pub fn has(&self, group: GroupId) -> bool {
        self.indices.contains_key(&group)
    }

    /// The groups at this node.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.indices.keys().copied()
    }

    /// The state of a group; at the hand-off, if it is handed off. It takes O(n) steps at the root
    /// of n members.
    pub fn status(&self, group: GroupId) -> Option<GroupStatus> {
        self.group(group).map(Group::status)
    }

    pub(crate) fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(*self.indices.get(&id)?).map(|entry| &entry.group)
    }
}
