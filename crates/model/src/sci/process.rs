//! The process of a node: its CPU copies, and stalls when too many transactions are outstanding.

use treecast_terms::Picoseconds;

use super::library::Part;
use super::parameters::Parameters;

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has nothing to send, or does not have the message yet.
    Idle,
    /// It prepares a part of a message.
    Preparing,
    /// It writes a piece.
    Writing(u32),
    /// It would write a piece, and stalls.
    Stalled(u32),
    /// It checks that earlier pieces have arrived, before it writes this one.
    Checking(u32),
    /// It polls for the receiver's clear.
    Waiting,
}

/// A piece that a process has written: of the message at a place in its list of sends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    pub send: u32,
    pub part: u32,
    pub piece: u32,
}

/// A process that sends its messages one after another.
#[derive(Debug, Clone)]
pub(super) struct Process {
    state: State,
    /// The number of messages to send, the current one and its part.
    sends: u32,
    send: u32,
    part: u32,
    is_clear: bool,
    outstanding: u32,
    busy: Picoseconds,
    began: Picoseconds,
}

impl Process {
    pub fn new(sends: u32) -> Self {
        Self {
            state: State::Idle,
            sends,
            send: 0,
            part: 0,
            is_clear: false,
            outstanding: 0,
            busy: Picoseconds::ZERO,
            began: Picoseconds::ZERO,
        }
    }

    /// The current message, by its place in the list of sends, and its part.
    pub fn current(&self) -> (u32, u32) {
        (self.send, self.part)
    }

    /// Whether every message has been written and every transaction has its response.
    pub fn is_done(&self) -> bool {
        self.send == self.sends && self.outstanding == 0
    }

    /// Starts with the next message, if there is one: its first part is to be prepared.
    pub fn begin(&mut self, now: Picoseconds) -> bool {
        self.part = 0;
        self.is_clear = false;
        self.began = now;
        let begins = self.send < self.sends;
        self.state = if begins { State::Preparing } else { State::Idle };
        begins
    }

    /// Completes the current work on a part; returns the piece that it has written, if any, and the
    /// time of its next work. After the last piece of the part there is none.
    pub fn done(&mut self, part: Part, parameters: &Parameters) -> (Option<Written>, Option<Picoseconds>) {
        match self.state {
            State::Preparing => (None, self.write(0, part, parameters)),
            State::Checking(piece) => (None, Some(self.start(piece, part, parameters))),
            State::Writing(piece) => {
                let written = Some(Written { send: self.send, part: self.part, piece });
                if piece + 1 < part.count() {
                    (written, self.write(piece + 1, part, parameters))
                } else {
                    (written, None)
                }
            }
            State::Idle | State::Stalled(_) | State::Waiting => unreachable!("it is not at work"),
        }
    }

    /// Continues with the next part of the message; returns the time of the work, unless it waits
    /// for a clear.
    pub fn next_part(&mut self, part: Part) -> Option<Picoseconds> {
        self.part += 1;
        if part.awaits_clear && !self.is_clear {
            self.state = State::Waiting;
            return None;
        }
        self.state = State::Preparing;
        Some(part.work)
    }

    /// The message has been written.
    pub fn finish(&mut self, now: Picoseconds) {
        self.busy += now - self.began;
        self.send += 1;
    }

    /// The receiver's clear is there; returns the time of the next work, if the process waits for
    /// it.
    pub fn clear_received(&mut self, part: Part) -> Option<Picoseconds> {
        self.is_clear = true;
        if self.state != State::Waiting {
            return None;
        }
        self.state = State::Preparing;
        Some(part.work)
    }

    /// A transaction has its response; returns whether the process had stalled.
    pub fn response_received(&mut self) -> bool {
        self.outstanding -= 1;
        matches!(self.state, State::Stalled(_))
    }

    /// Continues after a stall; returns the time of the next work, unless it stalls again.
    pub fn resume(&mut self, part: Part, parameters: &Parameters) -> Option<Picoseconds> {
        let State::Stalled(piece) = self.state else { unreachable!("it has not stalled") };
        self.write(piece, part, parameters)
    }

    /// Starts to write a piece, or to check, or stalls.
    fn write(&mut self, piece: u32, part: Part, parameters: &Parameters) -> Option<Picoseconds> {
        let is_behind_barrier = part.is_behind_barrier(piece);
        if is_behind_barrier && self.outstanding > 0 || self.outstanding == parameters.outstanding {
            self.state = State::Stalled(piece);
            return None;
        }
        if is_behind_barrier && part.check > Picoseconds::ZERO {
            self.state = State::Checking(piece);
            return Some(part.check);
        }
        Some(self.start(piece, part, parameters))
    }

    fn start(&mut self, piece: u32, part: Part, parameters: &Parameters) -> Picoseconds {
        self.outstanding += 1;
        self.state = State::Writing(piece);
        part.length(piece).time_at(parameters.write_mb_per_s)
    }

    /// The time spent on sending, stalls and waits included.
    pub fn busy(&self) -> Picoseconds {
        self.busy
    }
}
