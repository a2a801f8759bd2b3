//! The host that copies.

mod hearing;
mod preparation;
mod relief;
mod sending;
mod server;

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender as ChannelSender};
use std::thread;
use std::time::{Duration, Instant};

use relief::Relief;
use sending::Sent;
use server::Server;
use treecast_node::NodeError;

use crate::host::{Host, News};
use crate::stopper::Stopper;
use crate::stream::StreamDigest;
use crate::worker::Worker;
use crate::{CopyError, CopySettings, Progress, Report, Sources};

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// How long receivers have to remove what is not complete when the copy is stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Copies sources to all hosts. Hosts that fail, at any time, are in the report, and the others get
/// everything.
///
/// # Errors
/// Nothing was copied: [`CopyError::SameHost`], [`CopyError::Hosts`], [`CopyError::Mixed`],
/// [`CopyError::NoDirectory`], [`CopyError::InputName`], [`CopyError::Address`],
/// [`CopyError::Node`], also if it was stopped.
pub fn copy(
    sources: &Sources,
    settings: &CopySettings,
    stopper: &Stopper,
    tell: &mut dyn FnMut(&Progress<'_>),
) -> Result<Report, CopyError> {
    let since = Instant::now();
    let mut copy = Copy::start(sources, settings, stopper, tell)?;
    let copied = copy.run(sources, settings, tell);
    copy.end();
    if stopper.is_stopped() {
        return Err(NodeError::Ended(treecast_node::Ending::Aborted).into());
    }
    let (sent, into) = copied?;
    let mut left_out = sources.left_out.clone();
    left_out.extend(sent.left_out);
    Ok(Report {
        attempts: 1,
        files: sent.files,
        planned: sent.planned,
        left_out,
        bytes: sent.bytes,
        stream_bytes: copy.stream_bytes,
        duration: since.elapsed(),
        into,
        relieved: copy.relieved_hosts(),
        served_by: copy.server.iter().map(Server::report).collect(),
        hosts: copy.hosts.into_iter().map(Host::into_report).collect(),
    })
}

struct Copy {
    hosts: Vec<Host>,
    /// This host's address.
    own: IpAddr,
    news: Receiver<News>,
    news_sender: ChannelSender<News>,
    stopper: Stopper,
    /// When the group was formed.
    since: Instant,
    relief: Relief,
    /// The host that serves messages instead of this one, if there is one.
    server: Option<Server>,
    /// The bytes of messages that were sent.
    stream_bytes: u64,
    /// Their digest.
    digest: StreamDigest,
}

impl Copy {
    /// Copies to the receivers that have started. Returns what was sent, and whether files went
    /// into the destination.
    fn run(
        &mut self,
        sources: &Sources,
        settings: &CopySettings,
        tell: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<(Sent, bool), CopyError> {
        if self.stopper.is_stopped() {
            return Ok(Default::default());
        }
        let into = match settings.into {
            Some(into) => into,
            None => self.settle_destination(sources, &settings.to)?,
        };
        let mut sent = Sent::default();
        if self.hosts.iter().any(Host::is_alive) {
            let (_node, group) = self.form_group(sources, settings, into)?;
            self.stopper.watch(&group);
            self.relief.watch(&group);
            self.since = Instant::now();
            sent = self.send(&group, sources, settings, tell)?;
            self.wait_for_all(sent.bytes, tell);
        }
        Ok((sent, into))
    }

    /// Closes the inputs of all receivers, at the same time, so that they end. When the copy is
    /// stopped, those that do not are killed soon.
    fn end(&mut self) {
        self.hosts.iter_mut().for_each(Host::close);
        self.server.iter_mut().for_each(Server::end);
        if !self.stopper.is_stopped() {
            return;
        }
        let of_server = self.server.as_ref().and_then(Server::worker);
        let workers = || self.hosts.iter().filter_map(|host| host.worker.as_ref()).chain(of_server);
        let until = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < until && !workers().all(Worker::has_ended) {
            thread::sleep(Duration::from_millis(10));
        }
        workers().for_each(Worker::kill);
    }
}
