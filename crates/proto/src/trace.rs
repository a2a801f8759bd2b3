//! A recording of a node's inputs, to be replayed with another node.

use std::net::{IpAddr, SocketAddr};

use treecast_wire::{Challenge, GroupId, HEADER_BYTES};

use crate::{HandOff, HandOffPacket, Input, Nanoseconds, Protocol, Settings};

/// The inputs of a node, in order.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The node's address.
    pub address: SocketAddr,
    /// The node's settings.
    pub settings: Settings,
    /// The inputs and polls with their times. All local outputs were polled after each input
    /// ([`Protocol::poll_local`]), and others where a step says so.
    pub steps: Vec<(Nanoseconds, Step)>,
}

/// An input of a node, with copies of what it borrowed.
#[derive(Debug, Clone)]
pub enum Step {
    /// A datagram was received.
    Datagram {
        /// Its source address.
        from: SocketAddr,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A packet was received on the stream to the parent.
    Record {
        /// The address of the parent's node.
        from: SocketAddr,
        /// Its header.
        header: Box<[u8; HEADER_BYTES]>,
        /// The bytes behind the header.
        payload: Vec<u8>,
    },
    /// A host opened a stream, and sent its first packet.
    Attach {
        /// The user's number of the stream.
        stream: u64,
        /// The host's address.
        from: IpAddr,
        /// The challenge that was sent to it.
        challenge: Challenge,
        /// The packet.
        bytes: Vec<u8>,
    },
    /// A fast path gave a group back.
    Reclaimed {
        /// The group.
        group: GroupId,
        /// Its state.
        state: Box<HandOff>,
        /// The packets that were new in slots.
        packets: Vec<HandOffPacket>,
    },
    /// Any other input.
    Request {
        /// The input.
        input: Input<'static>,
        /// The payload of a packet that is queued; empty otherwise.
        payload: Vec<u8>,
    },
    /// No input: outputs were polled so often ([`Protocol::poll`]).
    Polled(u32),
}

impl Step {
    /// The input; `None` for [`Step::Polled`].
    pub fn input(&self) -> Option<Input<'_>> {
        Some(match self {
            Self::Datagram { from, bytes } => Input::Datagram { from: *from, bytes },
            Self::Record { from, header, payload } => Input::Record { from: *from, header, payload },
            Self::Attach { stream, from, challenge, bytes } => {
                Input::Attach { stream: *stream, from: *from, challenge: *challenge, bytes }
            }
            Self::Reclaimed { group, state, packets } => Input::Reclaimed { group: *group, state, packets },
            Self::Request { input, .. } => input.clone(),
            Self::Polled(_) => return None,
        })
    }
}

impl Trace {
    /// An empty trace.
    pub const fn new(address: SocketAddr, settings: Settings) -> Self {
        Self { address, settings, steps: Vec::new() }
    }

    /// Records a step.
    pub fn record(&mut self, now: Nanoseconds, step: Step) {
        self.steps.push((now, step));
    }

    /// Records that an output is polled ([`Protocol::poll`]).
    pub fn record_poll(&mut self, now: Nanoseconds) {
        match self.steps.last_mut() {
            Some((at, Step::Polled(count))) if *at == now => *count += 1,
            _ => self.steps.push((now, Step::Polled(1))),
        }
    }

    /// Replays all steps with a new node, which reaches the state of the recorded one. Its outputs
    /// are dropped.
    pub fn replay(&self) -> Protocol {
        let mut node = Protocol::new(self.settings.clone());
        for (now, step) in &self.steps {
            match step {
                Step::Polled(count) => (0..*count).for_each(|_| drop(node.poll(*now))),
                step => {
                    if let Some(input) = step.input() {
                        let _ = node.handle(*now, input);
                    }
                    while node.poll_local().is_some() {}
                }
            }
        }
        node
    }
}
