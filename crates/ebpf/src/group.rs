//! A group in the program's maps: posted, handed off to the program, and reclaimed.

#![expect(unsafe_code, reason = "memory is shared with the kernel")]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use aya::maps::MapData;
use treecast_proto::{
    FlowState, GroupId, HandOff, HandOffPacket, MulticastSource, Nanoseconds, PlaceStatus, Sequence, Start,
};
use treecast_wire::HEADER_BYTES;

use crate::counters::KernelCounters;
use crate::fields::{get, set};
use crate::group_state;
use crate::layout::{self, CHILDREN_MAX, Child, FastPathCounters, Group, Path, SEGMENTS_MAX};
use crate::memory::Mapping;
use crate::slots::SlotMemory;
use crate::wake::WakeSocket;

/// A group in the program's maps. It is made by [`crate::GroupMaker`] and posted by
/// [`crate::Program::add_group`]; user space owns it then.
#[derive(Debug)]
pub struct KernelGroup {
    id: GroupId,
    index: u32,
    groups: Arc<Mapping>,
    memory: SlotMemory,
    /// The maps of the memory, until they are taken to be shared with another process.
    pub(crate) maps: Option<(MapData, MapData)>,
    is_handed_off: bool,
}

/// A NAK that the program left to the slow path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedNak {
    /// The address of the child's node.
    pub from: SocketAddr,
    /// When it arrived.
    pub arrived_at: Nanoseconds,
    /// The packet.
    pub header: [u8; HEADER_BYTES],
}

/// How many packets may be sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendWindow {
    /// To every child.
    pub packets: u32,
    /// The number that is worth waiting for: the larger a GSO batch, the less a packet costs.
    pub batch_packets: u32,
}

impl KernelGroup {
    pub(crate) fn new(id: GroupId, index: u32, groups: Arc<Mapping>, memory: SlotMemory) -> Self {
        let group = Self { id, index, groups, memory, maps: None, is_handed_off: false };
        group.reset();
        group
    }

    /// The same index and memory under another number, for a new group.
    pub(crate) fn renamed(mut self, id: GroupId) -> Self {
        self.id = id;
        self.is_handed_off = false;
        self.reset();
        self
    }

    fn reset(&self) {
        self.memory.is_delegated().store(0, Ordering::Release);
        let pointer = self.pointer();
        // SAFETY: the index was free, so that no packet finds the group yet. The program keeps a
        // pointer to a group for one packet, which takes less time than has passed since the index
        // became free. Only this value names the index.
        unsafe {
            // A program that still has such a pointer sees that the group has an owner.
            self.owner().store(layout::OWNER_USER, Ordering::SeqCst);
            set!(pointer, self.id.0, number);
            set!(pointer, 0, contribution.length);
            for index in 0..CHILDREN_MAX {
                set!(pointer, 0, children[index].contribution.length);
            }
            set!(pointer, 0, root_socket);
            set!(pointer, 0, child_count);
            set!(pointer, FlowState::new(Start::default()), flow);
            set!(pointer, FastPathCounters::default(), counters);
        }
        self.forget_all_paths();
    }

    /// The group's number.
    pub const fn id(&self) -> GroupId {
        self.id
    }

    /// Its index in the map of groups.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Its slots.
    pub const fn memory(&self) -> &SlotMemory {
        &self.memory
    }

    /// File descriptors of its slots and of its page, for another process to map
    /// ([`SlotMemory::over`]); `None` if they were taken before. The memory stays mapped here
    /// without them.
    pub fn take_descriptors(&mut self) -> Option<io::Result<(OwnedFd, OwnedFd)>> {
        let (slots, page) = self.maps.take()?;
        let own = |map: &MapData| map.fd().as_fd().try_clone_to_owned();
        Some(own(&slots).and_then(|slots| Ok((slots, own(&page)?))))
    }

    /// Whether the group is handed off to the program.
    pub const fn is_handed_off(&self) -> bool {
        self.is_handed_off
    }

    fn pointer(&self) -> *mut Group {
        // SAFETY: the index is below the number of groups that are mapped.
        unsafe { self.groups.address::<Group>().add(self.index as usize) }
    }

    fn owner(&self) -> &AtomicU32 {
        let pointer = self.pointer();
        // SAFETY: the word is aligned, mapped as long as this value, and both sides access it
        // atomically only.
        unsafe { AtomicU32::from_ptr(&raw mut (*pointer).owner) }
    }

    /// The counters, also while the group is handed off.
    pub fn counters(&self) -> KernelCounters {
        let pointer = self.pointer();
        // SAFETY: the program adds to these numbers at any time; each is aligned, and read whole.
        unsafe { KernelCounters { group: get!(pointer, flow.counters), fast_path: get!(pointer, counters) } }
    }

    /// Shows in `status` what the program has done since it took the group over, if it has it.
    pub fn update(&self, status: &mut PlaceStatus) {
        if !self.is_handed_off {
            return;
        }
        let pointer = self.pointer();
        // SAFETY: the program writes to these structures at any time. They are integers, valid for
        // any bytes: numbers of different moments do no harm to a reader who only shows them.
        unsafe {
            status.flow = get!(pointer, flow);
            let count = (get!(pointer, child_count) as usize).min(CHILDREN_MAX);
            for (index, child) in status.children.iter_mut().take(count).enumerate() {
                child.state = get!(pointer, children[index].state);
            }
        }
    }

    /// The first packet that is not accepted yet, or at the root not sent yet; also while the group
    /// is handed off.
    pub fn next(&self) -> Sequence {
        // SAFETY: the program writes the number whole, at any time.
        unsafe { get!(self.pointer(), flow.next) }
    }

    /// At a member other than the root, whether the parent must be told of slots that the
    /// application has freed, without waiting for a packet from it. The application has read all
    /// packets before `read`. This is so if a quarter of the slots is free that the parent does not
    /// know of, and it knows of less than half of them.
    pub fn owes_window_update(&self, read: Sequence) -> bool {
        let slots = self.memory.count();
        let (quarter, half) = ((slots / 4) as i32, (slots / 2) as i32);
        // SAFETY: as in `next`.
        let (next, window_end) =
            unsafe { (get!(self.pointer(), flow.next), get!(self.pointer(), flow.advertised_window_end)) };
        window_end.distance_from(next) < half && (read + slots).distance_from(window_end) >= quarter
    }

    /// The number of packets that may be sent to every child now, also while the group is handed
    /// off. It may grow at any time.
    pub fn send_window(&self) -> SendWindow {
        let pointer = self.pointer();
        let slots = self.memory.count();
        let mut send_window =
            SendWindow { packets: slots, batch_packets: SEGMENTS_MAX.min(slots / 4).max(1) };
        // SAFETY: the program writes each number whole, at any time.
        unsafe {
            for index in 0..(get!(pointer, child_count) as usize).min(CHILDREN_MAX) {
                let child = &raw const (*pointer).children[index];
                let sent = get!(child, state.sent);
                let window = get!(child, state.congestion_window.packets);
                let by_slots = get!(child, state.window_end).distance_from(sent).max(0) as u32;
                let in_flight = sent.distance_from(get!(child, state.acked)).max(0) as u32;
                send_window.packets = send_window.packets.min(by_slots).min(window.saturating_sub(in_flight));
                send_window.batch_packets = send_window.batch_packets.min(window / 2).max(1);
            }
        }
        send_window
    }

    /// Requests one wakeup of user space when that number of packets may be sent to every child, or
    /// everything is freed; 0: no wakeup.
    pub fn want_window(&self, packets: u32) {
        self.window_wanted().store(packets, Ordering::SeqCst);
        // The handling of a later acknowledgment sees the number, and the caller sees the effect of
        // an earlier one.
        fence(Ordering::SeqCst);
    }

    /// Whether user space is still to be woken for a window.
    pub fn is_window_wanted(&self) -> bool {
        self.window_wanted().load(Ordering::SeqCst) != 0
    }

    fn window_wanted(&self) -> &AtomicU32 {
        let pointer = self.pointer();
        // SAFETY: as in `owner`.
        unsafe { AtomicU32::from_ptr(&raw mut (*pointer).window_wanted) }
    }

    /// Sets the socket whose datagrams are packets of this group's root, by its `SO_COOKIE`; 0:
    /// none.
    pub fn set_root_socket(&mut self, socket_cookie: u64) {
        // SAFETY: the program reads the number whole, at any time.
        unsafe { set!(self.pointer(), socket_cookie, root_socket) };
    }

    /// Sets the socket at which a sleeping reader is woken. User space owns the group.
    pub fn set_wake_socket(&mut self, socket: WakeSocket) {
        debug_assert!(!self.is_handed_off, "only the owner changes port and nonce, which belong together");
        // SAFETY: user space owns the group, and this value is borrowed mutably.
        unsafe {
            set!(self.pointer(), socket.port.to_be(), wake_port);
            set!(self.pointer(), socket.nonce.0.to_be(), wake_nonce);
        }
    }

    /// Posts the neighbours: the program learns the path to each from the next packet that user
    /// space sends there. The paths of neighbours that stay are kept. User space owns the group.
    pub fn post_neighbours(&mut self, parent: Option<SocketAddr>, children: &[SocketAddr]) {
        debug_assert!(!self.is_handed_off, "only the owner posts");
        let pointer = self.pointer();
        // SAFETY: user space owns the group, and this value is borrowed mutably.
        unsafe {
            match parent {
                Some(parent) => post(&raw mut (*pointer).parent_path, parent),
                None => set!(pointer, 0, parent_path.bytes),
            }
            for (index, &child) in children.iter().enumerate().take(CHILDREN_MAX) {
                post(&raw mut (*pointer).children[index].path, child);
                set!(pointer, 0, children[index].nak.is_pending);
            }
            set!(pointer, children.len().min(CHILDREN_MAX) as u32, child_count);
        }
    }

    /// Forgets the paths to all neighbours: the program learns them anew once they are posted. User
    /// space owns the group.
    pub fn forget_paths(&mut self) {
        debug_assert!(!self.is_handed_off, "only the owner changes paths");
        self.forget_all_paths();
    }

    fn forget_all_paths(&self) {
        let pointer = self.pointer();
        // SAFETY: user space owns the group, as the callers say.
        unsafe {
            set!(pointer, 0, parent_path.bytes);
            for index in 0..CHILDREN_MAX {
                set!(pointer, 0, children[index].path.bytes);
            }
        }
    }

    /// Hands the group off to the program; false if the program cannot take it: it has not learned
    /// the paths to all neighbours, the neighbours (or root and multicast address) have different
    /// versions of IP, there is no neighbour, or there are more than [`CHILDREN_MAX`] children.
    pub fn hand_off(&mut self, group: &HandOff) -> bool {
        debug_assert!(!self.is_handed_off, "a group is handed off once");
        let is_accepted = group.children.len() <= CHILDREN_MAX
            && group.slots == self.memory.count()
            && !group.flow.expected.is_nothing()
            && self.has_paths(group);
        let source = group.multicast.and_then(|multicast| multicast.source);
        let multicast_path = source.and_then(|source| self.multicast_path(&source));
        if !is_accepted || source.is_some() != multicast_path.is_some() {
            return false;
        }
        // SAFETY: user space owns the group, and this value is borrowed mutably, so that this is
        // the only access.
        unsafe {
            group_state::write(self.pointer(), group);
            group_state::write_multicast(self.pointer(), group, source.zip(multicast_path));
        }
        let page = &self.memory;
        if group.parent.is_none() {
            page.read().store(group.flow.freed.0, Ordering::Release);
            page.forwarded().store(group.flow.next.0, Ordering::Release);
        } else {
            page.written().store(group.flow.next.0, Ordering::Release);
        }
        page.is_handed_off().store(1, Ordering::Release);
        self.is_handed_off = true;
        self.owner().store(layout::OWNER_NONE, Ordering::SeqCst);
        true
    }

    fn has_paths(&self, group: &HandOff) -> bool {
        let pointer = self.pointer();
        // SAFETY: user space owns the group.
        let path_to = |index: usize| unsafe { get!(pointer, children[index].path) };
        // SAFETY: as above.
        let parent = group.parent.map(|_| unsafe { get!(pointer, parent_path) });
        let paths: Vec<Path> = (0..group.children.len()).map(path_to).chain(parent).collect();
        paths
            .first()
            .is_some_and(|first| paths.iter().all(|path| path.is_learned() && path.bytes == first.bytes))
    }

    /// The path back from the multicast address to the root, if it is of the same version of IP as
    /// the path to the parent.
    fn multicast_path(&self, source: &MulticastSource) -> Option<Path> {
        // SAFETY: user space owns the group.
        let bytes = unsafe { get!(self.pointer(), parent_path.bytes) };
        Path::between(source.to, source.from).filter(|path| path.bytes == bytes)
    }

    /// Reclaims the group; false if it was not handed off. Waits while the program works on a
    /// packet, which takes microseconds.
    pub fn reclaim(&mut self, group: &mut HandOff) -> bool {
        if !self.is_handed_off {
            return false;
        }
        self.acquire();
        self.is_handed_off = false;
        self.memory.is_handed_off().store(0, Ordering::Release);
        // SAFETY: user space owns the group now, and sees what the program has written.
        unsafe { group_state::read(self.pointer(), group) };
        true
    }

    /// Becomes the owner of a group that is handed off.
    fn acquire(&mut self) {
        let owner = self.owner();
        while owner
            .compare_exchange_weak(
                layout::OWNER_NONE,
                layout::OWNER_USER,
                Ordering::SeqCst,
                Ordering::Relaxed,
            )
            .is_err()
        {
            std::hint::spin_loop();
        }
    }

    /// The contents of the slot of a packet, written while the group was handed off. At a root an
    /// application may have overwritten it since, so it may be invalid.
    pub fn packet(&self, packet: Sequence) -> HandOffPacket {
        let (piece, ack_requested, sent_at) = self.memory.sent(packet);
        HandOffPacket { piece, ack_requested, sent_at }
    }

    /// The next NAK that is pending. User space owns the group.
    pub fn take_nak(&mut self) -> Option<ReceivedNak> {
        debug_assert!(!self.is_handed_off, "only the owner takes NAKs");
        let pointer = self.pointer();
        // SAFETY: user space owns the group.
        unsafe {
            for index in 0..get!(pointer, child_count) as usize {
                let child: *mut Child = &raw mut (*pointer).children[index];
                if get!(child, nak.is_pending) != 0 {
                    set!(child, 0, nak.is_pending);
                    return Some(ReceivedNak {
                        from: get!(child, path).address()?,
                        arrived_at: Nanoseconds(get!(child, nak.arrived_at)),
                        header: get!(child, nak.header),
                    });
                }
            }
        }
        None
    }

    /// The contributions of children that the program has kept to the all-reduce that goes on, as
    /// datagrams, each with the address of the child's node. User space owns the group.
    pub fn contributions(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        debug_assert!(!self.is_handed_off, "only the owner reads contributions");
        // SAFETY: user space owns the group.
        unsafe { contributions(self.pointer()) }
    }

    /// Forgets all contributions that the program has kept. User space owns the group.
    pub fn forget_contributions(&mut self) {
        debug_assert!(!self.is_handed_off, "only the owner forgets contributions");
        let pointer = self.pointer();
        // SAFETY: user space owns the group, and this value is borrowed mutably.
        unsafe {
            set!(pointer, 0, contribution.length);
            forget_contributions(pointer);
        }
    }

    /// At the root of a group that is handed off, and stays so: takes the contributions of children
    /// that the program has kept, as [`KernelGroup::contributions`] returns them. User space owns
    /// the group for the time of this call, in which the program leaves its packets to the slow
    /// path. If a timer of the program expires during the call, the program does not set it again.
    /// The protocol has its own timer for each child of a group that is handed off, and reclaims
    /// the group when that expires.
    pub fn take_contributions(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        if !self.is_handed_off {
            return Vec::new();
        }
        self.acquire();
        let pointer = self.pointer();
        // SAFETY: user space owns the group until the owner is stored, and this value is borrowed
        // mutably.
        let taken = unsafe {
            let taken = contributions(pointer);
            forget_contributions(pointer);
            taken
        };
        self.owner().store(layout::OWNER_NONE, Ordering::SeqCst);
        taken
    }
}

/// # Safety
/// User space owns the group.
unsafe fn contributions(pointer: *const Group) -> Vec<(SocketAddr, Vec<u8>)> {
    // SAFETY: as the caller says; the structures are integers, and valid for any bytes.
    let (next, count) = unsafe { (get!(pointer, flow).next, get!(pointer, child_count)) };
    let of_child = |index: usize| {
        // SAFETY: as above.
        let (kept, path) =
            unsafe { (get!(pointer, children[index].contribution), get!(pointer, children[index].path)) };
        let payload = kept.payload.get(..kept.length as usize).filter(|payload| !payload.is_empty())?;
        kept.is_about(next).then_some((path.address()?, [&kept.header[..], payload].concat()))
    };
    (0..(count as usize).min(CHILDREN_MAX)).filter_map(of_child).collect()
}

/// # Safety
/// User space owns the group, and nothing else in it accesses the group.
unsafe fn forget_contributions(pointer: *mut Group) {
    // SAFETY: as the caller says.
    unsafe {
        for index in 0..(get!(pointer, child_count) as usize).min(CHILDREN_MAX) {
            set!(pointer, 0, children[index].contribution.length);
        }
    }
}

/// # Safety
/// User space owns the group of the path.
unsafe fn post(path: *mut Path, address: SocketAddr) {
    // SAFETY: as the caller says.
    let known = unsafe { path.read_volatile() };
    if !known.leads_to(address) {
        // SAFETY: as above.
        unsafe { path.write_volatile(Path::to(address)) };
    }
}
