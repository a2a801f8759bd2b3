//! The user engine: a thread that plays the NIC, with the protocol, a socket and the groups' slots.
//!
//! Whoever holds the engine drives it: its own thread when something comes or a time is over, and an application's thread that
//! has just given it something to do, or that waits for something to come. So neither what is sent nor what is received waits
//! for another thread to wake.

#![expect(unsafe_code, reason = "the kernel reads packets where they lie")]

mod kernel;
mod shared;
mod stop;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec};
use treecast_ebpf::{HookTrouble, Program};
use treecast_proto::{
    Event, GroupCounters, GroupId, Input, MemberId, Nanoseconds, Offload, Output, Protocol, Refused,
    Sequence, Source, StrayCounters, Transmit,
};
use treecast_wire::View;

use crate::NodeSettings;
use crate::channel::{Channel, Placed, Side};
use crate::clock;
use crate::datagrams::{BATCH, Datagrams};
use crate::ring::{RingReader, RingWriter, kernel_ring, ring};

pub(crate) use kernel::Kernel;
pub(crate) use shared::Shared;

/// What an application asks for. What is asked for often goes by the ring instead.
#[derive(Debug)]
pub(crate) enum Request {
    Input(Input<'static>),
    /// Take part in a group; at its root with the node's side of the ring.
    Enter {
        channel: Arc<Channel>,
        input: Input<'static>,
        side: Option<Side>,
    },
}

/// The protocol on its socket.
#[derive(Debug)]
pub(crate) struct Engine {
    protocol: Protocol,
    datagrams: Datagrams,
    kernel: Option<Kernel>,
    groups: BTreeMap<GroupId, Joint>,
    timer: Arc<OwnedFd>,
    armed: Option<Nanoseconds>,
}

/// A group here: the node's side of the ring, and what leads to the application.
#[derive(Debug)]
struct Joint {
    channel: Arc<Channel>,
    side: Option<Side>,
    /// At another member than the root, what the application has read, as far as the protocol knows.
    consumed: Sequence,
}

/// What the slots of a group are to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingTerms {
    pub slots: u32,
    pub payload_bytes_max: u16,
    pub start: Sequence,
    pub offload: Offload,
}

/// A step takes in so many batches at most before others may hold the engine.
const BATCHES_MAX: usize = 16;

impl Engine {
    fn new(
        settings: &NodeSettings,
        datagrams: Datagrams,
        kernel: Option<Kernel>,
        timer: Arc<OwnedFd>,
    ) -> Self {
        Self {
            protocol: Protocol::new(settings.protocol.clone()),
            datagrams,
            kernel,
            groups: BTreeMap::new(),
            timer,
            armed: None,
        }
    }

    pub fn counters(&self, group: GroupId) -> Option<GroupCounters> {
        let mut counters = self.protocol.counters(group).copied()?;
        if let Some(kernel) = &self.kernel {
            kernel.add_counts(group, &mut counters);
        }
        Some(counters)
    }

    /// What is wrong with the kernel's packet path; empty also where it has no part.
    pub fn troubles(&self) -> Vec<HookTrouble> {
        self.kernel.as_ref().map_or_else(Vec::new, |kernel| kernel.troubles().to_vec())
    }

    /// What the kernel's packet path counts of a group that is in its tables.
    pub fn kernel_counts(&self, group: GroupId) -> Option<treecast_ebpf::Counts> {
        self.kernel.as_ref()?.counts(group)
    }

    /// Makes the slots of a group: in memory that the kernel's packet path shares, where that forwards.
    pub fn make_ring(&mut self, group: GroupId, terms: RingTerms) -> (RingWriter, RingReader) {
        let RingTerms { slots, payload_bytes_max, start, offload } = terms;
        let stride = usize::from(payload_bytes_max);
        // Of two groups of one number the second is refused when it is entered.
        let kernel = self.kernel.as_mut().filter(|kernel| offload == Offload::Nic && !kernel.knows(group));
        let posted = kernel.map(|kernel| kernel.add(group, slots, payload_bytes_max));
        match posted {
            Some(Ok(memory)) => kernel_ring(memory, stride, start),
            Some(Err(error)) => {
                tracing::warn!(%error, "user space runs group {group} alone");
                ring(slots, stride, start)
            }
            None => ring(slots, stride, start),
        }
    }

    /// Says which socket's datagrams are packets of a group's root.
    pub fn set_source(&mut self, group: GroupId, socket: u64) {
        if let Some(kernel) = &mut self.kernel {
            kernel.set_source(group, socket);
        }
    }

    /// Takes a group back from the kernel's packet path, if that has it: before anything of it is looked at or handled.
    fn own(&mut self, group: GroupId) {
        let Some(kernel) = &mut self.kernel else { return };
        kernel.take(group, &mut self.protocol);
    }

    /// The kernel's packet path has nothing more to do with a group.
    fn forget(&mut self, group: GroupId) {
        if let Some(kernel) = &mut self.kernel {
            kernel.remove(group);
        }
    }

    fn own_all(&mut self) {
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for group in groups {
            self.own(group);
        }
    }

    /// Takes back what the kernel's bell was rung for.
    fn answer_bell(&mut self) {
        while let Some(group) = self.kernel.as_mut().and_then(Kernel::take_ring) {
            self.own(group);
        }
    }

    pub fn strays(&self) -> StrayCounters {
        *self.protocol.strays()
    }

    pub fn children(&self, group: GroupId) -> Vec<MemberId> {
        self.protocol.children(group).collect()
    }

    /// Who has not taken its place yet.
    pub fn awaited(&self, group: GroupId) -> Vec<MemberId> {
        self.protocol.awaited(group)
    }

    /// Does all there is to do now.
    pub fn step(&mut self, shared: &Shared) {
        // What an application asks for is about what it has written or read before: a request that is here when the look at
        // what is written begins finds it there, and one that comes later waits for the next step.
        let requests = shared.take_requests();
        self.answer_bell();
        self.take_from_applications();
        for request in requests {
            self.request(request);
        }
        self.send_all();
        for _ in 0..BATCHES_MAX {
            let count = self.receive();
            if count == 0 {
                break;
            }
            self.send_all();
            self.give_to_applications();
            if count < BATCH {
                break;
            }
        }
        self.give_to_applications();
        if let Some(kernel) = &mut self.kernel {
            kernel.look_after_hooks(clock::now(), &mut self.protocol);
            kernel.lend(&mut self.protocol);
        }
    }

    fn request(&mut self, request: Request) {
        let now = clock::now();
        let outcome = match request {
            Request::Input(input) => {
                if let Some(group) = input.group() {
                    self.own(group);
                }
                self.protocol.handle(now, input).map(|_| ())
            }
            Request::Enter { channel, input, side } => match self.protocol.handle(now, input) {
                Ok(_) => {
                    self.groups.insert(channel.group, Joint { channel, side, consumed: Sequence(0) });
                    Ok(())
                }
                Err(refused) => {
                    if !self.groups.contains_key(&channel.group) {
                        self.forget(channel.group);
                    }
                    channel.refuse(refused);
                    Ok(())
                }
            },
        };
        // The group may have ended before the request came.
        if let Err(refused) = outcome
            && !matches!(refused, Refused::UnknownGroup(_))
        {
            tracing::warn!(%refused, "a request of the application");
        }
    }

    /// Takes over what applications have written or read.
    fn take_from_applications(&mut self) {
        let now = clock::now();
        for (&group, Joint { channel, side, consumed }) in &mut self.groups {
            if let Some(kernel) = self.kernel.as_mut().filter(|kernel| kernel.has(group)) {
                if !channel.has_news() || !side.as_ref().is_some_and(|side| side.has_much(*consumed)) {
                    continue;
                }
                kernel.take(group, &mut self.protocol);
            }
            match side {
                Some(Side::Reader(reader)) if channel.take_news() => {
                    let Some((_, next)) = self.protocol.readable(group) else { continue };
                    for packet in next.until(reader.written()) {
                        let piece = reader.piece(packet);
                        if let Err(refused) = self.protocol.handle(now, Input::Queue { group, piece }) {
                            tracing::warn!(%refused, "a packet of the application");
                            break;
                        }
                    }
                }
                Some(Side::Writer(writer)) if channel.take_news() => {
                    *consumed = writer.read();
                    let _ = self.protocol.handle(now, Input::Consumed { group, upto: *consumed });
                }
                _ => {}
            }
        }
    }

    /// Takes in a batch of datagrams; says how many arrivals there were.
    fn receive(&mut self) -> usize {
        let count = match self.datagrams.receive() {
            Ok(count) => count,
            Err(error) => {
                tracing::warn!(%error, "datagrams cannot be received");
                return 0;
            }
        };
        let now = clock::now();
        for arrival in 0..count {
            for part in 0..self.datagrams.parts(arrival) {
                let Some((from, bytes)) = self.datagrams.received(arrival, part) else { continue };
                if let Some(kernel) = &mut self.kernel {
                    if let Some(group) = Program::read_waking(bytes) {
                        self.groups.get(&group).inspect(|joint| joint.channel.notice.ring());
                        continue;
                    }
                    if let Ok(view) = View::new(bytes) {
                        kernel.take(view.group(), &mut self.protocol);
                    }
                }
                let stored = self.protocol.handle(now, Input::Datagram { from, bytes });
                if let Ok(Some(store)) = stored
                    && let Some(Side::Writer(writer)) =
                        self.groups.get_mut(&store.group).and_then(|joint| joint.side.as_mut())
                {
                    writer.put(store.packet, store.payload);
                }
                // A place in the tree needs memory before the next datagram comes.
                self.take_events();
            }
        }
        count
    }

    /// Sends all that is to be sent now, and sees to it that it wakes for what comes next.
    fn send_all(&mut self) {
        let now = clock::now();
        while let Some(group) = self.protocol.due(now) {
            self.own(group);
        }
        let deadline = loop {
            match self.protocol.poll(now) {
                Output::Wait(deadline) => break deadline,
                Output::Transmit(transmit) => self.add(transmit),
            }
            if self.datagrams.is_full() {
                self.flush();
            }
        };
        self.flush();
        self.take_events();
        self.wake_at(now, deadline);
    }

    fn add(&mut self, Transmit { to, header, payload }: Transmit) {
        match payload {
            Source::Bytes(bytes) => self.datagrams.add(to, &header, bytes),
            Source::Slot { group, slot, length } => {
                let address = match self.groups.get(&group).and_then(|joint| joint.side.as_ref()) {
                    Some(Side::Writer(writer)) => writer.address(slot),
                    Some(Side::Reader(reader)) => reader.address(slot),
                    None => return,
                };
                // SAFETY: the protocol names slots of packets that have not left them. At a member the engine alone writes
                // slots, and does so in `receive`, before which every batch is sent. At the root such slots are the
                // reader's, which the engine is, and it gives them back only in `give_to_applications`, also later.
                unsafe { self.datagrams.add_from(to, &header, address, length as usize) };
            }
        }
    }

    fn flush(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.post(&self.protocol);
        }
        if let Err(error) = self.datagrams.send() {
            if error.raw_os_error() == Some(libc::EMSGSIZE) {
                for joint in self.groups.values() {
                    joint.channel.does_not_fit();
                }
            }
            tracing::debug!(%error, "a datagram cannot be sent");
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.protocol.take_event() {
            let (Event::Placed { group, .. }
            | Event::Ready { group }
            | Event::Joined { group, .. }
            | Event::Lost { group, .. }
            | Event::Ended { group, .. }) = event;
            if let Event::Placed { member, start, slots, payload_bytes_max, offload, .. } = event {
                self.place(group, member, RingTerms { slots, payload_bytes_max, start, offload });
                continue;
            }
            let Some(Joint { channel, .. }) = self.groups.get_mut(&group) else { continue };
            match event {
                Event::Placed { .. } => {}
                Event::Ready { .. } => channel.ready(),
                Event::Joined { member, .. } => channel.joined(member),
                Event::Lost { member, loss, .. } => channel.lost(member, loss),
                Event::Ended { ending, .. } => {
                    channel.end(ending);
                    self.forget(group);
                }
            }
        }
    }

    /// A member has its place, and gets its slots.
    fn place(&mut self, group: GroupId, member: MemberId, terms: RingTerms) {
        if !self.groups.contains_key(&group) {
            return;
        }
        self.forget(group);
        let (writer, reader) = self.make_ring(group, terms);
        if let Some(joint) = self.groups.get_mut(&group) {
            joint.consumed = terms.start;
            if let Some(memory) = writer.kernel_memory() {
                joint.channel.notice.watch_kernel(memory.clone());
            }
            joint.side = Some(Side::Writer(writer));
            let for_application = Mutex::new(Some(Side::Reader(reader)));
            joint.channel.place(Placed { side: for_application, member: member.0, offload: terms.offload });
        }
    }

    /// Shows applications what has come, and what there is room for.
    fn give_to_applications(&mut self) {
        for (&group, Joint { channel, side, .. }) in &mut self.groups {
            // What the kernel's packet path has is shown by it.
            if self.kernel.as_ref().is_some_and(|kernel| kernel.has(group)) {
                continue;
            }
            match side {
                Some(Side::Reader(reader)) => {
                    if let Some(freed) =
                        self.protocol.freed(group).filter(|&freed| reader.read().is_before(freed))
                    {
                        reader.give_back(freed.min(reader.written()));
                        channel.notice.ring();
                    }
                }
                Some(Side::Writer(writer)) => {
                    let Some((_, end)) = self.protocol.readable(group) else { continue };
                    if writer.written() != end {
                        // Whoever waits for a message is woken when it is whole, or so long that room has to be made.
                        let mut is_worth_it = end.distance_from(writer.read()) as u32 >= writer.slots() / 4;
                        for packet in writer.written().until(end) {
                            if let Some(piece) = self.protocol.piece(group, packet) {
                                writer.describe(packet, *piece);
                                is_worth_it |= piece.is_last();
                            }
                        }
                        writer.give(end);
                        if is_worth_it {
                            channel.notice.ring();
                        }
                    }
                    if self.protocol.is_closed(group) {
                        channel.close();
                    }
                }
                None => {}
            }
        }
        let protocol = &self.protocol;
        self.groups.retain(|&group, joint| !joint.channel.has_ended() || protocol.has(group));
    }

    /// Sets the timer, if what comes next comes before what it is set to.
    fn wake_at(&mut self, now: Nanoseconds, deadline: Option<Nanoseconds>) {
        let Some(deadline) = deadline else { return };
        if self.armed.is_some_and(|armed| now < armed && armed <= deadline) {
            return;
        }
        let span = deadline.since(now).0.max(1);
        let value =
            Timespec { tv_sec: (span / 1_000_000_000) as i64, tv_nsec: (span % 1_000_000_000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        if let Err(error) = rustix::time::timerfd_settime(&*self.timer, TimerfdTimerFlags::empty(), &once) {
            tracing::error!(error = %io::Error::from(error), "the timer cannot be set");
        }
        self.armed = Some(deadline);
    }
}
