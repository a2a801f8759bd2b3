//! Sending and receiving as a member of a group, and the reports about it.

use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use treecast_node::{AbortReason, Ending, Group, GroupCounters, Lost, NodeError};
use treecast_terms::Offload;

use super::INCOMPLETE;
use crate::output::{NotWritten, OutFile, is_standard_output, print_message, print_note};

/// The maximum size of a message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// The data to send.
pub struct Input {
    name: String,
    /// In bytes; `None` for a pipe or a device.
    pub length: Option<u64>,
    bytes: Box<dyn Read + Send>,
}

impl Input {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { name: "standard input".into(), length: None, bytes: Box::new(io::stdin()) });
        }
        let name = path.display().to_string();
        let not_read = || format!("{name} could not be read");
        let file = File::open(path).with_context(not_read)?;
        // It can be opened, and the first read would fail when all members have joined.
        if file.metadata().is_ok_and(|found| found.is_dir()) {
            return Err(io::Error::from(io::ErrorKind::IsADirectory)).with_context(not_read);
        }
        let length = file.metadata().ok().filter(Metadata::is_file).map(|found| found.len());
        Ok(Self { name, length, bytes: Box::new(file) })
    }

    /// Passes the data on, piece by piece, until its end or until the receiver is dropped.
    fn feed(mut self, commands: &SyncSender<Command>) {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        loop {
            let next = match self.bytes.read(&mut buffer) {
                Ok(0) => Command::End,
                Ok(length) => Command::Piece(buffer[..length].to_vec()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Command::Failed(anyhow!("{} could not be read: {error}", self.name)),
            };
            let is_last = !matches!(next, Command::Piece(_));
            if commands.send(next).is_err() || is_last {
                return;
            }
        }
    }
}

/// How long a loss may stay unreported while the root has nothing to send.
const LOSS_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A command to the sending thread of the root.
pub enum Command {
    Piece(Vec<u8>),
    End,
    Failed(anyhow::Error),
    Stop,
}

/// Sends as the root: all data, or until no member is left. Then closes the group.
pub fn send(
    group: &Group,
    input: Input,
    commands: SyncSender<Command>,
    queue: &Receiver<Command>,
) -> anyhow::Result<u8> {
    let lost = group.wait_until_ready(None)?;
    report_ready(group);
    report_lost(&lost);
    let mut reported_count = lost.len();
    std::thread::spawn(move || input.feed(&commands));
    report_offload(group);
    let mut messages = 0_u64;
    let mut bytes = 0;
    loop {
        match queue.recv_timeout(LOSS_CHECK_INTERVAL) {
            Ok(Command::Piece(piece)) => {
                group.send(&piece)?;
                messages += 1;
                bytes += piece.len() as u64;
            }
            Ok(Command::End) => break,
            Ok(Command::Failed(error)) => {
                group.abort_because(AbortReason::InputFailed);
                return Err(error);
            }
            Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => {
                return Err(NodeError::Ended(Ending::Aborted).into());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let lost = group.losses();
        report_lost(&lost[reported_count..]);
        reported_count = lost.len();
        if !lost.is_empty() && lost.len() + 1 == group.settings().members.len() {
            print_message("no member is left: the rest is not sent");
            break;
        }
    }
    let lost = group.close(None)?;
    report_lost(&lost[reported_count..]);
    print_note(&format!("sent {messages} messages, {bytes} bytes"));
    Ok(if lost.is_empty() { 0 } else { INCOMPLETE })
}

/// Receives as any other member, until the root closes the group.
pub fn receive(group: &Group, out: &mut Out) -> anyhow::Result<u8> {
    group.wait_until_ready(None)?;
    report_ready(group);
    let mut messages = 0_u64;
    let mut bytes = 0;
    loop {
        let mut written = Ok(());
        let took = |_, part: &[u8]| {
            if written.is_ok() {
                written = out.write_all(part);
            }
        };
        let Some(length) = group.receive_with(None, u64::MAX, took)? else { break };
        if let Err(error) = written.and_then(|()| out.flush()) {
            group.abort();
            return Err(anyhow::Error::new(error).context(NotWritten(out.path())));
        }
        messages += 1;
        bytes += length;
    }
    print_note(&format!("received {messages} messages, {bytes} bytes; the group is closed"));
    Ok(0)
}

fn report_ready(group: &Group) {
    let settings = group.settings();
    let member = group.member().unwrap_or_default();
    let root = settings.root;
    let role = match settings.members.get(root) {
        Some(address) if member as usize != root => format!("the root is member {root} at {address}"),
        _ => match group.scheme() {
            Some(scheme) => format!("the root; scheme {scheme}"),
            None => "the root".into(),
        },
    };
    let mtu = settings.mtu_bytes.filter(|_| group.is_root()).map(|bytes| format!("; MTU {bytes} bytes"));
    let transport = settings.transport.filter(|_| group.is_root());
    let transport = transport.map(|transport| format!("; transport {transport}"));
    let role = role + &mtu.unwrap_or_default() + &transport.unwrap_or_default();
    print_note(&format!("ready: member {member} of {}; {role}", settings.members.len()));
}

/// How long the root waits until it knows whom multicast reaches: the time of several of the first
/// heartbeats.
const REACH_TIMEOUT: Duration = Duration::from_millis(100);
const REACH_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Reports how data is sent, where that is more than the settings state.
fn report_offload(group: &Group) {
    let until = Instant::now() + REACH_TIMEOUT;
    while let Some(status) = group.offload_status() {
        let is_by_switch = status.offload == Offload::Switch;
        if !is_by_switch || status.reached == status.children || Instant::now() >= until {
            if is_by_switch || status.reason.is_some() {
                print_note(&status.to_string());
            }
            return;
        }
        std::thread::sleep(REACH_CHECK_INTERVAL);
    }
}

fn report_lost(all: &[Lost]) {
    for lost in all {
        print_message(&lost.to_string());
    }
}

/// Prints the counters of a group and its node, as far as the node has them.
pub fn report_counters(counters: Option<GroupCounters>, strays: Option<u64>) {
    if let Some(GroupCounters { accepted, sent, retransmitted, .. }) = counters {
        print_note(&format!("packets: {accepted} received, {sent} sent, {retransmitted} retransmitted"));
    }
    if let Some(strays @ 1..) = strays {
        print_note(&format!("{strays} datagrams belonged to no group"));
    }
}

/// The destination of received messages.
pub enum Out {
    Discard,
    Standard,
    File(PathBuf, OutFile),
}

impl Out {
    pub fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        Ok(match path {
            None => Self::Discard,
            Some(path) if is_standard_output(path) => Self::Standard,
            Some(path) => Self::File(path.into(), OutFile::create(path)?),
        })
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::Discard | Self::Standard => "standard output".into(),
            Self::File(path, _) => path.clone(),
        }
    }

    /// Moves the complete file to its path.
    pub fn keep(self) -> anyhow::Result<()> {
        match self {
            Self::File(path, file) => file.keep().with_context(|| NotWritten(path)),
            Self::Discard | Self::Standard => Ok(()),
        }
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Discard => Ok(bytes.len()),
            Self::Standard => io::stdout().write(bytes),
            Self::File(_, file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Discard | Self::File(..) => Ok(()),
            Self::Standard => io::stdout().flush(),
        }
    }
}
