//! `treecast tune`: measures what broadcasts cost between some hosts, for predictions.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::{ArgGroup, Args};
use comfy_table::{CellAlignment, Table};
use treecast_bench::{Hosts, Peer, RemoteHosts, Tune};
use treecast_lab::{LabSettings, Rate};
use treecast_model::{Choice, Network};
use treecast_node::EngineChoice;
use treecast_plan::Scheme;
use treecast_remote::RemoteShell;
use treecast_terms::Bytes;

use crate::arguments::{Hostlist, command_line, whole_number};
use crate::command::bench::{Spin, size, spin, worker};
use crate::interrupt::temporary_files;
use crate::log::LogArguments;
use crate::output::{NotWritten, OutArguments, OutFile, emit, plain, progress_bar};

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("where").required(true), after_help = "Examples:
  treecast tune --lab 16 --out network.toml
  treecast tune --lab 4 --pin --engine user,ebpf --peer openmpi --out network.toml
  treecast tune --hosts n[1-4] --engine user,ebpf --out network.toml
  treecast predict --network network.toml --members 64 --sizes 64,16K,1M

The first four hosts are measured: a root with one child, with three children, and with a
chain of three. Of a lab without --pin, or on the loopback, all hosts are measured too,
for what more hosts cost on the processors that they share. From the costs the best way to
send and the best tree are predicted for each number of hosts and size: a table that is
printed, and is a comment at the end of the file. Groups with scheme=auto that have the
file (network=FILE, or the variable TREECAST_NETWORK) make this choice for their own
number of hosts and size, among what their settings leave open.
docs/predictions.md says how costs are computed, and what they predict.")]
pub struct Arguments {
    /// Hosts of a lab: namespaces on this machine, joined by a switch
    #[arg(long, value_name = "HOSTS", group = "where")]
    #[arg(value_parser = whole_number::<u32>(Tune::HOSTS.into(), LabSettings::HOSTS_MAX.into()))]
    #[arg(allow_negative_numbers = true)]
    lab: Option<u32>,

    /// Processes on this machine's loopback, which needs no rights
    #[arg(long, value_name = "HOSTS", group = "where", allow_negative_numbers = true)]
    #[arg(value_parser = whole_number::<u32>(Tune::HOSTS.into(), 250))]
    loopback: Option<u32>,

    /// Separate machines, the root first, where a remote shell can start this command: a hostlist,
    /// such as n[1-16],login, or slurm, the hosts of this Slurm job
    #[arg(long, value_name = "HOSTLIST", group = "where")]
    hosts: Option<Hostlist>,

    /// The remote shell and its options; a host name and a command are appended
    #[arg(long, value_name = "COMMAND", default_value = "ssh", requires = "hosts")]
    shell: String,

    /// The packet engine: user, ebpf (the kernel's packet path, needs root), or both
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "user", value_parser = engine)]
    engine: Vec<EngineChoice>,

    /// Measure other software in the lab too, as a way of its own: openmpi, its broadcasts over TCP
    #[arg(long, value_name = "NAME", value_parser = peer, requires = "lab")]
    #[arg(conflicts_with_all = ["loopback", "hosts"])]
    peer: Option<Peer>,

    /// Message sizes in bytes
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size)]
    #[arg(default_value = "64,1K,4K,16K,64K,256K,1M")]
    sizes: Vec<usize>,

    /// Messages per size, way to send and shape of the tree
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    #[arg(value_parser = whole_number::<u32>(10, 1_000_000), allow_negative_numbers = true)]
    messages: u32,

    /// Rate limit of each link of the lab, such as 200mbit
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    #[arg(requires = "lab", conflicts_with_all = ["loopback", "hosts"])]
    rate: Option<Rate>,

    /// Measure hosts of the lab that have a processor of their own: host H runs on processor H
    /// modulo their number, so that on two processors neighbours in a chain have different ones
    #[arg(long, requires = "lab", conflicts_with_all = ["loopback", "hosts"])]
    pin: bool,

    /// MTU in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1_500)]
    #[arg(value_parser = whole_number::<u16>(604, 65_535), allow_negative_numbers = true)]
    mtu: u16,

    /// How long a waiting thread spins before it sleeps, such as 50us, or auto: as recent waits
    /// suggest
    #[arg(long, value_name = "TIME", value_parser = spin, default_value = "0us")]
    spin: Spin,

    #[command(flatten)]
    out: OutArguments,
}

/// Parses an engine that has costs of its own.
fn engine(name: &str) -> Result<EngineChoice, &'static str> {
    let engine = name.parse().ok().filter(|engine| *engine != EngineChoice::Auto);
    engine.ok_or("user or ebpf")
}

/// Parses a peer whose broadcasts have a model.
fn peer(name: &str) -> Result<Peer, &'static str> {
    name.parse().ok().filter(|peer| *peer == Peer::OpenMpi).ok_or("openmpi")
}

pub fn run(arguments: &Arguments, log: &LogArguments) -> anyhow::Result<u8> {
    let _temporary_files = temporary_files()?;
    let hosts = match (arguments.lab, &arguments.hosts, arguments.loopback) {
        (Some(hosts), ..) => {
            let (mtu, rate, pin) = (arguments.mtu.into(), arguments.rate, arguments.pin);
            Hosts::Lab(LabSettings { mtu, rate, pin, ..LabSettings::new(hosts) })
        }
        (_, Some(Hostlist(names)), _) => {
            Hosts::Remote(RemoteHosts { names: names.clone(), shell: RemoteShell::new(&arguments.shell) })
        }
        (.., hosts) => Hosts::Loopback(hosts.unwrap_or(Tune::HOSTS)),
    };
    let tune = Tune {
        hosts,
        engines: arguments.engine.clone(),
        with_openmpi: arguments.peer.is_some(),
        sizes: arguments.sizes.clone(),
        messages: arguments.messages,
        mtu_bytes: arguments.mtu,
        spin: arguments.spin.0,
        worker: worker(log)?,
    };
    // A file that cannot be written is refused before anything is measured.
    let out = arguments.out.file().map(OutFile::create).transpose()?;
    let bar = progress_bar(None, "{msg} {wide_bar} {eta} to go");
    bar.set_message("measuring");
    let about = format!("measured by {}", command_line());
    let network = tune.run(about, |done, runs| {
        bar.set_length(runs as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    let best = best(&network, &host_counts(tune.hosts.count()), &tune.sizes)?;
    let text = network.to_toml() + &comment(&best);
    match out {
        Some(mut file) => {
            let written = file.write_all(text.as_bytes()).and_then(|()| file.keep());
            written.with_context(|| NotWritten(arguments.out.file().unwrap_or(Path::new("")).into()))?;
            emit(None, &format!("{BEST}\n\n{best}"))?;
        }
        None => emit(None, &text)?,
    }
    Ok(0)
}

/// What the table says.
const BEST: &str = "the best way and tree by these costs, for each number of hosts and message size";

/// The numbers of hosts for which the best is predicted: powers of two, and all hosts.
fn host_counts(all: u32) -> Vec<u32> {
    let powers = (1..u32::BITS).map(|power| 1 << power).take_while(|&count| count < all);
    powers.chain([all]).collect()
}

/// The table of the best way and tree for each number of hosts and size.
fn best(network: &Network, hosts: &[u32], sizes: &[usize]) -> anyhow::Result<String> {
    let mut table = Table::new();
    table.set_header(["hosts", "bytes", "engine", "offload", "scheme", "transport", "last delivery, us"]);
    for &hosts in hosts {
        for &bytes in sizes {
            let ways = network.ways.keys().filter(|way| !way.is_openmpi());
            let best = network.best_of(ways, hosts, Bytes(bytes as u64));
            let best = best.with_context(|| format!("{hosts} hosts, {bytes} bytes"))?;
            let Some(Choice { way, tree, last_delivery }) = best else { continue };
            table.add_row([
                hosts.to_string(),
                bytes.to_string(),
                way.engine,
                way.offload.to_string(),
                Scheme::tree(tree).to_string(),
                way.transport.to_string(),
                format!("{:.1}", last_delivery.us()),
            ]);
        }
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        if !(2..6).contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Ok(plain(table))
}

/// The table as a comment of the file.
fn comment(table: &str) -> String {
    let lines = [BEST, ""].into_iter().chain(table.lines());
    let commented: Vec<String> = lines.map(|line| format!("# {line}").trim_end().to_string()).collect();
    format!("\n{}\n", commented.join("\n"))
}
