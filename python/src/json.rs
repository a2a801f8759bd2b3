//! JSON documents: as Python values, and read.

use pyo3::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::TreecastError;

/// A value as dicts, lists, texts and numbers.
pub fn to_python<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(value).expect("every field has a JSON form");
    py.import("json")?.call_method1("loads", (text,))
}

/// Reads a document; `what` it is stands in the error.
pub fn read<T: DeserializeOwned>(what: &str, text: &str) -> PyResult<T> {
    serde_json::from_str(text)
        .map_err(|error| TreecastError::new_err(format!("invalid JSON of a {what}: {error}")))
}
