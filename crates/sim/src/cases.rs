//! Random cases for the tests of both simulators: a fabric, parameters, policies, and multicasts
//! that contend.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use treecast_fabric::{Fabric, FabricSpec, HostId, RoutingPolicy, Ties, VirtualChannels};
use treecast_plan::{Arrangement, Group, MemberId, MemberList, Placement, PlanOptions, plan};
use treecast_terms::{Cycles, Flits};

use crate::multicast::{Multicast, MulticastParameters};
use crate::observer::{Observer, Slice};
use crate::parameters::Parameters;
use crate::setting::Setting;
use treecast_terms::Offload;

/// All events that a simulation reports.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub started: Vec<(u64, Cycles)>,
    pub delivered: Vec<(Cycles, u64, MemberId, HostId)>,
    pub worked: Vec<(Cycles, Slice)>,
    pub carried: Vec<(Cycles, Slice, Flits)>,
}

impl Observer for Record {
    fn started(&mut self, multicast: u64, cycle: Cycles) {
        self.started.push((multicast, cycle));
    }

    fn delivered(&mut self, multicast: u64, member: MemberId, host: HostId, cycle: Cycles) {
        self.delivered.push((cycle, multicast, member, host));
    }

    fn worked(&mut self, slice: &Slice) {
        self.worked.push((slice.from, *slice));
    }

    fn carried(&mut self, slice: &Slice, flits: Flits) {
        self.carried.push((slice.from, *slice, flits));
    }
}

impl Record {
    pub fn sorted(mut self) -> Self {
        self.started.sort_unstable();
        self.delivered.sort_unstable();
        self.worked.sort_unstable();
        self.carried.sort_unstable();
        self
    }
}

/// A multicast of a case. Its root and group depend on the fabric.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    scheme: &'static str,
    offload: Offload,
    root: Index,
    size: Index,
    start: u64,
    /// In whole packets, and further flits.
    message: (u64, Index),
    /// Whether contributions go up first, if the message is one packet.
    reduces: bool,
    seed: u64,
}

/// The input of both simulators.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub fabric: String,
    pub routing: String,
    processes: u32,
    arrangement: Arrangement,
    /// A buffer has room for the longest packet, and for `buffer_flits` - 1 more flits.
    parameters: String,
    multicasts: Vec<Drawn>,
    pub in_flight_max: usize,
    seed: u64,
}

/// The fabric and the parameters of a case.
pub(crate) struct Stage {
    pub fabric: Fabric,
    pub placement: Placement,
    pub parameters: Parameters,
}

impl Case {
    /// Builds the fabric and the parameters.
    pub fn stage(&self) -> Stage {
        let spec: FabricSpec = self.fabric.parse().unwrap();
        let routing: RoutingPolicy = self.routing.parse().unwrap();
        let fabric = Fabric::new(spec.topology().unwrap(), routing).unwrap();
        let hosts = fabric.topology().host_count();
        let placement = Placement::new(hosts, self.processes, self.arrangement).unwrap();
        let mut stage = Stage { fabric, placement, parameters: self.parameters.parse().unwrap() };
        let packets = self.multicasts(&stage).into_iter().map(|multicast| multicast.longest_packet());
        let longest = packets.map(|(payload, header)| payload + header).max().unwrap_or_default();
        stage.parameters.buffer_flits += Flits(longest.0.saturating_sub(1));
        stage
    }

    /// The same case with one virtual channel per link.
    pub fn on_one_channel(mut self) -> Self {
        let policy = match self.routing.parse().unwrap() {
            RoutingPolicy::UpDown { root, .. } => RoutingPolicy::UpDown { root, channels: 1 },
            RoutingPolicy::ShortestPath { .. } => RoutingPolicy::ShortestPath { channels: 1 },
            RoutingPolicy::Minimal | RoutingPolicy::Valiant | RoutingPolicy::Ugal => {
                RoutingPolicy::UpDown { root: None, channels: 1 }
            }
            _ => RoutingPolicy::DimensionOrder { channels: VirtualChannels::None, ties: Ties::Up },
        };
        self.routing = policy.to_string();
        self
    }

    /// Whether switches strip fields off headers.
    pub fn has_path_worms(&self) -> bool {
        let of_paths = ["path", "s-torus", "md-torus", "mu-torus"];
        self.multicasts.iter().any(|drawn| of_paths.iter().any(|scheme| drawn.scheme.starts_with(scheme)))
    }

    /// The maximum number of multicasts in flight.
    pub fn in_flight_peak(&self, stage: &Stage, record: &Record) -> usize {
        let mut left: BTreeMap<u64, u32> = BTreeMap::new();
        let sizes: Vec<u32> = self.multicasts(stage).iter().map(Multicast::delivery_count).collect();
        let mut delivered = record.delivered.iter().peekable();
        let mut most = 0;
        for &(number, start) in &record.started {
            while let Some(&(_, number, ..)) = delivered.next_if(|&&(cycle, ..)| cycle < start) {
                *left.get_mut(&number).expect("what is delivered has begun") -= 1;
            }
            left.retain(|_, left| *left > 0);
            left.insert(number, sizes[number as usize]);
            most = most.max(left.len());
        }
        most
    }

    pub fn setting<'a>(&self, stage: &'a Stage) -> Setting<'a> {
        let Stage { fabric, placement, parameters } = stage;
        Setting {
            fabric,
            placement: placement.clone(),
            parameters,
            seed: self.seed,
            last_cycle: parameters.cycles_max,
            in_flight_max: self.in_flight_max,
        }
    }

    /// The multicasts whose schemes fit the fabric, in the order of their starts.
    pub fn multicasts(&self, stage: &Stage) -> Vec<Multicast> {
        let Stage { placement, .. } = stage;
        let members = placement.member_count() as usize;
        let root = |drawn: &Drawn| MemberId(drawn.root.index(members) as u32);
        let mut drawn: Vec<(u64, HostId, MemberId, &Drawn)> = self
            .multicasts
            .iter()
            .map(|drawn| (drawn.start, placement.host_of(root(drawn)), root(drawn), drawn))
            .collect();
        drawn.sort_by_key(|&(start, host, root, _)| (start, host, root));
        let mut multicasts = Vec::new();
        for (_, _, root, drawn) in drawn {
            multicasts.extend(drawn.multicast(stage, root, multicasts.len() as u64));
        }
        multicasts
    }
}

impl Drawn {
    /// The multicast, if its scheme fits the fabric and there are destinations.
    fn multicast(&self, stage: &Stage, root: MemberId, number: u64) -> Option<Multicast> {
        let Stage { fabric, placement, parameters } = stage;
        let others = placement.member_count().checked_sub(1).filter(|&others| others > 0)?;
        let count = 1 + self.size.index(others as usize) as u32;
        let destinations = MemberList::Random(count).resolve(placement, root, self.seed).unwrap();
        let group = Group::new(placement.clone(), root, destinations).unwrap();
        let (packets, rest) = self.message;
        let packet = parameters.packet_flits.0;
        let message = Flits(packets * packet + 1 + rest.index(packet as usize) as u64);
        let options = PlanOptions { packets: packets as u32 + 1, ..PlanOptions::default() };
        let plan = plan(fabric, &group, &self.scheme.parse().unwrap(), &options).ok()?;
        let reduces = self.reduces && packets == 0;
        let multicast = MulticastParameters {
            number,
            start: Cycles(self.start),
            offload: self.offload,
            message,
            reduces,
        };
        Some(Multicast::new(fabric, parameters, &plan, multicast).unwrap())
    }
}

fn fabrics() -> impl Strategy<Value = (String, String)> {
    let irregular =
        (1_u32..7, 1_u32..4, 0.0..1.0, 0_u64..1000).prop_map(|(switches, hosts, connectivity, seed)| {
            let hosts = switches * hosts;
            format!(
                "irregular:switches={switches},ports=6,hosts={hosts},connectivity={connectivity},seed={seed}"
            )
        });
    let plain = prop_oneof![
        4 => irregular,
        1 => (2_u32..8).prop_map(|hosts| format!("star:{hosts}")),
        1 => Just("fat-tree:k=4".to_string()),
        1 => Just("torus:k=3,n=2".to_string()),
        1 => Just("mesh:k=3,n=2".to_string()),
    ];
    let adaptive = (plain, any::<Index>(), 1..4, 0..4).prop_map(|(spec, root, channels, kind)| {
        let switches = spec.parse::<FabricSpec>().unwrap().topology().unwrap().switch_count();
        let root = root.index(switches as usize);
        let routing = match kind {
            0 => format!("shortest-path:channels={channels}"),
            1 => format!("up-down:channels={channels}"),
            _ => format!("up-down:root={root},channels={channels}"),
        };
        (spec, routing)
    });
    let grid =
        prop_oneof![(2_u32..9).prop_map(|k| (k, 1)), (2_u32..4).prop_map(|k| (k, 2)), Just((2_u32, 3_u32)),];
    let routings = select(vec![
        "dimension-order",
        "dimension-order:channels=none",
        "dimension-order:channels=balanced",
        "dimension-order:channels=balanced,ties=even",
    ]);
    let dimension_order = (grid, 0..3, routings).prop_map(|((k, n), kind, routing)| {
        let spec = match kind {
            0 => format!("torus:k={k},n={n},uni"),
            1 => format!("torus:k={k},n={n}"),
            _ => format!("mesh:k={k},n={n}"),
        };
        (spec, routing.to_string())
    });
    let direct = select(vec![
        "dragonfly:p=1",
        "dragonfly:p=2",
        "dragonfly:p=1,a=3,h=2,g=4",
        "hyperx:s=3x3,k=2,t=2",
        "hyperx:s=2x3x2",
        "hyperx:s=6,t=2",
    ]);
    let of_packets = (direct, select(vec!["minimal", "valiant", "ugal"]))
        .prop_map(|(spec, routing)| (spec.to_string(), routing.to_string()));
    prop_oneof![3 => adaptive, 2 => dimension_order, 2 => of_packets]
}

fn parameters() -> impl Strategy<Value = String> {
    // Some overheads are long enough to be scheduled beyond the timing wheel.
    let overhead = || prop_oneof![60 => 0_u64..60, 1 => 4_000_u64..9_000];
    let bus = select(vec![0_u64, 0, 100, 266, 900]);
    let hosts = (overhead(), overhead(), overhead(), overhead(), bus);
    let inside = (0_u64..30, select(vec![0_u64, 400]));
    let switches = (0_u64..4, 1_u64..4, 0_u64..4);
    let lengths = (8_u64..40, 1_u64..4, prop_oneof![Just(1_u64), 1_u64..80]);
    let policies = (
        select(vec!["per-direction", "shared"]),
        select(vec!["first-free", "random", "lowest"]),
        select(vec!["oldest-first", "lowest-link", "round-robin"]),
        select(vec!["asynchronous", "asynchronous", "synchronous"]),
        select(vec!["first-port", "widest-first"]),
        select(vec!["fields", "first-flit"]),
        select(vec!["counted", "free"]),
    );
    let last = prop_oneof![6 => Just(1_000_000_u64), 2 => 50_u64..3_000, 1 => 9_900_u64..30_000];
    (hosts, inside, switches, lengths, policies, last).prop_map(|(hosts, inside, switches, lengths, policies, last)| {
        let (host_send, host_receive, nic_send, nic_receive, bus) = hosts;
        let (local_overhead, local) = inside;
        let (routing, crossbar, link) = switches;
        let (packet, header, buffer) = lengths;
        let (processors, adaptive, arbitration, replication, overlap, routing_start, headers) = policies;
        format!(
            "host_send_overhead={host_send},host_receive_overhead={host_receive},nic_send_overhead={nic_send},\
             nic_receive_overhead={nic_receive},bus_mb_per_s={bus},local_overhead={local_overhead},\
             local_mb_per_s={local},routing_delay={routing},crossbar_delay={crossbar},link_delay={link},\
             packet_flits={packet},unicast_header_flits={header},buffer_flits={buffer},adaptive={adaptive},\
             arbitration={arbitration},replication={replication},overlap={overlap},routing_start={routing_start},\
             headers={headers},nic_processors={processors},cycles_max={last}"
        )
    })
}

const SCHEMES: [&str; 22] = [
    "separate",
    "serial",
    "binary",
    "binomial",
    "k-binomial",
    "postal:lambda=2.5",
    "u-torus",
    "s-torus",
    "s-torus:form=worm",
    "md-torus",
    "md-torus:form=worm",
    "mu-torus:r=3",
    "mu-torus:r=3,form=worm,relay=separate",
    "path",
    "path:policy=mdp-g",
    "path",
    "tree-worm",
    "tree-worm",
    "tree-worm",
    "leader:over=k-binomial,local=direct",
    "leader:over=tree-worm,local=binomial",
    "leader:over=separate",
];

fn multicast() -> impl Strategy<Value = Drawn> {
    let offload = select(vec![Offload::Host, Offload::Assisted, Offload::Nic]);
    // Some start close to a deadlock check.
    let starts = prop_oneof![6 => 0_u64..200, 1 => 9_900_u64..10_100];
    let drawn = (select(&SCHEMES[..]), offload, any::<Index>(), any::<Index>(), starts);
    (drawn, (0_u64..4, any::<Index>()), any::<bool>(), any::<u64>()).prop_map(
        |((scheme, offload, root, size, start), message, reduces, seed)| Drawn {
            scheme,
            offload,
            root,
            size,
            start,
            message,
            reduces,
            seed,
        },
    )
}

pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let arrangement = select(vec![Arrangement::Block, Arrangement::Cyclic]);
    let multicasts = prop::collection::vec(multicast(), 1..13);
    let in_flight_max = prop_oneof![4 => Just(12_usize), 1 => 1_usize..6];
    (fabrics(), 1_u32..4, arrangement, parameters(), (multicasts, in_flight_max), any::<u64>()).prop_map(
        |((fabric, routing), processes, arrangement, parameters, (multicasts, in_flight_max), seed)| Case {
            fabric,
            routing,
            processes,
            arrangement,
            parameters,
            multicasts,
            in_flight_max,
            seed,
        },
    )
}
