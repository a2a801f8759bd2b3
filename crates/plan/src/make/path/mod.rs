//! Path worms in phases: MDP-G and MDP-LG.
//!
//! A path worm follows one legal up*/down* route, without visiting a switch twice, and drops a copy
//! to every chosen destination on it. A member that is reached in a phase is a holder, and so a
//! possible sender, in the next; a holder sends at most one worm per phase.
//!
//! *Reconstructed*. MDP-G (greedy): holder by holder, the legal path that covers the most uncovered
//! destinations, the shorter on ties, then the one with the lower link numbers. MDP-LG (less
//! greedy): the same, but a worm takes at most its fair share of the uncovered destination
//! switches, since a switch's hosts come with the visit; and the worms of one phase share no link.

mod search;

use search::{Path, Search, end};
use treecast_fabric::{Channel, Fabric, RouteFinder, Topology};

use super::sender::Sender;
use crate::error::PlanError;
use crate::group::Group;
use crate::plan::{Worm, WormKind};
use crate::scheme::{PathPolicy, Share};
use treecast_terms::MemberId;

/// Makes path worms in phases.
#[derive(Debug)]
pub(in crate::make) struct PathMaker<'a> {
    topology: &'a Topology,
    policy: PathPolicy,
    search: Search<'a>,
    /// Destinations at each switch that no worm covers yet; none between plans.
    uncovered: Vec<Vec<MemberId>>,
}

impl<'a> PathMaker<'a> {
    pub(in crate::make) fn new(fabric: &'a Fabric, policy: PathPolicy) -> Result<Self, PlanError> {
        let Some(routing) = fabric.routing().up_down() else {
            return Err(PlanError::NeedsUpDown { scheme: "path", routing: fabric.routing().name() });
        };
        let topology = fabric.topology();
        let uncovered = vec![Vec::new(); topology.switch_count() as usize];
        Ok(Self { topology, policy, search: Search::new(topology, routing), uncovered })
    }

    pub(in crate::make) fn worms(&mut self, finder: &mut Option<RouteFinder>, group: &Group) -> Vec<Worm> {
        let topology = self.topology;
        let host_of = |member| group.placement().host_of(member);
        let near = self.uncover(group);
        let search = &mut self.search;
        let mut sender = Sender::new(finder, group);
        let mut holders = vec![group.root()];
        loop {
            let open = search.open();
            if open == 0 {
                break;
            }
            search.begin_phase(match self.policy.share {
                Share::All => None,
                Share::Fair => Some(open.div_ceil(holders.len() as u32 + 1)),
                Share::AtMost(most) => Some(most),
            });
            let senders = holders.len();
            for index in 0..senders {
                let holder = holders[index];
                let Some(path) = search.best(topology.switch_of(host_of(holder))) else { continue };
                let worm = drop_along(topology, group, holder, &path, &mut self.uncovered);
                search.cover(&path, self.policy.disjoint);
                // One member per host sends: the others hold the message, but share its network
                // interface.
                let reached = worm.to.chunk_by(|&a, &b| host_of(a) == host_of(b)).map(|members| members[0]);
                holders.extend(reached);
                sender.worms.push(worm);
                if search.open() == 0 {
                    break;
                }
            }
        }
        for member in near {
            sender.send(group.root(), member);
        }
        sender.worms
    }

    /// Assigns the destinations to their switches; returns those on the root's host.
    fn uncover(&mut self, group: &Group) -> Vec<MemberId> {
        let host_of = |member| group.placement().host_of(member);
        let home = host_of(group.root());
        let mut near = Vec::new();
        let mut destinations = group.destinations().to_vec();
        destinations.sort_unstable_by_key(|&member| (host_of(member), member));
        for member in destinations {
            if host_of(member) == home {
                near.push(member);
            } else {
                let switch = self.topology.switch_of(host_of(member)).index();
                self.uncovered[switch].push(member);
                self.search.weights[switch] += 1;
            }
        }
        near
    }
}

/// The worm that follows a path from a holder, and covers the destinations at its stops.
fn drop_along(
    topology: &Topology,
    group: &Group,
    from: MemberId,
    path: &Path,
    uncovered: &mut [Vec<MemberId>],
) -> Worm {
    let host_of = |member| group.placement().host_of(member);
    let mut at = topology.switch_of(host_of(from));
    let mut links = vec![topology.injection(host_of(from))];
    let mut to = Vec::new();
    let mut onward = path.links.iter();
    loop {
        if path.stops.contains(&at) {
            let here = std::mem::take(&mut uncovered[at.index()]);
            links.extend(
                here.chunk_by(|&a, &b| host_of(a) == host_of(b))
                    .map(|members| topology.ejection(host_of(members[0]))),
            );
            to.extend(here);
        }
        let Some(&link) = onward.next() else { break };
        links.push(link);
        at = end(topology, link);
    }
    let route = links.into_iter().map(|link| Channel { link, virtual_channel: 0 }).collect();
    Worm { from, index: 0, kind: WormKind::Path, to, route }
}

#[cfg(test)]
mod tests {
    use treecast_fabric::{FabricSpec, LinkId};

    use super::*;
    use crate::group::Placement;
    use crate::planner::{PlanOptions, plan};

    fn fabric(spec: &str) -> Fabric {
        Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap()
    }

    #[test]
    fn less_greedy_worms_of_a_phase_take_their_share_and_share_no_link() {
        let fabric = fabric("irregular:switches=16,ports=8,hosts=64,seed=5");
        let group =
            Group::new(Placement::one_per_host(64), MemberId(0), (1..64).map(MemberId).collect()).unwrap();
        let plan = plan(&fabric, &group, &"path".parse().unwrap(), &PlanOptions::default()).unwrap();
        let topology = fabric.topology();
        let switches = |worm: &Worm| {
            let mut switches: Vec<_> =
                worm.to.iter().map(|to| topology.switch_of(treecast_fabric::HostId(to.0))).collect();
            switches.dedup();
            switches.len()
        };
        // One holder, 16 switches: the first worm takes at most 8.
        assert!(switches(&plan.worms()[0]) <= 8);
        let holders = 1 + plan.worms()[0].to.len();
        let share = (16 - switches(&plan.worms()[0])).div_ceil(holders + 1);
        let mut links: Vec<LinkId> = Vec::new();
        // The root is first in every phase: where it sends again, the second phase is over.
        let second = plan.worms()[2..].iter().take_while(|worm| worm.from != plan.root());
        for worm in plan.worms()[1..2].iter().chain(second) {
            assert!(switches(worm) <= share);
            links.extend(worm.route.iter().map(|channel| channel.link));
        }
        let count = links.len();
        links.sort_unstable();
        links.dedup();
        assert_eq!(links.len(), count);
    }
}
