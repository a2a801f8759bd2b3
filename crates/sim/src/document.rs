//! A run and what it gave, for other programs: JSON.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treecast_plan::MemberId;
use treecast_plan::render::PlacementDocument;

use crate::{Outcome, Parameters, Run, Status};

/// The format that [`RunDocument`] has.
pub const FORMAT: &str = "treecast-run/1";

/// A run and what it gave; what it was made with stands beside it and gives the same again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunDocument {
    /// The format of this document: `treecast-run/1`.
    pub format: String,
    /// How the run ended.
    pub status: Status,
    /// From the start of the send at the root until the last destination has the message, in cycles; null unless
    /// complete.
    pub latency_cycles: Option<u64>,
    /// The same in nanoseconds.
    pub latency_ns: Option<f64>,
    /// Who has received, by member.
    pub deliveries: Vec<DeliveryDocument>,
    /// How many worms were put into the fabric; those inside a host are not counted.
    pub worms: u32,
    /// How many cycles the processes of each host spent on sending and receiving, by the host's number; hosts that spent
    /// none are left out.
    pub cpu_busy_cycles: BTreeMap<u32, u64>,
    /// The fabric: the line that describes it, or its file.
    pub fabric: String,
    /// The routing asked for.
    pub routing: String,
    /// The file that the plan was read from; null where its scheme made it.
    pub plan: Option<String>,
    /// The scheme that made the plan.
    pub scheme: String,
    /// The order asked for.
    pub order: Option<String>,
    /// Which member runs on which host.
    pub placement: PlacementDocument,
    /// The root.
    pub root: MemberId,
    /// The destinations as they were asked for: `all`, `1-31`, `3,5,9`, or `random:15`, which the seed draws; null where
    /// the plan was read from a file.
    pub destinations: Option<String>,
    /// Who forwards: `host`, `assisted`, `nic`.
    pub offload: String,
    /// The length of the message in flits.
    pub message_flits: u64,
    /// The seed of all random choices.
    pub seed: u64,
    /// Every parameter by its key, as `--set` takes it: numbers as numbers, policies by name.
    pub parameters: BTreeMap<String, serde_json::Value>,
}

/// A destination has the whole message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeliveryDocument {
    /// Who.
    pub member: MemberId,
    /// On which host.
    pub host: u32,
    /// The cycle in which its process has it.
    pub cycle: u64,
}

/// What a run was made with, as far as the run does not say it itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunContext {
    /// The fabric: the line that describes it, or its file.
    pub fabric: String,
    /// The routing asked for.
    pub routing: String,
    /// The file that the plan was read from, if it was.
    pub plan: Option<String>,
    /// The order asked for.
    pub order: Option<String>,
    /// The destinations as they were asked for; `None` where the plan was read from a file.
    pub destinations: Option<String>,
}

impl RunDocument {
    /// The document of a run.
    pub fn new(run: &Run, outcome: &Outcome, context: RunContext) -> Self {
        let busy = outcome.cpu_busy.iter().zip(0..).filter(|(cycles, _)| cycles.0 > 0);
        Self {
            format: FORMAT.into(),
            status: outcome.status,
            latency_cycles: outcome.latency.map(|latency| latency.0),
            latency_ns: outcome.latency.map(|latency| run.parameters.nanoseconds(latency)),
            deliveries: outcome
                .deliveries
                .iter()
                .map(|delivery| DeliveryDocument {
                    member: delivery.member,
                    host: delivery.host.0,
                    cycle: delivery.cycle.0,
                })
                .collect(),
            worms: outcome.worms,
            cpu_busy_cycles: busy.map(|(cycles, host)| (host, cycles.0)).collect(),
            fabric: context.fabric,
            routing: context.routing,
            plan: context.plan,
            scheme: run.plan.scheme().to_string(),
            order: context.order,
            placement: run.plan.placement().into(),
            root: run.plan.root(),
            destinations: context.destinations,
            offload: run.offload.to_string(),
            message_flits: run.message.0,
            seed: run.seed,
            parameters: parameter_values(run.parameters),
        }
    }

    /// The JSON text of the document, ending with a line end.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("every field has a JSON form") + "\n"
    }
}

fn parameter_values(parameters: &Parameters) -> BTreeMap<String, serde_json::Value> {
    let value = |text: String| serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text));
    parameters.values().map(|(key, text)| (key.to_string(), value(text))).collect()
}
