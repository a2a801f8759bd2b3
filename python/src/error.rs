//! Exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyTimeoutError, PyUnicodeDecodeError, PyValueError};
use pyo3::prelude::*;
use treecast_node::NodeError;

create_exception!(
    treecast,
    TreecastError,
    PyValueError,
    "Invalid input: one sentence that names the invalid value and what was expected."
);

create_exception!(
    treecast,
    GroupEnded,
    TreecastError,
    "The group has ended without being closed; the message gives the reason."
);

/// The exception for an error of a node.
pub fn failed(error: NodeError) -> PyErr {
    let sentence = error.to_string();
    match error {
        error if error.is_timeout() => PyTimeoutError::new_err(sentence),
        NodeError::Ended(_) | NodeError::GroupFailed(_) | NodeError::Corrupt { .. } => {
            GroupEnded::new_err(sentence)
        }
        // Python maps the error number to a subclass, such as PermissionError.
        NodeError::Bind { source, .. } | NodeError::System { source, .. } => {
            PyOSError::new_err((source.raw_os_error(), sentence))
        }
        NodeError::NoFreePort { .. } => PyOSError::new_err((libc::EADDRINUSE, sentence)),
        _ => TreecastError::new_err(sentence),
    }
}

/// The exception for an error of the crates.
pub fn refused(error: impl std::error::Error) -> PyErr {
    TreecastError::new_err(error.to_string())
}

/// The text of a file, which is a `pathlib.Path`.
///
/// # Errors
/// [`TreecastError`] naming the file where it is not UTF-8; what Python raises where it cannot be
/// read.
pub fn read_text(path: &Bound<'_, PyAny>) -> PyResult<String> {
    let text = path.call_method1("read_text", ("utf-8",)).map_err(|error| {
        if error.is_instance_of::<PyUnicodeDecodeError>(path.py()) {
            TreecastError::new_err(format!("{path} could not be read: it is not valid UTF-8"))
        } else {
            error
        }
    });
    text?.extract()
}
