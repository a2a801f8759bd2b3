//! Codes of payloads: a universal hash, and SipHash-2-4 of its results.

use core::fmt;
use core::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::{MacKey, Sequence};

/// The key of the codes of data payloads. A code is SipHash-2-4 of the packet's number, the
/// payload's length and the NH hashes of its blocks (docs/wire.md). A block of 256 bytes has two
/// hashes of 64 bits (NH with words of 32 bits and the Toeplitz construction: Black, Halevi,
/// Krawczyk, Krovetz and Rogaway, "UMAC: Fast and Secure Message Authentication", 1999, as in RFC
/// 4418). A processor, and the kernel's program, spend two multiplications of 32 bits on eight
/// bytes.
///
/// **Strength.** Any two different payloads of one length have the same hashes with a probability
/// of at most 2^-64, since the key of NH is random and does not depend on them (theorem 4.3 there).
/// Payloads of different lengths, and packets of different numbers, differ in the input of
/// SipHash-2-4. So an attempt to replace the payload of a packet that the root has sent succeeds
/// with a probability of at most 2^-64 for the hashes, plus 2^-64 for a guessed code; one of n
/// attempts succeeds with a probability of at most n times 2^-63. A host that drops a billion
/// forged packets per second without end accepts one after 290 years on average.
///
/// **Reused numbers.** SipHash-2-4 is a pseudorandom function, and codes do not reveal the hashes:
/// a number that is used again after 2^32 packets reveals no secret, unlike the nonce of a
/// Carter-Wegman code or of GMAC. Codes show at most that two payloads with one number have the
/// same hashes. Two different payloads do with a probability of 2^-64 per pair, and a session that
/// sends 2^32 packets 1,000 times, at best 6 PB, has 2^51 such pairs.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct PayloadKey {
    /// The key of SipHash-2-4.
    pub code: MacKey,
    /// The key of NH: a word for each eight bytes of a block, and one for the second hash.
    pub hash: [u64; Self::HASH_WORDS],
}

/// The bytes that one pair of hashes covers.
const BLOCK_BYTES: usize = 256;

impl PayloadKey {
    /// The words of the key of NH.
    pub const HASH_WORDS: usize = BLOCK_BYTES / 8 + 1;

    /// The code of the payload of the packet with this number.
    pub fn code(&self, packet: Sequence, payload: &[u8]) -> u64 {
        let [first, second] = self.code.0;
        let mut hasher = SipHasher24::new_with_keys(first, second);
        hasher.write(&(u64::from(packet.0) | (payload.len() as u64) << 32).to_le_bytes());
        let (blocks, rest) = payload.as_chunks::<BLOCK_BYTES>();
        for block in blocks {
            hasher.write(self.hashes(block).as_flattened());
        }
        if !rest.is_empty() {
            hasher.write(self.hashes(rest).as_flattened());
        }
        hasher.finish()
    }

    /// The two hashes of a block, padded with zeros to a multiple of eight bytes.
    #[expect(
        clippy::inline_always,
        reason = "the loop has a fixed length for whole blocks, and uses vectors"
    )]
    #[inline(always)]
    fn hashes(&self, block: &[u8]) -> [[u8; 8]; 2] {
        let (words, rest) = block.as_chunks::<8>();
        let mut hashes = [0_u64; 2];
        let mut add = |word: [u8; 8], keys: [u64; 2]| {
            for (hash, key) in hashes.iter_mut().zip(keys) {
                *hash = hash.wrapping_add(product(u64::from_le_bytes(word), key));
            }
        };
        for (&word, keys) in words.iter().zip(self.hash.windows(2)) {
            add(word, [keys[0], keys[1]]);
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            add(word, [self.hash[words.len()], self.hash[words.len() + 1]]);
        }
        hashes.map(u64::to_le_bytes)
    }
}

/// The product of two sums of 32 bits: of the lower halves, and of the upper halves.
const fn product(word: u64, key: u64) -> u64 {
    let low = (word as u32).wrapping_add(key as u32);
    let high = ((word >> 32) as u32).wrapping_add((key >> 32) as u32);
    low as u64 * high as u64
}

/// Logs must not show a key.
impl fmt::Debug for PayloadKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PayloadKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: PayloadKey = PayloadKey { code: MacKey([1, 2]), hash: key_words() };

    const fn key_words() -> [u64; PayloadKey::HASH_WORDS] {
        let mut words = [0_u64; PayloadKey::HASH_WORDS];
        let mut place = 0;
        while place < words.len() {
            words[place] = (place as u64 + 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            place += 1;
        }
        words
    }

    /// The definition of NH, word by word.
    fn defined(block: &[u8], shift: usize) -> u64 {
        let words_of = |bytes: &[u8]| -> [u32; 64] {
            core::array::from_fn(|word| {
                let byte = |place: usize| u32::from(bytes.get(4 * word + place).copied().unwrap_or(0));
                byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
            })
        };
        let words = words_of(block);
        let key = |word: usize| (KEY.hash[word / 2] >> (32 * (word % 2))) as u32;
        (0..block.len().div_ceil(8)).fold(0, |sum, pair| {
            let sum_of = |word: usize| u64::from(words[word].wrapping_add(key(word + 2 * shift)));
            sum.wrapping_add(sum_of(2 * pair).wrapping_mul(sum_of(2 * pair + 1)))
        })
    }

    #[test]
    fn hashes_are_those_of_the_paper() {
        let bytes: [u8; BLOCK_BYTES] = core::array::from_fn(|place| (place * 31 + 7) as u8);
        for length in 1..=BLOCK_BYTES {
            let hashes = KEY.hashes(&bytes[..length]).map(u64::from_le_bytes);
            assert_eq!(
                hashes,
                [defined(&bytes[..length], 0), defined(&bytes[..length], 1)],
                "{length} bytes"
            );
        }
    }

    #[test]
    fn the_code_is_siphash_of_the_number_the_length_and_the_hashes() {
        let bytes: [u8; 600] = core::array::from_fn(|place| (place * 7) as u8);
        let mut hashed = [0; 56];
        hashed[..4].copy_from_slice(&9_u32.to_le_bytes());
        hashed[4..8].copy_from_slice(&600_u32.to_le_bytes());
        for (place, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            for shift in 0..2 {
                let from = 8 + 16 * place + 8 * shift;
                hashed[from..from + 8].copy_from_slice(&defined(block, shift).to_le_bytes());
            }
        }
        assert_eq!(KEY.code(Sequence(9), &bytes), KEY.code.mac(&hashed));
    }

    #[test]
    fn codes_differ_by_number_length_and_every_bit() {
        let bytes = [0_u8; 300];
        let code = KEY.code(Sequence(1), &bytes);
        assert_ne!(code, KEY.code(Sequence(2), &bytes));
        assert_ne!(code, KEY.code(Sequence(1), &bytes[..299]));
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(code, KEY.code(Sequence(1), &changed), "bit {bit}");
        }
    }
}
