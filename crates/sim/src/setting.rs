//! What both simulators are given, and how their runs end.

use treecast_fabric::Fabric;
use treecast_plan::Placement;
use treecast_terms::Cycles;

use crate::deadlock::Deadlock;
use crate::parameters::Parameters;

/// Where multicasts run, and until when: what both simulators are given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub fabric: &'a Fabric,
    pub placement: Placement,
    pub parameters: &'a Parameters,
    pub seed: u64,
    /// The last cycle.
    pub last_cycle: Cycles,
    /// The most multicasts in flight at once; one more ends the run.
    pub in_flight_max: usize,
}

/// How a simulation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing is left to happen.
    Drained,
    /// The last cycle is over.
    CycleLimit,
    /// Some packets will never go on.
    Deadlocked(Deadlock),
    /// There would have been too many multicasts in flight in this cycle.
    BacklogLimit(Cycles),
}
