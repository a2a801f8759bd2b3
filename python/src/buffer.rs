//! Access to the memory of Python objects, by the buffer protocol (PEP 3118).

#![expect(unsafe_code, reason = "the buffer protocol gives raw pointers")]

use std::slice;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::error::TreecastError;

/// A message to send. It keeps a reference to its object, whose memory does not move.
pub struct Message(PyUntypedBuffer);

/// A buffer for a received message, likewise.
pub struct ReceiveBuffer(PyUntypedBuffer);

impl Message {
    /// # Errors
    /// `TypeError` for an object without the buffer protocol; [`TreecastError`] for a buffer that is not contiguous.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        contiguous(object, "message").map(Self)
    }

    /// The bytes. Another thread may change them meanwhile, so each may be read once only.
    pub fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous, and its exporter keeps it in place until it is released. Python programs may change it
        // while the GIL is released, as with every function that does so; the crate copies each byte once, and does not rely on
        // unchanged contents.
        unsafe { slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

impl ReceiveBuffer {
    /// # Errors
    /// Those of [`Message::of`], and `TypeError` for a read-only buffer.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = contiguous(object, "buffer")?;
        if buffer.readonly() {
            let kind = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!("the buffer is read-only: it is {kind}")));
        }
        Ok(Self(buffer))
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: as for a message, and the buffer is writable.
        unsafe { slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

fn contiguous(object: &Bound<'_, PyAny>, what: &str) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object)?;
    if buffer.is_c_contiguous() {
        return Ok(buffer);
    }
    Err(TreecastError::new_err(format!("the {what} is not contiguous: pass a copy, such as bytes({what})")))
}
