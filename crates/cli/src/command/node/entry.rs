//! How the command becomes a member of a group.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use treecast_fabric::RoutingPolicy;
use treecast_node::{
    Group, GroupSettings, JoinOptions, Listener, Member, Nanoseconds, Node, NodeError, NodeSettings,
    draw_token, find_here, parse_members, read_members, read_plan, resolve,
};
use treecast_terms::Keyed;

use super::Arguments;
use super::transfer::{Input, MESSAGE_BYTES_MAX};
use crate::arguments::{SLURM, fabric, or_of_slurm};
use crate::output::print_message;

/// The variable with the token.
pub(in crate::command) const TOKEN_VARIABLE: &str = "TREECAST_TOKEN";

/// The maximum size of a token file.
const TOKEN_BYTES_MAX: u64 = 4_096;

/// Opens the node, and creates or joins the group.
pub fn enter(arguments: &Arguments, input: Option<&Input>) -> anyhow::Result<(Node, Arc<Group>)> {
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

pub fn node_settings(arguments: &Arguments, bind: SocketAddr) -> NodeSettings {
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
