//! The tables of the studies' pages on the sensitivity to guessed parameters equal the output of
//! the command.

use std::path::Path;
use std::process::Command;

/// Checks the rows of figures; the others of a page are written by the same command, and take
/// longer.
fn check(study: &str, figures: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_treecast"));
    command.args(["paper", "sensitivity", study]).args(figures).args(["--format", "markdown"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(format!("{study}.md"));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(table.lines().count() > 2, "{table}");
    for line in table.lines() {
        assert!(
            page.contains(&format!("\n{line}\n")),
            "docs/{study}.md has not this row: {line}\nto renew the table: treecast paper sensitivity {study} --format markdown"
        );
    }
}

#[test]
fn the_table_of_gm_is_what_the_command_writes() {
    check("gm", &["multisend-factor", "gm-multicast-factor"]);
}

#[test]
fn the_table_of_smpib_is_what_the_command_writes() {
    check("smpib", &["intra-inter-factor", "dynamic-attach-factor"]);
}
