//! What receivers say, and what the group says of them.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use treecast_node::{Group, Lost, MemberLoss};

use super::{Copy, PROGRESS_INTERVAL};
use crate::control::Response;
use crate::host::{Host, Ranges};
use crate::receiver::NO_TCP;
use crate::worker::Worker;
use crate::{HostReport, Outcome, Progress};

/// How long a receiver that says nothing is waited for once all was sent. It says each half second
/// how far it is.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The same for one that the group has lost.
const LOST_SILENCE_MAX: Duration = Duration::from_secs(2);

impl Copy {
    /// Takes news of receivers and of the group, and tells how far the copy is.
    pub(super) fn look_around(
        &mut self,
        group: &Group,
        timeout: Duration,
        sent: u64,
        total: u64,
        tell: &mut dyn FnMut(&Progress<'_>),
    ) {
        self.hear(timeout);
        self.hear_losses(&group.losses());
        if self.server.is_none() {
            // The data comes from another host.
            self.relieve(group, sent, total);
        }
        tell(&self.progress(sent, total));
    }

    /// Waits until every receiver that is not lost has said what it lacks. Returns that for the
    /// number of each host.
    pub(super) fn hear_lacking(
        &mut self,
        group: &Group,
        tell: &mut dyn FnMut(&Progress<'_>),
    ) -> Vec<(usize, Ranges)> {
        let lacks_answer = |host: &Host| host.takes_part() && host.lacking.is_none();
        while self.hosts.iter().any(lacks_answer) && !self.stopper.is_stopped() {
            self.look_around(group, PROGRESS_INTERVAL, 0, 0, &mut |_| {});
            let comparing = self.hosts.iter().filter(|host| lacks_answer(host));
            let comparing = comparing.map(|host| host.name.as_str()).collect();
            tell(&Progress { comparing, ..self.progress(0, 0) });
        }
        let hosts = self.hosts.iter_mut().enumerate();
        hosts.filter_map(|(number, host)| Some((number, host.lacking.take()?))).collect()
    }

    /// Waits until all receivers have written everything, or are silent.
    pub(super) fn wait_for_all(&mut self, total: u64, tell: &mut dyn FnMut(&Progress<'_>)) {
        let since = Instant::now();
        while self.hosts.iter().any(Host::is_alive) && !self.stopper.is_stopped() {
            self.hear(PROGRESS_INTERVAL);
            tell(&self.progress(total, total));
            for host in self.hosts.iter_mut().filter(|host| host.is_alive()) {
                let (until, why) = match &host.lost {
                    Some(why) => (LOST_SILENCE_MAX, why.clone()),
                    None => (
                        SILENCE_MAX,
                        format!(
                            "it was silent for {} s after all was sent: it is stopped or overloaded, or its disk hangs; --retry copies to it again",
                            SILENCE_MAX.as_secs()
                        ),
                    ),
                };
                if host.heard.max(since).elapsed() > until {
                    host.fail(why);
                }
            }
        }
    }

    /// Takes what receivers have said; waits for the first of it.
    pub(super) fn hear(&mut self, timeout: Duration) {
        let mut next = self.news.recv_timeout(timeout);
        while let Ok((number, said)) = next {
            next = self.news.try_recv().map_err(|_| RecvTimeoutError::Timeout);
            let Some(host) = self.hosts.get_mut(number) else {
                self.server.iter_mut().for_each(|server| server.hear(&said));
                continue;
            };
            host.heard = Instant::now();
            match said {
                Ok(Response::Progress { bytes, waits }) => {
                    host.bytes = bytes;
                    host.waits.add(host.heard, waits);
                }
                Ok(Response::Lacking { ranges }) => host.lacking = Some(ranges),
                Ok(Response::Done { stream, .. }) if stream != self.digest.finish() => {
                    host.fail("it has received another stream than was sent".into());
                }
                Ok(Response::Done {
                    files,
                    kept,
                    deleted,
                    deletions,
                    failures,
                    failure_count: count,
                    stream: _,
                }) => {
                    let outcome =
                        if count == 0 { Outcome::Complete } else { Outcome::Incomplete { failures, count } };
                    let name = host.name.clone();
                    host.end(HostReport {
                        host: name,
                        outcome,
                        files,
                        kept,
                        deleted,
                        deletions,
                        ..HostReport::default()
                    });
                }
                Ok(Response::Failed { why }) => host.fail(why),
                Ok(_) => host.fail("it answers another request".into()),
                Err(why) => {
                    let explain = |worker: &Worker| worker.explain(std::io::Error::other(why)).to_string();
                    let why = host.lost.take().or_else(|| host.worker.as_ref().map(explain));
                    host.fail(why.unwrap_or_default());
                    let member = host.member;
                    self.server.iter_mut().for_each(|server| server.evict(member));
                }
            }
        }
    }

    /// Notes members that the group has lost. Their receivers may still say why they have left.
    pub(super) fn hear_losses(&mut self, all: &[Lost]) {
        // One that was evicted has ended, and the end of its responses says how.
        for lost in all.iter().filter(|lost| lost.loss != MemberLoss::Evicted) {
            let of_member = |host: &&mut Host| host.member == lost.member as usize;
            if let Some(host) = self.hosts.iter_mut().find(of_member).filter(|host| host.lost.is_none()) {
                host.lost = Some(loss_text(lost.loss));
                host.close();
            }
        }
    }

    pub(super) fn progress(&self, sent: u64, total: u64) -> Progress<'_> {
        let alive = self.hosts.iter().filter(|host| host.report.is_none());
        let hosts: Vec<(&str, u64)> = alive.map(|host| (host.name.as_str(), host.bytes)).collect();
        let has_failed = |host: &&Host| matches!(&host.report, Some(report) if matches!(report.outcome, Outcome::Failed(_)));
        let failed = self.hosts.iter().filter(has_failed).count();
        let (slow, relieved) = (self.slow(), self.relieved());
        Progress { sent, total, hosts, failed, slow, relieved, ..Progress::default() }
    }
}

/// Why the group has lost a host, and what helps.
fn loss_text(loss: MemberLoss) -> String {
    let help = match loss {
        // Without the remedies for programs, which the text of the loss has.
        MemberLoss::AcceptsNothing(time) => {
            return format!("it answered, but no data was received for {time}: {NO_TCP}");
        }
        MemberLoss::Unreachable(_) => {
            ": no UDP comes from it: a firewall may be in between (--ports says which ports it is to let pass), or another network (--bind)"
        }
        MemberLoss::Silent(_) => ": it is down, stopped or cut off; --retry copies to it again",
        MemberLoss::PathTooSmall { .. } => ": give a smaller one, such as --set mtu_bytes=1400",
        _ => "",
    };
    format!("{loss}{help}")
}

#[cfg(test)]
mod tests {
    use treecast_node::Nanoseconds;

    use super::*;

    #[test]
    fn a_loss_has_its_cause_and_its_remedy_once() {
        let text = loss_text(MemberLoss::AcceptsNothing(Nanoseconds::from_ms(20_000)));
        assert!(text.starts_with("it answered, but no data was received for 20 s: "), "{text}");
        assert!(text.matches("firewall").count() == 1 && text.contains("--set transport=packets"), "{text}");
        let text = loss_text(MemberLoss::Silent(Nanoseconds::from_ms(30_000)));
        assert_eq!(text, "silent for 30 s: it is down, stopped or cut off; --retry copies to it again");
    }
}
