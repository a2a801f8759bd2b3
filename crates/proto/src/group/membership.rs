//! The part of a member other than the root in the tree.

use std::net::SocketAddr;

use treecast_wire::{
    Acknowledgment, Authentication, Control, Eviction, Handshake, MemberId, Neighbour, Nonce, Offload,
    Readers, Role, RootLoss, Sequence, SessionId, Table, Timestamp,
};

use super::handshake::{HandshakeStep, MemberHandshake};
use super::header::HeaderTemplate;
use crate::event::whole_ms;
use crate::flow::{ChildAddress, Flow, PeerFailure};
use crate::{Ending, Nanoseconds, Settings, Transmit};

/// A member's place in the tree.
#[derive(Debug, Clone)]
pub(super) struct Membership {
    root: SocketAddr,
    /// The root's number, once it has welcomed this member.
    root_member: Option<MemberId>,
    handshake: MemberHandshake,
    root_heard_at: Nanoseconds,
    /// The last timestamp of the root's probes and control messages.
    root_timestamp: Timestamp,
    /// Why the root is gone, as the parent reported.
    root_loss: Option<RootLoss>,
    has_place: bool,
    epoch: u32,
    /// The table of this epoch, with all its neighbours.
    table: Option<Table>,
    parent: Option<Neighbour>,
    /// With offload `switch`: the root, and the address to which it sends data.
    multicast: Option<Neighbour>,
    parent_heard_at: Nanoseconds,
    incoming: Option<IncomingTable>,
    is_table_ack_due: bool,
    /// When the next join or leave is to be sent to the root.
    join_at: Option<Nanoseconds>,
    leave_at: Option<Nanoseconds>,
    leaving_since: Option<Nanoseconds>,
    suspected: Vec<SuspectedNeighbour>,
    /// Which processes of this node are there, if several share it.
    readers: Option<Readers>,
    /// The timestamp of the root's probe that is to be answered.
    root_probe: Option<Timestamp>,
    completion: Option<Completion>,
    /// The last time in which this node did not run.
    pause: Option<Pause>,
    inquiry: Inquiry,
}

/// Whether the root still has this member in its tree. A parent that is heard says nothing about that: the members of a circle, which forged
/// tables can make, hear each other. A member other than a child of the root that gets nothing new asks the root by a join, which it
/// answers with the member's table or its eviction.
#[derive(Debug, Clone, Copy, Default)]
struct Inquiry {
    /// The next packet expected at the last check.
    next: Sequence,
    /// When the next check is, at which the root is asked if nothing new was received since the last one. Checks have fixed times, so that a
    /// node asks at the same time whether its packets pass the fast path or not. None: not known yet, or the parent is the root.
    check_at: Option<Nanoseconds>,
    /// The time between two checks; it doubles with each answer, up to [`INQUIRY_BACKOFF_MAX`] times the least.
    interval: Nanoseconds,
    /// Since when the root is being asked.
    asked_at: Option<Nanoseconds>,
}

/// A time in which a node did not run.
#[derive(Debug, Clone, Copy)]
struct Pause {
    ended_at: Nanoseconds,
    span: Nanoseconds,
}

/// A member of a closed group has everything, and its children have. It stays, since others may not have its last acknowledgment or
/// may need another parent.
#[derive(Debug, Clone, Copy)]
struct Completion {
    /// Whether the root has said that all members have everything, or is dead. Only the readers are waited for.
    is_released: bool,
}

/// A table of which some parts have arrived.
#[derive(Debug, Clone)]
struct IncomingTable {
    epoch: u32,
    parts: Vec<Option<Table>>,
}

/// The meaning of a part of a table for a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableStep {
    /// Of the table that the member has.
    Known,
    /// Other parts of a new table are missing.
    Partial,
    /// All parts of a new table are there.
    Complete,
    /// The root cannot have sent both it and the table that the member has.
    Contradiction,
}

/// A neighbour that this member reports to the root as failed.
#[derive(Debug, Clone)]
struct SuspectedNeighbour {
    member: MemberId,
    failure: PeerFailure,
    since: Nanoseconds,
    report_at: Nanoseconds,
}

/// The contents of a complete table.
#[derive(Debug)]
pub(super) struct NewPlace {
    pub epoch: u32,
    pub is_new_parent: bool,
    /// The first part of the table with the settings of the group.
    pub table: Table,
    pub children: Vec<ChildAddress>,
    pub multicast: Option<SocketAddr>,
}

/// The interval at which requests to the root and reports are repeated until it answers.
pub(super) const REQUEST_INTERVAL: Nanoseconds = Nanoseconds::from_ms(20);

impl Membership {
    pub fn new(now: Nanoseconds, root: SocketAddr, seed: [u64; 2]) -> Self {
        Self {
            root,
            root_member: None,
            handshake: MemberHandshake::new(now, seed),
            root_heard_at: now,
            root_timestamp: Timestamp(0),
            root_loss: None,
            has_place: false,
            epoch: 0,
            table: None,
            parent: None,
            multicast: None,
            parent_heard_at: now,
            incoming: None,
            is_table_ack_due: false,
            join_at: None,
            leave_at: None,
            leaving_since: None,
            suspected: Vec::new(),
            readers: None,
            root_probe: None,
            completion: None,
            pause: None,
            inquiry: Inquiry::default(),
        }
    }

    /// Its memory in bytes, with the table of a member with this number of children.
    pub const fn bytes(children: usize) -> usize {
        size_of::<Self>() + (2 + children) * size_of::<Neighbour>()
    }

    /// Whether a packet of that member, from that address, is the parent's.
    pub fn is_parent(&self, member: MemberId, from: SocketAddr) -> bool {
        self.parent.is_some_and(|parent| parent.member == member && parent.address == from)
    }

    /// Whether a packet of that member, from that address, is the root's by multicast.
    pub fn is_multicast(&self, member: MemberId, from: SocketAddr) -> bool {
        self.multicast.is_some_and(|root| root.member == member) && self.is_root(from)
    }

    /// With data by multicast, the root's number and address.
    pub fn multicast_root(&self) -> Option<(MemberId, SocketAddr)> {
        self.multicast.map(|root| (root.member, self.root))
    }

    /// The nonce that distinguishes this member from others that had its address before.
    pub const fn nonce(&self) -> Nonce {
        self.handshake.nonce()
    }

    /// Takes a step of the root's handshake.
    pub fn handle_handshake(
        &mut self,
        now: Nanoseconds,
        session: Option<SessionId>,
        step: Handshake,
        nonce: Nonce,
    ) -> Option<HandshakeStep> {
        let step = self.handshake.handle(now, session, step, nonce)?;
        if matches!(step, HandshakeStep::Begins(_)) {
            self.root_heard_at = now;
            self.join_at = Some(now);
        }
        Some(step)
    }

    /// Whether a control message or a probe of the root is newer than all before, and so not a replay.
    pub fn is_from_root_now(&mut self, now: Nanoseconds, sent_at: Timestamp) -> bool {
        let is_later = self.root_timestamp < sent_at;
        if is_later {
            self.root_timestamp = sent_at;
            self.root_heard_at = now;
        }
        is_later
    }

    /// The root is gone, as the parent reported or the handshake has shown.
    pub const fn on_root_lost(&mut self, loss: RootLoss) {
        self.root_loss = Some(loss);
    }

    /// Whether the root was heard so recently that it is alive, whatever the parent says.
    pub fn hears_root(&self, now: Nanoseconds, settings: &Settings) -> bool {
        now.since(self.root_heard_at) <= parent_timeout(settings)
    }

    /// How the group ends at this member when the root evicts it.
    pub fn on_evicted(&self, now: Nanoseconds, settings: &Settings, why: Eviction) -> Ending {
        // A member that the root takes for dead finds that out from its parent's silence.
        let learns_within = Nanoseconds(parent_timeout(settings).0.saturating_mul(2));
        let pause = self.pause.filter(|pause| {
            pause.span >= settings.peer_timeout && now.since(pause.ended_at) <= learns_within
        });
        match (why, pause) {
            (Eviction::Silent | Eviction::Unacknowledged, Some(pause)) => {
                Ending::EvictedAfterPause(whole_ms(pause.span))
            }
            _ => Ending::Evicted(why),
        }
    }

    /// Begins another handshake, before there was a place.
    pub fn restart_handshake(&mut self, now: Nanoseconds) {
        self.handshake.restart(now);
        self.root_member = None;
        self.root_timestamp = Timestamp(0);
        self.join_at = None;
        self.incoming = None;
    }

    pub fn parent_address(&self) -> Option<SocketAddr> {
        self.parent.map(|parent| parent.address)
    }

    pub const fn root(&self) -> SocketAddr {
        self.root
    }

    pub fn is_root(&self, address: SocketAddr) -> bool {
        self.root == address
    }

    /// Whether a packet of that member, from that address, is the root's. The number is part of what the code covers, and the address is not:
    /// a packet of another member with the root's address has the timestamp of another clock, after which the root's would not count.
    pub fn is_root_member(&self, member: MemberId, from: SocketAddr) -> bool {
        self.is_root(from) && self.root_member == Some(member)
    }

    /// The root has sent its welcome, or a table, under this number.
    pub const fn set_root_member(&mut self, member: MemberId) {
        self.root_member = Some(member);
    }

    /// Handles a packet of the root that arrived by multicast and is not a replay. It proves nothing about the way to the parent and back, even where the root
    /// is the parent: that does not hear from this node by multicast.
    pub const fn handle_heard_by_multicast(&mut self, now: Nanoseconds) {
        self.root_heard_at = now;
    }

    /// Handles a packet of a neighbour that is not a replay.
    pub fn handle_heard(&mut self, now: Nanoseconds, member: MemberId, from: SocketAddr) {
        if from == self.root {
            self.root_heard_at = now;
        }
        if self.is_parent(member, from) {
            self.parent_heard_at = now;
        }
        self.suspected
            .retain(|suspected| suspected.member != member || suspected.failure != PeerFailure::Silent);
    }

    /// The parent and when it was heard last, if nothing needs the slow path.
    pub fn settled_parent(&self) -> Option<(Neighbour, Nanoseconds)> {
        let is_settled = self.has_place
            && self.incoming.is_none()
            && !self.is_table_ack_due
            && self.suspected.is_empty()
            && self.join_at.is_none()
            && self.leave_at.is_none()
            && self.root_probe.is_none()
            && self.handshake.timeout().is_none()
            && self.completion.is_none();
        self.parent.filter(|_| is_settled).map(|parent| (parent, self.parent_heard_at))
    }

    /// The parent, and by multicast the root, were heard while the group was handed off.
    pub fn reclaim(&mut self, parent_heard_at: Nanoseconds, multicast_heard_at: Option<Nanoseconds>) {
        self.parent_heard_at = self.parent_heard_at.max(parent_heard_at);
        if self.parent.is_some_and(|parent| parent.address == self.root) {
            self.root_heard_at = self.root_heard_at.max(parent_heard_at);
        }
        self.root_heard_at = self.root_heard_at.max(multicast_heard_at.unwrap_or_default());
    }

    /// Takes a part of a table that is later than those before.
    pub fn handle_table(&mut self, epoch: u32, table: Table) -> TableStep {
        if self.contradicts(epoch, &table) {
            return TableStep::Contradiction;
        }
        if epoch == self.epoch {
            // The root has not received the acknowledgment of this table.
            self.is_table_ack_due = true;
            return TableStep::Known;
        }
        let parts = usize::from(table.parts);
        let incoming = match &mut self.incoming {
            Some(incoming) if incoming.epoch > epoch => return TableStep::Known,
            Some(incoming) if incoming.epoch == epoch && incoming.parts.len() == parts => incoming,
            _ => self.incoming.insert(IncomingTable { epoch, parts: vec![None; parts] }),
        };
        let part = usize::from(table.part);
        incoming.parts[part] = Some(table);
        if incoming.parts.iter().all(Option::is_some) { TableStep::Complete } else { TableStep::Partial }
    }

    /// Whether a table contradicts the one that this member has: a root's epochs never decrease, the tables of an epoch are equal, and
    /// the settings of a group never change. With a forged table the member would wait without end for packets that no node sends.
    fn contradicts(&self, epoch: u32, table: &Table) -> bool {
        let Some(known) = &self.table else { return false };
        let settings = |table: &Table| {
            let &Table { slots, payload_bytes_max, offload, authentication, integrity, transport, .. } =
                table;
            (slots, payload_bytes_max, offload, authentication, integrity, transport)
        };
        let part = known.neighbours.chunks(Table::PART_NEIGHBOURS_MAX).nth(table.part.into());
        let is_equal = known.member == table.member && part == Some(&table.neighbours);
        epoch < self.epoch || settings(known) != settings(table) || epoch == self.epoch && !is_equal
    }

    /// Takes the place that the complete table gives; `None` if that names no parent, or no multicast address with offload
    /// `switch`, or one with another offload, or payloads without codes with `switch`.
    pub fn take_place(&mut self, now: Nanoseconds) -> Option<NewPlace> {
        let IncomingTable { epoch, parts } = self.incoming.take()?;
        let mut parts = parts.into_iter().flatten();
        let mut table = parts.next()?;
        table.neighbours.extend(parts.flat_map(|part| part.neighbours));
        let parent = *table.neighbours.iter().find(|neighbour| neighbour.role == Role::Parent)?;
        let mut roots = table.neighbours.iter().filter(|neighbour| neighbour.role == Role::Multicast);
        let (multicast, is_unique) = (roots.next().copied(), roots.next().is_none());
        let is_authentic = multicast.is_none() || table.authentication == Authentication::Payload;
        if multicast.is_some() != (table.offload == Offload::Switch) || !is_unique || !is_authentic {
            return None;
        }
        self.multicast = multicast;
        let is_new_parent = self.parent != Some(parent);
        if is_new_parent {
            self.inquiry = Inquiry::default();
            self.parent = Some(parent);
            self.parent_heard_at = now;
        }
        let children = table.neighbours.iter().filter(|neighbour| neighbour.role == Role::Child);
        let children: Vec<ChildAddress> =
            children.map(|&Neighbour { member, address, .. }| ChildAddress { member, address }).collect();
        self.suspected.retain(|suspected| {
            parent.member == suspected.member || children.iter().any(|child| child.member == suspected.member)
        });
        self.epoch = epoch;
        self.table = Some(table.clone());
        self.has_place = true;
        self.is_table_ack_due = true;
        self.join_at = None;
        let multicast = self.multicast.map(|root| root.address);
        Some(NewPlace { epoch, is_new_parent, table, children, multicast })
    }

    /// Other processes of this node are there than before: the root is told. It asks, in case that is lost.
    pub fn set_readers(&mut self, readers: Readers) {
        self.is_table_ack_due |= self.has_place && self.readers != Some(readers);
        self.readers = Some(readers);
    }

    /// The root asks for a sign of life.
    pub const fn handle_root_probe(&mut self, timestamp: Timestamp) {
        self.root_probe = Some(timestamp);
    }

    pub fn leave(&mut self, now: Nanoseconds) {
        self.leave_at = self.leave_at.or(Some(now));
        self.leaving_since = self.leaving_since.or(Some(now));
    }

    /// A neighbour has failed.
    pub fn suspect(&mut self, now: Nanoseconds, member: MemberId, failure: PeerFailure) {
        if self.suspected.iter().all(|suspected| suspected.member != member) {
            self.suspected.push(SuspectedNeighbour { member, failure, since: now, report_at: now });
        }
    }

    /// Handles timeouts; returns how the group has ended at this member, if it has.
    pub fn handle_timeout(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        flow: Option<&Flow>,
    ) -> Option<Ending> {
        if self.leaving_since.is_some_and(|since| now.since(since) > leave_timeout(settings)) {
            // The root does not answer, so that it need not agree.
            return Some(Ending::Aborted);
        }
        let Some(flow) = flow else {
            let waited = now.since(self.root_heard_at);
            return (waited > settings.join_timeout).then_some(Ending::RootSilent(settings.join_timeout));
        };
        if flow.is_finished() && flow.has_acked_all() {
            self.complete();
        }
        if self.is_released() {
            return flow.is_read().then_some(Ending::Closed);
        }
        let parent = self.parent.filter(|_| now.since(self.parent_heard_at) > parent_timeout(settings));
        if let Some(parent) = parent {
            self.suspect(now, parent.member, PeerFailure::Silent);
        }
        self.inquire(now, settings, flow.readable().1);
        let root_timeout = root_timeout(settings);
        let asked = self.suspected.iter().map(|suspected| suspected.since).chain(self.inquiry.asked_at);
        let is_root_dead = now.since(self.root_heard_at) > root_timeout
            && asked.into_iter().any(|since| now.since(since) > root_timeout);
        let loss = if is_root_dead { Some(RootLoss::Silent) } else { self.root_loss };
        self.without_root(loss?, root_timeout, flow)
    }

    /// Asks the root, if it is time for that; `next` is the next packet expected.
    fn inquire(&mut self, now: Nanoseconds, settings: &Settings, next: Sequence) {
        let interval_min = parent_timeout(settings);
        let restart = |check_at| Inquiry { next, check_at, interval: interval_min, asked_at: None };
        let Inquiry { next: known, check_at, asked_at, .. } = self.inquiry;
        if self.parent.is_some_and(|parent| parent.address == self.root) {
            // It hears the root itself.
            self.inquiry = restart(None);
        } else if let Some(check_at) = check_at.filter(|_| asked_at.is_none()) {
            if now > check_at && known != next {
                self.inquiry = restart(Some(now.max(check_at + interval_min)));
            } else if now > check_at {
                self.inquiry.asked_at = Some(now);
                self.join_at = Some(now);
            }
        } else if check_at.is_none() || known != next {
            self.inquiry = restart(Some(now + interval_min));
        }
        if asked_at.is_some() && self.inquiry.asked_at.is_none() {
            self.join_at = None;
        }
    }

    /// The root has answered with the table of this member.
    pub fn on_answered(&mut self, now: Nanoseconds, settings: &Settings) {
        if self.inquiry.asked_at.take().is_some() {
            let interval_max = Nanoseconds(parent_timeout(settings).0.saturating_mul(INQUIRY_BACKOFF_MAX));
            self.inquiry.interval = interval_max.min(Nanoseconds(self.inquiry.interval.0.saturating_mul(2)));
            self.inquiry.check_at = Some(now + self.inquiry.interval);
            self.join_at = None;
        }
    }

    /// How the group ends at this member after the root is gone, if it ends now.
    pub fn without_root(&mut self, loss: RootLoss, root_timeout: Nanoseconds, flow: &Flow) -> Option<Ending> {
        match (&mut self.completion, loss) {
            // This member has everything, and the root, to which it would report that, is gone.
            (Some(completion), _) => {
                completion.is_released = true;
                flow.is_read().then_some(Ending::Closed)
            }
            (None, RootLoss::Silent) => Some(Ending::RootSilent(root_timeout)),
            (None, RootLoss::Restarted) => Some(Ending::RootRestarted),
        }
    }

    /// This node was suspended for the time `paused`: that others were not heard meanwhile means nothing.
    pub fn handle_suspend(&mut self, now: Nanoseconds, paused: Nanoseconds) {
        self.pause = Some(Pause { ended_at: now, span: paused });
        self.root_heard_at = now;
        self.parent_heard_at = now;
        self.suspected.clear();
        match &mut self.inquiry {
            Inquiry { asked_at: Some(asked_at), .. } => *asked_at = now,
            inquiry => inquiry.check_at = None,
        }
    }

    fn is_released(&self) -> bool {
        self.completion.is_some_and(|completion| completion.is_released)
    }

    fn complete(&mut self) -> &mut Completion {
        self.completion.get_or_insert(Completion { is_released: false })
    }

    /// The root says that all members have everything.
    pub fn release(&mut self) {
        self.complete().is_released = true;
    }

    /// When the next timeout is to be handled.
    pub fn timeout(&self, settings: &Settings) -> Option<Nanoseconds> {
        if self.handshake.is_open() {
            // Nothing is sent before the session is known.
            let leave = self.leaving_since.map(|since| since + leave_timeout(settings) + Nanoseconds(1));
            let give_up = self.root_heard_at + settings.join_timeout + Nanoseconds(1);
            return leave.into_iter().chain(self.handshake.timeout()).chain([give_up]).min();
        }
        if !self.has_place {
            return self
                .join_at
                .into_iter()
                .chain(self.handshake.timeout())
                .chain(self.leave_at)
                .chain([self.root_heard_at + settings.join_timeout + Nanoseconds(1)])
                .min();
        }
        if self.is_released() {
            return None;
        }
        let reports = self.suspected.iter().map(|suspected| suspected.report_at);
        // Once a neighbour is suspected, the reports to the root come next.
        let parent = self.parent.filter(|_| self.suspected.is_empty());
        let parent = parent.map(|_| self.parent_heard_at + parent_timeout(settings) + Nanoseconds(1));
        let check_at = self.inquiry.check_at.filter(|_| self.inquiry.asked_at.is_none());
        let inquiry = check_at.map(|check_at| check_at + Nanoseconds(1));
        reports
            .chain(parent)
            .chain(inquiry)
            .chain(self.leave_at)
            .chain(self.join_at)
            .chain(self.handshake.timeout())
            .min()
    }

    /// The next packet to be sent to the root.
    pub fn poll_transmit(
        &mut self,
        now: Nanoseconds,
        header: &mut HeaderTemplate,
        flow: Option<&Flow>,
    ) -> Option<Transmit> {
        if let Some(nonce) = self.handshake.poll_hello(now) {
            return Some(header.handshake(now, self.root, nonce, &Handshake::Hello));
        }
        header.session()?;
        let nonce = self.nonce();
        if let Some(flow) = flow
            && let Some(echo) = self.root_probe.take()
        {
            let (_, next) = flow.readable();
            let acknowledgment = Acknowledgment {
                stable: flow.stable(),
                receive_window: 0,
                echo,
                is_reached: false,
                is_congested: false,
            };
            return Some(header.ack_root(now, self.root, next, acknowledgment));
        }
        if std::mem::take(&mut self.is_table_ack_due) {
            return Some(header.control(now, self.root, nonce, &Control::TableAck(self.readers)));
        }
        if let Some(address) = self.handshake.address()
            && take_due(&mut self.join_at, now)
        {
            return Some(header.control(now, self.root, nonce, &Control::Join(address)));
        }
        if take_due(&mut self.leave_at, now) {
            return Some(header.control(now, self.root, nonce, &Control::Leave));
        }
        if self.is_released() {
            return None;
        }
        let suspected = self.suspected.iter_mut().find(|suspected| suspected.report_at <= now)?;
        suspected.report_at = now + REQUEST_INTERVAL;
        let control = match suspected.failure {
            PeerFailure::StateLost => Control::StateLost(suspected.member),
            // The root finds out that the neighbour answers, and so that the path between the two is broken.
            PeerFailure::Silent | PeerFailure::PathTooSmall { .. } | PeerFailure::AcceptsNothing { .. } => {
                Control::Suspect(suspected.member)
            }
        };
        Some(header.control(now, self.root, nonce, &control))
    }
}

/// The longest time without anything new after which the root is asked, in the least such times.
const INQUIRY_BACKOFF_MAX: u64 = 16;

/// A parent probes its children at every keepalive interval, and so is heard; it may meanwhile be busy finding out that another of its
/// children is dead.
fn parent_timeout(settings: &Settings) -> Nanoseconds {
    Nanoseconds((settings.peer_timeout.0 / 2).saturating_mul(3))
}

/// How long a member that leaves repeats that at most. A root that does not hear it loses the member by its silence.
const LEAVE_TIMEOUT_MAX: Nanoseconds = Nanoseconds::from_ms(1_000);

fn leave_timeout(settings: &Settings) -> Nanoseconds {
    settings.peer_timeout.min(LEAVE_TIMEOUT_MAX)
}

/// A root that is silent for this time, although a failure was reported to it, is dead.
pub(super) fn root_timeout(settings: &Settings) -> Nanoseconds {
    Nanoseconds(settings.peer_timeout.0.saturating_mul(2))
}

fn take_due(time: &mut Option<Nanoseconds>, now: Nanoseconds) -> bool {
    let is_due = time.is_some_and(|time| time <= now);
    if is_due {
        *time = Some(now + REQUEST_INTERVAL);
    }
    is_due
}

#[cfg(test)]
impl Membership {
    /// A state of docs/protocol.md.
    pub fn state(&self) -> &'static str {
        if self.is_released() {
            "released"
        } else if self.completion.is_some() {
            "complete"
        } else if self.leave_at.is_some() {
            "leaving"
        } else if self.join_at.is_some() && !self.has_place {
            "joining"
        } else if !self.has_place {
            "waiting"
        } else if !self.suspected.is_empty() {
            "suspecting"
        } else if self.inquiry.asked_at.is_some() {
            "asking"
        } else {
            "placed"
        }
    }
}

#[cfg(test)]
mod tests {
    use treecast_wire::{Integrity, Sequence, Transport};

    use super::*;

    /// A table with a parent and this number of children.
    fn table(children: u32) -> Vec<Table> {
        let address = "192.0.2.1:7000".parse().unwrap();
        let neighbour = |member| {
            let role = if member == 0 { Role::Parent } else { Role::Child };
            Neighbour { member: MemberId(member), role, address }
        };
        let neighbours: Vec<Neighbour> = (0..=children).map(neighbour).collect();
        let parts = neighbours.chunks(Table::PART_NEIGHBOURS_MAX);
        let count = parts.len() as u16;
        let part = |(number, neighbours): (usize, &[Neighbour])| Table {
            member: MemberId(9),
            start: Sequence(0),
            slots: 64,
            message: 0,
            bytes: 0,
            payload_bytes_max: 512,
            offload: Offload::Nic,
            authentication: Authentication::Header,
            integrity: Integrity::Crc32c,
            transport: Transport::Packets,
            part: number as u16,
            parts: count,
            neighbours: neighbours.to_vec(),
        };
        parts.enumerate().map(part).collect()
    }

    #[test]
    fn tables_that_no_root_sends_are_recognized() {
        let mut membership = Membership::new(Nanoseconds::ZERO, "192.0.2.1:7000".parse().unwrap(), [1, 2]);
        let [first, second] = table(30).try_into().unwrap();
        assert_eq!(membership.handle_table(3, first.clone()), TableStep::Partial);
        assert_eq!(membership.handle_table(3, second.clone()), TableStep::Complete);
        membership.take_place(Nanoseconds::ZERO).unwrap();

        assert_eq!(membership.handle_table(3, second.clone()), TableStep::Known);
        assert_eq!(membership.handle_table(4, first.clone()), TableStep::Partial);
        let other_part = Table { neighbours: first.neighbours.clone(), ..second.clone() };
        let other_member = Table { member: MemberId(8), ..first.clone() };
        let other_settings = Table { authentication: Authentication::Payload, ..first.clone() };
        let contradictions =
            [(2, &first), (3, &table(5)[0]), (3, &other_part), (3, &other_member), (4, &other_settings)]
                .map(|(epoch, table)| membership.handle_table(epoch, table.clone()));
        assert_eq!(contradictions, [TableStep::Contradiction; 5]);
    }
}
