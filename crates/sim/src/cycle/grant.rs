//! The end of a cycle in switches: outputs are granted, then flits are forwarded.

use rand::RngExt;
use treecast_fabric::{Channel, LinkId, SwitchId};
use treecast_terms::Cycles;

use super::network::{Buffer, Flit, Head, Network, Packet, Sender, report_transfer};
use crate::observer::Observer;
use crate::parameters::{Adaptive, Arbitration, Replication};

/// A copy of the packet at the head of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CopyId {
    buffer: usize,
    copy: usize,
}

impl Network<'_> {
    /// Grants the outputs of all switches; returns whether any was granted.
    pub fn grant(&mut self, now: Cycles, observer: &mut impl Observer) -> bool {
        let mut any = false;
        for switch in self.topology.switches() {
            let granted = match self.setting.parameters.arbitration {
                Arbitration::RoundRobin => self.arbitrate_round_robin(now, switch),
                _ => self.arbitrate_in_order(now, switch),
            };
            any |= !granted.is_empty();
            for id in self.ready_to_start(granted) {
                self.start_transfer(now, id, observer);
            }
        }
        any
    }

    /// The granted copies that start. With synchronous replication, the copies of a packet start
    /// when the last one is granted.
    fn ready_to_start(&self, granted: Vec<CopyId>) -> Vec<CopyId> {
        if self.setting.parameters.replication == Replication::Asynchronous {
            return granted;
        }
        let mut buffers: Vec<usize> = granted.iter().map(|id| id.buffer).collect();
        buffers.sort_unstable();
        buffers.dedup();
        let heads = buffers.into_iter().map(|buffer| (buffer, self.head(buffer)));
        let complete = heads.filter(|(_, head)| head.is_granted());
        complete
            .flat_map(|(buffer, head)| (0..head.copies.len()).map(move |copy| CopyId { buffer, copy }))
            .collect()
    }

    /// The copies without an output, by input buffer, then in the order of their branches.
    fn waiting(&self, switch: SwitchId) -> Vec<CopyId> {
        let mut waiting = Vec::new();
        for &buffer in &self.inputs[switch.index()] {
            let copies = self.buffers[buffer].head.iter().flat_map(|head| &head.copies);
            let copies = copies.enumerate().filter(|(_, copy)| copy.output.is_none());
            waiting.extend(copies.map(|(copy, _)| CopyId { buffer, copy }));
        }
        waiting
    }

    fn arbitrate_in_order(&mut self, now: Cycles, switch: SwitchId) -> Vec<CopyId> {
        let mut waiting = self.waiting(switch);
        if self.setting.parameters.arbitration == Arbitration::OldestFirst {
            waiting.sort_by_key(|id| self.head(id.buffer).routed);
        }
        let mut granted = Vec::new();
        for id in waiting {
            if let Some(channel) = self.select_output(switch, id) {
                self.assign(now, id, channel);
                granted.push(id);
            }
        }
        granted
    }

    fn arbitrate_round_robin(&mut self, now: Cycles, switch: SwitchId) -> Vec<CopyId> {
        let mut granted = Vec::new();
        loop {
            let mut requests = Vec::new();
            for id in self.waiting(switch) {
                if let Some(channel) = self.select_output(switch, id) {
                    requests.push((channel, id));
                }
            }
            if requests.is_empty() {
                return granted;
            }
            let mut outputs: Vec<usize> = requests.iter().map(|&(channel, _)| self.output(channel)).collect();
            outputs.sort_unstable();
            outputs.dedup();
            for output in outputs {
                let requesters = requests.iter().filter(|&&(channel, _)| self.output(channel) == output);
                let last = self.last_served[output];
                // Inputs after the one served last come first, then those from the lowest on.
                let taken =
                    requesters.min_by_key(|(_, id)| (last.is_some_and(|last| id.buffer <= last), id.buffer));
                let &(channel, id) = taken.expect("every output here has a request");
                self.last_served[output] = Some(id.buffer);
                self.assign(now, id, channel);
                granted.push(id);
            }
        }
    }

    /// The resource that is granted: a link with virtual cut-through, a channel with wormhole
    /// switching.
    fn output(&self, channel: Channel) -> usize {
        if self.is_wormhole() { self.index(channel) } else { channel.link.index() }
    }

    /// Selects one of the outputs that are free for a copy now.
    fn select_output(&mut self, switch: SwitchId, CopyId { buffer, copy }: CopyId) -> Option<Channel> {
        let head = self.head(buffer);
        let length = head.length_onward();
        let outputs = head.copies[copy].branch.outputs.iter().copied();
        let free: Vec<Channel> = outputs.filter(|&channel| self.is_free(channel, length)).collect();
        if self.setting.parameters.adaptive == Adaptive::Random && free.len() > 1 {
            return Some(free[self.random[switch.index()].random_range(0..free.len())]);
        }
        free.first().copied()
    }

    fn is_free(&self, channel: Channel, length: u64) -> bool {
        if self.is_wormhole() {
            return self.senders[self.index(channel)].is_none();
        }
        self.senders_on(channel.link).next().is_none() && self.room(channel) >= length
    }

    fn assign(&mut self, now: Cycles, CopyId { buffer, copy }: CopyId, channel: Channel) {
        let head = self.head_mut(buffer);
        head.copies[copy].output = Some((channel, now));
        let length = head.length_onward();
        self.hold(channel, Sender::Copy { buffer, copy }, length);
    }

    fn start_transfer(&mut self, now: Cycles, id: CopyId, observer: &mut impl Observer) {
        let is_wormhole = self.is_wormhole();
        let head = self.head_mut(id.buffer);
        let packet = Packet { length: head.length_onward(), ..head.packet };
        let (channel, since) = head.copies[id.copy].output.as_mut().expect("the copy has an output");
        *since = now;
        if !is_wormhole {
            report_transfer(*channel, (now, now + Cycles(packet.length)), packet, observer);
        }
    }

    /// The packet at the head of a buffer, which must have one.
    pub fn head(&self, buffer: usize) -> &Head {
        self.buffers[buffer].head.as_ref().expect("the buffer has a head")
    }

    fn head_mut(&mut self, buffer: usize) -> &mut Head {
        self.buffers[buffer].head.as_mut().expect("the buffer has a head")
    }

    /// Every link forwards a flit; returns whether any was forwarded.
    pub fn forward(&mut self, now: Cycles, observer: &mut impl Observer) -> bool {
        let mut any = false;
        for switch in self.topology.switches() {
            let mut groups = self.ready_copies(switch);
            // Of several channels of a link, the one that sent least recently goes first.
            groups.sort_by_key(|group| group.iter().map(|&id| self.channel_priority(id)).min());
            let mut busy: Vec<LinkId> = Vec::new();
            for group in groups {
                let links: Vec<LinkId> = group.iter().map(|&id| self.granted(id).link).collect();
                if links.iter().any(|link| busy.contains(link)) {
                    continue;
                }
                busy.extend(links);
                for id in group {
                    self.forward_flit(now, id, observer);
                }
                any = true;
            }
        }
        for switch in self.topology.switches() {
            for place in 0..self.inputs[switch.index()].len() {
                self.release_flits(self.inputs[switch.index()][place]);
            }
        }
        any
    }

    /// The output that a copy holds.
    fn granted(&self, CopyId { buffer, copy }: CopyId) -> Channel {
        let head = self.head(buffer);
        head.copies[copy].output.expect("the copy has an output").0
    }

    fn channel_priority(&self, id: CopyId) -> (Option<Cycles>, usize) {
        let channel = self.index(self.granted(id));
        (self.last_sent[channel], channel)
    }

    /// The copies of a switch that have a flit to send and room for it. Copies that proceed
    /// together form a group.
    fn ready_copies(&self, switch: SwitchId) -> Vec<Vec<CopyId>> {
        let mut groups = Vec::new();
        for &buffer in &self.inputs[switch.index()] {
            let Some(head) = &self.buffers[buffer].head else { continue };
            let copies = (0..head.copies.len()).map(|copy| CopyId { buffer, copy });
            if self.setting.parameters.replication == Replication::Asynchronous {
                groups.extend(copies.filter(|&id| self.can_send(id)).map(|id| vec![id]));
            } else if !head.copies.is_empty() && copies.clone().all(|id| self.can_send(id)) {
                groups.push(copies.collect());
            }
        }
        groups
    }

    fn can_send(&self, CopyId { buffer, copy }: CopyId) -> bool {
        let head = self.head(buffer);
        let copy = &head.copies[copy];
        let Some((channel, _)) = copy.output else { return false };
        let place = head.stripped + copy.sent - head.left;
        let has_come = copy.sent < head.length_onward() && place < self.buffers[buffer].flits.len() as u64;
        has_come && (!self.is_wormhole() || self.room(channel) > 0)
    }

    fn forward_flit(&mut self, now: Cycles, id: CopyId, observer: &mut impl Observer) {
        let head = self.head(id.buffer);
        let copy = &head.copies[id.copy];
        let (channel, since) = copy.output.expect("the copy has an output");
        let progress = self.router.onward(copy.branch.progress, channel.link);
        let packet = Packet { id: head.packet.id, progress, length: head.length_onward() };
        let flit = Flit { packet, place: copy.sent };
        self.head_mut(id.buffer).copies[id.copy].sent += 1;
        self.send(now, channel, flit);
        if self.is_wormhole() && flit.is_last() {
            report_transfer(channel, (since, now + Cycles(1)), packet, observer);
        }
    }

    /// Releases the flits that every copy has sent. Stripped flits are released when every copy has
    /// an output.
    fn release_flits(&mut self, buffer: usize) {
        let Buffer { flits, head, leaving, .. } = &mut self.buffers[buffer];
        let Some(present) = head.as_mut().filter(|head| head.is_granted()) else { return };
        let gone = present.stripped + present.sent_by_all() - present.left;
        flits.drain(..gone as usize);
        *leaving += gone;
        present.left += gone;
        if present.left == present.packet.length {
            *head = None;
        }
    }
}
