//! The HyperX (Ahn and others: HyperX: topology, routing, and packaging of efficient large-scale
//! networks, SC 2009).

use super::{check_range, check_size};
use crate::error::FabricError;
use crate::ids::PortNumber;
use crate::structure::{HyperX, Structure};
use crate::topology::{Topology, TopologyBuilder};

/// A HyperX: switches at the points of a lattice of L dimensions, each linked to all switches that
/// differ from it in one coordinate, by `k` parallel links; `t` hosts on each switch.
///
/// There are 1 to [`Sizes::DIMENSIONS_MAX`](crate::Sizes::DIMENSIONS_MAX) dimensions, each of a
/// size from 1 to 1,024; k is 1 to 64, t 1 to 1,024; at most 16,777,216 ports in total. Switch x +
/// S1 y + ... has the coordinates (x, y, ...). Hosts are numbered switch by switch and take the
/// lower ports; then come the links of each dimension, in the order of the coordinates that they
/// lead to. Sizes 2x2x... make a hypercube, one size a full mesh, two sizes a flattened butterfly.
///
/// # Errors
/// [`FabricError::OutOfRange`], or as [`TopologyBuilder::build`].
pub fn hyperx(parameters: HyperX) -> Result<Topology, FabricError> {
    let HyperX { s, k, t } = parameters;
    check_range("k", k, 1, 64)?;
    check_range("t", t, 1, SIZE_MAX)?;
    for &size in s.as_slice() {
        check_range("s", size, 1, SIZE_MAX)?;
    }
    let switches: u64 = s.as_slice().iter().map(|&size| u64::from(size)).fold(1, u64::saturating_mul);
    let ports = t + k * s.as_slice().iter().map(|&size| size - 1).sum::<u32>();
    check_size("s", s, switches, u64::from(t), u64::from(ports))?;
    let mut builder = TopologyBuilder::new();
    let switches = (0..switches).map(|_| builder.switch(ports)).collect::<Result<Vec<_>, _>>()?;
    for &switch in &switches {
        for port in 0..t {
            builder.host(switch, PortNumber(port))?;
        }
    }
    for &switch in &switches {
        for dimension in 0..s.as_slice().len() {
            for coordinate in parameters.coordinate(switch, dimension) + 1..s.as_slice()[dimension] {
                let other = parameters.moved(switch, dimension, coordinate);
                for parallel in 0..k {
                    builder.link(
                        (switch, parameters.port(switch, dimension, coordinate, parallel)),
                        (
                            other,
                            parameters.port(
                                other,
                                dimension,
                                parameters.coordinate(switch, dimension),
                                parallel,
                            ),
                        ),
                    )?;
                }
            }
        }
    }
    builder.set_structure(Structure::HyperX(parameters));
    builder.build()
}

/// The maximum size of a dimension, and of `t`.
const SIZE_MAX: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structure::Sizes;

    fn generated(s: &[u32], k: u32, t: u32) -> Topology {
        hyperx(HyperX { s: Sizes::new(s).unwrap(), k, t }).unwrap()
    }

    /// Section 2.2 of the paper: P switches, each with the radix T + sum of K (S - 1).
    #[test]
    fn the_numbers_of_switches_hosts_and_links_are_those_of_the_paper() {
        for (s, k, t) in [(vec![4], 1, 2), (vec![4, 4], 1, 4), (vec![2, 3, 4], 2, 1), (vec![2; 5], 1, 1)] {
            let topology = generated(&s, k, t);
            let switches: u32 = s.iter().product();
            let links = k * s.iter().map(|size| size - 1).sum::<u32>();
            assert_eq!(topology.switch_count(), switches);
            assert_eq!(topology.host_count(), switches * t);
            assert_eq!(topology.switch_link_count(), switches * links);
            assert!(topology.switches().all(|switch| topology.links_from(switch).len() as u32 == links + t));
        }
    }

    /// The links between the halves of a dimension of even size: K (S / 2)^2 in each row.
    #[test]
    fn the_bisection_is_that_of_the_paper() {
        let topology = generated(&[4, 6], 2, 1);
        let is_cut = |&link: &crate::LinkId| {
            let ends = topology.link(link);
            let half = |switch: crate::SwitchId| switch.0 / 4 < 3;
            ends.from.switch().zip(ends.to.switch()).is_some_and(|(from, to)| half(from) && !half(to))
        };
        assert_eq!(topology.links().filter(is_cut).count(), 4 * 2 * 3 * 3);
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        let error =
            |s: &[u32], k, t| hyperx(HyperX { s: Sizes::new(s).unwrap(), k, t }).unwrap_err().to_string();
        assert_eq!(error(&[4, 0], 1, 1), "s=0 is out of range: 1 to 1024");
        assert_eq!(error(&[4, 4], 0, 1), "k=0 is out of range: 1 to 64");
        assert!(error(&[1024, 1024, 1024], 1, 1).starts_with("s=1024x1024x1024 is out of range: at most "));
    }
}
