//! What several commands take: a fabric, a group, a scheme.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use treecast_fabric::{Fabric, FabricError, FabricSpec, RoutingPolicy, SpecError, read};
use treecast_plan::render::{PlanContext, PlanDocument};
use treecast_plan::{
    Arrangement, Group, MemberId, MemberList, Order, Placement, Plan, PlanOptions, Scheme, plan,
};

/// Which fabric, and how it is routed.
#[derive(Debug, Args)]
pub struct FabricArguments {
    /// The fabric: a line such as star:16, or a file (.toml, .graphml, or what ibnetdiscover prints)
    ///
    /// Lines: icpp98, irregular:switches=16,ports=8,hosts=32,connectivity=0.75,seed=3, star:16, torus:k=4,n=2,uni,
    /// mesh:k=4,n=2, fat-tree:k=8.
    #[arg(long, value_name = "SPEC")]
    pub fabric: Option<String>,

    /// auto, up-down, up-down:root=3, dimension-order, dimension-order:channels=none
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub routing: RoutingPolicy,
}

/// What looks like a file is one: it has a path or an extension, or it is there.
fn is_file(text: &str) -> bool {
    let path = Path::new(text);
    let extensions = ["toml", "graphml", "xml", "topo", "txt", "ibnetdiscover"];
    text.contains('/')
        || path.is_file()
        || path
            .extension()
            .is_some_and(|extension| extensions.iter().any(|known| extension.eq_ignore_ascii_case(known)))
}

/// Reads a text file; what is wrong with it names the file.
pub fn read_file(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} could not be read", path.display()))
}

/// Makes or reads a fabric. Notes that a reader has go to standard error.
pub fn fabric(text: &str, routing: RoutingPolicy) -> anyhow::Result<Fabric> {
    let topology = if is_file(text) {
        let read = read::read(text, &read_file(Path::new(text))?)?;
        for note in &read.notes {
            eprintln!("treecast: note: {note}");
        }
        read.topology
    } else {
        text.parse::<FabricSpec>().map_err(FabricError::from)?.topology()?
    };
    Ok(Fabric::new(topology, routing)?)
}

impl FabricArguments {
    /// The line or file given.
    pub fn given(&self) -> anyhow::Result<&str> {
        let missing = || anyhow::anyhow!("--fabric is missing: name a fabric such as star:16, or a file");
        self.fabric.as_deref().ok_or_else(missing)
    }
}

/// Who takes part, and how the plan is made.
#[derive(Debug, Args)]
pub struct PlanArguments {
    /// separate, serial, binary, binomial, k-binomial, postal, u-torus, s-torus, md-torus, mu-torus, path, tree-worm,
    /// leader; with keys as in k-binomial:k=2, postal:lambda=3.5, path:policy=mdp-g
    #[arg(long, value_name = "NAME[:key=value,...]")]
    pub scheme: Option<Scheme>,

    /// A plan to read from a JSON file instead of making one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scheme", "root", "dests", "order", "processes", "placement"])]
    pub plan: Option<PathBuf>,

    /// The root, by its number
    #[arg(long, value_name = "H", default_value_t = 0)]
    pub root: u32,

    /// The destinations: 1-31, or 3,5,9, or all, or random:15
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub dests: String,

    /// The order that a tree is built on: id, given, random:seed=3, switch, cco
    #[arg(long, value_name = "NAME")]
    pub order: Option<Order>,

    /// Processes on each host; members are numbered over all of them
    #[arg(long, value_name = "P", default_value_t = 1)]
    pub processes: u32,

    /// How processes are numbered over hosts: block or cyclic
    #[arg(long, value_name = "NAME", default_value = "block")]
    pub placement: Arrangement,

    /// The seed of random destinations and of random choices in a simulation
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// A plan with its fabric, and how they were given.
pub struct Planned {
    pub fabric: Fabric,
    pub fabric_text: String,
    pub routing: RoutingPolicy,
    pub order: Option<Order>,
    pub packets: u32,
    pub plan: Plan,
}

impl Planned {
    /// What a document of the plan says besides the plan.
    pub fn context(&self) -> PlanContext<'_> {
        PlanContext {
            fabric: &self.fabric_text,
            routing: self.routing,
            order: self.order,
            packets: self.packets,
        }
    }
}

impl PlanArguments {
    /// Makes the plan for a message of so many packets, or reads it.
    pub fn planned(&self, fabric_arguments: &FabricArguments, packets: u32) -> anyhow::Result<Planned> {
        if let Some(path) = &self.plan {
            return read_plan(path, fabric_arguments, packets);
        }
        let scheme = self.scheme.clone().ok_or_else(|| {
            let names = Scheme::NAMES.map(|(name, _)| name).join(", ");
            anyhow::anyhow!("--scheme is missing: name one of {names}")
        })?;
        let fabric_text = fabric_arguments.given()?.to_string();
        let fabric = fabric(&fabric_text, fabric_arguments.routing)?;
        let hosts = fabric.topology().host_count();
        let placement = Placement::new(hosts, self.processes, self.placement)?;
        let root = MemberId(self.root);
        let destinations = self.dests.parse::<MemberList>()?.resolve(&placement, root, self.seed)?;
        let group = Group::new(placement, root, destinations)?;
        let plan = plan(&fabric, &group, &scheme, &PlanOptions { order: self.order, packets })?;
        Ok(Planned {
            fabric,
            fabric_text,
            routing: fabric_arguments.routing,
            order: self.order,
            packets,
            plan,
        })
    }
}

/// A plan from a file, on the fabric that the file names unless another is given.
fn read_plan(path: &Path, fabric_arguments: &FabricArguments, packets: u32) -> anyhow::Result<Planned> {
    let in_file = || path.display().to_string();
    let document = PlanDocument::parse(&read_file(path)?).with_context(in_file)?;
    let fabric_text = fabric_arguments.fabric.clone().unwrap_or_else(|| document.fabric.clone());
    let routing = match fabric_arguments.routing {
        RoutingPolicy::Auto => document.routing.parse().with_context(in_file)?,
        given => given,
    };
    let fabric = fabric(&fabric_text, routing)?;
    let plan = document.plan(&fabric).with_context(in_file)?;
    let order = document.order.as_deref().map(str::parse::<Order>).transpose();
    let order = order.map_err(|error: SpecError| error).with_context(in_file)?;
    Ok(Planned { fabric, fabric_text, routing, order, packets, plan })
}
