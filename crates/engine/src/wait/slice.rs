//! The time slice of threads that run briefly and often.

#![expect(unsafe_code, reason = "sched_setattr")]

use std::io;
use std::mem;

/// The slice, in nanoseconds: the least that the kernel takes.
const SLICE_NS: u64 = 100_000;

/// Asks the scheduler for a short slice for the calling thread: when it is woken, it preempts
/// threads with longer slices, and it is preempted after its own. Its share of the processor does
/// not change (Linux 6.12, `sched_setattr(2)` with `sched_runtime` of a thread without real-time
/// policy). An older kernel ignores it.
///
/// # Errors
/// Those of the system, which the caller can ignore: the thread keeps the usual slice.
pub fn request_short_slice() -> io::Result<()> {
    let attributes = libc::sched_attr { sched_runtime: SLICE_NS, ..attributes()? };
    // SAFETY: the system reads the attributes, whose size is in them.
    let answer =
        unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attributes, NO_FLAGS) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const THIS_THREAD: libc::pid_t = 0;
const NO_FLAGS: libc::c_uint = 0;

/// The scheduling attributes of the calling thread.
fn attributes() -> io::Result<libc::sched_attr> {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    let bytes = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: the system writes at most `bytes` bytes into the attributes.
    let answer =
        unsafe { libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attributes, bytes, NO_FLAGS) };
    if answer == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_slice_changes_the_slice_alone_where_the_kernel_has_such_slices() {
        let before = attributes().unwrap();
        if before.sched_runtime == 0 {
            eprintln!("skipped: this kernel has no time slices of threads");
            return;
        }
        request_short_slice().unwrap();
        let after = attributes().unwrap();
        assert_eq!(after.sched_runtime, SLICE_NS);
        assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
    }
}
