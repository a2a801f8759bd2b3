//! The sending half of a NIC: tokens, packets, copies, records, timers.

use treecast_sim::Offload;
use treecast_terms::{Bytes, Picoseconds};

use super::node::{GmEvent, Job, Packet, Post, Transmission};
use super::policies::{Flow, Replicas};
use super::simulation::{EVENT, Event, Simulation, TIMEOUTS_MAX};
use super::stream::{Content, Stream};

/// The time slice of housekeeping on the NIC's processor, between which packets are served.
const PIECE: Picoseconds = Picoseconds(1_000_000);

impl Simulation<'_> {
    /// A send event has reached the NIC: it becomes a token, or one token per child.
    pub fn posted(&mut self, node: usize, post: Post) {
        let parameters = self.parameters;
        let mut work = parameters.nic_send_event + self.posted_name_work(post.stream);
        if parameters.replicas == Replicas::Tokens {
            let more = self.streams[post.stream].children.len() as u64 - 1;
            work += Self::times(more, parameters.nic_token);
        }
        self.nic(node, work, Event::TokenMade(post));
        self.post_done(node, post);
    }

    /// A token has been queued.
    pub fn token_made(&mut self, post: Post) {
        self.extend(post.stream, post.content, post.length);
        self.fill_window(post.stream);
    }

    /// Queues a message in a stream.
    pub fn extend(&mut self, stream: usize, content: Content, length: Bytes) {
        let packets = length.0.div_ceil(self.payload(stream)).max(1);
        self.streams[stream].push(content, length, packets);
    }

    /// Starts to send packets as far as the window of a stream allows.
    fn fill_window(&mut self, stream: usize) {
        let window = self.parameters.window_packets as usize;
        while self.streams[stream].next() < self.streams[stream].end()
            && self.streams[stream].outstanding() < window
        {
            for job in self.jobs(stream, None) {
                self.fetch(Box::new(job));
            }
        }
    }

    /// The jobs that send the next packet of a stream to all its children: one, or with tokens one
    /// per child.
    pub fn jobs(&mut self, stream: usize, slot: Option<usize>) -> Vec<Job> {
        let children = 0..self.streams[stream].children.len() as u32;
        let shares: Vec<Vec<u32>> = match self.parameters.replicas {
            Replicas::Tokens => children.map(|child| vec![child]).collect(),
            Replicas::Callback | Replicas::HeaderRewrite => vec![children.collect()],
        };
        let number = self.streams[stream].record(shares.len() as u32);
        let job = |children| Job { stream, number, children, served: 0, slot };
        shares.into_iter().map(job).collect()
    }

    /// Fetches the packet of a job from host memory, as soon as a send buffer is free.
    fn fetch(&mut self, job: Box<Job>) {
        let from = self.streams[job.stream].from;
        let node = &mut self.nodes[from];
        if node.send_buffers_used == self.parameters.nic_send_buffers {
            node.unfetched.push_back(job);
            return;
        }
        node.send_buffers_used += 1;
        node.peak.send_buffers = node.peak.send_buffers.max(node.send_buffers_used);
        let length = self.payload_of(job.stream, job.number);
        self.read_host(from, length, Event::Fetched(job));
    }

    /// The payload of a packet.
    pub fn payload_of(&self, stream: usize, number: u64) -> Bytes {
        let queued_message = self.streams[stream].queued_message(number);
        let most = self.payload(stream);
        Bytes(most.min(queued_message.length.0 - (number - queued_message.first) * most))
    }

    /// A packet is in its send buffer: the NIC makes header and record.
    pub fn fetched(&mut self, job: Box<Job>) {
        let work = self.parameters.nic_send
            + self.name_work(job.stream, job.children[0])
            + self.firmware_work(job.stream, job.number);
        self.nic(self.streams[job.stream].from, work, Event::Prepared(job));
    }

    /// The NIC time that changed firmware adds to a send. Each copy for a child is a send; the time
    /// is spent with its first packet.
    pub fn firmware_work(&self, stream: usize, number: u64) -> Picoseconds {
        let is_first = self.streams[stream].queued_message(number).first == number;
        let is_changed = self.forwarder != Offload::Host;
        if is_first && is_changed { self.parameters.nic_firmware } else { Picoseconds::ZERO }
    }

    /// The header of a job is ready for its next child: the packet is sent, if flow control allows
    /// it.
    pub fn prepared(&mut self, job: Box<Job>) {
        let from = self.streams[job.stream].from;
        if let Some(job) = self.take_credit(job) {
            self.transmit(from, Transmission::Data(job));
        }
    }

    /// Rewrites the header of a job for its next child.
    pub fn prepare_next(&mut self, job: Box<Job>) {
        let work = self.parameters.nic_replica
            + self.name_work(job.stream, job.children[job.served])
            + self.firmware_work(job.stream, job.number);
        self.nic(self.streams[job.stream].from, work, Event::Prepared(job));
    }

    /// Queues a transmission.
    pub fn transmit(&mut self, node: usize, transmission: Transmission) {
        self.nodes[node].wire.push(transmission);
        self.start_transmission(node);
    }

    /// Starts the next transmission, if the wire is idle.
    fn start_transmission(&mut self, node: usize) {
        let wire = &mut self.nodes[node].wire;
        if wire.busy {
            return;
        }
        let Some(transmission) = wire.pop() else { return };
        wire.busy = true;
        let parameters = self.parameters;
        let (to, length, packet, mut job) = match transmission {
            Transmission::Data(mut job) => {
                let child = job.children[job.served];
                job.served += 1;
                let names = Bytes(self.names(job.stream, child) * parameters.destination.0);
                let length = parameters.header + names + self.payload_of(job.stream, job.number);
                let packet = Packet::Data { stream: job.stream, child, number: job.number };
                (self.streams[job.stream].children[child as usize].node, length, packet, Some(job))
            }
            Transmission::Ack { stream, child } => {
                let Stream { from, children, .. } = &mut self.streams[stream];
                let state = &mut children[child as usize];
                state.acknowledging = false;
                (*from, parameters.ack, Packet::Ack { stream, child, below: state.copied }, None)
            }
            Transmission::Credit { to } => (to, parameters.ack, Packet::Credit { from: to, to: node }, None),
        };
        let (begins, leaves, arrives) = self.wire(node, to, length);
        if let (Packet::Data { stream, child, number }, Some(arrives)) = (packet, arrives) {
            let queued_message = *self.streams[stream].queued_message(number);
            if matches!(queued_message.content, Content::Data { .. }) {
                self.record_transit((stream, child, queued_message.first), node, to, begins, arrives);
            }
        }
        if let Some(arrives) = arrives {
            self.events.schedule(arrives, Event::Arrived(packet));
        }
        if parameters.replicas == Replicas::HeaderRewrite
            && let Some(copied) = job.take_if(|job| job.served < job.children.len())
        {
            let header = parameters.header.time_at(parameters.link_mb_per_s);
            self.events.schedule(begins + header, Event::HeaderLeft(copied));
        }
        self.events.schedule(leaves, Event::Left { node, job });
    }

    /// A packet has left: its job continues with the next child, or is done.
    pub fn left(&mut self, node: usize, job: Option<Box<Job>>) {
        self.nodes[node].wire.busy = false;
        if let Some(job) = job {
            if job.served < job.children.len() {
                self.prepare_next(job);
            } else {
                self.job_done(node, &job);
            }
        }
        self.start_transmission(node);
    }

    fn job_done(&mut self, node: usize, job: &Job) {
        self.streams[job.stream].left(job.number, self.events.now());
        self.start_timer(job.stream);
        if let Some(slot) = job.slot {
            self.release_slot(node, slot);
            return;
        }
        self.nodes[node].send_buffers_used -= 1;
        if let Some(waiting) = self.nodes[node].unfetched.pop_front() {
            self.fetch(waiting);
        }
    }

    /// An acknowledgment has been processed: messages that all children have acknowledged release
    /// their token or receive buffer.
    pub fn acknowledged(&mut self, stream: usize, child: u32, below: u64) {
        let node = self.streams[stream].from;
        let forwards = self.streams[stream].forwards;
        let ends = self.streams[stream].ends(child as usize, below);
        let sent = self.streams[stream].acknowledge(child as usize, below);
        if self.parameters.replicas == Replicas::Tokens {
            // The tokens that the NIC has created itself.
            let own = if forwards { ends } else { ends - sent.len() };
            for _ in 0..own {
                self.return_token(node, None);
            }
        }
        for content in sent {
            match content {
                // LFC releases it as soon as its process has it: nothing is retransmitted.
                Content::Data { .. } if forwards && self.parameters.flow == Flow::Lfc => {}
                Content::Data { group, message } if forwards => self.release_message(node, group, message),
                _ => self.return_token(node, Some(content)),
            }
        }
        if !forwards {
            self.fill_window(stream);
        }
    }

    /// Returns a token, to the process if it is the token of a message that the process has sent.
    fn return_token(&mut self, node: usize, content: Option<Content>) {
        self.nodes[node].returns.push_back((content, self.parameters.nic_sent));
        if self.nodes[node].returns.len() == 1 {
            self.run_housekeeping(node);
        }
    }

    /// Works for one time slice on the first token to be returned. Other requests are served
    /// between slices.
    fn run_housekeeping(&mut self, node: usize) {
        if let Some((_, left)) = self.nodes[node].returns.front_mut() {
            let piece = (*left).min(PIECE);
            *left = *left - piece;
            self.nic(node, piece, Event::HousekeepingDone(node));
        }
    }

    /// A time slice of housekeeping is done.
    pub fn housekeeping_done(&mut self, node: usize) {
        let returns = &mut self.nodes[node].returns;
        if let Some((Some(content), _)) = returns.pop_front_if(|(_, left)| *left == Picoseconds::ZERO) {
            self.write_host(node, EVENT, Event::Noticed { node, notice: GmEvent::Sent { content } });
        }
        self.run_housekeeping(node);
    }

    fn start_timer(&mut self, stream: usize) {
        let waits = !self.streams[stream].timed && self.streams[stream].outstanding() > 0;
        if waits && self.parameters.flow != Flow::Lfc {
            self.streams[stream].timed = true;
            self.events.schedule_after(self.parameters.timeout, Event::TimedOut(stream));
        }
    }

    /// The retransmission timer of a stream has expired: go-back-N to the children that have not
    /// acknowledged.
    pub fn timed_out(&mut self, stream: usize) {
        self.streams[stream].timed = false;
        if let Some(left) = self.streams[stream].oldest() {
            let due = left + self.parameters.timeout;
            if due > self.events.now() {
                self.streams[stream].timed = true;
                self.events.schedule(due, Event::TimedOut(stream));
                return;
            }
            self.streams[stream].timeouts += 1;
            if self.streams[stream].timeouts > TIMEOUTS_MAX {
                self.aborted = true;
                return;
            }
            for (number, children) in self.streams[stream].overdue() {
                self.counts.retransmissions += children.len() as u64;
                self.fetch(Box::new(Job { stream, number, children, served: 0, slot: None }));
            }
        }
        self.start_timer(stream);
    }
}
