//! The clock of the protocol and of the kernel's packet path.

use rustix::time::{ClockId, clock_gettime};
use treecast_proto::Nanoseconds;

/// Nanoseconds since the start of the host, by the monotonic clock.
pub fn now() -> Nanoseconds {
    let time = clock_gettime(ClockId::Monotonic);
    Nanoseconds(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
