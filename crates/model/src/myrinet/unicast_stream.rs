//! What is counted of the unicasts of two processes.

use std::collections::VecDeque;

use rand::RngExt;
use rand_pcg::Pcg64;
use treecast_terms::Picoseconds;

use super::parameters::Parameters;
use super::policies::Unicasts;
use super::tree::Tree;

/// Unicasts from one process to another, as long as multicasts run.
#[derive(Debug)]
pub(super) struct UnicastStream {
    pub from: usize,
    pub to: usize,
    pub pauses: Pcg64,
    /// When the process called for those that have not been delivered, in their order.
    pub called: VecDeque<Picoseconds>,
    pub delivered: u64,
    /// The sum of the times from the calls until delivery, and the longest.
    pub latencies: Picoseconds,
    pub latency_max: Picoseconds,
    /// When the last one was delivered.
    pub ended: Picoseconds,
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
    pub fn pause(&mut self, mean: Picoseconds) -> Picoseconds {
        Picoseconds(self.pauses.random_range(0..=2 * mean.0))
    }
}
