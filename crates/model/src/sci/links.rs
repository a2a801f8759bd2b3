//! The links of ringlets: passing packets have priority over those that a node sends.

use std::collections::VecDeque;

use treecast_fabric::LinkId;
use treecast_terms::Picoseconds;

/// The index of a packet in the table of packets in flight.
pub(super) type PacketId = u32;

/// The output of a node to a ringlet.
#[derive(Debug, Clone, Default)]
struct Output {
    free_at: Picoseconds,
    /// Whether an event is scheduled for when it is free.
    watched: bool,
    /// The bypass queue: packets that arrived while the node was sending. It has priority.
    passing: VecDeque<PacketId>,
    own: VecDeque<PacketId>,
}

/// All outputs, one per link.
#[derive(Debug)]
pub(super) struct Links(Vec<Output>);

impl Links {
    pub fn new(count: u32) -> Self {
        Self(vec![Output::default(); count as usize])
    }

    /// A packet requests a link.
    pub fn request(&mut self, link: LinkId, packet: PacketId, passing: bool) {
        let output = &mut self.0[link.index()];
        if passing { output.passing.push_back(packet) } else { output.own.push_back(packet) }
    }

    /// The packet that begins now, if the link is free and one waits.
    pub fn grant(&mut self, link: LinkId, now: Picoseconds) -> Option<PacketId> {
        let output = &mut self.0[link.index()];
        if output.free_at > now {
            return None;
        }
        output.passing.pop_front().or_else(|| output.own.pop_front())
    }

    /// Occupies a link until a time.
    pub fn hold(&mut self, link: LinkId, until: Picoseconds) {
        self.0[link.index()].free_at = until;
    }

    /// When to check the waiting packets, once for each time that the link is occupied.
    pub fn watch(&mut self, link: LinkId) -> Option<Picoseconds> {
        let output = &mut self.0[link.index()];
        let waits = !output.passing.is_empty() || !output.own.is_empty();
        (waits && !std::mem::replace(&mut output.watched, true)).then_some(output.free_at)
    }

    /// The check has happened.
    pub fn unwatch(&mut self, link: LinkId) {
        self.0[link.index()].watched = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passing_packets_go_first_without_preemption() {
        let (mut links, link) = (Links::new(1), LinkId(0));
        for (packet, passing) in [(1, false), (2, false), (3, true), (4, true)] {
            links.request(link, packet, passing);
            if packet == 1 {
                assert_eq!(links.grant(link, Picoseconds(0)), Some(1));
                links.hold(link, Picoseconds(10));
            }
        }
        assert_eq!(links.grant(link, Picoseconds(9)), None);
        assert_eq!(links.watch(link), Some(Picoseconds(10)));
        assert_eq!(links.watch(link), None, "one check serves all");
        let order: Vec<PacketId> = std::iter::from_fn(|| links.grant(link, Picoseconds(10))).collect();
        assert_eq!(order, [3, 4, 2]);
    }
}
