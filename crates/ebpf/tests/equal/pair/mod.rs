//! Two nodes side by side that get the same inputs: the subject has the program, the reference has
//! the protocol alone.

#![expect(unsafe_code, reason = "payloads lie in memory that is shared with the kernel")]

mod application;
mod batch;
mod compare;
mod counts;
mod hand_off;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use treecast_ebpf::{SlotMemory, WakeReason};
use treecast_proto::{
    Authentication, Event, GroupId, Input, Integrity, Nanoseconds, Output, Piece, Protocol, Refused,
    Sequence, Settings, Step, Store, Trace, Transmit, TransmitPayload,
};
use treecast_wire::{Body, Data, Distribution, HEADER_BYTES, View};
use treecast_world::{Act, Fault, Node, Packet};

use super::frame::{self, Style};
use super::lab::{Lab, Sender, Verdict};
use super::session::has_wrong_crc;
use compare::equal;
use hand_off::Posted;

pub use counts::Counts;
pub use hand_off::reclaim;

/// The datagrams that were sent, by destination and group, in order.
#[derive(Default)]
struct Sent(BTreeMap<(SocketAddr, Option<GroupId>), Vec<Vec<u8>>>);

impl Sent {
    fn push(&mut self, to: SocketAddr, bytes: Vec<u8>) {
        let group = View::new(&bytes).ok().map(|view| view.group());
        self.0.entry((to, group)).or_default().push(bytes);
    }
}

/// How frames arrive, and how applications read.
#[derive(Debug, Clone, Copy)]
pub struct Behaviour {
    pub style: Style,
    /// Whether an application that has read only updates its page, and does not notify its node.
    pub reads_silently: bool,
    /// Whether the application sleeps whenever a packet arrives.
    pub sleeps: bool,
}

impl Behaviour {
    pub const DEFAULT: Self =
        Self { style: Style { hop_limit: 63, has_checksum: true }, reads_silently: false, sleeps: false };
}

/// The two nodes.
pub struct Pair<'a> {
    lab: &'a mut Lab,
    address: SocketAddr,
    behaviour: Behaviour,
    /// The protocol alone, and its next timeout.
    reference: Node,
    deadline: Option<Nanoseconds>,
    reference_events: VecDeque<Event>,
    /// The slow path of the node with the program, and its groups.
    subject: Protocol,
    subject_events: VecDeque<Event>,
    groups: BTreeMap<GroupId, Posted>,
    pub counts: Counts,
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        for posted in std::mem::take(&mut self.groups).into_values() {
            self.lab.remove_group(posted.kernel);
        }
    }
}

/// Replays the trace of a node with both.
pub fn replay(lab: &mut Lab, trace: &Trace, behaviour: Behaviour) -> Result<Counts, String> {
    let mut pair = Pair::new(lab, trace.address, trace.settings.clone(), behaviour);
    for (number, (now, step)) in trace.steps.iter().enumerate() {
        pair.step(*now, step).map_err(|what| format!("step {number}, at {now}, {}: {what}", brief(step)))?;
    }
    Ok(pair.counts)
}

impl<'a> Pair<'a> {
    pub fn new(lab: &'a mut Lab, address: SocketAddr, settings: Settings, behaviour: Behaviour) -> Self {
        lab.listen(address.port());
        lab.frames();
        Self {
            lab,
            address,
            behaviour,
            reference: Node::new(address, settings.clone()),
            deadline: None,
            reference_events: VecDeque::new(),
            subject: Protocol::new(settings),
            subject_events: VecDeque::new(),
            groups: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// The next timeout of the reference.
    pub const fn deadline(&self) -> Option<Nanoseconds> {
        self.deadline
    }

    /// The lab with the program.
    pub const fn lab(&mut self) -> &mut Lab {
        self.lab
    }

    /// The slots of a group of the node with the program.
    pub fn memory(&self, group: GroupId) -> &SlotMemory {
        self.groups[&group].kernel.memory()
    }

    /// The protocol alone.
    pub const fn reference(&self) -> &Protocol {
        self.reference.protocol()
    }

    pub fn step(&mut self, now: Nanoseconds, step: &Step) -> Result<(), String> {
        self.advance(now, matches!(step, Step::Request { input: Input::Timeout, .. }))?;
        match step {
            // Here all outputs are polled after each input.
            Step::Polled(_) => Ok(()),
            Step::Datagram { from, bytes } => self.receive(now, *from, &[bytes]),
            Step::Record { .. } | Step::Attach { .. } | Step::Reclaimed { .. } => {
                Err(format!("not of a node by datagrams without a fast path: {step:?}"))
            }
            Step::Request { input: Input::Queue { group, piece }, payload } => {
                self.queue(now, *group, piece, payload)
            }
            Step::Request { input: Input::Consumed { group, upto }, .. } => self.consumed(now, *group, *upto),
            Step::Request { input: Input::Contribute { group, process, contribution }, .. } => {
                self.contribute(now, *group, *process, contribution)
            }
            Step::Request { input, .. } => self.request(now, input),
        }
    }

    /// Sets the time, and handles an expired timeout unless the input is a timeout itself.
    fn advance(&mut self, now: Nanoseconds, is_done: bool) -> Result<(), String> {
        // The slow path's timer for a contribution also fires if the program has the result, which
        // the slow path does not know yet.
        while let Some(at) = self.subject.timeout().filter(|&at| at < now) {
            self.lab.program.set_time(at.0);
            self.request(at, &Input::Timeout)?;
            if self.subject.timeout() == Some(at) {
                break;
            }
        }
        self.lab.program.set_time(now.0);
        let is_due = self.deadline.is_some_and(|deadline| deadline <= now);
        if is_due && !is_done { self.request(now, &Input::Timeout) } else { Ok(()) }
    }

    /// Datagrams of one host arrive before user space runs.
    pub fn datagrams(
        &mut self,
        now: Nanoseconds,
        from: SocketAddr,
        datagrams: &[&[u8]],
    ) -> Result<(), String> {
        self.advance(now, false)?;
        self.receive(now, from, datagrams)
    }

    fn receive(&mut self, now: Nanoseconds, from: SocketAddr, datagrams: &[&[u8]]) -> Result<(), String> {
        let (mut sent, mut passed) = (Vec::new(), Vec::new());
        for bytes in datagrams {
            let view = View::new(bytes).ok();
            let group = view.map(|view| view.group()).filter(|group| self.groups.contains_key(group));
            let is_fast_path = group.is_some() && matches!(bytes[1], 1 | 2);
            self.counts.received += u64::from(is_fast_path);
            // The program reads the application's page when it handles a packet, but not for a
            // contribution.
            let kept = if is_control(bytes) { self.offer(group, from, bytes)? } else { None };
            if let Some(group) = group.filter(|_| kept.is_none()) {
                self.sync_consumed(now, group);
            }
            self.handle(now, from, bytes)?;
            let offered = if is_control(bytes) { kept } else { self.offer(group, from, bytes)? };
            match offered {
                Some(frames) => {
                    self.counts.handled += u64::from(is_fast_path);
                    sent.extend(frames);
                }
                None => passed.push((group, bytes)),
            }
        }
        for (group, bytes) in passed {
            if let Some(group) = group {
                if self.take_contributions(group, from, bytes) {
                    continue;
                }
                self.reclaim(now, group);
            }
            self.user_handle(now, from, bytes)?;
        }
        while let Some(wakeup) = self.lab.program.take_wakeup() {
            if wakeup.reason == WakeReason::Nak {
                let found = self.groups.iter().find(|(_, posted)| posted.kernel.index() == wakeup.index);
                if let Some((&group, _)) = found {
                    self.reclaim(now, group);
                }
            }
        }
        self.settle(now, sent)
    }

    /// The program receives a datagram; returns what it sends, if it handles that.
    fn offer(
        &mut self,
        group: Option<GroupId>,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Result<Option<Vec<Vec<u8>>>, String> {
        if from.is_ipv4() != self.address.is_ipv4() {
            return Ok(None);
        }
        if let Some(posted) = group.and_then(|group| self.groups.get(&group)) {
            posted.kernel.memory().is_waiting().store(self.behaviour.sleeps.into(), Ordering::Release);
        }
        let style = self.behaviour.style;
        let mut frame = frame::build(from, self.destination(group, bytes), bytes, style);
        // What changes on the way contradicts the checksum of the datagram, too.
        if self.trusts_network(group) && has_wrong_crc(bytes) {
            frame::change_checksum(&mut frame);
        }
        let verdict = self.lab.receive(&frame);
        let mut sent = self.lab.frames();
        match verdict {
            Verdict::Passed if udp_frames(&sent).is_empty() => return Ok(None),
            Verdict::Passed => return Err("a packet that was passed up was forwarded as well".into()),
            Verdict::Sent(last) => sent.push(last),
            Verdict::WakeDatagram(frame) => {
                self.counts.wakeups += 1;
                self.check_wake_datagram(style, from, bytes, &frame)?;
            }
            Verdict::Handled => {}
        }
        Ok(Some(sent))
    }

    /// Whether the program verifies the checksums of the group's datagrams in place of those of
    /// payloads.
    fn trusts_network(&self, group: Option<GroupId>) -> bool {
        group.and_then(|group| self.groups.get(&group)).is_some_and(|posted| {
            posted.state.integrity == Integrity::Network
                && posted.state.keys.authentication == Authentication::Header
        })
    }

    /// Where a datagram was sent to: heartbeats, and data by multicast, to the multicast address of
    /// their group.
    fn destination(&self, group: Option<GroupId>, bytes: &[u8]) -> SocketAddr {
        let body = View::new(bytes).and_then(View::read).map(|packet| packet.header.body);
        let is_multicast = matches!(
            body,
            Ok(Body::Heartbeat | Body::Data(Data { distribution: Distribution::Multicast, .. }))
        );
        let address = group.and_then(|group| self.groups[&group].multicast).filter(|_| is_multicast);
        address.unwrap_or(self.address)
    }

    /// The reference handles a datagram.
    fn handle(&mut self, now: Nanoseconds, from: SocketAddr, bytes: &[u8]) -> Result<(), String> {
        self.reference.datagram(now, from, bytes).map_err(text)?;
        while let Some(act) = self.reference.poll_local() {
            if let Act::Event(event) = act {
                self.reference_events.push_back(event);
            }
        }
        Ok(())
    }

    /// The slow path handles a datagram of a group that it owns.
    fn user_handle(&mut self, now: Nanoseconds, from: SocketAddr, bytes: &[u8]) -> Result<(), String> {
        self.subject.handle(now, Input::Datagram { from, bytes }).map_err(text)?;
        if let Some(store) = poll_local(&mut self.subject, &mut self.subject_events) {
            let posted = self.groups.get(&store.group).ok_or("a packet without slots")?;
            write(posted.kernel.memory(), store.packet, &bytes[store.payload]);
        }
        Ok(())
    }

    fn request(&mut self, now: Nanoseconds, input: &Input<'static>) -> Result<(), String> {
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for group in groups {
            self.sync_consumed(now, group);
            self.reclaim(now, group);
        }
        let expected = refused(self.reference.request(now, input.clone()))?;
        let found = self.subject.handle(now, input.clone());
        equal::<Result<(), Refused>>("the result", &expected, &found)?;
        if let (Input::CreateGroup(create), Ok(())) = (input, &found) {
            let multicast = create.multicast;
            self.post(create.group, create.start, create.slots, create.payload_bytes_max, true, multicast)?;
        }
        self.settle(now, Vec::new())
    }

    fn take_events(&mut self) -> Result<(), String> {
        loop {
            let event = self.reference_events.pop_front();
            equal("the event", &event, &self.subject_events.pop_front())?;
            match event {
                Some(Event::Placed { group, start, slots, payload_bytes_max, multicast, .. }) => {
                    self.post(group, start, slots, payload_bytes_max, false, multicast)?;
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    /// Polls both, and compares their packets and states; `frames` are those that the program has
    /// sent.
    fn settle(&mut self, now: Nanoseconds, mut frames: Vec<Vec<u8>>) -> Result<(), String> {
        self.take_events()?;
        let mut expected = Sent::default();
        self.poll_reference(now, &mut expected)?;
        while let Some(group) = self.poll_subject(now, &mut frames)? {
            // Its contribution may have to be sent again, and its page is read.
            self.sync_consumed(now, group);
            self.reclaim(now, group);
            self.poll_reference(now, &mut expected)?;
        }
        self.take_events()?;
        let found = self.check_frames(&frames)?;
        let receivers = expected.0.keys().chain(found.0.keys());
        for to in receivers {
            let what = format!("the packets to {}", to.0);
            let described = |sent: &Sent| {
                sent.0.get(to).map(|sent| sent.iter().map(|bytes| describe(bytes)).collect::<Vec<_>>())
            };
            if expected.0.get(to) != found.0.get(to) {
                equal(&what, &described(&expected), &described(&found))?;
                return Err(format!("{what} differs in its payload"));
            }
        }
        self.hand_off(now)?;
        self.compare(now)
    }

    fn poll_reference(&mut self, now: Nanoseconds, sent: &mut Sent) -> Result<(), String> {
        self.deadline = loop {
            match self.reference.poll(now).map_err(text)? {
                Act::Wait(timeout) => break timeout,
                Act::Event(event) => self.reference_events.push_back(event),
                Act::Stray(_) => {}
                Act::Reclaim(group) => return Err(format!("{group} is due, and not handed off")),
                Act::Send(Packet { to, bytes, .. }) => sent.push(to, bytes),
            }
        };
        Ok(())
    }

    /// Polls the node with the program, until a group is to be reclaimed, which is returned.
    fn poll_subject(&mut self, now: Nanoseconds, sent: &mut Vec<Vec<u8>>) -> Result<Option<GroupId>, String> {
        loop {
            let Transmit { group, to, header, payload, .. } = match self.subject.poll(now) {
                Output::Timeout(_) => return Ok(None),
                Output::Reclaim(group) => return Ok(Some(group)),
                Output::Event(event) => {
                    self.subject_events.push_back(event);
                    continue;
                }
                Output::Stray(_) => continue,
                Output::Store(store) => return Err(format!("without a datagram: {store:?}")),
                Output::Transmit(transmit) => transmit,
            };
            let mut bytes = header.to_vec();
            match payload {
                TransmitPayload::Bytes(payload) => bytes.extend(payload),
                TransmitPayload::Slot { slot, length, .. } => {
                    let memory = self.groups[&group].kernel.memory();
                    bytes.extend(payload_of(memory, Sequence(slot), length));
                }
            }
            self.lab.send(Sender::Node, &frame::build(self.address, to, &bytes, Style::OWN)).map_err(text)?;
            sent.extend(self.lab.frames());
        }
    }
}

/// Whether a datagram is a control message: one may be a contribution.
fn is_control(bytes: &[u8]) -> bool {
    let body = View::new(bytes).and_then(View::read).map(|packet| packet.header.body);
    matches!(body, Ok(Body::Control(_)))
}

/// Whether a request is refused.
fn refused(handled: Result<(), Fault>) -> Result<Result<(), Refused>, String> {
    match handled {
        Err(Fault::Refused(refused)) => Ok(Err(refused)),
        handled => handled.map(Ok).map_err(text),
    }
}

/// The packet of a piece that is sent for the first time.
pub const fn data_of(piece: &Piece, ack_requested: bool) -> Data {
    Data { ack_requested, ..piece.data() }
}

/// Carries out the local outputs of a node: keeps its events, and returns what is to be stored.
fn poll_local(protocol: &mut Protocol, events: &mut VecDeque<Event>) -> Option<Store> {
    let mut stored = None;
    while let Some(output) = protocol.poll_local() {
        match output {
            Output::Store(store) => stored = Some(store),
            Output::Event(event) => events.push_back(event),
            Output::Stray(_) => {}
            Output::Transmit(_) | Output::Reclaim(_) | Output::Timeout(_) => {
                unreachable!("these are not local")
            }
        }
    }
    stored
}

/// The UDP frames among all: the kernel sends others on its own.
fn udp_frames(frames: &[Vec<u8>]) -> Vec<&Vec<u8>> {
    frames.iter().filter(|frame| frame::read(frame).is_some()).collect()
}

fn describe(bytes: &[u8]) -> String {
    match View::new(bytes).and_then(View::read) {
        Ok(packet) => format!("{:?}", packet.header),
        Err(why) => format!("{why}: {:02x?}", &bytes[..bytes.len().min(HEADER_BYTES)]),
    }
}

/// A step without the bytes of payloads.
pub fn brief(step: &Step) -> String {
    match step {
        Step::Datagram { from, bytes } => format!("from {from} {}", describe(bytes)),
        step => format!("{step:?}"),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is an argument of map_err")]
fn text(error: impl ToString) -> String {
    error.to_string()
}

fn write(memory: &SlotMemory, packet: Sequence, payload: &[u8]) {
    let fits = payload.len() <= memory.payload_bytes_max();
    assert!(fits, "a payload fits into its slot");
    // SAFETY: a slot has room for the longest payload; neither the program nor an application
    // accesses it now.
    unsafe { memory.payload(packet).copy_from_nonoverlapping(payload.as_ptr(), payload.len()) };
}

pub fn payload_of(memory: &SlotMemory, packet: Sequence, length: u32) -> Vec<u8> {
    assert!(length as usize <= memory.payload_bytes_max(), "a payload fits into its slot");
    // SAFETY: a slot has room for the longest payload; neither the program nor an application
    // accesses it now.
    unsafe { std::slice::from_raw_parts(memory.payload(packet), length as usize).to_vec() }
}
