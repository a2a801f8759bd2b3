//! How packets of a broadcast reach the processes of a node.

use std::collections::BTreeSet;

use treecast_fabric::HostId;
use treecast_plan::MemberId;
use treecast_terms::Picoseconds;

use super::parameters::Method;
use super::script::{Part, Piece, Step};
use super::simulation::{Begin, Doing, Simulation};

/// The packets of a broadcast in a queue, in order.
fn of_broadcast(queue: &BTreeSet<Part>, broadcast: u32) -> impl Iterator<Item = Part> + '_ {
    queue.range(Part { broadcast, packet: 0 }..=Part { broadcast, packet: u32::MAX }).copied()
}

impl Simulation<'_> {
    /// Who on a node the network interface delivers packets of the group to. Where they are shared, the first member
    /// stands for its node.
    pub(super) fn attached(&self, host: HostId) -> Vec<MemberId> {
        let node = &self.nodes[host.index()];
        if self.parameters.method.is_shared() {
            return if host == self.root_host { Vec::new() } else { vec![node.members[0]] };
        }
        let is_attached = |member: &&MemberId| self.members[member.index()].is_attached;
        node.members.iter().filter(is_attached).copied().collect()
    }

    /// Whether a member has a packet already.
    pub(super) fn has(&self, member: MemberId, part: Part) -> bool {
        let member = &self.members[member.index()];
        part.broadcast < member.broadcast
            || (part.broadcast == member.broadcast && member.handled[part.packet as usize])
    }

    /// A datagram is in memory. Where it is there already, or finds no buffer, it is dropped; but one of a later packet
    /// gives way to it, so that what is needed first can always come.
    pub(super) fn land(&mut self, target: MemberId, part: Part) {
        let host = self.placement.host_of(target);
        let is_shared = self.parameters.method.is_shared();
        let has = !is_shared && self.has(target, part);
        let node = &mut self.nodes[host.index()];
        let queue = &mut self.members[target.index()].queue;
        if has || queue.contains(&part) || (is_shared && node.knows(part)) {
            self.figures.duplicates += 1;
            return;
        }
        let queue = if is_shared { &mut node.queue } else { queue };
        if queue.len() >= self.parameters.receive_buffers as usize {
            self.figures.dropped += 1;
            if queue.last().is_none_or(|&last| last < part) {
                return;
            }
            queue.pop_last();
        }
        queue.insert(part);
        if is_shared { self.wake_node(host) } else { self.proceed(target) }
    }

    /// A packet that the root has written for its own node is seen there.
    pub(super) fn published(&mut self, part: Part) {
        self.publishing -= 1;
        let queue = &mut self.nodes[self.root_host.index()].queue;
        queue.insert(part);
        debug_assert!(queue.len() <= self.parameters.receive_buffers as usize, "the root waits for room");
        self.wake_node(self.root_host);
    }

    fn wake_node(&mut self, host: HostId) {
        for member in self.nodes[host.index()].members.clone() {
            self.wake(member);
        }
    }

    /// A member comes to a broadcast.
    pub(super) fn enter(&mut self, id: MemberId, broadcast: u32) {
        let host = self.placement.host_of(id);
        let is_root = id == self.root;
        let member = &mut self.members[id.index()];
        member.broadcast = broadcast;
        member.handled.fill(is_root);
        member.handled_count = if is_root { self.packets } else { 0 };
        member.entered = self.events.now();
        let is_waiting = of_broadcast(&member.queue, broadcast).next().is_some();
        let node = &mut self.nodes[host.index()];
        if !is_root {
            let is_leader = node.leader == id;
            let round = node.round(broadcast);
            round.first.get_or_insert(id);
            if is_leader {
                round.found_waiting = Some(is_waiting);
            }
        }
    }

    /// Who serves a member's node in a broadcast.
    pub(super) fn server(&self, id: MemberId, broadcast: u32) -> MemberId {
        let host = self.placement.host_of(id);
        let node = &self.nodes[host.index()];
        if self.parameters.method == Method::Moving && host != self.root_host {
            return node.rounds.get(&broadcast).and_then(|round| round.first).unwrap_or(node.leader);
        }
        node.leader
    }

    /// Takes the next packet that a member lacks, from its own queue or its node's, or from who serves it.
    pub(super) fn collect(&mut self, id: MemberId, broadcast: u32) -> Begin {
        if self.members[id.index()].handled_count == self.packets {
            return Begin::Passed;
        }
        let host = self.placement.host_of(id);
        let method = self.parameters.method;
        let server = self.server(id, broadcast);
        let queue = match method {
            Method::Direct => &self.nodes[host.index()].queue,
            Method::Moving if server == id => &self.nodes[host.index()].queue,
            _ => &self.members[id.index()].queue,
        };
        if let Some(part) = of_broadcast(queue, broadcast).find(|&part| !self.has(id, part)) {
            let home = self.nodes[host.index()].members[0];
            let is_far = method == Method::Direct && self.is_far(home, id);
            let work = self.parameters.take + self.parameters.copy(self.part_length(part.packet), is_far);
            return Begin::Work(work, Doing::Packet { part, from: None });
        }
        while let Some(&piece) = self.inbox(id, server).pieces.front() {
            let part = piece.part.expect("a server sends packets only");
            if self.has(id, part) {
                self.release(server, id);
                continue;
            }
            let is_far = self.is_far(server, id);
            let work = self.parameters.shared + self.parameters.copy(piece.length, is_far);
            return Begin::Work(work, Doing::Packet { part, from: Some(server) });
        }
        Begin::Blocked
    }

    /// A member has copied a packet: who serves the node passes it on.
    pub(super) fn collected(&mut self, id: MemberId, part: Part, from: Option<MemberId>) {
        let length = self.part_length(part.packet);
        let member = &mut self.members[id.index()];
        assert!(
            !std::mem::replace(&mut member.handled[part.packet as usize], true),
            "nobody takes a packet twice"
        );
        member.handled_count += 1;
        member.bytes += length.0;
        if member.handled_count == self.packets {
            member.had = self.events.now();
        }
        member.script.push_front(Step::Collect(part.broadcast));
        member.queue.remove(&part);
        let server = self.server(id, part.broadcast);
        match from {
            Some(from) => self.release(from, id),
            None if self.parameters.method.is_shared() => self.read(id, part),
            // Who serves may wait for room, and need not any more.
            None if server != id => self.wake(server),
            None => {}
        }
        let serves = matches!(self.parameters.method, Method::Smp | Method::Dynamic | Method::Moving);
        if serves && server == id {
            self.serve(id, part);
        }
    }

    /// Passes a packet on to the others of the node, before anything else.
    fn serve(&mut self, id: MemberId, part: Part) {
        for step in self.services(id, part).into_iter().rev() {
            self.members[id.index()].script.push_front(step);
        }
    }

    /// The steps that pass a packet on to the others of a node.
    pub(super) fn services(&self, id: MemberId, part: Part) -> Vec<Step> {
        let host = self.placement.host_of(id);
        let length = self.part_length(part.packet);
        let piece = Piece { length, is_copied: true, part: Some(part) };
        let others = self.nodes[host.index()].members.iter().filter(|&&member| member != id);
        others.map(|&member| Step::Put(member, piece)).collect()
    }

    /// A shared packet has been read; the buffer is free when nobody needs it any more.
    fn read(&mut self, id: MemberId, part: Part) {
        let host = self.placement.host_of(id);
        let all =
            if self.parameters.method == Method::Direct { self.nodes[host.index()].receivers } else { 1 };
        let node = &mut self.nodes[host.index()];
        let round = node.round(part.broadcast);
        let readers = round.readers.entry(part.packet).or_default();
        *readers += 1;
        if *readers == all {
            round.taken.insert(part.packet);
            node.queue.remove(&part);
            if host == self.root_host {
                self.wake(self.root);
            }
        }
    }

    /// The first piece that somebody has sent is not needed any more: its slot is free.
    pub(super) fn release(&mut self, from: MemberId, to: MemberId) {
        let inbox = self.inbox(to, from);
        inbox.pieces.pop_front();
        inbox.slots = inbox.slots.saturating_sub(1);
        self.wake(from);
    }

    /// A member is done with a broadcast: waits are counted, and the dynamic policy decides.
    pub(super) fn leave(&mut self, id: MemberId, broadcast: u32) {
        let host = self.placement.host_of(id);
        if id == self.root {
            return;
        }
        let method = self.parameters.method;
        let is_led = method != Method::Direct && self.server(id, broadcast) == id;
        let member = &self.members[id.index()];
        let wait = Picoseconds((member.had - member.entered).0);
        let figures = if is_led { &mut self.figures.leader_wait } else { &mut self.figures.other_wait };
        figures.add(wait);
        let node = &mut self.nodes[host.index()];
        let (leader, receivers, leader_wait) = (node.leader, node.receivers, node.leader_wait.value());
        let round = node.round(broadcast);
        // A leader that has not come yet will find the packet waiting.
        let waiting = round.found_waiting.unwrap_or(true);
        round.left += 1;
        if round.left == receivers {
            node.rounds.remove(&broadcast);
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
        match member.attachment.after(&policy, wait, waiting, leader_wait) {
            super::policy::Decision::Stay => {}
            super::policy::Decision::Attach => member.script.push_front(Step::Attach),
            super::policy::Decision::Detach => member.script.push_front(Step::Detach),
        }
    }
}
