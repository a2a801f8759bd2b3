//! What a member other than the root has to do with the tree.

use std::net::SocketAddr;

use treecast_wire::{Body, Control, MemberId, Neighbour, Role, Sequence, Table, Timestamp};

use super::Name;
use crate::flow::{ChildPlace, Flow, Trouble};
use crate::protocol::Transmit;
use crate::{Ending, Nanoseconds, Settings};

/// A member's knowledge of its place.
#[derive(Debug, Clone)]
pub(super) struct Membership {
    root: SocketAddr,
    root_heard_at: Nanoseconds,
    has_place: bool,
    epoch: u32,
    parent: Option<Neighbour>,
    parent_heard_at: Nanoseconds,
    incoming: Option<Incoming>,
    /// Whether the root is to be told that the place is taken.
    is_taken_due: bool,
    /// When to say that this host wants to join or to leave, or whom it suspects.
    join_at: Option<Nanoseconds>,
    leave_at: Option<Nanoseconds>,
    /// Since when it wants to leave.
    leaving_since: Option<Nanoseconds>,
    suspicions: Vec<Suspicion>,
    /// The root has asked for a sign of life: when, by its clock.
    sign: Option<Timestamp>,
    /// This node's part of a closed group is done.
    done: Option<Done>,
}

/// A member has everything in a closed group, and its children have. It stays, since others may not have heard its last word
/// or need another parent.
#[derive(Debug, Clone, Copy)]
struct Done {
    /// Whether the root has said that all members have everything, or is gone. What is left is to be read.
    is_released: bool,
}

/// A table that has come in part.
#[derive(Debug, Clone)]
struct Incoming {
    epoch: u32,
    parts: Vec<Option<Table>>,
}

#[derive(Debug, Clone)]
struct Suspicion {
    member: MemberId,
    trouble: Trouble,
    since: Nanoseconds,
    tell_at: Nanoseconds,
}

/// How often the root is told again.
const TELL_INTERVAL: Nanoseconds = Nanoseconds::from_ms(20);

impl Membership {
    pub fn new(now: Nanoseconds, root: SocketAddr, sends_join: bool) -> Self {
        Self {
            root,
            root_heard_at: now,
            has_place: false,
            epoch: 0,
            parent: None,
            parent_heard_at: now,
            incoming: None,
            is_taken_due: false,
            join_at: sends_join.then_some(now),
            leave_at: None,
            leaving_since: None,
            suspicions: Vec::new(),
            sign: None,
            done: None,
        }
    }

    pub fn is_parent(&self, member: MemberId) -> bool {
        self.parent.is_some_and(|parent| parent.member == member)
    }

    pub fn parent_address(&self) -> Option<SocketAddr> {
        self.parent.map(|parent| parent.address)
    }

    pub fn is_root(&self, address: SocketAddr) -> bool {
        self.root == address
    }

    pub fn heard(&mut self, now: Nanoseconds, member: MemberId, from: SocketAddr) {
        if from == self.root {
            self.root_heard_at = now;
        }
        if self.is_parent(member) {
            self.parent_heard_at = now;
        }
        self.suspicions
            .retain(|suspicion| suspicion.member != member || suspicion.trouble == Trouble::StateLost);
    }

    /// The parent, and when it was heard last, if nothing is out of the ordinary.
    pub fn parent_at_ease(&self) -> Option<(Neighbour, Nanoseconds)> {
        let is_at_ease = self.has_place
            && self.incoming.is_none()
            && !self.is_taken_due
            && self.suspicions.is_empty()
            && (self.join_at, self.leave_at, self.sign).eq(&(None, None, None))
            && self.done.is_none();
        self.parent.filter(|_| is_at_ease).map(|parent| (parent, self.parent_heard_at))
    }

    /// The parent was heard while the group was lent.
    pub fn take_back(&mut self, parent_heard_at: Nanoseconds) {
        self.parent_heard_at = self.parent_heard_at.max(parent_heard_at);
        if self.parent.is_some_and(|parent| parent.address == self.root) {
            self.root_heard_at = self.root_heard_at.max(parent_heard_at);
        }
    }

    /// Takes a part of a table; says whether the table is whole and new.
    pub fn table(&mut self, now: Nanoseconds, epoch: u32, table: Table) -> bool {
        if table.taken > 0 && !self.has_place {
            // That was this host before it was started again; what it had accepted is gone.
            self.join_at = self.join_at.or(Some(now));
            return false;
        }
        if epoch <= self.epoch {
            // The root has not heard that it is taken.
            self.is_taken_due = true;
            return false;
        }
        let parts = usize::from(table.parts);
        let incoming = match &mut self.incoming {
            Some(incoming) if incoming.epoch > epoch => return false,
            Some(incoming) if incoming.epoch == epoch && incoming.parts.len() == parts => incoming,
            _ => self.incoming.insert(Incoming { epoch, parts: vec![None; parts] }),
        };
        let part = usize::from(table.part);
        incoming.parts[part] = Some(table);
        incoming.parts.iter().all(Option::is_some)
    }

    /// Takes the place that the table gives which has come: its epoch, what the group agrees on, and the children.
    pub fn take_place(&mut self, now: Nanoseconds) -> Option<(u32, Table, Vec<ChildPlace>)> {
        let Incoming { epoch, parts } = self.incoming.take()?;
        let mut parts = parts.into_iter().flatten();
        let mut table = parts.next()?;
        table.neighbours.extend(parts.flat_map(|part| part.neighbours));
        // Somebody sends to every member but the root.
        let parent = *table.neighbours.iter().find(|neighbour| neighbour.role == Role::Parent)?;
        if self.parent != Some(parent) {
            (self.parent, self.parent_heard_at) = (Some(parent), now);
        }
        let children = table.neighbours.iter().filter(|neighbour| neighbour.role == Role::Child);
        let children: Vec<ChildPlace> =
            children.map(|&Neighbour { member, address, .. }| ChildPlace { member, address }).collect();
        self.suspicions.retain(|suspicion| {
            parent.member == suspicion.member || children.iter().any(|child| child.member == suspicion.member)
        });
        (self.epoch, self.has_place, self.is_taken_due, self.join_at) = (epoch, true, true, None);
        Some((epoch, table, children))
    }

    /// The root asks for a sign of life.
    pub const fn asked(&mut self, timestamp: Timestamp) {
        self.sign = Some(timestamp);
    }

    pub fn leave(&mut self, now: Nanoseconds) {
        self.leave_at = self.leave_at.or(Some(now));
        self.leaving_since = self.leaving_since.or(Some(now));
    }

    /// A neighbour does not answer.
    pub fn suspects(&mut self, now: Nanoseconds, member: MemberId, trouble: Trouble) {
        if self.suspicions.iter().all(|suspicion| suspicion.member != member) {
            self.suspicions.push(Suspicion { member, trouble, since: now, tell_at: now });
        }
    }

    /// Looks at what has not happened.
    pub fn elapse(&mut self, now: Nanoseconds, settings: &Settings, flow: Option<&Flow>) -> Option<Ending> {
        if self.leaving_since.is_some_and(|since| now.since(since) > settings.peer_timeout) {
            // Nobody is there to let it go.
            return Some(Ending::GivenUp);
        }
        let Some(flow) = flow else {
            let waited = now.since(self.root_heard_at);
            return (waited > settings.join_timeout).then_some(Ending::RootSilent(settings.join_timeout));
        };
        if flow.is_finished() && flow.has_told_all() {
            self.finish();
        }
        if self.is_released() {
            return flow.is_read().then_some(Ending::Closed);
        }
        let parent = self.parent.filter(|_| now.since(self.parent_heard_at) > parent_timeout(settings));
        if let Some(parent) = parent {
            self.suspects(now, parent.member, Trouble::Silent);
        }
        let peer_timeout = root_timeout(settings);
        let is_root_silent = now.since(self.root_heard_at) > peer_timeout
            && self.suspicions.iter().any(|suspicion| now.since(suspicion.since) > peer_timeout);
        if !is_root_silent {
            return None;
        }
        match &mut self.done {
            // Nobody is left who would need anything more.
            Some(done) => {
                done.is_released = true;
                flow.is_read().then_some(Ending::Closed)
            }
            None => Some(Ending::RootSilent(peer_timeout)),
        }
    }

    /// This node has been asleep, and others may have spoken.
    pub fn overslept(&mut self, now: Nanoseconds) {
        (self.root_heard_at, self.parent_heard_at) = (now, now);
        self.suspicions.clear();
    }

    fn is_released(&self) -> bool {
        self.done.is_some_and(|done| done.is_released)
    }

    fn finish(&mut self) -> &mut Done {
        self.done.get_or_insert(Done { is_released: false })
    }

    /// The root says that all have all.
    pub fn release(&mut self) {
        self.finish().is_released = true;
    }

    pub fn deadline(&self, settings: &Settings) -> Option<Nanoseconds> {
        if !self.has_place {
            return self
                .join_at
                .into_iter()
                .chain(self.leave_at)
                .chain([self.root_heard_at + settings.join_timeout + Nanoseconds(1)])
                .min();
        }
        if self.is_released() {
            return None;
        }
        let heard = self.parent.map(|_| self.parent_heard_at + parent_timeout(settings) + Nanoseconds(1));
        let told = self.suspicions.iter().map(|suspicion| suspicion.tell_at);
        // Once the parent is suspected, what comes next is telling the root.
        let heard = heard.filter(|_| self.suspicions.is_empty());
        told.chain(heard).chain(self.leave_at).chain(self.join_at).min()
    }

    /// The next thing to say.
    pub fn poll(&mut self, now: Nanoseconds, name: &Name, flow: Option<&mut Flow>) -> Option<Transmit> {
        if let Some(flow) = flow {
            if let Some((next, timestamp, body)) = self.parent.and_then(|_| flow.take_answer()) {
                let parent = self.parent?;
                return Some(name.answer(parent.address, next, timestamp, body));
            }
            if let Some(timestamp) = self.sign.take() {
                let (_, next) = flow.readable();
                let acknowledgment = treecast_wire::Acknowledgment { stable: flow.stable(), window: 0 };
                return Some(name.answer(self.root, next, timestamp, Body::Acknowledgment(acknowledgment)));
            }
        }
        if std::mem::take(&mut self.is_taken_due) {
            return Some(name.control(now, self.root, &Control::TableAck));
        }
        if take_due(&mut self.join_at, now) {
            return Some(name.control(now, self.root, &Control::Join));
        }
        if take_due(&mut self.leave_at, now) {
            return Some(name.control(now, self.root, &Control::Leave));
        }
        if self.is_released() {
            return None;
        }
        let suspicion = self.suspicions.iter_mut().find(|suspicion| suspicion.tell_at <= now)?;
        suspicion.tell_at = now + TELL_INTERVAL;
        let control = match suspicion.trouble {
            Trouble::Silent => Control::Suspect(suspicion.member),
            Trouble::StateLost => Control::StateLost(suspicion.member),
        };
        Some(name.control(now, self.root, &control))
    }
}

/// A parent asks for signs of life, and so is heard, as often as `keepalive`; it may be busy finding out that it is the
/// member's brother who is dead.
fn parent_timeout(settings: &Settings) -> Nanoseconds {
    Nanoseconds((settings.peer_timeout.0 / 2).saturating_mul(3))
}

/// A root that has said nothing for so long, though it has been told of somebody's silence, is dead.
fn root_timeout(settings: &Settings) -> Nanoseconds {
    Nanoseconds(settings.peer_timeout.0.saturating_mul(2))
}

fn take_due(time: &mut Option<Nanoseconds>, now: Nanoseconds) -> bool {
    let is_due = time.is_some_and(|time| time <= now);
    if is_due {
        *time = Some(now + TELL_INTERVAL);
    }
    is_due
}

impl Name {
    fn answer(&self, to: SocketAddr, next: Sequence, timestamp: Timestamp, body: Body) -> Transmit {
        let header = self.header(timestamp, next, body);
        Transmit {
            to,
            header: header.write(treecast_wire::PayloadChecksum::EMPTY),
            payload: crate::protocol::Source::Bytes(Vec::new()),
        }
    }
}

#[cfg(test)]
impl Membership {
    /// A state of docs/protocol.md.
    pub fn state(&self) -> &'static str {
        if self.is_released() {
            "released"
        } else if self.done.is_some() {
            "done"
        } else if self.leave_at.is_some() {
            "leaving"
        } else if self.join_at.is_some() {
            "asking"
        } else if !self.has_place {
            "waiting"
        } else if self.suspicions.is_empty() {
            "placed"
        } else {
            "suspecting"
        }
    }
}
