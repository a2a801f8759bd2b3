//! The buffer of an application, as its call lends it to the node.

#![expect(unsafe_code, reason = "the node stores packets in buffers")]

use std::ops::Range;

use treecast_proto::Sequence;
use treecast_shm::message_buffer::LentBuffer;

use super::group::Group;
use super::receiver::Receiver;
use super::sink::Sink;

/// What the node has stored in the buffer of a call. Whatever of it the application has not taken
/// when the call ends goes into the slots.
#[derive(Debug)]
pub(super) struct Loan<'a> {
    group: &'a Group,
    /// The buffer as it was lent last.
    lent: Option<LentBuffer>,
    /// Whether the node has it.
    is_out: bool,
    /// The packets that are stored there, and that the application has not taken.
    stored: Range<Sequence>,
    /// Whether the node may have a part of a packet there.
    has_part: bool,
}

impl<'a> Loan<'a> {
    /// The loan of a call, which has lent nothing yet.
    pub const fn new(group: &'a Group) -> Self {
        Self { group, lent: None, is_out: false, stored: Sequence(0)..Sequence(0), has_part: false }
    }

    /// Lends the buffer for a wait, unless there are packets in it that the application has to take
    /// first.
    pub fn lend(&mut self, receiver: &Receiver, sink: &impl Sink) -> Option<&mut LentBuffer> {
        if !self.is_taken() {
            return None;
        }
        // SAFETY: the node has the buffer until the wait ends, and nothing in it when this is
        // dropped, before the call ends.
        let lent = unsafe { receiver.lend(sink) }?;
        self.is_out = true;
        Some(self.lent.insert(lent))
    }

    /// The wait is over.
    pub const fn take_back(&mut self) {
        if let (true, Some(lent)) = (self.is_out, &self.lent) {
            self.stored = lent.stored();
            self.has_part |= lent.has_part;
            self.is_out = false;
        }
    }

    /// Whether the application has taken all packets that are stored in the buffer.
    pub fn is_taken(&self) -> bool {
        self.stored.start == self.stored.end
    }

    /// The end of the packets from `first` to before `end` that are to be copied from their slots:
    /// `first` itself, if that is in the buffer.
    pub fn end_of_copies(&self, first: Sequence, end: Sequence) -> Sequence {
        let Range { start, end: stored_end } = self.stored;
        let is_ahead = start != stored_end && !start.is_before(first);
        if is_ahead { start.min(end) } else { end }
    }

    /// Takes the stored packets that the node has published; returns the packet behind them, and
    /// whether they complete their message.
    pub fn take_stored(&mut self, receiver: &Receiver, sink: &mut impl Sink) -> (Sequence, bool) {
        let Range { start, end: stored_end } = self.stored;
        let end = stored_end.min(receiver.reader.written());
        let mut bytes = 0;
        let mut is_last = false;
        for packet in start.until(end) {
            let piece = receiver.reader.piece(packet);
            bytes += piece.length as usize;
            is_last = piece.is_last();
        }
        // SAFETY: these packets are in consecutive slots from the end of what the sink has
        // on: there the buffer was lent, and what came before them was taken meanwhile.
        unsafe { sink.advance(bytes) };
        self.stored = end..stored_end;
        (end, is_last)
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        // After a panic the node still has it.
        self.take_back();
        if let Some(lent) = self.lent.filter(|_| self.has_part || !self.is_taken()) {
            self.group.settle(&lent, self.stored.clone());
        }
    }
}
