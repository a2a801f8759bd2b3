//! A host on the path of TCP connections: it sees all segments, and puts others between them.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto, socket_with,
};

/// The raw sockets of a network, which need root.
pub struct OnPath {
    seen: OwnedFd,
    sent: OwnedFd,
}

/// A segment, without the options of its headers.
#[derive(Debug, Clone)]
pub struct Segment {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    pub sequence: u32,
    pub acknowledged: u32,
    pub payload: Vec<u8>,
}

const IP_BYTES: usize = 20;
const TCP_BYTES: usize = 20;
const PSH_AND_ACK: u8 = 0x18;

impl OnPath {
    pub fn open() -> Self {
        let open = |protocol| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(protocol)).unwrap()
        };
        let seen = open(ipproto::TCP);
        set_socket_recv_buffer_size(&seen, 4 << 20).unwrap();
        Self { seen, sent: open(ipproto::RAW) }
    }

    /// The segments with a payload since the last call.
    pub fn segments(&self) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut packet = vec![0; 1 << 16];
        loop {
            match recv(&self.seen, &mut packet[..], RecvFlags::empty()) {
                Ok((length, _)) => segments.extend(Segment::read(&packet[..length])),
                Err(Errno::AGAIN) => return segments,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn send(&self, segment: &Segment) {
        let to = SocketAddrV4::new(*segment.to.ip(), 0);
        sendto(&self.sent, &segment.write(), SendFlags::empty(), &to).unwrap();
    }
}

impl Segment {
    fn read(packet: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(packet.get(at..at + 4)?.try_into().ok()?));
        let tcp = usize::from(packet.first()? & 15) * 4;
        let ports = word(tcp)?;
        let begin = tcp + usize::from(packet.get(tcp + 12)? >> 4) * 4;
        let payload = packet.get(begin..).filter(|payload| !payload.is_empty())?;
        Some(Self {
            from: SocketAddrV4::new(Ipv4Addr::from_bits(word(12)?), (ports >> 16) as u16),
            to: SocketAddrV4::new(Ipv4Addr::from_bits(word(16)?), ports as u16),
            sequence: word(tcp + 4)?,
            acknowledged: word(tcp + 8)?,
            payload: payload.to_vec(),
        })
    }

    /// With the headers of IP and TCP; the kernel computes the checksum of the first.
    fn write(&self) -> Vec<u8> {
        let length = (IP_BYTES + TCP_BYTES + self.payload.len()) as u16;
        let addresses = [self.from.ip().octets(), self.to.ip().octets()].concat();
        let mut ip = vec![0x45, 0];
        ip.extend(length.to_be_bytes());
        // No fragments, 64 hops, TCP.
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip.extend(&addresses);
        let mut tcp = Vec::new();
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledged.to_be_bytes());
        tcp.extend([((TCP_BYTES / 4) << 4) as u8, PSH_AND_ACK, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(&self.payload);
        // RFC 9293, section 3.1.
        let pseudo_header = [&addresses[..], &[0, 6], &(tcp.len() as u16).to_be_bytes()].concat();
        let checksum = !sum(&[&pseudo_header[..], &tcp].concat());
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        [ip, tcp].concat()
    }
}

/// The sum of RFC 1071.
fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
