//! The way up a plan's tree: what an all-reduce or a barrier sends before the result goes down.

use treecast_fabric::{Fabric, RouteFinder};
use treecast_terms::MemberId;

use crate::error::PlanError;
use crate::numbering::Numbering;
use crate::plan::{Plan, Worm, WormKind};

/// The contributions of all members to their root.
///
/// The parent of a member is the sender of the worm that reaches it. A member waits for the
/// contributions of its children, combines them with its own values, and sends one contribution to
/// its parent. The root then has the result, and the plan brings it to all others. A plan whose
/// switches copy worms has no copies on the way up: each receiver of a worm contributes by a
/// unicast worm of its own.
///
/// ```
/// use treecast_fabric::{Fabric, FabricSpec};
/// use treecast_plan::{Group, MemberId, Placement, PlanOptions, plan};
///
/// let fabric = Fabric::from_spec(&"star:8".parse::<FabricSpec>()?)?;
/// let group = Group::new(Placement::one_per_host(8), MemberId(0), (1..8).map(MemberId).collect())?;
/// let plan = plan(&fabric, &group, &"binomial".parse()?, &PlanOptions::default())?;
/// let reduction = plan.reduction(&fabric)?;
/// assert_eq!((reduction.contributions().len(), reduction.steps(), reduction.max_fan_in()), (7, 3, 3));
/// # Ok::<(), treecast_plan::PlanError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reduction {
    contributions: Vec<Contribution>,
    /// How many contributions the root combines with its own values.
    combined_at_root: u32,
}

/// The contribution of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contribution {
    /// The worm to its parent: unicast, or local on the same host. Its index is 0, since a member
    /// sends one contribution.
    pub worm: Worm,
    /// The step in which it travels, in the one-port model: its parent receives one contribution
    /// per step, in the order in which they are ready, on ties that of the lower member.
    pub step: u32,
    /// How many contributions of children the member combines with its own values.
    pub combined: u32,
}

impl Contribution {
    /// The member that contributes.
    pub fn from(&self) -> MemberId {
        self.worm.from
    }

    /// Its parent.
    pub fn to(&self) -> MemberId {
        self.worm.to[0]
    }
}

impl Reduction {
    /// All contributions in causal order: those that a member combines precede its own.
    pub fn contributions(&self) -> &[Contribution] {
        &self.contributions
    }

    /// How many contributions the root combines with its own values.
    pub fn combined_at_root(&self) -> u32 {
        self.combined_at_root
    }

    /// Steps until the root has the result.
    pub fn steps(&self) -> u32 {
        self.contributions.iter().map(|contribution| contribution.step).max().unwrap_or(0)
    }

    /// The most contributions that one member combines.
    pub fn max_fan_in(&self) -> u32 {
        let combined = self.contributions.iter().map(|contribution| contribution.combined);
        combined.chain([self.combined_at_root]).max().unwrap_or(0)
    }
}

/// A child whose own children have contributed.
struct Ready {
    /// The step after which it contributes.
    step: u32,
    member: MemberId,
    combined: u32,
}

impl Plan {
    /// The way up the plan's tree. Routes are those of unicast worms: empty where the fabric routes
    /// adaptively. Cost: as that of the plan.
    ///
    /// # Errors
    /// [`PlanError::PlacementMismatch`] if the plan belongs to another fabric.
    pub fn reduction(&self, fabric: &Fabric) -> Result<Reduction, PlanError> {
        self.placement.check_fabric(fabric)?;
        let (topology, routing) = (fabric.topology(), fabric.routing());
        let mut finder = routing.is_deterministic(topology).then(|| RouteFinder::new(topology, routing));
        let mut worm = |from: MemberId, to: MemberId| {
            let (source, target) = (self.placement.host_of(from), self.placement.host_of(to));
            let kind = if source == target { WormKind::Local } else { WormKind::Unicast };
            let finder = finder.as_mut().filter(|_| kind == WormKind::Unicast);
            let route = finder.map(|finder| finder.route(source, target)).unwrap_or_default();
            Worm { from, index: 0, kind, to: vec![to], route }
        };
        let senders = self.worms.iter().map(|worm| worm.from);
        let numbers = Numbering::of(senders, self.placement.member_count());
        let mut waiting: Vec<Vec<Ready>> = (0..numbers.len()).map(|_| Vec::new()).collect();
        let mut contributions = Vec::with_capacity(self.destination_count());
        // A member's children contribute to it, each in a step of its own; returns the last.
        let mut combine = |member: MemberId, mut children: Vec<Ready>| {
            children.sort_unstable_by_key(|child| (child.step, child.member));
            let mut step = 0;
            for child in &children {
                step = child.step.max(step) + 1;
                let worm = worm(child.member, member);
                contributions.push(Contribution { worm, step, combined: child.combined });
            }
            Ready { step, member, combined: children.len() as u32 }
        };
        // From the last worm to the first: the children of its receivers are known before them.
        for worm in self.worms.iter().rev() {
            for &to in worm.to.iter().rev() {
                let number = numbers.number(to);
                let children = number.map(|number| std::mem::take(&mut waiting[number])).unwrap_or_default();
                let ready = combine(to, children);
                waiting[numbers.number(worm.from).expect("every sender has a number")].push(ready);
            }
        }
        let number = numbers.number(self.root).expect("the root sends");
        let root = combine(self.root, std::mem::take(&mut waiting[number]));
        Ok(Reduction { contributions, combined_at_root: root.combined })
    }
}
