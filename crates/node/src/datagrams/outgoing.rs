//! A batch of datagrams that are sent with one system call.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

use treecast_wire::HEADER_BYTES;

use super::{BATCH, Note, addresses, zeroed};

/// A batch of datagrams that are sent with one system call.
pub struct Outgoing {
    is_v6: bool,
    /// As many bytes pass the system as one at most; none: each datagram by itself.
    train_bytes_max: Option<usize>,
    /// Whether all go to where the socket is connected to: then the system need not find the way for each.
    is_connected: bool,
    batch: Box<Batch>,
}

/// What the kernel reads. Each datagram is a header and a payload, which stays where it is; the vectors of datagrams that pass
/// as one lie side by side.
struct Batch {
    count: usize,
    header_bytes: [[u8; HEADER_BYTES]; BATCH],
    payload_bytes: [Vec<u8>; BATCH],
    vectors: [[libc::iovec; 2]; BATCH],
    trains: usize,
    made: [Train; BATCH],
    addresses: [libc::sockaddr_storage; BATCH],
    notes: [Note; BATCH],
    headers: [libc::mmsghdr; BATCH],
}

/// As many datagrams pass the system as one at most: as many as every Linux has it (`UDP_MAX_SEGMENTS`), and as the kernel's packet
/// path takes.
const TRAIN_DATAGRAMS_MAX: usize = 64;

/// Datagrams that pass the system as one: all as long as the first, but for the last, which may be shorter.
#[derive(Debug, Clone, Copy)]
struct Train {
    to: SocketAddr,
    first: usize,
    count: usize,
    each_bytes: usize,
    bytes: usize,
}

impl Train {
    /// Whether one more fits behind the others.
    fn takes(&self, to: SocketAddr, bytes: usize, bytes_max: usize) -> bool {
        self.to == to
            && self.count < TRAIN_DATAGRAMS_MAX
            && self.bytes == self.count * self.each_bytes
            && bytes <= self.each_bytes
            && self.bytes + bytes <= bytes_max
    }
}

// SAFETY: its pointers lead into its own box, or are used within one call of `send`, whose batch is made by one thread that
// borrows it mutably all the while.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// Nothing to be sent yet, from a socket of that family; so many bytes of datagrams may pass the system as one.
    pub fn new(is_v6: bool, train_bytes_max: Option<usize>) -> Self {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let batch = Box::new(Batch {
            count: 0,
            header_bytes: [[0; HEADER_BYTES]; BATCH],
            payload_bytes: [const { Vec::new() }; BATCH],
            vectors: [[zeroed(); 2]; BATCH],
            trains: 0,
            made: [Train { to: nowhere, first: 0, count: 0, each_bytes: 0, bytes: 0 }; BATCH],
            addresses: [zeroed(); BATCH],
            notes: [Note([0; 32]); BATCH],
            headers: [zeroed(); BATCH],
        });
        Self { is_v6, train_bytes_max, is_connected: false, batch }
    }

    /// All datagrams go to where the socket is connected to.
    pub fn connected(self) -> Self {
        Self { is_connected: true, ..self }
    }

    /// From now on each datagram passes the system by itself.
    pub const fn keep_apart(&mut self) {
        self.train_bytes_max = None;
    }

    /// Whether a batch is ready to be sent.
    pub fn is_full(&self) -> bool {
        self.batch.count == BATCH
    }

    /// Adds a datagram whose payload is kept here.
    pub fn add(&mut self, to: SocketAddr, header: &[u8; HEADER_BYTES], payload: Vec<u8>) {
        let place = self.batch.count;
        self.batch.payload_bytes[place] = payload;
        let payload = &self.batch.payload_bytes[place];
        let (address, length) = (payload.as_ptr(), payload.len());
        // SAFETY: the payload is kept in the batch, which is not touched before it has been sent.
        unsafe { self.add_from(to, header, address, length) };
    }

    /// Adds a datagram whose payload lies elsewhere.
    ///
    /// # Safety
    /// The payload stays there and is not written before [`Outgoing::send`] has sent the batch.
    pub unsafe fn add_from(
        &mut self,
        to: SocketAddr,
        header: &[u8; HEADER_BYTES],
        payload: *const u8,
        length: usize,
    ) {
        let train_bytes_max = self.train_bytes_max.unwrap_or_default();
        let send = &mut *self.batch;
        let place = send.count;
        send.count += 1;
        send.header_bytes[place] = *header;
        send.vectors[place] = [
            libc::iovec { iov_base: send.header_bytes[place].as_mut_ptr().cast(), iov_len: HEADER_BYTES },
            libc::iovec { iov_base: payload.cast_mut().cast(), iov_len: length },
        ];
        let bytes = HEADER_BYTES + length;
        match send.made[..send.trains].last_mut() {
            Some(train) if train.takes(to, bytes, train_bytes_max) => {
                train.count += 1;
                train.bytes += bytes;
            }
            _ => {
                send.made[send.trains] = Train { to, first: place, count: 1, each_bytes: bytes, bytes };
                send.trains += 1;
            }
        }
    }

    /// Makes ready what the kernel reads of each train.
    fn make_headers(&mut self) {
        let (is_v6, is_connected) = (self.is_v6, self.is_connected);
        let send = &mut *self.batch;
        for place in 0..send.trains {
            let Train { to, first, count, each_bytes, .. } = send.made[place];
            let name_length = addresses::write(&mut send.addresses[place], to, is_v6);
            let message = &mut send.headers[place].msg_hdr;
            message.msg_name = (&raw mut send.addresses[place]).cast();
            message.msg_namelen = name_length;
            if is_connected {
                (message.msg_name, message.msg_namelen) = (ptr::null_mut(), 0);
            }
            message.msg_iov = send.vectors[first..first + count].as_mut_ptr().cast();
            message.msg_iovlen = (2 * count) as _;
            (message.msg_control, message.msg_controllen) = (ptr::null_mut(), 0);
            if count > 1 {
                message.msg_control = (&raw mut send.notes[place]).cast();
                message.msg_controllen = size_of::<Note>() as _;
                // SAFETY: a note is aligned as control messages are, and has room for one with a number of two bytes.
                unsafe {
                    let note = libc::CMSG_FIRSTHDR(message);
                    (*note).cmsg_level = libc::SOL_UDP;
                    (*note).cmsg_type = libc::UDP_SEGMENT;
                    (*note).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
                    libc::CMSG_DATA(note).cast::<u16>().write_unaligned(each_bytes as u16);
                    message.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as _;
                }
            }
        }
    }

    /// Sends the batch. Datagrams that the system does not take are lost, as any may be: the protocol repeats them. The answer
    /// is the first error that is not a full buffer.
    ///
    /// # Errors
    /// That of the first datagram that can never be sent: too long for the network, an address out of reach.
    pub fn send(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.make_headers();
        let count = std::mem::take(&mut self.batch.trains);
        self.batch.count = 0;
        let mut sent = 0;
        let mut outcome = Ok(());
        while sent < count {
            let headers = &raw mut self.batch.headers[sent];
            let left = (count - sent) as libc::c_uint;
            // SAFETY: the headers from `sent` to before `count` have been made ready; what they point to lives in the same
            // box, or stays where it is as the caller of `add_from` has promised.
            let done = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers, left, libc::MSG_DONTWAIT) };
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
                // Not every system, device and tunnel cuts datagrams apart.
                _ if self.batch.made[sent].count > 1 => {
                    self.train_bytes_max = None;
                    outcome = outcome.and(self.send_apart(socket, sent));
                    sent += 1;
                }
                _ => {
                    sent += 1;
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }

    /// Sends the datagrams of a train one by one.
    fn send_apart(&mut self, socket: &UdpSocket, train: usize) -> io::Result<()> {
        let Train { first, count, .. } = self.batch.made[train];
        let mut outcome = Ok(());
        for place in first..first + count {
            let mut message = self.batch.headers[train].msg_hdr;
            message.msg_iov = self.batch.vectors[place].as_mut_ptr();
            message.msg_iovlen = 2;
            (message.msg_control, message.msg_controllen) = (ptr::null_mut(), 0);
            // SAFETY: as in `send`; this header leads to one of the same datagrams.
            let done = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
            if done < 0 {
                let error = io::Error::last_os_error();
                let is_loss =
                    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ECONNREFUSED));
                outcome = outcome.and(if is_loss { Ok(()) } else { Err(error) });
            }
        }
        outcome
    }
}

#[cfg(test)]
impl Outgoing {
    pub fn trains(&self) -> usize {
        self.batch.trains
    }

    pub const fn makes_trains(&self) -> bool {
        self.train_bytes_max.is_some()
    }

    /// So many segments are refused by every system.
    pub fn spoil_first_train(&mut self) {
        self.batch.made[0].each_bytes = 1;
    }
}
