//! Finds the nodes of this host and reads their answers.

use std::fs;
use std::io::{self, Read as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::PREFIX;
use super::document::{FORMAT, NodeDocument};
use crate::daemon::socket_path;

/// The sockets of the network namespace of this thread.
const SOCKETS: &str = "/proc/thread-self/net/unix";

/// How long a node may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The longest answer.
const BYTES_MAX: u64 = 64 << 20;

/// The nodes of this host whose state this user may see, by user, process and address: its own nodes, its groups at the
/// daemon's, and as root all. Of hosts in labs and containers those of the same network namespace are found.
///
/// ```
/// use treecast_node::{Node, NodeSettings, status};
///
/// let node = Node::open(&NodeSettings { bind: "127.0.0.1:0".parse()?, ..NodeSettings::default() })?;
/// let found = status::nodes()?;
/// assert!(found.iter().any(|found| found.address == node.address()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If the list of sockets cannot be read. A node that does not answer in time is left out.
pub fn nodes() -> io::Result<Vec<NodeDocument>> {
    let table = fs::read_to_string(SOCKETS)?;
    let names = table.lines().filter_map(|line| line.split_once('@').map(|(_, name)| name));
    let mut names: Vec<&str> = names.filter(|name| name.starts_with(PREFIX)).collect();
    // A connection has the name of its listener.
    names.sort_unstable();
    names.dedup();
    let mut nodes: Vec<NodeDocument> =
        names.into_iter().filter_map(|name| read(name).ok().flatten()).collect();
    nodes.sort_by_key(|node| (node.user, node.process, node.address));
    Ok(nodes)
}

/// The user of this host's daemon, whom the file of its socket belongs to.
fn daemon_user() -> Option<u32> {
    fs::metadata(socket_path(None)).ok().map(|file| file.uid())
}

/// The answer of the node with this name; `None` if it is not to be believed, or has none for this user.
fn read(name: &str) -> io::Result<Option<NodeDocument>> {
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    let owner = socket_peercred(&stream)?.uid;
    let own = geteuid();
    let named = name[PREFIX.len()..].split('.').next().and_then(|user| user.parse::<u32>().ok());
    let is_believed =
        owner.is_root() || owner == own || own.is_root() || Some(owner.as_raw()) == daemon_user();
    if !is_believed || named != Some(owner.as_raw()) {
        return Ok(None);
    }
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = Vec::new();
    (&mut stream).take(BYTES_MAX).read_to_end(&mut answer)?;
    let document: Option<NodeDocument> = serde_json::from_slice(&answer).ok();
    Ok(document.filter(|document| document.format == FORMAT))
}
