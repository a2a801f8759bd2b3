//! The requirements of groups of real processes: sockets, buffers, a network.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt;
use treecast_node::{GroupSettings, Node, NodeError, NodeSettings};

use crate::doctor::machine::{output, read, tool};
use crate::doctor::report::Area::Groups;
use crate::doctor::report::Finding;

pub fn examine() -> Vec<Finding> {
    vec![udp(), ipv6(), receive_buffer(), send_buffer(), interfaces(), firewall(), processors()]
}

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));

/// One node sends another a message of more than one packet.
fn broadcast(bind: &str) -> Result<(), NodeError> {
    let bind = bind.parse().map_err(|_| NodeError::Members(format!("{bind} is not an address")))?;
    let open = || Node::open(&NodeSettings { bind, ..NodeSettings::default() });
    let sender = open()?;
    let receiver = open()?;
    let settings = GroupSettings::new(vec![sender.address(), receiver.address()]);
    let root = sender.group(&settings)?;
    let member = receiver.group(&settings)?;
    root.send(&[0; 4_096])?;
    member.receive(TIMEOUT)?;
    root.close(TIMEOUT)?;
    Ok(())
}

fn udp() -> Finding {
    match broadcast("127.0.0.1:0") {
        Ok(()) => Finding::ok(Groups, "UDP", "one node sent another a message over loopback"),
        Err(error) => Finding::missing(
            Groups,
            "UDP",
            format!("two nodes on loopback cannot communicate: {error}"),
            "groups do not work on this machine",
        )
        .with_fix(
            "ip link set lo up; then check the firewall rules and, in a container, the seccomp profile",
        ),
    }
}

fn ipv6() -> Finding {
    match broadcast("[::1]:0") {
        Ok(()) => Finding::ok(Groups, "IPv6", "one node sent another a message over ::1"),
        Err(error) => Finding::limited(Groups, "IPv6", error.to_string(), "groups work over IPv4 only")
            .with_fix("sysctl -w net.ipv6.conf.all.disable_ipv6=0, if this network has IPv6"),
    }
}

fn receive_buffer() -> Finding {
    let size = |socket: &UdpSocket, wanted: usize| {
        if sockopt::set_socket_recv_buffer_size_force(socket, wanted).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(socket, wanted);
        }
        sockopt::socket_recv_buffer_size(socket).unwrap_or_default()
    };
    let effect = "bursts overflow it more often, and the lost packets are retransmitted";
    buffer("receive buffer", "net.core.rmem_max", size, effect)
}

fn send_buffer() -> Finding {
    let size = |socket: &UdpSocket, wanted: usize| {
        let _ = sockopt::set_socket_send_buffer_size(socket, wanted);
        sockopt::socket_send_buffer_size(socket).unwrap_or_default()
    };
    let effect =
        "a node with many children waits for buffer space more often, or loses packets and retransmits";
    buffer("send buffer", "net.core.wmem_max", size, effect)
}

/// How much of the buffer size that nodes request the kernel grants. `getsockopt` returns twice the
/// usable size, see socket(7).
fn buffer(name: &'static str, key: &str, size: impl Fn(&UdpSocket, usize) -> usize, effect: &str) -> Finding {
    let wanted = NodeSettings::default().buffer_bytes;
    let got = UdpSocket::bind("127.0.0.1:0").map_or(0, |socket| size(&socket, wanted) / 2);
    let found = format!("{got} bytes; nodes request {wanted}");
    if got >= wanted {
        return Finding::ok(Groups, name, format!("{got} bytes, as nodes request"));
    }
    Finding::limited(Groups, name, found, effect).with_fix(format!("as root: sysctl -w {key}={wanted}"))
}

/// The least MTU that carries a group's packets.
const MTU_BYTES_MIN: u64 = 604;

fn interfaces() -> Finding {
    let mut found = interfaces_in(Path::new("/sys/class/net"));
    found.sort();
    let named: Vec<String> = found.iter().map(|(name, mtu)| format!("{name} {mtu}")).collect();
    let Some(&least) = found.iter().map(|(_, mtu)| mtu).min() else {
        return Finding::limited(
            Groups,
            "interfaces",
            "no interface but loopback is up",
            "groups are limited to processes on this machine",
        );
    };
    let found = format!("MTU in bytes: {}", named.join(", "));
    if least < MTU_BYTES_MIN {
        let effect = format!("groups need an MTU of at least {MTU_BYTES_MIN} bytes");
        return Finding::limited(Groups, "interfaces", found, effect)
            .with_fix(format!("as root: ip link set dev INTERFACE mtu {MTU_BYTES_MIN}"));
    }
    Finding::ok(Groups, "interfaces", found)
}

/// Names and MTUs of the interfaces that are up, without loopback.
fn interfaces_in(directory: &Path) -> Vec<(String, u64)> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let interface = |entry: fs::DirEntry| {
        let number = |file: &str, radix| {
            let text = read(entry.path().join(file))?;
            u64::from_str_radix(text.trim_start_matches("0x"), radix).ok()
        };
        // IFF_UP is 1 and IFF_LOOPBACK is 8, see netdevice(7).
        let flags = number("flags", 16)?;
        let is_usable = flags & 1 != 0 && flags & 8 == 0;
        is_usable.then_some((entry.file_name().to_string_lossy().into_owned(), number("mtu", 10)?))
    };
    entries.flatten().filter_map(interface).collect()
}

fn firewall() -> Finding {
    // Listing the rules would load the module.
    if !Path::new("/sys/module/nf_tables").exists() {
        return Finding::ok(Groups, "firewall", "nftables is not in use");
    }
    let rules = tool("nft").and_then(|nft| output(&nft, &["list", "ruleset"]));
    match rules {
        Some(rules) if rules.trim().is_empty() => Finding::ok(Groups, "firewall", "nftables has no rules"),
        Some(rules) => {
            let count = rules.matches(" hook input ").count();
            if count == 0 {
                return Finding::ok(Groups, "firewall", "nftables has rules, but none for incoming packets");
            }
            Finding::limited(
                Groups,
                "firewall",
                format!("nftables has {count} input chains"),
                "they have to allow the UDP ports of nodes, and the TCP port where the root listens",
            )
            .with_fix("nft list ruleset shows them; give nodes a fixed port by --bind, and allow it")
        }
        None => Finding::ok(Groups, "firewall", "nftables is in use; only root can list its rules"),
    }
}

fn processors() -> Finding {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if count > 1 {
        return Finding::ok(Groups, "processors", count.to_string());
    }
    Finding::limited(
        Groups,
        "processors",
        "1",
        "a node forwards only when the application yields the processor",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_compared_with_the_size_that_nodes_request() {
        let wanted = NodeSettings::default().buffer_bytes;
        let small = buffer("receive buffer", "net.core.rmem_max", |_, wanted| wanted, "effect");
        assert_eq!(small.state, crate::doctor::report::State::Limited);
        assert_eq!(small.fix.unwrap(), format!("as root: sysctl -w net.core.rmem_max={wanted}"));
        let enough = buffer("send buffer", "net.core.wmem_max", |_, wanted| 2 * wanted, "effect");
        assert_eq!(enough.state, crate::doctor::report::State::Ok);
    }
}
