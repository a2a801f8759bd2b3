//! The state machine of a node: its groups, side by side.

mod check;
mod fast_path;
mod queries;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use slab::Slab;
use treecast_wire::{Body, Challenge, GroupId, HEADER_BYTES, Sequence, View};

pub use self::check::Checked;
use crate::flow::Carrier;
use crate::group::Group;
use crate::pause::Pause;
use crate::timeouts::Timeouts;
use crate::turns::{OwnerId, Turns};
use crate::{Event, Input, Nanoseconds, Output, Refused, Settings, Store, StrayCounters};

/// The protocol of one node.
///
/// ```
/// use treecast_proto::{Input, Nanoseconds, Output, Protocol, Settings};
///
/// let mut protocol = Protocol::new(Settings::default());
/// // A datagram of another protocol is counted, and nothing else happens.
/// let from = "192.0.2.1:7000".parse()?;
/// protocol.handle(Nanoseconds(0), Input::Datagram { from, bytes: b"hello" })?;
/// assert!(matches!(protocol.poll(Nanoseconds(0)), Output::Stray(_)));
/// assert_eq!(protocol.strays().malformed, 1);
/// assert_eq!(protocol.poll(Nanoseconds(0)), Output::Timeout(None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Protocol {
    settings: Settings,
    groups: Slab<Entry>,
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
    /// While it is handed off: contributions to results from this packet on are the fast path's.
    contributions_from: Sequence,
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

/// The memory of the tables of groups, per group, in bytes: none is more than half empty, except
/// for the first few groups. A node of a B-tree takes some words beside its entries.
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

/// Inputs.
impl Protocol {
    /// A node without groups.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            groups: Slab::new(),
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
    /// Before the next input the caller polls for outputs until there is a timeout
    /// ([`Protocol::poll`]). A caller that has a batch of inputs may poll for local outputs only
    /// between them ([`Protocol::poll_local`]): what is sent then reflects the whole batch.
    ///
    /// # Errors
    /// [`Refused`] for an invalid request of this node's own user. A datagram is never refused, but
    /// counted.
    pub fn handle(&mut self, now: Nanoseconds, input: Input<'_>) -> Result<(), Refused> {
        // The state of a group goes to a fast path, and comes back, as it is; whether this node was
        // suspended is found out at the next input.
        if !matches!(input, Input::HandedOff { .. } | Input::Reclaimed { .. }) {
            self.detect_suspend(now);
        }
        match input {
            Input::HandedOff { group } => self.set_handed_off(group),
            Input::Reclaimed { group, state, packets } => self.reclaim(group, state, packets),
            Input::SetOwner { group, owner } => self.set_owner(group, owner),
            Input::Hold { group } => self.hold(group),
            Input::Release { group } => self.release(group),
            Input::Datagram { from, bytes } => {
                let datagram = self.check(bytes);
                self.handle_packet(now, from, datagram, Carrier::Datagram);
                Ok(())
            }
            Input::Checked { from, datagram } => {
                self.handle_packet(now, from, datagram, Carrier::Datagram);
                Ok(())
            }
            Input::Record { from, header, payload } => {
                let packet = self.check_view(View::of_parts(header, payload), Carrier::Stream);
                self.handle_packet(now, from, packet, Carrier::Stream);
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
            Input::SetCarrier { group, carrier } => self.command(group, |group| group.set_carrier(carrier)),
            Input::Queue { group, piece } => self.command(group, |group| group.queue(piece)),
            Input::Consumed { group, upto } => self.command(group, |group| group.consume(upto)),
            Input::Readers { group, readers } => self.command(group, |group| {
                group.set_readers(readers);
                Ok(())
            }),
            Input::Forward { group, upto, child } => self.command(group, |group| group.forward(upto, child)),
            Input::Repair { group, packet } => self.command(group, |group| group.repair(now, packet)),
            Input::Contribute { group, process, contribution } => {
                self.command(group, |group| group.contribute(process, contribution))
            }
            Input::Flush { group } => self.command(group, |group| group.flush(now)),
            Input::DatagramsTooLong { group } => self.command(group, |group| {
                group.leave_datagrams(now);
                Ok(())
            }),
            Input::StreamLosses { group, child } => self.command(group, |group| {
                group.note_stream_losses(now, child);
                Ok(())
            }),
            Input::Forget { group, before } => self.command(group, |group| group.forget(before)),
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
            Input::Relieve { group, member } => self.command(group, |group| group.relieve(member)),
            Input::Abort { group, why } => self.command(group, |group| {
                group.abort(now, why);
                Ok(())
            }),
        }
    }

    /// A node that handles a timeout far too late was suspended itself since then, and concludes
    /// nothing from the silence of others meanwhile.
    fn detect_suspend(&mut self, now: Nanoseconds) {
        let span = now.since(std::mem::replace(&mut self.ran_at, now));
        if self.timeout().is_some_and(|timeout| now.since(timeout) > self.settings.keepalive) {
            let pause = Pause { ended_at: now, span, left_out: span - self.settings.keepalive };
            for (index, entry) in &mut self.groups {
                entry.group.handle_suspend(pause);
                self.timeouts.set(index, Some(now));
            }
        }
    }

    fn handle_packet(&mut self, now: Nanoseconds, from: SocketAddr, packet: Checked<'_>, carrier: Carrier) {
        self.store = None;
        self.stray = None;
        let view = packet.view();
        let (index, packet) = match self.found(packet) {
            Ok(found) => found,
            Err(kind) => return self.count_stray(kind, view),
        };
        let Some(Entry { group, .. }) = self.groups.get_mut(index) else { return };
        let slot = if matches!(packet.header.body, Body::Handshake(_)) {
            group.handle_handshake(now, from, &packet);
            None
        } else {
            group.handle_packet(now, &self.settings, from, &packet, carrier)
        };
        self.store = slot.map(|slot| Store {
            group: group.id(),
            packet: packet.header.sequence,
            slot,
            payload: HEADER_BYTES..HEADER_BYTES + packet.payload.len(),
        });
        group.poll_events(&mut self.events);
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
            let group = &mut self.groups.get_mut(index)?.group;
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
            contributions_from: Sequence(0),
            is_changed: false,
        };
        let index = self.groups.insert(entry);
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
        if let Some(entry) = self.groups.get_mut(index) {
            command(&mut entry.group)?;
            // A group that has ended waits for nothing: it is removed, and another one may take its
            // number.
            if entry.turn == Turn::Held && entry.group.has_ended() {
                entry.turn = Turn::Idle;
            }
        }
        self.make_ready(index);
        Ok(())
    }

    fn make_ready(&mut self, index: usize) {
        self.mark_changed(index);
        if let Some(entry) = self.groups.get_mut(index)
            && entry.turn == Turn::Idle
        {
            entry.turn = Turn::Ready;
            self.ready.push(entry.owner, index);
        }
    }

    fn mark_changed(&mut self, index: usize) {
        if let Some(entry) = self.groups.get_mut(index).filter(|entry| !entry.is_changed) {
            entry.is_changed = true;
            self.changed.push((entry.group.id(), index));
        }
    }

    /// When the next timeout is to be handled, as [`Output::Timeout`] says it.
    pub fn timeout(&mut self) -> Option<Nanoseconds> {
        self.timeouts.first().map(|(timeout, _)| timeout)
    }
}

/// Sharing the node.
impl Protocol {
    fn set_owner(&mut self, id: GroupId, owner: OwnerId) -> Result<(), Refused> {
        let (index, entry) = self.entry_mut(id)?;
        entry.owner = owner;
        if entry.turn == Turn::Ready {
            self.ready.remove(index);
            self.ready.push(owner, index);
        }
        Ok(())
    }

    fn hold(&mut self, id: GroupId) -> Result<(), Refused> {
        let (index, entry) = self.entry_mut(id)?;
        entry.turn = Turn::Held;
        self.timeouts.set(index, None);
        self.ready.remove(index);
        Ok(())
    }

    fn release(&mut self, id: GroupId) -> Result<(), Refused> {
        let (index, entry) = self.entry_mut(id)?;
        if entry.turn == Turn::Held {
            entry.turn = Turn::Idle;
        }
        // It is polled, which sets its timeout.
        self.make_ready(index);
        Ok(())
    }

    fn entry_mut(&mut self, id: GroupId) -> Result<(usize, &mut Entry), Refused> {
        find_mut(&self.indices, &mut self.groups, id)
    }

    /// Whether a group is held back ([`Input::Hold`]).
    pub fn is_held(&self, group: GroupId) -> bool {
        let entry = self.indices.get(&group).and_then(|&index| self.groups.get(index));
        entry.is_some_and(|entry| entry.turn == Turn::Held)
    }
}

/// The entry of a group, and its index, while other fields of the protocol are in use.
fn find_mut<'a>(
    indices: &BTreeMap<GroupId, usize>,
    groups: &'a mut Slab<Entry>,
    id: GroupId,
) -> Result<(usize, &'a mut Entry), Refused> {
    let found = indices.get(&id).and_then(|&index| Some((index, groups.get_mut(index)?)));
    found.ok_or(Refused::UnknownGroup(id))
}

/// Outputs.
impl Protocol {
    /// The next output. To be called until it returns [`Output::Timeout`].
    pub fn poll(&mut self, now: Nanoseconds) -> Output {
        self.detect_suspend(now);
        if let Some(output) = self.poll_local() {
            return output;
        }
        if let Some(group) = self.expire_timeouts(now) {
            return Output::Reclaim(group);
        }
        while let Some(index) = self.ready.first() {
            let Some(entry) = self.groups.get_mut(index) else {
                self.ready.pop();
                continue;
            };
            debug_assert!(!entry.is_handed_off, "a group is reclaimed before it is polled");
            let transmit = entry.group.poll_transmit(now, &self.settings);
            entry.group.poll_events(&mut self.events);
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
                self.groups.remove(index);
            }
            if let Some(event) = self.events.pop_front() {
                return Output::Event(event);
            }
        }
        Output::Timeout(self.timeout())
    }

    /// The groups that may have changed since the last call, each once; some have ended, and are
    /// not at this node any more. Without calls the list grows by each group that there has been.
    pub fn poll_changed(&mut self) -> impl Iterator<Item = GroupId> {
        for &(_, index) in &self.changed {
            if let Some(entry) = self.groups.get_mut(index) {
                entry.is_changed = false;
            }
        }
        self.changed.drain(..).map(|(group, _)| group)
    }

    /// The next output that is about the packet that was handled last, or is an event:
    /// [`Output::Store`], [`Output::Stray`] or [`Output::Event`].
    pub fn poll_local(&mut self) -> Option<Output> {
        let about_packet = self.store.take().map(Output::Store);
        let about_packet = about_packet.or_else(|| self.stray.take().map(Output::Stray));
        about_packet.or_else(|| self.events.pop_front().map(Output::Event))
    }

    /// Lets the groups send whose timeouts have come. Returns one that is handed off, and has to be
    /// reclaimed before the others.
    fn expire_timeouts(&mut self, now: Nanoseconds) -> Option<GroupId> {
        while let Some((_, index)) = self.timeouts.first().filter(|&(timeout, _)| timeout <= now) {
            if let Some(entry) = self.groups.get(index).filter(|entry| entry.is_handed_off) {
                return Some(entry.group.id());
            }
            self.timeouts.set(index, None);
            self.make_ready(index);
        }
        None
    }
}
