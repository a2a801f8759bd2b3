//! Generators: each builds a [`Topology`] from a few parameters.

mod dragonfly;
mod fat_tree;
mod grid;
mod hyperx;
mod irregular;
mod leaf_spine;
mod random_regular;

pub use dragonfly::dragonfly;
pub use fat_tree::fat_tree;
pub use grid::{GridShape, grid};
pub(crate) use grid::{check_like, recognise};
pub use hyperx::hyperx;
pub use irregular::{Irregular, LinkDensity, irregular};
pub use leaf_spine::leaf_spine;
pub use random_regular::{RandomRegular, random_regular};

use std::fmt;

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

/// The maximum number of ports of all switches together.
const PORTS_MAX: u64 = 1 << 24;

/// Checks the size of a fabric before it is built; an error names the parameter that makes it so
/// large.
fn check_size(
    key: &'static str,
    value: impl fmt::Display,
    switches: u64,
    hosts_per_switch: u64,
    ports_per_switch: u64,
) -> Result<(), FabricError> {
    let (switches_max, hosts_max) = (Topology::SWITCHES_MAX, Topology::HOSTS_MAX);
    if switches <= u64::from(switches_max)
        && switches * hosts_per_switch <= u64::from(hosts_max)
        && switches * ports_per_switch <= PORTS_MAX
    {
        return Ok(());
    }
    let expected = format!("at most {switches_max} switches, {hosts_max} hosts and {PORTS_MAX} ports in all");
    Err(FabricError::OutOfRange { key, value: value.to_string(), expected })
}
