//! `treecast node`: a node without an application.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{mem, process};

use anyhow::{Context, anyhow, bail};
use clap::{ArgGroup, Args};
use treecast_fabric::RoutingPolicy;
use treecast_node::{
    Ending, EngineChoice, Eviction, Group, GroupCounters, GroupSettings, JoinOptions, Listener, Lost, Member,
    Nanoseconds, Node, NodeError, NodeSettings, PORT, draw_token, find_here, parse_members, read_members,
    read_plan, resolve,
};
use treecast_terms::{Key, Keyed};

use crate::arguments::{SLURM, fabric, or_of_slurm, whole_number};
use crate::output::{NotWritten, OutFile, print_message};

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

    /// Create the group from a list of members in a file, one host:port or hostlist such as n[1-16]:7000
    /// per line, the same at every member; the first is the root
    ///
    /// With slots=4 behind it, each host of a line has four members: processes that share a node. Instead
    /// of a file, slurm stands for the hosts of this Slurm job.
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

    /// For a daemon: the users that may create groups, and their limits [default: this user and root]
    #[arg(long, value_name = "FILE", conflicts_with = "way")]
    policy: Option<PathBuf>,

    /// The UDP address of the node
    ///
    /// By default all addresses and a free port, for a daemon port 7700; with --members the address
    /// in the file that belongs to this machine.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<SocketAddr>,

    /// With --join: the member number to request [default: any]
    ///
    /// With --members: which member this process is, where a host of the file has several.
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(0, 4_095), requires = "way")]
    #[arg(conflicts_with = "listen", allow_negative_numbers = true)]
    member: Option<u32>,

    /// The name of this node in messages, and of its host in the root's --fabric [default: the host name]
    #[arg(long, value_name = "NAME", conflicts_with = "members")]
    name: Option<String>,

    /// A file with the token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Do without a token: any host that reaches the members can take part
    #[arg(long, conflicts_with = "token_file")]
    insecure: bool,

    /// At the root: the plan to carry out, as `treecast plan --format json` writes it [default: one for
    /// the expected length of messages]
    #[arg(long, value_name = "FILE", conflicts_with = "join")]
    plan: Option<PathBuf>,

    /// At the root: the racks and switches, for the tree: a file, such as Slurm's topology.conf or an
    /// inventory of hosts and racks, with the members' hosts by their names in --members, or by --name
    #[arg(long, value_name = "FILE", conflicts_with_all = ["join", "plan"])]
    fabric: Option<String>,

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
    let keys = GroupSettings::keys().iter().filter(|key| !["token", "insecure"].contains(&key.name));
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

/// The maximum size of a message, in bytes.
const MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// The variable with the token.
pub(super) const TOKEN_VARIABLE: &str = "TREECAST_TOKEN";

/// The maximum size of a token file.
const TOKEN_BYTES_MAX: u64 = 4_096;

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let has_group = arguments.listen.is_some() || arguments.join.is_some() || arguments.members.is_some();
    if has_group {
        return take_part(arguments);
    }
    if arguments.engine.is_none() && arguments.socket.is_none() && arguments.policy.is_none() {
        bail!("--listen, --join or --members is missing; to run a daemon, give --engine ebpf");
    }
    let is_for_groups = arguments.send.is_some()
        || arguments.receive.is_some()
        || arguments.plan.is_some()
        || arguments.fabric.is_some()
        || !arguments.set.is_empty();
    let has_token = arguments.token_file.is_some() || arguments.insecure;
    if is_for_groups || has_token || arguments.name.is_some() {
        bail!(
            "--send, --receive, --plan, --fabric, --set, --token-file, --insecure and --name are for groups, and a daemon is not a member of any"
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
    let done = match (group.is_root(), input) {
        (true, Some(input)) => send(&group, input, commands, &queue),
        (false, None) => receive(&group, &mut out),
        (true, None) => Err(anyhow!("--send is missing: this is the root, and only the root sends")),
        (false, Some(_)) => Err(anyhow!("--send is for the root, which is member {}", group.settings().root)),
    };
    let allowed: &[Ending] =
        if arguments.receive.is_none() { &[Ending::Evicted(Eviction::Left)] } else { &[] };
    let status = done.or_else(|error| incomplete(error, allowed))?;
    report_counters(&group.counters(), strays_of(&node) - strays);
    if status == 0 {
        out.keep()?;
    }
    Ok(status)
}

/// The exit status for an incomplete group, 0 for an ending that is allowed; passes on other errors.
fn incomplete(error: anyhow::Error, allowed: &[Ending]) -> anyhow::Result<u8> {
    let is_allowed = match error.downcast_ref() {
        Some(NodeError::Ended(ending)) => allowed.contains(ending),
        Some(NodeError::Incomplete(_) | NodeError::JoinFailed { .. }) => false,
        _ => return Err(error),
    };
    print_message(&error.to_string());
    Ok(if is_allowed { 0 } else { INCOMPLETE })
}

/// Opens the node, and creates or joins the group.
fn enter(arguments: &Arguments, input: Option<&Input>) -> anyhow::Result<(Node, Arc<Group>)> {
    let token = token(arguments.token_file.as_deref())?;
    let timeout = Some(Duration::from_secs(arguments.wait));
    let (node, group) = if let Some(root) = &arguments.join {
        let mut options = JoinOptions::new(resolve(root)?, token);
        options.insecure = arguments.insecure;
        options.member = arguments.member;
        options.timeout = timeout;
        options.name = arguments.name.clone().unwrap_or(options.name);
        let node = open(arguments, unspecified(options.root))?;
        let group = node.join_while(&options, &mut |news| {
            if let Some(news) = news {
                print_message(news);
            }
            true
        })?;
        (node, group)
    } else if let Some(file) = &arguments.members {
        let members = members(file)?;
        let settings = settings(arguments, members, token, input)?;
        let address = arguments.bind.map_or_else(|| find_here(&settings.members), Ok)?;
        let here = settings.members.iter().filter(|&&member| member == address).count();
        // Members at one address are processes of one host, which share a node.
        let share = (here > 1).then(|| format!("{address} {} {}", settings.group, settings.token));
        let settings = GroupSettings { member: arguments.member.map(|member| member as usize), ..settings };
        let node = Node::open(&NodeSettings { share, ..node_settings(arguments, address) })?;
        let group = node.group(&settings)?;
        (node, group)
    } else {
        let listen = resolve(arguments.listen.as_deref().unwrap_or_default())?;
        if input.is_none() {
            bail!("--send is missing: this is the root, and only the root sends");
        }
        let needs_token = token.is_empty() && !arguments.insecure && !listen.ip().is_loopback();
        let token = if needs_token { draw_token()? } else { token };
        let settings = settings(arguments, Vec::new(), token, input)?;
        let count = arguments.count.unwrap_or(1);
        settings.check(listen, count)?;
        let node = open(arguments, unspecified(listen))?;
        let mut listener = Listener::bind(listen, count)?;
        listener.timeout = timeout;
        listener.name = arguments.name.clone().unwrap_or(listener.name);
        print_message(&format!("waiting for members at {}", listener.address()));
        if needs_token {
            print_message(&format!(
                "no token was given, so one was drawn: set TREECAST_TOKEN={} at the other members",
                settings.token
            ));
        }
        let group = node.listen_while(listener, &settings, &mut |status| {
            if let Some(status) = status {
                print_message(&status.to_string());
            }
            true
        })?;
        (node, group)
    };
    Ok((node, Arc::new(group)))
}

/// The members in a file, or on the hosts of the Slurm job.
fn members(file: &Path) -> anyhow::Result<Vec<Member>> {
    if file != Path::new(SLURM) {
        return Ok(read_members(file)?);
    }
    Ok(parse_members(&or_of_slurm(SLURM)?, SLURM)?)
}

fn open(arguments: &Arguments, bind: SocketAddr) -> Result<Node, NodeError> {
    Node::open(&node_settings(arguments, bind))
}

fn node_settings(arguments: &Arguments, bind: SocketAddr) -> NodeSettings {
    let mut settings = NodeSettings {
        bind: arguments.bind.unwrap_or(bind),
        engine: arguments.engine.unwrap_or_default(),
        socket: arguments.socket.clone(),
        ..NodeSettings::default()
    };
    // Members from a file may start as late as members that join.
    settings.protocol.join_timeout = Nanoseconds::from_ms(arguments.wait * 1_000);
    settings
}

/// The unspecified address of the same family, and a free port.
fn unspecified(like: SocketAddr) -> SocketAddr {
    let ip =
        if like.is_ipv6() { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    SocketAddr::new(ip, 0)
}

fn settings(
    arguments: &Arguments,
    members: Vec<Member>,
    token: String,
    input: Option<&Input>,
) -> anyhow::Result<GroupSettings> {
    let insecure = arguments.insecure;
    let mut settings = GroupSettings { token, insecure, ..GroupSettings::of(members) };
    if let Some(length) = input.and_then(|input| input.length) {
        settings.message_bytes = length.clamp(1, MESSAGE_BYTES_MAX as u64);
    }
    if let Some(file) = &arguments.plan {
        settings = settings.with_plan(read_plan(file)?);
    }
    if let Some(text) = &arguments.fabric {
        settings = settings.with_fabric(fabric(text, RoutingPolicy::Auto)?);
    }
    for setting in &arguments.set {
        if setting.starts_with("token") {
            bail!("other users can read command lines: give the token by --token-file or TREECAST_TOKEN");
        }
        settings.set_all(setting)?;
    }
    Ok(settings)
}

fn token(file: Option<&Path>) -> anyhow::Result<String> {
    let Some(path) = file else {
        let token = std::env::var_os(TOKEN_VARIABLE).unwrap_or_default();
        return OsString::into_string(token).ok().context("TREECAST_TOKEN is not valid UTF-8");
    };
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text));
    read.with_context(|| format!("{} could not be read", path.display()))?;
    let token = text.trim();
    if token.is_empty() || text.len() as u64 > TOKEN_BYTES_MAX {
        bail!("{} holds no token: a word of up to {TOKEN_BYTES_MAX} bytes", path.display());
    }
    Ok(token.into())
}

/// The first signal ends the group, the second ends the process.
fn end_on_signal(group: Weak<Group>, commands: SyncSender<Command>) -> anyhow::Result<()> {
    let mut is_first = true;
    let on_signal = move || match group.upgrade().filter(|_| mem::take(&mut is_first)) {
        Some(group) => {
            group.abort();
            // If the queue is full, the sending thread learns it from the group.
            let _ = commands.try_send(Command::Stop);
        }
        None => process::exit(INCOMPLETE.into()),
    };
    ctrlc::set_handler(on_signal).context("cannot install signal handlers")
}

/// The data to send.
struct Input {
    name: String,
    /// In bytes; `None` for a pipe or a device.
    length: Option<u64>,
    bytes: Box<dyn Read + Send>,
}

impl Input {
    fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { name: "standard input".into(), length: None, bytes: Box::new(io::stdin()) });
        }
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("{name} could not be read"))?;
        let length = file.metadata().ok().filter(Metadata::is_file).map(|found| found.len());
        Ok(Self { name, length, bytes: Box::new(file) })
    }

    /// Passes the data on, piece by piece, until its end or until the receiver is dropped.
    fn feed(mut self, commands: &SyncSender<Command>) {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        loop {
            let next = match self.bytes.read(&mut buffer) {
                Ok(0) => Command::End,
                Ok(length) => Command::Piece(buffer[..length].to_vec()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Command::Failed(anyhow!("{} could not be read: {error}", self.name)),
            };
            let is_last = !matches!(next, Command::Piece(_));
            if commands.send(next).is_err() || is_last {
                return;
            }
        }
    }
}

/// A command to the sending thread of the root.
enum Command {
    Piece(Vec<u8>),
    End,
    Failed(anyhow::Error),
    Stop,
}

/// The root: sends all data, and closes the group.
fn send(
    group: &Group,
    input: Input,
    commands: SyncSender<Command>,
    queue: &Receiver<Command>,
) -> anyhow::Result<u8> {
    let lost = group.wait_until_ready(None)?;
    report_ready(group);
    report_lost(&lost);
    let reported_count = lost.len();
    std::thread::spawn(move || input.feed(&commands));
    let mut messages = 0_u64;
    let mut bytes = 0;
    loop {
        match queue.recv().unwrap_or(Command::Stop) {
            Command::Piece(piece) => {
                group.send(&piece)?;
                messages += 1;
                bytes += piece.len() as u64;
            }
            Command::End => break,
            Command::Failed(error) => {
                group.abort();
                return Err(error);
            }
            Command::Stop => return Err(NodeError::Ended(Ending::Aborted).into()),
        }
    }
    let lost = group.close(None)?;
    report_lost(&lost[reported_count..]);
    print_message(&format!("sent {messages} messages, {bytes} bytes"));
    Ok(if lost.is_empty() { 0 } else { INCOMPLETE })
}

/// Any other member: receives until the root closes the group.
fn receive(group: &Group, out: &mut Out) -> anyhow::Result<u8> {
    group.wait_until_ready(None)?;
    report_ready(group);
    let mut messages = 0_u64;
    let mut bytes = 0;
    loop {
        let mut written = Ok(());
        let took = |_, part: &[u8]| {
            if written.is_ok() {
                written = out.write_all(part);
            }
        };
        let Some(length) = group.receive_with(None, u64::MAX, took)? else { break };
        if let Err(error) = written.and_then(|()| out.flush()) {
            group.abort();
            return Err(anyhow::Error::new(error).context(NotWritten(out.path())));
        }
        messages += 1;
        bytes += length;
    }
    print_message(&format!("received {messages} messages, {bytes} bytes; the group is closed"));
    Ok(0)
}

fn report_ready(group: &Group) {
    let settings = group.settings();
    let member = group.member().unwrap_or_default();
    let root = settings.root;
    let role = match settings.members.get(root) {
        Some(address) if member as usize != root => format!("the root is member {root} at {address}"),
        _ => match group.scheme() {
            Some(scheme) => format!("the root; scheme {scheme}"),
            None => "the root".into(),
        },
    };
    let mtu = settings.mtu_bytes.filter(|_| group.is_root()).map(|bytes| format!("; MTU {bytes} bytes"));
    let role = role + &mtu.unwrap_or_default();
    print_message(&format!("ready: member {member} of {}; {role}", settings.members.len()));
}

fn report_lost(all: &[Lost]) {
    for lost in all {
        print_message(&lost.to_string());
    }
}

fn report_counters(counters: &GroupCounters, strays: u64) {
    let GroupCounters { accepted, sent, retransmitted, .. } = counters;
    // A node that has left its group has no counters.
    if *counters != GroupCounters::default() {
        print_message(&format!("packets: {accepted} received, {sent} sent, {retransmitted} retransmitted"));
    }
    if strays > 0 {
        print_message(&format!("{strays} datagrams belonged to no group"));
    }
}

fn strays_of(node: &Node) -> u64 {
    node.strays().values().map(|(_, count)| count).sum()
}

/// The destination of received messages.
enum Out {
    Discard,
    Standard,
    File(PathBuf, OutFile),
}

impl Out {
    fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        Ok(match path {
            None => Self::Discard,
            Some(path) if path == Path::new("-") => Self::Standard,
            Some(path) => Self::File(path.into(), OutFile::create(path)?),
        })
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::Discard | Self::Standard => "standard output".into(),
            Self::File(path, _) => path.clone(),
        }
    }

    /// Moves the complete file to its path.
    fn keep(self) -> anyhow::Result<()> {
        match self {
            Self::File(path, file) => file.keep().with_context(|| NotWritten(path)),
            Self::Discard | Self::Standard => Ok(()),
        }
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Discard => Ok(bytes.len()),
            Self::Standard => io::stdout().write(bytes),
            Self::File(_, file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Discard | Self::File(..) => Ok(()),
            Self::Standard => io::stdout().flush(),
        }
    }
}
