//! What was done to a node, written down: the same can be done to another one.

use std::net::SocketAddr;

use crate::{Input, Nanoseconds, Settings};

/// All that was done to a node, in order.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Where the node is.
    pub address: SocketAddr,
    /// What it is set to.
    pub settings: Settings,
    /// What was done, and when; after each, the node was asked what to do.
    pub steps: Vec<(Nanoseconds, Step)>,
}

/// Something that was done to a node.
#[derive(Debug, Clone)]
pub enum Step {
    /// A datagram came.
    Datagram {
        /// Who sent it.
        from: SocketAddr,
        /// What is in it.
        bytes: Vec<u8>,
    },
    /// Anything else.
    Request {
        /// What was asked for.
        input: Input<'static>,
        /// Of a packet that is queued, its payload.
        payload: Vec<u8>,
    },
}

impl Trace {
    /// Nothing was done yet.
    pub const fn new(address: SocketAddr, settings: Settings) -> Self {
        Self { address, settings, steps: Vec::new() }
    }

    /// A datagram comes.
    pub fn datagram(&mut self, now: Nanoseconds, from: SocketAddr, bytes: &[u8]) {
        self.steps.push((now, Step::Datagram { from, bytes: bytes.to_vec() }));
    }

    /// Something is asked for, with a payload if a packet is queued.
    pub fn request(&mut self, now: Nanoseconds, input: &Input<'static>, payload: &[u8]) {
        self.steps.push((now, Step::Request { input: input.clone(), payload: payload.to_vec() }));
    }
}
