//! A UDP socket that takes in and sends many datagrams with one system call.
//!
//! Datagrams of one length that go to one place one after another pass the system as one, and are cut apart where they leave it
//! (`UDP_SEGMENT`); those that have come from one place are taken in as one (`UDP_GRO`). Either is done where the system can.

#![expect(unsafe_code, reason = "system calls that the standard library does not have")]

mod addresses;
pub mod options;
mod outgoing;

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

use treecast_wire::HEADER_BYTES;

pub use outgoing::Outgoing;

/// As many datagrams go through one system call.
pub const BATCH: usize = 64;

/// The longest datagram that is taken in, or several that have become one, in bytes; the rest of a longer one is cut off, and
/// its checksum tells.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// As many bytes go in datagrams that pass the system as one: 32 full ones, as many as a child is sent in its turn.
const TRAIN_BYTES_MAX: usize = 47_500;

/// A socket, and room for a batch in each direction.
pub struct Datagrams {
    socket: UdpSocket,
    address: SocketAddr,
    receive: Box<Incoming>,
    send: Outgoing,
}

/// What the kernel fills in. The headers point into the other fields, which are boxed and never move.
struct Incoming {
    bytes: Vec<u8>,
    addresses: [libc::sockaddr_storage; BATCH],
    vectors: [libc::iovec; BATCH],
    notes: [Note; BATCH],
    headers: [libc::mmsghdr; BATCH],
}

/// Room for one control message with a number in it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Note([u8; 32]);

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
        options::set_buffers(&socket, buffer_bytes);
        options::take_trains(&socket);
        options::forbid_fragments(&socket);
        let mut receive = Box::new(Incoming {
            bytes: vec![0; BATCH * DATAGRAM_BYTES_MAX],
            addresses: [zeroed(); BATCH],
            vectors: [zeroed(); BATCH],
            notes: [Note([0; 32]); BATCH],
            headers: [zeroed(); BATCH],
        });
        let Incoming { bytes, addresses, vectors, notes, headers } = &mut *receive;
        for (place, room) in bytes.chunks_mut(DATAGRAM_BYTES_MAX).enumerate() {
            vectors[place] = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            let header = &mut headers[place].msg_hdr;
            header.msg_name = (&raw mut addresses[place]).cast();
            header.msg_iov = &raw mut vectors[place];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut notes[place]).cast();
        }
        let send = Outgoing::new(address.is_ipv6(), Some(TRAIN_BYTES_MAX));
        Ok(Self { socket, address, receive, send })
    }

    /// Where the socket is bound.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes in what has come, up to a batch; says how many arrivals there are, each of one datagram or several.
    ///
    /// # Errors
    /// Those of the system but for "nothing there", which is 0.
    pub fn receive(&mut self) -> io::Result<usize> {
        for header in &mut self.receive.headers {
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_controllen = size_of::<Note>() as _;
        }
        let headers = self.receive.headers.as_mut_ptr();
        // SAFETY: every header points to an address, a vector, a note and bytes that live in the same box, and that nothing
        // else borrows while the kernel writes them.
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

    /// How many datagrams came with an arrival of those that were taken in last.
    pub fn parts(&self, arrival: usize) -> usize {
        let (bytes, each_bytes) = self.lengths(arrival);
        bytes.div_ceil(each_bytes).max(1)
    }

    /// A datagram of an arrival, and who sent it.
    pub fn received(&self, arrival: usize, part: usize) -> Option<(SocketAddr, &[u8])> {
        let from = addresses::read(&self.receive.addresses[arrival])?;
        let (bytes, each_bytes) = self.lengths(arrival);
        let first = arrival * DATAGRAM_BYTES_MAX;
        let (start, end) = (part * each_bytes, ((part + 1) * each_bytes).min(bytes));
        Some((from, self.receive.bytes.get(first + start..first + end)?))
    }

    /// How long an arrival is, and how long each of its datagrams but the last.
    fn lengths(&self, arrival: usize) -> (usize, usize) {
        let header = &self.receive.headers[arrival];
        let bytes = (header.msg_len as usize).min(DATAGRAM_BYTES_MAX);
        // SAFETY: the kernel has written the note, and how long it is; the macros of libc stay within that.
        let each_bytes = unsafe {
            let note = libc::CMSG_FIRSTHDR(&raw const header.msg_hdr);
            let is_length = !note.is_null()
                && (*note).cmsg_level == libc::SOL_UDP
                && (*note).cmsg_type == libc::UDP_GRO
                && (*note).cmsg_len as usize >= libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as usize;
            is_length.then(|| libc::CMSG_DATA(note).cast::<libc::c_int>().read_unaligned())
        };
        let each_bytes = each_bytes.and_then(|bytes| usize::try_from(bytes).ok()).filter(|&bytes| bytes > 0);
        (bytes, each_bytes.unwrap_or(DATAGRAM_BYTES_MAX))
    }

    /// Whether a batch is ready to be sent.
    pub fn is_full(&self) -> bool {
        self.send.is_full()
    }

    /// Adds a datagram whose payload is kept here.
    pub fn add(&mut self, to: SocketAddr, header: &[u8; HEADER_BYTES], payload: Vec<u8>) {
        self.send.add(to, header, payload);
    }

    /// Adds a datagram whose payload lies elsewhere.
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

    /// What tells this socket from all others of the system.
    ///
    /// # Errors
    /// Those of the system.
    pub fn cookie(&self) -> io::Result<u64> {
        options::cookie(&self.socket)
    }

    /// From now on each datagram passes the system by itself, as the kernel's packet path needs it, and without UDP's checksum
    /// where IP does without: packets have one of their own.
    pub fn keep_apart(&mut self) {
        self.send.keep_apart();
        options::take_no_trains(&self.socket);
        options::leave_checksums_out(&self.socket, true);
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
            for arrival in 0..socket.receive().unwrap() {
                let parts = (0..socket.parts(arrival)).filter_map(|part| socket.received(arrival, part));
                all.extend(parts.map(|(from, bytes)| (from, bytes.to_vec())));
            }
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

    /// Lengths as they come: full ones, a shorter one that ends a train, a longer one that begins another.
    const LENGTHS: [usize; 12] = [700, 700, 700, 20, 700, 0, 0, 1_300, 1_300, 1_299, 1_300, 5];

    fn check_trains(address: &str, makes_trains: bool) {
        let (mut one, mut other) = pair(address);
        let mut third = Datagrams::bind(address.parse().unwrap(), 1 << 20).unwrap();
        if !makes_trains {
            one.send.keep_apart();
        }
        for (number, length) in LENGTHS.into_iter().enumerate() {
            let to = if number == 8 { third.address() } else { other.address() };
            one.add(to, &[number as u8; HEADER_BYTES], vec![number as u8; length]);
        }
        assert_eq!(one.send.trains() < LENGTHS.len(), makes_trains);
        one.send().unwrap();
        let mut all = receive_all(&mut other, LENGTHS.len() - 1);
        all.insert(8, receive_all(&mut third, 1).remove(0));
        let found: Vec<_> = all.iter().map(|(_, bytes)| (bytes[0], bytes.len() - HEADER_BYTES)).collect();
        let expected: Vec<_> =
            LENGTHS.into_iter().enumerate().map(|(number, length)| (number as u8, length)).collect();
        assert_eq!(found, expected);
        assert!(all.iter().all(|(_, bytes)| bytes.iter().all(|byte| *byte == bytes[0])));
    }

    #[test]
    fn datagrams_that_pass_as_one_are_apart_again() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            check_trains(address, true);
            check_trains(address, false);
        }
    }

    #[test]
    fn a_train_that_the_system_refuses_goes_apart() {
        let (mut one, mut other) = pair("127.0.0.1:0");
        for number in 0..3 {
            one.add(other.address(), &[number; HEADER_BYTES], vec![number; 100]);
        }
        // So many segments are refused by every system.
        one.send.spoil_first_train();
        one.send().unwrap();
        assert!(!one.send.makes_trains());
        assert_eq!(receive_all(&mut other, 3).len(), 3);
        // And there is no other attempt.
        (0..3).for_each(|number| one.add(other.address(), &[number; HEADER_BYTES], Vec::new()));
        assert_eq!(one.send.trains(), 3);
        one.send().unwrap();
        assert_eq!(receive_all(&mut other, 3).len(), 3);
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
