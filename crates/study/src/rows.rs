//! Rows: one tidy row a run, as CSV and as Parquet.

#[cfg(feature = "parquet")]
mod parquet;

use std::collections::BTreeSet;
#[cfg(feature = "arrow")]
use std::sync::Arc;

#[cfg(feature = "arrow")]
use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use treecast_model::{Measure, Model};
use treecast_plan::MemberId;
use treecast_sim::{Key, LoadFigures, Parameters};
use treecast_terms::{Keyed as _, Picoseconds, Value};

use crate::error::StudyError;
use crate::measured::Multicast;
use crate::run::{Kind, Row};
use crate::setup::Traffic;
use Cells::{Real, Text, Whole};

#[cfg(feature = "parquet")]
pub use parquet::parquet;

impl Row<'_> {
    fn model_measure(&self, name: &str) -> Option<f64> {
        self.measured.modelled()?.measured.get(name).copied()
    }

    fn root(&self) -> Option<MemberId> {
        let of_multicast = self.multicast().map(|multicast| multicast.root);
        of_multicast.or_else(|| self.measured.modelled().map(|modelled| modelled.root))
    }

    /// The destinations that were drawn for one multicast.
    fn destinations(&self) -> Option<&[MemberId]> {
        let of_multicast = self.multicast().map(|multicast| &multicast.destinations[..]);
        of_multicast.or_else(|| self.measured.modelled().map(|modelled| &modelled.destinations[..]))
    }

    fn multicast(&self) -> Option<&Multicast> {
        self.measured.multicast()
    }

    fn load(&self) -> Option<&LoadFigures> {
        self.measured.load()
    }

    /// The inputs of a run under load, or of a search for saturation, besides the load.
    fn traffic(&self) -> Option<&Traffic> {
        matches!(self.spec.kind(), Kind::Load { .. } | Kind::Saturation).then_some(&self.spec.setup().traffic)
    }

    fn ejection_load(&self, offered_load: f64) -> f64 {
        f64::from(self.spec.setup().destinations) * offered_load
    }
}

/// The rows as CSV with a head; values that a run does not have are empty.
///
/// # Errors
/// [`StudyError::Rows`]; no rows are known to cause it.
pub fn csv(rows: &[Row]) -> Result<Vec<u8>, StudyError> {
    let failed = |reason: String| StudyError::Rows { format: "CSV", reason };
    let columns = columns(rows);
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    writer
        .write_record(columns.iter().map(|column| column.name))
        .map_err(|error| failed(error.to_string()))?;
    for row in rows {
        let record = columns.iter().map(|column| column.text(row));
        writer.write_record(record).map_err(|error| failed(error.to_string()))?;
    }
    writer.into_inner().map_err(|error| failed(error.to_string()))
}

/// The rows in Arrow's memory layout: texts, unsigned 64-bit numbers and doubles; values that a run
/// does not have are null.
///
/// # Errors
/// [`StudyError::Rows`]; no rows are known to cause it.
#[cfg(feature = "arrow")]
pub fn batch(rows: &[Row]) -> Result<RecordBatch, StudyError> {
    let arrays = columns(rows).into_iter().map(|column| (column.name, column.array(rows), true));
    RecordBatch::try_from_iter_with_nullable(arrays)
        .map_err(|error| StudyError::Rows { format: "Arrow", reason: error.to_string() })
}

/// A column: its name and its cells.
struct Column {
    name: &'static str,
    cells: Cells,
}

/// The cells of a column: texts, whole numbers or numbers, none of which a run need have. A
/// parameter has its default, whose kind is the kind of all values in the column: a threshold may
/// be a number, but by default it is "auto".
enum Cells {
    Text(fn(&Row) -> Option<String>),
    Whole(fn(&Row) -> Option<u64>),
    Real(fn(&Row) -> Option<f64>),
    Parameter(&'static Key, Value),
    OfModel(&'static str, Value),
    Measure(&'static str),
}

/// The kind of the values of a column in tables with types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CellKind {
    /// Text, also for values of several kinds.
    Text,
    /// An unsigned number of 64 bits.
    Whole,
    /// A double.
    Real,
}

/// The columns before the parameters.
const INPUTS: [(&str, Cells); 31] = [
    ("study", Text(|row| Some(row.spec.figure.study.clone()))),
    ("figure", Text(|row| Some(row.spec.figure.name.clone()))),
    ("panel", Text(|row| Some(row.spec.panel().label.clone()))),
    ("series", Text(|row| Some(row.spec.series().name.clone()))),
    ("x_name", Text(|row| Some(row.spec.figure.x.varies.clone()))),
    ("x", Real(|row| Some(row.spec.x()))),
    ("y_name", Text(|row| row.spec.figure.y.as_ref().map(|y| y.varies.clone()))),
    ("y", Real(|row| row.spec.y())),
    ("topology_seed", Whole(|row| row.spec.topology_seed())),
    ("group_index", Whole(|row| Some(row.spec.group_index.into()))),
    ("seed", Whole(|row| Some(row.measured.seed))),
    ("fabric", Text(|row| Some(row.spec.fabric().to_string()))),
    ("routing", Text(|row| Some(row.spec.setup().routing.to_string()))),
    ("processes", Whole(|row| Some(row.spec.setup().processes.into()))),
    ("placement", Text(|row| Some(row.spec.setup().arrangement.to_string()))),
    ("scheme", Text(|row| Some(row.spec.series().scheme.to_string()))),
    ("order", Text(|row| row.spec.series().order_used().map(|order| order.to_string()))),
    ("offload", Text(|row| Some(row.spec.series().offload.to_string()))),
    ("label", Text(|row| Some(row.measured.label.to_string()))),
    ("root", Whole(|row| row.root().map(|root| root.0.into()))),
    ("destination_count", Whole(|row| Some(row.spec.setup().destinations.into()))),
    ("destinations", Text(|row| row.destinations().map(listed))),
    ("message_flits", Whole(|row| row.spec.setup().parameters().map(|_| row.spec.setup().message.0))),
    ("offered_load", Real(offered_load)),
    ("ejection_load", Real(|row| offered_load(row).map(|load| row.ejection_load(load)))),
    ("arrivals", Text(|row| row.traffic().map(|traffic| traffic.arrivals.to_string()))),
    ("destination_sets", Text(|row| row.traffic().map(|traffic| traffic.sets.to_string()))),
    ("cycles", Whole(|row| row.traffic().map(|traffic| traffic.cycles.0))),
    ("warmup_cycles", Whole(|row| row.traffic().map(|traffic| traffic.warmup.0))),
    ("backlog_max", Whole(|row| row.traffic()?.backlog_max.map(|most| most as u64))),
    ("precision", Real(precision)),
];

/// The columns after the parameters.
const OUTPUTS: [(&str, Cells); 19] = [
    ("status", Text(|row| Some(row.measured.status.name().into()))),
    ("latency_cycles", Whole(|row| Some(row.multicast()?.latency?.0))),
    ("latency_ns", Real(|row| Some(row.spec.setup().parameters()?.nanoseconds(row.multicast()?.latency?)))),
    ("worms", Whole(|row| Some(row.multicast()?.worms.into()))),
    ("phases", Whole(|row| Some(row.multicast()?.phases.into()))),
    ("cpu_busy_cycles", Whole(|row| Some(row.multicast()?.cpu_busy.0))),
    ("accepted_load", Real(|row| row.load()?.accepted_load)),
    ("multicasts_measured", Whole(|row| Some(row.load()?.multicasts_measured))),
    ("latency_mean_cycles", Real(|row| row.load()?.latency_mean_cycles)),
    ("latency_p50_cycles", Whole(|row| Some(row.load()?.latency_p50?.0))),
    ("latency_p99_cycles", Whole(|row| Some(row.load()?.latency_p99?.0))),
    ("latency_max_cycles", Whole(|row| Some(row.load()?.latency_max?.0))),
    ("latency_ci95_cycles", Real(|row| row.load()?.latency_ci95_cycles)),
    ("first_last_spread_mean_cycles", Real(|row| row.load()?.first_last_spread_mean_cycles)),
    ("link_utilization_mean", Real(|row| Some(row.load()?.link_utilization.mean))),
    ("link_utilization_max", Real(|row| Some(row.load()?.link_utilization.max))),
    ("link_utilization_link", Text(|row| row.load()?.link_utilization.link.clone())),
    ("saturation_offered_load", Real(|row| row.measured.saturation_offered_load())),
    (
        "saturation_ejection_load",
        Real(|row| Some(row.ejection_load(row.measured.saturation_offered_load()?))),
    ),
];

fn offered_load(row: &Row) -> Option<f64> {
    match row.spec.kind() {
        Kind::Load { offered_load } => Some(offered_load),
        _ => None,
    }
}

/// The precision of a search for saturation; no other run has one.
fn precision(row: &Row) -> Option<f64> {
    matches!(row.spec.kind(), Kind::Saturation).then_some(row.spec.setup().traffic.precision)
}

fn listed(members: &[MemberId]) -> String {
    members.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// The columns that only rows of models have.
const OUTPUTS_OF_MODELS: [(&str, Cells); 4] = [
    ("testbed", Text(|row| Some(row.spec.setup().testbed()?.name.clone()))),
    ("message_bytes", Whole(|row| row.spec.setup().model().map(|_| row.spec.setup().message.0))),
    ("latency_us", Real(|row| row.measured.modelled()?.latency.map(Picoseconds::us))),
    (
        "deadlock",
        Text(|row| Some(row.measured.modelled()?.deadlock.join("; ")).filter(|text| !text.is_empty())),
    ),
];

/// The columns of rows, with the parameters and measures of their simulator and models.
fn columns(rows: &[Row]) -> Vec<Column> {
    let column = |(name, cells)| Column { name, cells };
    let mut columns: Vec<Column> = INPUTS.map(column).into();
    let mut models: Vec<&Model> = Vec::new();
    for model in rows.iter().filter_map(|row| row.spec.setup().model()) {
        if models.iter().all(|other| other.name() != model.name()) {
            models.push(model);
        }
    }
    if models.is_empty() || rows.iter().any(|row| row.spec.setup().model().is_none()) {
        let defaults = Parameters::default();
        let cells = |key: &'static Key| (key.name, Cells::Parameter(key, key.value(&defaults)));
        columns.extend(Parameters::keys().iter().map(cells).map(column));
    }
    let defaults = models.iter().filter_map(|model| Model::named(model.name()).ok());
    let of_models = defaults.flat_map(|model| model.values());
    columns.extend(of_models.map(|(name, default)| column((name, Cells::OfModel(name, default)))));
    columns.extend(OUTPUTS.map(column));
    if !models.is_empty() {
        columns.extend(OUTPUTS_OF_MODELS.map(column));
    }
    let measures = models.iter().flat_map(|model| model.measures());
    columns.extend(measures.map(|&Measure { name, .. }| column((name, Cells::Measure(name)))));
    // A name that several models have is one column.
    let mut seen = BTreeSet::new();
    columns.retain(|column| seen.insert(column.name));
    columns
}

impl Column {
    /// The value in a row; `None` if the run does not have it.
    fn value(&self, row: &Row) -> Option<Value> {
        match self.cells {
            Text(text) => text(row).map(Value::Text),
            Whole(number) => number(row).map(Value::Whole),
            Real(number) => number(row).map(Value::Real),
            Cells::Parameter(key, _) => Some(key.value(row.spec.setup().parameters()?)),
            Cells::OfModel(key, _) => row.spec.setup().model()?.value(key).ok(),
            Cells::Measure(name) => row.model_measure(name).map(Value::Real),
        }
    }

    fn text(&self, row: &Row) -> String {
        self.value(row).map(|value| value.to_string()).unwrap_or_default()
    }

    /// The kind of all its values.
    fn kind(&self) -> CellKind {
        match self.cells {
            Text(_) | Cells::Parameter(_, Value::Text(_)) | Cells::OfModel(_, Value::Text(_)) => {
                CellKind::Text
            }
            Whole(_) | Cells::Parameter(_, Value::Whole(_)) | Cells::OfModel(_, Value::Whole(_)) => {
                CellKind::Whole
            }
            Real(_)
            | Cells::Parameter(_, Value::Real(_))
            | Cells::OfModel(_, Value::Real(_))
            | Cells::Measure(_) => CellKind::Real,
        }
    }

    #[cfg(feature = "arrow")]
    fn array(&self, rows: &[Row]) -> ArrayRef {
        let values = rows.iter().map(|row| self.value(row));
        match self.kind() {
            CellKind::Text => Arc::new(values.map(|value| Some(value?.to_string())).collect::<StringArray>()),
            CellKind::Whole => Arc::new(values.map(|value| value?.whole()).collect::<UInt64Array>()),
            CellKind::Real => Arc::new(values.map(|value| value?.real()).collect::<Float64Array>()),
        }
    }
}
