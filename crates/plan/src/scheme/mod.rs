//! Schemes: the rules that turn a group on a fabric into a plan.

mod name;

use crate::error::PlanError;
use crate::group::Order;
use crate::shape::Lambda;

/// A rule that turns a group on a fabric into a plan (an algorithm of a collective operation, in
/// MPI terms). n is the number of members with the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Every member takes part as itself.
    Flat(FlatScheme),
    /// One leader per host is reached by a flat scheme, and forwards inside its host. *Published.*
    Leader {
        /// How the leaders are reached.
        over: FlatScheme,
        /// How the other members of a host are reached.
        local: Local,
    },
}

/// A scheme without leaders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlatScheme {
    /// A tree over an order of the members.
    Tree(TreeScheme),
    /// A tree that follows the switches of the fabric: one member of each rack (the hosts of one
    /// switch) is reached from outside, and reaches the others of its rack. The same holds for
    /// clusters of racks, such as the pods of a fat tree. *Ours, after published ideas*: see
    /// docs/plans.md.
    Hierarchical {
        /// How the racks of a cluster, and clusters, are reached, each at one member. With
        /// [`TreeScheme::Serial`] the last member of a rack sends to the next rack.
        across: TreeScheme,
        /// How that member reaches the others of its rack.
        inside: TreeScheme,
    },
    /// The torus family.
    Torus(TorusScheme),
    /// Multi-drop path worms in phases, on up*/down* networks. *Reconstructed.*
    Path(PathPolicy),
    /// One worm down a tree of switches, on up*/down* networks. *Published; the overlap rule is
    /// ours.*
    TreeWorm,
}

/// A tree of unicasts over an order of the members, which can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TreeScheme {
    /// The root sends to every destination in turn. n - 1 steps. *Published.*
    Separate,
    /// Each member forwards to the next: a chain. n - 1 steps. *Published.*
    Serial,
    /// Fan-out at most 2, filled in breadth. *Published.*
    Binary,
    /// Recursive halving of the order, ceil(log2 n) steps. *Published.*
    Binomial,
    /// Recursive doubling in which no vertex has more than k children. *Published idea, counted by
    /// us.*
    KBinomial {
        /// The maximum number of children; by default the k that minimises the steps for the
        /// message's packets ([`shape::best_k`](crate::shape::best_k)).
        k: Option<u32>,
    },
    /// Latency-optimal in the postal model (Bar-Noy and Kipnis). *Published.*
    Postal {
        /// The ratio of the time until a receiver has the message to the time for the sender to
        /// send one more copy. A plan needs it; without it, the model or the running group that
        /// carries out the scheme measures it, and plans then.
        lambda: Option<Lambda>,
    },
}

/// A scheme for tori, which visits the members in its own order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TorusScheme {
    /// U-torus: recursive halving over the members in dimension order, rotated to the root.
    /// *Published result, order reconstructed.*
    U,
    /// S-torus: one chain along a Hamiltonian cycle. *Published; cycle reconstructed.*
    S {
        /// Store and forward, or one worm.
        form: Form,
    },
    /// Md-torus: one header per ring, which serves its ring. *Published in two dimensions; more are
    /// ours.*
    Md {
        /// Store and forward, or one worm per ring.
        form: Form,
    },
    /// Mu-torus: partitions of r members along the Hamiltonian cycle, their leaders reached by the
    /// same rule. *Published; the relay inside is an option.*
    Mu {
        /// Members per partition, at least 2.
        r: u32,
        /// Store and forward, or one worm per partition.
        form: Form,
        /// How a leader serves its partition in store and forward.
        relay: Relay,
    },
}

impl Scheme {
    /// A tree without leaders.
    pub const fn tree(tree: TreeScheme) -> Self {
        Self::Flat(FlatScheme::Tree(tree))
    }

    /// The tree that it is; `None` for other schemes, and for leaders.
    pub const fn as_tree(self) -> Option<TreeScheme> {
        match self {
            Self::Flat(FlatScheme::Tree(tree)) => Some(tree),
            Self::Flat(
                FlatScheme::Hierarchical { .. }
                | FlatScheme::Torus(_)
                | FlatScheme::Path(_)
                | FlatScheme::TreeWorm,
            )
            | Self::Leader { .. } => None,
        }
    }

    /// The scheme itself, or the one that reaches its leaders.
    pub const fn flat(self) -> FlatScheme {
        match self {
            Self::Flat(flat) | Self::Leader { over: flat, .. } => flat,
        }
    }

    /// Whether it builds a tree over an order of the destinations, so that the order can be chosen.
    pub const fn takes_order(self) -> bool {
        matches!(self.flat(), FlatScheme::Tree(_))
    }

    /// The same scheme with this lambda for each postal tree that has none.
    pub fn with_lambda(self, lambda: Lambda) -> Self {
        let tree = |tree: TreeScheme| tree.with_lambda(lambda);
        let flat = |flat: FlatScheme| match flat {
            FlatScheme::Tree(scheme) => FlatScheme::Tree(tree(scheme)),
            FlatScheme::Hierarchical { across, inside } => {
                FlatScheme::Hierarchical { across: tree(across), inside: tree(inside) }
            }
            FlatScheme::Torus(_) | FlatScheme::Path(_) | FlatScheme::TreeWorm => flat,
        };
        match self {
            Self::Flat(scheme) => Self::Flat(flat(scheme)),
            Self::Leader { over, local } => Self::Leader { over: flat(over), local },
        }
    }

    /// Checks that a plan can be made of it over an order.
    ///
    /// # Errors
    /// [`PlanError::TakesNoOrder`], [`PlanError::NeedsLambda`].
    pub fn check(self, order: Option<Order>) -> Result<(), PlanError> {
        const OPEN: TreeScheme = TreeScheme::Postal { lambda: None };
        let needs = |key| Err(PlanError::NeedsLambda { key });
        match self.flat() {
            FlatScheme::Tree(OPEN) => needs("lambda"),
            FlatScheme::Tree(_) => Ok(()),
            FlatScheme::Hierarchical { across: OPEN, .. } => needs("across-lambda"),
            FlatScheme::Hierarchical { inside: OPEN, .. } => needs("inside-lambda"),
            FlatScheme::Hierarchical { .. }
            | FlatScheme::Torus(_)
            | FlatScheme::Path(_)
            | FlatScheme::TreeWorm => match order {
                Some(_) => Err(PlanError::TakesNoOrder { scheme: self.name() }),
                None => Ok(()),
            },
        }
    }
}

impl TreeScheme {
    fn with_lambda(self, lambda: Lambda) -> Self {
        match self {
            Self::Postal { lambda: None } => Self::Postal { lambda: Some(lambda) },
            other => other,
        }
    }
}

impl From<TreeScheme> for Scheme {
    fn from(tree: TreeScheme) -> Self {
        Self::tree(tree)
    }
}

/// How a chain of destinations is served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// Each stop receives and forwards: one unicast per stop.
    #[default]
    StoreAndForward,
    /// One path worm, which drops a copy at each stop and removes the stop from its header.
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
    /// The leader sends to each in turn. *Published.*
    #[default]
    Separate,
    /// A binomial tree inside the host. *Ours.*
    Binomial,
    /// Through shared memory: a message that reaches the host reaches all its members at once.
    /// *Ours.*
    Direct,
}

/// How path worms choose their destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathPolicy {
    /// The maximum number of destination switches of one worm.
    pub share: Share,
    /// Whether the worms of one phase share no link.
    pub disjoint: bool,
}

/// The maximum number of destination switches of one path worm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Share {
    /// No limit.
    All,
    /// The fair share: ceil(uncovered destination switches / (holders + 1)), both as they stand
    /// when a phase begins.
    Fair,
    /// A fixed number, at least 1.
    AtMost(u32),
}

impl PathPolicy {
    /// MDP-G (greedy): each worm covers as many destinations as it can.
    pub const GREEDY: Self = Self { share: Share::All, disjoint: false };
    /// MDP-LG (less greedy): each worm takes its fair share, and the worms of a phase share no
    /// link.
    pub const LESS_GREEDY: Self = Self { share: Share::Fair, disjoint: true };
}
