//! The limit of open files, for commands that start many processes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The number of files that this process may need besides those for the processes that it starts.
const OTHER_FILES: u64 = 64;

/// Raises this process's limit of open files if it is too low for this number and the system allows
/// that. The processes that it starts inherit the limit.
pub fn allow_open_files(files: u64) {
    let limit = getrlimit(Resource::Nofile);
    let wanted = files + OTHER_FILES;
    if limit.current.is_some_and(|current| current < wanted) {
        let current = Some(limit.maximum.map_or(wanted, |maximum| wanted.min(maximum)));
        // If the limit stays too low, the start of a process reports that.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..limit });
    }
}
