//! What the root has to do with the tree: everybody's place in it, who is lost, who comes and who goes.
//!
//! Only the root changes the tree. Whoever is cut off is adopted by an ancestor, which still has every packet that the
//! adopted lack: a packet stays in its slot until the whole subtree has accepted it.

mod tell;

use std::net::SocketAddr;

use treecast_wire::{Eviction, MemberId, Sequence, Table, Timestamp};

use super::Name;
use super::seat::{Doubt, Seat};
use crate::flow::{ChildPlace, Flow, Trouble};
use crate::{CreateGroup, Ending, Event, MemberLoss, Nanoseconds, Settings};

/// All members and their places.
#[derive(Debug, Clone)]
pub(super) struct Roster {
    root: MemberId,
    seats: Vec<Seat>,
    epoch: u32,
    admits: bool,
    /// What the group agrees on, for tables.
    agreed: Table,
    is_ready: bool,
    newcomer: Option<Newcomer>,
    /// Who has gone since the root's user was told.
    losses: Vec<(MemberId, MemberLoss)>,
    /// Whom to tell once that it is not a member.
    evictions: Vec<(SocketAddr, Eviction)>,
    stage: Stage,
    /// Whether something has changed since all seats were looked at, and when to look again if nothing does.
    is_dirty: bool,
    look_at: Option<Nanoseconds>,
}

/// How far the group's end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// Everything is queued, and the closing packet waits for a slot.
    Closing,
    /// The closing packet is queued.
    Closed,
    /// It is over, and the members are being told why, so many times more.
    Over {
        why: Eviction,
        times: u32,
        tell_at: Nanoseconds,
    },
}

/// Somebody who becomes a member at the next boundary between messages.
#[derive(Debug, Clone)]
struct Newcomer {
    address: SocketAddr,
    /// Its number and first packet, once it has its place.
    place: Option<(MemberId, Sequence)>,
}

/// Nobody answers a farewell, and it may be lost: it is said as often.
const FAREWELLS: u32 = 3;
const FAREWELL_INTERVAL: Nanoseconds = Nanoseconds::from_ms(5);

/// For so long a sign of life says that it is the way between two neighbours that is broken.
const ANSWER_HOLDS: Nanoseconds = Nanoseconds::from_ms(500);

impl Roster {
    pub fn new(now: Nanoseconds, lead: CreateGroup, parents: Vec<Option<MemberId>>) -> Self {
        let CreateGroup { root, members, children, slots, payload_bytes_max, offload, start, admits, .. } =
            lead;
        let places = members.into_iter().zip(parents).zip(children);
        let seats =
            places.map(|((address, parent), children)| Seat::new(now, address, parent, children)).collect();
        let agreed = Table {
            member: root,
            taken: 0,
            start,
            slots,
            payload_bytes_max,
            offload,
            part: 0,
            parts: 1,
            neighbours: Vec::new(),
        };
        let mut roster = Self {
            root,
            seats,
            epoch: 1,
            admits,
            agreed,
            is_ready: false,
            newcomer: None,
            losses: Vec::new(),
            evictions: Vec::new(),
            stage: Stage::Open,
            is_dirty: true,
            look_at: None,
        };
        roster.seat_mut(root).taken = 1;
        roster
    }

    pub fn is_closing(&self) -> bool {
        self.stage != Stage::Open
    }

    pub fn close(&mut self) {
        self.stage = Stage::Closing;
    }

    /// The group is over: everybody is told.
    pub fn end(&mut self, now: Nanoseconds, why: Eviction) {
        if !matches!(self.stage, Stage::Over { .. }) {
            (self.stage, self.is_dirty) = (Stage::Over { why, times: FAREWELLS, tell_at: now }, true);
        }
    }

    /// Whether nothing is out of the ordinary: everybody has its place, and nobody comes or goes.
    pub fn is_at_ease(&self) -> bool {
        let is_settled = |seat: &Seat| {
            !seat.is_present
                || (seat.taken == self.epoch && seat.doubt.is_none() && !seat.is_owed && seat.part == 0)
        };
        self.stage == Stage::Open
            && self.is_ready
            && !self.is_dirty
            && self.newcomer.is_none()
            && self.evictions.is_empty()
            && self.losses.is_empty()
            && self.seats.iter().all(is_settled)
    }

    /// Whether that is a member.
    pub fn has(&self, member: MemberId) -> bool {
        self.seats.get(member.0 as usize).is_some_and(|seat| seat.is_present)
    }

    /// Whom the root sends to.
    pub fn own_children(&self) -> Vec<ChildPlace> {
        let children = self.seat(self.root).children.iter();
        children.map(|&member| ChildPlace { member, address: self.seat(member).address }).collect()
    }

    fn seat(&self, member: MemberId) -> &Seat {
        &self.seats[member.0 as usize]
    }

    fn seat_mut(&mut self, member: MemberId) -> &mut Seat {
        &mut self.seats[member.0 as usize]
    }

    fn others(&self) -> impl Iterator<Item = MemberId> {
        let members = (0..self.seats.len() as u32).map(MemberId);
        members.filter(|&member| member != self.root && self.has(member))
    }

    /// Who has never taken a place.
    pub fn awaited(&self) -> Vec<MemberId> {
        self.others().filter(|&member| self.seat(member).taken == 0).collect()
    }

    /// Whether that is a member, and where it says.
    fn is_at(&self, member: MemberId, address: SocketAddr) -> bool {
        self.has(member) && self.seat(member).address == address
    }

    /// Somebody has sent a packet of the group.
    pub fn heard(&mut self, now: Nanoseconds, member: MemberId, from: SocketAddr) {
        if !self.is_at(member, from) {
            return;
        }
        let seat = self.seat_mut(member);
        seat.heard_at = seat.heard_at.max(now);
        if let Some(doubt) = &mut seat.doubt {
            doubt.answered_at.get_or_insert(now);
        }
    }

    /// A member has taken its place; says whether that is a member.
    pub fn taken(
        &mut self,
        now: Nanoseconds,
        member: MemberId,
        from: SocketAddr,
        epoch: u32,
        said_at: Timestamp,
    ) -> bool {
        let is_member = self.is_at(member, from);
        if is_member && epoch == self.epoch {
            let seat = self.seat_mut(member);
            (seat.taken, seat.taken_at, seat.heard_at) = (epoch, said_at, now);
            self.is_dirty = true;
        }
        is_member
    }

    /// A member says that it cannot reach a neighbour.
    pub fn suspect(&mut self, now: Nanoseconds, by: MemberId, member: MemberId, from: SocketAddr) {
        self.is_dirty = true;
        if !self.is_at(by, from) {
            // Unless that host has come back meanwhile, and what it has said before that comes late.
            if self.find(from).is_none() && !self.is_newcomer(from) {
                self.evictions.push((from, Eviction::Silent));
            }
            return;
        }
        // Whoever waits for an answer is told its place again, old or new.
        self.seat_mut(by).tell_again(now);
        if !self.has(member) || !self.are_neighbours(by, member) || member == self.root {
            return;
        }
        let answered = match &self.seat(member).doubt {
            Some(Doubt { answered_at: None, .. }) => return,
            Some(Doubt { answered_at: Some(at), by: first, .. }) if *first == by => Some(*at),
            _ => None,
        };
        let since_answer = answered.map(|at| now.since(at));
        if since_answer.is_some_and(|span| span > tell::ASK_INTERVAL && span < ANSWER_HOLDS) {
            // It is there, and this neighbour still cannot reach it: they have no way to each other.
            self.seat_mut(member).doubt = None;
            self.part_ways(now, by, member);
        } else if since_answer.is_none_or(|span| span >= ANSWER_HOLDS) {
            self.seat_mut(member).doubt = Some(Doubt { by, since: now, ask_at: now, answered_at: None });
        }
    }

    fn are_neighbours(&self, one: MemberId, other: MemberId) -> bool {
        self.seat(one).parent == Some(other) || self.seat(other).parent == Some(one)
    }

    /// Two neighbours cannot reach each other: the lower of them goes below the root, which reaches both.
    fn part_ways(&mut self, now: Nanoseconds, one: MemberId, other: MemberId) {
        let lower = if self.seat(one).parent == Some(other) { one } else { other };
        let Some(parent) = self.seat(lower).parent else { return };
        if parent == self.root {
            return;
        }
        self.seat_mut(parent).children.retain(|&child| child != lower);
        let root = self.root;
        self.seat_mut(root).children.push(lower);
        self.seat_mut(lower).parent = Some(root);
        self.change(now);
    }

    /// Something is wrong with one of the root's own children.
    pub fn trouble(&mut self, now: Nanoseconds, member: MemberId, trouble: Trouble, settings: &Settings) {
        if !self.has(member) {
            return;
        }
        match trouble {
            Trouble::StateLost => self.remove(now, member, MemberLoss::Restarted),
            Trouble::Silent => {
                // The root has asked it itself, for long enough.
                let doubt = Doubt {
                    by: self.root,
                    since: now - settings.peer_timeout,
                    ask_at: now,
                    answered_at: None,
                };
                self.seat_mut(member).doubt = Some(doubt);
                self.is_dirty = true;
            }
        }
    }

    /// A member says that its child has forgotten what it had accepted.
    pub fn on_state_lost(
        &mut self,
        now: Nanoseconds,
        by: MemberId,
        member: MemberId,
        from: SocketAddr,
    ) -> bool {
        let is_told_by_parent =
            self.is_at(by, from) && self.has(member) && self.seat(member).parent == Some(by);
        if is_told_by_parent {
            self.evictions.push((self.seat(member).address, Eviction::Silent));
            self.remove(now, member, MemberLoss::Restarted);
        }
        is_told_by_parent
    }

    fn is_newcomer(&self, address: SocketAddr) -> bool {
        self.newcomer.as_ref().is_some_and(|newcomer| newcomer.address == address)
    }

    /// Somebody asks to be a member, at a time of its own clock.
    pub fn join(&mut self, now: Nanoseconds, from: SocketAddr, said_at: Timestamp) {
        self.is_dirty = true;
        if self.is_newcomer(from) {
            return;
        }
        if let Some(member) = self.find(from) {
            if self.seat(member).taken == 0 {
                // It asks for what it is about to be told.
                self.seat_mut(member).tell_again(now);
                return;
            }
            if said_at <= self.seat(member).taken_at {
                // It asked before it took its place, and the packet comes late. Should its clock have begun anew with the
                // host, it will be missed under its old number, and asks again.
                return;
            }
            self.remove(now, member, MemberLoss::Restarted);
        }
        if !self.admits || self.seats.len() >= CreateGroup::MEMBERS_MAX || self.is_closing() {
            self.evictions.push((from, Eviction::Refused));
        } else if self.newcomer.is_none() && self.is_ready {
            self.newcomer = Some(Newcomer { address: from, place: None });
        }
        // Else it asks again.
    }

    /// A member asks to leave; one that does not know its number yet is the one at its address.
    pub fn leave(&mut self, now: Nanoseconds, member: MemberId, from: SocketAddr) {
        self.is_dirty = true;
        let found = self.find(from);
        let is_unplaced = member == MemberId(u32::MAX);
        if let Some(found) = found.filter(|found| *found == member || is_unplaced) {
            self.remove(now, found, MemberLoss::Left);
        } else if found.is_none() && is_unplaced && self.is_newcomer(from) {
            self.newcomer = None;
        } else if found.is_some() || self.is_newcomer(from) {
            // It has left and come back, and what it said when it left comes late.
            return;
        }
        self.evictions.push((from, Eviction::Left));
    }

    /// The member at an address.
    fn find(&self, address: SocketAddr) -> Option<MemberId> {
        self.others().find(|&member| self.seat(member).address == address)
    }

    /// Takes a member out; its children are adopted by its parent, in its place.
    fn remove(&mut self, now: Nanoseconds, member: MemberId, loss: MemberLoss) {
        self.losses.push((member, loss));
        let orphans = std::mem::take(&mut self.seat_mut(member).children);
        let parent = self.seat(member).parent.expect("the root is not taken out");
        for &orphan in &orphans {
            self.seat_mut(orphan).parent = Some(parent);
        }
        let siblings = &mut self.seat_mut(parent).children;
        let place = siblings.iter().position(|&child| child == member).expect("a parent knows its children");
        siblings.splice(place..=place, orphans);
        let seat = self.seat_mut(member);
        (seat.is_present, seat.parent, seat.doubt) = (false, None, None);
        self.change(now);
    }

    /// The tree has changed: everybody is told.
    fn change(&mut self, now: Nanoseconds) {
        self.epoch += 1;
        self.is_dirty = true;
        let (root, epoch) = (self.root, self.epoch);
        for seat in &mut self.seats {
            seat.tell(now);
        }
        self.seat_mut(root).taken = epoch;
    }

    /// Looks at what has not happened, and at who comes.
    pub fn elapse(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        name: &mut Name,
        flow: &mut Flow,
        events: &mut Vec<Event>,
    ) -> Option<Ending> {
        if !matches!(self.stage, Stage::Over { .. }) && self.is_due(now) {
            self.look(now, settings, name, flow, events);
        }
        if self.stage == Stage::Closing && self.newcomer.is_none() && flow.queue_close() {
            self.stage = Stage::Closed;
        }
        let is_finished = self.stage == Stage::Closed && flow.is_finished();
        if is_finished {
            self.end(now, Eviction::Closed);
        }
        self.say_farewell(now);
        is_finished.then_some(Ending::Closed)
    }

    fn say_farewell(&mut self, now: Nanoseconds) {
        if let Stage::Over { why, times, tell_at } = &mut self.stage
            && *tell_at <= now
            && *times > 0
        {
            (*times, *tell_at) = (*times - 1, now + FAREWELL_INTERVAL);
            let why = *why;
            self.evictions = self.others().map(|member| (self.seat(member).address, why)).collect();
            self.is_dirty = true;
        }
    }

    /// Whether nothing is left to say.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over { times: 0, .. }) && self.evictions.is_empty()
    }

    /// This node has been asleep, and others may have spoken.
    pub fn overslept(&mut self, now: Nanoseconds) {
        for seat in &mut self.seats {
            seat.heard_at = now;
            seat.doubt = None;
        }
        self.is_dirty = true;
    }

    fn is_due(&self, now: Nanoseconds) -> bool {
        self.is_dirty || self.look_at.is_some_and(|time| time <= now) || self.newcomer.is_some()
    }

    /// Looks at every member.
    fn look(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        name: &mut Name,
        flow: &mut Flow,
        events: &mut Vec<Event>,
    ) {
        let group = name.group;
        while let Some((member, loss)) = self.find_lost(now, settings) {
            self.remove(now, member, loss);
        }
        events.extend(self.losses.drain(..).map(|(member, loss)| Event::MemberLost { group, member, loss }));
        self.admit(now, flow);
        if name.epoch != self.epoch {
            name.epoch = self.epoch;
            flow.set_children(now, self.epoch, &self.own_children());
        }
        if !self.others().all(|member| self.seat(member).taken == self.epoch) {
            return;
        }
        if !std::mem::replace(&mut self.is_ready, true) {
            events.push(Event::Ready { group });
        }
        if let Some(Newcomer { place: Some((member, start)), .. }) = self.newcomer {
            self.newcomer = None;
            flow.release();
            if self.has(member) {
                events.push(Event::Joined { group, member, start });
            }
        }
    }

    fn find_lost(&self, now: Nanoseconds, settings: &Settings) -> Option<(MemberId, MemberLoss)> {
        self.others().find_map(|member| {
            let seat = self.seat(member);
            let quiet = now.since(seat.heard_at.max(seat.told_since));
            if seat.taken == 0 {
                let patience = self.patience_with_absent(settings);
                return (quiet > patience).then_some((member, MemberLoss::Unreachable(patience)));
            }
            let doubted = seat.doubt.as_ref().filter(|doubt| doubt.answered_at.is_none());
            let is_doubted = doubted
                .is_some_and(|doubt| now.since(doubt.since) > Nanoseconds(settings.peer_timeout.0 / 2));
            let is_silent = seat.taken < self.epoch && quiet > settings.peer_timeout;
            (is_doubted || is_silent).then_some((member, MemberLoss::Silent(settings.peer_timeout)))
        })
    }

    /// How long a member may take for its first word. A newcomer is there, since it has asked, and all wait for it.
    const fn patience_with_absent(&self, settings: &Settings) -> Nanoseconds {
        if self.is_ready { settings.peer_timeout } else { settings.join_timeout }
    }

    /// Gives a newcomer its place, once no message is under way in part.
    fn admit(&mut self, now: Nanoseconds, flow: &mut Flow) {
        let Some(Newcomer { address, place: None }) = self.newcomer else { return };
        let Some(start) = flow.hold() else { return };
        let member = MemberId(self.seats.len() as u32);
        let parent = self.parent_for_newcomer();
        self.seats.push(Seat::new(now, address, Some(parent), Vec::new()));
        self.seat_mut(parent).children.push(member);
        self.newcomer = Some(Newcomer { address, place: Some((member, start)) });
        self.agreed.start = start;
        self.change(now);
    }

    /// The member with the fewest children, and of these the one nearest to the root.
    fn parent_for_newcomer(&self) -> MemberId {
        let members = std::iter::once(self.root).chain(self.others());
        let burden = |member: MemberId| (self.seat(member).children.len(), self.depth(member), member);
        members.min_by_key(|&member| burden(member)).expect("there is a root")
    }

    fn depth(&self, member: MemberId) -> usize {
        std::iter::successors(self.seat(member).parent, |&parent| self.seat(parent).parent).count()
    }

    /// When to look at the members next.
    pub const fn deadline(&self) -> Option<Nanoseconds> {
        match self.stage {
            Stage::Over { tell_at, .. } => Some(tell_at),
            _ => self.look_at,
        }
    }
}

#[cfg(test)]
impl Roster {
    /// States of docs/protocol.md.
    pub fn states(&self, tell: &mut dyn FnMut(crate::diagrams::Diagram, u32, &'static str)) {
        use crate::diagrams::Diagram;
        let stage = match self.stage {
            Stage::Over { .. } => "over",
            Stage::Closed => "closed",
            Stage::Closing => "closing",
            Stage::Open if !self.is_ready => "starting",
            Stage::Open if self.newcomer.is_some() => "admitting",
            Stage::Open => "open",
        };
        tell(Diagram::Group, 0, stage);
        for (member, seat) in self.seats.iter().enumerate().filter(|_| stage != "over") {
            let is_doubted = seat.doubt.as_ref().is_some_and(|doubt| doubt.answered_at.is_none());
            let state = match seat {
                Seat { is_present: false, .. } => "gone",
                Seat { taken: 0, .. } => "called",
                _ if is_doubted => "doubted",
                Seat { taken, .. } if *taken < self.epoch => "moved",
                _ => "settled",
            };
            if member != self.root.0 as usize {
                tell(Diagram::Seat, member as u32, state);
            }
        }
    }
}
