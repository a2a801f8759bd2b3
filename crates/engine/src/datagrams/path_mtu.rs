//! The MTU of paths, as the kernel knows it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use super::options;

/// The longest datagrams on hosts that are all this machine. Loopback carries longer ones, but then
/// what is tried there would behave otherwise than on most networks, and the kernel's packet path
/// is made for the MTU of interfaces.
pub const DEFAULT_MTU_BYTES: u16 = 1_500;

/// The longest datagrams that are chosen: the usual MTU of networks with jumbo frames.
const MTU_BYTES_MAX: u32 = 9_000;

/// The MTU of loopback is 65,536 bytes, of which the kernel reports 65,535 for IPv4: its longest
/// datagram.
const LOOPBACK_MTU_BYTES: u32 = 65_535;

/// The longest datagrams for paths with these MTUs, in bytes with the IP header: as long as the
/// least of them, of the paths that leave this machine, but at most 9,000.
pub fn mtu_bytes_of(paths: impl Iterator<Item = u32>) -> u16 {
    let least = paths.filter(|&mtu_bytes| mtu_bytes < LOOPBACK_MTU_BYTES).min();
    least.map_or(DEFAULT_MTU_BYTES, |mtu_bytes| mtu_bytes.min(MTU_BYTES_MAX) as u16)
}

/// The MTUs of the paths to these addresses: of the interface by which the kernel sends there, or
/// less, if it has learnt that a router on the way has a smaller one (RFC 1191, RFC 8201).
/// Addresses without a route are left out: sending to them tells why.
pub fn path_mtus<'a>(to: impl Iterator<Item = &'a SocketAddr>) -> impl Iterator<Item = u32> {
    let mut sockets: [Option<UdpSocket>; 2] = [None, None];
    to.filter_map(move |address| {
        let socket = &mut sockets[usize::from(address.is_ipv6())];
        if socket.is_none() {
            let any = if address.is_ipv6() {
                SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))
            } else {
                SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
            };
            *socket = UdpSocket::bind(any).ok();
        }
        let socket = socket.as_ref()?;
        socket.connect(address).ok()?;
        options::path_mtu_bytes(socket, address.is_ipv6())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_mtu_beyond_this_machine_counts() {
        assert_eq!(mtu_bytes_of([65_536, 1_500, 1_400].into_iter()), 1_400);
        assert_eq!(mtu_bytes_of([65_536, 65_535].into_iter()), 1_500);
        assert_eq!(mtu_bytes_of([9_216, 65_520].into_iter()), 9_000);
        assert_eq!(mtu_bytes_of(std::iter::empty()), 1_500);
    }

    #[test]
    fn the_kernel_knows_the_mtu_of_loopback() {
        let places: [SocketAddr; 2] = ["127.0.0.1:9", "[::1]:9"].map(|place| place.parse().unwrap());
        let found: Vec<u32> = path_mtus(places.iter()).collect();
        assert!(!found.is_empty() && found.iter().all(|&mtu_bytes| mtu_bytes >= 1_280), "{found:?}");
    }
}
