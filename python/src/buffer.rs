//! Bytes that belong to Python objects, used where they lie.

#![expect(unsafe_code, reason = "what the buffer protocol gives are pointers")]

use std::slice;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::error::TreecastError;

/// The bytes of a message. The object that they belong to is kept, and does not move them.
pub struct Message(PyUntypedBuffer);

/// Room for a message, likewise.
pub struct Room(PyUntypedBuffer);

impl Message {
    /// # Errors
    /// `TypeError` for what has no bytes; [`TreecastError`] where they do not lie together.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        contiguous(object, "message").map(Self)
    }

    /// The bytes. Another thread may write them meanwhile: whoever reads them takes each as it is then.
    pub fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer has so many bytes in one piece, and its exporter keeps them there until it is released. That they
        // may change under a reader is what Python programs accept of everything that takes a buffer without the GIL; the
        // crate copies them once, and trusts nothing that it has read twice.
        unsafe { slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

impl Room {
    /// # Errors
    /// As [`Message::of`]; also `TypeError` for what cannot be written.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = contiguous(object, "buffer")?;
        if buffer.readonly() {
            let kind = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!("the buffer cannot be written: it is {kind}")));
        }
        Ok(Self(buffer))
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: as for a message, and the buffer may be written.
        unsafe { slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

fn contiguous(object: &Bound<'_, PyAny>, what: &str) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object)?;
    if buffer.is_c_contiguous() {
        return Ok(buffer);
    }
    Err(TreecastError::new_err(format!(
        "the bytes of the {what} do not lie together: give a copy, as bytes({what})"
    )))
}
