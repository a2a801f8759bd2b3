//! What a model is given, and what it gives.

use thiserror::Error;
use treecast_fabric::{Fabric, FabricError};
use treecast_plan::{Group, Order, PlanError, Scheme};
use treecast_sim::Status;
use treecast_terms::{Bytes, Offload, Picoseconds, SpecError};

/// What a model carries out: one operation of a group on a fabric.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a> {
    /// Where.
    pub fabric: &'a Fabric,
    /// Who.
    pub group: &'a Group,
    /// By which plan.
    pub scheme: &'a Scheme,
    /// Over which order of the destinations, where the scheme takes one.
    pub order: Option<Order>,
    /// Who forwards.
    pub offload: Offload,
    /// How much.
    pub message: Bytes,
    /// What random choices come from.
    pub seed: u64,
}

/// What came out.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// How long the operation took, as the study defines it; `None` unless complete.
    pub latency: Option<Picoseconds>,
    /// What else the model measured: a name of its list of [`Measure`]s, and the value.
    pub measured: Vec<(&'static str, f64)>,
    /// Who waits for whom, where it ended deadlocked: a line each.
    pub deadlock: Vec<String>,
}

/// Something that a model measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// Its name, with its unit at the end.
    pub name: &'static str,
    /// What stands beside an axis of it: a few words, with the unit.
    pub label: &'static str,
    /// What it is.
    pub about: &'static str,
}

/// The most deliveries of packets that a run may have.
pub const DELIVERIES_MAX: u64 = 1 << 26;

/// Whether the deliveries of a run, the product of these numbers, are not too many; else `shorten` says how there are fewer.
pub(crate) fn check_deliveries(factors: &[u64], shorten: &str) -> Result<(), ModelError> {
    let deliveries = factors.iter().copied().fold(1, u64::saturating_mul);
    if deliveries <= DELIVERIES_MAX {
        return Ok(());
    }
    Err(ModelError::Unsupported(format!(
        "a run has at most {DELIVERIES_MAX} deliveries of packets, this one would have {deliveries}: {shorten}"
    )))
}

/// Why a task could not be carried out.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ModelError {
    /// A parameter does not fit.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The fabric cannot be made.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The plan cannot be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The model does not do that, with what it does.
    #[error("{0}")]
    Unsupported(String),
}
