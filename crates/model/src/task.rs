//! The input and the output of a model.

use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;
use treecast_fabric::{Fabric, FabricError};
use treecast_plan::{Group, Order, PlanError, Scheme};
use treecast_sim::Status;
use treecast_terms::{Bytes, Offload, Picoseconds, SpecError};

/// The input of a model: one operation of a group on a fabric.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a> {
    /// The fabric.
    pub fabric: &'a Fabric,
    /// The group.
    pub group: &'a Group,
    /// The scheme that makes the plan.
    pub scheme: &'a Scheme,
    /// The order of the destinations, if the scheme takes one.
    pub order: Option<Order>,
    /// Which part of a host forwards.
    pub offload: Offload,
    /// The length of the message.
    pub message: Bytes,
    /// The seed of random choices.
    pub seed: u64,
    /// Another thread sets it to end the run early.
    pub stop: Option<&'a AtomicBool>,
}

impl Task<'_> {
    /// Checks that the run was not told to stop.
    pub(crate) fn check_stop(&self) -> Result<(), ModelError> {
        let is_stopped = self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        if is_stopped { Err(ModelError::Interrupted) } else { Ok(()) }
    }
}

/// The outcome of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// The time of the operation as the study defines it; `None` unless complete.
    pub latency: Option<Picoseconds>,
    /// Further measurements: the name of a [`Measure`] of the model, and the value.
    pub measured: Vec<(&'static str, f64)>,
    /// The wait-for cycle if the run ended deadlocked: one line per edge.
    pub deadlock: Vec<String>,
}

/// What the model says about one multicast.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// From the root's call until the application of the last member has the message.
    pub last_delivery: Picoseconds,
    /// The mean over members, in microseconds.
    pub mean_delivery_us: f64,
    /// The CPU time of all hosts, in microseconds.
    pub cpu_us: f64,
    /// The CPU time of the root's host, in microseconds.
    pub root_cpu_us: f64,
}

impl From<&Outcome> for Prediction {
    fn from(outcome: &Outcome) -> Self {
        let measured = |name: &str| {
            let found = outcome.measured.iter().find(|(known, _)| *known == name);
            found.map_or(0.0, |&(_, value)| value)
        };
        Self {
            last_delivery: outcome.latency.unwrap_or_default(),
            mean_delivery_us: measured("mean_delivery_us"),
            cpu_us: measured("cpu_us"),
            root_cpu_us: measured("root_cpu_us"),
        }
    }
}

/// A quantity that a model measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// Its name, with its unit at the end.
    pub name: &'static str,
    /// The label of an axis, with the unit.
    pub label: &'static str,
    /// Its definition.
    pub about: &'static str,
}

/// CPU time of the root as the system's activity reporter counts it, while multicasts follow one
/// another.
pub(crate) const ROOT_USER_US: Measure = Measure {
    name: "root_user_us",
    label: "root's CPU utilization at user level (us)",
    about: "CPU time of the root at user level for a multicast: until it knows that its sends are complete, on a \
            path that its end has the message; it polls while it waits",
};

/// [`ROOT_USER_US`] over the time from one multicast to the next.
pub(crate) const ROOT_USER_SHARE: Measure = Measure {
    name: "root_user_fraction",
    label: "root's CPU utilization at user level (0 to 1)",
    about: "root_user_us over the period of multicasts that follow one another: the next one starts when all have \
            the message and the root knows that it is complete",
};

/// The maximum number of packet deliveries of a run.
pub const DELIVERIES_MAX: u64 = 1 << 26;

/// Checks the number of packet deliveries of a run, the product of `factors`. `shorten` tells the
/// user how to reduce it.
pub(crate) fn check_deliveries(factors: &[u64], shorten: &str) -> Result<(), ModelError> {
    let deliveries = factors.iter().copied().fold(1, u64::saturating_mul);
    if deliveries <= DELIVERIES_MAX {
        return Ok(());
    }
    Err(ModelError::Unsupported(format!(
        "a run has at most {DELIVERIES_MAX} deliveries of packets, this one would have {deliveries}: {shorten}"
    )))
}

/// Why a task was rejected.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ModelError {
    /// An invalid parameter.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// An invalid fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// An invalid plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A task that the model does not support. The text says what it supports.
    #[error("{0}")]
    Unsupported(String),
    /// The run was told to stop.
    #[error("the run was interrupted")]
    Interrupted,
}
