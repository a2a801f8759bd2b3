//! The tables of the files, as TOML has them.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use toml::Spanned;
use treecast_plan::Label;

use crate::figure::{Best, Scale};
use crate::measure::Unit;

/// The maximum number of values of x.
pub(super) const VALUES_MAX: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StudyFile {
    pub name: Spanned<String>,
    pub title: String,
    pub source: String,
    pub summary: String,
    #[serde(default)]
    pub unit: Unit,
    #[serde(default)]
    pub defaults: Table,
    #[serde(default)]
    pub repeat: Repeat,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TestbedFile {
    pub model: Spanned<String>,
    #[serde(default)]
    pub guessed: Vec<Spanned<String>>,
    #[serde(default)]
    pub set: Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FigureFile {
    pub title: String,
    pub question: String,
    pub measure: Option<Spanned<String>>,
    pub relative_to: Option<Spanned<String>>,
    pub best: Option<Best>,
    #[serde(default = "yes")]
    pub shared_y: bool,
    #[serde(default)]
    pub y_scale: Scale,
    #[serde(default = "two")]
    pub columns: usize,
    #[serde(default)]
    pub set: Table,
    pub x: Spanned<VaryTable>,
    pub y: Option<Spanned<VaryTable>>,
    #[serde(default)]
    pub panels: Vec<Spanned<PanelTable>>,
    pub series: Spanned<Vec<Spanned<SeriesTable>>>,
    #[serde(default)]
    pub measured: Vec<Spanned<MeasuredTable>>,
    #[serde(default)]
    pub repeat: Repeat,
    #[serde(default)]
    pub quick: Quick,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VaryTable {
    pub vary: String,
    #[serde(default)]
    pub with: BTreeMap<String, f64>,
    pub label: String,
    pub values: Option<Spanned<Values>>,
    #[serde(default)]
    pub scale: Scale,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PanelTable {
    pub label: String,
    #[serde(default)]
    pub set: Table,
    #[serde(default)]
    pub with: BTreeMap<String, f64>,
    #[serde(default)]
    pub measured: BTreeMap<String, Spanned<Vec<[f64; 2]>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MeasuredTable {
    pub name: String,
    pub description: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeriesTable {
    pub name: String,
    pub description: String,
    pub scheme: Spanned<String>,
    pub order: Option<Spanned<String>>,
    pub offload: Option<Spanned<String>>,
    pub label: Option<Label>,
    #[serde(default)]
    pub set: Table,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Repeat {
    pub topologies: Option<Vec<u64>>,
    pub groups: Option<Spanned<u32>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Quick {
    pub values: Option<Spanned<Values>>,
    pub y_values: Option<Spanned<Values>>,
    #[serde(default)]
    pub set: Table,
    pub topologies: Option<Vec<u64>>,
    pub groups: Option<Spanned<u32>>,
}

pub(super) type Table = BTreeMap<String, Spanned<Scalar>>;

#[derive(Deserialize)]
#[serde(untagged, expecting = "a setting is a number or a text")]
pub(super) enum Scalar {
    Number(f64),
    Text(String),
}

#[derive(Clone, Deserialize)]
#[serde(untagged, expecting = "values are a list of numbers, or { from = 1, to = 31, step = 1 }")]
pub(super) enum Values {
    List(Vec<f64>),
    Steps(Steps),
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Steps {
    pub from: f64,
    pub to: f64,
    #[serde(default = "one")]
    pub step: f64,
}

pub(super) fn yes() -> bool {
    true
}

pub(super) fn two() -> usize {
    2
}

pub(super) fn one() -> f64 {
    1.0
}

impl fmt::Display for Scalar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Text(text) => text.fmt(formatter),
        }
    }
}

impl Values {
    /// All values; `None` where there are none, or too many.
    pub fn all(&self) -> Option<Vec<f64>> {
        let values = match *self {
            Self::List(ref values) => values.clone(),
            Self::Steps(Steps { from, to, step }) => {
                let count = ((to - from) / step + 1e-9).floor();
                if !(0.0..VALUES_MAX as f64).contains(&count) {
                    return None;
                }
                // Nine decimals hide the rounding of steps such as 3 * 0.1.
                let at = |i| ((from + f64::from(i) * step) * 1e9).round() / 1e9;
                (0..=count as u32).map(at).collect()
            }
        };
        let fits = (1..=VALUES_MAX).contains(&values.len()) && values.iter().all(|value| value.is_finite());
        fits.then_some(values)
    }
}
