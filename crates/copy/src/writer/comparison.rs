//! What is here already of the files that will come.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::part_file::part_of;
use crate::chunks::{Chunk, KnownChunks};

/// What is copied at a time of a file that is here: the longest chunk.
pub(super) const COPIED_BYTES: usize = 256 << 10;

/// What of the chunks of files is here.
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
    pub fn look_for(&mut self, number: u32, target: &Path, chunks: &[Chunk]) {
        if self.last.as_ref().is_none_or(|(last, _)| *last != number) {
            let mut known = KnownChunks::default();
            for (place, path) in candidates(target).iter().flatten().enumerate() {
                // What cannot be read has no chunks.
                if path.symlink_metadata().is_ok_and(|there| there.is_file()) {
                    let _ = File::open(path).and_then(|file| known.add(place, &file));
                }
            }
            self.last = Some((number, known));
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

    /// The answer: ranges of the numbers of chunks that are not here. None if another number of chunks was looked for.
    pub fn answer(&mut self, chunks: u32) -> Option<Vec<(u32, u32)>> {
        (chunks == self.chunks).then(|| std::mem::take(&mut self.lacking))
    }

    /// The chunks that are here of an entry that is written next. The files with them are opened first: the part of an earlier copy is read
    /// while a new one takes its name.
    pub fn take(&mut self, number: u32, target: &Path) -> io::Result<FoundChunks> {
        let mut found = self.found.remove(&number).unwrap_or_default();
        if !found.chunks.is_empty() {
            found.files = candidates(target)?.iter().map(|path| File::open(path).ok()).collect();
        }
        Ok(found)
    }
}

/// Chunks of a file that are here.
#[derive(Default)]
pub(super) struct FoundChunks {
    /// The end of the chunks that were asked for.
    end: u64,
    /// Where they are in the file, where they lie here (a number of a file and an offset), and their lengths.
    chunks: Vec<(u64, (usize, u64), u32)>,
    /// The files with them.
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

/// The files that may have chunks of another one: what it will replace, and what a copy that failed has left.
fn candidates(target: &Path) -> io::Result<[PathBuf; 2]> {
    Ok([target.into(), part_of(target)?])
}
