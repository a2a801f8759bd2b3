//! The kernel's packet path as part of an engine: groups are handed off to it whenever nothing in them needs the slow path.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use treecast_ebpf::{
    EbpfError, HookTrouble, Interface, KernelCounters, KernelGroup, Program, ProgramSettings, ReceivedNak, Room,
    SlotMemory, WakeReason, interfaces_for,
};
use treecast_proto::{FlowState, GroupCounters, GroupId, HandOff, Input, Nanoseconds, Protocol, Sequence};

use crate::clock;
use crate::datagrams::Datagrams;
use crate::engine::root_socket::{Source, takes_trains};

/// The kernel's packet path, with the groups that are in its tables.
#[derive(Debug)]
pub(crate) struct Kernel {
    program: Program,
    groups: BTreeMap<GroupId, Posted>,
    /// Groups that user space owns, and that may be handed off.
    owned: Vec<GroupId>,
    address: SocketAddr,
    /// What the last check of the hooks found, and when to check again.
    troubles: Vec<HookTrouble>,
    check_at: Nanoseconds,
}

/// How far a group is that was reclaimed.
#[derive(Debug)]
pub(crate) struct Reclaimed {
    pub next: Sequence,
    pub consumed: Sequence,
    pub freed: Sequence,
    /// Whether its slots hold valid packets.
    pub is_valid: bool,
}

/// When hooks are checked: at intervals while the engine is busy, or on request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Look {
    WhenDue(Nanoseconds),
    Now,
}

/// The interval at which hooks are checked.
const CHECK_INTERVAL: Nanoseconds = Nanoseconds::from_ms(1_000);

/// A group in the kernel's tables.
#[derive(Debug)]
struct Posted {
    group: KernelGroup,
    /// The epoch of the tree that is posted.
    epoch: Option<u32>,
    /// Its state at the last hand-off.
    state: HandOff,
    /// At the root, the socket for packets whose sending the application delegates to the node.
    root_socket: Option<Source>,
}

/// How much of what a root's application has written the program has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Onward {
    All,
    /// Not all: the next batch may be sent now.
    More,
    /// Not all: the next batch waits for room, and the program wakes user space then.
    Waits,
    /// The program does not take it.
    Refused,
    /// The group is not handed off.
    NotHandedOff,
}

impl Kernel {
    /// Loads the program and attaches it to the interfaces that the node's datagrams pass.
    pub fn open(datagrams: &mut Datagrams, groups_max: u32) -> Result<Self, EbpfError> {
        let address = datagrams.address();
        let interfaces = interfaces_for(address)?;
        let mut program = Program::load(settings(&interfaces, groups_max))?;
        let socket = datagrams.cookie().map_err(system("cannot get the cookie of the socket"))?;
        program.set_socket(socket, address.port());
        program.attach(&interfaces)?;
        if !takes_trains() {
            datagrams.keep_apart();
        }
        Ok(Self {
            program,
            groups: BTreeMap::new(),
            owned: Vec::new(),
            address,
            troubles: Vec::new(),
            check_at: Nanoseconds::ZERO,
        })
    }

    /// Checks whether packets still pass the program. If not, user space runs groups alone, until an interface that was removed is there
    /// again. A program that was detached deliberately is not attached again. Returns whether packets have stopped passing the program
    /// since the last check: all groups are to be reclaimed then, and their paths forgotten.
    pub fn look_after_hooks(&mut self, look: Look) -> bool {
        if let Look::WhenDue(now) = look {
            if now < self.check_at {
                return false;
            }
            self.check_at = now + CHECK_INTERVAL;
        }
        let was_hooked = self.is_hooked();
        let mut troubles = self.program.check();
        if troubles.iter().any(is_gone) && self.attach_again() {
            troubles = self.program.check();
        }
        for trouble in troubles.iter().filter(|trouble| !self.troubles.contains(trouble)) {
            tracing::warn!(%trouble, "the kernel's packet path");
        }
        self.troubles = troubles;
        if was_hooked && !self.is_hooked() {
            tracing::warn!("groups are run by user space alone");
            return true;
        }
        if !was_hooked && self.is_hooked() {
            tracing::info!("the kernel's packet path is there again");
        }
        false
    }

    /// What the last check of the hooks found.
    pub fn troubles(&self) -> &[HookTrouble] {
        &self.troubles
    }

    /// Whether packets pass the program.
    fn is_hooked(&self) -> bool {
        !self
            .troubles
            .iter()
            .any(|trouble| is_gone(trouble) || matches!(trouble, HookTrouble::Removed { .. }))
    }

    fn attach_again(&mut self) -> bool {
        interfaces_for(self.address).is_ok_and(|interfaces| self.program.attach(&interfaces).is_ok())
    }

    /// Forgets the paths to all neighbours, which may be other ones.
    pub fn forget_paths(&mut self) {
        for posted in self.groups.values_mut() {
            posted.group.forget_paths();
            posted.epoch = None;
        }
    }

    /// The file descriptor that becomes readable when the program wakes user space.
    pub fn wakeups(&self) -> BorrowedFd<'_> {
        self.program.wakeups()
    }

    /// The next group that is to be reclaimed: a NAK is pending, or a timer has expired.
    pub fn take_wakeup(&mut self) -> Option<GroupId> {
        while let Some(wakeup) = self.program.take_wakeup() {
            // Every step of the engine looks for room.
            if wakeup.reason == WakeReason::Room {
                continue;
            }
            // The group may have been removed since.
            let found = self.groups.iter().find(|(_, posted)| posted.group.index() == wakeup.index);
            if let Some((&group, _)) = found {
                return Some(group);
            }
        }
        None
    }

    /// Posts a group; returns the memory of its slots, and the file descriptors that another process maps, if it is shared.
    pub fn add(
        &mut self,
        group: GroupId,
        slots: u32,
        payload_bytes_max: u16,
        is_shared: bool,
    ) -> Result<(SlotMemory, Option<(OwnedFd, OwnedFd)>), EbpfError> {
        let mut posted = self.program.add_group(group, slots, payload_bytes_max)?;
        let memory = posted.memory().clone();
        let descriptors = posted.take_descriptors().filter(|_| is_shared).transpose();
        let descriptors = match descriptors {
            Ok(descriptors) => descriptors,
            Err(error) => {
                self.program.remove_group(&posted);
                return Err(system("cannot share the memory of a group")(error));
            }
        };
        self.groups.insert(group, Posted { group: posted, epoch: None, state: HandOff::new(), root_socket: None });
        self.owned.push(group);
        Ok((memory, descriptors))
    }

    /// Removes a group from the program's maps.
    pub fn remove(&mut self, group: GroupId) {
        if let Some(posted) = self.groups.remove(&group) {
            self.program.remove_group(&posted.group);
            self.owned.retain(|other| *other != group);
        }
    }

    /// Sets the socket whose datagrams are packets of the group's root, by its `SO_COOKIE`, and this node's own such socket.
    pub fn set_root_socket(&mut self, group: GroupId, cookie: u64, socket: Source) {
        if let Some(posted) = self.groups.get_mut(&group) {
            posted.group.set_root_socket(cookie);
            posted.root_socket = Some(socket);
        }
    }

    /// Sends a batch of what a root's application has written, as far as children have room for it.
    pub fn send_on(&mut self, group: GroupId) -> Onward {
        let Some(Posted { group, root_socket: Some(root_socket), .. }) = self.groups.get_mut(&group) else {
            return Onward::NotHandedOff;
        };
        if !group.is_handed_off() {
            return Onward::NotHandedOff;
        }
        let (next, written) = (group.next(), written(group));
        let ahead = written.distance_from(next) as u32;
        if ahead > group.memory().count() {
            return Onward::Refused;
        }
        let is_enough = |room: Room| room.packets >= room.batch_packets.min(ahead);
        let mut room = group.room();
        if !is_enough(room) {
            group.want_room(room.batch_packets.min(ahead));
            room = group.room();
            if !is_enough(room) {
                return Onward::Waits;
            }
            group.want_room(0);
        }
        if root_socket.send_some(next, next + ahead.min(room.packets)) != Some(group.next()) {
            return Onward::Refused;
        }
        if group.next() == written { Onward::All } else { Onward::More }
    }

    /// Whether delegated packets of a root's application wait for room.
    pub fn is_room_wanted(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_some_and(|posted| posted.group.is_handed_off() && posted.group.is_room_wanted())
    }

    /// Whether the program has sent all that a root's application has written.
    pub fn has_all(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_none_or(|posted| posted.group.next() == written(&posted.group))
    }

    /// Sets the port of this host at which sleeping readers of a group are woken.
    pub fn set_wake_port(&mut self, group: GroupId, port: u16) {
        if let Some(posted) = self.groups.get_mut(&group) {
            posted.group.set_wake_port(port);
        }
    }

    /// Whether a group is in the program's maps.
    pub fn knows(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// Whether a group is handed off.
    pub fn has(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_some_and(|posted| posted.group.is_handed_off())
    }

    /// Reclaims a group, if it is handed off; returns how far it is then.
    pub fn reclaim(&mut self, group: GroupId, protocol: &mut Protocol) -> Option<Reclaimed> {
        let Posted { group: kernel_group, state, .. } = self.groups.get_mut(&group)?;
        if !kernel_group.reclaim(state) {
            return None;
        }
        let is_valid = protocol.reclaim(group, state, |packet| kernel_group.packet(packet));
        let FlowState { next, consumed, freed, .. } = state.flow;
        self.owned.push(group);
        while let Some(ReceivedNak { from, header, .. }) = kernel_group.take_nak() {
            let _ = protocol.handle(clock::now(), Input::Datagram { from, bytes: &header });
        }
        Some(Reclaimed { next, consumed, freed, is_valid })
    }

    /// Posts the neighbours of groups where they have changed, before anything is sent to them.
    pub fn post_neighbours(&mut self, protocol: &Protocol) {
        for group in &self.owned {
            let Some(posted) = self.groups.get_mut(group) else { continue };
            let epoch = protocol.epoch(*group);
            if epoch != posted.epoch
                && let Some((parent, children)) = protocol.neighbours(*group)
            {
                posted.group.post_neighbours(parent, &children);
                posted.epoch = epoch;
            }
        }
    }

    /// Hands off every group in which nothing needs the slow path. The protocol has been polled for all that it sends.
    pub fn hand_off(&mut self, protocol: &mut Protocol) {
        if !self.is_hooked() {
            return;
        }
        let Self { groups, owned, .. } = self;
        owned.retain(|&id| {
            let Some(Posted { group, state, .. }) = groups.get_mut(&id) else { return false };
            !protocol.hand_off(id, state, |state| group.hand_off(state))
        });
    }

    /// The protocol's counters of a group that is handed off.
    pub fn group_counters(&self, group: GroupId) -> Option<GroupCounters> {
        let posted = self.groups.get(&group).filter(|posted| posted.group.is_handed_off())?;
        Some(posted.group.counters().group)
    }

    /// The counters of a group in the program's maps.
    pub fn counters(&self, group: GroupId) -> Option<KernelCounters> {
        self.groups.get(&group).map(|posted| posted.group.counters())
    }
}

/// Packets before it are written, as a root's application says.
fn written(group: &KernelGroup) -> Sequence {
    Sequence(group.memory().written().load(Ordering::Acquire))
}

/// Whether the interface was removed.
const fn is_gone(trouble: &HookTrouble) -> bool {
    matches!(trouble, HookTrouble::Gone { .. } | HookTrouble::Another { .. })
}

/// The longest payload is that of the interface with the largest MTU.
fn settings(interfaces: &[Interface], groups_max: u32) -> ProgramSettings {
    let mtu_bytes = interfaces.iter().map(|interface| interface.mtu_bytes).max().unwrap_or_default();
    let default = ProgramSettings::default();
    let payload_bytes_max = if mtu_bytes > 1_500 { 8_912 } else { default.payload_bytes_max };
    ProgramSettings { groups_max, payload_bytes_max, ..default }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> EbpfError {
    move |source| EbpfError::System { what, source }
}
