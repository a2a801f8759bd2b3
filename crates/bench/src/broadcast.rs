//! One broadcast of a row, member by member.

use serde::{Deserialize, Serialize};
use treecast_node::{Group, Offload};

use crate::control::Measured;

/// A broadcast of a row: of all that were measured, one whose last delivery is near the median.
/// Times are in microseconds after the root's call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Broadcast {
    /// By member but the root, from 1: the member that sends to it. By multicast the root.
    pub parents: Vec<u32>,
    /// When the root knew that every member had the message, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_us: Option<f64>,
    /// By member from 1: when its application had the message.
    pub delivered_us: Vec<f64>,
    /// By member from 1: when the message was stored in the slots of its node; empty with nodes
    /// that do not say so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stored_us: Vec<f64>,
}

/// The broadcasts from which that of a row is chosen: of each run the median.
#[derive(Debug, Default)]
pub(crate) struct Candidates(Vec<Candidate>);

/// Times in nanoseconds after the root's call.
#[derive(Debug)]
struct Candidate {
    last: u64,
    root: u64,
    delivered: Vec<u64>,
    stored: Vec<u64>,
}

impl Candidates {
    /// Adds a run: first the root's measurements, then the receivers'.
    pub fn add(&mut self, root: &Measured, others: &[Measured]) {
        let of_all = |number: usize, times: fn(&Measured) -> &Vec<u64>| {
            others.iter().map(|other| times(other).get(number).copied()).collect::<Option<Vec<u64>>>()
        };
        let delivered = |number| of_all(number, |other| &other.at_ns);
        let mut by_last: Vec<(u64, usize)> = (0..root.at_ns.len())
            .filter_map(|number| Some((delivered(number)?.into_iter().max()?, number)))
            // Clocks of other hosts are known with an error.
            .map(|(last, number)| (last.saturating_sub(root.at_ns[number]), number))
            .collect();
        by_last.sort_unstable();
        let Some(&(last, number)) = by_last.get(by_last.len() / 2) else { return };
        let start = root.at_ns[number];
        let after = |times: Option<Vec<u64>>| {
            times.unwrap_or_default().into_iter().map(|at| at.saturating_sub(start)).collect()
        };
        self.0.push(Candidate {
            last,
            root: root.span_ns[number],
            delivered: after(delivered(number)),
            stored: after(of_all(number, |other| &other.stored_ns)),
        });
    }

    /// The one whose last delivery is nearest to the median of the row.
    pub fn nearest(&self, median_us: f64, parents: &[u32]) -> Option<Broadcast> {
        let us = |ns: u64| ns as f64 / 1e3;
        let distance = |candidate: &Candidate| (us(candidate.last) - median_us).abs();
        let nearest = self.0.iter().min_by(|one, other| distance(one).total_cmp(&distance(other)))?;
        Some(Broadcast {
            parents: parents.to_vec(),
            root_us: Some(us(nearest.root)),
            delivered_us: nearest.delivered.iter().copied().map(us).collect(),
            stored_us: nearest.stored.iter().copied().map(us).collect(),
        })
    }
}

/// At the root, which is member 0: the parent of each other member; none if several processes share
/// a node, or the plan is not known.
pub(crate) fn parents(group: &Group, offload: Offload) -> Option<Vec<u32>> {
    let members = group.settings().members.len();
    let mut parents = vec![0; members - 1];
    if offload == Offload::Switch {
        return Some(parents);
    }
    let plan = group.plan().filter(|plan| plan.destination_count() == parents.len())?;
    for worm in plan.worms() {
        for to in &worm.to {
            *parents.get_mut(to.index().checked_sub(1)?)? = worm.from.0;
        }
    }
    Some(parents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broadcast_of_a_row_is_that_of_a_run_whose_median_is_nearest() {
        let run = |last: [u64; 3]| {
            let root = Measured {
                at_ns: vec![1_000, 10_000, 20_000],
                span_ns: last.iter().map(|last| last + 500).collect(),
                ..Measured::default()
            };
            let at = |factor: u64| root.at_ns.iter().zip(last).map(move |(at, last)| at + last * factor / 4);
            let other = |factor| Measured { at_ns: at(factor).collect(), ..Measured::default() };
            let others = [other(2), other(4)];
            (root, others)
        };
        let mut candidates = Candidates::default();
        for last in [[4_000, 8_000, 400], [2_000, 800, 3_200]] {
            let (root, others) = run(last);
            candidates.add(&root, &others);
        }
        let of = |median_us| candidates.nearest(median_us, &[0, 1]).unwrap();
        assert_eq!((of(3.5).delivered_us, of(3.5).root_us), (vec![2.0, 4.0], Some(4.5)));
        assert_eq!(of(0.1).delivered_us, [1.0, 2.0]);
        assert_eq!((of(0.1).parents, of(0.1).stored_us), (vec![0, 1], vec![]));
    }

    #[test]
    fn a_run_with_a_message_that_a_member_lacks_is_passed_over() {
        let mut candidates = Candidates::default();
        let root = Measured { at_ns: vec![1], span_ns: vec![9], ..Measured::default() };
        candidates.add(&root, &[Measured::default()]);
        assert_eq!(candidates.nearest(1.0, &[0]), None);
    }
}
