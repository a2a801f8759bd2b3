//! Messages that Python programs read where the node has stored them.

#![expect(unsafe_code, reason = "the buffer protocol passes raw pointers")]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use treecast_node::Part;

use crate::node_group::Entered;

/// The calls of a group that receive, and the memoryviews of what one of them has shown: as long as
/// there are views, no call receives.
#[derive(Default)]
pub struct Receptions {
    /// The calls that have received, or shown what can be received.
    count: AtomicU64,
    views: AtomicUsize,
}

impl Receptions {
    /// Begins a call, which may change what was shown before; returns its number.
    ///
    /// # Errors
    /// `BufferError` if there are views.
    pub fn begin(&self) -> PyResult<u64> {
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if self.views.load(Ordering::SeqCst) > 0 {
            // What was shown stays as it is.
            self.count.fetch_sub(1, Ordering::SeqCst);
            return Err(PyBufferError::new_err(
                "the bytes of a message are in use: release the memoryviews of what peek returned",
            ));
        }
        Ok(number)
    }

    /// Whether no call has begun since the one with this number.
    pub fn is_last(&self, number: u64) -> bool {
        self.count.load(Ordering::SeqCst) == number
    }

    /// Begins a view of what the call with this number has shown; false if a later call may have
    /// received that.
    fn begin_view(&self, number: u64) -> bool {
        // A call counts itself before it looks for views, and a view is counted before it looks for
        // later calls: one of both sees the other.
        self.views.fetch_add(1, Ordering::SeqCst);
        let is_there = self.is_last(number);
        if !is_there {
            self.end_view();
        }
        is_there
    }

    fn end_view(&self) {
        self.views.fetch_sub(1, Ordering::SeqCst);
    }
}

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

// SAFETY: any thread may read the bytes, as long as `Receptions::begin_view` lets it.
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
        if kind.is_none() && self.group.receptions.is_last(self.number) {
            self.consume(py)?;
        }
        Ok(())
    }

    /// # Safety
    /// Python calls it, with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let peeked = slf.get();
        if !peeked.group.receptions.begin_view(peeked.number) {
            return Err(PyBufferError::new_err("these bytes have been received"));
        }
        let (first, length) = (peeked.first.0.cast_mut().cast(), peeked.length as ffi::Py_ssize_t);
        // SAFETY: the view is Python's. The bytes stay in place and unchanged while there are views
        // (`Receptions::begin`), and as long as the group, which the object keeps; the view is
        // read-only, and keeps the object.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), first, length, 1, flags) };
        if filled == -1 {
            peeked.group.receptions.end_view();
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }

    /// # Safety
    /// Python calls it, once for each view.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.group.receptions.end_view();
    }

    fn __repr__(&self) -> String {
        format!("<Peeked: {} of {} bytes>", self.length, self.part.message_bytes)
    }
}
