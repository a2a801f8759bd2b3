//! Receivers of copies with arbitrary senders: the records of messages, and what is written because
//! of them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use arbitrary::{Arbitrary, Unstructured};
use treecast_copy::stream::{self as records, Hash, Question, Record};
use treecast_copy::{Attribute, Chunk, Entry, Existing, Kind, Writer, Writing};

/// The content of the file outside of the destination, which stays as it is.
const OUTSIDE: &str = "what is not to be changed";

/// The content of the file in the destination.
const INSIDE: &str = "a file that exists";

/// The names in paths: what is in the destination, ways out of it, and new names.
const NAMES: [&str; 8] = ["", "file", "directory", "there", "..", ".", "new", "long"];

/// A record of a script. Numbers of entries are counted back from the last one.
#[derive(Debug, Arbitrary)]
enum AnyRecord {
    Chunks {
        entry: u8,
        of: AnyEntry,
        chunks: Vec<u32>,
    },
    Asked {
        is_about_entries: bool,
        count: u8,
    },
    Listed(AnyEntry),
    Passed {
        entries: u8,
    },
    Entry(AnyEntry),
    Data {
        entry: u8,
        offset: Number,
        bytes: Vec<u8>,
    },
    /// The end of a file, with the right length or another one, and the hash of the file in the
    /// destination or none.
    End {
        entry: u8,
        length: Number,
        is_right: bool,
        has_hash: bool,
    },
    Unreadable {
        entry: u8,
    },
    Compressed {
        length: u32,
        bytes: Vec<u8>,
    },
    Complete {
        entries: u8,
    },
    /// The next record belongs to the next message.
    NextMessage,
    /// A message of arbitrary bytes.
    Message(Vec<u8>),
}

#[derive(Debug, Arbitrary)]
struct AnyEntry {
    path: AnyPath,
    kind: AnyKind,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, u32),
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Arbitrary)]
enum AnyKind {
    File { length: Number, is_sparse: bool },
    Directory,
    Link(AnyPath),
}

#[derive(Debug, Arbitrary)]
enum AnyPath {
    Names(u8, u8, u8),
    Outside,
    Bytes(Vec<u8>),
}

#[derive(Debug, Arbitrary, Clone, Copy)]
enum Number {
    Small(u8),
    Any(u64),
}

/// Reads arbitrary bytes as a message.
///
/// # Panics
/// If a record has no bytes, or does not come back as it was.
pub fn stream(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some((record, after))) = records::next(rest) {
        assert!(after.len() < rest.len(), "a record without bytes");
        let mut message = Vec::new();
        records::append(&mut message, &record);
        assert_eq!(records::next(&message), Ok(Some((record, &[][..]))));
        rest = after;
    }
}

/// Lets a receiver write what an arbitrary sender sends. An incomplete final record is ignored.
///
/// # Panics
/// If something changes outside of the destination, or parts of files stay there.
pub fn writer(bytes: &[u8]) {
    let mut script = Unstructured::new(bytes);
    let Ok((preserves, existing)) = <(bool, u8)>::arbitrary(&mut script) else { return };
    let (deletes, is_dry) = (existing & 64 != 0, existing & 128 != 0);
    let existing =
        [Existing::Replace, Existing::Keep, Existing::Newer, Existing::Changed][usize::from(existing) % 4];
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let (inside, outside) = (directory.path().join("inside"), directory.path().join("outside"));
    prepare(&inside, &outside).expect("there is room for a few files");
    let writing = Writing {
        preserves,
        existing,
        is_dry,
        deletes_all_but: deletes.then(|| vec![NAMES[1].to_owned()]),
        ..Writing::default()
    };
    let mut writer = Writer::new(inside, true, writing).expect("the destination is there");
    let mut sender = Sender { outside: &outside, entries: 0, end: 0 };
    while let Some(message) = sender.next_message(&mut script) {
        let taken = writer.take(&message);
        if let Some(ranges) = writer.lacking.take() {
            assert!(ranges.iter().all(|(from, upto)| from < upto), "empty ranges of chunks: {ranges:?}");
        }
        if taken.is_err() {
            break;
        }
    }
    writer.finish();
    drop(writer);
    let names = |path: &Path| fs::read_dir(path).map_or(0, Iterator::count);
    assert_eq!(names(directory.path()), 2, "something was written beside the destination");
    assert_eq!(names(&outside), 1, "something was written outside of the destination");
    assert_eq!(fs::read_to_string(outside.join("file")).ok().as_deref(), Some(OUTSIDE));
}

/// Makes a destination with a file, a directory, and a link to a directory outside, which has a
/// file too.
fn prepare(inside: &Path, outside: &Path) -> std::io::Result<()> {
    fs::create_dir_all(inside.join("directory"))?;
    fs::create_dir(outside)?;
    fs::write(inside.join("file"), INSIDE)?;
    fs::write(outside.join("file"), OUTSIDE)?;
    symlink(outside, inside.join("there"))
}

/// Sends what a script says, with the numbers that a receiver expects where the script does not
/// change them.
struct Sender<'a> {
    outside: &'a Path,
    entries: u32,
    /// The end of the last file's data.
    end: u64,
}

impl Sender<'_> {
    /// The next message; `None` at the end of the script.
    fn next_message(&mut self, script: &mut Unstructured<'_>) -> Option<Vec<u8>> {
        let mut message = Vec::new();
        while !script.is_empty() {
            match AnyRecord::arbitrary(script) {
                Ok(AnyRecord::NextMessage) => return Some(message),
                // What was to be in a message of its own ends the message before.
                Ok(AnyRecord::Message(bytes)) => return Some([message, bytes].concat()),
                Ok(record) => self.append(&record, &mut message),
                Err(_) => break,
            }
        }
        (!message.is_empty()).then_some(message)
    }

    fn append(&mut self, record: &AnyRecord, message: &mut Vec<u8>) {
        let last = self.entries.wrapping_sub(1);
        let number = |back: u8| last.wrapping_sub((back % 8 / 7).into());
        let record = match record {
            AnyRecord::Chunks { entry, of, chunks } => Record::Chunks {
                entry: (*entry).into(),
                of: self.entry(of),
                chunks: chunks.iter().copied().map(chunk).collect(),
            },
            AnyRecord::Asked { is_about_entries, count } => Record::Asked {
                question: if *is_about_entries { Question::Entries } else { Question::Chunks },
                count: (*count).into(),
            },
            AnyRecord::Listed(entry) => {
                let hash = Some(hash(INSIDE.as_bytes())).filter(|_| entry.mode % 2 == 0);
                Record::Listed { of: self.entry(entry), hash }
            }
            AnyRecord::Passed { entries } => {
                self.entries = self.entries.wrapping_add((*entries).into());
                Record::Passed { entries: (*entries).into() }
            }
            AnyRecord::Entry(entry) => {
                self.entries += 1;
                self.end = 0;
                Record::Entry(self.entry(entry))
            }
            AnyRecord::Data { entry, offset, bytes } => {
                let offset = match *offset {
                    Number::Small(gap) => self.end.saturating_add((gap / 64).into()),
                    Number::Any(offset) => offset,
                };
                self.end = offset.saturating_add(bytes.len() as u64);
                Record::Data { entry: number(*entry), offset, bytes }
            }
            AnyRecord::End { entry, length, is_right, has_hash } => {
                // Half of the files end with a hole.
                let right = self.end.saturating_add((self.end % 2) * 512);
                let length = if *is_right { right } else { value(*length) };
                let hash = has_hash.then(|| hash(INSIDE.as_bytes()));
                Record::End { entry: number(*entry), length, hash }
            }
            AnyRecord::Unreadable { entry } => Record::Unreadable { entry: number(*entry) },
            AnyRecord::Compressed { length, bytes } => Record::Compressed { length: *length, bytes },
            AnyRecord::Complete { entries } => {
                Record::Complete { entries: self.entries.wrapping_sub((*entries / 128).into()) }
            }
            AnyRecord::NextMessage | AnyRecord::Message(_) => return,
        };
        records::append(message, &record);
    }

    fn entry(&self, entry: &AnyEntry) -> Entry {
        let kind = match &entry.kind {
            AnyKind::File { length, is_sparse } => {
                Kind::File { length: value(*length), is_sparse: *is_sparse }
            }
            AnyKind::Directory => Kind::Directory,
            AnyKind::Link(to) => Kind::Link(self.path(to)),
        };
        let attribute = |(name, value): &(Vec<u8>, Vec<u8>)| Attribute {
            name: [b"user.", &name[..]].concat(),
            value: value.clone(),
        };
        Entry {
            path: self.path(&entry.path),
            kind,
            mode: entry.mode,
            owner: entry.owner,
            modified: entry.modified,
            attributes: entry.attributes.iter().map(attribute).collect(),
        }
    }

    fn path(&self, path: &AnyPath) -> PathBuf {
        let name = |number: u8| match NAMES[usize::from(number) % NAMES.len()] {
            "long" => "long".repeat(60),
            name => name.to_owned(),
        };
        match path {
            AnyPath::Names(first, second, third) => [*first, *second, *third].map(name).iter().collect(),
            AnyPath::Outside => self.outside.join("file"),
            AnyPath::Bytes(bytes) => OsString::from_vec(bytes.clone()).into(),
        }
    }
}

const fn value(number: Number) -> u64 {
    match number {
        Number::Small(number) => number as u64,
        Number::Any(number) => number,
    }
}

/// A chunk of the file in the destination, or another one.
fn chunk(length: u32) -> Chunk {
    let hash = INSIDE.as_bytes().get(..length as usize).map_or(Hash::default(), hash);
    Chunk { length, hash }
}

fn hash(bytes: &[u8]) -> Hash {
    blake3::hash(bytes).into()
}
