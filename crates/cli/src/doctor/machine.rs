//! Queries of the machine that several examinations share.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The trimmed contents of a file in /proc or /sys.
pub fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The path of a tool. Searches the system directories too, because /usr/sbin is often not in the
/// `PATH` of ordinary users.
pub fn tool(name: &str) -> Option<PathBuf> {
    let given = std::env::var_os("PATH").unwrap_or_default();
    let directories =
        std::env::split_paths(&given).chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// The standard output of a tool; `None` if it fails.
pub fn output(tool: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(tool);
    let output = command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
