//! Broadcast latency, throughput and CPU time over real nodes.
//!
//! A worker process runs on every host: of a lab on this machine, of this machine's loopback, or a machine of its own. Ways to broadcast take turns,
//! round by round, so that what else the machine does falls on all alike. docs/bench.md says what each number is.

mod chart;
mod coordinator;
mod order;
mod report;
mod team;
mod worker;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use treecast_node::{EngineChoice, Offload, Scheme};

pub use chart::figure;
pub use coordinator::{Bench, Hosts, Place, Program, Skew, Workload};
pub use report::{FORMAT, Killed, Report, Row};
pub use worker::work;

/// A way to broadcast.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mode {
    /// What plays the NIC.
    #[serde(with = "by_name")]
    pub engine: EngineChoice,
    /// Who forwards.
    #[serde(with = "by_name")]
    pub offload: Offload,
    /// How the tree is made; none: by the length of messages.
    #[serde(with = "scheme")]
    pub scheme: Option<Scheme>,
}

/// What goes wrong.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A number out of bounds.
    #[error("{what} must be from {min} to {max}, and not {given}")]
    Bounds {
        /// What it is.
        what: &'static str,
        /// What was given.
        given: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A host that cannot be found.
    #[error("cannot resolve host {name}: {why}")]
    Host {
        /// Its name.
        name: String,
        /// Why.
        why: std::io::Error,
    },
    /// The lab cannot be made.
    #[error(transparent)]
    Lab(#[from] treecast_lab::LabError),
    /// A worker cannot be started, or has died.
    #[error("the worker of host {host}: {why}")]
    Worker {
        /// Which.
        host: usize,
        /// Why.
        why: std::io::Error,
    },
    /// A worker says that something went wrong.
    #[error("host {host}: {why}")]
    Failed {
        /// Which.
        host: usize,
        /// What it says.
        why: String,
    },
}

/// What is written by its name.
pub(crate) mod by_name {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

mod scheme {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use treecast_node::Scheme;

    #[expect(clippy::ref_option, reason = "serde asks for a reference to the field")]
    pub fn serialize<S: Serializer>(scheme: &Option<Scheme>, serializer: S) -> Result<S::Ok, S::Error> {
        match scheme {
            Some(scheme) => serializer.collect_str(scheme),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Scheme>, D::Error> {
        let name = Option::<String>::deserialize(deserializer)?;
        name.map(|name| name.parse().map_err(de::Error::custom)).transpose()
    }
}
