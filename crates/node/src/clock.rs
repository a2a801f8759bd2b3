//! The time, as the protocol and the kernel's packet path have it.

use rustix::time::{ClockId, clock_gettime};
use treecast_proto::Nanoseconds;

/// Nanoseconds of the clock that only goes forward, from when this host was started on.
pub fn now() -> Nanoseconds {
    let time = clock_gettime(ClockId::Monotonic);
    Nanoseconds(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
