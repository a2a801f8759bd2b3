//! Arguments of calls, and their outputs.

use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;
use std::{ptr, slice};

use treecast_node::Owned;

use crate::result::tc_result::{self, TC_OK};
use crate::result::{Failure, wrong};

/// # Safety
/// `pointer` is null or a zero-terminated string.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(wrong(format!("{what} is NULL")));
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| wrong(format!("{what} is not valid UTF-8")))
}

/// # Safety
/// `pointer` is null, or a handle from `tc_node_new` or a function that creates groups, and not
/// freed.
pub(crate) unsafe fn handle<'a, T: 'a>(
    pointer: *const (impl AsRef<Owned<T>> + 'a),
    what: &str,
) -> Result<&'a T, Failure> {
    // SAFETY: as the caller promises.
    let handle = unsafe { pointer.as_ref() }.ok_or_else(|| wrong(format!("the {what} is NULL")))?;
    Ok(handle.as_ref().get()?)
}

/// # Safety
/// `output` is null or valid for writing one `T`.
pub(crate) unsafe fn write<T>(output: *mut T, value: T, what: &str) -> Result<(), Failure> {
    if output.is_null() {
        return Err(wrong(format!("the output for the {what} is NULL")));
    }
    // SAFETY: as the caller promises.
    unsafe { output.write(value) };
    Ok(())
}

/// Writes a text and a zero to a buffer of `capacity` bytes.
///
/// # Safety
/// `buffer` is NULL or valid for writing `capacity` bytes.
pub(crate) unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    capacity: usize,
    what: &str,
) -> Result<tc_result, Failure> {
    if buffer.is_null() || capacity <= text.len() {
        return Err(wrong(format!("{what} needs a buffer of {} bytes", text.len() + 1)));
    }
    // SAFETY: the buffer is large enough for the text and its zero, and is not the text, which Rust
    // borrows.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len());
        buffer.add(text.len()).write(0);
    }
    Ok(TC_OK)
}

/// # Safety
/// `message` is null or valid for reading `length` bytes.
pub(crate) unsafe fn bytes<'a>(message: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    if message.is_null() {
        return Err(wrong("the message is NULL"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { slice::from_raw_parts(message.cast::<u8>(), length) })
}

pub(crate) fn timeout(milliseconds: i64) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}
