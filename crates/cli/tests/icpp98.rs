//! docs/icpp98.md computes some latencies by hand; the command gives the same.

use std::process::Command;

const DOCS: &str = include_str!("../../../docs/icpp98.md");

/// The latency in cycles that `treecast sim` prints for these arguments.
fn latency(arguments: &str) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_treecast")).arg("sim").args(arguments.split(' ')).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let after = text.split("complete after ").nth(1).unwrap_or_else(|| panic!("{arguments}: {text}"));
    after.split(' ').next().unwrap().to_owned()
}

#[test]
fn simulated_latencies_match_those_computed_by_hand() {
    // | `treecast sim ARGUMENTS` | how | cycles |
    let rows: Vec<&str> = DOCS.lines().filter(|line| line.starts_with("| `treecast sim ")).collect();
    assert_eq!(rows.len(), 4);
    for row in rows {
        let arguments = row.split('`').nth(1).unwrap().trim_start_matches("treecast sim ");
        let cycles = row.rsplit('|').nth(1).unwrap().trim().replace(',', "");
        assert_eq!(latency(arguments), cycles, "{row}");
    }
}

#[test]
fn ties_and_chains_have_the_latencies_of_the_text() {
    let twelve = |scheme| latency(&format!("--fabric star:12 --scheme {scheme} --offload nic"));
    assert_eq!(["k-binomial", "k-binomial:k=2", "k-binomial:k=3"].map(twelve), ["10722", "10722", "9590"]);
    let chain = |hosts: u64, processors| {
        let text = format!("--fabric star:{hosts} --scheme k-binomial:k=1 --offload nic --message 2048");
        let latency = latency(&format!("{text} --set nic_processors={processors}"));
        latency.parse::<u64>().unwrap()
    };
    let added =
        |processors| [4, 5, 6, 7, 8].map(|hosts| chain(hosts, processors) - chain(hosts - 1, processors));
    assert_eq!((chain(3, "per-direction"), added("per-direction")), (21_458, [2132; 5]));
    // Each further member adds two overheads and the wire, and at first what its packets wait.
    assert_eq!((chain(3, "shared"), added("shared")), (36_458, [8132, 4132, 3132, 2132, 2132]));
}
