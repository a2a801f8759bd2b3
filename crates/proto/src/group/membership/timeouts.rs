//! What time brings a member: a parent or a root that is silent, an inquiry to the root, and the
//! end.

use treecast_wire::{RootLoss, Sequence};

use super::Membership;
use crate::flow::{Flow, PeerFailure};
use crate::pause::Pause;
use crate::{Ending, Nanoseconds, Settings};

/// Whether the root still has this member in its tree. A parent that is heard says nothing about
/// that: the members of a circle, which forged tables can make, hear each other. A member other
/// than a child of the root that gets nothing new asks the root by a join, which it answers with
/// the member's table or its eviction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Inquiry {
    /// The next packet expected at the last check.
    next: Sequence,
    /// When the next check is, at which the root is asked if nothing new was received since the
    /// last one. Checks have fixed times, so that a node asks at the same time whether its packets
    /// pass the fast path or not. None: not known yet, or the parent is the root.
    check_at: Option<Nanoseconds>,
    /// The time between two checks; it doubles with each answer, up to [`INQUIRY_BACKOFF_MAX`]
    /// times the least.
    interval: Nanoseconds,
    /// Since when the root is being asked.
    pub asked_at: Option<Nanoseconds>,
    /// When the parent said that the root is silent, if that is why the root is being asked.
    reported_at: Option<Nanoseconds>,
}

impl Membership {
    /// Handles timeouts; returns how the group has ended at this member, if it has.
    pub fn handle_timeout(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        flow: Option<&Flow>,
    ) -> Option<Ending> {
        if self.leaving_since.is_some_and(|since| now.since(since) > leave_timeout(settings)) {
            // The root does not answer, so that it need not agree.
            return Some(Ending::Aborted);
        }
        let Some(flow) = flow else {
            let waited = now.since(self.root_heard_at);
            return (waited > settings.join_timeout).then_some(Ending::RootSilent(settings.join_timeout));
        };
        if flow.is_finished() && flow.has_acked_all() {
            self.complete();
        }
        if self.is_released() {
            return flow.is_read().then_some(Ending::Closed);
        }
        let parent = self.parent.filter(|_| now.since(self.parent_heard_at) > parent_timeout(settings));
        if let Some(parent) = parent {
            self.suspect(now, parent.member, PeerFailure::Silent);
        }
        self.inquire(now, settings, flow.readable().1);
        let root_timeout = root_timeout(settings);
        let asked = self.suspected.iter().map(|suspected| suspected.since).chain(self.inquiry.asked_at);
        let is_root_dead = now.since(self.root_heard_at) > root_timeout
            && asked.into_iter().any(|since| now.since(since) > root_timeout);
        let is_report_true = self.inquiry.reported_at.is_some_and(|reported_at| {
            self.root_heard_at < reported_at && now.since(reported_at) > report_timeout(settings)
        });
        let loss = if is_root_dead || is_report_true {
            RootLoss::Silent
        } else if self.is_root_restarted {
            RootLoss::Restarted
        } else {
            return None;
        };
        self.without_root(loss, root_timeout, flow)
    }

    /// The parent says that the root is silent: its own path to the root may be broken and this
    /// member's whole, so this member asks the root itself. False if it already asks because of
    /// such a report, or has heard the root so recently that the root is alive, whatever the parent
    /// says.
    pub fn on_root_reported_silent(&mut self, now: Nanoseconds, settings: &Settings, next: Sequence) -> bool {
        let hears_root = now.since(self.root_heard_at) <= parent_timeout(settings);
        if hears_root || self.inquiry.reported_at.is_some() {
            return false;
        }
        self.inquiry.next = next;
        self.inquiry.asked_at = self.inquiry.asked_at.or(Some(now));
        self.inquiry.reported_at = Some(now);
        self.join_at = Some(now);
        true
    }

    /// Asks the root, if it is time for that; `next` is the next packet expected.
    fn inquire(&mut self, now: Nanoseconds, settings: &Settings, next: Sequence) {
        let interval_min = parent_timeout(settings);
        let restart = |check_at| Inquiry { next, check_at, interval: interval_min, ..Inquiry::default() };
        let Inquiry { next: known, check_at, asked_at, .. } = self.inquiry;
        if self.parent.is_some_and(|parent| parent.address == self.root) {
            // It hears the root itself.
            self.inquiry = restart(None);
        } else if let Some(check_at) = check_at.filter(|_| asked_at.is_none()) {
            if now > check_at && known != next {
                self.inquiry = restart(Some(now.max(check_at + interval_min)));
            } else if now > check_at {
                self.inquiry.asked_at = Some(now);
                self.join_at = Some(now);
            }
        } else if check_at.is_none() || known != next {
            self.inquiry = restart(Some(now + interval_min));
        }
        if asked_at.is_some() && self.inquiry.asked_at.is_none() {
            self.join_at = None;
        }
    }

    /// The root has answered with the table of this member.
    pub fn on_answered(&mut self, now: Nanoseconds, settings: &Settings) {
        self.inquiry.reported_at = None;
        if self.inquiry.asked_at.take().is_some() {
            let interval_max = Nanoseconds(parent_timeout(settings).0.saturating_mul(INQUIRY_BACKOFF_MAX));
            self.inquiry.interval = interval_max.min(Nanoseconds(self.inquiry.interval.0.saturating_mul(2)));
            self.inquiry.check_at = Some(now + self.inquiry.interval);
            self.join_at = None;
        }
    }

    /// How the group ends at this member after the root is gone, if it ends now.
    pub fn without_root(&mut self, loss: RootLoss, root_timeout: Nanoseconds, flow: &Flow) -> Option<Ending> {
        match (&mut self.completion, loss) {
            // This member has everything, and the root, to which it would report that, is gone.
            (Some(completion), _) => {
                completion.is_released = true;
                flow.is_read().then_some(Ending::Closed)
            }
            (None, RootLoss::Silent) => Some(Ending::RootSilent(root_timeout)),
            (None, RootLoss::Restarted) => Some(Ending::RootRestarted),
        }
    }

    /// This node did not run for a while.
    pub fn handle_suspend(&mut self, pause: Pause) {
        self.pause = Some(pause);
        let leave_out = |at: &mut Nanoseconds| pause.leave_out(at);
        leave_out(&mut self.root_heard_at);
        leave_out(&mut self.parent_heard_at);
        self.suspected.iter_mut().for_each(|suspected| leave_out(&mut suspected.since));
        match &mut self.inquiry {
            Inquiry { asked_at: Some(asked_at), reported_at, .. } => {
                leave_out(asked_at);
                reported_at.iter_mut().for_each(leave_out);
            }
            inquiry => inquiry.check_at = None,
        }
    }

    /// When the next timeout is to be handled.
    pub fn timeout(&self, settings: &Settings) -> Option<Nanoseconds> {
        if self.handshake.is_open() {
            // Nothing is sent before the session is known.
            let leave = self.leaving_since.map(|since| since + leave_timeout(settings) + Nanoseconds(1));
            let give_up = self.root_heard_at + settings.join_timeout + Nanoseconds(1);
            return leave.into_iter().chain(self.handshake.timeout()).chain([give_up]).min();
        }
        if !self.has_place {
            return self
                .join_at
                .into_iter()
                .chain(self.handshake.timeout())
                .chain(self.leave_at)
                .chain([self.root_heard_at + settings.join_timeout + Nanoseconds(1)])
                .min();
        }
        if self.is_released() {
            return None;
        }
        let reports = self.suspected.iter().map(|suspected| suspected.report_at);
        // Once a neighbour is suspected, the reports to the root come next.
        let parent = self.parent.filter(|_| self.suspected.is_empty());
        let parent = parent.map(|_| self.parent_heard_at + parent_timeout(settings) + Nanoseconds(1));
        let check_at = self.inquiry.check_at.filter(|_| self.inquiry.asked_at.is_none());
        let inquiry = check_at.map(|check_at| check_at + Nanoseconds(1));
        reports
            .chain(parent)
            .chain(inquiry)
            .chain(self.leave_at)
            .chain(self.join_at)
            .chain(self.handshake.timeout())
            .min()
    }
}

/// The longest time without anything new after which the root is asked, in the least such times.
const INQUIRY_BACKOFF_MAX: u64 = 16;

/// A parent probes its children at every keepalive interval, and so is heard; it may meanwhile be
/// busy finding out that another of its children is dead.
pub(super) fn parent_timeout(settings: &Settings) -> Nanoseconds {
    Nanoseconds((settings.peer_timeout.0 / 2).saturating_mul(3))
}

/// How long a root that the parent has reported silent has to answer: the time that the root gives
/// a suspect.
fn report_timeout(settings: &Settings) -> Nanoseconds {
    Nanoseconds(settings.peer_timeout.0 / 2)
}

/// How long a member that leaves repeats that at most. A root that does not hear it loses the
/// member by its silence.
const LEAVE_TIMEOUT_MAX: Nanoseconds = Nanoseconds::from_ms(1_000);

fn leave_timeout(settings: &Settings) -> Nanoseconds {
    settings.peer_timeout.min(LEAVE_TIMEOUT_MAX)
}

/// A root that is silent for this time, although a failure was reported to it, is dead.
fn root_timeout(settings: &Settings) -> Nanoseconds {
    Nanoseconds(settings.peer_timeout.0.saturating_mul(2))
}
