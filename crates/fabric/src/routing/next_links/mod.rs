//! The links that a packet may take next, cached.

mod levelled;
mod table;

use levelled::Levelled;
use table::{Adaptive, Table};

use super::Routing;
use crate::ids::{LinkId, SwitchId};
use crate::topology::Topology;

/// The links that a packet may take next where routing is adaptive: those on a shortest legal
/// route, lowest port first.
///
/// Results are cached, so that a repeated query costs a few loads. The memory is bounded: the cache
/// holds at most 128 MiB of results, and is cleared when it is full. On large fabrics of few
/// levels, such as wide fat trees, results are computed from what each switch reaches downwards
/// instead, without a cache.
///
/// ```
/// use treecast_fabric::{Fabric, FabricSpec, HostId, NextLinks};
///
/// let fabric = Fabric::from_spec(&"fat-tree:k=4".parse::<FabricSpec>()?)?;
/// let topology = fabric.topology();
/// let mut next = NextLinks::new(topology, fabric.routing()).expect("a fat tree is routed adaptively");
/// let [from, to] = [HostId(0), HostId(15)].map(|host| topology.switch_of(host));
/// assert_eq!(next.towards(to, from, false).len(), 2);
/// # Ok::<(), treecast_fabric::FabricError>(())
/// ```
#[derive(Debug)]
pub struct NextLinks<'a>(Way<'a>);

#[derive(Debug)]
enum Way<'a> {
    Table(Table<'a>),
    Levelled(Levelled<'a>),
}

/// Up to this number of switches every result is cached: 8 MiB.
const TABLE_SWITCHES_MAX: u32 = 1024;

impl<'a> NextLinks<'a> {
    /// An empty cache. `None` where the route of a packet is fixed at its source: in dimension
    /// order, see [`RouteFinder`](crate::RouteFinder), and on dragonflies and HyperX networks.
    pub fn new(topology: &'a Topology, routing: &'a Routing) -> Option<Self> {
        let adaptive = match routing {
            Routing::UpDown(routing) => Adaptive::UpDown(routing),
            Routing::ShortestPath(routing) => Adaptive::ShortestPath(routing),
            Routing::DimensionOrder(_) | Routing::Minimal(_) | Routing::Valiant(_) => return None,
        };
        let levelled = match adaptive {
            Adaptive::UpDown(routing) if topology.switch_count() > TABLE_SWITCHES_MAX => {
                Levelled::new(topology, routing)
            }
            _ => None,
        };
        let way = levelled.map_or_else(|| Way::Table(Table::new(topology, adaptive)), Way::Levelled);
        Some(Self(way))
    }

    /// The links on a shortest legal route to a switch from another, in the order of their ports,
    /// for a packet that has or has not gone down already. Empty at the target itself, and if there
    /// is no legal route. Shortest-path routing ignores `gone_down`.
    pub fn towards(&mut self, target: SwitchId, at: SwitchId, gone_down: bool) -> &[LinkId] {
        match &mut self.0 {
            Way::Table(table) => table.towards(target, at, gone_down),
            Way::Levelled(levelled) => levelled.towards(target, at, gone_down),
        }
    }
}
