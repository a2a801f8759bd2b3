//! Failures of members: suspicions, and how they are confirmed or refuted.

use treecast_wire::{Eviction, MemberId};

use super::record::{MemberRecord, Suspicion};
use super::{ControlSender, MemberTable, SUSPECT_PROBE_INTERVAL};
use crate::flow::PeerFailure;
use crate::{MemberLoss, Nanoseconds, Settings};

/// For this time after a refuted suspicion, the same report means that the path between the two neighbours is broken.
const REFUTATION_HOLDS: Nanoseconds = Nanoseconds::from_ms(500);

impl MemberTable {
    /// A member reports that a neighbour is silent; false if the sender was never a member.
    pub fn handle_suspect(&mut self, now: Nanoseconds, sender: &ControlSender, member: MemberId) -> bool {
        if self.find_incarnation(sender).is_none() {
            return false;
        }
        self.is_dirty = true;
        if !self.is_present(sender) {
            self.evictions.push((sender.from, sender.nonce, Eviction::Silent));
            return true;
        }
        let by = sender.member;
        // The table is the answer to a report, whether it has changed or not.
        self.record_mut(by).announce_again(now);
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
            // The suspect is alive, and this neighbour still does not hear it: the path between the two is broken.
            self.record_mut(member).suspicion = None;
            self.separate(now, by, member);
        } else if since_refutation.is_none_or(|span| span >= REFUTATION_HOLDS) {
            self.record_mut(member).suspicion =
                Some(Suspicion { by, since: now, probe_at: now, refuted_at: None });
        }
        true
    }

    fn are_neighbours(&self, one: MemberId, other: MemberId) -> bool {
        self.record(one).parent == Some(other) || self.record(other).parent == Some(one)
    }

    /// Two neighbours cannot reach each other: the lower of them becomes a child of the root, which reaches both.
    fn separate(&mut self, now: Nanoseconds, one: MemberId, other: MemberId) {
        let lower = if self.record(one).parent == Some(other) { one } else { other };
        let Some(parent) = self.record(lower).parent else { return };
        if parent == self.root {
            return;
        }
        self.record_mut(parent).children.retain(|&child| child != lower);
        let root = self.root;
        self.record_mut(root).children.push(lower);
        self.record_mut(lower).parent = Some(root);
        self.change_tree(now);
    }

    /// One of the root's own children has failed.
    pub fn handle_failure(
        &mut self,
        now: Nanoseconds,
        member: MemberId,
        failure: PeerFailure,
        settings: &Settings,
    ) {
        if !self.has(member) {
            return;
        }
        match failure {
            PeerFailure::StateLost => self.remove(now, member, MemberLoss::Restarted),
            PeerFailure::Silent => {
                // The root itself has probed it for long enough.
                let suspicion = Suspicion {
                    by: self.root,
                    since: now - settings.peer_timeout,
                    probe_at: now,
                    refuted_at: None,
                };
                self.record_mut(member).suspicion = Some(suspicion);
                self.is_dirty = true;
            }
        }
    }

    /// A member reports that its child has lost what it had accepted; false if the report is invalid.
    pub fn handle_state_lost(&mut self, now: Nanoseconds, sender: &ControlSender, member: MemberId) -> bool {
        let is_from_parent =
            self.is_present(sender) && self.has(member) && self.record(member).parent == Some(sender.member);
        if is_from_parent {
            let &MemberRecord { address, nonce, .. } = self.record(member);
            self.evictions.extend(nonce.map(|nonce| (address, nonce, Eviction::Silent)));
            self.remove(now, member, MemberLoss::Restarted);
        }
        is_from_parent
    }

    pub(super) fn find_lost(&self, now: Nanoseconds, settings: &Settings) -> Option<(MemberId, MemberLoss)> {
        self.others().find_map(|member| {
            let record = self.record(member);
            let silence = now.since(record.heard_at.max(record.table_since));
            if record.acked_epoch == 0 {
                let timeout = self.first_ack_timeout(settings);
                return (silence > timeout).then_some((member, MemberLoss::Unreachable(timeout)));
            }
            let suspect_timeout = Nanoseconds(settings.peer_timeout.0 / 2);
            let is_dead =
                record.open_suspicion().is_some_and(|suspicion| now.since(suspicion.since) > suspect_timeout);
            let is_silent = record.acked_epoch < self.epoch && silence > settings.peer_timeout;
            (is_dead || is_silent).then_some((member, MemberLoss::Silent(settings.peer_timeout)))
        })
    }

    /// The time that a member may take for its first acknowledgment. A newcomer is present, since it has sent a join, and all others
    /// wait for it.
    pub(super) const fn first_ack_timeout(&self, settings: &Settings) -> Nanoseconds {
        if self.is_ready { settings.peer_timeout } else { settings.join_timeout }
    }
}
