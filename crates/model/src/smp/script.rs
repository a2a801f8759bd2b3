//! The steps of processes.

use treecast_plan::MemberId;
use treecast_terms::{Bytes, Picoseconds};

use super::parameters::Parameters;

/// A packet of a broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PacketId {
    /// The broadcast, from 1.
    pub broadcast: u32,
    /// The packet of the broadcast, from 0.
    pub packet: u32,
}

/// A unit of transfer between two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// The length.
    pub length: Bytes,
    /// Whether processes copy it.
    pub is_copied: bool,
    /// The packet of a broadcast, if a leader forwards it.
    pub packet_id: Option<PacketId>,
}

/// A step of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The root begins an iteration.
    Start,
    /// The root ends an iteration: it has the message of the process whose turn it was.
    Finish(MemberId),
    /// The process is late.
    Delay(Picoseconds),
    /// Sends a piece.
    Send(MemberId, Piece),
    /// Receives the next piece from a process.
    Receive(MemberId),
    /// Enters a broadcast.
    EnterBroadcast(u32),
    /// Waits until the window of unacknowledged broadcasts has room.
    WaitForWindow,
    /// Sends a packet to the multicast group.
    Multicast(PacketId),
    /// Writes a packet to shared memory for all processes of the node.
    Publish(PacketId),
    /// Receives packets until the broadcast is complete.
    ReceivePackets(u32),
    /// Records that the whole message has arrived.
    MessageReceived,
    /// Acknowledges the broadcast, if its method requires that.
    Acknowledge(u32),
    /// Leaves a broadcast.
    LeaveBroadcast(u32),
    /// Attaches to the multicast group.
    Attach,
    /// Detaches from it.
    Detach,
    /// Retransmits a packet to a member that has not acknowledged.
    Retransmit(PacketId, MemberId),
}

/// A message between two processes: eager, or after a rendezvous.
pub(super) struct Exchange<'a> {
    pub parameters: &'a Parameters,
    pub from: MemberId,
    pub to: MemberId,
    /// Whether both are on one node.
    pub is_local: bool,
    pub message: Bytes,
}

impl Exchange<'_> {
    fn eager_limit(&self) -> Bytes {
        if self.is_local { self.parameters.shared_eager } else { self.parameters.eager }
    }

    /// The pieces of the message itself.
    fn pieces(&self) -> Vec<Piece> {
        let is_eager = self.message <= self.eager_limit();
        let whole = Piece { length: self.message, is_copied: is_eager, packet_id: None };
        if is_eager || !self.is_local {
            return vec![whole];
        }
        // Inside a node everything is copied.
        let size = self.parameters.piece;
        let length = |start: u64| size.min(self.message - Bytes(start));
        let starts = (0..self.message.0).step_by(size.0 as usize);
        starts.map(|start| Piece { length: length(start), is_copied: true, packet_id: None }).collect()
    }

    /// The sender's steps, or the receiver's.
    pub fn steps(&self, is_sender: bool) -> Vec<Step> {
        const CONTROL: Piece = Piece { length: Bytes::ZERO, is_copied: true, packet_id: None };
        let (put, take) = (|piece| Step::Send(self.to, piece), |_| Step::Receive(self.from));
        let mut steps = Vec::new();
        if self.message > self.eager_limit() {
            if is_sender {
                steps.extend([put(CONTROL), Step::Receive(self.to)]);
            } else {
                steps.extend([Step::Receive(self.from), Step::Send(self.from, CONTROL)]);
            }
        }
        let pieces = self.pieces().into_iter();
        if is_sender {
            steps.extend(pieces.map(put));
        } else {
            steps.extend(pieces.map(take));
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(message: u64, is_local: bool) -> [(usize, usize); 2] {
        let parameters = Parameters::default();
        let (from, to) = (MemberId(0), MemberId(1));
        let exchange = Exchange { parameters: &parameters, from, to, is_local, message: Bytes(message) };
        [true, false].map(|is_sender| {
            let steps = exchange.steps(is_sender);
            let puts = steps.iter().filter(|step| matches!(step, Step::Send(..))).count();
            (puts, steps.len() - puts)
        })
    }

    #[test]
    fn the_receiver_receives_what_the_sender_sends() {
        assert_eq!(counts(8192, true), [(1, 0), (0, 1)]);
        assert_eq!(counts(8193, true), [(3, 1), (1, 3)]);
        assert_eq!(counts(8192, false), [(1, 0), (0, 1)]);
        assert_eq!(counts(100_000, false), [(2, 1), (1, 2)]);
    }
}
