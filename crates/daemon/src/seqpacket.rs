//! Packets with descriptors on a Unix socket (`SOCK_SEQPACKET`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The most descriptors of a packet.
pub const DESCRIPTORS_MAX: usize = 4;

/// The result of receiving.
#[derive(Debug)]
pub enum Received {
    /// A packet of this many bytes.
    Message(usize),
    /// The packet is longer than the buffer.
    TooLong,
    /// The peer has closed the connection.
    End,
}

/// Sends a packet. A closed connection is an error, and raises no signal.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    may_block: bool,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | if may_block { SendFlags::empty() } else { SendFlags::DONTWAIT };
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent.map(|_| ())?),
        }
    }
}

/// Receives a packet. Its descriptors are appended to `descriptors`, or closed without it.
pub fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    descriptors: Option<&mut Vec<OwnedFd>>,
    may_block: bool,
) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let space = if descriptors.is_some() { &mut space[..] } else { &mut [] };
    let mut ancillary = RecvAncillaryBuffer::new(space);
    let flags = RecvFlags::CMSG_CLOEXEC | if may_block { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    if let Some(descriptors) = descriptors {
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = message {
                descriptors.extend(sent);
            }
        }
    }
    Ok(if received.flags.contains(ReturnFlags::TRUNC) {
        Received::TooLong
    } else if received.bytes == 0 {
        // Neither side sends empty packets.
        Received::End
    } else {
        Received::Message(received.bytes)
    })
}
