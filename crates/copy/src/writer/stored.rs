//! Messages of a copy that are built again from the files at the destination.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::place::Places;
use crate::Entry;
use crate::sources::described;
use crate::stream::{self, DATA_BYTES_MAX, MESSAGE_BYTES_MAX, Record, append};

/// The files of an earlier copy, from which its messages are built again.
pub(crate) struct StoredFiles {
    places: Places,
    /// The last entry, and its file once it is read.
    entry: Option<Entry>,
    file: Option<File>,
    bytes: Vec<u8>,
    /// The numbers of the files of the last message.
    of_message: BTreeSet<u32>,
}

impl StoredFiles {
    /// Opens the destination, into which the files were written, or as which the first one was.
    ///
    /// # Errors
    /// It, or the directory that it is in, cannot be opened.
    pub fn new(destination: PathBuf, into: bool) -> io::Result<Self> {
        let places = Places::new(destination, into, false)?;
        let bytes = vec![0; DATA_BYTES_MAX];
        Ok(Self { places, entry: None, file: None, bytes, of_message: BTreeSet::new() })
    }

    /// The message of an outline, before compression, with what the files have now. Outlines come
    /// in the order of messages.
    ///
    /// # Errors
    /// What cannot be read, and why. The next outline can be filled nevertheless.
    pub fn fill(&mut self, outline: &[u8]) -> Result<Vec<u8>, String> {
        let mut message = Vec::with_capacity(MESSAGE_BYTES_MAX);
        let mut failure = None;
        let mut rest = outline;
        self.of_message.clear();
        while let Some((record, after)) = stream::next(rest).map_err(|error| error.to_string())? {
            rest = after;
            match record {
                Record::Stored { entry, offset, length } => {
                    self.of_message.insert(entry);
                    match self.read(offset, length as usize) {
                        Ok(bytes) => append(&mut message, &Record::Data { entry, offset, bytes }),
                        Err(why) => {
                            let path = self.path();
                            failure.get_or_insert_with(|| format!("{}: {}", path.display(), described(&why)));
                        }
                    }
                }
                record => {
                    if let Record::Entry(entry) = &record {
                        (self.entry, self.file) = (Some(entry.clone()), None);
                    }
                    append(&mut message, &record);
                }
            }
        }
        failure.map_or(Ok(message), Err)
    }

    /// Says that the last message is not the one that was sent.
    pub fn difference(&self) -> String {
        let path = self.path();
        match self.of_message.len() {
            0 | 1 => format!("{} differs from the source", path.display()),
            files => format!("one of {files} files up to {} differs from the source", path.display()),
        }
    }

    /// The path of the last entry.
    fn path(&self) -> PathBuf {
        self.places.path(self.entry.as_ref().map_or(Path::new(""), |entry| &entry.path))
    }

    /// Reads the last entry's file.
    fn read(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let entry = self.entry.as_ref().filter(|entry| entry.is_below());
        let entry = entry.ok_or(io::ErrorKind::InvalidInput)?;
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let place = self.places.place(entry)?;
                none.insert(place.directory.open_file(&place.name, OFlags::RDONLY)?)
            }
        };
        let bytes = self.bytes.get_mut(..length).ok_or(io::ErrorKind::InvalidInput)?;
        file.read_exact_at(bytes, offset)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::Kind;
    use crate::stream::outline;

    fn entry(name: &str, length: u64) -> Record<'static> {
        let (mode, owner, modified) = (0o644, (0, 0), (0, 0));
        let kind = Kind::File { length, is_sparse: false };
        Record::Entry(Entry { path: name.into(), kind, mode, owner, modified, attributes: Vec::new() })
    }

    proptest! {
        /// Files in parts of any lengths, several of which share a message.
        #[test]
        fn an_outline_is_filled_with_the_message(files: Vec<Vec<u8>>, part in 1..50_usize, cut in 1..20_usize) {
            let directory = tempfile::tempdir().unwrap();
            let mut stored = StoredFiles::new(directory.path().into(), true).unwrap();
            let mut records = Vec::new();
            for (number, bytes) in files.iter().enumerate() {
                fs::write(directory.path().join(number.to_string()), bytes).unwrap();
                records.push(entry(&number.to_string(), bytes.len() as u64));
                let (entry, length) = (number as u32, bytes.len() as u64);
                records.extend(bytes.chunks(part).enumerate().map(|(at, bytes)| {
                    Record::Data { entry, offset: (at * part) as u64, bytes }
                }));
                records.push(Record::End { entry, length, hash: None });
            }
            for some in records.chunks(cut) {
                let mut message = Vec::new();
                for record in some {
                    append(&mut message, record);
                }
                prop_assert_eq!(stored.fill(&outline(&message).unwrap()), Ok(message));
            }
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_named_and_the_next_one_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let mut stored = StoredFiles::new(directory.path().into(), true).unwrap();
        fs::write(directory.path().join("short"), "ab").unwrap();
        fs::write(directory.path().join("right"), "abc").unwrap();
        for (name, is_right) in [("short", false), ("right", true), ("missing", false)] {
            let mut message = Vec::new();
            append(&mut message, &entry(name, 3));
            append(&mut message, &Record::Data { entry: 0, offset: 0, bytes: b"abc" });
            let filled = stored.fill(&outline(&message).unwrap());
            match filled {
                Ok(filled) => assert!(is_right && filled == message, "{name}"),
                Err(why) => assert!(!is_right && why.contains(name), "{why}"),
            }
        }
    }
}
