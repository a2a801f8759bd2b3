//! Commands as they are typed, with what they print and their exit status: `tests/cmd`, run beside `tests/fixtures`.
//!
//! `TRYCMD=overwrite cargo test -p treecast-cli --test cmd` writes what they print now.

#[test]
fn commands_print_what_they_should() {
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures")).unwrap();
    trycmd::TestCases::new().case(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cmd/*.md"));
}
