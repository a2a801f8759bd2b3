//! The user engine: a thread that plays the NIC, with the protocol, a socket and the groups' slots.
//!
//! Whoever holds the engine drives it: its own thread when something comes or a time is over, and an application's thread that
//! has just given it something to do, or that waits for something to come. So neither what is sent nor what is received waits
//! for another thread to wake.

#![expect(unsafe_code, reason = "the kernel reads packets where they lie")]

pub(crate) mod delegation;
pub(crate) mod enter;
mod handle;
mod joints;
mod kernel;
pub(crate) mod root_socket;
mod stop;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec};
use treecast_ebpf::{HookTrouble, Program};
use treecast_proto::{
    Event, GroupCounters, GroupId, Input, MemberId, Nanoseconds, Offload, Output, Protocol, Refused,
    Sequence, Store, StrayCounters, Transmit, TransmitPayload,
};
use treecast_wire::View;

use crate::NodeSettings;
use crate::clock;
use crate::datagrams::{BATCH, Datagrams};
use crate::memory::ring::{RingReader, RingWriter, new_ring, new_shared_ring};
use crate::memory::shared_group::{Channel, Placed, Side};

pub(crate) use handle::Shared;
use joints::{Joint, Joints, end};
pub(crate) use kernel::Kernel;
use kernel::Look;

/// What an application asks for. What is asked for often goes by the ring instead.
#[derive(Debug)]
pub(crate) enum Request {
    Input(Input<'static>),
    /// End a group whose application is gone.
    End(GroupId),
    /// Take part in a group; at its root with the node's side of the ring.
    Enter {
        channel: Arc<Channel>,
        input: Input<'static>,
        side: Option<Side>,
    },
}

impl Request {
    /// The group of which something is asked that is there already.
    fn group(&self) -> Option<GroupId> {
        match self {
            Self::Input(input) => input.group(),
            Self::End(group) => Some(*group),
            Self::Enter { .. } => None,
        }
    }
}

/// The protocol on its socket.
#[derive(Debug)]
pub(crate) struct Engine {
    protocol: Protocol,
    datagrams: Datagrams,
    kernel: Option<Kernel>,
    joints: Joints,
    timer: Arc<OwnedFd>,
    armed: Option<Nanoseconds>,
}

/// What the slots of a group are to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingTerms {
    pub slots: u32,
    pub payload_bytes_max: u16,
    pub start: Sequence,
    pub offload: Offload,
}

/// A group's slots, and whether they are in the tables of the kernel's packet path.
#[derive(Debug)]
pub(crate) struct NewRing {
    pub writer: RingWriter,
    pub reader: RingReader,
    pub is_kernels: bool,
}

/// Whether a step has done all there was to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    /// Applications have left more to be sent on than one step does.
    More,
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
            joints: Joints::default(),
            timer,
            armed: None,
        }
    }

    pub fn counters(&self, group: GroupId) -> Option<GroupCounters> {
        let mut counters = self.protocol.counters(group).copied()?;
        if let Some(kernel) = &self.kernel {
            counters = kernel.group_counters(group).unwrap_or(counters);
        }
        Some(counters)
    }

    /// What is wrong with the kernel's packet path now; empty also where it has no part.
    pub fn troubles(&mut self) -> Vec<HookTrouble> {
        self.look_after_hooks(Look::Now);
        self.kernel.as_ref().map_or_else(Vec::new, |kernel| kernel.troubles().to_vec())
    }

    /// Takes all groups back if packets no longer pass the program.
    fn look_after_hooks(&mut self, look: Look) {
        if self.kernel.as_mut().is_some_and(|kernel| kernel.look_after_hooks(look)) {
            self.own_all();
            self.kernel.iter_mut().for_each(Kernel::forget_paths);
        }
    }

    /// What the kernel's packet path counts of a group that is in its tables.
    pub fn kernel_counters(&self, group: GroupId) -> Option<treecast_ebpf::KernelCounters> {
        self.kernel.as_ref()?.counters(group)
    }

    /// Makes the slots of a group: in memory that the kernel's packet path shares, where that forwards, and in memory that the
    /// application's process is given, if it is another one.
    ///
    /// # Errors
    /// What an application in another process is told.
    pub fn make_ring(&mut self, channel: &Channel, terms: RingTerms) -> Result<NewRing, String> {
        let RingTerms { slots, payload_bytes_max, start, offload } = terms;
        let (group, stride) = (channel.group, usize::from(payload_bytes_max));
        if let Some(line) = &channel.line {
            line.take_room(terms)?;
        }
        // Of two groups of one number the second is refused when it is entered.
        let kernel = self.kernel.as_mut().filter(|kernel| offload == Offload::Nic && !kernel.knows(group));
        let is_shared = channel.line.is_some();
        let posted = kernel.map(|kernel| (kernel.add(group, slots, payload_bytes_max, is_shared), kernel));
        if let Some((Ok((memory, descriptors)), kernel)) = posted {
            if let Some((line, (slots, page))) = channel.line.as_ref().zip(descriptors) {
                kernel.set_wake_port(group, line.wake_port());
                line.share(&memory, terms, slots, page);
            }
            let (writer, reader) = new_shared_ring(memory, stride, start);
            return Ok(NewRing { writer, reader, is_kernels: true });
        }
        if let Some((Err(error), _)) = posted {
            tracing::warn!(%error, "user space runs group {group} alone");
        }
        let (writer, reader) = match &channel.line {
            Some(line) => new_shared_ring(line.share_memory(terms)?, stride, start),
            None => new_ring(slots, stride, start),
        };
        Ok(NewRing { writer, reader, is_kernels: false })
    }

    /// Whether there is a group of this number.
    pub fn knows(&self, group: GroupId) -> bool {
        self.joints.groups.contains_key(&group)
    }

    /// How many groups have been given up since what their applications had written cannot be.
    pub const fn invalid(&self) -> u64 {
        self.joints.invalid
    }

    /// Says which socket's datagrams are packets of a group's root; here they are sent on that the application leaves to the node.
    pub fn set_root_socket(&mut self, group: GroupId, cookie: u64, source: crate::engine::root_socket::Source) {
        if let Some(kernel) = &mut self.kernel {
            kernel.set_root_socket(group, cookie, source);
        }
    }

    /// Takes a group back from the kernel's packet path, if that has it: before anything of it is looked at or handled.
    fn own(&mut self, group: GroupId) {
        self.joints.take_back(&mut self.kernel, &mut self.protocol, group);
    }

    /// The kernel's packet path has nothing more to do with a group.
    pub fn forget(&mut self, group: GroupId) {
        if let Some(kernel) = &mut self.kernel {
            kernel.remove(group);
        }
    }

    fn own_all(&mut self) {
        let groups: Vec<GroupId> = self.joints.groups.keys().copied().collect();
        for group in groups {
            self.own(group);
        }
    }

    /// Takes back what the kernel's bell was rung for.
    fn answer_bell(&mut self) {
        while let Some(group) = self.kernel.as_mut().and_then(Kernel::take_wakeup) {
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

    /// Does all there is to do now, but for what takes longer: others may want the engine as well.
    pub fn step(&mut self, shared: &Shared) -> Progress {
        // What an application asks for is about what it has written or read before: a request that is here when the look at
        // what is written begins finds it there, and one that comes later waits for the next step.
        let requests = shared.take_requests();
        self.answer_bell();
        self.look_after_hooks(Look::WhenDue(clock::now()));
        for group in requests.iter().filter_map(Request::group) {
            self.joints.leave_nothing(group);
        }
        self.joints.send_on(&mut self.kernel, &self.protocol);
        self.take_from_applications();
        self.joints.give_up_nonsense(&mut self.kernel, &mut self.protocol);
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
            kernel.hand_off(&mut self.protocol);
        }
        if self.joints.is_anything_left(self.kernel.as_ref(), &self.protocol) {
            Progress::More
        } else {
            Progress::Done
        }
    }

    fn request(&mut self, request: Request) {
        let now = clock::now();
        let outcome = match request {
            Request::Input(input) => {
                if let Some(group) = input.group() {
                    self.own(group);
                }
                self.protocol.handle(now, input)
            }
            // What a client asks may come too late.
            Request::End(group) => {
                self.own(group);
                end(&mut self.protocol, group);
                Ok(())
            }
            Request::Enter { channel, input, side } => match self.protocol.handle(now, input) {
                Ok(_) => {
                    self.joints.groups.insert(channel.group, Joint::new(channel, side));
                    Ok(())
                }
                Err(refused) => {
                    if !self.joints.groups.contains_key(&channel.group) {
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
        while let Some(group) = self.find_lent_with_news() {
            self.own(group);
        }
        for (&group, joint) in &mut self.joints.groups {
            let Joint { channel, side, consumed, .. } = joint;
            if self.kernel.as_ref().is_some_and(|kernel| kernel.has(group)) {
                continue;
            }
            let Some(side) = side else { continue };
            let has_moved = channel.line.is_some() && side.has_moved(*consumed);
            if !channel.take_news() && !has_moved {
                continue;
            }
            match side {
                Side::Reader(reader) => {
                    let Some((_, next)) = self.protocol.readable(group) else { continue };
                    let mut is_possible = true;
                    for packet in next.until(reader.written()) {
                        let piece = reader.piece(packet);
                        if let Err(refused) = self.protocol.handle(now, Input::Queue { group, piece }) {
                            tracing::warn!(%refused, "a packet of the application");
                            is_possible = !matches!(refused, Refused::Piece { .. });
                            break;
                        }
                    }
                    let is_given_up = joint.give_up_nonsense(&mut self.protocol, is_possible);
                    self.joints.invalid += u64::from(is_given_up);
                }
                Side::Writer(writer) => {
                    *consumed = writer.read();
                    let _ = self.protocol.handle(now, Input::Consumed { group, upto: *consumed });
                }
            }
        }
    }

    /// A group that the kernel's packet path has, and whose application has done so much that the protocol is to know.
    fn find_lent_with_news(&self) -> Option<GroupId> {
        let kernel = self.kernel.as_ref()?;
        let has_much = |joint: &Joint| {
            joint.channel.has_news() && joint.side.as_ref().is_some_and(|side| side.has_much(joint.consumed))
        };
        let mut lent = self.joints.groups.iter().filter(|(group, _)| kernel.has(**group));
        lent.find(|(_, joint)| has_much(joint)).map(|(group, _)| *group)
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
                if self.kernel.is_some() {
                    if let Some(group) = Program::read_wake_datagram(bytes) {
                        self.joints.groups.get(&group).inspect(|joint| joint.channel.events.notify());
                        continue;
                    }
                    if let Ok(view) = View::new(bytes) {
                        self.joints.take_back(&mut self.kernel, &mut self.protocol, view.group());
                    }
                }
                // A datagram is never refused.
                let _ = self.protocol.handle(now, Input::Datagram { from, bytes });
                // What is sent is polled after the whole batch.
                let mut output = self.protocol.poll_local();
                if let Some(Output::Store(Store { group, packet, payload, .. })) = &output {
                    let joint = self.joints.groups.get_mut(group);
                    if let Some(Side::Writer(writer)) = joint.and_then(|joint| joint.side.as_mut()) {
                        writer.write(*packet, &bytes[payload.clone()]);
                    }
                    output = self.protocol.poll_local();
                }
                while let Some(Output::Event(event)) = output {
                    self.handle_event(event);
                    output = self.protocol.poll_local();
                }
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
        let timeout = loop {
            match self.protocol.poll(now) {
                Output::Timeout(timeout) => break timeout,
                Output::Transmit(transmit) => self.add(transmit),
                Output::Event(event) => self.handle_event(event),
                Output::Store(_) => {}
            }
            if self.datagrams.is_full() {
                self.flush();
            }
        };
        self.flush();
        self.wake_at(now, timeout);
    }

    fn add(&mut self, Transmit { to, header, payload }: Transmit) {
        match payload {
            TransmitPayload::Bytes(bytes) => self.datagrams.add(to, &header, bytes),
            TransmitPayload::Slot { group, slot, length } => {
                let address = match self.joints.groups.get(&group).and_then(|joint| joint.side.as_ref()) {
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
            kernel.post_neighbours(&self.protocol);
        }
        if let Err(error) = self.datagrams.send() {
            if error.raw_os_error() == Some(libc::EMSGSIZE) {
                for joint in self.joints.groups.values() {
                    joint.channel.does_not_fit();
                }
            }
            tracing::debug!(%error, "a datagram cannot be sent");
        }
    }

    fn handle_event(&mut self, event: Event) {
        if let Event::Placed { group, member, start, slots, payload_bytes_max, offload } = event {
            self.place(group, member, RingTerms { slots, payload_bytes_max, start, offload });
            return;
        }
        let (Event::Placed { group, .. }
        | Event::Ready { group }
        | Event::Joined { group, .. }
        | Event::MemberLost { group, .. }
        | Event::Ended { group, .. }) = event;
        let Some(Joint { channel, .. }) = self.joints.groups.get_mut(&group) else { return };
        match event {
            Event::Placed { .. } => {}
            Event::Ready { .. } => channel.ready(),
            Event::Joined { member, .. } => channel.joined(member),
            Event::MemberLost { member, loss, .. } => channel.lost(member, loss),
            Event::Ended { ending, .. } => {
                channel.end(ending);
                self.forget(group);
            }
        }
    }

    /// A member has its place, and gets its slots.
    fn place(&mut self, group: GroupId, member: MemberId, terms: RingTerms) {
        let Some(joint) = self.joints.groups.get(&group) else { return };
        let channel = Arc::clone(&joint.channel);
        self.forget(group);
        let (writer, reader) = match self.make_ring(&channel, terms) {
            Ok(NewRing { writer, reader, .. }) => (writer, reader),
            Err(why) => {
                tracing::warn!(%group, %why, "a client's group is given up");
                channel.break_off(&why);
                end(&mut self.protocol, group);
                return;
            }
        };
        if let Some(joint) = self.joints.groups.get_mut(&group) {
            joint.consumed = terms.start;
            if let Some(memory) = writer.shared_memory() {
                joint.channel.events.attach_kernel(memory.clone());
            }
            joint.side = Some(Side::Writer(writer));
            let for_application = Mutex::new(Some(Side::Reader(reader)));
            joint.channel.place(Placed { side: for_application, member: member.0, offload: terms.offload });
        }
    }

    /// Shows applications what has come, and what there is room for.
    fn give_to_applications(&mut self) {
        for (&group, Joint { channel, side, .. }) in &mut self.joints.groups {
            // What the kernel's packet path has is shown by it.
            if self.kernel.as_ref().is_some_and(|kernel| kernel.has(group)) {
                continue;
            }
            match side {
                Some(Side::Reader(reader)) => {
                    if let Some(freed) =
                        self.protocol.freed(group).filter(|&freed| reader.read().is_before(freed))
                    {
                        reader.release(freed.min(reader.written()));
                        channel.ring();
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
                        writer.publish(end);
                        if is_worth_it {
                            channel.ring();
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
        self.joints.groups.retain(|&group, joint| !joint.channel.has_ended() || protocol.has(group));
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
