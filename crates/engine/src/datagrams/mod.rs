//! A UDP socket that receives and sends many datagrams with one system call (`recvmmsg`,
//! `sendmmsg`).
//!
//! Where the kernel supports it, consecutive datagrams of one group and one length to one address
//! are sent as one GSO batch (`UDP_SEGMENT`), and datagrams from one address are received as one
//! (`UDP_GRO`).
//!
//! A socket may have several lanes: sockets at one address, each with a receive buffer of its own.
//! The kernel steers each datagram by its group's number, so that a flood to one group takes no
//! room from groups of other lanes, and does not come before their datagrams.

#![expect(unsafe_code, reason = "system calls that the standard library does not have")]

mod addresses;
mod incoming;
mod lanes;
mod multicast;
pub mod options;
mod outgoing;
pub mod path_mtu;

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use treecast_wire::{GroupId, HEADER_BYTES};

use incoming::Incoming;
use multicast::MulticastSockets;
pub use multicast::Reception;
pub use outgoing::{GSO_SEGMENTS_MAX, Outgoing};

/// The most messages that are received with one system call.
pub const RECEIVE_BATCH: usize = 64;

/// The most datagrams that are sent with one system call: two full GSO batches.
pub const SEND_BATCH: usize = 88;

/// Where the group's number lies in a header.
const GROUP: Range<usize> = 4..8;

/// The most bytes of a GSO batch: what UDP takes over IPv6, 65,527 bytes, rounded down. These are
/// 44 full datagrams, as many as one child is sent in its turn.
const GSO_BYTES_MAX: usize = 65_500;

/// A socket of one or several lanes, with a batch in each direction.
pub struct Datagrams {
    /// By lane. All receive at one address, and the first one sends.
    sockets: Vec<UdpSocket>,
    address: SocketAddr,
    /// Further lanes.
    multicast: MulticastSockets,
    receive: Incoming,
    send: Outgoing,
}

/// Where datagrams are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// A lane of the node's own address.
    Own(usize),
    /// A socket at a multicast address, by its number.
    Multicast(u64),
}

/// A buffer for control messages (cmsg(3)): of two numbers, or of a number and an address.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlMessages([u8; 64]);

impl std::fmt::Debug for Datagrams {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Datagrams")
            .field("address", &self.address)
            .field("lanes", &self.sockets.len())
            .finish_non_exhaustive()
    }
}

/// A zeroed C structure.
fn zeroed<T>() -> T {
    // SAFETY: only used for libc's `sockaddr_storage`, `iovec`, `mmsghdr` and `cmsghdr`, for which
    // all zeroes are valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

impl Datagrams {
    /// Binds a socket of one or several lanes, each with buffers as large as the system allows, up
    /// to `buffer_bytes`. All datagrams arrive in lane 0 until [`Datagrams::steer`] says otherwise.
    ///
    /// # Errors
    /// Those of binding: an address that is in use is refused, also if its sockets have
    /// `SO_REUSEPORT`.
    pub fn bind(address: SocketAddr, buffer_bytes: usize, lanes: usize) -> io::Result<Self> {
        let sockets = lanes::bind(address, lanes)?;
        for socket in &sockets {
            socket.set_nonblocking(true)?;
            options::set_buffers(socket, buffer_bytes);
            options::enable_gro(socket);
        }
        options::forbid_fragments(&sockets[0]);
        let address = sockets[0].local_addr()?;
        let send = Outgoing::new(address.is_ipv6(), Some(GSO_BYTES_MAX));
        let multicast = MulticastSockets::new()?;
        Ok(Self { sockets, address, multicast, receive: Incoming::new(), send })
    }

    /// The bound address.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Receives a batch of a lane, of at most `messages_max` messages; returns their number. Each
    /// is one datagram or several segments.
    ///
    /// # Errors
    /// Those of the system, except for an empty or closed socket: then the number is 0.
    pub fn receive(&mut self, lane: Lane, messages_max: usize) -> io::Result<usize> {
        let socket = match lane {
            Lane::Own(lane) => Some(&self.sockets[lane]),
            Lane::Multicast(number) => self.multicast.socket(number),
        };
        socket.map_or(Ok(0), |socket| self.receive.receive(socket, messages_max))
    }

    /// A message of the last batch: its sender, and its datagrams.
    pub fn message(&self, message: usize) -> Option<(SocketAddr, impl Iterator<Item = &[u8]>)> {
        self.receive.message(message)
    }

    /// Whether the batch to send is full.
    pub fn is_full(&self) -> bool {
        self.send.is_full()
    }

    /// Adds a datagram, and keeps its payload.
    pub fn add(&mut self, to: SocketAddr, header: &[u8; HEADER_BYTES], payload: Vec<u8>) {
        self.send.add(to, header, payload);
    }

    /// Adds a datagram whose payload is elsewhere.
    ///
    /// # Safety
    /// As for [`Outgoing::add_from`].
    pub unsafe fn add_from(
        &mut self,
        to: SocketAddr,
        header: &[u8; HEADER_BYTES],
        payload: *const u8,
        length: usize,
    ) {
        // SAFETY: as the caller says.
        unsafe { self.send.add_from(to, header, payload, length) };
    }

    /// Sends the batch, as [`Outgoing::send`] does.
    ///
    /// # Errors
    /// Those of [`Outgoing::send`].
    pub fn send(&mut self) -> io::Result<()> {
        self.send.send(&self.sockets[0])
    }

    /// As [`Outgoing::too_long`].
    pub fn too_long(&self) -> &[GroupId] {
        self.send.too_long()
    }

    /// The cookie of the socket that sends, which is unique in the system.
    ///
    /// # Errors
    /// Those of the system.
    pub fn cookie(&self) -> io::Result<u64> {
        options::cookie(&self.sockets[0])
    }

    /// Disables GSO and GRO, which the kernel's packet path does not support on this kernel, and
    /// omits UDP checksums over IPv4: packets have a checksum of their own.
    pub fn disable_offloads(&mut self) {
        self.send.disable_gso();
        self.sockets.iter().for_each(options::disable_gro);
        options::omit_checksums(&self.sockets[0], true);
    }
}

impl Datagrams {
    /// The number of lanes.
    pub const fn lanes(&self) -> usize {
        self.sockets.len()
    }

    /// What becomes readable when a datagram is in a lane, by lane.
    pub fn descriptors(&self) -> impl ExactSizeIterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    /// Steers the datagrams of these groups to their lanes from now on, and all others to lane 0;
    /// those that have arrived stay where they are. Nothing is steered with one lane.
    ///
    /// The kernel compares a group's number with one after the other, so that the most active
    /// groups should be first. Groups after the first [`lanes::STEERED_MAX`] are in lane 0.
    /// Datagrams from one address that the kernel has merged (GRO), also those of several groups,
    /// go where the first one goes.
    ///
    /// # Errors
    /// Those of the system; then groups are steered as before. `ENOMEM`: the program is longer than
    /// `net.core.optmem_max` allows, whose default of 20 KiB on older kernels suffices for about
    /// 600 groups.
    ///
    /// # Panics
    /// If the lane does not exist, which would be a bug of ours.
    pub fn steer(&mut self, groups: impl IntoIterator<Item = (GroupId, usize)>) -> io::Result<()> {
        lanes::steer(&self.sockets, groups)
    }
}

/// Multicast.
impl Datagrams {
    /// Receives at these multicast addresses from now on, and at no others.
    ///
    /// # Errors
    /// The first one of the system: then the node receives at the other addresses.
    pub fn receive_at(&mut self, receptions: &[Reception]) -> io::Result<()> {
        self.multicast.receive_at(self.address, receptions)
    }

    /// The multicast addresses that no other socket of this host has joined.
    pub fn alone_at(&self) -> BTreeSet<IpAddr> {
        self.multicast.alone_at()
    }

    /// The sockets at multicast addresses that have datagrams, by number, each with the lane whose
    /// turn it takes.
    pub fn ready_multicast(&self) -> Vec<(u64, usize)> {
        self.multicast.ready()
    }

    /// Whether there are multicast addresses at which this node receives.
    pub const fn receives_multicast(&self) -> bool {
        self.multicast.is_open()
    }

    /// The descriptor that is readable when a datagram for one of the multicast addresses has
    /// arrived.
    pub fn multicast_descriptor(&self) -> BorrowedFd<'_> {
        self.multicast.as_fd()
    }

    /// Sends to this multicast address by the interface by which a receiver is reached.
    ///
    /// # Errors
    /// Those of the system: then it is sent by the interface that the kernel chooses.
    pub fn send_multicast(&mut self, address: SocketAddr, receiver: SocketAddr) -> io::Result<()> {
        let route = multicast::route(self.address, receiver);
        self.send.set_multicast_route(address, route.as_ref().ok().copied());
        route.map(drop)
    }

    /// Whether it is known by which interface this multicast address is sent to, or that the kernel
    /// chooses it.
    pub fn sends_multicast(&self, address: SocketAddr) -> bool {
        self.send.has_multicast_route(address)
    }

    /// Sends to these multicast addresses only: those of other groups are forgotten.
    pub fn keep_multicast(&mut self, is_kept: impl Fn(SocketAddr) -> bool) {
        self.send.keep_multicast_routes(is_kept);
    }
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets[0].as_fd()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    use treecast_wire::{Body, Header, MemberId, Sequence, Timestamp};

    pub fn pair(address: &str) -> (Datagrams, Datagrams) {
        let bind = || Datagrams::bind(address.parse().unwrap(), 1 << 20, 1).unwrap();
        (bind(), bind())
    }

    pub fn receive_all(socket: &mut Datagrams, lane: usize, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut all = Vec::new();
        let end = Instant::now() + Duration::from_secs(10);
        while all.len() < count && Instant::now() < end {
            all.extend(received(socket, Lane::Own(lane)));
        }
        all
    }

    /// A batch of a lane.
    pub fn received(socket: &mut Datagrams, lane: Lane) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut all = Vec::new();
        for message in 0..socket.receive(lane, RECEIVE_BATCH).unwrap() {
            let (from, datagrams) = socket.message(message).unwrap();
            all.extend(datagrams.map(|bytes| (from, bytes.to_vec())));
        }
        all
    }

    fn check_batch(address: &str) {
        let (mut one, mut other) = pair(address);
        let payload = *b"somewhere else";
        for number in 0..SEND_BATCH as u8 {
            let header = [number; HEADER_BYTES];
            if number % 2 == 0 {
                one.add(other.address(), &header, vec![number; usize::from(number)]);
            } else {
                // SAFETY: the payload outlives the call of `send` below.
                unsafe { one.add_from(other.address(), &header, payload.as_ptr(), payload.len()) };
            }
        }
        assert!(one.is_full());
        one.send().unwrap();
        assert!(!one.is_full());
        let all = receive_all(&mut other, 0, SEND_BATCH);
        assert_eq!(all.len(), SEND_BATCH);
        for (number, (from, bytes)) in all.into_iter().enumerate() {
            assert_eq!(from, one.address());
            assert_eq!(bytes[..HEADER_BYTES], [number as u8; HEADER_BYTES]);
            let expected = if number % 2 == 0 { vec![number as u8; number] } else { payload.to_vec() };
            assert_eq!(bytes[HEADER_BYTES..], expected);
        }
        assert_eq!(other.receive(Lane::Own(0), RECEIVE_BATCH).unwrap(), 0);
    }

    #[test]
    fn a_batch_arrives_over_ipv4() {
        check_batch("127.0.0.1:0");
    }

    #[test]
    fn a_batch_arrives_over_ipv6() {
        check_batch("[::1]:0");
    }

    #[test]
    fn a_closed_port_is_not_an_error() {
        let (mut one, other) = pair("127.0.0.1:0");
        let gone = other.address();
        drop(other);
        for _ in 0..3 {
            one.add(gone, &[0; HEADER_BYTES], Vec::new());
            one.send().unwrap();
            assert_eq!(one.receive(Lane::Own(0), RECEIVE_BATCH).unwrap(), 0);
        }
    }

    #[test]
    fn a_datagram_that_is_too_long_is_an_error_of_its_group_and_the_others_are_sent() {
        let (mut one, mut other) = pair("127.0.0.1:0");
        one.add(other.address(), &probe(GroupId(1)), vec![0; 70_000]);
        one.add(other.address(), &probe(GroupId(2)), Vec::new());
        assert_eq!(one.send().unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
        assert_eq!(one.too_long(), [GroupId(1)]);
        assert_eq!(receive_all(&mut other, 0, 1)[0].1, probe(GroupId(2)));
        one.add(other.address(), &probe(GroupId(2)), Vec::new());
        one.send().unwrap();
        assert_eq!(one.too_long(), []);
    }

    fn probe(group: GroupId) -> [u8; HEADER_BYTES] {
        let (sender, sequence, timestamp) = (MemberId(0), Sequence(0), Timestamp(0));
        Header { group, epoch: 1, sender, sequence, timestamp, body: Body::Probe }.write_without_code()
    }
}
