//! A group that runs for an hour while its members are stopped, killed and cut off.
//!
//!     cargo run --release -p treecast-bench --example soak -- --minutes 60 --set transport=stream
//!
//! The root of a lab sends messages of 16 bytes to 2 MB. Every second or so a fault happens at a
//! host: its process is stopped for a while or killed, or its link is cut. A member that has
//! become lost joins again. Each member compares each byte with what the root sends, and each
//! number with the one before. In the end all members have everything, and no process may have
//! more memory than in the beginning.
//!
//! The program prints a line every ten seconds, and ends with status 1 if a byte was wrong, a
//! member got nothing for 20 seconds, or memory has grown.

mod member;
mod message;
mod workers;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use treecast_lab::{Lab, LabSettings};
use treecast_node::{EngineChoice, GroupSettings};
use treecast_terms::Keyed as _;

use workers::Workers;

/// Lets a group run while its members are stopped, killed and cut off.
#[derive(Debug, Parser)]
struct Options {
    /// The hosts of the lab, the root's included
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=64))]
    hosts: u32,
    /// How long faults happen: at most a week
    #[arg(long, default_value = "60", value_parser = minutes)]
    minutes: Duration,
    /// The packet engine: user or ebpf
    #[arg(long, default_value = "user")]
    engine: EngineChoice,
    /// Settings of the group
    #[arg(long, default_value = "transport=auto")]
    set: String,
    /// Determines faults and messages
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(subcommand)]
    role: Option<Role>,
}

/// The processes on the hosts: this program again.
#[derive(Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    Member { number: usize },
}

/// A number of minutes, also a part of one.
fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse().ok().filter(|minutes| (0.0..=10_080.0).contains(minutes));
    let minutes: f64 = minutes.ok_or("a number of minutes from 0 to 10080 is expected")?;
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

/// What happens to a host.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Stop,
    Kill,
    Cut,
}

/// Between two faults, in milliseconds.
const FAULT_INTERVAL_MS: std::ops::Range<u64> = 300..2_000;

/// How long a member is stopped or cut off, in milliseconds: some are declared lost meanwhile.
const FAULT_MS: std::ops::Range<u64> = 20..2_500;

/// How long the root is stopped or cut off, in milliseconds: members give the group up when they
/// have not heard the root for 1.6 s.
const ROOT_FAULT_MS: std::ops::Range<u64> = 20..400;

/// Between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// After the last fault until the group is closed: all members have joined again.
const RECOVERY: Duration = Duration::from_secs(10);

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    match options.role {
        Some(Role::Member { number }) => member::run(number, options.engine, &options.set, options.seed),
        None => soak(&options),
    }
}

fn soak(options: &Options) -> anyhow::Result<()> {
    GroupSettings::new(Vec::new()).set_all(&options.set)?;
    let lab = Lab::start(&LabSettings::new(options.hosts)).context("a lab needs root")?;
    let arguments = ["--engine", &options.engine.to_string(), "--set", &options.set];
    let seed = options.seed.to_string();
    let arguments = [&arguments[..], &["--seed", &seed, "member"]].concat();
    let mut workers = Workers::start(&lab, &arguments)?;
    let mut random = Pcg64::seed_from_u64(options.seed);
    let since = Instant::now();
    let until = since + options.minutes;
    let mut line_at = since + LINE_INTERVAL;
    let mut faults = 0;
    while Instant::now() < until {
        workers.run_for(Duration::from_millis(random.random_range(FAULT_INTERVAL_MS)))?;
        let host = random.random_range(0..options.hosts);
        let fault = match random.random_range(0..10) {
            0..5 => Fault::Stop,
            5..7 if host != 0 => Fault::Kill,
            _ => Fault::Cut,
        };
        let span = random.random_range(if host == 0 { ROOT_FAULT_MS } else { FAULT_MS });
        workers.inflict(host, fault, Duration::from_millis(span))?;
        faults += 1;
        if Instant::now() >= line_at {
            line_at += LINE_INTERVAL;
            println!("{:5.0} s, {faults} faults: {workers}", since.elapsed().as_secs_f64());
        }
    }
    workers.run_for(RECOVERY)?;
    workers.close()?;
    println!("{:5.0} s, {faults} faults: {workers}", since.elapsed().as_secs_f64());
    let grown = workers.grown();
    ensure!(grown.is_empty(), "memory has grown: {}", grown.join(", "));
    println!("every byte was right, all members have everything, and memory has not grown");
    Ok(())
}
