//! The root: acknowledgments, retransmission, and the time of iterations. And the steps of each
//! process in an iteration.

use treecast_plan::MemberId;
use treecast_terms::{Bytes, Picoseconds};

use super::packet::{Content, Packet};
use super::parameters::{Method, Turns};
use super::script::{Exchange, PacketId, Step};
use super::simulation::{Event, Job, Pending, Simulation};

/// The message that acknowledges a broadcast to the application.
pub(super) const TURN: Bytes = Bytes(1);

impl Simulation<'_> {
    /// The steps of a process for one message from the root.
    pub(super) fn message_steps(&self, id: MemberId, to: MemberId) -> Vec<Step> {
        if id != self.root && id != to {
            return Vec::new();
        }
        let mut steps = self.exchange(self.root, to, self.message, id == self.root);
        steps.push(Step::MessageReceived);
        steps
    }

    fn exchange(&self, from: MemberId, to: MemberId, message: Bytes, is_sender: bool) -> Vec<Step> {
        let is_local = self.are_together(from, to);
        Exchange { parameters: self.parameters, from, to, is_local, message }.steps(is_sender)
    }

    /// The member whose turn it is to acknowledge a broadcast: each in order, or evenly spaced ones
    /// if there are fewer broadcasts than receivers.
    fn turn(&self, broadcast: u32) -> MemberId {
        let (all, past) = (self.turns.len(), broadcast as usize - 1);
        let rounds = self.broadcasts as usize;
        let place = if rounds < all { past * all / rounds } else { past % all };
        self.turns[place].0
    }

    /// The members that take turns.
    pub(super) fn turn_takers(&self) -> Vec<MemberId> {
        let all = self.group.destinations();
        let is_led = |&&id: &&MemberId| self.nodes[self.placement.host_of(id).index()].leader != id;
        let led: Vec<MemberId> = all.iter().filter(is_led).copied().collect();
        if self.parameters.turns == Turns::NonLeaders && !led.is_empty() { led } else { all.to_vec() }
    }

    /// The steps of a process for one broadcast.
    pub(super) fn broadcast_steps(&self, id: MemberId, broadcast: u32) -> Vec<Step> {
        let turn = self.turn(broadcast);
        let mut steps = Vec::new();
        if id == self.root {
            steps.extend([Step::Start, Step::EnterBroadcast(broadcast)]);
            steps.extend(self.root_steps(broadcast));
            steps.push(Step::LeaveBroadcast(broadcast));
            steps.extend(self.exchange(turn, id, TURN, false));
            steps.push(Step::Finish(turn));
            return steps;
        }
        let host = self.placement.host_of(id);
        if self.nodes[host.index()].leader == id {
            steps.push(Step::Delay(self.parameters.leader_delay));
        }
        steps.push(Step::EnterBroadcast(broadcast));
        if self.parameters.method == Method::Original {
            steps.extend(self.planned_steps(id));
        } else {
            steps.extend([Step::ReceivePackets(broadcast), Step::Acknowledge(broadcast)]);
        }
        steps.push(Step::LeaveBroadcast(broadcast));
        if id == turn {
            steps.extend(self.exchange(id, self.root, TURN, true));
        }
        steps
    }

    fn root_steps(&self, broadcast: u32) -> Vec<Step> {
        let packet_ids = (0..self.packets).map(|packet| PacketId { broadcast, packet });
        if self.parameters.method == Method::Original {
            return self.planned_steps(self.root);
        }
        let mut steps = vec![Step::WaitForWindow];
        steps.extend(packet_ids.clone().map(Step::Multicast));
        match self.parameters.method {
            Method::NoSmp => {}
            Method::Direct if self.nodes[self.root_host.index()].receivers == 0 => {}
            Method::Direct => steps.extend(packet_ids.map(Step::Publish)),
            _ => steps.extend(packet_ids.flat_map(|packet_id| self.forward_steps(self.root, packet_id))),
        }
        steps
    }

    /// The steps of a process by the plan: receive, then send to each of its children.
    fn planned_steps(&self, id: MemberId) -> Vec<Step> {
        let Job::Broadcasts { plan: Some(plan), sends: Some(sends), .. } = &self.job else {
            return Vec::new();
        };
        let mut steps = Vec::new();
        if let Some(parent) = self.parents.get(id.index()).copied().flatten() {
            steps.extend(self.exchange(parent, id, self.message, false));
            steps.push(Step::MessageReceived);
        }
        for &worm in sends.of(id) {
            let to = plan.worms()[worm as usize].to[0];
            steps.extend(self.exchange(id, to, self.message, true));
        }
        steps
    }

    /// An iteration is over: its time is recorded, and that of the message that ended it.
    pub(super) fn finish(&mut self, turn: MemberId) {
        let place =
            self.turns.iter().position(|&(member, _)| member == turn).expect("the member takes turns");
        self.figures.iterations += 1;
        if self.figures.iterations > self.parameters.warmup_iterations {
            self.figures.spans += self.events.now() - self.started;
            self.figures.messages += self.turns[place].1;
        }
    }

    /// The members that acknowledge broadcasts: all that are attached from the beginning, or one
    /// for each other node.
    fn acknowledgers(&self) -> Vec<MemberId> {
        if self.parameters.method == Method::NoSmp {
            return self.group.destinations().to_vec();
        }
        self.other_hosts().into_iter().map(|host| self.nodes[host.index()].members[0]).collect()
    }

    /// Whether a process must acknowledge a broadcast that it has.
    pub(super) fn is_to_acknowledge(&mut self, id: MemberId, broadcast: u32) -> bool {
        let host = self.placement.host_of(id);
        let is_away = host != self.root_host;
        match self.parameters.method {
            Method::NoSmp => true,
            Method::Original => false,
            Method::Smp | Method::Dynamic => is_away && self.nodes[host.index()].leader == id,
            Method::Moving | Method::Direct => {
                let state = self.nodes[host.index()].broadcast_state(broadcast);
                is_away && !std::mem::replace(&mut state.has_acknowledged, true)
            }
        }
    }

    /// Sends an acknowledgment to the root, by a process or, with shared delivery, by its node.
    pub(super) fn acknowledge(&mut self, id: MemberId, broadcast: u32) {
        let host = self.placement.host_of(id);
        let from = if self.parameters.method.is_shared() { self.nodes[host.index()].members[0] } else { id };
        if host == self.root_host {
            return self.events.schedule_after(self.parameters.flag, Event::Acknowledged(broadcast, from));
        }
        let content = Content::Acknowledgment { broadcast, from };
        self.post_packet(Packet { from: host, content, length: Bytes::ZERO });
    }

    /// The last packet of a broadcast has been sent: starts its acknowledgment timer.
    pub(super) fn await_acknowledgments(&mut self, broadcast: u32) {
        let unacknowledged = self.acknowledgers().into_iter().collect();
        self.pending.insert(broadcast, Pending { unacknowledged, retransmissions_queued: 0 });
        self.remove_if_acknowledged(broadcast);
        self.events.schedule_after(self.parameters.timeout, Event::Timeout(broadcast));
    }

    /// Removes a broadcast that all members have acknowledged.
    fn remove_if_acknowledged(&mut self, broadcast: u32) {
        if self.pending.get(&broadcast).is_some_and(|pending| pending.unacknowledged.is_empty()) {
            self.pending.remove(&broadcast);
        }
    }

    /// An acknowledgment is in the root's memory.
    pub(super) fn acknowledged(&mut self, broadcast: u32, from: MemberId) {
        self.acknowledgments.push_back((broadcast, from));
        self.proceed(self.root);
    }

    /// The root has processed the oldest acknowledgment.
    pub(super) fn process_acknowledgment(&mut self) {
        let (broadcast, from) = self.acknowledgments.pop_front().expect("there was one");
        self.figures.acknowledgments += 1;
        if let Some(pending) = self.pending.get_mut(&broadcast) {
            pending.unacknowledged.remove(&from);
        }
        self.remove_if_acknowledged(broadcast);
    }

    /// Whether a member has not acknowledged.
    pub(super) fn is_unacknowledged(&self, broadcast: u32, id: MemberId) -> bool {
        self.pending.get(&broadcast).is_some_and(|pending| pending.unacknowledged.contains(&id))
    }

    /// A retransmission has been sent, or is no longer needed.
    pub(super) fn retransmission_done(&mut self, broadcast: u32) {
        if let Some(pending) = self.pending.get_mut(&broadcast) {
            pending.retransmissions_queued -= 1;
        }
    }

    /// The timer has expired: retransmits all packets to each member that has not acknowledged,
    /// unless retransmissions are queued.
    pub(super) fn timeout(&mut self, broadcast: u32) {
        let Some(pending) = self.pending.get_mut(&broadcast) else { return };
        self.events.schedule_after(self.parameters.timeout, Event::Timeout(broadcast));
        if pending.retransmissions_queued > 0 {
            return;
        }
        pending.retransmissions_queued = pending.unacknowledged.len() as u32 * self.packets;
        let script = &mut self.members[self.root.index()].script;
        for &to in pending.unacknowledged.iter().rev() {
            for packet in (0..self.packets).rev() {
                script.push_front(Step::Retransmit(PacketId { broadcast, packet }, to));
            }
        }
        self.proceed(self.root);
    }

    /// The time of a single message, once it has arrived.
    pub(super) fn message_time(&self) -> Option<Picoseconds> {
        let Job::Message { to } = self.job else { return None };
        let member = &self.members[to.index()];
        member.script.is_empty().then_some(member.completed_at)
    }
}
