//! The state diagrams of docs/protocol.md as tables, and tests that they are complete.
//!
//! A few nodes run through many short random groups with losses, crashes, stopped readers and late
//! joiners. Every transition that occurs must be in a table, every transition in a table must
//! occur, and the page must show the diagrams of the tables.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::group::Group;
use crate::{
    AbortReason, Authentication, CreateGroup, GroupId, GroupKey, Input, Integrity, MemberId, Nanoseconds,
    Offload, Output, PayloadChecksum, Piece, Protocol, Sequence, SessionId, Settings, TransmitPayload,
    Transport,
};

/// A state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Diagram {
    /// A packet at a member.
    Packet,
    /// A child as its parent sees it.
    Child,
    /// A member as it sees itself.
    Member,
    /// A member as the root sees it.
    MemberRecord,
    /// The group as the root sees it.
    Group,
}

/// A transition: the state before, the state after, and its cause.
type Edge = (&'static str, &'static str, &'static str);

/// Any state, before or after.
const ANY: &str = "any state";

/// A transition that has occurred.
type Transition = (Diagram, &'static str, &'static str);

const DIAGRAMS: [(Diagram, &[Edge]); 5] = [
    (Diagram::Packet, &PACKET),
    (Diagram::Child, &CHILD),
    (Diagram::Member, &MEMBER),
    (Diagram::MemberRecord, &MEMBER_RECORD),
    (Diagram::Group, &GROUP_AT_ROOT),
];

const PACKET: [Edge; 9] = [
    ("expected", "held", "it arrives before its turn"),
    ("expected", "accepted", "it arrives in its turn"),
    ("expected", "stable", "it arrives in its turn, and there are no children"),
    ("held", "accepted", "the missing packets arrive"),
    ("held", "stable", "the missing packets arrive, and there are no children"),
    ("accepted", "read", "the readers have read it"),
    ("accepted", "stable", "the whole subtree has accepted it"),
    ("read", "freed", "the whole subtree has accepted it"),
    ("stable", "freed", "the readers have read it"),
];

const CHILD: [Edge; 23] = [
    ("new", "idle", "it acknowledges"),
    ("new", "relaying", "it acknowledges more than its subtree"),
    ("new", "full", "its receive window is full"),
    ("new", "silent", "it never answers"),
    ("idle", "sent to", "a packet is sent to it"),
    ("sent to", "idle", "its whole subtree has everything"),
    ("sent to", "relaying", "it has everything, its subtree has not"),
    ("sent to", "full", "it has everything, and its receive window is full"),
    ("relaying", "sent to", "a packet is sent to it"),
    ("relaying", "idle", "its whole subtree has everything"),
    ("relaying", "full", "its receive window is full"),
    ("full", "idle", "its receive window opens"),
    ("idle", "timed out", "its timer expires"),
    ("sent to", "timed out", "its timer expires"),
    ("relaying", "timed out", "its timer expires"),
    ("full", "timed out", "its timer expires"),
    ("timed out", "idle", "it acknowledges"),
    ("timed out", "sent to", "it acknowledges"),
    ("timed out", "relaying", "it acknowledges"),
    ("timed out", "full", "it acknowledges"),
    ("timed out", "silent", "silent for 0.8 s"),
    ("silent", ANY, "it is heard before it is evicted"),
    (ANY, "state lost", "it acknowledges less than before"),
];

const MEMBER: [Edge; 26] = [
    ("waiting", "joining", "the root welcomes it to the session"),
    ("waiting", "leaving", "its user leaves"),
    ("waiting", "ended", "aborted here, or the root is silent"),
    ("joining", "waiting", "the root has started another session"),
    ("joining", "placed", "a table arrives"),
    ("joining", "leaving", "its user leaves"),
    ("joining", "ended", "evicted, or the root is silent"),
    ("placed", "suspecting", "a neighbour is silent"),
    ("placed", "asking", "nothing new is received, or its parent says that the root is silent"),
    ("asking", "placed", "the root answers, or a packet arrives"),
    ("asking", "suspecting", "a neighbour is silent"),
    ("suspecting", "asking", "the neighbour is heard, and nothing new is received"),
    ("asking", "complete", "its subtree has accepted the closing packet"),
    ("asking", "leaving", "its user leaves"),
    ("asking", "ended", "evicted, or the root is silent"),
    ("suspecting", "placed", "the neighbour is heard, or a new table arrives"),
    ("suspecting", "leaving", "its user leaves"),
    ("suspecting", "ended", "evicted, or the root is silent"),
    ("placed", "leaving", "its user leaves"),
    ("placed", "ended", "evicted, aborted here, or the root has started another session"),
    ("leaving", "ended", "evicted, or the root is silent"),
    ("placed", "complete", "its subtree has accepted the closing packet"),
    ("leaving", "complete", "its subtree has accepted the closing packet"),
    ("complete", "released", "the root says that all members have everything"),
    ("released", "ended", "everything is read"),
    ("complete", "ended", "the root is silent, and everything is read"),
];

const MEMBER_RECORD: [Edge; 12] = [
    ("invited", "settled", "it acknowledges its table"),
    ("invited", "suspected", "it acknowledges its table after a neighbour has reported it silent"),
    ("invited", "gone", "it never answers"),
    ("settled", "moved", "the tree changes"),
    ("moved", "settled", "it acknowledges its table"),
    ("settled", "suspected", "a neighbour reports it silent"),
    ("moved", "suspected", "a neighbour reports it silent"),
    ("moved", "gone", "it does not acknowledge its table, or leaves"),
    ("suspected", "settled", "it answers the root's probe"),
    ("suspected", "moved", "the tree changes"),
    ("suspected", "gone", "it does not answer the root's probes"),
    ("settled", "gone", "it leaves, was restarted, or accepts nothing"),
];

const GROUP_AT_ROOT: [Edge; 12] = [
    ("starting", "open", "every member that can be reached has its place"),
    ("starting", "closing", "the user closes it"),
    ("starting", "over", "the user aborts it"),
    ("open", "admitting", "a host joins"),
    ("admitting", "open", "all members know the new tree"),
    ("open", "closing", "the user closes it"),
    ("admitting", "closing", "the user closes it"),
    ("closing", "closed", "the closing packet has a slot"),
    ("closed", "over", "all members have everything"),
    ("open", "over", "the user aborts it"),
    ("admitting", "over", "the user aborts it"),
    ("closing", "over", "the user aborts it"),
];

/// The Mermaid diagram of a table.
fn picture(edges: &[Edge]) -> String {
    let name = |state: &str| state.replace(' ', "_");
    let lines = edges.iter().map(|(from, to, why)| format!("    {} --> {}: {why}\n", name(from), name(to)));
    format!("```mermaid\nstateDiagram-v2\n{}```\n", lines.collect::<String>())
}

#[test]
fn the_page_shows_the_tables() {
    let page = include_str!("../../../docs/protocol.md");
    for (diagram, edges) in DIAGRAMS {
        let picture = picture(edges);
        assert!(
            page.contains(&picture),
            "docs/protocol.md does not show this picture of {diagram:?}:\n{picture}"
        );
    }
}

#[test]
fn the_tables_have_exactly_the_transitions_that_occur() {
    let mut seen = BTreeSet::new();
    for seed in (0..RUNS).chain(RARE_SEEDS) {
        let known = seen.len();
        Run::new(seed).run(&mut seen);
        if seen.len() > known {
            println!("seed {seed} shows a new transition");
        }
    }
    let is_of = |state: &str, listed: &str| listed == ANY || listed == state;
    let listed: Vec<_> = DIAGRAMS
        .into_iter()
        .flat_map(|(diagram, edges)| edges.iter().map(move |&(from, to, _)| (diagram, from, to)))
        .collect();
    let shows = |&(diagram, from, to): &Transition, listed: &Transition| {
        diagram == listed.0 && is_of(from, listed.1) && is_of(to, listed.2)
    };
    let unlisted: Vec<_> =
        seen.iter().filter(|seen| !listed.iter().any(|listed| shows(seen, listed))).collect();
    let unseen: Vec<_> =
        listed.iter().filter(|listed| !seen.iter().any(|seen| shows(seen, listed))).collect();
    assert!(
        unlisted.is_empty() && unseen.is_empty(),
        "occur, but are not in a table: {unlisted:#?}\nnever occur: {unseen:#?}"
    );
}

/// The first seeds show nearly all transitions, and the rare seeds the rest. If a change of the
/// protocol changes them, raise `RUNS` until the printed seeds show other rare ones.
const RUNS: u64 = 1_700;
const RARE_SEEDS: [u64; 7] = [1_949, 2_860, 3_459, 5_160, 12_552, 19_556, 20_850];
const GROUP: GroupId = GroupId(1);
const NODES: usize = 6;
/// The number of initial members; later nodes may join.
const MEMBERS: usize = 5;

/// A random group from its creation to its end.
struct Run {
    random: Pcg64,
    now: Nanoseconds,
    nodes: [Option<Protocol>; NODES],
    in_flight: VecDeque<(usize, usize, Vec<u8>)>,
    message: u32,
    /// The number of sessions of the root, and of handshakes of members.
    sessions: u8,
    joins: u64,
    is_lossy: bool,
    /// How many kinds of spans pass, of 50 us to 0.2 s.
    spans: usize,
    /// Two nodes that cannot reach each other; one that cannot reach any, if they are the same.
    broken_path: Option<[usize; 2]>,
    reads: [bool; NODES],
    /// Whether a node had an input since its states were recorded.
    is_touched: [bool; NODES],
    /// The member number of each node.
    numbers: [MemberId; NODES],
    /// The state of each state machine when it was recorded last.
    states: BTreeMap<(usize, Diagram, u32), &'static str>,
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8], 7_000))
}

fn key() -> GroupKey {
    GroupKey::new("a token", GROUP)
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut run = Self {
            now: Nanoseconds::from_ms(1),
            nodes: std::array::from_fn(|_| Some(Protocol::new(Settings::default()))),
            in_flight: VecDeque::new(),
            message: 0,
            sessions: 0,
            joins: 0,
            is_lossy: random.random_bool(0.5),
            spans: random.random_range(3..6),
            broken_path: None,
            reads: [true; NODES],
            is_touched: [true; NODES],
            numbers: [MemberId(u32::MAX); NODES],
            states: BTreeMap::new(),
            random,
        };
        run.create();
        (1..MEMBERS).for_each(|node| run.join(node));
        run
    }

    fn create(&mut self) {
        self.sessions += 1;
        let create = CreateGroup {
            group: GROUP,
            key: key(),
            session: SessionId([self.sessions; 16]),
            authentication: Authentication::Header,
            integrity: Integrity::default(),
            transport: Transport::Packets,
            is_encrypted: false,
            root: MemberId(0),
            members: (0..MEMBERS).map(address).collect(),
            children: [&[1, 4][..], &[2, 3], &[], &[], &[]]
                .map(|children| children.iter().map(|&child| MemberId(child)).collect())
                .to_vec(),
            slots: 8,
            payload_bytes_max: 512,
            offload: Offload::Nic,
            multicast: None,
            start: Sequence(u32::MAX - 3),
            admits: true,
            readers: Vec::new(),
            members_max: CreateGroup::MEMBERS_MAX,
            bytes_per_s_max: None,
        };
        self.message = 0;
        self.handle(0, Input::CreateGroup(Box::new(create)));
    }

    fn join(&mut self, node: usize) {
        let has_none = |protocol: &Protocol| protocol.group(GROUP).is_none_or(Group::has_ended);
        if self.nodes[node].as_ref().is_some_and(has_none) {
            self.states.retain(|(of, ..), _| *of != node);
        }
        self.joins += 1;
        let seed = [self.joins, 0];
        self.handle(node, Input::JoinGroup { group: GROUP, key: key(), root: address(0), seed });
    }

    fn run(&mut self, seen: &mut BTreeSet<Transition>) {
        let steps = self.random.random_range(50..800);
        let restart_at = self.random.random_range(5..100);
        for step in 0..steps + 500 {
            if step == restart_at {
                self.restart(2);
            }
            if step == steps {
                self.broken_path = None;
                self.reads = [true; NODES];
                self.handle(0, Input::Close { group: GROUP });
            }
            self.step(step < steps);
            for node in 0..NODES {
                if std::mem::take(&mut self.is_touched[node]) {
                    self.drain(node, seen);
                }
            }
        }
    }

    fn step(&mut self, is_open: bool) {
        let node = self.random.random_range(1..NODES);
        match self.random.random_range(0..if is_open { 1_000 } else { 800 }) {
            0..400 => self.deliver(),
            400..700 => self.read(),
            700..800 => self.pass_time(),
            800..944 => self.queue(),
            944..952 => self.broken_path = Some([node, self.random.random_range(0..4)]),
            952..960 => self.broken_path = None,
            960..970 => self.reads[node] = !self.reads[node],
            970..974 => self.handle(node, Input::Leave { group: GROUP }),
            974..978 => self.forget(node, None),
            978..984 => self.restart(node),
            984..990 => self.join(NODES - 1),
            990 => self.handle(node, Input::Abort { group: GROUP, why: AbortReason::Application }),
            992 if self.random.random_bool(0.2) => {
                self.forget(0, Some(Protocol::new(Settings::default())));
                self.create();
            }
            991 if self.random.random_bool(0.1) => {
                self.handle(0, Input::Abort { group: GROUP, why: AbortReason::Application });
            }
            _ => {
                // Everything in flight is lost: a short outage of the network.
                self.in_flight.clear();
            }
        }
    }

    fn restart(&mut self, node: usize) {
        self.forget(node, Some(Protocol::new(Settings::default())));
        self.join(node);
    }

    fn forget(&mut self, node: usize, other: Option<Protocol>) {
        self.nodes[node] = other;
        self.states.retain(|(of, ..), _| *of != node);
    }

    fn handle(&mut self, node: usize, input: Input<'_>) {
        if let Some(protocol) = &mut self.nodes[node] {
            self.is_touched[node] = true;
            // Many of these requests are invalid, and are refused.
            _ = protocol.handle(self.now, input);
        }
    }

    fn deliver(&mut self) {
        for _ in 0..self.random.random_range(1..6) {
            let place = self.random.random_range(0..3.min(self.in_flight.len().max(1)));
            let Some((from, to, bytes)) = self.in_flight.remove(place) else { return };
            self.now += Nanoseconds::from_us(5);
            let is_broken = self.broken_path.is_some_and(|[a, b]| {
                a == b && [from, to].contains(&a) || [[a, b], [b, a]].contains(&[from, to])
            });
            if !(is_broken || self.is_lossy && self.random.random_bool(0.1)) {
                self.handle(to, Input::Datagram { from: address(from), bytes: &bytes });
            }
        }
    }

    fn pass_time(&mut self) {
        let us = [50, 500, 5_000, 50_000, 200_000][self.random.random_range(0..self.spans)];
        self.now += Nanoseconds::from_us(us);
        (0..NODES).for_each(|node| self.handle(node, Input::Timeout));
    }

    fn queue(&mut self) {
        let message = self.message;
        let checksum = PayloadChecksum::crc(&[]);
        let piece = Piece { message, offset: 0, length: 0, message_length: 0, checksum };
        let root = self.nodes[0].as_mut().expect("the root stays");
        if root.free_slots(GROUP) > 0 {
            self.message += 1;
            self.handle(0, Input::Queue { group: GROUP, piece });
        }
    }

    fn read(&mut self) {
        for node in (1..NODES).filter(|&node| self.reads[node]).collect::<Vec<_>>() {
            let readable = self.nodes[node].as_ref().and_then(|protocol| protocol.readable(GROUP));
            if let Some((from, end)) = readable
                && from != end
            {
                self.handle(node, Input::Consumed { group: GROUP, upto: from + 1 });
            }
        }
    }

    fn drain(&mut self, node: usize, seen: &mut BTreeSet<Transition>) {
        loop {
            self.record(node, seen);
            let Some(protocol) = &mut self.nodes[node] else { return };
            let transmit = match protocol.poll(self.now) {
                Output::Transmit(transmit) => transmit,
                Output::Timeout(_) => break,
                _ => continue,
            };
            let mut bytes = transmit.header.to_vec();
            if let TransmitPayload::Bytes(payload) = transmit.payload {
                bytes.extend(payload);
            }
            let to = (0..NODES).find(|&to| address(to) == transmit.to).expect("the destination is a node");
            self.in_flight.push_back((node, to, bytes));
        }
        self.record(node, seen);
    }

    /// Records the transitions at a node.
    fn record(&mut self, node: usize, seen: &mut BTreeSet<Transition>) {
        let Some(protocol) = &self.nodes[node] else { return };
        let Some(group) = protocol.group(GROUP) else {
            // The group has ended.
            if let Some(before) =
                self.states.remove(&(node, Diagram::Member, 0)).filter(|state| *state != "ended")
            {
                seen.insert((Diagram::Member, before, "ended"));
            }
            return;
        };
        if self.numbers[node] != group.member() {
            // With another number it is a new member.
            self.numbers[node] = group.member();
            self.states.retain(|(of, diagram, _), _| *of != node || *diagram == Diagram::Member);
        }
        let states = &mut self.states;
        group.states(&mut |diagram, who, state| {
            let before = states.insert((node, diagram, who), state);
            if let Some(before) = before.filter(|before| *before != state) {
                seen.insert((diagram, before, state));
            }
        });
    }
}
