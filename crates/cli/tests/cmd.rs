//! Commands with their output and exit status: `tests/cmd`, run beside `tests/fixtures`.
//!
//! `TRYCMD=overwrite cargo test -p treecast-cli --test cmd` renews the output.

#[test]
fn commands_match_their_snapshots() {
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures")).unwrap();
    trycmd::TestCases::new().case(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cmd/*.md"));
}
