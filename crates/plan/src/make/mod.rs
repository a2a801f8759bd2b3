//! Makers: each builds the worms of a scheme for a group.

mod flat;
mod hierarchical;
mod leader;
mod path;
mod sender;
mod torus;
mod tree;
mod tree_worm;

use treecast_fabric::{Fabric, RouteFinder};

use crate::error::PlanError;
use crate::group::{Group, Order};
use crate::plan::Worm;
use crate::scheme::{Local, Scheme};
use flat::FlatMaker;

/// Makes the worms of one scheme on one fabric; caches what does not depend on the group.
#[derive(Debug)]
pub(crate) struct Maker<'a> {
    flat: FlatMaker<'a>,
    /// How leaders serve their hosts; `None` for a scheme without leaders.
    local: Option<Local>,
}

impl<'a> Maker<'a> {
    /// A maker; schemes that take no order ignore it.
    pub(crate) fn new(
        fabric: &'a Fabric,
        scheme: Scheme,
        order: Order,
        packets: u32,
    ) -> Result<Self, PlanError> {
        let local = match scheme {
            Scheme::Flat(_) => None,
            Scheme::Leader { local, .. } => Some(local),
        };
        Ok(Self { flat: FlatMaker::new(fabric, scheme.flat(), order, packets)?, local })
    }

    /// The worms for a group. Routes that the fabric determines are found by the finder.
    pub(crate) fn worms(
        &mut self,
        finder: &mut Option<RouteFinder<'a>>,
        group: &Group,
    ) -> Result<Vec<Worm>, PlanError> {
        match self.local {
            None => self.flat.worms(finder, group),
            Some(local) => leader::worms(&mut self.flat, local, finder, group),
        }
    }
}
