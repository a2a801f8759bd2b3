//! The streams of an engine's groups: what the protocol sends on them and gets from them.

#![expect(unsafe_code, reason = "the kernel reads and writes slots in place")]

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use treecast_proto::{
    Event, GroupId, Input, MemberId, Nanoseconds, Output, Sequence, Store, StreamChange, Transmit,
    TransmitPayload,
};
use treecast_shm::clock;
use treecast_shm::message_buffer::{LentBuffer, LentPayloads};
use treecast_shm::ring::SlotAddresses;
use treecast_shm::shared_group::{RingSide, SharedGroup};
use treecast_wire::View;

use super::core::{Core, EndedStream, RootLoan};
use super::{Engine, Progress};
use crate::settings::congestion::CongestionControl;
use crate::settings::stream_settings::Retention;
use crate::streams::{Place, Places, Queued, Read, Ready, Received, Written};

/// So many bytes for a child are written at once. More are written in several turns, so that its
/// host begins to forward meanwhile.
const WRITE_BYTES: usize = 128 << 10;

/// The most reads of a stream before others have their turn.
const READS_MAX: usize = 16;

impl Engine {
    /// Whether there are streams, or may be.
    pub fn uses_streams(&self) -> bool {
        self.streams.is_used()
    }

    /// Opens the streams that groups need, and closes those that they need no more.
    pub(super) fn tend_streams(&mut self) {
        let Self { core, streams, .. } = self;
        for ended in core.ended_streams.drain(..) {
            match ended {
                EndedStream::ToParent(group) => streams.close_parent(group),
                EndedStream::ToChild(group, child) => streams.close_child(group, child),
                EndedStream::AllOf(group) => streams.close_group(group),
            }
        }
        if core.by_streams.is_empty() || core.untended.is_empty() && !streams.awaits_time() {
            return;
        }
        let now = clock::now();
        core.untended.extend(streams.due(now));
        for group in core.untended.take() {
            let entry = core.groups.get_mut(&group).filter(|_| core.by_streams.contains(group));
            let Some(entry) = entry else { continue };
            let needs = entry.stream_needs(&core.protocol);
            entry.tended = Some(needs);
            streams.dial(now, group, needs.parent, entry.stream_settings.congestion.as_ref());
            if needs.has_children {
                streams.listen(now);
            }
        }
    }

    /// When something about streams is due.
    pub(super) fn stream_timeout(&self) -> Option<Nanoseconds> {
        let Self { core, streams, .. } = self;
        if core.by_streams.is_empty() && !streams.is_used() {
            return None;
        }
        streams.timeout()
    }

    /// Queues a packet for a child, and writes when there is enough.
    pub(super) fn queue_on_stream(
        &mut self,
        now: Nanoseconds,
        child: MemberId,
        &Transmit { group, header, ref payload, .. }: &Transmit,
    ) {
        let &TransmitPayload::Slot { packet, slot, length } = payload else { return };
        let queued = Queued { header, packet, slot, length: length as usize };
        if self.streams.queue(group, child, queued) >= WRITE_BYTES
            && let Some(stream) = self.streams.of_child(group, child)
        {
            self.write_stream(now, stream);
        }
    }

    /// Writes what is queued for children; whether one that was full takes more.
    pub(super) fn write_streams(&mut self) -> bool {
        let mut takes_more = false;
        while let Some(stream) = self.streams.next_unwritten() {
            takes_more |= self.write_stream(clock::now(), stream) == Some(StreamChange::Writable);
        }
        takes_more
    }

    /// Writes what is queued for a child, and tells the protocol what has changed, and the caller.
    fn write_stream(&mut self, now: Nanoseconds, stream: u64) -> Option<StreamChange> {
        let Self { core, streams, .. } = self;
        let Core { protocol, groups, lent, lent_payloads, .. } = &*core;
        // In the buffer of a call, or in its slot.
        let address = |group: GroupId, packet: Sequence, slot: u32| {
            protocol.piece(group, packet)?;
            let mut sent = lent_payloads.iter().filter(|loan| loan.group == group);
            if let Some(payload) = sent.find_map(|loan| loan.payloads.of(packet)) {
                return Some(payload);
            }
            if let Some((_, received)) = lent.filter(|(of, lent)| *of == group && lent.has_stored(packet)) {
                return Some(received.stored_at(packet));
            }
            match groups.get(&group)?.side.as_ref()? {
                RingSide::Writer(writer) => Some(writer.address(slot)),
                RingSide::Reader(reader) => Some(reader.address(slot)),
            }
        };
        // SAFETY: the protocol holds each of these packets, so that nobody writes its slot: at the
        // root the application writes those that the engine has released, in `give_progress`; at
        // another member the engine writes slots of packets that have not come, in `store`. What an
        // application lends it writes no sooner than its call returns.
        let written = unsafe { streams.write(stream, address) };
        let (group, child, written, was_blocked) = written?;
        if core.by_both.contains(group) && streams.loses_packets(now, stream) {
            let _ = core.protocol.handle(now, Input::StreamLosses { group, child });
        }
        let change = match written {
            Written::Blocked => StreamChange::Full,
            Written::All if was_blocked => StreamChange::Writable,
            Written::All | Written::Nothing => return None,
            Written::Failed => StreamChange::Closed,
        };
        // The group may have ended.
        let _ = core.protocol.handle(now, Input::Stream { group, child, change });
        Some(change)
    }

    /// Reads the stream on which data is expected, and forwards the data. Returns `None` if there
    /// was none.
    ///
    /// Most wake-ups of a member are for this, and nothing else is looked at then.
    pub(super) fn forward_expected(&mut self) -> Option<Progress> {
        let (stream, group) = self.expected_parent()?;
        let (read, progress) = self.read_stream(stream, group);
        matches!(read, Read::More | Read::All).then_some(progress)
    }

    /// The stream to a parent on which data is expected: that of the message for which the calling
    /// thread waits, if it has lent its buffer.
    pub(super) fn expected_parent(&self) -> Option<(u64, GroupId)> {
        self.streams.expected_parent(self.core.lent.map(|(group, _)| group))
    }

    /// Deals with the streams that are ready: reads what parents have sent, and forwards it.
    pub(super) fn receive_streams(&mut self) -> Progress {
        if !self.streams.is_used() {
            return Progress::Done;
        }
        let mut progress = Progress::Done;
        let Self { core, streams, .. } = self;
        let ready = streams.ready(clock::now(), |host| core.has_child_at(host));
        let is_empty = ready.is_empty();
        for ready in ready {
            let now = clock::now();
            match ready {
                Ready::FirstPacket { stream, from, challenge, packet } => {
                    if let Some(group) = self.core.protocol.group_to_reclaim_for_stream(&packet) {
                        self.core.reclaim(group);
                    }
                    let input = Input::Attach { stream, from, challenge, bytes: &packet };
                    let _ = self.core.protocol.handle(now, input);
                    self.take_local_outputs(now, SocketAddr::new(from, 0));
                }
                Ready::Challenged { stream, group, challenge } => {
                    match self.core.protocol.attach_packet(group, challenge) {
                        Some(packet) => self.streams.answer(now, stream, &packet),
                        None => self.streams.close(stream),
                    }
                }
                Ready::Parent { stream, group } => {
                    progress = progress.and(self.read_stream(stream, group).1);
                }
                Ready::Writable { stream, .. } => _ = self.write_stream(now, stream),
                Ready::ChildClosed { group, child } => {
                    self.core.reclaim(group);
                    let input = Input::Stream { group, child, change: StreamChange::Closed };
                    let _ = self.core.protocol.handle(now, input);
                }
            }
        }
        if !is_empty {
            self.tend_streams();
            progress = progress.and(self.send_some());
            self.core.give_progress();
        }
        progress
    }

    /// Carries out what follows from the first packet of a stream, which came from there.
    fn take_local_outputs(&mut self, now: Nanoseconds, from: SocketAddr) {
        while let Some(output) = self.core.protocol.poll_local() {
            match output {
                Output::Event(Event::Attached { stream, child: Some((group, child)) }) => {
                    let Self { core, streams, .. } = self;
                    streams.attach(stream, group, child, core.congestion(group));
                }
                Output::Event(Event::Attached { stream, child: None }) => self.streams.close(stream),
                Output::Event(event) => self.core.handle_event(&event),
                Output::Stray(stray) => self.core.audit.on_stray(now, from, stray),
                Output::Store(_) | Output::Transmit(_) | Output::Reclaim(_) | Output::Timeout(_) => {}
            }
        }
    }

    /// Reads what the parent of a group has sent, a bounded number of times, and forwards it each
    /// time. Returns what the first read has found.
    pub(super) fn read_stream(&mut self, stream: u64, group: GroupId) -> (Read, Progress) {
        let mut first = None;
        for _ in 0..READS_MAX {
            let read = self.read_stream_once(stream, group);
            let first = *first.get_or_insert(read);
            if read == Read::Nothing {
                return (first, Progress::Done);
            }
            // What came before the end of a stream is forwarded too.
            let sent = self.send_some();
            self.core.give_progress();
            if sent == Progress::More || read != Read::More {
                return (first, sent);
            }
        }
        (Read::More, Progress::More)
    }

    /// Reads once.
    fn read_stream_once(&mut self, stream: u64, group: GroupId) -> Read {
        let Self { core, streams, .. } = self;
        core.reclaim(group);
        let entry = core.groups.get(&group);
        let Some(RingSide::Writer(writer)) = entry.and_then(|entry| entry.side.as_ref()) else {
            return Read::Ended;
        };
        let slots = writer.slot_addresses();
        let (Some(parent), Some(next), Some(end)) =
            (streams.peer(stream), core.protocol.next(group), core.protocol.free_end(group))
        else {
            return Read::Ended;
        };
        let (next, end) = (Cell::new(next), Cell::new(end));
        let retains = entry.is_some_and(|entry| entry.stream_settings.retention == Retention::All)
            && core.protocol.children(group).next().is_some();
        let is_lent = |(of, _): &(GroupId, LentBuffer)| !retains && *of == group;
        let lent = Cell::new(core.lent.filter(is_lent));
        let now = clock::now();
        let mut places = FreePlaces { slots, next: &next, end: &end, lent: &lent };
        streams.read(now, stream, &mut places, |received| {
            let is_right = core.take_record(now, group, parent, received);
            if let Some((expected, free_end)) = core.protocol.next(group).zip(core.protocol.free_end(group)) {
                next.set(expected);
                end.set(free_end);
            }
            lent.set(core.lent.filter(is_lent));
            is_right
        })
    }

    /// Lends the engine the buffer of the application that waits for a message of a group. The
    /// engine stores packets there until [`Engine::take_back`].
    pub fn lend(&mut self, shared_group: &SharedGroup, buffer: LentBuffer) {
        let group = shared_group.group;
        // Another one may have its number since the call looked.
        let is_there = self.core.groups.get(&group).is_some_and(|entry| entry.is_of(shared_group));
        self.core.lent = is_there.then_some((group, buffer));
    }

    /// Lends the engine payloads of a root's group that are not in their slots, until
    /// [`Engine::take_payloads_back`] with the number that is returned.
    pub fn lend_payloads(&mut self, shared_group: &SharedGroup, payloads: LentPayloads) -> u64 {
        let group = shared_group.group;
        self.core.loans += 1;
        let number = self.core.loans;
        // Another one may have its number since the call looked.
        if self.core.groups.get(&group).is_some_and(|entry| entry.is_of(shared_group)) {
            self.core.lent_payloads.push(RootLoan { number, group, payloads });
        }
        number
    }

    /// Takes payloads back: those of packets from the returned one on are to be in their slots from
    /// now on. None are needed if the group has ended.
    pub fn take_payloads_back(&mut self, shared_group: &SharedGroup, number: u64) -> Option<Sequence> {
        self.core.lent_payloads.retain(|loan| loan.number != number);
        let entry = self.core.groups.get(&shared_group.group).filter(|entry| entry.is_of(shared_group))?;
        let Some(RingSide::Reader(reader)) = &entry.side else { return None };
        Some(reader.read())
    }

    /// Takes the buffer back: it says which packets the engine has stored there. Those that some
    /// child lacks go into their slots.
    pub fn take_back(&mut self, buffer: &mut LentBuffer) {
        if let Some((group, lent)) = self.core.lent.take() {
            *buffer = lent;
            buffer.has_part = self.streams.incoming(group).is_some_and(|incoming| incoming.has_lent_part());
            self.keep_for_children(group, &lent);
        }
    }

    /// Copies the packets in a buffer that have not been written to all children into their slots.
    /// Of the others only the root keeps the payloads, and the protocol has to know that.
    fn keep_for_children(&mut self, group: GroupId, lent: &LentBuffer) {
        let Self { core, streams, .. } = self;
        let Range { start, end } = lent.stored();
        let Some(unsent) = core.protocol.unsent(group).filter(|_| start != end) else { return };
        let unwritten =
            core.protocol.children(group).filter_map(|child| streams.first_unwritten(group, child));
        let from = unwritten.fold(unsent, Sequence::min).max(start).min(end);
        let is_forgotten = start.is_before(from)
            && core.protocol.handle(clock::now(), Input::Forget { group, before: from }).is_ok();
        core.keep(group, lent, if is_forgotten { from } else { start }..end);
    }

    /// Moves the beginning of a packet, and these packets, out of the buffer of a call that ends,
    /// into their slots.
    ///
    /// A group that has ended has no stream, and needs nothing; another one may have its number.
    pub fn settle(&mut self, shared_group: &SharedGroup, lent: &LentBuffer, stored: Range<Sequence>) {
        let Self { core, streams, .. } = self;
        let group = shared_group.group;
        let Some(entry) = core.groups.get(&group).filter(|entry| entry.is_of(shared_group)) else { return };
        let (Some(RingSide::Writer(writer)), Some(next)) = (&entry.side, core.protocol.next(group)) else {
            return;
        };
        let slots = writer.slot_addresses();
        core.keep(group, lent, stored);
        if let Some(incoming) = streams.incoming(group) {
            // SAFETY: it is the slot of the next packet, which is free. The call has not ended yet.
            unsafe { incoming.settle(slot_of(&slots, next)) };
        }
    }
}

/// The places of packets that a member has not received: free slots of its ring, or parts of the
/// buffer of its application.
struct FreePlaces<'a> {
    slots: SlotAddresses,
    /// The packet that is expected next.
    next: &'a Cell<Sequence>,
    /// The first packet behind it without a free slot.
    end: &'a Cell<Sequence>,
    lent: &'a Cell<Option<(GroupId, LentBuffer)>>,
}

impl FreePlaces<'_> {
    fn free_slot(&self, packet: Sequence) -> Option<Place> {
        packet.is_before(self.end.get()).then(|| slot_of(&self.slots, packet))
    }
}

// SAFETY: slots of packets from `next` to before `end` are free, and belong to the engine, whose
// lock this thread has. The buffer belongs to the call that has lent it to this step.
unsafe impl Places for FreePlaces<'_> {
    fn of(&mut self, number: usize) -> Option<Place> {
        let packet = self.next.get() + number as u32;
        let slot = self.free_slot(packet)?;
        let lent = self.lent.get().and_then(|(_, lent)| lent.place(packet));
        Some(lent.map_or(slot, |first| Place { first, is_lent: true, ..slot }))
    }

    fn slot(&mut self) -> Option<Place> {
        self.free_slot(self.next.get())
    }
}

fn slot_of(slots: &SlotAddresses, packet: Sequence) -> Place {
    let (first, bytes) = slots.of(packet);
    Place { first, bytes, is_lent: false }
}

impl Core {
    /// The congestion control that the settings of a group name.
    fn congestion(&self, group: GroupId) -> Option<&CongestionControl> {
        self.groups.get(&group)?.stream_settings.congestion.as_ref()
    }

    /// Whether a host has a child of this node, in a group with streams.
    fn has_child_at(&self, host: IpAddr) -> bool {
        let is_there = |child: &SocketAddr| child.ip().to_canonical() == host;
        let mut groups = self.by_streams.iter().filter_map(|&group| self.protocol.neighbours(group));
        groups.any(|(_, children)| children.iter().any(is_there))
    }

    /// Copies packets from the buffer of a call that has not ended into their slots.
    fn keep(&self, group: GroupId, lent: &LentBuffer, stored: Range<Sequence>) {
        let side = self.groups.get(&group).and_then(|entry| entry.side.as_ref());
        let Some(RingSide::Writer(writer)) = side else { return };
        let slots = writer.slot_addresses();
        for packet in stored.start.until(stored.end) {
            let (slot, bytes) = slots.of(packet);
            if let Some(piece) = self.protocol.piece(group, packet) {
                // SAFETY: the payload is in the buffer, whose call has not ended. The reader of the
                // slot is this thread, and its writer the engine, whose lock this thread has.
                unsafe { lent.stored_at(packet).copy_to(slot, bytes.min(piece.length as usize)) };
            }
        }
    }

    /// Whether a payload is in the buffer of the application that waits for it, and stays there.
    fn is_stored_in_buffer(&mut self, &Store { group, packet, .. }: &Store, payload: &[u8]) -> bool {
        let Some((of, lent)) = &mut self.lent else { return false };
        let piece = self.protocol.piece(group, packet).filter(|_| *of == group);
        piece.is_some_and(|piece| lent.accept(packet, piece, payload.as_ptr()))
    }

    /// Takes a packet that a group's parent has sent on its stream; false if it is none that a
    /// parent sends.
    fn take_record(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        parent: SocketAddr,
        Received { header, payload }: Received<'_>,
    ) -> bool {
        if View::new(header).map(|view| view.group()) != Ok(group) {
            return false;
        }
        self.in_datagrams.remove(group);
        // A packet is never refused.
        let _ = self.protocol.handle(now, Input::Record { from: parent, header, payload });
        let mut is_right = true;
        while let Some(output) = self.protocol.poll_local() {
            match output {
                Output::Store(store) if self.is_stored_in_buffer(&store, payload) => {}
                Output::Store(store) => self.store(&store, payload),
                Output::Stray(stray) => {
                    self.audit.on_stray(now, parent, stray);
                    is_right = false;
                }
                Output::Event(event) => self.handle_event(&event),
                Output::Transmit(_) | Output::Reclaim(_) | Output::Timeout(_) => {}
            }
        }
        is_right
    }
}
