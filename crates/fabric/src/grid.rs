//! The grid of a torus or mesh: coordinates, directions, and the link of each direction.

use crate::ids::LinkId;

/// A direction along one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Towards higher coordinates.
    Plus,
    /// Towards lower coordinates.
    Minus,
}

/// A k-ary n-dimensional grid. Node `x + k*y + k*k*z + ...` has the coordinates (x, y, z, ...).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    radix: u32,
    dimensions: u32,
    wraps: bool,
    bidirectional: bool,
    /// The link that leaves a node in a dimension and direction: entry `(node * dimensions +
    /// dimension) * 2 + direction`.
    links: Vec<Option<LinkId>>,
}

impl Grid {
    pub(crate) fn new(radix: u32, dimensions: u32, wraps: bool, bidirectional: bool) -> Self {
        let nodes = radix.pow(dimensions);
        let links = vec![None; (nodes * dimensions * 2) as usize];
        Self { radix, dimensions, wraps, bidirectional, links }
    }

    pub(crate) fn set_link(&mut self, node: u32, dimension: u32, direction: Direction, link: LinkId) {
        let entry = self.entry(node, dimension, direction);
        self.links[entry] = Some(link);
    }

    /// The same grid in a topology with other link numbers.
    pub(crate) fn relinked(mut self, link: impl Fn(LinkId) -> LinkId) -> Self {
        for place in self.links.iter_mut().flatten() {
            *place = link(*place);
        }
        self
    }

    /// k: the number of nodes along a dimension.
    pub fn radix(&self) -> u32 {
        self.radix
    }

    /// n: the number of dimensions.
    pub fn dimensions(&self) -> u32 {
        self.dimensions
    }

    /// Whether the last node of a row links to the first: a torus, not a mesh.
    pub fn wraps(&self) -> bool {
        self.wraps
    }

    /// Whether there are links in both directions.
    pub fn is_bidirectional(&self) -> bool {
        self.bidirectional
    }

    /// The number of nodes: k to the power n.
    pub fn node_count(&self) -> u32 {
        self.radix.pow(self.dimensions)
    }

    /// A node's coordinate in a dimension.
    pub fn coordinate(&self, node: u32, dimension: u32) -> u32 {
        node / self.radix.pow(dimension) % self.radix
    }

    /// A node's coordinates, dimension 0 first.
    pub fn coordinates(&self, node: u32) -> impl DoubleEndedIterator<Item = u32> + '_ {
        (0..self.dimensions).map(move |dimension| self.coordinate(node, dimension))
    }

    /// The node at these coordinates, dimension 0 first, each taken modulo k.
    pub fn node_at(&self, coordinates: impl DoubleEndedIterator<Item = u32>) -> u32 {
        coordinates.rev().fold(0, |node, coordinate| node * self.radix + coordinate % self.radix)
    }

    /// The link that leaves a node in a direction; `None` at the edge of a mesh, and downwards in a
    /// unidirectional torus.
    pub fn link(&self, node: u32, dimension: u32, direction: Direction) -> Option<LinkId> {
        self.links[self.entry(node, dimension, direction)]
    }

    fn entry(&self, node: u32, dimension: u32, direction: Direction) -> usize {
        ((node * self.dimensions + dimension) * 2) as usize + usize::from(direction == Direction::Minus)
    }
}
