//! Schemes: ways to turn a group on a fabric into a plan.

mod leader;
mod name;
mod path;
mod torus;
mod tree;

use treecast_fabric::{Channel, Fabric, RouteFinder};

use path::PathMaker;
use torus::TorusMaker;
use tree::{TreeMaker, TreeWormMaker};

use crate::shape::Lambda;
use crate::{Group, MemberId, Order, Placement, PlanError, Worm, WormKind};

/// A way to turn a group on a fabric into a plan. n is the number of members with the root.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// The root sends to every destination in turn. n - 1 steps. *Published.*
    Separate,
    /// Each passes on to the next. n - 1 steps. *Published.*
    Serial,
    /// Fan-out at most 2, filled in breadth. *Published.*
    Binary,
    /// Recursive halving of the order, ceil(log2 n) steps. *Published.*
    Binomial,
    /// Recursive doubling in which no vertex has more than k children. *Published idea, counted by us.*
    KBinomial {
        /// The most children; by default the k that minimises the steps for the message's packets ([`shape::best_k`](crate::shape::best_k)).
        k: Option<u32>,
    },
    /// Latency-optimal in the postal model (Bar-Noy and Kipnis). *Published.*
    Postal {
        /// The ratio of the time until a receiver has the message to the time for the sender to send one more copy. A plan
        /// needs it; without it, whoever carries the scheme out measures it, and plans then.
        lambda: Option<Lambda>,
    },
    /// Recursive halving over the members in dimension order, rotated to the root; on tori. *Published result, order
    /// reconstructed.*
    UTorus,
    /// One chain along a Hamiltonian cycle; on tori. *Published; cycle reconstructed.*
    STorus {
        /// Store and forward, or one worm.
        form: Form,
    },
    /// A header a ring, which serves its ring; on tori. *Published in two dimensions; more are ours.*
    MdTorus {
        /// Store and forward, or one worm a ring.
        form: Form,
    },
    /// Partitions of r members along the Hamiltonian cycle, their leaders reached by the same rule; on tori. *Published;
    /// the relay inside is an option.*
    MuTorus {
        /// Members a partition, at least 2.
        r: u32,
        /// Store and forward, or one worm a partition.
        form: Form,
        /// How a leader serves its partition in store and forward.
        relay: Relay,
    },
    /// Multi-drop path worms in phases, on up*/down* networks. *Reconstructed.*
    Path(PathPolicy),
    /// One worm down a tree of switches, on up*/down* networks. *Published; the overlap rule is ours.*
    TreeWorm,
    /// One leader a host is reached by another scheme, and hands on inside its host. *Published.*
    Leader {
        /// How the leaders are reached.
        over: Box<Scheme>,
        /// How the others on a host are.
        local: Local,
    },
}

impl Scheme {
    /// Whether there can be a plan of it over an order.
    ///
    /// # Errors
    /// [`PlanError::TakesNoOrder`], [`PlanError::NeedsLambda`].
    pub fn check(&self, order: Option<Order>) -> Result<(), PlanError> {
        match self {
            _ if order.is_some() && !self.takes_order() => {
                Err(PlanError::TakesNoOrder { scheme: self.name() })
            }
            Self::Postal { lambda: None } => Err(PlanError::NeedsLambda),
            Self::Leader { over, .. } => over.check(order),
            _ => Ok(()),
        }
    }
}

/// How a chain of destinations is served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// Each stop receives and sends on: a unicast a stop.
    #[default]
    StoreAndForward,
    /// One path worm drops a copy at each stop and loses an address there.
    Worm,
}

/// How a Mu-torus leader serves its partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Relay {
    /// Each member sends to the next.
    #[default]
    Chain,
    /// The leader sends to each in turn.
    Separate,
}

/// How the members of a host get the message from their leader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Local {
    /// The leader serves one after another. *Published.*
    #[default]
    Separate,
    /// A binomial tree inside the host. *Ours.*
    Binomial,
    /// Straight into shared memory: what reaches the host reaches all its members at once. *Ours.*
    Direct,
}

/// How path worms choose their destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathPolicy {
    /// The most destination switches that one worm takes.
    pub share: Share,
    /// Whether the worms of one phase share no link.
    pub disjoint: bool,
}

/// The most destination switches that one path worm takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// No limit.
    All,
    /// The fair share: ceil(uncovered destination switches / (holders + 1)), both as they stand when a phase begins.
    Fair,
    /// A fixed number, at least 1.
    AtMost(u32),
}

impl PathPolicy {
    /// MDP-G: each worm takes as much as it can.
    pub const GREEDY: Self = Self { share: Share::All, disjoint: false };
    /// MDP-LG: each worm takes its fair share, and the worms of a phase share no link.
    pub const LESS_GREEDY: Self = Self { share: Share::Fair, disjoint: true };
}

/// What a plan depends on besides fabric, group and scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanOptions {
    /// The order on which trees are built; `None` is [`Order::Id`], and fits the schemes that take no order too.
    pub order: Option<Order>,
    /// Packets of the message, 1 to [`PACKETS_MAX`](crate::PACKETS_MAX): k-binomial trees depend on it.
    pub packets: u32,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { order: None, packets: 1 }
    }
}

/// Makes the worms of one scheme on one fabric; holds what does not depend on the group.
#[derive(Debug)]
pub(crate) enum Maker<'a> {
    Tree(TreeMaker<'a>),
    Torus(TorusMaker<'a>),
    Path(Box<PathMaker<'a>>),
    TreeWorm(TreeWormMaker<'a>),
    Leader { over: Box<Maker<'a>>, local: Local },
}

impl<'a> Maker<'a> {
    pub(crate) fn new(fabric: &'a Fabric, scheme: &Scheme, options: &PlanOptions) -> Result<Self, PlanError> {
        Ok(match scheme {
            Scheme::UTorus => Self::Torus(TorusMaker::new(fabric, scheme, Form::StoreAndForward)?),
            Scheme::STorus { form } | Scheme::MdTorus { form } | Scheme::MuTorus { form, .. } => {
                Self::Torus(TorusMaker::new(fabric, scheme, *form)?)
            }
            Scheme::Path(policy) => Self::Path(Box::new(PathMaker::new(fabric, *policy)?)),
            Scheme::TreeWorm => Self::TreeWorm(TreeWormMaker::new(fabric)?),
            Scheme::Leader { over, local } => {
                Self::Leader { over: Box::new(Self::new(fabric, over, options)?), local: *local }
            }
            _ => Self::Tree(TreeMaker::new(fabric, scheme, options)?),
        })
    }

    /// The worms for a group. Routes that the fabric determines are found by the finder.
    pub(crate) fn worms(
        &mut self,
        finder: &mut Option<RouteFinder<'a>>,
        group: &Group,
    ) -> Result<Vec<Worm>, PlanError> {
        match self {
            Self::Tree(maker) => Ok(maker.worms(finder, group)),
            Self::Torus(maker) => Ok(maker.worms(finder, group)),
            Self::Path(maker) => Ok(maker.worms(finder, group)),
            Self::TreeWorm(maker) => maker.worms(finder, group),
            Self::Leader { over, local } => leader::leader(over, *local, finder, group),
        }
    }
}

/// Makes worms of sends from member to member, with the routes that the fabric determines.
struct Sender<'a, 's> {
    placement: &'s Placement,
    /// Where the fabric determines routes.
    finder: Option<&'s mut RouteFinder<'a>>,
    worms: Vec<Worm>,
}

impl<'a, 's> Sender<'a, 's> {
    fn new(finder: &'s mut Option<RouteFinder<'a>>, group: &'s Group) -> Self {
        let worms = Vec::with_capacity(group.destinations().len());
        Self { placement: group.placement(), finder: finder.as_mut(), worms }
    }

    /// One copy from a member to another: inside the host where both are there, else a unicast worm.
    fn send(&mut self, from: MemberId, to: MemberId) {
        let (source, target) = (self.placement.host_of(from), self.placement.host_of(to));
        if source == target {
            self.push(from, WormKind::Local, vec![to], Vec::new());
        } else {
            let route = self.finder.as_mut().map(|finder| finder.route(source, target));
            self.push(from, WormKind::Unicast, vec![to], route.unwrap_or_default());
        }
    }

    fn push(&mut self, from: MemberId, kind: WormKind, to: Vec<MemberId>, route: Vec<Channel>) {
        self.worms.push(Worm { from, index: 0, kind, to, route });
    }
}
