//! Hosts that have connected, and have to say who they are before they get anything.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use treecast_proto::{Challenge, Nanoseconds};
use treecast_wire::HEADER_BYTES;

use super::port::Port;
use super::{Connection, Ready, Role, Streams};
use crate::random;

/// A host that has connected, and has to answer the challenge.
#[derive(Debug)]
pub(super) struct Guest {
    challenge: Challenge,
    pub until: Nanoseconds,
    packet: [u8; HEADER_BYTES],
    received: usize,
}

/// The most connections that wait for the first packet of their host.
pub const GUESTS_MAX: usize = 64;

/// How long a connection waits for the first packet of its host.
pub const GUEST_TIMEOUT: Nanoseconds = Nanoseconds::from_ms(2_000);

/// The most connections that are accepted at a time.
const ACCEPTED_MAX: usize = 16;

impl Streams {
    pub(super) fn guest(&self, stream: u64) -> Option<&Guest> {
        match &self.connections.get(&stream)?.role {
            Role::Guest(guest) => Some(guest),
            _ => None,
        }
    }

    /// Reads a guest's first packet; returns it when it is whole.
    pub(super) fn hear_guest(&mut self, stream: u64) -> Option<Ready> {
        let Connection { socket, role: Role::Guest(guest), .. } = self.connections.get_mut(&stream)? else {
            return None;
        };
        let rest = &mut guest.packet[guest.received..];
        match recv(&*socket, rest, RecvFlags::empty()) {
            Ok((received @ 1.., _)) => guest.received += received,
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.close(stream),
        }
        let Some(Connection { peer, role: Role::Guest(guest), .. }) = self.connections.get(&stream) else {
            return None;
        };
        let &Guest { challenge, packet, received, .. } = guest;
        let from = peer.ip().to_canonical();
        (received == HEADER_BYTES).then_some(Ready::FirstPacket { stream, from, challenge, packet })
    }

    pub(super) fn accept(&mut self, now: Nanoseconds, is_awaited: impl Fn(IpAddr) -> bool) {
        for _ in 0..ACCEPTED_MAX {
            let Some((socket, peer)) = self.port.as_ref().and_then(Port::accept) else { return };
            if !is_awaited(peer.ip().to_canonical()) {
                tracing::debug!(%peer, "no stream is awaited from this host");
                continue;
            }
            if let Err(error) = self.welcome(now, socket, peer) {
                tracing::debug!(%peer, %error, "cannot take a stream");
            }
        }
    }

    /// Sends the challenge to a host that has connected.
    fn welcome(&mut self, now: Nanoseconds, socket: TcpStream, peer: SocketAddr) -> io::Result<()> {
        if self.guests.len() >= GUESTS_MAX {
            return Err(io::Error::other("too many hosts have not said who they are"));
        }
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let challenge = Challenge(random::bytes()?);
        // An empty socket takes so few bytes.
        send(&socket, &challenge.0, SendFlags::NOSIGNAL)?;
        let guest = Guest { challenge, until: now + GUEST_TIMEOUT, packet: [0; HEADER_BYTES], received: 0 };
        let stream = self.add(socket.into(), peer, Role::Guest(guest), epoll::EventFlags::IN)?;
        self.guests.insert(stream);
        Ok(())
    }

    pub(super) fn expire_guests(&mut self, now: Nanoseconds) {
        let is_late = |stream: &&u64| self.guest(**stream).is_some_and(|guest| guest.until <= now);
        let late: Vec<u64> = self.guests.iter().filter(is_late).copied().collect();
        for stream in late {
            self.close(stream);
        }
    }
}
