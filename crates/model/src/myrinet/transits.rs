//! Where the messages of a multicast have been: visits of links, and times in transit.

use std::collections::BTreeMap;

use treecast_fabric::Channel;
use treecast_terms::Picoseconds;

/// The links that messages have visited, and when each copy of a message was in transit.
#[derive(Debug, Default)]
pub(super) struct Transits {
    visits: u64,
    /// Visits of each visited link, by its number.
    visited: BTreeMap<usize, u32>,
    /// From the first byte of a copy on a link to the last one off it: by stream, child and
    /// message.
    spans: BTreeMap<(usize, u32, u64), (Picoseconds, Picoseconds)>,
}

impl Transits {
    /// Records a packet of a copy; the first one visits the links for all.
    pub fn record(
        &mut self,
        copy: (usize, u32, u64),
        route: &[Channel],
        begins: Picoseconds,
        tail: Picoseconds,
    ) {
        if let Some(span) = self.spans.get_mut(&copy) {
            span.1 = span.1.max(tail);
            return;
        }
        self.spans.insert(copy, (begins, tail));
        self.visits += route.len() as u64;
        for channel in route {
            *self.visited.entry(channel.link.index()).or_default() += 1;
        }
    }

    /// Link visits over distinct links visited.
    pub fn concentration(&self) -> f64 {
        if self.visited.is_empty() { 0.0 } else { self.visits as f64 / self.visited.len() as f64 }
    }

    /// The most copies in transit at a time. One that ends when another begins is not beside it.
    pub fn concurrency(&self) -> u32 {
        let begins = self.spans.values().map(|&(begins, _)| (begins, 1));
        let ends = self.spans.values().map(|&(_, ends)| (ends, -1));
        let mut changes: Vec<(Picoseconds, i32)> = begins.chain(ends).collect();
        changes.sort_unstable();
        let counts = changes.iter().scan(0, |count, (_, change)| {
            *count += change;
            Some(*count)
        });
        counts.max().unwrap_or(0).unsigned_abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_in_transit_are_counted_from_their_first_packet_to_their_last() {
        let mut transits = Transits::default();
        for (child, begins, tail) in [(0, 0, 10), (1, 10, 20), (0, 12, 15), (2, 20, 30)] {
            transits.record((0, child, 0), &[], Picoseconds(begins), Picoseconds(tail));
        }
        assert_eq!(transits.concurrency(), 2);
    }
}
