//! Generators: each builds a [`Topology`] from a few parameters.

mod fat_tree;
mod grid;
mod irregular;
mod leaf_spine;

pub use fat_tree::fat_tree;
pub(crate) use grid::recognise;
pub use grid::{GridShape, grid};
pub use irregular::{Irregular, LinkDensity, irregular};
pub use leaf_spine::leaf_spine;

use crate::error::FabricError;
use crate::ids::PortNumber;
use crate::topology::{Topology, TopologyBuilder};

/// A single switch with `hosts` hosts, 1 to [`Topology::HOSTS_MAX`], host h on port h.
///
/// # Errors
/// [`FabricError::OutOfRange`].
pub fn star(hosts: u32) -> Result<Topology, FabricError> {
    check_range("hosts", hosts, 1, Topology::HOSTS_MAX)?;
    let mut builder = TopologyBuilder::new();
    let switch = builder.switch(hosts)?;
    for port in 0..hosts {
        builder.host(switch, PortNumber(port))?;
    }
    builder.build()
}

fn check_range(key: &'static str, value: u32, low: u32, high: u32) -> Result<(), FabricError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(FabricError::OutOfRange { key, value: value.to_string(), expected: format!("{low} to {high}") })
}
