//! What leads from a group in the daemon to the client whose application has it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use treecast_ebpf::SlotMemory;
use treecast_proto::GroupId;
use treecast_terms::format_size;

use super::messages::{Memory, Ring};
use super::seqpacket;
use crate::engine::RingTerms;
use crate::sync::lock;

/// What leads to a client, for one of its groups.
#[derive(Debug)]
pub(crate) struct Line {
    ear: Arc<Ear>,
    is_root: bool,
    /// Whether there is something that the client has not been told.
    has_news: AtomicBool,
    /// Where the client says whether it sleeps.
    memory: OnceLock<SlotMemory>,
    share: Mutex<Option<Share>>,
    budget: Arc<Budget>,
    bytes: AtomicU64,
}

/// Where a client is rung.
#[derive(Debug)]
pub(crate) struct Ear {
    pub bell: OwnedFd,
    /// Of the socket on which it is woken by the kernel's packet path.
    pub wake_port: u16,
}

/// How much memory a user's groups may take.
#[derive(Debug)]
pub(crate) struct Budget {
    pub rule: String,
    pub bytes_max: Option<u64>,
    pub bytes: AtomicU64,
}

/// What a client is given of its group's memory.
#[derive(Debug)]
pub(crate) struct Share {
    pub memory: Memory,
    pub slots: OwnedFd,
    pub page: OwnedFd,
}

impl Line {
    pub const fn new(ear: Arc<Ear>, is_root: bool, budget: Arc<Budget>) -> Self {
        Self {
            ear,
            is_root,
            has_news: AtomicBool::new(false),
            memory: OnceLock::new(),
            share: Mutex::new(None),
            budget,
            bytes: AtomicU64::new(0),
        }
    }

    pub fn wake_port(&self) -> u16 {
        self.ear.wake_port
    }

    /// There are packets, or there is room. The client is rung only if it sleeps.
    pub fn ring(&self, group: GroupId) {
        fence(Ordering::SeqCst);
        if self.memory.get().is_none_or(|memory| memory.is_waiting().swap(0, Ordering::SeqCst) != 0) {
            self.ear.ring(Ring::Packets(group.0));
        }
    }

    /// The same, whether it sleeps or not.
    pub fn ring_anyway(&self, group: GroupId) {
        self.ear.ring(Ring::Packets(group.0));
    }

    /// Something has happened.
    pub fn tell(&self) {
        self.has_news.store(true, Ordering::SeqCst);
        self.ear.ring(Ring::News);
    }

    pub fn take_news(&self) -> bool {
        self.has_news.swap(false, Ordering::SeqCst)
    }

    /// Takes memory from what the user is allowed.
    ///
    /// # Errors
    /// What the client is told, if that is too much.
    pub fn take_room(&self, terms: RingTerms) -> Result<(), String> {
        let slot_bytes = SlotMemory::slot_bytes_for(usize::from(terms.payload_bytes_max));
        let bytes = u64::from(terms.slots) * slot_bytes as u64 + SlotMemory::PAGE_BYTES as u64;
        // A place that is given anew takes the place of the one before.
        self.give_room_back();
        self.budget.take(bytes)?;
        self.bytes.store(bytes, Ordering::SeqCst);
        Ok(())
    }

    /// The memory is no longer there.
    pub fn give_room_back(&self) {
        let bytes = self.bytes.swap(0, Ordering::SeqCst);
        self.budget.bytes.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Makes memory that the client can have, in the same form as the kernel's.
    ///
    /// # Errors
    /// What the client is told.
    pub fn share_memory(&self, terms: RingTerms) -> Result<SlotMemory, String> {
        self.make_memory(terms).map_err(|error| format!("there is no memory for the group: {error}"))
    }

    fn make_memory(&self, terms: RingTerms) -> std::io::Result<SlotMemory> {
        let slot_bytes = SlotMemory::slot_bytes_for(usize::from(terms.payload_bytes_max));
        let new = |bytes: usize| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let descriptor = memfd_create("treecast", flags)?;
            ftruncate(&descriptor, bytes as u64)?;
            Ok::<_, rustix::io::Errno>(descriptor)
        };
        let (slots, page) = (new(slot_bytes * terms.slots as usize)?, new(SlotMemory::PAGE_BYTES)?);
        let memory = SlotMemory::over(&slots, &page, slot_bytes, terms.slots, true)?;
        // Whoever could make it shorter could make whoever looks at it fall.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        // What is mapped already stays writable. The kernel's own memory can be shared for writing alone: what is opened for reading
        // cannot be mapped (bpf_map_mmap).
        let no_writing = if self.is_root { SealFlags::empty() } else { SealFlags::FUTURE_WRITE };
        fcntl_add_seals(&slots, seals | no_writing)?;
        fcntl_add_seals(&page, seals)?;
        self.share(&memory, terms, slots, page);
        Ok(memory)
    }

    /// Lets the client have memory of its group.
    pub fn share(&self, memory: &SlotMemory, terms: RingTerms, slots: OwnedFd, page: OwnedFd) {
        let _ = self.memory.set(memory.clone());
        let RingTerms { payload_bytes_max, start, .. } = terms;
        let memory = Memory {
            slots: memory.count(),
            slot_bytes: memory.slot_bytes(),
            payload_bytes_max,
            start: start.0,
        };
        *lock(&self.share) = Some(Share { memory, slots, page });
    }

    /// What the client is given; once.
    pub fn take_share(&self) -> Option<Share> {
        lock(&self.share).take()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.give_room_back();
    }
}

impl Ear {
    fn ring(&self, ring: Ring) {
        // Whoever has so much to hear that nothing more fits looks at everything then.
        let _ = seqpacket::send(self.bell.as_fd(), &ring.write(), &[], false);
    }
}

impl Budget {
    fn take(&self, bytes: u64) -> Result<(), String> {
        let before = self.bytes.fetch_add(bytes, Ordering::SeqCst);
        match self.bytes_max {
            Some(bytes_max) if before + bytes > bytes_max => {
                self.bytes.fetch_sub(bytes, Ordering::SeqCst);
                Err(format!(
                    "{} allows groups {} of memory: {} are taken, and this one takes {}",
                    self.rule,
                    format_size(bytes_max),
                    format_size(before),
                    format_size(bytes)
                ))
            }
            _ => Ok(()),
        }
    }
}
