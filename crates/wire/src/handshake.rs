//! The handshake by which a member learns the session of its root, and each proves to the other
//! that it knows the token.
//!
//! Its packets have codes under keys that depend only on the token and the group's number, since
//! the member learns the session by the handshake.

use alloc::vec::Vec;
use core::net::SocketAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::address::AddressLayout;
use crate::{Malformed, SessionId};

/// A step of the handshake. The [`crate::Nonce`] is in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handshake {
    /// Root to member: there is a session; say hello. Without a nonce.
    Invite(SessionId),
    /// Member to root: asks for the session, with the member's own nonce.
    Hello,
    /// Root to member: the answer to the hello with this nonce. A member that has it knows the keys
    /// of the session.
    Welcome {
        /// The session.
        session: SessionId,
        /// The member's address, as the root sees it.
        address: SocketAddr,
    },
}

/// The payload of a welcome.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct WelcomeLayout {
    pub session: [u8; 16],
    pub address: AddressLayout,
}

mod operation {
    pub const INVITE: u32 = 1;
    pub const HELLO: u32 = 2;
    pub const WELCOME: u32 = 3;
}

impl Handshake {
    /// Reads the payload of a handshake.
    ///
    /// # Errors
    /// [`Malformed::Handshake`] for an unknown operation or a wrong length.
    pub fn read(operation: u32, payload: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed::Handshake(operation);
        let session = || payload.try_into().map(SessionId).map_err(|_| malformed);
        match operation {
            operation::INVITE => session().map(Self::Invite),
            operation::HELLO if payload.is_empty() => Ok(Self::Hello),
            operation::WELCOME => {
                let welcome = WelcomeLayout::ref_from_bytes(payload).map_err(|_| malformed)?;
                let address = welcome.address.read();
                Ok(Self::Welcome { session: SessionId(welcome.session), address })
            }
            _ => Err(malformed),
        }
    }

    /// Writes the payload.
    pub fn write(&self) -> Vec<u8> {
        match self {
            Self::Invite(session) => session.0.to_vec(),
            Self::Welcome { session, address } => {
                let address = AddressLayout::new(*address);
                WelcomeLayout { session: session.0, address }.as_bytes().to_vec()
            }
            Self::Hello => Vec::new(),
        }
    }

    /// The operation, for [`crate::Body::Handshake`].
    pub const fn operation(&self) -> u32 {
        match self {
            Self::Invite(_) => operation::INVITE,
            Self::Hello => operation::HELLO,
            Self::Welcome { .. } => operation::WELCOME,
        }
    }
}
