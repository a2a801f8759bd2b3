//! The parts of a node, and what they hand on to one another.

use std::collections::VecDeque;

use treecast_terms::{Bytes, Picoseconds};

use super::stream::Content;
use crate::kernel::Server;

/// A host with its process, its bus and its NIC.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The process.
    pub cpu: Server,
    /// When it enters the operation, and when it returned from it, with the busy time until then.
    pub enters: Picoseconds,
    pub returned: Option<(Picoseconds, Picoseconds)>,
    /// What it has to do before it returns: messages to send or to receive, sends to post or to wait for.
    pub tasks: u32,
    /// Sends that wait for a token.
    pub unposted: VecDeque<Post>,
    pub send_tokens_used: u32,
    pub receive_tokens_used: u32,
    /// The bus, with the NIC's DMA engine to it.
    pub bus: Server,
    /// The NIC's processor.
    pub processor: Server,
    /// The tokens that it has to give back, each with the work that is left; those of the process with what was sent.
    pub returns: VecDeque<(Option<Content>, Picoseconds)>,
    /// What its DMA engine to the wire has to send, data and what is not data in turns.
    pub wire: Wire,
    pub send_buffers_used: u32,
    /// Jobs that wait for a send buffer.
    pub unfetched: VecDeque<Box<Job>>,
    /// Receive buffers that have been used, and which of them are free.
    pub slots: Vec<Slot>,
    pub free_slots: Vec<usize>,
    /// Packets that the network holds up until there is a buffer for them: stream, child, number.
    pub held: VecDeque<(usize, u32, u64)>,
    pub peak: Peak,
}

/// A DMA engine to the wire.
#[derive(Debug, Default)]
pub(super) struct Wire {
    data: VecDeque<Transmission>,
    /// Acknowledgments and credits.
    control: VecDeque<Transmission>,
    /// Whether data has left last.
    data_was_last: bool,
    pub busy: bool,
}

impl Wire {
    /// Queues something.
    pub fn push(&mut self, transmission: Transmission) {
        match transmission {
            Transmission::Data(_) => self.data.push_back(transmission),
            Transmission::Ack { .. } | Transmission::Credit { .. } => self.control.push_back(transmission),
        }
    }

    /// Takes what leaves next.
    pub fn pop(&mut self) -> Option<Transmission> {
        self.data_was_last = self.control.is_empty() || (!self.data.is_empty() && !self.data_was_last);
        if self.data_was_last { self.data.pop_front() } else { self.control.pop_front() }
    }
}

/// The most that a node has used of what is bounded.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Peak {
    pub send_tokens: u32,
    pub receive_tokens: u32,
    pub send_buffers: u32,
    pub receive_buffers: u32,
}

/// A packet buffer for what has been received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    /// Who still needs it: the transfer to the host, and jobs.
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
    /// How many of them have been served.
    pub served: usize,
    /// The receive buffer it lies in; `None`: it is fetched from the host.
    pub slot: Option<usize>,
}

/// Something for the wire.
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

/// What a NIC tells its process.
#[derive(Debug, Clone, Copy)]
pub(super) enum Notice {
    /// A message has arrived from a node.
    Received { from: usize, content: Content, length: Bytes },
    /// A message has been acknowledged by all, and its token comes back.
    Sent { content: Content },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgments_and_data_leave_in_turns() {
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
