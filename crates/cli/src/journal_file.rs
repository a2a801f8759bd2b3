//! The journal file of a figure: each row is written when it is complete, so that an interrupted
//! command loses no finished run.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, bail};
use treecast_study::Row;
use treecast_study::journal::{Journal, digest};

use crate::output::NotWritten;

/// An open journal, locked against other commands.
pub struct JournalFile {
    path: PathBuf,
    file: Mutex<File>,
    /// The first write error.
    failed: Mutex<Option<io::Error>>,
}

impl JournalFile {
    /// Opens the journal at `path`, and reads its rows; `fresh` discards them.
    pub fn open(path: &Path, fresh: bool) -> anyhow::Result<(Self, Journal)> {
        let failed = || NotWritten(path.into());
        let file = File::options().create(true).truncate(false).read(true).append(true).open(path);
        let file = file.with_context(failed)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                bail!("{} is in use: another command runs this figure", path.display())
            }
            // On a file system without locks we assume that no other command runs this figure.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let program = program();
        let bytes = if fresh { Vec::new() } else { std::fs::read(path).with_context(failed)? };
        let journal = Journal::read(&bytes, &program);
        let begun = cut(&file, journal.whole(), &Journal::head(&program));
        begun.with_context(failed)?;
        Ok((Self { path: path.into(), file: Mutex::new(file), failed: Mutex::default() }, journal))
    }

    /// Writes a row.
    pub fn add(&self, row: &Row) {
        let line = Journal::line(row);
        let mut file = self.file.lock().expect("no thread panics while it holds this lock");
        if let Err(error) = file.write_all(line.as_bytes()) {
            self.failed.lock().expect("no thread panics while it holds this lock").get_or_insert(error);
        }
    }

    /// Returns the first write error, if there was one.
    pub fn close(self) -> anyhow::Result<()> {
        let failed = self.failed.into_inner().expect("no thread panics while it holds this lock");
        failed.map_or(Ok(()), Err).with_context(|| NotWritten(self.path))
    }
}

/// Truncates the file to its first `whole` bytes, or writes the header if there are none.
fn cut(mut file: &File, whole: usize, head: &str) -> io::Result<()> {
    file.set_len(whole as u64)?;
    if whole == 0 { file.write_all(head.as_bytes()) } else { Ok(()) }
}

/// Identifies this build of the program, because another may simulate differently.
fn program() -> String {
    let executable = std::env::current_exe().and_then(std::fs::read);
    format!("{} {:x}", env!("CARGO_PKG_VERSION"), digest(&executable.unwrap_or_default()))
}
