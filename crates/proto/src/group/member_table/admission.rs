//! How hosts become members: hellos, joins, refusals, and the place of a newcomer.

use std::net::SocketAddr;

use treecast_wire::{Eviction, MemberId, Nonce, Table, Timestamp};

use super::end::Stage;
use super::record::MemberRecord;
use super::{ControlSender, MemberTable};
use crate::{CreateGroup, MemberLoss, Nanoseconds, Start};

/// A host that becomes a member at the next boundary between messages.
#[derive(Debug, Clone)]
pub(super) struct Newcomer {
    pub address: SocketAddr,
    pub nonce: Nonce,
    /// When its last join was sent, by its clock.
    pub sent_at: Timestamp,
    /// Its number and first packet, once it has its place.
    pub place: Option<(MemberId, Start)>,
}

impl MemberTable {
    /// A host asks for the session.
    pub fn handle_hello(&mut self, from: SocketAddr, nonce: Nonce) {
        if let Some((_, latest)) = self.hellos.iter_mut().find(|(address, _)| *address == from) {
            *latest = nonce;
        } else if self.hellos.len() < CreateGroup::MEMBERS_MAX {
            self.hellos.push((from, nonce));
        }
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
                // It is of a process before the one that is the member, and late. (A host that was
                // booted again has an earlier clock: it becomes a member once the one before is
                // found silent.)
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

    /// Whether a newcomer waits for a boundary between messages.
    pub const fn wants_barrier(&self) -> bool {
        matches!(self.newcomer, Some(Newcomer { place: None, .. })) && !self.is_over()
    }

    /// Gives a newcomer its place.
    pub(super) fn admit(&mut self, now: Nanoseconds, start: Start) {
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

    /// The member with the fewest children, of these the one nearest to the root, and of these the
    /// first.
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
}
