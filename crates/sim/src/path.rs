//! The path of a worm: what each switch on it does with a packet, independent of time. Both
//! simulators use this module, so they share the routing function and nothing else.

use std::collections::BTreeMap;

use fixedbitset::FixedBitSet;
use rand::RngExt;
use rand_pcg::Pcg64;
use smallvec::SmallVec;
use treecast_fabric::{
    Channel, Fabric, HostId, LinkId, NextLinks, RouteFinder, Routing, SwitchId, Topology, UpDown, Valiant,
    Vertex,
};
use treecast_plan::{Placement, Plan, Worm, WormKind};
use treecast_terms::Flits;

use crate::parameters::{Adaptive, Headers, Parameters, RoutingStart};

/// How far a packet has progressed along its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// A unicast with adaptive routing: whether it has taken a down link of up*/down* routing.
    Adaptive { gone_down: bool },
    /// By an intermediate of Valiant routing, or by the minimal route without one: how many
    /// switches it has passed. At the first switch UGAL routing may still choose the minimal route.
    Detour { intermediate: Option<u32>, passed: u32 },
    /// Along a given path: how many switches it has passed.
    Fixed { passed: u32 },
    /// Up to a switch above all destinations, `links_left` links away.
    Ascending { links_left: u16 },
    /// Down one branch of its tree.
    Descending { branch: u32 },
    /// Over an ejection link, where the path ends.
    Ejecting,
}

/// Candidate channels, in the order of preference. A packet takes one of them.
pub(crate) type Outputs = SmallVec<[Channel; 4]>;

/// A copy that a switch makes of a packet: its candidate outputs, and its progress.
#[derive(Debug, Clone)]
pub(crate) struct Branch {
    pub outputs: Outputs,
    pub progress: Progress,
}

/// The path of a worm, as far as it is known before the worm is sent.
#[derive(Debug)]
pub(crate) struct WormPath {
    /// The header at injection: one flit per byte. A tree worm's bit string has one bit per host of
    /// the fabric.
    pub header: Flits,
    kind: PathKind,
}

impl WormPath {
    /// The progress of a packet at injection. The intermediate of a packet depends on nothing else
    /// that happens, so that both simulators draw the same.
    pub fn initial_progress(&self, seed: u64, packet: u32) -> Progress {
        match &self.kind {
            PathKind::Local => unreachable!("local worms are not injected"),
            PathKind::Adaptive { .. } => Progress::Adaptive { gone_down: false },
            PathKind::Detour { intermediate_count, multicast, worm, .. } => {
                let state = u128::from(seed) << 64
                    ^ u128::from(*worm) << 96
                    ^ u128::from(packet) << 44
                    ^ u128::from(*multicast);
                let mut random = Pcg64::new(state, INTERMEDIATE_STREAM);
                let intermediate =
                    (*intermediate_count > 0).then(|| random.random_range(0..*intermediate_count));
                Progress::Detour { intermediate, passed: 0 }
            }
            PathKind::Fixed { .. } => Progress::Fixed { passed: 0 },
            PathKind::Tree(tree) => Progress::Ascending { links_left: tree.links_up },
        }
    }
}

#[derive(Debug)]
enum PathKind {
    /// Inside a host: no path in the fabric.
    Local,
    /// To a host on a switch, by shortest legal routes.
    Adaptive { host: HostId, switch: SwitchId },
    /// By random intermediates, one for each packet. The routing is boxed, so that other kinds are
    /// small.
    Detour {
        from: HostId,
        to: HostId,
        routing: Box<Valiant>,
        intermediate_count: u32,
        /// The number of the multicast, and the position of the worm in its plan.
        multicast: u64,
        worm: u32,
    },
    /// Along a given path.
    Fixed {
        first: Channel,
        /// Header flits that a switch reads if it strips none.
        address: Flits,
        stops: Vec<Stop>,
    },
    /// Down a tree of switches.
    Tree(Box<Tree>),
}

/// One switch of a given path: where a worm drops copies, and where it continues.
#[derive(Debug, Clone, Default)]
struct Stop {
    drops: Vec<LinkId>,
    onward: Option<Channel>,
    /// Header flits that the switch strips off.
    stripped: Flits,
}

/// The path of a tree worm.
#[derive(Debug)]
struct Tree {
    /// How many links it goes up.
    links_up: u16,
    targets: FixedBitSet,
    hosts: BTreeMap<SwitchId, Vec<LinkId>>,
    /// The branches found so far, and the branch that starts at each switch where the worm has
    /// turned down.
    branches: Vec<TreeBranch>,
    tops: BTreeMap<SwitchId, u32>,
}

/// The part of a tree below one switch.
#[derive(Debug)]
struct TreeBranch {
    targets: FixedBitSet,
    /// The output links of the copies, each with the branch that it leads to. Computed when the
    /// first packet arrives.
    copies: Option<Vec<(LinkId, Option<u32>)>>,
}

/// Finds the paths of a plan's worms.
pub(crate) struct PathFinder<'a> {
    fabric: &'a Fabric,
    placement: &'a Placement,
    parameters: &'a Parameters,
    /// The number of the multicast.
    multicast: u64,
}

impl<'a> PathFinder<'a> {
    pub fn new(fabric: &'a Fabric, plan: &'a Plan, parameters: &'a Parameters, multicast: u64) -> Self {
        Self { fabric, placement: plan.placement(), parameters, multicast }
    }

    /// The path of the worm at a position of the plan.
    pub fn path(&self, worm: &Worm, position: u32) -> WormPath {
        let (header, kind) = self.header_and_kind(worm, position);
        let header = if self.parameters.headers == Headers::Free { Flits::ZERO } else { header };
        WormPath { header, kind }
    }

    /// The kind of a worm's path, and the length of its header where headers count.
    fn header_and_kind(&self, worm: &Worm, position: u32) -> (Flits, PathKind) {
        let (fabric, topology) = (self.fabric, self.fabric.topology());
        let host_of = |member| self.placement.host_of(member);
        let unicast_header = self.parameters.unicast_header_flits;
        match worm.kind {
            WormKind::Local => (Flits::ZERO, PathKind::Local),
            WormKind::Unicast if worm.route.is_empty() && is_adaptive(fabric.routing()) => {
                let host = host_of(worm.to[0]);
                (unicast_header, PathKind::Adaptive { host, switch: topology.switch_of(host) })
            }
            WormKind::Unicast
                if worm.route.is_empty()
                    && let Routing::Valiant(routing) = *fabric.routing() =>
            {
                let (from, to) = (host_of(worm.from), host_of(worm.to[0]));
                let intermediate_count = routing.intermediate_count(topology, from, to);
                let (multicast, worm, routing) = (self.multicast, position, Box::new(routing));
                (unicast_header, PathKind::Detour { from, to, routing, intermediate_count, multicast, worm })
            }
            WormKind::Unicast => {
                let mut route = worm.route.clone();
                if route.is_empty() {
                    route = RouteFinder::new(topology, fabric.routing())
                        .route(host_of(worm.from), host_of(worm.to[0]));
                }
                let stops = stops(topology, &route);
                (unicast_header, PathKind::Fixed { first: route[0], address: unicast_header, stops })
            }
            WormKind::Path => {
                let mut stops = stops(topology, &worm.route);
                let header = set_path_header(topology, &mut stops, &worm.route);
                (header, PathKind::Fixed { first: worm.route[0], address: Flits(1), stops })
            }
            WormKind::Tree => {
                let header = Flits(u64::from(topology.host_count()).div_ceil(8));
                (header, PathKind::Tree(Box::new(self.tree(worm))))
            }
        }
    }

    fn tree(&self, worm: &Worm) -> Tree {
        let topology = self.fabric.topology();
        let routing =
            self.fabric.routing().up_down().expect("tree worms are planned on up*/down* fabrics only");
        let reached = self.placement.hosts_of(&worm.to);
        let targets = UpDown::switches_of(topology, &reached);
        let mut hosts: BTreeMap<SwitchId, Vec<LinkId>> = BTreeMap::new();
        for host in reached {
            hosts.entry(topology.switch_of(host)).or_default().push(topology.ejection(host));
        }
        let source = topology.switch_of(self.placement.host_of(worm.from));
        Tree {
            links_up: routing
                .ascent(topology, source, &targets)
                .expect("a planned tree worm has a route up to a covering switch"),
            targets,
            hosts,
            branches: Vec::new(),
            tops: BTreeMap::new(),
        }
    }
}

/// The random choices of a switch come from the stream with this number plus the switch's.
const ADAPTIVE_STREAM: u128 = 0x6164_6170 << 32;

/// The intermediates of packets come from this stream.
const INTERMEDIATE_STREAM: u128 = 0x696e_7465_726d;

/// The generator of a switch's random choices: of n free outputs it takes number
/// `random_range(0..n)`.
pub(crate) fn random_stream(seed: u64, switch: SwitchId) -> Pcg64 {
    Pcg64::new(u128::from(seed), ADAPTIVE_STREAM + u128::from(switch.0))
}

/// Whether switches choose among links and virtual channels when a packet arrives.
fn is_adaptive(routing: &Routing) -> bool {
    matches!(routing, Routing::UpDown(_) | Routing::ShortestPath(_))
}

/// The routing function of all switches.
pub(crate) struct Router<'a> {
    fabric: &'a Fabric,
    parameters: &'a Parameters,
    candidates: Candidates<'a>,
    /// `None` where routing is not adaptive.
    next: Option<NextLinks<'a>>,
}

/// Expands links to the channels that a packet may choose among.
#[derive(Clone, Copy)]
struct Candidates<'a> {
    topology: &'a Topology,
    /// Virtual channels of a link that a packet may choose among; 1 where the routing assigns the
    /// channel.
    channels: u8,
    /// Links that a packet may choose among.
    links_max: usize,
}

impl Candidates<'_> {
    /// The channels of a link that a packet may take: one on an ejection link, elsewhere all that
    /// the routing allows.
    fn channels(self, channel: Channel) -> Outputs {
        let into_host = self.topology.link(channel.link).to.host().is_some();
        if self.channels == 1 || into_host {
            return Outputs::from_slice(&[channel]);
        }
        (0..self.channels).map(|virtual_channel| Channel { virtual_channel, ..channel }).collect()
    }

    fn link(self, link: LinkId) -> Outputs {
        self.channels(Channel { link, virtual_channel: 0 })
    }

    /// All channels of several links, the lowest link first; of the first link only where the
    /// choice is not adaptive.
    fn any_of(self, links: &[LinkId]) -> Outputs {
        let links = &links[..links.len().min(self.links_max)];
        if self.channels == 1 {
            return links.iter().map(|&link| Channel { link, virtual_channel: 0 }).collect();
        }
        links.iter().flat_map(|&link| self.link(link)).collect()
    }
}

impl<'a> Router<'a> {
    pub fn new(fabric: &'a Fabric, parameters: &'a Parameters) -> Self {
        let (topology, routing) = (fabric.topology(), fabric.routing());
        let candidates = Candidates {
            topology,
            channels: if is_adaptive(routing) { routing.virtual_channel_count() } else { 1 },
            links_max: if parameters.adaptive == Adaptive::Lowest { 1 } else { usize::MAX },
        };
        Self { fabric, parameters, candidates, next: NextLinks::new(topology, routing) }
    }

    /// The channels by which a worm may be injected.
    pub fn injection_channels(&self, path: &WormPath, from: HostId) -> Outputs {
        match &path.kind {
            PathKind::Fixed { first, .. } => self.candidates.channels(*first),
            _ => self.candidates.link(self.fabric.topology().injection(from)),
        }
    }

    /// Header flits that a switch strips off a packet.
    pub fn stripped(&self, path: &WormPath, progress: Progress) -> Flits {
        match (&path.kind, progress) {
            (PathKind::Fixed { stops, .. }, Progress::Fixed { passed })
                if self.parameters.headers == Headers::Counted =>
            {
                stops[passed as usize].stripped
            }
            _ => Flits::ZERO,
        }
    }

    /// Flits of a packet that must have arrived before a switch can route it.
    pub fn flits_to_route(&self, path: &WormPath, progress: Progress) -> Flits {
        let stripped = self.stripped(path, progress);
        let read = match &path.kind {
            _ if self.parameters.routing_start == RoutingStart::FirstFlit => Flits(1),
            _ if self.parameters.headers == Headers::Free => Flits(1),
            PathKind::Fixed { address, .. } => *address,
            _ => path.header,
        };
        read.max(stripped).max(Flits(1))
    }

    /// The maximum of [`Router::flits_to_route`] over the switches on a path.
    pub fn flits_to_route_max(&self, path: &WormPath) -> Flits {
        match &path.kind {
            PathKind::Fixed { stops, .. } => {
                let fields = (0..stops.len() as u32)
                    .map(|passed| self.flits_to_route(path, Progress::Fixed { passed }));
                fields.max().unwrap_or_default()
            }
            PathKind::Local => Flits::ZERO,
            _ => self.flits_to_route(path, path.initial_progress(0, 0)),
        }
    }

    /// The progress of a packet whose route is chosen at its first switch: by UGAL routing, from
    /// the flits that wait for a link. Any other progress remains.
    pub fn chosen(&self, path: &WormPath, progress: Progress, waiting: impl Fn(LinkId) -> u64) -> Progress {
        match (&path.kind, progress) {
            (
                PathKind::Detour { from, to, routing, .. },
                Progress::Detour { intermediate: Some(_), passed: 0 },
            ) if routing.is_adaptive() => {
                let cost = |intermediate: Option<u32>| {
                    let route = routing.route(self.fabric.topology(), *from, *to, intermediate);
                    // Without injection and ejection.
                    waiting(route[1].link) * (route.len() as u64 - 2)
                };
                let Progress::Detour { intermediate, .. } = progress else { return progress };
                let is_minimal = cost(None) <= cost(intermediate);
                Progress::Detour { intermediate: intermediate.filter(|_| !is_minimal), passed: 0 }
            }
            _ => progress,
        }
    }

    /// Appends the copies that a switch makes of a packet to an empty list: first those to hosts,
    /// in the order of the plan, then those to switches, in the order of their ports or of
    /// [`Parameters::overlap`].
    pub fn branches(
        &mut self,
        path: &mut WormPath,
        at: SwitchId,
        progress: Progress,
        copies: &mut Vec<Branch>,
    ) {
        let topology = self.fabric.topology();
        match (&mut path.kind, progress) {
            (PathKind::Adaptive { host, switch }, Progress::Adaptive { gone_down }) => {
                copies.push(if *switch == at {
                    Branch {
                        outputs: self.candidates.link(topology.ejection(*host)),
                        progress: Progress::Ejecting,
                    }
                } else {
                    Branch { outputs: self.towards(*switch, at, gone_down), progress }
                });
            }
            (PathKind::Detour { from, to, routing, .. }, Progress::Detour { intermediate, passed }) => {
                let route = routing.route(topology, *from, *to, intermediate);
                let next = passed as usize + 1;
                let progress = if next + 1 == route.len() {
                    Progress::Ejecting
                } else {
                    Progress::Detour { intermediate, passed: passed + 1 }
                };
                copies.push(Branch { outputs: Outputs::from_slice(&route[next..=next]), progress });
            }
            (PathKind::Fixed { stops, .. }, Progress::Fixed { passed }) => {
                let stop = &stops[passed as usize];
                copies.extend(stop.drops.iter().map(|&link| Branch {
                    outputs: self.candidates.link(link),
                    progress: Progress::Ejecting,
                }));
                copies.extend(stop.onward.map(|channel| Branch {
                    outputs: self.candidates.channels(channel),
                    progress: Progress::Fixed { passed: passed + 1 },
                }));
            }
            (PathKind::Tree(tree), Progress::Ascending { links_left: 0 }) => {
                let top = tree.top(at);
                self.descend(tree, at, top, copies);
            }
            (PathKind::Tree(tree), Progress::Ascending { links_left }) => {
                let links = self.up_down().ascending_links(topology, at, &tree.targets, links_left);
                let outputs = self.candidates.any_of(&links);
                copies.push(Branch { outputs, progress: Progress::Ascending { links_left: links_left - 1 } });
            }
            (PathKind::Tree(tree), Progress::Descending { branch }) => self.descend(tree, at, branch, copies),
            _ => unreachable!("a packet's progress fits the kind of its path"),
        }
    }

    /// The progress of a copy that leaves a switch over a link.
    pub fn onward(&self, progress: Progress, link: LinkId) -> Progress {
        match (progress, self.fabric.routing()) {
            (Progress::Adaptive { gone_down: false }, Routing::UpDown(routing)) => {
                Progress::Adaptive { gone_down: !routing.is_up(self.fabric.topology(), link) }
            }
            _ => progress,
        }
    }

    fn up_down(&self) -> &'a UpDown {
        self.fabric.routing().up_down().expect("tree worms are planned on up*/down* fabrics only")
    }

    fn towards(&mut self, target: SwitchId, at: SwitchId, gone_down: bool) -> Outputs {
        let candidates = self.candidates;
        let next = self.next.as_mut().expect("adaptive paths exist only where routing is adaptive");
        candidates.any_of(next.towards(target, at, gone_down))
    }

    fn descend(&self, tree: &mut Tree, at: SwitchId, branch: u32, copies: &mut Vec<Branch>) {
        if tree.branches[branch as usize].copies.is_none() {
            let found = self.copies_of(tree, at, branch);
            tree.branches[branch as usize].copies = Some(found);
        }
        let found = tree.branches[branch as usize].copies.iter().flatten();
        copies.extend(found.map(|&(link, branch)| Branch {
            outputs: self.candidates.link(link),
            progress: branch.map_or(Progress::Ejecting, |branch| Progress::Descending { branch }),
        }));
    }

    /// The output links of the copies at a switch, each with the branch that it leads to.
    fn copies_of(&self, tree: &mut Tree, at: SwitchId, branch: u32) -> Vec<(LinkId, Option<u32>)> {
        let targets = &tree.branches[branch as usize].targets;
        let below = self.up_down().copies(self.fabric.topology(), at, targets, self.parameters.overlap);
        let mut links = Vec::new();
        if targets[at.index()] {
            links.extend(tree.hosts[&at].iter().map(|&link| (link, None)));
        }
        for (link, targets) in below {
            links.push((link, Some(tree.branches.len() as u32)));
            tree.branches.push(TreeBranch { targets, copies: None });
        }
        links
    }
}

impl Tree {
    /// The branch that starts at a switch where the worm turns down.
    fn top(&mut self, at: SwitchId) -> u32 {
        *self.tops.entry(at).or_insert_with(|| {
            self.branches.push(TreeBranch { targets: self.targets.clone(), copies: None });
            self.branches.len() as u32 - 1
        })
    }
}

/// The switches of a route, each with its drops to hosts and its onward channel.
fn stops(topology: &Topology, route: &[Channel]) -> Vec<Stop> {
    let mut stops: Vec<Stop> = Vec::new();
    for &channel in route {
        let link = topology.link(channel.link);
        if let (Vertex::Switch(_), Some(stop)) = (link.from, stops.last_mut()) {
            match link.to {
                Vertex::Host(_) => stop.drops.push(channel.link),
                Vertex::Switch(_) => stop.onward = Some(channel),
            }
        }
        if let Vertex::Switch(_) = link.to {
            stops.push(Stop::default());
        }
    }
    stops
}

/// A path worm's header has two fields for each switch with drops: a host id of one flit, and a bit
/// string with one bit per port, rounded up to flits. On a torus, host and router are one node, and
/// the id is enough. A switch with drops strips its fields off.
fn set_path_header(topology: &Topology, stops: &mut [Stop], route: &[Channel]) -> Flits {
    let switches = route.iter().filter_map(|channel| topology.link(channel.link).to.switch());
    for (stop, switch) in stops.iter_mut().zip(switches) {
        if !stop.drops.is_empty() {
            let ports = if topology.grid().is_some() { 0 } else { topology.port_count(switch) };
            stop.stripped = Flits(1 + u64::from(ports).div_ceil(8));
        }
    }
    stops.iter().map(|stop| stop.stripped).sum()
}
