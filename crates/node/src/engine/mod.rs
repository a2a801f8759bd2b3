//! The user engine: a thread that plays the NIC, with the protocol, a socket and the groups' slots.
//!
//! Whoever holds the engine drives it: its own thread when something comes or a time is over, and an application's thread that
//! has just given it something to do, or that waits for something to come. So neither what is sent nor what is received waits
//! for another thread to wake.

#![expect(unsafe_code, reason = "the kernel reads packets where they lie")]

mod shared;
mod stop;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec};
use treecast_proto::{
    Event, GroupCounters, GroupId, Input, MemberId, Nanoseconds, Output, Protocol, Refused, Source,
    StrayCounters, Transmit,
};

use crate::NodeSettings;
use crate::channel::{Channel, Placed, Side};
use crate::datagrams::{BATCH, Datagrams};
use crate::ring::ring;

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
    origin: Instant,
    groups: BTreeMap<GroupId, Joint>,
    timer: Arc<OwnedFd>,
    armed: Option<Nanoseconds>,
}

/// A group here: the node's side of the ring, and what leads to the application.
#[derive(Debug)]
struct Joint {
    channel: Arc<Channel>,
    side: Option<Side>,
}

/// A step takes in so many batches at most before others may hold the engine.
const BATCHES_MAX: usize = 16;

impl Engine {
    fn new(settings: &NodeSettings, datagrams: Datagrams, timer: Arc<OwnedFd>) -> Self {
        Self {
            protocol: Protocol::new(settings.protocol.clone()),
            datagrams,
            origin: Instant::now(),
            groups: BTreeMap::new(),
            timer,
            armed: None,
        }
    }

    fn now(&self) -> Nanoseconds {
        Nanoseconds(self.origin.elapsed().as_nanos() as u64)
    }

    pub fn counters(&self, group: GroupId) -> Option<GroupCounters> {
        self.protocol.counters(group).copied()
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
    }

    fn request(&mut self, request: Request) {
        let now = self.now();
        let outcome = match request {
            Request::Input(input) => self.protocol.handle(now, input).map(|_| ()),
            Request::Enter { channel, input, side } => match self.protocol.handle(now, input) {
                Ok(_) => {
                    self.groups.insert(channel.group, Joint { channel, side });
                    Ok(())
                }
                Err(refused) => {
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
        let now = self.now();
        for (&group, Joint { channel, side }) in &self.groups {
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
                    let _ = self.protocol.handle(now, Input::Consumed { group, upto: writer.read() });
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
        let now = self.now();
        for arrival in 0..count {
            for part in 0..self.datagrams.parts(arrival) {
                let Some((from, bytes)) = self.datagrams.received(arrival, part) else { continue };
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
        let now = self.now();
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
            let Some(Joint { channel, side }) = self.groups.get_mut(&group) else { continue };
            match event {
                Event::Placed { member, start, slots, payload_bytes_max, offload, .. } => {
                    let (writer, reader) = ring(slots, usize::from(payload_bytes_max), start);
                    *side = Some(Side::Writer(writer));
                    let for_application = Mutex::new(Some(Side::Reader(reader)));
                    channel.place(Placed { side: for_application, member: member.0, offload });
                }
                Event::Ready { .. } => channel.ready(),
                Event::Joined { member, .. } => channel.joined(member),
                Event::Lost { member, loss, .. } => channel.lost(member, loss),
                Event::Ended { ending, .. } => channel.end(ending),
            }
        }
    }

    /// Shows applications what has come, and what there is room for.
    fn give_to_applications(&mut self) {
        for (&group, Joint { channel, side }) in &mut self.groups {
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
