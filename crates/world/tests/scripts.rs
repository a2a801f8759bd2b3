//! Golden scripts of the protocol: commands to a few nodes, and all packets and events that follow.
//! To update the expected output:
//!
//!     UPDATE_GOLDENFILES=1 cargo test -p treecast-world --test scripts

test_each_file::test_each_path! { in "./crates/world/tests/scripts" => script }

fn script(path: &std::path::Path) {
    treecast_world::run_script(path).expect("the output is the one in the script");
}
