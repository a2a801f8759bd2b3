//! The reception of broadcast packets by the processes of a node.

use std::collections::BTreeSet;

use treecast_fabric::HostId;
use treecast_plan::MemberId;
use treecast_terms::Picoseconds;

use super::parameters::Method;
use super::script::{PacketId, Piece, Step};
use super::simulation::{Activity, Simulation, StepResult};

/// The packets of a broadcast in a queue, in order.
fn of_broadcast(queue: &BTreeSet<PacketId>, broadcast: u32) -> impl Iterator<Item = PacketId> + '_ {
    queue.range(PacketId { broadcast, packet: 0 }..=PacketId { broadcast, packet: u32::MAX }).copied()
}

impl Simulation<'_> {
    /// The members on a node that the network interface delivers multicast packets to. With shared
    /// delivery, the first member represents its node.
    pub(super) fn attached(&self, host: HostId) -> Vec<MemberId> {
        let node = &self.nodes[host.index()];
        if self.parameters.method.is_shared() {
            return if host == self.root_host { Vec::new() } else { vec![node.members[0]] };
        }
        let is_attached = |member: &&MemberId| self.members[member.index()].is_attached;
        node.members.iter().filter(is_attached).copied().collect()
    }

    /// Whether a member has a packet already.
    pub(super) fn has(&self, member: MemberId, packet_id: PacketId) -> bool {
        let member = &self.members[member.index()];
        packet_id.broadcast < member.broadcast
            || (packet_id.broadcast == member.broadcast && member.received[packet_id.packet as usize])
    }

    /// A datagram arrives in memory. A duplicate, or one without a free buffer, is dropped; but it
    /// replaces a buffered datagram of a later packet, so that the packets that are needed first
    /// can always arrive.
    pub(super) fn receive_datagram(&mut self, target: MemberId, packet_id: PacketId) {
        let host = self.placement.host_of(target);
        let is_shared = self.parameters.method.is_shared();
        let has = !is_shared && self.has(target, packet_id);
        let node = &mut self.nodes[host.index()];
        let queue = &mut self.members[target.index()].queue;
        if has || queue.contains(&packet_id) || (is_shared && node.knows(packet_id)) {
            self.figures.duplicates += 1;
            return;
        }
        let queue = if is_shared { &mut node.queue } else { queue };
        if queue.len() >= self.parameters.receive_buffers as usize {
            self.figures.dropped += 1;
            if queue.last().is_none_or(|&last| last < packet_id) {
                return;
            }
            queue.pop_last();
        }
        queue.insert(packet_id);
        if is_shared { self.wake_node(host) } else { self.proceed(target) }
    }

    /// A packet that the root has written for its own node becomes visible there.
    pub(super) fn published(&mut self, packet_id: PacketId) {
        self.publishing -= 1;
        let queue = &mut self.nodes[self.root_host.index()].queue;
        queue.insert(packet_id);
        debug_assert!(queue.len() <= self.parameters.receive_buffers as usize, "the root waits for room");
        self.wake_node(self.root_host);
    }

    fn wake_node(&mut self, host: HostId) {
        for member in self.nodes[host.index()].members.clone() {
            self.wake(member);
        }
    }

    /// A member enters a broadcast.
    pub(super) fn enter(&mut self, id: MemberId, broadcast: u32) {
        let host = self.placement.host_of(id);
        let is_root = id == self.root;
        let member = &mut self.members[id.index()];
        member.broadcast = broadcast;
        member.received.fill(is_root);
        member.received_count = if is_root { self.packets } else { 0 };
        member.entered_at = self.events.now();
        let is_waiting = of_broadcast(&member.queue, broadcast).next().is_some();
        let node = &mut self.nodes[host.index()];
        if !is_root {
            let is_leader = node.leader == id;
            let state = node.broadcast_state(broadcast);
            state.first.get_or_insert(id);
            member.is_before_leader = state.found_waiting.is_none();
            if is_leader {
                state.found_waiting = Some(is_waiting);
            }
        }
    }

    /// The process that forwards to the other members of a node in a broadcast.
    pub(super) fn forwarder(&self, id: MemberId, broadcast: u32) -> MemberId {
        let host = self.placement.host_of(id);
        let node = &self.nodes[host.index()];
        if self.parameters.method == Method::Moving && host != self.root_host {
            return node
                .broadcast_states
                .get(&broadcast)
                .and_then(|state| state.first)
                .unwrap_or(node.leader);
        }
        node.leader
    }

    /// Copies the next packet that a member lacks, from its own queue or its node's, or from the
    /// forwarding process.
    pub(super) fn receive_packets(&mut self, id: MemberId, broadcast: u32) -> StepResult {
        if self.members[id.index()].received_count == self.packets {
            return StepResult::Done;
        }
        let host = self.placement.host_of(id);
        let method = self.parameters.method;
        let forwarder = self.forwarder(id, broadcast);
        let queue = match method {
            Method::Direct => &self.nodes[host.index()].queue,
            Method::Moving if forwarder == id => &self.nodes[host.index()].queue,
            _ => &self.members[id.index()].queue,
        };
        if let Some(packet_id) = of_broadcast(queue, broadcast).find(|&packet_id| !self.has(id, packet_id)) {
            let home = self.nodes[host.index()].members[0];
            let is_far = method == Method::Direct && self.is_far(home, id);
            let work =
                self.parameters.take + self.parameters.copy(self.packet_length(packet_id.packet), is_far);
            return StepResult::Work(work, Activity::Packet { packet_id, from: None });
        }
        while let Some(&piece) = self.inbox(id, forwarder).pieces.front() {
            let packet_id = piece.packet_id.expect("a forwarder sends packets only");
            if self.has(id, packet_id) {
                self.release(forwarder, id);
                continue;
            }
            let is_far = self.is_far(forwarder, id);
            let work = self.parameters.shared + self.parameters.copy(piece.length, is_far);
            return StepResult::Work(work, Activity::Packet { packet_id, from: Some(forwarder) });
        }
        StepResult::Blocked
    }

    /// A member has copied a packet. The forwarding process forwards it.
    pub(super) fn packet_copied(&mut self, id: MemberId, packet_id: PacketId, from: Option<MemberId>) {
        let length = self.packet_length(packet_id.packet);
        let member = &mut self.members[id.index()];
        assert!(
            !std::mem::replace(&mut member.received[packet_id.packet as usize], true),
            "a member copies each packet once"
        );
        member.received_count += 1;
        member.bytes += length.0;
        if member.received_count == self.packets {
            member.completed_at = self.events.now();
        }
        member.script.push_front(Step::ReceivePackets(packet_id.broadcast));
        member.queue.remove(&packet_id);
        let forwarder = self.forwarder(id, packet_id.broadcast);
        match from {
            Some(from) => self.release(from, id),
            None if self.parameters.method.is_shared() => self.read(id, packet_id),
            // The forwarding process may wait for room that it no longer needs.
            None if forwarder != id => self.wake(forwarder),
            None => {}
        }
        let forwards = matches!(self.parameters.method, Method::Smp | Method::Dynamic | Method::Moving);
        if forwards && forwarder == id {
            self.forward(id, packet_id);
        }
    }

    /// Forwards a packet to the other members of the node, before any other step.
    fn forward(&mut self, id: MemberId, packet_id: PacketId) {
        for step in self.forward_steps(id, packet_id).into_iter().rev() {
            self.members[id.index()].script.push_front(step);
        }
    }

    /// The steps that forward a packet to the other members of a node.
    pub(super) fn forward_steps(&self, id: MemberId, packet_id: PacketId) -> Vec<Step> {
        let host = self.placement.host_of(id);
        let length = self.packet_length(packet_id.packet);
        let piece = Piece { length, is_copied: true, packet_id: Some(packet_id) };
        let others = self.nodes[host.index()].members.iter().filter(|&&member| member != id);
        others.map(|&member| Step::Send(member, piece)).collect()
    }

    /// A shared packet has been read; the buffer is free after the last reader.
    fn read(&mut self, id: MemberId, packet_id: PacketId) {
        let host = self.placement.host_of(id);
        let all =
            if self.parameters.method == Method::Direct { self.nodes[host.index()].receivers } else { 1 };
        let node = &mut self.nodes[host.index()];
        let state = node.broadcast_state(packet_id.broadcast);
        let readers = state.readers.entry(packet_id.packet).or_default();
        *readers += 1;
        if *readers == all {
            state.taken.insert(packet_id.packet);
            node.queue.remove(&packet_id);
            if host == self.root_host {
                self.wake(self.root);
            }
        }
    }

    /// The first piece from a process has been consumed: its slot is free.
    pub(super) fn release(&mut self, from: MemberId, to: MemberId) {
        let inbox = self.inbox(to, from);
        inbox.pieces.pop_front();
        inbox.slots = inbox.slots.saturating_sub(1);
        self.wake(from);
    }

    /// A member leaves a broadcast: its wait is recorded, and the dynamic policy decides.
    pub(super) fn leave(&mut self, id: MemberId, broadcast: u32) {
        let host = self.placement.host_of(id);
        if id == self.root {
            return;
        }
        let method = self.parameters.method;
        let is_led = method != Method::Direct && self.forwarder(id, broadcast) == id;
        let member = &self.members[id.index()];
        let wait = Picoseconds((member.completed_at - member.entered_at).0);
        let figures = if is_led { &mut self.figures.leader_wait } else { &mut self.figures.other_wait };
        figures.add(wait);
        let node = &mut self.nodes[host.index()];
        let (leader, receivers, leader_wait) = (node.leader, node.receivers, node.leader_wait.value());
        let state = node.broadcast_state(broadcast);
        // A leader that has not entered yet will find the packet waiting.
        let waiting = state.found_waiting.unwrap_or(true);
        state.left += 1;
        if state.left == receivers {
            node.broadcast_states.remove(&broadcast);
            node.done = broadcast;
        }
        if method != Method::Dynamic || host == self.root_host {
            return;
        }
        let policy = self.policy;
        if leader == id {
            if policy.counts(waiting) {
                node.leader_wait.add(wait);
            }
            return;
        }
        let member = &mut self.members[id.index()];
        let waiting = waiting && member.is_before_leader;
        match member.attachment.after(&policy, wait, waiting, leader_wait) {
            super::policy::Decision::Stay => {}
            super::policy::Decision::Attach => member.script.push_front(Step::Attach),
            super::policy::Decision::Detach => member.script.push_front(Step::Detach),
        }
    }
}
