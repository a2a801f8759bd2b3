//! The root's side: accepts connections, checks claims, and starts the group.
//!
//! One thread polls all connections and blocks on none; each has a bound in time and in bytes.

mod claims;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use std::{fmt, io};

use rustix::event::{PollFd, PollFlags};
use treecast_fabric::{FabricError, HostNames};
use treecast_terms::Keyed;

use super::connection::{Connection, ReadLine};
use super::messages::{CLAIM_BYTES_MAX, Challenges, Claim, Greeting, Hash, Key, RootMessage, Start, VERSION};
use super::{CONTINUE_CHECK_INTERVAL, Deadline, JoinStatus, JoinedMember, Listener, invalid_name, is_name};
use crate::api::node::Node;

use claims::Outcome;
use treecast_engine::path_mtu;
use treecast_engine::settings::GroupSettings;
use treecast_engine::settings::addresses::Member;
use treecast_engine::settings::error::NodeError;
use treecast_engine::wait::poll;

/// A connection without a claim is dropped after this time.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(3);

/// The most connections without a claim; the oldest ones beyond are dropped.
const PENDING_MAX: usize = 64;

/// The shortest time between two progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The pause after `accept` has failed.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// How long the last messages may take, to peers that do not read them.
const LINGER: Duration = Duration::from_secs(2);

/// The root while it waits for the other members.
#[derive(Debug)]
pub(super) struct Server {
    listener: Listener,
    settings: GroupSettings,
    key: Key,
    /// The hosts of the fabric, if there is one.
    host_names: Option<HostNames>,
    /// The address of the root's node, and whether other processes of its host can use it too.
    node: SocketAddr,
    is_node_shared: bool,
    pending: VecDeque<Pending>,
    joined: Vec<Joined>,
    /// The root's address as the joined members have reached it.
    root_ip: Option<IpAddr>,
    /// Why there can be no group with these settings and members.
    impossible: Option<NodeError>,
    rejected: u64,
    last_rejected: Option<String>,
    accept_at: Instant,
    has_progress: bool,
    progress_at: Instant,
}

/// A connection that has not made its claim.
#[derive(Debug)]
struct Pending {
    connection: Connection,
    from: SocketAddr,
    /// The local address of the connection.
    root_ip: IpAddr,
    challenge: Hash,
    deadline: Instant,
}

/// The connection of a member that has joined.
#[derive(Debug)]
struct Joined {
    connection: Connection,
    member: JoinedMember,
    /// Whether other processes of its host can use its node too.
    is_shared: bool,
    /// The MTU of its path to the root.
    mtu_bytes: Option<u32>,
    challenges: Challenges,
}

impl Server {
    pub fn new(node: &Node, listener: Listener, settings: &GroupSettings) -> Result<Self, NodeError> {
        if !is_name(&listener.name) {
            return Err(NodeError::Members(invalid_name()));
        }
        let now = Instant::now();
        Ok(Self {
            listener,
            settings: settings.clone(),
            key: Key::new(&settings.token),
            host_names: settings.fabric.as_ref().map(|fabric| HostNames::new(fabric.topology())),
            node: node.address(),
            is_node_shared: node.engine().is_shared(),
            pending: VecDeque::new(),
            joined: Vec::new(),
            root_ip: None,
            impossible: None,
            rejected: 0,
            last_rejected: None,
            accept_at: now,
            has_progress: true,
            progress_at: now,
        })
    }

    /// Checks that the fabric has the root's host.
    pub fn check_root(&self) -> Result<(), NodeError> {
        let error = |error| NodeError::NotOnFabric { member: "the root".into(), error };
        self.check_host(&self.listener.name).map_err(error)
    }

    fn check_host(&self, name: &str) -> Result<(), FabricError> {
        self.host_names.as_ref().map_or(Ok(()), |names| names.find(name).map(drop))
    }

    /// Accepts members until all have joined. Fails at the timeout, or when the caller cancels.
    pub fn wait_until_complete(
        &mut self,
        goes_on: &mut dyn FnMut(Option<&JoinStatus>) -> bool,
    ) -> Result<(), NodeError> {
        let deadline = Deadline::after(self.listener.timeout);
        loop {
            self.poll_connections();
            if let Some(error) = self.impossible.take() {
                self.cancel(&error.to_string());
                return Err(error);
            }
            let is_due = self.has_progress && (self.is_complete() || Instant::now() >= self.progress_at);
            let progress = is_due.then(|| self.send_progress());
            if !goes_on(progress.as_ref()) {
                self.cancel("the root cancelled the group");
                return Err(NodeError::Cancelled);
            }
            if self.is_complete() {
                return Ok(());
            }
            if deadline.is_over() {
                let status = self.status();
                self.cancel(&format!("not all members joined in time: {status}"));
                return Err(NodeError::Incomplete(Box::new(status)));
            }
            self.sleep(deadline);
        }
    }

    /// The settings of the complete group, and the root's member number.
    pub fn group(&self) -> (GroupSettings, usize) {
        let root = self.settings.root;
        let own = Member { host: self.listener.name.clone(), address: self.root_address() };
        let mut places: Vec<Member> = vec![own; self.listener.members as usize];
        for (number, JoinedMember { name, address, .. }) in self.numbers().into_iter().zip(self.members()) {
            places[number as usize] = Member { host: name.clone(), address: *address };
        }
        let (members, hosts) = places.into_iter().map(|Member { host, address }| (address, host)).unzip();
        let mut settings = GroupSettings { members, hosts, ..self.settings.clone() };
        settings.mtu_bytes = settings.mtu_bytes.or_else(|| Some(self.mtu_bytes(&settings.members)));
        (settings, root)
    }

    /// The number of each member that has joined: the one that it requested, or else the least one
    /// that is free.
    fn numbers(&self) -> Vec<u32> {
        let mut is_taken = vec![false; self.listener.members as usize];
        is_taken[self.settings.root] = true;
        for number in self.members().filter_map(|joined| joined.member) {
            is_taken[number as usize] = true;
        }
        let mut free = (0..self.listener.members).filter(|number| !is_taken[*number as usize]);
        let number = |joined: &JoinedMember| joined.member.or_else(|| free.next());
        self.members()
            .map(number)
            .map(|number| number.expect("there are as many numbers as members"))
            .collect()
    }

    /// The longest datagrams that the paths between the root and the members carry, either way.
    fn mtu_bytes(&self, members: &[SocketAddr]) -> u16 {
        let there = path_mtu::path_mtus(members.iter());
        let back = self.joined.iter().filter_map(|joined| joined.mtu_bytes);
        path_mtu::mtu_bytes_of(there.chain(back))
    }

    /// Sends the group to all members.
    pub fn start(mut self, settings: &GroupSettings) {
        let text: Vec<String> = settings
            .values()
            .filter(|(key, _)| !["token", "insecure"].contains(key))
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let numbers = self.numbers();
        for (Joined { connection, challenges, .. }, member) in self.joined.iter_mut().zip(numbers) {
            let (members, settings) = (settings.members.clone(), text.join(" "));
            let mut start = Start { proof: challenges.root, member, members, settings };
            start.proof = self.key.proof_of_start(*challenges, &start);
            connection.send(&RootMessage::Start(start));
        }
        self.shut_down(&self.complete_reason());
    }

    /// Tells all members that there will be no group.
    pub fn cancel(&mut self, reason: &str) {
        for joined in &mut self.joined {
            joined.connection.send(&RootMessage::Cancelled { reason: reason.into() });
        }
        self.shut_down(reason);
    }

    /// Rejects pending connections, and waits until joined members have the last message.
    fn shut_down(&mut self, reason: &str) {
        self.accept();
        for pending in &mut self.pending {
            pending.connection.send(&RootMessage::Rejected { reason: reason.into() });
        }
        let deadline = Deadline::after(Some(LINGER));
        while !deadline.is_over() {
            let unsent = || self.joined.iter().filter(|joined| !joined.connection.is_flushed());
            let mut descriptors: Vec<PollFd<'_>> = unsent()
                .map(|joined| PollFd::from_borrowed_fd(joined.connection.as_fd(), PollFlags::OUT))
                .collect();
            if descriptors.is_empty() {
                return;
            }
            poll(&mut descriptors, Some(deadline.remaining(LINGER)));
            for joined in &mut self.joined {
                joined.connection.flush();
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.joined.len() + 1 == self.listener.members as usize
    }

    fn complete_reason(&self) -> String {
        format!("all {} members have joined", self.listener.members)
    }

    fn members(&self) -> impl Iterator<Item = &JoinedMember> {
        self.joined.iter().map(|joined| &joined.member)
    }

    fn status(&self) -> JoinStatus {
        let root = JoinedMember {
            name: format!("{} (the root)", self.listener.name),
            address: self.root_address(),
            member: Some(self.settings.root as u32),
        };
        JoinStatus {
            members: self.listener.members,
            joined: std::iter::once(root).chain(self.members().cloned()).collect(),
            rejected: self.rejected,
            last_rejected: self.last_rejected.clone(),
        }
    }

    /// The address of the root's node for other members. A node that listens at the unspecified
    /// address is reached where the members have connected.
    fn root_address(&self) -> SocketAddr {
        let loopback = || match self.node.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        match self.node.ip() {
            ip if !ip.is_unspecified() => self.node,
            _ if self.listener.members == 1 => SocketAddr::new(loopback(), self.node.port()),
            ip => SocketAddr::new(self.root_ip.unwrap_or(ip), self.node.port()),
        }
    }

    /// Sends the status to the members that have joined.
    fn send_progress(&mut self) -> JoinStatus {
        self.has_progress = false;
        self.progress_at = Instant::now() + PROGRESS_INTERVAL;
        let status = self.status();
        tracing::info!(%status, "members join");
        let text = status.to_string();
        // A member that has not read the last message gets a later one.
        for joined in self.joined.iter_mut().filter(|joined| joined.connection.is_flushed()) {
            joined.connection.send(&RootMessage::Progress { text: text.clone() });
        }
        status
    }

    fn sleep(&self, deadline: Deadline) {
        let now = Instant::now();
        let mut until = self.pending.front().map(|pending| pending.deadline);
        let mut wake_at = |at: Instant| until = Some(until.map_or(at, |until| until.min(at)));
        if self.has_progress {
            wake_at(self.progress_at);
        }
        let mut descriptors = Vec::with_capacity(1 + self.pending.len() + self.joined.len());
        if self.accept_at <= now {
            descriptors.push(PollFd::from_borrowed_fd(self.listener.socket.as_fd(), PollFlags::IN));
        } else {
            wake_at(self.accept_at);
        }
        descriptors.extend(self.pending.iter().map(|pending| pending.connection.poll_fd()));
        descriptors.extend(self.joined.iter().map(|joined| joined.connection.poll_fd()));
        let at_most = until.map_or(CONTINUE_CHECK_INTERVAL, |until| {
            until.saturating_duration_since(now).min(CONTINUE_CHECK_INTERVAL)
        });
        poll(&mut descriptors, Some(deadline.remaining(at_most)));
    }

    fn poll_connections(&mut self) {
        // A member that has left makes room for a pending one, so joined members come first.
        self.poll_joined();
        self.accept();
        for _ in 0..self.pending.len() {
            let Some(pending) = self.pending.pop_front() else { return };
            self.poll_pending(pending);
        }
    }

    fn poll_joined(&mut self) {
        let mut stay = Vec::with_capacity(self.joined.len());
        for mut joined in std::mem::take(&mut self.joined) {
            joined.connection.flush();
            match joined.connection.read_line() {
                ReadLine::Pending => stay.push(joined),
                ReadLine::Closed => {
                    tracing::info!(member = %joined.member, "left before the group started");
                    self.has_progress = true;
                }
                // A member sends nothing after its claim.
                ReadLine::Line(_) | ReadLine::TooLong => {
                    self.count_rejected(joined.member.address, "unexpected message after the claim");
                }
            }
        }
        self.joined = stay;
        if self.joined.is_empty() {
            self.root_ip = None;
        }
    }

    fn accept(&mut self) {
        if self.accept_at > Instant::now() {
            return;
        }
        // A bounded number per call, so that a flood of connections does not delay the members.
        for _ in 0..PENDING_MAX {
            match self.listener.socket.accept().and_then(|(stream, from)| Pending::greet(stream, from)) {
                Ok(pending) => self.pending.push_back(pending),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // For example, no descriptor is free. A connection that was aborted before `accept`
                // fails too; the pause is harmless.
                Err(error) => {
                    self.count_rejected("a connection", &error.to_string());
                    self.accept_at = Instant::now() + ACCEPT_BACKOFF;
                    break;
                }
            }
        }
        while self.pending.len() > PENDING_MAX {
            if let Some(pending) = self.pending.pop_front() {
                self.count_rejected(pending.from, "no claim, and too many connections");
            }
        }
    }

    fn poll_pending(&mut self, mut pending: Pending) {
        pending.connection.flush();
        let outcome = match pending.connection.read_line() {
            ReadLine::Line(line) => self.check_claim(&pending, &line),
            ReadLine::Pending if Instant::now() < pending.deadline => Outcome::Pending,
            ReadLine::Pending => Outcome::Foreign(format!("no claim within {} s", CLAIM_TIMEOUT.as_secs())),
            ReadLine::Closed => Outcome::Foreign("closed without a claim".into()),
            ReadLine::TooLong => Outcome::Foreign("not a Treecast node".into()),
        };
        match outcome {
            Outcome::Pending => self.pending.push_back(pending),
            Outcome::Foreign(reason) => self.count_rejected(pending.from, &reason),
            Outcome::Rejected(reason) => {
                self.count_rejected(pending.from, &reason);
                pending.connection.send(&RootMessage::Rejected { reason });
            }
            Outcome::Accepted { member, claim } => {
                let Claim { is_shared, mtu_bytes, challenge, .. } = claim;
                let challenges = Challenges { root: pending.challenge, member: challenge };
                let proof = self.key.proof_of_root(challenges);
                pending.connection.send(&RootMessage::Accepted { proof });
                self.root_ip = Some(pending.root_ip);
                self.has_progress = true;
                let connection = pending.connection;
                self.joined.push(Joined { connection, member, is_shared, mtu_bytes, challenges });
            }
        }
    }

    fn count_rejected(&mut self, peer: impl fmt::Display, reason: &str) {
        tracing::warn!(%peer, reason, "connection rejected");
        self.rejected += 1;
        self.last_rejected = Some(format!("{peer}: {reason}"));
        self.has_progress = true;
    }
}

impl Pending {
    fn greet(stream: TcpStream, from: SocketAddr) -> io::Result<Self> {
        let root_ip = stream.local_addr()?.ip().to_canonical();
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let challenge = Hash::random()?;
        let mut connection = Connection::new(stream, CLAIM_BYTES_MAX)?;
        connection.send(&Greeting { treecast: VERSION, challenge });
        Ok(Self { connection, from, root_ip, challenge, deadline: Instant::now() + CLAIM_TIMEOUT })
    }
}
