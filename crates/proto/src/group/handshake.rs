//! A member's side of the handshake with its root: hello, welcome, join.
//!
//! The root answers a hello with the session and the hello's nonce, under keys that depend on the
//! token. So the member knows that the answer is of a root that has the token, and that it is not
//! an old one; and by the join, which is under the keys of the session, the root knows the same of
//! the member.

use std::net::SocketAddr;

use treecast_wire::{Handshake, MacKey, Nonce, SessionId};

use crate::Nanoseconds;

/// The member's side of the handshake.
#[derive(Debug, Clone)]
pub(super) struct MemberHandshake {
    /// Nonces are the codes of 0, 1 and so on under this key.
    seed: MacKey,
    drawn: u64,
    /// This member's nonce.
    nonce: Nonce,
    /// This member's address, as the root has told it.
    address: Option<SocketAddr>,
    /// When the next hello is to be sent; none, if there is nothing to ask for.
    hello_at: Option<Nanoseconds>,
    /// Whether the group still has no session.
    is_open: bool,
    /// The nonce by which the member finds out whether its root has indeed started another session.
    challenge: Option<Nonce>,
}

/// The meaning of the root's step for the member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandshakeStep {
    /// This is the session.
    Begins(SessionId),
    /// The root has started another session, so that this one has ended.
    RootRestarted,
    /// It answers a hello that this member has not sent, or not now: a replay.
    Stale,
}

/// The interval at which requests to the root, and reports, are repeated until it answers.
pub(super) const REQUEST_INTERVAL: Nanoseconds = Nanoseconds::from_ms(20);

/// The shortest time between an invitation and a further hello.
const HELLO_INTERVAL_MIN: Nanoseconds = Nanoseconds::from_ms(2);

impl MemberHandshake {
    pub fn new(now: Nanoseconds, seed: [u64; 2]) -> Self {
        let mut handshake = Self {
            seed: MacKey(seed),
            drawn: 0,
            nonce: Nonce(0),
            address: None,
            hello_at: None,
            is_open: true,
            challenge: None,
        };
        handshake.restart(now);
        handshake
    }

    /// Whether the group still has no session.
    pub const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Begins again, for another session.
    pub fn restart(&mut self, now: Nanoseconds) {
        self.nonce = self.draw();
        self.challenge = None;
        self.is_open = true;
        self.hello_at = Some(now);
    }

    fn draw(&mut self) -> Nonce {
        let nonce = Nonce(self.seed.mac(&self.drawn.to_be_bytes()));
        self.drawn += 1;
        nonce
    }

    /// This member's address, as the root has told it.
    pub const fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// This member's nonce.
    pub const fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Takes a step of the root's; `session` is the one that this member is in.
    pub fn handle(
        &mut self,
        now: Nanoseconds,
        session: Option<SessionId>,
        step: Handshake,
        nonce: Nonce,
    ) -> Option<HandshakeStep> {
        match (step, session) {
            (Handshake::Invite(_), None) => self.say_hello_soon(now),
            (Handshake::Invite(other), Some(own)) if other != own => {
                // It may be an old invitation.
                if self.challenge.is_none() {
                    self.challenge = Some(self.draw());
                }
                self.say_hello_soon(now);
            }
            (Handshake::Welcome { session, address }, None) if nonce == self.nonce => {
                self.address = Some(address);
                self.is_open = false;
                self.hello_at = None;
                return Some(HandshakeStep::Begins(session));
            }
            (Handshake::Welcome { session, .. }, Some(own)) if Some(nonce) == self.challenge => {
                self.challenge = None;
                self.hello_at = None;
                return (session != own).then_some(HandshakeStep::RootRestarted);
            }
            (Handshake::Welcome { .. }, _) if nonce != self.nonce => return Some(HandshakeStep::Stale),
            _ => {}
        }
        None
    }

    fn say_hello_soon(&mut self, now: Nanoseconds) {
        let soon = now + HELLO_INTERVAL_MIN;
        self.hello_at = Some(self.hello_at.map_or(now, |at| at.min(soon)));
    }

    /// The nonce of a hello that is to be sent now.
    pub fn poll_hello(&mut self, now: Nanoseconds) -> Option<Nonce> {
        if self.hello_at.is_none_or(|at| now < at) {
            return None;
        }
        self.hello_at = Some(now + REQUEST_INTERVAL);
        Some(self.challenge.unwrap_or(self.nonce))
    }

    /// When the next hello is to be sent.
    pub const fn timeout(&self) -> Option<Nanoseconds> {
        self.hello_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_welcome_to_the_own_nonce_begins_the_session_and_others_are_stale() {
        let mut handshake = MemberHandshake::new(Nanoseconds::ZERO, [1, 2]);
        let session = SessionId([7; 16]);
        let welcome = || Handshake::Welcome { session, address: SocketAddr::from(([10, 0, 0, 2], 7_000)) };
        let own = handshake.nonce();
        let other = Nonce(own.0 ^ 1);
        let mut handle = |session, nonce| handshake.handle(Nanoseconds::ZERO, session, welcome(), nonce);
        assert_eq!(handle(None, other), Some(HandshakeStep::Stale));
        assert_eq!(handle(None, own), Some(HandshakeStep::Begins(session)));
        assert_eq!(handle(Some(session), own), None, "the root has repeated it");
        assert_eq!(handle(Some(session), other), Some(HandshakeStep::Stale));
    }
}
