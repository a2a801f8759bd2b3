//! Runs under load and their outcomes as JSON.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treecast_fabric::Topology;
use treecast_terms::Cycles;

use super::{LoadFigures, LoadOutcome, LoadRun, Saturation, ShortWindow};
use crate::document::{DeadlockDocument, option, parameter_values, settings, to_json};
use crate::outcome::Status;

/// The format of [`LoadDocument`].
pub const LOAD_FORMAT: &str = "treecast-load/1";

/// The format of [`SaturationDocument`].
pub const SATURATION_FORMAT: &str = "treecast-saturation/1";

/// The inputs of a run under load, which reproduce it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadSetup {
    /// The fabric: the line that describes it, or its file.
    pub fabric: String,
    /// The routing as given.
    pub routing: String,
    /// The scheme of each multicast.
    pub scheme: String,
    /// The order as given.
    pub order: Option<String>,
    /// Which part of a host forwards: `host`, `assisted`, `nic`.
    pub offload: String,
    /// The length of each message in flits.
    pub message_flits: u64,
    /// The number of destinations of each multicast.
    pub degree: u32,
    /// The arrival process of each host: `exponential`, `fixed`, `bernoulli`, `burst:size=8`.
    pub arrivals: String,
    /// The choice of destinations: `random`, `fixed`, `neighbours`.
    pub destination_sets: String,
    /// The number of cycles to simulate.
    pub cycles: u64,
    /// The warm-up: cycles before the measurement window.
    pub warmup_cycles: u64,
    /// The bound of multicasts in flight.
    pub backlog_max: u64,
    /// The simulator: `event`, `cycle`.
    pub simulator: String,
    /// The seed of the traffic and of all random choices.
    pub seed: u64,
    /// Every parameter by its key, as `--set` takes it: numbers as numbers, policies by name.
    pub parameters: BTreeMap<String, serde_json::Value>,
}

/// A run under load and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadDocument {
    /// The format of this document: `treecast-load/1`.
    pub format: String,
    /// How the run ended.
    pub status: Status,
    /// The offered load in flits/host/cycle.
    pub offered_load: f64,
    /// The ejection load: the degree times the offered load.
    pub ejection_load: f64,
    /// The measured figures.
    #[serde(flatten)]
    pub figures: LoadFigures,
    /// The utilization of each link that carried flits, by its name. Links inside the nodes of a
    /// torus or mesh are left out.
    #[serde(default)]
    pub links: BTreeMap<String, f64>,
    /// The cycle at which the run ended; that cycle was not simulated.
    pub end_cycle: u64,
    /// The deadlock, if the run ended in one; else null.
    pub deadlock: Option<DeadlockDocument>,
    /// The inputs.
    #[serde(flatten)]
    pub setup: LoadSetup,
}

/// A load that a search has tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SaturationPointDocument {
    /// The offered load in flits/host/cycle.
    pub offered_load: f64,
    /// The ejection load: the degree times the offered load.
    pub ejection_load: f64,
    /// How the run ended.
    pub status: Status,
    /// The mean latency; null if no multicast was measured.
    pub latency_mean_cycles: Option<f64>,
}

/// The load at which a scheme saturates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SaturationDocument {
    /// The format of this document: `treecast-saturation/1`.
    pub format: String,
    /// The highest offered load that was sustained; null if no load tried was.
    pub saturation_offered_load: Option<f64>,
    /// The degree times that load.
    pub saturation_ejection_load: Option<f64>,
    /// The relative precision as given.
    pub precision: f64,
    /// The loads tried, in order.
    pub points: Vec<SaturationPointDocument>,
    /// The inputs.
    #[serde(flatten)]
    pub setup: LoadSetup,
}

/// The inputs of a run under load that [`LoadRun`] does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadContext {
    /// The fabric: the line that describes it, or its file.
    pub fabric: String,
    /// The routing as given.
    pub routing: String,
}

impl LoadSetup {
    /// The arguments of `treecast` that simulate the run again, without its load.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = vec!["sim".to_string()];
        let mut option = |name: &str, value: &str| words.extend(option(name, value));
        option("fabric", &self.fabric);
        option("routing", &self.routing);
        option("scheme", &self.scheme);
        if let Some(order) = &self.order {
            option("order", order);
        }
        option("offload", &self.offload);
        option("message", &self.message_flits.to_string());
        option("degree", &self.degree.to_string());
        option("arrivals", &self.arrivals);
        option("destination-sets", &self.destination_sets);
        option("cycles", &self.cycles.to_string());
        option("warmup", &self.warmup_cycles.to_string());
        option("backlog-max", &self.backlog_max.to_string());
        option("simulator", &self.simulator);
        option("seed", &self.seed.to_string());
        words.extend(settings(&self.parameters));
        words
    }

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
            offered_load: run.load,
            ejection_load: run.ejection_load(),
            figures: outcome.figures.clone(),
            links: utilization_of_links(run.fabric.topology(), outcome),
            end_cycle: outcome.end.0,
            deadlock: outcome.deadlock.as_ref().map(|deadlock| DeadlockDocument::new(run.fabric, deadlock)),
            setup: LoadSetup::new(run, context),
        }
    }

    /// The warning that the window is too short for the measured latencies.
    pub fn warning(&self) -> Option<ShortWindow> {
        let LoadSetup { cycles, warmup_cycles, .. } = self.setup;
        let latency = self.figures.latency_mean_cycles.filter(|_| self.end_cycle == cycles);
        ShortWindow::check(Cycles(cycles), Cycles(warmup_cycles), latency, false)
    }

    /// The JSON text of the document, ending with a line end.
    pub fn to_json(&self) -> String {
        to_json(self)
    }
}

fn utilization_of_links(topology: &Topology, outcome: &LoadOutcome) -> BTreeMap<String, f64> {
    let links = topology.links().zip(&outcome.utilization_of_links);
    let used = links.filter(|&(link, &share)| share > 0.0 && !topology.is_internal(link));
    used.map(|(link, &share)| (topology.link_name(link), share)).collect()
}

impl SaturationDocument {
    /// The warning that the window is too short for the latencies at the load found.
    pub fn warning(&self) -> Option<ShortWindow> {
        let LoadSetup { cycles, warmup_cycles, .. } = self.setup;
        let found = self.points.iter().find(|point| Some(point.offered_load) == self.saturation_offered_load);
        let latency = found.and_then(|point| point.latency_mean_cycles);
        ShortWindow::check(Cycles(cycles), Cycles(warmup_cycles), latency, true)
    }

    /// The document of a search. The load of `run` is ignored.
    pub fn new(run: &LoadRun, precision: f64, saturation: &Saturation, context: LoadContext) -> Self {
        let ejection = |load: f64| f64::from(run.degree) * load;
        Self {
            format: SATURATION_FORMAT.into(),
            saturation_offered_load: saturation.offered_load,
            saturation_ejection_load: saturation.offered_load.map(ejection),
            precision,
            points: saturation
                .points
                .iter()
                .map(|point| SaturationPointDocument {
                    offered_load: point.offered_load,
                    ejection_load: ejection(point.offered_load),
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
