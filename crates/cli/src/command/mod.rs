//! The commands, one per file. Each returns its exit status.

pub mod bench;
pub mod completions;
pub mod cp;
pub mod daemon;
pub mod doctor;
pub mod fabric;
pub mod lab;
pub mod manual;
pub mod mpi;
pub mod node;
pub mod paper;
pub mod plan;
pub mod predict;
pub mod report;
pub mod sim;
pub mod status;
pub mod tune;
