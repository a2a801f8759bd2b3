//! CRC-32C (RFC 9260, appendix A) over the payload and then the header.
//!
//! The payload comes first, so that a member that forwards a packet under its own header continues from the payload's part as it was
//! received. Every member thus verifies what the root computed, and a copy costs the checksum of [`HEADER_BYTES`].

use crate::HEADER_BYTES;
use crate::layout::Layout;

/// The CRC-32C of a payload, which that of the header continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PayloadChecksum(pub u32);

impl PayloadChecksum {
    /// The checksum of an empty payload.
    pub const EMPTY: Self = Self(0);

    /// The checksum of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(continued(0, bytes))
    }

    /// The checksum of a packet with this payload: that of its header with 0 in the checksum field.
    pub(crate) fn with_header(self, layout: &Layout) -> u32 {
        let mut header: [u8; HEADER_BYTES] = zerocopy::transmute!(*layout);
        header[Layout::CHECKSUM].fill(0);
        continued(self.0, &header)
    }
}

/// Continues a CRC-32C by `bytes`.
#[cfg(feature = "std")]
fn continued(checksum: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(checksum, bytes)
}

/// Continues a CRC-32C by `bytes`.
#[cfg(not(feature = "std"))]
fn continued(checksum: u32, bytes: &[u8]) -> u32 {
    by_tables(checksum, bytes)
}

/// The same without the processor's instruction.
#[cfg(any(test, not(feature = "std")))]
fn by_tables(checksum: u32, bytes: &[u8]) -> u32 {
    const TABLES: crc::Crc<u32, crc::Table<16>> = crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISCSI);
    // The library reverses the bits of the initial value, as the definition of the algorithm does.
    let mut digest = TABLES.digest_with_initial((!checksum).reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

/// A payload with its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    checksum: PayloadChecksum,
}

impl<'a> Payload<'a> {
    /// An empty payload.
    pub const EMPTY: Self = Self { bytes: &[], checksum: PayloadChecksum::EMPTY };

    /// Computes the checksum.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, checksum: PayloadChecksum::of(bytes) }
    }

    /// The bytes.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Their checksum, for [`crate::Header::write`].
    pub const fn checksum(&self) -> PayloadChecksum {
        self.checksum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // RFC 3720, appendix B.4.
        assert_eq!(PayloadChecksum::of(&[0; 32]).0, 0x8a91_36aa);
        assert_eq!(PayloadChecksum::of(&[0xff; 32]).0, 0x62a8_ab43);
        assert_eq!(PayloadChecksum::of(b"123456789").0, 0xe306_9283);
        assert_eq!(PayloadChecksum::of(b""), PayloadChecksum::EMPTY);
    }

    #[test]
    fn tables_and_instruction_give_the_same() {
        let bytes: [u8; 1_500] = core::array::from_fn(|index| (index * 31) as u8);
        for length in (0..100).chain([1_408, 1_499, 1_500]) {
            let (front, rest) = bytes[..length].split_at(length / 3);
            let whole = continued(0, &bytes[..length]);
            assert_eq!(continued(continued(0, front), rest), whole);
            assert_eq!(by_tables(by_tables(0, front), rest), whole);
        }
    }

    #[test]
    fn a_checksum_continues_where_it_was_left() {
        assert_eq!(continued(continued(0, b"12345"), b"6789"), 0xe306_9283);
    }
}
