//! The C ABI: `include/treecast.h` is generated from this crate.
//!
//! Every function checks its pointers for null and its strings for UTF-8, and otherwise returns
//! [`tc_result::TC_INVALID_ARGUMENT`]. No panic unwinds into C.

// It has no unit tests, and need not be compiled again for none.
#![cfg(not(test))]
#![expect(unsafe_code, reason = "C passes raw pointers")]
#![allow(non_camel_case_types, clippy::doc_markdown, reason = "names and comments are for C")]

// In the order of the header.
mod arguments;
mod result;

mod node;

mod group;
mod message;

mod all_reduce;

use treecast_node::{Group, Node, Owned};

/// A running node within this process.
pub struct tc_node(Owned<Node>);

/// A group at one of its members.
pub struct tc_group(Owned<Group>);

impl AsRef<Owned<Node>> for tc_node {
    fn as_ref(&self) -> &Owned<Node> {
        &self.0
    }
}

impl AsRef<Owned<Group>> for tc_group {
    fn as_ref(&self) -> &Owned<Group> {
        &self.0
    }
}
