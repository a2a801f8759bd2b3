//! A node that the processes of one user on a host share without a daemon of the system: the first
//! of them opens it, and serves the others.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::getuid;
use treecast_engine::settings::error::NodeError;
use treecast_engine::settings::{EngineChoice, NodeSettings};

use super::client::{ANSWER_TIMEOUT, Client, ConnectError};
use super::listening::{ListeningSocket, SocketName};
use super::server::{Daemon, Stopper, Usage};
use super::users::Policy;

/// The context of the names' hash.
const CONTEXT: &str = "Treecast: name of a shared node, version 1";

/// How long a process waits for the node. The process that has it may be opening it, which takes
/// seconds where it loads the kernel's packet path, or closing it. A process that fails to open it
/// closes its socket, and so do processes that end.
const TIMEOUT: Duration = Duration::from_mins(1);

/// How long a name may be bound by a process that does not listen there. A process that opens a
/// node listens directly after it has bound the name; only a connection would tell whose name it
/// is.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(1);

const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// How many names are tried, if others are taken.
const NAMES_MAX: u32 = 8;

/// A node of this process that serves other processes of its user.
#[derive(Debug)]
pub struct SharedNode {
    stopper: Stopper,
    usage: Usage,
    /// None after it has ended.
    thread: Option<JoinHandle<()>>,
}

impl SharedNode {
    /// Waits until no other process uses the node, and closes it. Says whether that was so before
    /// the deadline; if not, it goes on.
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

/// Connects to the node that this user's processes share by this text on this host. The first
/// process opens it, as its settings say. A name that a process of another user has, or at which
/// nobody listens, is passed over.
///
/// # Errors
/// Those of `Node::open`; [`NodeError::Daemon`], if the node cannot be used.
pub fn open_shared(
    settings: &NodeSettings,
    share: &str,
) -> Result<(Arc<Client>, Option<SharedNode>), NodeError> {
    let deadline = Instant::now() + TIMEOUT;
    let mut attempt = 0;
    let mut refused_since = None;
    loop {
        let name = name_of(share, attempt);
        match ListeningSocket::open_abstract(&name) {
            Ok(listener) => {
                let node = serve(settings, listener)?;
                let client = Client::connect(&name, settings.spin, ANSWER_TIMEOUT)?;
                return Ok((Arc::new(client), Some(node)));
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(source) => {
                return Err(NodeError::System { what: "cannot listen for other processes", source });
            }
        }
        let timeout = deadline.saturating_duration_since(Instant::now()).max(RETRY_INTERVAL);
        let error = match Client::connect(&name, settings.spin, timeout) {
            Ok(client) => return Ok((Arc::new(client), None)),
            Err(error) => error,
        };
        let is_passed_over = match &error {
            ConnectError::Foreign { .. } => true,
            ConnectError::Unreachable { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
                refused_since.get_or_insert_with(Instant::now).elapsed() > LISTEN_TIMEOUT
            }
            ConnectError::Unreachable { .. } | ConnectError::Silent { .. } => {
                refused_since = None;
                false
            }
            ConnectError::Rejected(_) => return Err(error.into()),
        };
        if is_passed_over {
            (attempt, refused_since) = (attempt + 1, None);
        } else {
            thread::sleep(RETRY_INTERVAL);
        }
        if attempt == NAMES_MAX || Instant::now() >= deadline {
            return Err(error.into());
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

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType, bind, socket};
    use rustix::process::Uid;
    use rustix::thread::set_thread_res_uid;

    use super::*;

    fn settings() -> NodeSettings {
        NodeSettings { bind: "127.0.0.1:0".parse().unwrap(), ..NodeSettings::default() }
    }

    fn share(name: &str) -> String {
        format!("{name} of {}", std::process::id())
    }

    #[test]
    fn a_node_that_takes_longer_to_open_than_a_request_is_waited_for() {
        let share = share("slow");
        let listener = ListeningSocket::open_abstract(&name_of(&share, 0)).unwrap();
        thread::scope(|scope| {
            let opening = scope.spawn(|| open_shared(&settings(), &share));
            thread::sleep(Duration::from_secs(11));
            let node = serve(&settings(), listener).unwrap();
            let (client, own) = opening.join().unwrap().unwrap();
            assert!(own.is_none(), "the other process has the node");
            drop((client, node));
        });
    }

    #[test]
    fn a_node_that_closes_is_waited_for_and_then_opened_again() {
        let share = share("closing");
        let listener = ListeningSocket::open_abstract(&name_of(&share, 0)).unwrap();
        thread::scope(|scope| {
            let opening = scope.spawn(|| open_shared(&settings(), &share));
            // As long as the groups of a node may take to end.
            thread::sleep(Duration::from_secs(6));
            drop(listener);
            assert!(opening.join().unwrap().unwrap().1.is_some(), "this process has the node");
        });
    }

    #[test]
    fn a_name_that_another_user_has_is_passed_over() {
        if !getuid().is_root() {
            println!("skipped: processes of other users are for root");
            return;
        }
        let share = share("foreign");
        let listen_as_another_user = || {
            let user = Uid::from_raw(3_000_000);
            set_thread_res_uid(Uid::ROOT, user, Uid::ROOT).unwrap();
            ListeningSocket::open_abstract(&name_of(&share, 0)).unwrap()
        };
        let _taken = thread::scope(|scope| scope.spawn(listen_as_another_user).join().unwrap());
        let (_, own) = open_shared(&settings(), &share).unwrap();
        let (_, other) = open_shared(&settings(), &share).unwrap();
        assert!(own.is_some() && other.is_none(), "one node serves both");
    }

    #[test]
    fn a_name_at_which_nobody_listens_is_passed_over() {
        let share = share("bound");
        let bound = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&bound, &name_of(&share, 0).address().unwrap()).unwrap();
        let (_, own) = open_shared(&settings(), &share).unwrap();
        let (_, other) = open_shared(&settings(), &share).unwrap();
        assert!(own.is_some() && other.is_none(), "one node serves both");
    }
}
