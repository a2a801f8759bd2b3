//! Random regular networks of switches (Jellyfish: Singla, Hong, Popa, Godfrey: Jellyfish:
//! networking data centers randomly, NSDI 2012).

use rand::RngExt;
use rand_pcg::Pcg64;

use super::{check_range, check_size};
use crate::error::FabricError;
use crate::ids::{PortNumber, SwitchId};
use crate::topology::{Topology, TopologyBuilder};

/// The parameters of a random regular network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomRegular {
    /// Switches, 4 to 65,535.
    pub switches: u32,
    /// Links of each switch to other switches, 3 to `switches` - 1. The product of both is even.
    pub degree: u32,
    /// Hosts, a multiple of `switches`.
    pub hosts: u32,
    /// The seed of the links.
    pub seed: u64,
}

/// A random regular network: every switch is linked to `degree` others, which are drawn at random,
/// and has equally many hosts. There are no parallel links, and the network is connected.
///
/// The links begin as those of a circulant graph, and are then exchanged at random: two links (a,
/// b) and (c, d) become (a, d) and (c, b) where that makes no parallel link. Every regular graph is
/// reached, and the distribution approaches the uniform one (Cooper, Dyer, Greenhill: Sampling
/// regular graphs and a peer-to-peer network, 2007), which the incremental construction of
/// Jellyfish approximates too. One pass tries ten exchanges for each link; another follows if the
/// network is not connected, which at these degrees is rare. Hosts take the lower ports; the links
/// of a switch are in the order of the switches that they lead to.
///
/// # Errors
/// [`FabricError::OutOfRange`], or as [`TopologyBuilder::build`].
pub fn random_regular(parameters: RandomRegular) -> Result<Topology, FabricError> {
    let RandomRegular { switches, degree, hosts, seed } = parameters;
    check_range("switches", switches, 4, 65_535)?;
    check_range("degree", degree, 3, switches - 1)?;
    check_range("hosts", hosts, switches, Topology::HOSTS_MAX)?;
    let refused =
        |key, value: u32, expected| FabricError::OutOfRange { key, value: value.to_string(), expected };
    if !(switches % 2 * degree).is_multiple_of(2) {
        return Err(refused(
            "degree",
            degree,
            format!("even, because the number of switches, {switches}, is odd"),
        ));
    }
    if !hosts.is_multiple_of(switches) {
        return Err(refused("hosts", hosts, format!("a multiple of the {switches} switches")));
    }
    let down = hosts / switches;
    check_size("degree", degree, u64::from(switches), u64::from(down), u64::from(degree + down))?;
    let mut builder = TopologyBuilder::new();
    for _ in 0..switches {
        builder.switch(down + degree)?;
    }
    for switch in 0..switches {
        for port in 0..down {
            builder.host(SwitchId(switch), PortNumber(port))?;
        }
    }
    let mut graph = Graph::circulant(switches, degree);
    let mut random = Pcg64::new(u128::from(seed), LINK_STREAM);
    for _ in 0..PASSES_MAX {
        graph.exchange(&mut random);
        if graph.is_connected() {
            break;
        }
    }
    for neighbours in &mut graph.neighbours {
        neighbours.sort_unstable();
    }
    let port = |from: u32, to: u32| {
        let place = graph.neighbours[from as usize].partition_point(|&neighbour| neighbour < to);
        (SwitchId(from), PortNumber(down + place as u32))
    };
    for from in 0..switches {
        for &to in graph.neighbours[from as usize].iter().filter(|&&to| to > from) {
            builder.link(port(from, to), port(to, from))?;
        }
    }
    builder.build()
}

/// The generator's random stream of a seed; other components draw from other streams.
const LINK_STREAM: u128 = 0x7265_6775;

/// Bounds the search for a connected network. A random 3-regular graph of 8 switches is
/// disconnected with a probability of about 0.002, a larger one with a lower probability.
const PASSES_MAX: u32 = 100;

/// A simple regular graph.
struct Graph {
    links: Vec<(u32, u32)>,
    /// In no order.
    neighbours: Vec<Vec<u32>>,
}

impl Graph {
    /// Each switch is linked to the next `degree` / 2 on either side; where the degree is odd, also
    /// to the opposite one.
    fn circulant(switches: u32, degree: u32) -> Self {
        let mut graph = Self { links: Vec::new(), neighbours: vec![Vec::new(); switches as usize] };
        for step in 1..=degree / 2 {
            for from in 0..switches {
                graph.add(from, (from + step) % switches);
            }
        }
        if degree % 2 == 1 {
            for from in 0..switches / 2 {
                graph.add(from, from + switches / 2);
            }
        }
        graph
    }

    fn add(&mut self, a: u32, b: u32) {
        self.links.push((a, b));
        self.neighbours[a as usize].push(b);
        self.neighbours[b as usize].push(a);
    }

    fn has(&self, a: u32, b: u32) -> bool {
        self.neighbours[a as usize].contains(&b)
    }

    /// Tries ten exchanges for each link.
    fn exchange(&mut self, random: &mut Pcg64) {
        for _ in 0..10 * self.links.len() {
            let (first, second) =
                (random.random_range(0..self.links.len()), random.random_range(0..self.links.len()));
            let (a, b) = self.links[first];
            let (mut c, mut d) = self.links[second];
            if random.random_range(0..2) == 1 {
                (c, d) = (d, c);
            }
            if a == d || b == c || self.has(a, d) || self.has(c, b) {
                continue;
            }
            self.links[first] = (a, d);
            self.links[second] = (c, b);
            for (of, before, after) in [(a, b, d), (b, a, c), (c, d, b), (d, c, a)] {
                let neighbours = &mut self.neighbours[of as usize];
                let place = neighbours.iter().position(|&neighbour| neighbour == before);
                neighbours[place.expect("links and neighbours agree")] = after;
            }
        }
    }

    fn is_connected(&self) -> bool {
        let mut is_reached = vec![false; self.neighbours.len()];
        let mut open = vec![0];
        is_reached[0] = true;
        let mut count = 1;
        while let Some(switch) = open.pop() {
            for &neighbour in &self.neighbours[switch as usize] {
                if !std::mem::replace(&mut is_reached[neighbour as usize], true) {
                    count += 1;
                    open.push(neighbour);
                }
            }
        }
        count == self.neighbours.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use super::*;

    fn generated(switches: u32, degree: u32, seed: u64) -> Topology {
        random_regular(RandomRegular { switches, degree, hosts: 2 * switches, seed }).unwrap()
    }

    #[test]
    fn every_switch_is_linked_to_as_many_others() {
        for (switches, degree) in [(4, 3), (5, 4), (8, 3), (9, 4), (12, 10), (12, 11), (40, 7)] {
            for seed in 0..10 {
                let topology = generated(switches, degree, seed);
                for switch in topology.switches() {
                    let others: BTreeSet<_> = topology.neighbours(switch).map(|(_, other)| other).collect();
                    assert_eq!(others.len() as u32, degree, "no parallel links");
                    assert!(!others.contains(&switch));
                    assert_eq!(topology.hosts_of(switch).len(), 2);
                }
            }
        }
    }

    #[test]
    fn one_seed_makes_one_network() {
        assert_eq!(generated(20, 4, 3), generated(20, 4, 3));
        assert_ne!(generated(20, 4, 3), generated(20, 4, 4));
    }

    /// Distances from a switch, in links.
    fn distances(topology: &Topology, from: SwitchId) -> Vec<u32> {
        let mut distances = vec![u32::MAX; topology.switch_count() as usize];
        distances[from.index()] = 0;
        let mut queue = VecDeque::from([from]);
        while let Some(switch) = queue.pop_front() {
            for (_, next) in topology.neighbours(switch) {
                if distances[next.index()] == u32::MAX {
                    distances[next.index()] = distances[switch.index()] + 1;
                    queue.push_back(next);
                }
            }
        }
        distances
    }

    /// The mean distance is at least that of a tree in which every switch has new neighbours (Cerf,
    /// Cowan, Mullin, Stanton: A lower bound on the average shortest path length in regular graphs,
    /// 1974); random graphs are near it. The diameter is at most log(n log n) / log(r - 1) and a
    /// constant for almost all graphs (Bollobas, de la Vega: The diameter of random regular graphs,
    /// 1982).
    #[test]
    fn distances_are_as_short_as_theory_has_them() {
        for (switches, degree) in [(100, 4), (200, 6), (250, 10)] {
            for seed in 1..=3 {
                let topology = generated(switches, degree, seed);
                let all: Vec<u32> = topology.switches().flat_map(|from| distances(&topology, from)).collect();
                let pairs = switches * (switches - 1);
                let mean = f64::from(all.iter().sum::<u32>()) / f64::from(pairs);
                let least = least_mean_distance(switches, degree);
                assert!(mean >= least && mean < 1.15 * least, "{mean}, the bound is {least}");
                let (n, r) = (f64::from(switches), f64::from(degree));
                let bound = (n * n.ln()).ln() / (r - 1.0).ln() + 4.0;
                assert!(f64::from(*all.iter().max().unwrap()) <= bound);
            }
        }
    }

    fn least_mean_distance(switches: u32, degree: u32) -> f64 {
        let (mut left, mut distance, mut level, mut sum) = (switches - 1, 1, degree, 0);
        while left > 0 {
            let here = level.min(left);
            sum += here * distance;
            left -= here;
            distance += 1;
            level *= degree - 1;
        }
        f64::from(sum) / f64::from(switches - 1)
    }

    /// A random cut into halves has n r / 4 links on average; the least one has more than n/2 (r/2
    /// - sqrt(r ln 2)) (Bollobas: The isoperimetric number of random regular graphs, 1988).
    #[test]
    fn no_cut_into_halves_is_below_the_bound_of_the_bisection() {
        let (switches, degree) = (100, 10);
        let topology = generated(switches, degree, 1);
        let mut random = Pcg64::new(1, 0);
        let bound = f64::from(switches) / 2.0
            * (f64::from(degree) / 2.0 - (f64::from(degree) * std::f64::consts::LN_2).sqrt());
        let mut sum = 0;
        for _ in 0..50 {
            let mut order: Vec<usize> = (0..switches as usize).collect();
            for index in (1..order.len()).rev() {
                order.swap(index, random.random_range(0..=index));
            }
            let mut is_left = vec![false; order.len()];
            order[..order.len() / 2].iter().for_each(|&switch| is_left[switch] = true);
            let cut = topology.switches().filter(|from| is_left[from.index()]);
            let cut =
                cut.flat_map(|from| topology.neighbours(from)).filter(|(_, to)| !is_left[to.index()]).count();
            assert!(cut as f64 > bound);
            sum += cut;
        }
        let mean = sum as f64 / 50.0 / (f64::from(switches * degree) / 4.0);
        assert!((0.95..1.07).contains(&mean), "{mean}");
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        let error = |switches, degree, hosts| {
            random_regular(RandomRegular { switches, degree, hosts, seed: 1 }).unwrap_err().to_string()
        };
        assert_eq!(error(10, 10, 10), "degree=10 is out of range: 3 to 9");
        assert_eq!(
            error(9, 3, 9),
            "degree=3 is out of range: even, because the number of switches, 9, is odd"
        );
        assert_eq!(error(10, 4, 15), "hosts=15 is out of range: a multiple of the 10 switches");
        assert_eq!(error(3, 2, 15), "switches=3 is out of range: 4 to 65535");
    }
}
