//! Makers of schemes without leaders.

use treecast_fabric::{Fabric, RouteFinder};

use super::hierarchical::HierarchicalMaker;
use super::path::PathMaker;
use super::torus::TorusMaker;
use super::tree::TreeMaker;
use super::tree_worm::TreeWormMaker;
use crate::error::PlanError;
use crate::group::{Group, Order};
use crate::plan::Worm;
use crate::scheme::FlatScheme;

/// Makes the worms of a flat scheme on one fabric.
#[derive(Debug)]
pub(super) enum FlatMaker<'a> {
    Tree(TreeMaker<'a>),
    Hierarchical(HierarchicalMaker<'a>),
    Torus(TorusMaker<'a>),
    Path(Box<PathMaker<'a>>),
    TreeWorm(TreeWormMaker<'a>),
}

impl<'a> FlatMaker<'a> {
    pub(super) fn new(
        fabric: &'a Fabric,
        scheme: FlatScheme,
        order: Order,
        packets: u32,
    ) -> Result<Self, PlanError> {
        Ok(match scheme {
            FlatScheme::Tree(scheme) => Self::Tree(TreeMaker::new(fabric, scheme, order, packets)?),
            FlatScheme::Hierarchical { across, inside } => {
                Self::Hierarchical(HierarchicalMaker::new(fabric, across, inside, packets))
            }
            FlatScheme::Torus(scheme) => Self::Torus(TorusMaker::new(fabric, scheme)?),
            FlatScheme::Path(policy) => Self::Path(Box::new(PathMaker::new(fabric, policy)?)),
            FlatScheme::TreeWorm => Self::TreeWorm(TreeWormMaker::new(fabric)?),
        })
    }

    pub(super) fn worms(
        &mut self,
        finder: &mut Option<RouteFinder<'a>>,
        group: &Group,
    ) -> Result<Vec<Worm>, PlanError> {
        match self {
            Self::Tree(maker) => maker.worms(finder, group),
            Self::Hierarchical(maker) => maker.worms(finder, group),
            Self::Torus(maker) => Ok(maker.worms(finder, group)),
            Self::Path(maker) => Ok(maker.worms(finder, group)),
            Self::TreeWorm(maker) => maker.worms(finder, group),
        }
    }
}
