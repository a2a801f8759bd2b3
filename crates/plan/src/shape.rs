//! Shapes of trees, independent of the members on them.
//!
//! A [`Shape`] has positions 0 (the root) to n - 1 along an order of members. Every subtree is a
//! contiguous stretch of the order that begins with its topmost vertex: so a child follows its
//! parent, and on a chain order messages to different subtrees share no links.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

/// A tree over positions of an order: its edges (sender, receiver), in causal order; those of one
/// sender in the order in which it sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape(pub Vec<(u32, u32)>);

/// The root sends to every other position in turn.
pub fn separate(size: u32) -> Shape {
    Shape((1..size).map(|position| (0, position)).collect())
}

/// A chain: each position forwards to the next.
pub fn serial(size: u32) -> Shape {
    Shape((1..size).map(|position| (position - 1, position)).collect())
}

/// A complete binary tree, filled in breadth.
pub fn binary(size: u32) -> Shape {
    Shape((1..size).map(|position| ((position - 1) / 2, position)).collect())
}

/// A binomial tree by recursive halving: the holder of a stretch sends to the first position of its
/// upper half, until stretches have length 1. ceil(log2 n) steps.
pub fn halving(size: u32) -> Shape {
    let mut edges = Vec::with_capacity(size.saturating_sub(1) as usize);
    let mut stretches = vec![(0, size)];
    while stretches.len() < size as usize {
        for index in 0..stretches.len() {
            let (first, length) = stretches[index];
            if length > 1 {
                let lower = length.div_ceil(2);
                edges.push((first, first + lower));
                stretches[index].1 = lower;
                stretches.push((first + lower, length - lower));
            }
        }
    }
    Shape(edges)
}

/// N(s, k): the number of vertices that recursive doubling reaches in s steps with at most k
/// children each, capped at [`u32::MAX`].
///
/// ```
/// use treecast_plan::shape::k_binomial_coverage;
/// assert_eq!((k_binomial_coverage(4, 2), k_binomial_coverage(5, 2), k_binomial_coverage(3, 5)), (12, 20, 8));
/// ```
pub fn k_binomial_coverage(steps: u32, k: u32) -> u32 {
    let mut covered: Vec<u32> = vec![1];
    for step in 1..=steps {
        let total =
            (1..=k.min(step)).map(|child| covered[(step - child) as usize]).fold(1, u32::saturating_add);
        covered.push(total);
        if total == u32::MAX {
            return total;
        }
    }
    covered[steps as usize]
}

/// s1: the least number of steps in which a k-binomial tree covers `size` vertices.
pub fn k_binomial_steps(size: u32, k: u32) -> u32 {
    let mut window: Vec<u64> = vec![1];
    while *window.last().expect("never empty") < u64::from(size) {
        let from = window.len().saturating_sub(k as usize);
        window.push(1 + window[from..].iter().sum::<u64>());
    }
    window.len() as u32 - 1
}

/// The k that minimises s1 + (m - 1) * c for m packets, c the root's fan-out; the smaller on ties.
pub fn best_k(size: u32, packets: u32) -> u32 {
    let k_max = u32::BITS - size.saturating_sub(1).leading_zeros();
    let cost = |k: u32| {
        let steps = k_binomial_steps(size, k);
        u64::from(steps) + u64::from(packets - 1) * u64::from(k.min(steps))
    };
    (1..=k_max.max(1)).min_by_key(|&k| (cost(k), k)).expect("k_max is at least 1")
}

/// A k-binomial tree: recursive doubling in which no vertex has more than k children. In each step
/// every holder with fewer children sends, the earliest holders first, until all are reached.
pub fn k_binomial(size: u32, k: u32) -> Shape {
    let mut parents: Vec<u32> = vec![0];
    let mut children: Vec<u32> = vec![0];
    let mut first_open = 0;
    while parents.len() < size as usize {
        let holders = parents.len();
        for holder in first_open..holders {
            if parents.len() == size as usize {
                break;
            }
            children[holder] += 1;
            parents.push(holder as u32);
            children.push(0);
        }
        // Holders fill up in the order in which they were reached.
        while first_open < holders && children[first_open] == k {
            first_open += 1;
        }
    }
    along_an_order(&parents)
}

/// The latency lambda of the postal model, in thousandths of the time that a sender takes per copy;
/// at least 1,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lambda(pub u32);

impl Lambda {
    /// A latency in copies, from 1 to 1,000,000, rounded to thousandths; `None` for another number.
    ///
    /// ```
    /// # use treecast_plan::shape::Lambda;
    /// assert_eq!(Lambda::of(3.5), Some(Lambda(3500)));
    /// assert_eq!(Lambda::of(0.5), None);
    /// ```
    pub fn of(copies: f64) -> Option<Self> {
        (1.0..=1e6).contains(&copies).then(|| Self((copies * 1000.0).round() as u32))
    }

    /// In copies.
    pub fn copies(self) -> f64 {
        f64::from(self.0) / 1000.0
    }
}

impl fmt::Display for Lambda {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.copies().fmt(formatter)
    }
}

/// The latency-optimal tree of the postal model (Bar-Noy, Kipnis: Designing broadcasting algorithms
/// in the postal model for message-passing systems, 1992): every vertex that has the message sends
/// continuously.
pub fn postal(size: u32, lambda: Lambda) -> Shape {
    const COPY: u64 = 1000;
    let mut parents: Vec<u32> = vec![0];
    // The times at which holders can send next: the earliest first, the earliest holder on ties.
    let mut ready = BinaryHeap::from([Reverse((0_u64, 0_u32))]);
    while parents.len() < size as usize {
        let Reverse((now, holder)) = ready.pop().expect("a holder stays in the queue");
        let reached = parents.len() as u32;
        parents.push(holder);
        ready.push(Reverse((now + COPY, holder)));
        ready.push(Reverse((now + u64::from(lambda.0), reached)));
    }
    along_an_order(&parents)
}

/// Places a tree on an order: the subtree of the child reached first takes the far end of its
/// parent's stretch.
///
/// `parents[v]` is the parent of vertex v; vertices are numbered as they are reached, 0 the root.
fn along_an_order(parents: &[u32]) -> Shape {
    let mut sizes = vec![1_u32; parents.len()];
    for vertex in (1..parents.len()).rev() {
        sizes[parents[vertex] as usize] += sizes[vertex];
    }
    let mut positions = vec![0_u32; parents.len()];
    // The end of the part of each vertex's stretch that no child has taken yet.
    let mut ends = sizes.clone();
    let mut edges = Vec::with_capacity(parents.len() - 1);
    for vertex in 1..parents.len() {
        let parent = parents[vertex] as usize;
        ends[parent] -= sizes[vertex];
        positions[vertex] = ends[parent];
        ends[vertex] = positions[vertex] + sizes[vertex];
        edges.push((positions[parent], positions[vertex]));
    }
    Shape(edges)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each position has the first packet, and the steps until the last has all, served
    /// first-packet-first.
    fn fpfs_steps(shape: &Shape, size: u32, packets: u32) -> u32 {
        let children = |of: u32| shape.0.iter().filter(move |edge| edge.0 == of).map(|edge| edge.1);
        let mut arrivals = vec![vec![0; packets as usize]; size as usize];
        for position in 0..size {
            let mut free = 0;
            let arrived = arrivals[position as usize].clone();
            for (packet, arrival) in arrived.into_iter().enumerate() {
                free = free.max(arrival);
                for child in children(position) {
                    free += 1;
                    arrivals[child as usize][packet] = free;
                }
            }
        }
        arrivals.iter().map(|packets| *packets.last().unwrap()).max().unwrap()
    }

    fn fan_out(shape: &Shape, position: u32) -> u32 {
        shape.0.iter().filter(|edge| edge.0 == position).count() as u32
    }

    #[test]
    fn the_best_k_is_the_published_one() {
        let table = |size| [1, 2, 4, 8, 16, 32].map(|packets| best_k(size, packets));
        assert_eq!(table(16), [4, 2, 2, 2, 1, 1]);
        assert_eq!(table(32), [5, 2, 2, 2, 2, 1]);
        assert_eq!(table(64), [6, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn a_k_binomial_tree_takes_the_counted_steps() {
        for size in 2..=64 {
            for k in 1..=6 {
                let shape = k_binomial(size, k);
                for packets in [1, 2, 3, 8] {
                    let counted = k_binomial_steps(size, k) + (packets - 1) * fan_out(&shape, 0);
                    assert_eq!(
                        fpfs_steps(&shape, size, packets),
                        counted,
                        "size {size} k {k} packets {packets}"
                    );
                }
                assert!((0..size).all(|position| fan_out(&shape, position) <= k));
            }
        }
    }

    #[test]
    fn coverage_and_steps_are_inverse() {
        for k in 1..=6 {
            for steps in 1..=16 {
                let covered = k_binomial_coverage(steps, k);
                assert_eq!(k_binomial_steps(covered, k), steps);
                assert_eq!(k_binomial_steps(covered + 1, k), steps + 1);
            }
        }
        assert_eq!(k_binomial_coverage(1_000_000, 30), u32::MAX);
    }

    #[test]
    fn halving_takes_the_logarithm_of_steps() {
        for size in 2_u32..=130 {
            assert_eq!(fpfs_steps(&halving(size), size, 1), (size - 1).ilog2() + 1, "{size}");
        }
        assert_eq!(halving(4).0, [(0, 2), (0, 1), (2, 3)]);
    }

    #[test]
    fn a_full_k_binomial_tree_is_the_halving_tree() {
        for power in 1..=7 {
            let mut doubling = k_binomial(1 << power, 7).0;
            let mut halved = halving(1 << power).0;
            doubling.sort_unstable();
            halved.sort_unstable();
            assert_eq!(doubling, halved);
        }
    }

    #[test]
    fn a_postal_tree_reaches_what_the_postal_model_allows() {
        // F(t) = 1 for t < lambda, else F(t-1) + F(t-lambda).
        for lambda in 1..=5_usize {
            let mut reachable = vec![1_u32; lambda];
            for time in lambda..20 {
                reachable.push(reachable[time - 1] + reachable[time - lambda]);
            }
            for (time, &size) in reachable.iter().enumerate().skip(lambda).filter(|(_, size)| **size < 5_000)
            {
                let shape = postal(size, Lambda(lambda as u32 * 1000));
                let mut sent = vec![0; size as usize];
                let mut has = vec![0; size as usize];
                for &(from, to) in &shape.0 {
                    has[to as usize] = has[from as usize] + sent[from as usize] + lambda;
                    sent[from as usize] += 1;
                }
                assert_eq!(*has.iter().max().unwrap(), time, "lambda {lambda}, {size} vertices");
                let first_child = shape.0[0].1;
                assert_eq!(size - first_child, reachable[time - lambda], "the root's first child's subtree");
            }
        }
        let mut with_lambda_one = postal(64, Lambda(1000)).0;
        let mut binomial = halving(64).0;
        with_lambda_one.sort_unstable();
        binomial.sort_unstable();
        assert_eq!(with_lambda_one, binomial);
    }

    #[test]
    fn a_child_follows_its_parent_in_every_shape() {
        for size in 1..=70 {
            let shapes = [separate, serial, binary, halving].map(|shape| shape(size)).into_iter().chain([
                k_binomial(size, 2),
                k_binomial(size, 3),
                postal(size, Lambda(2500)),
            ]);
            for shape in shapes {
                assert!(shape.0.iter().all(|&(from, to)| from < to));
                let mut reached: Vec<u32> = shape.0.iter().map(|edge| edge.1).collect();
                reached.sort_unstable();
                assert_eq!(reached, (1..size).collect::<Vec<_>>());
            }
        }
    }
}
