//! The broadcast of Open MPI 4.1 over TCP, on the hosts of [`ethernet`].
//!
//! Its ranks forward inside the call: a rank takes the whole message in and then sends it to all of
//! its children at once, as the node of offload `assisted` does. The algorithm follows from the
//! number of ranks and the length (`ompi_coll_tuned_bcast_intra_dec_fixed` in
//! `ompi/mca/coll/tuned/coll_tuned_decision_fixed.c`), and none of them cuts the message into
//! segments: the function passes a segment size of 0. The trees are those of
//! `ompi/mca/coll/base/coll_base_topo.c`; k-nomial trees have the radix 4, the default of
//! `coll_tuned_bcast_knomial_radix`.

use std::fmt;

use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::shape::{self, Shape};
use treecast_plan::{Group, Label, MemberId, Placement, Plan, Scheme, TreeScheme, Worm, WormKind};
use treecast_terms::{Bytes, Offload, Picoseconds};

use crate::ethernet::{self, Parameters};
use crate::task::{ModelError, Prediction, Task};

/// The engine of its way in a `network.toml`.
pub const ENGINE: &str = "openmpi";

/// The radix of k-nomial trees.
const RADIX: u32 = 4;

/// An algorithm of its broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// The root sends to each rank.
    Linear,
    /// Each rank sends to the next one.
    Chain,
    /// Two children at each rank.
    Binary,
    /// Half of the message down each half of a binary tree; then ranks exchange the halves in
    /// pairs.
    SplitBinary,
    /// A binomial tree.
    Binomial,
    /// A k-nomial tree.
    KNomial,
    /// A binomial scatter of equal parts, then an allgather by recursive doubling.
    ScatterAllgather,
}
use Algorithm::{Binary, Binomial, Chain, KNomial, Linear, ScatterAllgather, SplitBinary};

/// The algorithms of communicators from a number of ranks on: each from a length in bytes on.
type Decision = (u32, &'static [(u64, Algorithm)]);

/// What `ompi_coll_tuned_bcast_intra_dec_fixed` of Open MPI 4.1.4 chooses, read out of the library
/// by calling it for each length up to 8 MiB.
const DECISIONS: [Decision; 11] = [
    (
        0,
        &[
            (0, Chain),
            (32, Binary),
            (256, Chain),
            (512, KNomial),
            (1 << 10, Linear),
            (32 << 10, Binary),
            (128 << 10, Chain),
            (256 << 10, Linear),
            (512 << 10, Binomial),
            (1 << 20, Binary),
        ],
    ),
    (
        4,
        &[
            (0, Binary),
            (64, Binomial),
            (128, Binary),
            (2 << 10, Binomial),
            (8 << 10, Linear),
            (1 << 20, Chain),
        ],
    ),
    (
        8,
        &[
            (0, KNomial),
            (8, Binary),
            (64, KNomial),
            (4 << 10, Binary),
            (16 << 10, Binomial),
            (32 << 10, Linear),
        ],
    ),
    (16, &[(0, KNomial), (4 << 10, Binomial), (1 << 20, ScatterAllgather)]),
    (32, &[(0, Binomial), (2 << 10, KNomial)]),
    (64, &[(0, KNomial)]),
    (128, &[(0, Binomial), (2, Binary), (16 << 10, Linear), (32 << 10, Binary), (64 << 10, KNomial)]),
    (256, &[(0, KNomial), (16 << 10, SplitBinary), (32 << 10, KNomial)]),
    (1_024, &[(0, KNomial), (512 << 10, ScatterAllgather)]),
    (2_048, &[(0, KNomial), (256 << 10, ScatterAllgather)]),
    (4_096, &[(0, KNomial), (8 << 10, Binary), (16 << 10, KNomial), (256 << 10, ScatterAllgather)]),
];

impl Algorithm {
    /// The algorithm for a message between a number of ranks.
    ///
    /// ```
    /// use treecast_model::openmpi::Algorithm;
    /// use treecast_terms::Bytes;
    ///
    /// assert_eq!(Algorithm::of(16, Bytes(64)), Algorithm::KNomial);
    /// assert_eq!(Algorithm::of(16, Bytes(64 << 10)), Algorithm::Binomial);
    /// ```
    pub fn of(ranks: u32, message: Bytes) -> Self {
        let decision = DECISIONS.iter().rfind(|(least, _)| *least <= ranks);
        let choice =
            decision.and_then(|(_, by_length)| by_length.iter().rfind(|(least, _)| *least <= message.0));
        choice.expect("the least numbers are 0").1
    }

    /// The tree along which whole messages go; none if they are cut into parts.
    pub fn tree(self, ranks: u32) -> Option<Shape> {
        match self {
            Linear => Some(shape::separate(ranks)),
            Chain => Some(shape::serial(ranks)),
            Binary => Some(shape::binary(ranks)),
            Binomial => Some(shape::halving(ranks)),
            KNomial => Some(k_nomial(ranks)),
            SplitBinary | ScatterAllgather => None,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Linear => "linear",
            Chain => "chain",
            Binary => "binary",
            SplitBinary => "split-binary",
            Binomial => "binomial",
            KNomial => "k-nomial",
            ScatterAllgather => "scatter-allgather",
        })
    }
}

/// A k-nomial tree (`ompi_coll_base_topo_build_kmtree`): a rank whose number is a multiple of
/// `stride`, but not of the next power of the radix, has children at distances of less than that.
fn k_nomial(ranks: u32) -> Shape {
    let mut edges = Vec::with_capacity(ranks.saturating_sub(1) as usize);
    for rank in 0..ranks {
        let mut stride = 1;
        while stride < ranks && rank % (RADIX * stride) == 0 {
            stride *= RADIX;
        }
        while stride > 1 {
            stride /= RADIX;
            let children = (1..RADIX).map(|digit| rank + digit * stride);
            edges.extend(children.filter(|&child| child < ranks).map(|child| (rank, child)));
        }
    }
    Shape(edges)
}

/// A broadcast, and when the ranks have the message.
pub(crate) type Broadcast = (Prediction, Vec<Option<Picoseconds>>);

/// Carries out a broadcast between the members of a group.
///
/// # Errors
/// Those of [`ethernet::run`]; [`ModelError::Unsupported`] for a scatter to a number of ranks that
/// is not a power of two.
pub(crate) fn broadcast(
    costs: &Parameters,
    fabric: &Fabric,
    group: &Group,
    message: Bytes,
) -> Result<Broadcast, ModelError> {
    let ranks = group.size();
    let algorithm = Algorithm::of(ranks, message);
    if let Some(tree) = algorithm.tree(ranks) {
        return along(costs, fabric, group, &tree, message);
    }
    let half = Bytes(message.0.div_ceil(2));
    if algorithm == SplitBinary {
        let (tree, deliveries) = along(costs, fabric, group, &shape::binary(ranks), half)?;
        let exchange = round(costs, ranks, half)?;
        let late = |delivered: Option<Picoseconds>| delivered.map(|at| at + exchange.last_delivery);
        return Ok((sum(tree, exchange), deliveries.into_iter().map(late).collect()));
    }
    if !ranks.is_power_of_two() {
        let reason = format!("Open MPI's scatter to {ranks} ranks: only for powers of two");
        return Err(ModelError::Unsupported(reason));
    }
    let mut all = Prediction::default();
    for step in 1..=ranks.ilog2() {
        let part = Bytes((message.0 >> step).max(1));
        // Half of a holder's part goes to another rank; later, each rank sends what it has.
        all = sum(all, round(costs, 1 << (step - 1), part)?);
        all = sum(all, round(costs, ranks, part)?);
    }
    let mut deliveries = vec![None; group.placement().member_count() as usize];
    for member in group.destinations() {
        deliveries[member.index()] = Some(all.last_delivery);
    }
    Ok((all, deliveries))
}

/// A broadcast of whole messages along a tree.
fn along(
    costs: &Parameters,
    fabric: &Fabric,
    group: &Group,
    tree: &Shape,
    message: Bytes,
) -> Result<Broadcast, ModelError> {
    let members: Vec<MemberId> =
        std::iter::once(group.root()).chain(group.destinations().iter().copied()).collect();
    let worm = |&(from, to): &(u32, u32)| Worm {
        from: members[from as usize],
        index: 0,
        kind: WormKind::Unicast,
        to: vec![members[to as usize]],
        route: Vec::new(),
    };
    // The scheme is only the plan's name.
    let scheme = Scheme::tree(TreeScheme::Separate);
    let worms = tree.0.iter().map(worm).collect();
    let plan = Plan::new(scheme, Label::Published, group.root(), group.placement().clone(), worms)?;
    let offload = Offload::Assisted;
    let task = Task { fabric, group, scheme: &scheme, order: None, offload, message, seed: 0, stop: None };
    let (outcome, deliveries) = ethernet::run_plan(costs, &task, &plan)?;
    Ok((Prediction::from(&outcome), deliveries))
}

/// A round in which `senders` ranks at once send `part` bytes each, to different ranks: as long as
/// one such message takes, and where hosts share processors, at least as long as all the work.
fn round(costs: &Parameters, senders: u32, part: Bytes) -> Result<Prediction, ModelError> {
    let fabric = Fabric::from_spec(&FabricSpec::Star(2))?;
    let pair = Group::new(Placement::one_per_host(2), MemberId(0), vec![MemberId(1)])?;
    let (one, _) = along(costs, &fabric, &pair, &shape::separate(2), part)?;
    let cpu_us = one.cpu_us * f64::from(senders);
    let work_us =
        if costs.shared_processors == 0 { 0.0 } else { cpu_us / f64::from(costs.shared_processors) };
    let last_delivery = one.last_delivery.max(Picoseconds((work_us * 1e6) as u64));
    Ok(Prediction { last_delivery, mean_delivery_us: last_delivery.us(), cpu_us, ..one })
}

/// One after the other.
fn sum(one: Prediction, other: Prediction) -> Prediction {
    Prediction {
        last_delivery: one.last_delivery + other.last_delivery,
        mean_delivery_us: one.mean_delivery_us + other.mean_delivery_us,
        cpu_us: one.cpu_us + other.cpu_us,
        root_cpu_us: one.root_cpu_us + other.root_cpu_us,
    }
}

#[cfg(test)]
mod tests {
    use treecast_terms::Keyed;

    use super::*;

    fn last_us(settings: &str, hosts: u32, tree: &Shape, message: u64) -> f64 {
        let group = group(hosts);
        let (prediction, _) = along(&costs(settings), &star(hosts), &group, tree, Bytes(message)).unwrap();
        prediction.last_delivery.us()
    }

    fn group(hosts: u32) -> Group {
        let others = (1..hosts).map(MemberId).collect();
        Group::new(Placement::one_per_host(hosts), MemberId(0), others).unwrap()
    }

    fn star(hosts: u32) -> Fabric {
        Fabric::from_spec(&FabricSpec::Star(hosts)).unwrap()
    }

    fn costs(settings: &str) -> Parameters {
        let mut costs = Parameters::default();
        let none = "link_mb_per_s=0 hop_us=0 piece_bytes=65536 call_us=0 call_ns_per_kb=0 ask_us=0 \
                    send_us=3 send_ns_per_kb=0 wake_us=0 wake_cpu_us=0 receive_us=5 receive_ns_per_kb=0 \
                    deliver_us=0 deliver_ns_per_kb=0 ack_us=0";
        costs.set_all(none).unwrap();
        costs.set_all(settings).unwrap();
        costs
    }

    #[test]
    fn the_library_chooses_by_ranks_and_length() {
        let of = |ranks, bytes| Algorithm::of(ranks, Bytes(bytes));
        let known = [
            (2, 31, Chain),
            (2, 32, Binary),
            (3, 1 << 20, Binary),
            (4, 1 << 20, Chain),
            (7, 8_191, Binomial),
            (15, 32_768, Linear),
            (16, 64, KNomial),
            (16, 65_536, Binomial),
            (31, 1 << 20, ScatterAllgather),
            (63, 2_047, Binomial),
            (64, 1 << 20, KNomial),
            (128, 16_384, Linear),
            (512, 16_384, SplitBinary),
            (1_024, 524_287, KNomial),
            (1_024, 524_288, ScatterAllgather),
            (5_000, 8_192, Binary),
        ];
        for (ranks, bytes, algorithm) in known {
            assert_eq!(of(ranks, bytes), algorithm, "{ranks} ranks, {bytes} bytes");
        }
    }

    /// The tree in the comment of `ompi_coll_base_topo_build_kmtree` for 10 ranks and radix 4.
    #[test]
    fn a_k_nomial_tree_has_the_children_of_the_library() {
        let edges = [(0, 4), (0, 8), (0, 1), (0, 2), (0, 3), (4, 5), (4, 6), (4, 7), (8, 9)];
        assert_eq!(k_nomial(10).0, edges);
        for ranks in 1..200 {
            let mut reached: Vec<u32> = k_nomial(ranks).0.iter().map(|&(_, to)| to).collect();
            reached.sort_unstable();
            assert_eq!(reached, (1..ranks).collect::<Vec<_>>());
        }
    }

    #[test]
    fn each_step_of_a_chain_takes_a_send_and_a_receipt() {
        let chain = shape::serial(4);
        assert!((last_us("", 2, &shape::serial(2), 64) - 8.0).abs() < 1e-9);
        assert!((last_us("", 4, &chain, 64) - 24.0).abs() < 1e-9);
        // On links of 100 MB/s with a hop of 1 us, each step has 10 us on the wire and two hops.
        assert!((last_us("link_mb_per_s=100 hop_us=1", 4, &chain, 1_000) - 3.0 * 20.0).abs() < 1e-9);
    }

    #[test]
    fn the_root_of_a_binomial_tree_sends_twice_to_four_ranks() {
        // The root's first child has it after 8 us, its second one after 11, and the first one's
        // child after 16.
        assert!((last_us("", 4, &shape::halving(4), 64) - 16.0).abs() < 1e-9);
        // Of long messages, both children of the root get a piece in turn, until 1,200 us.
        let wire = "link_mb_per_s=1000 send_us=0 receive_us=0";
        let last = last_us(wire, 4, &shape::halving(4), 600_000);
        assert!((1_730.0..1_870.0).contains(&last), "{last}");
    }

    #[test]
    fn a_message_above_the_eager_limit_waits_for_a_handshake() {
        let settings = "rendezvous_us=7 hop_us=1";
        let short = last_us(settings, 2, &shape::serial(2), 65_000);
        // There and back over two links each, beside the sends of two pieces instead of one.
        let long = last_us(settings, 2, &shape::serial(2), 65_536);
        assert!((long - short - 11.0).abs() < 1e-9, "{short} {long}");
    }

    #[test]
    fn a_scatter_and_an_allgather_take_their_rounds() {
        let costs = costs("link_mb_per_s=1000 send_us=1 receive_us=2");
        let (all, deliveries) = broadcast(&costs, &star(16), &group(16), Bytes(1 << 20)).unwrap();
        let parts: f64 = (1..=4).map(|step| f64::from(1 << (20 - step)) / 1e3).sum();
        let wire = 2.0 * parts;
        let last = all.last_delivery.us();
        assert!((wire..wire + 80.0).contains(&last), "{last}, {wire}");
        assert_eq!(deliveries.iter().flatten().count(), 15);
        let refused = broadcast(&costs, &star(17), &group(17), Bytes(1 << 20));
        assert!(matches!(refused, Err(ModelError::Unsupported(_))));
    }
}
