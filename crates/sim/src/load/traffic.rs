//! Traffic: arrival processes and destination sets. It is the same for every scheme and simulator.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use rand_pcg::Pcg64;
use treecast_fabric::HostId;
use treecast_terms::{Cycles, NameAndOptions, SpecError};

use super::permutation::Permutation;

/// The arrival process of each host. The mean interarrival time of all of them is the message
/// length over the offered load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Arrivals {
    /// Exponentially distributed interarrival times: one Poisson process per host.
    #[default]
    Exponential,
    /// Constant interarrival times. The phase of each host is random.
    Fixed,
    /// A host sends in every cycle with the same probability: geometrically distributed
    /// interarrival times.
    Bernoulli,
    /// Bursts of `size` multicasts at once, with exponentially distributed times between bursts,
    /// `size` times as long.
    Burst {
        /// Multicasts per burst, from 1.
        size: u32,
    },
}

impl Arrivals {
    /// The names it is read from.
    pub const NAMES: [&str; 4] = ["exponential", "fixed", "bernoulli", "burst"];
}

impl FromStr for Arrivals {
    type Err = SpecError;

    /// Reads `exponential`, `fixed`, `bernoulli`, `burst:size=8`.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let spec: NameAndOptions = text.parse()?;
        let plain = |arrivals| spec.only(&[]).map(|()| arrivals);
        match spec.name() {
            "exponential" => plain(Self::Exponential),
            "fixed" => plain(Self::Fixed),
            "bernoulli" => plain(Self::Bernoulli),
            "burst" => {
                const SIZE: &str = "a number of multicasts from 1 to 4096";
                spec.only(&["size"])?;
                let size: u32 = spec.required("size", SIZE)?;
                if !(1..=4096).contains(&size) {
                    let (key, value, expected) = ("size".into(), size.to_string(), SIZE.into());
                    return Err(SpecError::BadValue { key, value, expected });
                }
                Ok(Self::Burst { size })
            }
            other => Err(SpecError::UnknownName {
                what: "arrivals",
                given: other.into(),
                known: Self::NAMES.map(String::from).to_vec(),
            }),
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exponential => formatter.write_str("exponential"),
            Self::Fixed => formatter.write_str("fixed"),
            Self::Bernoulli => formatter.write_str("bernoulli"),
            Self::Burst { size } => write!(formatter, "burst:size={size}"),
        }
    }
}

/// The choice of destinations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum DestinationSets {
    /// A new random set for each multicast.
    #[default]
    Random,
    /// One random set per host for the whole run.
    Fixed,
    /// The hosts with the next numbers, modulo the number of hosts.
    Neighbours,
    /// As `Random`, but with this probability host 0 is among the destinations of each other host
    /// (Pfister and Norton, "Hot spot contention and combining in multistage interconnection
    /// networks", 1985).
    HotSpot {
        /// The probability in percent, from 1 to 100.
        percent: u32,
    },
    /// One destination, which depends on the number of the source.
    Permutation(Permutation),
}

impl DestinationSets {
    /// The names that it is read from.
    pub fn names() -> Vec<&'static str> {
        let permutations = Permutation::NAMES.map(|(name, _)| name);
        ["random", "fixed", "neighbours", "hot-spot"].into_iter().chain(permutations).collect()
    }
}

impl FromStr for DestinationSets {
    type Err = SpecError;

    /// Reads `random`, `fixed`, `neighbours`, `hot-spot:percent=10`, `tornado` and other
    /// permutations.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let spec: NameAndOptions = text.parse()?;
        let plain = |sets| spec.only(&[]).map(|()| sets);
        if let Some(&(_, permutation)) = Permutation::NAMES.iter().find(|(name, _)| *name == spec.name()) {
            return plain(Self::Permutation(permutation));
        }
        match spec.name() {
            "random" => plain(Self::Random),
            "fixed" => plain(Self::Fixed),
            "neighbours" => plain(Self::Neighbours),
            "hot-spot" => {
                const PERCENT: &str = "a whole number from 1 to 100";
                spec.only(&["percent"])?;
                let percent: u32 = spec.required("percent", PERCENT)?;
                if !(1..=100).contains(&percent) {
                    let (key, value, expected) = ("percent".into(), percent.to_string(), PERCENT.into());
                    return Err(SpecError::BadValue { key, value, expected });
                }
                Ok(Self::HotSpot { percent })
            }
            other => Err(SpecError::UnknownName {
                what: "destination sets",
                given: other.into(),
                known: Self::names().into_iter().map(String::from).collect(),
            }),
        }
    }
}

impl fmt::Display for DestinationSets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => formatter.write_str("random"),
            Self::Fixed => formatter.write_str("fixed"),
            Self::Neighbours => formatter.write_str("neighbours"),
            Self::HotSpot { percent } => write!(formatter, "hot-spot:percent={percent}"),
            Self::Permutation(permutation) => formatter.write_str(permutation.name()),
        }
    }
}

/// The arrival of a multicast at its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Counted from 0, in the order of cycles and then of hosts.
    pub number: u64,
    pub cycle: Cycles,
    pub source: HostId,
    /// In the order drawn.
    pub destinations: Vec<HostId>,
}

/// The host of [`DestinationSets::HotSpot`].
const HOT_HOST: HostId = HostId(0);

/// The stream that seeds the generators of hosts. The documentation of the generator advises
/// against several streams of one state, so each host has its own state.
const TRAFFIC_STREAM: u128 = 0x7472_6166;

/// The multicasts of all hosts, an infinite sequence in the order of cycles. Memory is proportional
/// to the hosts; each multicast takes time in the logarithm of the hosts, and in its degree.
pub(crate) struct Traffic {
    arrivals: Arrivals,
    sets: DestinationSets,
    degree: u32,
    /// The mean interarrival time of a host, in cycles.
    mean_gap: f64,
    hosts: Vec<Source>,
    /// The next arrival of each host.
    next: BinaryHeap<Reverse<(Cycles, HostId)>>,
    number: u64,
}

struct Source {
    gaps: Pcg64,
    sets: Pcg64,
    /// The time of the next arrival, unrounded, so that rounding to cycles does not accumulate.
    time: f64,
    /// The remaining multicasts of the current burst.
    burst_left: u32,
    fixed: Vec<HostId>,
}

impl Traffic {
    /// The traffic of `hosts` hosts, more than `degree`. `mean_gap` is in cycles; `permutation` has
    /// the destination of each host if the sets are one.
    pub fn new(
        hosts: u32,
        degree: u32,
        mean_gap: f64,
        arrivals: Arrivals,
        sets: DestinationSets,
        permutation: &[HostId],
        seed: u64,
    ) -> Self {
        assert!((1..hosts).contains(&degree) && mean_gap > 0.0, "the caller has checked degree and load");
        let mut traffic = Self {
            arrivals,
            sets,
            degree,
            mean_gap,
            hosts: Vec::with_capacity(hosts as usize),
            next: BinaryHeap::new(),
            number: 0,
        };
        let mut seeds = Pcg64::new(u128::from(seed), TRAFFIC_STREAM);
        for host in (0..hosts).map(HostId) {
            let mut generator = || Pcg64::new(seeds.random(), seeds.random());
            let mut source =
                Source { gaps: generator(), sets: generator(), time: 0.0, burst_left: 0, fixed: Vec::new() };
            if sets == DestinationSets::Fixed {
                source.fixed = random_set(&mut source.sets, hosts, host, degree);
            } else if let Some(&destination) = permutation.get(host.index()) {
                source.fixed = vec![destination];
            }
            source.time = match arrivals {
                Arrivals::Fixed => source.gaps.random::<f64>() * mean_gap,
                _ => source.gap(arrivals, mean_gap),
            };
            // A host that is its own destination sends nothing.
            if source.fixed != [host] {
                traffic.next.push(Reverse((cycle_of(source.time), host)));
            }
            traffic.hosts.push(source);
        }
        traffic
    }

    fn destinations(&mut self, host: HostId) -> Vec<HostId> {
        let count = self.hosts.len() as u32;
        match self.sets {
            DestinationSets::Random => {
                random_set(&mut self.hosts[host.index()].sets, count, host, self.degree)
            }
            DestinationSets::Fixed | DestinationSets::Permutation(_) => {
                self.hosts[host.index()].fixed.clone()
            }
            DestinationSets::HotSpot { percent } => {
                let random = &mut self.hosts[host.index()].sets;
                let is_hot = random.random_range(0..100) < percent;
                let mut set = random_set(random, count, host, self.degree);
                if is_hot && host != HOT_HOST && !set.contains(&HOT_HOST) {
                    set[0] = HOT_HOST;
                }
                set
            }
            DestinationSets::Neighbours => {
                (1..=self.degree).map(|step| HostId((host.0 + step) % count)).collect()
            }
        }
    }
}

impl Iterator for Traffic {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let Reverse((cycle, source)) = self.next.pop()?;
        let destinations = self.destinations(source);
        let state = &mut self.hosts[source.index()];
        state.time += state.gap(self.arrivals, self.mean_gap);
        self.next.push(Reverse((cycle_of(state.time), source)));
        self.number += 1;
        Some(Arrival { number: self.number - 1, cycle, source, destinations })
    }
}

impl Source {
    /// The time to the next arrival, in cycles.
    fn gap(&mut self, arrivals: Arrivals, mean: f64) -> f64 {
        match arrivals {
            Arrivals::Exponential => self.exponential(mean),
            Arrivals::Fixed => mean,
            // The shortest gap is one cycle.
            Arrivals::Bernoulli if mean <= 1.0 => 1.0,
            Arrivals::Bernoulli => {
                let failures = libm::log(1.0 - self.gaps.random::<f64>()) / libm::log(1.0 - 1.0 / mean);
                libm::floor(failures) + 1.0
            }
            Arrivals::Burst { size } => {
                if self.burst_left > 0 {
                    self.burst_left -= 1;
                    return 0.0;
                }
                self.burst_left = size - 1;
                self.exponential(mean * f64::from(size))
            }
        }
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -libm::log(1.0 - self.gaps.random::<f64>()) * mean
    }
}

/// The cycle that contains a point in time.
fn cycle_of(time: f64) -> Cycles {
    Cycles(time as u64)
}

/// `degree` distinct hosts other than `without`, in random order: a partial Fisher-Yates shuffle
/// that stores moved entries only.
fn random_set(random: &mut Pcg64, hosts: u32, without: HostId, degree: u32) -> Vec<HostId> {
    let others = hosts - 1;
    let mut moved: BTreeMap<u32, u32> = BTreeMap::new();
    let draw = |place: u32| {
        let other = random.random_range(place..others);
        let here = moved.get(&place).copied().unwrap_or(place);
        let drawn = moved.insert(other, here).unwrap_or(other);
        HostId(drawn + u32::from(drawn >= without.0))
    };
    (0..degree).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use treecast_fabric::generate::star;

    use super::*;

    fn gaps(arrivals: Arrivals, mean: f64, count: usize) -> Vec<u64> {
        let traffic = Traffic::new(2, 1, mean, arrivals, DestinationSets::Random, &[], 7);
        let cycles: Vec<u64> = traffic
            .filter(|arrival| arrival.source == HostId(0))
            .take(count + 1)
            .map(|a| a.cycle.0)
            .collect();
        cycles.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn mean_and_variance(gaps: &[u64]) -> (f64, f64) {
        let count = gaps.len() as f64;
        let mean = gaps.iter().sum::<u64>() as f64 / count;
        (mean, gaps.iter().map(|&gap| (gap as f64 - mean).powi(2)).sum::<f64>() / (count - 1.0))
    }

    #[test]
    fn every_arrival_process_has_the_given_mean_gap_and_its_own_variance() {
        for mean in [160.0, 2560.5] {
            // The variance of gaps over the square of their mean.
            for (name, spread) in [
                ("exponential", 1.0),
                ("fixed", 0.0),
                ("bernoulli", 1.0 - 1.0 / mean),
                ("burst:size=8", 15.0),
            ] {
                let (found, variance) = mean_and_variance(&gaps(name.parse().unwrap(), mean, 40_000));
                assert!((found / mean - 1.0).abs() < 0.05, "{name}: a mean gap of {found}, not {mean}");
                let error = (variance / (mean * mean) - spread).abs();
                assert!(error < 0.1 * spread.max(0.05), "{name}: a spread of {}", variance / (mean * mean));
            }
        }
    }

    #[test]
    fn arrivals_come_in_the_order_of_cycles_and_hosts_each_to_others_once() {
        for name in ["random", "fixed", "neighbours", "hot-spot:percent=50"] {
            let sets: DestinationSets = name.parse().unwrap();
            let traffic = Traffic::new(9, 8, 3.0, Arrivals::Exponential, sets, &[], 1);
            let arrivals: Vec<Arrival> = traffic.take(500).collect();
            assert!(arrivals.windows(2).all(|pair| {
                (pair[0].cycle, pair[0].source) <= (pair[1].cycle, pair[1].source)
                    && pair[0].number + 1 == pair[1].number
            }));
            for Arrival { source, destinations, .. } in &arrivals {
                let mut all = destinations.clone();
                all.push(*source);
                all.sort_unstable();
                assert!(all.into_iter().eq((0..9).map(HostId)), "{sets}: every host once");
            }
        }
    }

    #[test]
    fn random_sets_are_even_and_new_each_time_and_fixed_ones_stay() {
        let of = |sets| Traffic::new(10, 3, 5.0, Arrivals::Exponential, sets, &[], 3).take(30_000);
        let mut counts = [[0_u32; 10]; 3];
        for arrival in of(DestinationSets::Random).filter(|arrival| arrival.source == HostId(4)) {
            for (place, host) in arrival.destinations.iter().enumerate() {
                counts[place][host.index()] += 1;
            }
        }
        for place in counts {
            let mean = f64::from(place.iter().sum::<u32>()) / 9.0;
            assert_eq!(place[4], 0);
            let even =
                |(host, &count): (usize, &u32)| host == 4 || (f64::from(count) / mean - 1.0).abs() < 0.25;
            assert!(place.iter().enumerate().all(even), "{place:?}");
        }
        let fixed: Vec<Arrival> = of(DestinationSets::Fixed).filter(|a| a.source == HostId(4)).collect();
        assert!(fixed.windows(2).all(|pair| pair[0].destinations == pair[1].destinations));
    }

    #[test]
    fn the_hot_host_has_its_share_of_each_other_hosts_multicasts() {
        let sets = DestinationSets::HotSpot { percent: 30 };
        let traffic = Traffic::new(11, 1, 5.0, Arrivals::Exponential, sets, &[], 3);
        let arrivals: Vec<Arrival> = traffic.take(40_000).filter(|arrival| arrival.source.0 != 0).collect();
        let hot = arrivals.iter().filter(|arrival| arrival.destinations == [HostId(0)]).count();
        let share = hot as f64 / arrivals.len() as f64;
        // 30 %, and of the others a tenth.
        assert!((share - 0.37).abs() < 0.01, "{share}");
    }

    #[test]
    fn a_host_that_is_its_own_destination_sends_nothing() {
        let sets = DestinationSets::Permutation(Permutation::Transpose);
        let destinations = Permutation::Transpose.destinations(&star(9).unwrap()).unwrap();
        let traffic = Traffic::new(9, 1, 5.0, Arrivals::Fixed, sets, &destinations, 3);
        for Arrival { source, destinations, .. } in traffic.take(100) {
            assert_ne!(source.0 % 3, source.0 / 3);
            assert_eq!(destinations, [HostId(source.0 % 3 * 3 + source.0 / 3)]);
        }
    }

    #[test]
    fn one_seed_makes_one_traffic() {
        let of = |seed| {
            let traffic = Traffic::new(5, 2, 9.0, Arrivals::Bernoulli, DestinationSets::Random, &[], seed);
            traffic.take(50).collect::<Vec<_>>()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn names_read_back_as_they_print_and_errors_say_what_is_expected() {
        for text in ["exponential", "fixed", "bernoulli", "burst:size=8"] {
            assert_eq!(text.parse::<Arrivals>().unwrap().to_string(), text);
        }
        for text in DestinationSets::names() {
            let text = if text == "hot-spot" { "hot-spot:percent=7" } else { text };
            assert_eq!(text.parse::<DestinationSets>().unwrap().to_string(), text);
        }
        let sets = |text: &str| text.parse::<DestinationSets>().unwrap_err().to_string();
        assert_eq!(sets("tornados"), "unknown destination sets 'tornados': did you mean tornado?");
        assert_eq!(
            sets("hot-spot:percent=0"),
            "invalid value percent=0: expected a whole number from 1 to 100"
        );
        let error = |text: &str| text.parse::<Arrivals>().unwrap_err().to_string();
        assert_eq!(
            error("possion"),
            "unknown arrivals 'possion': known are exponential, fixed, bernoulli, burst"
        );
        assert_eq!(
            error("burst:size=0"),
            "invalid value size=0: expected a number of multicasts from 1 to 4096"
        );
    }
}
