//! Writes packets to a child's stream, from their slots or from buffers of calls.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use smallvec::SmallVec;
use treecast_proto::{GroupId, MemberId, Nanoseconds, Sequence};
use treecast_wire::HEADER_BYTES;

use super::losses::LossMeter;
use super::options;

/// The packets of a child that are not written yet.
#[derive(Debug)]
pub struct Outgoing {
    pub group: GroupId,
    pub child: MemberId,
    queue: VecDeque<Queued>,
    /// How much of the first packet is written, in bytes.
    written: usize,
    bytes: usize,
    is_blocked: bool,
    /// What was written since [`Outgoing::loses_packets`] was asked, in bytes.
    sent: usize,
    losses: LossMeter,
}

/// A packet that is to be written.
#[derive(Debug, Clone, Copy)]
pub struct Queued {
    pub header: [u8; HEADER_BYTES],
    pub packet: Sequence,
    pub slot: u32,
    /// The length of its payload in bytes.
    pub length: usize,
}

impl Queued {
    const fn bytes(&self) -> usize {
        HEADER_BYTES + self.length
    }
}

/// How far the packets are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// There was nothing to write.
    Nothing,
    All,
    /// The socket takes no more for the moment.
    Blocked,
    /// The stream cannot go on.
    Failed,
}

/// The most packets that are written with one system call, which takes two parts for each.
const PACKETS_MAX: usize = 32;

/// Headers and payloads.
type Parts = SmallVec<[libc::iovec; 2 * PACKETS_MAX]>;

/// Writes parts to a socket; returns how many bytes it has taken.
///
/// # Safety
/// All parts may be read.
unsafe fn send(socket: BorrowedFd<'_>, parts: &mut Parts) -> Result<usize, ErrorKind> {
    // SAFETY: all zeroes are a valid message, without address and control messages.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: the message and its parts are valid during the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error().kind())
}

impl Outgoing {
    pub fn new(group: GroupId, child: MemberId) -> Self {
        let (queue, losses) = (VecDeque::new(), LossMeter::default());
        Self { group, child, queue, written: 0, bytes: 0, is_blocked: false, sent: 0, losses }
    }

    /// Whether TCP's loss rate on this socket is so high that datagrams are faster.
    pub fn loses_packets(&mut self, now: Nanoseconds, socket: BorrowedFd<'_>) -> bool {
        let sent = std::mem::take(&mut self.sent);
        self.losses.count(now, sent)
            && options::info(&socket)
                .is_some_and(|info| self.losses.learn(now, info.tcpi_total_retrans, info.tcpi_snd_mss))
    }

    /// Whether everything is written.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// The first packet that is not written as a whole.
    pub fn first(&self) -> Option<Sequence> {
        self.queue.front().map(|queued| queued.packet)
    }

    /// Whether the socket took no more at the last attempt.
    pub const fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Appends a packet; returns the number of bytes that are not written.
    pub fn push(&mut self, queued: Queued) -> usize {
        self.bytes += queued.bytes();
        self.queue.push_back(queued);
        self.bytes
    }

    /// Writes as much as the socket takes.
    ///
    /// # Safety
    /// As for [`super::Streams::write`].
    pub unsafe fn write(
        &mut self,
        socket: BorrowedFd<'_>,
        address: impl Fn(Sequence, u32) -> Option<*const u8>,
    ) -> Written {
        if self.queue.is_empty() {
            return Written::Nothing;
        }
        self.is_blocked = false;
        while !self.queue.is_empty() {
            let Some((mut parts, bytes)) = self.parts(&address) else { return Written::Failed };
            // SAFETY: the parts are memory of `queue`, which is not changed meanwhile, and slots,
            // of which the caller says that they may be read. The kernel reads; no reference is
            // made to memory that another process may write.
            let sent = unsafe { send(socket, &mut parts) };
            match sent {
                Ok(sent) => {
                    self.advance(sent);
                    self.is_blocked = sent < bytes;
                }
                Err(ErrorKind::Interrupted) => {}
                Err(ErrorKind::WouldBlock) => self.is_blocked = true,
                Err(_) => return Written::Failed,
            }
            if self.is_blocked {
                return Written::Blocked;
            }
        }
        Written::All
    }

    /// The data to write next, and its length in bytes; none if a packet has left its slot.
    fn parts(&self, address: impl Fn(Sequence, u32) -> Option<*const u8>) -> Option<(Parts, usize)> {
        let mut parts = Parts::new();
        let mut skipped = self.written;
        let mut bytes = 0;
        for queued in self.queue.iter().take(PACKETS_MAX) {
            // A packet leaves its slot only when all children have it: this one is not a child any
            // more.
            let payload = address(queued.packet, queued.slot)?;
            for (first, length) in [(queued.header.as_ptr(), HEADER_BYTES), (payload, queued.length)] {
                let before = skipped.min(length);
                skipped -= before;
                if before < length {
                    bytes += length - before;
                    let iov_base = first.wrapping_add(before).cast_mut().cast();
                    parts.push(libc::iovec { iov_base, iov_len: length - before });
                }
            }
        }
        Some((parts, bytes))
    }

    /// So many bytes are written.
    fn advance(&mut self, sent: usize) {
        self.bytes -= sent;
        self.sent += sent;
        self.written += sent;
        while let Some(first) = self.queue.front().filter(|first| first.bytes() <= self.written) {
            self.written -= first.bytes();
            self.queue.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn queued(number: u8, length: usize) -> Queued {
        Queued {
            header: [number; HEADER_BYTES],
            packet: Sequence(number.into()),
            slot: number.into(),
            length,
        }
    }

    #[test]
    fn packets_are_written_whole_through_a_socket_that_takes_parts() {
        let payloads: Vec<Vec<u8>> =
            (0..200).map(|number| vec![number, 100]).map(|pair| pair.repeat(5_000)).collect();
        let (one, mut other) = UnixStream::pair().unwrap();
        one.set_nonblocking(true).unwrap();
        other.set_nonblocking(true).unwrap();
        let mut outgoing = Outgoing::new(GroupId(1), MemberId(2));
        let mut expected = Vec::new();
        for (number, payload) in (0_u8..).zip(&payloads) {
            outgoing.push(queued(number, payload.len()));
            expected.extend([&[number; HEADER_BYTES][..], payload].concat());
        }
        let mut received = Vec::new();
        let mut has_blocked = false;
        let address = |_, slot: u32| Some(payloads[slot as usize].as_ptr());
        loop {
            // SAFETY: the payloads outlive the call, and nobody writes them.
            let written = unsafe { outgoing.write(one.as_fd(), address) };
            has_blocked |= written == Written::Blocked;
            let mut bytes = [0; 7_001];
            while let Ok(count @ 1..) = other.read(&mut bytes) {
                received.extend_from_slice(&bytes[..count]);
            }
            if written == Written::All {
                break;
            }
        }
        assert!(has_blocked && outgoing.is_idle());
        assert!(received == expected);
    }

    #[test]
    fn a_packet_that_has_left_its_slot_ends_the_stream() {
        let (one, _other) = UnixStream::pair().unwrap();
        let mut outgoing = Outgoing::new(GroupId(1), MemberId(2));
        outgoing.push(queued(1, 10));
        // SAFETY: the message has no address.
        assert_eq!(unsafe { outgoing.write(one.as_fd(), |_, _| None) }, Written::Failed);
    }

    #[test]
    fn a_socket_whose_other_end_is_closed_ends_the_stream() {
        let (one, other) = UnixStream::pair().unwrap();
        drop(other);
        let mut outgoing = Outgoing::new(GroupId(1), MemberId(2));
        outgoing.push(queued(1, 10));
        let payload = [0; 10];
        // SAFETY: the payload outlives the call, and nobody writes it.
        assert_eq!(unsafe { outgoing.write(one.as_fd(), |_, _| Some(payload.as_ptr())) }, Written::Failed);
    }
}
