//! What a page shows of a plan: the sends of each step, without a simulation.

use std::collections::BTreeMap;

use serde::Serialize;
use treecast_fabric::{Channel, Fabric, HostId, Vertex};
use treecast_plan::{MemberId, Plan, PlanError};

/// A plan, in the form of a run whose clock counts steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Steps {
    name: String,
    /// The host of the root.
    root: u32,
    /// Host and step of each delivery, in the order of steps.
    deliveries: Vec<(u32, u32)>,
    /// The number of processes that receive.
    destinations: usize,
    /// Sender and receivers of each worm, as hosts.
    worms: Vec<(u32, Vec<u32>)>,
    /// The same worms, for the table and the picture.
    sends: Vec<Send>,
    // Nothing is simulated: these are empty.
    transfers: [(); 0],
    work: [(); 0],
    waits: [(); 0],
}

/// A worm of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Send {
    step: u32,
    from: String,
    to: Vec<String>,
    kind: &'static str,
    /// The names of the links it crosses.
    route: Vec<String>,
    /// The same links by number, each with the number of links before it on its way.
    links: Vec<(u32, u32)>,
    /// The number of links of its longest way.
    hops: u32,
}

impl Steps {
    pub fn new(plan: &Plan, fabric: &Fabric) -> Result<Self, PlanError> {
        let routes = plan.routes(fabric)?;
        let placement = plan.placement();
        let topology = fabric.topology();
        let host = |member: &MemberId| placement.host_of(*member).0;
        let name = |member: &MemberId| {
            let name = topology.host_name(placement.host_of(*member));
            if placement.processes() == 1 { name } else { format!("m{member} on {name}") }
        };
        let worms = || plan.worms().iter().zip(plan.steps());
        let sends = worms().zip(&routes).map(|((worm, step), route)| {
            let links = with_hops(fabric, placement.host_of(worm.from), route);
            Send {
                step,
                from: name(&worm.from),
                to: worm.to.iter().map(name).collect(),
                kind: worm.kind.name(),
                route: route.iter().map(|channel| channel_name(fabric, *channel)).collect(),
                hops: links.iter().map(|&(_, hop)| hop + 1).max().unwrap_or(0),
                links,
            }
        });
        let mut deliveries: Vec<(u32, u32)> =
            worms().flat_map(|(worm, step)| worm.to.iter().map(move |member| (host(member), step))).collect();
        deliveries.sort_unstable_by_key(|&(host, step)| (step, host));
        Ok(Self {
            name: plan.scheme().to_string(),
            root: host(&plan.root()),
            deliveries,
            destinations: plan.destination_count(),
            worms: worms().map(|(worm, _)| (host(&worm.from), worm.to.iter().map(host).collect())).collect(),
            sends: sends.collect(),
            transfers: [],
            work: [],
            waits: [],
        })
    }

    /// The number of links in all routes.
    pub fn link_count(&self) -> usize {
        self.sends.iter().map(|send| send.links.len()).sum()
    }
}

/// The links of a route, each with the number of links before it. A tree worm splits, so its links
/// are not one after another.
fn with_hops(fabric: &Fabric, source: HostId, route: &[Channel]) -> Vec<(u32, u32)> {
    let mut hops_to: BTreeMap<Vertex, u32> = BTreeMap::from([(Vertex::Host(source), 0)]);
    let hop = |channel: &Channel| {
        let link = fabric.topology().link(channel.link);
        let hop = hops_to.get(&link.from).copied().unwrap_or(0);
        hops_to.insert(link.to, hop + 1);
        (channel.link.0, hop)
    };
    route.iter().map(hop).collect()
}

/// The name of a link, with the virtual channel as a suffix unless that is 0.
fn channel_name(fabric: &Fabric, channel: Channel) -> String {
    let name = fabric.topology().link_name(channel.link);
    if channel.virtual_channel == 0 { name } else { format!("{name}/{}", channel.virtual_channel) }
}

#[cfg(test)]
mod tests {
    use treecast_fabric::FabricSpec;
    use treecast_plan::{Group, Placement, PlanOptions, plan};

    use super::*;

    fn steps(spec: &str, scheme: &str) -> Steps {
        let fabric = Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap();
        let hosts = fabric.topology().host_count();
        let all = (1..hosts).map(MemberId).collect();
        let group = Group::new(Placement::one_per_host(hosts), MemberId(0), all).unwrap();
        let plan = plan(&fabric, &group, &scheme.parse().unwrap(), &PlanOptions::default()).unwrap();
        Steps::new(&plan, &fabric).unwrap()
    }

    #[test]
    fn the_links_of_a_unicast_are_one_after_another() {
        let steps = steps("icpp98", "binomial");
        for send in &steps.sends {
            let hops: Vec<u32> = send.links.iter().map(|&(_, hop)| hop).collect();
            assert_eq!(hops, (0..send.hops).collect::<Vec<_>>());
            assert_eq!(send.route.len(), send.links.len());
        }
        assert_eq!(steps.deliveries.len(), 31);
        assert_eq!(steps.deliveries.last().unwrap().1, 5);
    }

    #[test]
    fn a_tree_worm_goes_over_several_links_at_once() {
        let steps = steps("icpp98", "tree-worm");
        assert_eq!(steps.sends.len(), 1);
        assert!((steps.sends[0].hops as usize) < steps.sends[0].links.len());
    }
}
