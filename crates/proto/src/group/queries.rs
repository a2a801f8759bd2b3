//! What a node asks about one of its groups.

use std::net::SocketAddr;

use treecast_wire::{Challenge, GroupId, HEADER_BYTES, Keys, MemberId, Offload, Sequence, SessionId};

use super::member_table::MemberTable;
use super::membership::Membership;
use super::{Group, Role};
use crate::flow::Flow;
use crate::{GroupCounters, GroupStatus, Nanoseconds, Piece, StateSize};

/// The node's queries about a group.
impl Group {
    pub const fn id(&self) -> GroupId {
        self.header.group
    }

    /// The keys under which the code of a packet is to be: those of handshakes, or of the session,
    /// if that is known.
    pub fn keys(&self, is_handshake: bool) -> Option<&Keys> {
        if is_handshake { Some(self.header.handshake_keys()) } else { self.header.keys() }
    }

    pub fn session(&self) -> Option<SessionId> {
        self.header.session()
    }

    pub fn state_size(&self) -> StateSize {
        StateSize {
            slots: self.flow.as_ref().map_or(0, Flow::slot_count),
            members: match &self.role {
                Role::Root(table) => table.capacity(),
                Role::Member(_) => 0,
            },
            shared: match &self.role {
                Role::Root(table) => table.shared_count(),
                Role::Member(_) => 0,
            },
            children: self.flow.as_ref().map_or(0, Flow::child_capacity),
        }
    }

    /// The memory that a group of this size allocates, in bytes.
    pub const fn heap_bytes(size: StateSize) -> usize {
        let StateSize { slots, members, shared, children } = size;
        let role_bytes =
            if members > 0 { MemberTable::bytes(members, shared) } else { Membership::bytes(children) };
        let flow_bytes = if slots > 0 { Flow::heap_bytes(slots, children) } else { 0 };
        role_bytes + flow_bytes
    }

    /// Whether the group has ended here; it may still have notices to send.
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the group has ended here and has nothing more to send.
    pub fn is_over(&self) -> bool {
        self.has_ended
            && match &self.role {
                Role::Root(table) => table.is_finished(),
                Role::Member(_) => self.root_loss_notices.is_none(),
            }
    }

    pub fn next(&self) -> Option<Sequence> {
        self.flow.as_ref().map(Flow::next)
    }

    pub fn readable(&self) -> Option<(Sequence, Sequence)> {
        self.flow.as_ref().map(Flow::readable)
    }

    pub fn piece(&self, packet: Sequence) -> Option<&Piece> {
        self.flow.as_ref()?.piece(packet)
    }

    pub fn stable(&self) -> Option<Sequence> {
        self.flow.as_ref().map(Flow::stable)
    }

    pub fn unsent(&self) -> Option<Sequence> {
        self.flow.as_ref().map(Flow::unsent)
    }

    pub fn freed(&self) -> Option<Sequence> {
        self.flow.as_ref().map(Flow::freed)
    }

    pub fn free_end(&self) -> Option<Sequence> {
        self.flow.as_ref().map(Flow::free_end)
    }

    pub fn offload(&self) -> Option<Offload> {
        self.flow.as_ref().map(Flow::offload)
    }

    pub fn is_closed(&self) -> bool {
        self.flow.as_ref().is_some_and(Flow::is_closed)
    }

    pub fn free_slots(&self) -> u32 {
        match (&self.role, &self.flow) {
            (Role::Root(table), Some(flow)) if !table.is_closing() => flow.free_slots(),
            _ => 0,
        }
    }

    pub fn epoch(&self) -> Option<u32> {
        self.flow.as_ref().map(|_| self.header.epoch)
    }

    pub fn neighbours(&self) -> Option<(Option<SocketAddr>, Vec<SocketAddr>)> {
        let parent = match &self.role {
            Role::Root(_) => None,
            Role::Member(membership) => Some(membership.parent_address()?),
        };
        Some((parent, self.flow.as_ref()?.addresses().collect()))
    }

    /// In a group with streams, the address of the parent to which this node is to open its stream.
    pub fn stream_parent(&self) -> Option<SocketAddr> {
        let is_wanted = !self.has_ended && self.flow.as_ref().is_some_and(Flow::has_streams);
        self.neighbours().and_then(|(parent, _)| parent).filter(|_| is_wanted)
    }

    pub fn datagrams_until(&self) -> Nanoseconds {
        self.flow.as_ref().map_or(Nanoseconds::ZERO, Flow::datagrams_until)
    }

    /// The packet that opens the stream to the parent.
    pub fn attach_packet(&self, challenge: Challenge) -> Option<[u8; HEADER_BYTES]> {
        self.header.attach(challenge, self.flow.as_ref()?.next())
    }

    /// Whether a child of this node has a stream.
    pub fn has_stream(&self, child: MemberId) -> bool {
        !self.has_ended && self.flow.as_ref().is_some_and(|flow| flow.has_stream(child))
    }

    pub fn root(&self) -> Option<SocketAddr> {
        match &self.role {
            Role::Root(_) => None,
            Role::Member(membership) => Some(membership.root()),
        }
    }

    pub fn awaited(&self) -> Vec<MemberId> {
        match &self.role {
            Role::Root(table) => table.awaited(),
            Role::Member(_) => Vec::new(),
        }
    }

    pub fn awaited_readers(&self) -> Vec<(MemberId, u32)> {
        match &self.role {
            Role::Root(table) => table.awaited_readers(),
            Role::Member(_) => Vec::new(),
        }
    }

    pub fn children(&self) -> impl Iterator<Item = MemberId> {
        self.flow.iter().flat_map(Flow::children)
    }

    pub fn reached_children(&self) -> impl Iterator<Item = MemberId> {
        self.flow.iter().flat_map(Flow::reached_children)
    }

    pub fn slow_members(&self) -> Vec<MemberId> {
        let slow = |flow: &Flow| {
            let itself = flow.waits_for_readers().then_some(self.header.member);
            itself.into_iter().chain(flow.slow_children()).collect()
        };
        self.flow.as_ref().map_or_else(Vec::new, slow)
    }

    pub fn status(&self) -> GroupStatus {
        let (members, parent) = match &self.role {
            Role::Root(table) => (table.status(), None),
            Role::Member(membership) => (Vec::new(), membership.parent_address()),
        };
        let place = self.flow.as_ref().map(|flow| flow.status(self.header.member, self.header.epoch, parent));
        GroupStatus { root: self.root(), place, members }
    }

    pub fn counters(&self) -> &GroupCounters {
        self.flow.as_ref().map_or(&self.early_counters, Flow::counters)
    }
}
