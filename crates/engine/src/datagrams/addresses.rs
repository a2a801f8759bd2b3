//! Socket addresses as the kernel writes and reads them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr;

/// The address that the kernel has written; none of a family that we do not know.
pub fn read(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is what the kernel has written; the storage is
            // large and aligned enough.
            let address = unsafe { &*ptr::from_ref(storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(address.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { &*ptr::from_ref(storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            let port = u16::from_be(address.sin6_port);
            Some(match ip.to_canonical() {
                IpAddr::V4(ip) => SocketAddr::new(IpAddr::V4(ip), port),
                IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, address.sin6_scope_id)),
            })
        }
        _ => None,
    }
}

/// Writes an address for the kernel; says how long it is. `is_v6`: the socket is of IPv6.
pub fn write(storage: &mut libc::sockaddr_storage, address: SocketAddr, is_v6: bool) -> libc::socklen_t {
    match (address, is_v6) {
        (SocketAddr::V4(address), false) => {
            // SAFETY: the storage is large and aligned enough for every family.
            let place = unsafe { &mut *ptr::from_mut(storage).cast::<libc::sockaddr_in>() };
            place.sin_family = libc::AF_INET as libc::sa_family_t;
            place.sin_port = address.port().to_be();
            place.sin_addr.s_addr = u32::from(*address.ip()).to_be();
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        (address, _) => {
            // A socket of IPv6 reaches an address of IPv4 by its mapped form (RFC 4291, section
            // 2.5.5.2).
            let (ip, scope) = match address {
                SocketAddr::V4(address) => (address.ip().to_ipv6_mapped(), 0),
                SocketAddr::V6(address) => (*address.ip(), address.scope_id()),
            };
            // SAFETY: as above.
            let place = unsafe { &mut *ptr::from_mut(storage).cast::<libc::sockaddr_in6>() };
            place.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            place.sin6_port = address.port().to_be();
            place.sin6_flowinfo = 0;
            place.sin6_addr.s6_addr = ip.octets();
            place.sin6_scope_id = scope;
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}
