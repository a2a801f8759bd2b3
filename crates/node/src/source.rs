//! A root's packets as datagrams, which the kernel's packet path sends on to all children on their way out.

#![expect(unsafe_code, reason = "payloads are read where they lie")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;

use treecast_ebpf::{EbpfError, SlotMemory, interfaces_for};
use treecast_proto::{Cookie, GroupId, Sequence};
use treecast_wire::{Body, Data, HEADER_BYTES, Header, MemberId, Timestamp};

use crate::datagrams::{BATCH, Outgoing, options};

/// Where datagrams go that are packets of a root: groups of addresses, as bpf/treecast.bpf.c has them. Under these they never
/// leave the host.
const TO_IPV4: Ipv4Addr = Ipv4Addr::new(239, 255, 84, 67);
const TO_IPV6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x5443);

/// As many bytes of packets pass the system as one at most: what the kernel can keep in one piece of memory, of which it makes one
/// for each child, without asking for more pages together than are easily had.
const TRAIN_BYTES_MAX: usize = 24_000;

/// Before this version the kernel may crash where a program takes such packets apart.
const TAKES_TRAINS: (u32, u32) = (6, 16);

/// Where the checksum is in a header.
const CHECKSUM: std::ops::Range<usize> = 4..8;

/// A socket whose datagrams are packets of one group's root.
pub(crate) struct Source {
    socket: UdpSocket,
    outgoing: Outgoing,
    to: SocketAddr,
    group: GroupId,
    cookie: Cookie,
    memory: SlotMemory,
    /// Whether UDP has its checksum. It costs each copy, and packets have one of their own; but only with it several packets pass
    /// the system as one.
    has_checksum: bool,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Source").field("group", &self.group).finish_non_exhaustive()
    }
}

impl Source {
    /// A socket at the root's address, for the node that listens there, and what tells it from others.
    pub fn open(node: SocketAddr) -> Result<(UdpSocket, u64), EbpfError> {
        let (ip, to) = (node.ip().to_canonical(), to(node));
        let interface =
            interfaces_for(SocketAddr::new(ip, 0))?.first().map_or(0, |interface| interface.index);
        let open = || {
            let socket = UdpSocket::bind((ip, 0))?;
            options::send_to_groups_by(&socket, ip.is_ipv6(), interface)?;
            options::forbid_fragments(&socket);
            socket.connect(to)?;
            let cookie = options::cookie(&socket)?;
            Ok((socket, cookie))
        };
        let what = "cannot open the socket of the root's packets";
        open().map_err(|source| EbpfError::System { what, source })
    }

    /// The source of a group's root, by the socket that was opened for it.
    pub fn new(
        socket: UdpSocket,
        node: SocketAddr,
        group: GroupId,
        cookie: Cookie,
        memory: SlotMemory,
    ) -> Self {
        let to = to(node);
        let outgoing = Outgoing::new(to.is_ipv6(), takes_trains().then_some(TRAIN_BYTES_MAX)).connected();
        Self { socket, outgoing, to, group, cookie, memory, has_checksum: true }
    }

    /// Sends on what is in slots before this packet, as far as the kernel's packet path takes it; says whether that is all. What it
    /// does not take it leaves to the node, as it does with what it has not been given.
    pub fn send(&mut self, upto: Sequence) -> bool {
        loop {
            let from = self.taken();
            if from == upto {
                return true;
            }
            if self.memory.is_lent().load(Ordering::Acquire) == 0 {
                return false;
            }
            let until = if upto.distance_from(from) > BATCH as i32 { from + BATCH as u32 } else { upto };
            self.set_checksum(until != from + 1);
            for packet in from.until(until) {
                self.add(packet);
            }
            // What is refused here is not taken, which is seen.
            let _ = self.outgoing.send(&self.socket);
            if self.taken() != until {
                return false;
            }
        }
    }

    fn set_checksum(&mut self, has_checksum: bool) {
        if self.has_checksum != has_checksum {
            options::leave_checksums_out(&self.socket, !has_checksum);
            self.has_checksum = has_checksum;
        }
    }

    fn taken(&self) -> Sequence {
        Sequence(self.memory.taken().load(Ordering::Acquire))
    }

    fn add(&mut self, packet: Sequence) {
        let piece = self.memory.piece(packet);
        let data = Data {
            message: piece.message,
            offset: piece.offset,
            length: piece.length,
            message_length: piece.message_length,
            ask: false,
            repeated: false,
            close: false,
        };
        let header = Header {
            group: self.group,
            cookie: self.cookie,
            epoch: 0,
            sender: MemberId(0),
            sequence: packet,
            timestamp: Timestamp(0),
            body: Body::Data(data),
        };
        let mut header: [u8; HEADER_BYTES] = header.write(piece.checksum);
        // The rest is said by the kernel's packet path, which goes on from the payload's part.
        header[CHECKSUM].copy_from_slice(&piece.checksum.0.to_be_bytes());
        // SAFETY: the slot is mapped, and nobody writes it before the packet has left it, which is after it was sent.
        unsafe {
            self.outgoing.add_from(self.to, &header, self.memory.payload(packet), piece.length as usize);
        }
    }
}

/// Where datagrams go that are packets of the root of this node.
fn to(node: SocketAddr) -> SocketAddr {
    let ip = match node.ip().to_canonical() {
        // There are no groups of addresses; there the socket alone says what its datagrams are.
        ip if ip.is_loopback() => ip,
        IpAddr::V4(_) => IpAddr::V4(TO_IPV4),
        IpAddr::V6(_) => IpAddr::V6(TO_IPV6),
    };
    SocketAddr::new(ip, node.port())
}

/// Whether packets may pass the system as one on their way through the program.
fn takes_trains() -> bool {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= TAKES_TRAINS
}
