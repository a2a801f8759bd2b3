//! Schemes: ways to turn a group on a fabric into a plan.

mod leader;
mod name;
mod path;
mod torus;
mod tree;

use treecast_fabric::{Channel, Fabric, RouteFinder};

use crate::shape::{self, Lambda};
use crate::{Group, MemberId, Order, PACKETS_MAX, Placement, Plan, PlanError, Worm, WormKind};

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
        /// The most children; by default the k that minimises the steps for the message's packets ([`shape::best_k`]).
        k: Option<u32>,
    },
    /// Latency-optimal in the postal model (Bar-Noy and Kipnis). *Published.*
    Postal {
        /// The ratio of the time until a receiver has the message to the time for the sender to send one more copy.
        lambda: Lambda,
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
    /// Packets of the message, 1 to [`PACKETS_MAX`]: k-binomial trees depend on it.
    pub packets: u32,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { order: None, packets: 1 }
    }
}

/// The plan of a scheme for a group on a fabric.
///
/// Trees take time and memory in proportion to n (postal: n log n); torus and path schemes to the length of their
/// routes besides.
///
/// # Errors
/// [`PlanError`] where the group does not live on the fabric, or the scheme does not fit it.
pub fn plan(
    fabric: &Fabric,
    group: &Group,
    scheme: &Scheme,
    options: &PlanOptions,
) -> Result<Plan, PlanError> {
    let (placed, hosts) = (group.placement().host_count(), fabric.topology().host_count());
    if placed != hosts {
        return Err(PlanError::PlacementMismatch { placed, hosts });
    }
    if !(1..=PACKETS_MAX).contains(&options.packets) {
        return Err(PlanError::Packets(options.packets.into()));
    }
    if options.order.is_some() && !scheme.takes_order() {
        return Err(PlanError::TakesNoOrder { scheme: scheme.name() });
    }
    let worms = worms(fabric, group, scheme, options)?;
    let label = scheme.label_on(fabric, options.order);
    Ok(Plan::new(scheme.clone(), label, group.root(), *group.placement(), worms)
        .expect("every scheme reaches every destination once, from holders"))
}

fn worms(
    fabric: &Fabric,
    group: &Group,
    scheme: &Scheme,
    options: &PlanOptions,
) -> Result<Vec<Worm>, PlanError> {
    let size = group.size();
    let over = |shape| tree::over_order(fabric, group, &shape, options.order.unwrap_or_default());
    match scheme {
        Scheme::Separate => over(shape::separate(size)),
        Scheme::Serial => over(shape::serial(size)),
        Scheme::Binary => over(shape::binary(size)),
        Scheme::Binomial => over(shape::halving(size)),
        Scheme::KBinomial { k } => {
            over(shape::k_binomial(size, k.unwrap_or_else(|| shape::best_k(size, options.packets))))
        }
        Scheme::Postal { lambda } => over(shape::postal(size, *lambda)),
        Scheme::UTorus => torus::u_torus(fabric, group),
        Scheme::STorus { form } => torus::s_torus(fabric, group, *form),
        Scheme::MdTorus { form } => torus::md_torus(fabric, group, *form),
        Scheme::MuTorus { r, form, relay } => torus::mu_torus(fabric, group, *r, *form, *relay),
        Scheme::Path(policy) => path::path_worms(fabric, group, *policy),
        Scheme::TreeWorm => tree::tree_worm(fabric, group),
        Scheme::Leader { over, local } => leader::leader(fabric, group, over, *local, options),
    }
}

/// Makes worms of sends from member to member, with the routes that the fabric determines.
struct Sender<'a> {
    placement: &'a Placement,
    /// Where the fabric determines routes.
    finder: Option<RouteFinder<'a>>,
    worms: Vec<Worm>,
}

impl<'a> Sender<'a> {
    fn new(fabric: &'a Fabric, group: &'a Group) -> Self {
        let (topology, routing) = (fabric.topology(), fabric.routing());
        let finder = routing.is_deterministic(topology).then(|| RouteFinder::new(topology, routing));
        Self { placement: group.placement(), finder, worms: Vec::new() }
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
