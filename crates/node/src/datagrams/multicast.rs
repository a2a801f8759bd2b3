//! Sockets that receive at multicast addresses, and the interface by which multicast is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::{addresses, options};

/// The multicast addresses at which a node receives, each with a socket of its own: an address has a port of its own, and the node's socket
/// is bound to the node's address. While a socket is open, the kernel keeps the membership (IGMP, MLD).
#[derive(Debug)]
pub struct MulticastSockets {
    sockets: Vec<MulticastSocket>,
    /// Readable while one of the sockets is.
    epoll: OwnedFd,
    buffer_bytes: usize,
}

/// A socket at a multicast address.
#[derive(Debug)]
struct MulticastSocket {
    address: SocketAddr,
    /// The root, which sends there.
    root: SocketAddr,
    socket: UdpSocket,
}

impl MulticastSockets {
    /// No sockets. Each will have a receive buffer as large as the system allows, up to `buffer_bytes`.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(buffer_bytes: usize) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { sockets: Vec::new(), epoll, buffer_bytes })
    }

    /// Receives at these addresses from now on, and at no others. Each is joined on the interface by which its root is reached from `own`.
    ///
    /// # Errors
    /// The first one of the system; the other addresses are joined.
    pub fn receive_at(&mut self, own: SocketAddr, addresses: &[(SocketAddr, SocketAddr)]) -> io::Result<()> {
        self.sockets.retain(|known| addresses.contains(&(known.address, known.root)));
        let mut outcome = Ok(());
        for &(address, root) in addresses {
            if self.sockets.iter().all(|known| (known.address, known.root) != (address, root)) {
                outcome = outcome.and(self.add(own, address, root));
            }
        }
        outcome
    }

    fn add(&mut self, own: SocketAddr, address: SocketAddr, root: SocketAddr) -> io::Result<()> {
        let socket = open(address, local_ip(own, root)?)?;
        options::set_buffers(&socket, self.buffer_bytes);
        options::enable_gro(&socket);
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        self.sockets.push(MulticastSocket { address, root, socket });
        Ok(())
    }

    /// The multicast addresses that no other socket of this host has joined, on any interface.
    pub fn alone_at(&self) -> BTreeSet<IpAddr> {
        let mut others = memberships();
        let own: Vec<IpAddr> = self.sockets.iter().map(|socket| socket.address.ip().to_canonical()).collect();
        for ip in &own {
            others.entry(*ip).and_modify(|count| *count = count.wrapping_sub(1));
        }
        own.into_iter().filter(|ip| others.get(ip) == Some(&0)).collect()
    }

    /// The number of addresses.
    pub const fn count(&self) -> usize {
        self.sockets.len()
    }

    /// The socket at one of the addresses.
    pub fn socket(&self, index: usize) -> &UdpSocket {
        &self.sockets[index].socket
    }
}

impl AsFd for MulticastSockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Opens a socket that receives what is sent to a multicast address on the interface with this local address. Other sockets of this host
/// may receive it too.
fn open(address: SocketAddr, local: IpAddr) -> io::Result<UdpSocket> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    let socket = UdpSocket::from(socket);
    match (address.ip(), local) {
        (IpAddr::V4(group), IpAddr::V4(local)) => socket.join_multicast_v4(&group, &local)?,
        (IpAddr::V6(group), local) => socket.join_multicast_v6(&group, interface_of(local)?)?,
        (IpAddr::V4(_), IpAddr::V6(_)) => return Err(io::ErrorKind::AddrNotAvailable.into()),
    }
    Ok(socket)
}

/// How many sockets of this host have joined each multicast address (`proc_pid_net(5)`): none where the kernel does not say.
fn memberships() -> BTreeMap<IpAddr, usize> {
    let read = |file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    let (v4, v6) = (read("igmp"), read("igmp6"));
    let v4 = v4.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        // Other lines name interfaces.
        let ip = words.next().filter(|word| word.len() == 8)?;
        let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
        Some((IpAddr::V4(ip), words.next()?.parse::<usize>().ok()?))
    });
    let v6 = v6.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(2);
        let ip = Ipv6Addr::from(u128::from_str_radix(words.next()?, 16).ok()?);
        Some((IpAddr::V6(ip), words.next()?.parse::<usize>().ok()?))
    });
    let mut counts = BTreeMap::new();
    for (ip, count) in v4.chain(v6) {
        *counts.entry(ip).or_default() += count;
    }
    counts
}

/// Sends multicast by the interface by which `to` is reached from `own`, no farther than the next router, and to sockets of this host too.
///
/// # Errors
/// Those of the system.
pub fn send_by_route(socket: &UdpSocket, own: SocketAddr, to: SocketAddr) -> io::Result<()> {
    let local = local_ip(own, to)?;
    if own.is_ipv6() {
        sockopt::set_ipv6_multicast_if(socket, interface_of(local)?)?;
        sockopt::set_ipv6_multicast_hops(socket, 1)?;
    }
    if let IpAddr::V4(local) = local {
        // A socket of IPv6 takes the options of IPv4 too, for mapped addresses.
        sockopt::set_ip_multicast_if(socket, &local)?;
        sockopt::set_ip_multicast_ttl(socket, 1)?;
    }
    Ok(())
}

/// The local address of the route from `own` to another address.
fn local_ip(own: SocketAddr, to: SocketAddr) -> io::Result<IpAddr> {
    let ip = own.ip().to_canonical();
    if !ip.is_unspecified() {
        return Ok(ip);
    }
    let any: IpAddr = if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    // Nothing is sent.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// The index of the interface that has a local address.
fn interface_of(local: IpAddr) -> io::Result<u32> {
    let mut list = ptr::null_mut();
    // SAFETY: the kernel's list is written to `list`, and freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut index = None;
    let mut next = list;
    while !next.is_null() && index.is_none() {
        // SAFETY: `next` is an entry of the list, which is not freed yet; its name ends with a zero.
        unsafe {
            if address_of((*next).ifa_addr) == Some(local) {
                let name = CStr::from_ptr((*next).ifa_name);
                index = Some(libc::if_nametoindex(name.as_ptr())).filter(|&index| index != 0);
            }
            next = (*next).ifa_next;
        }
    }
    // SAFETY: it comes from `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    index.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// The IP address at a pointer.
///
/// # Safety
/// It is null, or points to an address of the length of its family.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller says.
    let family = unsafe { address.as_ref() }?.sa_family;
    let bytes = match libc::c_int::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    let mut storage = super::zeroed::<libc::sockaddr_storage>();
    // SAFETY: the address has that length, and the storage is longer than any.
    unsafe { ptr::copy_nonoverlapping(address.cast::<u8>(), (&raw mut storage).cast(), bytes) };
    addresses::read(&storage).map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::super::Datagrams;
    use super::super::tests::receive_all;
    use super::*;
    use treecast_wire::HEADER_BYTES;

    /// What is sent to a multicast address reaches two nodes of this host, from the sender's address; after the end of one, the other.
    fn check(own: &str, group: &str) {
        let (own, group): (SocketAddr, SocketAddr) = (own.parse().unwrap(), group.parse().unwrap());
        let bind = || Datagrams::bind(own, 1 << 20, 1).unwrap();
        let (mut root, mut one, mut other) = (bind(), bind(), bind());
        let receive = |node: &mut Datagrams, root: &Datagrams, receives: bool| {
            let addresses = [(group, root.address())];
            node.receive_at(if receives { &addresses } else { &[] }).unwrap();
        };
        root.send_multicast_towards(one.address()).unwrap();
        receive(&mut one, &root, true);
        assert!(one.multicast.alone_at().contains(&group.ip()));
        receive(&mut other, &root, true);
        receive(&mut other, &root, true);
        assert!(one.multicast.alone_at().is_empty() && other.multicast.alone_at().is_empty());
        assert_eq!((one.multicast_lanes(), other.multicast_lanes(), root.multicast_lanes()), (1, 1, 0));
        let send = |root: &mut Datagrams| {
            for number in 0..3 {
                root.add(group, &[number; HEADER_BYTES], vec![number; 100]);
            }
            root.send()
        };
        // The loopback interface may have no route for multicast.
        match send(&mut root).map_err(|error| error.kind()) {
            Err(io::ErrorKind::NetworkUnreachable) if own.is_ipv6() => return,
            outcome => outcome.unwrap(),
        }
        for node in [&mut one, &mut other] {
            let all = receive_all(node, 1, 3);
            assert_eq!(all.len(), 3);
            assert!(all.iter().all(|(from, _)| *from == root.address()));
        }
        receive(&mut other, &root, false);
        assert!(one.multicast.alone_at().contains(&group.ip()));
        assert_eq!(other.multicast_lanes(), 0);
        send(&mut root).unwrap();
        assert_eq!(receive_all(&mut one, 1, 3).len(), 3);
    }

    #[test]
    fn multicast_over_ipv4_reaches_who_receives_there() {
        check("127.0.0.1:0", "239.1.2.3:50123");
    }

    #[test]
    fn multicast_over_ipv6_reaches_who_receives_there() {
        check("[::1]:0", "[ff15::1234]:50124");
    }

    #[test]
    fn the_interface_of_an_address_is_found() {
        let loopback = interface_of(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert!(loopback > 0);
        assert_eq!(interface_of(Ipv6Addr::LOCALHOST.into()).unwrap(), loopback);
        assert!(interface_of(Ipv4Addr::new(192, 0, 2, 77).into()).is_err());
    }
}
