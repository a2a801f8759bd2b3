//! What a socket is set to.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use rustix::net::sockopt;

/// From now on datagrams that have come together are taken in as one, where the system can.
pub fn take_trains(socket: &UdpSocket) {
    // An older system refuses it, which leaves datagrams apart.
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
}

/// From now on the system refuses datagrams that are too long for the network, rather than to cut them into fragments: of
/// these each may be lost, and all with it, and who has set the group wrongly would not know.
pub fn forbid_fragments(socket: &UdpSocket) {
    // A socket of IPv6 may reach addresses of IPv4, and one of IPv4 refuses the other option.
    set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO);
    set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO);
}

/// From now on each datagram is taken in by itself.
pub fn take_no_trains(socket: &UdpSocket) {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 0);
}

/// Whether datagrams over IPv4 go without a UDP checksum from now on, as RFC 768 allows; those over IPv6 keep theirs.
pub fn leave_checksums_out(socket: &UdpSocket, are_left_out: bool) {
    set_option(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, are_left_out.into());
}

/// From now on datagrams to groups of addresses leave by this interface, and nobody of this host is given a copy.
///
/// # Errors
/// Those of the system.
pub fn send_to_groups_by(socket: &UdpSocket, is_v6: bool, interface: u32) -> io::Result<()> {
    if is_v6 {
        sockopt::set_ipv6_multicast_if(socket, interface)?;
        socket.set_multicast_loop_v6(false)
    } else {
        let any = Ipv4Addr::UNSPECIFIED;
        sockopt::set_ip_multicast_if_with_ifindex(socket, &any, &any, interface)?;
        socket.set_multicast_loop_v4(false)
    }
}

/// What tells a socket from all others of the system (`SO_COOKIE`).
///
/// # Errors
/// Those of the system.
pub fn cookie(socket: &UdpSocket) -> io::Result<u64> {
    Ok(sockopt::socket_cookie(socket)?)
}

/// Sets an option if the system has it.
fn set_option(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: libc::c_int) {
    // SAFETY: the option's value is a number that lives until the call is over.
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

/// As large as allowed: beyond the system's bound only where we may.
pub fn set_buffers(socket: &UdpSocket, bytes: usize) {
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
    }
    let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
}
