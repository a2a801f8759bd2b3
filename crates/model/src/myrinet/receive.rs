//! The receiving half of a NIC: packet buffers, numbers, receive tokens, acknowledgments,
//! forwarding.

use treecast_sim::Offload;

use super::node::{GmEvent, Packet, Slot, Transmission};
use super::policies::{Flow, Forwarding};
use super::simulation::{Event, Simulation};
use super::stream::Content;

impl Simulation<'_> {
    /// The last byte of a packet has arrived. A data packet needs a packet buffer: until one is
    /// free, the packet is blocked in the network.
    pub fn arrived(&mut self, packet: Packet) {
        let work = self.parameters.nic_ack_receive;
        match packet {
            Packet::Ack { stream, child, below } => {
                let event = Event::Acknowledged { stream, child, below };
                self.nic(self.streams[stream].from, work, event);
            }
            Packet::Credit { from, to } => self.nic(from, work, Event::Credited { from, to }),
            Packet::Data { stream, child, number } => {
                if !self.buffer(stream, child, number) {
                    let to = self.streams[stream].children[child as usize].node;
                    self.counts.held += 1;
                    self.nodes[to].held.push_back((stream, child, number));
                }
            }
        }
    }

    /// Takes a buffer for a packet and starts to process it; returns whether a buffer was free.
    fn buffer(&mut self, stream: usize, child: u32, number: u64) -> bool {
        let (from, to) = (self.streams[stream].from, self.streams[stream].children[child as usize].node);
        let slot = self.take_slot(to, from);
        if let Some(slot) = slot {
            let work = self.parameters.nic_receive + self.name_work(stream, child);
            self.nic(to, work, Event::Received { stream, child, number, slot });
        }
        slot.is_some()
    }

    fn take_slot(&mut self, node: usize, from: usize) -> Option<usize> {
        let node = &mut self.nodes[node];
        let taken = Slot { uses: 1, from };
        let slot = if let Some(slot) = node.free_slots.pop() {
            node.slots[slot] = taken;
            slot
        } else if node.slots.len() < self.parameters.nic_receive_buffers as usize {
            node.slots.push(taken);
            node.slots.len() - 1
        } else {
            return None;
        };
        let used = (node.slots.len() - node.free_slots.len()) as u32;
        node.peak.receive_buffers = node.peak.receive_buffers.max(used);
        Some(slot)
    }

    /// One use of a receive buffer ends.
    pub fn release_slot(&mut self, node: usize, slot: usize) {
        let Slot { uses, from } = &mut self.nodes[node].slots[slot];
        *uses -= 1;
        if *uses == 0 {
            let to = *from;
            self.nodes[node].free_slots.push(slot);
            if let Some((stream, child, number)) = self.nodes[node].held.pop_front() {
                self.buffer(stream, child, number);
            }
            if self.credits.is_some() {
                let event = Event::Made { node, transmission: Transmission::Credit { to } };
                self.nic(node, self.parameters.nic_ack_send, event);
            }
        }
    }

    /// The NIC has processed a packet: it is accepted if it is in order, and the first packet of a
    /// message if there is a receive token.
    pub fn received(&mut self, stream: usize, child: u32, number: u64, slot: usize) {
        let state = self.streams[stream].children[child as usize];
        let node = state.node;
        if number < state.expected {
            // Its acknowledgment may be lost. Packets still in transfer will be acknowledged later.
            if number < state.copied {
                self.acknowledge(stream, child);
            }
            self.release_slot(node, slot);
            return;
        }
        if number > state.expected || !self.find_token(stream, number, node) {
            if self.credits.is_some() {
                self.park(node, (stream, child, number, slot));
            } else {
                self.counts.refused += u64::from(number == state.expected);
                self.release_slot(node, slot);
            }
            return;
        }
        self.streams[stream].children[child as usize].expected += 1;
        // A parked packet may be the next now.
        self.unpark(node);
        if self.parameters.forwarding == Forwarding::CopyWhileForwarding {
            self.forward(stream, node, number, slot);
        }
        let length = self.payload_of(stream, number);
        self.write_host(node, length, Event::Copied { stream, child, slot });
    }

    /// If a message begins with this packet, takes a receive token for it. Control messages are
    /// small and have their own tokens.
    fn find_token(&mut self, stream: usize, number: u64, node: usize) -> bool {
        let queued_message = *self.streams[stream].queued_message(number);
        let needs_token = matches!(queued_message.content, Content::Data { .. } | Content::Unicast);
        if queued_message.first != number || !needs_token {
            return true;
        }
        let used = &mut self.nodes[node].receive_tokens_used;
        if *used == self.parameters.receive_tokens {
            return false;
        }
        *used += 1;
        let used = *used;
        let peak = &mut self.nodes[node].peak.receive_tokens;
        *peak = used.max(*peak);
        if let Content::Data { group, message } = queued_message.content {
            // The process needs its buffer; and so does the NIC, for retransmissions.
            let repeats = self.forwards(stream, node).is_some() && self.parameters.flow != Flow::Lfc;
            self.holds.insert((node, group, message), 1 + u32::from(repeats));
        }
        true
    }

    /// One user of the receive buffer of a message is done.
    pub fn release_message(&mut self, node: usize, group: u32, message: u32) {
        let key = (node, group, message);
        let holds = self.holds.get_mut(&key).expect("a message is held until its last user is done");
        *holds -= 1;
        if *holds == 0 {
            self.holds.remove(&key);
            self.nodes[node].receive_tokens_used -= 1;
            self.unpark(node);
        }
    }

    /// The group for which the NIC of a node forwards the packets of a stream.
    fn forwards(&self, stream: usize, node: usize) -> Option<u32> {
        let group = self.streams[stream].group.filter(|_| self.forwarder == Offload::Nic)?;
        (!self.trees[group as usize].children[node].is_empty()).then_some(group)
    }

    /// Queues an accepted packet to the children of its group, out of its receive buffer.
    fn forward(&mut self, stream: usize, node: usize, number: u64, slot: usize) {
        let Some(group) = self.forwards(stream, node) else { return };
        let queued_message = *self.streams[stream].queued_message(number);
        let queue = self.queue(group, node);
        if queued_message.first == number {
            self.extend(queue, queued_message.content, queued_message.length);
        }
        let mut work = self.parameters.nic_forward;
        for job in self.jobs(queue, Some(slot)) {
            self.nodes[node].slots[slot].uses += 1;
            let extra = self.name_work(queue, job.children[0]) + self.firmware_work(queue, job.number);
            self.nic(node, work + extra, Event::Prepared(Box::new(job)));
            work = self.parameters.nic_token + self.parameters.nic_forward;
        }
    }

    /// A packet is in host memory: it is forwarded and acknowledged, and after the last packet of a
    /// message the process is notified.
    pub fn copied(&mut self, stream: usize, child: u32, slot: usize) {
        let state = &mut self.streams[stream].children[child as usize];
        let (node, number) = (state.node, state.copied);
        state.copied += 1;
        #[cfg(test)]
        self.journal.push((node, stream, number));
        if self.parameters.forwarding == Forwarding::CopyThenForward {
            self.forward(stream, node, number, slot);
        }
        self.acknowledge(stream, child);
        let queued_message = *self.streams[stream].queued_message(number);
        if queued_message.end == number + 1 {
            let from = self.streams[stream].from;
            let notice =
                GmEvent::Received { from, content: queued_message.content, length: queued_message.length };
            self.nic(node, self.parameters.nic_event, Event::Raised { node, notice });
        }
        self.release_slot(node, slot);
    }

    /// Acknowledges everything that is in host memory.
    fn acknowledge(&mut self, stream: usize, child: u32) {
        let state = &mut self.streams[stream].children[child as usize];
        if !state.acknowledging {
            state.acknowledging = true;
            let node = state.node;
            let event = Event::Made { node, transmission: Transmission::Ack { stream, child } };
            self.nic(node, self.parameters.nic_ack_send, event);
        }
    }
}
