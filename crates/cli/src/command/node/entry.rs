//! How the command becomes a member of a group.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use treecast_fabric::RoutingPolicy;
use treecast_node::{
    Group, GroupSettings, JoinOptions, Listener, Member, Nanoseconds, Node, NodeError, NodeSettings,
    draw_token, find_here, parse_members, read_members, read_plan, resolve,
};
use treecast_terms::Keyed;

use super::Arguments;
use super::transfer::{Input, MESSAGE_BYTES_MAX};
use crate::arguments::{SLURM, SLURM_VARIABLE, fabric, network, or_of_slurm};
use crate::output::print_note;

/// The variable with the token.
pub(in crate::command) const TOKEN_VARIABLE: &str = "TREECAST_TOKEN";

/// The maximum size of a token file.
const TOKEN_BYTES_MAX: u64 = 4_096;

/// Opens the node, and creates or joins the group.
pub fn enter(arguments: &Arguments, input: Option<&Input>) -> anyhow::Result<(Node, Arc<Group>)> {
    let token = token(arguments.token_file.as_deref())?;
    let timeout = Some(Duration::from_secs(arguments.wait));
    let (node, group) = if let Some(root) = &arguments.join {
        if input.is_some() {
            bail!("--send is for the root, and this process joins a group");
        }
        let mut options = JoinOptions::new(resolve(root)?, token);
        options.insecure = arguments.insecure;
        options.member = arguments.member;
        options.timeout = timeout;
        options.name = arguments.name.clone().unwrap_or(options.name);
        let node = open(arguments, unspecified(options.root))?;
        print_note(&format!("waiting for the root at {}", options.root));
        let group = node.join_while(&options, &mut |news| {
            if let Some(news) = news {
                print_note(news);
            }
            true
        })?;
        (node, group)
    } else if let Some(file) = &arguments.members {
        let settings = settings(arguments, members(file)?, token, input)?;
        let address = arguments.bind.map_or_else(|| find_here(&settings.members), Ok)?;
        let here = members_at(address, &settings.members);
        let own = own_number(&here, arguments.member, address)?;
        if let Some(own) = own {
            check_role(own == settings.root, settings.root, input.is_some())?;
        }
        // Members at one address are processes of one host, which share a node.
        let share = (here.len() > 1).then(|| format!("{address} {} {}", settings.group, settings.token));
        let settings = GroupSettings { member: own, ..settings };
        let node = Node::open(&NodeSettings { share, ..node_settings(arguments, address) });
        let node = node.map_err(|error| match error {
            NodeError::Bind { is_shared: true, ref source, .. } if source.kind() == ErrorKind::AddrInUse => anyhow!(
                "cannot listen at {address}: {source}: if another process of this host has the node, both need the same user, the same token, and the same group of --set"
            ),
            error => error.into(),
        })?;
        let group = node.group(&settings)?;
        (node, group)
    } else {
        let listen = resolve(arguments.listen.as_deref().unwrap_or_default())?;
        check_role(true, 0, input.is_some())?;
        let needs_token = token.is_empty() && !arguments.insecure && !listen.ip().is_loopback();
        let token = if needs_token { draw_token()? } else { token };
        let settings = settings(arguments, Vec::new(), token, input)?;
        let count = arguments.count.unwrap_or(1);
        settings.check(listen, count)?;
        let node = open(arguments, unspecified(listen))?;
        let mut listener = Listener::bind(listen, count)?;
        listener.timeout = timeout;
        listener.name = arguments.name.clone().unwrap_or(listener.name);
        print_note(&format!("waiting for members at {}", listener.address()));
        if needs_token {
            print_note(&format!(
                "no token was given, so one was drawn: set TREECAST_TOKEN={} at the other members",
                settings.token
            ));
        }
        let group = node.listen_while(listener, &settings, &mut |status| {
            if let Some(status) = status {
                print_note(&status.to_string());
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
    Ok(parse_members(&or_of_slurm(SLURM, "a file of members")?, SLURM_VARIABLE)?)
}

/// The numbers of the members whose node listens at an address, or, for the unspecified address, at
/// one of this machine with its port.
fn members_at(address: SocketAddr, members: &[SocketAddr]) -> Vec<usize> {
    let with_port = || members.iter().copied().filter(|member| member.port() == address.port());
    let address = if address.ip().is_unspecified() {
        find_here(&with_port().collect::<Vec<_>>()).unwrap_or(address)
    } else {
        address
    };
    (0..members.len()).filter(|&member| members[member] == address).collect()
}

/// This process's number among the members at its address; `None` if there are none, which the node
/// reports.
fn own_number(here: &[usize], given: Option<u32>, address: SocketAddr) -> anyhow::Result<Option<usize>> {
    let list = || here.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (here, given.map(|given| given as usize)) {
        ([], _) => Ok(None),
        (&[one], None) => Ok(Some(one)),
        (_, Some(given)) if here.contains(&given) => Ok(Some(given)),
        (_, Some(given)) => {
            bail!("{address} is the address of members {}, and not of member {given}", list())
        }
        (_, None) => bail!(
            "{address} is the address of members {}: say which of them this process is, by --member N",
            list()
        ),
    }
}

/// Checks that the root, and no other member, has something to send.
pub fn check_role(is_root: bool, root: usize, has_input: bool) -> anyhow::Result<()> {
    match (is_root, has_input) {
        (true, false) => bail!("--send is missing: this is the root, and only the root sends"),
        (false, true) => bail!("--send is for the root, which is member {root}"),
        _ => Ok(()),
    }
}

fn open(arguments: &Arguments, bind: SocketAddr) -> Result<Node, NodeError> {
    Node::open(&node_settings(arguments, bind))
}

pub fn node_settings(arguments: &Arguments, bind: SocketAddr) -> NodeSettings {
    let mut settings = NodeSettings {
        bind: arguments.bind.unwrap_or(bind),
        ports: arguments.ports,
        engine: arguments.engine.unwrap_or_default(),
        socket: arguments.socket.clone(),
        share: arguments.share.clone(),
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
    if let Some(file) = &arguments.network {
        settings = settings.with_network(network(file)?);
    }
    for setting in &arguments.set {
        for key in setting.split_whitespace().filter_map(|setting| setting.split('=').next()) {
            match key {
                "token" => {
                    bail!(
                        "other users can read command lines: give the token by --token-file or TREECAST_TOKEN"
                    )
                }
                "member" => {
                    bail!("member is not a setting of the group: use --member")
                }
                _ => {}
            }
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
