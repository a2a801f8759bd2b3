//! The execution of steps.

use treecast_plan::MemberId;
use treecast_terms::Bytes;

use super::packet::{Content, Packet};
use super::script::{Piece, Step};
use super::simulation::{Activity, Event, Simulation, StepResult};

impl Simulation<'_> {
    /// Starts a step, unless it must wait or takes no time.
    pub(super) fn start_step(&mut self, id: MemberId, step: Step) -> StepResult {
        let parameters = self.parameters;
        let now = self.events.now();
        let work = |span| StepResult::Work(span, Activity::Step(step));
        match step {
            Step::Start => self.started = now,
            Step::Finish(turn) => self.finish(turn),
            Step::Delay(span) => return work(span),
            Step::Send(to, piece) => return self.start_send(id, to, piece),
            Step::Receive(from) => {
                let (is_local, is_far) = (self.are_together(id, from), self.is_far(from, id));
                let Some(piece) = self.inbox(id, from).pieces.front().copied() else {
                    return StepResult::Blocked;
                };
                let length = if piece.is_copied { piece.length } else { Bytes::ZERO };
                let overhead = if is_local { parameters.shared } else { parameters.receive };
                return work(overhead + parameters.copy(length, is_far));
            }
            Step::EnterBroadcast(broadcast) => self.enter(id, broadcast),
            Step::WaitForWindow if self.pending.len() >= parameters.window_broadcasts as usize => {
                return StepResult::Blocked;
            }
            Step::Retransmit(packet_id, to) if !self.is_unacknowledged(packet_id.broadcast, to) => {
                self.retransmission_done(packet_id.broadcast);
            }
            Step::Multicast(packet_id) | Step::Retransmit(packet_id, _) => {
                return work(parameters.post + parameters.copy(self.packet_length(packet_id.packet), false));
            }
            Step::Publish(packet_id) => {
                let waiting = self.nodes[self.root_host.index()].queue.len() as u32 + self.publishing;
                if waiting >= parameters.receive_buffers {
                    return StepResult::Blocked;
                }
                return work(
                    parameters.shared + parameters.copy(self.packet_length(packet_id.packet), false),
                );
            }
            Step::ReceivePackets(broadcast) => return self.receive_packets(id, broadcast),
            Step::MessageReceived => self.members[id.index()].completed_at = now,
            Step::Acknowledge(broadcast) if self.is_to_acknowledge(id, broadcast) => {
                return work(parameters.post);
            }
            Step::WaitForWindow | Step::Acknowledge(_) => {}
            Step::LeaveBroadcast(broadcast) => self.leave(id, broadcast),
            Step::Attach => return work(parameters.attach),
            Step::Detach => return work(parameters.detach),
        }
        StepResult::Done
    }

    /// Starts to send a piece, if it is still needed and there is room for it.
    fn start_send(&mut self, id: MemberId, to: MemberId, piece: Piece) -> StepResult {
        let parameters = self.parameters;
        if piece.packet_id.is_some_and(|packet_id| self.has(to, packet_id)) {
            return StepResult::Done;
        }
        let mut overhead = parameters.send;
        if self.are_together(id, to) {
            let inbox = self.inbox(to, id);
            if inbox.slots == parameters.queue_slots {
                return StepResult::Blocked;
            }
            inbox.slots += 1;
            overhead = parameters.shared;
        }
        let length = if piece.is_copied { piece.length } else { Bytes::ZERO };
        let span = overhead + parameters.copy(length, false);
        StepResult::Work(span, Activity::Step(Step::Send(to, piece)))
    }

    /// Takes the effect of a step at the end of its time.
    pub(super) fn complete(&mut self, id: MemberId, step: Step) {
        let host = self.placement.host_of(id);
        match step {
            Step::Send(to, piece) if self.are_together(id, to) => {
                self.events.schedule_after(self.parameters.flag, Event::PieceArrived(id, to, piece));
            }
            Step::Send(to, piece) => self.post_message(id, to, piece),
            Step::Receive(from) => self.release(from, id),
            Step::Multicast(packet_id) => {
                let content = Content::Datagram { packet_id, only: None };
                self.post_packet(Packet {
                    from: host,
                    content,
                    length: self.packet_length(packet_id.packet),
                });
                if packet_id.packet + 1 == self.packets {
                    self.await_acknowledgments(packet_id.broadcast);
                }
            }
            Step::Retransmit(packet_id, to) => {
                self.retransmission_done(packet_id.broadcast);
                self.figures.retransmissions += 1;
                let content = Content::Datagram { packet_id, only: Some(to) };
                self.post_packet(Packet {
                    from: host,
                    content,
                    length: self.packet_length(packet_id.packet),
                });
            }
            Step::Publish(packet_id) => {
                self.publishing += 1;
                self.events.schedule_after(self.parameters.flag, Event::Published(packet_id));
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

    /// Sends a message to another node in packets.
    fn post_message(&mut self, from: MemberId, to: MemberId, piece: Piece) {
        let mtu = self.parameters.mtu.0;
        let packets = piece.length.0.div_ceil(mtu).max(1);
        for packet in 0..packets {
            let length = Bytes((piece.length.0 - packet * mtu).min(mtu));
            let content = Content::Message { from, to, piece, is_last: packet + 1 == packets };
            self.post_packet(Packet { from: self.placement.host_of(from), content, length });
        }
    }

    /// A piece has arrived.
    pub(super) fn piece_arrived(&mut self, from: MemberId, to: MemberId, piece: Piece) {
        self.inbox(to, from).pieces.push_back(piece);
        self.proceed(to);
    }
}
