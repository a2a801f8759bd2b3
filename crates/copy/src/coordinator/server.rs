//! The host that serves messages to the others, instead of the host that copies: it builds them
//! from its own files by their outlines. A message that it cannot build, because its files differ,
//! is sent by the host that copies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use treecast_node::{Group, GroupSettings, Keyed};

use super::{Copy, PROGRESS_INTERVAL};
use crate::control::{Request, Response};
use crate::host::{Host, Listener};
use crate::stream::Hash;
use crate::worker::Worker;
use crate::{CopyError, Progress, Served};

/// Messages that the host that serves has been asked for and has not answered: 4 MB, for the time
/// of a round trip to it.
pub(super) const PENDING_MAX: usize = 16;

/// The host that serves.
pub(super) struct Server {
    /// None if it was not started.
    worker: Option<Worker>,
    /// The messages that it was asked for.
    pending: VecDeque<(Hash, Vec<u8>)>,
    /// Its answers to the first of them: why it did not send the message, if it did not.
    answers: VecDeque<Option<String>>,
    /// Whether it has closed its group, and ends.
    is_closed: bool,
    report: Served,
}

impl Server {
    pub fn new(name: &str, started: Result<Worker, String>) -> Self {
        let mut report = Served { host: name.into(), ..Served::default() };
        let worker = started.map_err(|why| report.refusal = Some(why)).ok();
        let (pending, answers) = (VecDeque::new(), VecDeque::new());
        Self { worker, pending, answers, is_closed: false, report }
    }

    /// Its receiver, if it was started.
    pub const fn worker(&self) -> Option<&Worker> {
        self.worker.as_ref()
    }

    pub fn report(&self) -> Served {
        self.report.clone()
    }

    /// Lets it form its group.
    pub fn begin(
        &mut self,
        settings: GroupSettings,
        into: bool,
        compression: Option<i32>,
        listener: Listener,
    ) {
        let values = settings.values().filter(|(key, _)| *key != "member");
        let values: Vec<String> = values.map(|(key, value)| format!("{key}={value}")).collect();
        let (members, settings) = (settings.members, values.join(" "));
        self.post(&Request::Serve { members, settings, into, compression }, &[]);
        if let Some(responses) = self.worker.as_mut().and_then(Worker::take_responses) {
            thread::spawn(move || listener.run(responses));
        }
    }

    /// Asks for the next message.
    pub fn ask(&mut self, digest: Hash, message: Vec<u8>, outline: &[u8]) {
        self.post(&Request::Outline { digest, bytes: outline.len() }, outline);
        self.pending.push_back((digest, message));
    }

    /// A member's receiver has ended: it is not waited for.
    pub fn evict(&mut self, member: usize) {
        self.post(&Request::Evict(member as u32), &[]);
    }

    /// Lets it close its group.
    pub fn close(&mut self) {
        self.post(&Request::Close, &[]);
    }

    /// Closes its input, so that it ends.
    pub fn end(&mut self) {
        self.worker.iter_mut().for_each(Worker::close);
    }

    /// Posts a request, and the bytes that follow it.
    fn post(&mut self, request: &Request, bytes: &[u8]) {
        let Some(worker) = &self.worker else { return };
        let line: Arc<[u8]> = [&Worker::line(request), bytes].concat().into();
        if let Err(why) = worker.post(&line) {
            self.fail(why.into());
        }
    }

    /// Takes what it has said, or why it says nothing more.
    pub fn hear(&mut self, said: &Result<Response, String>) {
        match said {
            Ok(Response::Served { refusal }) => self.answers.push_back(refusal.clone()),
            Ok(Response::Closed) => self.is_closed = true,
            _ if self.is_closed => {}
            Ok(Response::Failed { why }) | Err(why) => self.fail(why.clone()),
            Ok(_) => self.fail("it answers another request".into()),
        }
    }

    /// Notes why messages that it was asked for may be missing.
    fn fail(&mut self, why: String) {
        self.report.failure.get_or_insert(why);
    }
}

impl Copy {
    /// Announces the messages that the host that serves has sent, and sends those that it has
    /// refused, until it has answered all but `pending_max`. If it fails, all hosts fail: which of
    /// them have the messages that it has not answered is unknown.
    pub(super) fn send_answered(
        &mut self,
        group: &Group,
        pending_max: usize,
        sent: u64,
        total: u64,
        tell: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<(), CopyError> {
        self.hear(Duration::ZERO);
        while let Some(server) = &mut self.server {
            if let Some(answer) = server.answers.pop_front() {
                let Some((digest, message)) = server.pending.pop_front() else { continue };
                let is_sent = answer.is_none();
                match answer {
                    None => server.report.bytes += message.len() as u64,
                    Some(why) => drop(server.report.refusal.get_or_insert(why)),
                }
                self.announce(digest);
                // An empty message says that the next one comes from the host that serves.
                group.send(if is_sent { &[] } else { &message })?;
                self.stream_bytes += message.len() as u64;
                continue;
            }
            let is_over = self.stopper.is_stopped() || !self.hosts.iter().any(Host::takes_part);
            if server.pending.len() <= pending_max || is_over {
                return Ok(());
            }
            if let Some(why) = &server.report.failure {
                let why = format!("{}, which served it, has failed: {why}", server.report.host);
                for host in self.hosts.iter_mut().filter(|host| host.takes_part()) {
                    host.fail(why.clone());
                    host.close();
                }
                return Ok(());
            }
            self.look_around(group, PROGRESS_INTERVAL, sent, total, tell);
        }
        Ok(())
    }
}
