//! The compared ways of flow control: one central manager of credits, and credits between NICs.

use std::collections::{BTreeMap, VecDeque};

use treecast_terms::Picoseconds;

use super::node::{Job, Transmission};
use super::stream::Content;
use super::world::{Event, World};

/// FM/MC's credit manager: a process that lets so many messages be under way.
#[derive(Debug)]
pub(super) struct Manager {
    pub node: usize,
    pub free: u32,
    waiting: VecDeque<(u32, u32)>,
    /// How many receivers have taken a message.
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
}

/// A data packet that waits in its receive buffer: stream, child, number, slot.
type Parked = (usize, u32, u64, usize);

/// LFC's credits: who has how many of whose buffers in use, and what waits for one.
#[derive(Debug)]
pub(super) struct BufferCredits {
    /// Buffers that a NIC has for each peer.
    share: u32,
    /// By the NIC that sends, and the one whose buffers they are.
    used: BTreeMap<(usize, usize), u32>,
    pub blocked: BTreeMap<(usize, usize), VecDeque<Box<Job>>>,
    /// At each node what waits for a receive token, or behind a packet that does.
    parked: BTreeMap<usize, Vec<Parked>>,
}

impl BufferCredits {
    pub fn new(share: u32) -> Self {
        Self { share, used: BTreeMap::new(), blocked: BTreeMap::new(), parked: BTreeMap::new() }
    }
}

impl World<'_> {
    /// CPU time that the manager needs for a message, besides the event; it is counted as the manager's.
    pub fn manager_work(&mut self, node: usize, content: Content) -> Picoseconds {
        let asked = matches!(content, Content::CreditRequest { .. } | Content::CreditReturn { .. });
        match &mut self.manager {
            Some(manager) if asked && manager.node == node => {
                manager.busy += self.parameters.host_event + self.parameters.manager;
                self.parameters.manager
            }
            _ => Picoseconds::ZERO,
        }
    }

    /// The manager is asked for a credit.
    pub fn credit_requested(&mut self, group: u32, message: u32) {
        let manager = self.manager.as_mut().expect("who is asked is there");
        manager.waiting.push_back((group, message));
        self.grant();
    }

    /// The manager is told that a receiver has taken a message.
    pub fn credit_returned(&mut self, group: u32, message: u32) {
        let receivers = self.nodes.len() as u32 - 1;
        let manager = self.manager.as_mut().expect("who is told is there");
        let returned = manager.returned.entry((group, message)).or_default();
        *returned += 1;
        if *returned == receivers {
            manager.returned.remove(&(group, message));
            manager.free += 1;
            self.grant();
        }
    }

    fn grant(&mut self) {
        let manager = self.manager.as_mut().expect("who grants is there");
        if manager.free > 0
            && let Some((group, message)) = manager.waiting.pop_front()
        {
            manager.free -= 1;
            let (node, root) = (manager.node, self.trees[group as usize].root);
            self.tell(node, root, Content::CreditGrant { group, message });
        }
    }

    /// A job takes a buffer of its next child, if it needs one; where there is none, it stays behind until there is.
    pub fn take_credit(&mut self, job: Box<Job>) -> Option<Box<Job>> {
        let Some(credits) = &mut self.credits else { return Some(job) };
        let stream = &self.streams[job.stream];
        let pair = (stream.from, stream.children[job.children[job.served] as usize].node);
        let used = credits.used.entry(pair).or_default();
        if *used < credits.share {
            *used += 1;
            return Some(job);
        }
        credits.blocked.entry(pair).or_default().push_back(job);
        None
    }

    /// A buffer is free again: the job that has waited longest for it goes.
    pub fn credited(&mut self, from: usize, to: usize) {
        let credits = self.credits.as_mut().expect("credits are sent where there are any");
        if let Some(job) = credits.blocked.get_mut(&(from, to)).and_then(VecDeque::pop_front) {
            self.transmit(from, Transmission::Data(job));
        } else {
            *credits.used.get_mut(&(from, to)).expect("what comes back was taken") -= 1;
        }
    }

    /// Lets a packet wait in its buffer: nobody would send it again.
    pub fn park(&mut self, node: usize, packet: Parked) {
        let credits = self.credits.as_mut().expect("only there nothing is sent again");
        credits.parked.entry(node).or_default().push(packet);
    }

    /// A receive token is free, or a packet has been accepted: looks again at what is parked, in its order.
    pub fn unpark(&mut self, node: usize) {
        let parked = self.credits.as_mut().and_then(|credits| credits.parked.remove(&node));
        for (stream, child, number, slot) in parked.into_iter().flatten() {
            self.nic(node, Picoseconds::ZERO, Event::Received { stream, child, number, slot });
        }
    }
}
