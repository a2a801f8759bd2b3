//! An engine without its socket and timer: the protocol, the kernel's packet path, and the groups.
//!
//! The protocol or the kernel's packet path runs a group, never both. A group is reclaimed before
//! the protocol handles anything of it but contributions, and handed off again at the end of each
//! step.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use treecast_proto::{
    Carrier, Event, GroupId, Input, MemberId, Piece, Protocol, Refused, Settings, Store, Transport,
};
use treecast_shm::clock;
use treecast_shm::message_buffer::{LentBuffer, LentPayloads};
use treecast_shm::progress::ProgressList;
use treecast_shm::settings::RingSettings;
use treecast_shm::shared_group::{HostLoss, RingSide, SharedGroup};
use treecast_shm::waker::Waker;

use super::audit::Audit;
use super::background::Background;
use super::fast_path::FastPath;
use super::group_entry::{GroupEntry, end};
use super::group_set::GroupSet;
use super::multicast::MulticastAddresses;
use super::owners::Owners;
use super::query::{Answer, Query};
use super::rings::RingMaker;
use super::{KernelRoot, Progress, Request, RootRing};
use crate::settings::config::is_drawn_multicast_address;
use crate::settings::stream_settings::StreamSettings;

/// The protocol, the kernel's packet path, and the groups.
#[derive(Debug)]
pub(super) struct Core {
    pub protocol: Protocol,
    pub fast_path: FastPath,
    pub groups: BTreeMap<GroupId, GroupEntry>,
    /// Where applications say that they have written or read.
    progress: Arc<ProgressList>,
    /// The groups of which they have said so, and the protocol does not know yet.
    pub written_or_read: GroupSet,
    /// The groups whose applications are in other processes: these do not say so.
    pub of_clients: GroupSet,
    /// The groups that have changed, and whose packets their applications may not see yet.
    pub unpublished: GroupSet,
    /// The groups that have changed, and whose applications are not woken yet.
    pub changed: GroupSet,
    pub owners: Owners,
    pub multicast: MulticastAddresses,
    pub background: Background,
    /// How many groups ended because of invalid values in shared memory.
    pub invalid: u64,
    /// How many groups of clients ended because they exceeded their users' budgets.
    pub over_budget: u64,
    pub audit: Audit,
    /// The groups whose data goes on streams.
    pub by_streams: GroupSet,
    /// Those among them that may have data in datagrams too, and those whose last packet came in
    /// one.
    pub by_both: GroupSet,
    pub in_datagrams: GroupSet,
    /// Those of them that have changed, so that their streams may have to be opened or closed.
    pub untended: GroupSet,
    /// Streams that are to be closed.
    pub ended_streams: Vec<EndedStream>,
    /// The buffer of the application whose thread drives the engine, and its group.
    pub lent: Option<(GroupId, LentBuffer)>,
    /// What calls of roots send, and have not copied into the slots; and the number of the last of
    /// all.
    pub lent_payloads: Vec<RootLoan>,
    pub loans: u64,
}

/// Payloads in the buffer of a root's call.
#[derive(Debug)]
pub(super) struct RootLoan {
    pub number: u64,
    pub group: GroupId,
    pub payloads: LentPayloads,
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
        fast_path: FastPath,
        waker: Arc<Waker>,
        progress: Arc<ProgressList>,
        lanes: usize,
    ) -> Self {
        let rings = RingMaker::new(fast_path.kernel().map(|kernel| kernel.maker().clone()));
        Self {
            protocol: Protocol::new(settings.clone()),
            fast_path,
            groups: BTreeMap::new(),
            progress,
            written_or_read: GroupSet::default(),
            of_clients: GroupSet::default(),
            unpublished: GroupSet::default(),
            changed: GroupSet::default(),
            owners: Owners::new(lanes),
            multicast: MulticastAddresses::default(),
            background: Background::new(rings, waker),
            invalid: 0,
            over_budget: 0,
            audit: Audit::default(),
            by_streams: GroupSet::default(),
            by_both: GroupSet::default(),
            in_datagrams: GroupSet::default(),
            untended: GroupSet::default(),
            ended_streams: Vec::new(),
            lent: None,
            lent_payloads: Vec::new(),
            loans: 0,
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
            Query::SlowMembers { group } => Answer::members(self.protocol.slow_members(GroupId(group))),
            Query::Unplaced { group } => Answer::members(self.protocol.awaited(GroupId(group))),
            Query::AwaitedReaders { group } => Answer::readers(self.protocol.awaited_readers(GroupId(group))),
            Query::Counters { group } => {
                let group = GroupId(group);
                let handed_off = self.fast_path.group_counters(group);
                let counters = handed_off.or_else(|| self.protocol.counters(group).copied());
                Answer::Numbers(counters.map(|counters| counters.values().map(|(_, count)| count).collect()))
            }
            Query::KernelCounters { group } => {
                let counters = self.fast_path.counters(GroupId(group));
                Answer::Numbers(counters.map(|counters| counters.values()))
            }
            Query::Strays => {
                Answer::Numbers(Some(self.protocol.strays().values().map(|(_, count)| count).collect()))
            }
        }
    }

    /// Ends groups whose applications have written invalid numbers.
    pub fn end_invalid(&mut self) {
        // An application of this process could write anywhere in the node's memory.
        if self.of_clients.is_empty() {
            return;
        }
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
            Request::Enter { shared_group, input, stream_settings, root_ring } => {
                let multicast = match &input {
                    Input::CreateGroup(create) => create.multicast,
                    _ => None,
                };
                let transport = match &input {
                    Input::CreateGroup(create) => create.transport,
                    _ => Transport::Packets,
                };
                let group = shared_group.group;
                let handled = self.protocol.handle(now, input);
                if handled.is_ok() {
                    self.end_streams(group);
                    self.begin_streams(group, transport);
                }
                self.enter(shared_group, root_ring, stream_settings, multicast, handled);
            }
        }
    }

    /// A group that the protocol has accepted, or not.
    fn enter(
        &mut self,
        shared_group: Arc<SharedGroup>,
        root_ring: Option<Box<RootRing>>,
        stream_settings: StreamSettings,
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
                // The protocol has just taken the group.
                let _ = self.protocol.handle(clock::now(), Input::SetOwner { group, owner });
                self.owners.add(owner);
                if let Some(KernelRoot { group, socket }) = kernel {
                    self.add_to_kernel(group, &shared_group, socket);
                }
                if shared_group.clients.is_some() {
                    self.of_clients.insert(group);
                } else {
                    self.of_clients.remove(group);
                }
                self.unpublished.insert(group);
                if shared_group.has_progress() {
                    self.written_or_read.insert(group);
                }
                let entry = GroupEntry::new(shared_group, reader.map(RingSide::Reader), stream_settings);
                // Calls for an earlier group of this number have lent these.
                self.lent_payloads.retain(|loan| loan.group != group);
                self.lent = self.lent.filter(|(of, _)| *of != group);
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

    /// Tells the protocol what applications have written or read; of each owner a bounded number of
    /// packets.
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
        self.written_or_read.extend(self.of_clients.iter().copied());
        for group in self.written_or_read.take() {
            let Some(entry) = self.groups.get_mut(&group) else { continue };
            let GroupEntry { shared_group, side: Some(side), consumed, carrier, .. } = entry else {
                self.written_or_read.insert(group);
                continue;
            };
            if self.fast_path.runs(group) {
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
                    let has_both = self.by_both.contains(group);
                    for packet in next.until(end) {
                        let piece = reader.piece(packet);
                        if has_both && *carrier != Some(carrier_of(&piece)) {
                            *carrier = Some(carrier_of(&piece));
                            let _ = self
                                .protocol
                                .handle(now, Input::SetCarrier { group, carrier: carrier_of(&piece) });
                        }
                        if let Err(refused) = self.protocol.handle(now, Input::Queue { group, piece }) {
                            // A group is closed after all that was written. But one thread may
                            // abort it while another writes.
                            if !matches!(refused, Refused::Closed(_)) {
                                tracing::warn!(%refused, "a packet of the application is refused");
                            }
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

    /// Shows received packets to the applications, and wakes none of them yet. Acknowledgments are
    /// sent after that: what the root has flushed can be received at once.
    pub fn publish(&mut self) {
        self.unpublished.extend(self.protocol.poll_changed());
        for group in self.unpublished.take() {
            self.changed.insert(group);
            let Some(entry) = self.groups.get_mut(&group) else { continue };
            if self.by_streams.contains(group) && entry.tended != Some(entry.stream_needs(&self.protocol)) {
                self.untended.insert(group);
            }
            // The kernel's packet path does this for its groups.
            if !self.fast_path.runs(group) {
                entry.publish(&self.protocol);
            }
        }
    }

    /// Passes received packets and free slots to the applications.
    pub fn give_progress(&mut self) {
        self.publish();
        let changed = self.changed.take();
        for &group in &changed {
            let Some(GroupEntry { shared_group, side, is_wake_due, .. }) = self.groups.get_mut(&group) else {
                continue;
            };
            // The kernel's packet path does this for its groups.
            if self.fast_path.runs(group) {
                continue;
            }
            match side {
                Some(RingSide::Reader(reader)) => {
                    if self.by_both.contains(group) {
                        let until = self.protocol.datagrams_until(group);
                        if shared_group.prefer_datagrams_until(until) {
                            let seconds = until.since(clock::now()).0 / 1_000_000_000 + 1;
                            tracing::info!(%group, seconds, "streams lose packets: messages go in datagrams for a while");
                        }
                    }
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
            self.of_clients.remove(group);
            self.written_or_read.remove(group);
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

    /// Whether all groups send on streams, for the moment at least.
    pub fn has_only_streams(&self) -> bool {
        !self.groups.is_empty() && self.groups.len() == self.by_streams.len() && self.in_datagrams.is_empty()
    }

    /// A group may have streams from now on, if its data goes on some.
    fn begin_streams(&mut self, group: GroupId, transport: Transport) {
        if transport.has_streams() {
            self.by_streams.insert(group);
        }
        if transport == Transport::Both {
            self.by_both.insert(group);
        }
    }

    /// The group has received data in a datagram.
    pub fn note_datagram(&mut self, group: GroupId) {
        if self.by_both.contains(group) {
            self.in_datagrams.insert(group);
        }
    }

    /// The streams of a group are over.
    fn end_streams(&mut self, group: GroupId) {
        self.by_both.remove(group);
        self.in_datagrams.remove(group);
        if self.by_streams.remove(group) {
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
                member,
                start,
                slots,
                payload_bytes_max,
                offload,
                transport,
                encrypted_session,
                multicast,
                ..
            } => {
                let settings =
                    RingSettings { slots, payload_bytes_max, start, offload, transport, encrypted_session };
                tracing::debug!(%group, %member, slots, ?offload, ?transport, "this host has its place in the tree");
                let owner = entry.shared_group.owner();
                self.begin_streams(group, transport);
                match multicast.zip(self.protocol.root(group)) {
                    Some((address, _)) if !is_drawn_multicast_address(address) => {
                        tracing::warn!(%group, %address, "not a multicast address that roots draw: parents send to this node");
                    }
                    Some(addresses) => {
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

    /// The lane of each group.
    pub fn lanes(&self) -> impl Iterator<Item = (GroupId, usize)> {
        self.groups.iter().map(|(&group, entry)| (group, self.owners.lane(entry.shared_group.owner())))
    }
}

/// The carrier of a piece in a group that has both: a datagram, if the piece has the checksum that
/// datagrams need. The application chooses by that.
const fn carrier_of(piece: &Piece) -> Carrier {
    if piece.checksum.0 == 0 { Carrier::Stream } else { Carrier::Datagram }
}
