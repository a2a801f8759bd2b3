//! The messages: their bytes follow from their numbers.

use rand::{Rng as _, RngExt as _};
use rand_pcg::Pcg64;

/// The number of a message and its length, at its beginning.
const HEAD_BYTES: usize = 16;

/// The logarithm to base 2 of the longest message.
const LONGEST: f64 = 21.0;

/// Message `number` of a run.
pub fn make(seed: u64, number: u64) -> Vec<u8> {
    let mut random = Pcg64::new(u128::from(seed) << 64 | u128::from(number), 0);
    let length = 2_f64.powf(random.random_range((HEAD_BYTES as f64).log2()..LONGEST)) as usize;
    let mut message = vec![0; length];
    random.fill_bytes(&mut message[HEAD_BYTES..]);
    message[..8].copy_from_slice(&number.to_le_bytes());
    message[8..HEAD_BYTES].copy_from_slice(&(length as u64).to_le_bytes());
    message
}

/// The number of a message, if it is message of the run.
pub fn number_of(seed: u64, message: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(*message.first_chunk()?);
    (make(seed, number) == message).then_some(number)
}
