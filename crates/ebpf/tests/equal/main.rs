//! The program does as the protocol does: the same happens to a node that has the program and to one that has the protocol alone,
//! and both say the same and come equally far.

mod batches;
mod cores;
mod frame;
mod lab;
mod pair;
mod random;
mod scripts;
mod stage;
#[path = "../../../proto/tests/tabletop/mod.rs"]
mod tabletop;
mod time;
mod worlds;
