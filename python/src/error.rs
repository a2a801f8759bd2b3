//! The one exception.

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;

create_exception!(
    treecast,
    TreecastError,
    PyValueError,
    "What was given is wrong: one sentence that names the offending value and says what would fit."
);

/// The exception for an error of the crates.
pub fn refused(error: impl std::error::Error) -> PyErr {
    TreecastError::new_err(error.to_string())
}
