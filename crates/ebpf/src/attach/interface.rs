//! The interfaces on which a node sends and receives.

use std::io;
use std::net::SocketAddr;

use super::netlink::{Link, Netlink};
use crate::EbpfError;

/// An interface of this machine, in the network namespace of the calling thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, which may change.
    pub name: String,
    /// Its index, which does not change with the name.
    pub index: u32,
    /// The longest IP packet in bytes, header included.
    pub mtu_bytes: u32,
}

/// The interfaces on which a node bound to this address sends and receives: the interface with the
/// address; for the unspecified address, all Ethernet interfaces that are up; for a loopback
/// address, the loopback interface. Ports of a bridge or a bond are left out: the bridge or the
/// bond has the addresses.
///
/// # Errors
/// [`EbpfError::NoInterface`], [`EbpfError::NotEthernet`], [`EbpfError::System`].
pub fn interfaces_for(bind: SocketAddr) -> Result<Vec<Interface>, EbpfError> {
    let system = |source: io::Error| EbpfError::System { what: "cannot list network interfaces", source };
    let netlink = Netlink::open().map_err(system)?;
    let mut links = netlink.links().map_err(system)?;
    let address = bind.ip().to_canonical();
    if address.is_unspecified() {
        links.retain(|link| link.is_up && link.hardware == libc::ARPHRD_ETHER && !link.is_port);
    } else if address.is_loopback() {
        links.retain(|link| link.hardware == libc::ARPHRD_LOOPBACK);
    } else {
        let addresses = netlink.addresses().map_err(system)?;
        let has_address = |link: &Link| {
            let is_in_scope = scope(bind).is_none_or(|index| index == link.index);
            is_in_scope && addresses.contains(&(link.index, address))
        };
        links.retain(has_address);
        let supported = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK];
        if let Some(link) = links.iter().find(|link| !supported.contains(&link.hardware)) {
            return Err(EbpfError::NotEthernet { address, interface: link.name.clone() });
        }
    }
    if links.is_empty() {
        return Err(EbpfError::NoInterface(address));
    }
    let interface = |Link { name, index, mtu_bytes, .. }| Interface { name, index, mtu_bytes };
    Ok(links.into_iter().map(interface).collect())
}

/// The interface of a link-local address (RFC 4007): other interfaces may have the same address.
fn scope(bind: SocketAddr) -> Option<u32> {
    match bind {
        SocketAddr::V6(bind) if bind.scope_id() != 0 => Some(bind.scope_id()),
        _ => None,
    }
}
