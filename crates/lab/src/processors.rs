//! The processors of hosts that run on one each.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// The processor of each host: those on which this process may run, in turn.
pub(crate) fn of_hosts(hosts: u32) -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let allowed: Vec<usize> =
        (0..CpuSet::count()).filter(|&processor| allowed.is_set(processor) == Ok(true)).collect();
    Ok(allowed.into_iter().cycle().take(hosts as usize).collect())
}

/// A set of one processor.
pub(crate) fn only(processor: usize) -> io::Result<CpuSet> {
    let mut processors = CpuSet::new();
    processors.set(processor)?;
    Ok(processors)
}

/// A line for each host: its name and its processor, such as `n0 1`.
pub(crate) fn inventory(processors: &[usize]) -> String {
    let lines = processors.iter().enumerate();
    let lines: Vec<String> = lines.map(|(host, processor)| format!("n{host} {processor}\n")).collect();
    lines.concat()
}
