//! A process of the group. It tells the program that has started it how far it is, by lines.

use std::io::{Write as _, stdin};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use treecast_node::{EngineChoice, Group, GroupSettings, Node, NodeError, NodeSettings};
use treecast_terms::Keyed as _;

use crate::message;

const PORT: u16 = 7000;

/// Between two reports, and the longest wait for a message.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// The longest pause between two messages, in milliseconds.
const PAUSE_MS_MAX: f64 = 40.0;

/// How long the root waits for all members in the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs as the root, number 0, or as another member.
pub fn run(number: usize, engine: EngineChoice, set: &str, seed: u64) -> anyhow::Result<()> {
    tell(&format!("pid {}", std::process::id()))?;
    let addresses = std::env::var("TREECAST_LAB_ADDRESSES")
        .context("not on a host of a lab: TREECAST_LAB_ADDRESSES is not set")?;
    let address = |host: &str| Ok(SocketAddr::new(host.parse()?, PORT));
    let members: Vec<SocketAddr> = addresses.split(',').map(address).collect::<anyhow::Result<_>>()?;
    let bind = *members.get(number).with_context(|| format!("the lab has no host {number}"))?;
    let node = Node::open(&NodeSettings { bind, engine, status: false, ..NodeSettings::default() })?;
    let mut settings = GroupSettings { token: "soak".into(), admits: true, ..GroupSettings::new(members) };
    settings.set_all(set)?;
    let group = node.group(&settings)?;
    let mut report = Report::default();
    let ended =
        if number == 0 { send(&group, seed, &mut report) } else { receive(&group, seed, &mut report) };
    report.tell()?;
    match ended {
        Ok(()) => tell("closed"),
        Err(error) => tell(&format!("ended {error:#}")),
    }
}

fn tell(line: &str) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

/// How far the process is.
#[derive(Debug, Default)]
struct Report {
    messages: u64,
    bytes: u64,
    told_at: Option<Instant>,
}

impl Report {
    fn count(&mut self, bytes: usize) -> anyhow::Result<()> {
        (self.messages, self.bytes) = (self.messages + 1, self.bytes + bytes as u64);
        if self.told_at.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
            self.tell()?;
        }
        Ok(())
    }

    fn tell(&mut self) -> anyhow::Result<()> {
        self.told_at = Some(Instant::now());
        let status = std::fs::read_to_string("/proc/self/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.context("the system tells no resident set")?.trim().trim_end_matches(" kB");
        tell(&format!("ok {} {} {resident}", self.messages, self.bytes))
    }
}

/// Sends until standard input ends.
fn send(group: &Group, seed: u64, report: &mut Report) -> anyhow::Result<()> {
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    thread::spawn(move || {
        let _ = std::io::copy(&mut stdin(), &mut std::io::sink());
        over.store(true, Ordering::Relaxed);
    });
    group.wait_until_ready(None)?;
    let mut random = Pcg64::seed_from_u64(seed);
    while !is_over.load(Ordering::Relaxed) {
        let message = message::make(seed, report.messages);
        group.send(&message)?;
        report.count(message.len())?;
        if random.random_bool(0.1) {
            group.flush(None)?;
        }
        // Half of the messages follow one another at once.
        if random.random_bool(0.5) {
            thread::sleep(Duration::from_secs_f64(random.random_range(0.0..PAUSE_MS_MAX) / 1e3));
        }
    }
    group.close(Some(CLOSE_TIMEOUT))?;
    Ok(())
}

/// Receives until the group is closed.
fn receive(group: &Group, seed: u64, report: &mut Report) -> anyhow::Result<()> {
    let mut expected = None;
    loop {
        let message = match group.receive(Some(REPORT_INTERVAL)) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(NodeError::TimedOut) => continue,
            Err(error) => return Err(error.into()),
        };
        let number = message::number_of(seed, &message);
        if number.is_none() || expected.is_some_and(|expected| number != Some(expected)) {
            tell(&format!("wrong: message {number:?} of {} bytes in place of {expected:?}", message.len()))?;
            bail!("a wrong message");
        }
        expected = number.map(|number| number + 1);
        report.count(message.len())?;
    }
}
