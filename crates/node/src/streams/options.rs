//! The options of TCP with which streams are faster than with its defaults, where the system has them.

use std::os::fd::{AsFd, AsRawFd};

use rustix::net::sockopt;

/// Options of tcp(7) since Linux 6.15, which the libc crate does not name yet (linux/tcp.h).
const TCP_RTO_MIN_US: libc::c_int = 45;
const TCP_DELACK_MAX_US: libc::c_int = 46;

/// The shortest time after which TCP retransmits; its default of 200 ms holds up all members behind a
/// relay that waits for a lost segment. The kernel refuses times below two of its ticks.
const RTO_MIN_US: libc::c_int = 10_000;

/// The longest delay of an acknowledgment, shorter than the sender's shortest timeout.
const DELACK_MAX_US: libc::c_int = 8_000;

/// Makes the parent's end of a stream retransmit soon.
pub fn tune_sender(socket: &impl AsFd) {
    set(socket, TCP_RTO_MIN_US, RTO_MIN_US);
}

/// Makes the child's end of a stream delay its acknowledgments, so that a read does not send one before
/// it returns the message. Only where the delay has a bound that the parent's timeouts allow.
pub fn tune_receiver(socket: &impl AsFd) {
    if set(socket, TCP_DELACK_MAX_US, DELACK_MAX_US) {
        let _ = sockopt::set_tcp_quickack(socket, false);
    }
}

/// Sets an option of TCP; false where the system does not know it, or not the value.
fn set(socket: &impl AsFd, option: libc::c_int, value: libc::c_int) -> bool {
    // SAFETY: the value is an integer of this size, and valid during the call.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    outcome == 0
}
