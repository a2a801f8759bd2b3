//! A receiver: it takes part in the group, and writes what comes.

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use treecast_node::{Group, GroupId, GroupSettings, Node, NodeError, NodeSettings};

use crate::control::{HELLO, Request, Response, Writing};
use crate::sources::described;
use crate::stopper::Stopper;
use crate::writer::{WriteError, Writer};

/// How often a receiver says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// The most bytes of a message: of an entry with all its extended attributes.
const RECEIVED_BYTES_MAX: u64 = 64 << 20;

/// Messages that wait to be written.
const QUEUED_MESSAGES: usize = 8;

/// Speaks with the host that copies, by lines of JSON: requests come from `input`, responses go to `output`. Receives what that host sends,
/// and writes it. Ends, and removes what is not complete, when `input` ends. Returns whether it is complete.
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
    Ok(matches!(response, Response::Done { failure_count: 0, .. }))
}

/// The last response, or why there is none.
fn take_part(
    mut input: impl BufRead + Send + 'static,
    respond: &(impl Fn(&Response) -> io::Result<()> + Clone + Send + 'static),
    stopper: &Stopper,
) -> Result<Response, String> {
    let (destination, writing, node) = match request(&mut input)? {
        Request::Open { root, destination, writing } => {
            let destination =
                if destination.as_os_str().is_empty() { PathBuf::from(".") } else { destination };
            let bind = SocketAddr::new(address_towards(root)?, 0);
            let node = Node::open(&NodeSettings { bind, ..NodeSettings::default() }).map_err(text)?;
            let is_directory = look_at(&destination)?;
            let opened = Response::Opened { address: node.address(), is_directory };
            respond(&opened).map_err(|error| described(&error))?;
            (destination, writing, node)
        }
        Request::Receive { .. } => return Err("a request before the first one".into()),
    };
    let Request::Receive { members, member, group, token, into } = request(&mut input)? else {
        return Err("the first request twice".into());
    };
    if into {
        std::fs::create_dir_all(&destination)
            .map_err(|error| format!("{}: {}", destination.display(), described(&error)))?;
    }
    let settings =
        GroupSettings { group: GroupId(group), token, member: Some(member), ..GroupSettings::new(members) };
    let group = Arc::new(node.group(&settings).map_err(text)?);
    stopper.watch(&group);
    end_with_input(input, Arc::clone(&group));
    write_all(&group, destination, into, writing, respond)
}

/// Ends the group when the host that copies is gone.
fn end_with_input(mut input: impl BufRead + Send + 'static, group: Arc<Group>) {
    thread::spawn(move || {
        let _ = io::copy(&mut input, &mut io::sink());
        group.abort();
    });
}

fn write_all(
    group: &Group,
    destination: PathBuf,
    into: bool,
    writing: Writing,
    respond: &(impl Fn(&Response) -> io::Result<()> + Clone + Send + 'static),
) -> Result<Response, String> {
    let written_bytes = Arc::new(AtomicU64::new(0));
    let is_done = Arc::new(AtomicBool::new(false));
    let answer = respond.clone();
    let (respond, bytes, until) = (respond.clone(), Arc::clone(&written_bytes), Arc::clone(&is_done));
    thread::spawn(move || {
        while !until.load(Ordering::Acquire) {
            if respond(&Response::Progress { bytes: bytes.load(Ordering::Relaxed) }).is_err() {
                return;
            }
            thread::sleep(PROGRESS_INTERVAL);
        }
    });
    let (messages, queue) = sync_channel::<Vec<u8>>(QUEUED_MESSAGES);
    let writer = thread::spawn(move || {
        let mut writer = Writer::new(destination, into, writing)?;
        for message in queue {
            writer.take(&message)?;
            if let Some(ranges) = writer.lacking.take() {
                // A write error means that the coordinator is gone: its end of the input aborts the group.
                let _ = answer(&Response::Lacking { ranges });
            }
            written_bytes.store(writer.bytes, Ordering::Relaxed);
        }
        Ok::<_, WriteError>(writer)
    });
    let received = pass_on(group, &messages);
    drop(messages);
    let written = writer.join().unwrap_or(Err(WriteError::Stream("the writer has panicked, which is a bug")));
    is_done.store(true, Ordering::Release);
    let mut writer = written.map_err(text)?;
    received.map_err(text)?;
    if !writer.finish() {
        return Err("the group was closed before all had come".into());
    }
    let Writer { files, kept, failures, failure_count, .. } = writer;
    Ok(Response::Done { files, kept, failures, failure_count })
}

/// Passes messages to the writer, until the group is closed. Leaves it if the writer has ended.
fn pass_on(group: &Group, messages: &SyncSender<Vec<u8>>) -> Result<(), NodeError> {
    loop {
        let mut message = Vec::new();
        let append = |length, part: &[u8]| {
            if message.capacity() == 0 {
                message.reserve_exact(length as usize);
            }
            message.extend_from_slice(part);
        };
        if group.receive_with(None, RECEIVED_BYTES_MAX, append)?.is_none() {
            return Ok(());
        }
        if messages.send(message).is_err() {
            group.abort();
            return Ok(());
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn request(input: &mut impl BufRead) -> Result<Request, String> {
    let mut line = String::new();
    match input.read_line(&mut line) {
        Ok(0) => Err("the host that copies is gone".into()),
        Ok(_) => serde_json::from_str(&line).map_err(|error| format!("no request: {error}")),
        Err(error) => Err(described(&error)),
    }
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
    let root = root.or_else(client).ok_or("no address of the host that copies is known here")?;
    local_address(root).map_err(|error| format!("no way to {root}: {}", described(&error)))
}

/// The address of this host that packets to another one have.
pub(crate) fn local_address(to: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Chooses the route; sends nothing. Any port will do.
    socket.connect((to, 9))?;
    Ok(socket.local_addr()?.ip())
}
