//! The results of runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use treecast_plan::{Label, MemberId};
use treecast_sim::{LoadFigures, Status};
use treecast_terms::{Cycles, Picoseconds};

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The seed of its destinations or its traffic, and of its random choices.
    pub seed: u64,
    /// The origin of the scheme.
    pub label: Label,
    /// How the run ended. A search for saturation is complete if it has found a load that is
    /// sustained.
    pub status: Status,
    /// The quantities, by the kind of the run.
    pub quantities: Quantities,
}

/// The measured quantities, by the kind of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Quantities {
    /// Of one multicast on an idle fabric.
    Multicast(Multicast),
    /// Of an operation of a model.
    Modelled(Modelled),
    /// Of a run under load.
    Load(LoadFigures),
    /// Of a search for saturation.
    Saturation {
        /// The highest offered load that was sustained, in flits/host/cycle; `None` if none was.
        offered_load: Option<f64>,
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
    /// From the start of the send to the last delivery; `None` unless complete.
    pub latency: Option<Cycles>,
    /// The number of injected worms.
    pub worms: u32,
    /// The rounds of the plan, in each of which each holder sends at most one worm
    /// ([`treecast_plan::Analysis`]).
    pub phases: u32,
    /// CPU cycles of all hosts on sending and receiving.
    pub cpu_busy: Cycles,
}

/// Of an operation of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Modelled {
    /// The root.
    pub root: MemberId,
    /// The destinations in the order drawn.
    pub destinations: Vec<MemberId>,
    /// Its time; `None` unless complete.
    pub latency: Option<Picoseconds>,
    /// Further measurements of the model.
    pub measured: BTreeMap<String, f64>,
    /// The wait-for cycle if it ended deadlocked.
    pub deadlock: Vec<String>,
}

impl Measured {
    /// The latency: of one multicast or the mean under load in cycles, of an operation of a model
    /// in microseconds. `None` where the run did not end complete.
    pub fn latency(&self) -> Option<f64> {
        let latency = match &self.quantities {
            Quantities::Multicast(multicast) => multicast.latency.map(|latency| latency.0 as f64),
            Quantities::Load(load) => load.latency_mean_cycles,
            Quantities::Modelled(modelled) => modelled.latency.map(Picoseconds::us),
            Quantities::Saturation { .. } => None,
        };
        latency.filter(|_| self.status == Status::Complete)
    }

    /// The result of one multicast; `None` for a run of another kind.
    pub fn multicast(&self) -> Option<&Multicast> {
        match &self.quantities {
            Quantities::Multicast(multicast) => Some(multicast),
            _ => None,
        }
    }

    /// The result of a model; `None` for a run of another kind.
    pub fn modelled(&self) -> Option<&Modelled> {
        match &self.quantities {
            Quantities::Modelled(modelled) => Some(modelled),
            _ => None,
        }
    }

    /// The result of a run under load; `None` for a run of another kind.
    pub fn load(&self) -> Option<&LoadFigures> {
        match &self.quantities {
            Quantities::Load(load) => Some(load),
            _ => None,
        }
    }

    /// The highest offered load that was sustained; `None` also for a run of another kind.
    pub fn saturation_offered_load(&self) -> Option<f64> {
        match self.quantities {
            Quantities::Saturation { offered_load, .. } => offered_load,
            _ => None,
        }
    }
}
