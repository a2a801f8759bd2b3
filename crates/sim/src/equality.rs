//! Both simulators report the same work of hosts and links, to the cycle, wherever both apply:
//! property tests with many multicasts at once, over random fabrics, schemes, parameters and
//! policies.

use proptest::prelude::*;
use treecast_terms::{Cycles, Flits};

use crate::cases::{Case, Record, Stage, cases};
use crate::error::SimError;
use crate::parameters::Switching;
use crate::setting::Ending;
use crate::{cycle, event};

type Observed = (Record, Result<Ending, SimError>);

fn by_event(case: &Case, stage: &Stage) -> Observed {
    let (mut record, multicasts) = (Record::default(), case.multicasts(stage).into_iter().map(Ok));
    let ending = event::simulate(&case.setting(stage), multicasts, &mut record);
    (record.sorted(), ending.map(|(ending, _)| ending))
}

fn by_cycle(case: &Case, stage: &Stage) -> Observed {
    let (mut record, multicasts) = (Record::default(), case.multicasts(stage).into_iter().map(Ok));
    let ending = cycle::simulate(&case.setting(stage), multicasts, &mut record);
    (record.sorted(), ending.map(|(ending, _)| ending))
}

fn expect_same(
    (event, event_ending): Observed,
    (cycle, cycle_ending): Observed,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(event.delivered, cycle.delivered);
    prop_assert_eq!(event.worked, cycle.worked);
    prop_assert_eq!(event.carried, cycle.carried);
    prop_assert_eq!(event.started, cycle.started);
    prop_assert_eq!(event_ending, cycle_ending);
    Ok(())
}

/// The number of cases that the environment sets, but at least `cases`.
fn at_least(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { failure_persistence: None, cases: config.cases.max(cases), ..config }
}

proptest! {
    #![proptest_config(at_least(400))]

    #[test]
    fn both_simulators_report_the_same(case in cases()) {
        let stage = case.stage();
        let expected = by_event(&case, &stage);
        prop_assert!(case.in_flight_peak(&stage, &expected.0) <= case.in_flight_max);
        expect_same(expected, by_cycle(&case, &stage))?;
    }

    /// Where every buffer has room for all packets, and each link has one channel, flits never wait
    /// for one another in the network.
    #[test]
    fn with_room_for_everything_wormhole_switching_is_virtual_cut_through(case in cases()) {
        let case = case.on_one_channel();
        let mut stage = case.stage();
        stage.parameters.buffer_flits = Flits(1 << 30);
        if case.has_path_worms() {
            // A switch may read their fields before the next flit has arrived. Only here does that
            // make a difference.
            stage.parameters.routing_delay += Cycles(1);
        }
        stage.parameters.cycles_max = Cycles(1_000_000);
        let mut event = by_event(&case, &stage);
        stage.parameters.switching = Switching::Wormhole;
        let mut cycle = by_cycle(&case, &stage);
        if event.1 != Ok(Ending::Drained) {
            // A run that ends before its packets have arrived reports the transfers so far.
            event.0.carried.clear();
            cycle.0.carried.clear();
        }
        expect_same(event, cycle)?;
    }
}
