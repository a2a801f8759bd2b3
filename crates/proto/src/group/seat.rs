//! A member as the root sees it.

use std::net::SocketAddr;

use treecast_wire::{MemberId, Timestamp};

use crate::Nanoseconds;

/// A member as the root sees it.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub address: SocketAddr,
    pub is_present: bool,
    pub parent: Option<MemberId>,
    pub children: Vec<MemberId>,
    /// The epoch of the last table that it has taken, and when it said so, by its own clock.
    pub taken: u32,
    pub taken_at: Timestamp,
    /// Since when it has been told its place without an answer.
    pub told_since: Nanoseconds,
    pub heard_at: Nanoseconds,
    pub tell_at: Nanoseconds,
    pub tell_wait: Nanoseconds,
    /// The part of its table to be told next.
    pub part: u16,
    /// Whether it has asked, and is to be told its place even if it has taken it.
    pub is_owed: bool,
    pub doubt: Option<Doubt>,
}

/// A member that somebody else cannot reach.
#[derive(Debug, Clone)]
pub(super) struct Doubt {
    /// Who says so.
    pub by: MemberId,
    pub since: Nanoseconds,
    pub ask_at: Nanoseconds,
    /// When it has answered the root.
    pub answered_at: Option<Nanoseconds>,
}

/// A member that does not answer is told its place again after so long, and then later and later.
const TELL_WAIT_MIN: Nanoseconds = Nanoseconds::from_ms(5);

impl Seat {
    pub fn new(
        now: Nanoseconds,
        address: SocketAddr,
        parent: Option<MemberId>,
        children: Vec<MemberId>,
    ) -> Self {
        Self {
            address,
            is_present: true,
            parent,
            children,
            taken: 0,
            taken_at: Timestamp(0),
            told_since: now,
            heard_at: now,
            tell_at: now,
            tell_wait: TELL_WAIT_MIN,
            part: 0,
            is_owed: false,
            doubt: None,
        }
    }

    /// It is to be told of a new tree.
    pub fn tell(&mut self, now: Nanoseconds) {
        (self.tell_at, self.tell_wait, self.told_since, self.part) = (now, TELL_WAIT_MIN, now, 0);
    }

    /// It is to be told its place once more.
    pub fn tell_again(&mut self, now: Nanoseconds) {
        (self.tell_at, self.is_owed) = (now, true);
    }
}
