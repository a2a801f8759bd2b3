//! `treecast fabric`: shows or converts a fabric.

use std::fmt::Write;

use clap::{Args, ValueEnum};
use treecast_fabric::{Fabric, Routing, SwitchId, Vertex};

use crate::arguments::{FabricArguments, fabric};
use crate::output::{OutArguments, emit, plain};

#[derive(Debug, Args)]
#[command(
    override_usage = "treecast fabric --fabric SPEC [OPTIONS]",
    after_help = "Examples:
  treecast fabric --fabric icpp98
  treecast fabric --fabric icpp98 --format svg --out icpp98.svg
  treecast fabric --fabric irregular:switches=16,seed=3 --format graphml --out our.graphml
  ibnetdiscover > site.topo; treecast fabric --fabric site.topo
  treecast fabric --fabric /etc/slurm/topology.conf

docs/fabrics.md describes all names and file formats."
)]
pub struct Arguments {
    #[command(flatten)]
    fabric: FabricArguments,

    /// The output format
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Format::Table)]
    format: Format,

    #[command(flatten)]
    out: OutArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Switches with their levels, hosts and neighbours
    Table,
    /// Treecast's own format
    Toml,
    /// GraphML
    Graphml,
    /// A picture
    Svg,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let fabric = fabric(arguments.fabric.given()?, arguments.fabric.routing)?;
    let text = match arguments.format {
        Format::Table => table(&fabric),
        Format::Toml => fabric.topology().to_toml(),
        Format::Graphml => fabric.topology().to_graphml(),
        Format::Svg => treecast_report::fabric_svg(&fabric)?,
    };
    emit(arguments.out.file(), &text)?;
    Ok(0)
}

/// The most switches that the table shows.
const SWITCHES_SHOWN: usize = 64;

fn table(fabric: &Fabric) -> String {
    let topology = fabric.topology();
    let mut text = format!("{}; routing {}\n\n", topology.summary(), fabric.routing().name());
    let mut table = comfy_table::Table::new();
    table.set_header(["switch", "level", "hosts", "links to"]);
    for switch in topology.switches().take(SWITCHES_SHOWN) {
        let level = match fabric.routing() {
            Routing::UpDown(routing) => routing.level(switch).to_string(),
            _ => "-".into(),
        };
        let hosts: Vec<String> =
            topology.hosts_of(switch).iter().map(|&host| topology.host_name(host)).collect();
        table.add_row([topology.switch_name(switch), level, shortened(&hosts), neighbours(fabric, switch)]);
    }
    text += &plain(table);
    let count = topology.switch_count() as usize;
    if count > SWITCHES_SHOWN {
        let _ = writeln!(text, "(of {count} switches the first {SWITCHES_SHOWN} are shown)");
    }
    text
}

fn neighbours(fabric: &Fabric, switch: SwitchId) -> String {
    let topology = fabric.topology();
    let mut names: Vec<String> = Vec::new();
    for &link in topology.links_from(switch) {
        if let Vertex::Switch(neighbour) = topology.link(link).to {
            names.push(topology.switch_name(neighbour));
        }
    }
    let parallel = names.chunk_by(|a, b| a == b).map(|links| match links.len() {
        1 => links[0].clone(),
        count => format!("{} (x{count})", links[0]),
    });
    shortened(&parallel.collect::<Vec<_>>())
}

/// The first few of many names.
fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 8;
    match names.len() {
        0 => "-".into(),
        count if count > SHOWN => format!("{}, ... ({count})", names[..SHOWN - 1].join(", ")),
        _ => names.join(", "),
    }
}
