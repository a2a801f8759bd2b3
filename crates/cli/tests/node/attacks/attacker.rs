//! The tools of an attacker: what passes a host is recorded, and any datagram is sent, in the name
//! of any host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, eth, ipproto, netdevice, recv, sendto,
    socket_with, sockopt,
};
use treecast_wire::{HEADER_BYTES, VERSION};

/// A datagram with its addresses, be they true or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub bytes: Vec<u8>,
}

/// Records what arrives at a host and what leaves it.
pub struct Recorder {
    socket: OwnedFd,
}

/// Sends datagrams from a host in the name of others.
pub struct Forger {
    v4: OwnedFd,
    v6: OwnedFd,
}

/// The offset of the IP header in a frame of Ethernet, and the lengths of headers: IPv4 without
/// options, IPv6, UDP.
const IP_AT: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;
/// The hop limit of what is sent.
const HOPS: u8 = 64;

impl Recorder {
    /// In the network of this thread.
    pub fn start() -> Self {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(eth::ALL)).unwrap();
        sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
        Self { socket }
    }

    /// The packets of the protocol that have passed since the last call.
    pub fn take(&self) -> Vec<Datagram> {
        let mut frame = vec![0; 1 << 17];
        let mut datagrams = Vec::new();
        while let Ok((length, _)) = recv(&self.socket, &mut frame[..], RecvFlags::empty()) {
            datagrams.extend(packets(&frame[..length]));
        }
        datagrams
    }
}

/// The packets of a frame: a batch that the sender's kernel has not segmented has several.
fn packets(frame: &[u8]) -> Vec<Datagram> {
    let Some((from, to, mut rest)) = addresses(frame) else { return Vec::new() };
    let mut packets = Vec::new();
    while rest.len() >= HEADER_BYTES && rest[0] == VERSION {
        let length = HEADER_BYTES + payload_bytes(rest);
        let Some((packet, others)) = rest.split_at_checked(length) else { break };
        packets.push(Datagram { from, to, bytes: packet.to_vec() });
        rest = others;
    }
    packets
}

/// The addresses of a frame, and the payload of its datagram, if it has one.
fn addresses(frame: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let (kind, ip) = (frame.get(IP_AT - 2..IP_AT)?, frame.get(IP_AT..)?);
    let (from, to, udp): (IpAddr, IpAddr, _) = match (kind, ip.first()? >> 4) {
        ([8, 0], 4) if ip[0] & 15 == 5 && *ip.get(9)? == UDP => {
            let address = |at: usize| Some(Ipv4Addr::from(*ip.get(at..)?.first_chunk::<4>()?));
            (address(12)?.into(), address(16)?.into(), ip.get(IPV4_BYTES..)?)
        }
        ([0x86, 0xdd], 6) if *ip.get(6)? == UDP => {
            let address = |at: usize| Some(Ipv6Addr::from(*ip.get(at..)?.first_chunk::<16>()?));
            (address(8)?.into(), address(24)?.into(), ip.get(IPV6_BYTES..)?)
        }
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes(*udp.get(at..)?.first_chunk()?));
    Some((SocketAddr::new(from, port(0)?), SocketAddr::new(to, port(2)?), udp.get(UDP_BYTES..)?))
}

/// The length of the payload of a packet, by its header.
fn payload_bytes(packet: &[u8]) -> usize {
    // Acknowledgments and probes have none.
    if (2..=4).contains(&packet[1]) {
        0
    } else {
        u32::from_be_bytes(packet[40..44].try_into().unwrap()) as usize
    }
}

impl Forger {
    /// In the network of this thread.
    pub fn start() -> Self {
        let raw =
            |family| socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW)).unwrap();
        let (v4, v6) = (raw(AddressFamily::INET), raw(AddressFamily::INET6));
        // The interface of a lab's host.
        let interface = netdevice::name_to_index(v4.as_fd(), "eth0").unwrap();
        let any = Ipv4Addr::UNSPECIFIED;
        sockopt::set_ip_multicast_if_with_ifindex(&v4, &any, &any, interface).unwrap();
        sockopt::set_ipv6_multicast_if(&v6, interface).unwrap();
        Self { v4, v6 }
    }

    pub fn send_all(&self, datagrams: &[Datagram]) {
        for datagram in datagrams {
            self.send(datagram);
        }
    }

    /// Sends a datagram, without a UDP checksum where IP allows that.
    pub fn send(&self, datagram: &Datagram) {
        self.send_with(datagram, if datagram.to.is_ipv4() { 0 } else { udp_checksum(datagram) });
    }

    /// Sends a datagram with the right UDP checksum.
    pub fn send_with_checksum(&self, datagram: &Datagram) {
        self.send_with(datagram, udp_checksum(datagram));
    }

    /// The kernel adds the checksum of an IPv4 header.
    fn send_with(&self, datagram: &Datagram, checksum: u16) {
        let Datagram { from, to, bytes } = datagram;
        let udp_bytes = (UDP_BYTES + bytes.len()) as u16;
        let (socket, mut packet) = match to {
            SocketAddr::V4(_) => {
                let mut packet = vec![0x45, 0];
                packet.extend((IPV4_BYTES as u16 + udp_bytes).to_be_bytes());
                packet.extend([0, 0, 0, 0, HOPS, UDP, 0, 0]);
                (&self.v4, packet)
            }
            SocketAddr::V6(_) => {
                let mut packet = vec![0x60, 0, 0, 0];
                packet.extend(udp_bytes.to_be_bytes());
                packet.extend([UDP, HOPS]);
                (&self.v6, packet)
            }
        };
        packet.extend(octets(from.ip()));
        packet.extend(octets(to.ip()));
        for number in [from.port(), to.port(), udp_bytes, checksum] {
            packet.extend(number.to_be_bytes());
        }
        packet.extend(bytes);
        sendto(socket, &packet, SendFlags::empty(), &SocketAddr::new(to.ip(), 0)).unwrap();
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The checksum of a datagram (RFC 768; RFC 8200, section 8.1).
fn udp_checksum(Datagram { from, to, bytes }: &Datagram) -> u16 {
    let length = ((UDP_BYTES + bytes.len()) as u16).to_be_bytes();
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let (from, to) = (octets(from.ip()), octets(to.ip()));
    let all = [&from[..], &to, &[0, UDP], &length, &ports, &length, bytes].concat();
    let words = all.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // 0 means that there is none.
    if sum == 0xffff { u16::MAX } else { !(sum as u16) }
}
