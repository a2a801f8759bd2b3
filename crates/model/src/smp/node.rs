//! A node of several processes: its members, its shared memory, and the broadcasts that they are in.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use treecast_plan::MemberId;

use super::policy::Average;
use super::script::{Part, Piece};

/// A node, and who of the group is on it.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// The members on it, by number.
    pub members: Vec<MemberId>,
    /// How many of them receive: all but the root.
    pub receivers: u32,
    /// The root, or the first member.
    pub leader: MemberId,
    /// Packets in memory that all processes share, not yet read by all that are to read them.
    pub queue: BTreeSet<Part>,
    /// The broadcasts that not all have left.
    pub rounds: BTreeMap<u32, Round>,
    /// All have left this one and those before.
    pub done: u32,
    /// The wait of the leader, as it publishes it.
    pub leader_wait: Average,
}

/// A broadcast on a node.
#[derive(Debug, Clone, Default)]
pub(super) struct Round {
    /// Who came first.
    pub first: Option<MemberId>,
    /// Whether the leader, when it came, found a packet waiting.
    pub found_waiting: Option<bool>,
    /// Whether the node has acknowledged.
    pub has_acknowledged: bool,
    /// How many have left.
    pub left: u32,
    /// How many have read each packet out of shared memory.
    pub readers: BTreeMap<u32, u32>,
    /// Which packets nobody needs any more.
    pub taken: BTreeSet<u32>,
}

/// What has come for a process through shared memory, or from another node.
#[derive(Debug, Clone, Default)]
pub(super) struct Inbox {
    pub pieces: VecDeque<Piece>,
    /// How many slots of the queue are taken.
    pub slots: u32,
}

impl Node {
    /// A node that nobody is on yet.
    pub const EMPTY: Self = Self {
        members: Vec::new(),
        receivers: 0,
        leader: MemberId(0),
        queue: BTreeSet::new(),
        rounds: BTreeMap::new(),
        done: 0,
        leader_wait: Average::NONE,
    };

    /// A broadcast that not all have left.
    pub fn round(&mut self, broadcast: u32) -> &mut Round {
        self.rounds.entry(broadcast).or_default()
    }

    /// Whether a shared packet is in place or not needed any more.
    pub fn knows(&self, part: Part) -> bool {
        let is_taken = |round: &Round| round.taken.contains(&part.packet);
        part.broadcast <= self.done
            || self.queue.contains(&part)
            || self.rounds.get(&part.broadcast).is_some_and(is_taken)
    }
}
