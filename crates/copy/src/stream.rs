//! The sender's messages to all receivers, each of which is a sequence of records.
//!
//! The records are in [postcard](https://postcard.jamesmunns.com/wire-format)'s format, one after
//! another. An entry gets its number by its place among all entries, from 0. The data of a file
//! comes between its entry and its end, each part once.

use serde::{Deserialize, Serialize, Serializer};

use crate::{Chunk, Entry};

/// The most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// The most bytes of a file in one record, so that a message has room for what is around them.
pub const DATA_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 64;

/// A BLAKE3 hash.
pub type Hash = [u8; 32];

/// The digest of the messages so far: the hash of their hashes.
#[derive(Default)]
pub(crate) struct StreamDigest(blake3::Hasher);

impl StreamDigest {
    /// Adds the hash of the next message.
    pub fn add(&mut self, message: &Hash) {
        self.0.update(message);
    }

    /// The digest.
    pub fn finish(&self) -> Hash {
        self.0.finalize().into()
    }
}

/// Writes all bytes at once: serde writes the elements of a slice one by one.
fn at_once<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// A part of what is said.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record<'a> {
    /// An entry that will follow unless no receiver lacks it. These records are the first, in the
    /// order of entries.
    Listed {
        /// The entry.
        of: Entry,
        /// The hash of the contents of a file, if files are compared by it.
        hash: Option<Hash>,
    },
    /// Some chunks of a file that will be an entry, in their order: a receiver says which of them
    /// it lacks. All of them come before the first entry.
    Chunks {
        /// The number that the entry will have; from one file to the next it grows.
        entry: u32,
        /// The entry.
        of: Entry,
        /// The chunks.
        chunks: Vec<Chunk>,
    },
    /// All entries have been listed, or all chunks have been sent: a receiver answers which of them
    /// it lacks.
    Asked {
        /// Of what.
        question: Question,
        /// Their number.
        count: u32,
    },
    /// The next entry.
    Entry(Entry),
    /// No host lacks the next entries.
    Passed {
        /// Their number.
        entries: u32,
    },
    /// A part of a file's data.
    Data {
        /// The number of the entry.
        entry: u32,
        /// Where the part lies in the file.
        offset: u64,
        /// The part.
        #[serde(borrow, serialize_with = "at_once")]
        bytes: &'a [u8],
    },
    /// In the outline of a message, data that a host which serves reads from its own file.
    Stored {
        /// The number of the entry.
        entry: u32,
        /// The offset of the data in the file.
        offset: u64,
        /// The bytes.
        length: u32,
    },
    /// All of a file has been sent.
    End {
        /// The number of the entry.
        entry: u32,
        /// The bytes that the file has.
        length: u64,
        /// The hash of its contents, if its chunks were asked about: a receiver that has some of
        /// them reads them from its own disk.
        hash: Option<Hash>,
    },
    /// A file could not be read to its end, and is not to be kept.
    Unreadable {
        /// The number of the entry.
        entry: u32,
    },
    /// All records of the message, compressed; the message has no other.
    Compressed {
        /// The bytes that they have.
        length: u32,
        /// A frame of zstd (RFC 8878).
        #[serde(borrow, serialize_with = "at_once")]
        bytes: &'a [u8],
    },
    /// This is all.
    Complete {
        /// The number of entries.
        entries: u32,
    },
}

/// A question to the receivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// The entries that were listed.
    Entries,
    /// The chunks of files.
    Chunks,
}

/// A message does not parse as records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a message does not parse as records: {0}")]
pub struct NoRecords(String);

/// The next record of a message, and what follows it; none at the end.
///
/// # Errors
/// The bytes are no record.
pub fn next(message: &[u8]) -> Result<Option<(Record<'_>, &[u8])>, NoRecords> {
    if message.is_empty() {
        return Ok(None);
    }
    postcard::take_from_bytes(message).map(Some).map_err(|error| NoRecords(error.to_string()))
}

/// The outline of an uncompressed message: its records, with references to data instead of data.
///
/// # Errors
/// The bytes are no records.
pub(crate) fn outline(message: &[u8]) -> Result<Vec<u8>, NoRecords> {
    let (mut outline, mut rest) = (Vec::new(), message);
    while let Some((record, after)) = next(rest)? {
        let record = match record {
            Record::Data { entry, offset, bytes } => {
                Record::Stored { entry, offset, length: bytes.len() as u32 }
            }
            other => other,
        };
        append(&mut outline, &record);
        rest = after;
    }
    Ok(outline)
}

/// Appends a record to a message.
pub fn append(message: &mut Vec<u8>, record: &Record<'_>) {
    let filled = std::mem::take(message);
    *message = postcard::to_extend(record, filled).expect("a vector has room for every record");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Kind;

    fn entry() -> Entry {
        Entry {
            path: "a/b".into(),
            kind: Kind::File { length: 3, is_sparse: false },
            mode: 0o644,
            owner: (1, 2),
            modified: (-1, 5),
            attributes: Vec::new(),
        }
    }

    #[test]
    fn records_come_back_as_they_were() {
        let records = [
            Record::Listed { of: entry(), hash: Some([2; 32]) },
            Record::Asked { question: Question::Entries, count: 1 },
            Record::Chunks { entry: 0, of: entry(), chunks: vec![Chunk { length: 3, hash: [1; 32] }] },
            Record::Asked { question: Question::Chunks, count: 1 },
            Record::Passed { entries: 2 },
            Record::Entry(entry()),
            Record::Data { entry: 0, offset: 1 << 40, bytes: b"abc" },
            Record::Stored { entry: 0, offset: 1 << 40, length: 3 },
            Record::End { entry: 0, length: 3, hash: Some([7; 32]) },
            Record::Unreadable { entry: 1 },
            Record::Compressed { length: 4, bytes: b"abcd" },
            Record::Complete { entries: 2 },
        ];
        let mut message = Vec::new();
        for record in &records {
            append(&mut message, record);
        }
        let mut rest = &message[..];
        for record in &records {
            let (read, after) = next(rest).unwrap().unwrap();
            assert_eq!(read, *record);
            rest = after;
        }
        assert_eq!(next(rest), Ok(None));
    }

    #[test]
    fn a_message_has_room_for_the_longest_data() {
        let mut message = Vec::new();
        let bytes = vec![1; DATA_BYTES_MAX];
        append(&mut message, &Record::Data { entry: u32::MAX, offset: u64::MAX, bytes: &bytes });
        assert!(message.len() <= MESSAGE_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_records_or_an_error(bytes: Vec<u8>) {
            let mut rest = &bytes[..];
            while let Ok(Some((_, after))) = next(rest) {
                prop_assert!(after.len() < rest.len());
                rest = after;
            }
        }
    }
}
