//! Arguments that several commands share: fabric, group, scheme.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::output::print_note;
use anyhow::Context;
use clap::Args;
use treecast_fabric::{Fabric, RoutingPolicy, expand_hostlist};
use treecast_lab::LabSettings;
use treecast_model::Network;
use treecast_node::{FILE_BYTES_MAX, NodeError, read_fabric, read_network};
use treecast_plan::render::{PlanContext, PlanDocument};
use treecast_plan::{
    Arrangement, Group, Order, Placement, Plan, PlanOptions, Scheme, destinations_named, destinations_on,
    member_named, plan,
};
use treecast_sim::{Parameters, Simulator, packet_count};
use treecast_terms::{Flits, Operation, SpecError, parse_time};

/// The bound of every placement on the number of members.
const PROCESSES_MAX: u64 = Placement::MEMBERS_MAX as u64;

/// Parses a whole number within bounds.
pub fn whole_number<T: TryFrom<u64>>(low: u64, high: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| (low..=high).contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("a whole number from {low} to {high}"))
    }
}

/// Parses a number; its user checks the bounds.
pub fn number(text: &str) -> Result<f64, &'static str> {
    text.parse().map_err(|_| "a number")
}

/// Parses a delay of at most a second.
pub fn delay(text: &str) -> Result<Duration, &'static str> {
    let delay = parse_time(text).ok().filter(|delay| *delay <= LabSettings::DELAY_MAX);
    delay.ok_or("a time up to 1s, such as 500ns or 1us")
}

/// Parses the name of an operation.
pub fn operation(name: &str) -> Result<Operation, &'static str> {
    name.parse()
}

/// The word that stands for the hosts of a Slurm job, and the variable that names them.
pub const SLURM: &str = "slurm";
pub const SLURM_VARIABLE: &str = "SLURM_JOB_NODELIST";

/// The given list of hosts, or that of the Slurm job for the word `slurm`. `instead` names what
/// else the user can give, for messages.
pub fn or_of_slurm(text: &str, instead: &str) -> Result<String, NodeError> {
    if text != SLURM {
        return Ok(text.into());
    }
    let of_job = std::env::var(SLURM_VARIABLE).ok().filter(|hosts| !hosts.is_empty());
    of_job.ok_or_else(|| {
        NodeError::Members(format!(
            "{SLURM} names the hosts of a Slurm job, and {SLURM_VARIABLE} is not set: run this in a job, or give \
             {instead}"
        ))
    })
}

const A_HOSTLIST: &str = "a hostlist such as n[1-16]";

/// The names of hosts that a hostlist stands for.
#[derive(Debug, Clone)]
pub struct Hostlist(pub Vec<String>);

impl FromStr for Hostlist {
    type Err = NodeError;

    fn from_str(text: &str) -> Result<Self, NodeError> {
        let hosts = or_of_slurm(text, A_HOSTLIST)?;
        let source = if text == SLURM { format!("{SLURM_VARIABLE}: ") } else { String::new() };
        expand_hostlist(&hosts).map(Self).map_err(|error| NodeError::Members(format!("{source}{error}")))
    }
}

/// The number of a member, or the name of its host.
pub fn member(text: &str) -> Result<String, &'static str> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_valid = if is_number { text.parse::<u32>().is_ok() } else { !text.starts_with('-') };
    if is_valid { Ok(text.into()) } else { Err("a whole number from 0 to 4294967295, or the name of a host") }
}

/// The fabric and its routing.
#[derive(Debug, Args)]
pub struct FabricArguments {
    /// The fabric: a name such as star:16, or a file (.toml, .graphml, the output of ibnetdiscover,
    /// Slurm's topology.conf, or an inventory of hosts and racks)
    ///
    /// Names: icpp98, star:16, fat-tree:k=8, leaf-spine:leaves=8,spines=4,hosts=64, mesh:k=4,n=2,
    /// torus:k=4,n=2,uni, dragonfly:p=2, hyperx:s=4x4,t=4,
    /// random-regular:switches=20,degree=4,hosts=40, irregular:switches=16,ports=8,hosts=32,seed=3
    #[arg(long, value_name = "SPEC")]
    pub fabric: Option<String>,

    /// The routing: auto, up-down, up-down:root=3,channels=2, shortest-path,
    /// dimension-order, dimension-order:channels=none, minimal, valiant, ugal
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub routing: RoutingPolicy,
}

impl FabricArguments {
    /// Whether any of them is given.
    pub fn is_given(&self) -> bool {
        self.fabric.is_some() || self.routing != RoutingPolicy::Auto
    }
}

/// Reads a text file; errors name the file.
pub fn read_file(path: &Path) -> anyhow::Result<String> {
    treecast_node::read_file(path, FILE_BYTES_MAX)
        .with_context(|| format!("{} could not be read", path.display()))
}

/// Reads the measured costs of a network.
pub fn network(path: &Path) -> anyhow::Result<Network> {
    Ok(read_network(path)?)
}

/// Generates or reads a fabric. A reader's notes are printed to standard error.
pub fn fabric(text: &str, routing: RoutingPolicy) -> anyhow::Result<Fabric> {
    let (fabric, notes) = read_fabric(text, routing)?;
    for note in &notes {
        print_note(&format!("note: {note}"));
    }
    Ok(fabric)
}

impl FabricArguments {
    /// The value of `--fabric`.
    pub fn given(&self) -> anyhow::Result<&str> {
        let given = self.fabric.as_deref().filter(|text| !text.trim().is_empty());
        given.context("--fabric is missing: name a fabric such as star:16, or a file")
    }
}

/// The group, and how its plan is made.
#[derive(Debug, Args)]
pub struct PlanArguments {
    /// The scheme: separate, serial, binary, binomial, k-binomial, postal, hierarchical, u-torus,
    /// s-torus, md-torus, mu-torus, path, tree-worm, leader; with keys as in k-binomial:k=2,
    /// postal:lambda=3.5, path:policy=mdp-g
    #[arg(long, value_name = "NAME[:key=value,...]")]
    pub scheme: Option<Scheme>,

    /// A plan to read from a JSON file, instead of making one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scheme", "root", "dests", "order", "processes", "placement"])]
    pub plan: Option<PathBuf>,

    /// The number of the root, or the name of its host
    #[arg(long, value_name = "H", default_value = "0", value_parser = member, allow_negative_numbers = true)]
    pub root: String,

    /// The destinations: 1-31, or 3,5,9, or all, or random:15; or the names of hosts:
    /// n[1-16],login, or slurm, the hosts of this Slurm job
    #[arg(long, value_name = "LIST", default_value = "all", allow_negative_numbers = true)]
    pub dests: String,

    /// The order of members on which a tree is built: id, given, random:seed=3, switch, cco
    #[arg(long, value_name = "NAME")]
    pub order: Option<Order>,

    /// Processes per host; members are numbered over all hosts
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = whole_number::<u32>(1, PROCESSES_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub processes: u32,

    /// The placement of processes on hosts: block or cyclic
    #[arg(long, value_name = "NAME", default_value = "block")]
    pub placement: Arrangement,

    /// The seed of random destinations and of random choices in a simulation
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole_number::<u64>(0, u64::MAX))]
    #[arg(allow_negative_numbers = true)]
    pub seed: u64,
}

/// What the members of a plan do.
#[derive(Debug, Args)]
pub struct OperationArgument {
    /// What all members do: broadcast, or all-reduce or barrier, in which contributions first go up
    /// the tree
    #[arg(long, value_name = "OPERATION", default_value = "broadcast", value_parser = operation)]
    pub operation: Operation,
}

/// A plan with its fabric, and the arguments that they come from.
pub struct Planned {
    /// The file of the plan, if it was read from one.
    pub file: Option<String>,
    /// The value of `--dests`; `None` for a plan from a file.
    pub destinations: Option<String>,
    pub fabric: Fabric,
    pub fabric_text: String,
    pub routing: RoutingPolicy,
    pub order: Option<Order>,
    pub packets: u32,
    pub plan: Plan,
}

impl Planned {
    /// The metadata of a plan document.
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
    /// The value of `--scheme`.
    pub fn scheme(&self) -> anyhow::Result<&Scheme> {
        self.scheme.as_ref().with_context(|| {
            let names = Scheme::NAMES.map(|(name, _)| name).join(", ");
            format!("--scheme is missing: name one of {names}")
        })
    }

    /// Makes the plan for a message of `packets` packets, or reads it from a file, which contains
    /// its own number of packets.
    pub fn planned(
        &self,
        fabric_arguments: &FabricArguments,
        packets: Option<u32>,
    ) -> anyhow::Result<Planned> {
        match &self.plan {
            Some(path) => read_plan(path, fabric_arguments, packets),
            None => self.made(fabric_arguments, packets),
        }
    }

    fn made(&self, fabric_arguments: &FabricArguments, packets: Option<u32>) -> anyhow::Result<Planned> {
        let packets = packets.unwrap_or(1);
        let scheme = self.scheme()?;
        let fabric_text = fabric_arguments.given()?.to_string();
        let fabric = fabric(&fabric_text, fabric_arguments.routing)?;
        let hosts = fabric.topology().host_count();
        let placement = Placement::new(hosts, self.processes, self.placement)?;
        let (group, list) = group(&fabric, placement, &self.root, &self.dests, self.seed)?;
        let plan = plan(&fabric, &group, scheme, &PlanOptions { order: self.order, packets })?;
        Ok(Planned {
            file: None,
            destinations: Some(list),
            fabric,
            fabric_text,
            routing: fabric_arguments.routing,
            order: self.order,
            packets,
            plan,
        })
    }
}

/// The group of a root and destinations as users name them, and the list of destinations without
/// the word `slurm`.
pub fn group(
    fabric: &Fabric,
    placement: Placement,
    root: &str,
    dests: &str,
    seed: u64,
) -> anyhow::Result<(Group, String)> {
    let topology = fabric.topology();
    let root = member_named(root, topology, &placement)?;
    let list = or_of_slurm(dests, A_HOSTLIST)?;
    let destinations = if dests == SLURM {
        destinations_on(&list, topology, &placement, root).context(SLURM_VARIABLE)?
    } else {
        destinations_named(&list, topology, &placement, root, seed)?
    };
    Ok((Group::new(placement, root, destinations)?, list))
}

/// A plan from a file, on the fabric that the file names unless `--fabric` is given.
pub fn read_plan(
    path: &Path,
    fabric_arguments: &FabricArguments,
    packets: Option<u32>,
) -> anyhow::Result<Planned> {
    let in_file = || path.display().to_string();
    let document = PlanDocument::parse(&read_file(path)?).with_context(in_file)?;
    let packets = packets.unwrap_or(document.packets);
    let fabric_text = fabric_arguments.fabric.clone().unwrap_or_else(|| document.fabric.clone());
    let routing = match fabric_arguments.routing {
        RoutingPolicy::Auto => document.routing.parse().with_context(in_file)?,
        given => given,
    };
    let fabric = fabric(&fabric_text, routing)?;
    let plan = document.plan(&fabric).with_context(in_file)?;
    let order = document.order.as_deref().map(str::parse::<Order>).transpose();
    let order = order.map_err(|error: SpecError| error).with_context(in_file)?;
    Ok(Planned {
        file: Some(in_file()),
        destinations: None,
        fabric,
        fabric_text,
        routing,
        order,
        packets,
        plan,
    })
}

/// How a plan is simulated.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// The length of the message in flits, which are bytes; one packet if not given, or as many as
    /// the plan of --plan was made for
    #[arg(long, value_name = "FLITS", value_parser = whole_number::<u64>(1, u64::MAX), allow_negative_numbers = true)]
    pub message: Option<u64>,

    /// The simulator: event, fast and exact with virtual cut-through, or cycle, which simulates
    /// every flit in every cycle; the fastest that supports the switching technique if not given
    #[arg(long, value_name = "NAME")]
    simulator: Option<Simulator>,

    /// A parameter or a policy; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl RunArguments {
    /// The defaults, with what the user has set.
    pub fn parameters(&self) -> anyhow::Result<Parameters> {
        let mut parameters = Parameters::default();
        for setting in &self.set {
            parameters.set_from(setting)?;
        }
        Ok(parameters)
    }

    /// The simulator as given, or the fastest that supports the switching technique.
    pub fn simulator(&self, parameters: &Parameters) -> Simulator {
        self.simulator.unwrap_or(Simulator::fastest_for(parameters.switching))
    }

    /// The number of packets of the message, if its length is given.
    pub fn packets(&self, parameters: &Parameters) -> anyhow::Result<Option<u32>> {
        let count = |message| packet_count(Flits(message), parameters.packet_flits);
        Ok(self.message.map(count).transpose()?)
    }

    /// The length of the message of a plan.
    pub fn message(&self, planned: &Planned, parameters: &Parameters) -> Flits {
        Flits(self.message.unwrap_or(u64::from(planned.packets) * parameters.packet_flits.0))
    }
}

/// What the user typed, for captions.
pub fn command_line() -> String {
    in_shell(std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()))
}

/// A command of treecast, with quotes where a shell needs them.
pub fn in_shell(arguments: impl IntoIterator<Item = String>) -> String {
    let words = std::iter::once("treecast".to_string()).chain(arguments);
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

/// A word of a command, with quotes if a shell needs them.
pub fn quoted(word: String) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=:,./@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
