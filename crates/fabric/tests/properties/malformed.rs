//! Invalid files are refused with an error that names the file and a line of it, never with a
//! panic.

use std::cmp::Ordering;

use proptest::prelude::*;
use treecast_fabric::generate::{GridShape, grid};
use treecast_fabric::read::{self, Read};
use treecast_fabric::{Fabric, FabricError, RoutingPolicy};

use crate::cases;

const TOML: &str = include_str!("../fixtures/fat-tree.toml");
const GRAPHML: &str = include_str!("../fixtures/fat-tree.graphml");
const IBNETDISCOVER: &str = include_str!("../fixtures/fat-tree.ibnetdiscover");
const SLURM: &str = include_str!("../fixtures/fat-tree.conf");
const INVENTORY: &str = include_str!("../fixtures/racks.inventory");

type Reader = fn(&str, &str) -> Result<Read, FabricError>;
const READERS: [Reader; 6] =
    [read::toml, read::graphml, read::ibnetdiscover, read::slurm, read::inventory, read::read];

/// Reads with every reader; a fabric that is read is routed too, an error names its line.
fn read_all(text: &str) {
    let lines = text.split('\n').count();
    for reader in READERS {
        match reader("some.file", text) {
            Ok(read) => {
                let _ = Fabric::new(read.topology, RoutingPolicy::Auto);
            }
            Err(FabricError::Malformed { file, line, reason }) => {
                assert_eq!(file, "some.file");
                assert!((1..=lines).contains(&line), "line {line} of {lines}: {reason}");
                assert!(!reason.contains(char::is_control), "{reason}");
            }
            Err(other) => panic!("no file and line: {other}"),
        }
    }
}

/// A change: a piece of text at an offset is replaced.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, usize, String)>> {
    let pieces = prop_oneof![
        "[0-9]{1,2}",
        "\\PC{0,3}",
        prop::sample::select(vec![
            "",
            "\n",
            "\r\n",
            "\"",
            "<",
            ">",
            "=",
            "[",
            "]",
            "leaf1",
            "spine2",
            "host",
            "switch",
            "directed='true'",
            "port = 3\n",
            "count = 3\n",
            "rank = 2\n",
            "one_way = true\n",
            "[grid]\nk = 2\nn = 2\nshape = 'torus'\n",
            "<graph>",
            "<data key='grid'>mesh:k=2,n=2</data>",
            "S-e41d2d030001b200",
            "[ext 3]",
            "(12)",
            "Ca\t2 ",
            "SwitchName=",
            " Switches=leaf1",
            "spine[1-2]",
            "[0-999999999]",
            "[000-9]",
            "\\",
            "#",
            ",",
            " ",
        ])
        .prop_map(String::from),
    ];
    prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, pieces), 1..4)
}

fn changed(text: &str, changes: &[(prop::sample::Index, usize, String)]) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for (place, length, piece) in changes {
        let start = place.index(characters.len() + 1);
        let end = (start + length).min(characters.len());
        characters.splice(start..end, piece.chars());
    }
    characters.into_iter().collect()
}

/// A copy of a text with some lines duplicated, dropped or swapped.
fn shuffled(text: &str, order: &[prop::sample::Index]) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    for pair in order.chunks_exact(2) {
        let (from, to) = (pair[0].index(lines.len()), pair[1].index(lines.len()));
        match from.cmp(&to) {
            Ordering::Less => lines.swap(from, to),
            Ordering::Equal => drop(lines.remove(from)),
            Ordering::Greater => lines.insert(to, lines[from]),
        }
    }
    lines.join("\n")
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_all(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_change_is_answered(changes in changes()) {
        let grid = grid(GridShape::Mesh, 2, 2).unwrap();
        for text in [TOML, GRAPHML, IBNETDISCOVER, SLURM, INVENTORY, &grid.to_toml(), &grid.to_graphml()] {
            read_all(&changed(text, &changes));
        }
    }

    #[test]
    fn any_order_of_lines_is_read_or_refused(order in prop::collection::vec(any::<prop::sample::Index>(), 2..8)) {
        for text in [TOML, GRAPHML, IBNETDISCOVER, SLURM, INVENTORY] {
            read_all(&shuffled(text, &order));
        }
    }
}

#[test]
fn the_fixtures_are_read() {
    let toml = read::read("fat-tree.toml", TOML).unwrap();
    let line = toml.topology.summary().to_string();
    assert_eq!(line, "4 hosts, 4 switches, 5 links between switches (1 parallel)");
    assert_eq!(toml.topology.ranks(), Some(&[1, 1, 0, 0][..]));

    let graphml = read::read("fat-tree.graphml", GRAPHML).unwrap();
    assert_eq!(graphml.topology.summary().to_string(), "4 hosts, 4 switches, 4 links between switches");

    let ib = read::read("fat-tree.ibnetdiscover", IBNETDISCOVER).unwrap();
    let line = ib.topology.summary().to_string();
    assert_eq!(line, "6 hosts, 4 switches, 8 links between switches (4 parallel)");
    assert_eq!(ib.notes, ["h2 'node03 HCA-1' has 2 connected ports; only port 1 is used"]);

    let slurm = read::read("fat-tree.conf", SLURM).unwrap();
    assert_eq!(slurm.topology.summary().to_string(), "6 hosts, 4 switches, 4 links between switches");
    assert_eq!(slurm.notes, ["LinkSpeed is ignored; it should be a number, not '4xQDR' as on line 4"]);

    let inventory = read::read("racks.inventory", INVENTORY).unwrap();
    assert_eq!(inventory.topology.summary().to_string(), "9 hosts, 4 switches, 3 links between switches");
    for topology in [toml.topology, graphml.topology, ib.topology, slurm.topology, inventory.topology] {
        assert!(Fabric::new(topology, RoutingPolicy::Auto).is_ok());
    }
}

#[test]
fn deep_nesting_is_answered() {
    read_all(&"<a>".repeat(100_000));
    read_all(&format!("<graphml>{}{}</graphml>", "<a>".repeat(20_000), "</a>".repeat(20_000)));
    read_all(&format!("switch = {}", "[".repeat(100_000)));
    read_all(&format!("generator{}", ".a".repeat(100_000)));
    let chain = (0..50_000).map(|number| format!("SwitchName=s{number} Switches=s{}\n", number + 1));
    read_all(&chain.collect::<Vec<_>>().concat());
}

#[test]
fn long_lines_are_answered() {
    read_all(&format!("SwitchName=a Nodes=n{}", "[1]".repeat(100_000)));
    read_all(&format!("SwitchName=a Nodes=n[{}1]", "0".repeat(100_000)));
    read_all(&format!("SwitchName={}[1-1000000]", "\\\n".repeat(100_000)));
    read_all(&format!("SwitchName=a{}", " Nodes=n1".repeat(100_000)));
    read_all(&format!("{} rack1", "n".repeat(100_000)));
    read_all(&format!("n{}", ",rack1".repeat(100_000)));
}

#[test]
fn huge_numbers_are_refused_without_a_panic() {
    for ports in ["1048577", "4294967295", "4294967296", "99999999999999999999"] {
        read_all(&TOML.replace("ports = 6", &format!("ports = {ports}")));
        read_all(&GRAPHML.replace(">6<", &format!(">{ports}<")));
        read_all(&GRAPHML.replace("targetport=\"7\"", &format!("targetport=\"{ports}\"")));
        read_all(&IBNETDISCOVER.replace("Switch\t36", &format!("Switch\t{ports}")));
        read_all(&SLURM.replace("01-02", &format!("0-{ports}")));
        read_all(&SLURM.replace("[1-2]", &format!("[1-{ports}]")));
        read_all(&INVENTORY.replace("01-02", &format!("0-{ports}")));
        read_all(&TOML.replace("count = 2", &format!("count = {ports}")));
        read_all(&TOML.replace("rank = 1", &format!("rank = {ports}")));
    }
}
