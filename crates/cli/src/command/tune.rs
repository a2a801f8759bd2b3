//! `treecast tune`: measures what broadcasts cost between some hosts, for predictions.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::{ArgGroup, Args};
use treecast_bench::{Hosts, RemoteHosts, Tune};
use treecast_lab::LabSettings;
use treecast_node::EngineChoice;
use treecast_remote::RemoteShell;

use crate::arguments::{Hostlist, command_line, whole_number};
use crate::command::bench::{Spin, size, spin, worker};
use crate::interrupt::temporary_files;
use crate::log::LogArguments;
use crate::output::{NotWritten, OutArguments, OutFile, emit, progress_bar};

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("where").required(true), after_help = "Examples:
  treecast tune --lab 16 --out network.toml
  treecast tune --hosts n[1-4] --engine user,ebpf --out network.toml
  treecast predict --network network.toml --members 64 --sizes 64,16K,1M

The first four hosts are measured: a root with one child, with three children, and with a chain of
three. Of a lab, or on the loopback, all hosts are measured too, for what more hosts cost on the
processors that they share. docs/predictions.md says how costs are computed from that, and what they predict.")]
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

    /// Message sizes in bytes
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size)]
    #[arg(default_value = "64,1K,4K,16K,64K,256K,1M")]
    sizes: Vec<usize>,

    /// Messages per size, way to send and shape of the tree
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    #[arg(value_parser = whole_number::<u32>(10, 1_000_000), allow_negative_numbers = true)]
    messages: u32,

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

pub fn run(arguments: &Arguments, log: &LogArguments) -> anyhow::Result<u8> {
    let _temporary_files = temporary_files()?;
    let hosts = match (arguments.lab, &arguments.hosts, arguments.loopback) {
        (Some(hosts), ..) => Hosts::Lab(LabSettings { mtu: arguments.mtu.into(), ..LabSettings::new(hosts) }),
        (_, Some(Hostlist(names)), _) => {
            Hosts::Remote(RemoteHosts { names: names.clone(), shell: RemoteShell::new(&arguments.shell) })
        }
        (.., hosts) => Hosts::Loopback(hosts.unwrap_or(Tune::HOSTS)),
    };
    let tune = Tune {
        hosts,
        engines: arguments.engine.clone(),
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
    match out {
        Some(mut file) => {
            let written = file.write_all(network.to_toml().as_bytes()).and_then(|()| file.keep());
            written.with_context(|| NotWritten(arguments.out.file().unwrap_or(Path::new("")).into()))?;
        }
        None => emit(None, &network.to_toml())?,
    }
    Ok(0)
}
