//! The steps of a script.

use arbitrary::Arbitrary;

/// The settings of the group.
#[derive(Debug, Arbitrary)]
pub(super) struct Setting {
    pub(super) slots: u8,
    pub(super) offload: u8,
    pub(super) start: u32,
    pub(super) is_near_wrap: bool,
    pub(super) admits: bool,
    pub(super) rate: Option<u16>,
}

/// A step of the script.
#[derive(Debug, Arbitrary)]
pub(super) enum Step {
    /// The oldest datagrams arrive.
    Deliver {
        count: u8,
    },
    /// The newest datagram overtakes the others.
    Overtake,
    Lose,
    /// The oldest datagram is duplicated.
    Duplicate,
    /// A byte of the oldest datagram is changed.
    Corrupt {
        place: u16,
        change: u8,
    },
    Wait {
        us: u16,
    },
    WaitLong {
        ms: u8,
    },
    /// The root queues the next packets of messages of `bytes` bytes.
    Queue {
        bytes: u16,
        count: u8,
    },
    /// The root queues an arbitrary piece.
    QueueAny {
        message: u32,
        offset: u64,
        length: u32,
        message_length: u64,
    },
    Read {
        count: u8,
    },
    Consume {
        node: u8,
        upto: Number,
    },
    Forward {
        node: u8,
        upto: Number,
        child: Option<u8>,
    },
    /// A rare request: close, leave, abort or a restart. Most values do nothing, so that not every
    /// run is short.
    Disrupt {
        what: u8,
        node: u8,
    },
    Forge {
        from: u8,
        to: u8,
        /// Its session, from 0.
        session: u8,
        /// Whose nonce it has, and how often that was started before.
        of: u8,
        life: u8,
        sender: u8,
        epoch: u8,
        sequence: Number,
        time: Time,
        body: AnyBody,
    },
    Bytes {
        from: u8,
        to: u8,
        bytes: [u8; 12],
        length: u8,
    },
    /// A node opens its stream to its parent; its first packet may be changed, or come from another
    /// host.
    Attach {
        node: u8,
        from: Option<u8>,
        place: u8,
        change: u8,
    },
    /// The oldest packets on the streams arrive; `node` selects whose stream.
    Records {
        node: u8,
        count: u8,
    },
    /// A byte of the oldest packet on a stream is changed: its parent lies.
    CorruptRecord {
        node: u8,
        place: u16,
        change: u8,
    },
    /// The stream of a child changes, which may have none.
    Stream {
        node: u8,
        child: u8,
        change: u8,
    },
    Flush {
        node: u8,
    },
    /// A node is asked to queue packets for datagrams or streams from now on.
    Carrier {
        node: u8,
        is_stream: bool,
    },
    /// The stream of a child loses packets.
    StreamLosses {
        node: u8,
        child: u8,
    },
}

/// A sequence number: near the next one of B, or arbitrary.
#[derive(Debug, Arbitrary, Clone, Copy)]
pub(super) enum Number {
    Near(i8),
    Any(u32),
}

/// A timestamp.
#[derive(Debug, Arbitrary)]
pub(super) enum Time {
    Now,
    None,
    Ago(u16),
    Any(u64),
}

#[derive(Debug, Arbitrary)]
pub(super) enum AnyBody {
    Data {
        message: i8,
        offset: u16,
        length: u16,
        rest: u16,
        ack_requested: bool,
        close: bool,
    },
    Acknowledgment {
        stable: Number,
        window: u8,
    },
    Nak {
        stable: Number,
        window: u8,
        first: Number,
        bits: u64,
    },
    Probe,
    Table {
        member: u8,
        message: u8,
        bytes: u16,
        start: Number,
        slots: u8,
        part: u8,
        parts: u8,
        neighbours: [(u8, bool); 2],
    },
    TableAck,
    Suspect(u8),
    StateLost(u8),
    Join(u8),
    Leave,
    Evicted(u8),
    RootLost(bool),
    Invite(u8),
    Hello,
    Welcome(u8),
    Contribution {
        packet: Number,
        bytes: u8,
    },
}
