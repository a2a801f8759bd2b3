//! A recording of a node's inputs, to be replayed with another node.

use std::net::SocketAddr;

use crate::{Input, Nanoseconds, Settings};

/// The inputs of a node, in order.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The node's address.
    pub address: SocketAddr,
    /// The node's settings.
    pub settings: Settings,
    /// The inputs with their times; all outputs were polled after each.
    pub steps: Vec<(Nanoseconds, Step)>,
}

/// An input of a node.
#[derive(Debug, Clone)]
pub enum Step {
    /// A datagram was received.
    Datagram {
        /// Its source address.
        from: SocketAddr,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Any other input.
    Request {
        /// The input.
        input: Input<'static>,
        /// The payload of a packet that is queued; empty otherwise.
        payload: Vec<u8>,
    },
}

impl Trace {
    /// An empty trace.
    pub const fn new(address: SocketAddr, settings: Settings) -> Self {
        Self { address, settings, steps: Vec::new() }
    }

    /// Records a datagram.
    pub fn datagram(&mut self, now: Nanoseconds, from: SocketAddr, bytes: &[u8]) {
        self.steps.push((now, Step::Datagram { from, bytes: bytes.to_vec() }));
    }

    /// Records any other input, with the payload if a packet is queued.
    pub fn request(&mut self, now: Nanoseconds, input: &Input<'static>, payload: &[u8]) {
        self.steps.push((now, Step::Request { input: input.clone(), payload: payload.to_vec() }));
    }
}
