//! An engine without its socket and timer: the protocol, the kernel's packet path, and the groups.
//!
//! The protocol or the kernel's packet path runs a group, never both. A group is reclaimed before the protocol handles anything of it,
//! and handed off again at the end of each step.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use treecast_ebpf::{HookTrouble, KernelGroup};
use treecast_proto::{
    Event, GroupId, Input, MemberId, Nanoseconds, Protocol, Refused, Settings, Store, Transport,
};
use treecast_wire::View;

use super::audit::Audit;
use super::background::{Background, Made, Placing};
use super::group_entry::{GroupEntry, end};
use super::kernel::{HookCheck, KernelPath, SendOutcome};
use super::multicast::MulticastAddresses;
use super::owners::Owners;
use super::query::{Answer, Query};
use super::rings::{NewRing, RingMaker};
use super::root_socket::RootSocket;
use super::{KernelRoot, Progress, Request, RootRing};
use crate::clock;
use crate::datagrams::Datagrams;
use crate::memory::RingSettings;
use crate::memory::progress::ProgressList;
use crate::memory::shared_group::{HostLoss, Placement, RingSide, SharedGroup};
use crate::memory::waker::Waker;
use crate::settings::config::is_drawn_multicast_address;

/// The protocol, the kernel's packet path, and the groups.
#[derive(Debug)]
pub(super) struct Core {
    pub protocol: Protocol,
    pub kernel: Option<KernelPath>,
    pub groups: BTreeMap<GroupId, GroupEntry>,
    /// Where applications say that they have written or read.
    progress: Arc<ProgressList>,
    /// The groups of which they have said so, and the protocol does not know yet.
    written_or_read: BTreeSet<GroupId>,
    /// The groups whose applications are in other processes: these do not say so.
    of_clients: BTreeSet<GroupId>,
    /// The groups that have changed in the protocol, and whose applications do not know yet.
    changed: BTreeSet<GroupId>,
    pub owners: Owners,
    pub multicast: MulticastAddresses,
    background: Background,
    /// How many groups ended because of invalid values in shared memory.
    pub invalid: u64,
    /// How many groups of clients ended because they exceeded their users' budgets.
    pub over_budget: u64,
    pub audit: Audit,
    /// The groups whose data goes on streams.
    pub by_streams: BTreeSet<GroupId>,
    /// Those of them that have changed, so that their streams may have to be opened or closed.
    pub untended: BTreeSet<GroupId>,
    /// Streams that are to be closed.
    pub ended_streams: Vec<EndedStream>,
}

/// A stream that is to be closed.
#[derive(Debug, Clone, Copy)]
pub(super) enum EndedStream {
    ToParent(GroupId),
    ToChild(GroupId, MemberId),
    AllOf(GroupId),
}

/// The most packets of an owner's applications that a step passes to the protocol.
const PIECES_PER_OWNER_MAX: u32 = 512;

impl Core {
    pub fn new(
        settings: &Settings,
        kernel: Option<KernelPath>,
        waker: Arc<Waker>,
        progress: Arc<ProgressList>,
        lanes: usize,
    ) -> Self {
        let rings = RingMaker::new(kernel.as_ref().map(|kernel| kernel.maker().clone()));
        Self {
            protocol: Protocol::new(settings.clone()),
            kernel,
            groups: BTreeMap::new(),
            progress,
            written_or_read: BTreeSet::new(),
            of_clients: BTreeSet::new(),
            changed: BTreeSet::new(),
            owners: Owners::new(lanes),
            multicast: MulticastAddresses::default(),
            background: Background::new(rings, waker),
            invalid: 0,
            over_budget: 0,
            audit: Audit::default(),
            by_streams: BTreeSet::new(),
            untended: BTreeSet::new(),
            ended_streams: Vec::new(),
        }
    }

    /// Makes rings of groups, without the engine.
    pub const fn rings(&self) -> &RingMaker {
        self.background.rings()
    }

    pub fn answer(&self, query: Query) -> Answer {
        match query {
            Query::Children { group } => Answer::members(self.protocol.children(GroupId(group))),
            Query::ReachedChildren { group } => {
                Answer::members(self.protocol.reached_children(GroupId(group)))
            }
            Query::Unplaced { group } => Answer::members(self.protocol.awaited(GroupId(group))),
            Query::AwaitedReaders { group } => Answer::readers(self.protocol.awaited_readers(GroupId(group))),
            Query::Counters { group } => {
                let group = GroupId(group);
                let handed_off = self.kernel.as_ref().and_then(|kernel| kernel.group_counters(group));
                let counters = handed_off.or_else(|| self.protocol.counters(group).copied());
                Answer::Numbers(counters.map(|counters| counters.values().map(|(_, count)| count).collect()))
            }
            Query::KernelCounters { group } => {
                let counters = self.kernel.as_ref().and_then(|kernel| kernel.counters(GroupId(group)));
                Answer::Numbers(counters.map(|counters| counters.values()))
            }
            Query::Strays => {
                Answer::Numbers(Some(self.protocol.strays().values().map(|(_, count)| count).collect()))
            }
        }
    }

    /// Problems of the hooks of the kernel's packet path; empty without one.
    pub fn troubles(&mut self) -> Vec<HookTrouble> {
        self.check_hooks(HookCheck::Now);
        self.kernel.as_ref().map_or_else(Vec::new, |kernel| kernel.troubles().to_vec())
    }

    /// Reclaims all groups if packets do not pass the program any more.
    pub fn check_hooks(&mut self, check: HookCheck) {
        if self.kernel.as_mut().is_some_and(|kernel| kernel.check_hooks(check)) {
            self.reclaim_all();
            self.kernel.iter_mut().for_each(KernelPath::forget_paths);
        }
    }

    /// Finds out which groups are alone at their multicast addresses, and reclaims those that are not any more.
    pub fn check_multicast(&mut self, now: Nanoseconds, datagrams: &Datagrams) {
        if self.kernel.is_some() && self.multicast.is_check_due(now) {
            for group in self.multicast.set_alone_at(&datagrams.alone_at()) {
                self.reclaim(group);
            }
        }
    }

    /// Removes a group from the kernel's packet path.
    pub fn remove_from_kernel(&mut self, group: GroupId) {
        if let Some(removed) = self.kernel.as_mut().and_then(|kernel| kernel.remove(group)) {
            self.background.unmake(removed);
        }
    }

    /// Reclaims a group from the kernel's packet path, if that runs it.
    pub fn reclaim(&mut self, group: GroupId) {
        let Some(kernel) = &mut self.kernel else { return };
        let Some(reclaimed) = kernel.reclaim(group, &mut self.protocol) else { return };
        if let Some(entry) = self.groups.get_mut(&group) {
            entry.resume(&reclaimed);
            // The program may not have been able to wake the application.
            entry.shared_group.wake_always();
            self.invalid += u64::from(entry.end_if_invalid(&mut self.protocol, reclaimed.is_valid));
        }
    }

    pub fn reclaim_all(&mut self) {
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for group in groups {
            self.reclaim(group);
        }
    }

    /// Reclaims the groups for which the program has woken the engine.
    pub fn reclaim_woken(&mut self) {
        while let Some(group) = self.kernel.as_mut().and_then(KernelPath::next_woken) {
            self.reclaim(group);
        }
    }

    /// Hands off all groups to the kernel's packet path that it can run.
    pub fn hand_off(&mut self) {
        let Self { kernel: Some(kernel), protocol, multicast, .. } = self else { return };
        kernel.hand_off(protocol, |group| multicast.may_be_taken(group));
    }

    /// Hands off those of these groups that the kernel's packet path can run, before their data is sent.
    pub fn hand_off_senders(&mut self, senders: &[GroupId]) {
        if let Some(kernel) = self.kernel.as_mut().filter(|_| !senders.is_empty()) {
            kernel.post_neighbours(&self.protocol);
            kernel.hand_off(&mut self.protocol, |group| senders.contains(&group));
        }
    }

    /// Ends the delegation of sending, before a request that comes after the delegated packets.
    pub fn end_delegation(&self, group: GroupId) {
        if let Some(entry) = self.groups.get(&group) {
            entry.end_delegation();
        }
    }

    /// Sends a batch of each root's delegated packets by the kernel's packet path. What that refuses is for the protocol. While the
    /// protocol runs the group because of packets in flight, the rest waits.
    pub fn send_delegated(&mut self) {
        let Some(kernel) = &mut self.kernel else { return };
        for (&group, entry) in &self.groups {
            let Some(delegation) = entry.delegation().filter(|_| !kernel.is_room_wanted(group)) else {
                continue;
            };
            match kernel.send_written(group) {
                SendOutcome::Refused => entry.end_delegation(),
                SendOutcome::NotHandedOff if is_idle(&self.protocol, group) => entry.end_delegation(),
                SendOutcome::Partial | SendOutcome::AwaitsRoom | SendOutcome::NotHandedOff => {}
                // An application that writes after the end sends itself; what it has written before is seen here.
                SendOutcome::Complete => delegation.end_if_complete(|| kernel.has_sent_all(group)),
            }
        }
    }

    /// Whether delegated packets can be sent now, by the kernel's packet path or by the protocol.
    pub fn can_send_delegated(&self) -> bool {
        let Some(kernel) = &self.kernel else { return false };
        let can_send = |group| {
            if kernel.runs(group) { !kernel.is_room_wanted(group) } else { is_idle(&self.protocol, group) }
        };
        self.groups.iter().any(|(&group, entry)| entry.delegation().is_some() && can_send(group))
    }

    /// Ends groups whose applications have written invalid numbers.
    pub fn end_invalid(&mut self) {
        // An application of this process could write anywhere in the node's memory.
        let has_invalid =
            |group: &GroupId| self.groups.get(group).is_some_and(GroupEntry::has_become_invalid);
        let invalid: Vec<GroupId> = self.of_clients.iter().copied().filter(has_invalid).collect();
        for group in invalid {
            self.reclaim(group);
            if let Some(entry) = self.groups.get_mut(&group) {
                self.invalid += u64::from(entry.end_if_invalid(&mut self.protocol, true));
            }
        }
    }

    pub fn handle_request(&mut self, request: Request) {
        let now = clock::now();
        match request {
            Request::Input(input) => {
                if let Some(group) = input.group() {
                    self.reclaim(group);
                }
                // The group may have ended before the request.
                if let Err(refused) = self.protocol.handle(now, input)
                    && !matches!(refused, Refused::UnknownGroup(_))
                {
                    tracing::warn!(%refused, "a request of the application is refused");
                }
            }
            Request::End(group, why) => {
                self.reclaim(group);
                end(&mut self.protocol, group, why);
            }
            Request::Enter { shared_group, input, root_ring } => {
                let multicast = match &input {
                    Input::CreateGroup(create) => create.multicast,
                    _ => None,
                };
                let is_by_streams =
                    matches!(&input, Input::CreateGroup(create) if create.transport == Transport::Streams);
                let group = shared_group.group;
                let handled = self.protocol.handle(now, input);
                if handled.is_ok() {
                    self.end_streams(group);
                    if is_by_streams {
                        self.by_streams.insert(group);
                    }
                }
                self.enter(shared_group, root_ring, multicast, handled);
            }
        }
    }

    /// A group that the protocol has accepted, or not.
    fn enter(
        &mut self,
        shared_group: Arc<SharedGroup>,
        root_ring: Option<Box<RootRing>>,
        multicast: Option<SocketAddr>,
        handled: Result<(), Refused>,
    ) {
        let group = shared_group.group;
        let (reader, kernel) = root_ring.map(|ring| (ring.reader, ring.kernel)).unzip();
        let kernel = kernel.flatten();
        match handled {
            Ok(()) => {
                self.multicast.remove(group);
                if let Some(address) = multicast {
                    self.multicast.send(group, address);
                }
                let owner = shared_group.owner();
                self.protocol.set_owner(group, owner);
                self.owners.add(owner);
                if let Some(KernelRoot { group, socket }) = kernel {
                    self.add_to_kernel(group, &shared_group, socket);
                }
                if shared_group.clients.is_some() {
                    self.of_clients.insert(group);
                } else {
                    self.of_clients.remove(&group);
                }
                self.changed.insert(group);
                if shared_group.has_progress() {
                    self.written_or_read.insert(group);
                }
                let entry = GroupEntry::new(shared_group, reader.map(RingSide::Reader));
                // An earlier group of this number has ended, and may still have notices to send.
                if let Some(replaced) = self.groups.insert(group, entry) {
                    self.drop_entry(replaced);
                }
            }
            Err(refused) => {
                if let Some(kernel) = kernel {
                    self.background.unmake(kernel.group);
                }
                shared_group.refuse(refused);
            }
        }
    }

    fn add_to_kernel(
        &mut self,
        added: KernelGroup,
        shared_group: &SharedGroup,
        socket: Option<(u64, RootSocket)>,
    ) {
        let Some(kernel) = &mut self.kernel else { return };
        let wake_socket = shared_group.clients.as_ref().and_then(|clients| clients.wake_socket());
        if let Err((added, error)) = kernel.add(added, wake_socket, socket) {
            tracing::warn!(%error, "group {} runs in user space only", shared_group.group);
            self.background.unmake(*added);
        }
    }

    /// Tells the protocol what applications have written or read; of each owner a bounded number of packets.
    pub fn take_progress(&mut self) -> Progress {
        self.progress.take(&mut self.written_or_read);
        if self.written_or_read.is_empty() && self.of_clients.is_empty() {
            return Progress::Done;
        }
        while let Some(group) = self.find_group_for_user_space() {
            self.reclaim(group);
        }
        let now = clock::now();
        let mut progress = Progress::Done;
        let mut candidates = std::mem::take(&mut self.written_or_read);
        candidates.extend(&self.of_clients);
        for group in candidates {
            let Some(entry) = self.groups.get_mut(&group) else { continue };
            let GroupEntry { shared_group, side: Some(side), consumed, .. } = entry else {
                self.written_or_read.insert(group);
                continue;
            };
            if self.kernel.as_ref().is_some_and(|kernel| kernel.runs(group)) {
                self.written_or_read.insert(group);
                continue;
            }
            let has_progress = shared_group.clients.is_some() && side.has_progress(*consumed);
            if !shared_group.take_progress() && !has_progress {
                continue;
            }
            match side {
                RingSide::Reader(reader) => {
                    let Some((_, next)) = self.protocol.readable(group) else { continue };
                    let mut is_valid = true;
                    let groups = self.owners.groups(shared_group.owner()).max(1);
                    let pieces_max = (PIECES_PER_OWNER_MAX / groups).max(1);
                    let written = reader.written();
                    let end = if self.owners.have_lanes() { written.min(next + pieces_max) } else { written };
                    if end != written {
                        shared_group.mark_progress();
                        progress = Progress::More;
                    }
                    for packet in next.until(end) {
                        let piece = reader.piece(packet);
                        if let Err(refused) = self.protocol.handle(now, Input::Queue { group, piece }) {
                            tracing::warn!(%refused, "a packet of the application is refused");
                            is_valid = !matches!(refused, Refused::Piece { .. });
                            break;
                        }
                    }
                    self.invalid += u64::from(entry.end_if_invalid(&mut self.protocol, is_valid));
                }
                RingSide::Writer(writer) => {
                    *consumed = writer.read();
                    let _ = self.protocol.handle(now, Input::Consumed { group, upto: *consumed });
                }
            }
        }
        progress
    }

    /// A group that the kernel's packet path runs, and whose application needs user space to run it.
    fn find_group_for_user_space(&self) -> Option<GroupId> {
        let kernel = self.kernel.as_ref()?;
        let needs_user_space = |group: GroupId, entry: &GroupEntry| {
            let owes_window_update = |read| kernel.owes_window_update(group, read);
            entry.shared_group.has_progress()
                && entry.side.as_ref().is_some_and(|side| side.needs_user_space(owes_window_update))
        };
        let candidates = self.written_or_read.iter().chain(&self.of_clients);
        let mut handed_off = candidates.copied().filter(|&group| kernel.runs(group));
        handed_off.find(|&group| self.groups.get(&group).is_some_and(|entry| needs_user_space(group, entry)))
    }

    /// Shows received packets to the applications, and wakes none of them yet. Acknowledgments are sent after that: what the
    /// root has flushed can be received at once.
    pub fn publish(&mut self) {
        self.changed.extend(self.protocol.poll_changed());
        self.untended.extend(self.changed.intersection(&self.by_streams));
        for group in &self.changed {
            // The kernel's packet path does this for its groups.
            if self.kernel.as_ref().is_none_or(|kernel| !kernel.runs(*group))
                && let Some(entry) = self.groups.get_mut(group)
            {
                entry.publish(&self.protocol);
            }
        }
    }

    /// Passes received packets and free slots to the applications.
    pub fn give_progress(&mut self) {
        self.publish();
        let changed = std::mem::take(&mut self.changed);
        for &group in &changed {
            let Some(GroupEntry { shared_group, side, is_wake_due, .. }) = self.groups.get_mut(&group) else {
                continue;
            };
            // The kernel's packet path does this for its groups.
            if self.kernel.as_ref().is_some_and(|kernel| kernel.runs(group)) {
                continue;
            }
            match side {
                Some(RingSide::Reader(reader)) => {
                    let freed = self.protocol.freed(group);
                    if let Some(freed) = freed.filter(|&freed| reader.read().is_before(freed)) {
                        reader.release(freed.min(reader.written()));
                        shared_group.wake();
                    }
                }
                Some(RingSide::Writer(_)) => {
                    if std::mem::take(is_wake_due) {
                        shared_group.wake();
                    }
                    if self.protocol.is_closed(group) {
                        shared_group.close();
                    }
                }
                None => {}
            }
        }
        self.charge_changed(&changed);
        for &group in &changed {
            self.remove_if_ended(group);
        }
    }

    fn remove_if_ended(&mut self, group: GroupId) {
        let has_ended = |entry: &GroupEntry| entry.shared_group.has_ended() && !self.protocol.has(group);
        if self.groups.get(&group).is_some_and(has_ended) {
            self.multicast.remove(group);
            self.of_clients.remove(&group);
            self.written_or_read.remove(&group);
            if let Some(entry) = self.groups.remove(&group) {
                self.drop_entry(entry);
            }
        }
    }

    fn drop_entry(&mut self, entry: GroupEntry) {
        self.owners.remove(entry.shared_group.owner());
        // To free memory that was mapped takes long.
        if entry.has_shared_memory() {
            self.background.free(entry);
        }
    }

    /// Whether all groups send on streams.
    pub fn has_only_streams(&self) -> bool {
        !self.groups.is_empty() && self.groups.len() == self.by_streams.len()
    }

    /// The streams of a group are over.
    fn end_streams(&mut self, group: GroupId) {
        if self.by_streams.remove(&group) {
            self.ended_streams.push(EndedStream::AllOf(group));
        }
    }

    /// Writes the payload of a packet into its slot, unless it is there.
    pub fn store(&mut self, store: &Store, bytes: &[u8]) {
        let Some(GroupEntry { side: Some(RingSide::Writer(writer)), shared_group, .. }) =
            self.groups.get_mut(&store.group)
        else {
            return;
        };
        if writer.is_published(store.packet) {
            writer.repair(store.packet, bytes);
            shared_group.wake_always();
        } else if writer.address(store.slot) != bytes.as_ptr() {
            writer.write(store.packet, bytes);
        }
    }

    /// Applies an event of the protocol to its group.
    pub fn handle_event(&mut self, event: &Event) {
        let (Event::Placed { group, .. }
        | Event::Ready { group }
        | Event::Joined { group, .. }
        | Event::MemberLost { group, .. }
        | Event::Detached { group, .. }
        | Event::Stalled { group }
        | Event::Reduced { group, .. }
        | Event::Ended { group, .. }) = *event
        else {
            return;
        };
        let Some(entry) = self.groups.get(&group) else { return };
        match *event {
            Event::Placed {
                member, start, slots, payload_bytes_max, offload, transport, multicast, ..
            } => {
                let settings = RingSettings { slots, payload_bytes_max, start, offload, transport };
                tracing::debug!(%group, %member, slots, ?offload, ?transport, "this host has its place in the tree");
                if transport == Transport::Streams {
                    self.by_streams.insert(group);
                }
                match multicast.zip(self.protocol.root(group)) {
                    Some((address, _)) if !is_drawn_multicast_address(address) => {
                        tracing::warn!(%group, %address, "not a multicast address that roots draw: parents send to this node");
                    }
                    Some(addresses) => {
                        let owner = entry.shared_group.owner();
                        self.multicast.receive(group, owner, addresses, settings);
                    }
                    None => {}
                }
                self.place(group, member, settings);
            }
            Event::Ready { .. } => {
                tracing::debug!(%group, "all members are there, or are lost");
                entry.shared_group.set_ready();
            }
            Event::Joined { member, .. } => tracing::debug!(%group, %member, "a member has joined"),
            Event::MemberLost { member, reader, loss, .. } => {
                tracing::info!(%group, %member, process = reader, reason = %loss, "a member is lost");
                entry.shared_group.add_loss(HostLoss { host: member, reader, loss });
            }
            Event::Reduced { ref result, .. } => entry.shared_group.set_reduced(result.clone()),
            Event::Attached { .. } => {}
            Event::Detached { child, .. } => {
                self.ended_streams.push(EndedStream::ToChild(group, child));
            }
            Event::Stalled { .. } => {
                tracing::debug!(%group, "the stream to the parent carries nothing: opening another one");
                self.ended_streams.push(EndedStream::ToParent(group));
            }
            Event::Ended { ending, .. } => {
                tracing::debug!(%group, reason = %ending, "the group has ended at this host");
                entry.shared_group.end(ending);
                self.remove_from_kernel(group);
                self.end_streams(group);
            }
        }
    }

    /// A member has its place in the tree, and gets its ring.
    fn place(&mut self, group: GroupId, member: MemberId, settings: RingSettings) {
        let Some(entry) = self.groups.get_mut(&group) else { return };
        let (shared_group, replaced) = (Arc::clone(&entry.shared_group), entry.side.take());
        if let Some(replaced) = replaced {
            self.background.free(replaced);
        }
        self.remove_from_kernel(group);
        let state_bytes = self.state_bytes(group);
        let placing = Placing { shared_group, member, settings, state_bytes };
        if self.rings().takes_long(settings) {
            self.protocol.hold(group, true);
            self.background.place(placing);
        } else {
            let made = self.rings().make(&placing.shared_group, settings, state_bytes);
            self.on_ring_made(placing, made);
        }
    }

    /// Lets the members go on whose rings have been made.
    pub fn take_rings(&mut self) {
        while let Some((placing, made)) = self.background.next_made() {
            let group = placing.shared_group.group;
            let entry = self.groups.get(&group);
            let is_current =
                entry.is_some_and(|entry| Arc::ptr_eq(&entry.shared_group, &placing.shared_group));
            if is_current {
                self.protocol.hold(group, false);
                self.on_ring_made(placing, made);
            } else if let Ok(NewRing { kernel: Some(kernel), .. }) = made {
                self.background.unmake(kernel);
            }
        }
    }

    fn on_ring_made(&mut self, placing: Placing, made: Made) {
        let Placing { shared_group, member, settings, .. } = placing;
        let group = shared_group.group;
        let NewRing { writer, reader, kernel } = match made {
            Ok(ring) => ring,
            Err(reason) => return self.fail(group, &reason),
        };
        if let Some(kernel) = kernel {
            self.add_to_kernel(kernel, &shared_group, None);
        }
        if let Some(memory) = writer.shared_memory() {
            shared_group.events.attach_kernel(memory.clone());
        }
        if let Some(entry) = self.groups.get_mut(&group) {
            entry.consumed = settings.start;
            entry.side = Some(RingSide::Writer(writer));
            self.changed.insert(group);
        }
        let side = Mutex::new(Some(RingSide::Reader(reader)));
        shared_group.set_placement(Placement { side, member: member.0, offload: settings.offload });
    }

    /// The lane of each group.
    pub fn lanes(&self) -> impl Iterator<Item = (GroupId, usize)> {
        self.groups.iter().map(|(&group, entry)| (group, self.owners.lane(entry.shared_group.owner())))
    }

    /// Whether a datagram is about a member that waits for its ring, and is dropped: it is sent again.
    pub fn awaits_ring(&self, datagram: &[u8]) -> bool {
        self.background.is_placing()
            && View::new(datagram).is_ok_and(|view| self.protocol.is_held(view.group()))
    }
}

/// Whether no packet of a root's group is in flight.
fn is_idle(protocol: &Protocol, group: GroupId) -> bool {
    let next = protocol.readable(group).map(|(_, next)| next);
    protocol.freed(group).is_none_or(|freed| next.is_none_or(|next| freed == next))
}
