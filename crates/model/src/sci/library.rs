//! The message library of the processes: how a message is cut into what its sender writes.

use treecast_terms::{Bytes, Picoseconds};

use super::parameters::Parameters;

/// How a message is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// A write into the receiver's memory, and a flag.
    Direct,
    /// Library: envelope, message and flag in a slot that the receiver polls.
    Short,
    /// Library: the message in a buffer of the receiver, then a notice in a slot. The receiver
    /// copies the message out of the buffer.
    Eager,
    /// Library: a request in a slot, a clear in a slot of the sender, then blocks, each with a
    /// notice in a slot. The receiver copies each block out of the library's buffer.
    Long,
    /// From the end of a path to the root: a slot, or a direct write, of one byte.
    Notice { in_slot: bool },
}

impl Protocol {
    /// The protocol of the library for a message.
    pub fn of_library(message: Bytes, parameters: &Parameters) -> Self {
        let slot = parameters.envelope + message + parameters.flag;
        if slot <= parameters.slot {
            Self::Short
        } else if message <= parameters.eager {
            Self::Eager
        } else {
            Self::Long
        }
    }
}

/// What a sender writes before it looks for a clear: pieces of one transaction each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// CPU time before the first piece.
    pub work: Picoseconds,
    pub awaits_clear: bool,
    /// What is written, and what shows the receiver that it is there.
    body: Bytes,
    end: Bytes,
    data: Bytes,
    /// Whether body and end are in one place. Otherwise the end may be written only after all
    /// earlier pieces have their responses, because it could overtake them, and after `check`.
    is_joined: bool,
    pub check: Picoseconds,
}

impl Part {
    /// A part of a message, by its index; `None` after the last.
    pub fn of(protocol: Protocol, index: u32, message: Bytes, parameters: &Parameters) -> Option<Self> {
        let Parameters { envelope, flag, data, send, library_send, block, .. } = *parameters;
        let joined = |work, body: Bytes, end: Bytes| Self {
            work,
            awaits_clear: false,
            body,
            end,
            data,
            is_joined: true,
            check: Picoseconds::ZERO,
        };
        match (protocol, index) {
            (Protocol::Direct, 0) => {
                Some(Self { is_joined: message + flag <= data, ..joined(send, message, flag) })
            }
            (Protocol::Notice { in_slot: false }, 0) => Some(joined(send, Bytes(1), flag)),
            (Protocol::Notice { in_slot: true }, 0) => {
                Some(joined(send + library_send, envelope + Bytes(1), flag))
            }
            (Protocol::Short, 0) => Some(joined(send + library_send, envelope + message, flag)),
            (Protocol::Eager, 0) => Some(Self {
                is_joined: false,
                check: parameters.check,
                ..joined(send + library_send, message, envelope + flag)
            }),
            (Protocol::Long, 0) => Some(joined(send + library_send, envelope, flag)),
            (Protocol::Long, _) => {
                let left = Bytes(message.0.saturating_sub(u64::from(index - 1) * block.0));
                (left > Bytes::ZERO).then(|| Self {
                    awaits_clear: index == 1,
                    is_joined: false,
                    check: parameters.check,
                    ..joined(Picoseconds::ZERO, block.min(left), envelope + flag)
                })
            }
            _ => None,
        }
    }

    /// The number of pieces; the last one holds the end.
    pub fn count(self) -> u32 {
        if self.is_joined {
            (self.body + self.end).0.div_ceil(self.data.0).max(1) as u32
        } else {
            self.body.0.div_ceil(self.data.0) as u32 + 1
        }
    }

    /// The length of a piece.
    pub fn length(self, piece: u32) -> Bytes {
        let before = Bytes(u64::from(piece) * self.data.0);
        if self.is_joined {
            self.data.min(self.body + self.end - before)
        } else if piece + 1 == self.count() {
            self.end
        } else {
            self.data.min(self.body - before)
        }
    }

    /// The length of the body.
    pub fn body(self) -> Bytes {
        self.body
    }

    /// Whether a piece may be written only after all earlier ones have their responses.
    pub fn is_behind_barrier(self, piece: u32) -> bool {
        !self.is_joined && piece + 1 == self.count()
    }
}
