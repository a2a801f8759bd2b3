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
use crate::file_hash::ContentHash;
use crate::stream::Hash;
use crate::{Entry, Kind};

/// Files that are longer, in bytes, have their blocks allocated before their data comes.
const ALLOCATED_BYTES_MIN: u64 = 256 << 10;

/// A file under another name; removed unless it is completed.
///
/// The receiver has authenticated all data before it is written here, so a file is complete when no
/// part is missing. Only a file into which chunks of an existing file were copied is hashed:
/// nothing else tells whether these have changed since they were compared.
pub(super) struct PartFile {
    file: File,
    part: OsString,
    pub place: Place,
    entry: Entry,
    /// The end of what was written, and of the chunks and holes before it.
    position: u64,
    /// The hash of that, if chunks were copied into the file that were here already.
    hash: Option<ContentHash>,
    /// For a file that is longer than a window.
    behind: Option<WriteBehind>,
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
            position: 0,
            // A file with holes is not compared: its holes would be read.
            hash: (!found.is_empty() && !is_sparse(&entry)).then(ContentHash::default),
            behind: None,
            // Nothing is in it yet that another copy could use.
            is_kept: false,
            is_complete: false,
            entry,
        };
        if file.entry.length() > WINDOW_BYTES {
            file.behind = Some(WriteBehind::new(&file.file)?);
        }
        let allocated = match file.allocate() {
            // They may be as long as the file.
            Err(error) if error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) && found.is_empty() => {
                file.place.remove_abandoned(now_seconds);
                file.allocate()
            }
            allocated => allocated,
        };
        allocated?;
        found.copy_to(&file.file)?;
        file.is_kept = is_kept;
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
        self.position
    }

    /// Writes the next part.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.fill(offset)?;
        // Before the end is computed: the system refuses offsets that no file has.
        self.file.write_all_at(bytes, offset)?;
        self.position = offset + bytes.len() as u64;
        match (&mut self.hash, &mut self.behind) {
            (Some(hash), _) => hash.add(offset, bytes),
            (None, Some(behind)) => behind.note(bytes.len() as u64)?,
            (None, None) => {}
        }
        Ok(())
    }

    /// Passes over what does not come before `end`: a hole, or chunks that were here already, which
    /// are hashed.
    fn fill(&mut self, end: u64) -> io::Result<()> {
        let Some(hash) = &mut self.hash else {
            if self.position < end && !is_sparse(&self.entry) {
                return Err(io::Error::other("a part of it is missing in what was received"));
            }
            self.position = self.position.max(end);
            return Ok(());
        };
        let mut bytes = vec![0; end.saturating_sub(self.position).min(COPIED_BYTES as u64) as usize];
        while self.position < end {
            let length = (end - self.position).min(COPIED_BYTES as u64) as usize;
            self.file.read_exact_at(&mut bytes[..length], self.position)?;
            hash.add(self.position, &bytes[..length]);
            self.position += length as u64;
        }
        Ok(())
    }

    /// Moves the file to its name. Returns the first error of an extended attribute, which does not
    /// prevent that.
    pub fn complete(
        mut self,
        length: u64,
        hash: Option<Hash>,
        attributes: &Attributes,
    ) -> io::Result<io::Result<()>> {
        let written = self.position;
        self.fill(length)?;
        if self.position != length {
            return Err(io::Error::other("more of it was received than its length"));
        }
        if let Some(contents) = self.hash.take()
            && Some(contents.finish(length)) != hash
        {
            return Err(io::Error::other("it differs from what was sent: the hashes differ"));
        }
        // The file has another length if it was allocated and has become shorter since, or if a
        // hole is at its end.
        if written != length || self.entry.length() > ALLOCATED_BYTES_MIN {
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

const fn is_sparse(entry: &Entry) -> bool {
    matches!(entry.kind, Kind::File { is_sparse: true, .. })
}
