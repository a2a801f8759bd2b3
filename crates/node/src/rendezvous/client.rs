//! How a member joins: it connects to the root, proves that it knows the token, and waits for the
//! group to start.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use treecast_proto::CreateGroup;

use super::connection::{Connection, ReadLine};
use super::messages::{
    Challenges, Claim, Greeting, Hash, Key, ROOT_MESSAGE_BYTES_MAX, RootMessage, Start, VERSION, Version,
};
use super::{CONTINUE_CHECK_INTERVAL, Deadline, TIMEOUT, host_name, invalid_name, is_name};
use crate::api::node::Node;
use treecast_engine::path_mtu;
use treecast_engine::settings::GroupSettings;
use treecast_engine::settings::config::check_token;
use treecast_engine::settings::error::NodeError;
use treecast_engine::text::printable;
use treecast_engine::wait::poll;
use treecast_terms::Keyed;

/// How a node joins the group of a root that listens.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// The TCP address at which the root listens.
    pub root: SocketAddr,
    /// The token of the group.
    pub token: String,
    /// Whether to join without a token at a root on another host.
    pub insecure: bool,
    /// The member number that this node requests; none: any.
    pub member: Option<u32>,
    /// The node's name in messages: up to 64 bytes.
    pub name: String,
    /// How long to wait for the root to listen and for all members to join; none: no limit.
    pub timeout: Option<Duration>,
}

impl JoinOptions {
    /// Requests any number, uses the host's name, and waits for one minute.
    pub fn new(root: SocketAddr, token: impl Into<String>) -> Self {
        Self {
            root,
            token: token.into(),
            insecure: false,
            member: None,
            name: host_name(),
            timeout: Some(TIMEOUT),
        }
    }
}

/// The timeout of one connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The timeout for each of the root's first two messages.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The backoff between attempts doubles from the first to the second.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// Joins the group of a root: the group's settings, and this node's member number.
pub(super) fn join(
    node: &Node,
    options: &JoinOptions,
    goes_on: &mut dyn FnMut(Option<&str>) -> bool,
) -> Result<(GroupSettings, usize), NodeError> {
    if !is_name(&options.name) {
        return Err(NodeError::Members(invalid_name()));
    }
    let address = node.address();
    if address.is_ipv4() && options.root.is_ipv6() {
        let problem = format!("this node, at {address}, has IPv4 only, and the root is at {}", options.root);
        return Err(NodeError::Members(problem));
    }
    let JoinOptions { root, token, insecure, .. } = options;
    check_token(token, *insecure, root.ip())?;
    let deadline = Deadline::after(options.timeout);
    let mut backoff = BACKOFF_MIN;
    let session = loop {
        let reason =
            match Session::connect(options, deadline, goes_on).and_then(|session| session.claim(node)) {
                Ok(session) => break session,
                Err(AttemptError::Final(error)) => return Err(error),
                Err(AttemptError::Retry(reason)) => reason,
            };
        if deadline.is_over() {
            return Err(NodeError::JoinFailed { root: options.root, reason });
        }
        poll_while(&mut [], Deadline::after(Some(deadline.remaining(backoff))), goes_on)?;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    };
    session.wait_for_start()
}

/// Why an attempt failed.
enum AttemptError {
    /// Another attempt may succeed.
    Retry(String),
    Final(NodeError),
}

impl From<io::Error> for AttemptError {
    fn from(error: io::Error) -> Self {
        Self::Retry(error.to_string())
    }
}

impl From<NodeError> for AttemptError {
    fn from(error: NodeError) -> Self {
        Self::Final(error)
    }
}

/// A connection to a root that has sent its greeting.
struct Session<'a> {
    options: &'a JoinOptions,
    deadline: Deadline,
    goes_on: &'a mut dyn FnMut(Option<&str>) -> bool,
    key: Key,
    connection: Connection,
    root_challenge: Hash,
    own_challenge: Hash,
    last_progress: Option<String>,
}

/// Polls until a descriptor is ready or the deadline passes; says whether one is ready. Fails when
/// the caller cancels.
fn poll_while(
    descriptors: &mut [PollFd<'_>],
    deadline: Deadline,
    goes_on: &mut dyn FnMut(Option<&str>) -> bool,
) -> Result<bool, NodeError> {
    loop {
        if !goes_on(None) {
            return Err(NodeError::Cancelled);
        }
        poll(descriptors, Some(deadline.remaining(CONTINUE_CHECK_INTERVAL)));
        let is_ready = descriptors.iter().any(|descriptor| !descriptor.revents().is_empty());
        if is_ready || deadline.is_over() {
            return Ok(is_ready);
        }
    }
}

/// Opens a TCP connection to the root, without blocking.
fn open_stream(
    root: SocketAddr,
    deadline: Deadline,
    goes_on: &mut dyn FnMut(Option<&str>) -> bool,
) -> Result<TcpStream, AttemptError> {
    let family = if root.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, None).map_err(io::Error::from)?;
    match connect(&socket, &root) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(io::Error::from(error).into()),
    }
    let mut descriptors = [PollFd::new(&socket, PollFlags::OUT)];
    if !poll_while(&mut descriptors, deadline, goes_on)? {
        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
    }
    sockopt::socket_error(&socket).and_then(|result| result).map_err(io::Error::from)?;
    Ok(socket.into())
}

/// Why no line was received.
enum ReceiveError {
    TimedOut,
    Closed,
    /// A line over the maximum length, that begins with this text.
    TooLong(String),
    /// The caller cancelled.
    Cancelled,
}

impl<'a> Session<'a> {
    /// Connects, and reads the root's greeting.
    fn connect(
        options: &'a JoinOptions,
        deadline: Deadline,
        goes_on: &'a mut dyn FnMut(Option<&str>) -> bool,
    ) -> Result<Self, AttemptError> {
        let connect_deadline = Deadline::after(Some(deadline.remaining(CONNECT_TIMEOUT)));
        let stream = open_stream(options.root, connect_deadline, goes_on)?;
        let mut session = Self {
            options,
            deadline,
            goes_on,
            key: Key::new(&options.token),
            connection: Connection::new(stream, ROOT_MESSAGE_BYTES_MAX)?,
            root_challenge: Hash::random()?,
            own_challenge: Hash::random()?,
            last_progress: None,
        };
        let line = match session.receive(Deadline::after(Some(deadline.remaining(HANDSHAKE_TIMEOUT)))) {
            Ok(line) => line,
            Err(ReceiveError::Cancelled) => return Err(NodeError::Cancelled.into()),
            // A root that ends just then may be replaced by the next one.
            Err(error) => return Err(AttemptError::Retry(error.reason("it has sent no greeting"))),
        };
        session.root_challenge = session.read_greeting(&line)?;
        Ok(session)
    }

    /// The challenge of the root's greeting.
    fn read_greeting(&self, line: &[u8]) -> Result<Hash, NodeError> {
        match serde_json::from_slice(line) {
            Ok(Version { treecast: VERSION }) => {}
            Ok(Version { treecast }) => {
                return Err(self.rejected(&format!(
                    "the root uses version {treecast} of the join protocol, this node version {VERSION}"
                )));
            }
            Err(_) => {
                return Err(match serde_json::from_slice(line) {
                    Ok(RootMessage::Rejected { reason }) => self.rejected(&reason),
                    _ => {
                        self.rejected(&format!("the peer is not a Treecast root: it sent {}", excerpt(line)))
                    }
                });
            }
        }
        match serde_json::from_slice(line) {
            Ok(Greeting { challenge, .. }) => Ok(challenge),
            Err(_) => Err(self.rejected("invalid greeting: no challenge")),
        }
    }

    /// The next line from the root.
    fn receive(&mut self, deadline: Deadline) -> Result<Vec<u8>, ReceiveError> {
        loop {
            self.connection.flush();
            match self.connection.read_line() {
                ReadLine::Line(line) => return Ok(line),
                ReadLine::Pending if deadline.is_over() => return Err(ReceiveError::TimedOut),
                ReadLine::Pending => {
                    poll_while(&mut [self.connection.poll_fd()], deadline, self.goes_on)
                        .map_err(|_| ReceiveError::Cancelled)?;
                }
                ReadLine::Closed => return Err(ReceiveError::Closed),
                ReadLine::TooLong => {
                    return Err(ReceiveError::TooLong(excerpt(self.connection.partial_line())));
                }
            }
        }
    }

    /// The next message from the root; an error, if that ends the session.
    fn receive_message(&mut self, deadline: Deadline) -> Result<RootMessage, NodeError> {
        let line = match self.receive(deadline) {
            Ok(line) => line,
            Err(ReceiveError::Cancelled) => return Err(NodeError::Cancelled),
            Err(error) => {
                let timed_out = match &self.last_progress {
                    Some(progress) => format!("not all members joined in time: {progress}"),
                    None => "no answer in time".into(),
                };
                return Err(self.failed(&error.reason(&timed_out)));
            }
        };
        self.read_message(&line)
    }

    /// The message in a line; an error, if that ends the session.
    fn read_message(&self, line: &[u8]) -> Result<RootMessage, NodeError> {
        match serde_json::from_slice(line) {
            Ok(RootMessage::Rejected { reason }) => Err(self.rejected(&reason)),
            Ok(RootMessage::Cancelled { reason }) => Err(self.failed(&reason)),
            Ok(message) => Ok(message),
            Err(_) => Err(self.failed(&format!("invalid message: {}", excerpt(line)))),
        }
    }

    /// Sends the claim, and checks the root's proof.
    fn claim(mut self, node: &Node) -> Result<Self, AttemptError> {
        let JoinOptions { member, name, .. } = self.options;
        let (ip, port) = (node.address().ip(), node.address().port());
        let mut claim = Claim {
            treecast: VERSION,
            challenge: self.own_challenge,
            // Replaced below; the proof does not cover itself.
            proof: self.own_challenge,
            ip: (!ip.is_unspecified()).then_some(ip),
            port,
            is_shared: node.engine().is_shared(),
            member: *member,
            mtu_bytes: path_mtu::path_mtus(std::iter::once(&self.options.root)).next(),
            name: name.clone(),
        };
        claim.proof = self.key.proof_of_member(self.root_challenge, &claim);
        self.connection.send(&claim);
        let expected = self.key.proof_of_root(self.challenges());
        let line = match self.receive(Deadline::after(Some(self.deadline.remaining(HANDSHAKE_TIMEOUT)))) {
            Ok(line) => line,
            Err(ReceiveError::Cancelled) => return Err(NodeError::Cancelled.into()),
            // A root with many connections drops the oldest ones, and a system those that do not
            // fit into the queue of its socket.
            Err(error) => return Err(AttemptError::Retry(error.reason("it has not answered"))),
        };
        match self.read_message(&line)? {
            RootMessage::Accepted { proof } if proof == expected => Ok(self),
            RootMessage::Accepted { .. } => Err(self.rejected("the root does not know the token").into()),
            _ => Err(self.rejected("the root neither accepted nor rejected this node").into()),
        }
    }

    const fn challenges(&self) -> Challenges {
        Challenges { root: self.root_challenge, member: self.own_challenge }
    }

    fn wait_for_start(mut self) -> Result<(GroupSettings, usize), NodeError> {
        loop {
            match self.receive_message(self.deadline)? {
                RootMessage::Progress { text } => {
                    let text = printable(&text);
                    tracing::info!(text, "members join");
                    if !(self.goes_on)(Some(&text)) {
                        return Err(NodeError::Cancelled);
                    }
                    self.last_progress = Some(text);
                }
                RootMessage::Start(start) => return self.start(start),
                _ => {}
            }
        }
    }

    fn start(&self, start: Start) -> Result<(GroupSettings, usize), NodeError> {
        if self.key.proof_of_start(self.challenges(), &start) != start.proof {
            return Err(self.failed("the start of the group was changed on the way"));
        }
        let Start { member, members, settings: text, .. } = start;
        let mut settings = GroupSettings::new(members);
        settings.set_all(&text).map_err(|error| self.failed(&error.to_string()))?;
        settings.token.clone_from(&self.options.token);
        settings.insecure = self.options.insecure;
        let (own, count) = (member as usize, settings.members.len());
        let is_in_bounds = count <= CreateGroup::MEMBERS_MAX && settings.root < count && own < count;
        if !is_in_bounds || own == settings.root {
            return Err(self.failed("invalid list of members"));
        }
        Ok((settings, own))
    }

    /// An error for the user; the reason may be the text of a peer that is not a root.
    fn rejected(&self, reason: &str) -> NodeError {
        NodeError::Rejected { root: self.options.root, reason: printable(reason) }
    }

    /// As above.
    fn failed(&self, reason: &str) -> NodeError {
        NodeError::JoinFailed { root: self.options.root, reason: printable(reason) }
    }
}

impl ReceiveError {
    fn reason(&self, timed_out: &str) -> String {
        match self {
            Self::TimedOut => timed_out.into(),
            Self::Closed => "the root closed the connection".into(),
            Self::TooLong(begin) => format!("the peer is not a Treecast root: it sent {begin}"),
            Self::Cancelled => NodeError::Cancelled.to_string(),
        }
    }
}

/// The beginning of received bytes, escaped for a message.
fn excerpt(bytes: &[u8]) -> String {
    const BYTES_MAX: usize = 60;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(BYTES_MAX)]).into_owned();
    let text: String = text.trim_end().escape_debug().collect();
    if bytes.len() > BYTES_MAX { format!("'{text}...'") } else { format!("'{text}'") }
}
