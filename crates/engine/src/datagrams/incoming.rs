//! A batch of datagrams that are received with one system call.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

use super::{ControlMessages, RECEIVE_BATCH, addresses, zeroed};

/// The longest message that is received, a datagram or several that GRO has merged, in bytes. A
/// longer one is truncated, which its checksum detects.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// A batch of datagrams that are received with one system call.
pub struct Incoming {
    batch: Box<Batch>,
}

/// The memory that the kernel writes. The headers point into the other fields, which are boxed and
/// never move.
struct Batch {
    bytes: Vec<u8>,
    addresses: [libc::sockaddr_storage; RECEIVE_BATCH],
    vectors: [libc::iovec; RECEIVE_BATCH],
    control_messages: [ControlMessages; RECEIVE_BATCH],
    headers: [libc::mmsghdr; RECEIVE_BATCH],
}

// SAFETY: its pointers point into its own boxes.
unsafe impl Send for Incoming {}

impl Incoming {
    pub fn new() -> Self {
        let mut batch = Box::new(Batch {
            bytes: vec![0; RECEIVE_BATCH * DATAGRAM_BYTES_MAX],
            addresses: [zeroed(); RECEIVE_BATCH],
            vectors: [zeroed(); RECEIVE_BATCH],
            control_messages: [ControlMessages([0; 64]); RECEIVE_BATCH],
            headers: [zeroed(); RECEIVE_BATCH],
        });
        let Batch { bytes, addresses, vectors, control_messages, headers } = &mut *batch;
        for (place, buffer) in bytes.chunks_mut(DATAGRAM_BYTES_MAX).enumerate() {
            vectors[place] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut headers[place].msg_hdr;
            header.msg_name = (&raw mut addresses[place]).cast();
            header.msg_iov = &raw mut vectors[place];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut control_messages[place]).cast();
        }
        Self { batch }
    }

    /// Receives a batch of at most `messages_max` messages, in place of the last one; returns their
    /// number.
    ///
    /// # Errors
    /// Those of the system, except for an empty socket: then the number is 0.
    pub fn receive(&mut self, socket: &UdpSocket, messages_max: usize) -> io::Result<usize> {
        let messages_max = messages_max.min(RECEIVE_BATCH);
        let headers = &mut self.batch.headers[..messages_max];
        for header in &mut *headers {
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_controllen = size_of::<ControlMessages>() as _;
        }
        // SAFETY: every header points to an address, a vector, a control message and bytes in the
        // same box, which nothing else borrows while the kernel writes them.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                messages_max as libc::c_uint,
                // Flags and lengths have different types in glibc and musl.
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        if count >= 0 { Ok(count as usize) } else { nothing_there(io::Error::last_os_error()) }
    }

    /// A message of the last batch: its sender, and its datagrams. None: its sender is of an
    /// unknown family.
    pub fn message(&self, message: usize) -> Option<(SocketAddr, impl Iterator<Item = &[u8]>)> {
        let from = addresses::read(&self.batch.addresses[message])?;
        let (bytes, segment_bytes) = self.lengths(message);
        let first = message * DATAGRAM_BYTES_MAX;
        let bytes = &self.batch.bytes[first..first + bytes];
        // A datagram may be empty.
        let empty = bytes.is_empty().then_some(bytes);
        Some((from, empty.into_iter().chain(bytes.chunks(segment_bytes))))
    }

    /// The length of a message, and of each of its segments but the last.
    fn lengths(&self, message: usize) -> (usize, usize) {
        let header = &self.batch.headers[message];
        let bytes = (header.msg_len as usize).min(DATAGRAM_BYTES_MAX);
        // SAFETY: the kernel has written the control message and its length; the macros of libc
        // stay within that.
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
}

fn nothing_there(error: io::Error) -> io::Result<usize> {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED) => Ok(0),
        _ => Err(error),
    }
}
