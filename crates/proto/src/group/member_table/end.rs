//! The end of a group: it is closed or aborted, and the members are told.

use treecast_wire::Eviction;

use super::MemberTable;
use super::record::MemberRecord;
use crate::Nanoseconds;
use crate::group::{END_INTERVAL, END_NOTICES};

/// How far the group's end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    /// Everything is queued, and the closing packet waits for a slot.
    Closing,
    /// The closing packet is queued.
    Closed,
    /// The group is over; its end is announced this number of times less one, and then answers are
    /// awaited for an interval.
    Over {
        why: Eviction,
        times: usize,
        announce_at: Nanoseconds,
    },
}

impl MemberTable {
    /// Whether the root has closed or aborted the group.
    pub fn is_closing(&self) -> bool {
        self.stage != Stage::Open
    }

    /// Whether the closing packet is to be queued now.
    pub fn is_close_due(&self) -> bool {
        self.stage == Stage::Closing && self.newcomer.is_none()
    }

    /// Whether the closing packet is queued, and the group not over yet.
    pub fn is_closed(&self) -> bool {
        self.stage == Stage::Closed
    }

    pub fn close(&mut self) {
        self.stage = Stage::Closing;
    }

    /// The closing packet is queued.
    pub fn on_close_queued(&mut self) {
        self.stage = Stage::Closed;
    }

    /// The group is over: announces it to all members.
    pub fn end(&mut self, now: Nanoseconds, why: Eviction) {
        if !self.is_over() {
            self.stage = Stage::Over { why, times: END_NOTICES + 1, announce_at: now };
        }
    }

    pub(super) const fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over { .. })
    }

    /// Tells the members of the group's end once more, when it is time.
    pub fn announce_end(&mut self, now: Nanoseconds) {
        if let Stage::Over { why, times, announce_at } = &mut self.stage
            && *announce_at <= now
            && *times > 0
        {
            *times -= 1;
            *announce_at = now + END_INTERVAL;
            if *times == 0 {
                return;
            }
            let why = *why;
            let notice = |member| {
                let &MemberRecord { address, nonce, .. } = self.record(member);
                Some((address, nonce?, why))
            };
            let mut evictions = Vec::with_capacity(self.records.len());
            evictions.extend(self.others().filter_map(notice));
            self.evictions = evictions;
            // Members that have not joined yet are invited, and get the reason when they join.
            let invited = self.others().filter(|&member| self.record(member).nonce.is_none());
            self.invitations = invited.map(|member| self.record(member).address).collect();
        }
    }

    /// Whether the group is over and the root has nothing more to send.
    pub fn is_finished(&self) -> bool {
        matches!(self.stage, Stage::Over { times: 0, .. })
            && self.evictions.is_empty()
            && self.hellos.is_empty()
    }
}
