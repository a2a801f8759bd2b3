//! The dragonfly (Kim, Dally, Scott, Abts: Technology-driven, highly-scalable dragonfly topology,
//! ISCA 2008).

use super::{check_range, check_size};
use crate::error::FabricError;
use crate::ids::PortNumber;
use crate::structure::{Dragonfly, Structure};
use crate::topology::{Topology, TopologyBuilder};

/// A dragonfly: `g` groups of `a` routers; each router has `p` hosts, a link to every other router
/// of its group, and `h` ports for links to other groups.
///
/// p, a and h are 1 to 1,024; g is 1 to a h + 1; at most 16,777,216 ports in total. Routers are
/// numbered group by group, hosts router by router. Of the ports of a router the first p lead to
/// its hosts, the next a - 1 to the routers of its group in their order, the last h to other
/// groups.
///
/// Any two groups are joined by the same number of links, a h / (g - 1) rounded down; the ports
/// left over stay free. Global port j of router i is channel c = i h + j of its group, and leads c
/// mod (g - 1) + 1 groups further, modulo g: the relative (palm tree) arrangement of Camarero,
/// Vallejo and Beivide (Topological characterization of Hamming and dragonfly networks, 2014).
///
/// # Errors
/// [`FabricError::OutOfRange`], or as [`TopologyBuilder::build`].
pub fn dragonfly(parameters: Dragonfly) -> Result<Topology, FabricError> {
    let Dragonfly { p, a, h, g } = parameters;
    check_range("p", p, 1, PART_MAX)?;
    check_range("a", a, 1, PART_MAX)?;
    check_range("h", h, 1, PART_MAX)?;
    check_range("g", g, 1, a * h + 1)?;
    let routers = u64::from(g) * u64::from(a);
    check_size("g", g, routers, u64::from(p), u64::from(p + a - 1 + h))?;
    let mut builder = TopologyBuilder::new();
    let routers = (0..routers).map(|_| builder.switch(p + a - 1 + h)).collect::<Result<Vec<_>, _>>()?;
    for &router in &routers {
        for port in 0..p {
            builder.host(router, PortNumber(port))?;
        }
    }
    for router in 0..routers.len() as u32 {
        let index = router % a;
        for other in index + 1..a {
            let ends = (parameters.local_port(index, other), parameters.local_port(other, index));
            builder.link(
                (routers[router as usize], ends.0),
                (routers[(router - index + other) as usize], ends.1),
            )?;
        }
    }
    for group in 0..g {
        for other in group + 1..g {
            for gateway in parameters.gateways(group, other) {
                builder.link(
                    (routers[gateway.from as usize], gateway.from_port),
                    (routers[gateway.to as usize], gateway.to_port),
                )?;
            }
        }
    }
    builder.set_structure(Structure::Dragonfly(parameters));
    builder.build()
}

/// The maximum of p, a and h.
const PART_MAX: u32 = 1024;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The figures of section 3.1 of the paper: a router has p + a + h - 1 ports, N = a p (a h +
    /// 1).
    #[test]
    fn the_largest_balanced_dragonfly_has_the_sizes_of_the_paper() {
        for (p, hosts) in [(1, 6), (2, 72), (3, 342), (4, 1056)] {
            let topology = dragonfly(Dragonfly::balanced(p)).unwrap();
            let (a, h) = (2 * p, p);
            let g = a * h + 1;
            assert_eq!(topology.host_count(), hosts);
            assert_eq!(topology.host_count(), a * p * g);
            assert_eq!(topology.switch_count(), a * g);
            assert_eq!(topology.switch_link_count() / 2, g * a * (a - 1) / 2 + g * (g - 1) / 2);
            for switch in topology.switches() {
                assert_eq!(topology.port_count(switch), p + a + h - 1);
                assert_eq!(topology.links_from(switch).len() as u32, p + a + h - 1, "no port is free");
            }
        }
    }

    #[test]
    fn any_two_groups_have_the_same_number_of_links() {
        for (a, h) in [(1, 3), (2, 2), (4, 2), (3, 4)] {
            for g in 2..=a * h + 1 {
                let topology = dragonfly(Dragonfly { p: 1, a, h, g }).unwrap();
                let mut links: BTreeMap<(u32, u32), u32> = BTreeMap::new();
                for link in topology.links() {
                    let ends = topology.link(link);
                    let (Some(from), Some(to)) = (ends.from.switch(), ends.to.switch()) else { continue };
                    if from.0 / a != to.0 / a {
                        *links.entry((from.0 / a, to.0 / a)).or_default() += 1;
                    }
                }
                assert_eq!(links.len() as u32, g * (g - 1));
                assert!(links.values().all(|&count| count == a * h / (g - 1)), "a={a} h={h} g={g}");
            }
        }
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        let error = |p, a, h, g| dragonfly(Dragonfly { p, a, h, g }).unwrap_err().to_string();
        assert_eq!(error(2, 4, 2, 10), "g=10 is out of range: 1 to 9");
        assert_eq!(error(0, 4, 2, 9), "p=0 is out of range: 1 to 1024");
        assert!(error(1024, 1024, 1024, 1 << 20).starts_with("g=1048576 is out of range: at most "));
    }
}
