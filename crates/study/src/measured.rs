//! What runs give.

use serde::{Deserialize, Serialize};
use treecast_fabric::Cycles;
use treecast_plan::{Label, MemberId};
use treecast_sim::{LoadFigures, Status};

/// What one run gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The seed that drew its destinations or its traffic, and that its random choices come from.
    pub seed: u64,
    /// Where the scheme comes from.
    pub label: Label,
    /// How the run ended. A search for saturation is complete if it has found a load that is sustained.
    pub status: Status,
    /// What there is besides, by the kind of the run.
    pub quantities: Quantities,
}

/// What was measured, by the kind of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Quantities {
    /// Of one multicast on an idle fabric.
    Multicast(Multicast),
    /// Of a run under load.
    Load(LoadFigures),
    /// Of a search for saturation.
    Saturation {
        /// The highest applied load that was sustained, in flits a host and cycle; `None` if none was.
        applied_load: Option<f64>,
        /// How many of the loads tried ended in a deadlock.
        deadlocks: u32,
        /// How many loads were tried.
        points: u32,
    },
}

/// Of one multicast on an idle fabric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Multicast {
    /// The root.
    pub root: MemberId,
    /// The destinations in the order drawn.
    pub destinations: Vec<MemberId>,
    /// From the start of the send until the last destination has the message; `None` unless complete.
    pub latency: Option<Cycles>,
    /// How many worms were put into the fabric.
    pub worms: u32,
    /// What all CPUs together spent on sending and receiving.
    pub cpu_busy: Cycles,
}

impl Measured {
    /// The latency in cycles: of one multicast, or the mean under load. `None` where the run did not end complete.
    pub fn latency_cycles(&self) -> Option<f64> {
        let latency = match &self.quantities {
            Quantities::Multicast(multicast) => multicast.latency.map(|latency| latency.0 as f64),
            Quantities::Load(load) => load.latency_mean_cycles,
            Quantities::Saturation { .. } => None,
        };
        latency.filter(|_| self.status == Status::Complete)
    }

    /// What one multicast gave; `None` of a run of another kind.
    pub fn multicast(&self) -> Option<&Multicast> {
        match &self.quantities {
            Quantities::Multicast(multicast) => Some(multicast),
            _ => None,
        }
    }

    /// What a run under load gave; `None` of a run of another kind.
    pub fn load(&self) -> Option<&LoadFigures> {
        match &self.quantities {
            Quantities::Load(load) => Some(load),
            _ => None,
        }
    }

    /// The highest applied load that was sustained; `None` of a run of another kind too.
    pub fn saturation_applied_load(&self) -> Option<f64> {
        match self.quantities {
            Quantities::Saturation { applied_load, .. } => applied_load,
            _ => None,
        }
    }
}
