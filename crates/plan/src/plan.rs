//! The plan: a value that says who sends which copy to whom, and in what order.

use fixedbitset::FixedBitSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treecast_fabric::Channel;

use crate::error::PlanError;
use crate::group::{Group, Placement};
use crate::label::Label;
use crate::numbering::Numbering;
use crate::scheme::Scheme;
use treecast_terms::MemberId;

/// The kind of a worm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WormKind {
    /// To one host. It has several receivers only if processes of that host share the delivered
    /// message.
    Unicast,
    /// Along one path of switches, with a copy dropped at each stop.
    Path,
    /// Down a tree of switches.
    Tree,
    /// Inside a host, from one member to another.
    Local,
}

impl WormKind {
    /// Its name: `unicast`, `path`, `tree`, `local`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unicast => "unicast",
            Self::Path => "path",
            Self::Tree => "tree",
            Self::Local => "local",
        }
    }
}

/// One message put into the fabric by one sender.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Worm {
    /// The sender.
    pub from: MemberId,
    /// Its position among the sender's worms, from 0.
    pub index: u32,
    /// The kind of worm.
    pub kind: WormKind,
    /// The receivers, in the order in which a path passes them.
    pub to: Vec<MemberId>,
    /// The channels it crosses from injection to last ejection. Empty inside a host, and where the
    /// fabric routes adaptively, hop by hop. A path worm always has a route: its path through the
    /// switches, with the ejections of its drops in between.
    pub route: Vec<Channel>,
}

/// The worms of one multicast: each with its sender, and the order in which a sender sends them. A
/// sender that is not the root sends after it has received.
///
/// Worms are listed in causal order: each member receives before it sends. A plan is sound: every
/// destination receives exactly once, and only holders send.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Plan {
    pub(crate) scheme: Scheme,
    pub(crate) label: Label,
    pub(crate) root: MemberId,
    pub(crate) placement: Placement,
    pub(crate) worms: Vec<Worm>,
}

impl Plan {
    /// A plan from worms in causal order; their indices are set here.
    ///
    /// # Errors
    /// [`PlanError::Unsound`] if a worm has no receiver or a unicast worm has two hosts, a sender
    /// does not hold the message, a member receives twice, or a member does not exist.
    pub fn new(
        scheme: Scheme,
        label: Label,
        root: MemberId,
        placement: Placement,
        mut worms: Vec<Worm>,
    ) -> Result<Self, PlanError> {
        if worms.is_empty() {
            return Err(PlanError::NoDestinations);
        }
        let count = placement.member_count();
        let reached = worms.iter().flat_map(|worm| worm.to.iter().copied());
        let numbers = Numbering::of(std::iter::once(root).chain(reached), count);
        let mut holders = FixedBitSet::with_capacity(numbers.len());
        let mut sent = vec![0; numbers.len()];
        let known = |member: MemberId| {
            if member.0 < count {
                Ok(member)
            } else {
                Err(PlanError::Unsound(format!("there is no member {member}")))
            }
        };
        let number = |member: MemberId| numbers.number(member).expect("every receiver has a number");
        holders.insert(number(known(root)?));
        for worm in &mut worms {
            let Some(from) = numbers.number(known(worm.from)?).filter(|&from| holders[from]) else {
                return Err(PlanError::Unsound(format!("{} sends before it has received", worm.from)));
            };
            if worm.to.is_empty() {
                return Err(PlanError::Unsound(format!("a worm of {} has no receiver", worm.from)));
            }
            let host = placement.host_of(worm.from);
            let first = placement.host_of(known(worm.to[0])?);
            for &to in &worm.to {
                if holders.put(number(known(to)?)) {
                    return Err(PlanError::Unsound(format!("{to} receives twice")));
                }
                if (worm.kind == WormKind::Local) != (placement.host_of(to) == host) {
                    let kind = worm.kind.name();
                    return Err(PlanError::Unsound(format!(
                        "a {kind} worm cannot go from {} to {to}",
                        worm.from
                    )));
                }
                if worm.kind == WormKind::Unicast && placement.host_of(to) != first {
                    return Err(PlanError::Unsound(format!(
                        "a unicast worm of {} goes to two hosts, {first} and {}",
                        worm.from,
                        placement.host_of(to)
                    )));
                }
            }
            worm.index = sent[from];
            sent[from] += 1;
        }
        Ok(Self { scheme, label, root, placement, worms })
    }

    /// The scheme that made it.
    pub fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// Where the algorithm comes from.
    pub fn label(&self) -> Label {
        self.label
    }

    /// The root.
    pub fn root(&self) -> MemberId {
        self.root
    }

    /// Which member runs on which host.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// All worms in causal order: each member receives before it sends.
    pub fn worms(&self) -> &[Worm] {
        &self.worms
    }

    /// The number of destinations.
    pub fn destination_count(&self) -> usize {
        self.worms.iter().map(|worm| worm.to.len()).sum()
    }

    /// For each member the positions of its worms in [`Plan::worms`], in the order in which it
    /// sends them. Cost: the number of worms, times its logarithm if only few of the members send.
    pub fn sends(&self) -> Sends {
        let senders = self.worms.iter().map(|worm| worm.from);
        let numbers = Numbering::of(senders, self.placement.member_count());
        let number = |member| numbers.number(member).expect("every sender has a number");
        let mut start = vec![0_u32; numbers.len() + 1];
        for worm in &self.worms {
            start[number(worm.from) + 1] += 1;
        }
        for index in 1..start.len() {
            start[index] += start[index - 1];
        }
        let mut positions = vec![0; self.worms.len()];
        for (position, worm) in (0..).zip(&self.worms) {
            positions[(start[number(worm.from)] + worm.index) as usize] = position;
        }
        Sends { numbers, positions, start }
    }

    /// Whether the plan reaches exactly the destinations of a group, from its root.
    pub fn covers(&self, group: &Group) -> bool {
        let mut reached: Vec<MemberId> = self.worms.iter().flat_map(|worm| worm.to.iter().copied()).collect();
        let mut wanted = group.destinations().to_vec();
        reached.sort_unstable();
        wanted.sort_unstable();
        self.root == group.root() && reached == wanted
    }
}

/// The worms that each member sends.
#[derive(Debug, Clone)]
pub struct Sends {
    numbers: Numbering,
    positions: Vec<u32>,
    start: Vec<u32>,
}

impl Sends {
    /// The positions in [`Plan::worms`] of a member's worms, in the order in which it sends them.
    pub fn of(&self, member: MemberId) -> &[u32] {
        let Some(number) = self.numbers.number(member) else { return &[] };
        &self.positions[self.start[number] as usize..self.start[number + 1] as usize]
    }
}
