//! A client's connection to a daemon, and a request with its answer on it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use thiserror::Error;
use treecast_engine::settings::error::NodeError;

use crate::listening::SocketName;
use crate::messages::{ClientMessage, DaemonMessage, MESSAGE_BYTES_MAX};
use crate::seqpacket::{self, Received};
use crate::users::PeerCredentials;

/// The timeout of a request to the daemon.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The socket's send buffer: room for the longest message. The system has a bound of its own.
const BUFFER_BYTES: usize = 2 * MESSAGE_BYTES_MAX;

/// Why a process cannot be a client.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error("{name}: {source}")]
    Unreachable { name: SocketName, source: io::Error },
    #[error("{name}: the process that listens there belongs to {peer}")]
    Foreign { name: SocketName, peer: PeerCredentials },
    /// It has ended, or has not answered within the timeout.
    #[error("{name}: process {process}, which listens there, is unusable: {source}")]
    Silent { name: SocketName, process: i32, source: io::Error },
    #[error("{0}")]
    Rejected(String),
}

impl From<ConnectError> for NodeError {
    fn from(error: ConnectError) -> Self {
        Self::Daemon(error.to_string())
    }
}

/// The answer of a daemon, with its descriptors.
pub(super) type WithDescriptors = (DaemonMessage, Vec<OwnedFd>);

/// Connects to a socket; the timeout holds for this and for what follows on the connection.
pub(super) fn open(name: &SocketName, timeout: Duration) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_timeout(&socket, timeout)?;
    let _ = sockopt::set_socket_send_buffer_size(&socket, BUFFER_BYTES);
    match connect(&socket, &name.address()?) {
        // Its backlog is full.
        Err(Errno::AGAIN) => Err(io::Error::other(format!("it has accepted no connection for {timeout:?}"))),
        connected => Ok(connected.map(|()| socket)?),
    }
}

pub(super) fn set_timeout(socket: &OwnedFd, timeout: Duration) -> io::Result<()> {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(timeout))?;
    Ok(sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(timeout))?)
}

/// Sends a request, and waits for its answer.
pub(super) fn request(socket: &OwnedFd, message: &ClientMessage) -> io::Result<WithDescriptors> {
    // A daemon that rejects the client sends the reason and closes; sending fails then, but the
    // reason can be read.
    let sent = seqpacket::send(socket, &serde_json::to_vec(message)?, &[], true);
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut descriptors = Vec::new();
    let mut received = seqpacket::receive(socket.as_fd(), &mut bytes, Some(&mut descriptors), true);
    if received.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset) {
        received = seqpacket::receive(socket.as_fd(), &mut bytes, Some(&mut descriptors), true);
    }
    if received.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        let timeout = sockopt::socket_timeout(socket, sockopt::Timeout::Recv)?.unwrap_or_default();
        return Err(io::Error::other(format!("it has not answered for {timeout:?}")));
    }
    match received? {
        Received::Message(length) => Ok((serde_json::from_slice(&bytes[..length])?, descriptors)),
        Received::TooLong => Err(io::Error::other("its answer is too long")),
        Received::End => match sent {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Err(io::Error::other("it has ended")),
        },
    }
}
