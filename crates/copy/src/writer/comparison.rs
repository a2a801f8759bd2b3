//! Chunks of incoming files that this host already has.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use rustix::fs::OFlags;

use super::place::Place;
use crate::chunks::{Chunk, KnownChunks};

/// The bytes that are copied at a time from an existing file: the longest chunk.
pub(super) const COPIED_BYTES: usize = 256 << 10;

/// The most parts of a file that are searched for chunks.
const PARTS_MAX: usize = 8;

/// The chunks of files that this host has.
#[derive(Default)]
pub(super) struct Comparison {
    /// The number of chunks so far.
    chunks: u32,
    /// Ranges of those that are not here.
    lacking: Vec<(u32, u32)>,
    /// The entry of the last chunks, and the chunks of the files here that may have some of it.
    last: Option<(u32, KnownChunks)>,
    /// The chunks that are here, by entry.
    found: BTreeMap<u32, FoundChunks>,
}

impl Comparison {
    /// Looks for the next chunks of an entry in the files that may have some of them.
    pub fn look_for(&mut self, number: u32, place: Option<&Place>, chunks: &[Chunk]) {
        if self.last.as_ref().is_none_or(|(last, _)| *last != number) {
            let mut known = KnownChunks::default();
            let candidates = place.map(candidates).unwrap_or_default();
            for (at, file) in open_all(place, &candidates).iter().enumerate() {
                // A file that cannot be read has no chunks.
                let _ = file.as_ref().map(|file| known.add(at, file));
            }
            self.last = Some((number, known));
            self.found.insert(number, FoundChunks { candidates, ..FoundChunks::default() });
        }
        let Some((_, known)) = &self.last else { return };
        let found = self.found.entry(number).or_default();
        for chunk in chunks {
            match (known.place(chunk), self.lacking.last_mut()) {
                (Some(place), _) => found.chunks.push((found.end, place, chunk.length)),
                (None, Some((_, end))) if *end == self.chunks => *end += 1,
                (None, _) => self.lacking.push((self.chunks, self.chunks + 1)),
            }
            self.chunks += 1;
            found.end += u64::from(chunk.length);
        }
    }

    /// The answer: ranges of the numbers of chunks that are not here. None if another number of
    /// chunks was looked for.
    pub fn answer(&mut self, chunks: u32) -> Option<Vec<(u32, u32)>> {
        (chunks == self.chunks).then(|| std::mem::take(&mut self.lacking))
    }

    /// The chunks that are here of an entry that is written next, with the files that have them.
    pub fn take(&mut self, number: u32, place: &Place) -> FoundChunks {
        let mut found = self.found.remove(&number).unwrap_or_default();
        if !found.chunks.is_empty() {
            found.files = open_all(Some(place), &found.candidates);
        }
        found
    }
}

/// Chunks of a file that are here.
#[derive(Default)]
pub(super) struct FoundChunks {
    /// The end of the chunks that were asked for.
    end: u64,
    /// Where they are in the file, where they lie here (a number of a file and an offset), and
    /// their lengths.
    chunks: Vec<(u64, (usize, u64), u32)>,
    /// The names of the files that may have them.
    candidates: Vec<OsString>,
    /// The files, while the chunks are copied.
    files: Vec<Option<File>>,
}

impl FoundChunks {
    pub const fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Copies all of them to their places.
    pub fn copy_to(&self, file: &File) -> io::Result<()> {
        let mut bytes = vec![0; if self.is_empty() { 0 } else { COPIED_BYTES }];
        for &(offset, (place, from), length) in &self.chunks {
            let source = self.files.get(place).and_then(Option::as_ref).ok_or(ErrorKind::NotFound)?;
            let bytes = bytes.get_mut(..length as usize).ok_or(ErrorKind::InvalidInput)?;
            source.read_exact_at(bytes, from)?;
            file.write_all_at(bytes, offset)?;
        }
        Ok(())
    }
}

/// The names of files that may have chunks of another one: what it will replace, and what copies
/// that failed have left.
fn candidates(place: &Place) -> Vec<OsString> {
    std::iter::once(&place.name).chain(place.parts().iter().take(PARTS_MAX)).cloned().collect()
}

fn open_all(place: Option<&Place>, names: &[OsString]) -> Vec<Option<File>> {
    let open = |name: &OsString| place?.directory.open_file(name, OFlags::RDONLY).ok();
    names.iter().map(open).collect()
}
