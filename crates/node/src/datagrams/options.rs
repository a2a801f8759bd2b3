//! What a socket is set to.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

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
    use rustix::net::sockopt;
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
    }
    let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
}
