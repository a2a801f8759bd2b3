//! The engine: the protocol, with a socket, a timer, and the groups' rings.
//!
//! The thread that holds the engine's lock drives it: the engine's own thread for datagrams and
//! timeouts; an application's thread that has just sent, or that waits and polls. So neither
//! sending nor receiving waits until another thread has woken.

#![expect(unsafe_code, reason = "the kernel reads packets in place")]

pub mod audit;
pub mod backend;
mod background;
pub(crate) mod charge;
mod core;
pub mod enter;
mod fast_path;
mod group_entry;
mod group_set;
mod hand_off;
mod handle;
mod kernel;
pub mod lent_message;
mod multicast;
mod owners;
mod placing;
pub mod query;
mod rings;
pub mod root_socket;
mod status;
mod status_server;
mod stop;
mod streams;
pub mod thread;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec};
use treecast_ebpf::{HookTrouble, KernelGroup};
use treecast_proto::{
    AbortReason, Contribution, GroupId, Input, Nanoseconds, Output, StrayCounters, TURN_MAX, Transmit,
    TransmitPayload,
};

use self::core::Core;
use crate::datagrams::{Datagrams, Lane, RECEIVE_BATCH};
use crate::settings::NodeSettings;
use crate::settings::stream_settings::StreamSettings;
use crate::status::GroupDocument;
use crate::streams::{Read, Streams};

use fast_path::FastPath;
use handle::Look;
pub use handle::{EngineHandle, Happened};
use kernel::HookCheck;
use multicast::BatchData;
use query::{Answer, Query};
use rings::RingMaker;
use root_socket::RootSocket;
use treecast_shm::clock;
use treecast_shm::progress::ProgressList;
use treecast_shm::ring::RingReader;
use treecast_shm::shared_group::{RingSide, SharedGroup};
use treecast_shm::waker::Waker;

/// A request of an application. Frequent operations go through the ring instead.
#[derive(Debug)]
pub(crate) enum Request {
    Input(Input<'static>),
    /// End a group whose application has exited.
    End(GroupId, AbortReason),
    /// Take part in a group; at its root with the ring.
    Enter {
        shared_group: Arc<SharedGroup>,
        input: Input<'static>,
        stream_settings: StreamSettings,
        root_ring: Option<Box<RootRing>>,
    },
}

/// The node's side of a root's ring.
#[derive(Debug)]
pub(crate) struct RootRing {
    pub reader: RingReader,
    pub kernel: Option<KernelRoot>,
}

/// A root's group in the kernel's packet path.
#[derive(Debug)]
pub(crate) struct KernelRoot {
    pub group: KernelGroup,
    /// Where the kernel's packet path sends: the cookie of the application's socket, whose
    /// datagrams are the root's packets, and the engine's copy of it, for delegated packets.
    pub socket: Option<(u64, RootSocket)>,
}

impl Request {
    /// The existing group that the request is about.
    fn group(&self) -> Option<GroupId> {
        match self {
            Self::Input(input) => input.group(),
            Self::End(group, _) => Some(*group),
            Self::Enter { .. } => None,
        }
    }
}

/// The engine of a node.
#[derive(Debug)]
pub(crate) struct Engine {
    core: Core,
    datagrams: Datagrams,
    timer: Arc<OwnedFd>,
    /// The time to which the timer is set.
    timer_at: Option<Nanoseconds>,
    batch_data: BatchData,
    streams: Streams,
    /// How many steps in a row have dealt with one stream or one datagram only.
    short_steps: u32,
}

/// Whether a step has done everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    /// There is more to do than one step does.
    More,
}

impl Progress {
    /// What two parts of a step make together.
    fn and(self, other: Self) -> Self {
        if self == Self::Done { other } else { self }
    }
}

/// The most steps in a row that deal with one stream or one datagram only: other groups may have
/// data too.
const SHORT_STEPS_MAX: u32 = 16;

/// The most batches of datagrams that a step receives from each lane, so that other threads get the
/// engine.
const BATCHES_PER_STEP_MAX: usize = 16;

/// The most messages that are received from a lane before the other lanes have their turn, while
/// several owners have groups: each has one or several datagrams, 64 KB at most, which take some
/// tens of microseconds.
const SHARED_MESSAGES_MAX: usize = 1;

/// The same where owners may come, and one has groups.
const LONE_MESSAGES_MAX: usize = 2;

/// The most that the datagrams of a step may cost while several owners have groups: a turn of one
/// of them. So what arrives for others waits for less than a tenth of a millisecond.
const SHARED_TRANSMITS_MAX: u32 = TURN_MAX;

/// The same where owners may come, and one has groups: about a millisecond.
const LONE_TRANSMITS_MAX: u32 = 8 * TURN_MAX;

impl Engine {
    fn new(
        settings: &NodeSettings,
        datagrams: Datagrams,
        streams: Streams,
        fast_path: FastPath,
        (timer, waker): (Arc<OwnedFd>, Arc<Waker>),
        progress: Arc<ProgressList>,
    ) -> Self {
        let core = Core::new(&settings.protocol, fast_path, waker, progress, datagrams.lanes());
        Self {
            core,
            datagrams,
            timer,
            timer_at: None,
            batch_data: BatchData::default(),
            streams,
            short_steps: 0,
        }
    }

    pub fn answer(&self, query: Query) -> Answer {
        self.core.answer(query)
    }

    pub fn troubles(&mut self) -> Vec<HookTrouble> {
        self.core.troubles()
    }

    /// Makes rings of groups, without the engine.
    pub const fn rings(&self) -> &RingMaker {
        self.core.rings()
    }

    /// Whether there is a group with this number that has not ended.
    pub fn knows(&self, group: GroupId) -> bool {
        self.core.groups.get(&group).is_some_and(|entry| !entry.shared_group.has_ended())
    }

    /// How many groups ended because of invalid values in shared memory.
    pub const fn invalid(&self) -> u64 {
        self.core.invalid
    }

    /// How many groups of clients ended because they exceeded their users' budgets.
    pub const fn over_budget(&self) -> u64 {
        self.core.over_budget
    }

    /// Its groups, or those of one user of a daemon, for people to look at.
    pub fn status(&self, only_of: Option<u32>) -> Vec<GroupDocument> {
        self.core.status(only_of)
    }

    /// The counters of datagrams that belong to no group.
    pub const fn strays(&self) -> StrayCounters {
        *self.core.protocol.strays()
    }

    /// Does everything that is due, up to a bound: other threads may wait for the engine.
    pub fn step(&mut self, handle: &EngineHandle, look: Look) -> Progress {
        // Whatever else is ready is so at the next step too.
        if self.short_steps < SHORT_STEPS_MAX {
            self.short_steps += 1;
            if look.is_streams_only()
                && let Some(progress) = self.forward_expected()
            {
                return progress;
            }
            if look.is_datagrams_only() && self.take_wake_datagram() {
                return Progress::Done;
            }
        }
        self.short_steps = 0;
        // A request is about what the application has written or read before. So requests are taken
        // first: what comes before one of them is visible to `take_progress`, and a later one waits
        // for the next step.
        let requests = handle.take_requests();
        let core = &mut self.core;
        core.take_rings();
        core.reclaim_woken();
        let now = clock::now();
        core.check_hooks(HookCheck::WhenDue(now));
        core.check_multicast(now, &self.datagrams);
        core.audit.report_suppressed(now);
        for group in requests.iter().filter_map(Request::group) {
            core.end_delegation(group);
        }
        core.send_delegated();
        let taken = core.take_progress();
        core.end_invalid();
        for request in requests {
            core.handle_request(request);
        }
        self.steer();
        self.tend_streams();
        let mut progress = taken.and(self.send_some());
        if look.datagrams || look.attempts && !self.core.has_only_streams() {
            progress = progress.and(self.receive_some());
        }
        if look.streams {
            progress = progress.and(self.receive_streams());
        }
        self.core.give_progress();
        self.core.hand_off();
        if self.core.can_send_delegated() { Progress::More } else { progress }
    }

    /// The only process of this node contributes to an all-reduce: to the fast path, if that has
    /// the group and combines such values. Returns whether it has.
    pub fn contribute_to_fast_path(&mut self, group: GroupId, contribution: &Contribution) -> bool {
        let now = clock::now();
        let core = &mut self.core;
        let Some(next) = core.fast_path.next(group) else { return false };
        let Ok(transmit) = core.protocol.contribute_to_fast_path(now, group, contribution, next) else {
            return false;
        };
        core.handle_results();
        let timeout = core.protocol.timeout();
        if let Some(transmit) = transmit {
            self.transmit(now, transmit);
            if self.flush() {
                self.send_some();
            }
        }
        self.set_timer(now, [timeout, self.stream_timeout()].into_iter().flatten().min());
        true
    }

    /// Whether all that is waited for arrives in one way: with one group, at a leaf on the stream
    /// of its parent, and at the root in datagrams unless children have to take more first.
    pub fn has_one_way_in(&self) -> bool {
        self.core.groups.len() == 1
            && self.core.has_only_streams()
            && !self.core.fast_path.is_there()
            && !self.core.owners.have_lanes()
            && (self.streams.only_sends_freely() || self.streams.has_no_children())
    }

    /// Reads where [`Engine::has_one_way_in`] says, without knowing of an event.
    pub fn attempt(&mut self) -> Progress {
        let Some((stream, group)) = self.expected_parent() else { return self.receive_some() };
        match self.read_stream(stream, group) {
            // A step opens the stream again.
            (Read::Ended, _) => Progress::More,
            (_, progress) => progress,
        }
    }

    /// Steers the datagrams of each owner's groups to its lane.
    fn steer(&mut self) {
        if self.core.owners.take_change()
            && let Err(error) = self.datagrams.steer(self.core.lanes())
        {
            tracing::warn!(%error, "cannot steer datagrams: users share a receive buffer");
        }
    }

    /// Receives a bounded number of datagrams, of all lanes in turn, and sends what follows from
    /// them.
    fn receive_some(&mut self) -> Progress {
        let mut progress = Progress::Done;
        let messages_max = match (self.core.owners.have_lanes(), self.core.owners.are_several()) {
            (false, _) => RECEIVE_BATCH,
            (true, false) => LONE_MESSAGES_MAX,
            (true, true) => SHARED_MESSAGES_MAX,
        };
        for _ in 0..BATCHES_PER_STEP_MAX {
            let mut is_full = false;
            // Data by multicast first: a probe that comes later would find it missing. All groups
            // of a lane take one turn together.
            let multicast = self.datagrams.ready_multicast();
            let lanes = if multicast.is_empty() { 0 } else { self.datagrams.lanes() };
            let mut left = vec![messages_max; lanes];
            let multicast = multicast.into_iter().map(|(number, lane)| (Lane::Multicast(number), lane));
            let own = (0..self.core.owners.lanes_used()).map(|lane| (Lane::Own(lane), lane));
            for (from, lane) in multicast.chain(own) {
                let is_shared = matches!(from, Lane::Multicast(_)) && self.core.owners.have_lanes();
                let most = if is_shared { left[lane] } else { messages_max };
                let count = if most > 0 { self.receive(from, most) } else { 0 };
                if is_shared {
                    left[lane] -= count;
                }
                if count > 0 {
                    progress = progress.and(self.send_some());
                    self.core.give_progress();
                }
                is_full |= count == most;
            }
            if !is_full {
                break;
            }
        }
        progress
    }

    /// Receives a datagram, and returns whether it is one by which the kernel's packet path wakes a
    /// reader. What follows from any other one is sent.
    ///
    /// Most wake-ups of a member whose group the packet path runs are for this, and nothing else is
    /// looked at then.
    fn take_wake_datagram(&mut self) -> bool {
        // Data by multicast comes first, and lanes take turns.
        let is_usual = self.core.fast_path.is_there()
            && !self.core.owners.have_lanes()
            && !self.datagrams.receives_multicast();
        if !is_usual {
            return false;
        }
        let count = self.receive_batch(Lane::Own(0), 1);
        if count == 0 || self.handle_batch(count) {
            return count > 0;
        }
        self.send_some();
        // As after each batch: a group that has ended at the next one has shown all packets.
        self.core.give_progress();
        false
    }

    /// Receives a batch of datagrams of a lane and handles them; returns the number of messages of
    /// the socket, each of one or several datagrams.
    fn receive(&mut self, lane: Lane, messages_max: usize) -> usize {
        let count = self.receive_batch(lane, messages_max);
        self.handle_batch(count);
        count
    }

    fn receive_batch(&mut self, lane: Lane, messages_max: usize) -> usize {
        self.datagrams.receive(lane, messages_max).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot receive datagrams");
            0
        })
    }

    /// Handles the messages of the last batch; returns whether all were datagrams that wake
    /// readers.
    fn handle_batch(&mut self, count: usize) -> bool {
        let Self { core, datagrams, .. } = self;
        let now = clock::now();
        let mut have_only_woken = core.fast_path.is_there();
        for message in 0..count {
            let Some((from, segments)) = datagrams.message(message) else { continue };
            for bytes in segments {
                let mut input = Input::Datagram { from, bytes };
                if let Some(kernel) = core.fast_path.kernel() {
                    // The protocol counts a forged one: no packet has its version.
                    if let Some(group) = kernel.read_wake_datagram(bytes) {
                        if let Some(entry) = core.groups.get(&group) {
                            entry.shared_group.wake_always();
                        }
                        continue;
                    }
                    have_only_woken = false;
                    let datagram = core.protocol.check(bytes);
                    if let Some(group) = core.protocol.group_to_reclaim(&datagram) {
                        if core.take_contributions(group, from, &datagram) {
                            core.handle_results();
                            continue;
                        }
                        core.reclaim(group);
                    }
                    if core.awaits_ring(bytes) {
                        continue;
                    }
                    input = Input::Checked { from, datagram };
                }
                // A datagram is never refused.
                let _ = core.protocol.handle(now, input);
                // Packets are sent after the whole batch; a member that is placed needs its ring
                // before the next datagram.
                while let Some(output) = core.protocol.poll_local() {
                    match output {
                        Output::Store(store) => {
                            core.note_datagram(store.group);
                            core.store(&store, &bytes[store.payload.clone()]);
                        }
                        Output::Stray(stray) => core.audit.on_stray(now, from, stray),
                        Output::Event(event) => core.handle_event(&event),
                        Output::Transmit(_) | Output::Reclaim(_) | Output::Timeout(_) => {}
                    }
                }
            }
        }
        have_only_woken
    }

    /// Whether there are multicast addresses at which this node receives.
    pub fn receives_multicast(&self) -> bool {
        self.datagrams.receives_multicast()
    }

    /// Receives at the multicast addresses of the groups, before the root learns that they are
    /// here.
    fn apply_multicast(&mut self) {
        let Self { core: Core { multicast, owners, .. }, datagrams, .. } = self;
        if !multicast.take_change() {
            return;
        }
        if let Err(error) = datagrams.receive_at(&multicast.receptions(|owner| owners.lane(owner))) {
            tracing::warn!(%error, "cannot receive by multicast: parents send to this node");
        }
        datagrams.keep_multicast(|address| multicast.is_sent_to(address));
    }

    /// Chooses the interface by which a root sends to its multicast address: that by which it
    /// reaches a child.
    fn choose_multicast_interface(&mut self, address: SocketAddr, group: GroupId) {
        let neighbours = self.core.protocol.neighbours(group);
        let Some(child) = neighbours.and_then(|(_, children)| children.first().copied()) else { return };
        if let Err(error) = self.datagrams.send_multicast(address, child) {
            tracing::warn!(%error, "cannot choose the interface for multicast: the system does");
        }
    }

    /// Sends what is due, and sets the timer. Where owners may share the engine, the number of
    /// datagrams is bounded.
    fn send_some(&mut self) -> Progress {
        self.apply_multicast();
        let now = clock::now();
        let transmits_max = match (self.core.owners.have_lanes(), self.core.owners.are_several()) {
            (false, _) => u32::MAX,
            (true, false) => LONE_TRANSMITS_MAX,
            (true, true) => SHARED_TRANSMITS_MAX,
        };
        let mut transmits = 0;
        let timeout = loop {
            if transmits >= transmits_max {
                self.flush();
                return Progress::More;
            }
            match self.core.protocol.poll(now) {
                Output::Timeout(timeout) => {
                    self.core.hand_off_senders(self.batch_data.senders());
                    if !self.flush() {
                        break timeout;
                    }
                }
                Output::Transmit(transmit) => {
                    transmits += transmit.cost();
                    self.transmit(now, transmit);
                }
                Output::Event(event) => self.core.handle_event(&event),
                Output::Reclaim(group) => self.core.reclaim(group),
                Output::Store(_) | Output::Stray(_) => {}
            }
            if self.datagrams.is_full() {
                self.flush();
            }
        };
        let timeout = [timeout, self.stream_timeout()].into_iter().flatten().min();
        self.set_timer(now, timeout);
        Progress::Done
    }

    fn transmit(&mut self, now: Nanoseconds, transmit: Transmit) {
        if let Some(child) = transmit.stream_of {
            return self.queue_on_stream(now, child, &transmit);
        }
        let Transmit { group, to, header, payload, .. } = transmit;
        if to.ip().is_multicast() && !self.datagrams.sends_multicast(to) {
            self.choose_multicast_interface(to, group);
        }
        match payload {
            TransmitPayload::Bytes(bytes) => self.datagrams.add(to, &header, bytes),
            TransmitPayload::Slot { slot, length, .. } => {
                self.batch_data.add(group, to);
                let entry = self.core.groups.get(&group);
                let address = match entry.and_then(|entry| entry.side.as_ref()) {
                    Some(RingSide::Writer(writer)) => writer.address(slot),
                    Some(RingSide::Reader(reader)) => reader.address(slot),
                    None => return,
                };
                // SAFETY: the protocol names slots of packets that it still holds. At a member only
                // the engine writes slots, in `receive`, before which every batch is sent. At the
                // root the reader owns such slots; the reader is the engine, which releases them in
                // `give_progress`, also after the batch is sent, or the kernel's packet path
                // ([`BatchData`]).
                unsafe { self.datagrams.add_from(to, &header, address, length as usize) };
            }
        }
    }

    /// Sends what is batched and queued. Returns whether a child's stream takes more now than the
    /// protocol knew: it has to be polled again.
    fn flush(&mut self) -> bool {
        let mut takes_more = self.write_streams();
        // Acknowledgments are datagrams, and follow.
        self.core.publish();
        self.core.fast_path.post_neighbours(&self.core.protocol);
        self.batch_data.clear();
        if let Err(error) = self.datagrams.send() {
            for &group in self.datagrams.too_long() {
                if self.core.by_both.contains(group) {
                    let _ = self.core.protocol.handle(clock::now(), Input::DatagramsTooLong { group });
                    takes_more = true;
                } else if let Some(entry) = self.core.groups.get(&group) {
                    entry.shared_group.set_datagrams_too_long();
                }
            }
            tracing::debug!(%error, "cannot send a datagram");
        }
        takes_more
    }

    /// Sets the timer, unless it fires before the deadline anyway.
    fn set_timer(&mut self, now: Nanoseconds, deadline: Option<Nanoseconds>) {
        let Some(deadline) = deadline else { return };
        if self.timer_at.is_some_and(|timer_at| now < timer_at && timer_at <= deadline) {
            return;
        }
        let span = deadline.since(now).0.max(1);
        let value =
            Timespec { tv_sec: (span / 1_000_000_000) as i64, tv_nsec: (span % 1_000_000_000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        if let Err(error) = rustix::time::timerfd_settime(&*self.timer, TimerfdTimerFlags::empty(), &once) {
            tracing::error!(error = %io::Error::from(error), "cannot set the timer");
        }
        self.timer_at = Some(deadline);
    }
}
