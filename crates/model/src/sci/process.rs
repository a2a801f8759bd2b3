//! The process of a node: its CPU copies, and stalls when too many transactions are outstanding.

use treecast_terms::{Bytes, Picoseconds};

use super::parameters::Parameters;

/// The segmentation of a message into pieces, one transaction each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pieces {
    message: Bytes,
    flag: Bytes,
    data: Bytes,
}

impl Pieces {
    pub fn new(message: Bytes, parameters: &Parameters) -> Self {
        Self { message, flag: parameters.flag, data: parameters.data }
    }

    /// Whether message and flag are one piece.
    fn is_one(self) -> bool {
        self.message + self.flag <= self.data
    }

    /// The number of pieces; the last one holds the flag.
    pub fn count(self) -> u32 {
        if self.is_one() { 1 } else { self.message.0.div_ceil(self.data.0) as u32 + 1 }
    }

    /// The length of a piece.
    pub fn length(self, piece: u32) -> Bytes {
        if self.is_one() {
            self.message + self.flag
        } else if piece + 1 == self.count() {
            self.flag
        } else {
            self.data.min(self.message - Bytes(u64::from(piece) * self.data.0))
        }
    }

    /// Whether a piece may be written only after all earlier ones have their responses: a separate flag, which could otherwise
    /// overtake the data.
    fn is_behind_barrier(self, piece: u32) -> bool {
        piece > 0 && piece + 1 == self.count()
    }
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has nothing to send, or does not have the message yet.
    Idle,
    /// It prepares a message.
    Preparing,
    /// It writes a piece.
    Writing(u32),
    /// It would write a piece, and stalls.
    Stalled(u32),
}

/// A process that sends its messages one after another.
#[derive(Debug, Clone)]
pub(super) struct Process {
    state: State,
    /// The number of messages to send, and the current one.
    messages: u32,
    message: u32,
    outstanding: u32,
    busy: Picoseconds,
    began: Picoseconds,
}

impl Process {
    pub fn new(messages: u32) -> Self {
        Self {
            state: State::Idle,
            messages,
            message: 0,
            outstanding: 0,
            busy: Picoseconds::ZERO,
            began: Picoseconds::ZERO,
        }
    }

    /// Starts to send, with the message in memory; returns the time of the first work, if there is any.
    pub fn begin(&mut self, now: Picoseconds, parameters: &Parameters) -> Option<Picoseconds> {
        if self.message == self.messages {
            self.state = State::Idle;
            return None;
        }
        self.state = State::Preparing;
        self.began = now;
        Some(parameters.send)
    }

    /// Completes the current work; returns the message and piece that it has written, if any, and the time of its next work.
    pub fn done(
        &mut self,
        now: Picoseconds,
        pieces: Pieces,
        parameters: &Parameters,
    ) -> (Option<(u32, u32)>, Option<Picoseconds>) {
        match self.state {
            State::Preparing => (None, self.write(0, pieces, parameters)),
            State::Writing(piece) => {
                let written = (self.message, piece);
                if piece + 1 < pieces.count() {
                    return (Some(written), self.write(piece + 1, pieces, parameters));
                }
                self.busy += now - self.began;
                self.message += 1;
                (Some(written), self.begin(now, parameters))
            }
            State::Idle | State::Stalled(_) => unreachable!("it is not at work"),
        }
    }

    /// A transaction has its response; returns the time of the next work, if the process had stalled and continues.
    pub fn response_received(&mut self, pieces: Pieces, parameters: &Parameters) -> Option<Picoseconds> {
        self.outstanding -= 1;
        match self.state {
            State::Stalled(piece) => self.write(piece, pieces, parameters),
            _ => None,
        }
    }

    /// Starts to write a piece, or stalls.
    fn write(&mut self, piece: u32, pieces: Pieces, parameters: &Parameters) -> Option<Picoseconds> {
        let barred = pieces.is_behind_barrier(piece) && self.outstanding > 0;
        if barred || self.outstanding == parameters.outstanding {
            self.state = State::Stalled(piece);
            return None;
        }
        self.outstanding += 1;
        self.state = State::Writing(piece);
        Some(pieces.length(piece).time_at(parameters.write_mb_per_s))
    }

    /// The time spent on sending, stalls included.
    pub fn busy(&self) -> Picoseconds {
        self.busy
    }
}
