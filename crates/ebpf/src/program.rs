//! The program, loaded, and its tables.

#![expect(unsafe_code, reason = "memory is shared with the kernel")]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use aya::maps::{HashMap, Map, MapData, RingBuf};
use aya::programs::{ProgramError, SchedClassifier};
use aya::{Ebpf, EbpfLoader};
use nix::sys::signal::{SigSet, SigmaskHow};
use treecast_proto::GroupId;

use crate::attach::{Attachment, Hook, HookTrouble, Interface, classifier};
use crate::error::{EbpfError, chain, map_error};
use crate::group::KernelGroup;
use crate::group_maker::{GroupMaker, INNER_MAP, MMAPABLE, Tables, mapped, new_map};
use crate::layout::{self, Group, Node};
use crate::memory::Mapping;
use crate::object;
use crate::wake::{WakeNonce, WakeSocket};

/// The settings of a program that is loaded.
#[derive(Debug, Clone, Copy)]
pub struct ProgramSettings {
    /// The greatest number of groups: 1 to 65,536. Each takes about 30 KiB of the kernel's memory.
    pub groups_max: u32,
    /// The longest payload of a packet in bytes, up to 8,912.
    pub payload_bytes_max: u32,
    /// Whether [`Program::set_time`] replaces the clock, for tests.
    pub has_test_clock: bool,
    /// How the program is attached; `None`: by TCX, or by clsact if the kernel lacks TCX.
    pub hook: Option<Hook>,
}

impl Default for ProgramSettings {
    fn default() -> Self {
        Self { groups_max: 256, payload_bytes_max: 1_408, has_test_clock: false, hook: None }
    }
}

/// The program, loaded.
pub struct Program {
    /// The first field: no packet reaches the program when the others are dropped.
    attachment: Option<Attachment>,
    ebpf: Ebpf,
    settings: ProgramSettings,
    node: Mapping,
    test_clock: Mapping,
    /// The slow path's socket, which wakes readers unless their group has its own wake socket.
    wake_socket: WakeSocket,
    group_indices: HashMap<MapData, u32, u32>,
    wakeups: RingBuf<MapData>,
    maker: GroupMaker,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Program").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The program has woken user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wakeup {
    /// The index of the group.
    pub index: u32,
    /// Why.
    pub reason: WakeReason,
}

/// Why the program has woken user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeReason {
    /// A NAK is pending: [`KernelGroup::take_nak`].
    Nak,
    /// The timer of a child has expired.
    Timer,
    /// The window admits the requested number of packets: [`KernelGroup::want_window`].
    Window,
}

impl Wakeup {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (index, reason) = bytes.split_first_chunk()?;
        let reason = match u32::from_ne_bytes(*reason.first_chunk()?) {
            layout::WAKE_FOR_NAK => WakeReason::Nak,
            layout::WAKE_FOR_TIMER => WakeReason::Timer,
            layout::WAKE_FOR_WINDOW => WakeReason::Window,
            _ => return None,
        };
        Some(Self { index: u32::from_ne_bytes(*index), reason })
    }
}

impl Program {
    /// Loads the program, without attaching it.
    ///
    /// # Errors
    /// [`EbpfError::TooLong`], [`EbpfError::Load`], [`EbpfError::System`].
    pub fn load(settings: ProgramSettings) -> Result<Self, EbpfError> {
        let variant = object::variant(settings.payload_bytes_max)?;
        let slot_bytes = variant.payload_bytes;
        let _blocked = SignalsBlocked::new();
        let tables = crc_tables();
        let groups_max = settings.groups_max;
        let has_test_clock = u32::from(settings.has_test_clock);
        let mut loader = EbpfLoader::new();
        loader.override_global("CRC_TABLES", &tables[..], true).override_global(
            "HAS_TEST_CLOCK",
            &has_test_clock,
            true,
        );
        for map in ["GROUPS", "GROUP_INDICES", "SLOTS", "PAGES", "TIMERS"] {
            loader.map_max_entries(map, groups_max);
        }
        let mut ebpf = loader.load(&variant.object()).map_err(load_error)?;
        for name in ["treecast_ingress", "treecast_egress"] {
            load(classifier(&mut ebpf, name))?;
        }
        let node = map(&mut ebpf, "NODE", size_of::<Node>())?;
        let groups = map(&mut ebpf, "GROUPS", groups_max as usize * size_of::<Group>())?;
        let test_clock = map(&mut ebpf, "TEST_CLOCK", size_of::<u64>())?;
        let group_indices = take(&mut ebpf, "GROUP_INDICES").try_into().map_err(map_error)?;
        let slots = take(&mut ebpf, "SLOTS").try_into().map_err(map_error)?;
        let pages = take(&mut ebpf, "PAGES").try_into().map_err(map_error)?;
        let wakeups = take(&mut ebpf, "WAKEUPS").try_into().map_err(map_error)?;
        let no_slots = new_map("no_slots", layout::slot_bytes(slot_bytes), 1, MMAPABLE | INNER_MAP)?;
        let tables = Tables { slots, pages, no_slots, free: Vec::new(), unused: 0 };
        let maker = GroupMaker::new(slot_bytes, groups_max, Arc::new(groups), tables);
        Ok(Self {
            attachment: None,
            ebpf,
            settings,
            node,
            test_clock,
            wake_socket: WakeSocket { port: 0, nonce: WakeNonce(0) },
            group_indices,
            wakeups,
            maker,
        })
    }

    /// Sets the socket of the slow path: its `SO_COOKIE`, its port, and the nonce that the
    /// program's datagrams to it carry, which has to be random.
    pub fn set_socket(&mut self, socket_cookie: u64, wake_socket: WakeSocket) {
        self.wake_socket = wake_socket;
        let node = self.node.address::<Node>();
        // SAFETY: the map has one such structure, aligned to a page; the program only reads these
        // fields.
        unsafe {
            (&raw mut (*node).socket).write_volatile(socket_cookie);
            (&raw mut (*node).port).write_volatile(wake_socket.port.to_be());
        }
    }

    /// The socket of the slow path.
    pub const fn wake_socket(&self) -> WakeSocket {
        self.wake_socket
    }

    /// The numbers of packets from and to the slow path's socket that have passed the program; both
    /// wrap.
    pub fn packet_counts(&self) -> (u32, u32) {
        let node = self.node.address::<Node>();
        // SAFETY: as in `set_socket`; the program adds to them atomically.
        unsafe {
            (
                (&raw const (*node).egress_count).read_volatile(),
                (&raw const (*node).ingress_count).read_volatile(),
            )
        }
    }

    /// Sets the program's clock in nanoseconds, with `has_test_clock`.
    pub fn set_time(&mut self, now_ns: u64) {
        // SAFETY: the map has one number, aligned to a page.
        unsafe { self.test_clock.address::<u64>().write_volatile(now_ns) };
    }

    /// Makes and unmakes groups.
    pub const fn maker(&self) -> &GroupMaker {
        &self.maker
    }

    /// Posts a group that [`GroupMaker::make`] has made. It replaces a group with the same number.
    /// From now on packets find it. Sleeping readers are woken by the slow path's socket.
    ///
    /// # Errors
    /// [`EbpfError::System`].
    pub fn add_group(&mut self, group: &mut KernelGroup) -> Result<(), EbpfError> {
        group.set_wake_socket(self.wake_socket);
        self.group_indices.insert(group.id().0, group.index(), 0).map_err(map_error)
    }

    /// Posts a group with the maps of another one, whose slots are no longer mapped by an
    /// application: for tests, since new maps take the kernel tens of milliseconds.
    #[doc(hidden)]
    pub fn rename_group(&mut self, group: KernelGroup, id: GroupId) -> Result<KernelGroup, EbpfError> {
        if self.group_indices.get(&group.id().0, 0).is_ok_and(|index| index == group.index()) {
            let _ = self.group_indices.remove(&group.id().0);
        }
        let mut group = group.renamed(id);
        self.add_group(&mut group)?;
        Ok(group)
    }

    /// Removes a group: packets no longer find it. The caller then unmakes it
    /// ([`GroupMaker::unmake`]).
    pub fn remove_group(&mut self, group: &KernelGroup) {
        // An error means that it is not there.
        let _ = self.group_indices.remove(&group.id().0);
    }

    /// The file descriptor that becomes readable when the program wakes user space.
    pub fn wakeups(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsRawFd;
        // SAFETY: the descriptor is open as long as the ring buffer, which this borrows.
        unsafe { BorrowedFd::borrow_raw(self.wakeups.as_raw_fd()) }
    }

    /// The next wakeup, oldest first.
    pub fn take_wakeup(&mut self) -> Option<Wakeup> {
        let item = self.wakeups.next()?;
        Wakeup::read(&item)
    }

    /// Attaches the program to ingress and egress of these interfaces, before all other programs,
    /// and detaches it from its previous interfaces. Dropping the program detaches it. Filters that
    /// killed nodes left behind are removed.
    ///
    /// # Errors
    /// [`EbpfError::Attach`], [`EbpfError::System`]: it is attached to nothing then.
    pub fn attach(&mut self, interfaces: &[Interface]) -> Result<(), EbpfError> {
        // Detached first: attached twice, it would handle a packet twice.
        self.attachment = None;
        self.attachment = Some(Attachment::new(&mut self.ebpf, self.settings.hook, interfaces)?);
        Ok(())
    }

    /// The changes since the program was attached; usually none. The check takes about ten
    /// microseconds per interface.
    pub fn check(&self) -> Vec<HookTrouble> {
        self.attachment.as_ref().map_or_else(Vec::new, Attachment::check)
    }

    /// One of the two classifiers, for tests that run it themselves.
    #[doc(hidden)]
    pub fn classifier(&mut self, name: &str) -> &mut SchedClassifier {
        classifier(&mut self.ebpf, name)
    }
}

fn take(ebpf: &mut Ebpf, name: &str) -> Map {
    ebpf.take_map(name).expect("the map is in the object that was compiled with this crate")
}

fn map(ebpf: &mut Ebpf, name: &str, bytes: usize) -> Result<Mapping, EbpfError> {
    let Map::Array(data) = take(ebpf, name) else { unreachable!("{name} is an array") };
    mapped(&data, bytes)
}

/// Blocks the signals of this thread until it is dropped. A signal interrupts the verifier, and a
/// profiler sends many per second. The loader tries small programs to find out the features of the
/// kernel, and would take an interrupted one for one that the kernel cannot run.
struct SignalsBlocked {
    before: Option<SigSet>,
}

impl SignalsBlocked {
    fn new() -> Self {
        Self { before: SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).ok() }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = before.thread_set_mask();
        }
    }
}

/// Loads a program into the kernel. SIGSTOP cannot be blocked, and interrupts the verifier; the
/// program is then loaded again.
fn load(program: &mut SchedClassifier) -> Result<(), EbpfError> {
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
    loaded.map_err(|error| match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            EbpfError::Load { why: format!("{io_error}; {}", last_lines(&verifier_log.to_string())) }
        }
        error => load_error(error),
    })
}

/// The number of times that the kernel is asked to load a program when signals interrupt it.
const ATTEMPTS_MAX: u32 = 10;

/// The end of the verifier's log, which has some thousand lines: the last ones say what it rejects.
fn last_lines(log: &str) -> String {
    const LINES: usize = 6;
    let lines: Vec<&str> = log.trim().lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("; ")
}

fn load_error(error: impl std::error::Error + 'static) -> EbpfError {
    EbpfError::Load { why: chain(&error) }
}

/// The tables of CRC-32C for eight bytes at a time: the k-th has the CRC of a byte that k zero
/// bytes follow.
fn crc_tables() -> Vec<u32> {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut tables = vec![0_u32; 8 * 256];
    for (byte, entry) in (0..256).zip(&mut tables) {
        *entry = (0..8).fold(byte, |crc, _| crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 });
    }
    for index in 256..8 * 256 {
        let before = tables[index - 256];
        tables[index] = before >> 8 ^ tables[(before & 0xff) as usize];
    }
    tables
}
