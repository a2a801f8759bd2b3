//! The part of the root in the tree: the places of all members, their failures, and who joins and
//! leaves.
//!
//! Only the root changes the tree. Members that lose their parent are adopted by an ancestor, which
//! still has every packet that they lack: a packet stays in its slot until the whole subtree has
//! accepted it.

mod admission;
mod agenda;
mod announce;
mod end;
mod failure;
mod readers;
mod record;
mod tree;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use treecast_wire::{Eviction, MemberId, Nonce, Readers, Table, Timestamp};

use crate::flow::ChildAddress;
use crate::pause::Pause;
use crate::{CreateGroup, MemberLoss, MemberStatus, Nanoseconds, Settings, Start};

use admission::Newcomer;
use agenda::Agenda;
use end::Stage;
use readers::SharedNodes;
use record::MemberRecord;

/// All members and their places. A call takes at most O(log n) steps, n being the number of
/// members, except changes of the tree, which take O(n): a group must not occupy its node for long
/// (`examples/longest_calls.rs`).
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
    pause: Option<Pause>,
}

/// A member that is lost, or one of the processes that share its node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss {
    pub member: MemberId,
    pub reader: Option<u32>,
    pub why: MemberLoss,
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
            is_encrypted: create.is_encrypted,
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

    /// Whether nothing needs the slow path: all members have their places, and none joins or
    /// leaves.
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

    /// The memory of a table of `members` members, of which `shared` have nodes of several
    /// processes, in bytes: records, lists of children, agendas, and at the end a notice to each.
    pub const fn bytes(members: usize, shared: usize) -> usize {
        // A list is at most half empty, or has room for four.
        let listed_bytes = 4 * size_of::<MemberId>();
        let notice_bytes = size_of::<(SocketAddr, Nonce, Eviction)>();
        let member_bytes = size_of::<MemberRecord>() + listed_bytes + notice_bytes;
        // The nodes of a B-tree have room for eleven entries, and are at least half full except the
        // first.
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

    /// Enters a member whose record has changed into the agendas. What was heard from it only puts
    /// things off, so that it may be entered too early.
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

    /// A suspect that is not the root's child has answered a probe of the root's; whether the
    /// answer is new and not a replay; `None` if the sender is not a member.
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

    /// Whether a control message is not a replay of an earlier one of its sender, which may have
    /// gone.
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

    /// A member acknowledges its table, and says which processes of its node are there; false if
    /// the sender is not a member.
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

    /// A member asks to leave, be it that it does not know its number yet; false if the sender was
    /// never one.
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

    /// Handles timeouts and admits a newcomer; `barrier` is the first packet that it is to get,
    /// once that is known.
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

    /// This node did not run for a while.
    pub fn handle_suspend(&mut self, pause: Pause) {
        self.pause = Some(pause);
        for record in &mut self.records {
            let leave_out = |at: &mut Nanoseconds| pause.leave_out(at);
            leave_out(&mut record.heard_at);
            leave_out(&mut record.table_since);
            if let Some(suspicion) = &mut record.suspicion {
                leave_out(&mut suspicion.since);
                suspicion.refuted_at.iter_mut().for_each(leave_out);
            }
        }
        for member in (0..self.records.len() as u32).map(MemberId) {
            self.schedule(member);
        }
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
