//! The leaf-spine network: leaf switches with hosts, each linked to every spine switch (a folded
//! Clos network).

use super::check_range;
use crate::error::FabricError;
use crate::ids::PortNumber;
use crate::topology::{Topology, TopologyBuilder};

/// A leaf-spine network: equal numbers of hosts on the leaves, and a link from every leaf to every
/// spine.
///
/// 1 to 4,096 leaves and 1 to 4,096 spines; `hosts` is a multiple of `leaves`. Hosts are numbered
/// leaf by leaf; switches are the leaves, then the spines. Lower ports of a leaf point down. Ranks:
/// spine 0, leaf 1, so up*/down* routing may climb to any spine.
///
/// # Errors
/// [`FabricError::OutOfRange`], or as [`TopologyBuilder::build`].
pub fn leaf_spine(leaves: u32, spines: u32, hosts: u32) -> Result<Topology, FabricError> {
    check_range("leaves", leaves, 1, 4096)?;
    check_range("spines", spines, 1, 4096)?;
    check_range("hosts", hosts, leaves, Topology::HOSTS_MAX)?;
    if !hosts.is_multiple_of(leaves) {
        let expected = format!("a multiple of the {leaves} leaves");
        return Err(FabricError::OutOfRange { key: "hosts", value: hosts.to_string(), expected });
    }
    let down = hosts / leaves;
    let mut builder = TopologyBuilder::new();
    let lower = (0..leaves).map(|_| builder.switch(down + spines)).collect::<Result<Vec<_>, _>>()?;
    let upper = (0..spines).map(|_| builder.switch(leaves)).collect::<Result<Vec<_>, _>>()?;
    for &leaf in &lower {
        for port in 0..down {
            builder.host(leaf, PortNumber(port))?;
        }
    }
    for (from, &leaf) in (0..).zip(&lower) {
        for (to, &spine) in (0..).zip(&upper) {
            builder.link((leaf, PortNumber(down + to)), (spine, PortNumber(from)))?;
        }
    }
    builder.set_ranks([vec![1; lower.len()], vec![0; upper.len()]].concat());
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_leaf_is_linked_to_every_spine() {
        let topology = leaf_spine(8, 4, 64).unwrap();
        assert_eq!(topology.host_count(), 64);
        assert_eq!(topology.switch_count(), 12);
        assert_eq!(topology.switch_link_count(), 2 * 8 * 4);
        assert!(topology.switches().take(8).all(|leaf| topology.hosts_of(leaf).len() == 8));
    }

    #[test]
    fn hosts_that_do_not_fit_are_refused() {
        let error = |leaves, spines, hosts| leaf_spine(leaves, spines, hosts).unwrap_err().to_string();
        assert_eq!(error(8, 4, 63), "hosts=63 is out of range: a multiple of the 8 leaves");
        assert_eq!(error(0, 4, 64), "leaves=0 is out of range: 1 to 4096");
        assert!(error(8, 4, 4).starts_with("hosts=4 is out of range: 8 to "));
    }
}
