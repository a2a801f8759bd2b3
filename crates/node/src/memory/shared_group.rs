//! The state of a group that an application and its node share, besides the slots.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use treecast_proto::{
    Contribution, Ending, GroupId, MemberId, MemberLoss, Offload, OwnerId, Refused, Sequence,
};

use super::clients::{Clients, Loan};
use super::event_count::EventCount;
use super::places::ProcessPlace;
use super::progress::ProgressList;
use super::ring::{RingReader, RingWriter};
use super::waker::Waker;
use crate::sync::lock;

/// One group, as its application and its node know it.
#[derive(Debug)]
pub(crate) struct SharedGroup {
    pub group: GroupId,
    /// Wakes the application's threads that wait for the group.
    pub events: EventCount,
    /// Whether the application has written or read since the node last looked.
    has_progress: AtomicBool,
    /// Where the node looks for groups that have progress; none at a client, whose node is elsewhere.
    progress: Option<Arc<ProgressList>>,
    /// In a daemon: the processes that have the group.
    pub clients: Option<Arc<dyn Clients>>,
    /// At a client: its place among the processes of its host that have the group; none if it is the only one.
    pub place: Option<ProcessPlace>,
    /// At a client: the memory that the daemon shares with it.
    pub mapped: OnceLock<Box<dyn Loan>>,
    placement: OnceLock<Placement>,
    is_closed: AtomicBool,
    state: Mutex<GroupState>,
}

/// A host's place in the tree, with its ring.
#[derive(Debug)]
pub(crate) struct Placement {
    /// The application's side of the ring, until it takes it.
    pub side: Mutex<Option<RingSide>>,
    pub member: u32,
    pub offload: Offload,
}

/// A side of a ring.
#[derive(Debug)]
pub(crate) enum RingSide {
    Writer(RingWriter),
    Reader(RingReader),
}

impl RingSide {
    /// For the node's side, while the kernel's packet path runs the group: whether user space has to run it because of what the
    /// application has done. At the root: it has written packets that the kernel's packet path has not sent, and has not delegated
    /// sending. At another member: it has read so much that the parent has to know, as `owes_window_update` says of what it has read.
    pub fn needs_user_space(&self, owes_window_update: impl FnOnce(Sequence) -> bool) -> bool {
        match self {
            Self::Reader(reader) => reader.shared_memory().is_none_or(|memory| {
                memory.is_delegated().load(Ordering::Acquire) == 0
                    && memory.forwarded().load(Ordering::Acquire) != memory.written().load(Ordering::Acquire)
            }),
            Self::Writer(writer) => writer
                .shared_memory()
                .is_none_or(|memory| owes_window_update(Sequence(memory.read().load(Ordering::Acquire)))),
        }
    }

    /// For the node's side: whether an application in another process, which sets no flag here, has written or read.
    pub fn has_progress(&self, consumed: Sequence) -> bool {
        match self {
            Self::Reader(reader) => reader.has_new(),
            Self::Writer(writer) => writer.read() != consumed,
        }
    }

    /// Whether all numbers of the other side were valid.
    pub const fn is_valid(&self) -> bool {
        match self {
            Self::Reader(reader) => reader.is_valid(),
            Self::Writer(writer) => writer.is_valid(),
        }
    }
}

/// A host that is lost, or a process of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostLoss {
    pub host: MemberId,
    /// The place of the one process that is lost; none: all of the host.
    pub reader: Option<u32>,
    pub loss: MemberLoss,
}

/// The state of a group that its application reads.
#[derive(Debug, Default, Clone)]
pub(crate) struct GroupState {
    pub is_ready: bool,
    pub losses: Vec<HostLoss>,
    /// At the root: the result of the last all-reduce.
    pub reduced: Option<Contribution>,
    pub ending: Option<Ending>,
    pub refused: Option<Refused>,
    pub datagrams_too_long: bool,
    /// At a client: why the daemon does not run the group any more.
    pub failure: Option<String>,
}

impl SharedGroup {
    pub fn new(group: GroupId, leader: Arc<Waker>, progress: Option<Arc<ProgressList>>) -> Self {
        Self {
            group,
            events: EventCount::new(leader),
            has_progress: AtomicBool::new(false),
            progress,
            clients: None,
            place: None,
            mapped: OnceLock::new(),
            placement: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            state: Mutex::new(GroupState::default()),
        }
    }

    /// The same at a client, at this place among the processes of its host.
    pub fn at_place(self, place: Option<ProcessPlace>) -> Self {
        Self { place, ..self }
    }

    /// A group of a daemon's clients.
    pub fn with_clients(
        group: GroupId,
        leader: Arc<Waker>,
        progress: Option<Arc<ProgressList>>,
        clients: Arc<dyn Clients>,
    ) -> Self {
        Self { clients: Some(clients), ..Self::new(group, leader, progress) }
    }

    /// Who it belongs to: in a daemon, the client's user.
    pub fn owner(&self) -> OwnerId {
        self.clients.as_ref().map(|clients| clients.owner()).unwrap_or_default()
    }

    /// Wakes the application, if it sleeps: the ring has new packets, or room.
    pub fn wake(&self) {
        match &self.clients {
            Some(clients) => clients.wake(self.group),
            None => self.events.notify(),
        }
    }

    /// Wakes the application even if it does not say that it sleeps: the kernel's packet path may have reset that word.
    pub fn wake_always(&self) {
        match &self.clients {
            Some(clients) => clients.wake_always(self.group),
            None => self.events.notify(),
        }
    }

    /// Wakes the application: the state has changed.
    fn wake_for_state(&self) {
        match &self.clients {
            Some(clients) => clients.wake_for_update(),
            None => self.events.notify_always(),
        }
    }

    pub fn placement(&self) -> Option<&Placement> {
        self.placement.get()
    }

    pub fn set_placement(&self, placement: Placement) {
        // The first placement stays. A member that is placed again has read nothing yet: only then does the protocol start again.
        if self.placement.set(placement).is_ok() {
            self.wake_for_state();
        }
    }

    /// The application has written or read.
    pub fn mark_progress(&self) {
        if !self.has_progress.swap(true, Ordering::AcqRel)
            && let Some(progress) = &self.progress
        {
            progress.add(self.group);
        }
    }

    pub fn has_progress(&self) -> bool {
        self.has_progress.load(Ordering::Acquire)
    }

    pub fn take_progress(&self) -> bool {
        self.has_progress.swap(false, Ordering::AcqRel)
    }

    pub fn state(&self) -> MutexGuard<'_, GroupState> {
        lock(&self.state)
    }

    fn change(&self, change: impl FnOnce(&mut GroupState)) {
        change(&mut self.state());
        self.wake_for_state();
    }

    pub fn set_ready(&self) {
        self.change(|state| state.is_ready = true);
    }

    pub fn add_loss(&self, loss: HostLoss) {
        self.change(|state| state.losses.push(loss));
    }

    pub fn set_reduced(&self, result: Contribution) {
        self.change(|state| state.reduced = Some(result));
    }

    pub fn end(&self, ending: Ending) {
        self.change(|state| state.ending = Some(ending));
    }

    pub fn refuse(&self, refused: Refused) {
        self.change(|state| state.refused = Some(refused));
    }

    /// The daemon does not run the group any more. The first reason stays.
    pub fn fail(&self, reason: &str) {
        self.change(|state| {
            state.failure.get_or_insert_with(|| reason.into());
        });
    }

    pub fn set_datagrams_too_long(&self) {
        self.change(|state| state.datagrams_too_long = true);
    }

    /// The root has closed the group, and all its packets are in the ring.
    pub fn close(&self) {
        if !self.is_closed.swap(true, Ordering::AcqRel) {
            self.wake_for_state();
        }
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub fn has_ended(&self) -> bool {
        self.state().ending.is_some()
    }

    /// Whether what has been read of the ring's memory before this call is what was written there: not if a daemon has taken the memory
    /// back.
    pub fn is_memory_valid(&self, reader: &RingReader) -> bool {
        if self.mapped.get().is_none() {
            return true;
        }
        // What was read comes before the word.
        fence(Ordering::Acquire);
        reader.shared_memory().is_none_or(|memory| memory.is_lent().load(Ordering::Relaxed) != 0)
    }
}
