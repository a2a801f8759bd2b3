//! CRC-32C (RFC 9260, appendix A) over payloads.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The checksum of a payload, as the root computed it: every member verifies it, and forwards it as
/// it was. It is the payload's CRC-32C, or its code ([`crate::Keys::data_checksum`]).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct PayloadChecksum(pub u64);

impl PayloadChecksum {
    /// The CRC-32C of these bytes.
    pub fn crc(bytes: &[u8]) -> Self {
        Self(u64::from(crc(bytes)))
    }
}

#[cfg(feature = "std")]
fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

#[cfg(not(feature = "std"))]
fn crc(bytes: &[u8]) -> u32 {
    by_tables(bytes)
}

/// The same without the processor's instruction.
#[cfg(any(test, not(feature = "std")))]
fn by_tables(bytes: &[u8]) -> u32 {
    const TABLES: crc::Crc<u32, crc::Table<16>> = crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISCSI);
    TABLES.checksum(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // RFC 3720, appendix B.4.
        assert_eq!(PayloadChecksum::crc(&[0; 32]).0, 0x8a91_36aa);
        assert_eq!(PayloadChecksum::crc(&[0xff; 32]).0, 0x62a8_ab43);
        assert_eq!(PayloadChecksum::crc(b"123456789").0, 0xe306_9283);
        assert_eq!(PayloadChecksum::crc(b"").0, 0);
    }

    #[test]
    fn tables_and_instruction_give_the_same() {
        let bytes: [u8; 1_500] = core::array::from_fn(|index| (index * 31) as u8);
        for length in (0..100).chain([1_408, 1_499, 1_500]) {
            assert_eq!(by_tables(&bytes[..length]), crc(&bytes[..length]));
        }
    }
}
