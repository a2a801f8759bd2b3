//! The socket by which a root's packets enter the kernel's packet path, which replicates them to
//! all children on egress.

#![expect(unsafe_code, reason = "payloads are read in place")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;

use treecast_ebpf::{EbpfError, GSO_KERNEL_MIN, SlotMemory, interfaces_for, kernel_version};
use treecast_proto::{GroupId, Nanoseconds, Sequence};
use treecast_shm::clock;
use treecast_shm::delegation::SendDelegation;
use treecast_wire::{Body, Header, MemberId, Timestamp};

use crate::datagrams::{GSO_SEGMENTS_MAX, Outgoing, options};
use crate::settings::config::GroupConfig;

/// The destinations by which the packet program recognises a root's packets, as in bpf/parse.h: it
/// gives each copy the address of a child, and no datagram leaves the host with one of these.
const MULTICAST_IPV4: Ipv4Addr = Ipv4Addr::new(239, 255, 84, 67);
const MULTICAST_IPV6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x5443);

/// The most bytes of a GSO batch: 32 full datagrams of an Ethernet. The kernel copies a batch for
/// each child into contiguous memory; where it has no 64 KiB of that, the copy is lost, and user
/// space sends the packets again.
const GSO_BYTES_MAX: usize = 47_500;

/// A socket whose datagrams are packets of one group's root.
pub struct RootSocket {
    socket: UdpSocket,
    outgoing: Outgoing,
    to: SocketAddr,
    group: GroupId,
    memory: SlotMemory,
    /// Whether datagrams have a UDP checksum. It costs time for each copy, and packets have their
    /// own checksum; but GSO needs it.
    has_checksum: bool,
    may_omit_checksum: bool,
    send_load: SendLoad,
}

/// What happened to packets that were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// The kernel's packet path has them.
    Sent,
    /// The node's own thread sends them. The caller wakes it, if the delegation is new.
    Delegated {
        /// Whether they were not before.
        is_new: bool,
    },
    /// The kernel's packet path does not accept them: they are for the protocol.
    Refused,
}

/// Detects an application that is limited by sending: one that sends again at once, many times in a
/// row.
#[derive(Debug, Default)]
struct SendLoad {
    /// When the last call returned, and how long the last send in the application's thread took.
    returned_at: Nanoseconds,
    send_time: Nanoseconds,
    /// The number of sends in a row; a send after a pause halves it.
    sends: u32,
}

impl SendLoad {
    /// More sends in a row than this are delegated. Fewer are faster in the application's thread
    /// than waking another one.
    const DIRECT_SENDS_MAX: u32 = 8;
    /// The count's maximum: after a long row, a few pauses do not end the delegation.
    const SENDS_MAX: u32 = 64;
    /// A pause is at least the send time divided by this.
    const PAUSE_DIVISOR: u64 = 8;

    fn begin_call(&mut self, now: Nanoseconds) {
        if now.since(self.returned_at).0 * Self::PAUSE_DIVISOR >= self.send_time.0 {
            self.sends /= 2;
        }
    }

    fn count_send(&mut self) {
        self.sends = Self::SENDS_MAX.min(self.sends + 1);
    }

    const fn is_send_bound(&self) -> bool {
        self.sends > Self::DIRECT_SENDS_MAX
    }
}

impl std::fmt::Debug for RootSocket {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("RootSocket").field("group", &self.group).finish_non_exhaustive()
    }
}

impl RootSocket {
    /// Opens a socket at the root's address; returns it with its cookie.
    pub(crate) fn open(node: SocketAddr) -> Result<(UdpSocket, u64), EbpfError> {
        let (ip, to) = (node.ip().to_canonical(), to(node));
        let interface =
            interfaces_for(SocketAddr::new(ip, 0))?.first().map_or(0, |interface| interface.index);
        let open = || {
            let socket = UdpSocket::bind((ip, 0))?;
            options::set_multicast_interface(&socket, ip.is_ipv6(), interface)?;
            options::forbid_fragments(&socket);
            socket.connect(to)?;
            let cookie = options::cookie(&socket)?;
            Ok((socket, cookie))
        };
        let what = "cannot open the socket of the root's packets";
        open().map_err(|source| EbpfError::System { what, source })
    }

    /// `socket` comes from `RootSocket::open`.
    pub fn new(socket: UdpSocket, config: &GroupConfig, memory: SlotMemory) -> Self {
        let to = to(config.root());
        let outgoing = Outgoing::new(to.is_ipv6(), supports_gso().then_some(GSO_BYTES_MAX)).connected();
        Self {
            socket,
            outgoing,
            to,
            group: config.settings().group,
            memory,
            has_checksum: true,
            may_omit_checksum: true,
            send_load: SendLoad::default(),
        }
    }

    /// The engine's copy, for a socket that the application shares: the application alone omits
    /// checksums.
    pub fn for_engine(self) -> Self {
        Self { may_omit_checksum: false, has_checksum: false, ..self }
    }

    /// A call of the application begins.
    pub fn begin_call(&mut self) {
        self.send_load.begin_call(clock::now());
    }

    /// A call of the application returns.
    pub fn end_call(&mut self) {
        self.send_load.returned_at = clock::now();
    }

    /// The application flushes: the members limit it, and not sending.
    pub const fn flushed(&mut self) {
        self.send_load.sends = 0;
    }

    /// Sends the packets before `upto`, or delegates that to the node if the application is limited
    /// by sending: it then writes messages on one processor while the node sends on another, in
    /// larger GSO batches.
    pub fn send(&mut self, upto: Sequence) -> Sending {
        self.send_load.count_send();
        let delegation = SendDelegation::of(&self.memory);
        if delegation.covers_written() {
            return Sending::Delegated { is_new: false };
        }
        if self.send_load.is_send_bound() && self.is_handed_off() {
            delegation.begin();
            // The node enables checksums on the shared socket for what it sends.
            self.has_checksum = true;
            return Sending::Delegated { is_new: true };
        }
        if self.send_directly(upto) { Sending::Sent } else { Sending::Refused }
    }

    /// Sends the packets before `upto` as far as the kernel's packet path accepts them; says
    /// whether it has accepted all.
    fn send_directly(&mut self, upto: Sequence) -> bool {
        loop {
            let from = self.accepted();
            if from == upto {
                return true;
            }
            if !self.is_handed_off() {
                return false;
            }
            let start = clock::now();
            let until = self.send_batch(from, upto);
            self.send_load.send_time = clock::now().since(start);
            if until != Some(self.accepted()) {
                return false;
            }
        }
    }

    /// Sends a batch of packets from `from` to before `upto`, at most as many as there are slots;
    /// returns the end of the batch. None: a slot has an invalid length.
    pub fn send_batch(&mut self, from: Sequence, upto: Sequence) -> Option<Sequence> {
        // One GSO batch of short packets, or two of full ones.
        let until = upto.min(from + GSO_SEGMENTS_MAX as u32);
        self.set_checksum(!self.may_omit_checksum || until != from + 1);
        for packet in from.until(until) {
            self.add(packet)?;
        }
        // The caller sees by the accepted number that a packet was not sent.
        let _ = self.outgoing.send(&self.socket);
        Some(until)
    }

    fn is_handed_off(&self) -> bool {
        self.memory.is_handed_off().load(Ordering::Acquire) != 0
    }

    fn set_checksum(&mut self, has_checksum: bool) {
        if self.has_checksum != has_checksum || !self.may_omit_checksum {
            options::omit_checksums(&self.socket, !has_checksum);
            self.has_checksum = has_checksum;
        }
    }

    fn accepted(&self) -> Sequence {
        Sequence(self.memory.forwarded().load(Ordering::Acquire))
    }

    fn add(&mut self, packet: Sequence) -> Option<()> {
        let piece = self.memory.piece(packet);
        let length =
            Some(piece.length as usize).filter(|&length| length <= self.memory.payload_bytes_max())?;
        let header = Header {
            group: self.group,
            epoch: 0,
            sender: MemberId(0),
            sequence: packet,
            timestamp: Timestamp(0),
            body: Body::Data(piece.data()),
        };
        // The kernel's packet path completes the header.
        let header = header.write_without_code();
        // SAFETY: the payload is within the slot, which is mapped. The application does not write
        // it while the slot holds the packet; an application in another process that does sends
        // wrong bytes to its own group only.
        unsafe { self.outgoing.add_from(self.to, &header, self.memory.payload(packet), length) };
        Some(())
    }
}

/// The destination of a root's packets.
fn to(node: SocketAddr) -> SocketAddr {
    let ip = match node.ip().to_canonical() {
        // Loopback has no multicast: there the program recognizes the socket only.
        ip if ip.is_loopback() => ip,
        IpAddr::V4(_) => IpAddr::V4(MULTICAST_IPV4),
        IpAddr::V6(_) => IpAddr::V6(MULTICAST_IPV6),
    };
    SocketAddr::new(ip, node.port())
}

/// Whether GSO batches may pass the program on this kernel.
pub(crate) fn supports_gso() -> bool {
    kernel_version() >= GSO_KERNEL_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Nanoseconds {
        Nanoseconds::from_us(us)
    }

    /// An application whose messages take 16 us to send, and that pauses between them.
    fn after(load: &mut SendLoad, pauses_us: impl IntoIterator<Item = u64>) -> bool {
        for pause in pauses_us {
            load.send_time = us(16);
            load.begin_call(load.returned_at + us(pause));
            load.count_send();
            load.returned_at = load.returned_at + us(pause) + us(16);
        }
        load.is_send_bound()
    }

    #[test]
    fn an_application_without_pauses_is_send_bound_after_a_few_messages() {
        assert!(!after(&mut SendLoad::default(), [1; 8]));
        assert!(after(&mut SendLoad::default(), [1; 9]));
    }

    #[test]
    fn an_application_that_pauses_for_an_eighth_of_the_send_time_is_not_send_bound() {
        assert!(after(&mut SendLoad::default(), [1; 100]));
        assert!(!after(&mut SendLoad::default(), [2; 100]));
        // A send after a pause halves the count.
        assert!(!after(&mut SendLoad::default(), [1, 1, 1, 1, 1, 1, 1, 50].repeat(20)));
    }

    #[test]
    fn one_pause_in_a_long_row_does_not_count_but_several_do() {
        let mut load = SendLoad::default();
        assert!(after(&mut load, [1; 1_000]));
        assert!(after(&mut load, [5_000]));
        assert!(!after(&mut load, [5_000; 4]));
    }

    #[test]
    fn packets_of_one_message_are_a_row_too() {
        let mut load = SendLoad { send_time: us(16), ..SendLoad::default() };
        load.begin_call(us(1_000));
        (0..9).for_each(|_| load.count_send());
        assert!(load.is_send_bound());
    }
}
