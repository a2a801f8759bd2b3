//! The path of a packet over ringlets: one leg on each.

use treecast_fabric::{Direction, Fabric, Grid, LinkId, Topology};

/// A part of a path on one ringlet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leg {
    /// Its first link.
    pub first: LinkId,
    /// The number of links, less than that of the ringlet.
    pub links: u32,
    /// The numbers of links after which a copy is dropped.
    pub drops: Vec<u32>,
}

/// The ringlets of a unidirectional torus.
#[derive(Debug)]
pub(super) struct Ringlets<'a> {
    topology: &'a Topology,
    /// The number of links of each ringlet.
    pub size: u32,
    /// For each ring link the next one on its ringlet; for links inside a node there is none.
    next: Vec<Option<LinkId>>,
}

impl<'a> Ringlets<'a> {
    /// The ringlets of a fabric whose grid is a unidirectional torus.
    pub fn new(fabric: &'a Fabric, grid: &Grid) -> Self {
        let topology = fabric.topology();
        let mut next = vec![None; topology.link_count() as usize];
        for node in 0..grid.node_count() {
            for dimension in 0..grid.dimensions() {
                let link = |node| grid.link(node, dimension, Direction::Plus).expect("a torus has this link");
                let here = link(node);
                let end = topology.link(here).to.switch().expect("ring links lead to nodes");
                next[here.index()] = Some(link(end.0));
            }
        }
        Self { topology, size: grid.radix(), next }
    }

    /// The next link on a ringlet.
    pub fn next(&self, link: LinkId) -> LinkId {
        self.next[link.index()].expect("packets go over ring links")
    }

    /// The legs of a route from injection to the last ejection; an ejection in the middle is a
    /// drop.
    pub fn legs(&self, route: impl IntoIterator<Item = LinkId>) -> Vec<Leg> {
        let mut legs: Vec<Leg> = Vec::new();
        let mut last = None;
        for link in route.into_iter().skip(1) {
            if self.topology.link(link).to.host().is_some() {
                let leg = legs.last_mut().expect("a route leaves its node");
                leg.drops.push(leg.links);
                continue;
            }
            match legs.last_mut() {
                Some(leg) if last.map(|last| self.next(last)) == Some(link) => leg.links += 1,
                _ => legs.push(Leg { first: link, links: 1, drops: Vec::new() }),
            }
            last = Some(link);
        }
        legs
    }
}
