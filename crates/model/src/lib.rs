//! Models of published hardware, and of networks that were measured.
//!
//! A model carries out a plan with the mechanisms of one kind of hardware, over the same fabrics as
//! the simulators. Its parts are built from a [`kernel`]; their costs are the parameters of a
//! testbed, each with a key. Every result comes out of the run, none from a formula.
//!
//! The crate is pure: no clock, no environment, no file, no entropy. A run depends on its inputs
//! and its seed only.

mod choice;
pub mod ethernet;
pub mod kernel;
mod keys;
mod model;
pub mod myrinet;
mod network;
pub mod openmpi;
pub mod sci;
pub mod smp;
mod task;

pub use choice::Choice;
pub use model::Model;
pub use network::{Network, NetworkError, Way};
pub use task::{DELIVERIES_MAX, Measure, ModelError, Outcome, Prediction, Task};
