//! A UDP socket that receives and sends many datagrams with one system call (`recvmmsg`, `sendmmsg`).
//!
//! Where the kernel supports it, consecutive datagrams of one length to one address are sent as one GSO batch (`UDP_SEGMENT`), and
//! datagrams from one address are received as one (`UDP_GRO`).

#![expect(unsafe_code, reason = "system calls that the standard library does not have")]

mod addresses;
pub mod options;
mod outgoing;

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

use treecast_wire::{GroupId, HEADER_BYTES};

pub use outgoing::Outgoing;

/// The most datagrams of one system call.
pub const BATCH: usize = 64;

/// The longest message that is received, a datagram or several that GRO has merged, in bytes. A longer one is truncated, which its
/// checksum detects.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// The most bytes of a GSO batch: 32 full datagrams, as many as one child is sent in its turn.
const GSO_BYTES_MAX: usize = 47_500;

/// A socket, with a batch in each direction.
pub struct Datagrams {
    socket: UdpSocket,
    address: SocketAddr,
    receive: Box<Incoming>,
    send: Outgoing,
}

/// What the kernel writes. The headers point into the other fields, which are boxed and never move.
struct Incoming {
    bytes: Vec<u8>,
    addresses: [libc::sockaddr_storage; BATCH],
    vectors: [libc::iovec; BATCH],
    control_messages: [ControlMessage; BATCH],
    headers: [libc::mmsghdr; BATCH],
}

/// A buffer for one control message with a number.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlMessage([u8; 32]);

// SAFETY: its pointers point into its own boxes, or are used within one call of `send`, whose batch one thread makes that borrows it
// mutably all the time.
unsafe impl Send for Datagrams {}

impl std::fmt::Debug for Datagrams {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Datagrams").field("address", &self.address).finish_non_exhaustive()
    }
}

/// A zeroed C structure.
fn zeroed<T>() -> T {
    // SAFETY: only used for libc's `sockaddr_storage`, `iovec` and `mmsghdr`, for which all zeroes are valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

impl Datagrams {
    /// Binds a socket; its buffers are as large as the system allows, up to `buffer_bytes`.
    ///
    /// # Errors
    /// Those of binding.
    pub fn bind(address: SocketAddr, buffer_bytes: usize) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        options::set_buffers(&socket, buffer_bytes);
        options::enable_gro(&socket);
        options::forbid_fragments(&socket);
        let mut receive = Box::new(Incoming {
            bytes: vec![0; BATCH * DATAGRAM_BYTES_MAX],
            addresses: [zeroed(); BATCH],
            vectors: [zeroed(); BATCH],
            control_messages: [ControlMessage([0; 32]); BATCH],
            headers: [zeroed(); BATCH],
        });
        let Incoming { bytes, addresses, vectors, control_messages, headers } = &mut *receive;
        for (place, room) in bytes.chunks_mut(DATAGRAM_BYTES_MAX).enumerate() {
            vectors[place] = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            let header = &mut headers[place].msg_hdr;
            header.msg_name = (&raw mut addresses[place]).cast();
            header.msg_iov = &raw mut vectors[place];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut control_messages[place]).cast();
        }
        let send = Outgoing::new(address.is_ipv6(), Some(GSO_BYTES_MAX));
        Ok(Self { socket, address, receive, send })
    }

    /// The bound address.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Receives a batch; returns the number of messages, each of one datagram or of several segments.
    ///
    /// # Errors
    /// Those of the system, except for an empty socket: then the number is 0.
    pub fn receive(&mut self) -> io::Result<usize> {
        for header in &mut self.receive.headers {
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_controllen = size_of::<ControlMessage>() as _;
        }
        let headers = self.receive.headers.as_mut_ptr();
        // SAFETY: every header points to an address, a vector, a control message and bytes in the same box, which nothing else borrows
        // while the kernel writes them.
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

    /// The number of datagrams in a message of the last batch.
    pub fn segments(&self, message: usize) -> usize {
        let (bytes, segment_bytes) = self.lengths(message);
        bytes.div_ceil(segment_bytes).max(1)
    }

    /// A datagram of a message, and its sender.
    pub fn segment(&self, message: usize, segment: usize) -> Option<(SocketAddr, &[u8])> {
        let from = addresses::read(&self.receive.addresses[message])?;
        let (bytes, segment_bytes) = self.lengths(message);
        let first = message * DATAGRAM_BYTES_MAX;
        let start = segment * segment_bytes;
        let end = ((segment + 1) * segment_bytes).min(bytes);
        Some((from, self.receive.bytes.get(first + start..first + end)?))
    }

    /// The length of a message, and of each of its segments but the last.
    fn lengths(&self, message: usize) -> (usize, usize) {
        let header = &self.receive.headers[message];
        let bytes = (header.msg_len as usize).min(DATAGRAM_BYTES_MAX);
        // SAFETY: the kernel has written the control message and its length; the macros of libc stay within that.
        let segment_bytes = unsafe {
            let control = libc::CMSG_FIRSTHDR(&raw const header.msg_hdr);
            let is_length = !control.is_null()
                && (*control).cmsg_level == libc::SOL_UDP
                && (*control).cmsg_type == libc::UDP_GRO
                && (*control).cmsg_len as usize >= libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as usize;
            is_length.then(|| libc::CMSG_DATA(control).cast::<libc::c_int>().read_unaligned())
        };
        let segment_bytes =
            segment_bytes.and_then(|bytes| usize::try_from(bytes).ok()).filter(|&bytes| bytes > 0);
        (bytes, segment_bytes.unwrap_or(DATAGRAM_BYTES_MAX))
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
        self.send.send(&self.socket)
    }

    /// As [`Outgoing::too_long`].
    pub fn too_long(&self) -> &[GroupId] {
        self.send.too_long()
    }

    /// The cookie of the socket, which is unique in the system.
    ///
    /// # Errors
    /// Those of the system.
    pub fn cookie(&self) -> io::Result<u64> {
        options::cookie(&self.socket)
    }

    /// Disables GSO and GRO, which the kernel's packet path does not support on this kernel, and omits UDP checksums over IPv4:
    /// packets have a checksum of their own.
    pub fn disable_offloads(&mut self) {
        self.send.disable_gso();
        options::disable_gro(&self.socket);
        options::omit_checksums(&self.socket, true);
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    use treecast_wire::{Body, Header, MemberId, Sequence, Timestamp};

    pub fn pair(address: &str) -> (Datagrams, Datagrams) {
        let bind = || Datagrams::bind(address.parse().unwrap(), 1 << 20).unwrap();
        (bind(), bind())
    }

    pub fn receive_all(socket: &mut Datagrams, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut all = Vec::new();
        let end = Instant::now() + Duration::from_secs(10);
        while all.len() < count && Instant::now() < end {
            for message in 0..socket.receive().unwrap() {
                let segments =
                    (0..socket.segments(message)).filter_map(|segment| socket.segment(message, segment));
                all.extend(segments.map(|(from, bytes)| (from, bytes.to_vec())));
            }
        }
        all
    }

    fn check_batch(address: &str) {
        let (mut one, mut other) = pair(address);
        let payload = *b"somewhere else";
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
    fn a_closed_port_is_not_an_error() {
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
    fn a_datagram_that_is_too_long_is_an_error_of_its_group_and_the_others_are_sent() {
        let (mut one, mut other) = pair("127.0.0.1:0");
        one.add(other.address(), &probe(GroupId(1)), vec![0; 70_000]);
        one.add(other.address(), &probe(GroupId(2)), Vec::new());
        assert_eq!(one.send().unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
        assert_eq!(one.too_long(), [GroupId(1)]);
        assert_eq!(receive_all(&mut other, 1)[0].1, probe(GroupId(2)));
        one.add(other.address(), &probe(GroupId(2)), Vec::new());
        one.send().unwrap();
        assert_eq!(one.too_long(), []);
    }

    fn probe(group: GroupId) -> [u8; HEADER_BYTES] {
        let (sender, sequence, timestamp) = (MemberId(0), Sequence(0), Timestamp(0));
        Header { group, epoch: 1, sender, sequence, timestamp, body: Body::Probe }.write_without_code()
    }
}
