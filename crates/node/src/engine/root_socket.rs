//! A root's packets as datagrams, which the kernel's packet path sends on to all children on their way out.

#![expect(unsafe_code, reason = "payloads are read where they lie")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;

use treecast_ebpf::{EbpfError, SlotMemory, interfaces_for};
use treecast_proto::{Cookie, GroupId, Nanoseconds, Sequence};
use treecast_wire::{Body, Data, HEADER_BYTES, Header, MemberId, Timestamp};

use crate::datagrams::{BATCH, Outgoing, options};
use crate::engine::delegation::Left;
use crate::{GroupSettings, clock};

/// Where datagrams go that are packets of a root: groups of addresses, as bpf/find.h has them. Under these they never
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
    may_leave_checksums_out: bool,
    rhythm: Rhythm,
}

/// What has become of packets that were handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handed {
    /// They are on their way.
    Sent,
    /// The node's own thread sends them on. If that is new, it has to be told.
    Left { is_new: bool },
    /// The kernel's packet path does not take them: they are for the protocol.
    Refused,
}

/// Whether sending is what holds an application up.
#[derive(Debug, Default)]
struct Rhythm {
    /// When it was last given the word back, and how long it took to send for it when that was last done at once.
    back_at: Nanoseconds,
    took: Nanoseconds,
    /// How often in turn it has had something to send: those that it came with late count half.
    soon: u32,
}

impl Rhythm {
    /// The first messages of a row are sent at once: waking a thread takes longer than that.
    const FEW: u32 = 8;
    /// In a long row an interruption does not count.
    const MANY: u32 = 64;
    /// It comes again soon if that takes it so much less time than sending.
    const SHARE: u64 = 8;

    fn comes_again(&mut self, now: Nanoseconds) {
        if now.since(self.back_at).0 * Self::SHARE >= self.took.0 {
            self.soon /= 2;
        }
    }

    fn hands_over(&mut self) {
        self.soon = Self::MANY.min(self.soon + 1);
    }

    const fn is_held_up(&self) -> bool {
        self.soon > Self::FEW
    }
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
    pub fn new(socket: UdpSocket, settings: &GroupSettings, memory: SlotMemory) -> Self {
        let to = to(settings.members[settings.root]);
        let outgoing = Outgoing::new(to.is_ipv6(), takes_trains().then_some(TRAIN_BYTES_MAX)).connected();
        Self {
            socket,
            outgoing,
            to,
            group: settings.group,
            cookie: settings.cookie(),
            memory,
            has_checksum: true,
            may_leave_checksums_out: true,
            rhythm: Rhythm::default(),
        }
    }

    /// One that sends by a socket that somebody else sends by as well, who alone says whether UDP has its checksum.
    pub fn beside(self) -> Self {
        Self { may_leave_checksums_out: false, has_checksum: false, ..self }
    }

    /// The application comes with something to send.
    pub fn begin(&mut self) {
        self.rhythm.comes_again(clock::now());
    }

    /// The application is given the word back.
    pub fn end(&mut self) {
        self.rhythm.back_at = clock::now();
    }

    /// The application waits until all have everything: it is held up by them, and not by sending.
    pub const fn is_waited_for(&mut self) {
        self.rhythm.soon = 0;
    }

    /// Sends on what is in slots before this packet, or leaves that to the node if sending is what holds the application up: with
    /// that on another processor messages are written meanwhile, and more of them pass the system as one.
    pub fn hand_over(&mut self, upto: Sequence) -> Handed {
        self.rhythm.hands_over();
        let left = Left::of(&self.memory);
        if left.holds_what_is_written() {
            return Handed::Left { is_new: false };
        }
        if self.rhythm.is_held_up() && self.is_lent() {
            left.begin();
            // The node says so for what it sends.
            self.has_checksum = true;
            return Handed::Left { is_new: true };
        }
        if self.send(upto) { Handed::Sent } else { Handed::Refused }
    }

    /// Sends on what is in slots before this packet, as far as the kernel's packet path takes it; says whether that is all. What it
    /// does not take it leaves to the node, as it does with what it has not been given.
    fn send(&mut self, upto: Sequence) -> bool {
        loop {
            let from = self.taken();
            if from == upto {
                return true;
            }
            if !self.is_lent() {
                return false;
            }
            let start = clock::now();
            let until = self.send_some(from, upto);
            self.rhythm.took = clock::now().since(start);
            if until != Some(self.taken()) {
                return false;
            }
        }
    }

    /// Sends a batch of what is in slots from one packet to before another, which are no more than there are slots; says up to where.
    /// None: a slot says what cannot be.
    pub fn send_some(&mut self, from: Sequence, upto: Sequence) -> Option<Sequence> {
        let until = if upto.distance_from(from) > BATCH as i32 { from + BATCH as u32 } else { upto };
        self.set_checksum(!self.may_leave_checksums_out || until != from + 1);
        for packet in from.until(until) {
            self.add(packet)?;
        }
        // What is refused here is not taken, which is seen.
        let _ = self.outgoing.send(&self.socket);
        Some(until)
    }

    fn is_lent(&self) -> bool {
        self.memory.is_handed_off().load(Ordering::Acquire) != 0
    }

    fn set_checksum(&mut self, has_checksum: bool) {
        if self.has_checksum != has_checksum || !self.may_leave_checksums_out {
            options::leave_checksums_out(&self.socket, !has_checksum);
            self.has_checksum = has_checksum;
        }
    }

    fn taken(&self) -> Sequence {
        Sequence(self.memory.forwarded().load(Ordering::Acquire))
    }

    fn add(&mut self, packet: Sequence) -> Option<()> {
        let piece = self.memory.piece(packet);
        let length =
            Some(piece.length as usize).filter(|&length| length <= self.memory.payload_bytes_max())?;
        let data = Data {
            message: piece.message,
            offset: piece.offset,
            length: piece.length,
            message_length: piece.message_length,
            ack_requested: false,
            retransmitted: false,
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
        // SAFETY: the payload is within the slot, which is mapped. Its application writes it no more before the packet has left it;
        // if another process does, wrong bytes are sent to its own group.
        unsafe { self.outgoing.add_from(self.to, &header, self.memory.payload(packet), length) };
        Some(())
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
pub(crate) fn takes_trains() -> bool {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= TAKES_TRAINS
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Nanoseconds {
        Nanoseconds::from_us(us)
    }

    /// An application whose messages take 16 us to send, and which comes with each so long after it was given the word back.
    fn after(rhythm: &mut Rhythm, pauses_us: impl IntoIterator<Item = u64>) -> bool {
        for pause in pauses_us {
            rhythm.took = us(16);
            rhythm.comes_again(rhythm.back_at + us(pause));
            rhythm.hands_over();
            rhythm.back_at = rhythm.back_at + us(pause) + us(16);
        }
        rhythm.is_held_up()
    }

    #[test]
    fn who_comes_again_at_once_is_held_up_after_a_few_messages() {
        assert!(!after(&mut Rhythm::default(), [1; 8]));
        assert!(after(&mut Rhythm::default(), [1; 9]));
    }

    #[test]
    fn who_takes_an_eighth_of_the_time_of_sending_for_itself_is_not_held_up() {
        assert!(after(&mut Rhythm::default(), [1; 100]));
        assert!(!after(&mut Rhythm::default(), [2; 100]));
        // What it came with late counts half.
        assert!(!after(&mut Rhythm::default(), [1, 1, 1, 1, 1, 1, 1, 50].repeat(20)));
    }

    #[test]
    fn one_interruption_of_a_long_row_does_not_count_and_a_pause_of_many_does() {
        let mut rhythm = Rhythm::default();
        assert!(after(&mut rhythm, [1; 1_000]));
        assert!(after(&mut rhythm, [5_000]));
        assert!(!after(&mut rhythm, [5_000; 4]));
    }

    #[test]
    fn packets_of_one_message_are_a_row_of_their_own() {
        let mut rhythm = Rhythm { took: us(16), ..Rhythm::default() };
        rhythm.comes_again(us(1_000));
        (0..9).for_each(|_| rhythm.hands_over());
        assert!(rhythm.is_held_up());
    }
}
