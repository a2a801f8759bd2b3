//! How a world ends: with totals, or with the violation of a guarantee.

use std::ops::AddAssign;

use thiserror::Error;
use treecast_proto::Nanoseconds;

/// The totals of a run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// Messages delivered to readers, over all members.
    pub delivered_messages: u64,
    /// Members that were lost.
    pub lost_members: u64,
    /// Groups that attackers with the token have misled, so that nothing is promised for them but
    /// an end.
    pub misled_groups: u64,
    /// Starts of hosts after a crash.
    pub restarts: u64,
    /// Packets that attackers have sent.
    pub attacks: u64,
    /// Datagrams sent.
    pub datagrams: u64,
    /// Packets sent on streams.
    pub records: u64,
    /// Hand-offs of groups to the kernel's packet path.
    pub hand_offs: u64,
    /// Inputs that the kernel's packet path handled: packets received, and packets of roots.
    pub handled_by_kernel: u64,
    /// Events processed.
    pub steps: u64,
    /// The time of the last event.
    pub ended_at: Nanoseconds,
}

impl AddAssign for Report {
    /// Adds the totals; the end is the later one.
    fn add_assign(&mut self, other: Self) {
        self.delivered_messages += other.delivered_messages;
        self.lost_members += other.lost_members;
        self.misled_groups += other.misled_groups;
        self.restarts += other.restarts;
        self.attacks += other.attacks;
        self.datagrams += other.datagrams;
        self.records += other.records;
        self.hand_offs += other.hand_offs;
        self.handled_by_kernel += other.handled_by_kernel;
        self.steps += other.steps;
        self.ended_at = self.ended_at.max(other.ended_at);
    }
}

/// A violation of the guarantees to users.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "world {seed}, after {now}: {what}\n  again: cargo run --package treecast-world --example worlds -- {seed}"
)]
pub struct Violation {
    /// The world's seed.
    pub seed: u64,
    /// When it was detected.
    pub now: Nanoseconds,
    /// Its description.
    pub what: String,
}
