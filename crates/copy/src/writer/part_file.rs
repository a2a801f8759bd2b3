//! A file under another name, until it is complete.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::attributes::{Attributes, set_extended};
use super::comparison::{COPIED_BYTES, FoundChunks};
use super::write_behind::{WINDOW_BYTES, WriteBehind};
use crate::sender::FileHash;
use crate::stream::Hash;
use crate::{Entry, Kind};

/// The end of the name of a file that is not complete.
const PART: &str = ".treecast-part";

/// The longest name of a file, in bytes (`NAME_MAX` of limits.h).
const NAME_BYTES_MAX: usize = 255;

/// Files that are longer, in bytes, have their blocks allocated before their data comes.
const ALLOCATED_BYTES_MIN: u64 = 256 << 10;

/// A file under another name; removed unless it is completed.
pub(super) struct PartFile {
    file: File,
    part: PathBuf,
    pub target: PathBuf,
    entry: Entry,
    hash: FileHash,
    /// For a file that is longer than a window.
    behind: Option<WriteBehind>,
    /// Whether chunks were copied into it that were here already.
    has_chunks: bool,
    /// Whether it stays if it is not completed.
    is_kept: bool,
    is_complete: bool,
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.is_complete && !self.is_kept {
            let _ = fs::remove_file(&self.part);
        }
    }
}

impl PartFile {
    /// Makes the file, with the chunks of it that are here.
    pub fn new(target: &Path, entry: Entry, found: &FoundChunks, is_kept: bool) -> io::Result<Self> {
        let part = part_of(target)?;
        let mode = entry.mode & 0o777;
        let open =
            |part: &Path| OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(part);
        let file = make_anew(&part, open)?;
        let mut file = Self {
            file,
            part,
            target: target.into(),
            entry,
            hash: FileHash::default(),
            behind: None,
            has_chunks: !found.is_empty(),
            is_kept,
            is_complete: false,
        };
        if file.entry.length() > WINDOW_BYTES {
            file.behind = Some(WriteBehind::new(&file.file)?);
        }
        file.allocate()?;
        found.copy_to(&file.file)?;
        Ok(file)
    }

    /// A full disk is known before the data comes, and the file system can lay the file out in one piece.
    fn allocate(&self) -> io::Result<()> {
        if let Kind::File { length, is_sparse: false } = self.entry.kind
            && length > ALLOCATED_BYTES_MIN
        {
            match fallocate(&self.file, FallocateFlags::empty(), 0, length) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The end of what was written, and of the chunks and holes before it.
    pub const fn position(&self) -> u64 {
        self.hash.position()
    }

    /// Writes the next part.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.hash_until(offset)?;
        self.hash.add(offset, bytes);
        self.file.write_all_at(bytes, offset)?;
        match &mut self.behind {
            // What is read again is not to be dropped yet.
            Some(behind) if !self.has_chunks => behind.note(bytes.len() as u64),
            _ => Ok(()),
        }
    }

    /// Hashes what does not come: holes, or chunks that were here already.
    fn hash_until(&mut self, end: u64) -> io::Result<()> {
        let mut bytes = vec![0; if self.has_chunks { COPIED_BYTES } else { 0 }];
        while self.has_chunks && self.hash.position() < end {
            let offset = self.hash.position();
            let length = (end - offset).min(COPIED_BYTES as u64) as usize;
            self.file.read_exact_at(&mut bytes[..length], offset)?;
            self.hash.add(offset, &bytes[..length]);
        }
        Ok(())
    }

    /// Moves the file to its name. Returns the first error of an extended attribute, which does not prevent that.
    pub fn complete(
        mut self,
        length: u64,
        hash: &Hash,
        attributes: &Attributes,
    ) -> io::Result<io::Result<()>> {
        self.hash_until(length)?;
        let received = std::mem::take(&mut self.hash);
        // The file has another length if it was allocated and has become shorter since, or if a hole is at its end.
        let has_length = received.position() == length && self.entry.length() <= ALLOCATED_BYTES_MIN;
        if received.finish(length) != *hash {
            return Err(io::Error::other("what has come differs from what was sent: the hashes differ"));
        }
        if !has_length {
            self.file.set_len(length)?;
        }
        attributes.set_of_file(&self.file, &self.entry)?;
        let extended = set_extended(&self.part, &self.entry);
        if let Some(behind) = self.behind.take() {
            behind.finish()?;
        }
        fs::rename(&self.part, &self.target)?;
        self.is_complete = true;
        Ok(extended)
    }
}

/// Makes a file that is not there; what an earlier copy has left under its name is removed.
pub(super) fn make_anew<T>(part: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    match make(part) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(part)?;
            make(part)
        }
        made => made,
    }
}

/// `.NAME.treecast-part` in the same directory; a long name is cut.
pub(super) fn part_of(target: &Path) -> io::Result<PathBuf> {
    let name = target.file_name().ok_or(ErrorKind::InvalidFilename)?.as_bytes();
    let mut part = OsString::from(".");
    part.push(OsStr::from_bytes(&name[..name.len().min(NAME_BYTES_MAX - 1 - PART.len())]));
    part.push(PART);
    Ok(target.with_file_name(part))
}
