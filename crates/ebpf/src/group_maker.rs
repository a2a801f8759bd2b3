//! Makes the maps of groups.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::{ArrayOfMaps, MapData};
use treecast_proto::GroupId;

use crate::EbpfError;
use crate::error::map_error;
use crate::group::KernelGroup;
use crate::layout::{self, Page};
use crate::memory::Mapping;
use crate::slots::SlotMemory;

/// Makes the maps of groups, and unmakes them, in any thread.
///
/// The kernel clears the memory of a new map, and waits until no processor uses the old one in its
/// place (`maybe_wait_bpf_programs` in kernel/bpf/syscall.c): each takes tens of milliseconds, for
/// which no other group should wait.
#[derive(Debug, Clone)]
pub struct GroupMaker {
    /// The longest payload of the program, in bytes.
    payload_bytes_max: u32,
    groups_max: u32,
    groups: Arc<Mapping>,
    tables: Arc<Mutex<Tables>>,
}

/// The maps of the maps of groups.
pub(crate) struct Tables {
    pub slots: ArrayOfMaps<MapData, MapData>,
    pub pages: ArrayOfMaps<MapData, MapData>,
    /// Replaces the slots of a removed group, so that their memory is freed.
    pub no_slots: MapData,
    /// Indices of removed groups, and the first index that was never used.
    pub free: Vec<u32>,
    pub unused: u32,
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tables").field("unused", &self.unused).finish_non_exhaustive()
    }
}

impl GroupMaker {
    pub(crate) fn new(payload_bytes_max: u32, groups_max: u32, groups: Arc<Mapping>, tables: Tables) -> Self {
        Self { payload_bytes_max, groups_max, groups, tables: Arc::new(Mutex::new(tables)) }
    }

    /// Makes a group, which user space owns at first. The program does not find it before
    /// [`crate::Program::add_group`].
    ///
    /// # Errors
    /// [`EbpfError::TooManyGroups`], [`EbpfError::TooLong`], [`EbpfError::System`].
    pub fn make(&self, id: GroupId, slots: u32, payload_bytes_max: u16) -> Result<KernelGroup, EbpfError> {
        let payload_bytes = u32::from(payload_bytes_max);
        if payload_bytes > self.payload_bytes_max {
            return Err(EbpfError::TooLong { payload_bytes, slot_bytes: self.payload_bytes_max });
        }
        let index = self.take_index()?;
        let made = self.make_at(index, id, slots);
        if made.is_err() {
            self.tables().free.push(index);
        }
        made
    }

    fn take_index(&self) -> Result<u32, EbpfError> {
        let mut tables = self.tables();
        if let Some(index) = tables.free.pop() {
            return Ok(index);
        }
        if tables.unused == self.groups_max {
            return Err(EbpfError::TooManyGroups(self.groups_max));
        }
        tables.unused += 1;
        Ok(tables.unused - 1)
    }

    fn make_at(&self, index: u32, id: GroupId, slots: u32) -> Result<KernelGroup, EbpfError> {
        let slot_bytes = layout::slot_bytes(self.payload_bytes_max);
        let slot_map = new_map("slots", slot_bytes, slots, MMAPABLE | INNER_MAP)?;
        let page_map = new_map("page", size_of::<Page>() as u32, 1, MMAPABLE)?;
        let slot_memory = mapped(&slot_map, slots as usize * slot_bytes as usize)?;
        let page = mapped(&page_map, size_of::<Page>())?;
        {
            let mut tables = self.tables();
            tables.slots.set(index, &slot_map, 0).map_err(map_error)?;
            tables.pages.set(index, &page_map, 0).map_err(map_error)?;
        }
        let memory = SlotMemory::new(slot_memory, page, slot_bytes as usize, slots);
        let mut group = KernelGroup::new(id, index, Arc::clone(&self.groups), memory);
        group.maps = Some((slot_map, page_map));
        Ok(group)
    }

    /// Unmakes a group that is not in the program's tables; its memory is freed when no process has
    /// it mapped.
    pub fn unmake(&self, group: KernelGroup) {
        let index = group.index();
        drop(group);
        let mut tables = self.tables();
        let Tables { slots, no_slots, free, .. } = &mut *tables;
        let _ = slots.set(index, no_slots, 0);
        free.push(index);
    }

    /// The kernel memory of the maps of a group with this number of slots, in bytes. Slots have
    /// room for the longest payload of the program, whatever the group's is.
    pub fn group_bytes(&self, slots: u32) -> u64 {
        // Each of the two maps begins with a page of the kernel's own data.
        let maps = 2 * rustix::param::page_size() as u64;
        maps + SlotMemory::bytes_for(layout::slot_bytes(self.payload_bytes_max) as usize, slots)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // A thread that has panicked leaves the tables valid: each call changes them once.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const ARRAY: u32 = 2;
pub(crate) const MMAPABLE: u32 = 1 << 10;
pub(crate) const INNER_MAP: u32 = 1 << 12;

pub(crate) fn new_map(name: &str, value_bytes: u32, entries: u32, flags: u32) -> Result<MapData, EbpfError> {
    let definition = aya_obj::Map::new_from_params(ARRAY, 4, value_bytes, entries, flags);
    MapData::create(definition, name, None).map_err(map_error)
}

pub(crate) fn mapped(data: &MapData, bytes: usize) -> Result<Mapping, EbpfError> {
    let system = |source| EbpfError::System { what: "cannot map the memory of a BPF map", source };
    Mapping::new(data.fd().as_fd(), bytes, true).map_err(system)
}
