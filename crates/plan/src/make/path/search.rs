//! The search for the path that covers the most destinations, with the fewest links.

use std::cmp::Reverse;

use fixedbitset::FixedBitSet;
use treecast_fabric::{LinkId, SwitchId, Topology, UpDown};

/// The maximum number of upward paths examined for one worm; if there are more, the best of those
/// examined is taken.
const ASCENTS_MAX: u32 = 4096;

pub(super) fn end(topology: &Topology, link: LinkId) -> SwitchId {
    topology.link(link).to.switch().expect("a path leads over switches")
}

/// A path through the switches, and the stops among them, where copies are dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) links: Vec<LinkId>,
    pub(super) stops: Vec<SwitchId>,
}

/// The gain of a path: destinations covered, then fewer links.
type Gain = (u32, Reverse<u32>);

const NOTHING: Gain = (0, Reverse(0));

/// The search for the best path from one holder.
///
/// The links down form no cycle, so dynamic programming from the bottom up finds the best downward
/// path from a switch. The upward paths are searched one by one, the most promising first (branch
/// and bound): the same dynamic program run upwards bounds the gain of an upward path, and prunes
/// most of them.
#[derive(Debug)]
pub(super) struct Search<'a> {
    topology: &'a Topology,
    top_down: Vec<SwitchId>,
    /// The links down and up from each switch with the switches at their other ends, the lower
    /// links first.
    onward: Vec<[Vec<(LinkId, SwitchId)>; 2]>,
    /// Uncovered destinations at each switch.
    pub(super) weights: Vec<u32>,
    /// The maximum number of stops; `None`: no limit.
    most: Option<u32>,
    taken_links: FixedBitSet,
    /// The gains of paths, downwards and upwards; `None` after a change.
    tables: Option<(Gains, Gains)>,
}

/// Best gains, for each switch and each number of stops still allowed: entry `switch * width +
/// stops`. Without a limit the width is 1.
#[derive(Debug)]
struct Gains {
    width: usize,
    gains: Vec<Gain>,
}

impl Gains {
    fn at(&self, switch: SwitchId) -> &[Gain] {
        &self.gains[switch.index() * self.width..(switch.index() + 1) * self.width]
    }
}

struct Walk<'s> {
    below: &'s Gains,
    above: &'s Gains,
    links: Vec<LinkId>,
    visited: Vec<SwitchId>,
    ascents_left: u32,
    best: Option<(Gain, Path)>,
}

impl<'a> Search<'a> {
    pub(super) fn new(topology: &'a Topology, routing: &'a UpDown) -> Self {
        let onward = |switch| {
            let mut links: [Vec<(LinkId, SwitchId)>; 2] = Default::default();
            for (link, next) in topology.neighbours(switch) {
                links[usize::from(routing.is_up(topology, link))].push((link, next));
            }
            for links in &mut links {
                links.sort_unstable();
            }
            links
        };
        Self {
            topology,
            top_down: routing.top_down(),
            onward: topology.switches().map(onward).collect(),
            weights: vec![0; topology.switch_count() as usize],
            most: None,
            taken_links: FixedBitSet::with_capacity(topology.link_count() as usize),
            tables: None,
        }
    }

    /// The number of switches with destinations that no worm covers yet.
    pub(super) fn open(&self) -> u32 {
        self.weights.iter().filter(|&&weight| weight > 0).count() as u32
    }

    /// Begins a phase, with a limit on the stops per worm.
    pub(super) fn begin_phase(&mut self, most: Option<u32>) {
        self.most = most;
        self.taken_links.clear();
        self.tables = None;
    }

    /// Removes the stops of a path, and its links if worms are disjoint, from the search.
    pub(super) fn cover(&mut self, path: &Path, disjoint: bool) {
        for &stop in &path.stops {
            self.weights[stop.index()] = 0;
        }
        if disjoint {
            self.taken_links.extend(path.links.iter().map(|link| link.index()));
        }
        self.tables = None;
    }

    /// The best path from a switch; `None` if it would gain nothing.
    pub(super) fn best(&mut self, from: SwitchId) -> Option<Path> {
        let (below, above) = self.tables.take().unwrap_or_else(|| {
            let below = self.below(&[]);
            let above = self.above(&below);
            (below, above)
        });
        let mut walk = Walk {
            below: &below,
            above: &above,
            links: Vec::new(),
            visited: vec![from],
            ascents_left: ASCENTS_MAX,
            best: None,
        };
        self.ascend(&mut walk, from);
        let best = walk.best.map(|(_, path)| path);
        self.tables = Some((below, above));
        best
    }

    /// Stops allowed, and entries per switch in a table of gains.
    fn width(&self) -> usize {
        self.most.map_or(1, |most| self.open().min(most) as usize + 1)
    }

    fn onward(&self, at: SwitchId, up: bool) -> impl Iterator<Item = (LinkId, SwitchId)> {
        let links = self.onward[at.index()][usize::from(up)].iter().copied();
        links.filter(|(link, _)| !self.taken_links[link.index()])
    }

    /// Adds a visit of a switch to the gains beyond it, with or without a stop there.
    fn visit(&self, switch: SwitchId, behind: &[Gain], gains: &mut [Gain]) {
        let weight = self.weights[switch.index()];
        for stops in 0..gains.len() {
            let before = if self.most.is_none() { Some(stops) } else { stops.checked_sub(1) };
            let stopping = before.filter(|_| weight > 0).map(|before| {
                let (count, links) = behind[before];
                (count + weight, links)
            });
            gains[stops] = stopping.unwrap_or(NOTHING).max(behind[stops]);
        }
    }

    /// The best gain of continuing over one of some links, from the gains at their ends.
    fn best_onward(&self, at: SwitchId, up: bool, ends: &Gains, excluded: &[SwitchId], best: &mut [Gain]) {
        for (_, next) in self.onward(at, up) {
            if excluded.contains(&next) {
                continue;
            }
            for (best, &(count, Reverse(links))) in best.iter_mut().zip(ends.at(next)) {
                if count > 0 {
                    *best = (*best).max((count, Reverse(links + 1)));
                }
            }
        }
    }

    /// The gains of paths that start at each switch, itself included, and only go down; none visits
    /// `excluded`.
    fn below(&self, excluded: &[SwitchId]) -> Gains {
        let width = self.width();
        let mut table = Gains { width, gains: vec![NOTHING; self.weights.len() * width] };
        let mut behind = vec![NOTHING; width];
        for &switch in self.top_down.iter().rev() {
            behind.fill(NOTHING);
            self.best_onward(switch, false, &table, excluded, &mut behind);
            let entry = switch.index() * width;
            let mut gains = std::mem::take(&mut table.gains);
            self.visit(switch, &behind, &mut gains[entry..entry + width]);
            table.gains = gains;
        }
        table
    }

    /// An upper bound of the gains of paths that start at each switch, itself included, and go up
    /// and then down: a switch that is passed in both directions counts twice.
    fn above(&self, below: &Gains) -> Gains {
        let width = below.width;
        let mut table = Gains { width, gains: vec![NOTHING; self.weights.len() * width] };
        let mut behind = vec![NOTHING; width];
        for &switch in &self.top_down {
            behind.fill(NOTHING);
            self.best_onward(switch, false, below, &[], &mut behind);
            self.best_onward(switch, true, &table, &[], &mut behind);
            let entry = switch.index() * width;
            let mut gains = std::mem::take(&mut table.gains);
            self.visit(switch, &behind, &mut gains[entry..entry + width]);
            table.gains = gains;
        }
        table
    }

    /// The best joint gain of stops among visited switches and of a continuation, over all
    /// divisions of the stops between them; with the number of stops for the continuation.
    fn combine(&self, visited: &[SwitchId], behind: &[Gain]) -> (Gain, usize) {
        let mut weights: Vec<u32> = visited.iter().map(|switch| self.weights[switch.index()]).collect();
        if self.most.is_none() {
            let (count, links) = behind[0];
            return ((count + weights.iter().sum::<u32>(), links), 0);
        }
        weights.sort_unstable_by_key(|&weight| Reverse(weight));
        let stops = behind.len() - 1;
        let mut best = (behind[stops], stops);
        let mut count_here = 0;
        for (here, weight) in weights.into_iter().take(stops).enumerate() {
            count_here += weight;
            let (count, links) = behind[stops - here - 1];
            best = best.max(((count + count_here, links), stops - here - 1));
        }
        best
    }

    /// Considers the paths that go down from here, then continues upwards.
    fn ascend(&self, walk: &mut Walk, at: SwitchId) {
        if walk.ascents_left == 0 {
            return;
        }
        walk.ascents_left -= 1;
        self.descend(walk, at);
        let mut continuations: Vec<(Gain, LinkId, SwitchId)> = Vec::new();
        for (link, next) in self.onward(at, true) {
            let ((count, Reverse(links)), _) = self.combine(&walk.visited, walk.above.at(next));
            continuations.push(((count, Reverse(links + 1)), link, next));
        }
        continuations.sort_by_key(|&(gain, link, _)| (Reverse(gain), link));
        for ((count, Reverse(links)), link, next) in continuations {
            let bound = (count, Reverse(links + walk.links.len() as u32));
            if walk.best.as_ref().is_some_and(|(best, _)| *best > bound) || count == 0 {
                continue;
            }
            walk.links.push(link);
            walk.visited.push(next);
            self.ascend(walk, next);
            walk.visited.pop();
            walk.links.pop();
        }
    }

    /// The best path that turns down here.
    fn descend(&self, walk: &mut Walk, at: SwitchId) {
        let path = self.down_path(walk, at, walk.below, &[]);
        // Excluding the visited switches cannot increase the gain.
        if Self::is_worse(walk, path.0) {
            return;
        }
        let revisits = path.1.iter().any(|&link| walk.visited.contains(&end(self.topology, link)));
        let (gain, down, stops_behind) = if revisits {
            let below = self.below(&walk.visited);
            self.down_path(walk, at, &below, &walk.visited)
        } else {
            path
        };
        if Self::is_worse(walk, gain) {
            return;
        }
        let gain = (gain.0, Reverse(gain.1.0 + walk.links.len() as u32));
        let links = [walk.links.as_slice(), &down].concat();
        if walk.best.as_ref().is_some_and(|(best, path)| *best == gain && path.links <= links) {
            return;
        }
        let stops = self.stops(&walk.visited, &down, stops_behind);
        walk.best = Some((gain, Path { links, stops }));
    }

    /// Whether a gain after the links so far is zero, or less than the best.
    fn is_worse(walk: &Walk, (count, Reverse(links)): Gain) -> bool {
        let gain = (count, Reverse(links + walk.links.len() as u32));
        count == 0 || walk.best.as_ref().is_some_and(|(best, _)| *best > gain)
    }

    /// The gain of the best downward path from the last visited switch together with stops before
    /// it; its links; and the number of stops for it.
    fn down_path(
        &self,
        walk: &Walk,
        at: SwitchId,
        below: &Gains,
        excluded: &[SwitchId],
    ) -> (Gain, Vec<LinkId>, usize) {
        let mut behind = vec![NOTHING; below.width];
        self.best_onward(at, false, below, excluded, &mut behind);
        let (gain, stops_behind) = self.combine(&walk.visited, &behind);
        let mut links = Vec::new();
        let mut at = at;
        let mut stops = stops_behind;
        let mut wanted = behind[stops_behind];
        while wanted.0 > 0 {
            let (link, next) = self
                .onward(at, false)
                .find(|&(_, next)| {
                    let (count, Reverse(links)) = below.at(next)[stops];
                    !excluded.contains(&next) && (count, Reverse(links + 1)) == wanted
                })
                .expect("the best gain comes over one of the links");
            links.push(link);
            at = next;
            let mut behind = vec![NOTHING; below.width];
            self.best_onward(at, false, below, excluded, &mut behind);
            wanted = (wanted.0, Reverse(wanted.1.0 - 1));
            if wanted != behind[stops] {
                // The gain was made with a stop here.
                stops = if self.most.is_none() { stops } else { stops - 1 };
                wanted = behind[stops];
            }
        }
        (gain, links, stops_behind)
    }

    /// The stops: the switches with the most destinations. The downward path gets the given number,
    /// the switches visited before it the rest.
    fn stops(&self, visited: &[SwitchId], down: &[LinkId], stops_behind: usize) -> Vec<SwitchId> {
        let heaviest = |switches: Vec<SwitchId>, most: usize| {
            let mut switches: Vec<SwitchId> =
                switches.into_iter().filter(|switch| self.weights[switch.index()] > 0).collect();
            switches.sort_by_key(|switch| Reverse(self.weights[switch.index()]));
            switches.truncate(most);
            switches
        };
        let limits = self.most.map_or((usize::MAX, usize::MAX), |_| {
            let stops = self.width() - 1;
            (stops - stops_behind, stops_behind)
        });
        let below = down.iter().map(|&link| end(self.topology, link)).collect();
        [heaviest(visited.to_vec(), limits.0), heaviest(below, limits.1)].concat()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use treecast_fabric::{Fabric, FabricSpec};

    use super::*;

    fn fabric(spec: &str) -> Fabric {
        Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap()
    }

    /// The most destinations that any legal simple path with a limited number of stops covers, and
    /// the fewest links for that, by exhaustive search.
    fn exhaustive(
        search: &Search,
        at: SwitchId,
        gone_down: bool,
        visited: &mut Vec<SwitchId>,
        links: u32,
    ) -> Gain {
        let mut weights: Vec<u32> = visited.iter().map(|switch| search.weights[switch.index()]).collect();
        weights.sort_unstable_by_key(|&weight| Reverse(weight));
        let most = search.most.map_or(usize::MAX, |most| most as usize);
        let mut best = (weights.into_iter().take(most).sum(), Reverse(links));
        for up in [true, false] {
            let continuations: Vec<_> = search.onward(at, up).collect();
            for (_, next) in continuations {
                if (up && gone_down) || visited.contains(&next) {
                    continue;
                }
                visited.push(next);
                best = best.max(exhaustive(search, next, !up, visited, links + 1));
                visited.pop();
            }
        }
        best
    }

    fn finds_the_best(search: &mut Search) {
        for from in search.topology.switches() {
            let expected = exhaustive(search, from, false, &mut vec![from], 0);
            let Some(path) = search.best(from) else {
                assert_eq!(expected.0, 0);
                continue;
            };
            let gain = path.stops.iter().map(|stop| search.weights[stop.index()]).sum::<u32>();
            assert_eq!((gain, Reverse(path.links.len() as u32)), expected);
            assert!(path.stops.len() <= search.most.unwrap_or(u32::MAX) as usize);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn the_search_agrees_with_an_exhaustive_search(
            switches in 2_u32..9,
            connectivity in 0.0..1.0,
            seed in 0_u64..1000,
            weights in proptest::collection::vec(0_u32..5, 9),
            most in proptest::option::of(1_u32..5),
            taken in proptest::collection::vec(0_usize..64, 0..6),
        ) {
            let fabric = fabric(&format!(
                "irregular:switches={switches},ports=6,hosts={},connectivity={connectivity},seed={seed}",
                switches * 2
            ));
            let routing = fabric.routing().up_down().unwrap();
            let mut search = Search::new(fabric.topology(), routing);
            search.weights = weights[..switches as usize].to_vec();
            search.begin_phase(most);
            search.taken_links.extend(taken.into_iter().filter(|&link| link < fabric.topology().link_count() as usize));
            finds_the_best(&mut search);
            // A new phase starts with all links, and another limit.
            search.begin_phase(Some(2));
            finds_the_best(&mut search);
            let first = fabric.topology().switches().find_map(|from| search.best(from));
            if let Some(path) = first {
                search.cover(&path, true);
                finds_the_best(&mut search);
            }
        }
    }
}
