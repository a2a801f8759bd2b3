//! The measurements, as rows.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::broadcast::{Broadcast, Candidates};
use crate::control::Measured;
use crate::limits::Limits;

/// The format of a report as JSON.
pub const FORMAT: &str = "treecast-bench-1";

/// The measurements: one row per message size and configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// The command that measured, as typed; empty if it is not known.
    #[serde(default)]
    pub command: String,
    /// The machine on which that command ran: kernel and processors; empty if it is not known.
    #[serde(default)]
    pub machine: String,
    /// The rows, by size and configuration.
    pub rows: Vec<Row>,
    /// The members that were lost, in the root's words.
    pub lost_members: Vec<String>,
    /// The bound on the error of times that compare clocks of different hosts; 0 on one machine.
    pub clock_error_us: f64,
    /// Times to open the nodes, one entry per engine.
    pub nodes_opened: Vec<NodesOpened>,
    /// What this machine itself takes to wake as many processes, and to move bytes; `None` unless
    /// that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// Times to open the nodes of an engine. For the kernel engine, that is mostly loading its program.
/// Times are in milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodesOpened {
    /// The packet engine.
    pub engine: String,
    /// The time of the first node.
    pub first_ms: f64,
    /// The longest time of a node.
    pub max_ms: f64,
}

impl NodesOpened {
    /// Of the times in the order in which the nodes were opened.
    pub(crate) fn new(engine: &str, ns: &[u64]) -> Self {
        let ms = |ns: Option<&u64>| ns.map_or(0.0, |ns| *ns as f64 / 1e6);
        Self { engine: engine.into(), first_ms: ms(ns.first()), max_ms: ms(ns.iter().max()) }
    }
}

/// The effect of killing a member in the middle of a message. Times are in microseconds after it
/// was killed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KilledMember {
    /// The number of the member.
    pub member: u32,
    /// When the root reported the loss; `None` if all survivors had the message before.
    pub root_knew_us: Option<f64>,
    /// When the last survivor had the message; `None` without survivors.
    pub survivors_complete_us: Option<f64>,
}

/// A process of one host or of each that enters each call late, and what the others notice of it.
/// Times are in microseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LateProcess {
    /// The number of the process on its host. The root is in time.
    pub process: u32,
    /// The host, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<u32>,
    /// How late it is.
    pub delay_us: f64,
    /// From the root's call until the last process that is in time had the message: median.
    pub others_last_delivery_us_p50: f64,
    /// The same, 99th percentile.
    pub others_last_delivery_us_p99: f64,
    /// The mean duration of a call of the receivers that are in time.
    pub others_call_us_mean: f64,
}

/// One configuration and message size. Times are in microseconds. What is said of a broadcast and
/// its messages goes for other operations and their calls as well.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// What all members did: broadcast, all-reduce or barrier.
    pub operation: String,
    /// The packet engine.
    pub engine: String,
    /// Who forwards.
    pub offload: String,
    /// The scheme that builds the tree.
    pub scheme: String,
    /// What is authenticated of each packet of data, and whether it is encrypted.
    pub auth: String,
    /// When members verify the CRCs of payloads.
    pub integrity: String,
    /// What carries data along the tree: packets or stream.
    pub transport: String,
    /// The number of hosts, including the root.
    pub hosts: u32,
    /// The number of processes of each host, which share its node if they are several.
    pub processes: u32,
    /// The message size.
    pub bytes: u64,
    /// The number of messages measured.
    pub messages: u32,
    /// From the root's call until it knew that every member had the message; of another operation,
    /// the duration of the root's call: median.
    pub root_us_p50: f64,
    /// The same, 99th percentile.
    pub root_us_p99: f64,
    /// From the root's call until the last member's application had the message; of another
    /// operation, from the call of the last member until the last one had the result: median.
    pub last_delivery_us_p50: f64,
    /// The same, 99th percentile.
    pub last_delivery_us_p99: f64,
    /// What the model of a network predicts for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_delivery_us_predicted: Option<f64>,
    /// From the root's call until the kernel's packet path, or the node that processes of a host
    /// share, had stored the message at the last member: median; `None` with other nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_stored_us_p50: Option<f64>,
    /// The same, 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_stored_us_p99: Option<f64>,
    /// CPU time of all processes.
    pub cpu_us_per_broadcast: f64,
    /// CPU time of the root's process.
    pub root_cpu_us_per_broadcast: f64,
    /// The mean duration of a receiver's call, or of every member's of another operation: the CPU
    /// time that it costs a process that polls, as most MPI processes do.
    pub call_us_mean: f64,
    /// The mean CPU time of a receiver's thread in its call: what it costs a process that sleeps.
    /// `None` in a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_cpu_us_mean: Option<f64>,
    /// The throughput per member, in 10^6 bytes per second.
    pub throughput_mb_s: f64,
    /// Data packets per message, sent by all nodes, including retransmissions.
    pub packets_per_broadcast: f64,
    /// Retransmissions per message.
    pub retransmitted_per_broadcast: f64,
    /// Messages that were not received, summed over all members.
    pub lost: u64,
    /// Messages that were received twice, summed over all members.
    pub duplicates: u64,
    /// Whether the tree was made for the fabric; `None` if no fabric was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_fabric: Option<bool>,
    /// The bytes per message that went over the uplinks of racks, all of them in both directions;
    /// `None` without racks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink_bytes_per_broadcast: Option<f64>,
    /// The bytes per message that went over the busiest uplink, in its busier direction; `None`
    /// without racks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busiest_uplink_bytes_per_broadcast: Option<f64>,
    /// The average skew; `None` unless members enter their calls late by random times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skew_us: Option<f64>,
    /// The process that is late, if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<LateProcess>,
    /// The effect of killing a member, if one was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed: Option<KilledMember>,
    /// One of the broadcasts; `None` of another operation, in a stream, and where no tree is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<Broadcast>,
}

impl Report {
    pub(crate) fn new(rows: Vec<Row>, lost_members: Vec<String>, clock_error_ns: u64) -> Self {
        let clock_error_us = clock_error_ns as f64 / 1e3;
        Self {
            format: FORMAT.into(),
            command: String::new(),
            machine: String::new(),
            rows,
            lost_members,
            clock_error_us,
            nodes_opened: Vec::new(),
            limits: None,
        }
    }
}

/// The statistics that make a row.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    pub root: Times,
    pub last_delivery: Times,
    pub last_stored: Times,
    pub broadcasts: Candidates,
    call: Times,
    call_cpu: Times,
    /// The last delivery to the processes that are in time, and the duration of their calls; empty
    /// if all are.
    pub others_last_delivery: Times,
    others_call: Times,
    cpu_ns: u64,
    root_cpu_ns: u64,
    pub packets: u64,
    pub retransmitted: u64,
    /// The bytes that each member received, and the time that this took.
    bytes: u64,
    span_ns: u64,
    pub lost: u64,
    pub duplicates: u64,
    /// By uplink and direction.
    uplink_bytes: Vec<u64>,
}

/// A histogram of durations, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        let mut histogram = Histogram::new(3).expect("three significant digits are supported");
        histogram.auto(true);
        Self(histogram)
    }
}

impl Times {
    fn record(&mut self, span_ns: u64) {
        self.0.record(span_ns).expect("a histogram that resizes accepts any value");
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The median and the 99th percentile, in microseconds.
    pub fn percentiles(&self) -> (f64, f64) {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        (at(0.5), at(0.99))
    }
}

/// The latest of the times that receivers have measured for a message.
fn last_of<'a>(
    others: impl IntoIterator<Item = &'a Measured>,
    number: usize,
    times: impl Fn(&Measured) -> &Vec<u64>,
) -> Option<u64> {
    others.into_iter().filter_map(|other| times(other).get(number)).max().copied()
}

impl Statistics {
    /// Adds the measurements of a run of broadcasts: first the root's, then the receivers'.
    pub fn add(&mut self, bytes: usize, messages: u32, measured: &[Measured], is_stream: bool) {
        let Some((root, others)) = measured.split_first() else { return };
        self.add_costs(root, measured);
        self.lost += others.iter().map(|measured| measured.lost).sum::<u64>();
        self.duplicates += others.iter().map(|measured| measured.duplicates).sum::<u64>();
        for &span in &root.span_ns {
            self.root.record(span);
        }
        for &span in others.iter().flat_map(|other| &other.span_ns) {
            self.call.record(span);
        }
        for &span in others.iter().flat_map(|other| &other.call_cpu_ns) {
            self.call_cpu.record(span);
        }
        let mut end = 0;
        for (number, &start) in root.at_ns.iter().enumerate() {
            let last = last_of(others, number, |other| &other.at_ns).unwrap_or(start);
            self.last_delivery.record(last.saturating_sub(start));
            end = end.max(last);
            if let Some(stored) = last_of(others, number, |other| &other.stored_ns) {
                self.last_stored.record(stored.saturating_sub(start));
            }
            if !is_stream {
                self.span_ns += last.saturating_sub(start);
            }
        }
        if !is_stream {
            self.broadcasts.add(root, others);
        }
        if is_stream {
            self.span_ns += end.saturating_sub(root.at_ns.first().copied().unwrap_or(end));
        }
        self.bytes += bytes as u64 * u64::from(messages);
    }

    /// Adds the CPU time and the packets of a run.
    fn add_costs(&mut self, root: &Measured, all: &[Measured]) {
        self.cpu_ns += all.iter().map(|measured| measured.cpu_ns).sum::<u64>();
        self.root_cpu_ns += root.cpu_ns;
        self.packets += all.iter().map(|measured| measured.packets).sum::<u64>();
        self.retransmitted += all.iter().map(|measured| measured.retransmitted).sum::<u64>();
    }

    /// Adds the measurements of a run of all-reduces or barriers: first the root's, then the
    /// others'.
    pub fn add_all_reduces(&mut self, bytes: usize, measured: &[Measured]) {
        let Some((root, others)) = measured.split_first() else { return };
        self.add_costs(root, measured);
        for &span in &root.span_ns {
            self.root.record(span);
        }
        for measured in measured {
            measured.span_ns.iter().for_each(|&span| self.call.record(span));
            measured.call_cpu_ns.iter().for_each(|&span| self.call_cpu.record(span));
        }
        let (mut begin, mut end) = (u64::MAX, 0);
        for (number, (&start, &span)) in root.at_ns.iter().zip(&root.span_ns).enumerate() {
            let others = || {
                let times = |other: &Measured| Some((*other.at_ns.get(number)?, *other.span_ns.get(number)?));
                others.iter().filter_map(times)
            };
            let first_call = others().map(|(at, span)| at.saturating_sub(span)).fold(start, u64::min);
            let last_call = others().map(|(at, span)| at.saturating_sub(span)).fold(start, u64::max);
            let last_return = others().map(|(at, _)| at).fold(start + span, u64::max);
            self.last_delivery.record(last_return.saturating_sub(last_call));
            (begin, end) = (begin.min(first_call), end.max(last_return));
            self.bytes += bytes as u64;
        }
        // Calls overlap: members call again while others return.
        self.span_ns += end.saturating_sub(begin);
    }

    /// Adds the same measurements without those of the receivers that are late. `is_late` is by
    /// member.
    pub fn add_others(&mut self, measured: &[Measured], is_late: impl Fn(usize) -> bool) {
        let Some((root, _)) = measured.split_first() else { return };
        let in_time =
            || (1..).zip(&measured[1..]).filter(|(member, _)| !is_late(*member)).map(|(_, other)| other);
        for &span in in_time().flat_map(|other| &other.span_ns) {
            self.others_call.record(span);
        }
        for (number, &start) in root.at_ns.iter().enumerate() {
            if let Some(last) = last_of(in_time(), number, |other| &other.at_ns) {
                self.others_last_delivery.record(last.saturating_sub(start));
            }
        }
    }

    /// Adds what went over the uplinks in a run.
    pub fn add_uplinks(&mut self, bytes: &[u64]) {
        self.uplink_bytes.resize(bytes.len(), 0);
        for (sum, bytes) in self.uplink_bytes.iter_mut().zip(bytes) {
            *sum += bytes;
        }
    }

    /// Traffic over all uplinks, and over the busiest one in one direction.
    pub fn uplinks(&self) -> Option<(f64, f64)> {
        let busiest = *self.uplink_bytes.iter().max()?;
        Some((self.uplink_bytes.iter().sum::<u64>() as f64, busiest as f64))
    }

    pub fn cpu_us(&self) -> f64 {
        self.cpu_ns as f64 / 1e3
    }

    pub fn root_cpu_us(&self) -> f64 {
        self.root_cpu_ns as f64 / 1e3
    }

    pub fn call_us_mean(&self) -> f64 {
        self.call.0.mean() / 1e3
    }

    pub fn others_call_us_mean(&self) -> f64 {
        self.others_call.0.mean() / 1e3
    }

    pub fn call_cpu_us_mean(&self) -> Option<f64> {
        (!self.call_cpu.is_empty()).then(|| self.call_cpu.0.mean() / 1e3)
    }

    pub fn throughput_mb_s(&self) -> f64 {
        if self.span_ns == 0 { 0.0 } else { self.bytes as f64 * 1e3 / self.span_ns as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_all_reduce_takes_from_the_last_call_until_the_last_return() {
        let measured = |at_ns: u64, span_ns: u64| Measured {
            at_ns: vec![at_ns],
            span_ns: vec![span_ns],
            call_cpu_ns: vec![span_ns / 2],
            ..Measured::default()
        };
        // The root calls at 1,000 and returns at 1,400; another calls at 1,100 and returns at
        // 1,500.
        let all = [measured(1_000, 400), measured(1_500, 400), measured(1_450, 700)];
        let mut statistics = Statistics::default();
        statistics.add_all_reduces(8, &all);
        assert_eq!((statistics.last_delivery.0.min(), statistics.root.0.max()), (400, 400));
        assert!((statistics.call_us_mean() - 0.5).abs() < 1e-3);
        assert!(statistics.call_cpu_us_mean().is_some_and(|us| (us - 0.25).abs() < 1e-3));
        // The first has called at 750.
        assert_eq!((statistics.bytes, statistics.span_ns), (8, 750));
    }

    #[test]
    fn the_others_are_the_receivers_that_are_in_time() {
        let measured = |at_ns: &[u64], span_ns: &[u64]| Measured {
            at_ns: at_ns.to_vec(),
            span_ns: span_ns.to_vec(),
            ..Measured::default()
        };
        let root = measured(&[1_000, 2_000], &[500, 500]);
        let late = measured(&[9_000, 9_000], &[10, 10]);
        let others = [measured(&[1_200, 2_300], &[200, 300]), measured(&[1_400, 2_100], &[400, 100])];
        let [one, other] = others;
        let all = [root, one, late, other];
        let mut statistics = Statistics::default();
        statistics.add(4, 2, &all, false);
        statistics.add_others(&all, |member| member.is_multiple_of(2));
        assert_eq!(statistics.last_delivery.0.max(), 8_003);
        assert_eq!(
            (statistics.others_last_delivery.0.min(), statistics.others_last_delivery.0.max()),
            (300, 400)
        );
        assert!((statistics.others_call_us_mean() - 0.25).abs() < 1e-9);
    }
}
