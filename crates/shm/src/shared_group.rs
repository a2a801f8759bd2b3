//! The state of a group that an application and its node share, besides the slots.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use treecast_proto::{
    Contribution, Ending, GroupId, MemberId, MemberLoss, Nanoseconds, Offload, OwnerId, Refused, Sequence,
    SessionId,
};

use crate::clients::{Clients, Loan};
use crate::clock;
use crate::event_count::EventCount;
use crate::places::ProcessPlace;
use crate::progress::ProgressList;
use crate::ring::{RingReader, RingWriter};
use crate::sync::lock;
use crate::waker::Waker;

/// One group, as its application and its node know it.
#[derive(Debug)]
pub struct SharedGroup {
    /// Its id.
    pub group: GroupId,
    /// Wakes the application's threads that wait for the group.
    pub events: EventCount,
    /// Whether the application has written or read since the node last looked.
    has_progress: AtomicBool,
    /// Where the node looks for groups that have progress; none at a client, whose node is
    /// elsewhere.
    progress: Option<Arc<ProgressList>>,
    /// In a daemon: the processes that have the group.
    pub clients: Option<Arc<dyn Clients>>,
    /// At a client: its place among the processes of its host that have the group; none if it is
    /// the only one.
    pub place: Option<ProcessPlace>,
    /// At a client: the memory that the daemon shares with it.
    pub mapped: OnceLock<Box<dyn Loan>>,
    placement: OnceLock<Placement>,
    /// At a root whose group has both carriers: until when it prefers datagrams.
    datagrams_until: AtomicU64,
    is_closed: AtomicBool,
    state: Mutex<GroupState>,
}

/// A host's place in the tree, with its ring.
#[derive(Debug)]
pub struct Placement {
    /// The application's side of the ring, until it takes it.
    pub side: Mutex<Option<RingSide>>,
    /// The host's place in the tree.
    pub member: u32,
    /// What the kernel's packet path does for it.
    pub offload: Offload,
    /// The session, if what is in the slots is encrypted: applications have the key.
    pub encrypted_session: Option<SessionId>,
}

/// A side of a ring.
#[derive(Debug)]
pub enum RingSide {
    /// The side that fills slots.
    Writer(RingWriter),
    /// The side that reads slots.
    Reader(RingReader),
}

impl RingSide {
    /// For the node's side, while the kernel's packet path runs the group: whether user space has
    /// to run it because of what the application has done. At the root: it has written packets that
    /// the kernel's packet path has not sent, and has not delegated sending. At another member: it
    /// has read so much that the parent has to know, as `owes_window_update` says of what it has
    /// read.
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

    /// For the node's side: whether an application in another process, which sets no flag here, has
    /// written or read.
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
pub struct HostLoss {
    /// The host.
    pub host: MemberId,
    /// The place of the one process that is lost; none: all of the host.
    pub reader: Option<u32>,
    /// Why it is lost.
    pub loss: MemberLoss,
}

/// The state of a group that its application reads.
#[derive(Debug, Default, Clone)]
pub struct GroupState {
    /// Whether all members are there.
    pub is_ready: bool,
    /// The hosts and processes that are lost.
    pub losses: Vec<HostLoss>,
    /// At the root: the result of the last all-reduce.
    pub reduced: Option<Contribution>,
    /// How the group has ended.
    pub ending: Option<Ending>,
    /// Why the node refuses what the application has asked for.
    pub refused: Option<Refused>,
    /// Whether datagrams of the group are longer than its path carries.
    pub datagrams_too_long: bool,
    /// At a client: why the daemon does not run the group any more.
    pub failure: Option<String>,
}

impl SharedGroup {
    /// A group that has not been placed.
    pub fn new(group: GroupId, polling: Arc<Waker>, progress: Option<Arc<ProgressList>>) -> Self {
        Self {
            group,
            events: EventCount::new(polling),
            has_progress: AtomicBool::new(false),
            progress,
            clients: None,
            place: None,
            mapped: OnceLock::new(),
            placement: OnceLock::new(),
            datagrams_until: AtomicU64::new(0),
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
        polling: Arc<Waker>,
        progress: Option<Arc<ProgressList>>,
        clients: Arc<dyn Clients>,
    ) -> Self {
        Self { clients: Some(clients), ..Self::new(group, polling, progress) }
    }

    /// Who it belongs to: in a daemon, the client's user.
    pub fn owner(&self) -> OwnerId {
        self.clients.as_ref().map(|clients| clients.owner()).unwrap_or_default()
    }

    /// Wakes the application, if it sleeps: the ring has new packets, or free slots.
    pub fn wake(&self) {
        match &self.clients {
            Some(clients) => clients.wake(self.group),
            None => self.events.notify(),
        }
    }

    /// At a root whose group has both carriers: from now until then datagrams are preferred, since
    /// streams lose packets. Whether it was another time before.
    pub fn prefer_datagrams_until(&self, time: Nanoseconds) -> bool {
        let is_new = self.datagrams_until.swap(time.0, Ordering::Relaxed) != time.0;
        if is_new && let Some(memory) = self.events.kernel_memory() {
            memory.datagrams_until().store(time.0, Ordering::Relaxed);
        }
        is_new
    }

    /// Whether datagrams are preferred. A client of a daemon finds that in the memory of its slots.
    pub fn prefers_datagrams(&self) -> bool {
        let until = match self.events.kernel_memory() {
            Some(memory) => memory.datagrams_until(),
            None => &self.datagrams_until,
        };
        let until = Nanoseconds(until.load(Ordering::Relaxed));
        until > Nanoseconds::ZERO && clock::now() < until
    }

    /// Wakes the application even if it does not say that it sleeps: the kernel's packet path may
    /// have reset that word.
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

    /// The host's place in the tree, once it is known.
    pub fn placement(&self) -> Option<&Placement> {
        self.placement.get()
    }

    /// Gives the host its place in the tree, and wakes the application.
    pub fn set_placement(&self, placement: Placement) {
        // The first placement stays. A member that is placed again has read nothing yet: only then
        // does the protocol start again.
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

    /// Whether the application has written or read since the node last looked.
    pub fn has_progress(&self) -> bool {
        self.has_progress.load(Ordering::Acquire)
    }

    /// The same, once.
    pub fn take_progress(&self) -> bool {
        self.has_progress.swap(false, Ordering::AcqRel)
    }

    /// The state, locked.
    pub fn state(&self) -> MutexGuard<'_, GroupState> {
        lock(&self.state)
    }

    fn change(&self, change: impl FnOnce(&mut GroupState)) {
        change(&mut self.state());
        self.wake_for_state();
    }

    /// All members are there.
    pub fn set_ready(&self) {
        self.change(|state| state.is_ready = true);
    }

    /// A host is lost, or a process of it.
    pub fn add_loss(&self, loss: HostLoss) {
        self.change(|state| state.losses.push(loss));
    }

    /// At the root: an all-reduce has its result.
    pub fn set_reduced(&self, result: Contribution) {
        self.change(|state| state.reduced = Some(result));
    }

    /// The group has ended.
    pub fn end(&self, ending: Ending) {
        self.change(|state| state.ending = Some(ending));
    }

    /// The node refuses what the application has asked for.
    pub fn refuse(&self, refused: Refused) {
        self.change(|state| state.refused = Some(refused));
    }

    /// The daemon does not run the group any more. The first reason stays.
    pub fn fail(&self, reason: &str) {
        self.change(|state| {
            state.failure.get_or_insert_with(|| reason.into());
        });
    }

    /// Datagrams of the group are longer than its path carries.
    pub fn set_datagrams_too_long(&self) {
        self.change(|state| state.datagrams_too_long = true);
    }

    /// The root has closed the group, and all its packets are in the ring.
    pub fn close(&self) {
        if !self.is_closed.swap(true, Ordering::AcqRel) {
            self.wake_for_state();
        }
    }

    /// Whether the root has closed the group.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether the group has ended.
    pub fn has_ended(&self) -> bool {
        self.state().ending.is_some()
    }

    /// Whether what has been read of the ring's memory before this call is what was written there:
    /// not if a daemon has taken the memory back.
    pub fn is_memory_valid(&self, reader: &RingReader) -> bool {
        if self.mapped.get().is_none() {
            return true;
        }
        // What was read comes before the word.
        fence(Ordering::Acquire);
        reader.shared_memory().is_none_or(|memory| memory.is_lent().load(Ordering::Relaxed) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_count::tests::memory;

    #[test]
    fn a_client_knows_which_carrier_its_daemon_prefers() {
        let memory = memory();
        let [node, client] = [(); 2].map(|()| {
            let shared_group = SharedGroup::new(GroupId(1), Arc::new(Waker::new().unwrap()), None);
            shared_group.events.attach_kernel(memory.clone());
            shared_group
        });
        assert!(!client.prefers_datagrams());
        let until = clock::now() + Nanoseconds::from_ms(60_000);
        assert!(node.prefer_datagrams_until(until));
        assert!(client.prefers_datagrams());
        // What a client writes there is its own affair.
        memory.datagrams_until().store(u64::MAX, Ordering::Relaxed);
        assert!(!node.prefer_datagrams_until(until));
        assert!(node.prefer_datagrams_until(clock::now()));
        assert!(!client.prefers_datagrams());
    }
}
