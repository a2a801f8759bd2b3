//! The tools of an attacker: what passes a host is recorded, and any datagram is sent, in the name of any host.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, eth, ipproto, recv, sendto, socket_with,
    sockopt,
};
use treecast_wire::{HEADER_BYTES, VERSION};

/// A datagram with its addresses, be they true or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    pub bytes: Vec<u8>,
}

/// Records what arrives at a host and what leaves it.
pub struct Recorder {
    socket: OwnedFd,
}

/// Sends datagrams from a host in the name of others.
pub struct Forger {
    socket: OwnedFd,
}

/// Offsets in a frame of Ethernet, IPv4 without options, and UDP.
const IP_AT: usize = 14;
const UDP_AT: usize = IP_AT + 20;
const PAYLOAD_AT: usize = UDP_AT + UDP_BYTES;
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;

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
    let is_udp = frame.len() > PAYLOAD_AT
        && frame[12..IP_AT] == [8, 0]
        && frame[IP_AT] == 0x45
        && frame[IP_AT + 9] == UDP;
    if !is_udp {
        return Vec::new();
    }
    let address = |ip: usize, port: usize| {
        let octets: [u8; 4] = frame[ip..ip + 4].try_into().unwrap();
        SocketAddrV4::new(Ipv4Addr::from(octets), u16::from_be_bytes([frame[port], frame[port + 1]]))
    };
    let (from, to) = (address(IP_AT + 12, UDP_AT), address(IP_AT + 16, UDP_AT + 2));
    let mut rest = &frame[PAYLOAD_AT..];
    let mut packets = Vec::new();
    while rest.len() >= HEADER_BYTES && rest[0] == VERSION {
        let length = HEADER_BYTES + payload_bytes(rest);
        let Some((packet, others)) = rest.split_at_checked(length) else { break };
        packets.push(Datagram { from, to, bytes: packet.to_vec() });
        rest = others;
    }
    packets
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
        let socket =
            socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW));
        Self { socket: socket.unwrap() }
    }

    pub fn send_all(&self, datagrams: &[Datagram]) {
        for datagram in datagrams {
            self.send(datagram);
        }
    }

    /// Sends a datagram without a UDP checksum.
    pub fn send(&self, datagram: &Datagram) {
        self.send_with(datagram, 0);
    }

    /// Sends a datagram with the right UDP checksum.
    pub fn send_with_checksum(&self, datagram: &Datagram) {
        self.send_with(datagram, udp_checksum(datagram));
    }

    /// The kernel adds the checksum of the IP header.
    fn send_with(&self, datagram: &Datagram, checksum: u16) {
        let Datagram { from, to, bytes } = datagram;
        let udp_bytes = (UDP_BYTES + bytes.len()) as u16;
        let mut packet = vec![0x45, 0];
        packet.extend((UDP_AT as u16 - IP_AT as u16 + udp_bytes).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, UDP, 0, 0]);
        packet.extend(from.ip().octets());
        packet.extend(to.ip().octets());
        for number in [from.port(), to.port(), udp_bytes, checksum] {
            packet.extend(number.to_be_bytes());
        }
        packet.extend(bytes);
        let to = std::net::SocketAddr::new(IpAddr::V4(*to.ip()), 0);
        sendto(&self.socket, &packet, SendFlags::empty(), &to).unwrap();
    }
}

/// The checksum of a datagram over IPv4 (RFC 768).
fn udp_checksum(Datagram { from, to, bytes }: &Datagram) -> u16 {
    let length = ((UDP_BYTES + bytes.len()) as u16).to_be_bytes();
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let all =
        [&from.ip().octets()[..], &to.ip().octets(), &[0, UDP], &length, &ports, &length, bytes].concat();
    let words = all.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // 0 means that there is none.
    if sum == 0xffff { u16::MAX } else { !(sum as u16) }
}
