//! Random fabrics, groups and schemes.

use proptest::prelude::*;
use treecast_fabric::{Fabric, FabricSpec, Routing, RoutingPolicy};
use treecast_plan::{
    Arrangement, Group, MemberId, MemberList, Order, Placement, Plan, PlanError, PlanOptions, Scheme, plan,
};

/// A fabric from its spec and its routing.
pub fn fabric(spec: &str, routing: &str) -> Fabric {
    let topology = spec.parse::<FabricSpec>().unwrap().topology().unwrap();
    Fabric::new(topology, routing.parse::<RoutingPolicy>().unwrap()).unwrap()
}

/// The inputs of a plan: a fabric, a group on it, and a scheme that fits it, with options.
#[derive(Debug, Clone)]
pub struct Case {
    pub spec: String,
    pub routing: &'static str,
    pub processes: u32,
    pub arrangement: Arrangement,
    pub seed: u64,
    pub share: f64,
    pub scheme: String,
    pub order: Option<Order>,
    pub packets: u32,
}

impl Case {
    pub fn fabric(&self) -> Fabric {
        fabric(&self.spec, self.routing)
    }

    pub fn group(&self, fabric: &Fabric) -> Group {
        let hosts = fabric.topology().host_count();
        let placement = Placement::new(hosts, self.processes, self.arrangement).unwrap();
        let members = placement.member_count();
        let root = MemberId((self.seed % u64::from(members)) as u32);
        let count = ((f64::from(members - 1) * self.share).ceil() as u32).max(1);
        let destinations = MemberList::Random(count).resolve(&placement, root, self.seed).unwrap();
        Group::new(placement, root, destinations).unwrap()
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme.parse().unwrap()
    }

    /// The plan; `None` if no switch above the root covers all destinations of a tree worm.
    pub fn plan(&self, fabric: &Fabric) -> Option<Plan> {
        let options = PlanOptions { order: self.order, packets: self.packets };
        match plan(fabric, &self.group(fabric), &self.scheme(), &options) {
            Err(PlanError::NoCoveringSwitch { .. }) => None,
            made => Some(made.unwrap()),
        }
    }
}

fn fabrics() -> impl Strategy<Value = (String, &'static str)> {
    prop_oneof![
        3 => (2_u32..10, 0.0..1.0, 0_u64..1000).prop_map(|(switches, connectivity, seed)| {
            let hosts = switches * 3 - 1;
            (format!("irregular:switches={switches},ports=8,hosts={hosts},connectivity={connectivity},seed={seed}"), "auto")
        }),
        1 => (2_u32..24).prop_map(|hosts| (format!("star:{hosts}"), "auto")),
        1 => (2_u32..5, 1_u32..4).prop_map(|(k, n)| (format!("torus:k={k},n={n},uni"), "auto")),
        1 => (2_u32..5, 1_u32..4).prop_map(|(k, n)| (format!("torus:k={k},n={n}"), "dimension-order:channels=none")),
        1 => Just(("fat-tree:k=4".to_string(), "auto")),
        2 => (2_u32..5, 1_u32..3).prop_map(|(k, n)| (format!("mesh:k={k},n={n}"), "up-down:channels=2")),
        1 => (2_u32..5, 1_u32..3).prop_map(|(k, n)| (format!("mesh:k={k},n={n}"), "shortest-path")),
        1 => (0_u64..1000).prop_map(|seed| (format!("icpp98:seed={seed}"), "shortest-path:channels=2")),
    ]
}

fn schemes(spec: &str, routing: &Routing) -> Vec<&'static str> {
    let mut schemes = vec![
        "separate",
        "serial",
        "binary",
        "binomial",
        "k-binomial",
        "k-binomial:k=1",
        "k-binomial:k=3",
        "postal:lambda=2.5",
        "hierarchical",
        "hierarchical:across=serial,inside=serial",
        "hierarchical:across=postal,across-lambda=2.5,inside=separate",
        "leader:over=hierarchical,across=k-binomial,across-k=2,local=direct",
        "leader:over=binomial",
        "leader:over=k-binomial,k=2,local=binomial",
        "leader:over=separate,local=direct",
    ];
    if spec.starts_with("torus") {
        schemes.extend([
            "u-torus",
            "s-torus",
            "s-torus:form=worm",
            "md-torus",
            "md-torus:form=worm",
            "mu-torus:r=3",
            "mu-torus:r=2,form=worm",
            "mu-torus:r=4,relay=separate",
            "leader:over=s-torus,form=worm,local=direct",
        ]);
    }
    if routing.up_down().is_some() {
        schemes.extend([
            "path",
            "path:policy=mdp-g",
            "path:share=2",
            "tree-worm",
            "leader:over=path,local=direct",
            "leader:over=tree-worm,local=binomial",
        ]);
    }
    schemes
}

fn orders(up_down: bool, seed: u64) -> Vec<Option<Order>> {
    let mut orders = vec![None, Some(Order::Given), Some(Order::Random(seed)), Some(Order::Switch)];
    orders.extend(up_down.then_some(Some(Order::Cco)));
    orders
}

/// Random cases.
pub fn cases() -> impl Strategy<Value = Case> {
    let group = (1_u32..4, any::<bool>(), 0_u64..10_000, 0.0..1.0_f64);
    let choice = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1_u32..9);
    (fabrics(), group, choice).prop_map(|((spec, routing), group, (scheme, order, packets))| {
        let (processes, cyclic, seed, share) = group;
        let fabric = fabric(&spec, routing);
        let scheme = *scheme.get(&schemes(&spec, fabric.routing()));
        let orders = orders(fabric.routing().up_down().is_some(), seed);
        let takes_order = scheme.parse::<Scheme>().unwrap().takes_order();
        Case {
            spec,
            routing,
            processes,
            arrangement: if cyclic { Arrangement::Cyclic } else { Arrangement::Block },
            seed,
            share,
            scheme: scheme.into(),
            order: if takes_order { *order.get(&orders) } else { None },
            packets,
        }
    })
}
