//! Finds the daemon of this host.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use treecast_engine::backend::Backend;
use treecast_engine::settings::NodeSettings;
use treecast_engine::settings::socket::socket_path;

use super::{ANSWER_TIMEOUT, Client};
use crate::listening::SocketName;

/// The id of this process, if one of its nodes uses the daemon without naming the socket; 0: none.
/// A daemon's node is one member of a group, and a process that opens two nodes means two members.
/// A forked child has another id.
static CLIENT_PROCESS: AtomicU32 = AtomicU32::new(0);

/// The daemon of this host, if it runs, accepts this process, and listens where the node is to
/// listen.
///
/// # Errors
/// The reason why it is not used.
pub fn find_daemon(settings: &NodeSettings) -> Result<Arc<Client>, String> {
    let path = socket_path(settings.socket.clone());
    let client = Client::connect(&SocketName::Path(path.clone()), settings.spin, ANSWER_TIMEOUT)
        .map_err(|error| error.to_string())?;
    if listens_at(client.address(), settings.bind) {
        return Ok(Arc::new(client));
    }
    let path = path.display();
    Err(format!("{path}: the daemon listens at {}, and not at {}", client.address(), settings.bind))
}

/// As [`find_daemon`], unless another node of this process uses the daemon. A daemon whose socket
/// is named may have several nodes.
///
/// # Errors
/// The reason why it is not used.
pub fn find_unused_daemon(settings: &NodeSettings) -> Result<Arc<Client>, String> {
    if settings.socket.is_some() {
        return find_daemon(settings);
    }
    let own = std::process::id();
    if CLIENT_PROCESS.swap(own, Ordering::SeqCst) == own {
        return Err("another node of this process uses the daemon".into());
    }
    let found = find_daemon(settings);
    if found.is_err() {
        CLIENT_PROCESS.store(0, Ordering::SeqCst);
    }
    found
}

/// The process's node that used the daemon is closed.
pub(super) fn release_process() {
    let own = std::process::id();
    let _ = CLIENT_PROCESS.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst);
}

/// Whether a daemon that listens at `address` can serve a node that is to listen at `bind`.
fn listens_at(address: SocketAddr, bind: SocketAddr) -> bool {
    let is_same_family = bind.is_ipv4() == address.is_ipv4();
    let is_ip = bind.ip().is_unspecified() && is_same_family || bind.ip() == address.ip();
    is_ip && (bind.port() == 0 || bind.port() == address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_used_where_it_listens_as_the_node_is_to() {
        for (bind, address, is_used) in [
            ("0.0.0.0:0", "10.0.0.1:7700", true),
            ("0.0.0.0:7700", "10.0.0.1:7700", true),
            ("0.0.0.0:7701", "10.0.0.1:7700", false),
            ("10.0.0.1:0", "10.0.0.1:7700", true),
            ("10.0.0.2:0", "10.0.0.1:7700", false),
            ("127.0.0.1:0", "0.0.0.0:7700", false),
            ("[::]:0", "10.0.0.1:7700", false),
            ("[::]:0", "[::]:7700", true),
        ] {
            let found = listens_at(address.parse().unwrap(), bind.parse().unwrap());
            assert_eq!(found, is_used, "{bind} {address}");
        }
    }
}
