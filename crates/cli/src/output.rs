//! Writing: files whole or not at all, and standard output.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A file that could not be written.
#[derive(Debug)]
pub struct NotWritten(pub PathBuf);

impl std::fmt::Display for NotWritten {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} could not be written", self.0.display())
    }
}

/// Writes a file whole or not at all: beside its place first, then moved there.
pub fn write_file(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
    write_and_move(path, contents).with_context(|| NotWritten(path.into()))
}

fn write_and_move(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().permissions(default_permissions()).tempfile_in(folder)?;
    file.write_all(contents)?;
    file.persist(path)?;
    Ok(())
}

/// Temporary files are for their owner alone; these are not temporary for long.
fn default_permissions() -> std::fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    std::fs::Permissions::from_mode(0o644)
}

/// Prints to standard output, or writes to a file.
pub fn emit(out: Option<&Path>, text: &str) -> anyhow::Result<()> {
    match out {
        Some(path) => write_file(path, text.as_bytes()),
        None => Ok(std::io::stdout().lock().write_all(text.as_bytes())?),
    }
}

/// How many columns the terminal has; 100 where there is none.
pub fn width() -> u16 {
    let (_, columns) = console::Term::stdout().size_checked().unwrap_or((0, 100));
    columns.clamp(60, 200)
}
