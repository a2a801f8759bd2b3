//! The hosts of a copy, and what is heard of them.

use std::sync::Weak;
use std::sync::mpsc::Sender as ChannelSender;
use std::time::Instant;

use treecast_node::Group;
use treecast_remote::Responses;

use crate::control::Response;
use crate::waits::RecentWaits;
use crate::worker::Worker;
use crate::{HostReport, Outcome};

/// Ranges of numbers: the first one, and the one after the last.
pub(crate) type Ranges = Vec<(u32, u32)>;

/// An event of a host: a response, or the end of its output.
pub(crate) type News = (usize, Result<Response, String>);

/// A host of a copy, with its receiver.
pub(crate) struct Host {
    pub name: String,
    /// None if it was not started.
    pub worker: Option<Worker>,
    /// The number of its member in the group; 0 before it has one.
    pub member: usize,
    /// What it wrote.
    pub bytes: u64,
    pub heard: Instant,
    /// Whom its packets wait for.
    pub waits: RecentWaits,
    /// Why the group has lost it, if it has.
    pub lost: Option<String>,
    /// The entries or chunks that it lacks, once it has said so.
    pub lacking: Option<Vec<(u32, u32)>>,
    /// How it ended, once it has.
    pub report: Option<HostReport>,
}

impl Host {
    pub fn new(name: &str, started: Result<Worker, String>) -> Self {
        let mut host = Self {
            name: name.into(),
            worker: None,
            member: 0,
            bytes: 0,
            heard: Instant::now(),
            waits: RecentWaits::default(),
            lost: None,
            lacking: None,
            report: None,
        };
        match started {
            Ok(worker) => host.worker = Some(worker),
            Err(why) => host.fail(why),
        }
        host
    }

    pub fn is_alive(&self) -> bool {
        self.report.is_none()
    }

    /// Whether it is in the group, as far as is known.
    pub const fn takes_part(&self) -> bool {
        self.report.is_none() && self.lost.is_none()
    }

    pub fn end(&mut self, report: HostReport) {
        self.report.get_or_insert(report);
    }

    pub fn fail(&mut self, why: String) {
        let host = self.name.clone();
        self.end(HostReport { host, outcome: Outcome::Failed(why), ..HostReport::default() });
    }

    /// Closes the input of its receiver, which then ends.
    pub fn close(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.close();
        }
    }

    pub fn into_report(mut self) -> HostReport {
        self.fail("it has not said how it ended".into());
        let report = self.report.unwrap_or_else(|| unreachable!("it has just ended"));
        HostReport { bytes: self.bytes, ..report }
    }
}

/// Hears one receiver in a thread.
pub(crate) struct Listener {
    pub number: usize,
    pub member: u32,
    pub group: Weak<Group>,
    pub news: ChannelSender<News>,
}

impl Listener {
    /// Passes responses on. A receiver that ends without its last one is evicted: no member waits
    /// for it.
    pub fn run(self, mut responses: Responses) {
        let mut has_ended = false;
        loop {
            let next = match responses.receive() {
                Ok(Some(response)) => Ok(response),
                Ok(None) => Err("its receiver or its remote shell has ended too early: it was killed, or the connection broke; --retry copies to it again".into()),
                Err(why) => Err(why.to_string()),
            };
            let is_last = next.is_err();
            has_ended |= matches!(next, Ok(Response::Done { .. }));
            if is_last
                && !has_ended
                && let Some(group) = self.group.upgrade()
            {
                // The only error is that of a member that there is not.
                let _ = group.evict(self.member);
            }
            if self.news.send((self.number, next)).is_err() || is_last {
                return;
            }
        }
    }
}
