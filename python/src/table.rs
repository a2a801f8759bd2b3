//! Tables: columns in Arrow's memory layout, which other libraries use without copying.

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{Float64Type, UInt32Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, Float64Array, RecordBatch, RecordBatchIterator, StringArray, UInt32Array, UInt64Array,
};
use arrow_schema::DataType;
use arrow_schema::ffi::FFI_ArrowSchema;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyIterator, PyList};

use treecast_page::escaped;

use crate::error::refused;

/// Rows in columns, in the memory layout of Apache Arrow.
///
/// pyarrow, polars, pandas and others take it without copying: `pyarrow.table(table)`,
/// `polars.DataFrame(table)`, `pandas.DataFrame.from_arrow(table)`. Columns hold whole numbers,
/// numbers, texts or lists of texts; null is None.
///
/// Iteration yields one dict per row, `len` the number of rows.
///
/// >>> from treecast import Fabric
/// >>> table = Fabric("star:2").hosts
/// >>> table
/// <Table of 2 rows: name, switch>
/// >>> table.to_pylist()
/// [{'name': 'h0', 'switch': 0}, {'name': 'h1', 'switch': 0}]
#[pyclass(frozen, module = "treecast")]
pub struct Table(RecordBatch);

/// The most rows that a notebook shows.
const ROWS_SHOWN: usize = 50;

impl Table {
    /// A table of columns of one length.
    pub fn new<const N: usize>(columns: [(&str, ArrayRef); N]) -> Self {
        let columns = columns.map(|(name, array)| {
            let nullable = array.is_nullable();
            (name, array, nullable)
        });
        Self(RecordBatch::try_from_iter_with_nullable(columns).expect("our columns are of one length"))
    }

    /// HTML of a result whose rows these are: a summary, the table, and a warning if there is one.
    pub fn html_of(&self, py: Python<'_>, summary: &str, warning: Option<String>) -> PyResult<String> {
        let paragraph = |text: &str| format!("<p>{}</p>", escaped(text));
        let warning = warning.as_deref().map(paragraph).unwrap_or_default();
        Ok(paragraph(summary) + &self.html(py)? + &warning)
    }

    fn html(&self, py: Python<'_>) -> PyResult<String> {
        let count = self.num_rows();
        let shown = self.0.slice(0, count.min(ROWS_SHOWN));
        let row = |cells: &mut dyn Iterator<Item = PyResult<String>>, name: &str| {
            let cells = cells.map(|cell| Ok(format!("<{name}>{}</{name}>", escaped(&cell?))));
            Ok::<_, PyErr>(format!("<tr>{}</tr>", cells.collect::<PyResult<String>>()?))
        };
        let mut html = String::from("<table><thead>");
        html += &row(&mut self.column_names().into_iter().map(Ok), "th")?;
        html += "</thead><tbody>";
        let columns =
            shown.columns().iter().map(|column| values(py, column)).collect::<PyResult<Vec<_>>>()?;
        for index in 0..shown.num_rows() {
            let cell = |column: &Bound<'_, PyList>| {
                let value = column.get_item(index)?;
                if value.is_none() { Ok(String::new()) } else { Ok(value.str()?.to_string()) }
            };
            html += &row(&mut columns.iter().map(cell), "td")?;
        }
        html += "</tbody></table>";
        if count > ROWS_SHOWN {
            html += &format!("<p>The first {ROWS_SHOWN} of {count} rows.</p>");
        }
        Ok(html)
    }
}

impl From<RecordBatch> for Table {
    fn from(rows: RecordBatch) -> Self {
        Self(rows)
    }
}

#[pymethods]
impl Table {
    /// The names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.0.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// The number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.0.num_rows()
    }

    /// The values of a column, by its name.
    ///
    /// Raises KeyError for an unknown column.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        let column = self.0.column_by_name(name).ok_or_else(|| {
            let known = self.column_names().join(", ");
            PyKeyError::new_err(format!("unknown column '{name}': known are {known}"))
        })?;
        values(py, column)
    }

    /// One dict per row.
    fn to_pylist<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let rows: Vec<_> = (0..self.num_rows()).map(|_| PyDict::new(py)).collect();
        for (name, column) in self.column_names().iter().zip(self.0.columns()) {
            for (row, value) in rows.iter().zip(values(py, column)?) {
                row.set_item(name, value)?;
            }
        }
        Ok(rows)
    }

    /// A table of columns whose names and types are given, each of texts, whole numbers or numbers,
    /// and of rows that have a value or None for each.
    #[staticmethod]
    fn _of(columns: Vec<(String, String)>, rows: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let arrays = columns.iter().enumerate().map(|(place, (name, kind))| {
            let cells = rows.iter().map(|row| row.get_item(place));
            let array: ArrayRef = match kind.as_str() {
                "whole" => Arc::new(UInt64Array::from(given(cells)?)),
                "real" => Arc::new(Float64Array::from(given(cells)?)),
                _ => Arc::new(StringArray::from(given::<String>(cells)?)),
            };
            Ok((name, array, true))
        });
        let arrays = arrays.collect::<PyResult<Vec<_>>>()?;
        RecordBatch::try_from_iter_with_nullable(arrays).map(Self).map_err(refused)
    }

    fn __len__(&self) -> usize {
        self.num_rows()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.to_pylist(py)?.into_pyobject(py)?.try_iter()
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// The rows as a pandas DataFrame. Raises ImportError without pandas.
    fn to_pandas<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("pandas")?.getattr("DataFrame")?.call_method1("from_arrow", (slf,))
    }

    /// The rows as a polars DataFrame. Raises ImportError without polars.
    fn to_polars<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("polars")?.call_method1("DataFrame", (slf,))
    }

    /// The table for a notebook: the first rows, and the number of all.
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        self.html(py)
    }

    fn __repr__(&self) -> String {
        format!("<Table of {} rows: {}>", self.num_rows(), self.column_names().join(", "))
    }

    /// The types of the columns, for Arrow libraries: a capsule of an `ArrowSchema`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.0.schema().as_ref()).map_err(refused)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// The rows, for Arrow libraries: a capsule of an `ArrowArrayStream`. The columns stay of the
    /// types they have, whatever schema is requested.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let rows = RecordBatchIterator::new([Ok(self.0.clone())], self.0.schema());
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(rows)), c"arrow_array_stream")
    }
}

/// The values of a column as they came from Python.
fn given<'py, T>(cells: impl Iterator<Item = PyResult<Bound<'py, PyAny>>>) -> PyResult<Vec<Option<T>>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    cells.map(|cell| cell?.extract()).collect()
}

/// A column of texts.
pub fn texts(items: impl Iterator<Item = Option<String>>) -> ArrayRef {
    Arc::new(items.collect::<StringArray>())
}

/// A column of ids and counts.
pub fn numbers(items: impl Iterator<Item = u32>) -> ArrayRef {
    Arc::new(UInt32Array::from_iter_values(items))
}

/// A column of ids and counts that a row need not have.
pub fn optional_numbers(items: impl Iterator<Item = Option<u32>>) -> ArrayRef {
    Arc::new(items.collect::<UInt32Array>())
}

/// A column of times.
pub fn times(items: impl Iterator<Item = u64>) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(items))
}

/// A column of times and counts that a row need not have.
pub fn optional_times(items: impl Iterator<Item = Option<u64>>) -> ArrayRef {
    Arc::new(items.collect::<UInt64Array>())
}

/// A column of numbers.
pub fn reals(items: impl Iterator<Item = f64>) -> ArrayRef {
    Arc::new(Float64Array::from_iter_values(items))
}

/// A column of numbers that a row need not have.
pub fn optional_reals(items: impl Iterator<Item = Option<f64>>) -> ArrayRef {
    Arc::new(items.collect::<Float64Array>())
}

/// A column of lists of texts.
pub fn text_lists(items: impl Iterator<Item = Vec<String>>) -> ArrayRef {
    let mut lists = ListBuilder::new(StringBuilder::new());
    for item in items {
        lists.append_value(item.into_iter().map(Some));
    }
    Arc::new(lists.finish())
}

/// The values of a column as Python has them.
fn values<'py>(py: Python<'py>, column: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    match column.data_type() {
        DataType::UInt32 => PyList::new(py, column.as_primitive::<UInt32Type>()),
        DataType::UInt64 => PyList::new(py, column.as_primitive::<UInt64Type>()),
        DataType::Float64 => PyList::new(py, column.as_primitive::<Float64Type>()),
        DataType::List(_) => {
            let lists = column.as_list::<i32>().iter();
            let lists = lists.map(|list| list.map(|list| values(py, &list)).transpose());
            PyList::new(py, lists.collect::<PyResult<Vec<_>>>()?)
        }
        _ => PyList::new(py, column.as_string::<i32>()),
    }
}
