//! Orders of the members that a tree is built on: the root first, then the destinations.

use rand::RngExt;
use rand_pcg::Pcg64;
use treecast_fabric::{Fabric, SwitchId, Topology, UpDown};

use crate::error::PlanError;
use crate::group::{Group, Order};
use treecast_terms::MemberId;

/// The random stream of a seed that shuffles members.
const ORDER_STREAM: u128 = 0x6f72_6465;

/// The members of a group in an order, the root first.
///
/// # Errors
/// [`PlanError::NeedsUpDown`] for [`Order::Cco`] on a fabric with other routing.
pub fn ordered_members(fabric: &Fabric, group: &Group, order: Order) -> Result<Vec<MemberId>, PlanError> {
    Ok(MemberOrder::new(fabric, order)?.members(group))
}

/// An order on a fabric, with the data about switches that it needs.
#[derive(Debug)]
pub(crate) struct MemberOrder<'a> {
    topology: &'a Topology,
    order: Order,
    /// The position of each switch in chain-concatenated order; empty for other orders.
    positions: Vec<u32>,
}

impl<'a> MemberOrder<'a> {
    pub(crate) fn new(fabric: &'a Fabric, order: Order) -> Result<Self, PlanError> {
        let topology = fabric.topology();
        let mut positions = Vec::new();
        if order == Order::Cco {
            let Some(routing) = fabric.routing().up_down() else {
                return Err(PlanError::NeedsUpDown { scheme: "order cco", routing: fabric.routing().name() });
            };
            positions.resize(topology.switch_count() as usize, 0);
            for (position, switch) in (0..).zip(chain_concatenated(fabric, routing)) {
                positions[switch.index()] = position;
            }
        }
        Ok(Self { topology, order, positions })
    }

    /// The members of a group in this order, the root first.
    pub(crate) fn members(&self, group: &Group) -> Vec<MemberId> {
        let mut members = Vec::with_capacity(group.size() as usize);
        members.push(group.root());
        members.extend_from_slice(group.destinations());
        match self.order {
            Order::Given => {}
            Order::Id => members[1..].sort_unstable(),
            Order::Random(seed) => {
                let mut random = Pcg64::new(u128::from(seed), ORDER_STREAM);
                for index in (2..members.len()).rev() {
                    members.swap(index, random.random_range(1..=index));
                }
            }
            Order::Switch => self.sort_by(group, &mut members, |switch| switch.0),
            Order::Cco => self.sort_by(group, &mut members, |switch| self.positions[switch.index()]),
        }
        members
    }

    /// Sorts by the position of the member's switch, then by id, and rotates so that the root is
    /// first.
    fn sort_by(&self, group: &Group, members: &mut [MemberId], position: impl Fn(SwitchId) -> u32) {
        let switch_of = |member| self.topology.switch_of(group.placement().host_of(member));
        members.sort_unstable_by_key(|&member| (position(switch_of(member)), member));
        let root = members.iter().position(|&member| member == group.root()).expect("the root is a member");
        members.rotate_left(root);
    }
}

/// The switches in chain-concatenated order: the graph of the *down* links is cut into chains,
/// which are concatenated.
///
/// A chain begins at the uppermost switch not yet taken and goes on to the uppermost *down*
/// neighbour not yet taken, until there is none. *Reconstructed*: the paper's own choice among
/// neighbours is not public.
pub fn chain_concatenated(fabric: &Fabric, routing: &UpDown) -> Vec<SwitchId> {
    let topology = fabric.topology();
    let key = |switch: SwitchId| (routing.level(switch), switch);
    let mut taken = vec![false; topology.switch_count() as usize];
    let mut order = Vec::with_capacity(taken.len());
    for first in routing.top_down() {
        let mut next = Some(first).filter(|switch| !taken[switch.index()]);
        while let Some(switch) = next {
            taken[switch.index()] = true;
            order.push(switch);
            next = topology
                .neighbours(switch)
                .filter(|&(link, below)| !routing.is_up(topology, link) && !taken[below.index()])
                .map(|(_, below)| below)
                .min_by_key(|&below| key(below));
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use treecast_fabric::{FabricSpec, PortNumber, RoutingPolicy, TopologyBuilder};

    use super::*;
    use crate::group::Placement;

    fn fabric() -> Fabric {
        Fabric::from_spec(&"icpp98".parse::<FabricSpec>().unwrap()).unwrap()
    }

    fn order(name: &str) -> Vec<u32> {
        let destinations = (0..32).filter(|&member| member != 9).map(MemberId).collect();
        let group = Group::new(Placement::one_per_host(32), MemberId(9), destinations).unwrap();
        let members = ordered_members(&fabric(), &group, name.parse().unwrap()).unwrap();
        members.into_iter().map(|member| member.0).collect()
    }

    #[test]
    fn every_order_holds_every_member_once_and_the_root_first() {
        for name in Order::NAMES {
            let mut members = order(name);
            assert_eq!(members[0], 9, "{name}");
            members.sort_unstable();
            assert_eq!(members, (0..32).collect::<Vec<_>>(), "{name}");
        }
    }

    #[test]
    fn switch_order_keeps_the_hosts_of_a_switch_together() {
        assert_eq!(order("switch")[..6], [9, 10, 11, 12, 13, 14]);
        for name in ["switch", "cco"] {
            // Rotation may cut one switch's hosts in two.
            let switches: Vec<u32> = order(name).iter().map(|member| member / 4).collect();
            assert!(switches.windows(2).filter(|pair| pair[0] != pair[1]).count() <= 8, "{name}");
        }
    }

    #[test]
    fn a_chain_goes_down_only() {
        let fabric = fabric();
        let routing = fabric.routing().up_down().unwrap();
        let chain = chain_concatenated(&fabric, routing);
        let mut sorted = chain.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(fabric.topology().switches()));
        assert_eq!(routing.level(chain[0]), 0);
        assert!(fabric.topology().neighbours(chain[0]).any(|(_, below)| below == chain[1]));
    }

    #[test]
    fn chains_begin_and_go_on_at_the_uppermost_switch_not_yet_taken() {
        // s0 above s1 and s2, both above s3; s4 below s1 alone.
        let mut builder = TopologyBuilder::new();
        let switches = [0; 5].map(|_| builder.switch(4).unwrap());
        builder.host(switches[0], PortNumber(3)).unwrap();
        for (a, b) in [(0, 1), (0, 2), (1, 3), (2, 3), (1, 4)] {
            let ends =
                [a, b].map(|switch: usize| (switches[switch], builder.free_port(switches[switch]).unwrap()));
            builder.link(ends[0], ends[1]).unwrap();
        }
        let fabric = Fabric::new(builder.build().unwrap(), RoutingPolicy::Auto).unwrap();
        let chains = chain_concatenated(&fabric, fabric.routing().up_down().unwrap());
        assert_eq!(chains, [0, 1, 3, 2, 4].map(SwitchId));
    }

    #[test]
    fn one_seed_makes_one_random_order() {
        assert_eq!(order("random:seed=3"), order("random:seed=3"));
        assert_ne!(order("random:seed=3"), order("random:seed=4"));
    }
}
