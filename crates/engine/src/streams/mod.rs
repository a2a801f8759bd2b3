//! The TCP connections of a node that carry the data of groups, from parent to child (docs/wire.md,
//! "Streams").
//!
//! A child connects to its parent's port, whose number is that of the parent's UDP port, and
//! answers the parent's challenge. From then on only the parent sends. Every socket is
//! non-blocking, and one epoll instance tells which of them are ready.
//!
//! # Bounds
//! Only hosts that have children of this node may connect, so that others cannot take the places of
//! members. At most [`guests::GUESTS_MAX`] connections wait for the first packet of their host,
//! each for [`guests::GUEST_TIMEOUT`] and [`HEADER_BYTES`] bytes. What a parent could not write
//! stays in the slots, and takes only a [`Queued`] for each packet, of which there are fewer than
//! slots.

#![expect(unsafe_code, reason = "the kernel reads and writes slots in place")]

mod guests;
mod incoming;
mod losses;
mod options;
mod outgoing;
mod port;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, bind, connect, recv, send, sockopt};
use rustix::time::Timespec;
use treecast_proto::{Challenge, GroupId, MemberId, Nanoseconds, Sequence};
use treecast_wire::HEADER_BYTES;

use crate::settings::congestion::CongestionControl;
use guests::Guest;
use options::DelayedAcks;
use port::Port;

pub use incoming::{Incoming, Place, Places, Read, Received};
pub use outgoing::{Outgoing, Queued, Written};

/// The connections of a node.
#[derive(Debug)]
pub struct Streams {
    /// The address of the node's UDP socket.
    address: SocketAddr,
    epoll: OwnedFd,
    /// None: another process has it.
    port: Option<Port>,
    /// When the port is tried again.
    listen_at: Nanoseconds,
    /// The attempts to listen that have failed.
    listen_failures: u32,
    /// Whether the listening socket has left BBR.
    has_left_bbr: bool,
    opened: u64,
    connections: BTreeMap<u64, Connection>,
    children: BTreeMap<(GroupId, MemberId), u64>,
    parents: BTreeMap<GroupId, u64>,
    /// The group that was read last.
    last_read: Option<GroupId>,
    /// When a group may open its stream again.
    dial_at: BTreeMap<GroupId, Nanoseconds>,
    /// The groups that have no stream to their parents, and want one.
    undialed: BTreeSet<GroupId>,
    /// The connections that wait for the first packet of their host.
    guests: BTreeSet<u64>,
    /// Children with packets that are not written yet.
    unwritten: VecDeque<u64>,
    /// Children whose sockets take no more.
    blocked: BTreeSet<u64>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    peer: SocketAddr,
    role: Role,
}

#[derive(Debug)]
enum Role {
    /// A host has connected, and has to answer the challenge.
    Guest(Guest),
    /// A child, to which packets are written.
    Child(Box<Outgoing>),
    /// This node connects to the parent of a group, whose challenge it has to answer.
    Dialing(GroupId),
    /// The parent of a group, whose packets are read.
    Parent(Box<Incoming>, DelayedAcks),
}

/// How long a child waits before it connects again, and a parent before it tries its port again.
const RETRY_INTERVAL: Nanoseconds = Nanoseconds::from_ms(20);

/// The number of failed attempts after which the node warns that it cannot listen: 0.2 s. A program
/// that looks for a free port may listen at a reserved one for a moment.
const LISTEN_FAILURES_TOLD: u32 = 10;

/// The most events of one call.
const EVENTS_MAX: usize = 32;

/// The epoll token of the listening socket.
const LISTENER: u64 = 0;

/// A connection that became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// A host has answered the challenge: its first packet is there.
    FirstPacket { stream: u64, from: IpAddr, challenge: Challenge, packet: [u8; HEADER_BYTES] },
    /// The parent of a group has sent its challenge.
    Challenged { stream: u64, group: GroupId, challenge: Challenge },
    /// Packets of the parent of a group can be read.
    Parent { stream: u64, group: GroupId },
    /// A child takes more.
    Writable { stream: u64, group: GroupId, child: MemberId },
    /// A child's stream has ended.
    ChildClosed { group: GroupId, child: MemberId },
}

impl Streams {
    /// No connections, of a node with this UDP address. Its TCP port of the same number is
    /// reserved, if no other process has it.
    pub fn new(address: SocketAddr) -> io::Result<Self> {
        Ok(Self {
            address,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            port: Port::reserve(address).ok(),
            listen_at: Nanoseconds::ZERO,
            listen_failures: 0,
            has_left_bbr: false,
            opened: LISTENER,
            connections: BTreeMap::new(),
            children: BTreeMap::new(),
            parents: BTreeMap::new(),
            last_read: None,
            dial_at: BTreeMap::new(),
            undialed: BTreeSet::new(),
            guests: BTreeSet::new(),
            unwritten: VecDeque::new(),
            blocked: BTreeSet::new(),
        })
    }

    /// Whether the node has its TCP port.
    pub const fn has_port(&self) -> bool {
        self.port.is_some()
    }

    /// Whether there are connections, or there may be.
    pub fn is_used(&self) -> bool {
        self.port.as_ref().is_some_and(Port::is_listening) || !self.connections.is_empty()
    }

    /// Listens for children from now on, or tries to.
    pub fn listen(&mut self, now: Nanoseconds) {
        let is_over = self.port.as_ref().is_some_and(Port::is_listening);
        if is_over || self.port.is_none() && now < self.listen_at {
            return;
        }
        let open = |port: Port| {
            let port = port.listen()?;
            let data = epoll::EventData::new_u64(LISTENER);
            epoll::add(&self.epoll, &port, data, epoll::EventFlags::IN)?;
            Ok(port)
        };
        match self.port.take().map_or_else(|| Port::reserve(self.address), Ok).and_then(open) {
            Ok(port) => {
                self.has_left_bbr = options::leave_bbr(&port);
                self.port = Some(port);
            }
            Err(error) => {
                self.listen_failures += 1;
                if self.listen_failures == LISTEN_FAILURES_TOLD {
                    tracing::warn!(%error, address = %self.address, "cannot listen for the streams of children: trying again");
                }
                self.listen_at = now + RETRY_INTERVAL;
            }
        }
    }

    /// Whether it is to be told the time: a group waits for its stream, or the port could not be
    /// had.
    pub fn awaits_time(&self) -> bool {
        !self.undialed.is_empty() || self.awaits_port()
    }

    /// Whether the port could not be had, and is to be tried again.
    fn awaits_port(&self) -> bool {
        self.port.is_none() && self.listen_at > Nanoseconds::ZERO
    }

    /// Listens again if the port could not be had, and it is time; returns the groups whose streams
    /// may be opened by now.
    pub fn due(&mut self, now: Nanoseconds) -> Vec<GroupId> {
        if self.awaits_port() {
            self.listen(now);
        }
        let is_due = |group: &&GroupId| self.dial_at.get(group).is_none_or(|&at| at <= now);
        self.undialed.iter().filter(is_due).copied().collect()
    }

    /// Has the stream of a group to its parent, or none; connects if that is due, and otherwise
    /// says so later ([`Streams::due`]).
    pub fn dial(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        parent: Option<SocketAddr>,
        congestion: Option<&CongestionControl>,
    ) {
        let current = self.parents.get(&group).copied();
        let peer = current.and_then(|stream| self.connections.get(&stream)).map(|connection| connection.peer);
        if peer == parent {
            self.undialed.remove(&group);
            return;
        }
        if let Some(stream) = current {
            self.close(stream);
        }
        let Some(parent) = parent else {
            self.undialed.remove(&group);
            return;
        };
        self.undialed.insert(group);
        if self.dial_at.get(&group).is_some_and(|&at| now < at) {
            return;
        }
        self.dial_at.insert(group, now + RETRY_INTERVAL);
        match self.connect(parent, congestion) {
            Ok(socket) => {
                let flags = epoll::EventFlags::IN;
                if let Ok(stream) = self.add(socket, parent, Role::Dialing(group), flags) {
                    self.parents.insert(group, stream);
                    self.undialed.remove(&group);
                }
            }
            Err(error) => tracing::debug!(%group, %parent, %error, "cannot connect to the parent"),
        }
    }

    fn connect(&self, parent: SocketAddr, congestion: Option<&CongestionControl>) -> io::Result<OwnedFd> {
        let socket = port::open(parent)?;
        if let Some(algorithm) = congestion {
            options::set_congestion(&socket, algorithm);
        }
        // The parent knows this node by its address.
        if !self.address.ip().is_unspecified() {
            bind(&socket, &SocketAddr::new(self.address.ip(), 0))?;
        }
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &parent) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(error) => Err(error.into()),
        }
    }

    fn add(
        &mut self,
        socket: OwnedFd,
        peer: SocketAddr,
        role: Role,
        flags: epoll::EventFlags,
    ) -> io::Result<u64> {
        self.opened += 1;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(self.opened), flags)?;
        self.connections.insert(self.opened, Connection { socket, peer, role });
        Ok(self.opened)
    }

    /// When something is due without an event; none: never.
    pub fn timeout(&self) -> Option<Nanoseconds> {
        let guests = self.guests.iter().filter_map(|stream| Some(self.guest(*stream)?.until));
        let undialed = self.undialed.iter().filter_map(|group| self.dial_at.get(group).copied());
        let listening = self.awaits_port().then_some(self.listen_at);
        guests.chain(undialed).chain(listening).min()
    }

    /// Whether there are streams of children only, all of which take more.
    pub fn only_sends_freely(&self) -> bool {
        self.parents.is_empty() && self.undialed.is_empty() && self.blocked.is_empty()
    }

    /// Whether there are no streams of children, and none is listened for.
    pub fn has_no_children(&self) -> bool {
        !self.port.as_ref().is_some_and(Port::is_listening)
    }

    /// The stream to a parent on which data is expected: that of the group for which a thread
    /// waits, or else the one that was read last, if it is open.
    pub fn expected_parent(&self, awaited: Option<GroupId>) -> Option<(u64, GroupId)> {
        let group = awaited.or(self.last_read).or_else(|| self.parents.keys().next().copied())?;
        let stream = *self.parents.get(&group)?;
        let is_open = matches!(self.connections.get(&stream)?.role, Role::Parent(..));
        is_open.then_some((stream, group))
    }

    /// Returns what is ready. The caller handles all of it before the next call. A connection of a
    /// host from which none is awaited is closed at once.
    pub fn ready(&mut self, now: Nanoseconds, is_awaited: impl Fn(IpAddr) -> bool) -> Vec<Ready> {
        let empty = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; EVENTS_MAX];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut events[..], Some(&at_once)).unwrap_or(0);
        let mut ready = Vec::new();
        for event in &events[..count] {
            match event.data.u64() {
                LISTENER => self.accept(now, &is_awaited),
                stream => ready.extend(self.look_at(stream, event.flags)),
            }
        }
        self.expire_guests(now);
        ready
    }

    fn look_at(&mut self, stream: u64, flags: epoll::EventFlags) -> Option<Ready> {
        let Connection { socket, peer, role } = self.connections.get_mut(&stream)?;
        match role {
            Role::Guest(_) => self.hear_guest(stream),
            Role::Child(child) => {
                let (group, child) = (child.group, child.child);
                // A child sends nothing after its first packet: this is the end of its stream.
                if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    self.close(stream);
                    return Some(Ready::ChildClosed { group, child });
                }
                Some(Ready::Writable { stream, group, child })
            }
            Role::Dialing(group) => {
                let mut challenge = [0; Challenge::BYTES];
                let group = *group;
                // The parent writes it at once.
                match recv(&*socket, &mut challenge[..], RecvFlags::empty()) {
                    Ok((Challenge::BYTES, _)) => {
                        Some(Ready::Challenged { stream, group, challenge: Challenge(challenge) })
                    }
                    Err(Errno::AGAIN | Errno::INTR) => None,
                    other => {
                        tracing::debug!(%group, parent = %peer, ?other, "the parent takes no stream");
                        self.close(stream);
                        None
                    }
                }
            }
            Role::Parent(parent, _) => Some(Ready::Parent { stream, group: parent.group }),
        }
    }

    /// A host is a child of a group, whose settings may name a congestion control.
    pub fn attach(
        &mut self,
        stream: u64,
        group: GroupId,
        child: MemberId,
        congestion: Option<&CongestionControl>,
    ) {
        if let Some(earlier) = self.children.insert((group, child), stream) {
            self.close(earlier);
            self.children.insert((group, child), stream);
        }
        if let Some(connection) = self.connections.get_mut(&stream) {
            self.guests.remove(&stream);
            options::tune_sender(&connection.socket);
            options::set_accepted_congestion(&connection.socket, congestion, self.has_left_bbr);
            connection.role = Role::Child(Box::new(Outgoing::new(group, child)));
        }
    }

    /// Answers the challenge of a group's parent by this packet, and reads packets from now on.
    pub fn answer(&mut self, now: Nanoseconds, stream: u64, packet: &[u8; HEADER_BYTES]) {
        let Some(Connection { socket, role, .. }) = self.connections.get_mut(&stream) else { return };
        let Role::Dialing(group) = *role else { return };
        // An empty socket takes so few bytes.
        if send(&*socket, packet, SendFlags::NOSIGNAL) == Ok(packet.len()) {
            *role = Role::Parent(Box::new(Incoming::new(group)), DelayedAcks::begin(socket, now));
        } else {
            self.close(stream);
        }
    }

    /// Queues a packet for a child; returns the number of bytes that are queued for it.
    pub fn queue(&mut self, group: GroupId, child: MemberId, queued: Queued) -> usize {
        let Some(&stream) = self.children.get(&(group, child)) else { return 0 };
        let Some(Connection { role: Role::Child(outgoing), .. }) = self.connections.get_mut(&stream) else {
            return 0;
        };
        if outgoing.is_idle() {
            self.unwritten.push_back(stream);
        }
        outgoing.push(queued)
    }

    /// The first packet that is queued for a child and not written as a whole.
    pub fn first_unwritten(&self, group: GroupId, child: MemberId) -> Option<Sequence> {
        let stream = self.children.get(&(group, child))?;
        let Role::Child(outgoing) = &self.connections.get(stream)?.role else { return None };
        outgoing.first()
    }

    /// A stream with packets that are to be written.
    pub fn next_unwritten(&mut self) -> Option<u64> {
        self.unwritten.pop_front()
    }

    /// The stream of a child.
    pub fn of_child(&self, group: GroupId, child: MemberId) -> Option<u64> {
        self.children.get(&(group, child)).copied()
    }

    /// Writes what is queued for a child, from slots or buffers of calls; none of a packet that has
    /// left its slot. Returns also whether the socket took no more before.
    ///
    /// # Safety
    /// Each address points to the whole payload of a packet. No thread writes it during the call.
    pub unsafe fn write(
        &mut self,
        stream: u64,
        address: impl Fn(GroupId, Sequence, u32) -> Option<*const u8>,
    ) -> Option<(GroupId, MemberId, Written, bool)> {
        let Connection { socket, role: Role::Child(outgoing), .. } = self.connections.get_mut(&stream)?
        else {
            return None;
        };
        let was_blocked = outgoing.is_blocked();
        let (group, child) = (outgoing.group, outgoing.child);
        let address = |packet, slot| address(group, packet, slot);
        // SAFETY: as the caller says.
        let written = unsafe { outgoing.write(socket.as_fd(), address) };
        match written {
            Written::Nothing | Written::All | Written::Blocked => {
                let is_blocked = written == Written::Blocked;
                if is_blocked != was_blocked {
                    if is_blocked {
                        self.blocked.insert(stream);
                    } else {
                        self.blocked.remove(&stream);
                    }
                    let writable =
                        if is_blocked { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
                    let flags = epoll::EventFlags::IN | writable;
                    let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(stream), flags);
                }
            }
            Written::Failed => self.close(stream),
        }
        Some((group, child, written, was_blocked))
    }

    /// Whether the loss rate of the stream to a child is so high that datagrams are faster.
    pub fn loses_packets(&mut self, now: Nanoseconds, stream: u64) -> bool {
        let connection = self.connections.get_mut(&stream);
        let Some(Connection { socket, role: Role::Child(outgoing), .. }) = connection else { return false };
        outgoing.loses_packets(now, socket.as_fd())
    }

    /// Reads packets of a group's parent into their places, as [`Incoming::read`]. A stream that
    /// has ended is closed.
    pub fn read(
        &mut self,
        now: Nanoseconds,
        stream: u64,
        places: &mut impl Places,
        take: impl FnMut(Received<'_>) -> bool,
    ) -> Read {
        let Some(Connection { socket, role: Role::Parent(incoming, acks), .. }) =
            self.connections.get_mut(&stream)
        else {
            return Read::Ended;
        };
        acks.renew(socket, now);
        self.last_read = Some(incoming.group);
        let read = incoming.read(socket.as_fd(), places, take);
        if read == Read::Ended {
            self.close(stream);
        }
        read
    }

    /// What is read of a group's parent.
    pub fn incoming(&mut self, group: GroupId) -> Option<&mut Incoming> {
        let connection = self.connections.get_mut(self.parents.get(&group)?)?;
        if let Role::Parent(incoming, _) = &mut connection.role { Some(incoming) } else { None }
    }

    /// The address of the parent at the other end.
    pub fn peer(&self, stream: u64) -> Option<SocketAddr> {
        self.connections.get(&stream).map(|connection| connection.peer)
    }

    /// Closes the stream of a group to its parent, to open it again.
    pub fn close_parent(&mut self, group: GroupId) {
        if let Some(&stream) = self.parents.get(&group) {
            self.close(stream);
        }
    }

    /// Closes the stream of a child.
    pub fn close_child(&mut self, group: GroupId, child: MemberId) {
        if let Some(&stream) = self.children.get(&(group, child)) {
            self.close(stream);
        }
    }

    /// Closes all streams of a group.
    pub fn close_group(&mut self, group: GroupId) {
        self.close_parent(group);
        self.dial_at.remove(&group);
        self.undialed.remove(&group);
        let range = (group, MemberId(0))..=(group, MemberId(u32::MAX));
        let children: Vec<u64> = self.children.range(range).map(|(_, &stream)| stream).collect();
        for stream in children {
            self.close(stream);
        }
    }

    /// Closes a stream. The system removes its socket from the epoll instance.
    pub fn close(&mut self, stream: u64) {
        let Some(Connection { role, .. }) = self.connections.remove(&stream) else { return };
        match role {
            Role::Guest(_) => {
                self.guests.remove(&stream);
            }
            Role::Child(child) => {
                self.blocked.remove(&stream);
                let key = (child.group, child.child);
                if self.children.get(&key) == Some(&stream) {
                    self.children.remove(&key);
                }
            }
            Role::Dialing(group) => self.lose_parent(group, stream),
            Role::Parent(parent, _) => self.lose_parent(parent.group, stream),
        }
    }

    /// The stream to the parent of a group is opened again, unless the group is over.
    fn lose_parent(&mut self, group: GroupId, stream: u64) {
        if self.parents.get(&group) == Some(&stream) {
            self.parents.remove(&group);
            self.undialed.insert(group);
        }
    }
}

impl AsFd for Streams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
