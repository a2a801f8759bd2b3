//! The quiet user: how long a message takes through the daemon to a node outside, and back.

use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use treecast_node::{Group, GroupId, GroupSettings, Node, NodeError};

use crate::{client, outside, process};

const MESSAGE_BYTES: usize = 64;
const PERIOD: Duration = Duration::from_millis(1);

/// The first messages are not measured.
const WARM_UP: Duration = Duration::from_millis(500);

/// A message that is not answered within this time counts as lost, with its groups.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// The measurement fails if the daemon does not serve the user for this time.
const SERVICE_TIMEOUT: Duration = Duration::from_mins(1);

/// Measurements of the quiet user.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Latencies {
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// How often its groups have ended, and were made again.
    pub groups_lost: u32,
}

struct Quiet {
    node: Node,
    outside: Node,
    groups: Groups,
    next_group: u32,
    groups_lost: u32,
}

/// The groups of the way to the node outside, and back. A thread echoes there, until one of the
/// groups ends.
struct Groups {
    there: Group,
    back: Group,
}

/// The process of the quiet user: measures for as many seconds as each line of its input says.
pub fn run(socket: &Path) -> anyhow::Result<()> {
    let (node, outside) = (client(socket)?, outside()?);
    let groups = Groups::open(&node, &outside, 1)?;
    let mut quiet = Quiet { node, outside, groups, next_group: 3, groups_lost: 0 };
    quiet.measure(WARM_UP)?;
    process::say(&())?;
    for line in io::stdin().lines() {
        let latencies = quiet.measure(Duration::from_secs(line?.parse()?))?;
        process::say(&latencies)?;
    }
    Ok(())
}

impl Quiet {
    fn measure(&mut self, span: Duration) -> anyhow::Result<Latencies> {
        let mut latencies = Histogram::<u64>::new(3)?;
        self.groups_lost = 0;
        let mut due = Instant::now();
        let end = due + span;
        while due < end {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let start = Instant::now();
            self.send_until_answered(start)?;
            latencies.record_correct(start.elapsed().as_nanos() as u64, PERIOD.as_nanos() as u64)?;
            due = (due + PERIOD).max(Instant::now());
        }
        let us = |ns: u64| ns as f64 / 1e3;
        Ok(Latencies {
            p50_us: us(latencies.value_at_quantile(0.5)),
            p99_us: us(latencies.value_at_quantile(0.99)),
            max_us: us(latencies.max()),
            groups_lost: self.groups_lost,
        })
    }

    /// Sends a message, in new groups if the old ones end, until it is back.
    fn send_until_answered(&mut self, start: Instant) -> anyhow::Result<()> {
        while self.groups.round_trip().is_err() {
            self.groups_lost += 1;
            self.groups = self.open_groups(start)?;
        }
        Ok(())
    }

    fn open_groups(&mut self, start: Instant) -> anyhow::Result<Groups> {
        loop {
            let group = self.next_group;
            self.next_group += 2;
            match Groups::open(&self.node, &self.outside, group) {
                Ok(groups) => return Ok(groups),
                Err(error) if start.elapsed() > SERVICE_TIMEOUT => {
                    return Err(error).context("the daemon does not serve the quiet user any more");
                }
                Err(_) => thread::sleep(PERIOD),
            }
        }
    }
}

impl Groups {
    /// Makes the groups `first` and `first + 1`.
    fn open(node: &Node, outside: &Node, first: u32) -> Result<Self, NodeError> {
        let members = vec![node.address(), outside.address()];
        let there = GroupSettings { group: GroupId(first), ..GroupSettings::new(members.clone()) };
        let back = GroupSettings { group: GroupId(first + 1), root: 1, ..GroupSettings::new(members) };
        let groups = Self { there: node.group(&there)?, back: node.group(&back)? };
        let (from, to) = (outside.group(&there)?, outside.group(&back)?);
        thread::spawn(move || {
            while let Ok(Some(message)) = from.receive(None) {
                if to.send(&message).is_err() {
                    return;
                }
            }
        });
        groups.there.wait_until_ready(Some(ANSWER_TIMEOUT))?;
        groups.back.wait_until_ready(Some(ANSWER_TIMEOUT))?;
        Ok(groups)
    }

    fn round_trip(&self) -> Result<(), NodeError> {
        self.there.send(&[0; MESSAGE_BYTES])?;
        self.back.receive(Some(ANSWER_TIMEOUT)).map(|_| ())
    }
}
