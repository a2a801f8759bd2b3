//! The hash of a file that is read or written from its beginning to its end.

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

    #[test]
    fn holes_are_zeros_in_the_content() {
        let mut bytes = vec![0; 200_000];
        bytes[100_000..100_003].copy_from_slice(b"abc");
        assert_eq!(content(&[(100_000, b"abc")], 200_000), *blake3::hash(&bytes).as_bytes());
    }
}
