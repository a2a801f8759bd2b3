//! The program, loaded, and its tables.

#![expect(unsafe_code, reason = "memory is shared with the kernel")]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use aya::maps::{ArrayOfMaps, HashMap, Map, MapData, MapError, RingBuf};
use aya::programs::{ProgramError, SchedClassifier};
use aya::{Ebpf, EbpfLoader};
use nix::sys::signal::{SigSet, SigmaskHow};
use treecast_proto::GroupId;

use crate::EbpfError;
use crate::attach::{Attachment, Hook};
use crate::group::KernelGroup;
use crate::layout::{self, Group, Node, Page};
use crate::memory::Mapping;
use crate::slots::SlotMemory;

/// The program as it was compiled, for each length of slots; empty if it could not be.
static VARIANTS: [(u32, &[u8]); 2] = [
    (1_408, aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/standard.o"))),
    (8_912, aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/jumbo.o"))),
];

/// What the program is loaded with.
#[derive(Debug, Clone, Copy)]
pub struct ProgramSettings {
    /// The most groups: 1 to 65,536. Each takes some 24 KiB of the kernel's memory.
    pub groups_max: u32,
    /// The longest payload of a packet, in bytes, up to 8,912.
    pub payload_bytes_max: u32,
    /// Whether time is what [`Program::set_time`] says: for tests.
    pub has_test_clock: bool,
    /// How it is attached; none: by TCX, and where the kernel does not have that by clsact.
    pub hook: Option<Hook>,
}

impl Default for ProgramSettings {
    fn default() -> Self {
        Self { groups_max: 256, payload_bytes_max: 1_408, has_test_clock: false, hook: None }
    }
}

/// The program, loaded.
pub struct Program {
    /// First: nothing comes any more when the rest is dropped.
    pub(crate) attachment: Option<Attachment>,
    ebpf: Ebpf,
    settings: ProgramSettings,
    slot_bytes: u32,
    node: Mapping,
    groups: Arc<Mapping>,
    test_clock: Mapping,
    /// Where the user-space half listens.
    port: u16,
    places: HashMap<MapData, u32, u32>,
    slots: ArrayOfMaps<MapData, MapData>,
    pages: ArrayOfMaps<MapData, MapData>,
    /// What stands in a place that has no group: the memory of the last one is not kept.
    nothing: MapData,
    bell: RingBuf<MapData>,
    /// Places that groups have left, and the first that none has had.
    free: Vec<u32>,
    unused: u32,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Program").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// What somebody is woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Woken {
    /// The group, by its place.
    pub place: u32,
    /// Why.
    pub by: WokenBy,
}

/// Why somebody is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WokenBy {
    /// A child misses packets: [`KernelGroup::take_note`].
    Note,
    /// An answer has not come in time.
    Time,
    /// There is room for the packets that were waited with: [`KernelGroup::await_room`].
    Room,
}

impl Woken {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (place, by) = bytes.split_first_chunk()?;
        let by = match u32::from_ne_bytes(*by.first_chunk()?) {
            layout::WOKEN_BY_NOTE => WokenBy::Note,
            layout::WOKEN_BY_TIME => WokenBy::Time,
            layout::WOKEN_BY_ROOM => WokenBy::Room,
            _ => return None,
        };
        Some(Self { place: u32::from_ne_bytes(*place), by })
    }
}

/// The first byte of what wakes a process; no packet has it.
const VERSION_OF_WAKING: u8 = 0;

/// Where the group's number is in a header.
const GROUP: Range<usize> = 16..20;

const ARRAY: u32 = 2;
const MMAPABLE: u32 = 1 << 10;
const INNER_MAP: u32 = 1 << 12;

impl Program {
    /// Whether the program is part of this build; if not, why.
    ///
    /// # Errors
    /// [`EbpfError::NotBuilt`].
    pub fn is_built() -> Result<(), EbpfError> {
        if VARIANTS.iter().any(|(_, object)| object.is_empty()) {
            Err(EbpfError::NotBuilt(env!("TREECAST_BPF_PROBLEM")))
        } else {
            Ok(())
        }
    }

    /// Loads the program. It is attached to nothing yet.
    ///
    /// # Errors
    /// [`EbpfError::NotBuilt`], [`EbpfError::TooLong`], [`EbpfError::Load`], [`EbpfError::System`].
    pub fn load(settings: ProgramSettings) -> Result<Self, EbpfError> {
        Self::is_built()?;
        let payload_bytes = settings.payload_bytes_max;
        let (slot_bytes, object) = *VARIANTS
            .iter()
            .find(|(slot_bytes, _)| payload_bytes <= *slot_bytes)
            .ok_or(EbpfError::TooLong { payload_bytes, slot_bytes: VARIANTS[VARIANTS.len() - 1].0 })?;
        let tables = crc_tables();
        let groups_max = settings.groups_max;
        let has_test_clock = u32::from(settings.has_test_clock);
        let mut loader = EbpfLoader::new();
        loader.override_global("CRC_TABLES", &tables[..], true).override_global(
            "HAS_TEST_CLOCK",
            &has_test_clock,
            true,
        );
        for map in ["GROUPS", "PLACES", "SLOTS", "PAGES", "TIMERS"] {
            loader.map_max_entries(map, groups_max);
        }
        let mut ebpf = loader.load(object).map_err(load_error)?;
        for name in ["treecast_ingress", "treecast_egress"] {
            load(classifier(&mut ebpf, name))?;
        }
        let node = map(&mut ebpf, "NODE", size_of::<Node>())?;
        let groups = map(&mut ebpf, "GROUPS", groups_max as usize * size_of::<Group>())?;
        let test_clock = map(&mut ebpf, "TEST_CLOCK", size_of::<u64>())?;
        let places = take(&mut ebpf, "PLACES").try_into().map_err(map_error)?;
        let slots = take(&mut ebpf, "SLOTS").try_into().map_err(map_error)?;
        let pages = take(&mut ebpf, "PAGES").try_into().map_err(map_error)?;
        let bell = take(&mut ebpf, "BELL").try_into().map_err(map_error)?;
        let nothing = new_map("nothing", layout::slot_bytes(slot_bytes), 1, MMAPABLE | INNER_MAP)?;
        Ok(Self {
            attachment: None,
            ebpf,
            settings,
            slot_bytes,
            node,
            groups: Arc::new(groups),
            test_clock,
            port: 0,
            places,
            slots,
            pages,
            nothing,
            bell,
            free: Vec::new(),
            unused: 0,
        })
    }

    /// Says which socket is that of the user-space half (`SO_COOKIE`), and where it listens.
    pub fn listen(&mut self, socket: u64, port: u16) {
        self.port = port;
        let node = self.node.address::<Node>();
        // SAFETY: the map has one such structure, aligned to a page; the program reads these fields alone.
        unsafe {
            (&raw mut (*node).socket).write_volatile(socket);
            (&raw mut (*node).port).write_volatile(port.to_be());
        }
    }

    /// How many packets of the user-space half have passed on their way out, and how many of ours on their way in; both wrap.
    pub fn seen(&self) -> (u32, u32) {
        let node = self.node.address::<Node>();
        // SAFETY: as in `listen`; the program adds to them atomically.
        unsafe {
            ((&raw const (*node).seen_out).read_volatile(), (&raw const (*node).seen_in).read_volatile())
        }
    }

    /// Sets what the program takes for the time, in nanoseconds.
    pub fn set_time(&mut self, now_ns: u64) {
        // SAFETY: the map has one number, aligned to a page.
        unsafe { self.test_clock.address::<u64>().write_volatile(now_ns) };
    }

    /// Posts a group, which belongs to user space at first. Who sleeps is woken on the socket of the user-space half.
    ///
    /// # Errors
    /// [`EbpfError::TooManyGroups`], [`EbpfError::TooLong`], [`EbpfError::System`].
    pub fn add_group(
        &mut self,
        group: GroupId,
        slots: u32,
        payload_bytes_max: u16,
    ) -> Result<KernelGroup, EbpfError> {
        let payload_bytes = u32::from(payload_bytes_max);
        if payload_bytes > self.slot_bytes {
            return Err(EbpfError::TooLong { payload_bytes, slot_bytes: self.slot_bytes });
        }
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.unused < self.settings.groups_max => {
                self.unused += 1;
                self.unused - 1
            }
            None => return Err(EbpfError::TooManyGroups(self.settings.groups_max)),
        };
        let made = self.make_group(group, place, slots);
        if made.is_err() {
            self.free.push(place);
        }
        made
    }

    fn make_group(&mut self, id: GroupId, place: u32, slots: u32) -> Result<KernelGroup, EbpfError> {
        let slot_bytes = layout::slot_bytes(self.slot_bytes);
        let slot_map = new_map("slots", slot_bytes, slots, MMAPABLE | INNER_MAP)?;
        let page_map = new_map("page", size_of::<Page>() as u32, 1, MMAPABLE)?;
        let slot_memory = mapped(&slot_map, slots as usize * slot_bytes as usize)?;
        let page = mapped(&page_map, size_of::<Page>())?;
        self.slots.set(place, &slot_map, 0).map_err(map_error)?;
        self.pages.set(place, &page_map, 0).map_err(map_error)?;
        let memory = SlotMemory::new(slot_memory, page, slot_bytes as usize, slots);
        let mut group = KernelGroup::new(id, place, Arc::clone(&self.groups), memory);
        group.maps = Some((slot_map, page_map));
        group.set_wake_port(self.port);
        // From now on packets find it.
        self.places.insert(id.0, place, 0).map_err(map_error)?;
        Ok(group)
    }

    /// Posts a group in place of one whose slots nobody has mapped any more, for tests: new maps take the kernel tens of
    /// milliseconds.
    #[doc(hidden)]
    pub fn rename_group(&mut self, group: KernelGroup, id: GroupId) -> Result<KernelGroup, EbpfError> {
        if self.places.get(&group.id().0, 0).is_ok_and(|place| place == group.place()) {
            let _ = self.places.remove(&group.id().0);
        }
        let mut group = group.renamed(id);
        group.set_wake_port(self.port);
        self.places.insert(id.0, group.place(), 0).map_err(map_error)?;
        Ok(group)
    }

    /// Whether a datagram is what wakes a process: the kernel's packet path sends it up when a group has something to see, and
    /// somebody sleeps. The answer is the group.
    pub fn read_waking(datagram: &[u8]) -> Option<GroupId> {
        let group = datagram.get(GROUP)?.first_chunk()?;
        (datagram[0] == VERSION_OF_WAKING).then(|| GroupId(u32::from_be_bytes(*group)))
    }

    /// Takes a group out; its memory is given back when nobody has it mapped.
    pub fn remove_group(&mut self, group: &KernelGroup) {
        // What cannot be taken out is not there.
        let _ = self.places.remove(&group.id().0);
        let _ = self.slots.set(group.place(), &self.nothing, 0);
        self.free.push(group.place());
    }

    /// What rings when the user-space half has something to do.
    pub fn bell(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsRawFd;
        // SAFETY: the descriptor is open as long as the ring, which this borrows.
        unsafe { BorrowedFd::borrow_raw(self.bell.as_raw_fd()) }
    }

    /// What the bell was rung for, oldest first.
    pub fn take_ring(&mut self) -> Option<Woken> {
        let item = self.bell.next()?;
        Woken::read(&item)
    }

    /// How it is to be attached.
    pub(crate) fn hook(&self) -> Option<Hook> {
        self.settings.hook
    }

    /// One of the two classifiers, for tests that run it by hand.
    #[doc(hidden)]
    pub fn classifier(&mut self, name: &str) -> &mut SchedClassifier {
        classifier(&mut self.ebpf, name)
    }
}

fn classifier<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut SchedClassifier {
    let program =
        ebpf.program_mut(name).expect("the program is in the object that was compiled with this crate");
    program.try_into().expect("it is a classifier")
}

fn take(ebpf: &mut Ebpf, name: &str) -> Map {
    ebpf.take_map(name).expect("the map is in the object that was compiled with this crate")
}

fn map(ebpf: &mut Ebpf, name: &str, bytes: usize) -> Result<Mapping, EbpfError> {
    let Map::Array(data) = take(ebpf, name) else { unreachable!("{name} is an array") };
    mapped(&data, bytes)
}

fn mapped(data: &MapData, bytes: usize) -> Result<Mapping, EbpfError> {
    let system = |source| EbpfError::System { what: "cannot map the memory of a BPF map", source };
    Mapping::new(data.fd().as_fd(), bytes, true).map_err(system)
}

fn new_map(name: &str, value_bytes: u32, entries: u32, flags: u32) -> Result<MapData, EbpfError> {
    let definition = aya_obj::Map::new_from_params(ARRAY, 4, value_bytes, entries, flags);
    MapData::create(definition, name, None).map_err(map_error)
}

/// Gives a program to the kernel. That stops looking at it when this thread is sent a signal, as by a profiler many times a second:
/// so there are none meanwhile. One that stops the process for a while cannot be kept off, and is no reason to give up.
fn load(program: &mut SchedClassifier) -> Result<(), EbpfError> {
    let blocked = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let mut attempt = 1;
    let loaded = loop {
        match program.load() {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.kind() == io::ErrorKind::WouldBlock && attempt < ATTEMPTS_MAX =>
            {
                attempt += 1;
            }
            loaded => break loaded,
        }
    };
    if let Ok(before) = blocked {
        let _ = before.thread_set_mask();
    }
    loaded.map_err(|error| match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            EbpfError::Load { why: format!("{io_error}; {}", last_lines(&verifier_log.to_string())) }
        }
        error => load_error(error),
    })
}

/// As often a program is given to the kernel that signals interrupt.
const ATTEMPTS_MAX: u32 = 10;

/// The end of what the verifier says, which has some thousand lines: the last ones tell what it does not like.
fn last_lines(log: &str) -> String {
    const LINES: usize = 6;
    let lines: Vec<&str> = log.trim().lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("; ")
}

fn load_error(error: impl std::error::Error + 'static) -> EbpfError {
    EbpfError::Load { why: chain(&error) }
}

#[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn map_error(error: MapError) -> EbpfError {
    EbpfError::System { what: "cannot make a BPF map", source: io::Error::other(chain(&error)) }
}

/// An error with its causes: the outermost says least.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The tables of CRC-32C for eight bytes at a time: the k-th has the CRC of a byte that k others of 0 follow.
fn crc_tables() -> Vec<u32> {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut tables = vec![0_u32; 8 * 256];
    for (byte, entry) in (0..256).zip(&mut tables) {
        *entry = (0..8).fold(byte, |crc, _| crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 });
    }
    for place in 256..8 * 256 {
        let before = tables[place - 256];
        tables[place] = before >> 8 ^ tables[(before & 0xff) as usize];
    }
    tables
}
