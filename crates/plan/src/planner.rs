//! Planning: one plan, or many on one fabric.

use treecast_fabric::{Fabric, RouteFinder};

use crate::error::PlanError;
use crate::group::{Group, Order};
use crate::label::Label;
use crate::limits::PACKETS_MAX;
use crate::make::Maker;
use crate::plan::Plan;
use crate::scheme::Scheme;

/// The inputs of a plan besides fabric, group and scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanOptions {
    /// The order on which trees are built; `None` is [`Order::Id`], and is required for schemes
    /// that take no order.
    pub order: Option<Order>,
    /// Packets of the message, 1 to [`PACKETS_MAX`](crate::PACKETS_MAX): the best k of k-binomial
    /// trees depends on it.
    pub packets: u32,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { order: None, packets: 1 }
    }
}

/// Plans many groups on one fabric by one scheme.
///
/// It caches what depends on the fabric alone: orders of switches, tables of links, the route
/// finder. So the cost of a plan is in proportion to its group: n log n for a tree over n members,
/// and the length of its routes where the fabric determines them. Torus schemes cost time in
/// proportion to their routes too; a tree worm examines the switches above its sender; path worms
/// examine the switches of the fabric, at least once per worm.
///
/// ```
/// use treecast_fabric::{Fabric, FabricSpec};
/// use treecast_plan::{Group, MemberId, Placement, PlanOptions, Planner};
///
/// let fabric = Fabric::from_spec(&"icpp98".parse::<FabricSpec>()?)?;
/// let mut planner = Planner::new(&fabric, &"path".parse()?, &PlanOptions::default())?;
/// for root in 0..8 {
///     let group = Group::new(Placement::one_per_host(32), MemberId(root), vec![MemberId(30), MemberId(9)])?;
///     assert_eq!(planner.plan(&group)?.destination_count(), 2);
/// }
/// # Ok::<(), treecast_plan::PlanError>(())
/// ```
#[derive(Debug)]
pub struct Planner<'a> {
    fabric: &'a Fabric,
    scheme: Scheme,
    label: Label,
    /// Finds routes, if the fabric determines them.
    finder: Option<RouteFinder<'a>>,
    maker: Maker<'a>,
}

impl<'a> Planner<'a> {
    /// A planner for a scheme on a fabric. Cost: the number of links.
    ///
    /// # Errors
    /// [`PlanError::Packets`], [`PlanError::TakesNoOrder`], [`PlanError::NeedsLambda`],
    /// [`PlanError::NeedsUpDown`], [`PlanError::NeedsTorus`], [`PlanError::NeedsDimensionOrder`].
    pub fn new(fabric: &'a Fabric, scheme: &Scheme, options: &PlanOptions) -> Result<Self, PlanError> {
        if !(1..=PACKETS_MAX).contains(&options.packets) {
            return Err(PlanError::Packets(options.packets.into()));
        }
        scheme.check(options.order)?;
        let (topology, routing) = (fabric.topology(), fabric.routing());
        Ok(Self {
            fabric,
            scheme: *scheme,
            label: scheme.label_on(fabric, options.order),
            finder: routing.is_deterministic(topology).then(|| RouteFinder::new(topology, routing)),
            maker: Maker::new(fabric, *scheme, options.order.unwrap_or_default(), options.packets)?,
        })
    }

    /// The plan for a group.
    ///
    /// # Errors
    /// [`PlanError::PlacementMismatch`] if the group is placed on a different number of hosts;
    /// [`PlanError::NoCoveringSwitch`] if a tree worm cannot reach it.
    pub fn plan(&mut self, group: &Group) -> Result<Plan, PlanError> {
        group.placement().check_fabric(self.fabric)?;
        let worms = self.maker.worms(&mut self.finder, group)?;
        Ok(Plan::new(self.scheme, self.label, group.root(), group.placement().clone(), worms)
            .expect("every scheme reaches every destination once, from holders"))
    }
}

/// The plan of a scheme for a group on a fabric. For many groups use a [`Planner`].
///
/// Trees take time and memory in proportion to n (postal: n log n) and to the fabric; torus and
/// path schemes also to the length of their routes.
///
/// # Errors
/// [`PlanError`] if the group is placed on a different number of hosts, or the scheme does not fit
/// the fabric.
pub fn plan(
    fabric: &Fabric,
    group: &Group,
    scheme: &Scheme,
    options: &PlanOptions,
) -> Result<Plan, PlanError> {
    group.placement().check_fabric(fabric)?;
    Planner::new(fabric, scheme, options)?.plan(group)
}
