//! Simulation of plans on fabrics.
//!
//! [`Run`] says what is simulated: a plan on a fabric, who forwards ([`Offload`]), how long the message is, and the
//! [`Parameters`] of hosts, network interfaces and switches. Two simulators ([`Simulator`]) do the same: one goes from
//! event to event, exact to the cycle where an input buffer holds a whole packet; the other looks at every flit in every
//! cycle. docs/simulation.md states the model and derives its closed forms.
//!
//! ```
//! use treecast_fabric::{Fabric, FabricSpec, Flits};
//! use treecast_plan::{Group, MemberId, Placement, PlanOptions, plan};
//! use treecast_sim::{Offload, Parameters, Run, Simulator, Status};
//!
//! let fabric = Fabric::from_spec(&"star:4".parse::<FabricSpec>()?)?;
//! let group = Group::new(Placement::one_per_host(4), MemberId(0), vec![MemberId(1)])?;
//! let plan = plan(&fabric, &group, &"binomial".parse()?, &PlanOptions::default())?;
//! let parameters = Parameters::default();
//! let run = Run { fabric: &fabric, plan: &plan, offload: Offload::Host, message: Flits(128), parameters: &parameters, seed: 1, simulator: Simulator::Event };
//! let outcome = run.simulate()?;
//! assert_eq!(outcome.status, Status::Complete);
//! // Four overheads of 1,000 cycles, two bus transfers of 97, 129 flits over one switch.
//! assert_eq!(outcome.latency.unwrap().0, 4 * 1_000 + 2 * 97 + (1 + 3 + 129 - 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate is pure: one seed makes one run, byte for byte.

#[cfg(test)]
mod cases;
mod cycle;
mod deadlock;
mod document;
#[cfg(test)]
mod equality;
mod error;
mod event;
mod load;
mod multicast;
mod observer;
mod outcome;
mod parameters;
mod run;
mod trace;
mod way;

pub use deadlock::{DEADLOCK_INTERVAL, Deadlock, Wait};
pub use document::{DeadlockDocument, DeliveryDocument, FORMAT, RunContext, RunDocument, WaitDocument};
pub use error::SimError;
pub use load::{
    Arrivals, BACKLOG_PER_HOST, DestinationSets, LOAD_FORMAT, LinkUtilization, LoadContext, LoadDocument,
    LoadFigures, LoadOutcome, LoadRun, LoadSetup, SATURATION_FORMAT, Saturation, SaturationDocument,
    SaturationPoint, SaturationPointDocument,
};
pub use observer::{Slice, Track, Work};
pub use outcome::{Delivery, Outcome, Status};
pub use parameters::{Adaptive, Arbitration, Headers, Key, Parameters, Replication, RoutingStart, Switching};
pub use run::Run;
pub use trace::Trace;

use std::fmt;
use std::str::FromStr;

use treecast_fabric::{Cycles, Fabric, Flits, SpecError};
use treecast_plan::{PACKETS_MAX, Placement};

use multicast::Multicast;
use observer::Observer;

pub use treecast_wire::{Offload, UnknownOffload};

/// Who decides what happens when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Simulator {
    /// From event to event: fast. Exact with virtual cut-through switching.
    #[default]
    Event,
    /// Every flit in every cycle: slow, and obviously right. Any switching, any buffers.
    Cycle,
}

impl Simulator {
    /// All of them with their names.
    pub const NAMES: [(&str, Self); 2] = [("event", Self::Event), ("cycle", Self::Cycle)];

    /// The fastest that knows how packets flow.
    pub const fn fastest_for(switching: Switching) -> Self {
        match switching {
            Switching::CutThrough => Self::Event,
            Switching::Wormhole => Self::Cycle,
        }
    }
}

impl FromStr for Simulator {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|&(_, simulator)| simulator).ok_or_else(|| SpecError::UnknownName {
            what: "simulator",
            given: text.into(),
            known: Self::NAMES.map(|(name, _)| name.to_string()).to_vec(),
        })
    }
}

impl fmt::Display for Simulator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Event => "event",
            Self::Cycle => "cycle",
        })
    }
}

/// Where multicasts run, and until when: what both simulators are given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub fabric: &'a Fabric,
    pub placement: Placement,
    pub parameters: &'a Parameters,
    pub seed: u64,
    /// The last cycle.
    pub last: Cycles,
    /// The most multicasts under way at once; one more ends the run.
    pub in_flight_max: usize,
}

/// How a simulation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing is left to happen.
    Quiet,
    /// The last cycle is over.
    Last,
    /// Some packets will never go on.
    Deadlocked(Deadlock),
    /// There would have been too many multicasts under way in this cycle.
    Backlog(Cycles),
}

/// Simulates multicasts, given in the order of their starts. The answer holds how many events that took, or cycles where
/// every one is looked at.
fn simulate(
    simulator: Simulator,
    setting: &Setting,
    multicasts: impl Iterator<Item = Result<Multicast, SimError>>,
    observer: &mut impl Observer,
) -> Result<(Ending, u64), SimError> {
    match simulator {
        Simulator::Event => event::simulate(setting, multicasts, observer),
        Simulator::Cycle => cycle::simulate(setting, multicasts, observer),
    }
}

/// The longest message.
pub const MESSAGE_MAX: Flits = Flits(1 << 40);

/// How many packets a message is cut into.
///
/// # Errors
/// [`SimError::EmptyMessage`], [`SimError::MessageTooLong`] beyond [`MESSAGE_MAX`], [`SimError::TooManyPackets`] beyond
/// [`PACKETS_MAX`].
pub fn packet_count(message: Flits, packet_flits: Flits) -> Result<u32, SimError> {
    if message == Flits::ZERO {
        return Err(SimError::EmptyMessage);
    }
    if message > MESSAGE_MAX {
        return Err(SimError::MessageTooLong(message));
    }
    let packets = message.0.div_ceil(packet_flits.0.max(1));
    u32::try_from(packets)
        .ok()
        .filter(|&packets| packets <= PACKETS_MAX)
        .ok_or(SimError::TooManyPackets { packets, packets_max: PACKETS_MAX })
}
