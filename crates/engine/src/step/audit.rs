//! Lines of the log about what was refused, and about datagrams that belong to no group: who, and
//! why. They have a target of their own, and are limited in rate, since strangers cause them.

use std::net::SocketAddr;

use treecast_proto::{Nanoseconds, Stray, StrayKind};

/// The target of these lines.
pub const TARGET: &str = "audit";

/// The most lines of a kind in a span.
const LINES_MAX: u32 = 10;
const SPAN: Nanoseconds = Nanoseconds::from_ms(1_000);

/// The subject of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditKind {
    /// A process that may not use the daemon.
    RejectedClient,
    /// A client that has broken a rule.
    DisconnectedClient,
    /// A group that the policy does not allow.
    RefusedGroup,
    /// A group that has broken a rule.
    EndedGroup,
    /// Datagrams that are no packets.
    Malformed,
    /// Packets of groups that the node does not have.
    UnknownGroup,
    /// Packets whose code is wrong.
    Unauthentic,
}

impl AuditKind {
    /// In the order in which they are declared.
    const ALL: [Self; 7] = [
        Self::RejectedClient,
        Self::DisconnectedClient,
        Self::RefusedGroup,
        Self::EndedGroup,
        Self::Malformed,
        Self::UnknownGroup,
        Self::Unauthentic,
    ];

    const fn noun(self) -> &'static str {
        match self {
            Self::RejectedClient => "rejected clients",
            Self::DisconnectedClient => "disconnected clients",
            Self::RefusedGroup => "refused groups",
            Self::EndedGroup => "ended groups",
            Self::Malformed => "malformed datagrams",
            Self::UnknownGroup => "datagrams of unknown groups",
            Self::Unauthentic => "datagrams that are not authentic",
        }
    }
}

/// Limits lines, each kind by itself.
#[derive(Debug, Default)]
pub struct Audit {
    limits: [RateLimit; AuditKind::ALL.len()],
}

impl Audit {
    /// Whether a line may be written. Before the first one after others that were not, their number
    /// is.
    pub fn admits(&mut self, now: Nanoseconds, kind: AuditKind) -> bool {
        self.report_suppressed(now);
        self.limits[kind as usize].admits(now)
    }

    /// Writes how many lines were suppressed, once their span is over.
    pub fn report_suppressed(&mut self, now: Nanoseconds) {
        if self.limits.iter().all(|limit| limit.suppressed == 0) {
            return;
        }
        for (kind, limit) in AuditKind::ALL.into_iter().zip(&mut self.limits) {
            if let Some(count) = limit.take_suppressed(now) {
                tracing::warn!(target: TARGET, "audit: {count} more lines about {} were suppressed", kind.noun());
            }
        }
    }

    /// Whether no span goes on: a new value would admit the same lines. Writes how many lines were
    /// suppressed.
    pub fn is_idle(&mut self, now: Nanoseconds) -> bool {
        self.report_suppressed(now);
        self.limits.iter().all(|limit| limit.lines == 0 || limit.is_over(now))
    }

    /// Writes a line about a datagram that belongs to no group.
    pub fn on_stray(&mut self, now: Nanoseconds, source: SocketAddr, stray: Stray) {
        let kind = match stray.kind {
            StrayKind::Malformed => AuditKind::Malformed,
            StrayKind::UnknownGroup => AuditKind::UnknownGroup,
            StrayKind::Unauthentic => AuditKind::Unauthentic,
        };
        if !self.admits(now, kind) {
            return;
        }
        match (kind, stray.group) {
            (AuditKind::Unauthentic, Some(group)) => {
                tracing::warn!(target: TARGET, %source, %group, "audit: a datagram is not authentic");
            }
            (AuditKind::UnknownGroup, Some(group)) => {
                tracing::info!(target: TARGET, %source, %group, "audit: a datagram is of an unknown group");
            }
            _ => tracing::info!(target: TARGET, %source, "audit: a datagram is malformed"),
        }
    }
}

/// Limits lines to [`LINES_MAX`] in a span of [`SPAN`], which begins with its first line.
#[derive(Debug, Default)]
struct RateLimit {
    began_at: Nanoseconds,
    lines: u32,
    suppressed: u64,
}

impl RateLimit {
    fn admits(&mut self, now: Nanoseconds) -> bool {
        if self.is_over(now) {
            self.began_at = now;
            self.lines = 0;
        }
        let is_admitted = self.lines < LINES_MAX;
        if is_admitted {
            self.lines += 1;
        } else {
            self.suppressed += 1;
        }
        is_admitted
    }

    /// How many lines were suppressed in a span that is over; once.
    fn take_suppressed(&mut self, now: Nanoseconds) -> Option<u64> {
        let is_due = self.suppressed > 0 && self.is_over(now);
        is_due.then(|| std::mem::take(&mut self.suppressed))
    }

    fn is_over(&self, now: Nanoseconds) -> bool {
        now.since(self.began_at) >= SPAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_in_each_span_and_the_others_counted() {
        let mut limit = RateLimit::default();
        let at = |ms: u64| Nanoseconds::from_ms(5_000 + ms);
        let admitted = (0..100).filter(|ms| limit.admits(at(*ms))).count();
        assert_eq!((admitted, limit.take_suppressed(at(999))), (10, None));
        assert_eq!((limit.take_suppressed(at(1_000)), limit.take_suppressed(at(1_000))), (Some(90), None));
        assert!(limit.admits(at(1_000)));
        assert_eq!(limit.take_suppressed(at(9_000)), None);
    }

    #[test]
    fn what_is_rare_is_never_suppressed() {
        let mut limit = RateLimit::default();
        assert!((0..1_000).all(|count| limit.admits(Nanoseconds::from_ms(count * 100))));
        assert_eq!(limit.take_suppressed(Nanoseconds::from_ms(1_000_000)), None);
    }

    #[test]
    fn a_flood_of_one_kind_suppresses_no_other() {
        let mut audit = Audit::default();
        let now = Nanoseconds::from_ms(2_000);
        let admitted = (0..50).filter(|_| audit.admits(now, AuditKind::Unauthentic)).count();
        assert_eq!((admitted, audit.admits(now, AuditKind::RefusedGroup)), (10, true));
    }
}
