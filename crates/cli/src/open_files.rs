//! The limit of open files, for commands that start many processes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The files that this process may have open beside those of the processes that it starts, at most.
const OTHER_FILES: u64 = 64;

/// Raises the limit of open files of this process, which those that it starts inherit, if it is too low for this many, and the system
/// allows that.
pub fn allow_open_files(files: u64) {
    let limit = getrlimit(Resource::Nofile);
    let wanted = files + OTHER_FILES;
    if limit.current.is_some_and(|current| current < wanted) {
        let current = Some(limit.maximum.map_or(wanted, |maximum| wanted.min(maximum)));
        // If the limit stays too low, the start of a process reports that.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..limit });
    }
}
