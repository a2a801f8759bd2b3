//! Failures of members: suspicions, and how they are confirmed or refuted.

use std::net::SocketAddr;

use treecast_wire::{Eviction, HEADER_BYTES, MemberId};

use super::record::{MemberRecord, Suspicion};
use super::{ControlSender, LOSSES_PER_CALL_MAX, MemberTable, SUSPECT_PROBE_INTERVAL};
use crate::event::whole_ms;
use crate::flow::PeerFailure;
use crate::pause::Pause;
use crate::{MemberLoss, Nanoseconds};

/// For this time after a refuted suspicion, the same report means that the path between the two
/// neighbours is broken.
pub(super) const REFUTATION_HOLDS: Nanoseconds = Nanoseconds::from_ms(500);

impl MemberTable {
    /// A member reports that a neighbour is silent; false if the sender was never a member.
    pub fn handle_suspect(&mut self, now: Nanoseconds, sender: &ControlSender, member: MemberId) -> bool {
        let Some(found) = self.find_incarnation(sender) else { return false };
        if let Some(why) = self.record(found).eviction() {
            self.evictions.push((sender.from, sender.nonce, why));
            return true;
        }
        if found != sender.member {
            return false;
        }
        let by = sender.member;
        // The table is the answer to a report, whether it has changed or not.
        self.announce_again(now, by);
        if !self.has(member) || !self.are_neighbours(by, member) || member == self.root {
            return true;
        }
        let refuted_at = match &self.record(member).suspicion {
            Some(Suspicion { refuted_at: None, .. }) => return true,
            Some(Suspicion { refuted_at: Some(at), by: first, .. }) if *first == by => Some(*at),
            _ => None,
        };
        let since_refutation = refuted_at.map(|at| now.since(at));
        if since_refutation.is_some_and(|span| span > SUSPECT_PROBE_INTERVAL && span < REFUTATION_HOLDS) {
            // The suspect is alive, and this neighbour still does not hear it: the path between the
            // two is broken.
            self.record_mut(member).suspicion = None;
            self.separate(by, member);
        } else if since_refutation.is_none_or(|span| span >= REFUTATION_HOLDS) {
            self.record_mut(member).suspicion =
                Some(Suspicion { by, since: now, probe_at: now, refuted_at: None });
        }
        self.schedule(member);
        true
    }

    fn are_neighbours(&self, one: MemberId, other: MemberId) -> bool {
        self.record(one).parent == Some(other) || self.record(other).parent == Some(one)
    }

    /// Two neighbours cannot reach each other: the lower of them becomes a child of the root, which
    /// reaches both.
    fn separate(&mut self, one: MemberId, other: MemberId) {
        let lower = if self.record(one).parent == Some(other) { one } else { other };
        self.move_below_root(lower);
    }

    /// One of the root's own children has failed.
    pub fn handle_failure(&mut self, now: Nanoseconds, member: MemberId, failure: PeerFailure) {
        if !self.has(member) {
            return;
        }
        match failure {
            PeerFailure::StateLost => self.remove(member, MemberLoss::Restarted),
            PeerFailure::PathTooSmall { length } => {
                let datagram_bytes = datagram_bytes(self.record(member).address, length);
                self.evict(member, Eviction::PathTooSmall, MemberLoss::PathTooSmall { datagram_bytes });
            }
            PeerFailure::AcceptsNothing { span } => {
                self.evict(member, Eviction::AcceptsNothing, MemberLoss::AcceptsNothing(span));
            }
            // The root retains all that its children lack.
            PeerFailure::Unserved => {}
            PeerFailure::Silent => {
                // The root itself has probed it for long enough, unless it has just come: probes of
                // before have no answers.
                let since = self.record(member).heard_at.max(now - self.peer_timeout);
                let suspicion = Suspicion { by: self.root, since, probe_at: now, refuted_at: None };
                self.record_mut(member).suspicion = Some(suspicion);
                self.schedule(member);
            }
        }
    }

    /// A member reports that its child has lost what it had accepted; false if the report is
    /// invalid.
    pub fn handle_state_lost(&mut self, sender: &ControlSender, member: MemberId) -> bool {
        let is_from_parent =
            self.is_present(sender) && self.has(member) && self.record(member).parent == Some(sender.member);
        if is_from_parent {
            self.evict(member, Eviction::StateLost, MemberLoss::Restarted);
        }
        is_from_parent
    }

    /// Removes a member that may be alive, and tells it why.
    fn evict(&mut self, member: MemberId, why: Eviction, loss: MemberLoss) {
        let &MemberRecord { address, nonce, .. } = self.record(member);
        self.evictions.extend(nonce.map(|nonce| (address, nonce, why)));
        self.remove(member, loss);
    }

    /// Removes a member of which the root's application knows that it is dead. It is told so in
    /// case it is not.
    pub fn evict_dead(&mut self, member: MemberId) {
        if member != self.root && self.has(member) {
            self.evict(member, Eviction::DeclaredDead, MemberLoss::Evicted);
        }
    }

    /// Removes members that are lost: some of them, if they are many.
    pub(super) fn remove_lost(&mut self, now: Nanoseconds) {
        let mut removed = 0;
        while removed < LOSSES_PER_CALL_MAX
            && let Some(member) = self.deadlines.first_due(now)
        {
            match self.loss(now, member) {
                Some(loss) => {
                    self.remove(member, loss);
                    removed += 1;
                }
                None => self.schedule(member),
            }
        }
    }

    /// Why a member is lost, if it is.
    fn loss(&self, now: Nanoseconds, member: MemberId) -> Option<MemberLoss> {
        self.deadline(member).filter(|&deadline| deadline <= now)?;
        let record = self.record(member);
        Some(if record.acked_epoch == 0 {
            MemberLoss::Unreachable(self.first_ack_timeout())
        } else if record.open_suspicion().is_none() && now.since(record.heard_at) < self.peer_timeout {
            MemberLoss::Unreachable(self.later_ack_timeout())
        } else {
            self.silence(now, record)
        })
    }

    /// How long a member was silent that is lost for that.
    fn silence(&self, now: Nanoseconds, record: &MemberRecord) -> MemberLoss {
        if let Some(Pause { ended_at, span, .. }) = self.pause
            && record.heard_at <= ended_at
            && now.since(ended_at) <= self.peer_timeout
        {
            return MemberLoss::SilentAfterPause(whole_ms(span));
        }
        // The root seldom hears members that are not its children: their neighbours do.
        let reported_at = record.open_suspicion().map(|suspicion| suspicion.since - self.peer_timeout);
        let heard_at = record.heard_at.max(reported_at.unwrap_or(record.table_since));
        MemberLoss::Silent(whole_ms(now.since(heard_at)))
    }

    /// When a member is lost, if nothing is heard from it until then.
    pub(super) fn deadline(&self, member: MemberId) -> Option<Nanoseconds> {
        let record = self.record(member);
        if !record.is_present() || member == self.root {
            return None;
        }
        let heard_at = record.heard_at.max(record.table_since);
        if record.acked_epoch == 0 {
            return Some(heard_at + self.first_ack_timeout() + Nanoseconds(1));
        }
        let suspect_timeout = Nanoseconds(self.peer_timeout.0 / 2);
        let dead = record.open_suspicion().map(|suspicion| suspicion.since + suspect_timeout);
        let silent = (heard_at + self.peer_timeout).min(record.table_since + self.later_ack_timeout());
        let silent = (record.acked_epoch < self.epoch).then_some(silent);
        [dead, silent].into_iter().flatten().min().map(|last| last + Nanoseconds(1))
    }

    /// The time that a member that is heard may take to acknowledge a later table. One that takes
    /// longer has no way to do so: after a control message with a timestamp of the future, forged
    /// by a node that has the token, all its own ones are taken for replays.
    const fn later_ack_timeout(&self) -> Nanoseconds {
        Nanoseconds(4 * self.peer_timeout.0)
    }

    /// The time that a member may take for its first acknowledgment. A newcomer is present, since
    /// it has sent a join, and all others wait for it.
    const fn first_ack_timeout(&self) -> Nanoseconds {
        if self.is_ready { self.peer_timeout } else { self.join_timeout }
    }
}

/// The length of a datagram with its IP and UDP headers, in bytes, as an MTU counts it.
fn datagram_bytes(to: SocketAddr, payload_bytes: u32) -> u32 {
    let ip_bytes = if to.ip().to_canonical().is_ipv4() { 20 } else { 40 };
    ip_bytes + UDP_HEADER_BYTES + HEADER_BYTES as u32 + payload_bytes
}

const UDP_HEADER_BYTES: u32 = 8;
