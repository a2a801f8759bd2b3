//! The memory that is charged to a user's groups, and how the daemon learns that it is free again.
//!
//! A client keeps what it was sent for as long as it likes: it may leave memory mapped when its
//! group has ended, or pass descriptors to another process, and what it says about that is not
//! believed. So memory is charged until the daemon has taken it back, or the kernel shows that no
//! process has it:
//!
//! - Memory of a [`Lease`] (memfd) is revoked: the daemon frees its pages. Whoever still maps it
//!   finds zeros, and a page that it touches is a new one, which the kernel allocates for that
//!   process like any other memory of its own. Pages that a process has pinned stay;
//!   `RLIMIT_MEMLOCK` and `pipe-user-pages-soft` bound them. The daemon waits until each client has
//!   said that it has unmapped the memory, or is gone. A client that was disconnected while it has
//!   a group finds by a word of the page that what it reads is not valid any more
//!   ([`SlotMemory::is_lent`](treecast_ebpf::SlotMemory::is_lent)). A daemon that ends leaves all
//!   memory to its clients, which may still read what had arrived.
//! - Memory of the kernel's packet path cannot be revoked. [`KernelMemory`] has its descriptors in
//!   an epoll instance: the kernel removes them when their open file descriptions end, which is
//!   when no process has a descriptor or a mapping of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rustix::event::epoll;
use rustix::time::Timespec;
use treecast_ebpf::Mapping;
use treecast_shm::sync::lock;
use treecast_terms::format_size;

/// Charges are multiples of this number of bytes, so that messages are short.
const CHARGE_UNIT: u64 = 1 << 10;

/// The account of a user.
#[derive(Debug)]
pub(crate) struct Account {
    /// The user's number.
    pub user: u32,
    /// The name of the policy's rule.
    rule: String,
    bytes_max: Option<u64>,
    bytes: AtomicU64,
    kernel_memory: Weak<KernelMemory>,
    /// Whether the daemon ends, and takes nothing back any more.
    is_over: AtomicBool,
}

/// Bytes that are charged to an account until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

/// Memory that the daemon shares with clients, and takes back when the last reference is dropped.
/// The group has one, and so has each client that was sent the memory, until it says that it has
/// unmapped it or is gone.
#[derive(Debug)]
pub(crate) struct Lease {
    /// In the order in which they are taken back.
    mappings: Vec<Arc<Mapping>>,
    charge: Option<Charge>,
}

/// The memory of the kernel's packet path that some process has, of all users.
#[derive(Debug)]
pub(crate) struct KernelMemory {
    watch: OwnedFd,
    charges: Mutex<BTreeMap<u64, Charge>>,
}

impl Account {
    pub fn new(user: u32, rule: String, bytes_max: Option<u64>, kernel_memory: Weak<KernelMemory>) -> Self {
        let (bytes, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { user, rule, bytes_max, bytes, kernel_memory, is_over }
    }

    /// The daemon ends: what its clients have is theirs.
    pub fn leave_memory(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Whether anything is charged.
    pub fn is_empty(&self) -> bool {
        if self.bytes.load(Ordering::SeqCst) > 0 {
            self.settle();
        }
        self.bytes.load(Ordering::SeqCst) == 0
    }

    /// Charges a number of bytes.
    ///
    /// # Errors
    /// The reason for the client, if the user's rule does not allow so much.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge, String> {
        let mut charge = self.no_charge();
        charge.resize(bytes)?;
        Ok(charge)
    }

    /// A charge of nothing.
    pub fn no_charge(self: &Arc<Self>) -> Charge {
        Charge { account: Arc::clone(self), bytes: 0 }
    }

    fn settle(&self) {
        if let Some(memory) = self.kernel_memory.upgrade() {
            memory.settle();
        }
    }

    /// Changes a charge; otherwise returns what is used.
    fn change(&self, before: u64, after: u64) -> Result<u64, u64> {
        let bytes_max = self.bytes_max.filter(|_| before < after).unwrap_or(u64::MAX);
        let change = |used: u64| Some(used - before + after).filter(|used| *used <= bytes_max);
        self.bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change)
    }
}

impl Charge {
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Charges another number of bytes instead. Fewer are never refused.
    ///
    /// # Errors
    /// The reason for the client: nothing has changed then.
    pub fn resize(&mut self, bytes: u64) -> Result<(), String> {
        let (account, before, after) = (&self.account, self.bytes, bytes.next_multiple_of(CHARGE_UNIT));
        let changed = account.change(before, after).or_else(|_| {
            account.settle();
            account.change(before, after)
        });
        changed.map_err(|used| {
            format!(
                "{} allows groups {} of memory: {} are used, and this group needs {}",
                account.rule,
                format_size(account.bytes_max.unwrap_or(u64::MAX)),
                format_size(used - before),
                format_size(after)
            )
        })?;
        self.bytes = after;
        Ok(())
    }

    /// Takes this number of bytes from the charge, at most all, as one of its own.
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { account: Arc::clone(&self.account), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let _ = self.account.change(self.bytes, 0);
    }
}

impl Lease {
    pub fn new(mappings: impl IntoIterator<Item = Arc<Mapping>>, charge: Charge) -> Arc<Self> {
        Arc::new(Self { mappings: mappings.into_iter().collect(), charge: Some(charge) })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.charge.as_ref().is_some_and(|charge| charge.account.is_over.load(Ordering::SeqCst)) {
            return;
        }
        if let Some(error) = self.mappings.iter().find_map(|mapping| mapping.free_pages().err()) {
            tracing::error!(%error, "memory of a group cannot be taken back: it stays charged");
            mem::forget(self.charge.take());
        }
    }
}

impl KernelMemory {
    /// # Errors
    /// Those of `epoll_create(2)`.
    pub fn new() -> io::Result<Self> {
        Ok(Self { watch: epoll::create(epoll::CreateFlags::CLOEXEC)?, charges: Mutex::default() })
    }

    /// Keeps a charge until no process has a descriptor or a mapping of this memory.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`.
    pub fn add(&self, descriptors: [BorrowedFd<'_>; 2], charge: Charge) -> io::Result<()> {
        let mut charges = lock(&self.charges);
        let number = charges.last_key_value().map_or(0, |(last, _)| last + 1);
        for descriptor in descriptors {
            // A map always has the event of an error (bpf_map_poll in kernel/bpf/syscall.c), which
            // needs no flag.
            let data = epoll::EventData::new_u64(number);
            epoll::add(&self.watch, descriptor, data, epoll::EventFlags::empty())?;
        }
        charges.insert(number, charge);
        Ok(())
    }

    /// Drops the charges of memory that no process has any more.
    fn settle(&self) {
        let mut charges = lock(&self.charges);
        if charges.is_empty() {
            return;
        }
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        // There are two descriptors for each, and two of an `add` that has failed.
        let mut events = vec![none; 2 * charges.len() + 2];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok(count) = epoll::wait(&self.watch, &mut events[..], Some(&now)) else { return };
        let kept: BTreeSet<u64> = events[..count].iter().map(|event| event.data.u64()).collect();
        charges.retain(|number, _| kept.contains(number));
    }
}
