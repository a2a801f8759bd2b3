//! A group as an application sees it.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use treecast_proto::{
    Ending, GroupCounters, Input, Loss, MemberId, Offload, PayloadChecksum, Piece, Sequence,
};

use crate::channel::{Channel, Placed, Side};
use crate::engine::{Request, Shared};
use crate::error::{Lost, Unanswered};
use crate::ring::{RingReader, RingWriter};
use crate::{GroupSettings, NodeError};

/// A group at one of its members. It may be used by several threads; whole messages follow one another.
///
/// Dropped, a root that has not closed its group gives it up, and another member leaves.
#[derive(Debug)]
pub struct Group {
    shared: Arc<Shared>,
    channel: Arc<Channel>,
    settings: GroupSettings,
    /// This member's number, if it was known from the beginning.
    own: Option<usize>,
    end: Mutex<End>,
    /// Groups in which the root measures before it makes this one.
    probes: Mutex<Vec<Group>>,
}

/// What the application does with its side of the ring.
#[derive(Debug)]
enum End {
    Root(Root),
    Member(Option<Member>),
}

#[derive(Debug)]
struct Root {
    writer: RingWriter,
    message: u32,
    forwarded: Sequence,
    is_closed: bool,
}

#[derive(Debug)]
struct Member {
    reader: RingReader,
    offload: Offload,
    forwarded: Sequence,
    /// The node has been told that all before it are read.
    told: Sequence,
}

impl Member {
    fn new(reader: RingReader, placed: Option<&Placed>) -> Self {
        let start = reader.read();
        let offload = placed.map_or(Offload::Nic, |placed| placed.offload);
        Self { reader, offload, forwarded: start, told: start }
    }
}

/// The node begins to send a long message when so many of its packets are there.
const PACKETS_AT_ONCE: u32 = 32;

impl Group {
    pub(crate) fn new(
        shared: Arc<Shared>,
        channel: Arc<Channel>,
        settings: &GroupSettings,
        own: Option<usize>,
    ) -> Self {
        let side = channel.placed().and_then(|placed| lock(&placed.side).take());
        let end = match side {
            Some(Side::Writer(writer)) => {
                let forwarded = writer.written();
                End::Root(Root { writer, message: 0, forwarded, is_closed: false })
            }
            Some(Side::Reader(reader)) => End::Member(Some(Member::new(reader, channel.placed()))),
            None => End::Member(None),
        };
        Self {
            shared,
            channel,
            settings: settings.clone(),
            own,
            end: Mutex::new(end),
            probes: Mutex::default(),
        }
    }

    pub(crate) fn with_probes(self, probes: Vec<Self>) -> Self {
        *lock(&self.probes) = probes;
        self
    }

    /// Waits, at the root, until every member has its place in the tree, or is lost; says who is lost. A member that never
    /// answers is lost after ten seconds, unless the node is set otherwise (`arrival_max`). At another member: waits until this
    /// one has its place. Sending and receiving do not need it: what is sent waits.
    ///
    /// # Errors
    /// [`NodeError::Unanswered`] names who has not answered by the end of the time: members, or the root. [`NodeError::Ended`],
    /// [`NodeError::DatagramTooLong`].
    pub fn wait_until_ready(&self, timeout: Option<Duration>) -> Result<Vec<Lost>, NodeError> {
        let is_root = self.is_root();
        let waited = self.wait(timeout, || {
            let is_ready =
                if is_root { self.channel.state().is_ready } else { self.channel.placed().is_some() };
            is_ready.then_some(())
        });
        match waited {
            Ok(()) => Ok(self.losses()),
            Err(NodeError::TimedOut) => Err(NodeError::Unanswered(self.unanswered(is_root))),
            Err(error) => Err(error),
        }
    }

    fn unanswered(&self, is_root: bool) -> Vec<Unanswered> {
        let members = if is_root {
            self.shared.with(|engine| engine.awaited(self.channel.group))
        } else {
            vec![MemberId(self.settings.root as u32)]
        };
        members
            .into_iter()
            .map(|member| Unanswered { member: member.0, address: self.address_of(member) })
            .collect()
    }

    /// Where a member's node is, if it was a member from the beginning.
    fn address_of(&self, member: MemberId) -> Option<SocketAddr> {
        self.settings.members.get(member.0 as usize).copied()
    }

    /// Sends a message to all other members. It comes back when the message is on its way: its bytes are in the node's
    /// memory.
    ///
    /// # Errors
    /// [`NodeError::WrongSide`] at other members than the root; [`NodeError::Ended`]; [`NodeError::DatagramTooLong`].
    pub fn send(&self, message: &[u8]) -> Result<(), NodeError> {
        let mut end = self.end();
        let End::Root(root) = &mut *end else { return Err(self.wrong_side(false)) };
        if root.is_closed {
            return Err(NodeError::Ended(Ending::Closed));
        }
        let stride = root.writer.stride();
        let number = root.message;
        root.message = number.wrapping_add(1);
        // A message without bytes is a packet without bytes.
        let count = message.len().div_ceil(stride).max(1);
        for (place, start) in (0..count).map(|place| (place, place * stride)) {
            let bytes = &message[start..message.len().min(start + stride)];
            if root.writer.room() == 0 {
                self.give_news();
                self.wait(None, || (root.writer.room() > 0).then_some(()))?;
            }
            let packet = root.writer.written();
            root.writer.put(packet, bytes);
            let piece = Piece {
                message: number,
                offset: start as u64,
                length: bytes.len() as u32,
                message_length: message.len() as u64,
                checksum: PayloadChecksum::of(bytes),
            };
            root.writer.describe(packet, piece);
            root.writer.give(packet + 1);
            let is_last = place + 1 == count;
            if self.settings.offload != Offload::Nic {
                self.forward(&mut root.forwarded, packet + 1, is_last, self.settings.offload);
            }
            if is_last || (packet.0 + 1).is_multiple_of(PACKETS_AT_ONCE) {
                self.give_news();
            }
        }
        self.check()
    }

    /// Waits until every member that is not lost has all that has been sent.
    ///
    /// # Errors
    /// As [`Group::send`], and [`NodeError::TimedOut`].
    pub fn flush(&self, timeout: Option<Duration>) -> Result<(), NodeError> {
        let end = self.end();
        let End::Root(root) = &*end else { return Err(self.wrong_side(false)) };
        self.wait(timeout, || (root.writer.read() == root.writer.written()).then_some(()))
    }

    /// Receives the next message; none, if the root has closed the group and everything has been received.
    ///
    /// # Errors
    /// [`NodeError::WrongSide`] at the root; [`NodeError::TimedOut`], after which the message can still be received;
    /// [`NodeError::Ended`].
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<Vec<u8>>, NodeError> {
        let mut message = Vec::new();
        let length = self.receive_with(timeout, u64::MAX, |length, bytes| {
            message.reserve_exact(length as usize - message.len());
            message.extend_from_slice(bytes);
        })?;
        Ok(length.map(|_| message))
    }

    /// Receives the next message into a buffer; says how long it is.
    ///
    /// # Errors
    /// Those of [`Group::receive`], and [`NodeError::TooLong`], after which the message can still be received.
    pub fn receive_into(
        &self,
        buffer: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<Option<usize>, NodeError> {
        let mut filled = 0;
        let length = self.receive_with(timeout, buffer.len() as u64, |_, bytes| {
            buffer[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
        })?;
        Ok(length.map(|length| length as usize))
    }

    /// Receives the next message where it lies: `take` is given the message's length, and its bytes in as few parts as they lie
    /// in. The answer is its length.
    ///
    /// # Errors
    /// Those of [`Group::receive_into`], for a message of more than `room_bytes`.
    pub fn receive_with(
        &self,
        timeout: Option<Duration>,
        room_bytes: u64,
        mut take: impl FnMut(u64, &[u8]),
    ) -> Result<Option<u64>, NodeError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let mut end = self.end();
        let End::Member(member) = &mut *end else { return Err(self.wrong_side(true)) };
        let member = match member {
            Some(member) => member,
            None => member.insert(self.take_side(until)?),
        };
        let Some(mut upto) = self.wait_for_packets(member, until)? else {
            self.tell_read(member, true);
            return Ok(None);
        };
        let Piece { message_length, .. } = member.reader.piece(member.reader.read());
        if message_length > room_bytes {
            return Err(NodeError::TooLong { message_bytes: message_length, room_bytes });
        }
        let mut left = message_length;
        loop {
            let (next, is_last) =
                take_parts(&member.reader, upto, &mut left, |bytes| take(message_length, bytes));
            member.reader.give_back(next);
            if member.offload != Offload::Nic {
                self.tell_read(member, true);
                self.forward(&mut member.forwarded, next, is_last, member.offload);
            }
            self.tell_read(member, false);
            if is_last {
                return Ok(Some(message_length));
            }
            // The rest of a message that has begun is waited for as long as its root is there.
            upto = self.wait_for_packets(member, None)?.ok_or(NodeError::Ended(Ending::Closed))?;
        }
    }

    /// Closes the group at its root, when every member has everything; says who has been lost, who has left. At another member:
    /// leaves it.
    ///
    /// # Errors
    /// [`NodeError::TimedOut`], after which it goes on closing; [`NodeError::Ended`] if the group has ended in another way.
    pub fn close(&self, timeout: Option<Duration>) -> Result<Vec<Lost>, NodeError> {
        self.begin_to_end();
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let ending = self.shared.wait(&self.channel.notice, until, || self.channel.state().ending);
        match ending {
            None => Err(NodeError::TimedOut),
            Some(Ending::Closed | Ending::Dismissed(treecast_proto::Dismissal::Left)) => Ok(self.losses()),
            Some(ending) => Err(NodeError::Ended(ending)),
        }
    }

    /// Ends the group here at once, also while other threads wait for it: its root gives it up, and tells the others; another
    /// member leaves. Calls that wait then answer [`NodeError::Ended`].
    pub fn give_up(&self) {
        let group = self.channel.group;
        let input = if self.is_root() { Input::Abort { group } } else { Input::Leave { group } };
        self.shared.request(Request::Input(input));
    }

    /// Whether this member is the root.
    pub fn is_root(&self) -> bool {
        self.own == Some(self.settings.root)
    }

    /// Nobody will read what is there, and the node need not keep it.
    fn pass_over(&self, member: Option<Member>) {
        let side = || self.channel.placed().and_then(|placed| lock(&placed.side).take());
        let reader = member.map(|member| Side::Reader(member.reader)).or_else(side);
        if let Some(Side::Reader(mut reader)) = reader {
            reader.give_back(reader.written());
            self.give_news();
        }
    }

    fn begin_to_end(&self) {
        let group = self.channel.group;
        let input = match &mut *self.end() {
            End::Root(root) if root.is_closed => return,
            End::Root(root) => {
                root.is_closed = true;
                Input::Close { group }
            }
            End::Member(_) => Input::Leave { group },
        };
        self.give_news();
        self.shared.request(Request::Input(input));
    }

    /// Who has been lost or has left, as far as the root knows.
    pub fn losses(&self) -> Vec<Lost> {
        let losses = self.channel.state().losses.clone();
        let named = losses.into_iter().map(|(member, loss): (MemberId, Loss)| Lost {
            member: member.0,
            address: self.address_of(member),
            loss,
        });
        named.collect()
    }

    /// This member's number; one that has asked to join learns it with its place.
    pub fn member(&self) -> Option<u32> {
        self.channel.placed().map(|placed| placed.member).or(self.own.map(|own| own as u32))
    }

    /// What the group is set to. A member that has gathered has this from its root.
    pub fn settings(&self) -> &GroupSettings {
        &self.settings
    }

    /// A descriptor that becomes readable when there is something new to see: for programs that wait for many things. Whoever
    /// watches it reads its eight bytes, and then receives until nothing is there.
    ///
    /// # Errors
    /// Those of making a descriptor.
    pub fn watch(&self) -> std::io::Result<BorrowedFd<'_>> {
        self.channel.notice.watch()
    }

    /// What has been counted for this group at this node.
    pub fn counters(&self) -> GroupCounters {
        self.shared.with(|engine| engine.counters(self.channel.group)).unwrap_or_default()
    }

    fn end(&self) -> MutexGuard<'_, End> {
        lock(&self.end)
    }

    fn give_news(&self) {
        self.channel.give_news();
        self.shared.kick();
    }

    fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut find: impl FnMut() -> Option<T>,
    ) -> Result<T, NodeError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let found = self.shared.wait(&self.channel.notice, until, || {
            if let Some(found) = find() {
                return Some(Ok(found));
            }
            self.check().err().map(Err)
        });
        found.unwrap_or(Err(NodeError::TimedOut))
    }

    /// Whether the group can go on.
    fn check(&self) -> Result<(), NodeError> {
        let state = self.channel.state();
        if state.does_not_fit {
            return Err(NodeError::DatagramTooLong { datagram_bytes: usize::from(self.settings.mtu_bytes) });
        }
        state.ending.map_or(Ok(()), |ending| Err(NodeError::Ended(ending)))
    }

    fn wrong_side(&self, is_root: bool) -> NodeError {
        NodeError::WrongSide { group: self.channel.group, member: self.member().unwrap_or_default(), is_root }
    }

    /// The reading side, once the member has its place.
    fn take_side(&self, until: Option<Instant>) -> Result<Member, NodeError> {
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        self.wait(timeout, || {
            let placed = self.channel.placed()?;
            let Some(Side::Reader(reader)) = lock(&placed.side).take() else { return None };
            // The root has measured when it makes this group.
            lock(&self.probes).clear();
            Some(Member::new(reader, Some(placed)))
        })
    }

    /// The end of what has come, once there is something; none, if the group is closed and everything read.
    fn wait_for_packets(
        &self,
        member: &Member,
        until: Option<Instant>,
    ) -> Result<Option<Sequence>, NodeError> {
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        let reader = &member.reader;
        self.wait(timeout, || {
            // Whether it is closed is asked first: what is there by then is all.
            let is_closed = self.channel.is_closed();
            let end = reader.written();
            if end == reader.read() { is_closed.then_some(None) } else { Some(Some(end)) }
        })
    }

    /// Tells the node what has been read: at once, or when it is worth it.
    fn tell_read(&self, member: &mut Member, at_once: bool) {
        self.channel.give_news();
        let read = member.reader.read();
        if at_once || read.distance_from(member.told) as u32 >= member.reader.slots() / 4 {
            member.told = read;
            self.shared.kick();
        }
    }

    /// With offload `host` or `assisted`: sends on what has come, message by message, and long ones by halves of the slots. As a
    /// program does that has no multicast, a copy for each child is asked for by itself with `host`.
    fn forward(&self, forwarded: &mut Sequence, upto: Sequence, is_whole: bool, offload: Offload) {
        if !is_whole && (upto.distance_from(*forwarded) as u32) < self.settings.slots / 2 {
            return;
        }
        *forwarded = upto;
        let group = self.channel.group;
        self.channel.give_news();
        let children = self.shared.with(|engine| engine.children(group).len());
        let turns = if offload == Offload::Host { 0..children } else { 0..1 };
        for turn in turns {
            let child = (offload == Offload::Host).then_some(turn);
            self.shared.request(Request::Input(Input::Forward { group, upto, child }));
        }
    }
}

/// Hands out bytes of one message that lie before `upto`; says with which packet to go on, and whether the message is whole.
fn take_parts(
    reader: &RingReader,
    upto: Sequence,
    left: &mut u64,
    mut take: impl FnMut(&[u8]),
) -> (Sequence, bool) {
    let mut next = reader.read();
    let mut length = 0;
    let (first, mut is_last) = (next, false);
    while next != upto && !is_last {
        let piece = reader.piece(next);
        length += u64::from(piece.length);
        is_last = piece.is_last();
        next += 1;
    }
    *left -= length;
    let mut packet = first;
    while length > 0 {
        let part = reader.bytes(packet, length as usize);
        take(part);
        length -= part.len() as u64;
        packet += part.len().div_ceil(reader.stride()) as u32;
    }
    (next, is_last)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Group {
    fn drop(&mut self) {
        let is_ending = match &mut *self.end() {
            End::Root(root) => root.is_closed,
            End::Member(member) => {
                let is_closed = self.channel.is_closed();
                if is_closed {
                    self.pass_over(member.take());
                }
                is_closed
            }
        };
        if !is_ending && !self.channel.has_ended() {
            self.give_up();
        }
    }
}
