//! Nodes have letters as names, and addresses that follow from them.

use std::net::{IpAddr, SocketAddr};

/// The address of a node.
pub fn address(node: char) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8], 7_000))
}

/// The name of the node with an address.
pub fn name(address: SocketAddr) -> char {
    match address.ip() {
        IpAddr::V4(ip) => ip.octets()[3] as char,
        IpAddr::V6(_) => '?',
    }
}
