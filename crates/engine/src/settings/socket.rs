//! Where a daemon listens.

use std::path::PathBuf;

/// The default path of a daemon's socket.
pub const SOCKET: &str = "/run/treecast/node.sock";

/// The environment variable with the path of the daemon's socket.
pub const SOCKET_VARIABLE: &str = "TREECAST_SOCKET";

/// The path of the daemon's socket: the given one, that of the environment variable, or [`SOCKET`].
pub fn socket_path(given: Option<PathBuf>) -> PathBuf {
    given.or_else(|| std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from)).unwrap_or_else(|| SOCKET.into())
}
