//! The other members' side of a gathering.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use treecast_proto::Lead;

use super::door::wrong_name;
use super::lines::{Lines, Look};
use super::words::{Claim, Greeting, Hash, Key, VERSION, Version, WORD_BYTES_MAX, Word};
use super::{ASKED, Deadline, TIMEOUT, host_name, is_name};
use crate::bell::sleep;
use crate::{GroupSettings, Keyed, NodeError};

/// How a node comes to a gathering.
#[derive(Debug, Clone)]
pub struct Attendance {
    /// Where the root listens, over TCP.
    pub root: SocketAddr,
    /// What all members know and others do not.
    pub token: String,
    /// The number that this node wants to have; none: any.
    pub member: Option<u32>,
    /// What it is called in messages: up to 64 bytes.
    pub name: String,
    /// How long it waits, for the root to listen and for everybody to come; none: for ever.
    pub timeout: Option<Duration>,
}

impl Attendance {
    /// Takes any number, is called as the host, and waits for a minute.
    pub fn new(root: SocketAddr, token: impl Into<String>) -> Self {
        Self { root, token: token.into(), member: None, name: host_name(), timeout: Some(TIMEOUT) }
    }
}

/// A connection is tried for so long before another one is.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// The root's first words come within this time, or the connection is of no use.
const GREETING_TIME: Duration = Duration::from_secs(5);

/// The pauses between trials grow from the first to the second.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Comes to a gathering: the group, and the node's place in it.
pub(super) fn attend(
    node: SocketAddr,
    attendance: &Attendance,
    goes_on: &mut dyn FnMut(Option<&str>) -> bool,
) -> Result<(GroupSettings, usize), NodeError> {
    if !is_name(&attendance.name) {
        return Err(NodeError::Members(wrong_name()));
    }
    if node.is_ipv4() && attendance.root.is_ipv6() {
        let problem = format!("this node, at {node}, has IPv4 alone, and the root is at {}", attendance.root);
        return Err(NodeError::Members(problem));
    }
    let deadline = Deadline::after(attendance.timeout);
    let mut pause = PAUSE_MIN;
    let mut visit = loop {
        let why = match knock(attendance, deadline, goes_on) {
            Ok(visit) => break visit,
            Err(Refusal::Final(error)) => return Err(error),
            Err(Refusal::NotYet(why)) => why,
        };
        if deadline.is_over() {
            return Err(NodeError::NotGathered { root: attendance.root, why });
        }
        sleep_on(&mut [], Deadline::after(Some(deadline.left(pause))), goes_on)?;
        pause = (pause * 2).min(PAUSE_MAX);
    };
    visit.claim(node)?;
    visit.wait()
}

/// Why a trial came to nothing.
enum Refusal {
    NotYet(String),
    Final(NodeError),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::NotYet(error.to_string())
    }
}

impl From<NodeError> for Refusal {
    fn from(error: NodeError) -> Self {
        Self::Final(error)
    }
}

/// A connection to a root that has greeted us.
struct Visit<'a> {
    attendance: &'a Attendance,
    deadline: Deadline,
    goes_on: &'a mut dyn FnMut(Option<&str>) -> bool,
    key: Key,
    lines: Lines,
    /// The root's challenge, and ours.
    roots: Hash,
    own: Hash,
    last_news: Option<String>,
}

/// Sleeps until a descriptor is ready or the time is over, as long as it goes on; says whether one is ready.
fn sleep_on(
    descriptors: &mut [PollFd<'_>],
    deadline: Deadline,
    goes_on: &mut dyn FnMut(Option<&str>) -> bool,
) -> Result<bool, NodeError> {
    loop {
        if !goes_on(None) {
            return Err(NodeError::BrokenOff);
        }
        sleep(descriptors, Some(deadline.left(ASKED)));
        let is_ready = descriptors.iter().any(|descriptor| !descriptor.revents().is_empty());
        if is_ready || deadline.is_over() {
            return Ok(is_ready);
        }
    }
}

/// Connects to a root, as long as it goes on.
fn reach(
    root: SocketAddr,
    deadline: Deadline,
    goes_on: &mut dyn FnMut(Option<&str>) -> bool,
) -> Result<TcpStream, Refusal> {
    let family = if root.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, None).map_err(io::Error::from)?;
    match connect(&socket, &root) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(io::Error::from(error).into()),
    }
    let mut descriptors = [PollFd::new(&socket, PollFlags::OUT)];
    if !sleep_on(&mut descriptors, deadline, goes_on)? {
        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
    }
    sockopt::socket_error(&socket).and_then(|result| result).map_err(io::Error::from)?;
    Ok(socket.into())
}

fn knock<'a>(
    attendance: &'a Attendance,
    deadline: Deadline,
    goes_on: &'a mut dyn FnMut(Option<&str>) -> bool,
) -> Result<Visit<'a>, Refusal> {
    let time = Deadline::after(Some(deadline.left(CONNECT_TIME)));
    let stream = reach(attendance.root, time, goes_on)?;
    let mut visit = Visit {
        attendance,
        deadline,
        goes_on,
        key: Key::new(&attendance.token),
        lines: Lines::new(stream, WORD_BYTES_MAX)?,
        roots: Hash::random()?,
        own: Hash::random()?,
        last_news: None,
    };
    let patience = Deadline::after(Some(deadline.left(GREETING_TIME)));
    // A root that ends while it is connected to may have been about to be replaced by the next one.
    let line = match visit.line(patience)? {
        Ok(line) => line,
        Err(silence) => return Err(Refusal::NotYet(silence.said("it has not greeted"))),
    };
    match serde_json::from_slice(&line) {
        Ok(Version { treecast: VERSION }) => {}
        Ok(Version { treecast }) => {
            let why = format!("the root gathers by version {treecast}, and this node by version {VERSION}");
            return Err(Refusal::Final(visit.turned_away(why)));
        }
        Err(_) => return Err(Refusal::Final(visit.no_greeting(&line))),
    }
    match serde_json::from_slice(&line) {
        Ok(Greeting { challenge, .. }) => visit.roots = challenge,
        Err(_) => return Err(Refusal::Final(visit.turned_away("its greeting has no challenge".into()))),
    }
    Ok(visit)
}

/// Why there is no line.
enum Silence {
    TimeOver,
    Gone,
    /// An endless line, that begins so.
    Endless(String),
}

impl Silence {
    fn said(&self, time_over: &str) -> String {
        match self {
            Self::TimeOver => time_over.into(),
            Self::Gone => "it has closed the connection".into(),
            Self::Endless(begin) => format!("what listens there is no root: it said {begin}"),
        }
    }
}

impl Visit<'_> {
    /// What the root says next, if it says something in time; the outer error is that it does not go on.
    fn line(&mut self, deadline: Deadline) -> Result<Result<Vec<u8>, Silence>, NodeError> {
        loop {
            self.lines.push();
            match self.lines.look() {
                Look::Line(line) => return Ok(Ok(line)),
                Look::Nothing if deadline.is_over() => return Ok(Err(Silence::TimeOver)),
                Look::Nothing => {
                    sleep_on(&mut [self.lines.poll_fd()], deadline, self.goes_on)?;
                }
                Look::Gone => return Ok(Err(Silence::Gone)),
                Look::TooLong => return Ok(Err(Silence::Endless(shown(self.lines.part())))),
            }
        }
    }

    fn turned_away(&self, why: String) -> NodeError {
        NodeError::TurnedAway { root: self.attendance.root, why }
    }

    fn not_gathered(&self, why: impl Into<String>) -> NodeError {
        NodeError::NotGathered { root: self.attendance.root, why: why.into() }
    }

    fn no_greeting(&self, line: &[u8]) -> NodeError {
        match serde_json::from_slice(line) {
            Ok(Word::TurnedAway { why }) => self.turned_away(why),
            _ => self.turned_away(format!("what listens there is no root: it said {}", shown(line))),
        }
    }

    fn claim(&mut self, node: SocketAddr) -> Result<(), NodeError> {
        let Attendance { member, name, .. } = self.attendance;
        let ip = node.ip();
        let mut claim = Claim {
            treecast: VERSION,
            challenge: self.own,
            proof: self.own,
            ip: (!ip.is_unspecified()).then_some(ip),
            port: node.port(),
            member: *member,
            name: name.clone(),
        };
        claim.proof = self.key.proof_of_member(self.roots, &claim);
        self.lines.say(&claim);
        match self.word(Deadline::after(Some(self.deadline.left(GREETING_TIME))))? {
            Word::Welcome { proof } if proof == self.key.proof_of_root(self.roots, self.own) => Ok(()),
            Word::Welcome { .. } => Err(self.turned_away("the root does not know the token".into())),
            _ => Err(self.turned_away("the root does not say whether this node may come".into())),
        }
    }

    /// The root's next word, unless it is the last.
    fn word(&mut self, deadline: Deadline) -> Result<Word, NodeError> {
        let line = self.line(deadline)?.map_err(|silence| {
            let time_over = match &self.last_news {
                Some(news) => format!("not all members came in time: {news}"),
                None => "it has said nothing in time".into(),
            };
            self.not_gathered(silence.said(&time_over))
        })?;
        match serde_json::from_slice(&line) {
            Ok(Word::TurnedAway { why }) => Err(self.turned_away(why)),
            Ok(Word::Over { why }) => Err(self.not_gathered(why)),
            Ok(word) => Ok(word),
            Err(_) => Err(self.not_gathered(format!("what it says makes no sense: {}", shown(&line)))),
        }
    }

    fn wait(mut self) -> Result<(GroupSettings, usize), NodeError> {
        loop {
            match self.word(self.deadline)? {
                Word::News { text } => {
                    tracing::info!(text, "members gather");
                    if !(self.goes_on)(Some(&text)) {
                        return Err(NodeError::BrokenOff);
                    }
                    self.last_news = Some(text);
                }
                Word::Begin { member, members, settings } => return self.begin(member, members, &settings),
                _ => {}
            }
        }
    }

    fn begin(
        &self,
        member: u32,
        members: Vec<SocketAddr>,
        text: &str,
    ) -> Result<(GroupSettings, usize), NodeError> {
        let mut settings = GroupSettings::new(members);
        settings.set_all(text).map_err(|error| self.not_gathered(error.to_string()))?;
        settings.token.clone_from(&self.attendance.token);
        let count = settings.members.len();
        if count > Lead::MEMBERS_MAX || settings.root >= count || member as usize >= count {
            return Err(self.not_gathered("its list of members makes no sense"));
        }
        Ok((settings, member as usize))
    }
}

/// The beginning of what somebody has said, fit for a message.
fn shown(bytes: &[u8]) -> String {
    const SHOWN: usize = 60;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]).into_owned();
    let text: String = text.trim_end().escape_debug().collect();
    if bytes.len() > SHOWN { format!("'{text}...'") } else { format!("'{text}'") }
}
