//! The socket by which the kernel's packet path wakes a client of the daemon.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{RecvFlags, recv};
use treecast_ebpf::WakeNonce;
use treecast_proto::GroupId;
use treecast_wire::HEADER_BYTES;

/// The client's end of it. Any host can send to its port.
#[derive(Debug)]
pub(super) struct KernelWakeups {
    socket: UdpSocket,
    nonce: WakeNonce,
    /// The number of datagrams that the program has not sent.
    strays: AtomicU64,
}

impl KernelWakeups {
    /// The nonce is the one that the daemon has posted with the socket's port.
    pub const fn new(socket: UdpSocket, nonce: WakeNonce) -> Self {
        Self { socket, nonce, strays: AtomicU64::new(0) }
    }

    /// Takes up to `count_max` datagrams; calls `wake` for the group of each that the program has
    /// sent, and counts the others.
    pub fn take(&self, count_max: usize, mut wake: impl FnMut(GroupId)) {
        let mut bytes = [0; HEADER_BYTES];
        for _ in 0..count_max {
            let received = recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT);
            let Ok((length, _)) = received else { break };
            match self.nonce.read(&bytes[..length]) {
                Some(group) => wake(group),
                None => _ = self.strays.fetch_add(1, Ordering::Relaxed),
            }
        }
    }

    /// The number of datagrams that the program has not sent.
    pub fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_wake_datagram_wakes_nobody_and_is_counted() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let wakeups = KernelWakeups::new(socket, WakeNonce(9));
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let waking = |group: u8, nonce: u64| {
            let mut datagram = [0; HEADER_BYTES];
            datagram[7] = group;
            datagram[56..].copy_from_slice(&nonce.to_be_bytes());
            datagram
        };
        let mut woken = Vec::new();
        for datagram in [&waking(1, 0)[..], &waking(2, 9), &waking(3, 8), &waking(4, 9)[..56], &[]] {
            sender.send_to(datagram, address).unwrap();
        }
        wakeups.take(10, |group| woken.push(group));
        assert_eq!((woken, wakeups.strays()), (vec![GroupId(2)], 4));
    }
}
