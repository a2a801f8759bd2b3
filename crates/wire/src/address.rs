//! Addresses of nodes in payloads: IPv6, or IPv4 mapped (RFC 4291, section 2.5.5.2).

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An address: 18 bytes.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct AddressLayout {
    pub port: U16,
    pub address: [u8; 16],
}

impl AddressLayout {
    pub fn new(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self { port: address.port().into(), address: ip.octets() }
    }

    pub fn read(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.address).to_canonical(), self.port.get())
    }
}
