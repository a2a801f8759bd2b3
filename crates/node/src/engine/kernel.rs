//! The kernel's packet path as part of an engine: groups are lent to it whenever nothing in them is out of the ordinary.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use treecast_ebpf::{
    Counts, EbpfError, HookTrouble, Interface, KernelGroup, Note, Program, ProgramSettings, Room, SlotMemory,
    WokenBy, interfaces_for,
};
use treecast_proto::{GroupCounters, GroupId, Input, Lent, Nanoseconds, Protocol, Sequence};

use crate::clock;
use crate::datagrams::Datagrams;
use crate::engine::root_socket::{Source, takes_trains};

/// The kernel's packet path, with the groups that are in its tables.
#[derive(Debug)]
pub(crate) struct Kernel {
    program: Program,
    groups: BTreeMap<GroupId, Posted>,
    /// Groups that the program does not have, and may be lent.
    at_home: Vec<GroupId>,
    address: SocketAddr,
    /// What is wrong with the hooks, as was found last, and when to look again.
    troubles: Vec<HookTrouble>,
    look_at: Nanoseconds,
}

/// How far a group is that was taken back.
#[derive(Debug)]
pub(crate) struct Returned {
    pub next: Sequence,
    pub consumed: Sequence,
    pub freed: Sequence,
    /// Whether what is in its slots can be.
    pub is_possible: bool,
}

/// When hooks are looked at: now and then while there is something to do, or because somebody asks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Look {
    WhenDue(Nanoseconds),
    Now,
}

/// How often hooks are looked at.
const LOOK_INTERVAL: Nanoseconds = Nanoseconds::from_ms(1_000);

/// A group in the kernel's tables.
#[derive(Debug)]
struct Posted {
    group: KernelGroup,
    /// The epoch of the tree that is posted.
    epoch: Option<u32>,
    /// What was lent.
    lent: Lent,
    /// At the root, by which is sent on what the application leaves to the node.
    source: Option<Source>,
}

/// How far the kernel's packet path has taken what a root's application has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Onward {
    All,
    /// It takes more.
    More,
    /// It takes more later: the bell will be rung.
    Waits,
    /// It does not take it.
    Refused,
    /// It has not got the group.
    NotLent,
}

impl Kernel {
    /// Loads the program and puts it on the interfaces that the node's datagrams pass.
    pub fn open(datagrams: &mut Datagrams, groups_max: u32) -> Result<Self, EbpfError> {
        let address = datagrams.address();
        let interfaces = interfaces_for(address)?;
        let mut program = Program::load(settings(&interfaces, groups_max))?;
        let socket = datagrams.cookie().map_err(system("cannot tell the socket from others"))?;
        program.listen(socket, address.port());
        program.attach(&interfaces)?;
        if !takes_trains() {
            datagrams.keep_apart();
        }
        Ok(Self {
            program,
            groups: BTreeMap::new(),
            at_home: Vec::new(),
            address,
            troubles: Vec::new(),
            look_at: Nanoseconds::ZERO,
        })
    }

    /// Sees whether the program still is where packets pass. If not, user space goes on alone: until an interface that
    /// went has come back. Who has taken the program off will have had reasons, and is not worked against.
    /// The answer is whether it no longer is, since the last look: all groups are to be taken back, and their ways forgotten.
    pub fn look_after_hooks(&mut self, look: Look) -> bool {
        if let Look::WhenDue(now) = look {
            if now < self.look_at {
                return false;
            }
            self.look_at = now + LOOK_INTERVAL;
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

    /// What is wrong with the hooks, as was found when they were last looked at.
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

    /// Who is told next may be reached in another way.
    pub fn forget_ways(&mut self) {
        for posted in self.groups.values_mut() {
            posted.group.forget_ways();
            posted.epoch = None;
        }
    }

    /// What wakes whoever drives the engine.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.program.bell()
    }

    /// A group for which the bell was rung and which is to be taken back: a child misses something, or has not answered in time.
    pub fn take_ring(&mut self) -> Option<GroupId> {
        while let Some(woken) = self.program.take_ring() {
            // Whoever waits for room looks for it anyway.
            if woken.by == WokenBy::Room {
                continue;
            }
            // The group may have gone since.
            let found = self.groups.iter().find(|(_, posted)| posted.group.place() == woken.place);
            if let Some((&group, _)) = found {
                return Some(group);
            }
        }
        None
    }

    /// Puts a group into the tables; the answer is the memory of its slots, and what another process maps, if it is to be shared.
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
        self.groups.insert(group, Posted { group: posted, epoch: None, lent: Lent::new(), source: None });
        self.at_home.push(group);
        Ok((memory, descriptors))
    }

    /// Takes a group out of the tables.
    pub fn remove(&mut self, group: GroupId) {
        if let Some(posted) = self.groups.remove(&group) {
            self.program.remove_group(&posted.group);
            self.at_home.retain(|other| *other != group);
        }
    }

    /// Says which socket's datagrams are packets of the group's root, and by what this node sends such.
    pub fn set_source(&mut self, group: GroupId, cookie: u64, source: Source) {
        if let Some(posted) = self.groups.get_mut(&group) {
            posted.group.set_source(cookie);
            posted.source = Some(source);
        }
    }

    /// Sends on a batch of what a root's application has written, as far as children have room for it.
    pub fn send_on(&mut self, group: GroupId) -> Onward {
        let Some(Posted { group, source: Some(source), .. }) = self.groups.get_mut(&group) else {
            return Onward::NotLent;
        };
        if !group.is_given() {
            return Onward::NotLent;
        }
        let (next, written) = (group.next(), written(group));
        let ahead = written.distance_from(next) as u32;
        if ahead > group.memory().count() {
            return Onward::Refused;
        }
        let is_enough = |room: Room| room.packets >= room.worth.min(ahead);
        let mut room = group.room();
        if !is_enough(room) {
            group.await_room(room.worth.min(ahead));
            room = group.room();
            if !is_enough(room) {
                return Onward::Waits;
            }
            group.await_room(0);
        }
        if source.send_some(next, next + ahead.min(room.packets)) != Some(group.next()) {
            return Onward::Refused;
        }
        if group.next() == written { Onward::All } else { Onward::More }
    }

    /// Whether what a root's application has left waits for room.
    pub fn awaits_room(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_some_and(|posted| posted.group.is_given() && posted.group.awaits_room())
    }

    /// Whether the kernel's packet path has sent on all that a root's application has written.
    pub fn has_all(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_none_or(|posted| posted.group.next() == written(&posted.group))
    }

    /// Says at which port of this host whoever sleeps over a group is woken.
    pub fn set_wake_port(&mut self, group: GroupId, port: u16) {
        if let Some(posted) = self.groups.get_mut(&group) {
            posted.group.set_wake_port(port);
        }
    }

    /// Whether a group is in the tables.
    pub fn knows(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// Whether the program has a group.
    pub fn has(&self, group: GroupId) -> bool {
        self.groups.get(&group).is_some_and(|posted| posted.group.is_given())
    }

    /// Takes a group back, if the program has it; says how far it is then.
    pub fn take(&mut self, group: GroupId, protocol: &mut Protocol) -> Option<Returned> {
        let Posted { group: kept, lent, .. } = self.groups.get_mut(&group)?;
        if !kept.take(lent) {
            return None;
        }
        let is_possible = protocol.take_back(group, lent, |packet| kept.packet(packet));
        let Lent { next, consumed, freed, .. } = *lent;
        self.at_home.push(group);
        // What a child has said that it misses.
        while let Some(Note { from, header, .. }) = kept.take_note() {
            let _ = protocol.handle(clock::now(), Input::Datagram { from, bytes: &header });
        }
        Some(Returned { next, consumed, freed, is_possible })
    }

    /// Says who the neighbours of groups at home are, where that has changed: before anything is sent to them.
    pub fn post(&mut self, protocol: &Protocol) {
        for group in &self.at_home {
            let Some(posted) = self.groups.get_mut(group) else { continue };
            let epoch = protocol.epoch(*group);
            if epoch != posted.epoch
                && let Some((parent, children)) = protocol.neighbours(*group)
            {
                posted.group.post(parent, &children);
                posted.epoch = epoch;
            }
        }
    }

    /// Lends every group at home that can be lent. All that was to be sent has been sent.
    pub fn lend(&mut self, protocol: &mut Protocol) {
        if !self.is_hooked() {
            return;
        }
        let Self { groups, at_home, .. } = self;
        at_home.retain(|&id| {
            let Some(Posted { group, lent, .. }) = groups.get_mut(&id) else { return false };
            !protocol.lend(id, lent, |lent| group.give(lent))
        });
    }

    /// What is counted of a group, with what the program has counted since it was lent.
    pub fn add_counts(&self, group: GroupId, counters: &mut GroupCounters) {
        if let Some(Posted { group, .. }) = self.groups.get(&group)
            && group.is_given()
        {
            let Counts { accepted, sent, acks_sent, acks_received, .. } = group.counts();
            (counters.accepted, counters.sent) = (accepted, sent);
            (counters.acks_sent, counters.acks_received) = (acks_sent, acks_received);
        }
    }

    /// What the program counts of a group.
    pub fn counts(&self, group: GroupId) -> Option<Counts> {
        self.groups.get(&group).map(|posted| posted.group.counts())
    }
}

/// All before it are written, as a root's application says.
fn written(group: &KernelGroup) -> Sequence {
    Sequence(group.memory().written().load(Ordering::Acquire))
}

/// Whether an interface is not there any more.
const fn is_gone(trouble: &HookTrouble) -> bool {
    matches!(trouble, HookTrouble::Gone { .. } | HookTrouble::Another { .. })
}

/// The longest payload is what the interface with the largest packets carries.
fn settings(interfaces: &[Interface], groups_max: u32) -> ProgramSettings {
    let mtu_bytes = interfaces.iter().map(|interface| interface.mtu_bytes).max().unwrap_or_default();
    let default = ProgramSettings::default();
    let payload_bytes_max = if mtu_bytes > 1_500 { 8_912 } else { default.payload_bytes_max };
    ProgramSettings { groups_max, payload_bytes_max, ..default }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> EbpfError {
    move |source| EbpfError::System { what, source }
}
