//! What the root keeps track of: acknowledgments, repetition, and how long iterations take. And who does what in one.

use treecast_plan::MemberId;
use treecast_terms::{Bytes, Picoseconds};

use super::packet::{Content, Flight};
use super::parameters::{Method, Turns};
use super::script::{Exchange, Part, Step};
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
        steps.push(Step::Have);
        steps
    }

    fn exchange(&self, from: MemberId, to: MemberId, message: Bytes, is_sender: bool) -> Vec<Step> {
        let is_local = self.are_together(from, to);
        Exchange { parameters: self.parameters, from, to, is_local, message }.steps(is_sender)
    }

    /// Whose turn it is to acknowledge a broadcast: one after another, or where there are fewer broadcasts than receivers
    /// some that stand evenly among them.
    fn turn(&self, broadcast: u32) -> MemberId {
        let (all, past) = (self.turns.len(), broadcast as usize - 1);
        let rounds = self.broadcasts as usize;
        let place = if rounds < all { past * all / rounds } else { past % all };
        self.turns[place].0
    }

    /// Who takes turns.
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
            steps.extend([Step::Start, Step::Enter(broadcast)]);
            steps.extend(self.root_steps(broadcast));
            steps.push(Step::Leave(broadcast));
            steps.extend(self.exchange(turn, id, TURN, false));
            steps.push(Step::Finish(turn));
            return steps;
        }
        let host = self.placement.host_of(id);
        if self.nodes[host.index()].leader == id {
            steps.push(Step::Delay(self.parameters.leader_delay));
        }
        steps.push(Step::Enter(broadcast));
        if self.parameters.method == Method::Original {
            steps.extend(self.planned_steps(id));
        } else {
            steps.extend([Step::Collect(broadcast), Step::Acknowledge(broadcast)]);
        }
        steps.push(Step::Leave(broadcast));
        if id == turn {
            steps.extend(self.exchange(id, self.root, TURN, true));
        }
        steps
    }

    fn root_steps(&self, broadcast: u32) -> Vec<Step> {
        let parts = (0..self.packets).map(|packet| Part { broadcast, packet });
        if self.parameters.method == Method::Original {
            return self.planned_steps(self.root);
        }
        let mut steps = vec![Step::Window];
        steps.extend(parts.clone().map(Step::Multicast));
        match self.parameters.method {
            Method::NoSmp => {}
            Method::Direct if self.nodes[self.root_host.index()].receivers == 0 => {}
            Method::Direct => steps.extend(parts.map(Step::Publish)),
            _ => steps.extend(parts.flat_map(|part| self.services(self.root, part))),
        }
        steps
    }

    /// What the plan has a process do: receive, then send to each of its children.
    fn planned_steps(&self, id: MemberId) -> Vec<Step> {
        let Job::Broadcasts { plan: Some(plan), sends: Some(sends), .. } = &self.job else {
            return Vec::new();
        };
        let mut steps = Vec::new();
        if let Some(parent) = self.parents.get(id.index()).copied().flatten() {
            steps.extend(self.exchange(parent, id, self.message, false));
            steps.push(Step::Have);
        }
        for &worm in sends.of(id) {
            let to = plan.worms()[worm as usize].to[0];
            steps.extend(self.exchange(id, to, self.message, true));
        }
        steps
    }

    /// An iteration is over: its time is counted, and that of the message that ended it.
    pub(super) fn finish(&mut self, turn: MemberId) {
        let place = self.turns.iter().position(|&(member, _)| member == turn).expect("it was its turn");
        self.figures.iterations += 1;
        if self.figures.iterations > self.parameters.warmup_iterations {
            self.figures.spans += self.events.now() - self.started;
            self.figures.messages += self.turns[place].1;
        }
    }

    /// Who is to acknowledge broadcasts: everybody who is attached from the beginning, or one for each other node.
    fn acknowledgers(&self) -> Vec<MemberId> {
        if self.parameters.method == Method::NoSmp {
            return self.group.destinations().to_vec();
        }
        self.other_hosts().into_iter().map(|host| self.nodes[host.index()].members[0]).collect()
    }

    /// Whether it is up to a process to acknowledge a broadcast that it has.
    pub(super) fn is_to_acknowledge(&mut self, id: MemberId, broadcast: u32) -> bool {
        let host = self.placement.host_of(id);
        let is_away = host != self.root_host;
        match self.parameters.method {
            Method::NoSmp => true,
            Method::Original => false,
            Method::Smp | Method::Dynamic => is_away && self.nodes[host.index()].leader == id,
            Method::Moving | Method::Direct => {
                let round = self.nodes[host.index()].round(broadcast);
                is_away && !std::mem::replace(&mut round.has_acknowledged, true)
            }
        }
    }

    /// A process, or its node by its first member, tells the root that it has a broadcast.
    pub(super) fn acknowledge(&mut self, id: MemberId, broadcast: u32) {
        let host = self.placement.host_of(id);
        let from = if self.parameters.method.is_shared() { self.nodes[host.index()].members[0] } else { id };
        if host == self.root_host {
            return self.events.schedule_after(self.parameters.flag, Event::Acknowledged(broadcast, from));
        }
        let content = Content::Acknowledgment { broadcast, from };
        self.hand_over(Flight { from: host, content, length: Bytes::ZERO });
    }

    /// The last packet of a broadcast is on its way: who is to acknowledge it, and until when.
    pub(super) fn await_acknowledgments(&mut self, broadcast: u32) {
        let silent = self.acknowledgers().into_iter().collect();
        self.pending.insert(broadcast, Pending { silent, repeats: 0 });
        self.forget(broadcast);
        self.events.schedule_after(self.parameters.timeout, Event::Timeout(broadcast));
    }

    /// Broadcasts that all have acknowledged are forgotten.
    fn forget(&mut self, broadcast: u32) {
        if self.pending.get(&broadcast).is_some_and(|pending| pending.silent.is_empty()) {
            self.pending.remove(&broadcast);
        }
    }

    /// An acknowledgment is in the root's memory.
    pub(super) fn acknowledged(&mut self, broadcast: u32, from: MemberId) {
        self.acknowledgments.push_back((broadcast, from));
        self.proceed(self.root);
    }

    /// The root has looked at the oldest acknowledgment.
    pub(super) fn settle_acknowledgment(&mut self) {
        let (broadcast, from) = self.acknowledgments.pop_front().expect("there was one");
        self.figures.acknowledgments += 1;
        if let Some(pending) = self.pending.get_mut(&broadcast) {
            pending.silent.remove(&from);
        }
        self.forget(broadcast);
    }

    /// Whether somebody has not acknowledged.
    pub(super) fn is_silent(&self, broadcast: u32, id: MemberId) -> bool {
        self.pending.get(&broadcast).is_some_and(|pending| pending.silent.contains(&id))
    }

    /// A repetition is sent, or not needed any more.
    pub(super) fn repeated(&mut self, broadcast: u32) {
        if let Some(pending) = self.pending.get_mut(&broadcast) {
            pending.repeats -= 1;
        }
    }

    /// Time is up: all packets go again to each who is silent, unless they are still about to.
    pub(super) fn timeout(&mut self, broadcast: u32) {
        let Some(pending) = self.pending.get_mut(&broadcast) else { return };
        self.events.schedule_after(self.parameters.timeout, Event::Timeout(broadcast));
        if pending.repeats > 0 {
            return;
        }
        pending.repeats = pending.silent.len() as u32 * self.packets;
        let script = &mut self.members[self.root.index()].script;
        for &to in pending.silent.iter().rev() {
            for packet in (0..self.packets).rev() {
                script.push_front(Step::Repeat(Part { broadcast, packet }, to));
            }
        }
        self.proceed(self.root);
    }

    /// How long a message took by itself, once it has come.
    pub(super) fn message_time(&self) -> Option<Picoseconds> {
        let Job::Message { to } = self.job else { return None };
        let member = &self.members[to.index()];
        member.script.is_empty().then_some(member.had)
    }
}
