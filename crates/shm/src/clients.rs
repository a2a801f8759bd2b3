//! What the engine of a daemon asks of the processes that have a group: whose they are, how they
//! are woken, and the memory that they map.

use std::os::fd::OwnedFd;
use std::{fmt, io};

use treecast_ebpf::{SlotMemory, WakeSocket};
use treecast_proto::{GroupId, OwnerId};

use crate::settings::RingSettings;

/// The clients of a daemon that have a group.
pub trait Clients: fmt::Debug + Send + Sync {
    /// The user, whom the group belongs to.
    fn owner(&self) -> OwnerId;

    /// The user and process of the client that was first.
    fn name(&self) -> &str;

    /// Wakes the clients that sleep: the ring has new packets, or free slots.
    fn wake(&self, group: GroupId);

    /// Wakes the clients, even if they do not say that they sleep.
    fn wake_always(&self, group: GroupId);

    /// Wakes the clients: the state of the group has changed.
    fn wake_for_update(&self);

    /// The socket at which the kernel's packet path wakes the client; none where several processes
    /// have the group: then it wakes the node, which wakes them.
    fn wake_socket(&self) -> Option<WakeSocket>;

    /// Whether the group is charged anything.
    fn is_charged(&self) -> bool;

    /// Charges to the user what the daemon keeps of the group from now on: the engine's part in
    /// bytes, and the daemon's own.
    ///
    /// # Errors
    /// The reason for the client: nothing has changed then.
    fn charge_state(&self, bytes: u64) -> Result<(), String>;

    /// Charges to the user new memory of the group, with the group's state. Memory that a client
    /// has of it already stays charged.
    ///
    /// # Errors
    /// The reason for the client.
    fn charge_memory(&self, bytes: u64, state_bytes: u64) -> Result<Box<dyn ChargedMemory + '_>, String>;
}

/// Memory of a group that is charged, and that its clients do not have yet. Dropped, it is not
/// charged any more.
pub trait ChargedMemory {
    /// Makes memory that the clients can map, with the layout of the kernel's, and shares it.
    ///
    /// # Errors
    /// The reason for the client.
    fn make(self: Box<Self>, settings: RingSettings) -> Result<SlotMemory, String>;

    /// Shares memory of the kernel's packet path by its descriptors: those of the slots and of the
    /// page. It is charged until no process has it.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`.
    fn lend_kernel_memory(
        self: Box<Self>,
        memory: &SlotMemory,
        settings: RingSettings,
        descriptors: (OwnedFd, OwnedFd),
    ) -> io::Result<()>;
}

/// Memory of a group that a daemon lends to this process, until this is dropped.
pub trait Loan: fmt::Debug + Send + Sync {}
