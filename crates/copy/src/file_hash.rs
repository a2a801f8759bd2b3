//! Hashes of files that are read or written from their beginning to their end.

use crate::stream::Hash;

/// The bytes of a hole that are hashed at a time.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The hash of a file's content: holes are zeros, as `b3sum` reads them.
#[derive(Default)]
pub(crate) struct ContentHash {
    hasher: blake3::Hasher,
    /// The end of what is hashed.
    position: u64,
}

impl ContentHash {
    /// Adds bytes at an offset that is not before what has been added.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        self.add_zeros(offset);
        self.hasher.update(bytes);
        self.position += bytes.len() as u64;
    }

    fn add_zeros(&mut self, until: u64) {
        while self.position < until {
            let length = (until - self.position).min(ZEROS.len() as u64);
            self.hasher.update(&ZEROS[..length as usize]);
            self.position += length;
        }
    }

    /// The hash of a file of this length.
    pub fn finish(mut self, length: u64) -> Hash {
        self.add_zeros(length);
        self.hasher.finalize().into()
    }
}

/// The hash of what is sent of a file: of its data, and of where its holes are. A receiver takes no
/// longer for a hole than for a few bytes, whatever length a sender claims. Without holes it is the
/// hash of the content.
#[derive(Debug, Default)]
pub struct SentHash {
    data: blake3::Hasher,
    /// The end of what is hashed.
    position: u64,
    /// The offset and the length of each hole; none: no hole so far.
    holes: Option<blake3::Hasher>,
}

/// What the hash of a file with holes is for, so that it is never that of a file without.
const HOLES_CONTEXT: &str = "treecast 2026-11-26 a file with holes";

impl SentHash {
    /// Adds bytes at an offset that is not before what has been added.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.add_hole(offset);
        self.data.update(bytes);
        self.position = offset.saturating_add(bytes.len() as u64);
    }

    /// The end of the bytes that were added.
    pub const fn position(&self) -> u64 {
        self.position
    }

    fn add_hole(&mut self, until: u64) {
        if let Some(length @ 1..) = until.checked_sub(self.position) {
            let holes = self.holes.get_or_insert_with(|| blake3::Hasher::new_derive_key(HOLES_CONTEXT));
            holes.update(&self.position.to_le_bytes()).update(&length.to_le_bytes());
        }
    }

    /// The hash of a file of this length.
    pub fn finish(mut self, length: u64) -> Hash {
        self.add_hole(length);
        let data = self.data.finalize();
        // The holes have 16 bytes each, and the hash behind them has 32: no two files have the same
        // bytes here unless all of that is equal.
        self.holes.map_or(data, |mut holes| holes.update(data.as_bytes()).finalize()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(parts: &[(u64, &[u8])], length: u64) -> Hash {
        let mut hash = ContentHash::default();
        for (offset, bytes) in parts {
            hash.add(*offset, bytes);
        }
        hash.finish(length)
    }

    fn sent(parts: &[(u64, &[u8])], length: u64) -> Hash {
        let mut hash = SentHash::default();
        for (offset, bytes) in parts {
            hash.add(*offset, bytes);
        }
        hash.finish(length)
    }

    #[test]
    fn holes_are_zeros_in_the_content() {
        let mut bytes = vec![0; 200_000];
        bytes[100_000..100_003].copy_from_slice(b"abc");
        assert_eq!(content(&[(100_000, b"abc")], 200_000), *blake3::hash(&bytes).as_bytes());
    }

    #[test]
    fn without_holes_both_hashes_are_the_same_however_it_comes() {
        for parts in [&[(0, &b"abcdef"[..])][..], &[(0, b"abc"), (3, b"def")]] {
            assert_eq!((sent(parts, 6), content(parts, 6)), (blake3::hash(b"abcdef").into(), sent(parts, 6)));
        }
    }

    #[test]
    fn the_place_and_the_length_of_a_hole_count() {
        let all = [
            sent(&[(0, b"abc"), (10, b"def")], 13),
            sent(&[(0, b"abc"), (11, b"def")], 14),
            sent(&[(0, b"abc"), (10, b"def")], 14),
            sent(&[(10, b"abc"), (13, b"def")], 16),
        ];
        for (number, hash) in all.iter().enumerate() {
            assert!(!all[..number].contains(hash), "{number}");
        }
        assert_ne!(sent(&[], u64::MAX), sent(&[], 0));
    }

    #[test]
    fn no_data_has_the_hash_of_a_hole() {
        let hole = sent(&[(0, b"abc"), (11, b"def")], 14);
        for data in [8_u64.to_le_bytes(), 8_u64.to_be_bytes(), [0; 8]] {
            assert_ne!(sent(&[(0, b"abc"), (3, &data), (11, b"def")], 14), hole);
        }
        assert_eq!(sent(&[(0, b"abc"), (5, b""), (11, b"def")], 14), hole);
    }
}
