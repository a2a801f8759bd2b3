//! The host that copies.

mod hearing;
mod relief;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender as ChannelSender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fixedbitset::FixedBitSet;
use relief::Relief;
use server::{PENDING_MAX, Server};
use treecast_node::{CongestionControl, Group, GroupId, GroupSettings, Node, NodeError, draw_token};

use crate::chunks::{Compared, Lacking};
use crate::compression::Compressor;
use crate::control::{Existing, Request, ServedGroup, Writing, node_settings};
use crate::host::{Host, Listener, News, Ranges};
use crate::program::Program;
use crate::queue::{Drain, Message, queue};
use crate::receiver::local_address;
use crate::sender::Sender;
use crate::sources::Source;
use crate::start::{Starts, start_all};
use crate::stopper::Stopper;
use crate::stream::{Hash, StreamDigest};
use crate::worker::Worker;
use crate::{CopyError, CopySettings, Destination, Kind, Planned, Progress, Report, Sources};

/// In datagrams, a window of 0.4 MB, which keeps a link of some Gb/s busy, and does not outgrow the
/// queues of switches before slow ones: measured with 256, 512 and 1,024 slots over links of 200
/// Mb/s and over those of a lab without limits. On streams, 4 MB, which keep all links of a chain
/// of hosts busy; there TCP controls what is in the queues.
const SLOTS: u32 = 256;

/// The length for which the tree is made where it is not known before: that of a long message.
const INPUT_BYTES_EXPECTED: u64 = 64 << 20;

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

#[derive(Default)]
struct Sent {
    files: Vec<crate::CopiedFile>,
    planned: Vec<Planned>,
    left_out: Vec<(PathBuf, String)>,
    bytes: u64,
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
    /// Starts all receivers.
    fn start(
        sources: &Sources,
        settings: &CopySettings,
        stopper: &Stopper,
        tell: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<Self, CopyError> {
        let names = &settings.hosts;
        if names.is_empty() || names.len() > CopyError::HOSTS_MAX {
            return Err(CopyError::Hosts { given: names.len() });
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
            return Err(CopyError::SameHost(twice.clone()));
        }
        settings.group.tcp_congestion.as_ref().map_or(Ok(()), CongestionControl::check)?;
        let root = settings.bind.or_else(|| address_towards(names.first()?));
        let (destination, mut writing) = (settings.to.path.clone(), settings.writing.clone());
        if !sources.left_out.is_empty() {
            // It may be there.
            writing.deletes_all_but = None;
        }
        let open = Request::Open { root, ports: settings.ports, destination, writing };
        let CopySettings { shell, program: path, start_timeout: timeout, .. } = settings;
        let sent = settings.receiver.as_ref().unwrap_or(path);
        let program = Program::new(path, sent, settings.keeps_program)
            .map_err(|why| CopyError::Program { path: sent.clone(), why })?;
        let program = Arc::new(program);
        let starts = Starts { shell, program: Arc::clone(&program), open, timeout: *timeout };
        let all: Vec<String> = names.iter().chain(&settings.served_by).cloned().collect();
        let mut started = start_all(&all, &starts, stopper, &mut |awaited, failed| {
            let awaited = awaited.iter().map(|&number| all[number].as_str()).collect();
            let (total, upload) = (sources.bytes, program.upload());
            tell(&Progress { total, failed, awaited, upload, ..Progress::default() });
        });
        let served = settings.served_by.as_ref().zip(started.pop_if(|_| settings.served_by.is_some()));
        let server = served.map(|(name, worker)| Server::new(name, worker));
        let hosts: Vec<Host> =
            names.iter().zip(started).map(|(name, worker)| Host::new(name, worker)).collect();
        // Where the name does not resolve here, the receiver has learned this host's address from
        // its shell.
        let towards = hosts.iter().find_map(|host| host.worker.as_ref().map(|worker| worker.address.ip()));
        let own = match (root, towards) {
            (Some(root), _) => root,
            (None, Some(towards)) => {
                local_address(towards).map_err(|why| CopyError::Address { host: names[0].clone(), why })?
            }
            (None, None) => Ipv4Addr::LOCALHOST.into(),
        };
        let (news_sender, news) = channel();
        Ok(Self {
            hosts,
            own,
            news,
            news_sender,
            stopper: stopper.clone(),
            since: Instant::now(),
            relief: Relief::default(),
            server,
            stream_bytes: 0,
            digest: StreamDigest::default(),
        })
    }

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

    /// Whether files go into the destination, or become it: the same on all hosts.
    fn settle_destination(&self, sources: &Sources, to: &Destination) -> Result<bool, CopyError> {
        let find = |is: &dyn Fn(Option<bool>) -> bool| {
            let has = |host: &&Host| host.worker.as_ref().is_some_and(|worker| is(worker.is_directory));
            self.hosts.iter().find(has).map(|host| host.name.clone())
        };
        let there = find(&|is| is == Some(true));
        let not_there = find(&|is| is != Some(true));
        let path = to.path.clone();
        let into = match (there, not_there) {
            (Some(_), _) if sources.is_input() => return Err(CopyError::InputName { path }),
            _ if to.is_directory && sources.is_input() => return Err(CopyError::InputName { path }),
            _ if to.is_directory || sources.named > 1 || sources.has_contents => true,
            (Some(there), Some(not_there)) => return Err(CopyError::Mixed { path, there, not_there }),
            (there, _) => there.is_some(),
        };
        match find(&|is| is == Some(false)) {
            Some(host) if into || sources.has_directory => Err(CopyError::NoDirectory { path, host }),
            _ => Ok(into),
        }
    }

    /// Makes the group of all receivers that have started.
    fn form_group(
        &mut self,
        sources: &Sources,
        settings: &CopySettings,
        into: bool,
    ) -> Result<(Node, Arc<Group>), CopyError> {
        let node = Node::open(&node_settings(self.own, settings.ports))?;
        let mut members = vec![node.address()];
        for host in &mut self.hosts {
            if let Some(worker) = &host.worker {
                host.member = members.len();
                members.push(worker.address);
            }
        }
        let (group, token) = draw_group()?;
        let worker = self.server.as_ref().and_then(Server::worker);
        let served = worker.map(|worker| {
            draw_group().map(|(GroupId(group), token)| ServedGroup { root: worker.address, group, token })
        });
        let served = served.transpose()?;
        for host in &mut self.hosts {
            let Some(worker) = &host.worker else { continue };
            let request = Request::Receive {
                members: members.clone(),
                member: host.member,
                group: group.0,
                token: token.clone(),
                tcp_congestion: settings.group.tcp_congestion.clone(),
                retention: settings.group.retention,
                into,
                served: served.clone(),
            };
            // Nothing else has been posted, so there is room.
            let _ = worker.post(&Worker::line(&request));
        }
        // The messages follow one another like parts of a single one, for which the tree is made.
        let message_bytes = if sources.is_input() { INPUT_BYTES_EXPECTED } else { sources.bytes.max(1) };
        let slots = settings.group.slots.or(Some(SLOTS));
        let of_members =
            GroupSettings { members, slots, token, group, message_bytes, ..settings.group.clone() };
        if let Some((server, served)) = self.server.as_mut().zip(served) {
            let (number, news) = (self.hosts.len(), self.news_sender.clone());
            let listener = Listener { number, member: 0, group: Weak::new(), news };
            server.begin(served.settings(of_members.clone()), into, settings.compression, listener);
        }
        let group = Arc::new(node.group(&of_members)?);
        for (number, host) in self.hosts.iter_mut().enumerate() {
            if let Some(responses) = host.worker.as_mut().and_then(Worker::take_responses) {
                let listener = Listener {
                    number,
                    member: host.member as u32,
                    group: Arc::downgrade(&group),
                    news: self.news_sender.clone(),
                };
                thread::spawn(move || listener.run(responses));
            }
        }
        Ok((node, group))
    }

    /// Reads and sends everything, and waits until every receiver has it or is lost.
    fn send(
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
        self.close(group, total, tell)?;
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
    fn announce(&mut self, digest: Hash) {
        self.digest.add(&digest);
        let line = Worker::line(&Request::Digest(digest));
        for host in self.hosts.iter_mut().filter(|host| host.takes_part()) {
            if let Some(Err(why)) = host.worker.as_ref().map(|worker| worker.post(&line)) {
                host.fail(why.into());
                host.close();
            }
        }
    }

    /// Waits until every receiver that is not lost has said what it lacks. Returns that for the
    /// number of each host.
    fn hear_lacking(&mut self, group: &Group, tell: &mut dyn FnMut(&Progress<'_>)) -> Vec<(usize, Ranges)> {
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

/// A new group's number and token. Copies at the same time may share nodes, and a node has each
/// number once.
fn draw_group() -> Result<(GroupId, String), NodeError> {
    let token =
        draw_token().map_err(|source| NodeError::System { what: "cannot draw a random number", source })?;
    let hash = blake3::hash(token.as_bytes());
    Ok((GroupId(u32::from_le_bytes(*hash.as_bytes().first_chunk().unwrap_or(&[1; 4]))), token))
}

/// This host's address towards another one, if its name resolves here.
fn address_towards(name: &str) -> Option<IpAddr> {
    let host = name.rsplit_once('@').map_or(name, |(_, host)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (host, 0).to_socket_addrs().ok()?.find_map(|address| local_address(address.ip()).ok())
}
