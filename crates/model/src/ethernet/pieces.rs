//! The cuts of a message.

use treecast_terms::{Bytes, Picoseconds};

use super::parameters::Parameters;

/// The payload of a packet. A unit that is longer arrives, and is forwarded, packet by packet.
pub const PACKET: Bytes = Bytes(1_400);

/// The maximum number of units of a message.
const UNITS_MAX: u64 = 1 << 11;

/// The number of units of a message to very many members.
const UNITS_MIN: u64 = 1 << 6;

/// The number of deliveries of units above which a message has fewer units.
const DELIVERIES: u64 = 1 << 22;

/// A message cut into pieces, and these grouped into units, which a run moves at once, so that a
/// run is bounded. A unit costs as much CPU time as its pieces. Messages of few pieces have units
/// of one piece. Of longer messages the last piece is late by up to one unit on each step of the
/// tree, where units are not forwarded while they arrive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pieces {
    message: Bytes,
    piece: Bytes,
    pieces_per_unit: u64,
}

impl Pieces {
    /// The cuts of a message of at least 1 byte to a number of members.
    pub fn new(message: Bytes, parameters: &Parameters, destinations: u64) -> Self {
        let pieces = message.0.div_ceil(parameters.piece.0);
        let units_max = (DELIVERIES / destinations.max(1)).clamp(UNITS_MIN, UNITS_MAX);
        Self { message, piece: parameters.piece, pieces_per_unit: pieces.div_ceil(units_max) }
    }

    /// The number of pieces.
    pub fn count(self) -> u64 {
        self.message.0.div_ceil(self.piece.0)
    }

    /// The number of units.
    pub fn units(self) -> u32 {
        self.count().div_ceil(self.pieces_per_unit) as u32
    }

    /// The length of a unit.
    pub fn length(self, unit: u32) -> Bytes {
        // The last unit may be shorter. No unit is longer than the message, so nothing overflows.
        let full = self.pieces_per_unit * self.piece.0.min(self.message.0);
        Bytes(full.min(self.message.0 - u64::from(unit) * full))
    }

    /// The CPU time of a unit or of its first bytes, of which each piece costs `each`, and each KB
    /// `per_kb`.
    pub fn work(self, length: Bytes, each: Picoseconds, per_kb: Picoseconds) -> Picoseconds {
        let pieces = length.0.div_ceil(self.piece.0);
        Picoseconds(pieces * each.0) + by_length(length, per_kb)
    }
}

/// The CPU time of a length, rounded up to picoseconds.
pub(super) fn by_length(length: Bytes, per_kb: Picoseconds) -> Picoseconds {
    Picoseconds((u128::from(length.0) * u128::from(per_kb.0)).div_ceil(1_000) as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn units_add_up_to_the_message_and_its_pieces(
            message in 1..1_u64 << 40, piece in 1..=1_u64 << 20, destinations in 1..1_u64 << 20,
        ) {
            let parameters = Parameters { piece: Bytes(piece), ..Parameters::default() };
            let pieces = Pieces::new(Bytes(message), &parameters, destinations);
            prop_assert!(u64::from(pieces.units()) <= UNITS_MAX);
            prop_assert!(u64::from(pieces.units()) * destinations <= DELIVERIES.max(UNITS_MIN * destinations));
            let one = Picoseconds(1);
            let (mut bytes, mut count) = (0, 0);
            for unit in 0..pieces.units() {
                prop_assert!(pieces.length(unit).0 > 0);
                bytes += pieces.length(unit).0;
                count += pieces.work(pieces.length(unit), one, Picoseconds::ZERO).0;
            }
            prop_assert_eq!((bytes, count), (message, pieces.count()));
        }
    }
}
