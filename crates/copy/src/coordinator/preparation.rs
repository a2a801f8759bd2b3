//! What happens before anything is sent: receivers are started, the destination is settled, and the
//! group is formed.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use treecast_node::{CongestionControl, Group, GroupId, GroupSettings, Node, NodeError, draw_token};

use super::Copy;
use super::relief::Relief;
use super::server::Server;
use crate::control::{Request, ServedGroup, node_settings};
use crate::host::{Host, Listener};
use crate::program::Program;
use crate::receiver::local_address;
use crate::start::{Starts, start_all};
use crate::stopper::Stopper;
use crate::stream::StreamDigest;
use crate::worker::Worker;
use crate::{CopyError, CopySettings, Destination, Progress, Sources};

/// In datagrams, a window of 0.4 MB, which keeps a link of some Gb/s busy, and does not outgrow the
/// queues of switches before slow ones: measured with 256, 512 and 1,024 slots over links of 200
/// Mb/s and over those of a lab without limits. On streams, 4 MB, which keep all links of a chain
/// of hosts busy; there TCP controls what is in the queues.
const SLOTS: u32 = 256;

/// The length for which the tree is made where it is not known before: that of a long message.
const INPUT_BYTES_EXPECTED: u64 = 64 << 20;

impl Copy {
    /// Starts all receivers.
    pub(super) fn start(
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

    /// Whether files go into the destination, or become it: the same on all hosts.
    pub(super) fn settle_destination(&self, sources: &Sources, to: &Destination) -> Result<bool, CopyError> {
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
    pub(super) fn form_group(
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
