//! The TCP port of a node, at which its children connect. Its number is that of the UDP port.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The port of a node.
#[derive(Debug)]
pub enum Port {
    /// This socket keeps it from others; from the system too, which might give it to a connection.
    Reserved(OwnedFd),
    Listening(TcpListener),
}

impl Port {
    /// Binds a socket to the address, also where connections of an earlier node have not quite
    /// ended (RFC 9293, TIME-WAIT).
    ///
    /// # Errors
    /// Those of bind(2): `EADDRINUSE`, if another process has the port.
    pub fn reserve(address: SocketAddr) -> Result<Self, Errno> {
        let socket = open(address)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)?;
        Ok(Self::Reserved(socket))
    }

    pub const fn is_listening(&self) -> bool {
        matches!(self, Self::Listening(_))
    }

    /// # Errors
    /// Those of listen(2).
    pub fn listen(self) -> Result<Self, Errno> {
        match self {
            Self::Reserved(socket) => {
                listen(&socket, BACKLOG)?;
                Ok(Self::Listening(socket.into()))
            }
            Self::Listening(_) => Ok(self),
        }
    }

    /// The next host that has connected.
    pub fn accept(&self) -> Option<(TcpStream, SocketAddr)> {
        match self {
            Self::Reserved(_) => None,
            Self::Listening(listener) => listener.accept().ok(),
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Reserved(socket) => socket.as_fd(),
            Self::Listening(listener) => listener.as_fd(),
        }
    }
}

/// A non-blocking socket for this address, or for a peer there.
pub fn open(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
}
