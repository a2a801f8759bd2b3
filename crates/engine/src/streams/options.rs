//! The options of TCP with which streams are faster than with its defaults, where the system has
//! them.

use std::os::fd::{AsFd, AsRawFd};

use rustix::net::sockopt;
use treecast_proto::Nanoseconds;

use crate::settings::congestion::CongestionControl;

/// Options of tcp(7) since Linux 6.15, which the libc crate does not name yet (linux/tcp.h).
const TCP_RTO_MIN_US: libc::c_int = 45;
const TCP_DELACK_MAX_US: libc::c_int = 46;

/// The shortest time after which TCP retransmits; its default of 200 ms holds up all members behind
/// a relay that waits for a lost segment. The kernel refuses times below two of its ticks.
const RTO_MIN_US: libc::c_int = 10_000;

/// The longest delay of an acknowledgment, shorter than the sender's shortest timeout.
const DELACK_MAX_US: libc::c_int = 8_000;

/// Half of that delay: so few acknowledgments are sent by reads.
const RENEW_INTERVAL: Nanoseconds = Nanoseconds(DELACK_MAX_US as u64 * 1_000 / 2);

/// A stream with a longer RTT leaves the site.
const NEAR_RTT_US: u32 = 5_000;

/// TCP's congestion control that answers losses only: the names, the best one first.
const LOSS_BASED: [&str; 2] = ["cubic", "reno"];

const BBR: &str = "bbr";

/// Gives a listening socket another congestion control than BBR, the default of some systems;
/// accepted sockets inherit it. Returns whether it had BBR.
///
/// BBR paces each burst by a timer. On a path of some 10 us the timers take more processor time
/// than the bursts, and they stay for the life of a socket that has begun with BBR.
pub fn leave_bbr(listener: &impl AsFd) -> bool {
    let is_bbr = sockopt::tcp_congestion(listener).is_ok_and(|name| name == BBR);
    is_bbr && LOSS_BASED.iter().any(|name| sockopt::set_tcp_congestion(listener, name).is_ok())
}

/// Gives a socket the congestion control that the settings of its group name, which was checked
/// when the group was entered.
pub fn set_congestion(socket: &impl AsFd, algorithm: &CongestionControl) {
    if let Err(error) = algorithm.set(socket) {
        tracing::warn!(%algorithm, %error, "cannot set tcp_congestion: this stream has another one");
    }
}

/// Gives an accepted socket the congestion control of its group, or the system's where the group's
/// settings name none and the listening socket `has_left_bbr`.
pub fn set_accepted_congestion(socket: &impl AsFd, named: Option<&CongestionControl>, has_left_bbr: bool) {
    match named {
        Some(algorithm) => set_congestion(socket, algorithm),
        None if has_left_bbr => return_to_bbr(socket),
        None => {}
    }
}

/// Gives an accepted socket BBR again, unless its host is near. Over long paths BBR is better where
/// packets are lost.
fn return_to_bbr(socket: &impl AsFd) {
    let is_near = info(socket).is_some_and(|info| info.tcpi_rtt < NEAR_RTT_US);
    if !is_near {
        let _ = sockopt::set_tcp_congestion(socket, BBR);
    }
}

/// Makes the parent's end of a stream retransmit soon.
pub fn tune_sender(socket: &impl AsFd) {
    set(socket, TCP_RTO_MIN_US, RTO_MIN_US);
}

/// The delayed acknowledgments of the child's end of a stream.
///
/// TCP acknowledges at each read that leaves nothing to read, which takes half of the time of the
/// read. If it takes the connection for an interactive one, in which the answer carries the
/// acknowledgment, it does so at every second read of a short message. It ceases to take it for one
/// when an acknowledgment has waited for the longest delay.
#[derive(Debug, Default)]
pub struct DelayedAcks {
    /// When TCP was told last that the connection is interactive; none where the delay has no bound
    /// that the parent's timeouts allow.
    renewed_at: Option<Nanoseconds>,
}

impl DelayedAcks {
    /// Begins to delay acknowledgments.
    pub fn begin(socket: &impl AsFd, now: Nanoseconds) -> Self {
        let has_bound = set(socket, TCP_DELACK_MAX_US, DELACK_MAX_US);
        if has_bound {
            let _ = sockopt::set_tcp_quickack(socket, false);
        }
        Self { renewed_at: has_bound.then_some(now) }
    }

    /// Goes on with it: to be called before a read.
    pub fn renew(&mut self, socket: &impl AsFd, now: Nanoseconds) {
        if let Some(renewed_at) = self.renewed_at.as_mut().filter(|at| now.since(**at) >= RENEW_INTERVAL) {
            let _ = sockopt::set_tcp_quickack(socket, false);
            *renewed_at = now;
        }
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

/// What TCP knows of a connection.
pub fn info(socket: &impl AsFd) -> Option<libc::tcp_info> {
    // SAFETY: all zeroes are a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the value has the length that is given, and both are valid during the call.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    (outcome == 0).then_some(info)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use treecast_shm::clock;

    /// The two ends of a connection to this listener: the parent's, and the child's.
    fn connection(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let child = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, child)
    }

    #[test]
    fn streams_to_near_hosts_leave_bbr() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = |socket: &TcpStream| sockopt::tcp_congestion(socket).unwrap();
        if sockopt::set_tcp_congestion(&listener, BBR).is_err() || !leave_bbr(&listener) {
            println!("skipped: this system does not let its users choose BBR, or another one");
            return;
        }
        assert!(!leave_bbr(&listener), "it has left BBR before");
        let (parent, _child) = connection(&listener);
        assert_ne!(name(&parent), BBR);
        set_accepted_congestion(&parent, None, true);
        assert_ne!(name(&parent), BBR);
    }

    #[test]
    fn streams_have_the_congestion_control_that_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (parent, _child) = connection(&listener);
        let name = || sockopt::tcp_congestion(&parent).unwrap();
        let before = name();
        set_accepted_congestion(&parent, None, false);
        assert_eq!(name(), before, "that of the system is not BBR");
        for named in ["reno", "cubic", BBR] {
            let algorithm = CongestionControl::new(named).unwrap();
            if algorithm.check().is_err() {
                println!("skipped: {named}, which this system does not let its users choose");
                continue;
            }
            for has_left_bbr in [false, true] {
                set_accepted_congestion(&parent, Some(&algorithm), has_left_bbr);
                assert_eq!(name(), named);
            }
        }
    }

    /// A pause longer than the delay precedes each burst of messages. TCP acknowledges every second
    /// one.
    #[test]
    fn reads_send_few_acknowledgments() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut parent, mut child) = connection(&listener);
        parent.set_nodelay(true).unwrap();
        let mut acks = DelayedAcks::begin(&child, clock::now());
        if acks.renewed_at.is_none() {
            println!("skipped: this kernel has no bound for the delay of TCP's acknowledgments");
            return;
        }
        let mut message = [7; 64];
        let mut exchange = |count: u32| {
            for _ in 0..count {
                parent.write_all(&message).unwrap();
                acks.renew(&child, clock::now());
                child.read_exact(&mut message).unwrap();
            }
            info(&parent).unwrap().tcpi_segs_in
        };
        let begun = exchange(1);
        for _ in 0..5 {
            thread::sleep(Duration::from_micros(2 * DELACK_MAX_US as u64));
            exchange(40);
        }
        let sent = exchange(0) - begun;
        assert!(sent < 130, "{sent} acknowledgments of 200 messages");
    }
}
