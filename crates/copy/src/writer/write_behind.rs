//! Long files go to the disk while they are written, and leave the page cache.

use std::fs::File;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rustix::fs::{Advice, fadvise, fdatasync};

/// The bytes after which a file's data goes to the disk. The page cache has at most three times as
/// many of a file: those that go there, as many that wait for it, and those that are written
/// meanwhile.
pub(super) const WINDOW_BYTES: u64 = 16 << 20;

/// Sends a file's data to the disk, a window at a time, in a thread of its own. Without it the
/// kernel would keep all of the file in the page cache, in place of what other programs have there,
/// and would report a disk's errors to nobody.
pub(super) struct WriteBehind {
    file: File,
    /// The bytes that were written and not yet asked for.
    waiting_bytes: u64,
    /// Runs from the end of the first window on.
    thread: Option<(SyncSender<()>, JoinHandle<io::Result<()>>)>,
}

impl WriteBehind {
    /// For a file that is open for writing.
    ///
    /// # Errors
    /// The descriptor cannot be duplicated.
    pub fn new(file: &File) -> io::Result<Self> {
        Ok(Self { file: file.try_clone()?, waiting_bytes: 0, thread: None })
    }

    /// Notes that `bytes` more bytes were written. Waits while two windows are on their way.
    ///
    /// # Errors
    /// Earlier data could not be written to the disk.
    pub fn note(&mut self, bytes: u64) -> io::Result<()> {
        self.waiting_bytes += bytes;
        if self.waiting_bytes < WINDOW_BYTES {
            return Ok(());
        }
        self.waiting_bytes = 0;
        if self.thread.is_none() {
            let file = self.file.try_clone()?;
            let (windows, queue) = sync_channel(1);
            let thread = thread::spawn(move || queue.iter().try_for_each(|()| sync_and_drop(&file)));
            self.thread = Some((windows, thread));
        }
        let has_ended = self.thread.as_ref().is_some_and(|(windows, _)| windows.send(()).is_err());
        if has_ended { self.join() } else { Ok(()) }
    }

    /// Waits until all of the file is on the disk.
    ///
    /// # Errors
    /// Some of it has not come there.
    pub fn finish(mut self) -> io::Result<()> {
        self.join()?;
        sync_and_drop(&self.file)
    }

    fn join(&mut self) -> io::Result<()> {
        let Some((windows, thread)) = self.thread.take() else { return Ok(()) };
        drop(windows);
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that syncs it has panicked")))
    }
}

fn sync_and_drop(file: &File) -> io::Result<()> {
    fdatasync(file)?;
    // Drops clean pages only; one that is written meanwhile is dropped the next time. A hint: some
    // file systems ignore it.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn a_long_file_is_all_there() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut behind = WriteBehind::new(file.as_file()).unwrap();
        let block: Vec<u8> = (0..1_u32 << 20).map(|byte| (byte % 251) as u8).collect();
        for _ in 0..40 {
            file.write_all(&block).unwrap();
            behind.note(block.len() as u64).unwrap();
        }
        behind.finish().unwrap();
        let read = fs::read(file.path()).unwrap();
        assert!(read.len() == 40 << 20 && read.chunks(1 << 20).all(|part| part == block));
    }

    #[test]
    fn a_disk_that_fails_is_an_error() {
        // A device that takes all bytes and cannot sync them: it reports an error as a broken disk
        // does.
        let file = File::options().write(true).open("/dev/zero").unwrap();
        let mut behind = WriteBehind::new(&file).unwrap();
        let noted = behind.note(WINDOW_BYTES);
        assert!(noted.and_then(|()| behind.finish()).is_err());
    }
}
