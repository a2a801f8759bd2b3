//! Messages with descriptors on a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// As many descriptors come with a message at most.
pub const DESCRIPTORS_MAX: usize = 3;

/// What has come.
#[derive(Debug)]
pub enum Received {
    /// So many bytes.
    Message(usize),
    /// A message that is longer than there is room for.
    TooLong,
    /// Nothing comes any more.
    End,
}

/// Sends a message. Whoever is gone does not raise a signal.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    may_wait: bool,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | if may_wait { SendFlags::empty() } else { SendFlags::DONTWAIT };
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent.map(|_| ())?),
        }
    }
}

/// Takes in a message; descriptors that come with it are put into `descriptors`, or thrown away without it.
pub fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    descriptors: Option<&mut Vec<OwnedFd>>,
    may_wait: bool,
) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let space = if descriptors.is_some() { &mut space[..] } else { &mut [] };
    let mut ancillary = RecvAncillaryBuffer::new(space);
    let flags = RecvFlags::CMSG_CLOEXEC | if may_wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
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
        // An empty message is none.
        Received::End
    } else {
        Received::Message(received.bytes)
    })
}
