//! Two nodes side by side that get the same inputs: the subject has the program, the reference has
//! the protocol alone.

#![expect(unsafe_code, reason = "payloads lie in memory that is shared with the kernel")]

mod batch;
mod compare;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;

use treecast_ebpf::{CHILDREN_MAX, KernelGroup, ReceivedNak, SlotMemory, WakeReason, WakeSocket};
use treecast_proto::{
    Authentication, Contribution, Event, GroupId, HandOff, Input, Integrity, MemberId, Nanoseconds, Output,
    Piece, Process, Protocol, Refused, Sequence, Settings, Step, Store, Trace, Transmit, TransmitPayload,
};
use treecast_wire::{Body, Data, Distribution, HEADER_BYTES, Header, MacKey, Timestamp, View};
use treecast_world::{Act, Fault, Node, Packet};

use super::frame::{self, Style};
use super::lab::{Lab, Sender, Verdict};
use super::session::has_wrong_crc;
use compare::{WAKE_NONCE, equal};

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

/// How much of the work the program does.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// Data and acknowledgments that were received for posted groups.
    pub received: u64,
    /// Of these, those that the program handled.
    pub handled: u64,
    /// Of these, those by which the program woke a reader.
    pub wakeups: u64,
    /// Contributions that the program combines or sends.
    pub contributed: u64,
    /// Packets that applications of roots sent.
    pub queued: u64,
    /// Of these, those that the program forwarded.
    pub forwarded: u64,
    /// GSO batches of two segments or more, received or sent by applications of roots, and their
    /// segments.
    pub batches: u64,
    pub segments: u64,
    /// Of these, those that the program handled.
    pub batches_handled: u64,
    pub segments_handled: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.handled += other.handled;
        self.wakeups += other.wakeups;
        self.contributed += other.contributed;
        self.queued += other.queued;
        self.forwarded += other.forwarded;
        self.batches += other.batches;
        self.segments += other.segments;
        self.batches_handled += other.batches_handled;
        self.segments_handled += other.segments_handled;
    }
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

struct Posted {
    kernel: KernelGroup,
    state: HandOff,
    is_root: bool,
    /// With offload `switch`, the address to which the root sends data.
    multicast: Option<SocketAddr>,
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

    /// The root's application sends a packet.
    fn queue(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        piece: &Piece,
        payload: &[u8],
    ) -> Result<(), String> {
        let input = Input::Queue { group, piece: *piece };
        let Some(packet) = self.reference().readable(group).map(|(_, next)| next) else {
            return self.request(now, &input);
        };
        if !self.groups.get(&group).is_some_and(|posted| posted.is_root) {
            return self.request(now, &input);
        }
        let has_free_slot = self.reference().free_slots(group) > 0;
        let expected = refused(self.reference.queue(now, group, *piece, payload))?;
        self.counts.queued += 1;
        if has_free_slot {
            let memory = self.groups[&group].kernel.memory();
            write(memory, packet, payload);
            memory.describe(packet, piece, now);
        }
        let memory = self.groups[&group].kernel.memory().clone();
        let is_handed_off = self.groups[&group].kernel.is_handed_off();
        if is_handed_off {
            let frame = self.source_frame(&source_datagram(group, packet, piece, payload));
            self.lab.send(Sender::Application, &frame).map_err(text)?;
        }
        let sent = self.lab.frames();
        let found = if is_handed_off && Sequence(memory.forwarded().load(Ordering::Acquire)) == packet + 1 {
            self.counts.forwarded += 1;
            Ok(())
        } else {
            if !udp_frames(&sent).is_empty() {
                return Err("a packet that was not handled was sent nevertheless".into());
            }
            self.reclaim(now, group);
            self.subject.handle(now, input)
        };
        equal("the result of queueing a packet", &expected, &found)?;
        self.settle(now, sent)
    }

    /// The frame of datagrams that an application sends to the program.
    fn source_frame(&self, bytes: &[u8]) -> Vec<u8> {
        let to: IpAddr = match self.address.ip() {
            IpAddr::V4(_) => Ipv4Addr::new(239, 255, 84, 67).into(),
            IpAddr::V6(_) => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x5443).into(),
        };
        let from = SocketAddr::new(self.address.ip(), self.address.port() ^ 1);
        frame::build(from, SocketAddr::new(to, self.address.port()), bytes, Style::OWN)
    }

    /// An application has read packets.
    fn consumed(&mut self, now: Nanoseconds, group: GroupId, upto: Sequence) -> Result<(), String> {
        let Some(posted) = self.groups.get(&group).filter(|posted| !posted.is_root) else {
            return self.request(now, &Input::Consumed { group, upto });
        };
        posted.kernel.memory().read().store(upto.0, Ordering::Release);
        if self.behaviour.reads_silently && posted.kernel.is_handed_off() {
            return Ok(());
        }
        self.sync_consumed(now, group);
        self.reclaim(now, group);
        self.settle(now, Vec::new())
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

    /// Updates the reference by the application's page.
    fn sync_consumed(&mut self, now: Nanoseconds, group: GroupId) {
        let posted = &self.groups[&group];
        let read = Sequence(posted.kernel.memory().read().load(Ordering::Acquire));
        if !posted.is_root && self.reference().readable(group).is_some_and(|(from, _)| from != read) {
            // An invalid number is refused, and changes nothing.
            let _ = self.reference.request(now, Input::Consumed { group, upto: read });
        }
    }

    /// The slow path reclaims a group, and reads its page. Then it handles the NAKs that the
    /// program has kept, before anything that has arrived after them.
    fn reclaim(&mut self, now: Nanoseconds, group: GroupId) {
        let Some(Posted { kernel, state, is_root, .. }) = self.groups.get_mut(&group) else { return };
        reclaim(&mut self.subject, now, kernel, state);
        let read = Sequence(kernel.memory().read().load(Ordering::Acquire));
        if !*is_root && self.subject.readable(group).is_some_and(|(from, _)| from != read) {
            let _ = self.subject.handle(now, Input::Consumed { group, upto: read });
        }
        while let Some(ReceivedNak { from, arrived_at, header }) = kernel.take_nak() {
            assert_eq!(arrived_at, now, "user space is woken at once");
            let handled = self.subject.handle(now, Input::Datagram { from, bytes: &header });
            handled.expect("no datagram is refused");
        }
        take_contributions(&mut self.subject, now, kernel);
        kernel.forget_contributions();
    }

    /// The application contributes to an all-reduce.
    fn contribute(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        process: Process,
        contribution: &Contribution,
    ) -> Result<(), String> {
        let input = Input::Contribute { group, process, contribution: contribution.clone() };
        let with_program = self.groups.get(&group).filter(|posted| posted.kernel.is_handed_off());
        let Some(next) = with_program.filter(|_| process == Process::ONLY).map(|posted| posted.kernel.next())
        else {
            return self.request(now, &input);
        };
        let Ok(transmit) = self.subject.contribute_to_fast_path(now, group, contribution, next) else {
            return self.request(now, &input);
        };
        let expected = refused(self.reference.request(now, input))?;
        equal("the answer to a contribution", &expected, &Ok(()))?;
        self.counts.contributed += 1;
        let mut sent = Vec::new();
        if let Some(Transmit { to, header, payload: TransmitPayload::Bytes(payload), .. }) = transmit {
            let frame = frame::build(self.address, to, &[&header[..], &payload].concat(), Style::OWN);
            self.lab.send(Sender::Node, &frame).map_err(text)?;
            sent = self.lab.frames();
        }
        // The contributions differ in kind.
        while self.lab.program.take_wakeup().is_some() {
            self.sync_consumed(now, group);
            self.reclaim(now, group);
        }
        self.settle(now, sent)
    }

    fn post(
        &mut self,
        group: GroupId,
        start: Sequence,
        slots: u32,
        payload_bytes_max: u16,
        is_root: bool,
        multicast: Option<SocketAddr>,
    ) -> Result<(), String> {
        if let Some(before) = self.groups.remove(&group) {
            self.lab.remove_group(before.kernel);
        }
        let mut kernel = self.lab.add_group(group, slots);
        if usize::from(payload_bytes_max) > kernel.memory().payload_bytes_max() {
            return Err(format!("payloads of {payload_bytes_max} bytes are longer than the slots"));
        }
        kernel.memory().read().store(start.0, Ordering::Release);
        kernel.set_wake_socket(WakeSocket { port: self.wake_address().port(), nonce: WAKE_NONCE });
        if is_root {
            kernel.set_root_socket(self.lab.application());
        }
        self.groups.insert(group, Posted { kernel, state: HandOff::new(), is_root, multicast });
        Ok(())
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

    /// Hands off every group that needs no slow path.
    fn hand_off(&mut self, now: Nanoseconds) -> Result<(), String> {
        let gone: Vec<GroupId> =
            self.groups.keys().copied().filter(|&group| !self.subject.has(group)).collect();
        for group in gone {
            let posted = self.groups.remove(&group).expect("it was found among the groups");
            self.lab.remove_group(posted.kernel);
        }
        let Self { lab, address, subject, groups, .. } = self;
        for (&group, Posted { kernel, state, .. }) in groups {
            if kernel.is_handed_off() || !subject.hand_off_state(group, state) {
                continue;
            }
            let children: Vec<SocketAddr> = state.children.iter().map(|child| child.address).collect();
            let parent = state.parent.map(|(_, parent)| parent);
            kernel.post_neighbours(parent, &children);
            let is_handed_off = kernel.hand_off(state)
                || lab.learn_paths(*address, group, children.iter().copied().chain(parent)).is_ok()
                    && kernel.hand_off(state);
            if is_handed_off {
                subject.handle(now, Input::HandedOff { group }).map_err(text)?;
            } else if children.len() <= CHILDREN_MAX {
                return Err(format!("group {group} cannot be handed off: {state:?}"));
            }
        }
        Ok(())
    }
}

/// Gives a group back to the protocol, if the program runs it; returns whether it did.
pub fn reclaim(
    protocol: &mut Protocol,
    now: Nanoseconds,
    kernel: &mut KernelGroup,
    state: &mut HandOff,
) -> bool {
    let was_handed_off = kernel.reclaim(state);
    if was_handed_off {
        let group = state.group;
        let packets: Vec<_> =
            protocol.new_packets(group, state).map(|packet| kernel.packet(packet)).collect();
        let input = Input::Reclaimed { group, state, packets: &packets };
        assert_eq!(protocol.handle(now, input), Ok(()), "{state:?}");
    }
    was_handed_off
}

/// Whether a datagram is a control message: one may be a contribution.
fn is_control(bytes: &[u8]) -> bool {
    let body = View::new(bytes).and_then(View::read).map(|packet| packet.header.body);
    matches!(body, Ok(Body::Control(_)))
}

/// The slow path gets the contributions that the program has kept.
pub fn take_contributions(protocol: &mut Protocol, now: Nanoseconds, kernel: &KernelGroup) {
    for (from, bytes) in kernel.contributions() {
        let handled = protocol.handle(now, Input::Datagram { from, bytes: &bytes });
        handled.expect("no datagram is refused");
    }
}

/// Whether a request is refused.
fn refused(handled: Result<(), Fault>) -> Result<Result<(), Refused>, String> {
    match handled {
        Err(Fault::Refused(refused)) => Ok(Err(refused)),
        handled => handled.map(Ok).map_err(text),
    }
}

/// The datagram by which an application sends a packet, which is in its slot, to the program.
fn source_datagram(group: GroupId, packet: Sequence, piece: &Piece, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        group,
        epoch: 0,
        sender: MemberId(0),
        sequence: packet,
        timestamp: Timestamp(0),
        body: Body::Data(data_of(piece, false)),
    };
    // The program must ignore the code and the version of the application.
    let mut bytes = header.write(&MacKey([0; 2])).to_vec();
    bytes[0] = u8::MAX;
    bytes.extend(payload);
    bytes
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
