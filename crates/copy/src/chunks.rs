//! Parts of files that are found again in other versions of them: content-defined chunks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;

use fastcdc::v2020::StreamCDC;
use fixedbitset::FixedBitSet;
use serde::{Deserialize, Serialize};

use crate::stopper::Stopper;
use crate::stream::Hash;

/// The least, the expected and the largest length of a chunk, in bytes. The boundaries depend on
/// what is in a file, and not on where it is (`FastCDC`, Xia and others, USENIX ATC 2016; in its
/// form of 2020).
const CHUNK_BYTES: [usize; 3] = [16 << 10, 64 << 10, 256 << 10];

/// Files of fewer bytes are sent as they are.
pub(crate) const COMPARED_BYTES_MIN: u64 = CHUNK_BYTES[1] as u64;

/// A chunk of a file, which begins where the one before ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Its bytes.
    pub length: u32,
    /// The hash of its contents.
    pub hash: Hash,
}

/// A file in chunks.
#[derive(Debug)]
pub(crate) struct Chunks {
    pub all: Vec<Chunk>,
    /// The hash of the whole file.
    pub hash: Hash,
    pub length: u64,
}

impl Chunks {
    /// Reads a file, unless it is stopped meanwhile.
    pub fn of(file: &File, stopper: &Stopper) -> io::Result<Self> {
        let [min, average, max] = CHUNK_BYTES;
        let mut whole = blake3::Hasher::new();
        let mut chunks = Self { all: Vec::new(), hash: [0; 32], length: 0 };
        for chunk in StreamCDC::new(ReadEach(file), min, average, max) {
            if stopper.is_stopped() {
                return Err(ErrorKind::Interrupted.into());
            }
            let data = chunk.map_err(io::Error::from)?.data;
            whole.update(&data);
            chunks.length += data.len() as u64;
            chunks.all.push(Chunk { length: data.len() as u32, hash: blake3::hash(&data).into() });
        }
        chunks.hash = whole.finalize().into();
        Ok(chunks)
    }
}

/// The hash of a file's contents, unless it is stopped meanwhile.
pub(crate) fn hash_of(file: &File, stopper: &Stopper) -> io::Result<Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut bytes = vec![0; CHUNK_BYTES[2]];
    loop {
        let length = ReadEach(file).read(&mut bytes)?;
        if length == 0 {
            return Ok(hasher.finalize().into());
        }
        if stopper.is_stopped() {
            return Err(ErrorKind::Interrupted.into());
        }
        hasher.update(&bytes[..length]);
    }
}

/// The library takes a reader of its own; signals do not interrupt it.
struct ReadEach<'a>(&'a File);

impl Read for ReadEach<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

/// Where chunks of files that a host has lie: the number of the file, and the offset.
#[derive(Debug, Default)]
pub(crate) struct KnownChunks {
    places: BTreeMap<Hash, (usize, u64)>,
}

impl KnownChunks {
    /// Adds the chunks of a file that can be read.
    pub fn add(&mut self, number: usize, file: &File) -> io::Result<()> {
        let mut offset = 0;
        for chunk in Chunks::of(file, &Stopper::default())?.all {
            self.places.entry(chunk.hash).or_insert((number, offset));
            offset += u64::from(chunk.length);
        }
        Ok(())
    }

    pub fn place(&self, chunk: &Chunk) -> Option<(usize, u64)> {
        self.places.get(&chunk.hash).copied()
    }
}

/// The entries that some host lacks: all of them, until hosts were asked.
#[derive(Debug, Default)]
pub(crate) struct Lacking(pub Option<FixedBitSet>);

impl Lacking {
    pub fn has(&self, number: usize) -> bool {
        self.0.as_ref().is_none_or(|lacking| lacking.contains(number))
    }
}

/// The files that were compared, by their numbers in increasing order, and which of their chunks a
/// host lacks. Chunks are numbered from 0 through all files.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    pub files: Vec<(u32, Chunks)>,
    pub lacking: FixedBitSet,
}

impl Compared {
    pub fn chunk_count(&self) -> usize {
        self.files.iter().map(|(_, chunks)| chunks.all.len()).sum()
    }

    /// The bytes that no host lacks.
    pub fn bytes_spared(&self) -> u64 {
        let all = self.files.iter().flat_map(|(_, chunks)| &chunks.all);
        let spared = all.enumerate().filter(|(number, _)| !self.lacking.contains(*number));
        spared.map(|(_, chunk)| u64::from(chunk.length)).sum()
    }

    /// The chunks of a file that hosts lack. `first` is the number of the file's first chunk.
    pub fn lacking_of<'a>(&'a self, chunks: &'a Chunks, first: usize) -> impl Iterator<Item = Placed> + 'a {
        let mut offset = 0;
        let placed = chunks.all.iter().map(move |chunk| {
            let start = offset;
            offset += u64::from(chunk.length);
            Placed { range: start..offset, hash: chunk.hash }
        });
        placed
            .enumerate()
            .filter(move |(number, _)| self.lacking.contains(first + number))
            .map(|(_, chunk)| chunk)
    }
}

/// A chunk at its place in a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub range: Range<u64>,
    pub hash: Hash,
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn noise(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    fn file(parts: &[&[u8]]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        for part in parts {
            file.write_all(part).unwrap();
        }
        std::io::Seek::rewind(&mut file).unwrap();
        file
    }

    #[test]
    fn an_insertion_changes_few_chunks() {
        let bytes = noise(4_000_000);
        let old = file(&[&bytes]);
        let new = file(&[&bytes[..1_000_000], b"inserted", &bytes[1_000_000..]]);
        let mut known = KnownChunks::default();
        known.add(0, &old).unwrap();
        let chunks = Chunks::of(&new, &Stopper::default()).unwrap();
        assert_eq!(chunks.length, 4_000_008);
        let unknown = chunks.all.iter().filter(|chunk| known.place(chunk).is_none()).count();
        assert!(chunks.all.len() > 30 && (1..=3).contains(&unknown), "{unknown} of {}", chunks.all.len());
    }

    #[test]
    fn lacking_chunks_have_their_places() {
        let chunk = |length| Chunk { length, hash: [length as u8; 32] };
        let chunks = Chunks { all: [5, 6, 7, 8].map(chunk).into(), hash: [0; 32], length: 26 };
        let mut compared = Compared { files: Vec::new(), lacking: FixedBitSet::with_capacity(6) };
        compared.lacking.extend([2, 4, 5]);
        let placed = |range: Range<u64>| Placed { hash: [(range.end - range.start) as u8; 32], range };
        let lacking: Vec<Placed> = compared.lacking_of(&chunks, 2).collect();
        assert_eq!(lacking, [placed(0..5), placed(11..18), placed(18..26)]);
        compared.files.push((0, chunks));
        assert_eq!((compared.chunk_count(), compared.bytes_spared()), (4, 19));
    }
}
