//! Traffic patterns in which each host always sends to the same host.
//!
//! The definitions are those of Dally and Towles, *Principles and Practices of Interconnection
//! Networks* (2004), section 3.2. The bits are those of a host's number.

use treecast_fabric::{Dragonfly, Grid, HostId, Structure, Topology};

/// A permutation of the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Permutation {
    /// Host (x, y) of a square sends to host (y, x).
    Transpose,
    /// Each bit is inverted. With any number of hosts: the first sends to the last, the second to
    /// the last but one, and so on.
    BitComplement,
    /// The bits are in reverse order.
    BitReverse,
    /// The bits are rotated to the left by one.
    Shuffle,
    /// To the host half a ring away, less one, in each dimension of a grid; other fabrics count as
    /// one ring of all hosts.
    Tornado,
    /// To the host in the same place of the next group of a dragonfly: all packets of a group
    /// compete for the links between two groups (the worst case of Kim, Dally, Scott, Abts:
    /// Technology-driven, highly-scalable dragonfly topology, 2008, with fixed hosts in place of
    /// random ones).
    NextGroup,
}

impl Permutation {
    /// All of them with their names.
    pub const NAMES: [(&str, Self); 6] = [
        ("transpose", Self::Transpose),
        ("bit-complement", Self::BitComplement),
        ("bit-reverse", Self::BitReverse),
        ("shuffle", Self::Shuffle),
        ("tornado", Self::Tornado),
        ("next-group", Self::NextGroup),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, permutation)| *permutation == self).map_or("", |(name, _)| name)
    }

    /// The destination of each host of a fabric of at least 2. A host that is its own destination
    /// sends nothing.
    ///
    /// # Errors
    /// What the permutation needs.
    pub(crate) fn destinations(self, topology: &Topology) -> Result<Vec<HostId>, &'static str> {
        let (hosts, grid) = (topology.host_count(), topology.grid());
        let bits = hosts.trailing_zeros();
        let of =
            |destination: &dyn Fn(u32) -> u32| (0..hosts).map(|host| HostId(destination(host))).collect();
        match self {
            Self::Transpose => {
                let side = hosts.isqrt();
                if side * side != hosts {
                    return Err("a square number of hosts");
                }
                Ok(of(&|host| host % side * side + host / side))
            }
            Self::BitComplement => Ok(of(&|host| hosts - 1 - host)),
            Self::BitReverse | Self::Shuffle if !hosts.is_power_of_two() => {
                Err("a number of hosts that is a power of two")
            }
            Self::BitReverse => Ok(of(&|host| host.reverse_bits() >> (u32::BITS - bits))),
            Self::Shuffle => Ok(of(&|host| (host << 1 | host >> (bits - 1)) & (hosts - 1))),
            Self::Tornado => {
                let whole = |grid: &&Grid| grid.radix().checked_pow(grid.dimensions()) == Some(hosts);
                let radix = grid.filter(whole).map_or(hosts, Grid::radix);
                if radix < 3 {
                    return Err("at least 3 hosts in a dimension");
                }
                Ok(of(&|host| tornado(host, radix, hosts)))
            }
            Self::NextGroup => {
                let Some(Structure::Dragonfly(Dragonfly { p, a, .. })) = topology.structure() else {
                    return Err("hosts in the groups of a dragonfly");
                };
                Ok(of(&|host| (host + p * a) % hosts))
            }
        }
    }
}

/// Adds half of the radix, rounded up, less one, to each digit.
fn tornado(host: u32, radix: u32, hosts: u32) -> u32 {
    let step = radix.div_ceil(2) - 1;
    let (mut destination, mut weight) = (0, 1);
    while weight < hosts {
        destination += (host / weight % radix + step) % radix * weight;
        weight *= radix;
    }
    destination
}

#[cfg(test)]
mod tests {
    use treecast_fabric::generate::{dragonfly, star};

    use super::*;

    fn of(permutation: Permutation, hosts: u32) -> Vec<u32> {
        permutation.destinations(&star(hosts).unwrap()).unwrap().into_iter().map(|host| host.0).collect()
    }

    #[test]
    fn small_patterns_are_those_of_the_book() {
        assert_eq!(of(Permutation::Transpose, 9), [0, 3, 6, 1, 4, 7, 2, 5, 8]);
        assert_eq!(of(Permutation::BitComplement, 4), [3, 2, 1, 0]);
        assert_eq!(of(Permutation::BitReverse, 8), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(of(Permutation::Shuffle, 8), [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(of(Permutation::Tornado, 8), [3, 4, 5, 6, 7, 0, 1, 2]);
        assert_eq!(of(Permutation::Tornado, 5), [2, 3, 4, 0, 1]);
    }

    #[test]
    fn each_host_is_the_destination_of_one_host() {
        for (name, permutation) in Permutation::NAMES.into_iter().filter(|(name, _)| *name != "next-group") {
            for hosts in [4, 16, 64, 256] {
                let mut all = of(permutation, hosts);
                all.sort_unstable();
                assert!(all.into_iter().eq(0..hosts), "{name}");
            }
        }
    }

    #[test]
    fn the_next_group_is_that_of_the_router_in_the_same_place() {
        let topology = dragonfly(Dragonfly { p: 2, a: 2, h: 1, g: 3 }).unwrap();
        let hosts = Permutation::NextGroup.destinations(&topology).unwrap();
        assert!(hosts.into_iter().map(|host| host.0).eq([4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3]));
        assert_eq!(
            Permutation::NextGroup.destinations(&star(4).unwrap()),
            Err("hosts in the groups of a dragonfly")
        );
    }
}
