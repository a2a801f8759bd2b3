//! Packets in order from one NIC to one or more others: numbers, records, acknowledgments.

use std::collections::VecDeque;

use treecast_terms::{Bytes, Picoseconds};

/// What a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Content {
    /// A message of a group.
    Data { group: u32, message: u32 },
    /// The last leaf's word to the root that it has the last message.
    Answer { group: u32 },
    /// Rendezvous: here is a message for you.
    Ready { group: u32, message: u32 },
    /// Rendezvous: send it.
    Clear { group: u32, message: u32 },
    /// To the central manager: may I send?
    CreditRequest { group: u32, message: u32 },
    /// From the central manager: send.
    CreditGrant { group: u32, message: u32 },
    /// To the central manager: I have taken it.
    CreditReturn { group: u32, message: u32 },
}

/// A message in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parcel {
    pub content: Content,
    pub length: Bytes,
    /// Number of its first packet, and of the one behind its last.
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
    /// At the receiver: whether an acknowledgment is on its way to the wire. It will tell of all that is copied by then.
    pub acknowledging: bool,
}

/// A packet that has not been acknowledged by all.
#[derive(Debug, Clone, Copy)]
struct Record {
    /// Children that have not acknowledged it.
    missing: u32,
    /// Jobs that send it and are not done.
    jobs: u32,
    /// When it has left last.
    left: Picoseconds,
}

/// The queue of a group at one NIC, or the connection from one NIC to another, which has one child. Both ends of it.
#[derive(Debug)]
pub(super) struct Stream {
    pub from: usize,
    /// The group whose queue it is.
    pub group: Option<u32>,
    /// Whether it takes its packets from another stream as they arrive, and not from the host.
    pub relays: bool,
    pub children: Vec<Child>,
    parcels: Vec<Parcel>,
    /// How many parcels everybody has acknowledged.
    completed: usize,
    /// Numbers: acknowledged by all below `base`, sent below `base + records.len()`.
    base: u64,
    records: VecDeque<Record>,
    /// Whether its timer runs.
    pub timed: bool,
    /// How often the timer has run out since somebody acknowledged.
    pub silent: u32,
}

impl Stream {
    pub fn new(from: usize, group: Option<u32>, relays: bool, children: &[usize]) -> Self {
        let child = |&node: &usize| Child { node, acked: 0, expected: 0, copied: 0, acknowledging: false };
        Self {
            from,
            group,
            relays,
            children: children.iter().map(child).collect(),
            parcels: Vec::new(),
            completed: 0,
            base: 0,
            records: VecDeque::new(),
            timed: false,
            silent: 0,
        }
    }

    /// Queues a message of so many packets.
    pub fn push(&mut self, content: Content, length: Bytes, packets: u64) {
        let first = self.end();
        self.parcels.push(Parcel { content, length, first, end: first + packets });
    }

    /// The number behind the last packet that is queued.
    pub fn end(&self) -> u64 {
        self.parcels.last().map_or(0, |parcel| parcel.end)
    }

    /// The number of the packet that is sent next.
    pub fn next(&self) -> u64 {
        self.base + self.records.len() as u64
    }

    /// How many packets have been sent and not been acknowledged by all.
    pub fn outstanding(&self) -> usize {
        self.records.len()
    }

    /// The message that a packet belongs to.
    pub fn parcel(&self, number: u64) -> &Parcel {
        &self.parcels[self.parcels.partition_point(|parcel| parcel.end <= number)]
    }

    /// Records the next packet as sent by so many jobs; its number.
    pub fn record(&mut self, jobs: u32) -> u64 {
        let number = self.next();
        let missing = self.children.len() as u32;
        self.records.push_back(Record { missing, jobs, left: Picoseconds::ZERO });
        number
    }

    /// A job of a packet is done: its last copy has left.
    pub fn left(&mut self, number: u64, now: Picoseconds) {
        // Acknowledged by all, it has no record any more.
        if let Some(record) = number.checked_sub(self.base).and_then(|at| self.records.get_mut(at as usize)) {
            record.jobs -= 1;
            record.left = now;
        }
    }

    /// How many messages end for a child where it acknowledges everything below a number.
    pub fn ends(&self, child: usize, below: u64) -> usize {
        let ended = |below| self.parcels.partition_point(|parcel| parcel.end <= below);
        ended(below).saturating_sub(ended(self.children[child].acked))
    }

    /// A child acknowledges everything below a number. The messages that with this everybody has.
    pub fn acknowledge(&mut self, child: usize, below: u64) -> Vec<Content> {
        let acked = self.children[child].acked;
        if below <= acked {
            return Vec::new();
        }
        for number in acked..below {
            self.records[(number - self.base) as usize].missing -= 1;
        }
        self.children[child].acked = below;
        self.silent = 0;
        while self.records.front().is_some_and(|record| record.missing == 0) {
            self.records.pop_front();
            self.base += 1;
        }
        let done = self.parcels[self.completed..].partition_point(|parcel| parcel.end <= self.base);
        let contents = self.parcels[self.completed..self.completed + done].iter();
        self.completed += done;
        contents.map(|parcel| parcel.content).collect()
    }

    /// When the oldest packet without all its acknowledgments has left; `None` where it is still being sent.
    pub fn oldest(&self) -> Option<Picoseconds> {
        self.records.front().filter(|record| record.jobs == 0).map(|record| record.left)
    }

    /// What is to be sent again: every packet not yet acknowledged and not just being sent, and to whom.
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
    fn only_who_did_not_acknowledge_gets_a_packet_again_and_those_behind_it() {
        let mut stream = stream();
        stream.acknowledge(0, 3);
        stream.acknowledge(1, 1);
        assert_eq!(stream.overdue(), [(0, vec![2]), (1, vec![1, 2]), (2, vec![1, 2])]);
        // What is being sent is not sent a second time.
        assert_eq!(stream.overdue(), []);
        assert_eq!(stream.oldest(), None);
    }
}
