//! A group as an application sees it.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use treecast_ebpf::KernelCounters;
use treecast_plan::Scheme;
use treecast_proto::{
    Ending, Eviction, GroupCounters, Input, MemberId, MemberLoss, Nanoseconds, Offload, PayloadChecksum,
    Piece, Refused, Sequence,
};

use crate::api::access::Access;
use crate::api::error::{Lost, Unanswered};
use crate::engine::root_socket::{Handed, Source};
use crate::memory::ring::{RingReader, RingWriter};
use crate::memory::shared_group::{Channel, Placed, Side};
use crate::sync::lock;
use crate::tree::{self, measure};
use crate::{GroupSettings, NodeError};

/// A group at one of its members. It may be used by several threads; whole messages follow one another.
///
/// Dropped, a root that has not closed its group gives it up, and another member leaves.
#[derive(Debug)]
pub struct Group {
    access: Access,
    channel: Arc<Channel>,
    settings: GroupSettings,
    /// This member's number, if it was known from the beginning.
    own: Option<usize>,
    /// At the root: nothing more is sent.
    is_closing: AtomicBool,
    end: Mutex<End>,
    /// Groups in which the root measures before it makes this one.
    probes: Mutex<Vec<Group>>,
}

/// Some of a message that has been received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// How long the whole message is, in bytes.
    pub message_bytes: u64,
    /// Whether the message ends with it.
    pub is_last: bool,
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
    /// How much of it has been sent, in bytes, and of how many.
    offset: usize,
    length: usize,
    forwarded: Sequence,
    /// Where the kernel's packet path forwards: its way in.
    source: Option<Source>,
}

impl Root {
    fn unfinished(&self) -> Result<(), NodeError> {
        if self.offset == 0 {
            return Ok(());
        }
        Err(Refused::Unfinished { message: self.message, offset: self.offset as u64 }.into())
    }
}

#[derive(Debug)]
struct Member {
    reader: RingReader,
    offload: Offload,
    forwarded: Sequence,
    /// The node has been told that all before it are read.
    told: Sequence,
    /// When what was received last was in its slot, by the kernel's clock.
    stored_at: Option<Nanoseconds>,
}

impl Member {
    fn new(reader: RingReader, placed: Option<&Placed>) -> Self {
        let start = reader.read();
        let offload = placed.map_or(Offload::Nic, |placed| placed.offload);
        Self { reader, offload, forwarded: start, told: start, stored_at: None }
    }
}

/// The node begins to send a long message when so many of its packets are there.
const PACKETS_AT_ONCE: u32 = 32;

impl Group {
    pub(crate) fn new(
        access: Access,
        channel: Arc<Channel>,
        settings: &GroupSettings,
        own: Option<usize>,
        source: Option<Source>,
    ) -> Self {
        let side = channel.placed().and_then(|placed| lock(&placed.side).take());
        let end = match side {
            Some(Side::Writer(writer)) => {
                let forwarded = writer.written();
                End::Root(Root { writer, message: 0, offset: 0, length: 0, forwarded, source })
            }
            Some(Side::Reader(reader)) => End::Member(Some(Member::new(reader, channel.placed()))),
            None => End::Member(None),
        };
        Self {
            access,
            channel,
            settings: settings.clone(),
            own,
            is_closing: AtomicBool::new(false),
            end: Mutex::new(end),
            probes: Mutex::default(),
        }
    }

    pub(crate) fn with_probes(self, probes: Vec<Self>) -> Self {
        *lock(&self.probes) = probes;
        self
    }

    /// Waits, at the root, until every member has its place in the tree, or is lost; says who is lost. A member that never
    /// answers is lost after ten seconds, unless the node is set otherwise (`join_timeout`). At another member: waits until this
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
            self.access.awaited(self.channel.group)
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
        root.source.iter_mut().for_each(Source::begin);
        while !self.put(root, message, None)? {}
        root.source.iter_mut().for_each(Source::end);
        Ok(())
    }

    /// Sends more of a message, as much as there is room for once there is some; says whether all of it is on its way. For
    /// programs that cannot wait as long as [`Group::send`] may: they call it with the same message until it is, and before
    /// anything else is sent.
    ///
    /// # Errors
    /// As [`Group::send`], and [`NodeError::TimedOut`]; [`NodeError::Refused`] for another message than the one begun.
    pub fn send_part(&self, message: &[u8], timeout: Option<Duration>) -> Result<bool, NodeError> {
        let mut end = self.end();
        let End::Root(root) = &mut *end else { return Err(self.wrong_side(false)) };
        root.source.iter_mut().for_each(Source::begin);
        let is_whole = self.put(root, message, timeout);
        root.source.iter_mut().for_each(Source::end);
        is_whole
    }

    /// Puts what there is room for into the node's memory.
    fn put(&self, root: &mut Root, message: &[u8], timeout: Option<Duration>) -> Result<bool, NodeError> {
        if self.is_closing.load(Ordering::Acquire) {
            return Err(NodeError::Ended(Ending::Closed));
        }
        if root.length != message.len() {
            root.unfinished()?;
            root.length = message.len();
        }
        if root.writer.room() == 0 {
            self.hand_over(root);
            self.wait(timeout, || (root.writer.room() > 0).then_some(()))?;
        }
        let stride = root.writer.stride();
        for _ in 0..root.writer.room() {
            let start = root.offset;
            let bytes = &message[start..message.len().min(start + stride)];
            let packet = root.writer.written();
            root.writer.write(packet, bytes);
            let piece = Piece {
                message: root.message,
                offset: start as u64,
                length: bytes.len() as u32,
                message_length: message.len() as u64,
                // Of what lies there now: whoever lends the message may be writing it.
                checksum: PayloadChecksum::of(root.writer.bytes(packet, bytes.len())),
            };
            root.writer.describe(packet, piece);
            root.writer.publish(packet + 1);
            root.offset = start + bytes.len();
            let is_last = root.offset == message.len();
            if is_last {
                (root.message, root.offset) = (root.message.wrapping_add(1), 0);
            }
            let offload = self.settings.offload;
            if is_to_be_forwarded(offload, root.forwarded, packet + 1, is_last, root.writer.slots()) {
                root.forwarded = packet + 1;
                self.forward(offload, packet + 1);
            }
            if is_last || (packet.0 + 1).is_multiple_of(PACKETS_AT_ONCE) {
                self.hand_over(root);
            }
            if is_last {
                return self.check().map(|()| true);
            }
        }
        self.hand_over(root);
        self.check().map(|()| false)
    }

    /// Gives what is written to the kernel's packet path, where that forwards, and what it does not take to the node.
    fn hand_over(&self, root: &mut Root) {
        let written = root.writer.written();
        match root.source.as_mut().map_or(Handed::Refused, |source| source.hand_over(written)) {
            Handed::Sent | Handed::Left { is_new: false } => {}
            Handed::Left { is_new: true } => self.access.rouse(),
            Handed::Refused => self.give_news(),
        }
    }

    /// Waits until every member that is not lost has all that has been sent.
    ///
    /// # Errors
    /// As [`Group::send`], and [`NodeError::TimedOut`].
    pub fn flush(&self, timeout: Option<Duration>) -> Result<(), NodeError> {
        let mut end = self.end();
        let End::Root(root) = &mut *end else { return Err(self.wrong_side(false)) };
        root.source.iter_mut().for_each(Source::is_waited_for);
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
        let mut end = self.end();
        let End::Member(member) = &mut *end else { return Err(self.wrong_side(true)) };
        let mut timeout = timeout;
        while let Some(part) = self.take(member, timeout, room_bytes, &mut take)? {
            if part.is_last {
                return Ok(Some(part.message_bytes));
            }
            // The rest of a message that has begun is waited for as long as its root is there.
            timeout = None;
        }
        Ok(None)
    }

    /// Receives more of a message: as much of it as has come, once there is something. For programs that cannot wait as long
    /// as [`Group::receive`] may, whose timeout is for the beginning of a message.
    ///
    /// # Errors
    /// Those of [`Group::receive_into`], for a message of more than `room_bytes`.
    pub fn receive_part(
        &self,
        timeout: Option<Duration>,
        room_bytes: u64,
        mut take: impl FnMut(u64, &[u8]),
    ) -> Result<Option<Part>, NodeError> {
        let mut end = self.end();
        let End::Member(member) = &mut *end else { return Err(self.wrong_side(true)) };
        self.take(member, timeout, room_bytes, &mut take)
    }

    /// Takes what has come of a message out of the node's memory.
    fn take(
        &self,
        member: &mut Option<Member>,
        timeout: Option<Duration>,
        room_bytes: u64,
        take: &mut impl FnMut(u64, &[u8]),
    ) -> Result<Option<Part>, NodeError> {
        // Asking for the time takes as long as a short message.
        let until = || timeout.map(|timeout| Instant::now() + timeout);
        let member = match member {
            Some(member) => member,
            None => member.insert(self.take_side(until())?),
        };
        let there = Some(member.reader.written()).filter(|&written| written != member.reader.read());
        let Some(upto) = there.map_or_else(|| self.wait_for_packets(member, until()), |end| Ok(Some(end)))?
        else {
            self.tell_read(member, true);
            return Ok(None);
        };
        let Piece { message_length: message_bytes, .. } = member.reader.piece(member.reader.read());
        if message_bytes > room_bytes {
            return Err(NodeError::TooLong { message_bytes, room_bytes });
        }
        let (next, is_last) = take_parts(&member.reader, upto, |bytes| take(message_bytes, bytes));
        member.stored_at = member.reader.shared_memory().map(|memory| memory.arrived_at(next - 1));
        member.reader.release(next);
        if member.offload != Offload::Nic {
            self.tell_read(member, true);
            let slots = member.reader.slots();
            if is_to_be_forwarded(member.offload, member.forwarded, next, is_last, slots) {
                member.forwarded = next;
                self.forward(member.offload, next);
            }
        }
        self.tell_read(member, false);
        Ok(Some(Part { message_bytes, is_last }))
    }

    /// Closes the group at its root, when every member has everything; says who has been lost, who has left. At another member:
    /// leaves it. Calls of other threads that wait end.
    ///
    /// # Errors
    /// [`NodeError::TimedOut`], after which it can be called again; [`NodeError::Ended`] if the group has ended in another way;
    /// [`NodeError::Refused`] at the root in the middle of a message.
    pub fn close(&self, timeout: Option<Duration>) -> Result<Vec<Lost>, NodeError> {
        self.begin_to_end()?;
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let ending = self.access.wait(&self.channel.events, until, || self.channel.state().ending);
        if let Some(why) = &self.channel.state().broken {
            return Err(NodeError::Daemon(why.clone()));
        }
        match ending {
            None => Err(NodeError::TimedOut),
            Some(Ending::Closed | Ending::Evicted(Eviction::Left)) => Ok(self.losses()),
            // It has left, and nobody was there to let it go.
            Some(Ending::Aborted) if !self.is_root() => Ok(Vec::new()),
            Some(ending) => Err(NodeError::Ended(ending)),
        }
    }

    /// Whether this member is the root.
    pub fn is_root(&self) -> bool {
        self.own == Some(self.settings.root)
    }

    fn begin_to_end(&self) -> Result<(), NodeError> {
        if !self.is_root() {
            self.leave();
            return Ok(());
        }
        // Whoever is sending a message sends all of it.
        if let End::Root(root) = &*self.end() {
            root.unfinished()?;
            if self.is_closing.swap(true, Ordering::AcqRel) {
                return Ok(());
            }
        }
        self.give_news();
        self.access.request(Input::Close { group: self.channel.group });
        Ok(())
    }

    /// At another member than the root.
    fn leave(&self) {
        if !self.channel.is_closed() {
            self.access.request(Input::Leave { group: self.channel.group });
        } else if let End::Member(member) = &mut *self.end() {
            // All has come, and the root need not be told: the node only waits until somebody has read it.
            if member.is_none() {
                *member = self.take_side(Some(Instant::now())).ok();
            }
            if let Some(member) = member {
                member.reader.release(member.reader.written());
                self.tell_read(member, true);
            }
        }
    }

    /// Gives the group up at its root, whatever members still lack; at another member: leaves it. Nothing is waited for; calls of
    /// other threads that wait end.
    pub fn give_up(&self) {
        if self.channel.has_ended() {
            return;
        }
        if self.is_root() {
            self.access.request(Input::Abort { group: self.channel.group });
        } else {
            self.leave();
        }
    }

    /// Who has been lost or has left, as far as the root knows.
    pub fn losses(&self) -> Vec<Lost> {
        let losses = self.channel.state().losses.clone();
        let named = losses.into_iter().map(|(member, loss): (MemberId, MemberLoss)| Lost {
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

    /// What the group is set to. A member that joined has the root's settings.
    pub fn settings(&self) -> &GroupSettings {
        &self.settings
    }

    /// How the tree is made, also where the settings leave it open. None where the root alone knows it: at other members if it
    /// has measured a lambda for `postal`, and at those that have joined later.
    pub fn scheme(&self) -> Option<Scheme> {
        let is_known = self.is_root() || self.own.is_some() && !measure::is_wanted(&self.settings);
        is_known.then(|| tree::scheme(self.settings.members.len(), &self.settings, self.access.has_kernel()))
    }

    /// A descriptor that becomes readable when there is something new to see: for programs that wait for many things. Whoever
    /// watches it reads its eight bytes, and then receives until nothing is there.
    ///
    /// # Errors
    /// Those of making a descriptor.
    pub fn watch(&self) -> std::io::Result<BorrowedFd<'_>> {
        self.channel.events.watch()
    }

    /// What has been counted for this group at this node.
    pub fn counters(&self) -> GroupCounters {
        self.access.counters(self.channel.group).unwrap_or_default()
    }

    /// When what was received last was in this host's memory (`CLOCK_MONOTONIC`), where the kernel's packet path shares it.
    pub fn stored_at(&self) -> Option<Nanoseconds> {
        if let End::Member(Some(member)) = &*self.end() { member.stored_at } else { None }
    }

    /// What the kernel's packet path has counted for this group; none where it has nothing to do with it.
    pub fn kernel_counters(&self) -> Option<KernelCounters> {
        self.access.kernel_counters(self.channel.group)
    }

    fn end(&self) -> MutexGuard<'_, End> {
        lock(&self.end)
    }

    fn give_news(&self) {
        self.channel.give_news();
        self.access.kick();
    }

    fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut find: impl FnMut() -> Option<T>,
    ) -> Result<T, NodeError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let found = self.access.wait(&self.channel.events, until, || {
            // Whether it has ended is asked first: what has come before its end is there by then, and counts for more.
            let ended = self.check().err();
            find().map(Ok).or_else(|| ended.map(Err))
        });
        found.unwrap_or(Err(NodeError::TimedOut))
    }

    /// Whether the group can go on.
    fn check(&self) -> Result<(), NodeError> {
        let state = self.channel.state();
        if let Some(why) = &state.broken {
            return Err(NodeError::Daemon(why.clone()));
        }
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
            self.access.kick();
        }
    }

    /// With offload `host` or `assisted`: sends on the packets before `upto`. As a program does that has no multicast, a copy for
    /// each child is asked for by itself with `host`.
    fn forward(&self, offload: Offload, upto: Sequence) {
        let group = self.channel.group;
        self.channel.give_news();
        let children = match offload {
            Offload::Host => self.access.children(group),
            _ => Vec::new(),
        };
        let one_by_one = children.into_iter().map(Some);
        let at_once = (offload != Offload::Host).then_some(None);
        for child in one_by_one.chain(at_once) {
            self.access.request(Input::Forward { group, upto, child });
        }
    }
}

/// Whether the application sends packets on now: message by message, and long ones by halves of the slots.
fn is_to_be_forwarded(
    offload: Offload,
    forwarded: Sequence,
    upto: Sequence,
    is_whole: bool,
    slots: u32,
) -> bool {
    offload != Offload::Nic && (is_whole || upto.distance_from(forwarded) as u32 >= slots / 2)
}

/// Hands out bytes of one message that lie before `upto`; says with which packet to go on, and whether the message is whole.
fn take_parts(reader: &RingReader, upto: Sequence, mut take: impl FnMut(&[u8])) -> (Sequence, bool) {
    let mut next = reader.read();
    let mut length = 0;
    let (first, mut is_last) = (next, false);
    while next != upto && !is_last {
        let piece = reader.piece(next);
        length += u64::from(piece.length);
        is_last = piece.is_last();
        next += 1;
    }
    let mut packet = first;
    while length > 0 {
        let part = reader.bytes(packet, length as usize);
        take(part);
        length -= part.len() as u64;
        packet += part.len().div_ceil(reader.stride()) as u32;
    }
    (next, is_last)
}

impl Drop for Group {
    fn drop(&mut self) {
        // What is being closed goes on until its time is over.
        if !self.is_closing.load(Ordering::Acquire) {
            self.give_up();
        }
    }
}
