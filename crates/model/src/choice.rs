//! Which way and which tree are best on a network that was measured.

use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::shape::Lambda;
use treecast_plan::{Group, MemberId, Order, Placement, Scheme, TreeScheme};
use treecast_terms::{Bytes, Offload, Picoseconds};

use crate::network::{Network, Way};
use crate::task::{ModelError, Prediction};

/// The most deliveries of pieces of each run by which [`Network::best_of`] chooses.
const DELIVERIES_OF_CHOICE: u64 = 1 << 14;

/// The trees that are compared: those of every fan-out, and postal trees between them. With offload
/// `switch` the root sends each piece once, whatever the tree, and Open MPI takes an algorithm of
/// its own, so that one tree is enough.
fn candidate_trees(way: &Way) -> impl Iterator<Item = TreeScheme> + use<> {
    let count = if way.offload == Offload::Switch || way.is_openmpi() { 1 } else { usize::MAX };
    let bounded = [2, 3, 4].map(|k| TreeScheme::KBinomial { k: Some(k) });
    let postal = [1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0].into_iter().filter_map(Lambda::of);
    [TreeScheme::Separate, TreeScheme::Binomial, TreeScheme::Serial, TreeScheme::Binary]
        .into_iter()
        .chain(bounded)
        .chain(postal.map(|lambda| TreeScheme::Postal { lambda: Some(lambda) }))
        .take(count)
}

/// A way and a tree, and when the last member has the message by them.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The way.
    pub way: Way,
    /// The tree; where switches copy, the one of one sender.
    pub tree: TreeScheme,
    /// From the root's call until the application of the last member has the message.
    pub last_delivery: Picoseconds,
}

impl Network {
    /// The tree by which a message gets to the members of a group first, and when.
    ///
    /// # Errors
    /// Those of [`Network::predict`].
    pub fn best(
        &self,
        way: &Way,
        fabric: &Fabric,
        group: &Group,
        order: Option<Order>,
        message: Bytes,
    ) -> Result<(Scheme, Prediction), ModelError> {
        let mut best: Option<(Scheme, Prediction)> = None;
        for tree in candidate_trees(way) {
            let scheme = Scheme::tree(tree);
            let prediction = self.predict(way, fabric, group, (&scheme, order), message)?;
            if best.is_none_or(|(_, known)| prediction.last_delivery < known.last_delivery) {
                best = Some((scheme, prediction));
            }
        }
        Ok(best.expect("there are candidates"))
    }

    /// The best of some ways, and its tree, between hosts that are equally far from each other;
    /// none if the network has none of these ways.
    ///
    /// Messages are cut to a few pieces for each member, the same for all ways, so that the search
    /// takes milliseconds: the pipeline is full by then, and more pieces do not change what is
    /// best. The last delivery is that of a message which is cut in this way.
    ///
    /// # Errors
    /// Those of [`Network::best`].
    pub fn best_of<'a>(
        &self,
        ways: impl IntoIterator<Item = &'a Way>,
        members: u32,
        message: Bytes,
    ) -> Result<Option<Choice>, ModelError> {
        let known: Vec<_> = ways.into_iter().filter_map(|way| Some((way, self.ways.get(way)?))).collect();
        let Some(piece) = known.iter().map(|(_, costs)| costs.piece.0).min() else { return Ok(None) };
        let pieces_max = (DELIVERIES_OF_CHOICE / u64::from(members.max(1))).max(1);
        let message = Bytes(message.0.clamp(1, piece.saturating_mul(pieces_max)));
        let fabric = Fabric::from_spec(&FabricSpec::Star(members))?;
        let others = (1..members).map(MemberId).collect();
        let group = Group::new(Placement::one_per_host(members), MemberId(0), others)?;
        let mut best: Option<Choice> = None;
        for (way, _) in known {
            let (scheme, prediction) = self.best(way, &fabric, &group, None, message)?;
            let last_delivery = prediction.last_delivery;
            if best.as_ref().is_none_or(|known| last_delivery < known.last_delivery) {
                let tree = scheme.as_tree().expect("the candidates are trees");
                best = Some(Choice { way: way.clone(), tree, last_delivery });
            }
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use treecast_terms::Keyed;
    use treecast_wire::Transport;

    use super::*;
    use crate::ethernet::Parameters;

    /// A network with these costs by the way `user nic stream`.
    fn with_costs(settings: &str) -> (Network, Way) {
        let way = Way { engine: "user".into(), offload: Offload::Nic, transport: Transport::Streams };
        let mut costs = Parameters::default();
        costs.set_all(settings).unwrap();
        (Network { about: String::new(), ways: BTreeMap::from([(way.clone(), costs)]) }, way)
    }

    #[test]
    fn the_best_tree_follows_the_costs() {
        let best = |settings: &str, members, bytes| {
            let (network, way) = with_costs(settings);
            network.best_of([&way], members, Bytes(bytes)).unwrap().unwrap().tree
        };
        // Where a relay takes long, the root sends to all; where a copy does, few are sent by each.
        assert_eq!(best("send_us=1 wake_us=100", 16, 64), TreeScheme::Separate);
        let slow_copies = best("send_us=50 wake_us=0 wake_cpu_us=0 receive_us=1", 16, 64);
        assert_eq!(slow_copies, TreeScheme::Binomial);
        // Many pieces go down a chain, in which each member sends each of them once.
        assert_eq!(best("link_mb_per_s=100", 8, 1 << 30), TreeScheme::Serial);
    }

    #[test]
    fn no_scheme_is_better_than_the_best_tree() {
        let (network, way) = with_costs("send_us=7 wake_us=20");
        let fabric = Fabric::from_spec(&FabricSpec::Star(13)).unwrap();
        let others = (1..13).map(MemberId).collect();
        let group = Group::new(Placement::one_per_host(13), MemberId(0), others).unwrap();
        let (_, best) = network.best(&way, &fabric, &group, None, Bytes(5_000)).unwrap();
        for tree in candidate_trees(&way) {
            let scheme = Scheme::tree(tree);
            let other = network.predict(&way, &fabric, &group, (&scheme, None), Bytes(5_000)).unwrap();
            assert!(best.last_delivery <= other.last_delivery, "{scheme}");
        }
    }

    #[test]
    fn the_best_of_several_ways_is_the_first_to_deliver() {
        let (mut network, stream) = with_costs("send_us=7 wake_us=20 piece_bytes=65536");
        let way =
            |engine: &str, offload| Way { engine: engine.into(), offload, transport: Transport::Packets };
        let (kernel, switch) = (way("ebpf", Offload::Nic), way("ebpf", Offload::Switch));
        let costs = |settings: &str| {
            let mut costs = Parameters::default();
            costs.set_all(settings).unwrap();
            costs
        };
        let slow_bytes = "send_us=1 wake_us=1 wake_for=message send_ns_per_kb=900 receive_ns_per_kb=900";
        network.ways.insert(kernel.clone(), costs(slow_bytes));
        network.ways.insert(switch.clone(), costs("send_us=100"));
        let ways = [stream.clone(), kernel.clone(), switch];
        let best = |ways: &[Way], members, bytes| network.best_of(ways, members, Bytes(bytes)).unwrap();
        let is_best = |way: &Way, bytes| best(&ways, 16, bytes).unwrap().way == *way;
        assert!(is_best(&kernel, 64) && is_best(&stream, 1 << 20));
        let multicast = best(&ways[2..], 16, 64).unwrap();
        assert_eq!((multicast.way.offload, multicast.tree), (Offload::Switch, TreeScheme::Separate));
        assert_eq!(best(&[way("openmpi", Offload::Nic)], 16, 64), None);
        for way in &ways {
            let alone = best(std::slice::from_ref(way), 16, 5_000).unwrap();
            assert!(best(&ways, 16, 5_000).unwrap().last_delivery <= alone.last_delivery, "{way}");
        }
    }
}
