//! Socket options.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use rustix::net::sockopt;

/// Lets the kernel merge received datagrams, where it supports that.
pub fn enable_gro(socket: &UdpSocket) {
    // An older kernel refuses the option, and merges nothing.
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
}

/// Lets the kernel refuse datagrams that are too long for the network, instead of fragmenting them:
/// a lost fragment loses the whole datagram, and a wrong `mtu_bytes` would go unnoticed.
pub fn forbid_fragments(socket: &UdpSocket) {
    // An IPv6 socket may reach IPv4 addresses and needs both options; an IPv4 socket refuses the
    // second one.
    set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO);
    set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO);
}

/// Lets the kernel merge no received datagrams.
pub fn disable_gro(socket: &UdpSocket) {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 0);
}

/// Omits the UDP checksum of datagrams over IPv4, as RFC 768 allows, or includes it. Datagrams over
/// IPv6 keep theirs.
pub fn omit_checksums(socket: &UdpSocket, are_omitted: bool) {
    set_option(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, are_omitted.into());
}

/// Sends multicast datagrams by this interface, without copies to sockets of this host.
///
/// # Errors
/// Those of the system.
pub fn set_multicast_interface(socket: &UdpSocket, is_v6: bool, interface: u32) -> io::Result<()> {
    if is_v6 {
        sockopt::set_ipv6_multicast_if(socket, interface)?;
        socket.set_multicast_loop_v6(false)
    } else {
        let any = Ipv4Addr::UNSPECIFIED;
        sockopt::set_ip_multicast_if_with_ifindex(socket, &any, &any, interface)?;
        socket.set_multicast_loop_v4(false)
    }
}

/// The cookie of a socket, which is unique in the system (`SO_COOKIE`).
///
/// # Errors
/// Those of the system.
pub fn cookie(socket: &UdpSocket) -> io::Result<u64> {
    Ok(sockopt::socket_cookie(socket)?)
}

/// The MTU of the path to the address that the socket is connected to (`IP_MTU`, `IPV6_MTU`).
pub fn path_mtu_bytes(socket: &UdpSocket, is_v6: bool) -> Option<u32> {
    let (level, name) =
        if is_v6 { (libc::IPPROTO_IPV6, libc::IPV6_MTU) } else { (libc::IPPROTO_IP, libc::IP_MTU) };
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option's value is a number, which lives until the call returns, as does its
    // length.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    u32::try_from(value).ok().filter(|_| result == 0)
}

/// Sets an option, if the kernel has it.
fn set_option(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: libc::c_int) {
    // SAFETY: the option's value is a number that lives until the call returns.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// Sets the buffers as large as allowed: beyond the system's bound with `CAP_NET_ADMIN` only.
pub fn set_buffers(socket: &UdpSocket, bytes: usize) {
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
    }
    let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
}
