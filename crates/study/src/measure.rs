//! The measure that a figure shows of its runs, and its unit.

use std::str::FromStr;

use serde::Deserialize;
use treecast_model::Model;
use treecast_terms::SpecError;

/// The unit of latencies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Cycles of the simulator; of models, which have none, microseconds.
    #[default]
    Cycles,
    /// Microseconds.
    Us,
}

/// The measure that a figure shows of its runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Measure {
    /// The latency; for runs under load the mean latency, up to the load at which a scheme
    /// saturates.
    #[default]
    Latency,
    /// The load that hosts receive under the offered load.
    AcceptedLoad,
    /// The highest sustained ejection load, found by a search.
    Saturation,
    /// The latency of every series, in a map over x and y whose cells are shown in the colour of
    /// the series with the lowest one. A series that saturates in more than one run in ten has
    /// none.
    Winner,
    /// A measure of a model besides the latency.
    Of(treecast_model::Measure),
}

impl FromStr for Measure {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        const NAMES: [(&str, Measure); 4] = [
            ("latency", Measure::Latency),
            ("accepted_load", Measure::AcceptedLoad),
            ("saturation", Measure::Saturation),
            ("winner", Measure::Winner),
        ];
        if let Some((_, measure)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(*measure);
        }
        Model::measure(text).map(Self::Of).map_err(|error| match error {
            SpecError::UnknownName { what, given, known } => {
                let names = NAMES.iter().map(|(name, _)| (*name).to_string());
                SpecError::UnknownName { what, given, known: names.chain(known).collect() }
            }
            other => other,
        })
    }
}

impl Measure {
    /// The measured quantity, in a sentence; `None` for the latency.
    pub(crate) fn describe(self) -> Option<String> {
        let what = match self {
            Self::Latency => return None,
            Self::AcceptedLoad => "the accepted load, which compares with the ejection load".into(),
            Self::Saturation => "the highest ejection load that is sustained, by bisection".into(),
            Self::Winner => "which series has the lowest latency".into(),
            Self::Of(measure) => format!("{}, {}", measure.name, measure.about),
        };
        Some(format!("Measured: {what}"))
    }
}
