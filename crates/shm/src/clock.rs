//! The clock of the protocol and of the kernel's packet path.

use std::path::Path;
use std::sync::LazyLock;

use rustix::time::{ClockId, clock_gettime};
use treecast_proto::Nanoseconds;

/// Nanoseconds since the start of the host, by the monotonic clock of the host: the kernel's packet
/// path has that clock, also where this process is in a time namespace.
pub fn now() -> Nanoseconds {
    let time = clock_gettime(ClockId::Monotonic);
    let here = time.tv_sec * 1_000_000_000 + time.tv_nsec;
    Nanoseconds((here - *OFFSET).max(0) as u64)
}

/// By how much the monotonic clock of this process is ahead of the host's, in nanoseconds.
static OFFSET: LazyLock<i64> = LazyLock::new(|| {
    let offset = offset(Path::new("/proc/self"));
    if offset != 0 {
        tracing::info!(offset_ns = offset, "this process is in a time namespace");
    }
    offset
});

/// The offset of a process's time namespace (`time_namespaces(7)`), from its directory in /proc; 0
/// where that cannot be known.
fn offset(process: &Path) -> i64 {
    let namespace = |name| std::fs::read_link(process.join("ns").join(name)).ok();
    // The file has the offsets of the namespace of children, which is this process's own unless it
    // has left that to them.
    let own = namespace("time");
    if own.is_none() || own != namespace("time_for_children") {
        return 0;
    }
    std::fs::read_to_string(process.join("timens_offsets")).ok().and_then(|text| read(&text)).unwrap_or(0)
}

/// Reads the offset of the monotonic clock: a line `monotonic SECONDS NANOSECONDS`.
fn read(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix("monotonic"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i64>);
    let (seconds, nanoseconds) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read() {
        let text = "monotonic      172800         7\nboottime            0         0\n";
        assert_eq!(read(text), Some(172_800_000_000_007));
        assert_eq!(read("monotonic -5 250000000\n"), Some(-4_750_000_000));
        for wrong in ["", "boottime 1 0", "monotonic", "monotonic x 0", "monotonic 9223372036854775807 0"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_clock_goes_on() {
        let start = now();
        assert!(start > Nanoseconds::ZERO && now() >= start);
    }
}
