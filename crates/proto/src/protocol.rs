//! The state machine of a node: its groups, side by side.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use treecast_wire::{Cookie, Data, GroupId, HEADER_BYTES, MemberId, PayloadChecksum, Sequence, View};

use crate::group::Group;
use crate::lent::{Lent, LentPacket};
use crate::{CreateGroup, Event, GroupCounters, Nanoseconds, Refused, Settings, StrayCounters};

/// The protocol of one node.
///
/// ```
/// use treecast_proto::{Input, Nanoseconds, Output, Protocol, Settings};
///
/// let mut protocol = Protocol::new(Settings::default());
/// // A datagram that is none of ours is counted, and nothing else happens.
/// let from = "192.0.2.1:7000".parse()?;
/// protocol.handle(Nanoseconds(0), Input::Datagram { from, bytes: b"hello" })?;
/// assert_eq!(protocol.strays().malformed, 1);
/// assert!(matches!(protocol.poll(Nanoseconds(0)), Output::Wait(None)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Protocol {
    settings: Settings,
    groups: Vec<Option<Entry>>,
    places: BTreeMap<GroupId, usize>,
    /// Groups that may have something to do, in turn.
    turns: VecDeque<usize>,
    /// When the first of them has something to do for sure.
    deadline: Option<Nanoseconds>,
    events: VecDeque<Event>,
    strays: StrayCounters,
}

#[derive(Debug, Clone)]
struct Entry {
    group: Group,
    has_turn: bool,
    deadline: Option<Nanoseconds>,
    /// Whether somebody else goes on with it.
    is_lent: bool,
}

/// Something that happens to a node.
#[derive(Debug, Clone)]
pub enum Input<'a> {
    /// A datagram has come.
    Datagram {
        /// Who sent it.
        from: SocketAddr,
        /// What is in it.
        bytes: &'a [u8],
    },
    /// The time has come that [`Output::Wait`] spoke of.
    Elapsed,
    /// Begin a group here, at its root.
    CreateGroup(Box<CreateGroup>),
    /// Be a member of a group, once its root says where.
    JoinGroup {
        /// Its number.
        group: GroupId,
        /// What tells it from others.
        cookie: Cookie,
        /// Where its root's node is.
        root: SocketAddr,
        /// Whether to ask the root, which does not know of this host.
        sends_join: bool,
    },
    /// At the root: the next packet is in its slot, to be sent.
    Queue {
        /// The group.
        group: GroupId,
        /// What is in the slot.
        piece: Piece,
    },
    /// The node's readers need no packet before this one any more.
    Consumed {
        /// The group.
        group: GroupId,
        /// The first that they need.
        upto: Sequence,
    },
    /// With offload `host` or `assisted`: the packets before this one may be sent on.
    Forward {
        /// The group.
        group: GroupId,
        /// The first that may not.
        upto: Sequence,
        /// To this child only; none: to all of them.
        child: Option<MemberId>,
    },
    /// At the root: everything is queued; the group ends when all have it.
    Close {
        /// The group.
        group: GroupId,
    },
    /// At another member: leave the group.
    Leave {
        /// The group.
        group: GroupId,
    },
    /// Give the group up at once. The root tells its members; another member just stops.
    Abort {
        /// The group.
        group: GroupId,
    },
}

impl Input<'_> {
    /// The group that a request is about which is here already.
    pub const fn group(&self) -> Option<GroupId> {
        match self {
            Self::Datagram { .. } | Self::Elapsed | Self::CreateGroup(_) | Self::JoinGroup { .. } => None,
            Self::Queue { group, .. }
            | Self::Consumed { group, .. }
            | Self::Forward { group, .. }
            | Self::Close { group }
            | Self::Leave { group }
            | Self::Abort { group } => Some(*group),
        }
    }
}

/// A piece of a message in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The message's number in its group.
    pub message: u32,
    /// Where the piece begins in the message, in bytes.
    pub offset: u64,
    /// How long the piece is, in bytes.
    pub length: u32,
    /// How long the message is, in bytes.
    pub message_length: u64,
    /// The checksum of its bytes, as the root computed it.
    pub checksum: PayloadChecksum,
}

impl Piece {
    /// Whether the message ends with this piece.
    pub const fn is_last(&self) -> bool {
        self.offset + self.length as u64 == self.message_length
    }

    pub(crate) const fn of(data: &Data, checksum: PayloadChecksum) -> Self {
        let Data { message, offset, length, message_length, .. } = *data;
        Self { message, offset, length, message_length, checksum }
    }
}

/// Where the payload of a datagram is to be put, before anything else happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Store<'a> {
    /// The group.
    pub group: GroupId,
    /// The packet's number.
    pub packet: Sequence,
    /// Its slot.
    pub slot: u32,
    /// The payload.
    pub payload: &'a [u8],
}

/// What a node is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this.
    Transmit(Transmit),
    /// Nothing, until something happens, or this time comes.
    Wait(Option<Nanoseconds>),
}

/// A datagram to be sent: a header, and a payload from where it lies.
#[derive(Debug, PartialEq, Eq)]
pub struct Transmit {
    /// To whom.
    pub to: SocketAddr,
    /// The header.
    pub header: [u8; HEADER_BYTES],
    /// The payload.
    pub payload: Source,
}

/// Where a payload lies.
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    /// In a slot. It stays there until the next call of [`Protocol::handle`] at least.
    Slot {
        /// The group.
        group: GroupId,
        /// The slot.
        slot: u32,
        /// How long it is, in bytes.
        length: u32,
    },
    /// Here. Empty but for control messages.
    Bytes(Vec<u8>),
}

impl Protocol {
    /// A node without groups.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            groups: Vec::new(),
            places: BTreeMap::new(),
            turns: VecDeque::new(),
            deadline: None,
            events: VecDeque::new(),
            strays: StrayCounters::default(),
        }
    }

    /// Takes in what has happened. `now` never goes back.
    ///
    /// A datagram may have to be stored before the next call. Events ([`Protocol::take_event`]) are there at once, and
    /// [`Event::Placed`] wants to be taken before the next call.
    ///
    /// # Errors
    /// [`Refused`] for a request of this node's own user that makes no sense. No datagram is ever refused: it is counted.
    pub fn handle<'a>(&mut self, now: Nanoseconds, input: Input<'a>) -> Result<Option<Store<'a>>, Refused> {
        self.notice_sleep(now);
        match input {
            Input::Datagram { from, bytes } => return Ok(self.datagram(now, from, bytes)),
            Input::Elapsed => {}
            Input::CreateGroup(lead) => {
                let id = lead.group;
                self.insert(id, |settings| Group::create(now, settings, *lead))?;
            }
            Input::JoinGroup { group, cookie, root, sends_join } => {
                self.insert(group, |_| Ok(Group::join(now, group, cookie, root, sends_join)))?;
            }
            Input::Queue { group, piece } => self.ask(group, |group| group.queue(piece))?,
            Input::Consumed { group, upto } => self.ask(group, |group| group.consumed(upto))?,
            Input::Forward { group, upto, child } => self.ask(group, |group| group.forward(upto, child))?,
            Input::Close { group } => self.ask(group, Group::close)?,
            Input::Leave { group } => self.ask(group, |group| group.leave(now))?,
            Input::Abort { group } => self.ask(group, |group| {
                group.abort(now);
                Ok(())
            })?,
        }
        Ok(None)
    }

    /// Lends a group in which nothing is out of the ordinary: writes down all that goes on in it, and gives it to somebody, who says
    /// whether that will go on with it; the answer is whether it is lent. Whoever has it goes on by the same rules, until it is
    /// taken back; that has to be before anything of this group is handled, and when its time has come ([`Protocol::due`]). What
    /// is asked about it meanwhile is answered as of now.
    pub fn lend(&mut self, group: GroupId, lent: &mut Lent, give: impl FnOnce(&Lent) -> bool) -> bool {
        let Some(entry) = self.places.get(&group).and_then(|&place| self.groups[place].as_mut()) else {
            return false;
        };
        // What has a turn may have something to say.
        entry.is_lent = !entry.has_turn && entry.group.lend(lent) && give(lent);
        entry.is_lent
    }

    /// Goes on with a group that was lent where whoever had it stands: what it has counted, the numbers that have grown, and the
    /// packets that are new in slots. The answer is whether all that can be: an application may have written into slots since. A group
    /// for which it is false has lost packets, and is to be given up.
    #[must_use]
    pub fn take_back(
        &mut self,
        group: GroupId,
        lent: &Lent,
        packet: impl FnMut(Sequence) -> LentPacket,
    ) -> bool {
        let Some(&place) = self.places.get(&group) else { return true };
        let Some(entry) = self.groups[place].as_mut().filter(|entry| entry.is_lent) else { return true };
        entry.is_lent = false;
        let is_possible = entry.group.take_back(lent, packet);
        self.give_turn(place);
        is_possible
    }

    /// A group that is lent and in which something is to be done by now.
    pub fn due(&self, now: Nanoseconds) -> Option<GroupId> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return None;
        }
        let is_due = |entry: &&Entry| entry.is_lent && entry.deadline.is_some_and(|deadline| deadline <= now);
        self.groups.iter().flatten().find(is_due).map(|entry| entry.group.id())
    }

    /// What to do next. To be asked until it answers [`Output::Wait`].
    pub fn poll(&mut self, now: Nanoseconds) -> Output {
        self.notice_sleep(now);
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            for place in 0..self.groups.len() {
                if self.groups[place]
                    .as_ref()
                    .and_then(|entry| entry.deadline)
                    .is_some_and(|deadline| deadline <= now)
                {
                    self.give_turn(place);
                }
            }
        }
        while let Some(place) = self.turns.pop_front() {
            let Some(entry) = &mut self.groups[place] else { continue };
            debug_assert!(!entry.is_lent, "a group that is lent is taken back first");
            let transmit = entry.group.poll(now, &self.settings);
            self.events.extend(entry.group.take_events());
            if let Some(transmit) = transmit {
                self.turns.push_back(place);
                return Output::Transmit(transmit);
            }
            entry.has_turn = false;
            entry.deadline = entry.group.deadline(&self.settings);
            if entry.group.is_over() {
                self.places.remove(&entry.group.id());
                self.groups[place] = None;
            }
        }
        self.deadline = self.groups.iter().flatten().filter_map(|entry| entry.deadline).min();
        Output::Wait(self.deadline)
    }

    /// The next thing to know, if there is one.
    pub fn take_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The packets that readers may read: from the first one kept to before the next one expected. None if the group is not
    /// here, or has no place yet.
    pub fn readable(&self, group: GroupId) -> Option<(Sequence, Sequence)> {
        self.group(group)?.readable()
    }

    /// What is in the slot of a packet that may be read.
    pub fn piece(&self, group: GroupId, packet: Sequence) -> Option<&Piece> {
        self.group(group)?.piece(packet)
    }

    /// At the root, how many packets may be queued now; 0 if the group is not here.
    pub fn room(&self, group: GroupId) -> u32 {
        self.group(group).map_or(0, Group::room)
    }

    /// How far the members have come: all before this packet is accepted by everybody below this node.
    pub fn stable(&self, group: GroupId) -> Option<Sequence> {
        self.group(group)?.stable()
    }

    /// All packets before this one have left their slots.
    pub fn freed(&self, group: GroupId) -> Option<Sequence> {
        self.group(group)?.freed()
    }

    /// Whether the root has closed the group, and all before that has come.
    pub fn is_closed(&self, group: GroupId) -> bool {
        self.group(group).is_some_and(Group::is_closed)
    }

    /// Whom this node sends to, in that order.
    pub fn children(&self, group: GroupId) -> impl Iterator<Item = MemberId> {
        self.group(group).into_iter().flat_map(Group::children)
    }

    /// The epoch of the tree in which this node has its place; none without one.
    pub fn epoch(&self, group: GroupId) -> Option<u32> {
        self.group(group)?.epoch()
    }

    /// Where this node's neighbours in the tree are: its parent, which the root does not have, and its children in the order in
    /// which they are sent to.
    pub fn neighbours(&self, group: GroupId) -> Option<(Option<SocketAddr>, Vec<SocketAddr>)> {
        self.group(group)?.neighbours()
    }

    /// At the root, the members that have never taken a place.
    pub fn awaited(&self, group: GroupId) -> Vec<MemberId> {
        self.group(group).map_or_else(Vec::new, Group::awaited)
    }

    /// What has been counted for a group.
    pub fn counters(&self, group: GroupId) -> Option<&GroupCounters> {
        self.group(group).map(Group::counters)
    }

    /// What has been counted of datagrams of no group.
    pub const fn strays(&self) -> &StrayCounters {
        &self.strays
    }

    /// Whether the group is here.
    pub fn has(&self, group: GroupId) -> bool {
        self.places.contains_key(&group)
    }

    /// The groups that are here.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.places.keys().copied()
    }

    /// A node that comes far too late to what it had to do has been asleep itself, and draws no conclusions from that.
    fn notice_sleep(&mut self, now: Nanoseconds) {
        if self.deadline.is_some_and(|deadline| now.since(deadline) > self.settings.keepalive) {
            self.deadline = Some(now);
            for entry in self.groups.iter_mut().flatten() {
                entry.group.overslept(now);
                entry.deadline = Some(now);
            }
        }
    }

    pub(crate) fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups[*self.places.get(&id)?].as_ref().map(|entry| &entry.group)
    }

    fn datagram<'a>(&mut self, now: Nanoseconds, from: SocketAddr, bytes: &'a [u8]) -> Option<Store<'a>> {
        let Ok(view) = View::new(bytes) else {
            self.strays.malformed += 1;
            return None;
        };
        let Some(&place) = self.places.get(&view.group()) else {
            self.strays.unknown_group += 1;
            return None;
        };
        let group = &mut self.groups[place].as_mut()?.group;
        if group.cookie() != view.cookie() {
            self.strays.wrong_cookie += 1;
            return None;
        }
        let Ok(packet) = view.check() else {
            self.strays.malformed += 1;
            return None;
        };
        let id = group.id();
        let slot = group.packet(now, &self.settings, from, &packet);
        self.events.extend(group.take_events());
        self.give_turn(place);
        slot.map(|slot| Store {
            group: id,
            packet: packet.header.sequence,
            slot,
            payload: packet.payload.bytes(),
        })
    }

    fn insert(
        &mut self,
        id: GroupId,
        make: impl FnOnce(&Settings) -> Result<Group, Refused>,
    ) -> Result<(), Refused> {
        if self.places.contains_key(&id) {
            return Err(Refused::GroupExists(id));
        }
        if self.places.len() >= self.settings.groups_max {
            return Err(Refused::TooManyGroups(self.places.len()));
        }
        let entry = Entry { group: make(&self.settings)?, has_turn: false, deadline: None, is_lent: false };
        let place = self.groups.iter().position(Option::is_none).unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        });
        self.groups[place] = Some(entry);
        self.places.insert(id, place);
        self.give_turn(place);
        Ok(())
    }

    fn ask(
        &mut self,
        id: GroupId,
        request: impl FnOnce(&mut Group) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let place = *self.places.get(&id).ok_or(Refused::UnknownGroup(id))?;
        if let Some(entry) = &mut self.groups[place] {
            request(&mut entry.group)?;
        }
        self.give_turn(place);
        Ok(())
    }

    fn give_turn(&mut self, place: usize) {
        if let Some(entry) = &mut self.groups[place]
            && !entry.has_turn
        {
            entry.has_turn = true;
            self.turns.push_back(place);
        }
    }
}
