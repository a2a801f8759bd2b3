//! The links of ringlets: what passes goes before what a node sends.

use std::collections::VecDeque;

use treecast_fabric::LinkId;
use treecast_terms::Picoseconds;

/// A packet, by its place in the table of those under way.
pub(super) type PacketId = u32;

/// The output of a node to a ringlet.
#[derive(Debug, Clone, Default)]
struct Output {
    free_at: Picoseconds,
    /// Whether somebody comes back when it is free.
    watched: bool,
    /// The bypass queue, which holds what came while the node sent, and goes first.
    passing: VecDeque<PacketId>,
    own: VecDeque<PacketId>,
}

/// All outputs, one a link.
#[derive(Debug)]
pub(super) struct Links(Vec<Output>);

impl Links {
    pub fn new(count: u32) -> Self {
        Self(vec![Output::default(); count as usize])
    }

    /// A packet asks for a link.
    pub fn ask(&mut self, link: LinkId, packet: PacketId, passing: bool) {
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

    /// What was granted a link takes it until a time.
    pub fn hold(&mut self, link: LinkId, until: Picoseconds) {
        self.0[link.index()].free_at = until;
    }

    /// When to come back for those that wait: once for each time that it is taken.
    pub fn watch(&mut self, link: LinkId) -> Option<Picoseconds> {
        let output = &mut self.0[link.index()];
        let waits = !output.passing.is_empty() || !output.own.is_empty();
        (waits && !std::mem::replace(&mut output.watched, true)).then_some(output.free_at)
    }

    /// Somebody has come back.
    pub fn unwatch(&mut self, link: LinkId) {
        self.0[link.index()].watched = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_goes_first_and_interrupts_nobody() {
        let (mut links, link) = (Links::new(1), LinkId(0));
        for (packet, passing) in [(1, false), (2, false), (3, true), (4, true)] {
            links.ask(link, packet, passing);
            if packet == 1 {
                assert_eq!(links.grant(link, Picoseconds(0)), Some(1));
                links.hold(link, Picoseconds(10));
            }
        }
        assert_eq!(links.grant(link, Picoseconds(9)), None);
        assert_eq!(links.watch(link), Some(Picoseconds(10)));
        assert_eq!(links.watch(link), None, "one comes back for all");
        let order: Vec<PacketId> = std::iter::from_fn(|| links.grant(link, Picoseconds(10))).collect();
        assert_eq!(order, [3, 4, 2]);
    }
}
