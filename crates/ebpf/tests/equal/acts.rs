//! What can happen to the node of a stage: acts of its neighbours and of its application, and the
//! defects of the packets that arrive.

use treecast_proto::{Element, Operation, Piece, Values};
use treecast_wire::{HEADER_BYTES, Header};

use super::session::Session;

/// An input; numbers are reduced modulo their valid range.
#[derive(Debug, Clone)]
pub enum Act {
    /// The next packet arrives, or is queued at a root; or the packet that is `ahead` of it.
    Data { ahead: i8, ack_requested: bool, pieces: u8, bytes: u16, defect: Defect },
    /// A batch of `packets` segments of `bytes` bytes, of which the final one has `last` bytes.
    /// `ack_requested` has a bit for each. Messages have `pieces` pieces; the final message may be
    /// continued after the batch.
    Batch {
        packets: u8,
        pieces: u8,
        bytes: u16,
        last: u16,
        is_continued: bool,
        ack_requested: u64,
        fault: Fault,
    },
    /// A child acknowledges; `missing` packets are missing there, and `subtree_missing` more in its
    /// subtree. With data by multicast it has `ahead` packets more than this node.
    Acknowledgment {
        child: u8,
        missing: u8,
        ahead: u8,
        subtree_missing: u8,
        window: u8,
        echoes: bool,
        defect: Defect,
    },
    /// All children acknowledge all packets.
    AllAcknowledge,
    /// A child sends a NAK.
    Nak { child: u8, missing: u8, bits: u64, defect: Defect },
    /// A child sends a NAK, and acknowledges all packets before user space runs.
    NakAndAcknowledgment { child: u8, missing: u8, bits: u64 },
    /// A child contributes to an all-reduce, or with a number behind the children this node;
    /// `ahead` of the next packet is the one that the result is to be.
    Contribution { child: u8, ahead: i8, processes: u16, values: AnyValues, defect: Defect },
    /// All children and this node contribute, this node after `own_after` of them.
    AllContribute { own_after: u8, values: Vec<AnyValues>, is_alike: bool },
    /// The parent sends a probe.
    Probe { defect: Defect },
    /// The root sends a heartbeat by multicast.
    Heartbeat { defect: Defect },
    /// A datagram, or a batch, that was sent before arrives once more: the last one, or one `back`
    /// before it.
    Replay { back: u8 },
    /// The application has read some packets; if `is_invalid`, perhaps more than there are.
    Read { packets: u8, is_invalid: bool },
    /// Time passes.
    Pass { us: u32 },
}

/// Values of a contribution: operation and element by their numbers.
#[derive(Debug, Clone)]
pub struct AnyValues {
    pub operation: u8,
    pub element: u8,
    /// The values are the first of these words.
    pub count: u8,
    pub words: Vec<u64>,
}

impl AnyValues {
    pub fn values(&self) -> Values {
        let (_, operation) = Operation::NAMES[usize::from(self.operation) % Operation::NAMES.len()];
        let (_, element) = Element::NAMES[usize::from(self.element) % Element::NAMES.len()];
        let words = self.words.iter().cycle().take(usize::from(self.count));
        let bytes = words.flat_map(|word| word.to_le_bytes().into_iter().take(element.bytes())).collect();
        Values { operation, element, bytes }
    }
}

/// A defect of a packet. Its header is authentic nevertheless, except with a wrong code and with
/// most inverted bits.
#[derive(Debug, Clone)]
pub enum Defect {
    None,
    /// One bit is inverted.
    BitFlip(u16),
    WrongCode,
    UnknownSender,
    WrongEpoch,
    WrongSource,
    /// With data by multicast, this packet comes from the parent; the root may have sent it by
    /// multicast.
    AlongTree {
        is_multicast: bool,
    },
    /// The timestamp is that of the sender's packet before, or earlier.
    Stale(u64),
    Version(u8),
    Flags(u16),
    Truncated(u8),
    /// Bytes follow that its length does not count.
    Extended(u8),
    /// One of the seven words of the body has another value.
    Body {
        word: u8,
        value: u32,
    },
}

/// A fault of a batch, at one of its segments.
#[derive(Debug, Clone)]
pub enum Fault {
    None,
    /// One segment has a defect.
    Segment(u8, Defect),
    /// One segment is missing.
    Missing(u8),
    /// One segment is swapped with the next.
    Swapped(u8),
    /// One segment is a copy of the one before.
    Repeated(u8),
}

/// Writes a packet with a defect. Its source and its timestamp are the business of the caller.
pub fn write(session: &Session, mut header: Header, payload: &[u8], defect: &Defect) -> Vec<u8> {
    match defect {
        Defect::UnknownSender => header.sender.0 ^= 5,
        Defect::WrongEpoch => header.epoch += 1,
        _ => {}
    }
    let mut bytes = session.write(&header, payload);
    match *defect {
        Defect::BitFlip(bit) => {
            let bit = usize::from(bit) % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        Defect::WrongCode => bytes[HEADER_BYTES - 1] ^= 1,
        Defect::Version(version) => {
            bytes[0] = version;
            session.sign(&mut bytes);
        }
        Defect::Flags(flags) => {
            bytes[2..4].copy_from_slice(&flags.to_be_bytes());
            session.sign(&mut bytes);
        }
        Defect::Body { word, value } => {
            let place = 28 + usize::from(word % 7) * 4;
            bytes[place..place + 4].copy_from_slice(&value.to_be_bytes());
            session.sign(&mut bytes);
        }
        Defect::Truncated(end) => {
            let length = bytes.len().saturating_sub(1 + usize::from(end));
            bytes.truncate(length.max(1));
        }
        Defect::Extended(more) => bytes.extend(0..=more),
        _ => {}
    }
    bytes
}

/// Overwrites a field of a piece.
pub fn corrupt(piece: &mut Piece, word: u8, value: u32) {
    match word % 4 {
        0 => piece.message = value,
        1 => piece.offset = u64::from(value),
        2 => piece.message_length = u64::from(value) << (value % 33),
        _ => piece.checksum.0 ^= u64::from(value),
    }
}
