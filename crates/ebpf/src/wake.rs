//! The datagrams by which the program wakes sleeping readers.

use std::fmt;
use std::ops::Range;

use treecast_proto::GroupId;
use treecast_wire::HEADER_BYTES;

/// A socket at which sleeping readers are woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeSocket {
    /// Its port, at the node's own address.
    pub port: u16,
    /// The nonce in the program's datagrams to it.
    pub nonce: WakeNonce,
}

/// A random number that the program writes into its wake datagrams. Only the socket's owner and the
/// kernel know it, since these datagrams never leave the host: a datagram without it is from
/// another sender.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WakeNonce(pub u64);

/// Hidden, since whoever knows it can wake readers.
impl fmt::Debug for WakeNonce {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("WakeNonce(..)")
    }
}

/// The first byte of a wake datagram: a version that no packet has.
const WAKE_VERSION: u8 = 0;

/// Where a header has its group's number, and where its code; a wake datagram has the nonce there.
const GROUP: Range<usize> = 4..8;
const NONCE: Range<usize> = HEADER_BYTES - 8..HEADER_BYTES;

impl WakeNonce {
    /// The group whose sleeping reader is woken; `None` for a datagram that the program has not
    /// sent to this socket.
    ///
    /// ```
    /// use treecast_ebpf::WakeNonce;
    /// use treecast_proto::GroupId;
    ///
    /// let mut datagram = [0; 64];
    /// datagram[7] = 5;
    /// datagram[56..].copy_from_slice(&9_u64.to_be_bytes());
    /// assert_eq!(WakeNonce(9).read(&datagram), Some(GroupId(5)));
    /// assert_eq!(WakeNonce(8).read(&datagram), None);
    /// ```
    pub fn read(self, datagram: &[u8]) -> Option<GroupId> {
        let group = datagram.get(GROUP)?.first_chunk()?;
        let nonce = datagram.get(NONCE)?.first_chunk()?;
        (datagram[0] == WAKE_VERSION && u64::from_be_bytes(*nonce) == self.0)
            .then(|| GroupId(u32::from_be_bytes(*group)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wake_datagram_with_the_nonce_names_a_group() {
        let nonce = WakeNonce(0x0102_0304_0506_0708);
        let mut datagram = [0; 80];
        datagram[GROUP].copy_from_slice(&7_u32.to_be_bytes());
        datagram[NONCE].copy_from_slice(&nonce.0.to_be_bytes());
        // The whole packet, or its header.
        assert_eq!(nonce.read(&datagram), Some(GroupId(7)));
        assert_eq!(nonce.read(&datagram[..HEADER_BYTES]), Some(GroupId(7)));
        for length in 0..HEADER_BYTES {
            assert_eq!(nonce.read(&datagram[..length]), None);
        }
        for bit in (0..8).chain(8 * NONCE.start..8 * NONCE.end) {
            let mut forged = datagram;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(nonce.read(&forged), None, "bit {bit}");
        }
    }
}
