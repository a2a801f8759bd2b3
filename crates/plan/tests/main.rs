//! The tests of the crate in one program, which compiles and links in less time than one for each
//! file.

mod analysis;
mod common;
mod contention;
mod document;
mod hierarchical;
mod planner;
mod render;
mod soundness;
