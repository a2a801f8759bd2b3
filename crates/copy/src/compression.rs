//! Messages that are shorter on the network than what they say.

use std::io;

use crate::stream::{Record, append};

/// The longest message that a compressed one may stand for, in bytes: an entry with all its
/// extended attributes.
const PLAIN_BYTES_MAX: usize = 64 << 20;

/// The levels of zstd.
pub const LEVELS: std::ops::RangeInclusive<i32> = 1..=19;

/// Compresses messages one by one, with [zstd](https://datatracker.ietf.org/doc/html/rfc8878).
pub(crate) struct Compressor {
    compressor: zstd::bulk::Compressor<'static>,
    compressed: Vec<u8>,
}

impl Compressor {
    /// With one of the [`LEVELS`].
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(level: i32) -> io::Result<Self> {
        Ok(Self { compressor: zstd::bulk::Compressor::new(level)?, compressed: Vec::new() })
    }

    /// Makes a message shorter, if that is possible.
    pub fn compress(&mut self, message: &mut Vec<u8>) {
        // A result that is not shorter has no room, which is the usual error.
        self.compressed.resize(message.len(), 0);
        let Ok(length) = self.compressor.compress_to_buffer(message, &mut self.compressed[..]) else {
            return;
        };
        let record = Record::Compressed { length: message.len() as u32, bytes: &self.compressed[..length] };
        let mut shorter = Vec::with_capacity(length + 16);
        append(&mut shorter, &record);
        if shorter.len() < message.len() {
            *message = shorter;
        }
    }
}

/// Decompresses a message of `length` bytes.
///
/// # Errors
/// It is too long, or it is not what was compressed.
pub(crate) fn decompress(bytes: &[u8], length: u32) -> Result<Vec<u8>, &'static str> {
    let length = length as usize;
    if length > PLAIN_BYTES_MAX {
        return Err("a compressed message that is too long");
    }
    let plain = zstd::bulk::decompress(bytes, length).map_err(|_| "a compressed message that is damaged")?;
    if plain.len() == length { Ok(plain) } else { Err("a compressed message of another length") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::next;

    fn compressed(message: &[u8]) -> Vec<u8> {
        let mut compressed = message.to_vec();
        Compressor::new(3).unwrap().compress(&mut compressed);
        compressed
    }

    #[test]
    fn a_message_comes_back() {
        let message: Vec<u8> = b"abc".repeat(10_000);
        let shorter = compressed(&message);
        assert!(shorter.len() < 100, "{}", shorter.len());
        let Ok(Some((Record::Compressed { length, bytes }, []))) = next(&shorter) else {
            panic!("{shorter:?}")
        };
        assert_eq!(decompress(bytes, length), Ok(message));
        for wrong in [length - 1, length + 1, u32::MAX] {
            assert!(decompress(bytes, wrong).is_err(), "{wrong}");
        }
        assert!(decompress(&bytes[1..], length).is_err());
    }

    #[test]
    fn what_cannot_be_compressed_stays_as_it_is() {
        let message: Vec<u8> =
            (0..1_000_u32).flat_map(|i| *blake3::hash(&i.to_le_bytes()).as_bytes()).collect();
        for message in [&message[..], b"", b"abc"] {
            assert_eq!(compressed(message), message);
        }
    }
}
