//! What several parts ask of the machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A small file of the kernel, without the blanks at its ends.
pub fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Where a tool is: also in the usual folders, those of the administrator among them, which users need not have in their path.
pub fn tool(name: &str) -> Option<PathBuf> {
    let given = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&given).chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// What a tool prints, if it succeeds.
pub fn output(tool: &Path, words: &[&str]) -> Option<String> {
    let mut command = Command::new(tool);
    let output = command.args(words).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The kernel's version: its first two numbers, and all of it.
pub fn kernel() -> ((u32, u32), String) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    (version(&release), release)
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok()).unwrap_or(0);
    (next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_kernels_are_numbers() {
        assert_eq!(version("6.12.41-amd64"), (6, 12));
        assert_eq!(version("5.9-rc1"), (5, 9));
        assert_eq!(version("strange"), (0, 0));
    }
}
