//! The state machine of a node: its groups, side by side.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use treecast_wire::{
    Body, Challenge, GroupId, HEADER_BYTES, Malformed, MemberId, Offload, Packet, Sequence, SessionId, View,
};

use crate::group::{Group, Way};
use crate::hand_off::{HandOff, HandOffPacket};
use crate::timeouts::Timeouts;
use crate::turns::{OwnerId, Turns};
use crate::{
    Event, GroupCounters, GroupStatus, Input, Nanoseconds, Output, Piece, Refused, Settings, StateSize,
    Store, StrayCounters,
};

/// The protocol of one node.
///
/// ```
/// use treecast_proto::{Input, Nanoseconds, Output, Protocol, Settings};
///
/// let mut protocol = Protocol::new(Settings::default());
/// // A datagram of another protocol is counted, and nothing else happens.
/// let from = "192.0.2.1:7000".parse()?;
/// protocol.handle(Nanoseconds(0), Input::Datagram { from, bytes: b"hello" })?;
/// assert_eq!(protocol.strays().malformed, 1);
/// assert_eq!(protocol.poll(Nanoseconds(0)), Output::Timeout(None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Protocol {
    settings: Settings,
    groups: Vec<Option<Entry>>,
    indices: BTreeMap<GroupId, usize>,
    /// Groups that may have something to send.
    ready: Turns,
    timeouts: Timeouts,
    /// Groups that have changed.
    changed: Vec<(GroupId, usize)>,
    /// When this node took an input or was polled last.
    ran_at: Nanoseconds,
    /// The part of the last datagram that the caller has to store.
    store: Option<Store>,
    events: VecDeque<Event>,
    strays: StrayCounters,
    /// The datagram that was handled last, if it belongs to no group.
    stray: Option<Stray>,
}

#[derive(Debug, Clone)]
struct Entry {
    group: Group,
    owner: OwnerId,
    turn: Turn,
    is_handed_off: bool,
    /// Whether it is among those that have changed.
    is_changed: bool,
}

/// When a group may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It has nothing to send.
    Idle,
    /// It has a place among those that may have something to send.
    Ready,
    /// Nothing is sent, and no timeout handled.
    Held,
}

/// The memory of the tables of groups, per group, in bytes: none is more than half empty, except for the first few groups. A node of a B-tree
/// takes some words beside its entries.
pub(crate) const ENTRY_BYTES: usize = 2
    * (size_of::<Option<Entry>>()
        + 2 * size_of::<(GroupId, usize)>()
        + size_of::<usize>()
        + size_of::<(GroupId, usize)>())
    + Timeouts::ENTRY_BYTES;

/// A datagram that belongs to no group of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stray {
    /// Why.
    pub kind: StrayKind,
    /// The group that it names.
    pub group: Option<GroupId>,
}

/// Why a datagram belongs to no group, as [`StrayCounters`] count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrayKind {
    /// It is not a packet of this protocol, or a corrupt one.
    Malformed,
    /// Its group is not at this node, or the node does not know the session yet.
    UnknownGroup,
    /// Its code is wrong.
    Unauthentic,
}

/// The first packet of a stream comes in no datagram, nor later on a stream.
fn not_first_of_stream(found: (usize, Packet<'_>)) -> Result<(usize, Packet<'_>), StrayKind> {
    if matches!(found.1.header.body, Body::Attach(_)) { Err(StrayKind::Malformed) } else { Ok(found) }
}

/// Inputs.
impl Protocol {
    /// A node without groups.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            groups: Vec::new(),
            indices: BTreeMap::new(),
            ready: Turns::default(),
            timeouts: Timeouts::default(),
            changed: Vec::new(),
            ran_at: Nanoseconds::ZERO,
            store: None,
            events: VecDeque::new(),
            strays: StrayCounters::default(),
            stray: None,
        }
    }

    /// Takes an input. `now` never decreases.
    ///
    /// Before the next input the caller polls for outputs until there is a timeout ([`Protocol::poll`]). A caller that has a batch of
    /// inputs may poll for local outputs only between them ([`Protocol::poll_local`]): what is sent then reflects the whole batch.
    ///
    /// # Errors
    /// [`Refused`] for an invalid request of this node's own user. A datagram is never refused, but counted.
    pub fn handle(&mut self, now: Nanoseconds, input: Input<'_>) -> Result<(), Refused> {
        self.detect_suspend(now);
        match input {
            Input::Datagram { from, bytes } => {
                self.handle_packet(now, from, View::new(bytes), Way::Datagram);
                Ok(())
            }
            Input::Record { from, header, payload } => {
                self.handle_packet(now, from, View::of_parts(header, payload), Way::Stream);
                Ok(())
            }
            Input::Timeout => Ok(()),
            Input::CreateGroup(create) => {
                let group = create.group;
                self.insert(group, |settings| Group::create(now, settings, *create))
            }
            Input::JoinGroup { group, key, root, seed } => {
                self.insert(group, |_| Ok(Group::join(now, group, key, root, seed)))
            }
            Input::Queue { group, piece } => self.command(group, |group| group.queue(piece)),
            Input::Consumed { group, upto } => self.command(group, |group| group.consume(upto)),
            Input::Readers { group, readers } => self.command(group, |group| {
                group.set_readers(readers);
                Ok(())
            }),
            Input::Forward { group, upto, child } => self.command(group, |group| group.forward(upto, child)),
            Input::Repair { group, packet } => self.command(group, |group| group.repair(now, packet)),
            Input::Flush { group } => self.command(group, |group| group.flush(now)),
            Input::Attach { stream, from, challenge, bytes } => {
                self.attach(now, stream, from, challenge, bytes);
                Ok(())
            }
            Input::Stream { group, child, change } => self.command(group, |group| {
                group.set_stream(child, change);
                Ok(())
            }),
            Input::Close { group } => self.command(group, Group::close),
            Input::Leave { group } => self.command(group, |group| group.leave(now)),
            Input::Evict { group, member } => self.command(group, |group| group.evict(member)),
            Input::Abort { group, why } => self.command(group, |group| {
                group.abort(now, why);
                Ok(())
            }),
        }
    }

    /// A node that handles a timeout far too late was suspended itself, and concludes nothing from the silence of others.
    fn detect_suspend(&mut self, now: Nanoseconds) {
        let paused = now.since(std::mem::replace(&mut self.ran_at, now));
        if self.timeout().is_some_and(|timeout| now.since(timeout) > self.settings.keepalive) {
            for index in 0..self.groups.len() {
                if let Some(entry) = &mut self.groups[index] {
                    entry.group.handle_suspend(now, paused);
                    self.timeouts.set(index, Some(now));
                }
            }
        }
    }

    fn handle_packet(
        &mut self,
        now: Nanoseconds,
        from: SocketAddr,
        view: Result<View<'_>, Malformed>,
        way: Way,
    ) {
        self.store = None;
        self.stray = None;
        let (index, packet) = match self.authenticate(view).and_then(not_first_of_stream) {
            Ok(found) => found,
            Err(kind) => return self.count_stray(kind, view.ok()),
        };
        let Some(Entry { group, .. }) = &mut self.groups[index] else { return };
        let slot = if matches!(packet.header.body, Body::Handshake(_)) {
            group.handle_handshake(now, from, &packet);
            None
        } else {
            group.handle_packet(now, &self.settings, from, &packet, way)
        };
        self.store = slot.map(|slot| Store {
            group: group.id(),
            packet: packet.header.sequence,
            slot,
            payload: HEADER_BYTES..HEADER_BYTES + packet.payload.len(),
        });
        self.events.extend(group.poll_events());
        self.make_ready(index);
    }

    /// Handles the first packet on a stream.
    fn attach(&mut self, now: Nanoseconds, stream: u64, from: IpAddr, challenge: Challenge, bytes: &[u8]) {
        let view = View::new(bytes);
        let found = match self.authenticate(view) {
            Ok((index, packet)) => Some((index, packet.header)),
            Err(kind) => {
                self.count_stray(kind, view.ok());
                None
            }
        };
        let child = found.and_then(|(index, header)| {
            let group = &mut self.groups[index].as_mut()?.group;
            let child = group.attach(now, from, challenge, &header)?;
            self.make_ready(index);
            Some((header.group, child))
        });
        self.events.push_back(Event::Attached { stream, child });
    }

    /// A packet belongs to no group.
    fn count_stray(&mut self, kind: StrayKind, view: Option<View<'_>>) {
        *match kind {
            StrayKind::Malformed => &mut self.strays.malformed,
            StrayKind::UnknownGroup => &mut self.strays.unknown_group,
            StrayKind::Unauthentic => &mut self.strays.unauthentic,
        } += 1;
        self.stray = Some(Stray { kind, group: view.map(|view| view.group()) });
    }

    /// Finds the group that a packet belongs to, and verifies the packet by the group's keys.
    fn authenticate<'a>(&self, view: Result<View<'a>, Malformed>) -> Result<(usize, Packet<'a>), StrayKind> {
        let view = view.map_err(|_| StrayKind::Malformed)?;
        let index = *self.indices.get(&view.group()).ok_or(StrayKind::UnknownGroup)?;
        let keys = self.groups[index].as_ref().and_then(|entry| entry.group.keys(view.is_handshake()));
        let packet =
            view.check(keys.ok_or(StrayKind::UnknownGroup)?).map_err(|malformed| match malformed {
                Malformed::Mac => StrayKind::Unauthentic,
                _ => StrayKind::Malformed,
            })?;
        Ok((index, packet))
    }

    fn insert(
        &mut self,
        id: GroupId,
        make: impl FnOnce(&Settings) -> Result<Group, Refused>,
    ) -> Result<(), Refused> {
        if self.group(id).is_some_and(|group| !group.has_ended()) {
            return Err(Refused::GroupExists(id));
        }
        if self.indices.len() >= self.settings.groups_max {
            return Err(Refused::TooManyGroups(self.indices.len()));
        }
        let entry = Entry {
            group: make(&self.settings)?,
            owner: OwnerId::default(),
            turn: Turn::Idle,
            is_handed_off: false,
            is_changed: false,
        };
        let index = self.groups.iter().position(Option::is_none).unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        });
        self.groups[index] = Some(entry);
        self.indices.insert(id, index);
        self.make_ready(index);
        Ok(())
    }

    fn command(
        &mut self,
        id: GroupId,
        command: impl FnOnce(&mut Group) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let index = *self.indices.get(&id).ok_or(Refused::UnknownGroup(id))?;
        if let Some(entry) = &mut self.groups[index] {
            command(&mut entry.group)?;
            // A group that has ended waits for nothing: it is removed, and another one may take its number.
            if entry.turn == Turn::Held && entry.group.has_ended() {
                entry.turn = Turn::Idle;
            }
        }
        self.make_ready(index);
        Ok(())
    }

    fn make_ready(&mut self, index: usize) {
        self.mark_changed(index);
        if let Some(entry) = &mut self.groups[index]
            && entry.turn == Turn::Idle
        {
            entry.turn = Turn::Ready;
            self.ready.push(entry.owner, index);
        }
    }

    fn mark_changed(&mut self, index: usize) {
        if let Some(entry) = self.groups[index].as_mut().filter(|entry| !entry.is_changed) {
            entry.is_changed = true;
            self.changed.push((entry.group.id(), index));
        }
    }

    /// The earliest timeout of all groups.
    fn timeout(&mut self) -> Option<Nanoseconds> {
        self.timeouts.first().map(|(timeout, _)| timeout)
    }
}

/// Sharing the node.
impl Protocol {
    /// Says who a new group belongs to. Owners take turns in [`Protocol::poll`]; without this call all groups have one owner.
    pub fn set_owner(&mut self, group: GroupId, owner: OwnerId) {
        let Some(&index) = self.indices.get(&group) else { return };
        let Some(entry) = &mut self.groups[index] else { return };
        entry.owner = owner;
        if entry.turn == Turn::Ready {
            self.ready.remove(index);
            self.ready.push(owner, index);
        }
    }

    /// Holds a group back, or lets it go on: it sends nothing meanwhile, and handles no timeouts. For a user that prepares the memory
    /// of a member's slots after [`Event::Placed`], and drops the group's datagrams until then: neither root nor parent hears that
    /// the member has its place.
    pub fn hold(&mut self, group: GroupId, is_held: bool) {
        let Some(&index) = self.indices.get(&group) else { return };
        let Some(entry) = &mut self.groups[index] else { return };
        if is_held {
            entry.turn = Turn::Held;
            self.timeouts.set(index, None);
            self.ready.remove(index);
        } else {
            if entry.turn == Turn::Held {
                entry.turn = Turn::Idle;
            }
            // It is polled, which sets its timeout.
            self.make_ready(index);
        }
    }

    /// Whether a group is held back.
    pub fn is_held(&self, group: GroupId) -> bool {
        let entry = self.indices.get(&group).and_then(|&index| self.groups[index].as_ref());
        entry.is_some_and(|entry| entry.turn == Turn::Held)
    }
}

/// Outputs.
impl Protocol {
    /// The next output. To be called until it returns [`Output::Timeout`].
    pub fn poll(&mut self, now: Nanoseconds) -> Output {
        self.detect_suspend(now);
        if let Some(output) = self.poll_local() {
            return output;
        }
        self.expire_timeouts(now);
        while let Some(index) = self.ready.first() {
            let Some(entry) = &mut self.groups[index] else {
                self.ready.pop();
                continue;
            };
            debug_assert!(!entry.is_handed_off, "a group is reclaimed before it is polled");
            let transmit = entry.group.poll_transmit(now, &self.settings);
            self.events.extend(entry.group.poll_events());
            if let Some(transmit) = transmit {
                self.ready.on_sent(transmit.cost());
                return Output::Transmit(transmit);
            }
            self.ready.pop();
            entry.turn = Turn::Idle;
            let (id, is_over) = (entry.group.id(), entry.group.is_over());
            let timeout = entry.group.timeout(&self.settings).filter(|_| !is_over);
            self.timeouts.set(index, timeout);
            self.mark_changed(index);
            if is_over {
                // Another group may have its number already.
                if self.indices.get(&id) == Some(&index) {
                    self.indices.remove(&id);
                }
                self.groups[index] = None;
            }
            if let Some(event) = self.events.pop_front() {
                return Output::Event(event);
            }
        }
        Output::Timeout(self.timeout())
    }

    /// The groups that may have changed since the last call, each once; some have ended, and are not
    /// at this node any more. Without calls the list grows by each group that there has been.
    pub fn poll_changed(&mut self) -> impl Iterator<Item = GroupId> {
        for &(_, index) in &self.changed {
            if let Some(entry) = &mut self.groups[index] {
                entry.is_changed = false;
            }
        }
        self.changed.drain(..).map(|(group, _)| group)
    }

    /// The next output that is not for the network: [`Output::Store`] or [`Output::Event`].
    pub fn poll_local(&mut self) -> Option<Output> {
        let store = self.store.take().map(Output::Store);
        store.or_else(|| self.events.pop_front().map(Output::Event))
    }

    /// The datagram that was handled last, if it belongs to no group; once. A fast path does not ask.
    pub const fn take_stray(&mut self) -> Option<Stray> {
        self.stray.take()
    }

    fn expire_timeouts(&mut self, now: Nanoseconds) {
        while let Some((_, index)) = self.timeouts.first().filter(|&(timeout, _)| timeout <= now) {
            self.timeouts.set(index, None);
            self.make_ready(index);
        }
    }
}

/// Handing groups off to a fast path.
impl Protocol {
    /// Hands a group off, if nothing in it needs the slow path: copies its state, and passes it to the fast path by `give`, which
    /// returns whether that accepts it. Returns whether the group is handed off.
    ///
    /// The group is to be reclaimed before any input about it is handled, and when it is due ([`Protocol::due`]). Getters meanwhile
    /// return the state at the hand-off.
    pub fn hand_off(
        &mut self,
        group: GroupId,
        to: &mut HandOff,
        give: impl FnOnce(&HandOff) -> bool,
    ) -> bool {
        let Some(entry) = self.indices.get(&group).and_then(|&index| self.groups[index].as_mut()) else {
            return false;
        };
        // A group that is ready may have something to send.
        entry.is_handed_off = entry.turn != Turn::Ready && entry.group.hand_off(to) && give(to);
        entry.is_handed_off
    }

    /// Reclaims a group from the fast path: takes its state, and reads the packets that are new in slots by `packet`.
    ///
    /// Returns whether all that is valid: applications may have written to slots. A group for which it is false has lost packets, and is
    /// to be aborted.
    #[must_use]
    pub fn reclaim(
        &mut self,
        group: GroupId,
        from: &HandOff,
        packet: impl FnMut(Sequence) -> HandOffPacket,
    ) -> bool {
        let Some(&index) = self.indices.get(&group) else { return true };
        let Some(entry) = self.groups[index].as_mut().filter(|entry| entry.is_handed_off) else {
            return true;
        };
        entry.is_handed_off = false;
        let is_valid = entry.group.reclaim(from, packet);
        self.make_ready(index);
        is_valid
    }

    /// The group that has to be reclaimed before a datagram is handled: an authentic packet of a group that is handed off. Any other
    /// datagram changes nothing in a group.
    pub fn group_to_reclaim(&self, bytes: &[u8]) -> Option<GroupId> {
        let is_handed_off = |group| {
            let entry = self.indices.get(&group).and_then(|&index| self.groups[index].as_ref());
            entry.is_some_and(|entry| entry.is_handed_off)
        };
        // Most groups of a node without a fast path are spared a second verification.
        let view = View::new(bytes).ok().filter(|view| is_handed_off(view.group()))?;
        let (_, packet) = self.authenticate(Ok(view)).and_then(not_first_of_stream).ok()?;
        Some(packet.header.group)
    }

    /// A group that is handed off and has to be reclaimed by now.
    pub fn due(&mut self, now: Nanoseconds) -> Option<GroupId> {
        // After a suspension all groups are due, those that are handed off among them.
        self.detect_suspend(now);
        if self.timeout().is_none_or(|timeout| now < timeout) {
            return None;
        }
        let mut over = self.timeouts.over(now).filter_map(|index| self.groups[index].as_ref());
        over.find(|entry| entry.is_handed_off).map(|entry| entry.group.id())
    }
}

/// Getters.
impl Protocol {
    /// The packets that readers may read: from the first one kept to before the next one expected. `None` if the group is not at this
    /// node, or has no place yet.
    pub fn readable(&self, group: GroupId) -> Option<(Sequence, Sequence)> {
        self.group(group)?.readable()
    }

    /// The next packet expected; at the root, the next one to be queued.
    pub fn next(&self, group: GroupId) -> Option<Sequence> {
        self.group(group)?.next()
    }

    /// The piece of a packet that may be read.
    pub fn piece(&self, group: GroupId, packet: Sequence) -> Option<&Piece> {
        self.group(group)?.piece(packet)
    }

    /// At the root, the number of packets that may be queued now; 0 if the group is not at this node.
    pub fn room(&self, group: GroupId) -> u32 {
        self.group(group).map_or(0, Group::room)
    }

    /// All packets before it are accepted by every member of this node's subtree.
    pub fn stable(&self, group: GroupId) -> Option<Sequence> {
        self.group(group)?.stable()
    }

    /// All packets before it have left their slots.
    pub fn freed(&self, group: GroupId) -> Option<Sequence> {
        self.group(group)?.freed()
    }

    /// Whether the root has closed the group and everything has arrived.
    pub fn is_closed(&self, group: GroupId) -> bool {
        self.group(group).is_some_and(Group::is_closed)
    }

    /// Which part of a host forwards, once this node has its place.
    pub fn offload(&self, group: GroupId) -> Option<Offload> {
        self.group(group)?.offload()
    }

    /// The children of this node, in the order in which they are sent to.
    pub fn children(&self, group: GroupId) -> impl Iterator<Item = MemberId> {
        self.group(group).into_iter().flat_map(Group::children)
    }

    /// The children in the tree that multicast reaches, with [`Offload::Switch`](crate::Offload::Switch).
    pub fn reached_children(&self, group: GroupId) -> impl Iterator<Item = MemberId> {
        self.group(group).into_iter().flat_map(Group::reached_children)
    }

    /// The session of the group, once this node knows it.
    pub fn session(&self, group: GroupId) -> Option<SessionId> {
        self.group(group)?.session()
    }

    /// The epoch of the tree in which this node has its place; `None` without a place.
    pub fn epoch(&self, group: GroupId) -> Option<u32> {
        self.group(group)?.epoch()
    }

    /// At another member, the address of the root's node.
    pub fn root(&self, group: GroupId) -> Option<SocketAddr> {
        self.group(group)?.root()
    }

    /// The addresses of this node's parent, which the root does not have, and of its children in the order in which they are sent to.
    pub fn neighbours(&self, group: GroupId) -> Option<(Option<SocketAddr>, Vec<SocketAddr>)> {
        self.group(group)?.neighbours()
    }

    /// With transport `streams`, the address of this node's parent, to which it is to open its stream.
    pub fn stream_parent(&self, group: GroupId) -> Option<SocketAddr> {
        self.group(group)?.stream_parent()
    }

    /// The packet that answers the challenge of the parent, and opens this node's stream.
    pub fn attach_packet(&self, group: GroupId, challenge: Challenge) -> Option<[u8; HEADER_BYTES]> {
        self.group(group)?.attach_packet(challenge)
    }

    /// Whether a child of this node has a stream.
    pub fn has_stream(&self, group: GroupId, child: MemberId) -> bool {
        self.group(group).is_some_and(|group| group.has_stream(child))
    }

    /// At the root, the processes of shared nodes that have not come, by member and place.
    pub fn awaited_readers(&self, group: GroupId) -> Vec<(MemberId, u32)> {
        self.group(group).map_or_else(Vec::new, Group::awaited_readers)
    }

    /// At the root, the members that have never acknowledged a table.
    pub fn awaited(&self, group: GroupId) -> Vec<MemberId> {
        self.group(group).map_or_else(Vec::new, Group::awaited)
    }

    /// The size of the group's state. It changes only when the tree does, and so the epoch.
    pub fn state_size(&self, group: GroupId) -> Option<StateSize> {
        self.group(group).map(Group::state_size)
    }

    /// The counters of a group.
    pub fn counters(&self, group: GroupId) -> Option<&GroupCounters> {
        self.group(group).map(Group::counters)
    }

    /// The counters of datagrams that belong to no group.
    pub const fn strays(&self) -> &StrayCounters {
        &self.strays
    }

    /// Whether the group is at this node.
    pub fn has(&self, group: GroupId) -> bool {
        self.indices.contains_key(&group)
    }

    /// The groups at this node.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.indices.keys().copied()
    }

    /// The state of a group; at the hand-off, if it is handed off. It takes O(n) steps at the root of n members.
    pub fn status(&self, group: GroupId) -> Option<GroupStatus> {
        self.group(group).map(Group::status)
    }

    pub(crate) fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups[*self.indices.get(&id)?].as_ref().map(|entry| &entry.group)
    }
}
