//! A file under another name, until it is complete.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::attributes::{Attributes, PART_MODE, set_extended};
use super::comparison::{COPIED_BYTES, FoundChunks};
use super::parts;
use super::place::Place;
use super::write_behind::{WINDOW_BYTES, WriteBehind};
use crate::file_hash::SentHash;
use crate::stream::Hash;
use crate::{Entry, Kind};

/// Files that are longer, in bytes, have their blocks allocated before their data comes.
const ALLOCATED_BYTES_MIN: u64 = 256 << 10;

/// A file under another name; removed unless it is completed.
pub(super) struct PartFile {
    file: File,
    part: OsString,
    pub place: Place,
    entry: Entry,
    hash: SentHash,
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
            let _ = self.place.directory.remove(&self.part);
        }
    }
}

impl PartFile {
    /// Makes the file, with the chunks of it that are here.
    pub fn new(place: Place, entry: Entry, found: &FoundChunks, is_kept: bool) -> io::Result<Self> {
        let mode = entry.mode & 0o777 | PART_MODE;
        let create = |part: &OsStr| {
            let file = place.directory.create_file(part, mode)?;
            let there = parts::lock(&file)?;
            Ok((file, there.ctime()))
        };
        let (part, (file, now_seconds)) = parts::make(&place.name, create)?;
        let mut file = Self {
            file,
            part,
            place,
            hash: SentHash::default(),
            behind: None,
            // A file with holes is not compared: its holes would be read.
            has_chunks: !found.is_empty() && !matches!(entry.kind, Kind::File { is_sparse: true, .. }),
            is_kept,
            is_complete: false,
            entry,
        };
        if file.entry.length() > WINDOW_BYTES {
            file.behind = Some(WriteBehind::new(&file.file)?);
        }
        file.allocate()?;
        found.copy_to(&file.file)?;
        // What earlier copies have left is in this one.
        file.place.remove_abandoned(now_seconds);
        Ok(file)
    }

    /// A full disk is known before the data comes, and the file system can lay the file out in one
    /// piece. So is a file with holes that is longer than files can be there.
    fn allocate(&self) -> io::Result<()> {
        if let Kind::File { length, is_sparse: true } = self.entry.kind
            && length > ALLOCATED_BYTES_MIN
        {
            return self.file.set_len(length);
        }
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
        // The first, as the system refuses offsets that no file has.
        self.file.write_all_at(bytes, offset)?;
        self.hash.add(offset, bytes);
        match &mut self.behind {
            // What is read again is not to be dropped yet.
            Some(behind) if !self.has_chunks => behind.note(bytes.len() as u64),
            _ => Ok(()),
        }
    }

    /// Hashes chunks that do not come, since they were here already.
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

    /// Moves the file to its name. Returns the first error of an extended attribute, which does not
    /// prevent that.
    pub fn complete(
        mut self,
        length: u64,
        hash: &Hash,
        attributes: &Attributes,
    ) -> io::Result<io::Result<()>> {
        self.hash_until(length)?;
        let received = std::mem::take(&mut self.hash);
        // The file has another length if it was allocated and has become shorter since, or if a
        // hole is at its end.
        let has_length = received.position() == length && self.entry.length() <= ALLOCATED_BYTES_MIN;
        if received.finish(length) != *hash {
            return Err(io::Error::other("what has come differs from what was sent: the hashes differ"));
        }
        if !has_length {
            self.file.set_len(length)?;
        }
        attributes.set_of_file(&self.file, &self.entry)?;
        let extended = set_extended(&self.file, &self.entry);
        if let Some(behind) = self.behind.take() {
            behind.finish()?;
        }
        self.place.directory.replace(&self.part, &self.place.name)?;
        self.is_complete = true;
        Ok(extended)
    }
}
