//! The k-ary fat tree (Al-Fares, Loukissas, Vahdat: A scalable, commodity data center network
//! architecture, 2008).

use super::check_range;
use crate::error::FabricError;
use crate::ids::PortNumber;
use crate::topology::{Topology, TopologyBuilder};

/// A k-ary fat tree: k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, k^3/4
/// hosts.
///
/// k is even, 2 to 160, the largest with at most [`Topology::HOSTS_MAX`] hosts. Hosts are numbered
/// pod by pod and edge switch by edge switch; switches are the edge switches in that order, then
/// the aggregation switches, then the core. Lower ports point down. Ranks: core 0, aggregation 1,
/// edge 2, so up*/down* routing may climb to any core switch.
///
/// # Errors
/// [`FabricError::OutOfRange`].
pub fn fat_tree(k: u32) -> Result<Topology, FabricError> {
    check_range("k", k, 2, 160)?;
    if !k.is_multiple_of(2) {
        return Err(FabricError::OutOfRange {
            key: "k",
            value: k.to_string(),
            expected: "an even number".into(),
        });
    }
    let half = k / 2;
    let mut builder = TopologyBuilder::new();
    let mut tier = |count: u32| (0..count).map(|_| builder.switch(k)).collect::<Result<Vec<_>, _>>();
    let edge = tier(k * half)?;
    let aggregation = tier(k * half)?;
    let core = tier(half * half)?;
    for &switch in &edge {
        for port in 0..half {
            builder.host(switch, PortNumber(port))?;
        }
    }
    for pod in 0..k {
        for lower in 0..half {
            for upper in 0..half {
                builder.link(
                    (edge[(pod * half + lower) as usize], PortNumber(half + upper)),
                    (aggregation[(pod * half + upper) as usize], PortNumber(lower)),
                )?;
            }
        }
        for lower in 0..half {
            for upper in 0..half {
                builder.link(
                    (aggregation[(pod * half + lower) as usize], PortNumber(half + upper)),
                    (core[(lower * half + upper) as usize], PortNumber(pod)),
                )?;
            }
        }
    }
    let ranks = [vec![2; edge.len()], vec![1; aggregation.len()], vec![0; core.len()]].concat();
    builder.set_ranks(ranks);
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_published_size() {
        for k in [2, 4, 8] {
            let topology = fat_tree(k).unwrap();
            assert_eq!(topology.host_count(), k * k * k / 4);
            assert_eq!(topology.switch_count(), 5 * k * k / 4);
            assert_eq!(topology.switch_link_count(), k * k * k);
        }
    }

    #[test]
    fn odd_and_huge_k_are_refused() {
        assert_eq!(fat_tree(5).unwrap_err().to_string(), "k=5 is out of range: an even number");
        assert_eq!(fat_tree(162).unwrap_err().to_string(), "k=162 is out of range: 2 to 160");
    }
}
