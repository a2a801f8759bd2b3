//! `treecast predict`: what broadcasts will take on a network that was measured.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use treecast_lab::Rate;
use treecast_model::ethernet::Parameters;
use treecast_model::openmpi::Algorithm;
use treecast_model::{Network, Prediction, Way};
use treecast_node::Transport;
use treecast_plan::render::counted;
use treecast_plan::{Group, Order, Placement, Scheme, TreeScheme};
use treecast_sim::Offload;
use treecast_terms::{Bytes, Picoseconds, parse_size};

use crate::arguments::{FabricArguments, delay, fabric, group, member, network, whole_number};
use crate::interrupt::clean_up_on_signals;
use crate::output::{OutArguments, emit, plain};

/// The format of the JSON, with its version.
const FORMAT: &str = "treecast-prediction-1";

#[derive(Debug, Args)]
#[command(
    override_usage = "treecast predict --network FILE [--members N | --fabric SPEC] [OPTIONS]",
    after_help = "Examples:
  treecast predict --network network.toml
  treecast predict --network network.toml --members 1024 --best --apart --rate 10gbit --hop 1us
  treecast predict --network network.toml --engine user,ebpf --sizes 64,64K,1M
  treecast predict --network network.toml --fabric /etc/slurm/topology.conf --format json

docs/predictions.md describes the file, the model and the columns."
)]
pub struct Arguments {
    /// The measured costs of each way to send a message on the network
    #[arg(long, value_name = "FILE")]
    network: PathBuf,

    /// The number of hosts of the fabric, on one switch, if --fabric is not given
    #[arg(long, value_name = "N", default_value_t = 16, conflicts_with = "fabric")]
    #[arg(value_parser = whole_number::<u32>(2, 1 << 20), allow_negative_numbers = true)]
    members: u32,

    #[command(flatten)]
    fabric: FabricArguments,

    /// The engines, such as user,ebpf; all of the file if not given
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    engine: Vec<String>,

    /// Who forwards: host, assisted, nic, switch, or several of them; all of the file if not given
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    offload: Vec<Offload>,

    /// What carries data along the tree: packets, stream, or both; all of the file if not given
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = transport)]
    transport: Vec<Transport>,

    /// Schemes that build the tree: binomial, separate, postal:lambda=8 and so on, separated by ;.
    /// Open MPI takes an algorithm of its own
    #[arg(long, value_name = "LIST", value_delimiter = ';', default_value = "binomial")]
    scheme: Vec<Scheme>,

    /// Hosts with processors of their own, and switches apart from them, on a network that was
    /// measured between hosts on one machine
    #[arg(long)]
    apart: bool,

    /// The rate of each link, such as 10gbit, for a file measured on one machine; as in the file if
    /// not given
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    rate: Option<Rate>,

    /// The delay of each link with the switch at its end, such as 1us, for a file measured on one
    /// machine; as in the file if not given
    #[arg(long, value_name = "TIME", value_parser = delay)]
    hop: Option<Duration>,

    /// Show the best tree for each size and way, of those that groups choose from; multicast has
    /// none to choose
    #[arg(long, conflicts_with = "scheme")]
    best: bool,

    /// Message sizes in bytes, such as 64,1K,16M
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,16K,1M", value_parser = size)]
    sizes: Vec<u64>,

    /// The number of the root, or the name of its host
    #[arg(long, value_name = "H", default_value = "0", value_parser = member, allow_negative_numbers = true)]
    root: String,

    /// The destinations: 1-31, or 3,5,9, or all, or random:15; or the names of hosts:
    /// n[1-16],login, or slurm, the hosts of this Slurm job
    #[arg(long, value_name = "LIST", default_value = "all", allow_negative_numbers = true)]
    dests: String,

    /// The order of members on which a tree is built: id, given, random:seed=3, switch, cco
    #[arg(long, value_name = "NAME")]
    order: Option<Order>,

    /// The seed of random destinations
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole_number::<u64>(0, u64::MAX))]
    #[arg(allow_negative_numbers = true)]
    seed: u64,

    /// What to print
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Format::Table)]
    format: Format,

    #[command(flatten)]
    out: OutArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text
    Table,
    /// JSON
    Json,
}

/// The predictions as JSON. Rows have the names of `treecast bench`.
#[derive(Debug, Serialize)]
struct Document<'a> {
    format: &'static str,
    network: &'a str,
    fabric: &'a str,
    routing: String,
    root: u32,
    destinations: usize,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    bytes: u64,
    engine: String,
    offload: String,
    scheme: String,
    transport: String,
    last_delivery_us: f64,
    mean_delivery_us: f64,
    cpu_us_per_broadcast: f64,
    root_cpu_us_per_broadcast: f64,
}

impl Row {
    fn new(bytes: u64, way: &Way, scheme: &impl Display, prediction: &Prediction) -> Self {
        Self {
            bytes,
            engine: way.engine.clone(),
            offload: way.offload.to_string(),
            scheme: scheme.to_string(),
            transport: way.transport.to_string(),
            last_delivery_us: prediction.last_delivery.us(),
            mean_delivery_us: prediction.mean_delivery_us,
            cpu_us_per_broadcast: prediction.cpu_us,
            root_cpu_us_per_broadcast: prediction.root_cpu_us,
        }
    }
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    clean_up_on_signals()?;
    let mut network = network(&arguments.network)?;
    network.ways.values_mut().for_each(|costs| change(costs, arguments));
    let ways = chosen(&network, arguments)?;
    let fabric_text = match &arguments.fabric.fabric {
        Some(_) => arguments.fabric.given()?.to_string(),
        None => format!("star:{}", arguments.members),
    };
    let fabric = fabric(&fabric_text, arguments.fabric.routing)?;
    let placement = Placement::one_per_host(fabric.topology().host_count());
    let (group, _) = group(&fabric, placement, &arguments.root, &arguments.dests, arguments.seed)?;
    let mut rows = Vec::new();
    for &bytes in &arguments.sizes {
        for &way in &ways {
            if way.is_openmpi() {
                let scheme = Scheme::tree(TreeScheme::Separate);
                let prediction = network.predict(way, &fabric, &group, (&scheme, None), Bytes(bytes));
                let prediction = prediction.with_context(|| format!("{way}, {bytes} bytes"))?;
                let algorithm = Algorithm::of(group.size(), Bytes(bytes));
                rows.push(Row::new(bytes, way, &algorithm, &prediction));
                continue;
            }
            if arguments.best {
                let best = network.best(way, &fabric, &group, arguments.order, Bytes(bytes));
                let (scheme, prediction) = best.with_context(|| format!("{way}, {bytes} bytes"))?;
                rows.push(Row::new(bytes, way, &scheme, &prediction));
                continue;
            }
            for scheme in &arguments.scheme {
                let prediction =
                    network.predict(way, &fabric, &group, (scheme, arguments.order), Bytes(bytes));
                let prediction = prediction.with_context(|| format!("{way}, {scheme}, {bytes} bytes"))?;
                rows.push(Row::new(bytes, way, scheme, &prediction));
            }
        }
    }
    let text = match arguments.format {
        Format::Table => heading(&network, &fabric_text, &group) + &table(&rows),
        Format::Json => {
            let document = Document {
                format: FORMAT,
                network: &network.about,
                fabric: &fabric_text,
                routing: arguments.fabric.routing.to_string(),
                root: group.root().0,
                destinations: group.destinations().len(),
                rows,
            };
            serde_json::to_string_pretty(&document)? + "\n"
        }
    };
    emit(arguments.out.file(), &text)?;
    Ok(0)
}

/// The costs on the network that the user describes.
fn change(costs: &mut Parameters, arguments: &Arguments) {
    if arguments.apart {
        costs.shared_processors = 0;
        (costs.switch_copy, costs.switch_copy_per_kb) = Default::default();
    }
    if let Some(rate) = arguments.rate {
        limit_links(costs, rate);
    }
    if let Some(hop) = arguments.hop {
        costs.hop = Picoseconds(hop.as_nanos() as u64 * 1_000);
    }
}

/// Sets the rate of each link.
pub fn limit_links(costs: &mut Parameters, rate: Rate) {
    costs.link_mb_per_s = rate.mb_per_s();
}

/// Adds the delay of a lab's links, in which hosts are a link and a switch away from one another.
pub fn delay_links(costs: &mut Parameters, delay: Duration) {
    costs.hop += Picoseconds(delay.as_nanos() as u64 * 1_000);
}

/// The ways of the network that the user has chosen.
fn chosen<'a>(network: &'a Network, arguments: &Arguments) -> anyhow::Result<Vec<&'a Way>> {
    let Arguments { engine, offload, transport, .. } = arguments;
    let is_chosen = |way: &&Way| {
        (engine.is_empty() || engine.contains(&way.engine))
            && (offload.is_empty() || offload.contains(&way.offload))
            && (transport.is_empty() || transport.contains(&way.transport))
    };
    let ways: Vec<&Way> = network.ways.keys().filter(is_chosen).collect();
    if ways.is_empty() {
        let known: Vec<String> = network.ways.keys().map(Way::to_string).collect();
        let file = arguments.network.display();
        bail!("{file} has no such way: its ways are {}", known.join(", "));
    }
    Ok(ways)
}

fn heading(network: &Network, fabric: &str, group: &Group) -> String {
    let about = if network.about.is_empty() { String::new() } else { format!("; {}", network.about.trim()) };
    let destinations = counted(group.destinations().len(), "destination");
    format!("from host {} to {destinations} on {fabric}{about}\n\n", group.root())
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.set_header([
        "bytes",
        "engine",
        "offload",
        "scheme",
        "transport",
        "last delivery, us",
        "mean delivery, us",
        "CPU, us",
        "root CPU, us",
    ]);
    let us = |time: f64| format!("{time:.1}");
    for row in rows {
        table.add_row([
            row.bytes.to_string(),
            row.engine.clone(),
            row.offload.clone(),
            row.scheme.clone(),
            row.transport.clone(),
            us(row.last_delivery_us),
            us(row.mean_delivery_us),
            us(row.cpu_us_per_broadcast),
            us(row.root_cpu_us_per_broadcast),
        ]);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        if !(1..5).contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    plain(table)
}

fn size(text: &str) -> Result<u64, &'static str> {
    parse_size(text).map_err(|error| error.expected)
}

fn transport(name: &str) -> Result<Transport, &'static str> {
    name.parse().map_err(|_| "packets or stream")
}
