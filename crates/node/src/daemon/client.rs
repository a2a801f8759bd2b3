//! The daemon as a process sees it that uses it: what stands in the place of an engine there.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recv, shutdown,
    socket_with, sockopt,
};
use rustix::time::Timespec;
use treecast_ebpf::{KernelCounters, Program, SlotMemory};
use treecast_proto::{Ending, GroupCounters, GroupId, Input, MemberId, Offload, Refused, StrayCounters};

use super::messages::{Answer, Ask, MESSAGE_BYTES_MAX, Memory, News, PlacedWord, Ring, Terms, VERSION};
use super::seqpacket::{self, Received};
use crate::engine::enter;
use crate::engine::root_socket::Source;
use crate::memory::ring::{RingReader, RingWriter, attach_ring};
use crate::memory::shared_group::{Channel, Placed, Side};
use crate::sync::lock;
use crate::wait::event_count::EventCount;
use crate::wait::leader_followers::{EventSource, LeaderFollowers};
use crate::wait::waker::Waker;
use crate::{GroupSettings, NodeError};

/// The connection of a process to a daemon.
#[derive(Debug)]
pub(crate) struct Client {
    path: PathBuf,
    address: SocketAddr,
    has_kernel: bool,
    socket: OwnedFd,
    /// A question and its answer are not parted.
    exchange: Mutex<()>,
    /// What the daemon rings.
    bell: OwnedFd,
    /// What the kernel's packet path wakes by.
    wake: UdpSocket,
    groups: Mutex<BTreeMap<GroupId, Arc<Channel>>>,
    leader_followers: LeaderFollowers,
    own_waker: Waker,
    is_stopping: AtomicBool,
    is_over: AtomicBool,
}

/// Whether there is a daemon.
#[derive(Debug)]
pub(crate) enum Found {
    Daemon(Box<Client>),
    /// Why it is not used.
    Nothing(String),
}

/// What the client's thread is woken by.
const RUNG: u64 = 0;
const WOKEN: u64 = 1;
const HUNG_UP: u64 = 2;
const OWN_BELL: u64 = 3;

/// A daemon that has not answered by then does not answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Groups that end with the node have so long for it.
const PATIENCE: Duration = Duration::from_secs(6);

/// The thread looks as often how far the end is.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// As much is taken in of what wakes before others have their turn.
const BATCH: usize = 256;

/// Whoever has heard so much at once may have missed something.
const MUCH: usize = 64;

/// What a longer message needs; the system has a bound of its own.
const BUFFER_BYTES: usize = 2 * MESSAGE_BYTES_MAX;

impl Client {
    /// Connects to the daemon at a path, if one is there and lets this process in.
    pub fn find(path: &Path, spin: Duration) -> Found {
        match Self::connect(path, spin) {
            Ok(client) => Found::Daemon(Box::new(client)),
            Err(why) => Found::Nothing(why),
        }
    }

    fn connect(path: &Path, spin: Duration) -> Result<Self, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let socket = open(path).map_err(|error| wrong(&error))?;
        let (answer, descriptors) =
            ask(&socket, &Ask::Hello { version: VERSION }).map_err(|error| wrong(&error))?;
        let (address, has_kernel) = match answer {
            Answer::Welcome { address, has_kernel } => (address, has_kernel),
            Answer::Refused { why } => return Err(wrong(&why)),
            _ => return Err(wrong(&"what answers there is no daemon of this version")),
        };
        let Ok([bell, wake]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err(wrong(&"the daemon gave no descriptors: this process may have too many open"));
        };
        Self::new(path, address, has_kernel, socket, bell, wake.into(), spin).map_err(|error| wrong(&error))
    }

    fn new(
        path: &Path,
        address: SocketAddr,
        has_kernel: bool,
        socket: OwnedFd,
        bell: OwnedFd,
        wake: UdpSocket,
        spin: Duration,
    ) -> io::Result<Self> {
        let sources = vec![
            EventSource { descriptor: bell.try_clone()?, token: RUNG, wakes_when_readable: true },
            EventSource { descriptor: wake.try_clone()?.into(), token: WOKEN, wakes_when_readable: true },
            EventSource { descriptor: socket.try_clone()?, token: HUNG_UP, wakes_when_readable: false },
        ];
        let leader_followers = LeaderFollowers::new(sources, spin, true)?;
        let own_waker = Waker::new()?;
        leader_followers.watch(&own_waker, OWN_BELL)?;
        Ok(Self {
            path: path.into(),
            address,
            has_kernel,
            socket,
            exchange: Mutex::new(()),
            bell,
            wake,
            groups: Mutex::default(),
            leader_followers,
            own_waker,
            is_stopping: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the daemon's node listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether its groups are in the kernel's packet path.
    pub const fn has_kernel(&self) -> bool {
        self.has_kernel
    }

    pub fn leader_waker(&self) -> Arc<Waker> {
        self.leader_followers.waker()
    }

    pub fn wait<T>(
        &self,
        events: &EventCount,
        until: Option<Instant>,
        find: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.leader_followers.wait(events, until, find, || self.take_in())
    }

    /// There is something to see in the memory of groups.
    pub fn kick(&self) {
        // A daemon that has so many messages to read that none fits comes to this one's news with those.
        let _ = self.say(&Ask::Kick, false);
    }

    /// Asks for something that is not answered.
    pub fn request(&self, input: &Input<'_>) {
        let ask = match *input {
            Input::Close { group } => Ask::Close { group: group.0 },
            Input::Leave { group } => Ask::Leave { group: group.0 },
            Input::Abort { group } => Ask::Abort { group: group.0 },
            Input::Forward { group, upto, child } => {
                Ask::Forward { group: group.0, upto: upto.0, child: child.map(|child| child.0) }
            }
            _ => unreachable!("an application asks for nothing else"),
        };
        // Of a daemon that is gone its clients are told.
        let _ = self.say(&ask, true);
    }

    fn say(&self, ask: &Ask, may_wait: bool) -> io::Result<()> {
        seqpacket::send(&self.socket, &serde_json::to_vec(ask)?, &[], may_wait)
    }

    /// Makes a group at its root; the answer is the way into the kernel's packet path, where there is one.
    pub fn lead(
        &self,
        settings: &GroupSettings,
        channel: &Arc<Channel>,
    ) -> Result<Option<Source>, NodeError> {
        let exchange = lock(&self.exchange);
        let (memory, descriptors) = self.enter(&Ask::Lead { terms: Terms::of(settings) }, channel)?;
        let mut descriptors = descriptors.into_iter();
        let (Some(memory), Some(slots), Some(page)) = (memory, descriptors.next(), descriptors.next()) else {
            return Err(self.gone("it gave no memory"));
        };
        let (writer, _) = map(&memory, &slots, &page, true, channel)?;
        let source = descriptors.next().map(UdpSocket::from).zip(writer.shared_memory().cloned());
        let source = source.map(|(socket, memory)| Source::new(socket, settings, memory));
        channel.place(Placed {
            side: Mutex::new(Some(Side::Writer(writer))),
            member: settings.root as u32,
            offload: settings.offload,
        });
        drop(exchange);
        Ok(source)
    }

    /// Follows the root of a group.
    pub fn follow(
        &self,
        settings: &GroupSettings,
        sends_join: bool,
        channel: &Arc<Channel>,
    ) -> Result<(), NodeError> {
        let terms = Terms::of_follower(settings, enter::root_of(settings)?);
        let _exchange = lock(&self.exchange);
        self.enter(&Ask::Follow { terms, asks: sends_join }, channel).map(|_| ())
    }

    /// The caller holds the exchange: no news of the group comes before it is known here.
    fn enter(
        &self,
        question: &Ask,
        channel: &Arc<Channel>,
    ) -> Result<(Option<Memory>, Vec<OwnedFd>), NodeError> {
        let group = channel.group;
        if lock(&self.groups).get(&group).is_some_and(|known| !known.has_ended()) {
            return Err(Refused::GroupExists(group).into());
        }
        if self.is_over.load(Ordering::Acquire) {
            return Err(NodeError::NodeClosed);
        }
        match self.ask_alone(question)? {
            (Answer::Entered { memory }, descriptors) => {
                lock(&self.groups).insert(group, Arc::clone(channel));
                Ok((memory, descriptors))
            }
            _ => Err(self.gone("it answers something else")),
        }
    }

    pub fn children(&self, group: GroupId) -> Vec<MemberId> {
        self.members(&Ask::Children { group: group.0 })
    }

    pub fn awaited(&self, group: GroupId) -> Vec<MemberId> {
        self.members(&Ask::Awaited { group: group.0 })
    }

    fn members(&self, question: &Ask) -> Vec<MemberId> {
        match self.ask(question) {
            Ok((Answer::Members { members }, _)) => members.into_iter().map(MemberId).collect(),
            _ => Vec::new(),
        }
    }

    pub fn counters(&self, group: GroupId) -> Option<GroupCounters> {
        self.numbers(&Ask::Counters { group: group.0 }).map(GroupCounters::from_values)
    }

    pub fn kernel_counters(&self, group: GroupId) -> Option<KernelCounters> {
        self.numbers(&Ask::KernelCounters { group: group.0 }).map(KernelCounters::from_values)
    }

    pub fn strays(&self) -> StrayCounters {
        self.numbers(&Ask::Strays).map(StrayCounters::from_values).unwrap_or_default()
    }

    fn numbers(&self, question: &Ask) -> Option<Vec<u64>> {
        match self.ask(question) {
            Ok((Answer::Numbers { numbers }, _)) => numbers,
            _ => None,
        }
    }

    fn ask(&self, question: &Ask) -> Result<(Answer, Vec<OwnedFd>), NodeError> {
        let _exchange = lock(&self.exchange);
        self.ask_alone(question)
    }

    /// The caller holds the exchange.
    fn ask_alone(&self, question: &Ask) -> Result<(Answer, Vec<OwnedFd>), NodeError> {
        match ask(&self.socket, question) {
            Ok((Answer::Refused { why }, _)) => Err(NodeError::Daemon(why)),
            Ok(answered) => Ok(answered),
            Err(error) => {
                let why = self.gone(&error.to_string());
                self.be_over(&why.to_string());
                Err(why)
            }
        }
    }

    fn gone(&self, why: &str) -> NodeError {
        NodeError::Daemon(format!("the daemon at {} is of no use any more: {why}", self.path.display()))
    }

    /// Takes in what has come: wakes for groups, and news.
    fn take_in(&self) {
        let mut bytes = [0; 64];
        let (mut heard, mut has_news) = (0, false);
        while heard < BATCH
            && let Ok(Received::Message(length)) = seqpacket::receive(&self.bell, &mut bytes, None, false)
        {
            heard += 1;
            match Ring::read(&bytes[..length]) {
                Ring::Packets(group) => self.ring(GroupId(group)),
                Ring::News => has_news = true,
            }
        }
        for _ in 0..BATCH {
            let Ok((length, _)) = recv(&self.wake, &mut bytes[..], RecvFlags::DONTWAIT) else { break };
            if let Some(group) = Program::read_wake_datagram(&bytes[..length]) {
                self.ring(group);
            }
        }
        if has_news || heard >= MUCH {
            self.look();
        }
        let peeked = recv(&self.socket, &mut [0_u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        if peeked.is_ok_and(|(length, _)| length == 0) {
            self.be_over(&self.gone("it has ended").to_string());
        }
    }

    fn ring(&self, group: GroupId) {
        let channel = lock(&self.groups).get(&group).cloned();
        channel.inspect(|channel| channel.events.notify());
    }

    /// Asks for all that is new.
    fn look(&self) {
        let _exchange = lock(&self.exchange);
        while let Ok((Answer::News { news, is_all }, descriptors)) = self.ask_alone(&Ask::Look) {
            if let Some(news) = news {
                self.apply(*news, &descriptors);
            }
            if is_all {
                return;
            }
        }
    }

    fn apply(&self, news: News, descriptors: &[OwnedFd]) {
        let group = GroupId(news.group);
        let Some(channel) = lock(&self.groups).get(&group).cloned() else { return };
        if let Some(PlacedWord { member, offload, memory }) = &news.placed {
            let offload = offload.parse().unwrap_or(Offload::Nic);
            let mapped = match descriptors {
                [slots, page] => map(memory, slots, page, false, &channel),
                _ => Err(self.gone("it gave no memory")),
            };
            match mapped {
                Ok((_, reader)) => {
                    let side = Mutex::new(Some(Side::Reader(reader)));
                    channel.place(Placed { side, member: *member, offload });
                }
                Err(error) => channel.break_off(&error.to_string()),
            }
        }
        for (member, loss) in news.losses {
            channel.lost(MemberId(member), loss.into());
        }
        if news.is_ready {
            channel.ready();
        }
        if news.does_not_fit {
            channel.does_not_fit();
        }
        if news.is_closed {
            channel.close();
        }
        if let Some(why) = news.broken {
            channel.break_off(&why);
        }
        if let Some(ending) = news.ending {
            lock(&self.groups).remove(&group);
            channel.end(ending.into());
        }
    }

    /// Nothing comes any more.
    fn be_over(&self, why: &str) {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        if !self.is_stopping.load(Ordering::Acquire) {
            tracing::warn!(%why, "the daemon's groups are over");
        }
        for channel in std::mem::take(&mut *lock(&self.groups)).into_values() {
            channel.break_off(why);
            channel.end(Ending::Aborted);
        }
        self.own_waker.wake();
    }

    /// Ends all groups, and then the client's thread.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.own_waker.arm();
        self.own_waker.wake();
    }

    /// The client's thread.
    pub fn run(&self) {
        let mut stopping_since = None;
        while !self.is_over.load(Ordering::Acquire) {
            self.own_waker.arm();
            let is_stopping = self.is_stopping.load(Ordering::Acquire);
            if is_stopping && self.has_ended(stopping_since.get_or_insert_with(Instant::now)) {
                break;
            }
            if self.is_over.load(Ordering::Acquire) {
                break;
            }
            let woken = self.leader_followers.sleep(is_stopping.then_some(&LOOK));
            self.own_waker.disarm();
            if woken & 1 << OWN_BELL != 0 {
                self.own_waker.clear();
            }
            self.take_in();
        }
        self.be_over("the node has been closed");
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Whether all groups have ended, or had the time for it. Those that the application still has are ended here, again and again:
    /// a member may have got its place since.
    fn has_ended(&self, since: &Instant) -> bool {
        let channels: Vec<Arc<Channel>> = lock(&self.groups).values().cloned().collect();
        // One is here, one in the table, and one with the application.
        for channel in channels.iter().filter(|channel| Arc::strong_count(channel) > 2) {
            let _ = self.say(&Ask::End { group: channel.group.0 }, false);
        }
        channels.iter().all(|channel| channel.has_ended()) || since.elapsed() > PATIENCE
    }
}

/// Maps the memory of a group.
fn map(
    memory: &Memory,
    slots: &OwnedFd,
    page: &OwnedFd,
    is_root: bool,
    channel: &Channel,
) -> Result<(RingWriter, RingReader), NodeError> {
    let what = "cannot map the memory of a group";
    let shared = SlotMemory::over(slots, page, memory.slot_bytes, memory.slots, is_root)
        .map_err(|source| NodeError::System { what, source })?;
    let stride = usize::from(memory.payload_bytes_max);
    if stride == 0 || stride > shared.payload_bytes_max() {
        return Err(NodeError::System { what, source: io::ErrorKind::InvalidData.into() });
    }
    channel.events.attach_kernel(shared.clone());
    Ok(attach_ring(shared, stride, memory.start()))
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_MAX))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(ANSWER_MAX))?;
    let _ = sockopt::set_socket_send_buffer_size(&socket, BUFFER_BYTES);
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn ask(socket: &OwnedFd, question: &Ask) -> io::Result<(Answer, Vec<OwnedFd>)> {
    // Who is sent away may find the connection closed, and what the daemon has said before.
    let sent = seqpacket::send(socket, &serde_json::to_vec(question)?, &[], true);
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut descriptors = Vec::new();
    let mut received = seqpacket::receive(socket.as_fd(), &mut bytes, Some(&mut descriptors), true);
    if received.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset) {
        received = seqpacket::receive(socket.as_fd(), &mut bytes, Some(&mut descriptors), true);
    }
    match received? {
        Received::Message(length) => Ok((serde_json::from_slice(&bytes[..length])?, descriptors)),
        Received::TooLong => Err(io::Error::other("its answer is too long")),
        Received::End => sent.and(Err(io::Error::other("it has ended"))),
    }
}
