//! The state of flow control by credits: FM/MC's central credit manager, and LFC's credits between
//! NICs.

use std::collections::{BTreeMap, VecDeque};

use treecast_terms::Picoseconds;

use super::node::Job;

/// FM/MC's credit manager: a process that grants a bounded number of messages in flight.
#[derive(Debug)]
pub(super) struct Manager {
    pub node: usize,
    /// Credits that no message holds.
    free: u32,
    /// Requests that wait for a credit, first come first served: group and message.
    waiting: VecDeque<(u32, u32)>,
    /// How many receivers have returned the credit of a message.
    returned: BTreeMap<(u32, u32), u32>,
    /// CPU time for requests and returns.
    pub busy: Picoseconds,
}

impl Manager {
    pub fn new(node: usize, credits: u32) -> Self {
        Self {
            node,
            free: credits,
            waiting: VecDeque::new(),
            returned: BTreeMap::new(),
            busy: Picoseconds::ZERO,
        }
    }

    /// Queues a request for a credit.
    pub fn request(&mut self, group: u32, message: u32) {
        self.waiting.push_back((group, message));
    }

    /// One of `receivers` has taken a message; returns whether all have, so that its credit is free
    /// again.
    pub fn return_credit(&mut self, group: u32, message: u32, receivers: u32) -> bool {
        let returned = self.returned.entry((group, message)).or_default();
        *returned += 1;
        if *returned < receivers {
            return false;
        }
        self.returned.remove(&(group, message));
        self.free += 1;
        true
    }

    /// Grants a free credit to the request that has waited longest.
    pub fn grant(&mut self) -> Option<(u32, u32)> {
        if self.free == 0 {
            return None;
        }
        let granted = self.waiting.pop_front()?;
        self.free -= 1;
        Some(granted)
    }
}

/// A data packet that waits in its receive buffer: stream, child, number, slot.
pub(super) type Parked = (usize, u32, u64, usize);

/// LFC's credits: how many receive buffers of each NIC each sender uses, and the jobs that wait for
/// one.
#[derive(Debug)]
pub(super) struct BufferCredits {
    /// Buffers that a NIC has for each peer.
    buffers: u32,
    /// Buffers in use: by the sending NIC and the NIC that has the buffers.
    used: BTreeMap<(usize, usize), u32>,
    /// Jobs that wait for a buffer, by the same pair.
    pub blocked: BTreeMap<(usize, usize), VecDeque<Box<Job>>>,
    /// At each node the packets that wait for a receive token, and those queued behind them.
    parked: BTreeMap<usize, Vec<Parked>>,
}

impl BufferCredits {
    pub fn new(buffers: u32) -> Self {
        Self { buffers, used: BTreeMap::new(), blocked: BTreeMap::new(), parked: BTreeMap::new() }
    }
    /// Takes a receive buffer for a job. A job that finds none is queued, and `None` returned.
    pub fn take(&mut self, from: usize, to: usize, job: Box<Job>) -> Option<Box<Job>> {
        let used = self.used.entry((from, to)).or_default();
        if *used < self.buffers {
            *used += 1;
            return Some(job);
        }
        self.blocked.entry((from, to)).or_default().push_back(job);
        None
    }

    /// A buffer is free again: returns the job that has waited longest and takes it.
    pub fn credited(&mut self, from: usize, to: usize) -> Option<Box<Job>> {
        let job = self.blocked.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        if job.is_none() {
            *self.used.get_mut(&(from, to)).expect("a returned credit was taken before") -= 1;
        }
        job
    }

    /// Lets a packet wait in its receive buffer.
    pub fn park(&mut self, node: usize, packet: Parked) {
        self.parked.entry(node).or_default().push(packet);
    }

    /// The waiting packets of a node, in their order, to be looked at again.
    pub fn unpark(&mut self, node: usize) -> Vec<Parked> {
        self.parked.remove(&node).unwrap_or_default()
    }
}
