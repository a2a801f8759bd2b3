//! A node of several processes: its members, its shared memory, and the broadcasts that they are
//! in.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use treecast_plan::MemberId;

use super::policy::Average;
use super::script::{PacketId, Piece};

/// A node, and the members of the group on it.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// The members on it, by number.
    pub members: Vec<MemberId>,
    /// The number of receivers: all members but the root.
    pub receivers: u32,
    /// The root, or the first member.
    pub leader: MemberId,
    /// Packets in shared memory that not all readers have read.
    pub queue: BTreeSet<PacketId>,
    /// The broadcasts that not all members have left.
    pub broadcast_states: BTreeMap<u32, BroadcastState>,
    /// All members have left this broadcast and the earlier ones.
    pub done: u32,
    /// The average wait that the leader publishes.
    pub leader_wait: Average,
}

/// A broadcast on a node.
#[derive(Debug, Clone, Default)]
pub(super) struct BroadcastState {
    /// The first process to enter.
    pub first: Option<MemberId>,
    /// Whether the leader found a packet waiting when it entered.
    pub found_waiting: Option<bool>,
    /// Whether the node has acknowledged.
    pub has_acknowledged: bool,
    /// The number of members that have left.
    pub left: u32,
    /// The number of readers of each packet in shared memory.
    pub readers: BTreeMap<u32, u32>,
    /// Packets that all readers have read.
    pub taken: BTreeSet<u32>,
}

/// The pieces for a process, through shared memory or from another node.
#[derive(Debug, Clone, Default)]
pub(super) struct Inbox {
    pub pieces: VecDeque<Piece>,
    /// The number of slots in use.
    pub slots: u32,
}

impl Node {
    /// A node without members.
    pub const EMPTY: Self = Self {
        members: Vec::new(),
        receivers: 0,
        leader: MemberId(0),
        queue: BTreeSet::new(),
        broadcast_states: BTreeMap::new(),
        done: 0,
        leader_wait: Average::NONE,
    };

    /// The state of a broadcast that not all members have left.
    pub fn broadcast_state(&mut self, broadcast: u32) -> &mut BroadcastState {
        self.broadcast_states.entry(broadcast).or_default()
    }

    /// Whether a shared packet is in memory or has been read by all.
    pub fn knows(&self, packet_id: PacketId) -> bool {
        let is_taken = |state: &BroadcastState| state.taken.contains(&packet_id.packet);
        packet_id.broadcast <= self.done
            || self.queue.contains(&packet_id)
            || self.broadcast_states.get(&packet_id.broadcast).is_some_and(is_taken)
    }
}
