//! A cache of next links, one row per target.

use super::super::{ShortestPath, UpDown};
use crate::ids::{LinkId, SwitchId};
use crate::topology::Topology;

/// An adaptive routing.
#[derive(Debug, Clone, Copy)]
pub(super) enum Adaptive<'a> {
    UpDown(&'a UpDown),
    ShortestPath(&'a ShortestPath),
}

/// The next links from every switch towards each queried target: one search per target.
#[derive(Debug)]
pub(super) struct Table<'a> {
    topology: &'a Topology,
    routing: Adaptive<'a>,
    /// Entries per switch: before and after going down, or one if that makes no difference.
    states: usize,
    /// For each target the numbers of the results, entry `states * switch + gone_down`; empty if
    /// not queried yet.
    rows: Vec<Vec<u32>>,
    entries: usize,
    entries_max: usize,
    answers: Answers,
}

/// The maximum number of cached result numbers, four bytes each.
const ENTRIES_MAX: usize = 1 << 25;

impl<'a> Table<'a> {
    pub(super) fn new(topology: &'a Topology, routing: Adaptive<'a>) -> Self {
        let states = match routing {
            Adaptive::UpDown(_) => 2,
            Adaptive::ShortestPath(_) => 1,
        };
        let count = topology.switch_count() as usize;
        Self {
            topology,
            routing,
            states,
            rows: vec![Vec::new(); count],
            entries: 0,
            entries_max: ENTRIES_MAX,
            answers: Answers::new(count),
        }
    }

    #[inline]
    pub(super) fn towards(&mut self, target: SwitchId, at: SwitchId, gone_down: bool) -> &[LinkId] {
        let entry = self.states * at.index() + (usize::from(gone_down) & (self.states - 1));
        if let Some(&answer) = self.rows[target.index()].get(entry) {
            return self.answers.links(answer);
        }
        self.fill(target);
        self.answers.links(self.rows[target.index()][entry])
    }

    /// Computes the results for a target; clears the cache first if it would become too large.
    fn fill(&mut self, target: SwitchId) {
        let count = self.rows.len();
        if self.entries + count * self.states > self.entries_max {
            self.rows.fill(Vec::new());
            self.answers = Answers::new(count);
            self.entries = 0;
        }
        self.entries += count * self.states;
        let topology = self.topology;
        let mut row = Vec::with_capacity(count * self.states);
        match self.routing {
            Adaptive::UpDown(routing) => {
                let distances = routing.distances(topology, target);
                for at in topology.switches() {
                    for gone_down in [false, true] {
                        let links = routing.shortest_links(topology, &distances, at, gone_down);
                        row.push(self.answers.number(at, links));
                    }
                }
            }
            Adaptive::ShortestPath(routing) => {
                let distances = routing.distances(topology, target);
                for at in topology.switches() {
                    row.push(self.answers.number(at, routing.shortest_links(topology, &distances, at)));
                }
            }
        }
        self.rows[target.index()] = row;
    }
}

/// Lists of links, each stored once: most targets are reached from a switch over one of a few
/// lists.
#[derive(Debug)]
struct Answers {
    links: Vec<LinkId>,
    /// The start and end of each list in `links`.
    spans: Vec<(u32, u32)>,
    /// The lists of each switch.
    of_switch: Vec<Vec<u32>>,
    scratch: Vec<LinkId>,
}

/// The empty list, which belongs to no switch.
const NO_LINKS: u32 = 0;

impl Answers {
    fn new(switch_count: usize) -> Self {
        Self {
            links: Vec::new(),
            spans: vec![(0, 0)],
            of_switch: vec![Vec::new(); switch_count],
            scratch: Vec::new(),
        }
    }

    #[inline]
    fn links(&self, answer: u32) -> &[LinkId] {
        let (begin, end) = self.spans[answer as usize];
        &self.links[begin as usize..end as usize]
    }

    /// The number of a list of links that leave a switch.
    fn number(&mut self, at: SwitchId, links: impl Iterator<Item = LinkId>) -> u32 {
        self.scratch.clear();
        self.scratch.extend(links);
        if self.scratch.is_empty() {
            return NO_LINKS;
        }
        let known = self.of_switch[at.index()].iter().copied();
        if let Some(answer) = known.into_iter().find(|&answer| self.links(answer) == self.scratch) {
            return answer;
        }
        let (answer, begin) = (self.spans.len() as u32, self.links.len() as u32);
        self.links.extend_from_slice(&self.scratch);
        self.spans.push((begin, self.links.len() as u32));
        self.of_switch[at.index()].push(answer);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::FabricSpec;

    #[test]
    fn a_full_table_is_cleared_and_still_correct() {
        let topology = "icpp98".parse::<FabricSpec>().unwrap().topology().unwrap();
        let routing = UpDown::new(&topology).unwrap();
        let mut table = Table::new(&topology, Adaptive::UpDown(&routing));
        // Room for three rows of eight switches, before and after going down.
        table.entries_max = 3 * 8 * 2;
        for target in topology.switches().chain(topology.switches()) {
            let distances = routing.distances(&topology, target);
            for at in topology.switches() {
                let expected: Vec<LinkId> =
                    routing.shortest_links(&topology, &distances, at, false).collect();
                assert_eq!(table.towards(target, at, false), expected);
            }
            assert!(table.rows.iter().filter(|row| !row.is_empty()).count() <= 3);
        }
    }
}
