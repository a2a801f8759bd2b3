//! The journal of a figure as a file: each row is written when it is there, so that who is killed loses none that is done.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, bail};
use treecast_study::Row;
use treecast_study::journal::{Journal, digest};

use crate::output::NotWritten;

/// A journal that is open, and locked against other commands.
pub struct JournalFile {
    path: PathBuf,
    file: Mutex<File>,
    /// What went wrong first.
    failed: Mutex<Option<io::Error>>,
}

impl JournalFile {
    /// Opens the journal at `path`, and reads what is in it; `fresh` throws that away.
    pub fn open(path: &Path, fresh: bool) -> anyhow::Result<(Self, Journal)> {
        let failed = || NotWritten(path.into());
        let file = File::options().create(true).truncate(false).read(true).append(true).open(path);
        let file = file.with_context(failed)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                bail!("{} is in use: another command runs this figure", path.display())
            }
            // Where files cannot be locked we trust that we are alone.
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
        let mut file = self.file.lock().expect("nobody panics while writing");
        if let Err(error) = file.write_all(line.as_bytes()) {
            self.failed.lock().expect("nobody panics while writing").get_or_insert(error);
        }
    }

    /// Says what went wrong, if anything did.
    pub fn close(self) -> anyhow::Result<()> {
        let failed = self.failed.into_inner().expect("nobody panics while writing");
        failed.map_or(Ok(()), Err).with_context(|| NotWritten(self.path))
    }
}

/// Leaves the first `whole` bytes of a file, or a head where there are none.
fn cut(mut file: &File, whole: usize, head: &str) -> io::Result<()> {
    file.set_len(whole as u64)?;
    if whole == 0 { file.write_all(head.as_bytes()) } else { Ok(()) }
}

/// Tells this build of the program from others: another may simulate otherwise.
fn program() -> String {
    let executable = std::env::current_exe().and_then(std::fs::read);
    format!("{} {:x}", env!("CARGO_PKG_VERSION"), digest(&executable.unwrap_or_default()))
}
