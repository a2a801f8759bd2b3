//! The state diagrams of docs/protocol.md: tables, from which the pictures are made, held to what nodes do.
//!
//! A few nodes are driven through many short lives with losses, crashes, stopped readers and newcomers. Every change of state
//! that happens has to stand in a table, everything that stands in a table has to happen, and the page has to show the
//! pictures of the tables.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::{
    Cookie, CreateGroup, GroupId, Input, MemberId, Nanoseconds, Offload, Output, PayloadChecksum, Piece,
    Protocol, Sequence, Settings, Source,
};

/// What has states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Diagram {
    /// A packet at a member.
    Packet,
    /// A child as its parent sees it.
    Child,
    /// A member as it sees itself.
    Member,
    /// A member as the root sees it.
    Seat,
    /// The group as the root sees it.
    Group,
}

/// From which state to which, and why.
type Edge = (&'static str, &'static str, &'static str);

const DIAGRAMS: [(Diagram, &[Edge]); 5] = [
    (Diagram::Packet, &PACKET),
    (Diagram::Child, &CHILD),
    (Diagram::Member, &MEMBER),
    (Diagram::Seat, &SEAT),
    (Diagram::Group, &GROUP_AT_ROOT),
];

const PACKET: [Edge; 9] = [
    ("awaited", "held", "it comes before its turn"),
    ("awaited", "accepted", "it comes in its turn"),
    ("awaited", "stable", "it comes, and there are no children"),
    ("held", "accepted", "what was missing has come"),
    ("held", "stable", "what was missing has come, and there are no children"),
    ("accepted", "read", "readers need it no more"),
    ("accepted", "stable", "the whole subtree has it"),
    ("read", "gone", "the whole subtree has it"),
    ("stable", "gone", "readers need it no more"),
];

const CHILD: [Edge; 28] = [
    ("new", "idle", "it says how far it is"),
    ("new", "relaying", "it is further than its subtree"),
    ("new", "full", "it has no room"),
    ("new", "silent", "it never answers"),
    ("idle", "sent to", "a packet goes to it"),
    ("sent to", "idle", "its whole subtree has everything"),
    ("sent to", "relaying", "it has everything, its subtree not"),
    ("sent to", "full", "it has everything, and no room"),
    ("relaying", "sent to", "a packet goes to it"),
    ("relaying", "idle", "its whole subtree has everything"),
    ("relaying", "full", "it has no room"),
    ("full", "idle", "it has room"),
    ("idle", "missed", "no answer"),
    ("sent to", "missed", "no answer"),
    ("relaying", "missed", "no answer"),
    ("full", "missed", "no answer"),
    ("missed", "idle", "an answer"),
    ("missed", "sent to", "an answer"),
    ("missed", "relaying", "an answer"),
    ("missed", "full", "an answer"),
    ("missed", "silent", "no answer for 0.8 s"),
    ("idle", "state lost", "it has less than it had said"),
    ("sent to", "state lost", "it has less than it had said"),
    ("relaying", "state lost", "it has less than it had said"),
    ("full", "state lost", "it has less than it had said"),
    ("missed", "state lost", "it has less than it had said"),
    ("silent", "idle", "an answer, before it is cut off"),
    ("silent", "sent to", "an answer, before it is cut off"),
];

const MEMBER: [Edge; 19] = [
    ("waiting", "placed", "a table comes"),
    ("waiting", "asking", "a table speaks of one before"),
    ("waiting", "leaving", "its user asks"),
    ("waiting", "ended", "evicted, or nothing from the root"),
    ("asking", "placed", "a table comes"),
    ("asking", "leaving", "its user asks"),
    ("asking", "ended", "evicted, or nothing from the root"),
    ("placed", "suspecting", "a neighbour is silent"),
    ("suspecting", "placed", "it is heard, or there is a new table"),
    ("suspecting", "leaving", "its user asks"),
    ("suspecting", "ended", "evicted, or nothing from the root"),
    ("placed", "leaving", "its user asks"),
    ("placed", "ended", "evicted, or given up here"),
    ("leaving", "ended", "evicted, or nobody lets it go"),
    ("placed", "done", "its subtree has the closing packet"),
    ("leaving", "done", "its subtree has the closing packet"),
    ("done", "released", "farewell"),
    ("released", "ended", "everything is read"),
    ("done", "ended", "nothing from the root, and everything is read"),
];

const SEAT: [Edge; 12] = [
    ("called", "settled", "it has taken its place"),
    ("called", "moved", "there is a new tree"),
    ("called", "gone", "it has never answered"),
    ("settled", "moved", "there is a new tree"),
    ("moved", "settled", "it has taken its place"),
    ("settled", "doubted", "a neighbour finds it silent"),
    ("moved", "doubted", "a neighbour finds it silent"),
    ("moved", "gone", "it does not take its place, or leaves"),
    ("doubted", "settled", "it answers the root"),
    ("doubted", "moved", "there is a new tree"),
    ("doubted", "gone", "it does not answer the root"),
    ("settled", "gone", "it leaves, or has been started again"),
];

const GROUP_AT_ROOT: [Edge; 12] = [
    ("starting", "open", "all that can be reached have their places"),
    ("starting", "closing", "the user closes it"),
    ("starting", "over", "the user gives it up"),
    ("open", "admitting", "somebody asks to join"),
    ("admitting", "open", "all know the new tree"),
    ("open", "closing", "the user closes it"),
    ("admitting", "closing", "the user closes it"),
    ("closing", "closed", "the closing packet has a slot"),
    ("closed", "over", "all members have everything"),
    ("open", "over", "the user gives it up"),
    ("admitting", "over", "the user gives it up"),
    ("closing", "over", "the user gives it up"),
];

/// A Mermaid picture of a table.
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
fn what_happens_stands_in_the_tables_and_what_stands_there_happens() {
    let mut seen = BTreeSet::new();
    for seed in (0..LIVES).chain(RARE) {
        let known = seen.len();
        Life::new(seed).run(&mut seen);
        if seen.len() > known {
            println!("seed {seed} shows something new");
        }
    }
    let said: BTreeSet<_> = DIAGRAMS
        .into_iter()
        .flat_map(|(diagram, edges)| edges.iter().map(move |&(from, to, _)| (diagram, from, to)))
        .collect();
    let unsaid: Vec<_> = seen.difference(&said).collect();
    let unseen: Vec<_> = said.difference(&seen).collect();
    assert!(
        unsaid.is_empty() && unseen.is_empty(),
        "happens unsaid: {unsaid:#?}\nnever happens: {unseen:#?}"
    );
}

/// As many lives show nearly everything, and these the rest. Where a change of the protocol changes them, as many lives as it
/// takes say which others do.
const LIVES: u64 = 600;
const RARE: [u64; 8] = [603, 1_514, 2_048, 2_528, 2_926, 8_135, 11_227, 19_468];
const GROUP: GroupId = GroupId(1);
const NODES: usize = 6;
/// Nodes from this one on are no members at first.
const MEMBERS: usize = 5;

/// A group from its beginning to its end.
struct Life {
    random: Pcg64,
    now: Nanoseconds,
    nodes: [Option<Protocol>; NODES],
    under_way: VecDeque<(usize, usize, Vec<u8>)>,
    message: u32,
    is_lossy: bool,
    reads: [bool; NODES],
    /// To which something has happened that is not noted yet.
    is_touched: [bool; NODES],
    /// Which member each node is.
    numbers: [MemberId; NODES],
    /// Last seen.
    states: BTreeMap<(usize, Diagram, u32), &'static str>,
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8], 7_000))
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut life = Self {
            now: Nanoseconds::from_ms(1),
            nodes: std::array::from_fn(|_| Some(Protocol::new(Settings::default()))),
            under_way: VecDeque::new(),
            message: 0,
            is_lossy: random.random_bool(0.5),
            reads: [true; NODES],
            is_touched: [true; NODES],
            numbers: [MemberId(u32::MAX); NODES],
            states: BTreeMap::new(),
            random,
        };
        let lead = CreateGroup {
            group: GROUP,
            cookie: Cookie(seed),
            root: MemberId(0),
            members: (0..MEMBERS).map(address).collect(),
            children: [&[1, 4][..], &[2, 3], &[], &[], &[]]
                .map(|children| children.iter().map(|&child| MemberId(child)).collect())
                .to_vec(),
            slots: 8,
            payload_bytes_max: 512,
            offload: Offload::Nic,
            start: Sequence(u32::MAX - 3),
            admits: true,
            bytes_per_s_max: None,
        };
        life.handle(0, Input::CreateGroup(Box::new(lead)));
        (1..MEMBERS).for_each(|node| life.follow(node, false));
        life
    }

    fn follow(&mut self, node: usize, sends_join: bool) {
        if self.nodes[node].as_ref().is_some_and(|protocol| protocol.group(GROUP).is_none()) {
            self.states.retain(|(of, ..), _| *of != node);
        }
        let cookie =
            self.nodes[0].as_ref().and_then(|root| root.group(GROUP)).map(crate::group::Group::cookie);
        if let Some(cookie) = cookie {
            self.handle(node, Input::JoinGroup { group: GROUP, cookie, root: address(0), sends_join });
        }
    }

    fn run(&mut self, seen: &mut BTreeSet<(Diagram, &'static str, &'static str)>) {
        let steps = self.random.random_range(50..800);
        let restart_at = self.random.random_range(5..100);
        for step in 0..steps + 500 {
            if step == restart_at {
                self.restart(2);
            }
            if step == steps {
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
            800..960 => self.queue(),
            960..970 => self.reads[node] = !self.reads[node],
            970..974 => self.handle(node, Input::Leave { group: GROUP }),
            974..978 => self.forget(node, None),
            978..984 => self.restart(node),
            984..990 => self.follow(NODES - 1, true),
            990 => self.handle(node, Input::Abort { group: GROUP }),
            991 if self.random.random_bool(0.1) => self.handle(0, Input::Abort { group: GROUP }),
            _ => {
                // Nothing is left of what is under way: a short break of the network.
                self.under_way.clear();
            }
        }
    }

    fn restart(&mut self, node: usize) {
        self.forget(node, Some(Protocol::new(Settings::default())));
        let sends_join = self.random.random_bool(0.3);
        self.follow(node, sends_join);
    }

    fn forget(&mut self, node: usize, other: Option<Protocol>) {
        self.nodes[node] = other;
        self.states.retain(|(of, ..), _| *of != node);
    }

    fn handle(&mut self, node: usize, input: Input<'_>) {
        if let Some(protocol) = &mut self.nodes[node] {
            self.is_touched[node] = true;
            // Much of what is asked for here makes no sense, and is refused.
            _ = protocol.handle(self.now, input);
        }
    }

    fn deliver(&mut self) {
        for _ in 0..self.random.random_range(1..6) {
            let place = self.random.random_range(0..3.min(self.under_way.len().max(1)));
            let Some((from, to, bytes)) = self.under_way.remove(place) else { return };
            self.now += Nanoseconds::from_us(5);
            if !(self.is_lossy && self.random.random_bool(0.1)) {
                self.handle(to, Input::Datagram { from: address(from), bytes: &bytes });
            }
        }
    }

    fn pass_time(&mut self) {
        let us = [50, 500, 5_000, 50_000][self.random.random_range(0..4)];
        self.now += Nanoseconds::from_us(us);
        (0..NODES).for_each(|node| self.handle(node, Input::Elapsed));
    }

    fn queue(&mut self) {
        let message = self.message;
        let checksum = PayloadChecksum::EMPTY;
        let piece = Piece { message, offset: 0, length: 0, message_length: 0, checksum };
        let root = self.nodes[0].as_mut().expect("the root stays");
        if root.room(GROUP) > 0 {
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

    fn drain(&mut self, node: usize, seen: &mut BTreeSet<(Diagram, &'static str, &'static str)>) {
        loop {
            self.note(node, seen);
            let Some(protocol) = &mut self.nodes[node] else { return };
            while protocol.take_event().is_some() {}
            let Output::Transmit(transmit) = protocol.poll(self.now) else { break };
            let mut bytes = transmit.header.to_vec();
            if let Source::Bytes(payload) = transmit.payload {
                bytes.extend(payload);
            }
            let to = (0..NODES).find(|&to| address(to) == transmit.to).expect("it goes to a node");
            self.under_way.push_back((node, to, bytes));
        }
        self.note(node, seen);
    }

    /// Notes what has changed at a node.
    fn note(&mut self, node: usize, seen: &mut BTreeSet<(Diagram, &'static str, &'static str)>) {
        let Some(protocol) = &self.nodes[node] else { return };
        let Some(group) = protocol.group(GROUP) else {
            // It has ended, and there is nothing left of it.
            if let Some(before) =
                self.states.remove(&(node, Diagram::Member, 0)).filter(|state| *state != "ended")
            {
                seen.insert((Diagram::Member, before, "ended"));
            }
            return;
        };
        if self.numbers[node] != group.member() {
            // Under another number it begins anew.
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
