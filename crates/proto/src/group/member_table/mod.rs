//! The part of the root in the tree: the places of all members, their failures, and who joins and leaves.
//!
//! Only the root changes the tree. Members that lose their parent are adopted by an ancestor, which still has every packet that they
//! lack: a packet stays in its slot until the whole subtree has accepted it.

mod announce;
mod failure;
mod record;

use std::net::SocketAddr;

use treecast_wire::{Eviction, MemberId, Sequence, Table, Timestamp};

use crate::flow::ChildAddress;
use crate::{CreateGroup, MemberLoss, Nanoseconds, Settings};

use record::MemberRecord;

/// All members and their places.
#[derive(Debug, Clone)]
pub(super) struct MemberTable {
    root: MemberId,
    records: Vec<MemberRecord>,
    epoch: u32,
    /// The last epoch that the group has applied ([`TableChange::tree`]).
    applied_epoch: u32,
    admits: bool,
    /// The settings of the group, for tables.
    common: Table,
    is_ready: bool,
    newcomer: Option<Newcomer>,
    /// The members lost since the last report to the root's user.
    losses: Vec<(MemberId, MemberLoss)>,
    /// Hosts that get one notice that they are not members.
    evictions: Vec<(SocketAddr, Eviction)>,
    stage: Stage,
    /// Whether a record has changed since all records were examined.
    is_dirty: bool,
    timer_at: Option<Nanoseconds>,
}

/// How far the group's end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// Everything is queued, and the closing packet waits for a slot.
    Closing,
    /// The closing packet is queued.
    Closed,
    /// The group is over; its end is announced this number of times more.
    Over {
        why: Eviction,
        times: u32,
        announce_at: Nanoseconds,
    },
}

/// A host that becomes a member at the next boundary between messages.
#[derive(Debug, Clone)]
struct Newcomer {
    address: SocketAddr,
    /// Its number and first packet, once it has its place.
    place: Option<(MemberId, Sequence)>,
}

/// What the group has to apply after the table has changed.
#[derive(Debug, Default)]
pub(super) struct TableChange {
    pub losses: Vec<(MemberId, MemberLoss)>,
    /// A new epoch and the root's children in it.
    pub tree: Option<(u32, Vec<ChildAddress>)>,
    /// Every member that could be reached has its place.
    pub is_ready: bool,
    /// A newcomer's place is known to all, so that the barrier is lifted.
    pub is_admission_over: bool,
    /// The newcomer's number and first packet, if it is still a member then.
    pub joined: Option<(MemberId, Sequence)>,
}

/// The number of announcements of the group's end, and the interval between them: they are not acknowledged, and may be lost.
const END_ANNOUNCEMENTS: u32 = 3;
const END_INTERVAL: Nanoseconds = Nanoseconds::from_ms(5);

/// The interval at which the root probes a suspect.
const SUSPECT_PROBE_INTERVAL: Nanoseconds = Nanoseconds::from_ms(10);

impl MemberTable {
    pub fn new(now: Nanoseconds, create: CreateGroup, parents: Vec<Option<MemberId>>) -> Self {
        let CreateGroup { root, members, children, slots, payload_bytes_max, offload, start, admits, .. } =
            create;
        let places = members.into_iter().zip(parents).zip(children);
        let records = places
            .map(|((address, parent), children)| MemberRecord::new(now, address, parent, children))
            .collect();
        let common = Table {
            member: root,
            acked_epoch: 0,
            start,
            slots,
            payload_bytes_max,
            offload,
            part: 0,
            parts: 1,
            neighbours: Vec::new(),
        };
        let mut table = Self {
            root,
            records,
            epoch: 1,
            applied_epoch: 1,
            admits,
            common,
            is_ready: false,
            newcomer: None,
            losses: Vec::new(),
            evictions: Vec::new(),
            stage: Stage::Open,
            is_dirty: true,
            timer_at: None,
        };
        table.record_mut(root).acked_epoch = 1;
        table
    }

    /// Whether the root has closed or aborted the group.
    pub fn is_closing(&self) -> bool {
        self.stage != Stage::Open
    }

    /// Whether the closing packet is to be queued now.
    pub fn is_close_due(&self) -> bool {
        self.stage == Stage::Closing && self.newcomer.is_none()
    }

    /// Whether the closing packet is queued, and the group not over yet.
    pub fn is_closed(&self) -> bool {
        self.stage == Stage::Closed
    }

    pub fn close(&mut self) {
        self.stage = Stage::Closing;
    }

    /// The closing packet is queued.
    pub fn on_close_queued(&mut self) {
        self.stage = Stage::Closed;
    }

    /// The group is over: announces it to all members.
    pub fn end(&mut self, now: Nanoseconds, why: Eviction) {
        if !self.is_over() {
            self.stage = Stage::Over { why, times: END_ANNOUNCEMENTS, announce_at: now };
            self.is_dirty = true;
        }
    }

    const fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over { .. })
    }

    /// Whether nothing needs the slow path: all members have their places, and none joins or leaves.
    pub fn is_settled(&self) -> bool {
        let is_settled = |record: &MemberRecord| {
            !record.is_present
                || (record.acked_epoch == self.epoch
                    && record.suspicion.is_none()
                    && !record.is_table_requested
                    && record.table_part == 0)
        };
        self.stage == Stage::Open
            && self.is_ready
            && !self.is_dirty
            && self.newcomer.is_none()
            && self.evictions.is_empty()
            && self.losses.is_empty()
            && self.records.iter().all(is_settled)
    }

    /// Whether this is the number of a member.
    pub fn has(&self, member: MemberId) -> bool {
        self.records.get(member.index()).is_some_and(|record| record.is_present)
    }

    /// The root's own children.
    pub fn own_children(&self) -> Vec<ChildAddress> {
        let children = self.record(self.root).children.iter();
        children.map(|&member| ChildAddress { member, address: self.record(member).address }).collect()
    }

    fn record(&self, member: MemberId) -> &MemberRecord {
        &self.records[member.index()]
    }

    fn record_mut(&mut self, member: MemberId) -> &mut MemberRecord {
        &mut self.records[member.index()]
    }

    /// All members but the root.
    fn others(&self) -> impl Iterator<Item = MemberId> {
        let members = (0..self.records.len() as u32).map(MemberId);
        members.filter(|&member| member != self.root && self.has(member))
    }

    /// The members that have never acknowledged a table.
    pub fn awaited(&self) -> Vec<MemberId> {
        self.others().filter(|&member| self.record(member).acked_epoch == 0).collect()
    }

    /// Whether a packet of that member comes from its address.
    fn is_at(&self, member: MemberId, address: SocketAddr) -> bool {
        self.has(member) && self.record(member).address == address
    }

    /// The member at an address.
    fn find(&self, address: SocketAddr) -> Option<MemberId> {
        self.others().find(|&member| self.record(member).address == address)
    }

    fn is_newcomer(&self, address: SocketAddr) -> bool {
        self.newcomer.as_ref().is_some_and(|newcomer| newcomer.address == address)
    }

    /// A packet of the group has arrived.
    pub fn handle_heard(&mut self, now: Nanoseconds, member: MemberId, from: SocketAddr) {
        if !self.is_at(member, from) {
            return;
        }
        let record = self.record_mut(member);
        record.heard_at = record.heard_at.max(now);
        if let Some(suspicion) = &mut record.suspicion {
            suspicion.refuted_at.get_or_insert(now);
        }
    }

    /// A member acknowledges its table; false if the sender is no member.
    pub fn handle_table_ack(
        &mut self,
        now: Nanoseconds,
        member: MemberId,
        from: SocketAddr,
        epoch: u32,
        sent_at: Timestamp,
    ) -> bool {
        let is_member = self.is_at(member, from);
        if is_member && epoch == self.epoch {
            let record = self.record_mut(member);
            record.acked_epoch = epoch;
            record.acked_at = sent_at;
            record.heard_at = now;
            self.is_dirty = true;
        }
        is_member
    }

    /// A host asks to be a member, at a time of its own clock.
    pub fn handle_join(&mut self, now: Nanoseconds, from: SocketAddr, sent_at: Timestamp) {
        self.is_dirty = true;
        if self.is_newcomer(from) {
            return;
        }
        if let Some(member) = self.find(from) {
            if self.record(member).acked_epoch == 0 {
                // Its table is the answer.
                self.record_mut(member).announce_again(now);
                return;
            }
            if sent_at <= self.record(member).acked_at {
                // It sent the join before it acknowledged its table. Should its clock have restarted with the host, then it is lost
                // under its old number after a timeout, and joins again.
                return;
            }
            self.remove(now, member, MemberLoss::Restarted);
        }
        if !self.admits || self.records.len() >= CreateGroup::MEMBERS_MAX || self.is_closing() {
            self.evictions.push((from, Eviction::Refused));
        } else if self.newcomer.is_none() && self.is_ready {
            self.newcomer = Some(Newcomer { address: from, place: None });
        }
        // Otherwise it joins again.
    }

    /// A member asks to leave; one that does not know its number yet is found by its address.
    pub fn handle_leave(&mut self, now: Nanoseconds, member: MemberId, from: SocketAddr) {
        self.is_dirty = true;
        let found = self.find(from);
        let is_unplaced = member == MemberId(u32::MAX);
        if let Some(found) = found.filter(|found| *found == member || is_unplaced) {
            self.remove(now, found, MemberLoss::Left);
        } else if found.is_none() && is_unplaced && self.is_newcomer(from) {
            self.newcomer = None;
        } else if found.is_some() || self.is_newcomer(from) {
            // It has left and joined again, and this is a late leave.
            return;
        }
        self.evictions.push((from, Eviction::Left));
    }

    /// Removes a member; its children are adopted by its parent, in its place.
    fn remove(&mut self, now: Nanoseconds, member: MemberId, loss: MemberLoss) {
        self.losses.push((member, loss));
        let orphans = std::mem::take(&mut self.record_mut(member).children);
        let parent = self.record(member).parent.expect("the root is never removed");
        for &orphan in &orphans {
            self.record_mut(orphan).parent = Some(parent);
        }
        let siblings = &mut self.record_mut(parent).children;
        let place = siblings.iter().position(|&child| child == member).expect("a parent lists its children");
        siblings.splice(place..=place, orphans);
        let record = self.record_mut(member);
        record.is_present = false;
        record.parent = None;
        record.suspicion = None;
        self.change_tree(now);
    }

    /// The tree has changed: all members are sent their tables.
    fn change_tree(&mut self, now: Nanoseconds) {
        self.epoch += 1;
        self.is_dirty = true;
        for record in &mut self.records {
            record.announce(now);
        }
        let (root, epoch) = (self.root, self.epoch);
        self.record_mut(root).acked_epoch = epoch;
    }

    /// Whether a newcomer waits for a boundary between messages.
    pub fn wants_barrier(&self, now: Nanoseconds) -> bool {
        let waits = matches!(self.newcomer, Some(Newcomer { place: None, .. }));
        waits && !self.is_over() && self.is_due(now)
    }

    /// Handles timeouts and admits a newcomer; `barrier` is the first packet that it is to get, once that is known.
    pub fn handle_timeout(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        barrier: Option<Sequence>,
    ) -> TableChange {
        let mut change = TableChange::default();
        if self.is_over() || !self.is_due(now) {
            return change;
        }
        while let Some((member, loss)) = self.find_lost(now, settings) {
            self.remove(now, member, loss);
        }
        change.losses = std::mem::take(&mut self.losses);
        if let Some(start) = barrier {
            self.admit(now, start);
        }
        if self.applied_epoch != self.epoch {
            self.applied_epoch = self.epoch;
            change.tree = Some((self.epoch, self.own_children()));
        }
        if !self.others().all(|member| self.record(member).acked_epoch == self.epoch) {
            return change;
        }
        change.is_ready = !std::mem::replace(&mut self.is_ready, true);
        if let Some(Newcomer { place: Some((member, start)), .. }) = self.newcomer {
            self.newcomer = None;
            change.is_admission_over = true;
            change.joined = self.has(member).then_some((member, start));
        }
        change
    }

    /// Tells the members of the group's end once more, when it is time.
    pub fn announce_end(&mut self, now: Nanoseconds) {
        if let Stage::Over { why, times, announce_at } = &mut self.stage
            && *announce_at <= now
            && *times > 0
        {
            *times -= 1;
            *announce_at = now + END_INTERVAL;
            let why = *why;
            self.evictions = self.others().map(|member| (self.record(member).address, why)).collect();
            self.is_dirty = true;
        }
    }

    /// Whether the group is over and the root has nothing more to send.
    pub fn is_finished(&self) -> bool {
        matches!(self.stage, Stage::Over { times: 0, .. }) && self.evictions.is_empty()
    }

    /// This node was suspended: that members were not heard meanwhile means nothing.
    pub fn handle_suspend(&mut self, now: Nanoseconds) {
        for record in &mut self.records {
            record.heard_at = now;
            record.suspicion = None;
        }
        self.is_dirty = true;
    }

    fn is_due(&self, now: Nanoseconds) -> bool {
        self.is_dirty || self.timer_at.is_some_and(|time| time <= now) || self.newcomer.is_some()
    }

    /// Gives a newcomer its place.
    fn admit(&mut self, now: Nanoseconds, start: Sequence) {
        let Some(Newcomer { address, place: None }) = self.newcomer else { return };
        let member = MemberId(self.records.len() as u32);
        let parent = self.parent_for_newcomer();
        self.records.push(MemberRecord::new(now, address, Some(parent), Vec::new()));
        self.record_mut(parent).children.push(member);
        self.newcomer = Some(Newcomer { address, place: Some((member, start)) });
        self.common.start = start;
        self.change_tree(now);
    }

    /// The member with the fewest children, and of these the one nearest to the root.
    fn parent_for_newcomer(&self) -> MemberId {
        let members = std::iter::once(self.root).chain(self.others());
        let burden = |member: MemberId| (self.record(member).children.len(), self.depth(member), member);
        members.min_by_key(|&member| burden(member)).expect("the root is always there")
    }

    fn depth(&self, member: MemberId) -> usize {
        std::iter::successors(self.record(member).parent, |&parent| self.record(parent).parent).count()
    }

    /// When the next timeout is to be handled.
    pub const fn timeout(&self) -> Option<Nanoseconds> {
        match self.stage {
            Stage::Over { announce_at, .. } => Some(announce_at),
            _ => self.timer_at,
        }
    }
}

#[cfg(test)]
impl MemberTable {
    /// Reports states of docs/protocol.md.
    pub fn states(&self, report: &mut dyn FnMut(crate::diagrams::Diagram, u32, &'static str)) {
        use crate::diagrams::Diagram;
        let stage = match self.stage {
            Stage::Over { .. } => "over",
            Stage::Closed => "closed",
            Stage::Closing => "closing",
            Stage::Open if !self.is_ready => "starting",
            Stage::Open if self.newcomer.is_some() => "admitting",
            Stage::Open => "open",
        };
        report(Diagram::Group, 0, stage);
        for (member, record) in self.records.iter().enumerate().filter(|_| stage != "over") {
            let state = match record {
                MemberRecord { is_present: false, .. } => "gone",
                MemberRecord { acked_epoch: 0, .. } => "invited",
                _ if record.open_suspicion().is_some() => "suspected",
                MemberRecord { acked_epoch, .. } if *acked_epoch < self.epoch => "moved",
                _ => "settled",
            };
            if member != self.root.index() {
                report(Diagram::MemberRecord, member as u32, state);
            }
        }
    }
}
