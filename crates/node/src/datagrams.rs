//! A UDP socket that takes in and sends many datagrams with one system call.

#![expect(unsafe_code, reason = "system calls that the standard library does not have")]

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

use treecast_wire::HEADER_BYTES;

/// As many datagrams go through one system call.
pub const BATCH: usize = 64;

/// The longest datagram that is taken in, in bytes; the rest of a longer one is cut off, and its checksum tells.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// A socket, and room for a batch in each direction.
pub struct Datagrams {
    socket: UdpSocket,
    address: SocketAddr,
    receive: Box<Incoming>,
    send: Box<Outgoing>,
}

/// What the kernel fills in. The headers point into the other fields, which are boxed and never move.
struct Incoming {
    bytes: Vec<u8>,
    addresses: [libc::sockaddr_storage; BATCH],
    vectors: [libc::iovec; BATCH],
    headers: [libc::mmsghdr; BATCH],
}

/// What the kernel reads. Each datagram is a header and a payload, which stays where it is.
struct Outgoing {
    count: usize,
    lengths: [usize; BATCH],
    header_bytes: [[u8; HEADER_BYTES]; BATCH],
    payload_bytes: [Vec<u8>; BATCH],
    addresses: [libc::sockaddr_storage; BATCH],
    vectors: [[libc::iovec; 2]; BATCH],
    headers: [libc::mmsghdr; BATCH],
}

// SAFETY: its pointers lead into its own boxes, or are used within one call of `send`, whose batch is made by one thread that
// borrows it mutably all the while.
unsafe impl Send for Datagrams {}

impl std::fmt::Debug for Datagrams {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Datagrams").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Zero is a valid value of the C structures used here: no pointer in them has to be set.
fn zeroed<T>() -> T {
    // SAFETY: only used for libc's `sockaddr_storage`, `iovec` and `mmsghdr`, for which all zeroes are valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

impl Datagrams {
    /// Opens a socket at an address; its buffers are made as large as the system allows, up to `buffer_bytes`.
    ///
    /// # Errors
    /// Those of binding.
    pub fn bind(address: SocketAddr, buffer_bytes: usize) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        set_buffers(&socket, buffer_bytes);
        let mut receive = Box::new(Incoming {
            bytes: vec![0; BATCH * DATAGRAM_BYTES_MAX],
            addresses: [zeroed(); BATCH],
            vectors: [zeroed(); BATCH],
            headers: [zeroed(); BATCH],
        });
        let Incoming { bytes, addresses, vectors, headers } = &mut *receive;
        for (place, room) in bytes.chunks_mut(DATAGRAM_BYTES_MAX).enumerate() {
            vectors[place] = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            let header = &mut headers[place].msg_hdr;
            header.msg_name = (&raw mut addresses[place]).cast();
            header.msg_iov = &raw mut vectors[place];
            header.msg_iovlen = 1;
        }
        let send = Box::new(Outgoing {
            count: 0,
            lengths: [0; BATCH],
            header_bytes: [[0; HEADER_BYTES]; BATCH],
            payload_bytes: [const { Vec::new() }; BATCH],
            addresses: [zeroed(); BATCH],
            vectors: [[zeroed(); 2]; BATCH],
            headers: [zeroed(); BATCH],
        });
        Ok(Self { socket, address, receive, send })
    }

    /// Where the socket is bound.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes in what has come, up to a batch; says how many datagrams.
    ///
    /// # Errors
    /// Those of the system but for "nothing there", which is 0.
    pub fn receive(&mut self) -> io::Result<usize> {
        for header in &mut self.receive.headers {
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        }
        let headers = self.receive.headers.as_mut_ptr();
        // SAFETY: every header points to an address, a vector and bytes that live in the same box, and that nothing else
        // borrows while the kernel writes them.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                headers,
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        if count >= 0 { Ok(count as usize) } else { nothing_there(io::Error::last_os_error()) }
    }

    /// A datagram of those that were taken in last, and who sent it.
    pub fn received(&self, place: usize) -> Option<(SocketAddr, &[u8])> {
        let from = read_address(&self.receive.addresses[place])?;
        let first = place * DATAGRAM_BYTES_MAX;
        let length = (self.receive.headers[place].msg_len as usize).min(DATAGRAM_BYTES_MAX);
        Some((from, &self.receive.bytes[first..first + length]))
    }

    /// Whether a batch is ready to be sent.
    pub fn is_full(&self) -> bool {
        self.send.count == BATCH
    }

    /// Adds a datagram whose payload is kept here.
    pub fn add(&mut self, to: SocketAddr, header: &[u8; HEADER_BYTES], payload: Vec<u8>) {
        let place = self.send.count;
        self.send.payload_bytes[place] = payload;
        let payload = &self.send.payload_bytes[place];
        let (address, length) = (payload.as_ptr(), payload.len());
        // SAFETY: the payload is kept in the batch, which is not touched before it has been sent.
        unsafe { self.add_from(to, header, address, length) };
    }

    /// Adds a datagram whose payload lies elsewhere.
    ///
    /// # Safety
    /// The payload stays there and is not written before [`Datagrams::send`] has sent the batch.
    pub unsafe fn add_from(
        &mut self,
        to: SocketAddr,
        header: &[u8; HEADER_BYTES],
        payload: *const u8,
        length: usize,
    ) {
        let is_v6 = self.address.is_ipv6();
        let send = &mut *self.send;
        let place = send.count;
        send.count += 1;
        send.header_bytes[place] = *header;
        send.vectors[place] = [
            libc::iovec { iov_base: send.header_bytes[place].as_mut_ptr().cast(), iov_len: HEADER_BYTES },
            libc::iovec { iov_base: payload.cast_mut().cast(), iov_len: length },
        ];
        let name_length = write_address(&mut send.addresses[place], to, is_v6);
        let message = &mut send.headers[place].msg_hdr;
        message.msg_name = (&raw mut send.addresses[place]).cast();
        message.msg_namelen = name_length;
        message.msg_iov = send.vectors[place].as_mut_ptr();
        message.msg_iovlen = 1 + usize::from(length > 0);
        send.lengths[place] = HEADER_BYTES + length;
    }

    /// Sends the batch. Datagrams that the system does not take are lost, as any may be: the protocol repeats them. The answer
    /// is the first error that is not a full buffer.
    ///
    /// # Errors
    /// That of the first datagram that can never be sent: too long for the network, an address out of reach.
    pub fn send(&mut self) -> io::Result<()> {
        let count = std::mem::take(&mut self.send.count);
        let mut sent = 0;
        let mut outcome = Ok(());
        while sent < count {
            let headers = &raw mut self.send.headers[sent];
            let left = (count - sent) as libc::c_uint;
            // SAFETY: the headers from `sent` to before `count` have been filled in by `add_from`; what they point to lives in
            // the same box, or stays where it is as its caller has promised.
            let done = unsafe { libc::sendmmsg(self.socket.as_raw_fd(), headers, left, libc::MSG_DONTWAIT) };
            if done > 0 {
                sent += done as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS) => break,
                // A neighbour's port may be closed (a message of ICMP): that is its silence, and the next one may be there.
                Some(libc::ECONNREFUSED) => sent += 1,
                _ => {
                    sent += 1;
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn nothing_there(error: io::Error) -> io::Result<usize> {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED) => Ok(0),
        _ => Err(error),
    }
}

/// As large as allowed: beyond the system's bound only where we may.
fn set_buffers(socket: &UdpSocket, bytes: usize) {
    use rustix::net::sockopt;
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
    }
    let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
}

fn read_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is what the kernel has written; the storage is large and aligned enough.
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

fn write_address(storage: &mut libc::sockaddr_storage, address: SocketAddr, is_v6: bool) -> libc::socklen_t {
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
            // A socket of IPv6 reaches an address of IPv4 by its mapped form (RFC 4291, section 2.5.5.2).
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn pair(address: &str) -> (Datagrams, Datagrams) {
        let bind = || Datagrams::bind(address.parse().unwrap(), 1 << 20).unwrap();
        (bind(), bind())
    }

    fn receive_all(socket: &mut Datagrams, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut all = Vec::new();
        let end = Instant::now() + Duration::from_secs(10);
        while all.len() < count && Instant::now() < end {
            let count = socket.receive().unwrap();
            all.extend(
                (0..count)
                    .filter_map(|place| socket.received(place))
                    .map(|(from, bytes)| (from, bytes.to_vec())),
            );
        }
        all
    }

    fn check_batch(address: &str) {
        let (mut one, mut other) = pair(address);
        let payload = *b"from elsewhere";
        for number in 0..BATCH as u8 {
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
        let all = receive_all(&mut other, BATCH);
        assert_eq!(all.len(), BATCH);
        for (number, (from, bytes)) in all.into_iter().enumerate() {
            assert_eq!(from, one.address());
            assert_eq!(bytes[..HEADER_BYTES], [number as u8; HEADER_BYTES]);
            let expected = if number % 2 == 0 { vec![number as u8; number] } else { payload.to_vec() };
            assert_eq!(bytes[HEADER_BYTES..], expected);
        }
        assert_eq!(other.receive().unwrap(), 0);
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
    fn a_closed_port_is_no_error() {
        let (mut one, other) = pair("127.0.0.1:0");
        let gone = other.address();
        drop(other);
        for _ in 0..3 {
            one.add(gone, &[0; HEADER_BYTES], Vec::new());
            one.send().unwrap();
            assert_eq!(one.receive().unwrap(), 0);
        }
    }

    #[test]
    fn a_datagram_that_is_too_long_is_an_error_and_others_go_on() {
        let (mut one, mut other) = pair("127.0.0.1:0");
        one.add(other.address(), &[1; HEADER_BYTES], vec![0; 70_000]);
        one.add(other.address(), &[2; HEADER_BYTES], Vec::new());
        assert_eq!(one.send().unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
        assert_eq!(receive_all(&mut other, 1)[0].1, [2; HEADER_BYTES]);
    }
}
