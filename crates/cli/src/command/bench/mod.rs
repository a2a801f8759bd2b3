//! `treecast bench`: broadcasts, all-reduces and barriers of real nodes, configurations side by
//! side.

mod modes;
mod table;
mod values;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgGroup, Args, ValueEnum};
use treecast_bench::{
    Bench, Hosts, Late, Peer, RemoteHosts, Report, Skew, WorkerCommand, Workload, default_sizes,
};
use treecast_fabric::RoutingPolicy;
use treecast_lab::{LabSettings, Losses, Multicast, Probability, Racks, Rate};
use treecast_node::{Authentication, CongestionControl, EngineChoice, Integrity, Offload, Scheme, Transport};
use treecast_plan::Arrangement;
use treecast_plan::render::counted;
use treecast_remote::RemoteShell;
use treecast_study::chart::{self, Ink};
use treecast_study::page;
use treecast_terms::Operation;

use modes::modes;
use table::{comparison, table};
pub(super) use values::{Spin, size, spin};
use values::{authentication, congestion, integrity, pace, picture_file, switch, time, transport};

use super::predict::{delay_links, limit_links};
use crate::arguments::{Hostlist, command_line, delay, fabric, network, whole_number};
use crate::doctor::machine::read;
use crate::interrupt::temporary_files;
use crate::log::LogArguments;
use crate::mpi::{Interface, directories, find_shim};
use crate::open_files::allow_open_files;
use crate::output::{OutArguments, emit, ink, print_message, progress_bar, width, write_file};

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("of_lab"), after_help = "Examples:
  treecast bench --loopback 4 --sizes 64,16K
  treecast bench --lab 16 --offload host,assisted,nic --sizes 64,1K,16K
  treecast bench --lab 16 --engine user,ebpf --offload host,nic --sizes 64,1K,16K
  treecast bench --lab 16 --engine user,ebpf --offload nic,switch --sizes 64,64K,1M --peer openmpi
  treecast bench --lab 16 --rate 200mbit --loss 1% --sizes 64M --messages 1 --stream
  treecast bench --lab 8 --processes 4 --engine user,ebpf --sizes 64,64K
  treecast bench --lab 8 --processes 4 --sizes 4 --late 0us,400us,1600us
  treecast bench --lab 16 --sizes 4 --skew 400us --format json
  treecast bench --lab 16 --offload nic --sizes 64,4K --skew 0us,400us,2ms --peer openmpi
  treecast bench --lab 16 --offload nic --sizes 64M --messages 1 --stream --kill 7
  treecast bench --racks 4x4 --uplink 200mbit --offload nic --sizes 64,64K,4M
  treecast bench --lab 16 --operation all-reduce --offload nic --sizes 8,504 --peer openmpi
  treecast bench --hosts node[1-3] --shell 'ssh -o BatchMode=yes'

Configurations are interleaved, round by round. Times are in microseconds:
  root           from the root's call until it knew that every member had the message
  last delivery  from the root's call until the last member's application had it
  last stored    from the root's call until the kernel had stored it at the last member
                 (engine ebpf), or the node that processes of a host share
  call mean      duration of a receiver's call
  call CPU       CPU time of a receiver's thread in its call
  CPU            CPU time of all processes
  others         last delivery and call mean of the processes that are not late (--late)
  retransmitted  retransmissions per broadcast
  uplinks        bytes per broadcast over the uplinks of all racks, in both directions
  busiest uplink bytes per broadcast over one of them, in one direction

Members call an all-reduce or a barrier (--operation) again as soon as they return from it:
  root           duration of the root's call
  last delivery  from the call of the last member until the last one had the result
  call mean      duration of a call, over all members
  call CPU       CPU time of the calling thread

docs/bench.md says more.")]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
pub struct Arguments {
    /// Hosts of a lab: namespaces on this machine, joined by a switch
    #[arg(long, value_name = "HOSTS", conflicts_with = "loopback", group = "of_lab")]
    #[arg(value_parser = whole_number::<u32>(2, LabSettings::HOSTS_MAX.into()), allow_negative_numbers = true)]
    lab: Option<u32>,

    /// Racks of a lab and hosts in each: 4x8 is 4 racks of 8 hosts
    ///
    /// Each configuration is measured without and with a tree for these racks. Members are on one
    /// rack after the other in turn: member 0, the root, in the first, member 1 in the second.
    #[arg(long, value_name = "RxH", conflicts_with_all = ["loopback", "fabric"], group = "of_lab")]
    racks: Option<Racks>,

    /// Rate limit of the uplink of each rack, in each direction, such as 200mbit
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    #[arg(requires = "racks", conflicts_with_all = ["loopback", "hosts"])]
    uplink: Option<Rate>,

    /// The racks and switches that join the hosts: a file, such as Slurm's topology.conf or an
    /// inventory of hosts and racks; each configuration is measured without and with a tree for it
    #[arg(long, value_name = "FILE")]
    fabric: Option<String>,

    /// The measured costs of the network, by which groups without a scheme choose their trees: a
    /// file that `treecast tune` has written
    #[arg(long, value_name = "FILE")]
    network: Option<PathBuf>,

    /// Processes on this machine's loopback, which needs no rights [default: 4]
    #[arg(long, value_name = "HOSTS")]
    #[arg(value_parser = whole_number::<u32>(2, 250), allow_negative_numbers = true)]
    loopback: Option<u32>,

    /// Separate machines, the root first, where a remote shell can start this command: a hostlist,
    /// such as n[1-16],login, or slurm, the hosts of this Slurm job
    #[arg(long, value_name = "HOSTLIST", conflicts_with_all = ["lab", "racks", "loopback"])]
    hosts: Option<Hostlist>,

    /// The remote shell and its options; a host name and a command are appended
    #[arg(long, value_name = "COMMAND", default_value = "ssh", requires = "hosts")]
    shell: String,

    /// Processes of each host, which share its node: 1 to 256, at most 1024 on all hosts together
    ///
    /// The root is the first process of the first host. Several processes need offload nic or
    /// switch.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = whole_number::<u32>(1, LabSettings::PROCESSES_PER_HOST_MAX.into()))]
    #[arg(allow_negative_numbers = true)]
    processes: u32,

    /// The placement of processes on hosts: block (numbered host by host) or cyclic (one of each
    /// host in turn)
    #[arg(long, value_name = "NAME", default_value = "block")]
    placement: Arrangement,

    /// The packet engine: user, ebpf (the kernel's packet path, needs root), or both
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "user")]
    engine: Vec<EngineChoice>,

    /// Who forwards: host, assisted, nic, switch (the network, by multicast), or several of them
    /// [default: host,assisted,nic; with several processes on each host: nic]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    offload: Vec<Offload>,

    /// Schemes that build the tree: binomial, separate, postal:lambda=8 and so on, separated by ;
    ///
    /// By default chosen by the message size, and binomial for offload host.
    #[arg(long, value_name = "LIST", value_delimiter = ';')]
    scheme: Vec<Scheme>,

    /// What is authenticated of each packet of data: header, payload (the header too), or
    /// header,payload; without it payload with offload switch, which takes nothing else, and header
    /// with others
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = authentication)]
    auth: Vec<Authentication>,

    /// Whether the root encrypts what it sends: off, on, or off,on
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "off", value_parser = switch)]
    encrypt: Vec<bool>,

    /// Other software to measure as well, on the same hosts of the lab: openmpi; mpich; a tree or a
    /// chain of blocking TCP connections, as a user would write it (tcp-tree, tcp-chain); or
    /// several of them
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "of_lab", conflicts_with_all = ["loopback", "hosts"])]
    peer: Vec<Peer>,

    /// Measure the peer's program also with the MPI shim of docs/mpi.md
    #[arg(long, requires = "peer")]
    shim: bool,

    /// When members verify the CRCs of payloads: before they accept a packet (crc32c); or when it
    /// is read, where the network has a checksum (network); or network,crc32c
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "network", value_parser = integrity)]
    integrity: Vec<Integrity>,

    /// What carries data along the tree: datagrams (packets), TCP connections (stream), these and
    /// datagrams while they lose packets (both), or packets,stream; by default what groups choose:
    /// both with engine user and offload nic, and else packets
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = transport)]
    transport: Vec<Transport>,

    /// Congestion control of TCP connections: an algorithm of the kernel, such as reno or bbr; by
    /// default what groups choose
    #[arg(long, value_name = "NAME", value_parser = congestion)]
    tcp_congestion: Option<CongestionControl>,

    /// What all members do: broadcast, all-reduce (sums of 8-byte floats), or barrier
    #[arg(long, value_name = "OPERATION", default_value = "broadcast", value_parser = crate::arguments::operation)]
    operation: Operation,

    /// Message sizes in bytes, such as 64,1K,16M [default: 1,64,1K,16K]
    ///
    /// An all-reduce has 8 to 504 bytes, and by default 8,64,504; a barrier has no size.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size)]
    sizes: Vec<usize>,

    /// Messages per size and configuration
    #[arg(long, value_name = "COUNT", default_value_t = 500)]
    #[arg(value_parser = whole_number::<u32>(1, 100_000_000), allow_negative_numbers = true)]
    messages: u32,

    /// Rounds; each runs every configuration once, every second round in reverse order
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    #[arg(value_parser = whole_number::<u32>(1, 1_000_000), allow_negative_numbers = true)]
    rounds: u32,

    /// Send messages back to back, not one at a time
    #[arg(long, conflicts_with = "skew")]
    stream: bool,

    /// Send each message when the nodes of all members have the one before, even if applications
    /// have not read it; by default when all applications have it and wait again
    #[arg(long, conflicts_with_all = ["stream", "skew", "late"])]
    when_stored: bool,

    /// The root does not wait until all members have a message, as a broadcast of MPI does not: the
    /// next message follows when their applications wait again. Then root p50 is what its call
    /// takes
    #[arg(long, conflicts_with_all = ["stream", "when_stored", "skew", "late"])]
    no_flush: bool,

    /// Also measure what this machine itself takes to wake as many processes, and to move bytes
    #[arg(long, conflicts_with = "hosts")]
    limits: bool,

    /// Average skew of members, such as 400us: half of them enter their call late, by up to 1.5
    /// times as long; or several, separated by commas, which are measured side by side
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = time)]
    skew: Vec<Duration>,

    /// Seed of the random delays
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// One process of each host, or of --late-host, enters each call late by this time, such as
    /// 400us; or several times, separated by commas, which are measured side by side
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = time)]
    #[arg(conflicts_with_all = ["stream", "skew"])]
    late: Vec<Duration>,

    /// The number, on each host, of the process that is late; the root is never late
    #[arg(long, value_name = "PROCESS", default_value_t = 0, requires = "late")]
    #[arg(value_parser = whole_number::<u32>(0, u64::from(LabSettings::PROCESSES_PER_HOST_MAX) - 1))]
    #[arg(allow_negative_numbers = true)]
    late_process: u32,

    /// The number of the host whose process is late; by default all hosts have one
    #[arg(long, value_name = "HOST", requires = "late", value_parser = whole_number::<u32>(0, u64::from(u32::MAX)))]
    #[arg(allow_negative_numbers = true)]
    late_host: Option<u32>,

    /// Rate limit of each link of the lab, such as 200mbit
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    #[arg(requires = "of_lab", conflicts_with_all = ["loopback", "hosts"])]
    rate: Option<Rate>,

    /// Delay of each link of the lab in each direction, such as 100us
    #[arg(long, value_name = "TIME", value_parser = delay, allow_negative_numbers = true)]
    #[arg(requires = "of_lab", conflicts_with_all = ["loopback", "hosts"])]
    delay: Option<Duration>,

    /// Packet loss on the link to each host of the lab, such as 1%, or to single hosts: n3=5%, or
    /// 1%,n3=5%
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    #[arg(requires = "of_lab", conflicts_with_all = ["loopback", "hosts"])]
    loss: Option<Losses>,

    /// Probability of packets in the lab that are reordered, such as 1%
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    #[arg(requires = "of_lab", conflicts_with_all = ["loopback", "hosts"])]
    reorder: Option<Probability>,

    /// What the switches of the lab do with multicast packets: flood, snooping or drop [default:
    /// flood]
    #[arg(long, value_name = "HOW")]
    #[arg(requires = "of_lab", conflicts_with_all = ["loopback", "hosts"])]
    multicast: Option<Multicast>,

    /// Run each host of the lab on one processor: host H on processor H modulo their number
    #[arg(long, requires = "of_lab", conflicts_with_all = ["loopback", "hosts"])]
    pin: bool,

    /// MTU in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1_500)]
    #[arg(value_parser = whole_number::<u16>(604, 65_535), allow_negative_numbers = true)]
    mtu: u16,

    /// Rate limit of the root, in bytes per second
    #[arg(long, value_name = "BYTES", value_parser = pace)]
    pace: Option<u64>,

    /// How long a waiting thread spins before it sleeps, such as 50us, or auto: as recent waits
    /// suggest
    #[arg(long, value_name = "TIME", value_parser = spin, default_value = "0us")]
    spin: Spin,

    /// Kill this member when it has half of the last message; takes one configuration and one size
    #[arg(long, value_name = "MEMBER")]
    #[arg(value_parser = whole_number::<u32>(1, 249), allow_negative_numbers = true)]
    kill: Option<u32>,

    /// Also show what the model of a network predicts for each last delivery: the file that
    /// 'treecast tune' has written, with links of the lab's --rate and --delay
    #[arg(long, value_name = "FILE")]
    predict: Option<PathBuf>,

    /// The output format
    #[arg(long, value_enum, default_value = "table")]
    format: Format,

    /// Also draw the last delivery over the message size into a .svg file, or a page with this and
    /// other charts and the table into a .html file; with several --skew or --late, the time in the
    /// call over these
    #[arg(long, value_name = "FILE", value_parser = picture_file)]
    chart: Option<PathBuf>,

    #[command(flatten)]
    out: OutArguments,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// A table
    Table,
    /// JSON
    Json,
    /// The chart that --chart draws into a .svg file, for a terminal
    Chart,
}

/// The files that this process has open for a worker: its input and its output.
const FILES_OF_WORKER: u64 = 2;

pub fn run(arguments: &Arguments, log: &LogArguments) -> anyhow::Result<u8> {
    let _temporary_files = temporary_files()?;
    let bench = bench(arguments, log)?;
    // A file that cannot be used is refused before anything is measured.
    let mut network = arguments.predict.as_deref().map(network).transpose()?;
    if let (Some(network), Some(rate)) = (&mut network, arguments.rate) {
        network.ways.values_mut().for_each(|costs| limit_links(costs, rate));
    }
    if let (Some(network), Some(delay)) = (&mut network, arguments.delay) {
        network.ways.values_mut().for_each(|costs| delay_links(costs, delay));
    }
    allow_open_files(FILES_OF_WORKER * u64::from(bench.hosts.count()) * u64::from(bench.processes));
    let bar = progress_bar(None, "{msg} {wide_bar} {eta} to go");
    bar.set_message("measuring");
    let mut report = bench.run(|done, runs| {
        bar.set_length(runs as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    if let Some(Err(error)) = network.as_ref().map(|network| report.predict(network)) {
        // What was measured is shown all the same.
        print_message(&format!("the model predicts nothing: {error}"));
    }
    report.command = command_line();
    report.machine = machine();
    let figure = || treecast_bench::figure(&report, command_line());
    if let Some(path) = &arguments.chart {
        let is_svg = path.extension() == Some(OsStr::new("svg"));
        let picture = if is_svg { chart::svg(&figure())? } else { page_of(&report) };
        write_file(path, picture.as_bytes())?;
    }
    let text = match arguments.format {
        Format::Table => {
            table(&report)
                + &arguments
                    .peer
                    .iter()
                    .map(|&peer| comparison(&report, peer, arguments.stream))
                    .collect::<Vec<_>>()
                    .join("\n")
        }
        Format::Json => serde_json::to_string_pretty(&report)? + "\n",
        Format::Chart => {
            let ink = if arguments.out.file().is_none() { ink() } else { Ink::Plain };
            chart::terminal(&figure(), width(), 18, ink)
        }
    };
    emit(arguments.out.file(), &text)?;
    Ok(0)
}

/// The page of a report: its charts and its table.
pub fn page_of(report: &Report) -> String {
    let machine =
        if report.machine.is_empty() { "" } else { &format!("Measured on {}.\n\n", report.machine) };
    let figures = treecast_bench::figures(report, &report.command);
    page::html_with_text(&figures, "All measurements", &format!("{machine}{}", table(report)))
}

/// Kernel and processors of this machine.
fn machine() -> String {
    let release = treecast_ebpf::kernel_release();
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let model = read("/proc/cpuinfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
        Some(line.trim_start_matches([' ', '\t', ':']).to_string())
    });
    let model = model.map(|name| format!(" ({name})")).unwrap_or_default();
    format!("Linux {release}, {}{model}", counted(count, "processor"))
}

/// The command that runs a worker: this one.
pub(super) fn worker(log: &LogArguments) -> anyhow::Result<WorkerCommand> {
    let path = std::env::current_exe().context("cannot find the path of this executable")?;
    let arguments = std::iter::once("bench-worker".into()).chain(log.to_words()).collect();
    Ok(WorkerCommand { path, arguments })
}

/// The worker process that `bench` starts on each host.
pub fn work() -> anyhow::Result<u8> {
    treecast_bench::work()?;
    Ok(0)
}

fn bench(arguments: &Arguments, log: &LogArguments) -> anyhow::Result<Bench> {
    let lab = arguments.racks.map(LabSettings::in_racks).or_else(|| arguments.lab.map(LabSettings::new));
    let hosts = match lab {
        Some(shape) => Hosts::Lab(LabSettings {
            uplink: arguments.uplink,
            rate: arguments.rate,
            delay: arguments.delay.unwrap_or_default(),
            mtu: arguments.mtu.into(),
            loss: arguments.loss.clone().unwrap_or_default(),
            reorder: arguments.reorder.unwrap_or_default(),
            multicast: arguments.multicast.unwrap_or_default(),
            pin: arguments.pin,
            ..shape
        }),
        None => match &arguments.hosts {
            Some(Hostlist(names)) => {
                Hosts::Remote(RemoteHosts { names: names.clone(), shell: RemoteShell::new(&arguments.shell) })
            }
            None => Hosts::Loopback(arguments.loopback.unwrap_or(4)),
        },
    };
    let workload = if !arguments.skew.is_empty() {
        Workload::Skew(Skew { averages: arguments.skew.clone(), seed: arguments.seed })
    } else if !arguments.late.is_empty() {
        let (process, host) = (arguments.late_process, arguments.late_host);
        Workload::Late(Late { process, host, delays: arguments.late.clone() })
    } else if arguments.stream {
        Workload::Throughput
    } else if arguments.when_stored {
        Workload::Stored
    } else {
        Workload::Latency
    };
    let given = arguments.fabric.as_deref().map(|text| fabric(text, RoutingPolicy::Auto)).transpose()?;
    let operation = arguments.operation;
    let sizes = match &arguments.sizes[..] {
        [] => default_sizes(operation).to_vec(),
        given => given.to_vec(),
    };
    let cases = modes(arguments).len() * sizes.len();
    if arguments.kill.is_some() && cases != 1 {
        bail!(
            "--kill takes one configuration and one size, and these are {cases}: name one engine, offload, scheme, authentication, encryption, integrity, transport and size; --racks and --fabric always measure two"
        );
    }
    Ok(Bench {
        hosts,
        processes: arguments.processes,
        placement: arguments.placement,
        fabric: given.map(Arc::new),
        network: arguments.network.as_deref().map(network).transpose()?.map(Arc::new),
        modes: modes(arguments),
        peers: arguments.peer.clone(),
        shims: if arguments.shim { shims(&arguments.peer)? } else { Vec::new() },
        sizes,
        operation,
        workload,
        flushes: !arguments.no_flush,
        messages: arguments.messages,
        rounds: arguments.rounds,
        mtu_bytes: arguments.mtu,
        bytes_per_s_max: arguments.pace,
        tcp_congestion: arguments.tcp_congestion.clone(),
        limits: arguments.limits,
        kill: arguments.kill,
        spin: arguments.spin.0,
        worker: worker(log)?,
    })
}

/// The paths of the MPI shims for the programs of these peers.
fn shims(peers: &[Peer]) -> anyhow::Result<Vec<(Peer, PathBuf)>> {
    peers.iter().filter(|peer| peer.is_mpi()).map(|&peer| Ok((peer, shim(peer)?))).collect()
}

fn shim(peer: Peer) -> anyhow::Result<PathBuf> {
    let interface = if peer == Peer::Mpich { Interface::Mpich } else { Interface::OpenMpi };
    let found = find_shim(interface, &directories());
    let found = found.with_context(|| format!("there is no {}: build it by make mpi", interface.shim()))?;
    found.canonicalize().with_context(|| format!("{} could not be found", found.display()))
}
