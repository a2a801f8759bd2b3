//! `treecast node` as a daemon: a node that serves the processes of its host.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use treecast_node::{Daemon, DaemonCounters, NodeSettings, Policy, socket_path};

use crate::output::complain;

/// Serves clients until an interrupt or SIGTERM.
pub fn run(settings: &NodeSettings, policy: Option<&Path>) -> anyhow::Result<u8> {
    tell_what_happens();
    let policy = policy.map(Policy::read).transpose()?.unwrap_or_default();
    let daemon = Daemon::open(settings, &socket_path(settings.socket.clone()), policy)?;
    let stopper = daemon.stopper();
    let is_told = AtomicBool::new(false);
    let told = move || {
        // The second one ends the process at once.
        if is_told.swap(true, Ordering::SeqCst) {
            process::exit(1);
        }
        stopper.stop();
    };
    ctrlc::set_handler(told).context("signals cannot be taken")?;
    let (address, path): (SocketAddr, _) = (daemon.address(), daemon.path().display());
    complain(&format!("the daemon serves clients at {path}; its node listens at {address}"));
    let DaemonCounters { clients, refused, invalid, .. } = daemon.serve()?;
    complain(&format!(
        "the daemon has ended; clients served: {clients}, refused: {refused}, groups aborted for invalid shared memory: {invalid}"
    ));
    Ok(0)
}

/// What libraries have to say goes to standard error, as the command's own words do.
fn tell_what_happens() {
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_target(false).without_time();
    // Somebody else may take it in already.
    let _ = log.with_ansi(false).try_init();
}
