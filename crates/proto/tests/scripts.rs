//! Golden scripts of the protocol: commands to a few nodes on a tabletop, and all packets and
//! events that follow.
//!
//! A script is a file in `scripts`: commands (`tabletop/script.rs`), `---`, and the expected
//! output. The output of a command in parentheses is suppressed. To update the expected output:
//!
//!     UPDATE_GOLDENFILES=1 cargo test -p treecast-proto --test proto scripts

test_each_file::test_each_path! { in "./crates/proto/tests/scripts" => script }

fn script(path: &std::path::Path) {
    crate::tabletop::script::run(path);
}
