//! Traces of runs, as files.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use treecast_plan::Placement;
use treecast_sim::{Parameters, Recorder, SimError, Trace, Watch};

use crate::fabric::Fabric;
use crate::interrupt::interruptible;

/// Simulates, and writes a trace of it if a path is given: whole or not at all.
pub fn traced<T: Send>(
    py: Python<'_>,
    path: Option<Bound<'_, PyAny>>,
    fabric: &Fabric,
    placement: &Placement,
    parameters: &Parameters,
    simulate: impl FnOnce(Option<&mut dyn Recorder>, &mut Watch) -> Result<T, SimError> + Send,
) -> PyResult<T> {
    let Some(path) = path else {
        return interruptible(py, |check| simulate(None, &mut |_| check()));
    };
    let mut trace = Trace::new(fabric.topology(), placement, parameters.cycle, Trace::BYTES_MAX);
    let (outcome, bytes) = interruptible(py, |check| {
        let outcome = simulate(Some(&mut trace), &mut |_| check())?;
        Ok::<_, SimError>((outcome, trace.finish()))
    })?;
    let files = py.import("treecast._files")?;
    files.call_method1("write_whole", (path, PyBytes::new(py, &bytes)))?;
    Ok(outcome)
}
