//! A node that the processes of one user on a host share without a daemon of the system: the first of them opens it, and serves the others.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::getuid;

use super::client::Client;
use super::listening::{ListeningSocket, SocketName};
use super::server::{Daemon, Stopper, Usage};
use super::users::Policy;
use crate::{EngineChoice, NodeError, NodeSettings};

/// The context of the names' hash.
const CONTEXT: &str = "Treecast: name of a shared node, version 1";

/// How long a process tries to find the node: the one that has it may be starting, or ending.
const TIMEOUT: Duration = Duration::from_secs(5);

const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// How many names are tried, if processes of other users have taken them.
const NAMES_MAX: u32 = 8;

/// A node of this process that serves other processes of its user.
#[derive(Debug)]
pub(crate) struct SharedNode {
    stopper: Stopper,
    usage: Usage,
    /// None after it has ended.
    thread: Option<JoinHandle<()>>,
}

impl SharedNode {
    /// Waits until no other process uses the node, and closes it. Says whether that was so before the deadline; if not, it goes on.
    pub fn wait_until_unused(&self, until: Instant) -> bool {
        while self.usage.is_used() {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(RETRY_INTERVAL);
        }
        true
    }
}

/// Closes the node. The groups of processes that still use it end.
impl Drop for SharedNode {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Connects to the node that this user's processes share by this text on this host. The first process opens it, as its settings say.
///
/// # Errors
/// Those of [`crate::Node::open`]; [`NodeError::Daemon`], if the node cannot be used.
pub(crate) fn open_shared(
    settings: &NodeSettings,
    share: &str,
) -> Result<(Arc<Client>, Option<SharedNode>), NodeError> {
    let deadline = Instant::now() + TIMEOUT;
    let mut attempt = 0;
    loop {
        let name = name_of(share, attempt);
        match ListeningSocket::open_abstract(&name) {
            Ok(listener) => {
                let node = serve(settings, listener)?;
                let client = Client::connect(&name, settings.spin).map_err(NodeError::Daemon)?;
                return Ok((Arc::new(client), Some(node)));
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(source) => {
                return Err(NodeError::System { what: "cannot listen for other processes", source });
            }
        }
        match Client::connect(&name, settings.spin) {
            Ok(client) => return Ok((Arc::new(client), None)),
            Err(reason) if Instant::now() >= deadline => return Err(NodeError::Daemon(reason)),
            // Another user's process has taken the name.
            Err(_) if is_foreign(&name) && attempt + 1 < NAMES_MAX => attempt += 1,
            Err(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

/// The name of the socket. It does not reveal the text, which may have a token.
fn name_of(share: &str, attempt: u32) -> SocketName {
    let user = getuid().as_raw();
    let hash = blake3::derive_key(CONTEXT, format!("{user} {attempt} {share}").as_bytes());
    let hash = blake3::Hash::from_bytes(hash).to_hex();
    SocketName::Abstract(format!("treecast/{user}/{}", &hash[..32]))
}

/// Whether a process of another user listens at a name.
fn is_foreign(name: &SocketName) -> bool {
    Client::peer_of(name).is_ok_and(|peer| peer.user != getuid().as_raw())
}

fn serve(settings: &NodeSettings, listener: ListeningSocket) -> Result<SharedNode, NodeError> {
    // As without sharing, the kernel's packet path is used where it is asked for.
    let engine = if settings.engine == EngineChoice::Auto { EngineChoice::User } else { settings.engine };
    let settings = NodeSettings { engine, ..settings.clone() };
    let daemon = Daemon::with_listener(&settings, 1, Policy::of_user(getuid().as_raw()), listener)?;
    let (stopper, usage) = (daemon.stopper(), daemon.usage());
    let run = move || {
        if let Err(error) = daemon.serve() {
            tracing::error!(%error, "the shared node has failed");
        }
    };
    let thread = thread::Builder::new()
        .name("treecast-share".into())
        .spawn(run)
        .map_err(|source| NodeError::System { what: "cannot start a thread", source })?;
    Ok(SharedNode { stopper, usage, thread: Some(thread) })
}
