//! `treecast node`: a node without an application.

mod entry;
mod transfer;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Weak};

use anyhow::bail;
use clap::{ArgGroup, Args};
use treecast_node::{
    AbortReason, Ending, EngineChoice, Eviction, Group, GroupSettings, Node, NodeError, NodeSettings, PORT,
    PortRange,
};
use treecast_terms::{Key, Keyed};

pub(super) use self::entry::TOKEN_VARIABLE;
use self::entry::{check_role, enter, node_settings};
use self::transfer::{Command, Input, Out, receive, report_counters, send};
use crate::arguments::whole_number;
use crate::interrupt::end_on_signals;
use crate::output::print_message;

#[derive(Debug, Args)]
#[command(
    override_usage = "treecast node --listen ADDRESS --count N --send FILE|- [OPTIONS]
       treecast node --join ADDRESS [--receive FILE|-] [OPTIONS]
       treecast node --members FILE [--send FILE|-] [--receive FILE|-] [OPTIONS]
       treecast node --engine ebpf [--socket PATH] [--policy FILE] [--bind ADDRESS]",
    group = ArgGroup::new("way"),
    after_help = after_help()
)]
pub struct Arguments {
    /// Be the root, and listen for the other members at this TCP address: host:port
    #[arg(long, value_name = "ADDRESS", group = "way", requires = "count")]
    listen: Option<String>,

    /// The number of members, the root included
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(1, 4_096), requires = "listen")]
    #[arg(allow_negative_numbers = true)]
    count: Option<u32>,

    /// Join the group of the root that listens, or will listen, at this address
    #[arg(long, value_name = "ADDRESS", group = "way", conflicts_with_all = ["send", "set"])]
    join: Option<String>,

    /// Create the group from a list of members in a file, one host:port or hostlist such as
    /// n[1-16]:7000 per line, the same at every member; the first is the root
    ///
    /// With slots=4 behind it, each host of a line has four members: processes that share a node.
    /// Instead of a file, slurm stands for the hosts of this Slurm job.
    #[arg(long, value_name = "FILE", group = "way")]
    members: Option<PathBuf>,

    /// At the root: the file to send, - for standard input; each read becomes one message
    #[arg(long, value_name = "FILE")]
    send: Option<PathBuf>,

    /// The file for received messages, concatenated, - for standard output [default: discard them]
    #[arg(long, value_name = "FILE")]
    receive: Option<PathBuf>,

    /// The packet engine: auto, user or ebpf
    ///
    /// Without a group: run as the daemon of this host, which serves other processes, by default
    /// with the engine ebpf. With a group: auto is the daemon, if there is one, and otherwise user.
    #[arg(long, value_name = "ENGINE")]
    engine: Option<EngineChoice>,

    /// The daemon's socket [default: the variable `TREECAST_SOCKET`, or /run/treecast/node.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// For a daemon: the users that may create groups, and their limits [default: this user and
    /// root]
    #[arg(long, value_name = "FILE", conflicts_with = "way")]
    policy: Option<PathBuf>,

    /// The UDP address of the node
    ///
    /// By default all addresses and a free port, for a daemon port 7700; with --members the address
    /// in the file that belongs to this machine.
    #[arg(long, value_name = "ADDRESS", value_parser = socket_address)]
    bind: Option<SocketAddr>,

    /// The ports that a firewall lets pass, such as 7000-7099: the node takes the first free one,
    /// if its address has none
    #[arg(long, value_name = "RANGE")]
    ports: Option<PortRange>,

    /// With --join: the member number to request [default: any]
    ///
    /// With --members: which member this process is, where a host of the file has several.
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(0, 4_095), requires = "way")]
    #[arg(conflicts_with = "listen", allow_negative_numbers = true)]
    member: Option<u32>,

    /// Share one node with the processes of this user on this host that give the same text: each is
    /// a member, and what comes is stored once for all of them
    #[arg(long, value_name = "TEXT", requires = "way", conflicts_with = "members")]
    share: Option<String>,

    /// The name of this node in messages, and of its host in the root's --fabric [default: the host
    /// name]
    #[arg(long, value_name = "NAME", conflicts_with = "members")]
    name: Option<String>,

    /// A file with the token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Do without a token: any host that reaches the members can take part
    #[arg(long, conflicts_with = "token_file")]
    insecure: bool,

    /// At the root: the plan to carry out, as `treecast plan --format json` writes it [default: one
    /// for the expected length of messages]
    #[arg(long, value_name = "FILE", conflicts_with = "join")]
    plan: Option<PathBuf>,

    /// At the root: the racks and switches, for the tree: a file, such as Slurm's topology.conf or
    /// an inventory of hosts and racks, with the members' hosts by their names in --members, or by
    /// --name
    #[arg(long, value_name = "FILE", conflicts_with_all = ["join", "plan"])]
    fabric: Option<String>,

    /// At the root: the measured costs of the network, a file that `treecast tune` has written, by
    /// which the tree is chosen [default: the variable `TREECAST_NETWORK`, or costs seen in a lab]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["join", "plan"])]
    network: Option<PathBuf>,

    /// How many seconds to wait for other members
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = whole_number::<u64>(1, 1_000_000), allow_negative_numbers = true)]
    wait: u64,

    /// A setting of the group; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

fn after_help() -> String {
    let defaults = GroupSettings::new(Vec::new());
    let keys =
        GroupSettings::keys().iter().filter(|key| !["token", "insecure", "member"].contains(&key.name));
    let line = |key: &Key<GroupSettings>| {
        let setting = format!("{}={}", key.name, key.value(&defaults));
        format!("  {setting:<22} {}\n", key.about)
    };
    format!(
        "Examples, the first at the root, the second at two other members:
  treecast node --listen 0.0.0.0:7000 --count 3 --send -
  treecast node --join 10.0.0.1:7000 --receive -

and, as root, a daemon that lets unprivileged processes use the kernel's packet path:
  treecast node --engine ebpf

The token is a secret shared by all members. It is read from --token-file or from the
variable TREECAST_TOKEN. A root that listens without one draws one and prints it; members
on one host need none.

Keys of --set, with their defaults:
{}
On an interrupt (Ctrl-C) or SIGTERM a member leaves its group, and the root aborts it.

Exit status: 0 success; 1 an output could not be written; 2 invalid arguments or input;
5 members are missing or were lost, or messages are missing.

docs/node.md says more.",
        keys.map(line).collect::<String>()
    )
}

/// The exit status if members or messages are missing, which has been reported.
const INCOMPLETE: u8 = 5;

impl Arguments {
    /// Whether this is a member of a group, not a daemon.
    pub fn has_group(&self) -> bool {
        self.listen.is_some() || self.join.is_some() || self.members.is_some()
    }
}

fn socket_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "an IP address and a port, such as 192.0.2.1:7700")
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    if arguments.has_group() {
        return take_part(arguments);
    }
    if arguments.engine.is_none() && arguments.socket.is_none() && arguments.policy.is_none() {
        bail!("--listen, --join or --members is missing; to run a daemon, give --engine ebpf");
    }
    let is_for_groups = arguments.send.is_some()
        || arguments.receive.is_some()
        || arguments.plan.is_some()
        || arguments.fabric.is_some()
        || arguments.network.is_some()
        || !arguments.set.is_empty();
    let has_token = arguments.token_file.is_some() || arguments.insecure;
    if is_for_groups || has_token || arguments.name.is_some() {
        bail!(
            "--send, --receive, --plan, --fabric, --network, --set, --token-file, --insecure and --name are for groups, and a daemon is not a member of any"
        );
    }
    let bind = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), PORT);
    let daemon = NodeSettings {
        engine: arguments.engine.unwrap_or(EngineChoice::Ebpf),
        ..node_settings(arguments, bind)
    };
    super::daemon::run(&daemon, arguments.policy.as_deref())
}

/// Runs one member of a group.
fn take_part(arguments: &Arguments) -> anyhow::Result<u8> {
    let mut out = Out::open(arguments.receive.as_deref())?;
    let input = arguments.send.as_deref().map(Input::open).transpose()?;
    let (node, group) = match enter(arguments, input.as_ref()) {
        Ok(entered) => entered,
        Err(error) => return incomplete(error, &[]),
    };
    // Datagrams that arrived before the node knew the group do not count as strays.
    let strays = strays_of(&node);
    let (commands, queue) = sync_channel(2);
    end_on_signal(Arc::downgrade(&group), commands.clone())?;
    check_role(group.is_root(), group.settings().root, input.is_some())?;
    let done = match input {
        Some(input) => send(&group, input, commands, &queue),
        None => receive(&group, &mut out),
    };
    let allowed: &[Ending] =
        if arguments.receive.is_none() { &[Ending::Evicted(Eviction::Left)] } else { &[] };
    let status = done.or_else(|error| incomplete(error, allowed))?;
    let strays = strays_of(&node).zip(strays).map(|(now, before)| now - before);
    report_counters(group.counters(), strays);
    if status == 0 {
        out.keep()?;
    }
    Ok(status)
}

/// The exit status for an incomplete group, 0 for an ending that is allowed; passes on other
/// errors.
fn incomplete(error: anyhow::Error, allowed: &[Ending]) -> anyhow::Result<u8> {
    let is_allowed = match error.downcast_ref() {
        Some(NodeError::Ended(ending)) => allowed.contains(ending),
        Some(NodeError::Incomplete(_) | NodeError::JoinFailed { .. } | NodeError::GroupFailed(_)) => false,
        _ => return Err(error),
    };
    print_message(&error.to_string());
    Ok(if is_allowed { 0 } else { INCOMPLETE })
}

/// The first signal ends the group, a later one the process.
fn end_on_signal(group: Weak<Group>, commands: SyncSender<Command>) -> anyhow::Result<()> {
    let end_group = move || {
        let Some(group) = group.upgrade() else { process::exit(INCOMPLETE.into()) };
        group.abort_because(AbortReason::Interrupted);
        // If the queue is full, the sending thread learns it from the group.
        let _ = commands.try_send(Command::Stop);
    };
    end_on_signals(INCOMPLETE, end_group)
}

fn strays_of(node: &Node) -> Option<u64> {
    Some(node.strays()?.values().map(|(_, count)| count).sum())
}
