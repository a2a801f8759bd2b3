//! Between an application and its node: one group.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use treecast_proto::{Ending, GroupId, MemberId, MemberLoss, Offload, Refused, Sequence};

use crate::daemon::Line;
use crate::memory::ring::{RingReader, RingWriter};
use crate::sync::lock;
use crate::wait::event_count::EventCount;
use crate::wait::waker::Waker;

/// What an application and its node know together of a group.
#[derive(Debug)]
pub(crate) struct Channel {
    pub group: GroupId,
    /// Rings when there is something to see for the application.
    pub events: EventCount,
    /// Whether there is something to see for the node.
    has_news: AtomicBool,
    /// What leads on to the application, if it is in another process: a client of the daemon.
    pub line: Option<Line>,
    placed: OnceLock<Placed>,
    is_closed: AtomicBool,
    state: Mutex<State>,
}

/// A member's place, once it has one.
#[derive(Debug)]
pub(crate) struct Placed {
    /// The application's side of the ring, until it takes it.
    pub side: Mutex<Option<Side>>,
    pub member: u32,
    pub offload: Offload,
}

/// A side of a ring.
#[derive(Debug)]
pub(crate) enum Side {
    Writer(RingWriter),
    Reader(RingReader),
}

impl Side {
    /// Whether the application has done so much that the node is to know while the kernel's packet path has the group: at the root,
    /// written what that has not sent on, and not left to be sent on; at another member, read as many packets since `consumed` as the parent is told of.
    pub fn has_much(&self, consumed: Sequence) -> bool {
        match self {
            Self::Reader(reader) => reader.shared_memory().is_none_or(|memory| {
                memory.is_delegated().load(Ordering::Acquire) == 0
                    && memory.forwarded().load(Ordering::Acquire) != memory.written().load(Ordering::Acquire)
            }),
            Self::Writer(writer) => writer.shared_memory().is_none_or(|memory| {
                memory.read().load(Ordering::Acquire).wrapping_sub(consumed.0) >= writer.slots() / 4
            }),
        }
    }

    /// Whether an application in another process has done anything, which it says by its numbers alone.
    pub fn has_moved(&self, consumed: Sequence) -> bool {
        match self {
            Self::Reader(reader) => reader.has_new(),
            Self::Writer(writer) => writer.read() != consumed,
        }
    }

    /// Whether all numbers that the application has written could be.
    pub const fn is_valid(&self) -> bool {
        match self {
            Self::Reader(reader) => reader.is_valid(),
            Self::Writer(writer) => writer.is_valid(),
        }
    }
}

/// What has happened to a group.
#[derive(Debug, Default, Clone)]
pub(crate) struct State {
    pub is_ready: bool,
    pub losses: Vec<(MemberId, MemberLoss)>,
    pub newcomers: Vec<MemberId>,
    pub ending: Option<Ending>,
    pub refused: Option<Refused>,
    pub does_not_fit: bool,
    /// At a client: the daemon is no longer there, or does not let the group go on, and why.
    pub broken: Option<String>,
}

impl Channel {
    pub fn new(group: GroupId, leader: Arc<Waker>) -> Self {
        Self {
            group,
            events: EventCount::new(leader),
            has_news: AtomicBool::new(false),
            line: None,
            placed: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            state: Mutex::new(State::default()),
        }
    }

    /// The same for an application in another process.
    pub fn with_line(group: GroupId, leader: Arc<Waker>, line: Line) -> Self {
        Self { line: Some(line), ..Self::new(group, leader) }
    }

    /// There are packets, or there is room, for the application to see.
    pub fn ring(&self) {
        match &self.line {
            Some(line) => line.ring(self.group),
            None => self.events.notify(),
        }
    }

    /// The same, also if the application does not say that it sleeps: the kernel's packet path may have taken that away.
    pub fn ring_anyway(&self) {
        match &self.line {
            Some(line) => line.ring_anyway(self.group),
            None => self.events.notify(),
        }
    }

    /// Something has happened that the application is to know.
    fn tell(&self) {
        match &self.line {
            Some(line) => line.tell(),
            None => self.events.notify(),
        }
    }

    pub fn placed(&self) -> Option<&Placed> {
        self.placed.get()
    }

    pub fn place(&self, placed: Placed) {
        // A member that gets another place keeps its memory only if it has read nothing yet; proto then begins anew.
        if self.placed.set(placed).is_ok() {
            self.tell();
        }
    }

    /// There is something to see for the node.
    pub fn give_news(&self) {
        self.has_news.store(true, Ordering::Release);
    }

    pub fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Acquire)
    }

    pub fn take_news(&self) -> bool {
        self.has_news.swap(false, Ordering::AcqRel)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.tell();
    }

    pub fn ready(&self) {
        self.change(|state| state.is_ready = true);
    }

    pub fn joined(&self, member: MemberId) {
        self.change(|state| state.newcomers.push(member));
    }

    pub fn lost(&self, member: MemberId, loss: MemberLoss) {
        self.change(|state| state.losses.push((member, loss)));
    }

    pub fn end(&self, ending: Ending) {
        self.change(|state| state.ending = Some(ending));
    }

    pub fn refuse(&self, refused: Refused) {
        self.change(|state| state.refused = Some(refused));
    }

    pub fn break_off(&self, why: &str) {
        self.change(|state| {
            state.broken.get_or_insert_with(|| why.into());
        });
    }

    pub fn does_not_fit(&self) {
        self.change(|state| state.does_not_fit = true);
    }

    /// The root has closed the group, and all that it has sent is in the ring.
    pub fn close(&self) {
        if !self.is_closed.swap(true, Ordering::AcqRel) {
            self.tell();
        }
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub fn has_ended(&self) -> bool {
        self.state().ending.is_some()
    }
}
