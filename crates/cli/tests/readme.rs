//! Every command in the README and in the docs prints what it says there.

#[test]
fn commands_in_the_docs_print_what_they_say() {
    // What they write goes to a place of its own.
    let place = tempfile::tempdir().unwrap();
    std::env::set_current_dir(&place).unwrap();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    trycmd::TestCases::new().case(format!("{root}/README.md")).case(format!("{root}/docs/*.md"));
}
