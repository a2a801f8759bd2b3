//! The torus family. Nodes are known by their coordinates; a member is at the node of its host.

use treecast_fabric::{DimensionOrder, Direction, Fabric, Grid, LinkId, RouteFinder, Routing};

use super::sender::Sender;
use crate::error::PlanError;
use crate::group::Group;
use crate::plan::{Worm, WormKind};
use crate::scheme::{Form, Relay, TorusScheme};
use crate::shape;
use treecast_terms::MemberId;

/// Makes the worms of a torus scheme.
#[derive(Debug)]
pub(super) struct TorusMaker<'a> {
    fabric: &'a Fabric,
    grid: &'a Grid,
    rule: Rule<'a>,
}

/// A torus scheme on a fabric that it fits.
#[derive(Debug, Clone, Copy)]
enum Rule<'a> {
    U,
    S(Chain<'a>),
    Md(Chain<'a>),
    Mu { r: usize, chain: Chain<'a>, relay: Relay },
}

/// A [`Form`] on a fabric that it fits: worms along rings turn as dimension order allows, not as
/// other routings do.
#[derive(Debug, Clone, Copy)]
enum Chain<'a> {
    StoreAndForward,
    Worm(&'a DimensionOrder),
}

impl<'a> TorusMaker<'a> {
    pub(super) fn new(fabric: &'a Fabric, scheme: TorusScheme) -> Result<Self, PlanError> {
        let name = scheme.name();
        let needs_torus = |fabric| Err(PlanError::NeedsTorus { scheme: name, fabric });
        let Some(grid) = fabric.topology().grid() else { return needs_torus("a network of switches") };
        if !grid.wraps() {
            return needs_torus("a mesh");
        }
        let chain = |form| match (form, fabric.routing()) {
            (Form::StoreAndForward, _) => Ok(Chain::StoreAndForward),
            (Form::Worm, Routing::DimensionOrder(routing)) => Ok(Chain::Worm(routing)),
            (Form::Worm, routing) => {
                Err(PlanError::NeedsDimensionOrder { scheme: name, routing: routing.name() })
            }
        };
        let rule = match scheme {
            TorusScheme::U => Rule::U,
            TorusScheme::S { form } => Rule::S(chain(form)?),
            TorusScheme::Md { form } => Rule::Md(chain(form)?),
            TorusScheme::Mu { r, form, relay } => Rule::Mu { r: r as usize, chain: chain(form)?, relay },
        };
        Ok(Self { fabric, grid, rule })
    }

    pub(super) fn worms(&self, finder: &mut Option<RouteFinder>, group: &Group) -> Vec<Worm> {
        let torus = Torus { fabric: self.fabric, grid: self.grid, group };
        let mut sender = Sender::new(finder, group);
        let root = group.root();
        match self.rule {
            Rule::U => sender.send_along(&shape::halving(group.size()), &torus.by_coordinates()),
            Rule::S(chain) => torus.along_cycle(&mut sender, root, &torus.ranked(), chain),
            Rule::Md(chain) => {
                torus.by_dimension(&mut sender, root, group.destinations().to_vec(), 0, chain);
            }
            Rule::Mu { r, chain, relay } => {
                torus.by_partition(&mut sender, root, &torus.ranked(), r, chain, relay);
            }
        }
        sender.worms
    }
}

struct Torus<'a> {
    fabric: &'a Fabric,
    grid: &'a Grid,
    group: &'a Group,
}

impl Torus<'_> {
    /// The members sorted by coordinates (x, then y, ...), rotated so that the root is first.
    fn by_coordinates(&self) -> Vec<MemberId> {
        let group = self.group;
        let mut members = group.destinations().to_vec();
        members.push(group.root());
        members.sort_by_key(|&member| (self.grid.coordinates(self.node(member)).collect::<Vec<_>>(), member));
        let root = members.iter().position(|&member| member == group.root()).expect("the root is a member");
        members.rotate_left(root);
        members
    }

    /// The node of a member's host.
    fn node(&self, member: MemberId) -> u32 {
        self.fabric.topology().switch_of(self.group.placement().host_of(member)).0
    }

    /// A node's position on the Hamiltonian cycle, 0 at the origin: k - 1 steps up in dimension 0,
    /// one in dimension 1, repeated; after k rounds of that one in dimension 2, and so on.
    /// *Reconstructed*; it is the k-ary modular Gray code, so every step, the last one back to the
    /// start included, goes up in one dimension.
    fn rank(&self, node: u32) -> u32 {
        let digits = self.grid.coordinates(node).rev().scan(0, |above, coordinate| {
            *above = (coordinate + *above) % self.grid.radix();
            Some(*above)
        });
        digits.fold(0, |rank, digit| rank * self.grid.radix() + digit)
    }

    /// The distance along the cycle from one node to another.
    fn distance(&self, from: u32, to: u32) -> u32 {
        let nodes = self.grid.node_count();
        (self.rank(to) + nodes - self.rank(from)) % nodes
    }

    /// The destinations in the order in which the cycle passes them from the root.
    fn ranked(&self) -> Vec<MemberId> {
        let root = self.node(self.group.root());
        let mut members = self.group.destinations().to_vec();
        members.sort_by_key(|&member| (self.distance(root, self.node(member)), member));
        members
    }

    /// The links of the cycle from one node to another.
    fn cycle_links(&self, from: u32, to: u32) -> Vec<LinkId> {
        let radix = self.grid.radix();
        let mut links = Vec::new();
        let mut at = from;
        while at != to {
            // The step out of rank r goes up in dimension d if r ends in exactly d digits of k - 1.
            let mut rank = self.rank(at);
            let mut dimension = 0;
            while rank % radix == radix - 1 && dimension + 1 < self.grid.dimensions() {
                rank /= radix;
                dimension += 1;
            }
            links.push(self.grid.link(at, dimension, Direction::Plus).expect("a torus has this link"));
            at = self.step(at, dimension);
        }
        links
    }

    fn step(&self, node: u32, dimension: u32) -> u32 {
        self.grid.node_at(
            (0..self.grid.dimensions()).map(|d| self.grid.coordinate(node, d) + u32::from(d == dimension)),
        )
    }

    /// A chain of sends, or one worm along the cycle, from a holder to members in the order of the
    /// cycle.
    fn along_cycle(&self, sender: &mut Sender, from: MemberId, to: &[MemberId], chain: Chain) {
        match chain {
            Chain::StoreAndForward => store_and_forward(sender, from, to),
            Chain::Worm(routing) => {
                self.worm(sender, routing, from, to, |here, there| self.cycle_links(here, there));
            }
        }
    }

    /// One path worm over members in this order; `links` leads from a node to another.
    fn worm(
        &self,
        sender: &mut Sender,
        routing: &DimensionOrder,
        from: MemberId,
        to: &[MemberId],
        links: impl Fn(u32, u32) -> Vec<LinkId>,
    ) {
        let topology = self.fabric.topology();
        let host_of = |member| self.group.placement().host_of(member);
        let (near, far): (Vec<_>, Vec<_>) = to.iter().partition(|&&member| host_of(member) == host_of(from));
        if !far.is_empty() {
            let mut route = vec![topology.injection(host_of(from))];
            let mut at = self.node(from);
            for stop in far.chunk_by(|&a, &b| host_of(a) == host_of(b)) {
                let there = self.node(stop[0]);
                route.extend(links(at, there));
                route.push(topology.ejection(host_of(stop[0])));
                at = there;
            }
            // Drops between links do not count as turns.
            sender.push(from, WormKind::Path, far, routing.channels(topology, route));
        }
        for member in near {
            sender.send(from, member);
        }
    }

    /// Partition by dimension: a header in each ring that has destinations, which serves its ring
    /// in order.
    fn by_dimension(
        &self,
        sender: &mut Sender,
        from: MemberId,
        members: Vec<MemberId>,
        dimension: u32,
        chain: Chain,
    ) {
        // A member's distance from the sender upwards, in each dimension from this one on.
        let offset = |member: MemberId, d: u32| {
            let radix = self.grid.radix();
            let coordinate = |member| self.grid.coordinate(self.node(member), d);
            (coordinate(member) + radix - coordinate(from)) % radix
        };
        let offsets =
            |member| (dimension..self.grid.dimensions()).map(|d| offset(member, d)).collect::<Vec<_>>();
        let mut members = members;
        members.sort_by_key(|&member| (offsets(member), member));
        if dimension + 1 == self.grid.dimensions() {
            return self.ring(sender, from, &members, chain);
        }
        let mut served = Vec::new();
        for ring in members.chunk_by(|&a, &b| offset(a, dimension) == offset(b, dimension)) {
            let last_ring = dimension + 2 == self.grid.dimensions();
            if matches!(chain, Chain::Worm(_)) && last_ring {
                self.ring(sender, from, ring, chain);
            } else if offset(ring[0], dimension) == 0 {
                served.push((from, ring.to_vec()));
            } else {
                sender.send(from, ring[0]);
                served.push((ring[0], ring[1..].to_vec()));
            }
        }
        for (header, rest) in served {
            self.by_dimension(sender, header, rest, dimension + 1, chain);
        }
    }

    /// Serves members of one ring in order: by a chain, or by a worm that reaches the ring in
    /// dimension order.
    fn ring(&self, sender: &mut Sender, from: MemberId, members: &[MemberId], chain: Chain) {
        match chain {
            Chain::StoreAndForward => store_and_forward(sender, from, members),
            Chain::Worm(routing) => {
                self.worm(sender, routing, from, members, |here, there| self.upward_links(here, there));
            }
        }
    }

    /// The links from one node to another, dimension by dimension, always upwards.
    fn upward_links(&self, from: u32, to: u32) -> Vec<LinkId> {
        let mut links = Vec::new();
        let mut at = from;
        for dimension in 0..self.grid.dimensions() {
            while self.grid.coordinate(at, dimension) != self.grid.coordinate(to, dimension) {
                links.push(self.grid.link(at, dimension, Direction::Plus).expect("a torus has this link"));
                at = self.step(at, dimension);
            }
        }
        links
    }

    /// Partitions of r members along the Hamiltonian cycle; the sender reaches their leaders,
    /// recursively where there are more than r partitions.
    fn by_partition(
        &self,
        sender: &mut Sender,
        from: MemberId,
        ranked: &[MemberId],
        r: usize,
        chain: Chain,
        relay: Relay,
    ) {
        let leaders: Vec<MemberId> = ranked.chunks(r).map(|partition| partition[0]).collect();
        if leaders.len() > r {
            self.by_partition(sender, from, &leaders, r, chain, relay);
        } else {
            for &leader in &leaders {
                sender.send(from, leader);
            }
        }
        for partition in ranked.chunks(r).filter(|partition| partition.len() > 1) {
            match (relay, chain) {
                (Relay::Separate, Chain::StoreAndForward) => {
                    for &member in &partition[1..] {
                        sender.send(partition[0], member);
                    }
                }
                (Relay::Chain, _) | (_, Chain::Worm(_)) => {
                    self.along_cycle(sender, partition[0], &partition[1..], chain);
                }
            }
        }
    }
}

/// Each member sends to the next.
fn store_and_forward(sender: &mut Sender, from: MemberId, to: &[MemberId]) {
    let mut holder = from;
    for &member in to {
        sender.send(holder, member);
        holder = member;
    }
}

#[cfg(test)]
mod tests {
    use treecast_fabric::FabricSpec;

    use super::*;
    use crate::group::Placement;
    use crate::plan::Plan;
    use crate::planner::{PlanOptions, plan};

    fn torus(spec: &str) -> Fabric {
        Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap()
    }

    fn planned(fabric: &Fabric, root: u32, destinations: &[u32], scheme: &str) -> Plan {
        let placement = Placement::one_per_host(fabric.topology().host_count());
        let destinations = destinations.iter().copied().map(MemberId).collect();
        let group = Group::new(placement, MemberId(root), destinations).unwrap();
        plan(fabric, &group, &scheme.parse().unwrap(), &PlanOptions::default()).unwrap()
    }

    fn sends(plan: &Plan) -> Vec<(u32, Vec<u32>)> {
        plan.worms().iter().map(|worm| (worm.from.0, worm.to.iter().map(|to| to.0).collect())).collect()
    }

    #[test]
    fn the_cycle_passes_every_node_once_and_closes() {
        for spec in ["torus:k=4,n=2,uni", "torus:k=3,n=3", "torus:k=2,n=4", "torus:k=5,n=1,uni"] {
            let fabric = torus(spec);
            let nodes = fabric.topology().host_count();
            let group = Group::new(Placement::one_per_host(nodes), MemberId(0), vec![MemberId(1)]).unwrap();
            let grid = fabric.topology().grid().unwrap();
            let torus = Torus { fabric: &fabric, grid, group: &group };
            let mut by_rank: Vec<u32> = (0..nodes).collect();
            by_rank.sort_by_key(|&node| torus.rank(node));
            assert!((0..nodes).all(|rank| torus.rank(by_rank[rank as usize]) == rank), "{spec}");
            for rank in 0..nodes {
                let (here, next) = (by_rank[rank as usize], by_rank[((rank + 1) % nodes) as usize]);
                let links = torus.cycle_links(here, next);
                assert_eq!(links.len(), 1, "{spec} rank {rank}");
                assert_eq!(fabric.topology().link(links[0]).to.switch().unwrap().0, next);
            }
        }
        // k - 1 steps in +x, then one in +y.
        let plan = planned(&torus("torus:k=4,n=2,uni"), 0, &(1..16).collect::<Vec<_>>(), "s-torus");
        assert_eq!(sends(&plan)[..5], [(0, vec![1]), (1, vec![2]), (2, vec![3]), (3, vec![7]), (7, vec![4])]);
    }

    #[test]
    fn md_torus_has_one_header_per_column() {
        let plan = planned(&torus("torus:k=4,n=2,uni"), 0, &[4, 8, 1, 9, 3, 7, 15], "md-torus");
        assert_eq!(
            sends(&plan),
            [
                (0, vec![1]),
                (0, vec![3]),
                (0, vec![4]),
                (4, vec![8]),
                (1, vec![9]),
                (3, vec![7]),
                (7, vec![15])
            ]
        );
        let worms = planned(&torus("torus:k=4,n=2,uni"), 0, &[4, 8, 1, 9, 3, 7, 15], "md-torus:form=worm");
        assert_eq!(sends(&worms), [(0, vec![4, 8]), (0, vec![1, 9]), (0, vec![3, 7, 15])]);
    }

    #[test]
    fn mu_torus_takes_the_logarithm_to_base_r_of_phases() {
        let fabric = torus("torus:k=8,n=2,uni");
        for (r, phases) in [(4, 3), (8, 2), (16, 2), (2, 6)] {
            let plan =
                planned(&fabric, 0, &(1..64).collect::<Vec<_>>(), &format!("mu-torus:r={r},form=worm"));
            let mut depth = vec![0; 64];
            for worm in plan.worms() {
                for to in &worm.to {
                    depth[to.index()] = depth[worm.from.index()] + 1;
                }
            }
            assert_eq!(depth.into_iter().max().unwrap(), phases, "r = {r}");
        }
    }

    #[test]
    fn other_fabrics_are_refused() {
        let group =
            |hosts| Group::new(Placement::one_per_host(hosts), MemberId(0), vec![MemberId(1)]).unwrap();
        let error = |spec: &str, hosts| {
            let scheme = "u-torus".parse().unwrap();
            plan(&torus(spec), &group(hosts), &scheme, &PlanOptions::default()).unwrap_err().to_string()
        };
        let routed = Fabric::new(
            "torus:k=4".parse::<FabricSpec>().unwrap().topology().unwrap(),
            "shortest-path".parse().unwrap(),
        );
        let refused = |scheme: &str| {
            let scheme = scheme.parse().unwrap();
            plan(routed.as_ref().unwrap(), &group(16), &scheme, &PlanOptions::default())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            refused("s-torus:form=worm"),
            "scheme s-torus with form=worm needs dimension-order routing; this torus is routed by shortest-path (omit \
             --routing)"
        );
        for scheme in ["path", "tree-worm"] {
            assert!(
                refused(scheme)
                    .starts_with(&format!("scheme {scheme} needs up*/down* routing; this fabric is"))
            );
        }
        assert_eq!(error("mesh:k=4", 16), "scheme u-torus needs a torus; this fabric is a mesh");
        assert_eq!(error("star:4", 4), "scheme u-torus needs a torus; this fabric is a network of switches");
    }
}
