//! What processes do, one thing after another.

use treecast_plan::MemberId;
use treecast_terms::{Bytes, Picoseconds};

use super::parameters::Parameters;

/// A packet of a broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    /// Which broadcast, from 1.
    pub broadcast: u32,
    /// Which packet of it, from 0.
    pub packet: u32,
}

/// What goes from one process to another at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// How long it is.
    pub length: Bytes,
    /// Whether processes copy it.
    pub is_copied: bool,
    /// The packet of a broadcast that it is, where a leader serves its node.
    pub part: Option<Part>,
}

/// A step of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The root begins an iteration.
    Start,
    /// The root has the acknowledgment that ends it, from the process whose turn it was.
    Finish(MemberId),
    /// The process is away.
    Delay(Picoseconds),
    /// Sends a piece.
    Put(MemberId, Piece),
    /// Receives the next piece of somebody.
    Take(MemberId),
    /// Comes to a broadcast.
    Enter(u32),
    /// Waits until not too many broadcasts lack acknowledgments.
    Window,
    /// Sends a packet to the multicast group.
    Multicast(Part),
    /// Writes a packet where all processes of the node find it.
    Publish(Part),
    /// Takes packets until there are none left.
    Collect(u32),
    /// It has the whole message.
    Have,
    /// Tells the root so, where that is up to it.
    Acknowledge(u32),
    /// Is done with a broadcast.
    Leave(u32),
    /// Attaches to the multicast group.
    Attach,
    /// Detaches from it.
    Detach,
    /// Sends a packet again to somebody who has not acknowledged.
    Repeat(Part, MemberId),
}

/// How a message goes from one process to another: by itself, or announced and answered first.
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
        let whole = Piece { length: self.message, is_copied: is_eager, part: None };
        if is_eager || !self.is_local {
            return vec![whole];
        }
        // Inside a node everything is copied.
        let size = self.parameters.piece;
        let length = |start: u64| size.min(self.message - Bytes(start));
        let starts = (0..self.message.0).step_by(size.0 as usize);
        starts.map(|start| Piece { length: length(start), is_copied: true, part: None }).collect()
    }

    /// The sender's steps, or the receiver's.
    pub fn steps(&self, is_sender: bool) -> Vec<Step> {
        const CONTROL: Piece = Piece { length: Bytes::ZERO, is_copied: true, part: None };
        let (put, take) = (|piece| Step::Put(self.to, piece), |_| Step::Take(self.from));
        let mut steps = Vec::new();
        if self.message > self.eager_limit() {
            if is_sender {
                steps.extend([put(CONTROL), Step::Take(self.to)]);
            } else {
                steps.extend([Step::Take(self.from), Step::Put(self.from, CONTROL)]);
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
            let puts = steps.iter().filter(|step| matches!(step, Step::Put(..))).count();
            (puts, steps.len() - puts)
        })
    }

    #[test]
    fn what_one_puts_the_other_takes() {
        assert_eq!(counts(8192, true), [(1, 0), (0, 1)]);
        assert_eq!(counts(8193, true), [(3, 1), (1, 3)]);
        assert_eq!(counts(8192, false), [(1, 0), (0, 1)]);
        assert_eq!(counts(100_000, false), [(2, 1), (1, 2)]);
    }
}
