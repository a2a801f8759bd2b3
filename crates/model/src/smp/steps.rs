//! What each step of a process does.

use treecast_plan::MemberId;
use treecast_terms::Bytes;

use super::packet::{Content, Flight};
use super::script::{Piece, Step};
use super::simulation::{Begin, Doing, Event, Simulation};

impl Simulation<'_> {
    /// Begins a step, unless it must wait or takes no time.
    pub(super) fn begin(&mut self, id: MemberId, step: Step) -> Begin {
        let parameters = self.parameters;
        let now = self.events.now();
        let work = |span| Begin::Work(span, Doing::Step(step));
        match step {
            Step::Start => self.started = now,
            Step::Finish(turn) => self.finish(turn),
            Step::Delay(span) => return work(span),
            Step::Put(to, piece) => return self.begin_put(id, to, piece),
            Step::Take(from) => {
                let (is_local, is_far) = (self.are_together(id, from), self.is_far(from, id));
                let Some(piece) = self.inbox(id, from).pieces.front().copied() else { return Begin::Blocked };
                let length = if piece.is_copied { piece.length } else { Bytes::ZERO };
                let overhead = if is_local { parameters.shared } else { parameters.receive };
                return work(overhead + parameters.copy(length, is_far));
            }
            Step::Enter(broadcast) => self.enter(id, broadcast),
            Step::Window if self.pending.len() >= parameters.window_broadcasts as usize => {
                return Begin::Blocked;
            }
            Step::Repeat(part, to) if !self.is_silent(part.broadcast, to) => self.repeated(part.broadcast),
            Step::Multicast(part) | Step::Repeat(part, _) => {
                return work(parameters.post + parameters.copy(self.part_length(part.packet), false));
            }
            Step::Publish(part) => {
                let waiting = self.nodes[self.root_host.index()].queue.len() as u32 + self.publishing;
                if waiting >= parameters.receive_buffers {
                    return Begin::Blocked;
                }
                return work(parameters.shared + parameters.copy(self.part_length(part.packet), false));
            }
            Step::Collect(broadcast) => return self.collect(id, broadcast),
            Step::Have => self.members[id.index()].had = now,
            Step::Acknowledge(broadcast) if self.is_to_acknowledge(id, broadcast) => {
                return work(parameters.post);
            }
            Step::Window | Step::Acknowledge(_) => {}
            Step::Leave(broadcast) => self.leave(id, broadcast),
            Step::Attach => return work(parameters.attach),
            Step::Detach => return work(parameters.detach),
        }
        Begin::Passed
    }

    /// Sends a piece, where it is still needed and there is room for it.
    fn begin_put(&mut self, id: MemberId, to: MemberId, piece: Piece) -> Begin {
        let parameters = self.parameters;
        if piece.part.is_some_and(|part| self.has(to, part)) {
            return Begin::Passed;
        }
        let mut overhead = parameters.send;
        if self.are_together(id, to) {
            let inbox = self.inbox(to, id);
            if inbox.slots == parameters.queue_slots {
                return Begin::Blocked;
            }
            inbox.slots += 1;
            overhead = parameters.shared;
        }
        let length = if piece.is_copied { piece.length } else { Bytes::ZERO };
        let span = overhead + parameters.copy(length, false);
        Begin::Work(span, Doing::Step(Step::Put(to, piece)))
    }

    /// Does what a step has taken its time for.
    pub(super) fn complete(&mut self, id: MemberId, step: Step) {
        let host = self.placement.host_of(id);
        match step {
            Step::Put(to, piece) if self.are_together(id, to) => {
                self.events.schedule_after(self.parameters.flag, Event::Came(id, to, piece));
            }
            Step::Put(to, piece) => self.post_message(id, to, piece),
            Step::Take(from) => self.release(from, id),
            Step::Multicast(part) => {
                let content = Content::Datagram { part, only: None };
                self.hand_over(Flight { from: host, content, length: self.part_length(part.packet) });
                if part.packet + 1 == self.packets {
                    self.await_acknowledgments(part.broadcast);
                }
            }
            Step::Repeat(part, to) => {
                self.repeated(part.broadcast);
                self.figures.retransmissions += 1;
                let content = Content::Datagram { part, only: Some(to) };
                self.hand_over(Flight { from: host, content, length: self.part_length(part.packet) });
            }
            Step::Publish(part) => {
                self.publishing += 1;
                self.events.schedule_after(self.parameters.flag, Event::Published(part));
            }
            Step::Acknowledge(broadcast) => self.acknowledge(id, broadcast),
            Step::Attach => {
                self.members[id.index()].is_attached = true;
                self.figures.attaches += 1;
            }
            Step::Detach => {
                self.members[id.index()].is_attached = false;
                self.figures.detaches += 1;
            }
            _ => {}
        }
    }

    /// A message leaves in packets.
    fn post_message(&mut self, from: MemberId, to: MemberId, piece: Piece) {
        let mtu = self.parameters.mtu.0;
        let packets = piece.length.0.div_ceil(mtu).max(1);
        for packet in 0..packets {
            let length = Bytes((piece.length.0 - packet * mtu).min(mtu));
            let content = Content::Message { from, to, piece, is_last: packet + 1 == packets };
            self.hand_over(Flight { from: self.placement.host_of(from), content, length });
        }
    }

    /// A piece has come.
    pub(super) fn came(&mut self, from: MemberId, to: MemberId, piece: Piece) {
        self.inbox(to, from).pieces.push_back(piece);
        self.proceed(to);
    }
}
