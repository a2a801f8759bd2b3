//! The `treecast` command.
fn main() {}
