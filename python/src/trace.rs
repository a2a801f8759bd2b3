//! Traces of runs, as files.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use treecast_plan::Placement;
use treecast_sim::{Parameters, Trace};

use crate::fabric::Fabric;

/// A trace that is recorded for a file.
pub struct TraceFile<'py, 'a> {
    path: Bound<'py, PyAny>,
    pub trace: Trace<'a>,
}

impl<'py, 'a> TraceFile<'py, 'a> {
    /// The trace of a run, if one is wanted. Nothing is written yet.
    pub fn new(
        path: Option<Bound<'py, PyAny>>,
        fabric: &'a Fabric,
        placement: &Placement,
        parameters: &Parameters,
    ) -> Option<Self> {
        let trace = Trace::new(fabric.topology(), placement, parameters.cycle, Trace::BYTES_MAX);
        path.map(|path| Self { path, trace })
    }

    /// Writes the file, whole or not at all.
    pub fn write(self) -> PyResult<()> {
        let py = self.path.py();
        let bytes = py.detach(|| self.trace.finish());
        let files = py.import("treecast._files")?;
        files.call_method1("write_whole", (self.path, PyBytes::new(py, &bytes)))?;
        Ok(())
    }
}
