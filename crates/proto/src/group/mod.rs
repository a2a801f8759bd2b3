//! A group at one node: its packets, its place in the tree, and what it says to others.

mod member;
mod root;
mod seat;

use std::net::SocketAddr;

use treecast_wire::{
    Body, Control, Cookie, Eviction, GroupId, Header, MemberId, Packet, PayloadChecksum, Sequence, Timestamp,
};

use crate::flow::{Copy, Flow, Terms, Timeouts, Told};
use crate::lent::{Lent, LentPacket};
use crate::protocol::{Piece, Source, Transmit};
use crate::{CreateGroup, Ending, Event, GroupCounters, Nanoseconds, Refused, Settings};

use member::Membership;
use root::Roster;

/// A group at one node.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    name: Name,
    /// Its packets, once it has a place in the tree.
    flow: Option<Flow>,
    place: Place,
    events: Vec<Event>,
    /// Counters of what comes before there is a place.
    early: GroupCounters,
    has_ended: bool,
}

/// How a group is called at this node, and what every packet of it says.
#[derive(Debug, Clone, Copy)]
struct Name {
    group: GroupId,
    cookie: Cookie,
    member: MemberId,
    epoch: u32,
}

/// What the node has to do with the tree.
#[derive(Debug, Clone)]
enum Place {
    Root(Box<Roster>),
    Member(Box<Membership>),
}

impl Name {
    fn packet(&self, now: Nanoseconds, to: SocketAddr, sequence: Sequence, body: Body) -> Transmit {
        let header = self.header(Timestamp(now.0.max(1)), sequence, body);
        Transmit { to, header: header.write(PayloadChecksum::EMPTY), payload: Source::Bytes(Vec::new()) }
    }

    fn control(&self, now: Nanoseconds, to: SocketAddr, control: &Control) -> Transmit {
        let payload = control.write();
        let body = Body::Control { operation: control.operation(), length: payload.len() as u32 };
        let header = self.header(Timestamp(now.0.max(1)), Sequence(0), body);
        Transmit { to, header: header.write(PayloadChecksum::of(&payload)), payload: Source::Bytes(payload) }
    }

    fn header(&self, timestamp: Timestamp, sequence: Sequence, body: Body) -> Header {
        let Self { group, cookie, member, epoch } = *self;
        Header { group, cookie, epoch, sender: member, sequence, timestamp, body }
    }
}

impl Group {
    /// The group at its root.
    pub fn create(now: Nanoseconds, settings: &Settings, lead: CreateGroup) -> Result<Self, Refused> {
        let parents = lead.parents()?;
        let terms = Terms {
            slots: lead.slots,
            payload_bytes_max: lead.payload_bytes_max,
            offload: lead.offload,
            start: lead.start,
            bytes_per_s_max: lead.bytes_per_s_max,
            is_root: true,
            timeouts: Timeouts::from(settings),
        };
        let name = Name { group: lead.group, cookie: lead.cookie, member: lead.root, epoch: 1 };
        let mut flow = Flow::new(terms);
        let roster = Roster::new(now, lead, parents);
        flow.set_children(now, name.epoch, &roster.own_children());
        Ok(Self::new(name, Some(flow), Place::Root(Box::new(roster))))
    }

    /// The group at a member that waits for its place.
    pub fn join(
        now: Nanoseconds,
        group: GroupId,
        cookie: Cookie,
        root: SocketAddr,
        sends_join: bool,
    ) -> Self {
        let name = Name { group, cookie, member: MemberId(u32::MAX), epoch: 0 };
        Self::new(name, None, Place::Member(Box::new(Membership::new(now, root, sends_join))))
    }

    const fn new(name: Name, flow: Option<Flow>, place: Place) -> Self {
        let early = GroupCounters {
            accepted: 0,
            held: 0,
            duplicates: 0,
            no_slot: 0,
            sent: 0,
            retransmitted: 0,
            acks_sent: 0,
            naks_sent: 0,
            acks_received: 0,
            timeouts: 0,
            probes_sent: 0,
            unknown_sender: 0,
            invalid: 0,
        };
        Self { name, flow, place, events: Vec::new(), early, has_ended: false }
    }

    pub const fn id(&self) -> GroupId {
        self.name.group
    }

    pub const fn cookie(&self) -> Cookie {
        self.name.cookie
    }

    /// Whether the group has ended here, and has nothing left to say.
    pub fn is_over(&self) -> bool {
        self.has_ended
            && match &self.place {
                Place::Root(roster) => roster.is_over(),
                Place::Member(_) => true,
            }
    }

    pub fn take_events(&mut self) -> impl Iterator<Item = Event> {
        self.events.drain(..)
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

    pub fn freed(&self) -> Option<Sequence> {
        self.flow.as_ref().map(Flow::freed)
    }

    pub fn is_closed(&self) -> bool {
        self.flow.as_ref().is_some_and(Flow::is_closed)
    }

    pub fn room(&self) -> u32 {
        match (&self.place, &self.flow) {
            (Place::Root(roster), Some(flow)) if !roster.is_closing() => flow.room(),
            _ => 0,
        }
    }

    pub fn epoch(&self) -> Option<u32> {
        self.flow.as_ref().map(|_| self.name.epoch)
    }

    pub fn neighbours(&self) -> Option<(Option<SocketAddr>, Vec<SocketAddr>)> {
        let parent = match &self.place {
            Place::Root(_) => None,
            Place::Member(membership) => Some(membership.parent_address()?),
        };
        Some((parent, self.flow.as_ref()?.addresses().collect()))
    }

    pub fn awaited(&self) -> Vec<MemberId> {
        match &self.place {
            Place::Root(roster) => roster.awaited(),
            Place::Member(_) => Vec::new(),
        }
    }

    pub fn children(&self) -> impl Iterator<Item = MemberId> {
        self.flow.iter().flat_map(Flow::children)
    }

    pub fn counters(&self) -> &GroupCounters {
        self.flow.as_ref().map_or(&self.early, |flow| &flow.counters)
    }

    /// At the root: the next packet is in its slot.
    pub fn queue(&mut self, piece: Piece) -> Result<(), Refused> {
        match (&self.place, &mut self.flow) {
            (Place::Root(roster), Some(flow)) => {
                if roster.is_closing() {
                    Err(Refused::Closed(self.name.group))
                } else {
                    flow.queue(piece)
                }
            }
            _ => Err(Refused::NotTheRoot(self.name.group)),
        }
    }

    pub fn consumed(&mut self, upto: Sequence) -> Result<(), Refused> {
        self.flow.as_mut().ok_or(Refused::UnknownGroup(self.name.group))?.consume(upto)
    }

    pub fn forward(&mut self, upto: Sequence, child: Option<MemberId>) -> Result<(), Refused> {
        self.flow.as_mut().ok_or(Refused::UnknownGroup(self.name.group))?.forward(upto, child)
    }

    /// At the root: nothing more will be queued.
    pub fn close(&mut self) -> Result<(), Refused> {
        match &mut self.place {
            Place::Root(roster) if roster.is_closing() => Err(Refused::Closed(self.name.group)),
            Place::Root(roster) => {
                // Members would wait for the rest, and never take the closing packet.
                if let Some((message, offset)) = self.flow.as_ref().and_then(Flow::unfinished) {
                    return Err(Refused::Unfinished { message, offset });
                }
                roster.close();
                Ok(())
            }
            Place::Member(_) => Err(Refused::NotTheRoot(self.name.group)),
        }
    }

    /// At another member: asks the root to go on without it.
    pub fn leave(&mut self, now: Nanoseconds) -> Result<(), Refused> {
        match &mut self.place {
            Place::Root(_) => Err(Refused::IsTheRoot(self.name.group)),
            Place::Member(membership) => {
                membership.leave(now);
                Ok(())
            }
        }
    }

    /// Gives the group up.
    pub fn abort(&mut self, now: Nanoseconds) {
        if let Place::Root(roster) = &mut self.place {
            roster.end(now, Eviction::Aborted);
        }
        self.end(Ending::GivenUp);
    }

    fn end(&mut self, ending: Ending) {
        if !self.has_ended {
            self.has_ended = true;
            self.events.push(Event::Ended { group: self.name.group, ending });
        }
    }

    /// Takes in a packet of this group. The answer is the slot for its payload, if it is wanted.
    pub fn packet(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        from: SocketAddr,
        packet: &Packet<'_>,
    ) -> Option<u32> {
        let Header { sender, sequence, timestamp, epoch, body, .. } = packet.header;
        match &mut self.place {
            Place::Root(roster) => roster.heard(now, sender, from),
            Place::Member(membership) => membership.heard(now, sender, from),
        }
        match body {
            Body::Data(data) => {
                if self.is_parent(sender) {
                    return self.flow.as_mut()?.data(sequence, &data, packet.payload.checksum(), timestamp);
                }
                self.count_unknown_sender();
            }
            Body::Acknowledgment(acknowledgment) | Body::Nak(acknowledgment, _) => {
                let missing = if let Body::Nak(_, missing) = body { Some(missing) } else { None };
                let told = Told {
                    epoch,
                    next: sequence,
                    stable: acknowledgment.stable,
                    window: acknowledgment.window,
                    missing,
                    timestamp,
                };
                match &mut self.flow {
                    Some(flow) if flow.has_child(sender) => flow.told(now, sender, &told),
                    // The root has asked members for a sign of life that are not its children.
                    _ if matches!(&self.place, Place::Root(roster) if roster.has(sender)) => {}
                    _ => self.count_unknown_sender(),
                }
            }
            Body::Probe => self.probed(sender, from, sequence, timestamp),
            Body::Control { operation, .. } => match Control::read(operation, packet.payload.bytes()) {
                Ok(control) => self.control(now, settings, from, &packet.header, control),
                Err(_) => self.count(|counters| counters.invalid += 1),
            },
        }
        None
    }

    fn probed(&mut self, sender: MemberId, from: SocketAddr, sequence: Sequence, timestamp: Timestamp) {
        match (&mut self.flow, &mut self.place) {
            (Some(flow), Place::Member(membership)) if membership.is_parent(sender) => {
                flow.probed(sequence, timestamp);
            }
            (Some(_), Place::Member(membership)) if membership.is_root(from) => membership.asked(timestamp),
            _ => self.count_unknown_sender(),
        }
    }

    fn is_parent(&self, member: MemberId) -> bool {
        matches!(&self.place, Place::Member(membership) if membership.is_parent(member))
    }

    fn count_unknown_sender(&mut self) {
        self.count(|counters| counters.unknown_sender += 1);
    }

    fn count(&mut self, count: impl FnOnce(&mut GroupCounters)) {
        count(self.flow.as_mut().map_or(&mut self.early, |flow| &mut flow.counters));
    }

    fn control(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        from: SocketAddr,
        header: &Header,
        control: Control,
    ) {
        let Header { sender, epoch, timestamp, .. } = *header;
        match (&mut self.place, control) {
            (Place::Root(roster), Control::TableAck) => {
                if !roster.taken(now, sender, from, epoch, timestamp) {
                    self.count_unknown_sender();
                }
            }
            (Place::Root(roster), Control::Suspect(member)) => roster.suspect(now, sender, member, from),
            (Place::Root(roster), Control::StateLost(member)) => {
                if !roster.on_state_lost(now, sender, member, from) {
                    self.count_unknown_sender();
                }
            }
            (Place::Root(roster), Control::Join) => roster.join(now, from, timestamp),
            (Place::Root(roster), Control::Leave) => roster.leave(now, sender, from),
            (Place::Member(membership), Control::Table(table)) if membership.is_root(from) => {
                if membership.table(now, epoch, table) {
                    self.take_place(now, settings);
                }
            }
            (Place::Member(membership), Control::Evicted(why)) if membership.is_root(from) => {
                // Who has no place has nothing left to read.
                if why == Eviction::Closed && self.flow.is_some() {
                    membership.release();
                } else {
                    self.end(Ending::Evicted(why));
                }
            }
            _ => self.count_unknown_sender(),
        }
    }

    /// Takes the place that a whole table gives.
    fn take_place(&mut self, now: Nanoseconds, settings: &Settings) {
        let Place::Member(membership) = &mut self.place else { return };
        let Some((epoch, table, children)) = membership.take_place(now) else {
            self.count(|counters| counters.invalid += 1);
            return;
        };
        let group = self.name.group;
        let asked_bytes = u64::from(table.slots) * u64::from(table.payload_bytes_max);
        if asked_bytes > settings.slot_bytes_max {
            self.end(Ending::TooMuchMemory { asked_bytes, bytes_max: settings.slot_bytes_max });
            return;
        }
        if table.member != self.name.member {
            // Nothing is kept of a place that this host had before.
            self.flow = None;
        }
        (self.name.epoch, self.name.member) = (epoch, table.member);
        let flow = self.flow.get_or_insert_with(|| {
            self.events.push(Event::Placed {
                group,
                member: table.member,
                start: table.start,
                slots: table.slots,
                payload_bytes_max: table.payload_bytes_max,
                offload: table.offload,
            });
            Flow::new(Terms {
                slots: table.slots,
                payload_bytes_max: table.payload_bytes_max,
                offload: table.offload,
                start: table.start,
                bytes_per_s_max: None,
                is_root: false,
                timeouts: Timeouts::from(settings),
            })
        });
        flow.set_children(now, epoch, &children);
    }

    /// This node has been asleep: whoever has been silent meanwhile may not have been.
    pub fn overslept(&mut self, now: Nanoseconds) {
        if let Some(flow) = &mut self.flow {
            flow.overslept();
        }
        match &mut self.place {
            Place::Root(roster) => roster.overslept(now),
            Place::Member(membership) => membership.overslept(now),
        }
    }

    /// Writes down what goes on in the group, if nothing is out of the ordinary.
    pub fn lend(&self, lent: &mut Lent) -> bool {
        let Some(flow) = self.flow.as_ref().filter(|flow| !self.has_ended && flow.is_lendable()) else {
            return false;
        };
        let parent = match &self.place {
            Place::Root(roster) if roster.is_at_ease() => None,
            Place::Member(membership) => match membership.parent_at_ease() {
                Some(parent) => Some(parent),
                None => return false,
            },
            Place::Root(_) => return false,
        };
        let Name { group, cookie, member, epoch } = self.name;
        (lent.group, lent.cookie, lent.member, lent.epoch) = (group, cookie, member, epoch);
        lent.parent = parent.map(|(parent, _)| (parent.member, parent.address));
        lent.parent_heard_at = parent.map_or(Nanoseconds::ZERO, |(_, heard_at)| heard_at);
        flow.lend(lent);
        true
    }

    /// Goes on where whoever had the group stands; says whether what is in its slots can be.
    pub fn take_back(&mut self, lent: &Lent, packet: impl FnMut(Sequence) -> LentPacket) -> bool {
        let Some(flow) = &mut self.flow else { return true };
        let is_possible = flow.take_back(lent, packet);
        match &mut self.place {
            Place::Root(roster) => {
                for (child, address) in lent.children.iter().zip(flow.addresses()) {
                    roster.heard(child.heard_at, child.member, address);
                }
            }
            Place::Member(membership) => membership.take_back(lent.parent_heard_at),
        }
        is_possible
    }

    /// The next packet to be sent.
    pub fn poll(&mut self, now: Nanoseconds, settings: &Settings) -> Option<Transmit> {
        self.elapse(now, settings);
        let Self { name, flow, place, has_ended, .. } = self;
        let spoken = match place {
            Place::Root(roster) => roster.poll(now, settings, name),
            Place::Member(_) if *has_ended => return None,
            Place::Member(membership) => membership.poll(now, name, flow.as_mut()),
        };
        spoken.or_else(|| flow.as_mut().filter(|_| !*has_ended).and_then(|flow| name.next_of(now, flow)))
    }

    /// When there is something to do next, if nothing happens.
    pub fn deadline(&self, settings: &Settings) -> Option<Nanoseconds> {
        let own = match &self.place {
            Place::Root(roster) => roster.deadline(),
            Place::Member(membership) => membership.deadline(settings),
        };
        let flow = self.flow.as_ref().filter(|_| !self.has_ended).and_then(Flow::deadline);
        [own, flow].into_iter().flatten().min()
    }

    fn elapse(&mut self, now: Nanoseconds, settings: &Settings) {
        let mut ending = None;
        if let Some(flow) = &mut self.flow
            && !self.has_ended
        {
            for (member, trouble) in flow.elapse(now) {
                match &mut self.place {
                    Place::Root(roster) => roster.trouble(now, member, trouble, settings),
                    Place::Member(membership) => membership.suspects(now, member, trouble),
                }
            }
        }
        match &mut self.place {
            Place::Root(roster) => {
                if let Some(flow) = &mut self.flow {
                    ending = roster.elapse(now, settings, &mut self.name, flow, &mut self.events);
                }
            }
            Place::Member(membership) => ending = membership.elapse(now, settings, self.flow.as_ref()),
        }
        if let Some(ending) = ending {
            self.end(ending);
        }
    }
}

impl Name {
    /// The next packet of a flow: questions first, since they are small and rare.
    fn next_of(&self, now: Nanoseconds, flow: &mut Flow) -> Option<Transmit> {
        if let Some((to, sent)) = flow.take_probe(now) {
            return Some(self.packet(now, to, sent, Body::Probe));
        }
        let Copy { to, packet, data, checksum, slot } = flow.take_copy(now)?;
        let header = self.header(Timestamp(now.0.max(1)), packet, Body::Data(data)).write(checksum);
        Some(Transmit { to, header, payload: Source::Slot { group: self.group, slot, length: data.length } })
    }
}

/// States of docs/protocol.md.
#[cfg(test)]
impl Group {
    pub const fn member(&self) -> MemberId {
        self.name.member
    }

    /// Tells of each thing in which of a diagram's states it is.
    pub fn states(&self, tell: &mut dyn FnMut(crate::diagrams::Diagram, u32, &'static str)) {
        use crate::diagrams::Diagram;
        match &self.place {
            Place::Root(roster) => roster.states(tell),
            Place::Member(_) if self.has_ended => tell(Diagram::Member, 0, "ended"),
            Place::Member(membership) => tell(Diagram::Member, 0, membership.state()),
        }
        if let Some(flow) = self.flow.as_ref().filter(|_| !self.has_ended) {
            flow.states(tell);
        }
    }
}
