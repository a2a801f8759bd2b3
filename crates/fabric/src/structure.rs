//! What generated topologies with a routing of their own are made of: dragonflies and HyperX
//! networks.

use std::fmt;
use std::str::FromStr;

use crate::ids::{PortNumber, SwitchId};

/// The structure of a topology that determines its minimal routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Structure {
    /// Groups of routers.
    Dragonfly(Dragonfly),
    /// A lattice with a full mesh in every dimension.
    HyperX(HyperX),
}

impl Structure {
    /// The numbers of switches and of hosts, as far as they are valid ones.
    pub(crate) fn size(&self) -> (u64, u64) {
        let product =
            |factors: &[u32]| factors.iter().map(|&factor| u64::from(factor)).fold(1, u64::saturating_mul);
        let (switches, hosts) = match self {
            Self::Dragonfly(Dragonfly { p, a, g, .. }) => (product(&[*a, *g]), *p),
            Self::HyperX(HyperX { s, t, .. }) => (product(s.as_slice()), *t),
        };
        (switches, switches.saturating_mul(u64::from(hosts)))
    }
}

impl fmt::Display for Structure {
    /// As [`FabricSpec`](crate::FabricSpec) reads it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dragonfly(Dragonfly { p, a, h, g }) => {
                write!(formatter, "dragonfly:p={p},a={a},h={h},g={g}")
            }
            Self::HyperX(HyperX { s, k, t }) => write!(formatter, "hyperx:s={s},k={k},t={t}"),
        }
    }
}

/// The parameters of a [dragonfly](crate::generate::dragonfly), with the letters of Kim and others
/// (2008).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dragonfly {
    /// Hosts of each router.
    pub p: u32,
    /// Routers of each group.
    pub a: u32,
    /// Ports of each router for links to other groups.
    pub h: u32,
    /// Groups.
    pub g: u32,
}

/// A link between two groups of a dragonfly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gateway {
    /// The router in the first group.
    pub from: u32,
    pub from_port: PortNumber,
    /// The router in the second group.
    pub to: u32,
    pub to_port: PortNumber,
}

impl Dragonfly {
    /// The largest dragonfly that is balanced, a = 2p = 2h: local and global links are equally
    /// loaded under uniform traffic.
    pub fn balanced(p: u32) -> Self {
        let a = p.saturating_mul(2);
        Self { p, a, h: p, g: Self::groups_max(a, p) }
    }

    /// The maximum number of groups: one link of a group leads to each other group.
    pub(crate) fn groups_max(a: u32, h: u32) -> u32 {
        a.saturating_mul(h).saturating_add(1)
    }

    /// The port of a router for the link to another router of its group, both by their place in it.
    pub(crate) fn local_port(&self, index: u32, other: u32) -> PortNumber {
        PortNumber(self.p + other - u32::from(other > index))
    }

    /// The links from one group to another.
    pub(crate) fn gateways(&self, from: u32, to: u32) -> impl Iterator<Item = Gateway> + '_ {
        let Self { p, a, h, g } = *self;
        let (out, back) = ((to + g - from) % g - 1, (from + g - to) % g - 1);
        (0..a * h / (g - 1)).map(move |round| {
            let end = |group: u32, offset: u32| {
                let channel = round * (g - 1) + offset;
                (group * a + channel / h, PortNumber(p + a - 1 + channel % h))
            };
            let ((from, from_port), (to, to_port)) = (end(from, out), end(to, back));
            Gateway { from, from_port, to, to_port }
        })
    }
}

/// The parameters of a [HyperX](crate::generate::hyperx), with the letters of Ahn and others
/// (2009).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HyperX {
    /// The size of each dimension.
    pub s: Sizes,
    /// Parallel links between two switches.
    pub k: u32,
    /// Hosts of each switch.
    pub t: u32,
}

impl HyperX {
    /// A switch's coordinate in a dimension.
    pub(crate) fn coordinate(&self, switch: SwitchId, dimension: usize) -> u32 {
        switch.0 / self.stride(dimension) % self.s.as_slice()[dimension]
    }

    /// The switch with another coordinate in a dimension.
    pub(crate) fn moved(&self, switch: SwitchId, dimension: usize, coordinate: u32) -> SwitchId {
        let stride = self.stride(dimension);
        SwitchId(switch.0 - self.coordinate(switch, dimension) * stride + coordinate * stride)
    }

    /// The port of a switch for one of the parallel links to the switch with another coordinate.
    pub(crate) fn port(
        &self,
        switch: SwitchId,
        dimension: usize,
        coordinate: u32,
        parallel: u32,
    ) -> PortNumber {
        let lower: u32 = self.s.as_slice()[..dimension].iter().map(|size| size - 1).sum();
        let place = coordinate - u32::from(coordinate > self.coordinate(switch, dimension));
        PortNumber(self.t + (lower + place) * self.k + parallel)
    }

    fn stride(&self, dimension: usize) -> u32 {
        self.s.as_slice()[..dimension].iter().product()
    }
}

/// The sizes of the dimensions of a HyperX; as text `4x4x2`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Unused dimensions have size 0.
    sizes: [u32; Self::DIMENSIONS_MAX],
    count: usize,
}

impl Sizes {
    /// The maximum number of dimensions.
    pub const DIMENSIONS_MAX: usize = 16;

    /// These sizes; `None` unless there are 1 to [`Sizes::DIMENSIONS_MAX`].
    pub fn new(sizes: &[u32]) -> Option<Self> {
        let mut all = [0; Self::DIMENSIONS_MAX];
        all.get_mut(..sizes.len())?.copy_from_slice(sizes);
        (!sizes.is_empty()).then_some(Self { sizes: all, count: sizes.len() })
    }

    /// The sizes, dimension 0 first.
    pub fn as_slice(&self) -> &[u32] {
        &self.sizes[..self.count]
    }
}

impl FromStr for Sizes {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let sizes = text.split('x').map(str::parse).collect::<Result<Vec<u32>, _>>().map_err(|_| ())?;
        Self::new(&sizes).ok_or(())
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.as_slice().iter().map(ToString::to_string).collect();
        formatter.write_str(&sizes.join("x"))
    }
}

impl fmt::Debug for Sizes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
