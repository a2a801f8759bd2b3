//! Access to the memory of Python objects, by the buffer protocol (PEP 3118).

#![expect(unsafe_code, reason = "the buffer protocol gives raw pointers")]

use std::slice;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use treecast_node::Element;

use crate::error::TreecastError;

/// A message to send. It keeps a reference to its object, whose memory does not move.
pub struct Message(PyUntypedBuffer);

/// A buffer for a received message, likewise.
pub struct ReceiveBuffer(PyUntypedBuffer);

impl Message {
    /// # Errors
    /// `TypeError` for an object without the buffer protocol; [`TreecastError`] for a buffer that
    /// is not contiguous.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        contiguous(object, "message").map(Self)
    }

    /// The bytes. Another thread may change them meanwhile, so each may be read once only.
    pub fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous, and its exporter keeps it in place until it is
        // released. Python programs may change it while the GIL is released, as with every function
        // that does so; the crate copies each byte once, and does not rely on unchanged contents.
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

/// Values for an all-reduce, which replaces them.
pub struct Numbers {
    buffer: ReceiveBuffer,
    pub element: Element,
}

impl Numbers {
    /// # Errors
    /// Those of [`ReceiveBuffer::of`], and [`TreecastError`] for values of another type than an
    /// all-reduce combines.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = ReceiveBuffer::of(object)?;
        let format = buffer.0.format().to_string_lossy();
        // In the byte order and the size of this machine (the module struct).
        let element = match (format.trim_start_matches(['@', '=', '<']), buffer.0.item_size()) {
            ("i" | "l" | "q", 4) => Some(Element::I32),
            ("i" | "l" | "q", 8) => Some(Element::I64),
            ("I" | "L" | "Q", 4) => Some(Element::U32),
            ("I" | "L" | "Q", 8) => Some(Element::U64),
            ("f", 4) => Some(Element::F32),
            ("d", 8) => Some(Element::F64),
            _ => None,
        };
        let element = element.ok_or_else(|| {
            TreecastError::new_err(format!(
                "values of format {format} cannot be combined: expected integers or numbers with a fraction of 4 or 8 bytes"
            ))
        })?;
        Ok(Self { buffer, element })
    }

    /// The bytes of the values.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.buffer.bytes()
    }
}

fn contiguous(object: &Bound<'_, PyAny>, what: &str) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object)?;
    if buffer.is_c_contiguous() {
        return Ok(buffer);
    }
    Err(TreecastError::new_err(format!("the {what} is not contiguous: pass a copy, such as bytes({what})")))
}
