//! A reader restores the topology that a writer wrote.

use crate::{cases, fabrics};
use proptest::prelude::*;
use treecast_fabric::generate::{GridShape, dragonfly, grid};
use treecast_fabric::{Dragonfly, HostId, PortNumber, SwitchId, Topology, TopologyBuilder, read};

fn any_fabric() -> impl Strategy<Value = Topology> {
    prop_oneof![
        fabrics::irregular_fabric(),
        fabrics::grid_fabric(),
        fabrics::tiered_fabric(),
        fabrics::direct_fabric(),
        pieced()
    ]
}

/// A ring of switches built in random order, with names, ranks and one-way links.
fn pieced() -> impl Strategy<Value = Topology> {
    let names = prop::collection::btree_set("[a-z&<>\"'\\\\][a-z &<>\"'\\\\]{0,5}x", 24);
    let order = Just((0..12).collect::<Vec<u32>>()).prop_shuffle();
    (names, order, any::<bool>(), any::<bool>()).prop_map(|(names, order, one_way, ranked)| {
        let mut builder = TopologyBuilder::new();
        for _ in 0..6 {
            builder.switch(5).unwrap();
        }
        let mut names = names.into_iter();
        for item in order {
            let switch = SwitchId(item / 2);
            if item % 2 == 0 {
                let next = SwitchId((switch.0 + 1) % 6);
                let ends = ((switch, PortNumber(3)), (next, PortNumber(1)));
                let link = if one_way { TopologyBuilder::one_way_link } else { TopologyBuilder::link };
                link(&mut builder, ends.0, ends.1).unwrap();
            } else {
                let host = builder.host(switch, PortNumber(4)).unwrap();
                if host.0.is_multiple_of(2) {
                    builder.name_host(host, names.next().unwrap());
                }
            }
        }
        builder.name_switch(SwitchId(2), names.next().unwrap());
        if ranked {
            builder.set_ranks(vec![3, 0, 1, 1, 2, 2]);
        }
        builder.build().unwrap()
    })
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn toml_reads_back_equal(topology in any_fabric()) {
        let text = topology.to_toml();
        let back = read::toml("f.toml", &text).unwrap();
        prop_assert_eq!(&back.topology, &topology);
        prop_assert!(back.notes.is_empty());
        prop_assert_eq!(back.topology.to_toml(), text);
    }

    #[test]
    fn graphml_reads_back_equal(topology in any_fabric()) {
        let back = read::graphml("f.graphml", &topology.to_graphml()).unwrap();
        prop_assert_eq!(back.topology, topology);
    }

    #[test]
    fn any_name_survives_toml(name in ".+") {
        let topology = named(&name);
        prop_assert_eq!(&read::toml("f.toml", &topology.to_toml()).unwrap().topology, &topology);
        prop_assert!(read::graphml("f.graphml", &topology.to_graphml()).is_ok());
    }
}

/// Switches and those above them: each but the first is below one or more before it. And the hosts
/// of those that are above none.
fn hierarchy() -> impl Strategy<Value = (Vec<Vec<usize>>, Vec<u32>)> {
    let above = |number: usize| prop::collection::btree_set(0..number, 1..=number.min(3));
    (2..=12_usize).prop_flat_map(move |count| {
        let above: Vec<_> = (1..count).map(above).collect();
        let above = above.prop_map(|sets| {
            let sets = sets.into_iter().map(|set| set.into_iter().collect());
            std::iter::once(Vec::new()).chain(sets).collect()
        });
        (above, prop::collection::vec(1..4_u32, count))
    })
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn the_switches_of_topology_conf_have_their_hosts_and_links((above, counts) in hierarchy(), reversed: bool) {
        let mut lines = Vec::new();
        for (number, &count) in counts.iter().enumerate() {
            let below: Vec<String> =
                (0..above.len()).filter(|&other| above[other].contains(&number)).map(|s| format!("x{s}")).collect();
            lines.push(match &below[..] {
                [] => format!("SwitchName=x{number} Nodes=n{number}-[1-{count}]\n"),
                below => format!("SwitchName=x{number} Switches={}\n", below.join(",")),
            });
        }
        if reversed {
            lines.reverse();
        }
        let topology = read::slurm("topology.conf", &lines.concat()).unwrap().topology;
        for switch in topology.switches() {
            let number: usize = topology.switch_name(switch)[1..].parse().unwrap();
            for &host in topology.hosts_of(switch) {
                let prefix = format!("n{number}-");
                prop_assert!(topology.host_name(host).starts_with(&prefix));
            }
            let rank = |switch: SwitchId| topology.ranks().unwrap()[switch.index()];
            let mut upper: Vec<usize> = (topology.neighbours(switch))
                .filter(|&(_, other)| rank(other) < rank(switch))
                .map(|(_, other)| topology.switch_name(other)[1..].parse().unwrap())
                .collect();
            upper.sort_unstable();
            prop_assert_eq!(&upper, &above[number]);
            let is_leaf = above.iter().all(|above| !above.contains(&number));
            let hosts = topology.hosts_of(switch).len();
            prop_assert_eq!(hosts, if is_leaf { counts[number] as usize } else { 0 });
        }
        prop_assert_eq!(&read::toml("f.toml", &topology.to_toml()).unwrap().topology, &topology);
    }

    #[test]
    fn the_racks_of_an_inventory_have_their_hosts(racks in prop::collection::vec(0..5_usize, 1..30)) {
        let lines = racks.iter().enumerate().map(|(host, rack)| format!("n{host},r{rack}\n"));
        let topology = read::inventory("f.csv", &lines.collect::<Vec<_>>().concat()).unwrap().topology;
        prop_assert_eq!(topology.host_count() as usize, racks.len());
        for (host, rack) in topology.hosts().zip(&racks) {
            prop_assert_eq!(topology.host_name(host), format!("n{}", host.index()));
            prop_assert_eq!(topology.switch_name(topology.switch_of(host)), format!("r{rack}"));
        }
        prop_assert!(topology.is_tree());
        prop_assert_eq!(&read::toml("f.toml", &topology.to_toml()).unwrap().topology, &topology);
    }
}

fn named(name: &str) -> Topology {
    let mut builder = TopologyBuilder::new();
    let switch = builder.switch(2).unwrap();
    builder.host(switch, PortNumber(1)).unwrap();
    builder.name_host(HostId(0), name);
    builder.name_switch(switch, name);
    builder.build().unwrap()
}

#[test]
fn control_characters_in_names_are_replaced_in_graphml() {
    let back = read::graphml("f.graphml", &named(" a\u{0}<b>\r&\u{ffff} ").to_graphml()).unwrap().topology;
    assert_eq!(back.host_name(HostId(0)), "a\u{fffd}<b>\u{fffd}&\u{fffd}");
}

#[test]
fn a_changed_grid_is_refused() {
    let text = grid(GridShape::Torus, 3, 2).unwrap().to_toml();
    let changed =
        text.replacen("from_port = 0\nto_port = 1\n", "from_port = 0\nto_port = 1\none_way = true\n", 1);
    let error = read::toml("f.toml", &changed).unwrap_err().to_string();
    assert_eq!(
        error,
        "f.toml:1: this is not torus:k=3,n=2: it has 9 hosts and 53 directed links, not 9 hosts and 54 directed links"
    );
}

#[test]
fn two_one_way_links_are_not_one_link_of_a_grid() {
    let text = grid(GridShape::Mesh, 2, 1).unwrap().to_toml();
    let (rest, _) = text.split_once("[[link]]").unwrap();
    let way = |from: u32, to: u32| {
        let names = format!("[[link]]\nfrom = 's{from}'\nto = 's{to}'\n");
        format!("{names}from_port = {from}\nto_port = {to}\none_way = true\n")
    };
    let error = read::toml("f.toml", &[rest, &way(0, 1), &way(1, 0)].concat()).unwrap_err().to_string();
    let reason = "s0:0>s1:1 should be bidirectional";
    assert_eq!(error, format!("f.toml:1: this is not mesh:k=2,n=1: {reason}"));
}

#[test]
fn a_changed_dragonfly_is_refused() {
    let text = dragonfly(Dragonfly::balanced(1)).unwrap().to_toml();
    let error = |text: &str| read::toml("f.toml", text).unwrap_err().to_string();
    assert_eq!(
        error(&text.replace("h=1,g=3", "h=1,g=2")),
        "f.toml:1: this is not dragonfly:p=1,a=2,h=1,g=2: it has 6 switches and 6 hosts, not 4 and 4"
    );
    let (rest, _) = text.rsplit_once("[[link]]").unwrap();
    assert_eq!(
        error(rest),
        "f.toml:1: this is not dragonfly:p=1,a=2,h=1,g=3: it has 6 hosts and 22 directed links, not 6 hosts and 24 \
         directed links"
    );
    assert_eq!(
        error(&text.replace("dragonfly:p=1,a=2,h=1,g=3", "star:4")),
        "f.toml:1: 'star:4' is not a structure: expected a dragonfly or hyperx"
    );
}
