//! The protocol, told in scripts: what is done to a few nodes on a table, and all that they say to each other.
//!
//! A script is a file in `scripts`: commands (`tabletop/script.rs`), `---`, and what happens. A command in parentheses is done in
//! silence. To write down what happens now:
//!
//!     UPDATE_GOLDENFILES=1 cargo test -p treecast-proto --test scripts

mod tabletop;

test_each_file::test_each_path! { in "./crates/proto/tests/scripts" as scripts => script }

fn script(path: &std::path::Path) {
    tabletop::script::run(path);
}
