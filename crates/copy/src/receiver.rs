//! A receiver: it takes part in the group, and writes what comes.

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use treecast_node::{Ending, Eviction, Group, GroupId, GroupSettings, Node, NodeError};

use crate::control::{HELLO, Request, Response, Writing, node_settings, request};
use crate::destination::path_here;
use crate::disk::{DiskWatch, WriterState};
use crate::server::Service;
use crate::sources::described;
use crate::stopper::Stopper;
use crate::stream::{Hash, MESSAGE_BYTES_MAX, StreamDigest};
use crate::waits::{LOOK_INTERVAL, Waits};
use crate::writer::{WriteError, Writer};

/// How often a receiver says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// How often a receiver that waits for a digest looks whether it was stopped.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// The most bytes of a message: of an entry with all its extended attributes.
const RECEIVED_BYTES_MAX: u64 = 64 << 20;

/// Messages that wait to be written.
const QUEUED_MESSAGES: usize = 8;

/// Speaks with the host that copies, by lines of JSON: requests come from `input`, responses go to
/// `output`. Receives what that host sends, and writes it. Ends, and removes what is not complete,
/// when `input` ends. Returns whether it is complete.
///
/// # Errors
/// Those of `input` and `output`. Others are told to the host that copies.
pub fn receive(
    input: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
    stopper: &Stopper,
) -> io::Result<bool> {
    let output = Arc::new(Mutex::new(output));
    let respond = move |response: &Response| {
        let line = serde_json::to_string(response)? + "\n";
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        output.write_all(line.as_bytes())?;
        output.flush()
    };
    respond(&Response::Hello(HELLO.into()))?;
    let done = take_part(input, &respond, stopper);
    let failed = |why| Response::Failed { why };
    let response = done.unwrap_or_else(failed);
    respond(&response)?;
    Ok(matches!(response, Response::Done { failure_count: 0, .. } | Response::Closed))
}

/// The last response, or why there is none.
fn take_part(
    mut input: impl BufRead + Send + 'static,
    respond: &(impl Fn(&Response) -> io::Result<()> + Clone + Send + 'static),
    stopper: &Stopper,
) -> Result<Response, String> {
    let (destination, writing, node) = match request(&mut input)? {
        Request::Open { root, ports, destination, writing } => {
            let destination = path_here(&destination)?;
            let node = Node::open(&node_settings(address_towards(root)?, ports)).map_err(text)?;
            let is_directory = look_at(&destination)?;
            let opened = Response::Opened { address: node.address(), is_directory };
            respond(&opened).map_err(|error| described(&error))?;
            (destination, writing, node)
        }
        _ => return Err("a request before the first one".into()),
    };
    let (members, member, group, token, tcp_congestion, retention, into, served) = match request(&mut input)?
    {
        Request::Receive { members, member, group, token, tcp_congestion, retention, into, served } => {
            (members, member, group, token, tcp_congestion, retention, into, served)
        }
        Request::Serve { members, settings, into, compression } => {
            let service = Service { members, settings, destination, into, compression };
            return service.run(&node, input, respond, stopper);
        }
        _ => return Err("another request than the second one".into()),
    };
    if into && !writing.is_dry {
        std::fs::create_dir_all(&destination)
            .map_err(|error| format!("{}: {}", destination.display(), described(&error)))?;
    }
    let (group, member) = (GroupId(group), Some(member));
    let settings =
        GroupSettings { group, token, member, tcp_congestion, retention, ..GroupSettings::new(members) };
    let join = |settings: &GroupSettings| {
        let group = Arc::new(node.group(settings).map_err(text)?);
        stopper.watch(&group);
        Ok::<_, String>(group)
    };
    let group = join(&settings)?;
    let served = served.map(|served| join(&served.settings(settings))).transpose()?;
    let groups = Groups { group, served };
    let authentic = Authentic { digests: read_digests(input, groups.clone()), stopper: stopper.clone() };
    write_all(&groups, &authentic, destination, into, writing, respond)
}

/// The groups from which messages come.
#[derive(Clone)]
struct Groups {
    /// That of the host that copies.
    group: Arc<Group>,
    /// That of a host that serves.
    served: Option<Arc<Group>>,
}

impl Groups {
    /// Receives the next message into `message`, which is empty. Returns whether there is one, and
    /// not the end of all.
    fn receive(&self, message: &mut Vec<u8>) -> Result<bool, String> {
        let is_there = receive_message(&self.group, message).map_err(|error| group_text(&error))?;
        let Some(served) = &self.served else { return Ok(is_there) };
        if !is_there {
            // Stays in that group until its root closes it: this host may forward to others. All
            // messages are here, so an error changes nothing.
            let _ = receive_message(served, message);
            return Ok(false);
        }
        if message.is_empty() {
            match receive_message(served, message) {
                Ok(true) => {}
                Ok(false) => return Err("the host that serves has closed its group too early".into()),
                Err(error) => return Err(format!("the host that serves: {error}")),
            }
        }
        Ok(true)
    }

    fn abort(&self) {
        self.group.abort();
        self.served.iter().for_each(|served| served.abort());
    }
}

/// Receives the next message of a group, unless it is closed.
fn receive_message(group: &Group, message: &mut Vec<u8>) -> Result<bool, NodeError> {
    let append = |length, part: &[u8]| {
        message.reserve_exact((length as usize).saturating_sub(message.len()));
        message.extend_from_slice(part);
    };
    Ok(group.receive_with(None, RECEIVED_BYTES_MAX, append)?.is_some())
}

/// Reads the digests of messages in a thread. Ends the groups when the host that copies is gone.
fn read_digests(mut input: impl BufRead + Send + 'static, groups: Groups) -> mpsc::Receiver<Hash> {
    // The slots bound the queue: the sender writes a digest directly before it sends the message.
    let (digests, queue) = channel();
    thread::spawn(move || {
        while let Ok(Request::Digest(digest)) = request(&mut input) {
            // A receiver that has failed is not interested; its input has to be read to its end.
            let _ = digests.send(digest);
        }
        groups.abort();
    });
    queue
}

/// Tells whether messages are those that the host that copies has sent. They pass through other
/// hosts, which have the token of the group.
struct Authentic {
    digests: mpsc::Receiver<Hash>,
    stopper: Stopper,
}

impl Authentic {
    /// Waits for the digest of the next message on the pipe, and compares the message with it.
    ///
    /// # Errors
    /// The digests differ, or the pipe has ended.
    fn check(&self, message: &[u8]) -> Result<Hash, String> {
        let digest = loop {
            match self.digests.recv_timeout(STOP_INTERVAL) {
                Ok(digest) => break digest,
                Err(RecvTimeoutError::Timeout) if !self.stopper.is_stopped() => {}
                Err(_) => return Err("the copy was stopped".into()),
            }
        };
        if blake3::hash(message) == digest {
            Ok(digest)
        } else {
            Err("a message is not what was sent: a host that forwards it has changed it".into())
        }
    }
}

fn write_all(
    groups: &Groups,
    authentic: &Authentic,
    destination: PathBuf,
    into: bool,
    writing: Writing,
    respond: &(impl Fn(&Response) -> io::Result<()> + Clone + Send + 'static),
) -> Result<Response, String> {
    let written_bytes = Arc::new(AtomicU64::new(0));
    let is_done = Arc::new(AtomicBool::new(false));
    let answer = respond.clone();
    let (respond, bytes, until) = (respond.clone(), Arc::clone(&written_bytes), Arc::clone(&is_done));
    let watched = Arc::downgrade(&groups.group);
    let state = Arc::new(WriterState::default());
    let of_writer = Arc::clone(&state);
    thread::spawn(move || {
        let mut disk = DiskWatch::default();
        while !until.load(Ordering::Acquire) {
            let mut waits = Waits::default();
            let since = Instant::now();
            while since.elapsed() < PROGRESS_INTERVAL {
                let Some(group) = watched.upgrade() else { return };
                waits.look(&group);
                waits.for_disk += u32::from(disk.waits_for_disk(&of_writer));
                drop(group);
                thread::sleep(LOOK_INTERVAL);
            }
            let progress = Response::Progress { bytes: bytes.load(Ordering::Relaxed), waits };
            if respond(&progress).is_err() {
                return;
            }
        }
    });
    let (messages, queue) = sync_channel::<Vec<u8>>(QUEUED_MESSAGES);
    let (used, buffers) = channel();
    let writer = thread::spawn(move || {
        state.begin();
        let mut writer = Writer::new(destination, into, writing)?;
        for message in queue {
            state.during(|| writer.take(&message))?;
            if let Some(ranges) = writer.lacking.take() {
                // A write error means that the coordinator is gone: its end of the input aborts the
                // group.
                let _ = answer(&Response::Lacking { ranges });
            }
            written_bytes.store(writer.bytes, Ordering::Relaxed);
            if message.capacity() <= MESSAGE_BYTES_MAX {
                let _ = used.send(message);
            }
        }
        Ok::<_, WriteError>(writer)
    });
    let received = pass_on(groups, authentic, &messages, &buffers);
    drop(messages);
    let written = writer.join().unwrap_or(Err(WriteError::Stream("the writer has panicked, which is a bug")));
    is_done.store(true, Ordering::Release);
    let mut writer = written.map_err(text)?;
    let stream = received?.finish();
    if !writer.finish() {
        return Err("the group was closed before all had come".into());
    }
    let Writer { files, kept, deleted, deletions, failures, failure_count, .. } = writer;
    Ok(Response::Done { files, kept, deleted, deletions, failures, failure_count, stream })
}

/// Passes authentic messages to the writer, until the group is closed, and returns their digest.
/// Leaves the group at the first message that is not authentic, or if the writer has ended.
/// `buffers` are messages that are written.
fn pass_on(
    groups: &Groups,
    authentic: &Authentic,
    messages: &SyncSender<Vec<u8>>,
    buffers: &mpsc::Receiver<Vec<u8>>,
) -> Result<StreamDigest, String> {
    let mut stream = StreamDigest::default();
    loop {
        // New memory for each message would be cleared by the system first.
        let mut message: Vec<u8> = buffers.try_recv().unwrap_or_default();
        message.clear();
        if !groups.receive(&mut message)? {
            return Ok(stream);
        }
        let digest = authentic.check(&message).inspect_err(|_| groups.abort())?;
        stream.add(&digest);
        if messages.send(message).is_err() {
            groups.abort();
            return Ok(stream);
        }
    }
}

/// Why a group has failed here, and what helps.
fn group_text(error: &NodeError) -> String {
    match error {
        NodeError::Ended(Ending::RootSilent(time)) => format!(
            "no UDP came from the host that copies for {time}: a firewall may be in between (--ports says which ports it is to let pass), or another network (--bind)"
        ),
        NodeError::Ended(Ending::Evicted(Eviction::AcceptsNothing)) => {
            format!("it answered, but no data was received: {NO_TCP}")
        }
        error => error.to_string(),
    }
}

/// Why data on streams may not arrive although datagrams do, and what helps.
pub(crate) const NO_TCP: &str = "a firewall may let no TCP pass between the hosts (--ports says which ports it is to let pass); --set transport=packets needs UDP alone";

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Whether the destination is a directory; none if it does not exist.
fn look_at(destination: &Path) -> Result<Option<bool>, String> {
    match destination.metadata() {
        Ok(there) if !there.is_dir() && !there.is_file() => {
            Err(format!("{}: is a device, a pipe or a socket, which is not replaced", destination.display()))
        }
        Ok(there) => Ok(Some(there.is_dir())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {}", destination.display(), described(&error))),
    }
}

/// The variable in which ssh gives the addresses of its client and of this host.
const SSH_CONNECTION: &str = "SSH_CONNECTION";

/// This host's address towards the host that copies.
fn address_towards(root: Option<IpAddr>) -> Result<IpAddr, String> {
    let client = || std::env::var(SSH_CONNECTION).ok()?.split(' ').next()?.parse().ok();
    let root = root
        .or_else(client)
        .ok_or("no address of the host that copies is known here: give one with --bind")?;
    local_address(root).map_err(|error| {
        format!(
            "no route from there to {root}, the host that copies: {}; --bind gives another address",
            described(&error)
        )
    })
}

/// The address of this host that packets to another one have.
pub(crate) fn local_address(to: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Chooses the route; sends nothing. Any port will do.
    socket.connect((to, 9))?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixStream;

    use treecast_node::{CongestionControl, Retention, draw_token};

    use super::*;
    use crate::stream::{Record, append};
    use crate::{Entry, Kind};

    fn entry(path: &str, kind: Kind) -> Record<'static> {
        let (mode, owner, modified) = (0o644, (0, 0), (0, 0));
        Record::Entry(Entry { path: path.into(), kind, mode, owner, modified, attributes: Vec::new() })
    }

    /// A message with one file in it.
    fn message(path: &str, before: &[Record<'_>]) -> Vec<u8> {
        let number = before.len() as u32;
        let mut message = Vec::new();
        for record in before {
            append(&mut message, record);
        }
        append(&mut message, &entry(path, Kind::File { length: 3, is_sparse: false }));
        append(&mut message, &Record::Data { entry: number, offset: 0, bytes: b"abc" });
        append(&mut message, &Record::End { entry: number, length: 3, hash: None });
        append(&mut message, &Record::Complete { entries: number + 1 });
        message
    }

    /// Starts a receiver whose pipe says that `announced` is sent, and whose group brings `sent`.
    /// Returns its last response.
    fn received(destination: &Path, announced: &[Vec<u8>], sent: &[u8]) -> Response {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let input = BufReader::new(theirs.try_clone().unwrap());
        let receiver = thread::spawn(move || receive(input, theirs, &Stopper::default()));
        let mut responses = BufReader::new(ours.try_clone().unwrap()).lines();
        let mut next = || -> Response { serde_json::from_str(&responses.next().unwrap().unwrap()).unwrap() };
        let send = |request: &Request| {
            (&ours).write_all((serde_json::to_string(request).unwrap() + "\n").as_bytes()).unwrap();
        };
        let root = Ipv4Addr::LOCALHOST.into();
        let (destination, writing) = (destination.to_path_buf(), Writing::default());
        send(&Request::Open { root: Some(root), ports: None, destination, writing });
        assert!(matches!(next(), Response::Hello(_)));
        let Response::Opened { address, .. } = next() else { panic!("it has opened its node") };
        let node = Node::open(&node_settings(root, None)).unwrap();
        let (members, token) = (vec![node.address(), address], draw_token().unwrap());
        send(&Request::Receive {
            members: members.clone(),
            member: 1,
            group: 1,
            token: token.clone(),
            tcp_congestion: CongestionControl::new("reno"),
            retention: Retention::All,
            into: true,
            served: None,
        });
        for message in announced {
            send(&Request::Digest(blake3::hash(message).into()));
        }
        let group = node.group(&GroupSettings { token, ..GroupSettings::new(members) }).unwrap();
        group.send(sent).unwrap();
        let last = |next: &mut dyn FnMut() -> Response| loop {
            match next() {
                Response::Progress { .. } => {}
                last => return last,
            }
        };
        let response = if announced.is_empty() {
            // It waits for the digest, and writes nothing, until the host that copies is gone. The
            // group is closed after that.
            let _ = group.flush(Some(Duration::from_secs(10)));
            ours.shutdown(std::net::Shutdown::Write).unwrap();
            let response = last(&mut next);
            let _ = group.close(Some(Duration::from_secs(10)));
            response
        } else {
            let _ = group.close(Some(Duration::from_secs(10)));
            last(&mut next)
        };
        let _ = receiver.join().unwrap();
        response
    }

    #[test]
    fn what_the_sender_has_announced_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let sent = message("file", &[]);
        let Response::Done { files: 1, stream, .. } =
            received(directory.path(), std::slice::from_ref(&sent), &sent)
        else {
            panic!("it is complete")
        };
        let mut expected = StreamDigest::default();
        expected.add(blake3::hash(&sent).as_bytes());
        assert_eq!(stream, expected.finish());
        assert_eq!(std::fs::read(directory.path().join("file")).unwrap(), b"abc");
    }

    /// A relay has the token of the group, so that its messages are authentic for the group.
    #[test]
    fn what_a_relay_has_made_up_is_not_written() {
        let (directory, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(outside.path(), directory.path().join("there")).unwrap();
        let link = || [entry("link", Kind::Link(outside.path().into()))];
        let forged = [message("other", &[]), message("link/file", &link()), message("there/file", &[])];
        for forged in forged {
            for announced in [vec![message("file", &[])], Vec::new()] {
                let response = received(directory.path(), &announced, &forged);
                let Response::Failed { why } = response else { panic!("{response:?}") };
                let expected = if announced.is_empty() { "stopped" } else { "is not what was sent" };
                assert!(why.contains(expected), "{why}");
                let names = |path: &Path| std::fs::read_dir(path).unwrap().count();
                assert_eq!((names(directory.path()), names(outside.path())), (1, 0));
            }
        }
    }
}
