//! The origins of algorithms.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where an algorithm comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Label {
    /// Its definition is public.
    Published,
    /// A paper names it, but its text is not public: this is our interpretation.
    Reconstructed,
    /// Ours.
    Ours,
}

impl fmt::Display for Label {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Published => "published",
            Self::Reconstructed => "reconstructed",
            Self::Ours => "ours",
        })
    }
}
