//! Sockets that receive at multicast addresses, and the interfaces by which multicast is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::time::Timespec;

use super::{addresses, options};

/// A multicast address at which a node receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reception {
    /// The multicast address.
    pub address: SocketAddr,
    /// The root, which sends there.
    pub root: SocketAddr,
    /// The lane of the socket whose turns these datagrams take.
    pub lane: usize,
    /// The receive buffer that is asked for, in bytes. The kernel takes twice as much.
    pub buffer_bytes: usize,
}

/// The interface by which a node sends to a multicast address, and the source address of what it
/// sends there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MulticastRoute {
    pub interface: u32,
    pub source: IpAddr,
}

/// The multicast addresses at which a node receives, each with a socket of its own: an address has
/// a port of its own, and the node's socket is bound to the node's address. While a socket is open,
/// the kernel keeps the membership (IGMP, MLD).
#[derive(Debug)]
pub struct MulticastSockets {
    sockets: Vec<MulticastSocket>,
    next: u64,
    /// Readable while one of the sockets is.
    epoll: OwnedFd,
}

/// A socket at a multicast address.
#[derive(Debug)]
struct MulticastSocket {
    number: u64,
    reception: Reception,
    socket: UdpSocket,
}

/// The most sockets whose datagrams are received before others have their turn.
const READY_MAX: usize = 64;

impl MulticastSockets {
    /// No sockets.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new() -> io::Result<Self> {
        Ok(Self { sockets: Vec::new(), next: 0, epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Receives at these addresses from now on, and at no others. Each is joined on the interface
    /// by which its root is reached from `own`.
    ///
    /// # Errors
    /// The first one of the system; the other addresses are joined.
    pub fn receive_at(&mut self, own: SocketAddr, receptions: &[Reception]) -> io::Result<()> {
        let is_same =
            |one: &Reception, other: &Reception| (one.address, one.root) == (other.address, other.root);
        self.sockets.retain(|known| receptions.iter().any(|reception| is_same(reception, &known.reception)));
        let mut outcome = Ok(());
        for reception in receptions {
            match self.sockets.iter_mut().find(|known| is_same(&known.reception, reception)) {
                Some(known) => known.reception.lane = reception.lane,
                None => outcome = outcome.and(self.add(own, *reception)),
            }
        }
        outcome
    }

    fn add(&mut self, own: SocketAddr, reception: Reception) -> io::Result<()> {
        let socket = open(reception.address, local_ip(own, reception.root)?)?;
        options::set_buffers(&socket, reception.buffer_bytes);
        options::enable_gro(&socket);
        let number = self.next;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        self.next += 1;
        self.sockets.push(MulticastSocket { number, reception, socket });
        Ok(())
    }

    /// The multicast addresses that no other socket of this host has joined, on any interface.
    pub fn alone_at(&self) -> BTreeSet<IpAddr> {
        let mut others = memberships();
        let own: Vec<IpAddr> =
            self.sockets.iter().map(|known| known.reception.address.ip().to_canonical()).collect();
        for ip in &own {
            others.entry(*ip).and_modify(|count| *count = count.wrapping_sub(1));
        }
        own.into_iter().filter(|ip| others.get(ip) == Some(&0)).collect()
    }

    /// Whether there is a socket.
    pub const fn is_open(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// The numbers of sockets with datagrams, each with its lane. All sockets have their turn: the
    /// kernel begins with those that have waited longest.
    pub fn ready(&self) -> Vec<(u64, usize)> {
        if self.sockets.is_empty() {
            return Vec::new();
        }
        let empty = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; READY_MAX];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut events[..], Some(&at_once)).unwrap_or_default();
        let ready = events[..count].iter().filter_map(|event| self.find(event.data.u64()));
        ready.map(|found| (found.number, found.reception.lane)).collect()
    }

    fn find(&self, number: u64) -> Option<&MulticastSocket> {
        self.sockets.iter().find(|known| known.number == number)
    }

    /// The socket with this number, if it is still open.
    pub fn socket(&self, number: u64) -> Option<&UdpSocket> {
        self.find(number).map(|found| &found.socket)
    }
}

impl AsFd for MulticastSockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Opens a socket that receives what is sent to a multicast address on the interface with this
/// local address. Other sockets of this host may receive it too.
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

/// How many sockets of this host have joined each multicast address (`proc_pid_net(5)`): none where
/// the kernel does not say.
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

/// The interface by which `to` is reached from `own`, for multicast. That goes no farther than the
/// next router, and to sockets of this host too, as the kernel's defaults are (ip(7), ipv6(7)).
///
/// # Errors
/// Those of the system.
pub fn route(own: SocketAddr, to: SocketAddr) -> io::Result<MulticastRoute> {
    let source = local_ip(own, to)?;
    Ok(MulticastRoute { interface: interface_of(source)?, source })
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
        // SAFETY: `next` is an entry of the list, which is not freed yet; its name ends with a
        // zero.
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
    use std::time::{Duration, Instant};

    use treecast_wire::HEADER_BYTES;

    use super::super::tests::received;
    use super::super::{Datagrams, Lane, RECEIVE_BATCH};
    use super::*;

    fn reception(address: SocketAddr, root: &Datagrams) -> Reception {
        Reception { address, root: root.address(), lane: 0, buffer_bytes: 1 << 20 }
    }

    /// The datagrams that have come by multicast, with their senders.
    fn receive_multicast(node: &mut Datagrams, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut all = Vec::new();
        let end = Instant::now() + Duration::from_secs(10);
        while all.len() < count && Instant::now() < end {
            for (number, lane) in node.ready_multicast() {
                assert_eq!(lane, 0);
                all.extend(received(node, Lane::Multicast(number)));
            }
        }
        all
    }

    /// Waits for a datagram by multicast. Returns the number of its socket.
    fn wait_until_ready(node: &Datagrams) -> u64 {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(&(number, _)) = node.ready_multicast().first() {
                return number;
            }
            assert!(Instant::now() < end, "no datagram arrived within 10 s");
        }
    }

    /// A datagram to a multicast address reaches two nodes, from the sender's address; after the
    /// end of one, the other.
    fn check(own: &str, group: &str) {
        let (own, group): (SocketAddr, SocketAddr) = (own.parse().unwrap(), group.parse().unwrap());
        let bind = || Datagrams::bind(own, 1 << 20, 1).unwrap();
        let (mut root, mut one, mut other) = (bind(), bind(), bind());
        root.send_multicast(group, one.address()).unwrap();
        let receive = |node: &mut Datagrams| node.receive_at(&[reception(group, &root)]).unwrap();
        receive(&mut one);
        assert!(one.multicast.alone_at().contains(&group.ip()));
        receive(&mut other);
        receive(&mut other);
        assert!(one.multicast.alone_at().is_empty() && other.multicast.alone_at().is_empty());
        assert_eq!(one.ready_multicast(), []);
        let send = |root: &mut Datagrams| {
            for number in 0..3 {
                root.add(group, &[number; HEADER_BYTES], vec![number; 100]);
            }
            root.send().unwrap();
        };
        send(&mut root);
        for node in [&mut one, &mut other] {
            let all = receive_multicast(node, 3);
            assert_eq!(all.len(), 3);
            assert!(all.iter().all(|(from, _)| *from == root.address()));
        }
        send(&mut root);
        let number = wait_until_ready(&other);
        other.receive_at(&[]).unwrap();
        assert!(one.multicast.alone_at().contains(&group.ip()));
        assert_eq!(other.ready_multicast(), []);
        assert_eq!(other.receive(Lane::Multicast(number), RECEIVE_BATCH).unwrap(), 0);
        assert_eq!(receive_multicast(&mut one, 3).len(), 3);
    }

    #[test]
    fn a_datagram_by_multicast_over_ipv4_comes_to_all_its_receivers() {
        check("127.0.0.1:0", "239.1.2.3:50123");
    }

    #[test]
    fn the_interface_of_an_address_is_found() {
        let loopback = interface_of(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert!(loopback > 0);
        assert_eq!(interface_of(Ipv6Addr::LOCALHOST.into()).unwrap(), loopback);
        assert!(interface_of(Ipv4Addr::new(192, 0, 2, 77).into()).is_err());
    }
}
