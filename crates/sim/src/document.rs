//! A run and its outcome as JSON.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treecast_fabric::Fabric;
use treecast_plan::MemberId;
use treecast_plan::render::PlacementDocument;
use treecast_terms::{Keyed as _, Value};

use crate::deadlock::channel_name;
use crate::deadlock::{Deadlock, Wait};
use crate::outcome::{Outcome, Status};
use crate::parameters::Parameters;
use crate::run::Run;

/// The format of [`RunDocument`].
pub const FORMAT: &str = "treecast-run/1";

/// A run and its outcome, with the inputs that reproduce it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunDocument {
    /// The format of this document: `treecast-run/1`.
    pub format: String,
    /// How the run ended.
    pub status: Status,
    /// From the start of the send at the root, or of the contributions, to the last delivery, in
    /// cycles; null unless complete.
    pub latency_cycles: Option<u64>,
    /// The same in nanoseconds.
    pub latency_ns: Option<f64>,
    /// All deliveries, in the order of members.
    pub deliveries: Vec<DeliveryDocument>,
    /// The deadlock; null unless the run ended in one.
    pub deadlock: Option<DeadlockDocument>,
    /// The number of injected worms, contributions included. Local worms are not injected.
    pub worms: u32,
    /// CPU cycles that the processes of each host spent on sending and receiving, by the host's
    /// number. Hosts with none are left out.
    pub cpu_busy_cycles: BTreeMap<u32, u64>,
    /// The fabric: the line that describes it, or its file.
    pub fabric: String,
    /// The routing as given.
    pub routing: String,
    /// The file that the plan was read from; null if a scheme made it.
    pub plan: Option<String>,
    /// The scheme that made the plan.
    pub scheme: String,
    /// The order as given.
    pub order: Option<String>,
    /// Which member runs on which host.
    pub placement: PlacementDocument,
    /// The root.
    pub root: MemberId,
    /// The destinations as given: `all`, `1-31`, `3,5,9`, or `random:15`, which the seed draws;
    /// null if the plan was read from a file.
    pub destinations: Option<String>,
    /// What the members do: `broadcast`, `all-reduce`, `barrier`.
    pub operation: String,
    /// Which part of a host forwards: `host`, `assisted`, `nic`.
    pub offload: String,
    /// The length of the message in flits.
    pub message_flits: u64,
    /// The seed of all random choices.
    pub seed: u64,
    /// The simulator: `event`, `cycle`.
    pub simulator: String,
    /// Every parameter by its key, as `--set` takes it: numbers as numbers, policies by name.
    pub parameters: BTreeMap<String, serde_json::Value>,
}

/// The delivery of the whole message to one destination, or of the result of an all-reduce to one
/// member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeliveryDocument {
    /// The destination.
    pub member: MemberId,
    /// Its host.
    pub host: u32,
    /// The cycle in which its process has it.
    pub cycle: u64,
}

/// Packets that wait for one another in a cycle, so that none of them can ever proceed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadlockDocument {
    /// The cycle of detection.
    pub cycle: u64,
    /// The number of packets at the heads of input buffers that can never proceed.
    pub stuck: usize,
    /// A wait-for cycle among them: each waits for the next, the last for the first.
    pub waits: Vec<WaitDocument>,
}

/// One packet of a deadlock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitDocument {
    /// The number of its multicast.
    pub multicast: u64,
    /// The index of its worm in the plan. Contributions follow the worms of the plan.
    pub worm: u32,
    /// Its number in the message, from 0.
    pub packet: u32,
    /// The link over which it arrived.
    pub at: String,
    /// The link that it waits for. The next packet holds it, or blocks the buffer at its end.
    pub wants: String,
}

impl DeadlockDocument {
    pub(crate) fn new(fabric: &Fabric, deadlock: &Deadlock) -> Self {
        let wait = |&Wait { multicast, worm, packet, at, wants }: &Wait| WaitDocument {
            multicast,
            worm,
            packet,
            at: channel_name(fabric, at),
            wants: channel_name(fabric, wants),
        };
        let waits = deadlock.waits.iter().map(wait).collect();
        Self { cycle: deadlock.cycle.0, stuck: deadlock.stuck, waits }
    }
}

/// The inputs of a run that [`Run`] does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunContext {
    /// The fabric: the line that describes it, or its file.
    pub fabric: String,
    /// The routing as given.
    pub routing: String,
    /// The file that the plan was read from, if any.
    pub plan: Option<String>,
    /// The order as given.
    pub order: Option<String>,
    /// The destinations as given; `None` if the plan was read from a file.
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
            deadlock: outcome.deadlock.as_ref().map(|deadlock| DeadlockDocument::new(run.fabric, deadlock)),
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
            operation: run.operation.to_string(),
            offload: run.offload.to_string(),
            message_flits: run.message.0,
            seed: run.seed,
            simulator: run.simulator.to_string(),
            parameters: parameter_values(run.parameters),
        }
    }

    /// The JSON text of the document, ending with a line end.
    pub fn to_json(&self) -> String {
        to_json(self)
    }

    /// The arguments of `treecast` that simulate the run again.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = vec!["sim".to_string()];
        let mut option = |name: &str, value: &str| words.extend(option(name, value));
        option("fabric", &self.fabric);
        option("routing", &self.routing);
        if let Some(plan) = &self.plan {
            option("plan", plan);
        } else {
            option("scheme", &self.scheme);
            option("root", &self.root.to_string());
            option("dests", self.destinations.as_deref().unwrap_or("all"));
            option("processes", &self.placement.processes.unwrap_or(1).to_string());
            if let Some(order) = &self.order {
                option("order", order);
            }
            if let Some(arrangement) = self.placement.arrangement {
                option("placement", &arrangement.to_string());
            }
        }
        option("operation", &self.operation);
        option("offload", &self.offload);
        option("message", &self.message_flits.to_string());
        option("seed", &self.seed.to_string());
        option("simulator", &self.simulator);
        words.extend(settings(&self.parameters));
        words
    }
}

/// An option of a command, and its value.
pub(crate) fn option(name: &str, value: &str) -> [String; 2] {
    [format!("--{name}"), value.to_string()]
}

/// The options that set the parameters that differ from the defaults.
pub(crate) fn settings(parameters: &BTreeMap<String, serde_json::Value>) -> Vec<String> {
    let defaults = parameter_values(&Parameters::default());
    let set = parameters.iter().filter(|(key, value)| defaults.get(*key) != Some(value));
    set.flat_map(|(key, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        option("set", &format!("{key}={value}"))
    })
    .collect()
}

/// The JSON text of a document, ending with a line end.
pub(crate) fn to_json(document: &impl Serialize) -> String {
    serde_json::to_string_pretty(document).expect("every field has a JSON form") + "\n"
}

pub(crate) fn parameter_values(parameters: &Parameters) -> BTreeMap<String, serde_json::Value> {
    parameters.values().map(|(key, value)| (key.to_string(), json(&value))).collect()
}

fn json(value: &Value) -> serde_json::Value {
    match (value.whole(), value) {
        (Some(number), _) => number.into(),
        (None, Value::Real(number)) => (*number).into(),
        (None, text) => text.to_string().into(),
    }
}
