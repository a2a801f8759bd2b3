//! Links a group in the daemon to the clients that have it: one, or the processes of a host that
//! are members of the same group.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create, open,
};
use treecast_ebpf::{SlotMemory, WakeSocket};
use treecast_engine::settings::config::GroupConfig;
use treecast_proto::{Ending, GroupId, GroupKey, OwnerId, ReaderSet};
use treecast_shm::clients::{ChargedMemory, Clients};
use treecast_shm::places::ProcessPlace;
use treecast_shm::readers::SharedReaders;
use treecast_shm::settings::RingSettings;
use treecast_shm::shared_group::SharedGroup;
use treecast_shm::sync::lock;

use super::account::{Account, Charge, KernelMemory, Lease};
use super::messages::{MemoryLayout, Wakeup};
use super::seqpacket;

/// The link of a group to its clients.
#[derive(Debug)]
pub(crate) struct ClientLink {
    /// The client that was first.
    waker: Arc<ClientWaker>,
    /// Whether the group's root is a process of this host.
    is_root: bool,
    key: GroupKey,
    /// Whether the engine knows the group. A process may come before the root of its own host.
    is_entered: AtomicBool,
    /// The group's page, in which a client says whether it sleeps.
    memory: OnceLock<SlotMemory>,
    lent: Mutex<Option<Arc<Lent>>>,
    /// Where several processes have the group: the memory of their places.
    readers: Option<SharedReaders>,
    clients: Mutex<Vec<LinkedClient>>,
    account: Arc<Account>,
    kernel_memory: Arc<KernelMemory>,
    /// The daemon's memory of a group that one client has, in bytes: the link, and the entry in the
    /// client's connection.
    state_bytes: u64,
    /// The daemon's part of the group.
    state: Mutex<Charge>,
    /// The memory that clients map, where it can be taken back.
    leases: Mutex<Vec<Arc<Lease>>>,
}

/// A client that has a group.
#[derive(Debug)]
struct LinkedClient {
    place: u32,
    waker: Arc<ClientWaker>,
    /// Whether the group has changed since the client's last update.
    has_update: bool,
    /// Whether it has the memory of the group.
    has_memory: bool,
    /// How the group has ended for this client alone, which has left it.
    ending: Option<Ending>,
}

/// The other clients of this host that have a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    None,
    /// None has it any more, and some have not come yet.
    Awaited,
    Some,
}

/// A group of the daemon, with the link to its clients.
#[derive(Debug, Clone)]
pub(crate) struct LinkedGroup {
    pub shared: Arc<SharedGroup>,
    pub link: Arc<ClientLink>,
}

/// A group of the daemon, which may have ended and been dropped.
#[derive(Debug)]
pub(crate) struct WeakGroup {
    pub shared: Weak<SharedGroup>,
    /// The group keeps its link.
    link: Weak<ClientLink>,
}

impl LinkedGroup {
    pub fn downgrade(&self) -> WeakGroup {
        WeakGroup { shared: Arc::downgrade(&self.shared), link: Arc::downgrade(&self.link) }
    }
}

impl WeakGroup {
    pub fn upgrade(&self) -> Option<LinkedGroup> {
        Some(LinkedGroup { shared: self.shared.upgrade()?, link: self.link.upgrade()? })
    }
}

/// Wakes a client.
#[derive(Debug)]
pub(crate) struct ClientWaker {
    /// The daemon's end of the wake-ups.
    pub socket: OwnedFd,
    /// Where the kernel's packet path wakes the client.
    pub wake_socket: WakeSocket,
    /// The client's user and process, for the log.
    pub name: String,
}

/// The memory of a group that its clients map.
#[derive(Debug)]
pub(crate) struct Lent {
    pub memory: MemoryLayout,
    pub slots: OwnedFd,
    pub page: OwnedFd,
    /// The client's memory, until the client has unmapped it.
    pub leases: Vec<Arc<Lease>>,
}

impl ClientLink {
    /// The link to the first client that has the group, at its place; with the memory of the
    /// places, where there are several, and its charge. `entry_bytes` is the memory of the group in
    /// the client's connection.
    pub fn new(
        waker: &Arc<ClientWaker>,
        is_root: bool,
        (account, kernel_memory): (&Arc<Account>, &Arc<KernelMemory>),
        entry_bytes: usize,
        key: GroupKey,
        place: u32,
        readers: Option<(SharedReaders, Charge)>,
    ) -> Self {
        let (readers, charge) = readers.unzip();
        let lease = readers.as_ref().zip(charge);
        let lease = lease.map(|(shared, charge)| Lease::new([shared.readers.mapping()], charge));
        let link = Self {
            waker: Arc::clone(waker),
            is_root,
            key,
            is_entered: AtomicBool::new(false),
            memory: OnceLock::new(),
            lent: Mutex::new(None),
            readers,
            clients: Mutex::default(),
            account: Arc::clone(account),
            kernel_memory: Arc::clone(kernel_memory),
            state_bytes: (size_of::<Self>() + entry_bytes) as u64,
            state: Mutex::new(account.no_charge()),
            leases: Mutex::new(lease.into_iter().collect()),
        };
        // The link has no other client that could have the place already.
        let _ = link.add_client(place, waker);
        link
    }

    /// Adds a client, at its place. As long as the group has no memory, a client may take the place
    /// of one that has left.
    ///
    /// # Errors
    /// The reason for the client, if another one has or had the place.
    pub fn add_client(&self, place: u32, waker: &Arc<ClientWaker>) -> Result<(), String> {
        let mut clients = lock(&self.clients);
        if self.memory.get().is_none() {
            clients.retain(|client| client.place != place || client.ending.is_none());
        }
        if let Some(other) = clients.iter().find(|client| client.place == place) {
            let name = &other.waker.name;
            return Err(format!("the group has that member already: it is, or was, {name}"));
        }
        let waker = Arc::clone(waker);
        clients.push(LinkedClient { place, waker, has_update: true, has_memory: false, ending: None });
        Ok(())
    }

    /// Checks that a further client means the same group, and place.
    ///
    /// # Errors
    /// The reason for the client.
    pub fn check_same(&self, config: &GroupConfig, place: Option<ProcessPlace>) -> Result<(), String> {
        let group = config.settings().group;
        if config.key() != self.key {
            return Err(format!("another process of this host has group {group} with another token"));
        }
        let count = self.place_count();
        match place {
            Some(place) if place.count == count && place.number < place.count => Ok(()),
            _ => Err(format!(
                "another process of this host has group {group} with {count} members on this host, and this one with {}: give all the same list of members",
                place.map_or(1, |place| place.count)
            )),
        }
    }

    /// Whether the root of the group is a process of this host.
    pub const fn is_root(&self) -> bool {
        self.is_root
    }

    /// Whether the engine knows the group.
    pub fn is_entered(&self) -> bool {
        self.is_entered.load(Ordering::SeqCst)
    }

    pub fn set_entered(&self) {
        self.is_entered.store(true, Ordering::SeqCst);
    }

    /// The number of processes that have the group, or are to have it.
    pub fn place_count(&self) -> u32 {
        self.readers.as_ref().map_or(1, |shared| shared.readers.places().len() as u32)
    }

    /// The memory of the places, where several processes have the group.
    pub const fn readers(&self) -> Option<&SharedReaders> {
        self.readers.as_ref()
    }

    /// Where several processes have the group and some poll descriptors: wakes them by their
    /// sockets.
    pub fn wake_watchers(&self, group: GroupId) {
        if self.readers.as_ref().is_none_or(|shared| !shared.readers.has_watchers()) {
            return;
        }
        for client in &*lock(&self.clients) {
            client.waker.wake(Wakeup::Ring(group.0));
        }
    }

    /// Wakes the client at a place: there is an update for it.
    pub fn wake_one_for_update(&self, place: u32) {
        if let Some(client) = lock(&self.clients).iter_mut().find(|client| client.place == place) {
            client.has_update = true;
            client.waker.wake(Wakeup::Update);
        }
    }

    pub fn take_update(&self, place: u32) -> bool {
        let mut clients = lock(&self.clients);
        let client = clients.iter_mut().find(|client| client.place == place);
        client.is_some_and(|client| mem::take(&mut client.has_update))
    }

    /// Which of the group's other clients on this host than the one at this place have not left.
    pub fn others(&self, place: u32) -> Others {
        let Some(SharedReaders { readers, .. }) = &self.readers else { return Others::None };
        let is_there = |client: &LinkedClient| client.place != place && client.ending.is_none();
        if lock(&self.clients).iter().any(is_there) {
            return Others::Some;
        }
        let mut places = 0..readers.places().len() as u32;
        if places.any(|place| self.awaits(place)) { Others::Awaited } else { Others::None }
    }

    /// Which of the processes that share this node have not come, and which are lost; none where
    /// only one has the group.
    pub fn present_readers(&self) -> Option<treecast_proto::Readers> {
        let count = self.readers.as_ref()?.readers.places().len() as u32;
        let mut readers = treecast_proto::Readers { awaited: ReaderSet::first(count), ..Default::default() };
        for client in &*lock(&self.clients) {
            readers.awaited.remove(client.place);
            if client.ending.is_some_and(|ending| ending != Ending::Closed) {
                readers.lost.insert(client.place);
            }
        }
        Some(readers)
    }

    /// Whether a place still waits for its client.
    pub fn awaits(&self, place: u32) -> bool {
        lock(&self.clients).iter().all(|client| client.place != place)
    }

    /// The client at a place knows how the group has ended.
    pub fn set_ended(&self, place: u32, ending: Ending) {
        if let Some(client) = lock(&self.clients).iter_mut().find(|client| client.place == place) {
            client.ending = Some(ending);
        }
    }

    /// Whether all clients that have come have left the group.
    pub fn is_left(&self) -> bool {
        lock(&self.clients).iter().all(|client| client.ending.is_some())
    }

    /// The client at a place leaves the group, which goes on for the others: they wait for it no
    /// more.
    pub fn leave(&self, place: u32, ending: Ending) {
        let Some(SharedReaders { readers, .. }) = &self.readers else { return };
        {
            let mut clients = lock(&self.clients);
            if let Some(client) = clients.iter_mut().find(|client| client.place == place) {
                client.ending = Some(ending);
            }
            // Before the group has memory its place holds back no slot, and the client may join
            // again.
            if self.memory.get().is_some() {
                readers.places()[place as usize].leave();
            }
        }
        self.advance_read();
        readers.notify();
        self.wake_one_for_update(place);
    }

    /// Passes the slots that all clients have read back to the node.
    pub fn advance_read(&self) {
        // The root takes the least of the places itself.
        let memory = self.memory.get().filter(|_| !self.is_root);
        if let Some((SharedReaders { readers, .. }, memory)) = self.readers.as_ref().zip(memory) {
            readers.advance_read_in(memory);
        }
    }

    /// How the group has ended for the client at a place, which has left it.
    pub fn ending_of(&self, place: u32) -> Option<Ending> {
        let clients = lock(&self.clients);
        clients.iter().find(|client| client.place == place)?.ending
    }

    /// Whether the client at a place has read everything received.
    pub fn has_read_all(&self, place: u32) -> bool {
        let place = self.readers.as_ref().and_then(|shared| shared.readers.places().get(place as usize));
        let memory = self.memory.get();
        place
            .zip(memory)
            .is_some_and(|(place, memory)| place.read().0 == memory.written().load(Ordering::Acquire))
    }

    fn make_memory(&self, settings: RingSettings) -> io::Result<(SlotMemory, OwnedFd, OwnedFd)> {
        let slot_bytes = settings.slot_bytes();
        let new = |bytes: usize| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let descriptor = memfd_create("treecast", flags)?;
            ftruncate(&descriptor, bytes as u64)?;
            // A client that shortened the file would crash the daemon at its next access.
            fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok::<_, rustix::io::Errno>(descriptor)
        };
        let (slots, page) = (new(slot_bytes * settings.slots as usize)?, new(SlotMemory::PAGE_BYTES)?);
        let memory = SlotMemory::over(&slots, &page, slot_bytes, settings.slots, true)?;
        let slots = if self.is_root { slots } else { read_only(&slots)? };
        Ok((memory, slots, page))
    }

    /// Offers the memory of the group to the clients.
    fn lend(&self, memory: &SlotMemory, settings: RingSettings, slots: OwnedFd, page: OwnedFd) {
        let RingSettings { payload_bytes_max, start, .. } = settings;
        let clients = lock(&self.clients);
        if let Some(SharedReaders { readers, .. }) = &self.readers {
            readers.set_start(start);
            for client in clients.iter().filter(|client| client.ending.is_some()) {
                readers.places()[client.place as usize].leave();
            }
        }
        memory.is_lent().store(1, Ordering::Release);
        let _ = self.memory.set(memory.clone());
        drop(clients);
        let memory = MemoryLayout {
            slots: memory.count(),
            slot_bytes: memory.slot_bytes(),
            payload_bytes_max,
            start: start.0,
            lease: None,
        };
        let leases = lock(&self.leases).clone();
        *lock(&self.lent) = Some(Arc::new(Lent { memory, slots, page, leases }));
    }

    /// The memory to send to the client at a place; once. Where there is one place only, its
    /// descriptors are closed when it is sent.
    pub fn take_lent(&self, place: u32) -> Option<Arc<Lent>> {
        let mut lent = lock(&self.lent);
        let mut clients = lock(&self.clients);
        let client = clients.iter_mut().find(|client| client.place == place && !client.has_memory)?;
        let taken = if self.readers.is_some() { lent.clone() } else { lent.take() };
        client.has_memory = taken.is_some();
        taken
    }
}

impl Clients for ClientLink {
    fn owner(&self) -> OwnerId {
        OwnerId(self.account.user)
    }

    fn name(&self) -> &str {
        &self.waker.name
    }

    fn wake(&self, group: GroupId) {
        if self.readers.is_some() {
            return self.wake_always(group);
        }
        fence(Ordering::SeqCst);
        if self.memory.get().is_none_or(|memory| memory.is_waiting().swap(0, Ordering::SeqCst) != 0) {
            self.waker.wake(Wakeup::Ring(group.0));
        }
    }

    fn wake_always(&self, group: GroupId) {
        let Some(SharedReaders { readers, .. }) = &self.readers else {
            return self.waker.wake(Wakeup::Ring(group.0));
        };
        readers.notify();
        self.wake_watchers(group);
    }

    fn wake_for_update(&self) {
        for client in &mut *lock(&self.clients) {
            client.has_update = true;
            client.waker.wake(Wakeup::Update);
        }
    }

    fn wake_socket(&self) -> Option<WakeSocket> {
        self.readers.is_none().then_some(self.waker.wake_socket)
    }

    fn is_charged(&self) -> bool {
        lock(&self.state).bytes() > 0
    }

    fn charge_state(&self, bytes: u64) -> Result<(), String> {
        lock(&self.state).resize(bytes + self.state_bytes)
    }

    fn charge_memory(&self, bytes: u64, state_bytes: u64) -> Result<Box<dyn ChargedMemory + '_>, String> {
        let mut state = lock(&self.state);
        state.resize(state_bytes + self.state_bytes + bytes)?;
        Ok(Box::new(ChargedRing { link: self, charge: state.split(bytes) }))
    }
}

/// Memory of a ring, charged to the clients' user.
#[derive(Debug)]
struct ChargedRing<'a> {
    link: &'a ClientLink,
    charge: Charge,
}

impl ChargedMemory for ChargedRing<'_> {
    fn make(self: Box<Self>, settings: RingSettings) -> Result<SlotMemory, String> {
        let Self { link, charge } = *self;
        let made = link.make_memory(settings);
        let (memory, slots, page) =
            made.map_err(|error| format!("cannot allocate the memory of the group: {error}"))?;
        lock(&link.leases).push(Lease::new(memory.mappings(), charge));
        link.lend(&memory, settings, slots, page);
        Ok(memory)
    }

    fn lend_kernel_memory(
        self: Box<Self>,
        memory: &SlotMemory,
        settings: RingSettings,
        (slots, page): (OwnedFd, OwnedFd),
    ) -> io::Result<()> {
        let Self { link, charge } = *self;
        link.kernel_memory.add([slots.as_fd(), page.as_fd()], charge)?;
        link.lend(memory, settings, slots, page);
        Ok(())
    }
}

impl ClientWaker {
    fn wake(&self, wakeup: Wakeup) {
        // A client with a full buffer polls all its groups once it reads (`client/`).
        let _ = seqpacket::send(self.socket.as_fd(), &wakeup.write(), &[], false);
    }
}

/// Another descriptor of a file in memory, for a process of another user, which cannot open it for
/// writing either: the file is the daemon's. (A seal against writing would keep the daemon from
/// freeing the pages.)
fn read_only(memory: &OwnedFd) -> io::Result<OwnedFd> {
    fchmod(memory, Mode::RUSR)?;
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}
