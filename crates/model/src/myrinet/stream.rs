//! Packets in order from one NIC to one or more others: numbers, records, acknowledgments.

use std::collections::VecDeque;

use treecast_terms::{Bytes, Picoseconds};

/// The purpose of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Content {
    /// A message of a group.
    Data { group: u32, message: u32 },
    /// The last leaf's reply to the root that it has the last message.
    Answer { group: u32 },
    /// Rendezvous: request to send.
    Ready { group: u32, message: u32 },
    /// Rendezvous: clear to send.
    Clear { group: u32, message: u32 },
    /// To the central manager: request for a credit.
    CreditRequest { group: u32, message: u32 },
    /// From the central manager: grant of a credit.
    CreditGrant { group: u32, message: u32 },
    /// To the central manager: return of a credit by a receiver.
    CreditReturn { group: u32, message: u32 },
    /// A step of the barrier before a broadcast.
    Barrier { round: u32 },
    /// A unicast beside the multicasts.
    Unicast,
}

/// A message in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueuedMessage {
    pub content: Content,
    pub length: Bytes,
    /// The number of its first packet, and one more than that of its last.
    pub first: u64,
    pub end: u64,
}

/// One receiver of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Child {
    pub node: usize,
    /// At the sender: everything below this number has been acknowledged.
    pub acked: u64,
    /// At the receiver: the number that it accepts next.
    pub expected: u64,
    /// At the receiver: everything below this number is in host memory.
    pub copied: u64,
    /// At the receiver: whether an acknowledgment is queued. When it is sent, it acknowledges all
    /// packets copied by then.
    pub acknowledging: bool,
}

/// A packet that has not been acknowledged by all.
#[derive(Debug, Clone, Copy)]
struct Record {
    /// Children that have not acknowledged it.
    missing: u32,
    /// Jobs that are still sending it.
    jobs: u32,
    /// When it has left last.
    left: Picoseconds,
}

/// The queue of a group at one NIC, or the connection from one NIC to another, which has one child.
/// Both ends of it.
#[derive(Debug)]
pub(super) struct Stream {
    pub from: usize,
    /// The group whose queue it is.
    pub group: Option<u32>,
    /// Whether it forwards the packets of another stream as they arrive; otherwise it sends from
    /// the host.
    pub forwards: bool,
    pub children: Vec<Child>,
    messages: Vec<QueuedMessage>,
    /// The number of messages that all children have acknowledged.
    completed: usize,
    /// Packets below `base` are acknowledged by all children, those below `base + records.len()`
    /// are sent.
    base: u64,
    records: VecDeque<Record>,
    /// Whether its timer runs.
    pub timed: bool,
    /// The number of timeouts since the last acknowledgment.
    pub timeouts: u32,
}

impl Stream {
    pub fn new(from: usize, group: Option<u32>, forwards: bool, children: &[usize]) -> Self {
        let child = |&node: &usize| Child { node, acked: 0, expected: 0, copied: 0, acknowledging: false };
        Self {
            from,
            group,
            forwards,
            children: children.iter().map(child).collect(),
            messages: Vec::new(),
            completed: 0,
            base: 0,
            records: VecDeque::new(),
            timed: false,
            timeouts: 0,
        }
    }

    /// Queues a message of `packets` packets.
    pub fn push(&mut self, content: Content, length: Bytes, packets: u64) {
        let first = self.end();
        self.messages.push(QueuedMessage { content, length, first, end: first + packets });
    }

    /// One more than the number of the last packet that is queued.
    pub fn end(&self) -> u64 {
        self.messages.last().map_or(0, |queued_message| queued_message.end)
    }

    /// The number of the packet that is sent next.
    pub fn next(&self) -> u64 {
        self.base + self.records.len() as u64
    }

    /// The number of packets that are sent and not acknowledged by all children.
    pub fn outstanding(&self) -> usize {
        self.records.len()
    }

    /// The message that a packet belongs to.
    pub fn queued_message(&self, number: u64) -> &QueuedMessage {
        &self.messages[self.messages.partition_point(|queued_message| queued_message.end <= number)]
    }

    /// Records the next packet as sent by `jobs` jobs; returns its number.
    pub fn record(&mut self, jobs: u32) -> u64 {
        let number = self.next();
        let missing = self.children.len() as u32;
        self.records.push_back(Record { missing, jobs, left: Picoseconds::ZERO });
        number
    }

    /// A job of a packet is done: its last copy has left.
    pub fn left(&mut self, number: u64, now: Picoseconds) {
        // A packet that all children have acknowledged has no record.
        if let Some(record) = number.checked_sub(self.base).and_then(|at| self.records.get_mut(at as usize)) {
            record.jobs -= 1;
            record.left = now;
        }
    }

    /// The number of messages that a child completes by acknowledging everything below a number.
    pub fn ends(&self, child: usize, below: u64) -> usize {
        let ended = |below| self.messages.partition_point(|queued_message| queued_message.end <= below);
        ended(below).saturating_sub(ended(self.children[child].acked))
    }

    /// A child acknowledges everything below a number. Returns the messages that all children have
    /// acknowledged by this.
    pub fn acknowledge(&mut self, child: usize, below: u64) -> Vec<Content> {
        let acked = self.children[child].acked;
        if below <= acked {
            return Vec::new();
        }
        for number in acked..below {
            self.records[(number - self.base) as usize].missing -= 1;
        }
        self.children[child].acked = below;
        self.timeouts = 0;
        while self.records.front().is_some_and(|record| record.missing == 0) {
            self.records.pop_front();
            self.base += 1;
        }
        let done =
            self.messages[self.completed..].partition_point(|queued_message| queued_message.end <= self.base);
        let contents = self.messages[self.completed..self.completed + done].iter();
        self.completed += done;
        contents.map(|queued_message| queued_message.content).collect()
    }

    /// When the oldest unacknowledged packet left; `None` while it is being sent.
    pub fn oldest(&self) -> Option<Picoseconds> {
        self.records.front().filter(|record| record.jobs == 0).map(|record| record.left)
    }

    /// The packets to retransmit, each with its children: all that are not acknowledged and not
    /// being sent.
    pub fn overdue(&mut self) -> Vec<(u64, Vec<u32>)> {
        let mut overdue = Vec::new();
        for (number, record) in (self.base..).zip(&mut self.records) {
            if record.jobs == 0 {
                record.jobs = 1;
                let behind = |(index, child): (u32, &Child)| (child.acked <= number).then_some(index);
                overdue.push((number, (0..).zip(&self.children).filter_map(behind).collect()));
            }
        }
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Stream {
        let mut stream = Stream::new(0, Some(0), false, &[1, 2, 3]);
        stream.push(Content::Data { group: 0, message: 0 }, Bytes(8), 2);
        stream.push(Content::Data { group: 0, message: 1 }, Bytes(4), 1);
        for number in 0..3 {
            assert_eq!(stream.record(1), number);
            stream.left(number, Picoseconds(number));
        }
        stream
    }

    #[test]
    fn a_message_is_done_when_every_child_has_acknowledged_its_last_packet() {
        let mut stream = stream();
        assert_eq!(stream.acknowledge(0, 3), []);
        assert_eq!(stream.acknowledge(1, 2), []);
        assert_eq!((stream.ends(2, 1), stream.ends(2, 2), stream.ends(0, 3)), (0, 1, 0));
        assert_eq!(stream.acknowledge(2, 2), [Content::Data { group: 0, message: 0 }]);
        assert_eq!(stream.acknowledge(2, 1), []);
        assert_eq!(stream.acknowledge(2, 3), []);
        assert_eq!(stream.acknowledge(1, 3), [Content::Data { group: 0, message: 1 }]);
        assert_eq!((stream.outstanding(), stream.next(), stream.end()), (0, 3, 3));
    }

    #[test]
    fn only_children_that_did_not_acknowledge_get_retransmissions() {
        let mut stream = stream();
        stream.acknowledge(0, 3);
        stream.acknowledge(1, 1);
        assert_eq!(stream.overdue(), [(0, vec![2]), (1, vec![1, 2]), (2, vec![1, 2])]);
        // A packet that is being sent is not retransmitted.
        assert_eq!(stream.overdue(), []);
        assert_eq!(stream.oldest(), None);
    }
}
