//! The part of the root in the tree: the places of all members, their failures, and who joins and leaves.
//!
//! Only the root changes the tree. Members that lose their parent are adopted by an ancestor, which still has every packet that they
//! lack: a packet stays in its slot until the whole subtree has accepted it.

mod agenda;
mod announce;
mod failure;
mod readers;
mod record;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use treecast_wire::{Eviction, MemberId, Nonce, Readers, Table, Timestamp};

use super::{END_INTERVAL, END_NOTICES};
use crate::flow::ChildAddress;
use crate::{CreateGroup, MemberLoss, MemberStatus, Nanoseconds, Settings, Start};

use agenda::Agenda;
use readers::SharedNodes;
use record::MemberRecord;

/// All members and their places. A call takes at most O(log n) steps, n being the number of members, except changes of the tree, which
/// take O(n): a group must not occupy its node for long (`examples/longest_calls.rs`).
#[derive(Debug, Clone)]
pub(super) struct MemberTable {
    root: MemberId,
    records: Vec<MemberRecord>,
    /// The members at each address, those that have gone among them.
    by_address: BTreeSet<(SocketAddr, MemberId)>,
    /// When each member is to be sent something.
    tasks: Agenda,
    /// When each member may be lost; it is examined then.
    deadlines: Agenda,
    /// The number of members that have not acknowledged a table of this epoch.
    unacked: usize,
    epoch: u32,
    /// Whether places have changed in this epoch, so that there is to be a new one.
    has_changed: bool,
    admits: bool,
    join_timeout: Nanoseconds,
    peer_timeout: Nanoseconds,
    members_max: usize,
    /// The number of members that are present.
    present: usize,
    /// The settings of the group, for tables.
    common: Table,
    /// With offload `switch`, the address to which this root sends data.
    multicast: Option<SocketAddr>,
    is_ready: bool,
    newcomer: Option<Newcomer>,
    /// The members lost since the last report to the root's user.
    losses: Vec<Loss>,
    /// The nodes that several processes share.
    shared: SharedNodes,
    /// Hosts that get one notice that they are not members.
    evictions: Vec<(SocketAddr, Nonce, Eviction)>,
    /// Members that are invited to a group that is over, to hear of its end.
    invitations: Vec<SocketAddr>,
    /// Hellos that are to be answered: one for each address.
    hellos: Vec<(SocketAddr, Nonce)>,
    /// Hosts that wait for a place and are to be probed: each once.
    waiting: Vec<SocketAddr>,
    stage: Stage,
    /// When the last time in which this node did not run has ended, and how long it was.
    pause: Option<(Nanoseconds, Nanoseconds)>,
}

/// A member that is lost, or one of the processes that share its node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss {
    pub member: MemberId,
    pub reader: Option<u32>,
    pub why: MemberLoss,
}

/// How far the group's end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// Everything is queued, and the closing packet waits for a slot.
    Closing,
    /// The closing packet is queued.
    Closed,
    /// The group is over; its end is announced this number of times less one, and then answers are awaited for an interval.
    Over {
        why: Eviction,
        times: usize,
        announce_at: Nanoseconds,
    },
}

/// A host that becomes a member at the next boundary between messages.
#[derive(Debug, Clone)]
struct Newcomer {
    address: SocketAddr,
    nonce: Nonce,
    /// When its last join was sent, by its clock.
    sent_at: Timestamp,
    /// Its number and first packet, once it has its place.
    place: Option<(MemberId, Start)>,
}

/// A change of the table that the group has to apply.
#[derive(Debug, Default)]
pub(super) struct TableChange {
    pub losses: Vec<Loss>,
    /// A new epoch and the root's children in it.
    pub tree: Option<(u32, Vec<ChildAddress>)>,
    /// Every member that could be reached has its place.
    pub is_ready: bool,
    /// A newcomer's place is known to all, so that the barrier is lifted.
    pub is_admission_over: bool,
    /// The newcomer's number and first packet, if it is still a member then.
    pub joined: Option<(MemberId, Start)>,
}

/// The sender of a control message, and when it was sent by its clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct ControlSender {
    pub member: MemberId,
    pub from: SocketAddr,
    pub nonce: Nonce,
    pub sent_at: Timestamp,
}

/// The interval at which the root probes a suspect.
const SUSPECT_PROBE_INTERVAL: Nanoseconds = Nanoseconds::from_ms(10);

/// The most members that are removed in one call.
const LOSSES_PER_CALL_MAX: usize = 32;

impl MemberTable {
    pub fn new(
        now: Nanoseconds,
        settings: &Settings,
        create: CreateGroup,
        parents: Vec<Option<MemberId>>,
    ) -> Self {
        let CreateGroup {
            root,
            members,
            readers,
            children,
            slots,
            payload_bytes_max,
            admits,
            members_max,
            ..
        } = create;
        let shared = SharedNodes::new(&readers, now + settings.join_timeout, now);
        let places = members.into_iter().zip(parents).zip(children);
        let records: Vec<MemberRecord> = places
            .map(|((address, parent), children)| MemberRecord::new(now, address, parent, children))
            .collect();
        let by_address = (0..).map(MemberId).zip(&records).map(|(member, record)| (record.address, member));
        let common = Table {
            member: root,
            start: create.start,
            slots,
            message: 0,
            bytes: 0,
            payload_bytes_max,
            offload: create.offload,
            authentication: create.authentication,
            integrity: create.integrity,
            transport: create.transport,
            part: 0,
            parts: 1,
            neighbours: Vec::new(),
        };
        let mut table = Self {
            root,
            by_address: by_address.collect(),
            records,
            tasks: Agenda::default(),
            deadlines: Agenda::default(),
            unacked: 0,
            epoch: 1,
            has_changed: false,
            admits,
            join_timeout: settings.join_timeout,
            peer_timeout: settings.peer_timeout,
            members_max,
            present: 0,
            common,
            multicast: create.multicast,
            is_ready: false,
            newcomer: None,
            losses: Vec::new(),
            shared,
            evictions: Vec::new(),
            invitations: Vec::new(),
            hellos: Vec::new(),
            waiting: Vec::new(),
            stage: Stage::Open,
            pause: None,
        };
        table.present = table.records.len();
        table.announce_tree();
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
            self.stage = Stage::Over { why, times: END_NOTICES + 1, announce_at: now };
        }
    }

    const fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over { .. })
    }

    /// Whether nothing needs the slow path: all members have their places, and none joins or leaves.
    pub fn is_settled(&self) -> bool {
        self.stage == Stage::Open
            && self.is_ready
            && !self.has_changed
            && self.newcomer.is_none()
            && self.tasks.next_time().is_none()
            && self.evictions.is_empty()
            && self.hellos.is_empty()
            && self.waiting.is_empty()
            && self.losses.is_empty()
            && !self.shared.are_awaited()
    }

    /// Whether this is the number of a member.
    pub fn has(&self, member: MemberId) -> bool {
        self.records.get(member.index()).is_some_and(MemberRecord::is_present)
    }

    /// The root's own children.
    pub fn own_children(&self) -> Vec<ChildAddress> {
        let children = self.record(self.root).children.iter();
        children.map(|&member| ChildAddress { member, address: self.record(member).address }).collect()
    }

    /// The memory of a table of `members` members, of which `shared` have nodes of several processes, in bytes: records, lists of children, agendas, and at
    /// the end a notice to each.
    pub const fn bytes(members: usize, shared: usize) -> usize {
        // A list is at most half empty, or has room for four.
        let listed_bytes = 4 * size_of::<MemberId>();
        let notice_bytes = size_of::<(SocketAddr, Nonce, Eviction)>();
        let member_bytes = size_of::<MemberRecord>() + listed_bytes + notice_bytes;
        // The nodes of a B-tree have room for eleven entries, and are at least half full except the first.
        let entries = 2 * if members > 6 { members } else { 6 };
        let tree_bytes = entries * size_of::<(SocketAddr, MemberId)>();
        let agenda_bytes = 2 * Agenda::heap_bytes(members, entries);
        size_of::<Self>()
            + members * member_bytes
            + shared * SharedNodes::NODE_BYTES
            + tree_bytes
            + agenda_bytes
    }

    /// The number of members that there is memory for.
    pub const fn capacity(&self) -> usize {
        self.records.capacity()
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

    /// All members, by number.
    pub fn status(&self) -> Vec<MemberStatus> {
        let member = |(record, number): (&MemberRecord, u32)| MemberStatus {
            member: MemberId(number),
            address: record.address,
            parent: record.parent,
            has_joined: record.acked_epoch > 0 || MemberId(number) == self.root,
            loss: record.loss,
        };
        self.records.iter().zip(0..).map(member).collect()
    }

    /// Whether a packet of that member comes from its address.
    fn is_at(&self, member: MemberId, address: SocketAddr) -> bool {
        self.has(member) && self.record(member).address == address
    }

    /// The members that are, or were, at an address.
    fn at_address(&self, address: SocketAddr) -> impl Iterator<Item = MemberId> {
        let range = (address, MemberId(0))..=(address, MemberId(u32::MAX));
        self.by_address.range(range).map(|&(_, member)| member)
    }

    /// The member at an address.
    fn find(&self, address: SocketAddr) -> Option<MemberId> {
        self.at_address(address).find(|&member| member != self.root && self.has(member))
    }

    /// Enters a member whose record has changed into the agendas. What was heard from it only puts things off, so that it may be
    /// entered too early.
    fn schedule(&mut self, member: MemberId) {
        let (task, deadline) = (self.task_time(member), self.deadline(member));
        self.tasks.set(member, task);
        self.deadlines.set(member, deadline);
    }

    /// A packet of a member has arrived that is no replay.
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

    /// A suspect that is not the root's child has answered a probe of the root's; `None` if the sender is no member, and whether the
    /// answer is no replay.
    pub fn handle_probe_answer(
        &mut self,
        now: Nanoseconds,
        member: MemberId,
        from: SocketAddr,
        sent_at: Timestamp,
    ) -> Option<bool> {
        let is_later = self.is_at(member, from).then(|| self.record_mut(member).is_now(sent_at))?;
        if is_later {
            self.handle_heard(now, member, from);
        }
        Some(is_later)
    }

    /// A host asks for the session.
    pub fn handle_hello(&mut self, from: SocketAddr, nonce: Nonce) {
        if let Some((_, latest)) = self.hellos.iter_mut().find(|(address, _)| *address == from) {
            *latest = nonce;
        } else if self.hellos.len() < CreateGroup::MEMBERS_MAX {
            self.hellos.push((from, nonce));
        }
    }

    /// Whether a control message is not a replay of an earlier one of its sender, which may have gone.
    pub fn is_now(&mut self, sender: &ControlSender) -> bool {
        match self.find_incarnation(sender) {
            Some(member) => self.record_mut(member).is_now(sender.sent_at),
            None => true,
        }
    }

    /// The number of the member with this address and nonce, be it present or gone.
    fn find_incarnation(&self, sender: &ControlSender) -> Option<MemberId> {
        self.at_address(sender.from).find(|&member| self.record(member).nonce == Some(sender.nonce))
    }

    /// Whether the sender is the member that it says it is.
    fn is_present(&self, sender: &ControlSender) -> bool {
        self.has(sender.member) && self.find_incarnation(sender) == Some(sender.member)
    }

    /// A member acknowledges its table, and says which processes of its node are there; false if the sender is no member.
    pub fn handle_table_ack(
        &mut self,
        now: Nanoseconds,
        sender: &ControlSender,
        epoch: u32,
        readers: Option<&Readers>,
    ) -> bool {
        let is_present = self.is_present(sender);
        if let Some(readers) = readers.filter(|_| is_present) {
            self.handle_readers(sender, readers);
        }
        if is_present && epoch == self.epoch {
            // Neighbours may have found it silent while it had no place.
            self.handle_heard(now, sender.member, sender.from);
            let is_first = std::mem::replace(&mut self.record_mut(sender.member).acked_epoch, epoch) != epoch;
            self.unacked -= usize::from(is_first);
            self.schedule(sender.member);
        }
        is_present
    }

    /// A host that knows the session is ready for its table, or asks to become a member.
    pub fn handle_join(&mut self, now: Nanoseconds, sender: &ControlSender) {
        let &ControlSender { from, nonce, .. } = sender;
        if let Stage::Over { why, .. } = self.stage {
            self.evictions.push((from, nonce, why));
            return;
        }
        if let Some(member) = self.find_incarnation(sender) {
            // It has not received its table, or asks whether it still has a place.
            match self.record(member).eviction() {
                Some(why) => self.evictions.push((from, nonce, why)),
                None => self.announce_again(now, member),
            }
            return;
        }
        let waits = |newcomer: &&mut Newcomer| newcomer.address == from && newcomer.place.is_none();
        if let Some(newcomer) = self.newcomer.as_mut().filter(waits) {
            if newcomer.sent_at < sender.sent_at {
                (newcomer.nonce, newcomer.sent_at) = (nonce, sender.sent_at);
            }
            self.probe_waiting(from);
            return;
        }
        if let Some(member) = self.find(from) {
            let record = self.record_mut(member);
            if !record.is_now(sender.sent_at) {
                // It is of a process before the one that is the member, and late. (A host that was booted again has an earlier clock:
                // it becomes a member once the one before is found silent.)
                return;
            }
            if record.acked_epoch == 0 {
                // It may have been restarted, but had no place before.
                record.nonce = Some(nonce);
                self.announce_again(now, member);
                return;
            }
            self.remove(member, MemberLoss::Restarted);
        }
        let is_full = self.records.len() >= CreateGroup::MEMBERS_MAX || self.present >= self.members_max;
        let refusal = match () {
            () if !self.admits => Some(Eviction::Refused),
            () if self.is_closing() => Some(Eviction::Closing),
            () if is_full => Some(Eviction::Full),
            () => None,
        };
        if let Some(why) = refusal {
            self.evictions.push((from, nonce, why));
            return;
        }
        if self.newcomer.is_none() && self.is_ready {
            self.newcomer = Some(Newcomer { address: from, nonce, sent_at: sender.sent_at, place: None });
        } else {
            self.probe_waiting(from);
        }
    }

    /// Has a host that waits for a place probed, so that it knows that the root is there.
    fn probe_waiting(&mut self, host: SocketAddr) {
        if self.waiting.len() < CreateGroup::MEMBERS_MAX && !self.waiting.contains(&host) {
            self.waiting.push(host);
        }
    }

    /// A member asks to leave, be it that it does not know its number yet; false if the sender was never one.
    pub fn handle_leave(&mut self, sender: &ControlSender) -> bool {
        let &ControlSender { from, nonce, .. } = sender;
        let found = self.find_incarnation(sender).or_else(|| {
            // It leaves before it has joined.
            self.find(from).filter(|&member| self.record(member).nonce.is_none())
        });
        if let Some(member) = found.filter(|&member| self.has(member)) {
            self.remove(member, MemberLoss::Left);
        }
        let is_newcomer = |newcomer: &mut Newcomer| {
            newcomer.place.is_none() && newcomer.address == from && newcomer.nonce == nonce
        };
        let is_known = found.is_some() || self.newcomer.take_if(is_newcomer).is_some();
        if is_known {
            self.evictions.push((from, nonce, Eviction::Left));
        }
        is_known
    }

    /// Removes a member; its children are adopted by its parent, in its place.
    fn remove(&mut self, member: MemberId, loss: MemberLoss) {
        self.losses.push(Loss { member, reader: None, why: loss });
        let orphans = std::mem::take(&mut self.record_mut(member).children);
        let parent = self.record(member).parent.expect("the root is never removed");
        for &orphan in &orphans {
            self.record_mut(orphan).parent = Some(parent);
        }
        let siblings = &mut self.record_mut(parent).children;
        let place = siblings.iter().position(|&child| child == member).expect("a parent lists its children");
        siblings.splice(place..=place, orphans);
        self.present -= 1;
        let epoch = self.epoch;
        let record = self.record_mut(member);
        record.loss = Some(loss);
        record.parent = None;
        record.suspicion = None;
        let was_unacked = record.acked_epoch != epoch;
        self.unacked -= usize::from(was_unacked);
        self.schedule(member);
        self.has_changed = true;
    }

    /// The tree has changed: there is a new epoch.
    fn change_tree(&mut self, now: Nanoseconds) {
        self.has_changed = false;
        self.epoch += 1;
        for record in &mut self.records {
            record.announce(now);
        }
        self.announce_tree();
    }

    /// All members are to be sent their tables.
    fn announce_tree(&mut self) {
        let (root, epoch) = (self.root, self.epoch);
        self.record_mut(root).acked_epoch = epoch;
        let others: Vec<MemberId> = self.others().collect();
        self.unacked = others.len();
        self.tasks = others.iter().filter_map(|&member| Some((self.task_time(member)?, member))).collect();
        self.deadlines = others.iter().filter_map(|&member| Some((self.deadline(member)?, member))).collect();
    }

    /// Whether a newcomer waits for a boundary between messages.
    pub const fn wants_barrier(&self) -> bool {
        matches!(self.newcomer, Some(Newcomer { place: None, .. })) && !self.is_over()
    }

    /// Handles timeouts and admits a newcomer; `barrier` is the first packet that it is to get, once that is known.
    pub fn handle_timeout(&mut self, now: Nanoseconds, barrier: Option<Start>) -> TableChange {
        let mut change = TableChange::default();
        if self.is_over() {
            return change;
        }
        self.remove_lost(now);
        self.watch_readers(now);
        change.losses = std::mem::take(&mut self.losses);
        if let Some(start) = barrier {
            self.admit(now, start);
        }
        // Members that are lost at the same time, in several calls, change the tree once.
        if self.has_changed && self.deadlines.first_due(now).is_none() {
            self.change_tree(now);
            change.tree = Some((self.epoch, self.own_children()));
        }
        if self.unacked > 0 || self.has_changed || self.shared.are_awaited() {
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
            if *times == 0 {
                return;
            }
            let why = *why;
            let notice = |member| {
                let &MemberRecord { address, nonce, .. } = self.record(member);
                Some((address, nonce?, why))
            };
            let mut evictions = Vec::with_capacity(self.records.len());
            evictions.extend(self.others().filter_map(notice));
            self.evictions = evictions;
            // Members that have not joined yet are invited, and get the reason when they join.
            let invited = self.others().filter(|&member| self.record(member).nonce.is_none());
            self.invitations = invited.map(|member| self.record(member).address).collect();
        }
    }

    /// Whether the group is over and the root has nothing more to send.
    pub fn is_finished(&self) -> bool {
        matches!(self.stage, Stage::Over { times: 0, .. })
            && self.evictions.is_empty()
            && self.hellos.is_empty()
    }

    /// This node was suspended for the time `paused`: that members were not heard meanwhile means nothing.
    pub fn handle_suspend(&mut self, now: Nanoseconds, paused: Nanoseconds) {
        self.pause = Some((now, paused));
        for record in &mut self.records {
            record.heard_at = now;
            record.suspicion = None;
        }
        for member in (0..self.records.len() as u32).map(MemberId) {
            self.schedule(member);
        }
    }

    /// Gives a newcomer its place.
    fn admit(&mut self, now: Nanoseconds, start: Start) {
        let Some(Newcomer { address, nonce, sent_at, place: None }) = self.newcomer else { return };
        let member = MemberId(self.records.len() as u32);
        let parent = self.parent_for_newcomer();
        let record = MemberRecord::new(now, address, Some(parent), Vec::new());
        self.records.push(MemberRecord { nonce: Some(nonce), timestamp: sent_at, ..record });
        self.by_address.insert((address, member));
        self.record_mut(parent).children.push(member);
        self.newcomer = Some(Newcomer { address, nonce, sent_at, place: Some((member, start)) });
        let Start { packet, message, bytes } = start;
        self.common = Table { start: packet, message, bytes, ..self.common.clone() };
        self.unacked += 1;
        self.present += 1;
        self.has_changed = true;
    }

    /// The member with the fewest children, of these the one nearest to the root, and of these the first.
    fn parent_for_newcomer(&self) -> MemberId {
        let mut level = vec![self.root];
        let mut best = self.root;
        let burden = |member: MemberId| self.record(member).children.len();
        while !level.is_empty() {
            let first = level.iter().copied().min_by_key(|&member| (burden(member), member));
            best = first.filter(|&first| burden(first) < burden(best)).unwrap_or(best);
            level = level.iter().flat_map(|&member| self.record(member).children.iter().copied()).collect();
        }
        best
    }

    /// When the next timeout is to be handled.
    pub fn timeout(&self) -> Option<Nanoseconds> {
        match self.stage {
            Stage::Over { announce_at, .. } => Some(announce_at),
            _ => [self.tasks.next_time(), self.deadlines.next_time(), self.shared.timeout()]
                .into_iter()
                .flatten()
                .min(),
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
                MemberRecord { loss: Some(_), .. } => "gone",
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
