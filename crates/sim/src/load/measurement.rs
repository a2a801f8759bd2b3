//! The measurement of a run under load.

use std::collections::BTreeMap;
use std::ops::Range;

use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treecast_fabric::{HostId, LinkId, Topology};
use treecast_plan::MemberId;
use treecast_terms::{Cycles, Flits};

use super::statistics::{BATCHES, backlog_grows, confidence_95};
use crate::observer::{Observer, Slice, Track};

/// The measured figures: of multicasts completed in the window, and of links during it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadFigures {
    /// The accepted load (accepted throughput) in flits/host/cycle: message flits delivered per
    /// host and cycle of the window. It compares with the ejection load. Null if the run ended
    /// before the window started.
    pub accepted_load: Option<f64>,
    /// The number of multicasts completed in the window.
    pub multicasts_measured: u64,
    /// The mean latency, from the cycle in which a process wanted to send to the last delivery,
    /// with queueing at the source. Null, as the next ones, if no multicast was measured.
    pub latency_mean_cycles: Option<f64>,
    /// The median, within 0.1 %.
    #[serde(rename = "latency_p50_cycles")]
    #[schemars(with = "Option<u64>")]
    pub latency_p50: Option<Cycles>,
    /// The 99th percentile, within 0.1 %.
    #[serde(rename = "latency_p99_cycles")]
    #[schemars(with = "Option<u64>")]
    pub latency_p99: Option<Cycles>,
    /// The maximum, exact.
    #[serde(rename = "latency_max_cycles")]
    #[schemars(with = "Option<u64>")]
    pub latency_max: Option<Cycles>,
    /// Half the width of the 95 % confidence interval of the mean, by batch means; null if a batch
    /// has no multicast.
    pub latency_ci95_cycles: Option<f64>,
    /// The mean time from the first to the last delivery of a multicast.
    pub first_last_spread_mean_cycles: Option<f64>,
    /// The utilization of links.
    pub link_utilization: LinkUtilization,
}

impl LoadFigures {
    /// The figures as texts, each with its name and unit, for tables.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let cycles = |cycles: Option<f64>| cycles.map_or("-".into(), |cycles| format!("{cycles:.1}"));
        let whole = |cycles: Option<Cycles>| cycles.map_or("-".into(), |cycles| cycles.0.to_string());
        let percent = |fraction: f64| format!("{:.1} %", fraction * 100.0);
        let accepted = self.accepted_load.map_or("-".into(), |load| format!("{load:.4}"));
        let interval = self.latency_ci95_cycles.map(|half| format!(" +- {half:.1}")).unwrap_or_default();
        let link = &self.link_utilization;
        let busiest = link.link.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        vec![
            ("accepted load, flits/host/cycle", accepted),
            ("mean latency, cycles (95 % interval)", cycles(self.latency_mean_cycles) + &interval),
            ("median latency, cycles", whole(self.latency_p50)),
            ("99th percentile of latency, cycles", whole(self.latency_p99)),
            ("maximum latency, cycles", whole(self.latency_max)),
            ("mean time from first to last delivery, cycles", cycles(self.first_last_spread_mean_cycles)),
            ("link utilization, mean", percent(link.mean)),
            ("link utilization, busiest link", percent(link.max) + &busiest),
        ]
    }
}

/// The fraction of cycles in which links carried flits. Links inside the nodes of a torus or mesh
/// are not counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkUtilization {
    /// The mean over all links.
    pub mean: f64,
    /// The maximum: that of the busiest link.
    pub max: f64,
    /// The name of the busiest link, the lowest on ties; null if no link carried a flit.
    pub link: Option<String>,
}

/// A multicast in flight.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    start: Cycles,
    first: Option<Cycles>,
    destinations_left: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Batch {
    measured: u64,
    latencies: u64,
    /// The sum over the cycles of the multicasts in flight.
    backlog: u128,
}

/// Measures the cycles of a window. Memory is proportional to the links and to the multicasts in
/// flight.
pub(crate) struct Measurement {
    window: Range<Cycles>,
    /// The start of each batch, and the end of the last.
    edges: [Cycles; BATCHES + 1],
    degree: u32,
    message: Flits,
    /// By number.
    in_flight: BTreeMap<u64, InFlight>,
    /// The cycle up to which the backlog has been summed.
    counted: Cycles,
    batches: [Batch; BATCHES],
    begun: u64,
    deliveries: u64,
    latencies: Histogram<u64>,
    latency_max: Cycles,
    spreads: u64,
    /// Flits within the window, by link, and the end of each link's last transfer.
    carried: Vec<u64>,
    busy_until: Vec<Cycles>,
}

impl Measurement {
    /// A measurement of a window, which has at least one cycle per batch.
    pub fn new(window: Range<Cycles>, degree: u32, message: Flits, links: u32) -> Self {
        let latencies = Histogram::new(3).expect("three digits are possible");
        let length = u128::from((window.end - window.start).0);
        let edge = |edge: usize| window.start + Cycles((length * edge as u128 / BATCHES as u128) as u64);
        Self {
            counted: window.start,
            edges: std::array::from_fn(edge),
            window,
            degree,
            message,
            in_flight: BTreeMap::new(),
            batches: [Batch::default(); BATCHES],
            begun: 0,
            deliveries: 0,
            latencies,
            latency_max: Cycles::ZERO,
            spreads: 0,
            carried: vec![0; links as usize],
            busy_until: vec![Cycles::ZERO; links as usize],
        }
    }

    /// The batch of a cycle in the window.
    fn batch_of(&self, cycle: Cycles) -> usize {
        self.edges.partition_point(|&edge| edge <= cycle) - 1
    }

    /// Sums the backlog up to now.
    fn count_backlog(&mut self, now: Cycles) {
        let end = now.min(self.window.end);
        while self.counted < end {
            let batch = self.batch_of(self.counted);
            let until = self.edges[batch + 1].min(end);
            self.batches[batch].backlog +=
                self.in_flight.len() as u128 * u128::from((until - self.counted).0);
            self.counted = until;
        }
    }

    fn is_in_window(&self, cycle: Cycles) -> bool {
        self.window.contains(&cycle)
    }

    fn complete(&mut self, start: Cycles, first: Cycles, now: Cycles) {
        if !self.is_in_window(now) {
            return;
        }
        let latency = now - start;
        let batch = self.batch_of(now);
        let batch = &mut self.batches[batch];
        batch.measured += 1;
        batch.latencies += latency.0;
        self.latencies.record(latency.0).expect("the histogram resizes itself");
        self.latency_max = self.latency_max.max(latency);
        self.spreads += (now - first).0;
    }

    /// Subtracts the flits that links would have carried beyond the end of a run that ended early.
    fn subtract_beyond(&mut self, end: Cycles) {
        let end = end.clamp(self.window.start, self.window.end);
        for (carried, &until) in self.carried.iter_mut().zip(&self.busy_until) {
            let beyond = until.min(self.window.end).0.saturating_sub(end.0);
            *carried = carried.saturating_sub(beyond);
        }
    }

    /// The figures of a run that ended at the cycle `end`, the utilization of each link, and
    /// whether the backlog grew, as docs/load.md defines it.
    pub fn finish(mut self, topology: &Topology, end: Cycles) -> (LoadFigures, Vec<f64>, bool) {
        self.count_backlog(end);
        self.subtract_beyond(end);
        let cycles = self.window.end.min(end).0.saturating_sub(self.window.start.0) as f64;
        let measured: u64 = self.batches.iter().map(|batch| batch.measured).sum();
        let latencies: u64 = self.batches.iter().map(|batch| batch.latencies).sum();
        let mean = |sum: u64| (measured > 0).then(|| sum as f64 / measured as f64);
        // A histogram returns the upper end of a bin.
        let some = |cycles: u64| (measured > 0).then_some(Cycles(cycles).min(self.latency_max));
        let means = self.batches.map(|batch| batch.latencies as f64 / batch.measured as f64);
        let is_whole = end >= self.window.end;
        let is_full = is_whole && self.batches.iter().all(|batch| batch.measured > 0);
        let backlogs = std::array::from_fn(|batch| {
            self.batches[batch].backlog as f64 / (self.edges[batch + 1] - self.edges[batch]).0 as f64
        });
        let received = self.deliveries as f64 * self.message.0 as f64;
        let figures = LoadFigures {
            accepted_load: (cycles > 0.0).then(|| received / (cycles * f64::from(topology.host_count()))),
            multicasts_measured: measured,
            latency_mean_cycles: mean(latencies),
            latency_p50: some(self.latencies.value_at_quantile(0.5)),
            latency_p99: some(self.latencies.value_at_quantile(0.99)),
            latency_max: some(self.latency_max.0),
            latency_ci95_cycles: is_full.then(|| confidence_95(&means)),
            first_last_spread_mean_cycles: mean(self.spreads),
            link_utilization: utilization(topology, &self.carried, cycles),
        };
        let share = |&flits: &u64| if cycles > 0.0 { flits as f64 / cycles } else { 0.0 };
        let by_link = self.carried.iter().map(share).collect();
        (figures, by_link, is_whole && backlog_grows(&backlogs, self.begun))
    }
}

fn utilization(topology: &Topology, carried: &[u64], cycles: f64) -> LinkUtilization {
    let mut busiest: Option<(u64, LinkId)> = None;
    let (mut sum, mut links) = (0.0, 0.0);
    for link in topology.links().filter(|&link| !topology.is_internal(link)) {
        let flits = carried[link.index()];
        sum += flits as f64;
        links += 1.0;
        if flits > busiest.map_or(0, |(most, _)| most) {
            busiest = Some((flits, link));
        }
    }
    let share = |flits: f64| if cycles > 0.0 { flits / cycles } else { 0.0 };
    LinkUtilization {
        mean: if links > 0.0 { share(sum / links) } else { 0.0 },
        max: share(busiest.map_or(0, |(flits, _)| flits) as f64),
        link: busiest.map(|(_, link)| topology.link_name(link)),
    }
}

impl Observer for Measurement {
    fn started(&mut self, multicast: u64, cycle: Cycles) {
        self.count_backlog(cycle);
        self.begun += u64::from(self.is_in_window(cycle));
        self.in_flight
            .insert(multicast, InFlight { start: cycle, first: None, destinations_left: self.degree });
    }

    fn delivered(&mut self, multicast: u64, _: MemberId, _: HostId, cycle: Cycles) {
        self.deliveries += u64::from(self.is_in_window(cycle));
        let state = self.in_flight.get_mut(&multicast).expect("the multicast is in flight");
        let first = *state.first.get_or_insert(cycle);
        state.destinations_left -= 1;
        if state.destinations_left == 0 {
            let start = state.start;
            self.count_backlog(cycle);
            self.in_flight.remove(&multicast);
            self.complete(start, first, cycle);
        }
    }

    fn worked(&mut self, _: &Slice) {}

    fn carried(&mut self, slice: &Slice, flits: Flits) {
        let Track::Link(channel) = slice.track else { unreachable!("links carry flits") };
        let busy_until = &mut self.busy_until[channel.link.index()];
        *busy_until = slice.to.max(*busy_until);
        let (from, to) = (slice.from.max(self.window.start), slice.to.min(self.window.end));
        if from >= to {
            return;
        }
        let share = (to - from).0;
        let length = (slice.to - slice.from).0;
        // With wormhole switching a transfer may take more cycles than the packet has flits. They
        // are counted as evenly spread.
        let inside = u128::from(flits.0) * u128::from(share) / u128::from(length);
        self.carried[channel.link.index()] += inside as u64;
    }
}
