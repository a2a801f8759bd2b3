//! Several processors work on one group at once: its parent, its children, its application and its
//! slow path each have a thread.
//!
//! The clock stands still, so that no timer expires: a packet that is sent twice, or never, is an
//! error of the program.

#![expect(unsafe_code, reason = "payloads lie in memory that is shared with the kernel")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use treecast_ebpf::KernelGroup;
use treecast_proto::{
    Authentication, GroupId, HandOff, Input, Integrity, MemberId, Nanoseconds, Offload, Output, Protocol,
    Sequence, Settings, Transmit, TransmitPayload, Transport,
};
use treecast_wire::{
    Acknowledgment, Body, Control, Data, Distribution, Header, Neighbour, Role, Table, Timestamp, View,
};

use super::frame::{self, Style};
use super::lab::{Ingress, Lab, Verdict};
use super::pair::reclaim;
use super::session::Session;

const GROUP: GroupId = GroupId(1);
const NOW: Nanoseconds = Nanoseconds::from_ms(1);
const SLOTS: u32 = 64;
/// Sequence numbers wrap during the test.
const START: Sequence = Sequence(u32::MAX - 500);
const PACKETS: u32 = 4_000;
const CHILDREN: u32 = 3;
const PARENT: u32 = 0;
const OWN: u32 = 1;
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(20);

fn address(member: u32) -> SocketAddr {
    SocketAddr::from(([10, 2, 0, member as u8 + 1], 7_000))
}

/// A packet of a neighbour, its `place`-th by its timestamp.
fn packet(
    session: &Session,
    sender: u32,
    place: u64,
    sequence: Sequence,
    body: Body,
    payload: &[u8],
) -> Vec<u8> {
    let header = session.header(MemberId(sender), sequence, body);
    session.write(&Header { timestamp: Timestamp(NOW.0 + place), ..header }, payload)
}

fn acknowledgment(session: &Session, child: u32, place: u64, next: Sequence) -> Vec<u8> {
    let acknowledgment = Acknowledgment {
        stable: next,
        receive_window: SLOTS,
        echo: Timestamp(NOW.0),
        is_reached: false,
        is_congested: false,
    };
    packet(session, child, place, next, Body::Acknowledgment(acknowledgment), &[])
}

fn payload(number: u32) -> Vec<u8> {
    (0..40 + number % 200).map(|place| (number.wrapping_mul(31) + place) as u8).collect()
}

/// The slow path of the node, in user space.
struct SlowPath {
    protocol: Protocol,
    kernel: KernelGroup,
    state: HandOff,
}

/// Delivers datagrams to the neighbours.
struct Network {
    children: Vec<Sender<Vec<u8>>>,
    /// What the parent has received.
    answers: Mutex<Vec<Vec<u8>>>,
}

/// The state that the threads share.
struct Node {
    slow_path: Mutex<SlowPath>,
    network: Network,
    session: Session,
    handled: AtomicU64,
    acknowledged: AtomicU64,
    /// The number of acknowledgments of children that were replayed.
    replayed: AtomicU64,
    is_over: AtomicBool,
}

impl SlowPath {
    /// Reclaims the group, calls `act`, and hands the group off again. Returns the datagrams to be
    /// sent.
    fn run(&mut self, act: impl FnOnce(&mut Self)) -> Vec<(SocketAddr, Vec<u8>)> {
        let Self { protocol, kernel, state } = self;
        reclaim(protocol, NOW, kernel, state);
        let read = Sequence(kernel.memory().read().load(Ordering::Acquire));
        let consumed = protocol.handle(NOW, Input::Consumed { group: GROUP, upto: read });
        consumed.expect("the application reads what is there");
        act(self);
        let Self { protocol, kernel, state } = self;
        let mut sent = Vec::new();
        loop {
            let Transmit { to, header, payload, .. } = match protocol.poll(NOW) {
                Output::Transmit(transmit) => transmit,
                Output::Timeout(_) => break,
                _ => continue,
            };
            let mut bytes = header.to_vec();
            match payload {
                TransmitPayload::Bytes(payload) => bytes.extend(payload),
                TransmitPayload::Slot { slot, length, .. } => {
                    bytes.extend(payload_of(kernel, Sequence(slot), length as usize));
                }
            }
            sent.push((to, bytes));
        }
        let (_, next) = protocol.readable(GROUP).expect("the group is here");
        kernel.memory().written().store(next.0, Ordering::Release);
        if protocol.hand_off_state(GROUP, state) && kernel.hand_off(state) {
            protocol.handle(NOW, Input::HandedOff { group: GROUP }).expect("nothing needs the slow path");
        }
        sent
    }

    fn datagram(&mut self, from: SocketAddr, bytes: &[u8]) {
        let input = Input::Datagram { from, bytes };
        self.protocol.handle(NOW, input).expect("no datagram is refused");
        if let Some(Output::Store(store)) = self.protocol.poll_local() {
            let payload = &bytes[store.payload];
            let slot = self.kernel.memory().payload(store.packet);
            // SAFETY: the slot has room for the payload, and the slow path owns the group.
            unsafe { slot.copy_from_nonoverlapping(payload.as_ptr(), payload.len()) };
        }
    }
}

/// The payload of a packet that is in its slot.
fn payload_of(kernel: &KernelGroup, packet: Sequence, length: usize) -> Vec<u8> {
    // SAFETY: the slot has room for the payload; it is not free, so it is not written.
    unsafe { std::slice::from_raw_parts(kernel.memory().payload(packet), length).to_vec() }
}

impl Network {
    fn deliver(&self, to: SocketAddr, bytes: Vec<u8>) {
        let place = (0..CHILDREN).find(|place| address(OWN + 1 + place) == to);
        match place {
            // A child that has all packets has dropped its receiver.
            Some(place) => drop(self.children[place as usize].send(bytes)),
            None => self.answers.lock().unwrap_or_else(PoisonError::into_inner).push(bytes),
        }
    }

    fn deliver_frame(&self, frame: &[u8]) {
        if let Some((from, to, bytes)) = frame::read(frame).filter(|(from, ..)| *from == address(OWN)) {
            assert_eq!(frame, frame::build(from, to, bytes, Style::OWN), "the frame is valid");
            self.deliver(to, bytes.to_vec());
        }
    }
}

/// Stops all threads when the one that has it panics.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

impl Node {
    const fn stop_on_panic(&self) -> StopOnPanic<'_> {
        StopOnPanic(&self.is_over)
    }

    fn slow_path(&self) -> MutexGuard<'_, SlowPath> {
        self.slow_path.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A datagram arrives: the program handles it, or passes it to the slow path.
    fn receive(&self, ingress: &Ingress, from: u32, bytes: &[u8]) {
        let style = Style { hop_limit: 9, ..Style::OWN };
        match ingress.receive(&frame::build(address(from), address(OWN), bytes, style)) {
            Verdict::Handled => {}
            Verdict::WakeDatagram(_) => unreachable!("no reader sleeps"),
            Verdict::Sent(frame) => self.network.deliver_frame(&frame),
            Verdict::Passed => {
                let sent = self.slow_path().run(|slow_path| slow_path.datagram(address(from), bytes));
                for (to, bytes) in sent {
                    self.network.deliver(to, bytes);
                }
                return;
            }
        }
        self.handled.fetch_add(1, Ordering::Relaxed);
    }

    /// The parent: sends every packet until it is accepted.
    fn parent(&self, ingress: &Ingress) {
        let memory = self.slow_path().kernel.memory().clone();
        let mut sent = 0;
        for number in 0..PACKETS {
            let payload = payload(number);
            let data = Data {
                message: number,
                offset: 0,
                length: payload.len() as u32,
                message_length: payload.len() as u64,
                checksum: self.session.keys.data_checksum(START + number, &payload),
                ack_requested: number % 5 == 0 || number + 1 == PACKETS,
                retransmitted: false,
                close: false,
                distribution: Distribution::Tree,
            };
            let mut send = || {
                sent += 1;
                let sequence = START + number;
                let bytes = packet(&self.session, PARENT, sent, sequence, Body::Data(data), &payload);
                self.receive(ingress, PARENT, &bytes);
            };
            send();
            let is_accepted =
                || (START + number).is_before(Sequence(memory.written().load(Ordering::Acquire)));
            while !is_accepted() && !self.is_over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_micros(20));
                send();
            }
        }
    }

    /// A child: acknowledges on request, and checks that every packet arrives once.
    fn child(&self, ingress: &Ingress, place: u32, datagrams: &Receiver<Vec<u8>>) -> Result<(), String> {
        let child = OWN + 1 + place;
        let (mut next, mut ahead, mut sent) = (START, BTreeSet::new(), ESTABLISHING_ACKS);
        let end = START + PACKETS;
        while next != end {
            let bytes = datagrams.recv_timeout(RECEIVE_TIMEOUT).map_err(|error: RecvTimeoutError| {
                format!("child {place} waits for packet {next} of {START} to {end}: {error}")
            })?;
            let packet = View::new(&bytes).and_then(|view| view.check(&self.session.keys));
            let packet = packet.map_err(|error| error.to_string())?;
            let Body::Data(data) = packet.header.body else {
                return Err(format!("child {place} gets {:?}", packet.header));
            };
            let number = packet.header.sequence;
            let expected = payload(number.0.wrapping_sub(START.0));
            if number.is_before(next) || !ahead.insert(number.0) || packet.payload != expected {
                return Err(format!("child {place}, which has all before {next}, gets {:?}", packet.header));
            }
            while ahead.remove(&next.0) {
                next += 1;
            }
            if data.ack_requested || next == end {
                // Some acknowledgments are sent twice, and some of them arrive once more.
                for _ in 0..if number.0 % 3 == 0 { 2 } else { 1 } {
                    sent += 1;
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                    let bytes = acknowledgment(&self.session, child, sent, next);
                    self.receive(ingress, child, &bytes);
                    if number.0 % 7 == 0 {
                        self.replayed.fetch_add(1, Ordering::Relaxed);
                        self.receive(ingress, child, &bytes);
                    }
                }
            }
        }
        Ok(())
    }

    /// User space owns the group now and then: it reclaims it, or only looks for contributions, of
    /// which there are none.
    fn user_space(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let sent = self.slow_path().run(|_| {});
            for (to, bytes) in sent {
                self.network.deliver(to, bytes);
            }
            thread::sleep(Duration::from_micros(5));
            assert_eq!(self.slow_path().kernel.take_contributions(), []);
            thread::sleep(Duration::from_micros(5));
        }
    }

    /// The application: reads every payload, and checks it.
    fn application(&self) -> Result<(), String> {
        let memory = self.slow_path().kernel.memory().clone();
        let mut next = START;
        while next != START + PACKETS && !self.is_over.load(Ordering::Relaxed) {
            let written = Sequence(memory.written().load(Ordering::Acquire));
            for packet in next.until(written) {
                let expected = payload(packet.0.wrapping_sub(START.0));
                // SAFETY: the slot has room for the payload; it is not freed before it is read.
                let found = unsafe { std::slice::from_raw_parts(memory.payload(packet), expected.len()) };
                if found != expected {
                    return Err(format!("the application reads a wrong payload in packet {packet}"));
                }
            }
            next = written;
            memory.read().store(next.0, Ordering::Release);
            thread::sleep(Duration::from_micros(10));
        }
        Ok(())
    }
}

/// The number of acknowledgments by which a child is established.
const ESTABLISHING_ACKS: u64 = 2;

/// A node with its place in the tree, established children and learned paths, whose group is handed
/// off.
fn hand_off_group(lab: &mut Lab, session: &Session) -> SlowPath {
    let mut kernel = lab.add_group(GROUP, SLOTS);
    kernel.memory().read().store(START.0, Ordering::Release);
    let mut protocol = Protocol::new(Settings::default());
    let root = address(PARENT);
    protocol.handle(NOW, session.join(root)).expect("it is the first group");
    let neighbour = |member, role| Neighbour { member: MemberId(member), role, address: address(member) };
    let children = (0..CHILDREN).map(|place| neighbour(OWN + 1 + place, Role::Child));
    let control = Control::Table(Table {
        member: MemberId(OWN),
        start: START,
        slots: SLOTS,
        message: 0,
        bytes: 0,
        payload_bytes_max: 512,
        offload: Offload::Nic,
        authentication: session.keys.authentication,
        integrity: Integrity::default(),
        transport: Transport::Packets,
        is_encrypted: false,
        part: 0,
        parts: 1,
        neighbours: [neighbour(PARENT, Role::Parent)].into_iter().chain(children).collect(),
    });
    let (header, table) = session.control(MemberId(PARENT), Session::nonce(), &control);
    let mut receive = |from, bytes: &[u8]| {
        let store = protocol.handle(NOW, Input::Datagram { from: address(from), bytes });
        assert_eq!(store, Ok(()), "no datagram is refused");
        while !matches!(protocol.poll(NOW), Output::Timeout(_)) {}
    };
    receive(PARENT, &session.welcome(address(OWN)));
    receive(PARENT, &session.write(&header, &table));
    for child in (0..CHILDREN).map(|place| OWN + 1 + place) {
        for place in 1..=ESTABLISHING_ACKS {
            receive(child, &acknowledgment(session, child, place, START));
        }
    }
    let mut state = HandOff::new();
    assert!(protocol.hand_off_state(GROUP, &mut state), "nothing needs the slow path");
    let children: Vec<SocketAddr> = state.children.iter().map(|child| child.address).collect();
    kernel.post_neighbours(Some(root), &children);
    lab.learn_paths(address(OWN), GROUP, children.into_iter().chain([root])).expect("frames can be sent");
    assert!(kernel.hand_off(&state), "all paths are learned");
    protocol.handle(NOW, Input::HandedOff { group: GROUP }).expect("nothing needs the slow path");
    SlowPath { protocol, kernel, state }
}

#[test]
fn concurrent_processors_neither_lose_nor_duplicate_packets() {
    let Some(mut lab) = Lab::new() else { return };
    lab.listen(address(OWN).port());
    lab.program.set_time(NOW.0);
    let session = Session::new(GROUP, Authentication::Payload);
    let slow_path = hand_off_group(&mut lab, &session);
    let before = *slow_path.protocol.counters(GROUP).expect("the group is here");
    let mut far_end = lab.far_end().expect("the descriptor is duplicated");
    let mut ingress = || lab.ingress().expect("the program is loaded");
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..CHILDREN).map(|_| channel()).unzip();
    let node = Node {
        slow_path: Mutex::new(slow_path),
        network: Network { children: senders, answers: Mutex::new(Vec::new()) },
        session,
        handled: AtomicU64::new(0),
        acknowledged: AtomicU64::new(0),
        replayed: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    };
    let ingresses: Vec<Ingress> = (0..=CHILDREN).map(|_| ingress()).collect();

    let ends: Vec<Result<(), String>> = thread::scope(|scope| {
        let node = &node;
        let _stop = node.stop_on_panic();
        let (to_node, of_children) = ingresses.split_first().expect("there is one for the parent");
        let parent = scope.spawn(|| {
            let _stop = node.stop_on_panic();
            node.parent(to_node);
        });
        let mut ends = vec![scope.spawn(|| {
            let _stop = node.stop_on_panic();
            node.application()
        })];
        for ((place, ingress), datagrams) in (0..CHILDREN).zip(of_children).zip(receivers) {
            ends.push(scope.spawn(move || {
                let _stop = node.stop_on_panic();
                node.child(ingress, place, &datagrams)
            }));
        }
        let user = scope.spawn(|| {
            let _stop = node.stop_on_panic();
            node.user_space();
        });
        let wire = scope.spawn(move || {
            let _stop = node.stop_on_panic();
            while let Some(frame) = far_end.frame().or_else(|| {
                thread::sleep(Duration::from_micros(20));
                (!node.is_over.load(Ordering::Relaxed)).then(Vec::new)
            }) {
                node.network.deliver_frame(&frame);
            }
        });
        let ended =
            |end: thread::ScopedJoinHandle<'_, Result<(), String>>| end.join().expect("nothing panics");
        // The children are joined first: after an error of one of them the others stop.
        let mut results: Vec<_> = ends.drain(1..).map(ended).collect();
        if results.iter().any(Result::is_err) {
            node.is_over.store(true, Ordering::Relaxed);
        }
        results.extend(ends.into_iter().map(ended));
        parent.join().expect("the parent does not panic");
        node.is_over.store(true, Ordering::Relaxed);
        user.join().expect("user space does not panic");
        wire.join().expect("the far end does not panic");
        results
    });
    for end in ends {
        end.unwrap();
    }

    let Node { slow_path, network, handled, acknowledged, replayed, .. } = node;
    let mut slow_path = slow_path.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (to, bytes) in slow_path.run(|_| {}) {
        network.deliver(to, bytes);
    }
    assert!(reclaim(&mut slow_path.protocol, NOW, &mut slow_path.kernel, &mut slow_path.state));
    let end = START + PACKETS;
    assert_eq!(slow_path.protocol.readable(GROUP), Some((end, end)), "every packet is accepted and read");
    assert_eq!(slow_path.protocol.freed(GROUP), Some(end), "the whole subtree has every packet");
    let counters = slow_path.protocol.counters(GROUP).expect("the group is here");
    assert_eq!(counters.accepted, u64::from(PACKETS));
    assert_eq!(counters.sent, u64::from(PACKETS * CHILDREN));
    assert_eq!(counters.acks_received - before.acks_received, acknowledged.into_inner());
    assert_eq!(counters.stale, replayed.into_inner());
    let answers = network.answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(counters.acks_sent - before.acks_sent, answers.len() as u64);
    let sent_at = |bytes: &Vec<u8>| {
        View::new(bytes).and_then(|view| view.check(&session.keys)).map(|packet| packet.header.timestamp)
    };
    let times: Result<BTreeSet<Timestamp>, _> = answers.iter().map(sent_at).collect();
    assert_eq!(times.map(|times| times.len()), Ok(answers.len()), "each has a timestamp of its own");
    assert_eq!((counters.retransmitted, counters.timeouts, counters.invalid), (0, 0, 0));
    assert_eq!(slow_path.kernel.counters().fast_path.transmit_errors, 0);
    let (handled, received) = (handled.into_inner(), u64::from(PACKETS) + counters.acks_received);
    println!("cores: the program has handled {handled} of {received} packets");
    assert!(handled * 4 > received, "the program handles many packets: {handled} of {received}");
    lab.remove_group(slow_path.kernel);
}
