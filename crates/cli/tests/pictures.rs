//! The pictures in docs/images equal the output of the command, byte for byte. Those whose
//! simulations take more than some seconds are compared by `make pictures`.

use std::path::{Path, PathBuf};
use std::process::Command;

const RENEW: &str = "UPDATE_PICTURES=1 make pictures";

/// Runs the command, and checks that it succeeds.
fn treecast(arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_treecast")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Compares an output with the picture in docs/images, or replaces the picture if that is
/// requested.
fn check(name: &str, written: &Path) {
    let picture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/images").join(name);
    if std::env::var_os("UPDATE_PICTURES").is_some() {
        std::fs::create_dir_all(picture.parent().unwrap()).unwrap();
        std::fs::copy(written, &picture).unwrap();
    }
    // Not by `assert_eq!`, which would print both pictures.
    let same = std::fs::read(&picture).ok() == Some(std::fs::read(written).unwrap());
    assert!(same, "docs/images/{name} is not what the command writes; to renew it: {RENEW}");
}

/// Runs figures of a study by one command, which shares runs among them; `--quick` among them runs
/// the smaller sweeps.
fn check_figures(study: &str, figures: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let out = ["--out", directory.path().to_str().unwrap()];
    treecast(&[&["paper", "run", study], figures, &out].concat());
    for figure in figures.iter().filter(|figure| !figure.starts_with("--")) {
        check(&format!("{study}-{figure}.svg"), &directory.path().join(format!("{figure}.svg")));
    }
}

#[test]
#[ignore = "long: make pictures"]
fn the_figures_of_icpp98_are_what_their_command_writes() {
    check_figures("icpp98", &["fig6"]);
}

#[test]
fn the_figures_of_gm_are_what_their_command_writes() {
    check_figures(
        "gm",
        &[
            "multisend",
            "gm-multicast",
            "flow-latency",
            "flow-manager",
            "ours-long",
            "ours-scale",
            "ours-unicast-latency",
        ],
    );
}

#[test]
#[ignore = "long: make pictures"]
fn the_figures_of_gm_that_take_long_are_what_their_command_writes() {
    check_figures("gm", &["mpi-bcast", "skew", "skew-size"]);
}

#[test]
fn the_figures_of_smpib_are_what_their_command_writes() {
    check_figures(
        "smpib",
        &[
            "intra-inter",
            "attach-cost",
            "a-16x2",
            "c-2x4",
            "cyclic",
            "dynamic-attach-wait",
            "dynamic-attach-broadcasts",
            "ours-fat-tree",
            "ours-leaders",
            "ours-processes",
        ],
    );
}

#[test]
fn the_figures_of_sci_are_what_their_command_writes() {
    check_figures("sci", &["fig3a", "fig4a", "fig5b-myrinet"]);
}

#[test]
#[ignore = "long: make pictures"]
fn the_figures_of_sci_that_take_long_are_what_their_command_writes() {
    check_figures("sci", &["fig3b", "fig4b", "fig5a", "fig5b"]);
}

#[test]
fn the_figures_of_ethernet_are_what_their_command_writes() {
    check_figures("ethernet", &["message", "trees-nic", "hosts", "processes"]);
}

#[test]
fn the_figure_of_booksim2_is_what_its_command_writes() {
    check_figures("booksim2", &["latency-star", "--quick"]);
}

#[test]
fn the_plan_is_what_its_command_writes() {
    let directory = tempfile::tempdir().unwrap();
    let written = directory.path().join("plan.svg");
    let plan = "plan --fabric icpp98 --scheme k-binomial --order cco --dests random:15 --format svg --out";
    let mut arguments: Vec<&str> = plan.split(' ').collect();
    arguments.push(written.to_str().unwrap());
    treecast(&arguments);
    check("plan-icpp98.svg", &written);
}
