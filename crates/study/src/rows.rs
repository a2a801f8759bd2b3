//! Rows: one tidy row a run, as CSV and as Parquet.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use treecast_fabric::Cycles;
use treecast_plan::{Label, MemberId};
use treecast_sim::{Key, Parameters, Status};

use crate::{RunSpec, StudyError};
use Cells::{Real, Text, Whole};

/// What one run gave, with all that is needed to run it again.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    /// The run.
    pub spec: RunSpec<'a>,
    /// The seed that drew its destinations, and that its random choices come from.
    pub seed: u64,
    /// The root.
    pub root: MemberId,
    /// The destinations in the order drawn.
    pub destinations: Vec<MemberId>,
    /// Where the scheme comes from.
    pub label: Label,
    /// How the run ended.
    pub status: Status,
    /// From the start of the send until the last destination has the message; `None` unless complete.
    pub latency: Option<Cycles>,
    /// How many worms were put into the fabric.
    pub worms: u32,
    /// What all CPUs together spent on sending and receiving.
    pub cpu_busy: Cycles,
}

impl Row<'_> {
    fn value_of(&self, key: &Key) -> String {
        key.value(&self.spec.setup().parameters)
    }

    fn destination_list(&self) -> String {
        self.destinations.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

/// The rows as CSV with a head; what a run does not have is empty.
///
/// # Errors
/// [`StudyError::Rows`]; no rows are known to bring it about.
pub fn csv(rows: &[Row]) -> Result<Vec<u8>, StudyError> {
    let failed = |reason: String| StudyError::Rows { format: "CSV", reason };
    let columns = columns();
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

/// The rows as a Parquet file: texts, unsigned 64-bit numbers and doubles; what a run does not have is null.
///
/// # Errors
/// [`StudyError::Rows`]; no rows are known to bring it about.
pub fn parquet(rows: &[Row]) -> Result<Vec<u8>, StudyError> {
    let failed = |reason: String| StudyError::Rows { format: "Parquet", reason };
    let arrays = columns().into_iter().map(|column| (column.name, column.array(rows), true));
    let batch =
        RecordBatch::try_from_iter_with_nullable(arrays).map_err(|error| failed(error.to_string()))?;
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties))
        .map_err(|error| failed(error.to_string()))?;
    writer.write(&batch).map_err(|error| failed(error.to_string()))?;
    writer.close().map_err(|error| failed(error.to_string()))?;
    Ok(bytes)
}

/// A column: its name, and what it holds.
struct Column {
    name: &'static str,
    cells: Cells,
}

/// What a column holds of a row: texts, whole numbers or numbers, none of which a run need have.
#[derive(Clone, Copy)]
enum Cells {
    Text(fn(&Row) -> Option<String>),
    Whole(fn(&Row) -> Option<u64>),
    Real(fn(&Row) -> Option<f64>),
    WholeParameter(&'static Key),
    RealParameter(&'static Key),
    TextParameter(&'static Key),
}

/// The columns before the parameters.
const INPUTS: [(&str, Cells); 18] = [
    ("study", Text(|row| Some(row.spec.figure.study.clone()))),
    ("figure", Text(|row| Some(row.spec.figure.name.clone()))),
    ("panel", Text(|row| Some(row.spec.panel().label.clone()))),
    ("series", Text(|row| Some(row.spec.series().name.clone()))),
    ("x_name", Text(|row| Some(row.spec.figure.x.varies.clone()))),
    ("x", Real(|row| Some(row.spec.x()))),
    ("topology_seed", Whole(|row| row.spec.topology_seed())),
    ("group_index", Whole(|row| Some(row.spec.group_index.into()))),
    ("seed", Whole(|row| Some(row.seed))),
    ("fabric", Text(|row| Some(row.spec.fabric().to_string()))),
    ("scheme", Text(|row| Some(row.spec.series().scheme.to_string()))),
    ("order", Text(|row| row.spec.series().order_used().map(|order| order.to_string()))),
    ("offload", Text(|row| Some(row.spec.series().offload.to_string()))),
    ("label", Text(|row| Some(row.label.to_string()))),
    ("root", Whole(|row| Some(row.root.0.into()))),
    ("destination_count", Whole(|row| Some(row.destinations.len() as u64))),
    ("destinations", Text(|row| Some(row.destination_list()))),
    ("message_flits", Whole(|row| Some(row.spec.setup().message.0))),
];

/// The columns behind the parameters.
const OUTPUTS: [(&str, Cells); 5] = [
    ("status", Text(|row| Some(row.status.name().into()))),
    ("latency_cycles", Whole(|row| row.latency.map(|latency| latency.0))),
    ("latency_ns", Real(latency_ns)),
    ("worms", Whole(|row| Some(row.worms.into()))),
    ("cpu_busy_cycles", Whole(|row| Some(row.cpu_busy.0))),
];

fn latency_ns(row: &Row) -> Option<f64> {
    row.latency.map(|latency| row.spec.setup().parameters.nanoseconds(latency))
}

fn columns() -> Vec<Column> {
    let column = |&(name, cells): &(&'static str, Cells)| Column { name, cells };
    let parameters = Parameters::keys().iter().map(|key| Column { name: key.name, cells: parameter(key) });
    INPUTS.iter().map(column).chain(parameters).chain(OUTPUTS.iter().map(column)).collect()
}

/// Times in nanoseconds may be fractions; other numbers are whole.
fn parameter(key: &'static Key) -> Cells {
    if key.name.ends_with("_ns") {
        Cells::RealParameter(key)
    } else if key.value(&Parameters::default()).parse::<u64>().is_ok() {
        Cells::WholeParameter(key)
    } else {
        Cells::TextParameter(key)
    }
}

impl Column {
    fn text(&self, row: &Row) -> String {
        let text = match self.cells {
            Text(text) => text(row),
            Whole(number) => number(row).map(|number| number.to_string()),
            Real(number) => number(row).map(|number| number.to_string()),
            Cells::WholeParameter(key) | Cells::RealParameter(key) | Cells::TextParameter(key) => {
                Some(row.value_of(key))
            }
        };
        text.unwrap_or_default()
    }

    fn array(&self, rows: &[Row]) -> ArrayRef {
        match self.cells {
            Text(text) => Arc::new(rows.iter().map(text).collect::<StringArray>()),
            Whole(number) => Arc::new(rows.iter().map(number).collect::<UInt64Array>()),
            Real(number) => Arc::new(rows.iter().map(number).collect::<Float64Array>()),
            Cells::WholeParameter(key) => Arc::new(
                rows.iter().map(|row| row.value_of(key).parse::<u64>().ok()).collect::<UInt64Array>(),
            ),
            Cells::RealParameter(key) => Arc::new(
                rows.iter().map(|row| row.value_of(key).parse::<f64>().ok()).collect::<Float64Array>(),
            ),
            Cells::TextParameter(key) => {
                Arc::new(rows.iter().map(|row| Some(row.value_of(key))).collect::<StringArray>())
            }
        }
    }
}
