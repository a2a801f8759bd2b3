//! The time slice of threads that run briefly and often.

#![expect(unsafe_code, reason = "sched_setattr")]

use std::io;
use std::mem;

/// The slice, in nanoseconds: the least that the kernel takes.
const SLICE_NS: u64 = 100_000;

/// Asks the scheduler for a short slice for the calling thread: when it is woken, it runs before threads with longer slices that are in
/// the middle of theirs, and it gives way after its own. Its share of the processor does not change (Linux 6.12, `sched_setattr(2)` with
/// `sched_runtime` of a thread without real-time policy). An older kernel ignores it.
///
/// # Errors
/// Those of the system, which the caller can ignore: the thread keeps the usual slice.
pub fn request_short_slice() -> io::Result<()> {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    let bytes = size_of::<libc::sched_attr>() as libc::c_uint;
    let (this_thread, no_flags) = (0, 0);
    // SAFETY: the system writes at most `bytes` bytes into the attributes.
    let answer =
        unsafe { libc::syscall(libc::SYS_sched_getattr, this_thread, &raw mut attributes, bytes, no_flags) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: the system reads the attributes, whose size is in them.
    let answer =
        unsafe { libc::syscall(libc::SYS_sched_setattr, this_thread, &raw const attributes, no_flags) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
