//! The parts of a node, and the records that they exchange.

use std::collections::{BTreeSet, VecDeque};

use treecast_terms::{Bytes, Picoseconds};

use super::stream::Content;
use crate::kernel::Server;

/// A host with its process, its bus and its NIC.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The process.
    pub cpu: Server,
    pub phase: Phase,
    /// The broadcast in a row that it is in, or comes to next.
    pub round: u32,
    /// When it entered the operation, and its busy time until then.
    pub called: Picoseconds,
    pub busy_before: Picoseconds,
    /// The times that it has spent in the calls that have returned, and the busy part of them.
    pub in_calls: Picoseconds,
    pub busy_in_calls: Picoseconds,
    /// Events that it has not heeded yet, in their order.
    pub deferred: Vec<GmEvent>,
    /// Messages of barriers that it has received and not needed yet: round and sender.
    pub barrier_messages: BTreeSet<(u32, usize)>,
    /// The number of tasks before it returns: messages to send or to receive, sends to post or to
    /// wait for.
    pub tasks: u32,
    /// Sends that wait for a token.
    pub unposted: VecDeque<Post>,
    pub send_tokens_used: u32,
    pub receive_tokens_used: u32,
    /// The bus, with the NIC's DMA engine to it.
    pub bus: Server,
    /// The NIC's processor.
    pub processor: Server,
    /// The tokens to be returned, each with the remaining work; those of the process with the
    /// message that was sent.
    pub returns: VecDeque<(Option<Content>, Picoseconds)>,
    /// The DMA engine to the wire, which alternates between data and control.
    pub wire: Wire,
    pub send_buffers_used: u32,
    /// Jobs that wait for a send buffer.
    pub unfetched: VecDeque<Box<Job>>,
    /// Receive buffers that have been used, and the free ones among them.
    pub slots: Vec<Slot>,
    pub free_slots: Vec<usize>,
    /// Packets blocked in the network until a buffer is free: stream, child, number.
    pub held: VecDeque<(usize, u32, u64)>,
    pub peak: Peak,
}

/// What a process does.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It computes, and heeds no events.
    #[default]
    Computing,
    /// It is in a step of a barrier, whose message it may still be posting.
    Barrier { step: u32, posting: bool },
    /// It is in the operation.
    Called,
    /// It has returned from the operation, and heeds events.
    Returned,
}

/// A DMA engine to the wire.
#[derive(Debug, Default)]
pub(super) struct Wire {
    data: VecDeque<Transmission>,
    /// Acknowledgments and credits.
    control: VecDeque<Transmission>,
    /// Whether the last transmission was data.
    data_was_last: bool,
    pub busy: bool,
}

impl Wire {
    /// Queues a transmission.
    pub fn push(&mut self, transmission: Transmission) {
        match transmission {
            Transmission::Data(_) => self.data.push_back(transmission),
            Transmission::Ack { .. } | Transmission::Credit { .. } => self.control.push_back(transmission),
        }
    }

    /// Takes the next transmission.
    pub fn pop(&mut self) -> Option<Transmission> {
        self.data_was_last = self.control.is_empty() || (!self.data.is_empty() && !self.data_was_last);
        if self.data_was_last { self.data.pop_front() } else { self.control.pop_front() }
    }
}

/// The peak use of bounded resources at a node.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Peak {
    pub send_tokens: u32,
    pub receive_tokens: u32,
    pub send_buffers: u32,
    pub receive_buffers: u32,
}

/// A packet buffer for received packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    /// The number of its users: the transfer to the host, and jobs.
    pub uses: u32,
    /// The node whose NIC sent the packet.
    pub from: usize,
}

/// A send that a process posts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Post {
    pub stream: usize,
    pub content: Content,
    pub length: Bytes,
}

/// A packet to be sent to children of a stream, one after another, out of one buffer.
#[derive(Debug)]
pub(super) struct Job {
    pub stream: usize,
    pub number: u64,
    pub children: Vec<u32>,
    /// The number of children that have been served.
    pub served: usize,
    /// The receive buffer it lies in; `None`: it is fetched from the host.
    pub slot: Option<usize>,
}

/// A transmission on the wire.
#[derive(Debug)]
pub(super) enum Transmission {
    Data(Box<Job>),
    Ack { stream: usize, child: u32 },
    Credit { to: usize },
}

/// A packet that reaches a NIC.
#[derive(Debug, Clone, Copy)]
pub(super) enum Packet {
    Data { stream: usize, child: u32, number: u64 },
    Ack { stream: usize, child: u32, below: u64 },
    Credit { from: usize, to: usize },
}

/// An event of GM, by which a NIC notifies its process.
#[derive(Debug, Clone, Copy)]
pub(super) enum GmEvent {
    /// A message has arrived from a node.
    Received { from: usize, content: Content, length: Bytes },
    /// A message has been acknowledged by all, and its token is returned.
    Sent { content: Content },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgments_and_data_alternate() {
        let mut wire = Wire::default();
        for child in 0..3 {
            wire.push(Transmission::Ack { stream: 0, child });
        }
        for number in 0..2 {
            let job = Job { stream: 1, number, children: vec![0], served: 0, slot: None };
            wire.push(Transmission::Data(Box::new(job)));
        }
        let kinds: String = std::iter::from_fn(|| wire.pop())
            .map(|transmission| if matches!(transmission, Transmission::Data(_)) { 'd' } else { 'a' })
            .collect();
        assert_eq!(kinds, "dadaa");
    }
}
