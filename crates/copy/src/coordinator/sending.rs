//! What is sent to all receivers: the list of entries, the hashes of chunks that are compared, and
//! the files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use fixedbitset::FixedBitSet;
use treecast_node::{Group, NodeError};

use super::server::{PENDING_MAX, Server};
use super::{Copy, PROGRESS_INTERVAL};
use crate::chunks::{Compared, Lacking};
use crate::compression::Compressor;
use crate::control::{Existing, Request, Writing};
use crate::host::{Host, Ranges};
use crate::queue::{Drain, Message, queue};
use crate::sender::Sender;
use crate::sources::Source;
use crate::stream::Hash;
use crate::worker::Worker;
use crate::{CopyError, CopySettings, Kind, Planned, Progress, Sources};

/// What was sent.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) files: Vec<crate::CopiedFile>,
    pub(super) planned: Vec<Planned>,
    pub(super) left_out: Vec<(PathBuf, String)>,
    pub(super) bytes: u64,
}

impl Copy {
    /// Reads and sends everything, and waits until every receiver has it or is lost.
    pub(super) fn send(
        &mut self,
        group: &Group,
        sources: &Sources,
        settings: &CopySettings,
        tell: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<Sent, CopyError> {
        self.wait_until_ready(group, tell)?;
        let compressor = || {
            let failed = |source| NodeError::System { what: "cannot prepare compression", source };
            settings.compression.map(Compressor::new).transpose().map_err(failed)
        };
        let stopper = self.stopper.clone();
        let mut lacking = Lacking::default();
        let mut planned = Vec::new();
        if self.asks_for_entries(settings) {
            let hashes = settings.compares_hashes;
            self.stream(group, 0, compressor()?, tell, |sender| {
                sender.list(&sources.all, hashes, &stopper).is_ok()
            })?;
            let of_hosts = self.hear_lacking(group, tell);
            if settings.writing.is_dry {
                planned = self.plan(sources, &of_hosts);
                let (_, bytes) =
                    self.stream(group, 0, compressor()?, tell, |sender| sender.complete(0).is_ok())?;
                self.close(group, 0, tell)?;
                return Ok(Sent { planned, bytes, ..Sent::default() });
            }
            lacking = Lacking(Some(union(&of_hosts, sources.all.len())));
        }
        let mut compared = Compared::default();
        if settings.compares {
            let (asked, _) = self.stream(group, 0, compressor()?, tell, |sender| {
                sender.ask(&sources.all, &lacking, &stopper).ok()
            })?;
            compared = asked.unwrap_or_default();
            compared.lacking = union(&self.hear_lacking(group, tell), compared.chunk_count());
        }
        let is_served = self.server.as_ref().and_then(Server::worker).is_some();
        let total = sources.bytes_of(&lacking).saturating_sub(compared.bytes_spared());
        let ((files, left_out), bytes) = self.stream(group, total, compressor()?, tell, |sender| {
            sender.outlines = is_served;
            let _ = sender.send(&sources.all, &lacking, &compared);
            (std::mem::take(&mut sender.files), std::mem::take(&mut sender.left_out))
        })?;
        // By now the length of standard input is known.
        self.close(group, bytes, tell)?;
        Ok(Sent { files, planned, left_out, bytes })
    }

    /// Whether hosts are asked which entries they lack: not where nothing is there yet.
    fn asks_for_entries(&self, settings: &CopySettings) -> bool {
        let Writing { existing, is_dry, .. } = settings.writing;
        let deletes = settings.writing.deletes_all_but.is_some();
        let is_there = |host: &Host| host.worker.as_ref().is_some_and(|worker| worker.is_directory.is_some());
        is_dry || (deletes || existing != Existing::Replace) && self.hosts.iter().any(is_there)
    }

    /// The files that would be copied, and the hosts that lack them.
    fn plan(&self, sources: &Sources, of_hosts: &[(usize, Ranges)]) -> Vec<Planned> {
        let mut planned: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for (host, ranges) in of_hosts {
            for number in ranges.iter().flat_map(|&(first, end)| first..end.min(sources.all.len() as u32)) {
                planned.entry(number).or_default().push(self.hosts[*host].name.clone());
            }
        }
        let of_source = |(number, hosts): (u32, Vec<String>)| {
            let Source { path, entry, .. } = &sources.all[number as usize];
            let is_file = matches!(entry.kind, Kind::File { .. });
            Planned { source: path.clone(), length: is_file.then(|| entry.length()), hosts }
        };
        planned.into_iter().map(of_source).collect()
    }

    /// Waits until each receiver has its place in the group, or is lost.
    fn wait_until_ready(
        &mut self,
        group: &Group,
        tell: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<(), CopyError> {
        loop {
            match group.wait_until_ready(Some(PROGRESS_INTERVAL)) {
                Ok(lost) => {
                    self.hear_losses(&lost);
                    return Ok(());
                }
                Err(NodeError::Unanswered(members)) => {
                    self.look_around(group, Duration::ZERO, 0, 0, &mut |_| {});
                    let is_joining = |host: &&Host| {
                        host.report.is_none() && members.iter().any(|one| one.member as usize == host.member)
                    };
                    let joining = self.hosts.iter().filter(is_joining);
                    let joining = joining.map(|host| host.name.as_str()).collect();
                    tell(&Progress { joining, ..self.progress(0, 0) });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends the messages that a thread makes. Returns its result, and the bytes of files that were
    /// sent.
    fn stream<T: Send + Default>(
        &mut self,
        group: &Group,
        total: u64,
        compressor: Option<Compressor>,
        tell: &mut dyn FnMut(&Progress<'_>),
        read: impl FnOnce(&mut Sender) -> T + Send,
    ) -> Result<(T, u64), CopyError> {
        let (filler, drain) = queue();
        thread::scope(|scope| {
            let reader = scope.spawn(move || read(&mut Sender::new(filler, compressor)));
            let sent = self.send_messages(group, &drain, total, tell);
            // The reader ends, if it has not.
            drop(drain);
            let read = reader.join().unwrap_or_default();
            Ok((read, sent?))
        })
    }

    fn send_messages(
        &mut self,
        group: &Group,
        queue: &Drain,
        total: u64,
        tell: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<u64, CopyError> {
        let mut sent = 0;
        let mut told = Instant::now();
        while let Some(Message { bytes, file_bytes, outline }) = queue.take() {
            let digest = blake3::hash(&bytes).into();
            if let (Some(server), Some(outline)) = (&mut self.server, outline) {
                server.ask(digest, bytes, &outline);
                self.send_answered(group, PENDING_MAX, sent, total, tell)?;
            } else {
                self.announce(digest);
                group.send(&bytes)?;
                self.stream_bytes += bytes.len() as u64;
                queue.give_back(bytes);
            }
            sent += file_bytes;
            if told.elapsed() >= PROGRESS_INTERVAL {
                told = Instant::now();
                self.look_around(group, Duration::ZERO, sent, total, tell);
                if !self.hosts.iter().any(Host::takes_part) {
                    break;
                }
            }
        }
        self.send_answered(group, 0, sent, total, tell)?;
        Ok(sent)
    }

    /// Posts the digest of the next message to each receiver, by its own pipe.
    pub(super) fn announce(&mut self, digest: Hash) {
        self.digest.add(&digest);
        let line = Worker::line(&Request::Digest(digest));
        for host in self.hosts.iter_mut().filter(|host| host.takes_part()) {
            if let Some(Err(why)) = host.worker.as_ref().map(|worker| worker.post(&line)) {
                host.fail(why.into());
                host.close();
            }
        }
    }

    fn close(
        &mut self,
        group: &Group,
        total: u64,
        tell: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<(), CopyError> {
        self.server.iter_mut().for_each(Server::close);
        loop {
            match group.close(Some(PROGRESS_INTERVAL)) {
                Ok(lost) => {
                    self.hear_losses(&lost);
                    return Ok(());
                }
                Err(NodeError::TimedOut) => self.look_around(group, Duration::ZERO, total, total, tell),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// All numbers below `count` that some host lacks.
fn union(of_hosts: &[(usize, Ranges)], count: usize) -> FixedBitSet {
    let mut lacking = FixedBitSet::with_capacity(count);
    for &(first, end) in of_hosts.iter().flat_map(|(_, ranges)| ranges) {
        let (first, end) = (first as usize, (end as usize).min(count));
        if first < end {
            lacking.insert_range(first..end);
        }
    }
    lacking
}
