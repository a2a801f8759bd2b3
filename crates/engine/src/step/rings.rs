//! The memory of groups' rings.

use treecast_ebpf::{GroupMaker, KernelGroup};
use treecast_proto::{GroupId, Offload, Transport};
use treecast_shm::clients::ChargedMemory;
use treecast_shm::ring::{RingReader, RingWriter, new_ring, new_shared_ring};
use treecast_shm::settings::RingSettings;
use treecast_shm::shared_group::SharedGroup;

/// Makes rings, in any thread: the kernel takes tens of milliseconds for memory that its packet
/// path shares.
#[derive(Debug, Clone)]
pub(crate) struct RingMaker {
    kernel: Option<GroupMaker>,
}

/// A group's new ring.
#[derive(Debug)]
pub(crate) struct NewRing {
    pub writer: RingWriter,
    pub reader: RingReader,
    /// The group of the kernel's packet path that shares the memory.
    pub kernel: Option<KernelGroup>,
}

impl RingMaker {
    pub const fn new(kernel: Option<GroupMaker>) -> Self {
        Self { kernel }
    }

    /// What makes the memory of groups that the kernel's packet path can run.
    fn kernel_for(&self, settings: RingSettings) -> Option<&GroupMaker> {
        let may_run = matches!(settings.offload, Offload::Nic | Offload::Switch)
            && settings.transport == Transport::Packets;
        self.kernel.as_ref().filter(|_| may_run)
    }

    /// Whether to make a ring takes longer than other groups should wait.
    pub fn takes_long(&self, settings: RingSettings) -> bool {
        self.kernel_for(settings).is_some()
    }

    /// Makes the ring of a group: in memory that the kernel's packet path shares, where that
    /// forwards, and in memory that the application maps, if it is in another process. That
    /// application's user is charged for it, with `state_bytes` for the group's state.
    ///
    /// # Errors
    /// The reason for an application in another process.
    pub fn make(
        &self,
        shared_group: &SharedGroup,
        settings: RingSettings,
        state_bytes: u64,
    ) -> Result<NewRing, String> {
        let RingSettings { slots, payload_bytes_max, start, .. } = settings;
        let (group, stride) = (shared_group.group, usize::from(payload_bytes_max));
        let clients = shared_group.clients.as_ref();
        let charge = |bytes| clients.map(|clients| clients.charge_memory(bytes, state_bytes)).transpose();
        if let Some(maker) = self.kernel_for(settings) {
            let charged = charge(maker.group_bytes(slots))?;
            match make_in_kernel(maker, group, settings, charged) {
                Ok(kernel) => {
                    let (writer, reader) = new_shared_ring(kernel.memory().clone(), stride, start);
                    return Ok(NewRing { writer, reader, kernel: Some(kernel) });
                }
                Err(error) => tracing::warn!(%error, "group {group} runs in user space only"),
            }
        }
        let (writer, reader) = match charge(settings.shared_bytes())? {
            Some(charged) => new_shared_ring(charged.make(settings)?, stride, start),
            None => new_ring(slots, stride, start),
        };
        Ok(NewRing { writer, reader, kernel: None })
    }

    /// Frees what the kernel's packet path has of a group. It takes as long as making it.
    pub fn unmake(&self, group: KernelGroup) {
        if let Some(maker) = &self.kernel {
            maker.unmake(group);
        }
    }
}

fn make_in_kernel(
    maker: &GroupMaker,
    group: GroupId,
    settings: RingSettings,
    charged: Option<Box<dyn ChargedMemory + '_>>,
) -> std::io::Result<KernelGroup> {
    let made = maker.make(group, settings.slots, settings.payload_bytes_max);
    let mut group = made.map_err(std::io::Error::other)?;
    if let Some(charged) = charged {
        let shared = match group.take_descriptors() {
            Some(taken) => {
                taken.and_then(|taken| charged.lend_kernel_memory(group.memory(), settings, taken))
            }
            None => Ok(()),
        };
        if let Err(error) = shared {
            maker.unmake(group);
            return Err(error);
        }
    }
    Ok(group)
}
