//! A group at one node: its packets, its place in the tree, and what it sends to others.

mod hand_off;
mod handshake;
mod header;
mod member_table;
mod membership;
mod queries;
mod receive;
mod reduction;
mod root_loss;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use treecast_wire::{
    AbortReason, Body, Challenge, Contribution, Control, Eviction, GroupId, Header, MemberId, Nonce, Readers,
    RootLoss, Sequence,
};

use crate::flow::{Carrier, Flow, FlowConfig, StreamChange, Timeouts};
use crate::pause::Pause;
use crate::{
    CreateGroup, Ending, Event, GroupCounters, GroupKey, Nanoseconds, Piece, Refused, Settings, Start,
    Transmit,
};

use header::HeaderTemplate;
use member_table::{Loss, MemberTable, TableChange};
use membership::Membership;
use reduction::{Reduction, Subtree};
use root_loss::RootLossNotices;

pub use reduction::Process;

/// A group at one node.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    header: HeaderTemplate,
    /// Its packets, once it has a place in the tree.
    flow: Option<Flow>,
    role: Role,
    reduction: Reduction,
    events: Vec<Event>,
    /// Counters of what arrives before there is a place.
    early_counters: GroupCounters,
    has_ended: bool,
    /// A member's messages to its children that the root is gone, or is said to be.
    root_loss_notices: Option<RootLossNotices>,
}

/// The number of notices of the end to each, and the interval between them: they are not
/// acknowledged, and may be lost.
const END_NOTICES: usize = 3;
const END_INTERVAL: Nanoseconds = Nanoseconds::from_ms(5);

/// The part of this node in the tree.
#[derive(Debug, Clone)]
enum Role {
    Root(Box<MemberTable>),
    Member(Box<Membership>),
}

/// Commands of this node's user.
impl Group {
    /// Creates a group at its root.
    pub fn create(now: Nanoseconds, settings: &Settings, create: CreateGroup) -> Result<Self, Refused> {
        let parents = create.parents()?;
        let config = FlowConfig {
            slots: create.slots,
            payload_bytes_max: create.payload_bytes_max,
            offload: create.offload,
            integrity: create.integrity,
            transport: create.transport,
            multicast: create.multicast,
            start: Start { packet: create.start, message: 0, bytes: 0 },
            bytes_per_s_max: create.bytes_per_s_max,
            is_root: true,
            timeouts: Timeouts::from(settings),
        };
        let mut header = HeaderTemplate::new(create.group, create.key, create.root, 1);
        header.set_session(create.session, create.authentication);
        header.set_payload_checks(create.authentication, create.transport.crcs(create.integrity));
        let mut flow = Flow::new(config);
        let table = MemberTable::new(now, settings, create, parents);
        flow.set_children(now, header.epoch, &table.own_children());
        Ok(Self::new(header, Some(flow), Role::Root(Box::new(table))))
    }

    /// Joins a group at a member, which waits for its place.
    pub fn join(now: Nanoseconds, group: GroupId, key: GroupKey, root: SocketAddr, seed: [u64; 2]) -> Self {
        let header = HeaderTemplate::new(group, key, MemberId(u32::MAX), 0);
        Self::new(header, None, Role::Member(Box::new(Membership::new(now, root, seed))))
    }

    fn new(header: HeaderTemplate, flow: Option<Flow>, role: Role) -> Self {
        let early_counters = GroupCounters::default();
        Self {
            header,
            flow,
            role,
            reduction: Reduction::default(),
            events: Vec::new(),
            early_counters,
            has_ended: false,
            root_loss_notices: None,
        }
    }

    /// At the root: the next packet is in its slot.
    pub fn queue(&mut self, piece: Piece) -> Result<(), Refused> {
        match (&self.role, &mut self.flow) {
            (Role::Root(table), Some(flow)) => {
                if table.is_closing() {
                    Err(Refused::Closed(self.header.group))
                } else {
                    flow.queue(piece)
                }
            }
            _ => Err(Refused::NotTheRoot(self.header.group)),
        }
    }

    /// At the root: packets that are queued from now on go this way.
    pub fn set_carrier(&mut self, carrier: Carrier) -> Result<(), Refused> {
        match (&self.role, &mut self.flow) {
            (Role::Root(_), Some(flow)) => {
                flow.set_carrier(carrier);
                Ok(())
            }
            _ => Err(Refused::NotTheRoot(self.header.group)),
        }
    }

    /// Which processes of this node have come, and which are lost.
    pub fn set_readers(&mut self, readers: Readers) {
        match &mut self.role {
            Role::Root(table) => table.handle_own_readers(&readers),
            Role::Member(membership) => membership.set_readers(readers),
        }
    }

    /// The readers need no packet before this one.
    pub fn consume(&mut self, upto: Sequence) -> Result<(), Refused> {
        self.flow.as_mut().ok_or(Refused::UnknownGroup(self.header.group))?.consume(upto)
    }

    /// Packets before this one may be forwarded.
    pub fn forward(&mut self, upto: Sequence, child: Option<MemberId>) -> Result<(), Refused> {
        self.flow.as_mut().ok_or(Refused::UnknownGroup(self.header.group))?.forward(upto, child)
    }

    /// The payload of a packet that readers need is corrupt.
    pub fn repair(&mut self, now: Nanoseconds, packet: Sequence) -> Result<(), Refused> {
        self.flow.as_mut().ok_or(Refused::UnknownGroup(self.header.group))?.repair(now, packet)
    }

    /// A process of this node contributes to an all-reduce.
    pub fn contribute(&mut self, process: Process, contribution: Contribution) -> Result<(), Refused> {
        let flow = self.flow.as_ref().filter(|flow| !self.has_ended && !flow.is_closed());
        let flow = flow.ok_or(Refused::UnknownGroup(self.header.group))?;
        self.reduction.contribute(process, contribution, flow.next())
    }

    /// At the root: wants to know when all members have what is queued.
    pub fn flush(&mut self, now: Nanoseconds) -> Result<(), Refused> {
        match (&self.role, &mut self.flow) {
            (Role::Root(_), Some(flow)) => {
                if flow.has_streams() {
                    flow.flush(now);
                }
                Ok(())
            }
            _ => Err(Refused::NotTheRoot(self.header.group)),
        }
    }

    /// Datagrams as long as the group's do not leave this node.
    pub fn leave_datagrams(&mut self, now: Nanoseconds) {
        if let Some(flow) = &mut self.flow {
            flow.on_datagrams_too_long(now);
        }
    }

    /// The stream of a child loses many packets.
    pub fn note_stream_losses(&mut self, now: Nanoseconds, child: MemberId) {
        if let Some(flow) = &mut self.flow {
            flow.on_stream_losses(now, child);
        }
    }

    /// The payloads before this packet are in slots no more.
    pub fn forget(&mut self, before: Sequence) -> Result<(), Refused> {
        self.flow.as_mut().ok_or(Refused::UnknownGroup(self.header.group))?.forget(before)
    }

    /// The first packet on a stream that a child of this node has opened from this address. Returns
    /// the child, if the stream is taken.
    pub fn attach(
        &mut self,
        now: Nanoseconds,
        from: IpAddr,
        challenge: Challenge,
        header: &Header,
    ) -> Option<MemberId> {
        let flow = self.flow.as_mut().filter(|_| !self.has_ended)?;
        let is_answer = header.body == Body::Attach(challenge);
        let is_taken = is_answer
            && flow.is_child_at(header.sender, from)
            && flow.attach(now, header.sender, header.sequence);
        if !is_taken {
            flow.counters_mut().unknown_sender += 1;
        }
        is_taken.then_some(header.sender)
    }

    /// The stream of a child has changed.
    pub fn set_stream(&mut self, child: MemberId, change: StreamChange) {
        if let Some(flow) = &mut self.flow {
            flow.set_stream(child, change);
        }
    }

    /// At the root: nothing more will be queued.
    pub fn close(&mut self) -> Result<(), Refused> {
        match &mut self.role {
            Role::Root(table) if table.is_closing() => Err(Refused::Closed(self.header.group)),
            Role::Root(table) => {
                // Members would wait for the rest, and never accept the closing packet.
                if let Some((message, offset)) = self.flow.as_ref().and_then(Flow::unfinished) {
                    return Err(Refused::Unfinished { message, offset });
                }
                table.close();
                Ok(())
            }
            Role::Member(_) => Err(Refused::NotTheRoot(self.header.group)),
        }
    }

    /// At another member: asks the root to let it go.
    pub fn leave(&mut self, now: Nanoseconds) -> Result<(), Refused> {
        match &mut self.role {
            Role::Root(_) => Err(Refused::IsTheRoot(self.header.group)),
            Role::Member(membership) => {
                membership.leave(now);
                Ok(())
            }
        }
    }

    /// At the root: removes a member that is known to be dead. Does nothing if it has
    /// already been removed.
    pub fn evict(&mut self, member: MemberId) -> Result<(), Refused> {
        match &mut self.role {
            Role::Root(table) => {
                table.evict_dead(member);
                Ok(())
            }
            Role::Member(_) => Err(Refused::NotTheRoot(self.header.group)),
        }
    }

    /// At the root: makes a member a leaf. Does nothing if it is one, or has been removed.
    pub fn relieve(&mut self, member: MemberId) -> Result<(), Refused> {
        match &mut self.role {
            Role::Root(table) => {
                table.relieve(member);
                Ok(())
            }
            Role::Member(_) => Err(Refused::NotTheRoot(self.header.group)),
        }
    }

    /// Ends the group at once.
    pub fn abort(&mut self, now: Nanoseconds, why: AbortReason) {
        if let Role::Root(table) = &mut self.role {
            table.end(now, Eviction::Aborted(why));
        }
        self.end(now, Ending::Aborted);
    }

    fn end(&mut self, now: Nanoseconds, ending: Ending) {
        if self.has_ended {
            return;
        }
        self.has_ended = true;
        self.events.push(Event::Ended { group: self.header.group, ending });
        let loss = match ending {
            Ending::RootSilent(_) => RootLoss::Silent,
            Ending::RootRestarted => RootLoss::Restarted,
            _ => return,
        };
        self.tell_children(now, loss);
    }

    /// Tells the children that the root is gone.
    fn tell_children(&mut self, now: Nanoseconds, loss: RootLoss) {
        let children: Vec<SocketAddr> = self.flow.iter().flat_map(Flow::addresses).collect();
        self.root_loss_notices =
            (!children.is_empty()).then_some(RootLossNotices { loss, children, sent: 0, at: now });
    }
}

/// What time brings.
impl Group {
    /// This node did not run for a while.
    pub fn handle_suspend(&mut self, pause: Pause) {
        if let Some(flow) = &mut self.flow {
            flow.handle_suspend(pause);
        }
        match &mut self.role {
            Role::Root(table) => table.handle_suspend(pause),
            Role::Member(membership) => membership.handle_suspend(pause),
        }
    }

    /// Handles the timeouts that have passed.
    fn handle_timeout(&mut self, now: Nanoseconds, settings: &Settings) {
        if let Some(flow) = &mut self.flow
            && !self.has_ended
        {
            for (member, failure) in flow.handle_timeout(now) {
                match &mut self.role {
                    Role::Root(table) => table.handle_failure(now, member, failure),
                    Role::Member(membership) => membership.suspect(now, member, failure),
                }
            }
        }
        let ending = match &mut self.role {
            Role::Root(_) => {
                let ending = self.handle_root_timeout(now);
                self.hand_over_result();
                ending
            }
            Role::Member(membership) => membership.handle_timeout(now, settings, self.flow.as_ref()),
        };
        if let Some(ending) = ending {
            self.end(now, ending);
        }
    }

    /// At the root: hands over the result of an all-reduce to which all members have contributed.
    fn hand_over_result(&mut self) {
        let (Role::Root(table), Some(flow), false) = (&self.role, &self.flow, self.has_ended) else { return };
        let result = self.reduction.poll_result(|| Subtree {
            epoch: self.header.epoch,
            children: flow.children().collect(),
            absent: table.lost_readers(),
            gives_up_at: None,
        });
        let group = self.header.group;
        self.events.extend(result.map(|result| Event::Reduced { group, result }));
    }

    /// At the root: applies what has changed in the member table, and brings the group to its end.
    fn handle_root_timeout(&mut self, now: Nanoseconds) -> Option<Ending> {
        // A newcomer waits until the message that has begun is sent. A root that has just lost its
        // last child sends nothing more of it, and there need be no other input: the newcomer gets
        // its place now.
        while self.apply_table_change(now) {}
        let (Role::Root(table), Some(flow)) = (&mut self.role, &mut self.flow) else { return None };
        let keys = self.header.keys()?;
        if table.is_close_due() && flow.queue_close(keys) {
            table.on_close_queued();
        }
        // The member that was waited for may just have been lost.
        if table.is_closed() && flow.is_finished() {
            table.close_for_readers();
            while self.apply_table_change(now) {}
        }
        let (Role::Root(table), Some(flow)) = (&mut self.role, &self.flow) else { return None };
        let is_finished = table.is_closed() && flow.is_finished() && table.is_closed_for_readers();
        if is_finished {
            table.end(now, Eviction::Closed);
        }
        table.announce_end(now);
        is_finished.then_some(Ending::Closed)
    }

    /// At the root: applies what has changed in the member table; returns whether the tree has.
    fn apply_table_change(&mut self, now: Nanoseconds) -> bool {
        let (Role::Root(table), Some(flow)) = (&mut self.role, &mut self.flow) else { return false };
        let barrier = if table.wants_barrier() { flow.set_barrier() } else { None };
        let group = self.header.group;
        let TableChange { losses, tree, is_ready, is_admission_over, joined } =
            table.handle_timeout(now, barrier);
        let losses = losses.into_iter();
        let lost = |Loss { member, reader, why }| Event::MemberLost { group, member, reader, loss: why };
        self.events.extend(losses.map(lost));
        let has_changed = tree.is_some();
        if has_changed || is_ready || is_admission_over {
            flow.start_heartbeats(now);
        }
        if let Some((epoch, children)) = tree {
            self.header.epoch = epoch;
            flow.set_children(now, epoch, &children);
            self.reduction.set_children(flow.children());
        }
        if is_ready {
            self.events.push(Event::Ready { group });
        }
        if is_admission_over {
            flow.lift_barrier();
        }
        let joined = joined.map(|(member, start)| Event::Joined { group, member, start: start.packet });
        self.events.extend(joined);
        has_changed
    }
}

/// The outputs.
impl Group {
    /// Moves the events since the last call to the others of the node.
    pub fn poll_events(&mut self, events: &mut VecDeque<Event>) {
        let group = self.header.group;
        if let Some(flow) = &mut self.flow {
            self.events.extend(flow.poll_detached().map(|child| Event::Detached { group, child }));
            if flow.take_stalled() {
                self.events.push(Event::Stalled { group });
            }
        }
        if !self.events.is_empty() {
            events.extend(self.events.drain(..));
        }
    }

    /// The next packet to be sent.
    pub fn poll_transmit(&mut self, now: Nanoseconds, settings: &Settings) -> Option<Transmit> {
        self.handle_timeout(now, settings);
        let Self { header, flow, role, reduction, has_ended, root_loss_notices: notices, .. } = self;
        let transmit = match role {
            Role::Root(table) => table.poll_transmit(now, header),
            Role::Member(membership) => {
                let notice = RootLossNotices::poll_transmit(notices, now, header);
                if notice.is_some() || *has_ended {
                    return notice;
                }
                let parent = membership.parent_address();
                let ack = parent
                    .zip(flow.as_mut())
                    .and_then(|(to, flow)| Some(header.ack(to, &flow.poll_ack(now)?)));
                ack.or_else(|| membership.poll_transmit(now, header, flow.as_ref())).or_else(|| {
                    let (to, flow) = parent.zip(flow.as_ref())?;
                    let contribution = reduction.poll(now, settings, flow.next(), || Subtree {
                        epoch: header.epoch,
                        children: flow.children().collect(),
                        absent: membership.absent_readers(now, settings),
                        gives_up_at: membership.gives_up_at(settings),
                    })?;
                    Some(header.control(now, to, Nonce(0), &Control::Contribution(contribution)))
                })
            }
        };
        transmit.or_else(|| flow.as_mut().filter(|_| !*has_ended).and_then(|flow| header.next_of(now, flow)))
    }

    /// When the next timeout is to be handled.
    pub fn timeout(&self, settings: &Settings) -> Option<Nanoseconds> {
        let own = match &self.role {
            Role::Root(table) => table.timeout(),
            Role::Member(membership) => membership.timeout(settings),
        };
        let notice = self.root_loss_notices.as_ref().map(|notices| notices.at);
        if self.has_ended && matches!(self.role, Role::Member(_)) {
            return notice;
        }
        let flow = self.flow.as_ref().filter(|_| !self.has_ended).and_then(Flow::timeout);
        let contribution = match &self.role {
            Role::Root(_) => None,
            Role::Member(_) => self.reduction.timeout(),
        };
        [own, notice, flow, contribution].into_iter().flatten().min()
    }
}

/// States of docs/protocol.md.
#[cfg(test)]
impl Group {
    pub const fn member(&self) -> MemberId {
        self.header.member
    }

    /// Reports the state of each thing in its diagram.
    pub fn states(&self, report: &mut dyn FnMut(crate::diagrams::Diagram, u32, &'static str)) {
        use crate::diagrams::Diagram;
        match &self.role {
            Role::Root(table) => table.states(report),
            Role::Member(_) if self.has_ended => report(Diagram::Member, 0, "ended"),
            Role::Member(membership) => report(Diagram::Member, 0, membership.state()),
        }
        if let Some(flow) = self.flow.as_ref().filter(|_| !self.has_ended) {
            flow.states(report);
        }
    }
}
