//! Models of published hardware: what its parts do, how long each takes, and what they wait for.
//!
//! A plan says who sends which copy to whom; a model carries it out with the mechanisms of one kind of hardware, over the same
//! fabrics. The parts are built from a [`kernel`]; what a testbed's parts cost are its parameters, known by keys. Nothing is
//! computed by a formula that the run could show.
//!
//! The crate is pure: no clock, no environment, no file, no entropy. One seed makes one run.

pub mod kernel;
mod keys;
mod model;
pub mod myrinet;
pub mod sci;
pub mod smp;
mod task;

pub use model::Model;
pub use task::{DELIVERIES_MAX, Measure, ModelError, Outcome, Task};
