//! Tests of the reference simulator by itself, above all with wormhole switching.

use proptest::prelude::*;
use treecast_fabric::{Channel, Fabric, FabricSpec, HostId, RoutingPolicy};
use treecast_plan::{Group, MemberId, Placement, PlanOptions, plan};
use treecast_terms::{Cycles, Flits};

use super::Simulation;
use crate::cases::{Record, cases};
use crate::deadlock::Deadlock;
use crate::error::SimError;
use crate::multicast::{Multicast, MulticastParameters};
use crate::observer::Track;
use crate::parameters::{Parameters, Switching};
use crate::setting::{Ending, Setting};
use crate::{cycle, event};
use treecast_terms::Offload;

/// Hosts whose work takes no time, so that only the network does.
const IDLE_HOSTS: &str = "host_overhead=0,nic_overhead=0,bus_mb_per_s=0";

/// A multicast: its scheme, its start, its root, its destinations.
type Sent<'a> = (&'a str, u64, u32, &'a [u32]);

struct Setup {
    fabric: Fabric,
    parameters: Parameters,
    message: Flits,
}

impl Setup {
    fn new(fabric: &str, routing: &str, message: u64, parameters: &str) -> Self {
        let topology = fabric.parse::<FabricSpec>().unwrap().topology().unwrap();
        let fabric = Fabric::new(topology, routing.parse::<RoutingPolicy>().unwrap()).unwrap();
        let parameters = format!("{IDLE_HOSTS},{parameters}").parse().unwrap();
        Self { fabric, parameters, message: Flits(message) }
    }

    fn placement(&self) -> Placement {
        Placement::one_per_host(self.fabric.topology().host_count())
    }

    fn setting(&self) -> Setting<'_> {
        let (fabric, placement, parameters) = (&self.fabric, self.placement(), &self.parameters);
        Setting { fabric, placement, parameters, seed: 1, last_cycle: Cycles(100_000), in_flight_max: 9 }
    }

    fn multicasts(&self, sent: &[Sent]) -> Vec<Result<Multicast, SimError>> {
        let multicast = |(number, &(scheme, start, root, to)): (u64, &Sent)| {
            let to = to.iter().map(|&member| MemberId(member)).collect();
            let group = Group::new(self.placement(), MemberId(root), to).unwrap();
            let plan = plan(&self.fabric, &group, &scheme.parse().unwrap(), &PlanOptions::default()).unwrap();
            let (start, message) = (Cycles(start), self.message);
            let multicast =
                MulticastParameters { number, start, offload: Offload::Host, message, reduces: false };
            Multicast::new(&self.fabric, &self.parameters, &plan, multicast)
        };
        (0..).zip(sent).map(multicast).collect()
    }

    fn simulate(&self, sent: &[Sent]) -> (Record, Result<Ending, SimError>) {
        let mut record = Record::default();
        let multicasts = self.multicasts(sent).into_iter();
        let ending = cycle::simulate(&self.setting(), multicasts, &mut record).map(|(ending, _)| ending);
        (record, ending)
    }

    /// When each multicast reaches its last destination, in the order of their numbers.
    fn arrivals(&self, sent: &[Sent]) -> Vec<u64> {
        let (record, ending) = self.simulate(sent);
        assert_eq!(ending, Ok(Ending::Drained));
        let of = |number: u64| record.delivered.iter().filter(move |delivered| delivered.1 == number);
        (0..sent.len() as u64)
            .map(|number| of(number).map(|delivered| delivered.0.0).max().unwrap())
            .collect()
    }

    fn deadlock(&self, sent: &[Sent]) -> Deadlock {
        match self.simulate(sent).1 {
            Ok(Ending::Deadlocked(deadlock)) => deadlock,
            other => panic!("{other:?}"),
        }
    }
}

/// The closed form of a worm without contention: h switches, w flits, 3 cycles from one switch to
/// the next.
fn transit(h: u64, w: u64) -> u64 {
    1 + h * 3 + w - 1
}

#[test]
fn a_worm_that_meets_nobody_takes_as_long_as_the_closed_form() {
    for switching in ["cut-through", "wormhole"] {
        let parameters = format!("switching={switching}");
        let setup = Setup::new("fat-tree:k=4", "up-down", 128, &parameters);
        // A switch is between hosts 0 and 1, three to host 2, five to host 4.
        for (host, switches) in [(1, 1), (2, 3), (4, 5)] {
            assert_eq!(setup.arrivals(&[("binomial", 0, 0, &[host])]), [transit(switches, 129)]);
        }
    }
}

/// Room that becomes free in cycle t is used in t + 1, and a flit takes `crossbar + link`, here 2
/// cycles, to the next switch. So room for three flits keeps a link busy, and room for one lets a
/// flit through every three cycles. From the host a flit takes `link` alone.
#[test]
fn a_wormhole_network_needs_buffers_for_the_round_trip_to_be_as_fast() {
    let arrival = |host: u32, buffer: u64| {
        let parameters = format!("switching=wormhole,buffer_flits={buffer}");
        let setup = Setup::new("fat-tree:k=4", "up-down", 128, &parameters);
        setup.arrivals(&[("binomial", 0, 0, &[host])])[0]
    };
    assert_eq!([arrival(1, 1), arrival(1, 3)], [1 + 3 + 2 * 128, transit(1, 129)]);
    assert_eq!([arrival(2, 1), arrival(2, 4)], [1 + 3 * 3 + 3 * 128, transit(3, 129)]);
    assert_eq!([arrival(4, 1), arrival(4, 4)], [1 + 5 * 3 + 3 * 128, transit(5, 129)]);
}

#[test]
fn a_buffer_must_hold_what_a_switch_reads_at_once() {
    let setup = |buffer: u64| {
        let parameters = format!("switching=wormhole,buffer_flits={buffer}");
        Setup::new("icpp98", "up-down", 128, &parameters)
    };
    let error = |buffer, scheme| {
        let sent: [Sent; 1] = [(scheme, 0, 0, &[1, 9, 17, 25])];
        setup(buffer).simulate(&sent).1.map_err(|error| error.to_string())
    };
    assert_eq!(
        error(3, "tree-worm").unwrap_err(),
        "a switch must read 4 header flits at once, which do not fit an input buffer of 3 flits (set buffer_flits to at least 4, \
         or headers=free)"
    );
    assert_eq!(error(4, "tree-worm"), Ok(Ending::Drained));
    assert!(matches!(error(1, "path:policy=mdp-g"), Err(text) if text.contains("read 2 header flits")));
    assert_eq!(error(2, "path:policy=mdp-g"), Ok(Ending::Drained));
    assert_eq!(error(1, "binomial"), Ok(Ending::Drained));
}

/// Each worm goes two steps around a ring of four: it holds a link, and waits for the next.
const ROUND: [Sent<'static>; 4] =
    [("separate", 0, 0, &[2]), ("separate", 0, 1, &[3]), ("separate", 0, 2, &[0]), ("separate", 0, 3, &[1])];

#[test]
fn worms_on_a_ring_wait_for_one_another_unless_there_is_a_dateline() {
    for parameters in [
        "switching=wormhole,buffer_flits=1,packet_flits=100",
        "switching=wormhole,buffer_flits=50,packet_flits=100",
        "buffer_flits=33,packet_flits=32",
    ] {
        let ring = |routing| Setup::new("torus:k=4,n=1,uni", routing, 100, parameters);
        let deadlock = ring("dimension-order:channels=none").deadlock(&ROUND);
        assert_eq!((deadlock.cycle, deadlock.waits.len()), (Cycles(10_000), 4), "{parameters}");
        let multicasts: Vec<u64> = deadlock.waits.iter().map(|wait| wait.multicast).collect();
        assert!((0..4).all(|multicast| multicasts.contains(&multicast)));
        for (wait, next) in deadlock.waits.iter().zip(deadlock.waits.iter().cycle().skip(1)) {
            // It lies behind the link that the one before it waits for.
            assert_eq!(wait.wants, next.at, "{parameters}");
        }
        assert_eq!(ring("dimension-order").simulate(&ROUND).1, Ok(Ending::Drained), "{parameters}");
    }
}

/// With `round-robin` the output to host 3 turns to host 1 after host 0; that to host 2 begins with
/// host 0.
const CROSSED: [Sent<'static>; 3] =
    [("separate", 0, 0, &[3]), ("tree-worm", 1_000, 0, &[2, 3]), ("tree-worm", 1_000, 1, &[2, 3])];

#[test]
fn worms_whose_copies_go_together_can_hold_what_the_other_waits_for() {
    for switching in ["cut-through", "wormhole"] {
        let setup = |policies: &str| {
            let parameters = format!("switching={switching},arbitration=round-robin,{policies}");
            Setup::new("star:4", "up-down", 100, &parameters)
        };
        let deadlock = setup("replication=synchronous").deadlock(&CROSSED);
        assert_eq!(
            deadlock.describe(&setup("").fabric),
            "2 packets are stuck at cycle 10000; 2 of them wait for one another in a cycle:\n  \
             multicast 1 worm 0 packet 0 arrived over h0>s0:0 and waits for s0:3>h3\n  \
             multicast 2 worm 0 packet 0 arrived over h1>s0:1 and waits for s0:2>h2\n"
        );
        assert_eq!(setup("").simulate(&CROSSED).1, Ok(Ending::Drained));
    }
}

#[test]
fn copies_on_their_own_hold_each_other_up_only_where_a_buffer_is_smaller_than_a_packet() {
    let setup = |buffer: u32| {
        let policies = "switching=wormhole,arbitration=round-robin,replication=asynchronous";
        Setup::new("star:4", "up-down", 100, &format!("{policies},buffer_flits={buffer}"))
    };
    let deadlock = setup(50).deadlock(&CROSSED);
    assert_eq!((deadlock.stuck, deadlock.waits.len()), (2, 2));
    assert_eq!(setup(101).simulate(&CROSSED).1, Ok(Ending::Drained));
}

#[test]
fn each_arbitration_serves_those_that_wait_in_its_own_order() {
    let order = |arbitration: &str, sent: &[Sent]| {
        let setup = Setup::new("star:5", "up-down", 100, &format!("arbitration={arbitration}"));
        let arrivals = setup.arrivals(sent);
        let mut order: Vec<usize> = (0..sent.len()).collect();
        order.sort_by_key(|&multicast| arrivals[multicast]);
        order
    };
    // Host 2 sends first; then host 3 comes before host 1.
    let sent: [Sent; 3] = [("separate", 0, 2, &[4]), ("separate", 10, 3, &[4]), ("separate", 20, 1, &[4])];
    assert_eq!(order("oldest-first", &sent), [0, 1, 2]);
    assert_eq!(order("lowest-link", &sent), [0, 2, 1]);
    assert_eq!(order("round-robin", &sent), [0, 1, 2]);
    // The same, but host 1 comes before host 3.
    let sent: [Sent; 3] = [("separate", 0, 2, &[4]), ("separate", 10, 1, &[4]), ("separate", 20, 3, &[4])];
    assert_eq!(order("oldest-first", &sent), [0, 1, 2]);
    assert_eq!(order("lowest-link", &sent), [0, 1, 2]);
    assert_eq!(order("round-robin", &sent), [0, 2, 1]);
}

/// Two packets of 101 flits on the two channels of the only link between two switches.
#[test]
fn worms_on_several_channels_of_a_link_take_turns() {
    let fabric = "irregular:switches=2,ports=3,hosts=4,connectivity=0,seed=1";
    let setup = Setup::new(fabric, "up-down:channels=2", 100, "switching=wormhole");
    let topology = setup.fabric.topology();
    let near = topology.switch_of(HostId(0));
    let (here, there): (Vec<HostId>, Vec<HostId>) =
        topology.hosts().partition(|&host| topology.switch_of(host) == near);
    let to = [[there[0].0], [there[1].0]];
    let sent: [Sent; 2] = [("separate", 0, here[0].0, &to[0]), ("separate", 0, here[1].0, &to[1])];
    let (record, _) = setup.simulate(&sent);
    let (between, _) = topology.neighbours(near).next().unwrap();
    let mut slices: Vec<(u8, u64, u64)> = Vec::new();
    for (_, slice, flits) in &record.carried {
        if let Track::Link(Channel { link, virtual_channel }) = slice.track
            && link == between
        {
            assert_eq!(*flits, Flits(101));
            slices.push((virtual_channel, slice.from.0, slice.to.0));
        }
    }
    slices.sort_unstable();
    // Granted in cycle 2; the lower channel goes first.
    assert_eq!(slices, [(0, 2, 2 + 201), (1, 2, 2 + 202)]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    /// A search in every cycle finds exactly the deadlocks that exist when the run ends.
    #[test]
    fn a_search_in_every_cycle_finds_the_deadlocks_of_the_end(case in cases(), wormhole in any::<bool>(), buffer in 1_u64..60) {
        let mut stage = case.stage();
        if wormhole {
            stage.parameters.switching = Switching::Wormhole;
            stage.parameters.buffer_flits = Flits(buffer);
        }
        stage.parameters.cycles_max = Cycles(1_000_000);
        let simulate = |stage: &_, deadlock_interval: u64| {
            let (setting, mut record) = (case.setting(stage), Record::default());
            let mut simulation = Simulation::new(&setting, &mut record);
            simulation.deadlock_interval = Cycles(deadlock_interval);
            let multicasts = case.multicasts(stage).into_iter().map(Ok);
            let ending = simulation.run(multicasts.peekable());
            (record.sorted(), ending)
        };
        let (mut seldom, mut ending) = simulate(&stage, 10_000);
        while let Err(SimError::HeaderExceedsBuffer { header, .. }) = ending {
            stage.parameters.buffer_flits = Flits(header);
            (seldom, ending) = simulate(&stage, 10_000);
        }
        let (always, found) = simulate(&stage, 1);
        prop_assert_ne!(&ending, &Ok(Ending::CycleLimit), "what waits for ever is found");
        match (ending.unwrap(), found.unwrap()) {
            (Ending::Deadlocked(late), Ending::Deadlocked(early)) => {
                prop_assert!(early.cycle <= late.cycle && early.stuck <= late.stuck);
            }
            (ending, found) => {
                prop_assert_eq!(ending, found);
                prop_assert_eq!(seldom, always);
            }
        }
    }
}

#[test]
fn the_event_simulator_leaves_wormhole_switching_to_this_one() {
    let setup = Setup::new("star:4", "up-down", 100, "switching=wormhole");
    let multicasts = setup.multicasts(&[("separate", 0, 0, &[1])]).into_iter();
    let ending = event::simulate(&setup.setting(), multicasts, &mut Record::default());
    assert_eq!(ending, Err(SimError::NeedsCycle));
}
