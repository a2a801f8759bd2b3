//! The kernel's packet path as part of an engine. Groups are handed off to it while they are on the
//! fast path, and reclaimed for everything else.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use treecast_ebpf::{
    EbpfError, GroupMaker, HookTrouble, Interface, KernelCounters, KernelGroup, Program, ProgramSettings,
    ReceivedNak, SendWindow, WakeNonce, WakeReason, WakeSocket, interfaces_for,
};
use treecast_proto::{
    FlowState, GroupCounters, GroupId, HandOff, HandOffChild, HandOffPacket, Input, Nanoseconds, PlaceStatus,
    Protocol, Refused, Sequence, StateSize,
};
use treecast_shm::clock;

use super::root_socket::{RootSocket, supports_gso};
use crate::datagrams::{Datagrams, Outgoing};
use crate::random;

/// The kernel's packet path, with the groups that are in its tables.
#[derive(Debug)]
pub(crate) struct KernelPath {
    program: Program,
    groups: BTreeMap<GroupId, KernelEntry>,
    /// The groups that user space runs, and that can be handed off.
    in_user_space: Vec<GroupId>,
    /// Memory for the packets of a group that is reclaimed.
    packets: Vec<HandOffPacket>,
    address: SocketAddr,
    /// The result of the last check of the hooks, and the time of the next one.
    troubles: Vec<HookTrouble>,
    check_at: Nanoseconds,
}

/// The progress of a group that was reclaimed.
#[derive(Debug)]
pub(crate) struct Reclaimed {
    pub next: Sequence,
    pub consumed: Sequence,
    pub freed: Sequence,
    /// Whether the content of its slots is valid.
    pub is_valid: bool,
}

/// When to check the hooks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HookCheck {
    /// Once per [`HOOK_CHECK_INTERVAL`], given the time.
    WhenDue(Nanoseconds),
    Now,
}

const HOOK_CHECK_INTERVAL: Nanoseconds = Nanoseconds::from_ms(1_000);

/// A group in the kernel's tables.
#[derive(Debug)]
struct KernelEntry {
    group: KernelGroup,
    /// The epoch of the posted group table.
    epoch: Option<u32>,
    /// Its state at the last hand-off.
    state: HandOff,
    /// At a root whose packets the program sends: sends delegated packets.
    socket: Option<RootSocket>,
}

/// How much of the packets that a root's application has written the kernel's packet path has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    Complete,
    /// One batch; there are more packets.
    Partial,
    /// The children's windows are full. The program wakes the engine when they are not.
    AwaitsWindow,
    /// The program does not accept the packets.
    Refused,
    /// User space runs the group.
    NotHandedOff,
}

impl KernelPath {
    /// Loads the program, and attaches it to the interfaces of the node's datagrams.
    pub fn open(datagrams: &mut Datagrams, groups_max: u32) -> Result<Self, EbpfError> {
        let address = datagrams.address();
        let interfaces = interfaces_for(address)?;
        let mut program = Program::load(settings(&interfaces, groups_max))?;
        let socket = datagrams.cookie().map_err(system("cannot identify the socket"))?;
        let nonce = random::word().map(WakeNonce).map_err(system("the system has no random numbers"))?;
        program.set_socket(socket, WakeSocket { port: address.port(), nonce });
        program.attach(&interfaces)?;
        if !supports_gso() {
            datagrams.disable_offloads();
        }
        Ok(Self {
            program,
            groups: BTreeMap::new(),
            in_user_space: Vec::new(),
            packets: Vec::new(),
            address,
            troubles: Vec::new(),
            check_at: Nanoseconds::ZERO,
        })
    }

    /// Checks that packets pass the program. Attaches it again when an interface is back, but not
    /// when an administrator has detached it. Returns true if the path has become unusable since
    /// the last check: the caller then reclaims all groups and forgets their paths.
    pub fn check_hooks(&mut self, check: HookCheck) -> bool {
        if let HookCheck::WhenDue(now) = check {
            if now < self.check_at {
                return false;
            }
            self.check_at = now + HOOK_CHECK_INTERVAL;
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
            tracing::warn!("all groups run in user space");
            return true;
        }
        if !was_hooked && self.is_hooked() {
            tracing::info!("the kernel's packet path is usable again");
        }
        false
    }

    /// The result of the last check of the hooks.
    pub fn troubles(&self) -> &[HookTrouble] {
        &self.troubles
    }

    /// Whether packets pass the program.
    fn is_hooked(&self) -> bool {
        !self
            .troubles
            .iter()
            .any(|trouble| is_gone(trouble) || matches!(trouble, HookTrouble::ProgramRemoved { .. }))
    }

    fn attach_again(&mut self) -> bool {
        interfaces_for(self.address).is_ok_and(|interfaces| self.program.attach(&interfaces).is_ok())
    }

    /// Forgets how neighbours are reached.
    pub fn forget_paths(&mut self) {
        for entry in self.groups.values_mut() {
            entry.group.forget_paths();
            entry.epoch = None;
        }
    }

    /// Becomes readable when the program wakes the engine.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.program.wakeups()
    }

    /// The group of a datagram by which the program wakes a reader at the node's socket; `None` for
    /// all others, forged ones among them.
    pub fn read_wake_datagram(&self, datagram: &[u8]) -> Option<GroupId> {
        self.program.wake_socket().nonce.read(datagram)
    }

    /// The next group that the program has asked user space to reclaim: a child misses a packet, or
    /// has not answered in time.
    pub fn next_woken(&mut self) -> Option<GroupId> {
        while let Some(wakeup) = self.program.take_wakeup() {
            // Every step looks at windows anyway.
            if wakeup.reason == WakeReason::Window {
                continue;
            }
            // The group may have been removed since.
            let found = self.groups.iter().find(|(_, entry)| entry.group.index() == wakeup.index);
            if let Some((&group, _)) = found {
                return Some(group);
            }
        }
        None
    }

    /// Makes and unmakes groups.
    pub const fn maker(&self) -> &GroupMaker {
        self.program.maker()
    }

    /// Adds a group to the tables: with the socket at which the program wakes its application, if
    /// that is in another process, and at a root whose packets the program sends with the cookie of
    /// the application's socket, whose datagrams are these packets, and the engine's copy of it.
    ///
    /// # Errors
    /// The group, and why it is not there.
    pub fn add(
        &mut self,
        mut group: KernelGroup,
        wake_socket: Option<WakeSocket>,
        socket: Option<(u64, RootSocket)>,
    ) -> Result<(), (Box<KernelGroup>, EbpfError)> {
        if let Err(error) = self.program.add_group(&mut group) {
            return Err((Box::new(group), error));
        }
        if let Some(wake_socket) = wake_socket {
            group.set_wake_socket(wake_socket);
        }
        let (cookie, socket) = socket.unzip();
        if let Some(cookie) = cookie {
            group.set_root_socket(cookie);
        }
        let id = group.id();
        self.groups.insert(id, KernelEntry { group, epoch: None, state: HandOff::new(), socket });
        self.in_user_space.push(id);
        Ok(())
    }

    /// Memory of a group here, in bytes.
    pub const fn entry_bytes(size: StateSize) -> u64 {
        let is_root = size.members > 0;
        let socket_bytes = if is_root { Outgoing::BYTES } else { 0 };
        (2 * size_of::<(GroupId, KernelEntry)>() + socket_bytes + size.children * size_of::<HandOffChild>())
            as u64
    }

    /// Removes a group from the tables; the caller unmakes it.
    pub fn remove(&mut self, group: GroupId) -> Option<KernelGroup> {
        let KernelEntry { group: removed, .. } = self.groups.remove(&group)?;
        self.program.remove_group(&removed);
        self.in_user_space.retain(|other| *other != group);
        Some(removed)
    }

    /// Sends a batch of the packets that a root's application has written, as far as the children
    /// have windows.
    pub fn send_written(&mut self, group: GroupId) -> SendOutcome {
        let Some(KernelEntry { group, socket: Some(socket), .. }) = self.groups.get_mut(&group) else {
            return SendOutcome::NotHandedOff;
        };
        if !group.is_handed_off() {
            return SendOutcome::NotHandedOff;
        }
        let (next, written) = (group.next(), written(group));
        let ahead = written.distance_from(next) as u32;
        if ahead > group.memory().count() {
            return SendOutcome::Refused;
        }
        let is_enough = |window: SendWindow| window.packets >= window.batch_packets.min(ahead);
        let mut window = group.send_window();
        if !is_enough(window) {
            group.want_window(window.batch_packets.min(ahead));
            window = group.send_window();
            if !is_enough(window) {
                return SendOutcome::AwaitsWindow;
            }
            group.want_window(0);
        }
        if socket.send_batch(next, next + ahead.min(window.packets)) != Some(group.next()) {
            return SendOutcome::Refused;
        }
        if group.next() == written { SendOutcome::Complete } else { SendOutcome::Partial }
    }

    /// Whether delegated packets wait for a window.
    pub fn is_window_wanted(&self, group: GroupId) -> bool {
        self.groups
            .get(&group)
            .is_some_and(|entry| entry.group.is_handed_off() && entry.group.is_window_wanted())
    }

    /// Whether the kernel's packet path has sent all packets that a root's application has written.
    pub fn has_sent_all(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_none_or(|entry| entry.group.next() == written(&entry.group))
    }

    /// Whether a member that the program runs has to tell its parent that its application has read
    /// all packets before `read`.
    pub fn owes_window_update(&self, group: GroupId, read: Sequence) -> bool {
        self.groups.get(&group).is_some_and(|entry| entry.group.owes_window_update(read))
    }

    /// Whether the program runs a group.
    pub fn runs(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_some_and(|entry| entry.group.is_handed_off())
    }

    /// The first packet of a group that the program runs which has not come, or is not sent.
    pub fn next(&self, group: GroupId) -> Option<Sequence> {
        let entry = self.groups.get(&group).filter(|entry| entry.group.is_handed_off())?;
        Some(entry.group.next())
    }

    /// Reclaims a group, if the program runs it.
    pub fn reclaim(&mut self, group: GroupId, protocol: &mut Protocol) -> Option<Reclaimed> {
        let Self { groups, packets, .. } = self;
        let KernelEntry { group: kernel_group, state, .. } = groups.get_mut(&group)?;
        if !kernel_group.reclaim(state) {
            return None;
        }
        packets.clear();
        packets.extend(protocol.new_packets(group, state).map(|packet| kernel_group.packet(packet)));
        let returned = protocol.handle(clock::now(), Input::Reclaimed { group, state, packets });
        let is_valid = !matches!(returned, Err(Refused::InvalidState(_)));
        let FlowState { next, consumed, freed, .. } = state.flow;
        self.in_user_space.push(group);
        // The NAKs that the program has kept.
        while let Some(ReceivedNak { from, header, .. }) = kernel_group.take_nak() {
            let _ = protocol.handle(clock::now(), Input::Datagram { from, bytes: &header });
        }
        for (from, bytes) in kernel_group.contributions() {
            let _ = protocol.handle(clock::now(), Input::Datagram { from, bytes: &bytes });
        }
        kernel_group.forget_contributions();
        Some(Reclaimed { next, consumed, freed, is_valid })
    }

    /// As [`KernelGroup::take_contributions`].
    pub fn take_contributions(&mut self, group: GroupId) -> Vec<(SocketAddr, Vec<u8>)> {
        self.groups.get_mut(&group).map_or_else(Vec::new, |entry| entry.group.take_contributions())
    }

    /// Posts the neighbours of groups in user space where they have changed, before anything is
    /// sent to them.
    pub fn post_neighbours(&mut self, protocol: &Protocol) {
        for group in &self.in_user_space {
            let Some(entry) = self.groups.get_mut(group) else { continue };
            let epoch = protocol.epoch(*group);
            if epoch != entry.epoch
                && let Some((parent, children)) = protocol.neighbours(*group)
            {
                entry.group.post_neighbours(parent, &children);
                entry.epoch = epoch;
            }
        }
    }

    /// Hands off every group that is on the fast path, if the caller agrees. That has sent
    /// everything that was due.
    pub fn hand_off(&mut self, protocol: &mut Protocol, may_be_taken: impl Fn(GroupId) -> bool) {
        if !self.is_hooked() {
            return;
        }
        let now = clock::now();
        let Self { groups, in_user_space, .. } = self;
        in_user_space.retain(|&id| {
            let Some(KernelEntry { group, state, .. }) = groups.get_mut(&id) else { return false };
            let is_taken = may_be_taken(id) && protocol.hand_off_state(id, state) && group.hand_off(state);
            !(is_taken && protocol.handle(now, Input::HandedOff { group: id }).is_ok())
        });
    }

    /// The protocol's counters of a group that the program runs.
    pub fn group_counters(&self, group: GroupId) -> Option<GroupCounters> {
        let entry = self.groups.get(&group).filter(|entry| entry.group.is_handed_off())?;
        Some(entry.group.counters().group)
    }

    /// Shows in `status` what the program has done with a group; says whether the program runs it.
    pub fn update(&self, group: GroupId, status: &mut PlaceStatus) -> bool {
        let entry = self.groups.get(&group).filter(|entry| entry.group.is_handed_off());
        entry.inspect(|entry| entry.group.update(status)).is_some()
    }

    /// The counters of a group in the tables.
    pub fn counters(&self, group: GroupId) -> Option<KernelCounters> {
        self.groups.get(&group).map(|entry| entry.group.counters())
    }
}

/// The first packet that a root's application has not written, by its own number.
fn written(group: &KernelGroup) -> Sequence {
    Sequence(group.memory().written().load(Ordering::Acquire))
}

/// Whether the interface does not exist any more.
const fn is_gone(trouble: &HookTrouble) -> bool {
    matches!(trouble, HookTrouble::InterfaceRemoved { .. } | HookTrouble::InterfaceReplaced { .. })
}

/// The longest payload follows the interface with the largest MTU.
fn settings(interfaces: &[Interface], groups_max: u32) -> ProgramSettings {
    let mtu_bytes = interfaces.iter().map(|interface| interface.mtu_bytes).max().unwrap_or_default();
    let default = ProgramSettings::default();
    let payload_bytes_max = if mtu_bytes > 1_500 { 8_912 } else { default.payload_bytes_max };
    ProgramSettings { groups_max, payload_bytes_max, ..default }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> EbpfError {
    move |source| EbpfError::System { what, source }
}
