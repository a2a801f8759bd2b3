//! GSO batches of a stage: packets of a message or several, and what is wrong with them.

use std::net::SocketAddr;

use treecast_proto::{Piece, Sequence};
use treecast_wire::{Body, Data};

use super::super::acts::{Act, Defect, Fault, corrupt};
use super::super::lab::Verdict;
use super::super::pair::data_of;
use super::{GROUP, PORT, Stage};

/// The greatest length of a batch in bytes, headers included: as much as a root sends at once.
const BATCH_BYTES_MAX: u64 = 24_000;

impl Stage<'_> {
    /// The next packets, as many as fit into one batch.
    fn segments(&mut self, act: &Act) -> Vec<(Piece, Vec<u8>)> {
        let &Act::Batch { packets, pieces, bytes, last, is_continued, .. } = act else { return Vec::new() };
        let begun = self.next().distance_from(Sequence(self.setting.start)) as usize;
        let mut segments: Vec<(Piece, Vec<u8>)> = Vec::new();
        let mut each = u64::from(bytes) % (u64::from(self.setting.payload_bytes_max) + 1);
        let mut max = usize::from(packets).clamp(1, 64);
        while segments.len() < max {
            let left = max - segments.len();
            // An empty message is one packet.
            let pieces = if each == 0 { 1 } else { usize::from(pieces.max(1)) };
            let ends = pieces == left || pieces > left && !is_continued;
            let (pieces, length) = if ends { (left, u64::from(last) % (each + 1)) } else { (pieces, each) };
            let (piece, payload) = self.piece_of(begun + segments.len(), pieces as u8, each, length);
            let length = u64::from(piece.length);
            if segments.is_empty() {
                each = length;
                max = max.min((BATCH_BYTES_MAX / (64 + each)) as usize);
            }
            if length > each {
                break;
            }
            segments.push((piece, payload));
            if length < each {
                break;
            }
        }
        segments
    }

    pub(super) fn queue_batch(&mut self, act: &Act, fault: &Fault) -> Result<(), String> {
        let mut segments = self.segments(act);
        let count = segments.len();
        match fault {
            Fault::Segment(place, Defect::Body { word, value }) => {
                corrupt(&mut segments[usize::from(*place) % count].0, *word, *value);
            }
            Fault::Missing(place) if count > 1 => drop(segments.remove(usize::from(*place) % count)),
            _ => {}
        }
        self.sent_at = self.now;
        self.pair
            .queue_batch(self.now, GROUP, &segments)
            .map_err(|what| format!("at {}, {act:?}: {what}", self.now))
    }

    pub(super) fn batch(&mut self, act: &Act, ack_requested: u64, fault: &Fault) -> Result<(), String> {
        let (from, datagrams) = self.batch_datagrams(act, ack_requested, fault);
        self.sent_at = self.now;
        self.send_batch(from, datagrams).map_err(|what| format!("{act:?}: {what}"))
    }

    /// The program alone receives a batch, for whose checksum the kernel vouches whatever its
    /// payloads are; returns whether it handles it.
    pub fn program_handles(&mut self, act: &Act) -> bool {
        let Act::Batch { ack_requested, fault, .. } = act else { return false };
        let (from, datagrams) = self.batch_datagrams(act, *ack_requested, fault);
        self.pair.offer_batch(from, &datagrams, true).is_ok_and(|verdict| verdict != Verdict::Passed)
    }

    /// A batch with a fault, and its source.
    fn batch_datagrams(
        &mut self,
        act: &Act,
        ack_requested: u64,
        fault: &Fault,
    ) -> (SocketAddr, Vec<Vec<u8>>) {
        let next = self.next();
        let segments = self.segments(act);
        let count = segments.len();
        let (sender, distribution) = self.setting.way(&Defect::None);
        let mut from = self.setting.address(sender);
        let mut datagrams = Vec::new();
        for (place, (piece, payload)) in segments.into_iter().enumerate() {
            let data = Data { distribution, ..data_of(&piece, ack_requested >> place & 1 == 1) };
            let header = self.header(sender, next + place as u32, Body::Data(data));
            let defect = match fault {
                Fault::Segment(index, defect) if usize::from(*index) % count == place => defect,
                _ => &Defect::None,
            };
            let defect = match defect {
                Defect::WrongSource => {
                    from.set_port(PORT + 1);
                    &Defect::None
                }
                // Only the final segment of a batch may be shorter, and none may be longer.
                Defect::Truncated(_) if place + 1 < count => &Defect::None,
                Defect::Extended(_) if count > 1 => &Defect::None,
                defect => defect,
            };
            datagrams.push(self.write(header, &payload, defect));
        }
        match fault {
            Fault::Missing(place) if count > 1 => drop(datagrams.remove(usize::from(*place) % count)),
            // The final one may be shorter, so it stays where it is.
            Fault::Swapped(place) if count > 2 => {
                let place = usize::from(*place) % (count - 2);
                datagrams.swap(place, place + 1);
            }
            Fault::Repeated(place) if count > 2 => {
                let place = usize::from(*place) % (count - 2);
                let repeated = datagrams[place].clone();
                datagrams[place + 1] = repeated;
            }
            _ => {}
        }
        (from, datagrams)
    }

    fn send_batch(&mut self, from: SocketAddr, datagrams: Vec<Vec<u8>>) -> Result<(), String> {
        self.receive_batch(from, &datagrams)?;
        self.log.push((from, datagrams));
        Ok(())
    }

    pub(super) fn receive_batch(&mut self, from: SocketAddr, datagrams: &[Vec<u8>]) -> Result<(), String> {
        self.pair.batch(self.now, from, datagrams).map_err(|what| format!("at {}: {what}", self.now))
    }
}
