//! A group in the kernel's tables: posted, lent to the program, and taken back.

#![expect(unsafe_code, reason = "memory is shared with the kernel")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use aya::maps::MapData;
use treecast_proto::{
    Expected, GroupId, Lent, LentChild, LentCounts, LentPacket, LentTrip, LentWindow, MemberId, Nanoseconds,
    Sequence,
};
use treecast_wire::HEADER_BYTES;

use crate::fields::{get, set};
use crate::layout::{self, CHILDREN_MAX, Child, Counts, Group, Way};
use crate::memory::Mapping;
use crate::slots::SlotMemory;

/// A group in the kernel's tables. It is posted by [`crate::Program::add_group`], and belongs to user space then.
#[derive(Debug)]
pub struct KernelGroup {
    id: GroupId,
    place: u32,
    groups: Arc<Mapping>,
    memory: SlotMemory,
    /// What the memory is made of, until somebody takes it to share it.
    pub(crate) maps: Option<(MapData, MapData)>,
    is_given: bool,
}

/// What a child has said that it misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    /// Where the child's node is.
    pub from: SocketAddr,
    /// When it came.
    pub arrived_at: Nanoseconds,
    /// The NAK.
    pub header: [u8; HEADER_BYTES],
}

/// How many packets may be sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// So many to every child.
    pub packets: u32,
    /// To wait for so many is worth it, if there are as many to send: the more pass the system as one, the better.
    pub worth: u32,
}

/// No more packets than that pass the system as one.
const WORTH: u32 = 64;

/// Where an address and a port are in a frame, by IP's version: the frame's length, and the places of address and port.
const IPV4: (u32, usize, usize) = (42, 14 + 16, 14 + 20 + 2);
const IPV6: (u32, usize, usize) = (62, 14 + 24, 14 + 40 + 2);

impl KernelGroup {
    pub(crate) fn new(id: GroupId, place: u32, groups: Arc<Mapping>, memory: SlotMemory) -> Self {
        let group = Self { id, place, groups, memory, maps: None, is_given: false };
        group.begin();
        group
    }

    /// The same place and memory under another number, for a new group.
    pub(crate) fn renamed(mut self, id: GroupId) -> Self {
        (self.id, self.is_given) = (id, false);
        self.begin();
        self
    }

    fn begin(&self) {
        let Self { id, .. } = *self;
        self.memory.is_left().store(0, Ordering::Release);
        let pointer = self.pointer();
        // SAFETY: the place was free, so that no packet finds the group yet, and the program has it no longer: it keeps a group for
        // less than this process took since it was removed. Nobody but this value names the place.
        unsafe {
            // A program that still looks at what was here sees that it belongs to somebody.
            self.owner().store(layout::OWNER_USER, Ordering::SeqCst);
            set!(pointer, id.0, number);
            set!(pointer, 0, source);
            set!(pointer, 0, child_count);
            // What was here before may have known other ways.
            set!(pointer, 0, parent_way.bytes);
            for child in 0..CHILDREN_MAX {
                set!(pointer, 0, children[child].way.bytes);
            }
            for counter in 0..size_of::<Counts>() / 8 {
                (&raw mut (*pointer).counts).cast::<u64>().add(counter).write_volatile(0);
            }
        }
    }

    /// The group's number.
    pub const fn id(&self) -> GroupId {
        self.id
    }

    /// Its place in the table.
    pub const fn place(&self) -> u32 {
        self.place
    }

    /// Its slots.
    pub const fn memory(&self) -> &SlotMemory {
        &self.memory
    }

    /// Descriptors of its slots and of its page, for another process to map ([`SlotMemory::over`]); none if they have been taken.
    /// Without them the memory is there all the same, and takes no descriptors.
    pub fn take_descriptors(&mut self) -> Option<io::Result<(OwnedFd, OwnedFd)>> {
        let (slots, page) = self.maps.take()?;
        let own = |map: &MapData| map.fd().as_fd().try_clone_to_owned();
        Some(own(&slots).and_then(|slots| Ok((slots, own(&page)?))))
    }

    /// Whether the program has it.
    pub const fn is_given(&self) -> bool {
        self.is_given
    }

    fn pointer(&self) -> *mut Group {
        // SAFETY: places are below the number of groups that are mapped.
        unsafe { self.groups.address::<Group>().add(self.place as usize) }
    }

    fn owner(&self) -> &AtomicU32 {
        let pointer = self.pointer();
        // SAFETY: the word is aligned, mapped as long as this value, and both sides use it atomically alone.
        unsafe { AtomicU32::from_ptr(&raw mut (*pointer).owner) }
    }

    /// What is counted, also while the program has it.
    pub fn counts(&self) -> Counts {
        let pointer = self.pointer();
        // SAFETY: numbers that the program adds to; each is read whole.
        unsafe {
            Counts {
                accepted: get!(pointer, counts.accepted),
                sent: get!(pointer, counts.sent),
                acks_sent: get!(pointer, counts.acks_sent),
                acks_received: get!(pointer, counts.acks_received),
                passed: get!(pointer, counts.passed),
                unsent: get!(pointer, counts.unsent),
                deferred: get!(pointer, counts.deferred),
                invalid: get!(pointer, counts.invalid),
            }
        }
    }

    /// All before it are accepted, or at the root sent on, also while the program has the group.
    pub fn next(&self) -> Sequence {
        // SAFETY: the program writes the number whole, at any time.
        unsafe { Sequence(get!(self.pointer(), next)) }
    }

    /// How many packets every child may be sent now, also while the program has the group: this may be more in a moment.
    pub fn room(&self) -> Room {
        let pointer = self.pointer();
        let mut room =
            Room { packets: self.memory.count(), worth: WORTH.min(self.memory.count() / 4).max(1) };
        // SAFETY: numbers that the program writes whole, at any time.
        unsafe {
            for place in 0..(get!(pointer, child_count) as usize).min(CHILDREN_MAX) {
                let child = &raw const (*pointer).children[place];
                let (sent, window) = (Sequence(get!(child, sent)), get!(child, window.packets));
                let by_slots = Sequence(get!(child, end)).distance_from(sent).max(0) as u32;
                let under_way = sent.distance_from(Sequence(get!(child, acked))).max(0) as u32;
                room.packets = room.packets.min(by_slots).min(window.saturating_sub(under_way));
                room.worth = room.worth.min(window / 2).max(1);
            }
        }
        room
    }

    /// From now on the bell is rung once when every child may be sent so many packets, or has everything.
    pub fn await_room(&self, packets: u32) {
        self.awaited_room().store(packets, Ordering::SeqCst);
        // An acknowledgment that is taken in from now on sees it, and one that has been is seen.
        fence(Ordering::SeqCst);
    }

    /// Whether the bell is still to be rung for that.
    pub fn awaits_room(&self) -> bool {
        self.awaited_room().load(Ordering::SeqCst) != 0
    }

    fn awaited_room(&self) -> &AtomicU32 {
        let pointer = self.pointer();
        // SAFETY: as in `owner`.
        unsafe { AtomicU32::from_ptr(&raw mut (*pointer).awaits_room) }
    }

    /// Says which socket's datagrams are packets of this group's root (`SO_COOKIE`); 0: none.
    pub fn set_source(&mut self, socket: u64) {
        // SAFETY: the program reads the number whole, at any time.
        unsafe { set!(self.pointer(), socket, source) };
    }

    /// Says at which port of this host whoever sleeps is woken.
    pub fn set_wake_port(&mut self, port: u16) {
        // SAFETY: the program reads the number whole, at any time.
        unsafe { set!(self.pointer(), port.to_be(), wake_port) };
    }

    /// Says who the neighbours are: the program learns the way to each from the next packet that user space sends there. Those
    /// that stay keep theirs. The group belongs to user space.
    pub fn post(&mut self, parent: Option<SocketAddr>, children: &[SocketAddr]) {
        debug_assert!(!self.is_given, "a group is posted by who has it");
        let pointer = self.pointer();
        // SAFETY: the group belongs to user space, and this value is borrowed mutably.
        unsafe {
            match parent {
                Some(parent) => post(&raw mut (*pointer).parent_way, parent),
                None => set!(pointer, 0, parent_way.bytes),
            }
            for (place, &child) in children.iter().enumerate().take(CHILDREN_MAX) {
                post(&raw mut (*pointer).children[place].way, child);
                set!(pointer, 0, children[place].note.is_there);
            }
            set!(pointer, children.len().min(CHILDREN_MAX) as u32, child_count);
        }
    }

    /// Forgets the ways to all neighbours: the program learns them anew once they are posted. The group belongs to user space.
    pub fn forget_ways(&mut self) {
        debug_assert!(!self.is_given, "a group is changed by who has it");
        let pointer = self.pointer();
        // SAFETY: the group belongs to user space.
        unsafe {
            set!(pointer, 0, parent_way.bytes);
            for place in 0..CHILDREN_MAX {
                set!(pointer, 0, children[place].way.bytes);
            }
        }
    }

    /// Gives the group to the program; says whether it can go on with it: it knows the way to everybody, all by the same IP, and
    /// there are no more than [`CHILDREN_MAX`] children.
    pub fn give(&mut self, lent: &Lent) -> bool {
        debug_assert!(!self.is_given, "a group is given once");
        let is_possible = lent.children.len() <= CHILDREN_MAX
            && lent.slots == self.memory.count()
            && lent.expected != Expected::Nothing
            && self.knows_ways(lent);
        if !is_possible {
            return false;
        }
        let pointer = self.pointer();
        // SAFETY: the group belongs to user space, and this value is borrowed mutably: nobody else touches what is written here.
        unsafe {
            write_group(pointer, lent);
            for (place, child) in lent.children.iter().enumerate() {
                write_child(&raw mut (*pointer).children[place], child);
            }
        }
        let page = &self.memory;
        if lent.parent.is_none() {
            page.read().store(lent.freed.0, Ordering::Release);
            page.taken().store(lent.next.0, Ordering::Release);
        } else {
            page.written().store(lent.next.0, Ordering::Release);
        }
        page.is_lent().store(1, Ordering::Release);
        self.is_given = true;
        self.owner().store(layout::OWNER_NOBODY, Ordering::SeqCst);
        true
    }

    fn knows_ways(&self, lent: &Lent) -> bool {
        let pointer = self.pointer();
        // SAFETY: the group belongs to user space.
        unsafe {
            let children = (0..lent.children.len()).map(|place| {
                (get!(pointer, children[place].way.interface), get!(pointer, children[place].way.bytes))
            });
            let parent = (get!(pointer, parent_way.interface), get!(pointer, parent_way.bytes));
            let mut ways = children.chain(lent.parent.map(|_| parent));
            let Some((_, bytes)) = ways.next().filter(|(interface, _)| *interface != 0) else {
                // A root without members has nobody to send to.
                return lent.parent.is_none() && lent.children.is_empty();
            };
            ways.all(|(interface, other)| interface != 0 && other == bytes)
        }
    }

    /// Takes the group back; says whether the program had it. Waits while it is at a packet, which takes microseconds.
    pub fn take(&mut self, lent: &mut Lent) -> bool {
        if !self.is_given {
            return false;
        }
        let owner = self.owner();
        while owner
            .compare_exchange_weak(
                layout::OWNER_NOBODY,
                layout::OWNER_USER,
                Ordering::SeqCst,
                Ordering::Relaxed,
            )
            .is_err()
        {
            std::hint::spin_loop();
        }
        self.is_given = false;
        self.memory.is_lent().store(0, Ordering::Release);
        let pointer = self.pointer();
        // SAFETY: the group belongs to user space now, and what the program has done is seen.
        unsafe {
            read_group(pointer, lent);
            for (place, child) in lent.children.iter_mut().enumerate() {
                read_child(&raw const (*pointer).children[place], child);
            }
        }
        true
    }

    /// What was put into the slot of a packet while the program had the group. At a root an application may have written there since;
    /// whether the pieces make sense is to be seen.
    pub fn packet(&self, packet: Sequence) -> LentPacket {
        let (piece, ack_requested, sent_at) = self.memory.sent(packet);
        LentPacket { piece, ack_requested, sent_at }
    }

    /// What a child has said that it misses, if one has. The group belongs to user space.
    pub fn take_note(&mut self) -> Option<Note> {
        debug_assert!(!self.is_given, "notes are taken by who has the group");
        let pointer = self.pointer();
        // SAFETY: the group belongs to user space.
        unsafe {
            for place in 0..get!(pointer, child_count) as usize {
                let child = &raw mut (*pointer).children[place];
                if get!(child, note.is_there) != 0 {
                    set!(child, 0, note.is_there);
                    return Some(Note {
                        from: read_address(&get!(child, way))?,
                        arrived_at: Nanoseconds(get!(child, note.arrived_at)),
                        header: get!(child, note.header),
                    });
                }
            }
        }
        None
    }
}

/// # Safety
/// The group belongs to user space.
unsafe fn post(way: *mut Way, address: SocketAddr) {
    // SAFETY: as the caller says.
    let known = unsafe { way.read_volatile() };
    if read_address(&known) != Some(canonical(address)) {
        // SAFETY: as above.
        unsafe { way.write_volatile(unlearned(address)) };
    }
}

/// IPv4 in the clothes of IPv6 is IPv4 on the wire.
const fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn unlearned(address: SocketAddr) -> Way {
    let mut frame = [0; 64];
    let bytes = match canonical(address).ip() {
        IpAddr::V4(ip) => {
            frame[IPV4.1..IPV4.1 + 4].copy_from_slice(&ip.octets());
            frame[IPV4.2..IPV4.2 + 2].copy_from_slice(&address.port().to_be_bytes());
            IPV4.0
        }
        IpAddr::V6(ip) => {
            frame[IPV6.1..IPV6.1 + 16].copy_from_slice(&ip.octets());
            frame[IPV6.2..IPV6.2 + 2].copy_from_slice(&address.port().to_be_bytes());
            IPV6.0
        }
    };
    Way { interface: 0, bytes, frame }
}

fn read_address(way: &Way) -> Option<SocketAddr> {
    let port = |place: usize| u16::from_be_bytes([way.frame[place], way.frame[place + 1]]);
    if way.bytes == IPV4.0 {
        let octets: [u8; 4] = *way.frame[IPV4.1..].first_chunk()?;
        Some(SocketAddr::new(octets.into(), port(IPV4.2)))
    } else if way.bytes == IPV6.0 {
        let octets: [u8; 16] = *way.frame[IPV6.1..].first_chunk()?;
        Some(SocketAddr::new(octets.into(), port(IPV6.2)))
    } else {
        None
    }
}

/// # Safety
/// The group belongs to user space.
unsafe fn write_group(pointer: *mut Group, lent: &Lent) {
    let (expected, message, offset, message_length) = match lent.expected {
        Expected::Beginning | Expected::Nothing => (layout::EXPECTED_BEGINNING, 0, 0, 0),
        Expected::Message(message) => (layout::EXPECTED_MESSAGE, message, 0, 0),
        Expected::Rest { message, offset, message_length } => {
            (layout::EXPECTED_REST, message, offset, message_length)
        }
    };
    let (least, least_count) = lent.least.unwrap_or((lent.next, 0));
    // SAFETY: as the caller says.
    unsafe {
        set!(pointer, lent.cookie.0, cookie);
        set!(pointer, lent.epoch, epoch);
        set!(pointer, lent.member.0, member);
        set!(pointer, lent.parent.map_or(u32::MAX, |(parent, _)| parent.0), parent);
        set!(pointer, lent.slots, slots);
        set!(pointer, u32::from(lent.payload_bytes_max), payload_bytes_max);
        set!(pointer, u32::from(lent.parent.is_none()), is_root);
        set!(pointer, lent.children.len() as u32, child_count);
        set!(pointer, lent.min_rto.0, min_rto);
        set!(pointer, lent.keepalive.0, keepalive);
        set!(pointer, lent.next.0, next);
        set!(pointer, lent.consumed.0, consumed);
        set!(pointer, lent.stable.0, stable);
        set!(pointer, lent.freed.0, freed);
        set!(pointer, lent.asked.0, asked);
        set!(pointer, lent.told_stable.0, told_stable);
        set!(pointer, lent.told_end.0, told_end);
        set!(pointer, least.0, least);
        set!(pointer, least_count as u32, least_count);
        set!(pointer, expected, expected);
        set!(pointer, message, expected_message);
        set!(pointer, offset, expected_offset);
        set!(pointer, message_length, expected_message_length);
        set!(pointer, lent.parent_heard_at.0, parent_heard_at);
        set!(pointer, lent.look_at.0, look_at);
        set!(pointer, 0, awaits_room);
        // Whatever the timer was set for, user space knows of it.
        set!(pointer, 0, timed_at);
        set!(pointer, lent.counts.accepted, counts.accepted);
        set!(pointer, lent.counts.sent, counts.sent);
        set!(pointer, lent.counts.acks_sent, counts.acks_sent);
        set!(pointer, lent.counts.acks_received, counts.acks_received);
    }
}

/// # Safety
/// The group belongs to user space.
unsafe fn read_group(pointer: *const Group, lent: &mut Lent) {
    // SAFETY: as the caller says.
    unsafe {
        lent.next = Sequence(get!(pointer, next));
        lent.consumed = Sequence(get!(pointer, consumed));
        lent.stable = Sequence(get!(pointer, stable));
        lent.freed = Sequence(get!(pointer, freed));
        lent.asked = Sequence(get!(pointer, asked));
        lent.told_stable = Sequence(get!(pointer, told_stable));
        lent.told_end = Sequence(get!(pointer, told_end));
        lent.least =
            lent.least.map(|_| (Sequence(get!(pointer, least)), get!(pointer, least_count) as usize));
        let message = get!(pointer, expected_message);
        lent.expected = match get!(pointer, expected) {
            layout::EXPECTED_BEGINNING => Expected::Beginning,
            layout::EXPECTED_MESSAGE => Expected::Message(message),
            _ => Expected::Rest {
                message,
                offset: get!(pointer, expected_offset),
                message_length: get!(pointer, expected_message_length),
            },
        };
        lent.parent_heard_at = Nanoseconds(get!(pointer, parent_heard_at));
        lent.look_at = Nanoseconds(get!(pointer, look_at));
        lent.counts = LentCounts {
            accepted: get!(pointer, counts.accepted),
            sent: get!(pointer, counts.sent),
            acks_sent: get!(pointer, counts.acks_sent),
            acks_received: get!(pointer, counts.acks_received),
        };
    }
}

/// # Safety
/// The child's group belongs to user space.
unsafe fn write_child(pointer: *mut Child, child: &LentChild) {
    let (since, questions) = child.unanswered.unwrap_or((Nanoseconds::ZERO, 0));
    let LentTrip { smoothed, variation, shortest, last } = child.trip;
    let LentWindow { packets, eighths, is_opening, answered } = child.window;
    // SAFETY: as the caller says.
    unsafe {
        set!(pointer, child.member.0, member);
        set!(pointer, child.sent.0, sent);
        set!(pointer, child.acked.0, acked);
        set!(pointer, child.stable.0, stable);
        set!(pointer, child.end.0, end);
        set!(pointer, child.asked.0, asked);
        set!(pointer, questions, questions);
        set!(pointer, child.misses, misses);
        set!(pointer, child.looks, looks);
        set!(pointer, child.acked_at.0, acked_at);
        set!(pointer, child.heard_at.0, heard_at);
        set!(pointer, child.quiet_since.0, quiet_since);
        set!(pointer, since.0, unanswered_since);
        set!(pointer, smoothed.unwrap_or_default().0, trip.smoothed);
        set!(pointer, variation.0, trip.variation);
        set!(pointer, shortest.0, trip.shortest);
        set!(pointer, last.0, trip.last);
        set!(pointer, u32::from(smoothed.is_some()), trip.is_measured);
        set!(pointer, packets, window.packets);
        set!(pointer, eighths, window.eighths);
        set!(pointer, u32::from(is_opening), window.is_opening);
        set!(pointer, answered.0, window.answered);
    }
}

/// # Safety
/// The child's group belongs to user space.
unsafe fn read_child(pointer: *const Child, child: &mut LentChild) {
    // SAFETY: as the caller says.
    unsafe {
        debug_assert_eq!(child.member, MemberId(get!(pointer, member)), "children stay in their places");
        child.sent = Sequence(get!(pointer, sent));
        child.acked = Sequence(get!(pointer, acked));
        child.stable = Sequence(get!(pointer, stable));
        child.end = Sequence(get!(pointer, end));
        child.asked = Sequence(get!(pointer, asked));
        let questions = get!(pointer, questions);
        child.unanswered = (questions > 0).then(|| (Nanoseconds(get!(pointer, unanswered_since)), questions));
        child.misses = get!(pointer, misses);
        child.looks = get!(pointer, looks);
        child.acked_at = Nanoseconds(get!(pointer, acked_at));
        child.heard_at = Nanoseconds(get!(pointer, heard_at));
        child.quiet_since = Nanoseconds(get!(pointer, quiet_since));
        child.trip = LentTrip {
            smoothed: (get!(pointer, trip.is_measured) != 0)
                .then(|| Nanoseconds(get!(pointer, trip.smoothed))),
            variation: Nanoseconds(get!(pointer, trip.variation)),
            shortest: Nanoseconds(get!(pointer, trip.shortest)),
            last: Nanoseconds(get!(pointer, trip.last)),
        };
        child.window = LentWindow {
            packets: get!(pointer, window.packets),
            eighths: get!(pointer, window.eighths),
            is_opening: get!(pointer, window.is_opening) != 0,
            answered: Sequence(get!(pointer, window.answered)),
        };
    }
}
