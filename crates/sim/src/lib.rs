//! Simulation of plans on fabrics.
//!
//! A [`Run`] is one multicast: a plan on a fabric, what forwards ([`Offload`]), the length of the
//! message, and the [`Parameters`] of hosts, network interfaces and switches. It may also be an
//! all-reduce or a barrier ([`Operation`]), whose contributions first go up the plan's tree. A
//! [`LoadRun`] is many multicasts under load. Two simulators ([`Simulator`]) give the same outcome:
//! one is event-driven, exact to the cycle where an input buffer holds a whole packet; the other
//! simulates every flit in every cycle. docs/simulation.md states the model and derives its closed
//! forms.
//!
//! ```
//! use treecast_fabric::{Fabric, FabricSpec};
//! use treecast_terms::Flits;
//! use treecast_plan::{Group, MemberId, Placement, PlanOptions, plan};
//! use treecast_sim::{Offload, Operation, Parameters, Run, Simulator, Status};
//!
//! let fabric = Fabric::from_spec(&"star:4".parse::<FabricSpec>()?)?;
//! let group = Group::new(Placement::one_per_host(4), MemberId(0), vec![MemberId(1)])?;
//! let plan = plan(&fabric, &group, &"binomial".parse()?, &PlanOptions::default())?;
//! let parameters = Parameters::default();
//! let run = Run { fabric: &fabric, plan: &plan, operation: Operation::Broadcast, offload: Offload::Host, message: Flits(128), parameters: &parameters, seed: 1, simulator: Simulator::Event };
//! let outcome = run.simulate()?;
//! assert_eq!(outcome.status, Status::Complete);
//! // Four overheads of 1,000 cycles, two bus transfers of 97, 129 flits through one switch.
//! assert_eq!(outcome.latency.unwrap().0, 4 * 1_000 + 2 * 97 + (1 + 3 + 129 - 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate is pure: a run depends on its inputs and its seed only, byte for byte.

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
mod path;
mod run;
mod setting;
mod simulator;
mod trace;

pub use deadlock::{DEADLOCK_INTERVAL, Deadlock, Wait};
pub use document::{DeadlockDocument, DeliveryDocument, FORMAT, RunContext, RunDocument, WaitDocument};
pub use error::SimError;
pub use load::{
    Arrivals, DestinationSets, LOAD_FORMAT, LinkUtilization, LoadContext, LoadDocument, LoadFigures,
    LoadOutcome, LoadRun, LoadSetup, Permutation, SATURATION_FORMAT, Saturation, SaturationDocument,
    SaturationPoint, SaturationPointDocument, ShortWindow,
};
pub use multicast::{BARRIER_MESSAGE, MESSAGE_MAX, packet_count};
pub use observer::{Recorder, Slice, Track, Watch, Work, unwatched};
pub use outcome::{Delivery, Outcome, Status};
pub use parameters::{
    Adaptive, Arbitration, Headers, Key, NicProcessors, Parameters, Replication, RoutingStart, Switching,
};
pub use run::Run;
pub use simulator::Simulator;
pub use trace::Trace;
pub use treecast_terms::{Offload, Operation, UnknownOffload};
