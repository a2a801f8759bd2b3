//! `treecast status`: the nodes of this host, their groups, and how far the members are.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table};
use indicatif::DecimalBytes;
use treecast_node::status::{ChildDocument, Found, GroupDocument, MemberDocument, NodeDocument, find};
use treecast_plan::render::counted;

use crate::metrics::metrics;
use crate::output::{OutArguments, emit, plain, print_message};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  treecast status
  treecast status --watch
  treecast status --format json | jq '.[].groups[].children[]'
  treecast status --watch=15 --format prometheus --out node.prom
  treecast lab 4 -- treecast status

It shows the nodes of this user's processes and this user's groups at the daemon's node;
as root, all nodes. Those of other hosts, labs and containers are seen there. A node that
was opened with status=false is not shown. docs/status.md explains the columns.
Exit status: 0, also if there is no node.")]
pub struct Arguments {
    /// Show it again and again, with rates; every second, or at this interval
    ///
    /// A terminal is cleared each time; elsewhere, and with TERM=dumb, an empty line separates the
    /// tables.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", require_equals = true)]
    #[arg(value_parser = interval)]
    watch: Option<Duration>,

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
    /// JSON: a list of nodes, or with --watch one for each line
    Json,
    /// Metrics of Prometheus, such as the textfile collector of its node exporter reads
    Prometheus,
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or("a number of seconds from 0.1 to 3600")
}

/// The nodes at a time.
struct Sample {
    at: Instant,
    nodes: Vec<NodeDocument>,
}

impl Sample {
    fn take() -> anyhow::Result<Self> {
        let Found { nodes, silent } = find().context("the list of sockets could not be read")?;
        for process in silent {
            print_message(&format!("process {process} has a node and does not answer: it may be stopped"));
        }
        Ok(Self { at: Instant::now(), nodes })
    }

    /// The same group of the same node, if it was there.
    fn group(&self, node: &NodeDocument, group: u32) -> Option<&GroupDocument> {
        let is_same = |other: &&NodeDocument| (other.process, other.address) == (node.process, node.address);
        self.nodes.iter().find(is_same)?.groups.iter().find(|other| other.group == group)
    }
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let out = arguments.out.file();
    let mut sample = Sample::take()?;
    let Some(interval) = arguments.watch else {
        let text = match arguments.format {
            Format::Table => table(&sample, None),
            Format::Json => serde_json::to_string_pretty(&sample.nodes)? + "\n",
            Format::Prometheus => metrics(sample.nodes),
        };
        emit(out, &text)?;
        return Ok(0);
    };
    let is_screen = arguments.format == Format::Table && out.is_none() && has_screen();
    loop {
        std::thread::sleep(interval);
        let next = Sample::take()?;
        let text = match arguments.format {
            Format::Table => table(&next, Some(&sample)) + "\n",
            Format::Json => serde_json::to_string(&next.nodes)? + "\n",
            Format::Prometheus => metrics(next.nodes.clone()),
        };
        if is_screen {
            console::Term::stdout().clear_screen()?;
        }
        emit(out, &text)?;
        sample = next;
    }
}

/// Whether standard output can be cleared. Terminals that know no control sequences, such as those
/// of editors, have the type `dumb`.
fn has_screen() -> bool {
    let is_capable =
        std::env::var_os("TERM").is_some_and(|terminal| !terminal.is_empty() && terminal != "dumb");
    is_capable && std::io::stdout().is_terminal()
}

/// All nodes, and below them their groups. With a sample from before, rates too.
fn table(sample: &Sample, before: Option<&Sample>) -> String {
    if sample.nodes.is_empty() {
        return "no node of this user runs on this host\n".into();
    }
    let mut table = Table::new();
    table.set_header(["node", "engine", "user", "process", "open for", "groups"]);
    for node in &sample.nodes {
        table.add_row([
            node.address.to_string(),
            node.engine.clone(),
            user_name(node.user),
            format!("{} {}", node.process, node.program),
            format!("{:.0} s", node.seconds),
            node.groups.len().to_string(),
        ]);
    }
    let mut text = plain(table);
    for node in &sample.nodes {
        for group in &node.groups {
            text.push('\n');
            let rates = before.and_then(|before| {
                let seconds = (sample.at - before.at).as_secs_f64();
                Some(Rates::between(before.group(node, group.group)?, group, seconds))
            });
            text += &group_text(node, group, rates.as_ref());
        }
    }
    text
}

fn user_name(user: u32) -> String {
    let found = nix::unistd::User::from_uid(user.into()).ok().flatten();
    found.map_or_else(|| user.to_string(), |found| found.name)
}

/// Per second.
struct Rates {
    bytes: f64,
    packets: f64,
    retransmitted: f64,
}

impl Rates {
    fn between(before: &GroupDocument, now: &GroupDocument, seconds: f64) -> Self {
        let counter = |group: &GroupDocument, name| group.counters.get(name).copied().unwrap_or(0);
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        Self {
            bytes: rate(before.bytes, now.bytes),
            // Numbers of packets wrap.
            packets: f64::from(now.next.wrapping_sub(before.next)) / seconds,
            retransmitted: rate(counter(before, "retransmitted"), counter(now, "retransmitted")),
        }
    }
}

fn group_text(node: &NodeDocument, group: &GroupDocument, rates: Option<&Rates>) -> String {
    let mut text = format!("group {} at {}: ", group.group, node.address);
    let owner = group.owner.map(|owner| format!(", of {}", user_name(owner))).unwrap_or_default();
    let Some(member) = group.member else {
        let root = group.root.map(|root| root.to_string()).unwrap_or_default();
        let _ = writeln!(text, "waits for its place in the tree of {root}{owner}");
        return text;
    };
    match (group.root, group.parent) {
        (Some(root), Some(parent)) if root == parent => {
            let _ = write!(text, "member {member}, child of the root {root}");
        }
        (Some(root), parent) => {
            let parent = parent.map(|parent| format!(", parent {parent}")).unwrap_or_default();
            let _ = write!(text, "member {member} of the root {root}{parent}");
        }
        (None, _) => {
            let present = group.members.iter().filter(|member| member.lost.is_none()).count();
            let _ = write!(text, "root of {present} members");
        }
    }
    let place = if group.in_kernel { "in the kernel" } else { "in user space" };
    let closed = if group.closed { ", closed" } else { "" };
    // Groups with both carriers change from one to the other.
    let now = match group.on_streams.filter(|_| group.transport.as_deref() == Some("both")) {
        Some(true) => " (now on streams)",
        Some(false) => " (now in datagrams)",
        None => "",
    };
    let _ = writeln!(
        text,
        ", offload {}, {}{now}, {place}{closed}{owner}",
        group.offload.as_deref().unwrap_or("-"),
        group.transport.as_deref().unwrap_or("-"),
    );
    let counter = |name: &str| group.counters.get(name).copied().unwrap_or(0);
    let _ = writeln!(
        text,
        "  {} in all, {} not stable; {} sent, {} retransmitted, {}",
        DecimalBytes(group.bytes),
        counted(group.next.wrapping_sub(group.stable) as usize, "packet"),
        counted(counter("sent") as usize, "packet"),
        counter("retransmitted"),
        counted(counter("timeouts") as usize, "timeout"),
    );
    if let Some(Rates { bytes, packets, retransmitted }) = rates {
        let rate = DecimalBytes(*bytes as u64);
        let _ = writeln!(text, "  now {rate}/s, {packets:.0} packets/s, {retransmitted:.0} retransmitted/s");
    }
    if let Some(slowest) = group.slowest_child() {
        let ChildDocument { member, address, subtree_behind, .. } = slowest;
        let behind = counted(*subtree_behind as usize, "packet");
        let _ = writeln!(text, "  slowest: member {member} at {address} or below it, {behind} behind");
    }
    text += &member_lines(&group.members);
    if !group.children.is_empty() {
        text += &child_table(&group.children);
    }
    text
}

/// The members that are awaited or lost.
fn member_lines(members: &[MemberDocument]) -> String {
    let mut text = String::new();
    for MemberDocument { member, address, joined, lost, .. } in members {
        let _ = match (lost, joined) {
            (Some(why), _) => writeln!(text, "  lost: member {member} at {address}: {why}"),
            (None, false) => writeln!(text, "  awaited: member {member} at {address}"),
            (None, true) => Ok(()),
        };
    }
    text
}

fn child_table(children: &[ChildDocument]) -> String {
    let mut table = Table::new();
    table.set_header(["child", "address", "behind", "subtree", "in flight", "RTT, us", "silent, ms"]);
    for child in children {
        table.add_row([
            child.member.to_string(),
            child.address.to_string(),
            child.behind.to_string(),
            child.subtree_behind.to_string(),
            child.in_flight.to_string(),
            child.rtt_us.map_or("-".into(), |rtt| format!("{rtt:.0}")),
            child.silent_ms.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    textwrap::indent(&plain(table), " ")
}
