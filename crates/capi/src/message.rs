//! Messages: sending and receiving them, and the end of a group.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::slice;

use crate::arguments::{bytes, handle, timeout, write};
use crate::result::tc_result::{self, TC_CLOSED, TC_OK, TC_SYSTEM_ERROR};
use crate::result::{Failure, none_lost, result_of, wrong};
use crate::tc_group;

/// At the root: sends a message to all other members. The call returns when the message has been
/// copied, and its buffer can be reused.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `message` is valid for
/// reading `length` bytes, or NULL if `length` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_send(
    group: *const tc_group,
    message: *const c_void,
    length: usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        unsafe { handle(group, "group")?.send(bytes(message, length)?)? };
        Ok(TC_OK)
    })
}

/// At the root: sends the next bytes of a message of `message_bytes`, and writes how many of
/// `length` it has taken. For programs that cannot wait as long as tc_group_send may, or do not
/// have the whole message in memory: they call it with what follows until the message is complete,
/// and before they send another one. It takes whole packets (tc_group_packet_bytes), so that bytes
/// that fill none are taken only if they complete the message. A message of no bytes is sent by one
/// call. TC_TIMED_OUT if no slot became free in time. TC_INVALID_ARGUMENT if `message_bytes` is not
/// the length of the message that is partly sent, or if `length` is more than that message lacks.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `part` is valid for reading
/// `length` bytes, or NULL if `length` is 0; `sent` is valid for writing a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_send_part(
    group: *const tc_group,
    part: *const c_void,
    length: usize,
    message_bytes: u64,
    timeout_ms: i64,
    sent: *mut usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let (group, part) = unsafe { (handle(group, "group")?, bytes(part, length)?) };
        if sent.is_null() {
            return Err(wrong("the output for the number of bytes is NULL"));
        }
        let taken = group.send_part(part, message_bytes, timeout(timeout_ms))?;
        // SAFETY: as the caller promises.
        unsafe { write(sent, taken.bytes, "number of bytes")? };
        Ok(TC_OK)
    })
}

/// Writes the number of bytes of a message of which calls for parts take whole multiples.
/// TC_INVALID_ARGUMENT at other members than the root before the first call that receives.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `packet_bytes` is valid for
/// writing a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_packet_bytes(
    group: *const tc_group,
    packet_bytes: *mut usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let bytes = unsafe { handle(group, "group") }?.packet_bytes();
        let bytes = bytes.ok_or_else(|| wrong("this member has not received anything yet"))?;
        // SAFETY: as the caller promises.
        unsafe { write(packet_bytes, bytes, "number of bytes")? };
        Ok(TC_OK)
    })
}

/// At the root: TC_MEMBERS_LOST, if members have been lost so far; tc_error_message names them.
/// TC_OK at other members. It does not wait.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_check(group: *const tc_group) -> tc_result {
    // SAFETY: as the caller promises.
    result_of(|| none_lost(&unsafe { handle(group, "group") }?.losses()))
}

/// At the root: waits until every member that is not lost has all messages sent so far.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_flush(group: *const tc_group, timeout_ms: i64) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        unsafe { handle(group, "group") }?.flush(timeout(timeout_ms))?;
        Ok(TC_OK)
    })
}

/// The bytes of a caller's buffer, which is NULL only if there are none.
///
/// # Safety
/// The bytes are valid for writing, and no other thread uses them.
const unsafe fn uninit_bytes<'a>(buffer: *mut c_void, capacity: usize) -> &'a mut [MaybeUninit<u8>] {
    if capacity == 0 {
        return &mut [];
    }
    let most = isize::MAX as usize;
    // SAFETY: as the caller says; the bytes may be uninitialized.
    unsafe { slice::from_raw_parts_mut(buffer.cast(), if capacity < most { capacity } else { most }) }
}

/// At other members: receives the next message into `buffer`, which has `capacity` bytes, and
/// writes its length. TC_CLOSED, if the root has closed the group and all messages have been
/// received. What follows the message in the buffer may have changed.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `buffer` is valid for writing
/// `capacity` bytes; `length` is valid for writing a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_receive(
    group: *const tc_group,
    buffer: *mut c_void,
    capacity: usize,
    timeout_ms: i64,
    length: *mut usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let group = unsafe { handle(group, "group") }?;
        if buffer.is_null() || length.is_null() {
            return Err(wrong("the buffer or the output for the length is NULL"));
        }
        // SAFETY: as the caller promises.
        let buffer = unsafe { uninit_bytes(buffer, capacity) };
        match group.receive_uninit(buffer, timeout(timeout_ms))? {
            Some(received) => {
                // SAFETY: as the caller promises.
                unsafe { write(length, received, "length")? };
                Ok(TC_OK)
            }
            None => Ok(TC_CLOSED),
        }
    })
}

/// At other members: receives the next bytes of a message into `buffer`, which has `capacity`
/// bytes, and writes the length of the whole message and how many bytes were received. For programs
/// that cannot wait as long as tc_group_receive may, whose timeout is for the beginning of a
/// message, or that do not keep the whole message in memory. It receives whole packets:
/// TC_BUFFER_TOO_SMALL, if the buffer has no room for the next one; 65536 bytes, or those that the
/// message lacks, are sufficient. TC_CLOSED, if the root has closed the group and all messages have
/// been received. What follows the received bytes in the buffer may have changed.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `buffer` is valid for writing
/// `capacity` bytes, or NULL if that is 0; `message_bytes` and `received` are valid for writing a
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_receive_part(
    group: *const tc_group,
    buffer: *mut c_void,
    capacity: usize,
    timeout_ms: i64,
    message_bytes: *mut u64,
    received: *mut usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let group = unsafe { handle(group, "group") }?;
        if buffer.is_null() && capacity > 0 || message_bytes.is_null() || received.is_null() {
            return Err(wrong("the buffer or an output is NULL"));
        }
        // SAFETY: as the caller promises.
        let buffer = unsafe { uninit_bytes(buffer, capacity) };
        let part = group.receive_part_uninit(buffer, timeout(timeout_ms))?;
        let Some((part, filled)) = part else { return Ok(TC_CLOSED) };
        // SAFETY: as the caller promises.
        unsafe {
            write(message_bytes, part.message_bytes, "length")?;
            write(received, filled, "number of bytes")?;
        }
        Ok(TC_OK)
    })
}

/// At other members: waits for a message, and shows its next bytes where the node has stored them,
/// without a copy: writes where they are, how many there are, and the length of the whole message.
/// They stay there until the next call of this thread or another one that receives from the group,
/// or that closes or frees it. tc_group_consume receives them; without that the next call begins
/// with the same bytes. They are at least one packet of the message, and all of a message that
/// waits in consecutive slots. TC_CLOSED, if the root has closed the group and all
/// messages have been received.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `bytes` is valid for writing
/// a pointer; `length` and `message_bytes` are valid for writing a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_peek(
    group: *const tc_group,
    timeout_ms: i64,
    bytes: *mut *const c_void,
    length: *mut usize,
    message_bytes: *mut u64,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let group = unsafe { handle(group, "group") }?;
        if bytes.is_null() || length.is_null() || message_bytes.is_null() {
            return Err(wrong("an output is NULL"));
        }
        let Some(peeked) = group.peek(timeout(timeout_ms))? else { return Ok(TC_CLOSED) };
        // SAFETY: as the caller promises.
        unsafe {
            write(bytes, peeked.as_ptr().cast(), "bytes")?;
            write(length, peeked.len(), "number of bytes")?;
            write(message_bytes, peeked.part().message_bytes, "length")?;
        }
        Ok(TC_OK)
    })
}

/// At other members: receives the bytes that tc_group_peek has shown last. Without them it does
/// nothing. TC_GROUP_ENDED if a daemon has taken the memory back meanwhile: what was read there may
/// be zeros.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_consume(group: *const tc_group) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        unsafe { handle(group, "group") }?.consume()?;
        Ok(TC_OK)
    })
}

/// A file descriptor that becomes readable when the group's state changes, or -1. Then read its
/// eight bytes, and receive with a timeout of 0 until TC_TIMED_OUT. The group owns it.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_descriptor(group: *const tc_group) -> c_int {
    let mut descriptor = -1;
    result_of(|| {
        // SAFETY: as the caller promises.
        let watched = unsafe { handle(group, "group") }?.watch();
        descriptor = watched.map_err(|error| Failure(TC_SYSTEM_ERROR, error.to_string()))?.as_raw_fd();
        Ok(TC_OK)
    });
    descriptor
}

/// At the root: waits until every member has all messages, and closes the group: TC_MEMBERS_LOST,
/// if some have been lost. At another member: leaves the group. The group is freed, whatever the
/// result is.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_close(group: *mut tc_group, timeout_ms: i64) -> tc_result {
    result_of(|| {
        if group.is_null() {
            return Err(wrong("the group is NULL"));
        }
        // SAFETY: as the caller promises.
        let group = unsafe { Box::from_raw(group) };
        none_lost(&group.0.get()?.close(timeout(timeout_ms))?)
    })
}

/// Frees a group. If it is not closed, the root aborts it, and another member leaves it. NULL is
/// allowed.
///
/// # Safety
/// `group` is NULL, or comes from tc_group_new, tc_group_listen or tc_group_join, and is not used
/// afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_free(group: *mut tc_group) {
    if !group.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(group) });
    }
}
