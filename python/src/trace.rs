//! Traces of runs, as files.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use treecast_plan::Placement;
use treecast_sim::{Parameters, Recorder, SimError, Trace};

use crate::error::refused;
use crate::fabric::Fabric;

/// Simulates, and writes a trace of it if a path is given: whole or not at all.
pub fn traced<T: Send>(
    py: Python<'_>,
    path: Option<Bound<'_, PyAny>>,
    fabric: &Fabric,
    placement: &Placement,
    parameters: &Parameters,
    simulate: impl FnOnce(Option<&mut dyn Recorder>) -> Result<T, SimError> + Send,
) -> PyResult<T> {
    let Some(path) = path else { return py.detach(|| simulate(None)).map_err(refused) };
    let mut trace = Trace::new(fabric.topology(), placement, parameters.cycle, Trace::BYTES_MAX);
    let traced = py.detach(|| Ok((simulate(Some(&mut trace))?, trace.finish())));
    let (outcome, bytes) = traced.map_err(|error: SimError| refused(error))?;
    let files = py.import("treecast._files")?;
    files.call_method1("write_whole", (path, PyBytes::new(py, &bytes)))?;
    Ok(outcome)
}
