//! The hierarchy of the switches of a fabric: racks, and clusters of them within one another.

use std::cmp::Reverse;
use std::collections::VecDeque;

use treecast_fabric::{Fabric, SwitchId, Topology};

/// The number of a rack or a cluster. A rack is a switch, and has its number.
pub(crate) type Cluster = u32;

/// Racks and clusters, each in one cluster.
///
/// Every switch makes a cluster of its own rack and everything that its lower neighbours join: on a
/// tree of switches, the switch with everything below it; in a fat tree the edge switches of a pod
/// are one cluster. Levels are those of up*/down* routing where the topology has ranks, and on a
/// tree without ranks the distances from its centre. On other fabrics all racks are in one cluster.
#[derive(Debug)]
pub(crate) struct Hierarchy {
    parents: Vec<Cluster>,
    top: Cluster,
}

impl Hierarchy {
    /// The hierarchy of a fabric. Cost: in proportion to its links, and sorting its switches.
    pub fn new(fabric: &Fabric) -> Self {
        let topology = fabric.topology();
        if let Some(levels) = levels(fabric) {
            return Self::by_levels(topology, &levels);
        }
        let all = topology.switch_count();
        Self { parents: vec![all; all as usize + 1], top: all }
    }

    fn by_levels(topology: &Topology, levels: &[u32]) -> Self {
        let racks = topology.switch_count();
        let cluster = |switch: SwitchId| racks + switch.0;
        let mut parents: Vec<Cluster> = (0..2 * racks).collect();
        let mut from_below: Vec<SwitchId> = topology.switches().collect();
        from_below.sort_unstable_by_key(|&switch| Reverse((levels[switch.index()], switch)));
        let mut components = Components::of(topology);
        let mut is_done = vec![false; racks as usize];
        let mut top = 0;
        for upper in from_below {
            top = cluster(upper);
            parents[upper.index()] = cluster(upper);
            is_done[upper.index()] = true;
            for (_, lower) in topology.neighbours(upper).filter(|(_, neighbour)| is_done[neighbour.index()]) {
                let top = components.top(lower);
                parents[cluster(top) as usize] = cluster(upper);
                components.join(top, upper);
            }
        }
        Self { parents, top }
    }

    /// The cluster of all switches.
    pub const fn top(&self) -> Cluster {
        self.top
    }

    /// The cluster that a rack or a cluster is in; that of all switches is in itself.
    pub fn parent(&self, cluster: Cluster) -> Cluster {
        self.parents[cluster as usize]
    }
}

/// The level of each switch, 0 at the top; `None` where a fabric has none.
fn levels(fabric: &Fabric) -> Option<Vec<u32>> {
    let topology = fabric.topology();
    match fabric.routing().up_down().filter(|_| topology.ranks().is_some()) {
        Some(routing) => Some(topology.switches().map(|switch| routing.level(switch)).collect()),
        None => topology.is_tree().then(|| distances(topology, centre(topology)).0),
    }
}

/// The middle of a longest path in a tree of switches.
fn centre(topology: &Topology) -> SwitchId {
    let (_, one_end) = distances(topology, SwitchId(0));
    let (from_one, other_end) = distances(topology, one_end);
    let mut at = other_end;
    while 2 * from_one[at.index()] > from_one[other_end.index()] {
        let nearer = |&(_, neighbour): &(_, SwitchId)| from_one[neighbour.index()] < from_one[at.index()];
        let Some((_, next)) = topology.neighbours(at).find(nearer) else { break };
        at = next;
    }
    at
}

/// The distance of each switch from a switch, in links, and the farthest one.
fn distances(topology: &Topology, from: SwitchId) -> (Vec<u32>, SwitchId) {
    let mut distances = vec![u32::MAX; topology.switch_count() as usize];
    distances[from.index()] = 0;
    let mut queue = VecDeque::from([from]);
    let mut last = from;
    while let Some(switch) = queue.pop_front() {
        last = switch;
        for (_, neighbour) in topology.neighbours(switch) {
            if distances[neighbour.index()] == u32::MAX {
                distances[neighbour.index()] = distances[switch.index()] + 1;
                queue.push_back(neighbour);
            }
        }
    }
    (distances, last)
}

/// Components of switches, each with its top.
struct Components(Vec<SwitchId>);

impl Components {
    fn of(topology: &Topology) -> Self {
        Self(topology.switches().collect())
    }

    fn top(&mut self, mut switch: SwitchId) -> SwitchId {
        while self.0[switch.index()] != switch {
            let above = self.0[switch.index()];
            self.0[switch.index()] = self.0[above.index()];
            switch = above;
        }
        switch
    }

    /// Puts a component below another top.
    fn join(&mut self, top: SwitchId, new_top: SwitchId) {
        self.0[top.index()] = new_top;
    }
}

#[cfg(test)]
mod tests {
    use treecast_fabric::{FabricSpec, RoutingPolicy, read};

    use super::*;

    /// The hosts of each cluster that has more than one part with hosts.
    fn clusters(fabric: &Fabric) -> Vec<Vec<String>> {
        let (topology, hierarchy) = (fabric.topology(), Hierarchy::new(fabric));
        let mut hosts: Vec<Vec<String>> = vec![Vec::new(); hierarchy.parents.len()];
        for host in topology.hosts() {
            let mut at = topology.switch_of(host).0;
            loop {
                hosts[at as usize].push(topology.host_name(host));
                if hierarchy.parent(at) == at {
                    break;
                }
                at = hierarchy.parent(at);
            }
        }
        hosts.retain(|hosts| hosts.len() > 1);
        hosts.sort();
        hosts.dedup();
        hosts
    }

    fn generated(spec: &str) -> Fabric {
        Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap()
    }

    fn slurm(text: &str) -> Fabric {
        let topology = read::slurm("topology.conf", text).unwrap().topology;
        Fabric::new(topology, RoutingPolicy::Auto).unwrap()
    }

    #[test]
    fn a_cluster_is_a_switch_with_all_that_is_below_it() {
        let fabric = slurm(
            "SwitchName=a Nodes=a[1-2]\nSwitchName=b Nodes=b[1-2]\nSwitchName=c Nodes=c[1-2]\n\
             SwitchName=m Switches=a,b\nSwitchName=t Switches=m,c\n",
        );
        let expected: [&[&str]; 5] = [
            &["a1", "a2"],
            &["a1", "a2", "b1", "b2"],
            &["a1", "a2", "b1", "b2", "c1", "c2"],
            &["b1", "b2"],
            &["c1", "c2"],
        ];
        assert_eq!(clusters(&fabric), expected);
    }

    #[test]
    fn the_edge_switches_of_a_pod_are_one_cluster() {
        let sizes: Vec<usize> = clusters(&generated("fat-tree:k=4")).iter().map(Vec::len).collect();
        assert_eq!(sizes.iter().filter(|&&size| size == 2).count(), 8);
        assert_eq!(sizes.iter().filter(|&&size| size == 4).count(), 4);
        assert_eq!(sizes.iter().filter(|&&size| size == 16).count(), 1);
    }

    #[test]
    fn without_levels_all_racks_are_in_one_cluster() {
        let fabric = generated("icpp98");
        assert_eq!(clusters(&fabric).last().map(Vec::len), Some(4));
        assert!(clusters(&fabric).iter().all(|hosts| [4, 32].contains(&hosts.len())));
    }

    #[test]
    fn a_tree_without_ranks_is_seen_from_its_centre() {
        let mut text = "[[switch]]\nports=4\n".repeat(5);
        for switch in 0..5 {
            text += &format!("[[host]]\nswitch='s{switch}'\n");
        }
        for switch in 0..4 {
            text += &format!("[[link]]\nfrom='s{switch}'\nto='s{}'\n", switch + 1);
        }
        let fabric =
            Fabric::new(read::toml("chain.toml", &text).unwrap().topology, RoutingPolicy::Auto).unwrap();
        assert_eq!(centre(fabric.topology()), SwitchId(2));
        let expected: [&[&str]; 3] = [&["h0", "h1"], &["h0", "h1", "h2", "h3", "h4"], &["h3", "h4"]];
        assert_eq!(clusters(&fabric), expected);
    }
}
