//! Packets: the checked view of their bytes, and their meaning.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::layout::{
    AUTHENTIC_BYTES, AcknowledgmentLayout, AttachLayout, BODY_BYTES, ControlLayout, DataLayout, Layout,
    PathProbeLayout, ack_flag, flag, kind,
};
use crate::{
    Crcs, GroupId, HEADER_BYTES, Keys, MESSAGE_BYTES_MAX, MacKey, Malformed, MemberId, Nonce,
    PayloadChecksum, Sequence, Timestamp, VERSION,
};

/// A datagram of sufficient length and of this version, whose group can be looked up.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    layout: &'a Layout,
    payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks the length and the version of a datagram.
    ///
    /// # Errors
    /// [`Malformed::Short`], [`Malformed::Version`].
    #[inline]
    pub fn new(datagram: &'a [u8]) -> Result<Self, Malformed> {
        let (layout, payload) =
            Layout::ref_from_prefix(datagram).map_err(|_| Malformed::Short(datagram.len()))?;
        if layout.version == VERSION {
            Ok(Self { layout, payload })
        } else {
            Err(Malformed::Version(layout.version))
        }
    }

    /// As [`View::new`], for a packet whose header and payload are stored separately.
    ///
    /// # Errors
    /// [`Malformed::Version`].
    #[inline]
    pub fn of_parts(header: &'a [u8; HEADER_BYTES], payload: &'a [u8]) -> Result<Self, Malformed> {
        let view = Self::new(header)?;
        Ok(Self { payload, ..view })
    }

    /// The sequence number in the header, which is not verified yet.
    pub fn sequence(&self) -> Sequence {
        Sequence(self.layout.sequence.get())
    }

    /// The number of bytes that follow the header on a stream, if it is the header of a data
    /// packet. Nothing is verified yet.
    pub fn data_length(&self) -> Option<usize> {
        let body = DataLayout::ref_from_bytes(&self.layout.body).expect("every body has this length");
        (self.layout.kind == kind::DATA).then(|| body.length.get() as usize)
    }

    /// The group in the header, which is not verified yet.
    pub fn group(&self) -> GroupId {
        GroupId(self.layout.group.get())
    }

    /// Whether it is a handshake, whose code is computed without the keys of a session.
    pub const fn is_handshake(&self) -> bool {
        self.layout.kind == kind::HANDSHAKE
    }

    /// Verifies the code under these keys, every field, and the checksum of the payload.
    ///
    /// # Errors
    /// All except those of [`View::new`].
    #[inline]
    pub fn check(self, keys: &Keys) -> Result<Packet<'a>, Malformed> {
        self.check_by(keys, |keys, packet, payload, _| keys.data_checksum(packet, payload))
    }

    /// The same for a packet that came on a stream: one that was made for a datagram has its CRC.
    ///
    /// # Errors
    /// Those of [`View::check`].
    #[inline]
    pub fn check_on_stream(self, keys: &Keys) -> Result<Packet<'a>, Malformed> {
        self.check_by(keys, |keys, packet, payload, given| match (keys.crcs, given) {
            (Crcs::Datagrams, PayloadChecksum(1..)) => keys.data_checksum(packet, payload),
            _ => keys.stream_checksum(packet, payload),
        })
    }

    #[inline]
    fn check_by(
        self,
        keys: &Keys,
        data_checksum: impl Fn(&Keys, Sequence, &[u8], PayloadChecksum) -> PayloadChecksum,
    ) -> Result<Packet<'a>, Malformed> {
        if self.layout.mac.get() != mac(self.layout, &keys.header) {
            return Err(Malformed::Mac);
        }
        let packet = self.read()?;
        let payload = packet.payload;
        let checksums = match &packet.header.body {
            Body::Data(data) => {
                Some((data.checksum, data_checksum(keys, packet.header.sequence, payload, data.checksum)))
            }
            Body::Control(header) | Body::Handshake(header) => {
                Some((header.checksum, keys.control_checksum(payload)))
            }
            Body::Acknowledgment(_)
            | Body::Nak(..)
            | Body::Probe
            | Body::PathProbe { .. }
            | Body::Heartbeat
            | Body::Attach(_) => None,
        };
        if let Some((given, computed)) = checksums
            && given != computed
        {
            return Err(Malformed::Checksum { given: given.0, computed: computed.0 });
        }
        Ok(packet)
    }

    /// Verifies every field, but neither code nor checksum: for tools that show packets.
    ///
    /// # Errors
    /// Those of [`View::check`] except [`Malformed::Mac`] and [`Malformed::Checksum`].
    #[inline]
    pub fn read(self) -> Result<Packet<'a>, Malformed> {
        let Self { layout, payload } = self;
        let header = Header {
            group: self.group(),
            epoch: layout.epoch.get(),
            sender: MemberId(layout.sender.get()),
            sequence: Sequence(layout.sequence.get()),
            timestamp: Timestamp(layout.timestamp.get()),
            body: Body::read(layout, payload)?,
        };
        Ok(Packet { header, payload })
    }
}

fn mac(layout: &Layout, key: &MacKey) -> u64 {
    key.mac(&layout.as_bytes()[..AUTHENTIC_BYTES])
}

/// A packet, all fields of which are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The meaning of the header.
    pub header: Header,
    /// The bytes behind the header.
    pub payload: &'a [u8],
}

/// The meaning of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The group's number.
    pub group: GroupId,
    /// The epoch of the tree, as far as the sender knows: the first tree has 1, and each change
    /// adds 1.
    pub epoch: u32,
    /// The member that sent this copy: not the root if a member forwarded it.
    pub sender: MemberId,
    /// Data: the packet's number. Acknowledgment: the next packet expected; all packets before it
    /// are accepted. Probe: the next packet that will be sent.
    pub sequence: Sequence,
    /// When the copy was sent. A sender's timestamps to one receiver never decrease, and those of
    /// acknowledgments, probes and control messages increase, so that a replay is recognized (RFC
    /// 7323, section 5).
    pub timestamp: Timestamp,
    /// The kind of the packet.
    pub body: Body,
}

/// The kinds of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// A piece of a message.
    Data(Data),
    /// The receive state of the sender.
    Acknowledgment(Acknowledgment),
    /// The same, with the packets that the sender is missing (RFC 5740, section 4.3.1).
    Nak(Acknowledgment, Missing),
    /// Requests an acknowledgment.
    Probe,
    /// The same in a datagram as long as one of data, to find out whether the path carries such
    /// datagrams (RFC 8899). The payload is padding: zeros.
    PathProbe {
        /// The length of the padding in bytes, at most
        /// [`PAYLOAD_BYTES_MAX`](crate::PAYLOAD_BYTES_MAX).
        length: u32,
    },
    /// A control message: the payload is for [`crate::Control::read`].
    Control(ControlHeader),
    /// A step of a handshake: the payload is for [`crate::Handshake::read`].
    Handshake(ControlHeader),
    /// The root to the multicast address: members that receive it know that multicast reaches them.
    Heartbeat,
    /// The first packet of a child on its stream to its parent: the stream is to begin with packet
    /// [`Header::sequence`]. It occurs only there, and its timestamp is 0.
    Attach(Challenge),
}

/// A random number that a parent sends first on a stream. The child's answer contains it, so that
/// no answer can be used twice.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Challenge(pub [u8; Self::BYTES]);

impl Challenge {
    /// Its length in bytes.
    pub const BYTES: usize = 16;
}

/// The header of a control message, or of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlHeader {
    /// The kind of the message.
    pub operation: u32,
    /// The member that it comes from, or that it is for; 0 between parent and child.
    pub nonce: Nonce,
    /// The length of the payload in bytes.
    pub length: u32,
    /// The payload's checksum ([`Keys::control_checksum`]).
    pub checksum: PayloadChecksum,
}

/// A piece of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// The message's number in its group, from 0; wraps.
    pub message: u32,
    /// Where the piece begins, in bytes.
    pub offset: u64,
    /// The length of the piece, and so of the payload, in bytes; 0 only for an empty message.
    pub length: u32,
    /// The length of the whole message in bytes, at most [`MESSAGE_BYTES_MAX`].
    pub message_length: u64,
    /// The payload's checksum ([`Keys::data_checksum`]).
    pub checksum: PayloadChecksum,
    /// Whether an acknowledgment is requested.
    pub ack_requested: bool,
    /// Whether it was sent to this child before.
    pub retransmitted: bool,
    /// Whether the packet closes the group: it is the last packet, and carries no piece of a
    /// message. `message` is then the number of messages of the group, and `message_length` their
    /// total length in bytes.
    pub close: bool,
    /// Where the root has sent the packet.
    pub distribution: Distribution,
}

/// Where the root has sent a packet.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distribution {
    /// Along the tree only.
    #[default]
    Tree,
    /// To the multicast address, as this copy of it was.
    Multicast,
    /// To the multicast address; this copy goes along the tree, to a member that the multicast copy
    /// has not reached.
    MulticastAndTree,
}

impl Distribution {
    const fn flags(self) -> u16 {
        match self {
            Self::Tree => 0,
            Self::Multicast => flag::MULTICAST | flag::MULTICAST_COPY,
            Self::MulticastAndTree => flag::MULTICAST,
        }
    }

    const fn of(flags: u16) -> Option<Self> {
        match (flags & flag::MULTICAST != 0, flags & flag::MULTICAST_COPY != 0) {
            (false, false) => Some(Self::Tree),
            (true, true) => Some(Self::Multicast),
            (true, false) => Some(Self::MulticastAndTree),
            (false, true) => None,
        }
    }
}

impl Data {
    /// Whether the message ends with this piece.
    pub const fn is_last(&self) -> bool {
        self.offset + self.length as u64 == self.message_length
    }

    const fn flags(self) -> u16 {
        (if self.ack_requested { flag::ACK_REQUESTED } else { 0 })
            | (if self.retransmitted { flag::RETRANSMITTED } else { 0 })
            | (if self.close { flag::CLOSE } else { 0 })
            | self.distribution.flags()
    }
}

/// The receive state of a member, in addition to [`Header::sequence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgment {
    /// Packets before this number are accepted by every member of the sender's subtree.
    pub stable: Sequence,
    /// The number of packets, from the next expected one on, for which there are slots. It is
    /// advice: the receiver may drop packets nevertheless.
    pub receive_window: u32,
    /// The timestamp of the packet that requested it, 0 if it is unsolicited (RFC 7323, section
    /// 3.1).
    pub echo: Timestamp,
    /// Whether multicast reaches the sender.
    pub is_reached: bool,
    /// Whether a member of the sender's subtree loses so many multicast packets that the root has
    /// to send more slowly (like ECN-Echo, RFC 3168, section 6.1).
    pub is_congested: bool,
}

impl Acknowledgment {
    const fn flags(&self) -> u16 {
        (if self.is_reached { ack_flag::REACHED } else { 0 })
            | (if self.is_congested { ack_flag::CONGESTED } else { 0 })
    }
}

/// Missing packets, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// The packet of bit 0, which is missing.
    pub first: Sequence,
    /// Bit i is set if the packet i behind the first one is missing.
    pub bits: u64,
}

impl Missing {
    /// The numbers of the missing packets, in order.
    pub fn numbers(self) -> impl Iterator<Item = Sequence> {
        (0..64).filter(move |bit| self.bits >> bit & 1 == 1).map(move |bit| self.first + bit)
    }
}

impl Body {
    #[inline]
    fn read(layout: &Layout, payload: &[u8]) -> Result<Self, Malformed> {
        let flags = layout.flags.get();
        let known = match layout.kind {
            kind::DATA => {
                flag::ACK_REQUESTED
                    | flag::RETRANSMITTED
                    | flag::CLOSE
                    | flag::MULTICAST
                    | flag::MULTICAST_COPY
            }
            kind::ACKNOWLEDGMENT | kind::NAK => ack_flag::REACHED | ack_flag::CONGESTED,
            _ => 0,
        };
        if flags & !known != 0 {
            return Err(Malformed::Flags(flags));
        }
        match layout.kind {
            kind::DATA => read_data(layout, payload).map(Self::Data),
            kind::ACKNOWLEDGMENT => {
                let (acknowledgment, missing) = read_acknowledgment(layout, payload)?;
                if missing.is_some() {
                    Err(Malformed::Reserved)
                } else {
                    Ok(Self::Acknowledgment(acknowledgment))
                }
            }
            kind::NAK => {
                let (acknowledgment, missing) = read_acknowledgment(layout, payload)?;
                missing.map(|missing| Self::Nak(acknowledgment, missing)).ok_or(Malformed::Reserved)
            }
            kind::PROBE => {
                expect_length(0, payload)?;
                if layout.body == [0; BODY_BYTES] { Ok(Self::Probe) } else { Err(Malformed::Reserved) }
            }
            kind::PATH_PROBE => read_path_probe(layout, payload),
            kind::HEARTBEAT => {
                expect_length(0, payload)?;
                if layout.body == [0; BODY_BYTES] { Ok(Self::Heartbeat) } else { Err(Malformed::Reserved) }
            }
            kind::ATTACH => read_attach(layout, payload).map(Self::Attach),
            kind::CONTROL => read_control(layout, payload).map(Self::Control),
            kind::HANDSHAKE => read_control(layout, payload).map(Self::Handshake),
            unknown => Err(Malformed::Kind(unknown)),
        }
    }

    fn write(&self) -> (u8, u16, [u8; BODY_BYTES]) {
        match *self {
            Self::Data(data) => {
                let body = DataLayout {
                    message: data.message.into(),
                    checksum: data.checksum.0.into(),
                    length: data.length.into(),
                    offset: (data.offset as u32).into(),
                    message_length: data.message_length.into(),
                };
                (kind::DATA, data.flags(), zerocopy::transmute!(body))
            }
            Self::Acknowledgment(acknowledgment) => (
                kind::ACKNOWLEDGMENT,
                acknowledgment.flags(),
                write_acknowledgment(acknowledgment, Missing { first: Sequence(0), bits: 0 }),
            ),
            Self::Nak(acknowledgment, missing) => {
                (kind::NAK, acknowledgment.flags(), write_acknowledgment(acknowledgment, missing))
            }
            Self::Probe => (kind::PROBE, 0, [0; BODY_BYTES]),
            Self::PathProbe { length } => {
                let body = PathProbeLayout { length: length.into(), ..PathProbeLayout::new_zeroed() };
                (kind::PATH_PROBE, 0, zerocopy::transmute!(body))
            }
            Self::Heartbeat => (kind::HEARTBEAT, 0, [0; BODY_BYTES]),
            Self::Attach(Challenge(challenge)) => {
                let body = AttachLayout { challenge, ..AttachLayout::new_zeroed() };
                (kind::ATTACH, 0, zerocopy::transmute!(body))
            }
            Self::Control(header) => (kind::CONTROL, 0, write_control(header)),
            Self::Handshake(header) => (kind::HANDSHAKE, 0, write_control(header)),
        }
    }
}

#[inline]
fn read_data(layout: &Layout, payload: &[u8]) -> Result<Data, Malformed> {
    let body = DataLayout::ref_from_bytes(&layout.body).expect("every body has this length");
    let flags = layout.flags.get();
    let data = Data {
        message: body.message.get(),
        offset: body.offset.get().into(),
        length: body.length.get(),
        message_length: body.message_length.get(),
        checksum: PayloadChecksum(body.checksum.get()),
        ack_requested: flags & flag::ACK_REQUESTED != 0,
        retransmitted: flags & flag::RETRANSMITTED != 0,
        close: flags & flag::CLOSE != 0,
        distribution: Distribution::of(flags).ok_or(Malformed::Flags(flags))?,
    };
    expect_length(data.length, payload)?;
    let Data { offset, length, message_length, .. } = data;
    let is_valid = if data.close {
        offset == 0 && length == 0
    } else {
        message_length <= MESSAGE_BYTES_MAX
            && offset + u64::from(length) <= message_length
            && (length > 0 || message_length == 0)
    };
    if is_valid { Ok(data) } else { Err(Malformed::Piece { offset, length, message_length }) }
}

fn read_path_probe(layout: &Layout, payload: &[u8]) -> Result<Body, Malformed> {
    let body = PathProbeLayout::ref_from_bytes(&layout.body).expect("every body has this length");
    let length = body.length.get();
    expect_length(length, payload)?;
    let is_zero =
        body.reserved == [0; 12] && body.reserved_after == [0; 12] && payload.iter().all(|&byte| byte == 0);
    if is_zero { Ok(Body::PathProbe { length }) } else { Err(Malformed::Reserved) }
}

fn read_attach(layout: &Layout, payload: &[u8]) -> Result<Challenge, Malformed> {
    expect_length(0, payload)?;
    let body = AttachLayout::ref_from_bytes(&layout.body).expect("every body has this length");
    if body.reserved == [0; 12] { Ok(Challenge(body.challenge)) } else { Err(Malformed::Reserved) }
}

fn read_control(layout: &Layout, payload: &[u8]) -> Result<ControlHeader, Malformed> {
    let body = ControlLayout::ref_from_bytes(&layout.body).expect("every body has this length");
    expect_length(body.length.get(), payload)?;
    if body.reserved.get() != 0 {
        return Err(Malformed::Reserved);
    }
    Ok(ControlHeader {
        operation: body.operation.get(),
        nonce: Nonce(body.nonce.get()),
        length: body.length.get(),
        checksum: PayloadChecksum(body.checksum.get()),
    })
}

fn write_control(header: ControlHeader) -> [u8; BODY_BYTES] {
    zerocopy::transmute!(ControlLayout {
        operation: header.operation.into(),
        checksum: header.checksum.0.into(),
        length: header.length.into(),
        reserved: 0.into(),
        nonce: header.nonce.0.into(),
    })
}

fn read_acknowledgment(
    layout: &Layout,
    payload: &[u8],
) -> Result<(Acknowledgment, Option<Missing>), Malformed> {
    expect_length(0, payload)?;
    let body = AcknowledgmentLayout::ref_from_bytes(&layout.body).expect("every body has this length");
    let acknowledgment = Acknowledgment {
        stable: Sequence(body.stable.get()),
        receive_window: body.receive_window.get(),
        echo: Timestamp(body.echo.get()),
        is_reached: layout.flags.get() & ack_flag::REACHED != 0,
        is_congested: layout.flags.get() & ack_flag::CONGESTED != 0,
    };
    let missing = Missing { first: Sequence(body.missing_first.get()), bits: body.missing.get() };
    let is_well_formed = missing.bits & 1 == 1 || (missing.bits == 0 && missing.first == Sequence(0));
    if !is_well_formed {
        return Err(Malformed::Reserved);
    }
    Ok((acknowledgment, (missing.bits != 0).then_some(missing)))
}

fn write_acknowledgment(acknowledgment: Acknowledgment, missing: Missing) -> [u8; BODY_BYTES] {
    zerocopy::transmute!(AcknowledgmentLayout {
        stable: acknowledgment.stable.0.into(),
        echo: acknowledgment.echo.0.into(),
        receive_window: acknowledgment.receive_window.into(),
        missing_first: missing.first.0.into(),
        missing: missing.bits.into(),
    })
}

fn expect_length(given: u32, payload: &[u8]) -> Result<(), Malformed> {
    if given as usize == payload.len() {
        Ok(())
    } else {
        Err(Malformed::Length { given, found: payload.len() })
    }
}

impl Header {
    /// The bytes of the header, with their code.
    pub fn write(&self, key: &MacKey) -> [u8; HEADER_BYTES] {
        let mut layout = self.layout();
        layout.mac = mac(&layout, key).into();
        zerocopy::transmute!(layout)
    }

    /// The bytes of the header of a packet to which another part of the host adds the code.
    pub fn write_without_code(&self) -> [u8; HEADER_BYTES] {
        zerocopy::transmute!(self.layout())
    }

    fn layout(&self) -> Layout {
        let (kind, flags, body) = self.body.write();
        Layout {
            version: VERSION,
            kind,
            flags: flags.into(),
            group: self.group.0.into(),
            timestamp: self.timestamp.0.into(),
            epoch: self.epoch.into(),
            sender: self.sender.0.into(),
            sequence: self.sequence.0.into(),
            body,
            mac: 0.into(),
        }
    }
}
