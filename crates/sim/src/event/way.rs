//! The ways of worms through switches: what a switch reads off a header, and what it does with the packet.

use std::collections::BTreeMap;

use fixedbitset::FixedBitSet;
use treecast_fabric::{
    Ascent, Channel, Distances, Fabric, Flits, HostId, LinkId, RouteFinder, SwitchId, Topology, UpDown,
    Vertex,
};
use treecast_plan::{Plan, Worm, WormKind};

use crate::{Headers, Parameters, RoutingStart, Run};

/// How far a packet has come on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    /// A unicast that is routed as it goes: whether it has gone down.
    Adaptive { gone_down: bool },
    /// Along a given path: how many switches it has passed.
    Fixed { passed: u32 },
    /// Up to a switch above all destinations.
    Ascending,
    /// Down to these switches.
    Descending { targets: FixedBitSet },
}

/// A copy that a switch makes of a packet: the outputs that would do, lowest port first, and how far the copy has come.
pub(super) struct Branch {
    pub outputs: Vec<Channel>,
    pub progress: Progress,
}

/// What a worm does at one switch of a given path.
#[derive(Debug, Clone, Default)]
struct Stop {
    drops: Vec<LinkId>,
    onward: Option<Channel>,
    /// Header flits that the switch takes off.
    stripped: Flits,
}

/// A worm's way, as far as it is known beforehand.
enum Way {
    /// Inside a host: no way at all.
    Local,
    /// To a host on some switch, by shortest legal routes.
    Adaptive { host: HostId, switch: SwitchId },
    /// Along a given path.
    Fixed {
        first: Channel,
        header: Flits,
        /// What a switch reads that takes nothing off.
        address: Flits,
        stops: Vec<Stop>,
    },
    /// Down a tree of switches.
    Tree { ascent: Ascent, targets: FixedBitSet, hosts: BTreeMap<SwitchId, Vec<LinkId>> },
}

/// The ways of all worms of a plan.
pub(super) struct Ways<'a> {
    fabric: &'a Fabric,
    parameters: &'a Parameters,
    ways: Vec<Way>,
    /// Distances to each switch that some packet has asked for.
    distances: Vec<Option<Distances>>,
}

impl<'a> Ways<'a> {
    pub fn new(run: &Run<'a>) -> Self {
        let ways =
            run.plan.worms().iter().map(|worm| way(run.fabric, run.plan, worm, run.parameters)).collect();
        let distances = vec![None; run.fabric.topology().switch_count() as usize];
        Self { fabric: run.fabric, parameters: run.parameters, ways, distances }
    }

    fn topology(&self) -> &'a Topology {
        self.fabric.topology()
    }

    fn up_down(&self) -> &'a UpDown {
        self.fabric.routing().up_down().expect("adaptive ways are made for up*/down* fabrics only")
    }

    /// The longest header that any of the worms begins with.
    pub fn longest_header(&self) -> Flits {
        (0..self.ways.len() as u32).map(|worm| self.header(worm)).max().unwrap_or_default()
    }

    /// The header that a worm begins with: one flit a byte. A tree worm's bit string has a bit a host of the fabric.
    pub fn header(&self, worm: u32) -> Flits {
        if self.parameters.headers == Headers::Free {
            return Flits::ZERO;
        }
        match &self.ways[worm as usize] {
            Way::Local => Flits::ZERO,
            Way::Adaptive { .. } => self.parameters.unicast_header_flits,
            Way::Fixed { header, .. } => *header,
            Way::Tree { .. } => Flits(u64::from(self.topology().host_count()).div_ceil(8)),
        }
    }

    /// The channel that a worm enters the fabric by, and its progress there.
    pub fn begin(&self, worm: u32, from: HostId) -> (Channel, Progress) {
        let injection = Channel { link: self.topology().injection(from), virtual_channel: 0 };
        match &self.ways[worm as usize] {
            Way::Local => unreachable!("local worms are not put into the fabric"),
            Way::Adaptive { .. } => (injection, Progress::Adaptive { gone_down: false }),
            Way::Fixed { first, .. } => (*first, Progress::Fixed { passed: 0 }),
            Way::Tree { .. } => (injection, Progress::Ascending),
        }
    }

    /// How many header flits a switch takes off a packet.
    pub fn stripped(&self, worm: u32, progress: &Progress) -> Flits {
        if self.parameters.headers == Headers::Free {
            return Flits::ZERO;
        }
        match (&self.ways[worm as usize], progress) {
            (Way::Fixed { stops, .. }, Progress::Fixed { passed }) => stops[*passed as usize].stripped,
            _ => Flits::ZERO,
        }
    }

    /// How many flits of a packet a switch must have before it can route it.
    pub fn fields(&self, worm: u32, progress: &Progress) -> Flits {
        let stripped = self.stripped(worm, progress);
        let read = match &self.ways[worm as usize] {
            _ if self.parameters.routing_start == RoutingStart::FirstFlit => Flits(1),
            _ if self.parameters.headers == Headers::Free => Flits(1),
            Way::Fixed { address, .. } => *address,
            _ => self.header(worm),
        };
        read.max(stripped).max(Flits(1))
    }

    /// The copies that a switch makes of a packet.
    pub fn branches(&mut self, worm: u32, at: SwitchId, progress: &Progress) -> Vec<Branch> {
        let topology = self.topology();
        let plain = |link| Channel { link, virtual_channel: 0 };
        match (&self.ways[worm as usize], progress) {
            (Way::Adaptive { host, switch }, &Progress::Adaptive { gone_down }) => {
                if *switch == at {
                    return vec![Branch {
                        outputs: vec![plain(topology.ejection(*host))],
                        progress: progress.clone(),
                    }];
                }
                let routing = self.up_down();
                let target = *switch;
                let distances =
                    self.distances[target.index()].get_or_insert_with(|| routing.distances(topology, target));
                let outputs: Vec<Channel> =
                    routing.shortest_links(topology, distances, at, gone_down).map(plain).collect();
                vec![Branch { outputs, progress: Progress::Adaptive { gone_down } }]
            }
            (Way::Fixed { stops, .. }, &Progress::Fixed { passed }) => {
                let stop = &stops[passed as usize];
                let next = Progress::Fixed { passed: passed + 1 };
                let outputs = stop.drops.iter().map(|&link| plain(link)).chain(stop.onward);
                outputs.map(|output| Branch { outputs: vec![output], progress: next.clone() }).collect()
            }
            (Way::Tree { ascent, targets, .. }, Progress::Ascending) => {
                if ascent.from(at) == Some(0) {
                    return self.descend(worm, at, targets);
                }
                let outputs = self.up_down().ascending_links(topology, ascent, at).map(plain).collect();
                vec![Branch { outputs, progress: Progress::Ascending }]
            }
            (Way::Tree { .. }, Progress::Descending { targets }) => self.descend(worm, at, targets),
            _ => unreachable!("a packet's progress is of its way's kind"),
        }
    }

    /// The progress of a copy that leaves a switch by a link.
    pub fn onward(&self, progress: Progress, link: LinkId) -> Progress {
        match progress {
            Progress::Adaptive { gone_down: false } if self.topology().link(link).to.switch().is_some() => {
                Progress::Adaptive { gone_down: !self.up_down().is_up(self.topology(), link) }
            }
            other => other,
        }
    }

    fn descend(&self, worm: u32, at: SwitchId, targets: &FixedBitSet) -> Vec<Branch> {
        let Way::Tree { hosts, .. } = &self.ways[worm as usize] else {
            unreachable!("only tree worms descend")
        };
        let mut branches: Vec<Branch> = Vec::new();
        if targets[at.index()] {
            branches.extend(hosts[&at].iter().map(|&link| Branch {
                outputs: vec![Channel { link, virtual_channel: 0 }],
                progress: Progress::Ascending,
            }));
        }
        let copies = self.up_down().copies(self.topology(), at, targets, self.parameters.overlap);
        branches.extend(copies.into_iter().map(|(link, targets)| Branch {
            outputs: vec![Channel { link, virtual_channel: 0 }],
            progress: Progress::Descending { targets },
        }));
        branches
    }
}

fn way(fabric: &Fabric, plan: &Plan, worm: &Worm, parameters: &Parameters) -> Way {
    let topology = fabric.topology();
    let host_of = |member| plan.placement().host_of(member);
    match worm.kind {
        WormKind::Local => Way::Local,
        WormKind::Unicast if worm.route.is_empty() && fabric.routing().up_down().is_some() => {
            let host = host_of(worm.to[0]);
            Way::Adaptive { host, switch: topology.switch_of(host) }
        }
        WormKind::Unicast => {
            let header = parameters.unicast_header_flits;
            let mut route = worm.route.clone();
            if route.is_empty() {
                route = RouteFinder::new(topology, fabric.routing())
                    .route(host_of(worm.from), host_of(worm.to[0]));
            }
            Way::Fixed { first: route[0], header, address: header, stops: stops(topology, &route) }
        }
        WormKind::Path => {
            let mut stops = stops(topology, &worm.route);
            let header = set_path_header(topology, &mut stops, &worm.route);
            Way::Fixed { first: worm.route[0], header, address: Flits(1), stops }
        }
        WormKind::Tree => {
            let routing =
                fabric.routing().up_down().expect("tree worms are planned on up*/down* fabrics only");
            let mut reached: Vec<HostId> = worm.to.iter().map(|&to| host_of(to)).collect();
            reached.sort_unstable();
            reached.dedup();
            let targets = UpDown::switches_of(topology, &reached);
            let mut hosts: BTreeMap<SwitchId, Vec<LinkId>> = BTreeMap::new();
            for host in reached {
                hosts.entry(topology.switch_of(host)).or_default().push(topology.ejection(host));
            }
            Way::Tree { ascent: routing.ascent(topology, &targets), targets, hosts }
        }
    }
}

/// The switches of a route, each with what leaves there: drops to hosts, and the way on.
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

/// A path worm's header has two fields for each switch with drops: a host id of one flit, and a bit string with a bit a
/// port, rounded up to flits. On a torus host and router are one node, and the id is enough. A switch that drops takes its
/// fields off.
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
