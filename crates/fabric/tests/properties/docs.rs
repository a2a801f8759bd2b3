//! The examples of docs/fabrics.md are valid.

use treecast_fabric::{Fabric, FabricSpec, RoutingPolicy, read};

const DOCS: &str = include_str!("../../../../docs/fabrics.md");

/// The code blocks of a kind.
fn blocks(kind: &str) -> Vec<&'static str> {
    let start = format!("```{kind}\n");
    let found = DOCS.split(start.as_str()).skip(1).filter_map(|rest| rest.split("```").next());
    let blocks: Vec<&str> = found.collect();
    assert!(!blocks.is_empty(), "{kind}");
    blocks
}

#[test]
fn every_file_of_the_documentation_is_read_and_routed() {
    for (kind, extension) in [
        ("toml", "toml"),
        ("xml", "graphml"),
        ("ibnetdiscover", "ibnetdiscover"),
        ("slurm", "conf"),
        ("inventory", "inventory"),
    ] {
        for text in blocks(kind) {
            let read = read::read(&format!("docs.{extension}"), text).unwrap();
            assert_eq!(read::read("docs", text).as_ref(), Ok(&read), "its text alone indicates its format");
            assert!(read.topology.host_count() >= 2);
            assert!(Fabric::new(read.topology, RoutingPolicy::Auto).is_ok());
        }
    }
}

#[test]
fn every_line_of_the_documentation_names_a_fabric() {
    for line in blocks("spec").iter().flat_map(|block| block.lines()) {
        let spec: FabricSpec = line.parse().unwrap();
        assert!(Fabric::from_spec(&spec).is_ok(), "{line}");
    }
    for name in [
        "up-down:root=3",
        "up-down:channels=2",
        "shortest-path:channels=2",
        "dimension-order:channels=dateline",
        "dimension-order:channels=none",
        "dimension-order:channels=balanced,ties=even",
    ] {
        assert!(DOCS.contains(name) && name.parse::<RoutingPolicy>().is_ok(), "{name}");
    }
}
