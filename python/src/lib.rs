//! The native half of the Python package `treecast`: the crates `fabric`, `plan`, `sim`, `study`
//! and `node` as Python classes.
//!
//! No logic here: arguments are converted, the crates are called without the GIL, results become
//! Python objects. The docstrings of the classes are the documentation for users;
//! `python/treecast/_treecast.pyi` has the types.

// It has no unit tests, and need not be compiled again for none.
#![cfg(not(test))]
// Docstrings are written for Python and hold examples in it; methods take what Python gives them.
#![allow(
    clippy::doc_markdown,
    clippy::doc_link_with_quotes,
    clippy::needless_pass_by_value,
    clippy::unused_self
)]

mod buffer;
mod deadline;
mod error;
mod fabric;
mod group;
mod interrupt;
mod json;
mod load;
mod node;
mod node_group;
mod number;
mod parameters;
mod peeked;
mod plan;
mod simulate;
mod study;
mod table;
mod trace;

/// The native half of treecast.
#[pyo3::pymodule(gil_used = true)]
mod _treecast {
    #[pymodule_export]
    const LOAD_CYCLES: u64 = treecast_sim::LoadRun::CYCLES_DEFAULT.0;
    #[pymodule_export]
    const SATURATION_PRECISION: f64 = treecast_sim::LoadRun::PRECISION_DEFAULT;
    #[pymodule_export]
    use crate::error::{GroupEnded, TreecastError};
    #[pymodule_export]
    use crate::fabric::Fabric;
    #[pymodule_export]
    use crate::group::Group;
    #[pymodule_export]
    use crate::interrupt::Stop;
    #[pymodule_export]
    use crate::load::{LoadResult, LoadRun, SaturationResult, Setup};
    #[pymodule_export]
    use crate::node::{Node, close_nodes, read_members};
    #[pymodule_export]
    use crate::node_group::{Lost, NodeGroup};
    #[pymodule_export]
    use crate::parameters::Parameters;
    #[pymodule_export]
    use crate::peeked::Peeked;
    #[pymodule_export]
    use crate::plan::{Plan, plan};
    #[pymodule_export]
    use crate::simulate::{Result, simulate};
    #[pymodule_export]
    use crate::study::{Figure, Study};
    #[pymodule_export]
    use crate::table::Table;
}
