//! Writing what comes: files under another name until they are complete.

mod attributes;
mod comparison;
mod part_file;
mod write_behind;

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use self::attributes::Attributes;
use self::comparison::Comparison;
use self::part_file::{PartFile, make_anew, part_of};
use crate::compression::decompress;
use crate::control::{Existing, Writing};
use crate::sources::described;
use crate::stream::{self, Record};
use crate::{Entry, Kind};

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
    attributes: Attributes,
    /// The number of entries so far.
    entries: u32,
    compared: Comparison,
    /// The answer of a comparison, once it is known.
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

impl Writer {
    pub fn new(destination: PathBuf, into: bool, writing: Writing) -> Self {
        let attributes = Attributes::new(writing.preserves);
        Self {
            destination,
            into,
            writing,
            attributes,
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

    /// Whether all has come and is written; then directories get their modes and times.
    pub fn finish(&mut self) -> bool {
        for (path, entry) in std::mem::take(&mut self.directories).into_iter().rev() {
            if let Err(error) = self.attributes.set_of_directory(&path, &entry) {
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
                self.compared.look_for(entry, &self.target(&of), &chunks);
                Ok(())
            }
            Record::Asked { chunks } => {
                let answer = self.compared.answer(chunks);
                self.lacking = Some(answer.ok_or(WriteError::Stream("another number of chunks"))?);
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
                if offset < file.position() {
                    return Err(WriteError::Stream("data that has come before"));
                }
                self.bytes += bytes.len() as u64;
                if let Err(why) = file.write(offset, bytes) {
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
                let completed = file.complete(length, &hash, &self.attributes);
                self.files += u64::from(completed.is_ok());
                self.allow(&target, completed.and_then(|extended| extended))
            }
            Record::Unreadable { entry } => {
                self.check(entry)?;
                self.file = None;
                Ok(())
            }
            Record::Compressed { .. } => Err(WriteError::Stream("a compressed message that has no place")),
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
        if let Kind::Link(to) = &entry.kind {
            let part = part_of(target)?;
            make_anew(&part, |part| symlink(to, part))?;
            let moved = self.attributes.set_of_link(&part, &entry).and_then(|()| fs::rename(&part, target));
            if moved.is_err() {
                let _ = fs::remove_file(&part);
            }
            self.files += u64::from(moved.is_ok());
            return moved;
        }
        let found = self.compared.take(self.entries - 1, target)?;
        self.file = Some(PartFile::new(target, entry, &found, self.writing.keeps_parts)?);
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
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

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
    fn a_compressed_message_is_taken_for_what_it_says_and_once() {
        let compressed = |message: &[u8]| {
            let frame = zstd::bulk::compress(message, 1).unwrap();
            let mut compressed = Vec::new();
            stream::append(
                &mut compressed,
                &Record::Compressed { length: message.len() as u32, bytes: &frame },
            );
            compressed
        };
        let mut message = Vec::new();
        for record in [Record::Entry(entry("file")), DATA, end(0), Record::Complete { entries: 1 }] {
            stream::append(&mut message, &record);
        }
        let writer =
            |directory: &tempfile::TempDir| Writer::new(directory.path().into(), true, Writing::default());
        let directory = tempfile::tempdir().unwrap();
        let mut taken = writer(&directory);
        taken.take(&compressed(&message)).unwrap();
        assert!(taken.finish() && names(&directory) == ["file"]);
        let directory = tempfile::tempdir().unwrap();
        let (twice, followed) = (compressed(&compressed(&message)), [compressed(&message), message].concat());
        for wrong in [twice, followed] {
            assert!(matches!(writer(&directory).take(&wrong), Err(WriteError::Stream(_))));
        }
        assert!(names(&directory).is_empty());
    }

    #[test]
    fn a_long_name_has_a_part() {
        let name = "n".repeat(255);
        let (directory, writer, taken) = written(&[Record::Entry(entry(&name)), DATA, end(0)]);
        taken.unwrap();
        assert_eq!((writer.files, names(&directory)), (1, vec![name.into()]));
    }
}
