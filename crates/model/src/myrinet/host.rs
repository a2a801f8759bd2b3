//! The processes: what they post, the events that they handle, and when they return.

use std::collections::VecDeque;

use treecast_sim::Offload;
use treecast_terms::{Bytes, Picoseconds};

use super::node::{GmEvent, Post};
use super::policies::{EagerCopies, Operation};
use super::simulation::{Event, Simulation};
use super::stream::Content;

/// The length of a control message between processes.
pub(super) const CONTROL: Bytes = Bytes(16);

/// The length of a leaf's reply: the smallest message.
const ANSWER: Bytes = Bytes(1);

impl Simulation<'_> {
    /// A process that is a root sends its messages; under a central manager it requests a credit
    /// first.
    pub fn send_own_messages(&mut self, node: usize) {
        let Some(group) = self.trees.iter().position(|tree| tree.root == node) else { return };
        let group = group as u32;
        let first = self.nodes[node].round * self.parameters.messages;
        for message in first..first + self.parameters.messages {
            if let Some(manager) = &self.manager {
                self.send_control(node, manager.node, Content::CreditRequest { group, message });
            } else {
                self.send_own(node, group, message);
            }
        }
    }

    /// A root sends its message.
    pub fn send_own(&mut self, node: usize, group: u32, message: u32) {
        self.send_on(node, group, message);
        self.task_done(node);
    }

    /// Sends a message to the children of a node: one send per child by the host, or one send that
    /// the NIC replicates.
    fn send_on(&mut self, node: usize, group: u32, message: u32) {
        let content = Content::Data { group, message };
        let length = self.message;
        let children = self.trees[group as usize].children[node].clone();
        self.nodes[node].tasks += self.sends(children.len());
        if self.rendezvous {
            self.unserved.insert((node, group, message), children.into());
            self.request_next(node, group, message);
        } else if self.forwarder == Offload::Host {
            for child in children {
                let stream = self.connection(node, child);
                self.post(node, Post { stream, content, length });
            }
        } else {
            let stream = self.queue(group, node);
            self.post(node, Post { stream, content, length });
        }
    }

    /// The number of sends for a number of children.
    fn sends(&self, children: usize) -> u32 {
        if self.forwarder == Offload::Host { children as u32 } else { 1 }
    }

    /// Rendezvous: sends a request to the next child. One send ends before the next starts.
    fn request_next(&mut self, node: usize, group: u32, message: u32) {
        let unserved = self.unserved.get_mut(&(node, group, message));
        if let Some(child) = unserved.and_then(VecDeque::pop_front) {
            self.send_control(node, child, Content::Ready { group, message });
        }
    }

    /// Sends a control message to another process. One to itself does not use the network.
    pub fn send_control(&mut self, node: usize, to: usize, content: Content) {
        let length = if matches!(content, Content::Answer { .. }) { ANSWER } else { CONTROL };
        if node == to {
            let notice = GmEvent::Received { from: node, content, length };
            let work = self.manager_work(node, content);
            self.cpu(node, work, Event::Handled { node, notice });
        } else {
            let stream = self.connection(node, to);
            self.post(node, Post { stream, content, length });
        }
    }

    /// Posts a send as soon as the process has a token.
    pub fn post(&mut self, node: usize, post: Post) {
        self.nodes[node].unposted.push_back(post);
        self.post_next(node);
    }

    fn post_next(&mut self, node: usize) {
        let parameters = self.parameters;
        while self.nodes[node].send_tokens_used < parameters.send_tokens
            && let Some(post) = self.nodes[node].unposted.pop_front()
        {
            let state = &mut self.nodes[node];
            state.send_tokens_used += 1;
            state.peak.send_tokens = state.peak.send_tokens.max(state.send_tokens_used);
            let mut work = parameters.host_post;
            let is_data = matches!(post.content, Content::Data { .. });
            if is_data && self.is_eager() && parameters.eager_copies == EagerCopies::Both {
                work += self.copy_time(post.length);
            }
            self.cpu(node, work, Event::Posted { node, post });
        }
    }

    fn copy_time(&self, length: Bytes) -> Picoseconds {
        length.time_at(self.parameters.memcpy_mb_per_s)
    }

    /// A process has posted a send: without a rendezvous it does not wait for completion.
    pub fn post_done(&mut self, node: usize, post: Post) {
        match post.content {
            Content::Data { .. } if !self.rendezvous => self.task_done(node),
            Content::Barrier { .. } => self.barrier_posted(node),
            _ => {}
        }
    }

    /// An event is in host memory: the process finds it at once, or later if it is not in the call
    /// that needs it.
    pub fn noticed(&mut self, node: usize, notice: GmEvent) {
        if !self.heeds(node, notice) {
            self.nodes[node].deferred.push(notice);
            return;
        }
        let mut work = self.parameters.host_event;
        if let GmEvent::Received { content, length, .. } = notice {
            work += self.manager_work(node, content);
            if self.is_eager() && matches!(content, Content::Data { .. }) {
                work += self.copy_time(length);
            }
        }
        self.cpu(node, work, Event::Handled { node, notice });
    }

    /// A process has handled an event.
    pub fn handled(&mut self, node: usize, notice: GmEvent) {
        if node == 0 {
            self.root_event = self.events.now();
        }
        match notice {
            GmEvent::Sent { content } => {
                self.nodes[node].send_tokens_used -= 1;
                self.post_next(node);
                match content {
                    Content::Data { group, message } => self.sent(node, group, message),
                    Content::Unicast => self.pause_before_unicast(),
                    _ => {}
                }
            }
            GmEvent::Received { from, content, .. } => match content {
                Content::Data { group, message } => self.delivered_to(node, group, message),
                // After a broadcast, the answer of the end of a path to its root.
                Content::Answer { .. } if self.completed.is_some() => {
                    self.answered = Some(self.events.now());
                }
                Content::Answer { .. } => self.count_down(),
                Content::Ready { group, message } => {
                    self.send_control(node, from, Content::Clear { group, message });
                }
                Content::Clear { group, message } => {
                    let (stream, length) = (self.connection(node, from), self.message);
                    self.post(node, Post { stream, content: Content::Data { group, message }, length });
                }
                Content::CreditRequest { group, message } => self.credit_requested(group, message),
                Content::CreditReturn { group, message } => self.credit_returned(group, message),
                Content::Barrier { round } => self.barrier_received(node, from, round),
                Content::CreditGrant { group, message } => self.send_own(node, group, message),
                Content::Unicast => self.unicast_delivered(node),
            },
        }
    }

    /// A process learns that all receivers have a message that it has sent.
    fn sent(&mut self, node: usize, group: u32, message: u32) {
        let is_root = self.trees[group as usize].root == node;
        if !is_root && !self.is_eager() {
            self.release_message(node, group, message);
        }
        if self.rendezvous {
            self.task_done(node);
            self.request_next(node, group, message);
        }
        if self.parameters.operation == Operation::Multisend && is_root {
            self.count_down();
        }
    }

    /// A process has received a message: where hosts forward, it sends it to its children.
    fn delivered_to(&mut self, node: usize, group: u32, message: u32) {
        self.row.delivered = self.events.now();
        let tree = &self.trees[group as usize];
        let (root, children) = (tree.root, tree.children[node].len());
        if self.forwarder != Offload::Nic && children > 0 {
            // A message that is not copied is forwarded from its receive buffer.
            if !self.is_eager() {
                let sends = self.sends(children);
                *self.holds.get_mut(&(node, group, message)).expect("it has just been received") += sends;
            }
            self.send_on(node, group, message);
        }
        self.release_message(node, group, message);
        if let Some(manager) = &self.manager {
            self.send_control(node, manager.node, Content::CreditReturn { group, message });
        }
        if children == 0 {
            self.missing[group as usize] -= 1;
            if self.missing[group as usize] == 0 {
                self.missing[group as usize] = self.expected_at_leaves(group);
                if self.parameters.operation == Operation::Multicast {
                    self.send_control(node, root, Content::Answer { group });
                }
            }
        }
        self.task_done(node);
    }

    fn task_done(&mut self, node: usize) {
        self.nodes[node].tasks -= 1;
        if self.nodes[node].tasks > 0 {
            return;
        }
        if self.makes_group {
            let work = Self::times(self.nodes.len() as u64, self.parameters.group_member);
            self.cpu(node, work, Event::GroupMade(node));
        } else {
            self.returned(node);
        }
    }
}
