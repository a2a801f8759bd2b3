//! Runs under load and what they gave, for other programs: JSON.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LoadFigures, LoadOutcome, LoadRun, Saturation};
use crate::document::{DeadlockDocument, parameter_values, to_json};
use crate::outcome::Status;

/// The format that [`LoadDocument`] has.
pub const LOAD_FORMAT: &str = "treecast-load/1";

/// The format that [`SaturationDocument`] has.
pub const SATURATION_FORMAT: &str = "treecast-saturation/1";

/// What a run under load was made with: it gives the same again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadSetup {
    /// The fabric: the line that describes it, or its file.
    pub fabric: String,
    /// The routing asked for.
    pub routing: String,
    /// The scheme of each multicast.
    pub scheme: String,
    /// The order asked for.
    pub order: Option<String>,
    /// Who forwards: `host`, `assisted`, `nic`.
    pub offload: String,
    /// The length of each message in flits.
    pub message_flits: u64,
    /// How many destinations each multicast has.
    pub degree: u32,
    /// When hosts send: `exponential`, `fixed`, `bernoulli`, `burst:size=8`.
    pub arrivals: String,
    /// To whom: `random`, `fixed`, `neighbours`.
    pub destination_sets: String,
    /// How many cycles were to be simulated.
    pub cycles: u64,
    /// How many of them passed before the measurement.
    pub warmup_cycles: u64,
    /// The most multicasts in flight at once.
    pub backlog_max: u64,
    /// Who simulated: `event`, `cycle`.
    pub simulator: String,
    /// The seed of the traffic and of all random choices.
    pub seed: u64,
    /// Every parameter by its key, as `--set` takes it: numbers as numbers, policies by name.
    pub parameters: BTreeMap<String, serde_json::Value>,
}

/// A run under load and what it gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadDocument {
    /// The format of this document: `treecast-load/1`.
    pub format: String,
    /// How the run ended.
    pub status: Status,
    /// Flits of messages that a host wanted to send in a cycle.
    pub applied_load: f64,
    /// The degree times the applied load.
    pub effective_load: f64,
    /// What was measured.
    #[serde(flatten)]
    pub figures: LoadFigures,
    /// The cycle before which the run ended.
    pub end_cycle: u64,
    /// What waits for what, where the run ended deadlocked.
    pub deadlock: Option<DeadlockDocument>,
    /// What it was made with.
    #[serde(flatten)]
    pub setup: LoadSetup,
}

/// A load that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SaturationPointDocument {
    /// Flits of messages that a host wanted to send in a cycle.
    pub applied_load: f64,
    /// The degree times the applied load.
    pub effective_load: f64,
    /// How the run ended.
    pub status: Status,
    /// The mean latency; null if nothing was measured.
    pub latency_mean_cycles: Option<f64>,
}

/// The load at which a scheme saturates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SaturationDocument {
    /// The format of this document: `treecast-saturation/1`.
    pub format: String,
    /// The highest applied load that was sustained; null if none of those tried was.
    pub saturation_applied_load: Option<f64>,
    /// The degree times that.
    pub saturation_effective_load: Option<f64>,
    /// The relative precision asked for.
    pub precision: f64,
    /// What was tried, in order.
    pub points: Vec<SaturationPointDocument>,
    /// What it was made with.
    #[serde(flatten)]
    pub setup: LoadSetup,
}

/// What a run under load was made with, as far as the run does not say it itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadContext {
    /// The fabric: the line that describes it, or its file.
    pub fabric: String,
    /// The routing asked for.
    pub routing: String,
}

impl LoadSetup {
    fn new(run: &LoadRun, context: LoadContext) -> Self {
        Self {
            fabric: context.fabric,
            routing: context.routing,
            scheme: run.scheme.to_string(),
            order: run.order.map(|order| order.to_string()),
            offload: run.offload.to_string(),
            message_flits: run.message.0,
            degree: run.degree,
            arrivals: run.arrivals.to_string(),
            destination_sets: run.sets.to_string(),
            cycles: run.cycles.0,
            warmup_cycles: run.warmup.0,
            backlog_max: run.in_flight_max() as u64,
            simulator: run.simulator.to_string(),
            seed: run.seed,
            parameters: parameter_values(run.parameters),
        }
    }
}

impl LoadDocument {
    /// The document of a run.
    pub fn new(run: &LoadRun, outcome: &LoadOutcome, context: LoadContext) -> Self {
        Self {
            format: LOAD_FORMAT.into(),
            status: outcome.status,
            applied_load: run.load,
            effective_load: run.effective_load(),
            figures: outcome.figures.clone(),
            end_cycle: outcome.end.0,
            deadlock: outcome.deadlock.as_ref().map(|deadlock| DeadlockDocument::new(run.fabric, deadlock)),
            setup: LoadSetup::new(run, context),
        }
    }

    /// The JSON text of the document, ending with a line end.
    pub fn to_json(&self) -> String {
        to_json(self)
    }
}

impl SaturationDocument {
    /// The document of a search; the load of `run` is not looked at.
    pub fn new(run: &LoadRun, precision: f64, saturation: &Saturation, context: LoadContext) -> Self {
        let effective = |load: f64| f64::from(run.degree) * load;
        Self {
            format: SATURATION_FORMAT.into(),
            saturation_applied_load: saturation.applied_load,
            saturation_effective_load: saturation.applied_load.map(effective),
            precision,
            points: saturation
                .points
                .iter()
                .map(|point| SaturationPointDocument {
                    applied_load: point.applied_load,
                    effective_load: effective(point.applied_load),
                    status: point.status,
                    latency_mean_cycles: point.latency_mean_cycles,
                })
                .collect(),
            setup: LoadSetup::new(run, context),
        }
    }

    /// The JSON text of the document, ending with a line end.
    pub fn to_json(&self) -> String {
        to_json(self)
    }
}
