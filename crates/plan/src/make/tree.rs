//! Trees of unicasts over an order.

use treecast_fabric::{Fabric, RouteFinder};

use super::sender::Sender;
use crate::error::PlanError;
use crate::group::{Group, Order};
use crate::order::MemberOrder;
use crate::plan::Worm;
use crate::scheme::TreeScheme;
use crate::shape::{self, Shape};

/// Places the shape of a tree on the members in an order.
#[derive(Debug)]
pub(super) struct TreeMaker<'a> {
    order: MemberOrder<'a>,
    scheme: TreeScheme,
    packets: u32,
    /// The last shape and its number of members: consecutive groups are often of one size.
    shape: (u32, Shape),
}

impl<'a> TreeMaker<'a> {
    pub(super) fn new(
        fabric: &'a Fabric,
        scheme: TreeScheme,
        order: Order,
        packets: u32,
    ) -> Result<Self, PlanError> {
        let order = MemberOrder::new(fabric, order)?;
        Ok(Self { order, scheme, packets, shape: (1, Shape(Vec::new())) })
    }

    pub(super) fn worms(
        &mut self,
        finder: &mut Option<RouteFinder>,
        group: &Group,
    ) -> Result<Vec<Worm>, PlanError> {
        let size = group.size();
        if self.shape.0 != size {
            self.shape = (size, shape_of(self.scheme, size, self.packets)?);
        }
        let mut sender = Sender::new(finder, group);
        sender.send_along(&self.shape.1, &self.order.members(group));
        Ok(sender.worms)
    }
}

/// The shape of a tree of `size` members for a message of `packets` packets.
pub(super) fn shape_of(scheme: TreeScheme, size: u32, packets: u32) -> Result<Shape, PlanError> {
    Ok(match scheme {
        TreeScheme::Separate => shape::separate(size),
        TreeScheme::Serial => shape::serial(size),
        TreeScheme::Binary => shape::binary(size),
        TreeScheme::Binomial => shape::halving(size),
        TreeScheme::KBinomial { k } => {
            shape::k_binomial(size, k.unwrap_or_else(|| shape::best_k(size, packets)))
        }
        TreeScheme::Postal { lambda } => {
            shape::postal(size, lambda.ok_or(PlanError::NeedsLambda { key: "lambda" })?)
        }
    })
}
