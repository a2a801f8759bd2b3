//! A member as the root sees it.

use std::net::SocketAddr;

use treecast_wire::{Eviction, MemberId, Nonce, Timestamp};

use crate::{MemberLoss, Nanoseconds};

/// A member as the root sees it.
#[derive(Debug, Clone)]
pub(super) struct MemberRecord {
    pub address: SocketAddr,
    /// Why it is no longer a member, once it is none.
    pub loss: Option<MemberLoss>,
    pub parent: Option<MemberId>,
    pub children: Vec<MemberId>,
    /// The epoch of the last table that it has acknowledged; 0: none.
    pub acked_epoch: u32,
    /// Distinguishes it from other members that had its address before; none before it has joined.
    pub nonce: Option<Nonce>,
    /// The last timestamp of its control messages.
    pub timestamp: Timestamp,
    pub heard_at: Nanoseconds,
    /// Since when a table that it has not acknowledged is sent to it.
    pub table_since: Nanoseconds,
    /// When its table is sent next.
    pub table_at: Nanoseconds,
    /// The interval until its table is retransmitted.
    pub table_interval: Nanoseconds,
    /// The part of its table to be sent next.
    pub table_part: u16,
    /// Whether it is to be sent its table even if it has acknowledged that.
    pub is_table_requested: bool,
    pub suspicion: Option<Suspicion>,
}

/// A member reported another one to be silent (the suspect state of SWIM).
#[derive(Debug, Clone)]
pub(super) struct Suspicion {
    /// The member that reported it.
    pub by: MemberId,
    pub since: Nanoseconds,
    /// When the root probes the suspect next.
    pub probe_at: Nanoseconds,
    /// When the suspect was heard by the root, which refutes the suspicion.
    pub refuted_at: Option<Nanoseconds>,
}

/// The interval until a table is retransmitted, the first time; it doubles each time.
const TABLE_INTERVAL_MIN: Nanoseconds = Nanoseconds::from_ms(5);

/// The longest interval until a table that is not acknowledged is retransmitted.
const TABLE_INTERVAL_MAX: Nanoseconds = Nanoseconds::from_ms(25);

impl MemberRecord {
    pub fn new(
        now: Nanoseconds,
        address: SocketAddr,
        parent: Option<MemberId>,
        children: Vec<MemberId>,
    ) -> Self {
        Self {
            address,
            loss: None,
            parent,
            children,
            acked_epoch: 0,
            nonce: None,
            timestamp: Timestamp(0),
            heard_at: now,
            table_since: now,
            table_at: now,
            table_interval: TABLE_INTERVAL_MIN,
            table_part: 0,
            is_table_requested: false,
            suspicion: None,
        }
    }

    /// It is to be sent the table of a new tree.
    pub fn announce(&mut self, now: Nanoseconds) {
        self.table_at = now;
        self.table_interval = TABLE_INTERVAL_MIN;
        self.table_since = now;
        self.table_part = 0;
    }

    pub const fn is_present(&self) -> bool {
        self.loss.is_none()
    }

    /// The answer to a host that wrongly takes itself for this member; `None` if it is the member.
    pub const fn eviction(&self) -> Option<Eviction> {
        match self.loss {
            None => None,
            Some(MemberLoss::Silent(_) | MemberLoss::SilentAfterPause(_)) => Some(Eviction::Silent),
            Some(MemberLoss::Unreachable(_)) => Some(Eviction::Unacknowledged),
            Some(MemberLoss::PathTooSmall { .. }) => Some(Eviction::PathTooSmall),
            Some(MemberLoss::AcceptsNothing(_)) => Some(Eviction::AcceptsNothing),
            Some(MemberLoss::Restarted) => Some(Eviction::StateLost),
            Some(MemberLoss::Evicted) => Some(Eviction::DeclaredDead),
            Some(MemberLoss::Left) => Some(Eviction::Left),
        }
    }

    /// Whether a control message of it is later than all before, and so is no replay.
    pub fn is_now(&mut self, sent_at: Timestamp) -> bool {
        let is_later = self.timestamp < sent_at;
        self.timestamp = self.timestamp.max(sent_at);
        is_later
    }

    /// Its table, or an invitation, was sent. It is retransmitted after `interval_min` at the
    /// earliest.
    pub fn on_announced(&mut self, now: Nanoseconds, interval_min: Nanoseconds) {
        self.table_part = 0;
        self.is_table_requested = false;
        self.table_at = now + self.table_interval.max(interval_min);
        self.table_interval = TABLE_INTERVAL_MAX.min(Nanoseconds(self.table_interval.0 * 2));
    }

    /// It is to be sent its table once more.
    pub fn announce_again(&mut self, now: Nanoseconds) {
        self.table_at = now;
        self.is_table_requested = true;
    }

    /// A suspicion that it has not refuted.
    pub fn open_suspicion(&self) -> Option<&Suspicion> {
        self.suspicion.as_ref().filter(|suspicion| suspicion.refuted_at.is_none())
    }
}
