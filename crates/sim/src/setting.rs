//! The input of both simulators, and how their runs end.

use treecast_fabric::Fabric;
use treecast_plan::Placement;
use treecast_terms::Cycles;

use crate::deadlock::Deadlock;
use crate::parameters::Parameters;

/// The input of both simulators besides the multicasts: where they run, and until when.
#[derive(Debug, Clone)]
pub(crate) struct Setting<'a> {
    pub fabric: &'a Fabric,
    pub placement: Placement,
    pub parameters: &'a Parameters,
    pub seed: u64,
    /// The last cycle.
    pub last_cycle: Cycles,
    /// The bound of multicasts in flight. One more ends the run.
    pub in_flight_max: usize,
}

/// How a simulation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Every multicast is delivered and no event is left, or no event can follow.
    Drained,
    /// The run has reached its last cycle.
    CycleLimit,
    /// Some packets can never proceed.
    Deadlocked(Deadlock),
    /// In this cycle a multicast arrived while [`Setting::in_flight_max`] were in flight.
    BacklogLimit(Cycles),
}
