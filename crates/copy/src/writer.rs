//! Writing what comes: files under another name until they are complete.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, fallocate,
    futimens, lsetxattr, utimensat,
};
use rustix::io::Errno;

use crate::chunks::{Chunk, KnownChunks};
use crate::control::{Existing, Writing};
use crate::sender::FileHash;
use crate::sources::described;
use crate::stream::{self, Hash, Record};
use crate::{Entry, Kind};

/// The end of the name of a file that is not complete.
const PART: &str = ".treecast-part";

/// The longest name of a file, in bytes (`NAME_MAX` of limits.h).
const NAME_BYTES_MAX: usize = 255;

/// Files that are longer, in bytes, have their blocks allocated before their data comes.
const ALLOCATED_BYTES_MIN: u64 = 256 << 10;

/// What is copied at a time of a file that is here: the longest chunk.
const COPIED_BYTES: usize = 256 << 10;

/// How many failures are listed.
const FAILURES_MAX: usize = 20;

/// Why nothing more can be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The whole file system is full, read-only or broken.
    #[error("{}: {}", path.display(), described(why))]
    Host { path: PathBuf, why: io::Error },
    /// What came is nothing that a sender sends.
    #[error("{0}")]
    Stream(&'static str),
    #[error(transparent)]
    NoRecords(#[from] stream::NoRecords),
}

/// Writes entries below a destination.
pub(crate) struct Writer {
    destination: PathBuf,
    /// Whether entries are written into the destination, and not as the destination.
    into: bool,
    writing: Writing,
    /// Whether this process may give files to other users.
    is_root: bool,
    umask: Mode,
    /// The number of entries so far.
    entries: u32,
    compared: Comparison,
    /// The answer of a comparison, once it is known: ranges of the numbers of chunks that are not here.
    pub lacking: Option<Vec<(u32, u32)>>,
    /// The file that is written.
    file: Option<PartFile>,
    /// Directories, whose modes and times change when all is in them.
    directories: Vec<(PathBuf, Entry)>,
    /// Whether all has come.
    is_complete: bool,
    pub files: u64,
    /// Files that existed, and were kept.
    pub kept: u64,
    /// The bytes that were written.
    pub bytes: u64,
    /// The first failures, and the number of all.
    pub failures: Vec<String>,
    pub failure_count: u64,
}

/// A file under another name; removed unless it is completed.
struct PartFile {
    file: File,
    part: PathBuf,
    target: PathBuf,
    entry: Entry,
    hash: FileHash,
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
}

/// What of the chunks of files is here.
#[derive(Default)]
struct Comparison {
    /// The number of chunks so far.
    chunks: u32,
    /// Ranges of those that are not here.
    lacking: Vec<(u32, u32)>,
    /// The entry of the last chunks, and the chunks of the files here that may have some of it.
    last: Option<(u32, KnownChunks)>,
    /// The chunks that are here, by entry.
    found: BTreeMap<u32, FoundChunks>,
}

/// Chunks of a file that are here.
#[derive(Default)]
struct FoundChunks {
    /// The end of the chunks that were asked for.
    end: u64,
    /// Where they are in the file, where they lie here ([`Writer::candidates`]), and their lengths.
    chunks: Vec<(u64, (usize, u64), u32)>,
}

impl Writer {
    pub fn new(destination: PathBuf, into: bool, writing: Writing) -> Self {
        // The mask can be read only by setting it.
        let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
        rustix::process::umask(umask);
        Self {
            destination,
            into,
            writing,
            is_root: rustix::process::geteuid().is_root(),
            umask,
            entries: 0,
            compared: Comparison::default(),
            lacking: None,
            file: None,
            directories: Vec::new(),
            is_complete: false,
            files: 0,
            kept: 0,
            bytes: 0,
            failures: Vec::new(),
            failure_count: 0,
        }
    }

    /// Writes what a message brings.
    pub fn take(&mut self, message: &[u8]) -> Result<(), WriteError> {
        let mut rest = message;
        while let Some((record, after)) = stream::next(rest)? {
            self.take_record(record)?;
            rest = after;
        }
        Ok(())
    }

    /// Whether all has come and is written; then directories get their modes and times.
    pub fn finish(&mut self) -> bool {
        for (path, entry) in std::mem::take(&mut self.directories).into_iter().rev() {
            if let Err(error) = self.finish_directory(&path, &entry) {
                self.fail(&path, &error);
            }
        }
        self.is_complete
    }

    fn take_record(&mut self, record: Record<'_>) -> Result<(), WriteError> {
        match record {
            Record::Chunks { entry, of, chunks } => {
                if self.entries > 0 || !of.is_below() {
                    return Err(WriteError::Stream("chunks that have no place"));
                }
                self.compare(entry, &of, &chunks);
                Ok(())
            }
            Record::Asked { chunks } => {
                if chunks != self.compared.chunks {
                    return Err(WriteError::Stream("another number of chunks"));
                }
                self.lacking = Some(std::mem::take(&mut self.compared.lacking));
                Ok(())
            }
            Record::Entry(entry) => {
                if self.file.is_some() || !entry.is_below() || self.is_complete {
                    return Err(WriteError::Stream("an entry that has no place"));
                }
                self.entries += 1;
                let target = self.target(&entry);
                let made = self.begin(&target, entry);
                self.allow(&target, made)
            }
            Record::Data { entry, offset, bytes } => {
                self.check(entry)?;
                let Some(file) = &mut self.file else { return Ok(()) };
                if offset < file.hash.position() {
                    return Err(WriteError::Stream("data that has come before"));
                }
                self.bytes += bytes.len() as u64;
                let written = file.hash_until(offset).and_then(|()| {
                    file.hash.add(offset, bytes);
                    file.file.write_all_at(bytes, offset)
                });
                if let Err(why) = written {
                    let target = file.target.clone();
                    self.file = None;
                    return self.allow(&target, Err(why));
                }
                Ok(())
            }
            Record::End { entry, length, hash } => {
                self.check(entry)?;
                let Some(file) = self.file.take() else { return Ok(()) };
                let target = file.target.clone();
                let completed = self.complete(file, length, &hash);
                self.allow(&target, completed)
            }
            Record::Unreadable { entry } => {
                self.check(entry)?;
                self.file = None;
                Ok(())
            }
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

    /// The files that may have chunks of another one: what it will replace, and what a copy that failed has left.
    fn candidates(target: &Path) -> io::Result<[PathBuf; 2]> {
        Ok([target.into(), part_of(target)?])
    }

    fn compare(&mut self, number: u32, entry: &Entry, chunks: &[Chunk]) {
        let target = self.target(entry);
        let compared = &mut self.compared;
        if compared.last.as_ref().is_none_or(|(last, _)| *last != number) {
            let mut known = KnownChunks::default();
            for (place, path) in Self::candidates(&target).iter().flatten().enumerate() {
                // What cannot be read has no chunks.
                if path.symlink_metadata().is_ok_and(|there| there.is_file()) {
                    let _ = File::open(path).and_then(|file| known.add(place, &file));
                }
            }
            compared.last = Some((number, known));
        }
        let Some((_, known)) = &compared.last else { return };
        let found = compared.found.entry(number).or_default();
        for chunk in chunks {
            match (known.place(chunk), compared.lacking.last_mut()) {
                (Some(place), _) => found.chunks.push((found.end, place, chunk.length)),
                (None, Some((_, end))) if *end == compared.chunks => *end += 1,
                (None, _) => compared.lacking.push((compared.chunks, compared.chunks + 1)),
            }
            compared.chunks += 1;
            found.end += u64::from(chunk.length);
        }
    }

    /// Where an entry goes.
    fn target(&self, entry: &Entry) -> PathBuf {
        if self.into {
            return self.destination.join(&entry.path);
        }
        let below: PathBuf = entry.path.iter().skip(1).collect();
        if below.as_os_str().is_empty() { self.destination.clone() } else { self.destination.join(below) }
    }

    fn begin(&mut self, target: &Path, entry: Entry) -> io::Result<()> {
        if entry.kind == Kind::Directory {
            let made = DirBuilder::new().mode(entry.mode | 0o700).create(target);
            // One that exists keeps its mode, unless modes are preserved.
            let is_new = made.is_ok();
            made.or_else(|error| if target.is_dir() { Ok(()) } else { Err(error) })?;
            if is_new || self.writing.preserves {
                self.directories.push((target.into(), entry));
            }
            return Ok(());
        }
        if self.writing.existing != Existing::Replace
            && let Ok(there) = fs::symlink_metadata(target)
            && self.is_kept(&there, &entry)
        {
            self.kept += 1;
            return Ok(());
        }
        let part = part_of(target)?;
        if let Kind::Link(to) = &entry.kind {
            make_anew(&part, |part| symlink(to, part))?;
            let moved = self.preserve_link(&part, &entry).and_then(|()| fs::rename(&part, target));
            if moved.is_err() {
                let _ = fs::remove_file(&part);
            }
            self.files += u64::from(moved.is_ok());
            return moved;
        }
        let mode = entry.mode & 0o777;
        let found = self.compared.found.remove(&(self.entries - 1)).unwrap_or_default();
        // The part of an earlier copy is read while the new one is written.
        let here: Vec<Option<File>> = if found.chunks.is_empty() {
            Vec::new()
        } else {
            Self::candidates(target)?.iter().map(|path| File::open(path).ok()).collect()
        };
        let open =
            |part: &Path| OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(part);
        let file = make_anew(&part, open)?;
        let file = PartFile {
            file,
            part,
            target: target.into(),
            entry,
            hash: FileHash::default(),
            has_chunks: !found.chunks.is_empty(),
            is_kept: self.writing.keeps_parts,
            is_complete: false,
        };
        // A full disk is known before the data comes, and the file system can lay the file out in one piece.
        if let Kind::File { length, is_sparse: false } = file.entry.kind
            && length > ALLOCATED_BYTES_MIN
        {
            match fallocate(&file.file, FallocateFlags::empty(), 0, length) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut bytes = vec![0; if found.chunks.is_empty() { 0 } else { COPIED_BYTES }];
        for (offset, (place, from), length) in found.chunks {
            let source = here.get(place).and_then(Option::as_ref).ok_or(ErrorKind::NotFound)?;
            let bytes = bytes.get_mut(..length as usize).ok_or(ErrorKind::InvalidInput)?;
            source.read_exact_at(bytes, from)?;
            file.file.write_all_at(bytes, offset)?;
        }
        self.file = Some(file);
        Ok(())
    }

    fn is_kept(&self, there: &Metadata, entry: &Entry) -> bool {
        match self.writing.existing {
            Existing::Replace => false,
            Existing::Keep => true,
            Existing::Newer => {
                (there.mtime(), there.mtime_nsec()) >= (entry.modified.0, entry.modified.1.into())
            }
        }
    }

    /// Moves a file to its name.
    fn complete(&mut self, mut file: PartFile, length: u64, hash: &Hash) -> io::Result<()> {
        file.hash_until(length)?;
        let received = std::mem::take(&mut file.hash);
        // The file has another length if it was allocated and has become shorter since, or if a hole is at its end.
        let has_length = received.position() == length && file.entry.length() <= ALLOCATED_BYTES_MIN;
        if received.finish(length) != *hash {
            return Err(io::Error::other("what has come differs from what was sent: the hashes differ"));
        }
        if !has_length {
            file.file.set_len(length)?;
        }
        if self.writing.preserves {
            if self.is_root {
                let (user, group) = file.entry.owner;
                rustix::fs::fchown(&file.file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
            }
            rustix::fs::fchmod(&file.file, Mode::from_raw_mode(file.entry.mode))?;
            futimens(&file.file, &times(&file.entry))?;
        }
        // After the owner, whose change takes capabilities away.
        let attributes = set_attributes(&file.part, &file.entry);
        fs::rename(&file.part, &file.target)?;
        file.is_complete = true;
        self.files += 1;
        attributes
    }

    fn finish_directory(&self, path: &Path, entry: &Entry) -> io::Result<()> {
        let mode = Mode::from_raw_mode(entry.mode);
        if !self.writing.preserves {
            rustix::fs::chmod(path, mode.difference(self.umask))?;
            return set_attributes(path, entry);
        }
        if self.is_root {
            let (user, group) = entry.owner;
            rustix::fs::chown(path, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
        }
        rustix::fs::chmod(path, mode)?;
        utimensat(CWD, path, &times(entry), AtFlags::empty())?;
        set_attributes(path, entry)
    }

    /// A link has no mode of its own.
    fn preserve_link(&self, path: &Path, entry: &Entry) -> io::Result<()> {
        if !self.writing.preserves {
            return Ok(());
        }
        if self.is_root {
            let (user, group) = entry.owner;
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
            chownat(CWD, path, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(utimensat(CWD, path, &times(entry), AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// Makes a file that is not there; what an earlier copy has left under its name is removed.
fn make_anew<T>(part: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    match make(part) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(part)?;
            make(part)
        }
        made => made,
    }
}

/// Sets all extended attributes that can be set. Returns the first error.
fn set_attributes(path: &Path, entry: &Entry) -> io::Result<()> {
    let mut done = Ok(());
    for attribute in &entry.attributes {
        let name = OsStr::from_bytes(&attribute.name);
        if let Err(error) = lsetxattr(path, name, &attribute.value, XattrFlags::empty())
            && done.is_ok()
        {
            let why = described(&error.into());
            done = Err(io::Error::other(format!("extended attribute {}: {why}", name.display())));
        }
    }
    done
}

/// The time of the last access becomes that of the last modification.
fn times(entry: &Entry) -> Timestamps {
    let (tv_sec, nanoseconds) = entry.modified;
    let time = Timespec { tv_sec, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// `.NAME.treecast-part` in the same directory; a long name is cut.
fn part_of(target: &Path) -> io::Result<PathBuf> {
    let name = target.file_name().ok_or(ErrorKind::InvalidFilename)?.as_bytes();
    let mut part = OsString::from(".");
    part.push(OsStr::from_bytes(&name[..name.len().min(NAME_BYTES_MAX - 1 - PART.len())]));
    part.push(PART);
    Ok(target.with_file_name(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Attribute;

    fn entry(path: &str) -> Entry {
        Entry {
            path: path.into(),
            kind: Kind::File { length: 3, is_sparse: false },
            mode: 0o640,
            owner: (0, 0),
            modified: (1_000_000_000, 7),
            attributes: Vec::new(),
        }
    }

    fn written(records: &[Record<'_>]) -> (tempfile::TempDir, Writer, Result<(), WriteError>) {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(directory.path().into(), true, Writing::default());
        let mut message = Vec::new();
        for record in records {
            stream::append(&mut message, record);
        }
        let taken = writer.take(&message);
        (directory, writer, taken)
    }

    fn names(directory: &tempfile::TempDir) -> Vec<OsString> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    fn end(entry: u32) -> Record<'static> {
        Record::End { entry, length: 3, hash: blake3::hash(b"abc").into() }
    }

    const DATA: Record<'static> = Record::Data { entry: 0, offset: 0, bytes: b"abc" };

    #[test]
    fn a_file_has_its_name_when_it_is_complete() {
        let (directory, mut writer, taken) = written(&[Record::Entry(entry("file")), DATA]);
        taken.unwrap();
        assert_eq!(names(&directory), [".file.treecast-part"]);
        let mut rest = Vec::new();
        stream::append(&mut rest, &end(0));
        stream::append(&mut rest, &Record::Complete { entries: 1 });
        writer.take(&rest).unwrap();
        assert!(writer.finish() && writer.files == 1);
        assert_eq!(names(&directory), ["file"]);
    }

    #[test]
    fn a_file_with_another_hash_does_not_get_its_name() {
        let other = Record::Data { entry: 0, offset: 0, bytes: b"abd" };
        let (directory, writer, taken) = written(&[Record::Entry(entry("file")), other, end(0)]);
        taken.unwrap();
        assert!(writer.failures[0].ends_with("the hashes differ"), "{:?}", writer.failures);
        assert!(names(&directory).is_empty());
    }

    #[test]
    fn nothing_is_written_beside_the_destination() {
        for path in ["../file", "/tmp/file", "a/../../file"] {
            let (_directory, _writer, taken) = written(&[Record::Entry(entry(path)), DATA, end(0)]);
            assert!(matches!(taken, Err(WriteError::Stream(_))), "{path}");
        }
    }

    #[test]
    fn records_out_of_place_are_errors_and_leave_nothing() {
        let first = || Record::Entry(entry("file"));
        let chunks = Record::Chunks { entry: 0, of: entry("file"), chunks: Vec::new() };
        let cases: [Vec<Record<'_>>; 7] = [
            vec![DATA],
            vec![first(), first()],
            vec![first(), Record::Data { entry: 1, offset: 0, bytes: b"" }],
            vec![first(), DATA, DATA],
            vec![first(), Record::Complete { entries: 1 }],
            vec![first(), DATA, end(0), Record::Complete { entries: 2 }],
            vec![first(), DATA, end(0), chunks],
        ];
        for (number, records) in cases.iter().enumerate() {
            let (directory, writer, taken) = written(records);
            assert!(matches!(taken, Err(WriteError::Stream(_))), "case {number}");
            drop(writer);
            assert!(!names(&directory).contains(&".file.treecast-part".into()), "case {number}");
        }
    }

    #[test]
    fn extended_attributes_are_set_as_far_as_they_can_be() {
        let mut entry = entry("file");
        let attribute = |name: &[u8]| Attribute { name: name.into(), value: b"value".into() };
        entry.attributes = vec![attribute(b"unknown.name"), attribute(b"user.comment")];
        let (directory, writer, taken) = written(&[Record::Entry(entry), DATA, end(0)]);
        taken.unwrap();
        assert!(writer.failures[0].contains("extended attribute unknown.name: "), "{:?}", writer.failures);
        assert_eq!(names(&directory), ["file"]);
        let mut value = [0; 16];
        // Not all file systems have attributes of users.
        if let Ok(length) = rustix::fs::getxattr(directory.path().join("file"), "user.comment", &mut value) {
            assert_eq!(&value[..length], b"value");
        }
    }

    #[test]
    fn a_long_name_has_a_part() {
        let name = "n".repeat(255);
        let (directory, writer, taken) = written(&[Record::Entry(entry(&name)), DATA, end(0)]);
        taken.unwrap();
        assert_eq!((writer.files, names(&directory)), (1, vec![name.into()]));
    }
}
