//! The part of a member other than the root in the tree.

mod place;
mod timeouts;

use std::net::SocketAddr;

use treecast_wire::{
    Acknowledgment, Control, Eviction, Handshake, MemberId, Neighbour, Nonce, ReaderSet, Readers, SessionId,
    Table, Timestamp,
};

use super::handshake::{HandshakeStep, MemberHandshake, REQUEST_INTERVAL};
use super::header::HeaderTemplate;
use crate::event::whole_ms;
use crate::flow::{Flow, PeerFailure};
use crate::pause::Pause;
use crate::{Ending, Nanoseconds, Settings, Transmit};

pub(super) use place::{NewPlace, TableStep};

use place::IncomingTable;
use timeouts::{Inquiry, parent_timeout};

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
    /// The root has started again, as the parent reported or the handshake has shown.
    is_root_restarted: bool,
    has_place: bool,
    placed_at: Option<Nanoseconds>,
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

/// A member of a closed group has everything, and its children have. It stays, since others may not
/// have its last acknowledgment or may need another parent.
#[derive(Debug, Clone, Copy)]
struct Completion {
    /// Whether the root has said that all members have everything, or is dead. Only the readers are
    /// waited for.
    is_released: bool,
}

/// A neighbour that this member reports to the root as failed.
#[derive(Debug, Clone)]
struct SuspectedNeighbour {
    member: MemberId,
    failure: PeerFailure,
    since: Nanoseconds,
    report_at: Nanoseconds,
}

impl Membership {
    pub fn new(now: Nanoseconds, root: SocketAddr, seed: [u64; 2]) -> Self {
        Self {
            root,
            root_member: None,
            handshake: MemberHandshake::new(now, seed),
            root_heard_at: now,
            root_timestamp: Timestamp(0),
            is_root_restarted: false,
            has_place: false,
            placed_at: None,
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

    /// Whether a control message or a probe of the root is newer than all before, and so not a
    /// replay.
    pub fn is_from_root_now(&mut self, now: Nanoseconds, sent_at: Timestamp) -> bool {
        let is_later = self.root_timestamp < sent_at;
        if is_later {
            self.root_timestamp = sent_at;
            self.root_heard_at = now;
        }
        is_later
    }

    /// The root has started again, as the parent reported or the handshake has shown.
    pub const fn on_root_restarted(&mut self) {
        self.is_root_restarted = true;
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

    /// Whether a packet of that member, from that address, is the root's. The number is part of
    /// what the code covers, and the address is not: a packet of another member with the root's
    /// address has the timestamp of another clock, after which the root's would not count.
    pub fn is_root_member(&self, member: MemberId, from: SocketAddr) -> bool {
        self.is_root(from) && self.root_member == Some(member)
    }

    /// The root has sent its welcome, or a table, under this number.
    pub const fn set_root_member(&mut self, member: MemberId) {
        self.root_member = Some(member);
    }

    /// Handles a packet of the root that arrived by multicast and is not a replay. It proves
    /// nothing about the way to the parent and back, even where the root is the parent: that does
    /// not hear from this node by multicast.
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

    /// Other processes of this node are there than before: the root is told. It asks, in case that
    /// is lost.
    pub fn set_readers(&mut self, readers: Readers) {
        self.is_table_ack_due |= self.has_place && self.readers != Some(readers);
        self.readers = Some(readers);
    }

    /// The processes of this node that nobody waits for: those that are lost, and those that have
    /// not come although the root waits for them no more.
    pub fn absent_readers(&self, now: Nanoseconds, settings: &Settings) -> ReaderSet {
        let Some(Readers { awaited, lost }) = self.readers else { return ReaderSet::default() };
        if self.gives_up_at(settings).is_some_and(|at| at <= now) { lost.or(&awaited) } else { lost }
    }

    /// When processes are given up that have not come. The root has waited for them since before
    /// this member had its place.
    pub fn gives_up_at(&self, settings: &Settings) -> Option<Nanoseconds> {
        self.placed_at.map(|placed_at| placed_at + settings.join_timeout)
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
            // The root finds out that the neighbour answers, and so that the path between the two
            // is broken, or that this node cannot serve it.
            PeerFailure::Silent
            | PeerFailure::PathTooSmall { .. }
            | PeerFailure::AcceptsNothing { .. }
            | PeerFailure::Unserved => Control::Suspect(suspected.member),
        };
        Some(header.control(now, self.root, nonce, &control))
    }
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
