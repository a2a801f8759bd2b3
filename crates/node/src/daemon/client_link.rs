//! Links a group in the daemon to the client that has it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use treecast_ebpf::SlotMemory;
use treecast_proto::GroupId;
use treecast_terms::format_size;

use super::messages::{MemoryLayout, Wakeup};
use super::seqpacket;
use crate::memory::RingSettings;
use crate::sync::lock;

/// Charges are multiples of this number of bytes, so that messages are short.
const CHARGE_UNIT: u64 = 1 << 10;

/// The link to a client, for one of its groups.
#[derive(Debug)]
pub(crate) struct ClientLink {
    waker: Arc<ClientWaker>,
    is_root: bool,
    /// Whether the group has changed since the client's last update.
    has_update: AtomicBool,
    /// The group's page, in which the client says whether it sleeps.
    memory: OnceLock<SlotMemory>,
    share: Mutex<Option<Share>>,
    budget: Arc<Budget>,
    /// What the group is charged to the user's budget, and what of it is the memory that the client maps.
    charged_bytes: AtomicU64,
    shared_bytes: AtomicU64,
}

/// Wakes a client.
#[derive(Debug)]
pub(crate) struct ClientWaker {
    /// The daemon's end of the wake-ups.
    pub socket: OwnedFd,
    /// The UDP port at which the kernel's packet path wakes the client.
    pub wake_port: u16,
    /// The client's user and process, for the log.
    pub name: String,
}

/// The memory budget of a user's groups.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The name of the policy's rule.
    pub rule: String,
    pub bytes_max: Option<u64>,
    pub bytes: AtomicU64,
}

/// The memory of a group that its client maps.
#[derive(Debug)]
pub(crate) struct Share {
    pub memory: MemoryLayout,
    pub slots: OwnedFd,
    pub page: OwnedFd,
}

impl ClientLink {
    pub const fn new(waker: Arc<ClientWaker>, is_root: bool, budget: Arc<Budget>) -> Self {
        Self {
            waker,
            is_root,
            has_update: AtomicBool::new(false),
            memory: OnceLock::new(),
            share: Mutex::new(None),
            budget,
            charged_bytes: AtomicU64::new(0),
            shared_bytes: AtomicU64::new(0),
        }
    }

    pub fn wake_port(&self) -> u16 {
        self.waker.wake_port
    }

    /// The client's user and process.
    pub fn name(&self) -> &str {
        &self.waker.name
    }

    /// Wakes the client, if it sleeps: the ring has new packets, or room.
    pub fn wake(&self, group: GroupId) {
        fence(Ordering::SeqCst);
        if self.memory.get().is_none_or(|memory| memory.is_waiting().swap(0, Ordering::SeqCst) != 0) {
            self.waker.wake(Wakeup::Ring(group.0));
        }
    }

    /// Wakes the client, even if it does not say that it sleeps.
    pub fn wake_always(&self, group: GroupId) {
        self.waker.wake(Wakeup::Ring(group.0));
    }

    /// Wakes the client: the state of the group has changed.
    pub fn wake_for_update(&self) {
        self.has_update.store(true, Ordering::SeqCst);
        self.waker.wake(Wakeup::Update);
    }

    pub fn take_update(&self) -> bool {
        self.has_update.swap(false, Ordering::SeqCst)
    }

    /// Charges to the user's budget what the group takes from now on: the memory that the client maps, and the group's state.
    ///
    /// # Errors
    /// The reason for the client, if the budget is exceeded: nothing has changed then.
    pub fn charge(&self, shared_bytes: u64, state_bytes: u64) -> Result<(), String> {
        let bytes = (shared_bytes + state_bytes).next_multiple_of(CHARGE_UNIT);
        self.budget.change(self.charged_bytes.load(Ordering::SeqCst), bytes)?;
        self.charged_bytes.store(bytes, Ordering::SeqCst);
        self.shared_bytes.store(shared_bytes, Ordering::SeqCst);
        Ok(())
    }

    /// What is charged for the memory that the client maps, in bytes.
    pub fn shared_bytes(&self) -> u64 {
        self.shared_bytes.load(Ordering::SeqCst)
    }

    /// What the memory of [`ClientLink::share_memory`] takes, in bytes.
    pub fn memory_bytes(settings: RingSettings) -> u64 {
        let slot_bytes = SlotMemory::slot_bytes_for(usize::from(settings.payload_bytes_max));
        SlotMemory::bytes_for(slot_bytes, settings.slots)
    }

    /// Makes memory that the client can map, with the layout of the kernel's.
    ///
    /// # Errors
    /// The reason for the client.
    pub fn share_memory(&self, settings: RingSettings) -> Result<SlotMemory, String> {
        self.make_memory(settings)
            .map_err(|error| format!("cannot allocate the memory of the group: {error}"))
    }

    fn make_memory(&self, settings: RingSettings) -> std::io::Result<SlotMemory> {
        let slot_bytes = SlotMemory::slot_bytes_for(usize::from(settings.payload_bytes_max));
        let new = |bytes: usize| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let descriptor = memfd_create("treecast", flags)?;
            ftruncate(&descriptor, bytes as u64)?;
            Ok::<_, rustix::io::Errno>(descriptor)
        };
        let (slots, page) = (new(slot_bytes * settings.slots as usize)?, new(SlotMemory::PAGE_BYTES)?);
        let memory = SlotMemory::over(&slots, &page, slot_bytes, settings.slots, true)?;
        // A client that shortened the file would crash the daemon at its next access.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        // Existing mappings stay writable. The kernel's own memory has no such protection: a map cannot be mapped through a read-only
        // descriptor (bpf_map_mmap).
        let no_writing = if self.is_root { SealFlags::empty() } else { SealFlags::FUTURE_WRITE };
        fcntl_add_seals(&slots, seals | no_writing)?;
        fcntl_add_seals(&page, seals)?;
        self.share(&memory, settings, slots, page);
        Ok(memory)
    }

    /// Offers the memory of the group to the client.
    pub fn share(&self, memory: &SlotMemory, settings: RingSettings, slots: OwnedFd, page: OwnedFd) {
        let _ = self.memory.set(memory.clone());
        let RingSettings { payload_bytes_max, start, .. } = settings;
        let memory = MemoryLayout {
            slots: memory.count(),
            slot_bytes: memory.slot_bytes(),
            payload_bytes_max,
            start: start.0,
        };
        *lock(&self.share) = Some(Share { memory, slots, page });
    }

    /// The memory to send to the client; once.
    pub fn take_share(&self) -> Option<Share> {
        lock(&self.share).take()
    }
}

impl Drop for ClientLink {
    fn drop(&mut self) {
        // Less is never refused.
        let _ = self.budget.change(self.charged_bytes.load(Ordering::SeqCst), 0);
    }
}

impl ClientWaker {
    fn wake(&self, wakeup: Wakeup) {
        // A client with a full buffer polls all its groups once it reads (`client.rs`).
        let _ = seqpacket::send(self.socket.as_fd(), &wakeup.write(), &[], false);
    }
}

impl Budget {
    /// Changes what one group is charged.
    fn change(&self, before: u64, after: u64) -> Result<(), String> {
        let bytes_max = self.bytes_max.filter(|_| before < after).unwrap_or(u64::MAX);
        let change = |used: u64| Some(used - before + after).filter(|used| *used <= bytes_max);
        let changed = self.bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        changed.map(|_| ()).map_err(|used| {
            format!(
                "{} allows groups {} of memory: {} are used, and this group needs {}",
                self.rule,
                format_size(bytes_max),
                format_size(used - before),
                format_size(after)
            )
        })
    }
}
