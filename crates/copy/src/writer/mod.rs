//! Writing what comes: files under another name until they are complete.

mod attributes;
mod comparison;
mod deletion;
mod directory;
mod listing;
mod part_file;
mod parts;
mod place;
mod stored;
mod write_behind;

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use self::attributes::Attributes;
use self::comparison::Comparison;
use self::deletion::Deletion;
use self::listing::{Listing, has_time, is_here};
use self::part_file::PartFile;
use self::place::{Place, Places};
pub(crate) use self::stored::StoredFiles;
use crate::compression::decompress;
use crate::control::{Existing, Writing};
use crate::exclusion::Exclusion;
use crate::sources::described;
use crate::stream::{self, Question, Record};
use crate::{Entry, Kind};

/// How many failures are listed.
const FAILURES_MAX: usize = 20;

/// Why nothing more can be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The whole file system is full, read-only or broken.
    #[error("{}: {}{}", path.display(), described(why), remedy(why))]
    Host {
        /// The path that could not be written.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// The sender violated the protocol.
    #[error("{0}")]
    Stream(&'static str),
    /// A message does not parse as records.
    #[error(transparent)]
    NoRecords(#[from] stream::NoRecords),
}

/// What helps if a whole host cannot be written, for the end of a message.
fn remedy(why: &io::Error) -> &'static str {
    match why.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC) => ": make room there, or choose another destination",
        Some(Errno::DQUOT) => ": the quota of the user there is used up",
        Some(Errno::ROFS) => ": choose another destination, or mount this one for writing",
        Some(Errno::IO) => ": the disk may be broken, see the log of the kernel there",
        Some(Errno::NOENT) => {
            ": the directory that it is in is missing; a destination that ends with / is created with all directories above it"
        }
        Some(Errno::ACCESS | Errno::PERM) => ": the user there may not write to it",
        _ => "",
    }
}

/// Writes entries below a destination: what a receiver does with the messages of the stream.
pub struct Writer {
    places: Places,
    writing: Writing,
    attributes: Attributes,
    /// The number of entries so far.
    entries: u32,
    listing: Listing,
    compared: Comparison,
    /// The answer of a comparison, once it is known.
    pub lacking: Option<Vec<(u32, u32)>>,
    /// The file that is written.
    file: Option<PartFile>,
    /// Directories, whose modes and times change when all is in them.
    directories: Vec<WrittenDirectory>,
    /// Whether all has come.
    is_complete: bool,
    /// Whether the sender could not read a file: then nothing is deleted.
    is_unreadable: bool,
    /// Files and links that are complete.
    pub files: u64,
    /// Files that existed, and were kept.
    pub kept: u64,
    /// Paths that were deleted, or would be in a dry run.
    pub deleted: u64,
    /// The first of it, where nothing is changed.
    pub deletions: Vec<String>,
    /// The bytes that were written.
    pub bytes: u64,
    /// The first failures.
    pub failures: Vec<String>,
    /// The number of all failures.
    pub failure_count: u64,
}

/// A directory that gets its attributes when all is in it.
struct WrittenDirectory {
    entry: Entry,
    /// The directory's device and inode: a different directory at this place gets no attributes.
    identity: (u64, u64),
}

impl Writer {
    /// Opens the destination, and writes into it, or the first entry as it.
    ///
    /// # Errors
    /// The destination, or the directory that it is in, cannot be opened.
    pub fn new(destination: PathBuf, into: bool, writing: Writing) -> Result<Self, WriteError> {
        let path = destination.clone();
        let places = Places::new(destination, into, writing.is_dry);
        let places = places.map_err(|why| WriteError::Host { path, why })?;
        let attributes = Attributes::new(writing.preserves);
        Ok(Self {
            places,
            writing,
            attributes,
            entries: 0,
            listing: Listing::default(),
            compared: Comparison::default(),
            lacking: None,
            file: None,
            directories: Vec::new(),
            is_complete: false,
            is_unreadable: false,
            files: 0,
            kept: 0,
            deleted: 0,
            deletions: Vec::new(),
            bytes: 0,
            failures: Vec::new(),
            failure_count: 0,
        })
    }

    /// Writes what a message brings.
    ///
    /// # Errors
    /// [`WriteError`]: nothing more is to be written then.
    pub fn take(&mut self, message: &[u8]) -> Result<(), WriteError> {
        if let Some((Record::Compressed { length, bytes }, after)) = stream::next(message)? {
            if !after.is_empty() {
                return Err(WriteError::Stream("records after a compressed message"));
            }
            let plain = decompress(bytes, length).map_err(WriteError::Stream)?;
            return self.take_records(&plain);
        }
        self.take_records(message)
    }

    fn take_records(&mut self, records: &[u8]) -> Result<(), WriteError> {
        let mut rest = records;
        while let Some((record, after)) = stream::next(rest)? {
            self.take_record(record)?;
            rest = after;
        }
        Ok(())
    }

    /// Ends the copy: deletes what is not among the sources if that is requested, and sets modes
    /// and times of directories. Returns whether everything was received.
    pub fn finish(&mut self) -> bool {
        if self.is_complete && self.failure_count == 0 && !self.is_unreadable {
            self.delete();
        }
        for written in std::mem::take(&mut self.directories).into_iter().rev() {
            if let Err(error) = self.finish_directory(&written) {
                self.fail(&self.places.path(&written.entry.path), &error);
            }
        }
        self.is_complete
    }

    fn delete(&mut self) {
        // The sender has checked the patterns.
        let protected = self.writing.deletes_all_but.as_ref().map(|texts| Exclusion::new(texts));
        let Some(Ok(protected)) = protected else { return };
        let mut deletion = Deletion::new(&self.places, protected, self.writing.is_dry);
        deletion.run(&self.listing.names);
        let Deletion { count, listed, failures, .. } = deletion;
        (self.deleted, self.deletions) = (count, listed);
        for (path, why) in failures {
            self.fail(&path, &why);
        }
    }

    fn finish_directory(&mut self, written: &WrittenDirectory) -> io::Result<()> {
        let directory = self.places.directory(&written.entry.path)?;
        if directory.identity()? != written.identity {
            return Err(io::Error::other("another directory has been put in its place"));
        }
        self.attributes.set_of_directory(&directory, &written.entry)
    }

    fn take_record(&mut self, record: Record<'_>) -> Result<(), WriteError> {
        match record {
            Record::Listed { of, hash } => {
                if self.entries > 0 || !of.is_below() {
                    return Err(WriteError::Stream("a listing that has no place"));
                }
                let existing = self.writing.existing;
                let is_here = if of.is_top() {
                    of.kind == Kind::Directory && self.places.directory(&of.path).is_ok()
                } else {
                    let place = self.places.place(&of);
                    place.is_ok_and(|place| is_here(&place, &of, hash.as_ref(), existing))
                };
                self.listing.add(of, is_here);
                Ok(())
            }
            Record::Chunks { entry, of, chunks } => {
                if self.entries > 0 || !of.is_below() {
                    return Err(WriteError::Stream("chunks that have no place"));
                }
                // Nothing is there of an entry whose directory does not exist yet.
                let place = self.places.place(&of).ok();
                self.compared.look_for(entry, place.as_ref(), &chunks);
                Ok(())
            }
            Record::Asked { question, count } => {
                let answer = match question {
                    Question::Entries => self.listing.answer(count),
                    Question::Chunks => self.compared.answer(count),
                };
                self.lacking = Some(answer.ok_or(WriteError::Stream("another number than was asked about"))?);
                Ok(())
            }
            Record::Passed { entries } => {
                let end = self.entries.checked_add(entries).filter(|_| self.file.is_none());
                let end = end.ok_or(WriteError::Stream("entries that have no place"))?;
                while self.entries < end {
                    let entry = self.listing.take(self.entries);
                    let entry = entry.ok_or(WriteError::Stream("an entry that is lacking is passed over"))?;
                    self.entries += 1;
                    let path = self.places.path(&entry.path);
                    let kept = self.keep(entry);
                    self.allow(&path, kept)?;
                }
                Ok(())
            }
            Record::Entry(entry) => {
                if self.file.is_some() || !entry.is_below() || self.is_complete {
                    return Err(WriteError::Stream("an entry that has no place"));
                }
                self.entries += 1;
                let path = self.places.path(&entry.path);
                let made = self.begin(entry);
                self.allow(&path, made)
            }
            Record::Data { entry, offset, bytes } => {
                self.check(entry)?;
                let Some(file) = &mut self.file else { return Ok(()) };
                if offset < file.position() {
                    return Err(WriteError::Stream("data that has come before"));
                }
                self.bytes += bytes.len() as u64;
                if let Err(why) = file.write(offset, bytes) {
                    let path = file.place.path.clone();
                    self.file = None;
                    return self.allow(&path, Err(why));
                }
                Ok(())
            }
            Record::End { entry, length, hash } => {
                self.check(entry)?;
                let Some(file) = self.file.take() else { return Ok(()) };
                let path = file.place.path.clone();
                let completed = file.complete(length, hash, &self.attributes);
                self.files += u64::from(completed.is_ok());
                self.allow(&path, completed.and_then(|extended| extended))
            }
            Record::Unreadable { entry } => {
                self.check(entry)?;
                self.file = None;
                self.is_unreadable = true;
                Ok(())
            }
            Record::Compressed { .. } => Err(WriteError::Stream("a compressed message that has no place")),
            Record::Stored { .. } => Err(WriteError::Stream("an outline in place of a message")),
            Record::Complete { entries } => {
                if self.file.is_some() || entries != self.entries {
                    return Err(WriteError::Stream("an end before all has come"));
                }
                self.is_complete = true;
                Ok(())
            }
        }
    }

    /// Data is of the last entry.
    fn check(&self, entry: u32) -> Result<(), WriteError> {
        if entry.checked_add(1) == Some(self.entries) {
            Ok(())
        } else {
            Err(WriteError::Stream("data of another file"))
        }
    }

    /// Counts a failure of one file; one that is the whole host's is an error.
    fn allow(&mut self, path: &Path, done: io::Result<()>) -> Result<(), WriteError> {
        let Err(why) = done else { return Ok(()) };
        let of_host =
            [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO].map(|errno| Some(errno.raw_os_error()));
        if of_host.contains(&why.raw_os_error()) {
            return Err(WriteError::Host { path: path.into(), why });
        }
        self.fail(path, &why);
        Ok(())
    }

    fn fail(&mut self, path: &Path, why: &io::Error) {
        self.failure_count += 1;
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(format!("{}: {}", path.display(), described(why)));
        }
    }

    fn begin(&mut self, entry: Entry) -> io::Result<()> {
        match &entry.kind {
            Kind::Directory => self.make_directory(entry),
            _ if self.listing.take(self.entries - 1).is_some() => self.keep(entry),
            Kind::Link(to) => {
                let place = self.places.place(&entry)?;
                self.make_link(&place, to, &entry)
            }
            Kind::File { .. } => {
                let place = self.places.place(&entry)?;
                place.directory.check_replaceable(&place.name)?;
                let found = self.compared.take(self.entries - 1, &place);
                self.file = Some(PartFile::new(place, entry, &found, self.writing.keeps_parts)?);
                Ok(())
            }
        }
    }

    fn make_directory(&mut self, entry: Entry) -> io::Result<()> {
        let (made, is_new) = if entry.is_top() {
            (self.places.directory(&entry.path)?, false)
        } else {
            let place = self.places.place(&entry)?;
            place.directory.create_directory(&place.name, entry.mode | 0o700)?
        };
        // One that exists keeps its mode, unless modes are preserved.
        if is_new || self.writing.preserves {
            self.directories.push(WrittenDirectory { entry, identity: made.identity()? });
        }
        Ok(())
    }

    fn make_link(&mut self, place: &Place, to: &Path, entry: &Entry) -> io::Result<()> {
        let directory = &place.directory;
        let (part, ()) = parts::make(&place.name, |part| directory.create_link(part, to))?;
        if let Ok(there) = directory.status(&part) {
            place.remove_abandoned(there.st_ctime);
        }
        let link = directory.open_link(&part);
        let moved = link
            .and_then(|link| self.attributes.set_of_link(&link, entry))
            .and_then(|()| directory.replace(&part, &place.name));
        if moved.is_err() {
            let _ = directory.remove(&part);
        }
        self.files += u64::from(moved.is_ok());
        moved
    }

    /// Keeps an existing file, and sets the source's mode, times and owner if these are preserved.
    fn keep(&mut self, entry: Entry) -> io::Result<()> {
        if entry.kind == Kind::Directory {
            return self.make_directory(entry);
        }
        let place = self.places.place(&entry)?;
        self.kept += 1;
        let sets_attributes = self.writing.preserves && self.writing.existing == Existing::Changed;
        let is_file = matches!(entry.kind, Kind::File { .. });
        if !sets_attributes || !is_file {
            return Ok(());
        }
        let there = place.directory.status(&place.name)?;
        let is_same = there.st_mode & 0o7777 == entry.mode && has_time(&there, &entry);
        if is_same && (there.st_uid, there.st_gid) == entry.owner && entry.attributes.is_empty() {
            return Ok(());
        }
        let file = place.directory.open_file(&place.name, OFlags::RDONLY)?;
        self.attributes.set_of_file(&file, &entry)?;
        attributes::set_extended(&file, &entry)
    }
}

#[cfg(test)]
mod tests;
