//! Finds the nodes of this host and reads their answers.

use std::fs;
use std::io::{self, Read as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::PREFIX;
use super::document::{FORMAT, NodeDocument};
use crate::settings::socket::socket_path;

/// The sockets of the network namespace of this thread.
const SOCKETS: &str = "/proc/thread-self/net/unix";

/// How long all nodes together may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The least time that a node is waited for: after the others have taken theirs.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);

/// The longest answer.
const BYTES_MAX: u64 = 64 << 20;

/// The nodes of this host whose state this user may see.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// By user, process and address.
    pub nodes: Vec<NodeDocument>,
    /// The processes that have a node and did not answer in time: a stopped one does not.
    pub silent: Vec<i32>,
}

/// Finds the nodes of this host whose state this user may see: its own nodes, its groups at the
/// daemon's, and as root all. Of hosts in labs and containers those of the same network namespace
/// are found. It takes about two seconds at most.
///
/// ```
/// use treecast_node::{Node, NodeSettings, status};
///
/// let node = Node::open(&NodeSettings { bind: "127.0.0.1:0".parse()?, ..NodeSettings::default() })?;
/// let found = status::find()?;
/// assert!(found.nodes.iter().any(|found| found.address == node.address()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If the list of sockets cannot be read.
pub fn find() -> io::Result<Found> {
    let table = fs::read_to_string(SOCKETS)?;
    let names = table.lines().filter_map(|line| line.split_once('@').map(|(_, name)| name));
    let mut names: Vec<&str> = names.filter(|name| name.starts_with(PREFIX)).collect();
    // A connection has the name of its listener.
    names.sort_unstable();
    names.dedup();
    // All answer at the same time.
    let asked: Vec<(UnixStream, i32)> =
        names.into_iter().filter_map(|name| ask(name).ok().flatten()).collect();
    let deadline = Instant::now() + TIMEOUT;
    let mut found = Found { nodes: Vec::new(), silent: Vec::new() };
    for (stream, process) in asked {
        match read(stream, deadline) {
            Ok(document) => found.nodes.extend(document),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => found.silent.push(process),
            // It has ended meanwhile.
            Err(_) => {}
        }
    }
    found.nodes.sort_by_key(|node| (node.user, node.process, node.address));
    Ok(found)
}

/// The user of this host's daemon, whom the file of its socket belongs to.
fn daemon_user() -> Option<u32> {
    fs::metadata(socket_path(None)).ok().map(|file| file.uid())
}

/// Asks the node with this name; its process. `None` if it is not to be believed.
fn ask(name: &str) -> io::Result<Option<(UnixStream, i32)>> {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    let owner = socket_peercred(&stream)?;
    let (user, process) = (owner.uid, owner.pid.as_raw_pid());
    let own = geteuid();
    let named = name[PREFIX.len()..].split('.').next().and_then(|user| user.parse::<u32>().ok());
    let is_believed = user.is_root() || user == own || own.is_root() || Some(user.as_raw()) == daemon_user();
    Ok((is_believed && named == Some(user.as_raw())).then_some((stream, process)))
}

/// The answer; `None` if there is none for this user.
fn read(mut stream: UnixStream, deadline: Instant) -> io::Result<Option<NodeDocument>> {
    let left = deadline.saturating_duration_since(Instant::now());
    stream.set_read_timeout(Some(left.max(TIMEOUT_MIN)))?;
    let mut answer = Vec::new();
    (&mut stream).take(BYTES_MAX).read_to_end(&mut answer)?;
    let document: Option<NodeDocument> = serde_json::from_slice(&answer).ok();
    Ok(document.filter(|document| document.format == FORMAT))
}
