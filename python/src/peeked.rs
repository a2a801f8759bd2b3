//! Messages that Python programs read where the node has stored them.

#![expect(unsafe_code, reason = "the buffer protocol passes raw pointers")]

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use treecast_node::Part;

use crate::node_group::Entered;

/// The next bytes of a message, where the node has stored them (`NodeGroup.peek`): an object with
/// the buffer protocol, for memoryview and numpy.frombuffer, which cannot be written.
///
/// Its bytes are there until it is consumed, or another call receives from the group. At the end of
/// a `with` block it is consumed; after an exception it is not.
#[pyclass(frozen, module = "treecast")]
pub struct Peeked {
    group: Arc<Entered>,
    /// The number of the call that has shown the bytes.
    number: u64,
    first: Address,
    length: usize,
    part: Part,
}

/// Where the bytes are.
struct Address(*const u8);

// SAFETY: the bytes may be read by any thread, as long as `Entered::begin_view` lets them.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Peeked {
    /// What the call with this number has shown. The bytes are there as long as it is the last one
    /// that has received from the group.
    pub const fn new(group: Arc<Entered>, number: u64, bytes: &[u8], part: Part) -> Self {
        Self { group, number, first: Address(bytes.as_ptr()), length: bytes.len(), part }
    }
}

#[pymethods]
impl Peeked {
    /// Receives these bytes: the node may store others there.
    ///
    /// Raises BufferError if a memoryview or an array still uses them; TreecastError if they are
    /// received already.
    fn consume(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.group.consume(self.number))
    }

    /// The length of the whole message in bytes.
    #[getter]
    const fn message_bytes(&self) -> u64 {
        self.part.message_bytes
    }

    /// Whether these bytes complete the message.
    #[getter]
    const fn is_last(&self) -> bool {
        self.part.is_last
    }

    const fn __len__(&self) -> usize {
        self.length
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind = None, error = None, traceback = None))]
    #[expect(unused_variables, reason = "only the presence of an exception matters")]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        error: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if kind.is_none() && self.group.is_seen(self.number) {
            self.consume(py)?;
        }
        Ok(())
    }

    /// # Safety
    /// Python calls it, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let peeked = slf.get();
        if !peeked.group.begin_view(peeked.number) {
            return Err(PyBufferError::new_err("these bytes have been received"));
        }
        let (first, length) = (peeked.first.0.cast_mut().cast(), peeked.length as ffi::Py_ssize_t);
        // SAFETY: the view is Python's. The bytes stay in place and unchanged while there are views
        // (`Entered::begin_view`), and as long as the group, which the object keeps; the view is
        // read-only, and keeps the object.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), first, length, 1, flags) };
        if filled == -1 {
            peeked.group.end_view();
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }

    /// # Safety
    /// Python calls it, once for each view.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.group.end_view();
    }

    fn __repr__(&self) -> String {
        format!("<Peeked: {} of {} bytes>", self.length, self.part.message_bytes)
    }
}
