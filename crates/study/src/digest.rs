//! Digests of texts and files.

use twox_hash::XxHash3_128;

/// A digest of some bytes (XXH3, 128 bits). It tells texts and files apart, but is not
/// cryptographic.
pub fn digest(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}
