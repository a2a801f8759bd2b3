//! How much one user of a daemon disturbs another's latency.
//!
//! As root, for one engine of the daemon, and all loads or some:
//!
//!     cargo run --release -p treecast-node --example neighbours -- --engine ebpf --rounds 5 --load members --load slots
//!
//! A daemon serves two users. The quiet one sends a message of 64 bytes each millisecond through
//! the daemon to a node of its own, which sends it back through another group; the time until it is
//! back is measured (`quiet.rs`). The neighbour does nothing for a while, and then one of the loads
//! as fast as it can (`neighbour.rs`), in turn, for some rounds. The table has, for each load, the
//! median of the rounds' medians and 99th percentiles, the maximum of all rounds, the ratio of the
//! 99th percentile with load to the one before it without (median over the rounds, and quartiles),
//! how often the quiet user's groups have ended and were made again, and what the neighbour
//! achieved.
//!
//! It measures the daemon, and not how a busy machine shares its processors: the daemon has the
//! first processor alone, and all other processes have the second. There the neighbour runs only
//! while no other process can run (`SCHED_IDLE`): a process of the quiet user runs as soon as it is
//! woken. So the neighbour has what one processor has left, which is less than a neighbour with
//! many processors has, and the quiet user waits for the daemon, or for a system call that the
//! neighbour has begun, never for the neighbour's own work.
//!
//! A message that waits longer than a millisecond delays the following ones, which are counted as
//! if they had been sent on time (`Histogram::record_correct`). A message whose groups have ended
//! is sent again in new ones, and its time is that of all attempts.

mod neighbour;
mod process;
mod quiet;
mod report;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use treecast_node::{Daemon, EngineChoice, Node, NodeSettings, Policy, RunningEngine};

use neighbour::{Load, Neighbour};
use process::Process;
use report::Round;

/// Users that no other process of the machine has.
const QUIET_USER: u32 = 65_533;
const NEIGHBOUR: u32 = 65_534;

const DAEMON_PROCESSOR: usize = 0;
const OTHER_PROCESSOR: usize = 1;

/// What each of the two users may have: the policy that is installed.
const POLICY: &str = include_str!("../../../../dist/policy.toml");

/// From the beginning of a load to its measurement.
const RAMP_UP: Duration = Duration::from_millis(300);

/// From the end of a load to the next measurement without one: the daemon frees what the neighbour
/// had.
const CLEAN_UP: Duration = Duration::from_secs(3);

/// Measures how much one user of a daemon disturbs another's latency.
#[derive(Debug, Parser)]
struct Options {
    /// The daemon's engine: user or ebpf
    #[arg(long, default_value = "user")]
    engine: EngineChoice,
    /// How often each load is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The duration of a measurement, without and with load
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// What the neighbour does; can be repeated [default: everything]
    #[arg(long, value_enum)]
    load: Vec<Load>,
    /// Fail if a load raises the 99th percentile above its bound in most rounds: twice, and with
    /// the user engine 2 ms more for members
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// The processes of a measurement: this program again.
#[derive(Debug, Subcommand)]
#[command(hide = true)]
enum Role {
    Daemon { socket: PathBuf, engine: EngineChoice },
    Quiet { socket: PathBuf },
    Neighbour { socket: PathBuf, address: SocketAddr, load: Load, first_group: u32 },
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    match options.role {
        None => {
            pin(OTHER_PROCESSOR)?;
            measure(&options)
        }
        Some(Role::Daemon { socket, engine }) => {
            pin(DAEMON_PROCESSOR)?;
            serve(&socket, engine)
        }
        Some(Role::Quiet { socket }) => quiet::run(&socket),
        Some(Role::Neighbour { socket, address, load, first_group }) => {
            Neighbour::new(socket, address, first_group).run(load)
        }
    }
}

/// Keeps this process, and those that it starts, on one processor.
fn pin(processor: usize) -> anyhow::Result<()> {
    let mut processors = CpuSet::new();
    processors.set(processor)?;
    sched_setaffinity(Pid::from_raw(0), &processors)
        .with_context(|| format!("processors 0 and 1 are needed, and this process may not use {processor}"))
}

fn measure(options: &Options) -> anyhow::Result<()> {
    ensure!(rustix::process::getuid().is_root(), "run it as root: it starts processes of other users");
    let all = if options.load.is_empty() { Load::value_variants() } else { &options.load };
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("run/node.sock");
    let path = socket.to_str().context("the temporary directory has a name that is no text")?;
    let mut daemon = Process::start(&["daemon", path, &options.engine.to_string()], None)?;
    let address: String = daemon.answer().context("the daemon has not started")?;
    let mut quiet = Process::start(&["quiet", path], Some(QUIET_USER))?;
    let () = quiet.answer()?;
    let mut rounds: Vec<Round> = Vec::new();
    for number in 1..=options.rounds {
        for &load in all {
            // Groups of the processes before this one may not have ended yet.
            let first_group = (1_000_000 * (rounds.len() + 1)).to_string();
            let role = ["neighbour", path, &address, &load.to_string(), &first_group];
            let round = measure_load(&mut quiet, load, &role, options.seconds)
                .with_context(|| format!("round {number} of {load}"))?;
            println!("round {number} of {}: {round}", options.rounds);
            rounds.push(round);
        }
    }
    quiet.end()?;
    daemon.end()?;
    println!("engine {}, {} rounds of {} s", options.engine, options.rounds, options.seconds);
    println!("{}", report::table(all, &rounds));
    let excesses = report::excesses(options.engine, all, &rounds);
    ensure!(!options.check || excesses.is_empty(), "the bound is exceeded by {}", excesses.join(", "));
    Ok(())
}

fn measure_load(quiet: &mut Process, load: Load, role: &[&str], seconds: u64) -> anyhow::Result<Round> {
    let without = quiet.ask(&seconds)?;
    let mut neighbour = Process::start(role, Some(NEIGHBOUR))?;
    let () = neighbour.answer()?;
    thread::sleep(RAMP_UP);
    let with = quiet.ask(&seconds)?;
    let achieved = neighbour.finish()?;
    thread::sleep(CLEAN_UP);
    Ok(Round { load, without, with, achieved })
}

/// The daemon's process.
fn serve(socket: &Path, engine: EngineChoice) -> anyhow::Result<()> {
    let settings = NodeSettings { bind: "127.0.0.1:0".parse()?, engine, ..NodeSettings::default() };
    let daemon = Daemon::open(&settings, socket, Policy::parse(POLICY, "policy")?)?;
    let stopper = daemon.stopper();
    process::say(&daemon.address().to_string())?;
    thread::spawn(move || {
        process::wait_for_end();
        stopper.stop();
    });
    daemon.serve()?;
    Ok(())
}

/// A node of the daemon.
fn client(socket: &Path) -> anyhow::Result<Node> {
    let node = Node::open(&NodeSettings { socket: Some(socket.into()), ..NodeSettings::default() })?;
    match node.engine() {
        RunningEngine::Daemon { .. } => Ok(node),
        engine => bail!("the daemon does not serve this process, and its node has the engine {engine}"),
    }
}

/// A node of the process's own.
fn outside() -> anyhow::Result<Node> {
    let engine = EngineChoice::User;
    Ok(Node::open(&NodeSettings { bind: "127.0.0.1:0".parse()?, engine, ..NodeSettings::default() })?)
}
