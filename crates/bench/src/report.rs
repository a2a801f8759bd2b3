//! What was measured, as rows.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::order::Measured;

/// The format of a report as JSON.
pub const FORMAT: &str = "treecast-bench-1";

/// What was measured, a row a way to broadcast and length.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: &'static str,
    /// The rows, by length and way.
    pub rows: Vec<Row>,
    /// Members that were lost on the way, as their roots say.
    pub lost_members: Vec<String>,
    /// How far times of different hosts may be wrong, because their clocks were compared over the network; 0 on one machine.
    pub clock_error_us: f64,
}

/// What came of the death of a member in the middle of a message. Times are in microseconds from its death.
#[derive(Debug, Clone, Serialize)]
pub struct Killed {
    /// Which.
    pub member: u32,
    /// When the root's application could know; none, if everybody had the message before.
    pub root_knew_us: Option<f64>,
    /// When the last survivor had the message; none without survivors.
    pub survivors_complete_us: Option<f64>,
}

/// One way to broadcast messages of one length. Times are in microseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What played the NIC.
    pub engine: String,
    /// Who forwarded.
    pub offload: String,
    /// How the tree was made.
    pub scheme: String,
    /// How many hosts there were, the root included.
    pub hosts: u32,
    /// How long messages were.
    pub bytes: u64,
    /// How many were measured.
    pub messages: u32,
    /// From the root's call until it knew that every member had the message.
    pub root_us_p50: f64,
    /// The same, of one in a hundred.
    pub root_us_p99: f64,
    /// From the root's call until the last member's application had the message.
    pub last_delivery_us_p50: f64,
    /// The same, of one in a hundred.
    pub last_delivery_us_p99: f64,
    /// From the root's call until the message was in the last member's memory, by the kernel's time stamps; none where its packet
    /// path has no part in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_stored_us_p50: Option<f64>,
    /// The same, of one in a hundred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_stored_us_p99: Option<f64>,
    /// CPU time of all processes together.
    pub cpu_us_per_broadcast: f64,
    /// How long a member other than the root was in the call, on average: what it costs a process that polls, as those of MPI
    /// do.
    pub bcast_cpu_us_mean: f64,
    /// CPU time of a member other than the root in the call, on average: what it costs a process that sleeps. None in a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_cpu_us_mean: Option<f64>,
    /// How much reached each member a second, in 10^6 bytes.
    pub throughput_mb_s: f64,
    /// Data packets that all nodes sent a message.
    pub packets_per_broadcast: f64,
    /// Of these, how many had been sent before.
    pub repeated_per_broadcast: f64,
    /// Messages that a member has not received, over all members.
    pub lost: u64,
    /// Messages that a member has received twice.
    pub doubled: u64,
    /// What came of it when a member was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed: Option<Killed>,
}

impl Report {
    pub(crate) fn new(rows: Vec<Row>, lost_members: Vec<String>, clock_error_ns: u64) -> Self {
        Self { format: FORMAT, rows, lost_members, clock_error_us: clock_error_ns as f64 / 1e3 }
    }
}

/// What is gathered for a row.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub root: Times,
    pub last_delivery: Times,
    pub last_stored: Times,
    in_call: Times,
    call_cpu: Times,
    cpu_ns: u64,
    pub packets: u64,
    pub repeated: u64,
    /// How many bytes reached each member, and in which time.
    bytes: u64,
    span_ns: u64,
    pub lost: u64,
    pub doubled: u64,
}

/// Spans of time.
#[derive(Debug)]
pub(crate) struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        let mut histogram = Histogram::new(3).expect("three digits are possible");
        histogram.auto(true);
        Self(histogram)
    }
}

impl Times {
    fn record(&mut self, span_ns: u64) {
        self.0.record(span_ns).expect("a histogram that grows takes any time");
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The median, and what one in a hundred exceeds, in microseconds.
    pub fn percentiles(&self) -> (f64, f64) {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        (at(0.5), at(0.99))
    }
}

/// The last of the times that members have measured for a message.
fn last_of(others: &[Measured], number: usize, times: impl Fn(&Measured) -> &Vec<u64>) -> Option<u64> {
    others.iter().filter_map(|other| times(other).get(number)).max().copied()
}

impl Gathered {
    /// Adds what was measured in a turn: the root's first, then the others'.
    pub fn add(&mut self, bytes: usize, messages: u32, measured: &[Measured], is_stream: bool) {
        let Some((root, others)) = measured.split_first() else { return };
        self.cpu_ns += measured.iter().map(|measured| measured.cpu_ns).sum::<u64>();
        self.packets += measured.iter().map(|measured| measured.packets).sum::<u64>();
        self.repeated += measured.iter().map(|measured| measured.repeated).sum::<u64>();
        self.lost += others.iter().map(|measured| measured.lost).sum::<u64>();
        self.doubled += others.iter().map(|measured| measured.doubled).sum::<u64>();
        for &span in &root.span_ns {
            self.root.record(span);
        }
        for &span in others.iter().flat_map(|other| &other.span_ns) {
            self.in_call.record(span);
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
        if is_stream {
            self.span_ns += end.saturating_sub(root.at_ns.first().copied().unwrap_or(end));
        }
        self.bytes += bytes as u64 * u64::from(messages);
    }

    pub fn cpu_us(&self) -> f64 {
        self.cpu_ns as f64 / 1e3
    }

    pub fn in_call_us_mean(&self) -> f64 {
        self.in_call.0.mean() / 1e3
    }

    pub fn call_cpu_us_mean(&self) -> Option<f64> {
        (!self.call_cpu.is_empty()).then(|| self.call_cpu.0.mean() / 1e3)
    }

    pub fn throughput_mb_s(&self) -> f64 {
        if self.span_ns == 0 { 0.0 } else { self.bytes as f64 * 1e3 / self.span_ns as f64 }
    }
}
