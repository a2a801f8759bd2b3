//! The path to a neighbour: the headers and the interface of packets to it.

use std::net::{IpAddr, SocketAddr};

use crate::layout::Path;

/// The length of the headers below ours, and the offsets of destination address and port in them,
/// by version of IP, in bytes.
const IPV4: (u32, usize, usize) = (42, 14 + 16, 14 + 20 + 2);
const IPV6: (u32, usize, usize) = (62, 14 + 24, 14 + 40 + 2);

impl Path {
    /// A path to an address, not learned yet.
    pub(crate) fn to(address: SocketAddr) -> Self {
        let mut frame = [0; 64];
        let bytes = match canonical(address).ip() {
            IpAddr::V4(ip) => {
                frame[IPV4.1..IPV4.1 + 4].copy_from_slice(&ip.octets());
                frame[IPV4.2..IPV4.2 + 2].copy_from_slice(&address.port().to_be_bytes());
                IPV4.0
            }
            IpAddr::V6(ip) => {
                frame[IPV6.1..IPV6.1 + 16].copy_from_slice(&ip.octets());
                frame[IPV6.2..IPV6.2 + 2].copy_from_slice(&address.port().to_be_bytes());
                IPV6.0
            }
        };
        Self { interface: 0, bytes, frame }
    }

    /// A path between two addresses of one version of IP; `None` for others.
    pub(crate) fn between(from: SocketAddr, to: SocketAddr) -> Option<Self> {
        let mut path = Self::to(to);
        let port = match canonical(from).ip() {
            IpAddr::V4(ip) if path.bytes == IPV4.0 => {
                path.frame[IPV4.1 - 4..IPV4.1].copy_from_slice(&ip.octets());
                IPV4.2 - 2
            }
            IpAddr::V6(ip) if path.bytes == IPV6.0 => {
                path.frame[IPV6.1 - 16..IPV6.1].copy_from_slice(&ip.octets());
                IPV6.2 - 2
            }
            _ => return None,
        };
        path.frame[port..port + 2].copy_from_slice(&from.port().to_be_bytes());
        Some(path)
    }

    /// The neighbour's address; `None` for a path to nowhere.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let port = |offset: usize| u16::from_be_bytes([self.frame[offset], self.frame[offset + 1]]);
        if self.bytes == IPV4.0 {
            let octets: [u8; 4] = *self.frame[IPV4.1..].first_chunk()?;
            Some(SocketAddr::new(octets.into(), port(IPV4.2)))
        } else if self.bytes == IPV6.0 {
            let octets: [u8; 16] = *self.frame[IPV6.1..].first_chunk()?;
            Some(SocketAddr::new(octets.into(), port(IPV6.2)))
        } else {
            None
        }
    }

    /// Whether it leads to this address.
    pub(crate) fn leads_to(&self, address: SocketAddr) -> bool {
        self.address() == Some(canonical(address))
    }

    /// Whether it is learned.
    pub(crate) const fn is_learned(&self) -> bool {
        self.interface != 0
    }
}

/// IPv4-mapped IPv6 addresses are IPv4 in a frame.
const fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
