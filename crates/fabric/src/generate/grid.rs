//! Tori and meshes: k nodes along each of n dimensions; each node is a router with its host.

use super::check_range;
use crate::error::FabricError;
use crate::grid::{Direction, Grid};
use crate::ids::{LinkId, PortNumber};
use crate::topology::{Topology, TopologyBuilder};

/// The kind of grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GridShape {
    /// Rings in every dimension with links in both directions.
    Torus,
    /// Rings in every dimension with links towards higher coordinates only, as in SCI ringlets.
    UnidirectionalTorus,
    /// Rows without wraparound links, with links in both directions.
    Mesh,
}

impl GridShape {
    /// The spec of a grid, as [`FabricSpec`](crate::FabricSpec) reads it.
    pub(crate) fn spec(self, radix: u32, dimensions: u32) -> String {
        match self {
            Self::Torus => format!("torus:k={radix},n={dimensions}"),
            Self::UnidirectionalTorus => format!("torus:k={radix},n={dimensions},uni"),
            Self::Mesh => format!("mesh:k={radix},n={dimensions}"),
        }
    }
}

/// A k-ary n-dimensional torus or mesh of k^n nodes, each a router with one host. k is at least 2,
/// n at least 1.
///
/// Node `x + k*y + ...` has the coordinates (x, y, ...). Port 2d leads towards higher coordinates
/// of dimension d, port 2d + 1 towards lower ones, and the last port to the host. A bidirectional
/// ring of two nodes has two physical links.
///
/// # Errors
/// [`FabricError::OutOfRange`], also where k^n exceeds [`Topology::HOSTS_MAX`].
pub fn grid(shape: GridShape, radix: u32, dimensions: u32) -> Result<Topology, FabricError> {
    check_range("k", radix, 2, Topology::HOSTS_MAX)?;
    check_range("n", dimensions, 1, 20)?;
    let nodes =
        u64::from(radix).checked_pow(dimensions).filter(|&nodes| nodes <= u64::from(Topology::HOSTS_MAX));
    let Some(nodes) = nodes else {
        return Err(FabricError::OutOfRange {
            key: "k",
            value: radix.to_string(),
            expected: format!("k to the power n={dimensions} is at most {}", Topology::HOSTS_MAX),
        });
    };
    let mut builder = TopologyBuilder::new();
    let host_port = PortNumber(2 * dimensions);
    let routers = (0..nodes).map(|_| builder.switch(host_port.0 + 1)).collect::<Result<Vec<_>, _>>()?;
    for &router in &routers {
        builder.host(router, host_port)?;
    }
    let bidirectional = shape != GridShape::UnidirectionalTorus;
    let mut grid = Grid::new(radix, dimensions, shape != GridShape::Mesh, bidirectional);
    for node in 0..nodes as u32 {
        for dimension in 0..dimensions {
            let coordinate = grid.coordinate(node, dimension);
            if shape == GridShape::Mesh && coordinate == radix - 1 {
                continue;
            }
            let stride = radix.pow(dimension);
            let next = if coordinate == radix - 1 { node - coordinate * stride } else { node + stride };
            let (plus, minus) = (PortNumber(2 * dimension), PortNumber(2 * dimension + 1));
            let (from, to) = ((routers[node as usize], plus), (routers[next as usize], minus));
            let link = if bidirectional { builder.link(from, to) } else { builder.one_way_link(from, to) }?;
            grid.set_link(node, dimension, Direction::Plus, link);
            if bidirectional {
                grid.set_link(next, dimension, Direction::Minus, LinkId(link.0 + 1));
            }
        }
    }
    builder.set_grid(grid);
    builder.build()
}

/// The grid of a topology that equals the one that [`grid()`] generates, up to names and the order
/// of links.
///
/// # Errors
/// [`FabricError::OutOfRange`] as [`grid()`], [`FabricError::NotAGrid`] with the first difference.
pub(crate) fn recognise(
    topology: &Topology,
    shape: GridShape,
    radix: u32,
    dimensions: u32,
) -> Result<Grid, FabricError> {
    let grid_name = shape.spec(radix, dimensions);
    let differs = |reason: String| FabricError::NotAGrid { grid: grid_name.clone(), reason };
    let switches = topology.switch_count();
    if radix.checked_pow(dimensions) != Some(switches) {
        return Err(differs(format!("it has {switches} switches, not {radix} to the power {dimensions}")));
    }
    let model = grid(shape, radix, dimensions)?;
    let place_of = check_like(topology, &model, &grid_name)?;
    let places = model.grid().expect("made as a grid").clone();
    Ok(places.relinked(|link| place_of[link.index()]))
}

/// Checks that a topology equals a generated one, up to names and the order of links. Returns its
/// link in the place of each link of the model.
///
/// # Errors
/// [`FabricError::NotAGrid`] with the first difference.
pub(crate) fn check_like(
    topology: &Topology,
    model: &Topology,
    model_name: &str,
) -> Result<Vec<LinkId>, FabricError> {
    let differs = |reason: String| FabricError::NotAGrid { grid: model_name.into(), reason };
    if topology.host_count() != model.host_count() || topology.link_count() != model.link_count() {
        let size = |topology: &Topology| {
            format!("{} hosts and {} directed links", topology.host_count(), topology.link_count())
        };
        return Err(differs(format!("it has {}, not {}", size(topology), size(model))));
    }
    let mut place_of = vec![LinkId(0); model.link_count() as usize];
    for switch in model.switches() {
        if topology.port_count(switch) != model.port_count(switch) {
            let (is, due) = (topology.port_count(switch), model.port_count(switch));
            return Err(differs(format!("{switch} has {is} ports, not {due}")));
        }
        let (is, due) = (topology.links_from(switch), model.links_from(switch));
        if is.len() != due.len() {
            return Err(differs(format!("{} links leave {switch}, not {}", is.len(), due.len())));
        }
        for (&is, &due) in is.iter().zip(due) {
            let (is_name, due_name) = (topology.link_name(is), model.link_name(due));
            if topology.link(is) != model.link(due) {
                return Err(differs(format!("it has link {is_name} in place of {due_name}")));
            }
            if topology.reverse(is).is_some() != model.reverse(due).is_some() {
                let direction = if model.reverse(due).is_some() { "bidirectional" } else { "one-way" };
                return Err(differs(format!("{due_name} should be {direction}")));
            }
            place_of[due.index()] = is;
        }
    }
    Ok(place_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SwitchId;
    use crate::ids::Vertex;

    #[test]
    fn every_link_joins_neighbours() {
        for shape in [GridShape::Torus, GridShape::UnidirectionalTorus, GridShape::Mesh] {
            let topology = grid(shape, 3, 3).unwrap();
            let grid = topology.grid().unwrap();
            let mut seen = 0;
            for node in 0..27 {
                for dimension in 0..3 {
                    for (direction, step) in [(Direction::Plus, 1), (Direction::Minus, 2)] {
                        let Some(link) = grid.link(node, dimension, direction) else { continue };
                        seen += 1;
                        let expected = grid.node_at(
                            (0..3).map(|d| grid.coordinate(node, d) + if d == dimension { step } else { 0 }),
                        );
                        assert_eq!(topology.link(link).from, Vertex::Switch(SwitchId(node)));
                        assert_eq!(topology.link(link).to, Vertex::Switch(SwitchId(expected)));
                    }
                }
            }
            let expected = match shape {
                GridShape::Torus => 27 * 6,
                GridShape::UnidirectionalTorus => 27 * 3,
                GridShape::Mesh => 2 * 3 * 9 * 2,
            };
            assert_eq!(seen, expected);
            assert_eq!(topology.switch_link_count(), expected);
        }
    }

    #[test]
    fn coordinates_and_nodes_are_inverse() {
        let topology = grid(GridShape::Torus, 4, 3).unwrap();
        let grid = topology.grid().unwrap();
        for node in 0..64 {
            assert_eq!(grid.node_at(grid.coordinates(node)), node);
        }
    }

    #[test]
    fn too_many_nodes_are_refused() {
        let error = grid(GridShape::Torus, 1000, 3).unwrap_err();
        assert_eq!(error.to_string(), "k=1000 is out of range: k to the power n=3 is at most 1048576");
    }
}
