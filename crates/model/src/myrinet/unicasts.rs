//! Unicasts of two processes beside the multicasts of a run.

use std::collections::VecDeque;

use rand::RngExt;
use rand_pcg::Pcg64;
use treecast_terms::Picoseconds;

use super::node::Post;
use super::parameters::Parameters;
use super::policies::Unicasts;
use super::simulation::{Event, Simulation};
use super::stream::Content;
use super::tree::Tree;

/// The number of nodes at the end of the list that multicasts leave out.
pub(super) fn outsiders(parameters: &Parameters) -> usize {
    if parameters.unicasts == Unicasts::Others { 2 } else { 0 }
}

/// Unicasts from one process to another, as long as multicasts run.
#[derive(Debug)]
pub(super) struct UnicastStream {
    from: usize,
    to: usize,
    pauses: Pcg64,
    /// When the process called for those that have not been delivered, in their order.
    called: VecDeque<Picoseconds>,
    delivered: u64,
    /// The sum of the times from the calls until delivery, and the longest.
    latencies: Picoseconds,
    latency_max: Picoseconds,
    /// When the last one was delivered.
    ended: Picoseconds,
}

impl UnicastStream {
    /// The unicasts of a run: between the first two children of the root, or between the last two
    /// nodes, which are in no tree. `None` without unicasts, or if the root has only one child.
    pub fn new(parameters: &Parameters, tree: &Tree, pauses: Pcg64) -> Option<Self> {
        let nodes = tree.children.len();
        let (from, to) = match parameters.unicasts {
            Unicasts::None => return None,
            Unicasts::Members => {
                let children = &tree.children[tree.root];
                (*children.first()?, *children.get(1)?)
            }
            Unicasts::Others => (nodes - 2, nodes - 1),
        };
        Some(Self {
            from,
            to,
            pauses,
            called: VecDeque::new(),
            delivered: 0,
            latencies: Picoseconds::ZERO,
            latency_max: Picoseconds::ZERO,
            ended: Picoseconds::ZERO,
        })
    }

    /// A pause, drawn uniformly from 0 to twice the mean.
    fn pause(&mut self, mean: Picoseconds) -> Picoseconds {
        Picoseconds(self.pauses.random_range(0..=2 * mean.0))
    }
}

impl Simulation<'_> {
    /// Starts as many unicasts as may be in flight.
    pub fn start_unicasts(&mut self) {
        for _ in 0..self.parameters.unicasts_in_flight {
            self.pause_before_unicast();
        }
    }

    /// The sender has none to send before a pause is over.
    pub fn pause_before_unicast(&mut self) {
        let mean = self.parameters.unicast_pause;
        if let Some(unicasts) = &mut self.unicasts {
            let pause = unicasts.pause(mean);
            self.events.schedule_after(pause, Event::UnicastDue);
        }
    }

    /// The sender calls for a unicast.
    pub fn unicast_due(&mut self) {
        let (now, length) = (self.events.now(), self.parameters.unicast);
        let Some(unicasts) = &mut self.unicasts else { return };
        unicasts.called.push_back(now);
        let (from, to) = (unicasts.from, unicasts.to);
        let stream = self.connection(from, to);
        self.post(from, Post { stream, content: Content::Unicast, length });
    }

    /// The receiver has a unicast, and gives its buffer back.
    pub fn unicast_delivered(&mut self, node: usize) {
        self.nodes[node].receive_tokens_used -= 1;
        let now = self.events.now();
        let Some(unicasts) = &mut self.unicasts else { return };
        let called = unicasts.called.pop_front().expect("a unicast is delivered once, after its call");
        unicasts.delivered += 1;
        unicasts.latencies += now - called;
        unicasts.latency_max = unicasts.latency_max.max(now - called);
        unicasts.ended = now;
    }

    /// The measures of the unicasts, if any was delivered.
    pub fn unicast_measures(&self) -> Vec<(&'static str, f64)> {
        let Some(unicasts) = self.unicasts.as_ref().filter(|unicasts| unicasts.delivered > 0) else {
            return Vec::new();
        };
        let count = unicasts.delivered as f64;
        vec![
            ("unicast_us", unicasts.latencies.us() / count),
            ("unicast_max_us", unicasts.latency_max.us()),
            ("unicast_mb_per_s", count * self.parameters.unicast.0 as f64 / unicasts.ended.us()),
        ]
    }
}
