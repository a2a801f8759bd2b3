//! The daemon's door: a thread that all clients come to, and that does what they ask for.

#![expect(unsafe_code, reason = "the groups of users that a client is in")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{FlockOperation, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
    socketpair, sockopt,
};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::Timespec;

use super::client_link::Ear;
use super::messages::{Answer, MESSAGE_BYTES_MAX};
use super::policy::{Person, Policy};
use super::seqpacket::{self, Received};
use super::session::{Desk, Session, User};
use crate::api::node::Node;
use crate::{NodeError, NodeSettings};

/// As many clients are there at once, and as many of one user.
const CLIENTS_MAX: usize = 1_024;
const CLIENTS_PER_USER_MAX: usize = 256;

/// As many messages of a client are taken in before others have their turn.
const TURN_MESSAGES: usize = 16;

/// So many clients may be about to come.
const BACKLOG: i32 = 128;

/// What the thread is woken by, beside clients.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_CLIENT: u64 = 2;

/// When no client could be let in, that is tried again so much later.
const PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Groups that end with the daemon have so long for it.
const FAREWELL: Duration = Duration::from_secs(10);

/// A node of this process that serves others, on a Unix socket.
#[derive(Debug)]
pub struct Daemon {
    node: Node,
    desk: Desk,
    path: PathBuf,
    /// The socket's file, by which it is known again.
    file: (u64, u64),
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    watch: OwnedFd,
    sessions: BTreeMap<u64, Session>,
    next: u64,
    counters: DaemonCounters,
    /// No client is let in for now: the system had no descriptor for one, or no memory.
    is_paused: bool,
}

/// What a daemon has counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DaemonCounters {
    /// Clients that were let in.
    pub clients: u64,
    /// Clients that were not let in, or sent away later.
    pub refused: u64,
    /// Groups that were given up since what their applications wrote cannot be.
    pub invalid: u64,
}

/// Ends a daemon, from another thread.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// Ends it. [`Daemon::serve`] comes back.
    pub fn stop(&self) {
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl Daemon {
    /// Opens a node in this process, and a socket at a path whose folder is made if it is missing. What a dead daemon has left there
    /// is replaced.
    ///
    /// # Errors
    /// Those of [`Node::open`]; [`NodeError::Daemon`], if a daemon is there already; [`NodeError::System`].
    pub fn open(settings: &NodeSettings, path: &Path, policy: Policy) -> Result<Self, NodeError> {
        raise_descriptor_limit();
        let (listener, file) = open_socket(path)?;
        let opened = Self::with_listener(settings, path, policy, listener, file);
        if opened.is_err() {
            let _ = fs::remove_file(path);
        }
        opened
    }

    fn with_listener(
        settings: &NodeSettings,
        path: &Path,
        policy: Policy,
        listener: OwnedFd,
        file: (u64, u64),
    ) -> Result<Self, NodeError> {
        let node = Node::open_here(settings)?;
        let what = "cannot watch descriptors";
        let make = || {
            let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for (descriptor, number) in [(&listener, LISTENER), (&stop, STOP)] {
                epoll::add(&watch, descriptor, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
            }
            Ok((stop, watch))
        };
        let (stop, watch) = make().map_err(|source: io::Error| NodeError::System { what, source })?;
        let desk = Desk { shared: node.shared(), policy, users: BTreeMap::new() };
        Ok(Self {
            node,
            desk,
            path: path.into(),
            file,
            listener,
            stop: Arc::new(stop),
            watch,
            sessions: BTreeMap::new(),
            next: FIRST_CLIENT,
            counters: DaemonCounters::default(),
            is_paused: false,
        })
    }

    /// Where the node listens.
    pub fn address(&self) -> SocketAddr {
        self.node.address()
    }

    /// Where clients come to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// What has been counted.
    pub fn counters(&self) -> DaemonCounters {
        DaemonCounters { invalid: self.desk.shared.with(|engine| engine.invalid()), ..self.counters }
    }

    /// Serves clients until it is ended. Then all groups are told, the program leaves the interfaces, and the socket is removed.
    ///
    /// # Errors
    /// [`NodeError::System`].
    pub fn serve(mut self) -> Result<DaemonCounters, NodeError> {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        loop {
            let empty =
                epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(STOP) };
            let mut events = [empty; 64];
            let time = self.is_paused.then_some(&PAUSE);
            let count = match epoll::wait(&self.watch, &mut events[..], time) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(source) => {
                    return Err(NodeError::System { what: "cannot wait for clients", source: source.into() });
                }
            };
            if self.is_paused {
                self.pause(false);
            }
            for event in &events[..count] {
                match event.data.u64() {
                    STOP => return Ok(self.end()),
                    LISTENER => self.accept(),
                    number => self.serve_client(number, &mut buffer),
                }
            }
        }
    }

    fn serve_client(&mut self, number: u64, buffer: &mut [u8]) {
        for _ in 0..TURN_MESSAGES {
            let Some(session) = self.sessions.get_mut(&number) else { return };
            let handled = match seqpacket::receive(&session.socket, buffer, None, false) {
                Ok(Received::Message(length)) => session.handle(&mut self.desk, &buffer[..length]),
                Ok(Received::TooLong) => {
                    Err(format!("a message of more than {MESSAGE_BYTES_MAX} bytes is none"))
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(Received::End) | Err(_) => return self.remove(number),
            };
            if let Err(why) = handled {
                tracing::warn!(client = %session.person, %why, "a client is sent away");
                let _ = session.say(&Answer::Refused { why }, &[]);
                self.counters.refused += 1;
                return self.remove(number);
            }
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(session) = self.sessions.remove(&number) else { return };
        session.end(&self.desk);
        let groups = session.groups();
        tracing::info!(client = %session.person, groups, "a client has gone");
        if let Some(user) = self.desk.users.get_mut(&session.person.user) {
            user.clients -= 1;
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(&self.listener, flags) {
            Ok(socket) => socket,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {
                return;
            }
            Err(error) => {
                tracing::error!(%error, "no client can be let in for a second");
                return self.pause(true);
            }
        };
        match self.let_in(&socket) {
            Ok(()) => {}
            Err(why) => {
                self.counters.refused += 1;
                let text = serde_json::to_vec(&Answer::Refused { why }).unwrap_or_default();
                let _ = seqpacket::send(&socket, &text, &[], false);
            }
        }
    }

    /// Lets a client in.
    ///
    /// # Errors
    /// Why not.
    fn let_in(&mut self, socket: &OwnedFd) -> Result<(), String> {
        let unknown = |error| format!("the system does not say who this is: {error}");
        let person = person_of(socket).map_err(unknown)?;
        let Some((place, rule)) = self.desk.policy.rule_for(&person) else {
            let why = format!("the daemon's policy has no rule for {person}");
            tracing::warn!(%why, "a client is refused");
            return Err(why);
        };
        let user = self.desk.users.entry(person.user);
        let user = user.or_insert_with(|| User::new(rule.name(), rule.memory_max()));
        if self.sessions.len() >= CLIENTS_MAX || user.clients >= CLIENTS_PER_USER_MAX {
            let why = format!(
                "the daemon has {} clients, {} of them of this user, and no room for another",
                self.sessions.len(),
                user.clients
            );
            tracing::warn!(client = %person, %why, "a client is refused");
            return Err(why);
        }
        let number = self.next;
        let session = new_session(&self.node, socket, person, place).and_then(|session| {
            let data = epoll::EventData::new_u64(number);
            epoll::add(&self.watch, &session.socket, data, epoll::EventFlags::IN)?;
            Ok(session)
        });
        let session = session.map_err(|error| format!("the daemon cannot serve another client: {error}"))?;
        tracing::info!(client = %session.person, rule = rule.name(), "a client has come");
        user.clients += 1;
        self.next += 1;
        self.counters.clients += 1;
        self.sessions.insert(number, session);
        Ok(())
    }

    fn pause(&mut self, is_paused: bool) {
        let flags = if is_paused { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        let data = epoll::EventData::new_u64(LISTENER);
        let _ = epoll::modify(&self.watch, &self.listener, data, flags);
        self.is_paused = is_paused;
    }

    /// Ends in order. Clients learn it when their connections end.
    fn end(&mut self) -> DaemonCounters {
        tracing::info!(clients = self.sessions.len(), "the daemon ends");
        for session in self.sessions.values() {
            session.end(&self.desk);
        }
        if self.node.close(Some(FAREWELL)).is_err() {
            tracing::warn!("groups have not ended in time");
        }
        self.counters()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Another daemon may have taken the place meanwhile.
        if file_of(&self.path).ok() == Some(self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn new_session(node: &Node, socket: &OwnedFd, person: Person, rule: usize) -> io::Result<Session> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (bell, for_client) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let wake = UdpSocket::bind((node.address().ip(), 0))?;
    wake.set_nonblocking(true)?;
    let ear = Ear { bell, wake_port: wake.local_addr()?.port() };
    Ok(Session::new(socket.try_clone()?, person, rule, ear, for_client, wake))
}

/// Who is at the other end.
fn person_of(socket: &OwnedFd) -> io::Result<Person> {
    let peer = sockopt::socket_peercred(socket)?;
    let mut groups = peer_groups(socket)?;
    groups.push(peer.gid.as_raw());
    Ok(Person { user: peer.uid.as_raw(), groups, process: peer.pid.as_raw_pid() })
}

/// The groups of users that the process at the other end was in when it connected.
fn peer_groups(socket: &OwnedFd) -> io::Result<Vec<u32>> {
    const GROUPS_MAX: usize = 65_536;
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the system writes at most so many bytes, which are there, and says how many.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        if answer == 0 {
            groups.truncate(bytes as usize / size_of::<libc::gid_t>());
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || groups.len() >= GROUPS_MAX {
            return Err(error);
        }
        groups.resize(groups.len() * 4, 0);
    }
}

/// Opens the socket; the answer has its file, too.
fn open_socket(path: &Path) -> Result<(OwnedFd, (u64, u64)), NodeError> {
    let fail = |source: io::Error| {
        NodeError::Daemon(format!("the daemon cannot listen at {}: {source}", path.display()))
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(fail)?;
    // Of two daemons that begin at once one finds the other.
    let lock = fs::File::open(folder).map_err(fail)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| fail(error.into()))?;
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(fail(io::Error::other("a file is there that is no socket")));
        }
        if answers(path) {
            return Err(fail(io::Error::other("a daemon listens there already")));
        }
        fs::remove_file(path).map_err(fail)?;
    }
    let open = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        listen(&socket, BACKLOG)?;
        Ok((socket, file_of(path)?))
    };
    open().map_err(fail)
}

fn file_of(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Whether somebody listens at a socket.
fn answers(path: &Path) -> bool {
    let connected = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    // Who has more who wait than it takes in is alive, and so is who is no daemon of this kind.
    !matches!(connected, Err(rustix::io::Errno::CONNREFUSED))
}

/// A client takes two descriptors, and the memory of its groups two until it has them: as many as this process may have.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}
