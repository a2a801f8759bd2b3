//! `treecast node` as a daemon: a node for the processes of its host.

use std::net::SocketAddr;
use std::path::Path;

use treecast_node::{Daemon, DaemonCounters, NodeSettings, Policy, socket_path};

use crate::interrupt::end_on_signals;
use crate::output::print_note;

/// Serves clients until SIGINT or SIGTERM. A second one, more than a second later, ends the process
/// at once.
pub fn run(settings: &NodeSettings, policy: Option<&Path>) -> anyhow::Result<u8> {
    let policy = policy.map(Policy::read).transpose()?.unwrap_or_default();
    let path = socket_path(settings.socket.clone());
    let daemon = Daemon::open(settings, &path, policy)?;
    let stopper = daemon.stopper();
    end_on_signals(1, move || stopper.stop())?;
    let (address, path): (SocketAddr, _) = (daemon.address(), path.display());
    print_note(&format!("the daemon serves clients at {path}; its node listens at {address}"));
    let DaemonCounters { clients, rejected, disconnected, refused_groups, invalid, strays, .. } =
        daemon.serve()?;
    let strays: Vec<String> = strays.values().map(|(name, count)| format!("{name} {count}")).collect();
    print_note(&format!(
        "the daemon has ended; clients served: {clients}, rejected: {rejected}, disconnected for invalid messages: {disconnected}; groups refused: {refused_groups}, aborted for invalid shared memory: {invalid}; datagrams of no group: {}",
        strays.join(", ")
    ));
    Ok(0)
}
