//! Processes that share a member's node: the root's table of those that have come, and of those
//! that are lost.
//!
//! A node reports its processes in its table acknowledgments. The root asks by sending the table
//! again until all have come. When the group is closed, the root starts a new epoch, and only
//! acknowledgments of that epoch count as answers: an earlier one may have been sent before a
//! process was lost.

use treecast_wire::{MemberId, ReaderSet, Readers};

use super::{ControlSender, Loss, MemberTable};
use crate::{MemberLoss, Nanoseconds};

/// The interval at which the root asks.
const ASK_INTERVAL: Nanoseconds = Nanoseconds::from_ms(50);

/// All nodes that several processes share.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedNodes {
    nodes: Vec<SharedNode>,
    /// Whether one of them has processes that are awaited.
    are_awaited: bool,
    /// Until when they are awaited.
    until: Nanoseconds,
    /// Once the group is closed: the epoch whose acknowledgments say who is there.
    closing_epoch: Option<u32>,
    ask_at: Nanoseconds,
}

/// A node that several processes share.
#[derive(Debug, Clone)]
struct SharedNode {
    member: MemberId,
    /// The processes that have not come.
    awaited: ReaderSet,
    /// Those that are lost, of whom the root's user knows.
    lost: ReaderSet,
    /// All of them.
    all: ReaderSet,
}

impl SharedNodes {
    /// The memory of a node, in bytes.
    pub const NODE_BYTES: usize = size_of::<SharedNode>();

    pub fn new(readers: &[(MemberId, u32)], until: Nanoseconds, now: Nanoseconds) -> Self {
        let node = |&(member, count): &(MemberId, u32)| {
            let all = ReaderSet::first(count);
            SharedNode { member, awaited: all, lost: ReaderSet::default(), all }
        };
        let nodes: Vec<SharedNode> = readers.iter().map(node).collect();
        let are_awaited = !nodes.is_empty();
        Self { nodes, are_awaited, until, closing_epoch: None, ask_at: now + ASK_INTERVAL }
    }

    pub const fn are_awaited(&self) -> bool {
        self.are_awaited
    }

    /// When the root asks next, or waits no more.
    pub fn timeout(&self) -> Option<Nanoseconds> {
        self.are_awaited.then(|| self.ask_at.min(self.until))
    }
}

impl MemberTable {
    /// The number of members whose nodes several processes share.
    pub const fn shared_count(&self) -> usize {
        self.shared.nodes.capacity()
    }

    /// The processes of the root's own node.
    pub fn handle_own_readers(&mut self, readers: &Readers) {
        self.update_readers(self.root, readers);
    }

    /// The processes of the root's own node that are lost, or have not come in time.
    pub fn lost_readers(&self) -> ReaderSet {
        let own = self.shared.nodes.iter().find(|node| node.member == self.root);
        own.map_or_else(ReaderSet::default, |node| node.lost)
    }

    /// A member's node says which processes are there.
    pub(super) fn handle_readers(&mut self, sender: &ControlSender, readers: &Readers) {
        self.update_readers(sender.member, readers);
    }

    fn update_readers(&mut self, member: MemberId, readers: &Readers) {
        let Some(node) = self.shared.nodes.iter_mut().find(|node| node.member == member) else { return };
        // A process is reported once as present and once as lost: a later message takes neither
        // back.
        node.awaited = node.awaited.and(&readers.awaited);
        let lost = readers.lost.and(&node.all).without(&node.lost);
        node.lost = node.lost.or(&lost);
        let loss = |reader| Loss { member, reader: Some(reader), why: MemberLoss::Left };
        self.losses.extend(lost.iter().map(loss));
        self.count_awaited();
    }

    fn count_awaited(&mut self) {
        self.shared.are_awaited = self.shared.nodes.iter().any(|node| !node.awaited.is_empty());
    }

    /// Asks who is there, and gives up those that have not come in time.
    pub(super) fn watch_readers(&mut self, now: Nanoseconds) {
        if self.shared.timeout().is_none_or(|timeout| timeout > now) {
            return;
        }
        let mut nodes = std::mem::take(&mut self.shared.nodes);
        // A member that is lost is reported whole.
        nodes.retain(|node| self.has(node.member));
        for node in nodes.iter_mut().filter(|_| self.shared.until <= now) {
            let (member, why) = (node.member, MemberLoss::Unreachable(self.join_timeout));
            self.losses.extend(node.awaited.iter().map(|reader| Loss { member, reader: Some(reader), why }));
            node.lost = node.lost.or(&node.awaited);
            node.awaited = ReaderSet::default();
        }
        self.shared.nodes = nodes;
        self.count_awaited();
        if self.shared.are_awaited && self.shared.ask_at <= now {
            self.shared.ask_at = now + ASK_INTERVAL;
            let is_asked = |node: &&SharedNode| !node.awaited.is_empty();
            let asked: Vec<MemberId> =
                self.shared.nodes.iter().filter(is_asked).map(|node| node.member).collect();
            for member in asked {
                if member != self.root {
                    self.announce_again(now, member);
                }
            }
        }
    }

    /// The processes that have not come, by member and place.
    pub fn awaited_readers(&self) -> Vec<(MemberId, u32)> {
        let nodes = self.shared.nodes.iter().filter(|node| self.has(node.member));
        nodes.flat_map(|node| node.awaited.iter().map(|place| (node.member, place))).collect()
    }

    /// The group is closed, and all members have everything: their nodes are asked once more which
    /// processes are there.
    pub fn close_for_readers(&mut self) {
        if self.shared.closing_epoch.is_none() && !self.shared.nodes.is_empty() {
            self.shared.closing_epoch = Some(self.epoch + 1);
            self.has_changed = true;
        }
    }

    /// After that: whether the processes of all nodes are there or lost.
    pub fn is_closed_for_readers(&self) -> bool {
        let has_answered = |node: &SharedNode| {
            let answered = self.record(node.member).acked_epoch;
            self.shared.closing_epoch.is_none_or(|asked| asked <= answered) && node.awaited.is_empty()
        };
        self.shared.nodes.iter().filter(|node| self.has(node.member)).all(has_answered)
    }
}
