//! What groups of real processes need: sockets, buffers, a network.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt;
use treecast_node::{GroupSettings, Node, NodeError, NodeSettings};

use crate::doctor::report::Area::Groups;
use crate::doctor::report::Finding;
use crate::doctor::machine::{output, read, tool};

pub fn examine() -> Vec<Finding> {
    vec![udp(), ipv6(), receive_buffer(), send_buffer(), interfaces(), firewall(), processors()]
}

const PATIENCE: Option<Duration> = Some(Duration::from_secs(5));

/// Two nodes send each other a message that takes more than a packet.
fn broadcast(bind: &str) -> Result<(), NodeError> {
    let bind = bind.parse().map_err(|_| NodeError::Members(format!("{bind} is no address")))?;
    let open = || Node::open(&NodeSettings { bind, ..NodeSettings::default() });
    let (one, other) = (open()?, open()?);
    let settings = GroupSettings::new(vec![one.address(), other.address()]);
    let (root, member) = (one.group(&settings)?, other.group(&settings)?);
    root.send(&[0; 4_096])?;
    member.receive(PATIENCE)?;
    root.close(PATIENCE)?;
    Ok(())
}

fn udp() -> Finding {
    match broadcast("127.0.0.1:0") {
        Ok(()) => Finding::ok(Groups, "UDP", "two nodes have sent each other a message over loopback"),
        Err(error) => Finding::missing(
            Groups,
            "UDP",
            format!("two nodes on loopback do not reach each other: {error}"),
            "no group works on this machine",
        )
        .with_remedy(
            "ip link set lo up; and look at the rules of the firewall, and at seccomp in a container",
        ),
    }
}

fn ipv6() -> Finding {
    match broadcast("[::1]:0") {
        Ok(()) => Finding::ok(Groups, "IPv6", "two nodes have sent each other a message over ::1"),
        Err(error) => Finding::limited(Groups, "IPv6", error.to_string(), "groups work by IPv4 alone")
            .with_remedy("sysctl -w net.ipv6.conf.all.disable_ipv6=0, if this network has IPv6"),
    }
}

fn receive_buffer() -> Finding {
    let size = |socket: &UdpSocket, wanted: usize| {
        if sockopt::set_socket_recv_buffer_size_force(socket, wanted).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(socket, wanted);
        }
        sockopt::socket_recv_buffer_size(socket).unwrap_or_default()
    };
    let means = "when packets come in a burst, more of them overflow it, and are sent again";
    buffer("receive buffer", "net.core.rmem_max", size, means)
}

fn send_buffer() -> Finding {
    let size = |socket: &UdpSocket, wanted: usize| {
        let _ = sockopt::set_socket_send_buffer_size(socket, wanted);
        sockopt::socket_send_buffer_size(socket).unwrap_or_default()
    };
    let means = "a node that sends to many at once waits more often, or sends again";
    buffer("send buffer", "net.core.wmem_max", size, means)
}

/// What a socket gets of the buffer that nodes ask for. The kernel tells twice the size that may be filled.
fn buffer(name: &'static str, key: &str, size: impl Fn(&UdpSocket, usize) -> usize, means: &str) -> Finding {
    let wanted = NodeSettings::default().buffer_bytes;
    let got = UdpSocket::bind("127.0.0.1:0").map_or(0, |socket| size(&socket, wanted) / 2);
    let found = format!("{got} bytes, and nodes ask for {wanted}");
    if got >= wanted {
        return Finding::ok(Groups, name, format!("{got} bytes, as nodes ask for"));
    }
    Finding::limited(Groups, name, found, means).with_remedy(format!("as root: sysctl -w {key}={wanted}"))
}

/// The longest datagram that groups take every network to carry.
const MTU: u64 = 1_500;

fn interfaces() -> Finding {
    let mut found = interfaces_in(Path::new("/sys/class/net"));
    found.sort();
    let named: Vec<String> = found.iter().map(|(name, mtu)| format!("{name} {mtu}")).collect();
    let Some(&least) = found.iter().map(|(_, mtu)| mtu).min() else {
        return Finding::limited(
            Groups,
            "interfaces",
            "no network but loopback is up",
            "groups are of processes on this machine",
        );
    };
    let found = format!("packets in bytes (MTU): {}", named.join(", "));
    if least < MTU {
        let means = format!("groups over such a link need mtu_bytes={least}; otherwise sending says so");
        return Finding::limited(Groups, "interfaces", found, means)
            .with_remedy(format!("set mtu_bytes={least} of the group, at its root"));
    }
    Finding::ok(Groups, "interfaces", found)
}

/// Names and MTUs of those that are up, but for loopback.
fn interfaces_in(folder: &Path) -> Vec<(String, u64)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let interface = |entry: fs::DirEntry| {
        let number = |file: &str, radix| {
            let text = read(entry.path().join(file))?;
            u64::from_str_radix(text.trim_start_matches("0x"), radix).ok()
        };
        // Flags of if.h: up, loopback.
        let flags = number("flags", 16)?;
        let is_usable = flags & 1 != 0 && flags & 8 == 0;
        is_usable.then_some((entry.file_name().to_string_lossy().into_owned(), number("mtu", 10)?))
    };
    entries.flatten().filter_map(interface).collect()
}

fn firewall() -> Finding {
    // To ask nftables when it is not there would load it.
    if !Path::new("/sys/module/nf_tables").exists() {
        return Finding::ok(Groups, "firewall", "nftables is not in use");
    }
    let rules = tool("nft").and_then(|nft| output(&nft, &["list", "ruleset"]));
    match rules {
        Some(rules) if rules.trim().is_empty() => Finding::ok(Groups, "firewall", "nftables has no rules"),
        Some(rules) => {
            let count = rules.matches(" hook input ").count();
            if count == 0 {
                return Finding::ok(Groups, "firewall", "nftables has rules, and none for what comes in");
            }
            Finding::limited(
                Groups,
                "firewall",
                format!("nftables has {count} chains of rules for what comes in"),
                "they have to let in the UDP ports of nodes, and the TCP port at which the root listens",
            )
            .with_remedy("nft list ruleset shows them; give nodes a port by --bind, and let it in")
        }
        None => Finding::ok(Groups, "firewall", "nftables is there; its rules are shown to root alone"),
    }
}

fn processors() -> Finding {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if count > 1 {
        return Finding::ok(Groups, "processors", count.to_string());
    }
    Finding::limited(Groups, "processors", "1", "a node forwards only when the program that computes lets it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_held_to_what_nodes_ask_for() {
        let wanted = NodeSettings::default().buffer_bytes;
        let small = buffer("receive buffer", "net.core.rmem_max", |_, wanted| wanted, "why");
        assert_eq!(small.state, crate::doctor::report::State::Limited);
        assert_eq!(small.remedy.unwrap(), format!("as root: sysctl -w net.core.rmem_max={wanted}"));
        let enough = buffer("send buffer", "net.core.wmem_max", |_, wanted| 2 * wanted, "why");
        assert_eq!(enough.state, crate::doctor::report::State::Ok);
    }
}
