//! Up*/down* routing against independent searches.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::{dijkstra, is_cyclic_directed};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::Bfs;
use proptest::prelude::*;
use treecast_fabric::{
    Channel, Distances, Fabric, FabricError, HostId, LinkId, PortNumber, RouteFinder, Routing, RoutingPolicy,
    SwitchId, Topology, TopologyBuilder, UpDown, Vertex, read,
};

use crate::{cases, fabrics};

/// The switches and the links between them.
pub fn plain(topology: &Topology, keep: impl Fn(LinkId) -> bool) -> DiGraph<SwitchId, LinkId> {
    let mut graph = DiGraph::new();
    let nodes: Vec<NodeIndex> = topology.switches().map(|switch| graph.add_node(switch)).collect();
    for link in topology.links() {
        let ends = topology.link(link);
        if let (Vertex::Switch(from), Vertex::Switch(to)) = (ends.from, ends.to)
            && keep(link)
        {
            graph.add_edge(nodes[from.index()], nodes[to.index()], link);
        }
    }
    graph
}

/// Two copies of the switches: before and after going down. A link up stays in the first copy; a
/// link down leads to the second from either. A further node is reached at no cost from both copies
/// of the target.
fn two_copy_distances(
    topology: &Topology,
    routing: &UpDown,
    target: SwitchId,
) -> BTreeMap<(SwitchId, bool), u32> {
    let mut graph: DiGraph<(SwitchId, bool), u32> = DiGraph::new();
    let mut nodes = BTreeMap::new();
    for switch in topology.switches() {
        for gone_down in [false, true] {
            nodes.insert((switch, gone_down), graph.add_node((switch, gone_down)));
        }
    }
    for link in topology.links() {
        let ends = topology.link(link);
        let (Vertex::Switch(from), Vertex::Switch(to)) = (ends.from, ends.to) else { continue };
        // Edges are reversed: the search starts at the target.
        let up = (routing.level(to), to) < (routing.level(from), from);
        let steps: &[(bool, bool)] = if up { &[(false, false)] } else { &[(false, true), (true, true)] };
        for &(before, after) in steps {
            graph.add_edge(nodes[&(to, after)], nodes[&(from, before)], 1);
        }
    }
    let start = graph.add_node((target, false));
    for gone_down in [false, true] {
        graph.add_edge(start, nodes[&(target, gone_down)], 0);
    }
    let costs = dijkstra(&graph, start, None, |edge| *edge.weight());
    nodes.into_iter().filter_map(|(state, node)| costs.get(&node).map(|&cost| (state, cost))).collect()
}

/// A fabric without one-way links, with up*/down* routing from its ranks or from some root.
pub fn routed() -> impl Strategy<Value = (Topology, UpDown)> {
    (fabrics::two_way_fabric(), any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(topology, root, own)| {
            let root = SwitchId(root.index(topology.switch_count() as usize) as u32);
            let routing = if own { UpDown::new(&topology) } else { UpDown::from_root(&topology, root) };
            (topology, routing.unwrap())
        },
    )
}

/// Follows links from a host's switch to the target, rotating the choices; panics if the path
/// breaks a rule.
fn walk(
    topology: &Topology,
    routing: &UpDown,
    distances: &Distances,
    from: SwitchId,
    choices: &[prop::sample::Index],
) -> usize {
    let (mut at, mut gone_down) = (from, false);
    let mut seen = BTreeSet::from([at]);
    while at != distances.target() {
        let options: Vec<LinkId> = routing.shortest_links(topology, distances, at, gone_down).collect();
        let legal: Vec<LinkId> = routing.legal_links(topology, distances, at, gone_down).collect();
        assert!(options.iter().all(|link| legal.contains(link)));
        for &link in &legal {
            let next = topology.link(link).to.switch().unwrap();
            assert!(distances.from(next, !routing.is_up(topology, link)).is_some());
        }
        let link = options[choices[seen.len() % choices.len()].index(options.len())];
        let up = routing.is_up(topology, link);
        assert!(!(up && gone_down), "up after down");
        gone_down |= !up;
        at = topology.link(link).to.switch().unwrap();
        assert!(seen.insert(at), "{at} twice");
    }
    seen.len() - 1
}

/// The channel dependency graph of these routes (Dally and Seitz): a packet that holds one channel
/// may wait for another.
pub fn dependencies(routes: impl IntoIterator<Item = Vec<Channel>>) -> DiGraph<Channel, ()> {
    let mut graph = DiGraph::new();
    let mut nodes: BTreeMap<Channel, NodeIndex> = BTreeMap::new();
    for route in routes {
        for pair in route.windows(2) {
            let [held, wanted] = [pair[0], pair[1]]
                .map(|channel| *nodes.entry(channel).or_insert_with(|| graph.add_node(channel)));
            graph.update_edge(held, wanted, ());
        }
    }
    graph
}

/// Every pair of links that a packet may take in succession, as routes of two links.
fn legal_turns(topology: &Topology, routing: &UpDown) -> Vec<Vec<Channel>> {
    let mut turns = Vec::new();
    for target in topology.switches() {
        let distances = routing.distances(topology, target);
        for at in topology.switches() {
            for &before in topology.links_into(at) {
                let came_down = topology.link(before).from.switch().map(|_| !routing.is_up(topology, before));
                for link in routing.legal_links(topology, &distances, at, came_down.unwrap_or(false)) {
                    turns.push([before, link].map(|link| Channel { link, virtual_channel: 0 }).to_vec());
                }
            }
        }
    }
    turns
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn levels_are_distances_from_the_root(topology in fabrics::two_way_fabric(), root in any::<prop::sample::Index>()) {
        let root = SwitchId(root.index(topology.switch_count() as usize) as u32);
        let routing = UpDown::from_root(&topology, root).unwrap();
        let graph = plain(&topology, |_| true);
        let costs = dijkstra(&graph, NodeIndex::new(root.index()), None, |_| 1_u32);
        for switch in topology.switches() {
            prop_assert_eq!(routing.level(switch), costs[&NodeIndex::new(switch.index())]);
        }
    }

    #[test]
    fn distances_agree_with_an_independent_search((topology, routing) in routed()) {
        let graph = plain(&topology, |_| true);
        for target in topology.switches() {
            let distances = routing.distances(&topology, target);
            let expected = two_copy_distances(&topology, &routing, target);
            let unrestricted = dijkstra(&graph, NodeIndex::new(target.index()), None, |_| 1_u32);
            for switch in topology.switches() {
                for gone_down in [false, true] {
                    let found = distances.from(switch, gone_down).map(u32::from);
                    prop_assert_eq!(found, expected.get(&(switch, gone_down)).copied());
                    let shortest = unrestricted[&NodeIndex::new(switch.index())];
                    prop_assert!(found.is_none_or(|links| links >= shortest));
                    // Two tops of a tree may have no route up, then down; hosts always have one.
                    let has_hosts = [switch, target].iter().all(|&at| !topology.hosts_of(at).is_empty());
                    if topology.is_tree() && has_hosts && !gone_down {
                        prop_assert_eq!(found, Some(shortest));
                    }
                }
            }
        }
    }

    #[test]
    fn any_shortest_path_has_the_stated_number_of_links(
        (topology, routing) in routed(),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 1..8),
    ) {
        let with_hosts: BTreeSet<SwitchId> = topology.hosts().map(|host| topology.switch_of(host)).collect();
        for &target in &with_hosts {
            let distances = routing.distances(&topology, target);
            for &from in &with_hosts {
                let links = walk(&topology, &routing, &distances, from, &choices);
                prop_assert_eq!(Some(links), distances.from(from, false).map(usize::from));
            }
        }
    }

    #[test]
    fn links_up_links_down_and_waits_form_no_cycle((topology, routing) in routed()) {
        prop_assert!(!is_cyclic_directed(&plain(&topology, |link| routing.is_up(&topology, link))));
        prop_assert!(!is_cyclic_directed(&plain(&topology, |link| !routing.is_up(&topology, link))));
        prop_assert!(!is_cyclic_directed(&dependencies(legal_turns(&topology, &routing))));
    }

    #[test]
    fn reach_agrees_with_a_downward_search((topology, routing) in routed()) {
        let downs = plain(&topology, |link| !routing.is_up(&topology, link));
        let reached = |from: SwitchId| {
            let mut search = Bfs::new(&downs, NodeIndex::new(from.index()));
            let mut found = BTreeSet::new();
            while let Some(node) = search.next(&downs) {
                found.insert(node.index());
            }
            found
        };
        for switch in topology.switches() {
            let found: BTreeSet<usize> = routing.reach(&topology)[switch.index()].ones().collect();
            prop_assert_eq!(found, reached(switch));
            for &link in topology.links_from(switch) {
                let expected: BTreeSet<usize> = match topology.link(link).to {
                    Vertex::Host(host) => BTreeSet::from([host.index()]),
                    Vertex::Switch(_) if routing.is_up(&topology, link) => BTreeSet::new(),
                    Vertex::Switch(below) => {
                        let below = reached(below);
                        let is_below = |host: &HostId| below.contains(&topology.switch_of(*host).index());
                        topology.hosts().filter(is_below).map(HostId::index).collect()
                    }
                };
                let found: BTreeSet<usize> = routing.reachable_hosts(&topology, link).ones().collect();
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn ranks_are_accepted_if_all_hosts_have_a_route(
        topology in fabrics::irregular_fabric(),
        ranks in prop::collection::vec(0..4_u32, 24),
    ) {
        let text = ranks.iter().fold(topology.to_toml(), |text, rank| {
            text.replacen("[[switch]]\nname", &format!("[[switch]]\nrank={rank}\nname"), 1)
        });
        let Ok(read) = read::toml("f.toml", &text) else { panic!("{text}") };
        let ranked = read.topology;
        let with_hosts = || ranked.switches().filter(|&switch| !ranked.hosts_of(switch).is_empty());
        match UpDown::new(&ranked) {
            Ok(routing) => {
                for target in with_hosts() {
                    let distances = routing.distances(&ranked, target);
                    prop_assert!(with_hosts().all(|from| distances.from(from, false).is_some()));
                }
            }
            Err(FabricError::RoutingMismatch { .. }) => {
                let key = |switch: SwitchId| (ranks[switch.index()], switch);
                let ups = plain(&ranked, |link| {
                    let ends = ranked.link(link);
                    key(ends.to.switch().unwrap()) < key(ends.from.switch().unwrap())
                });
                let above: Vec<BTreeSet<NodeIndex>> = ups
                    .node_indices()
                    .map(|switch| dijkstra(&ups, switch, None, |_| 1_u32).into_keys().collect())
                    .collect();
                let apart = |a: SwitchId, b: SwitchId| above[a.index()].is_disjoint(&above[b.index()]);
                prop_assert!(with_hosts().any(|a| with_hosts().any(|b| apart(a, b))));
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_found_route_leads_from_injection_to_ejection((topology, routing) in routed()) {
        let routing = Routing::UpDown(routing);
        let mut finder = RouteFinder::new(&topology, &routing);
        for to in topology.hosts().step_by(3) {
            for from in topology.hosts().filter(|&from| from != to) {
                let route = finder.route(from, to);
                check_joined(&topology, &route, from, to);
            }
        }
    }
}

/// Checks that a route begins with the injection, ends with the ejection, and each link begins
/// where the last ended.
pub fn check_joined(topology: &Topology, route: &[Channel], from: HostId, to: HostId) {
    assert_eq!(route.first().map(|channel| channel.link), Some(topology.injection(from)));
    assert_eq!(route.last().map(|channel| channel.link), Some(topology.ejection(to)));
    for pair in route.windows(2) {
        assert_eq!(topology.link(pair[0].link).to, topology.link(pair[1].link).from);
    }
}

/// Switches with one host each, linked as given.
pub fn switches(count: u32, links: &[(u32, u32)], hosts: &[u32]) -> TopologyBuilder {
    let mut builder = TopologyBuilder::new();
    for _ in 0..count {
        builder.switch(8).unwrap();
    }
    for &host in hosts {
        builder.host(SwitchId(host), PortNumber(7)).unwrap();
    }
    for &(a, b) in links {
        let ends = [a, b].map(|switch| (SwitchId(switch), builder.free_port(SwitchId(switch)).unwrap()));
        builder.link(ends[0], ends[1]).unwrap();
    }
    builder
}

#[test]
fn plain_shortest_paths_on_a_ring_wait_in_a_cycle() {
    let links: Vec<(u32, u32)> = (0..6).map(|switch| (switch, (switch + 1) % 6)).collect();
    let topology = switches(6, &links, &[0, 1, 2, 3, 4, 5]).build().unwrap();
    let graph = plain(&topology, |_| true);
    let routes = graph.node_indices().flat_map(|from| {
        let graph = &graph;
        graph.node_indices().map(move |to| {
            let all = petgraph::algo::astar(graph, from, |node| node == to, |_| 1, |_| 0).unwrap().1;
            let link = |pair: &[NodeIndex]| graph[graph.find_edge(pair[0], pair[1]).unwrap()];
            all.windows(2).map(|pair| Channel { link: link(pair), virtual_channel: 0 }).collect()
        })
    });
    assert!(is_cyclic_directed(&dependencies(routes)));
    let routing = UpDown::new(&topology).unwrap();
    assert!(!is_cyclic_directed(&dependencies(legal_turns(&topology, &routing))));
}

#[test]
fn ranks_that_separate_hosts_are_refused() {
    // Two tops, 0 and 1; 2 is below both, 3 below 0 only, 4 below 1 only.
    let links = [(2, 0), (2, 1), (3, 0), (4, 1)];
    let ranked = |hosts: &[u32]| {
        let mut builder = switches(5, &links, hosts);
        builder.set_ranks(vec![0, 0, 1, 1, 1]);
        Fabric::new(builder.build().unwrap(), RoutingPolicy::Auto).map(|_| ())
    };
    assert_eq!(ranked(&[2, 3]), Ok(()));
    assert_eq!(ranked(&[2, 4]), Ok(()));
    assert_eq!(
        ranked(&[2, 3, 4]),
        Err(FabricError::RoutingMismatch {
            routing: "up-down",
            reason: "no route leads up, then down from the hosts of s3 to those of s4".into()
        })
    );
}

#[test]
fn the_longest_line_of_switches_is_routed() {
    let line = |count: u32| {
        let links: Vec<(u32, u32)> = (1..count).map(|switch| (switch - 1, switch)).collect();
        let topology = switches(count, &links, &[0, count - 1]).build().unwrap();
        UpDown::new(&topology)
            .map(|routing| routing.distances(&topology, SwitchId(0)).from(SwitchId(count - 1), false))
    };
    assert_eq!(line(UpDown::SWITCHES_MAX), Ok(Some(u16::MAX - 1)));
    let error = line(UpDown::SWITCHES_MAX + 1).unwrap_err().to_string();
    assert_eq!(error, "up-down routing does not fit this fabric: 65536 switches are more than 65535");
}
