//! The messages between a daemon and its clients: one JSON value per packet of a Unix socket. The
//! client sends requests; the daemon answers some of them, and sends nothing else but wake-ups on a
//! socket of their own ([`Wakeup`]).

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use treecast_proto::{AbortReason, Ending, Eviction, MemberLoss, Nanoseconds, Sequence};

use treecast_engine::query::{Answer, Query};
use treecast_engine::settings::GroupSettings;
use treecast_engine::settings::error::NodeError;
use treecast_shm::places::ProcessPlace;
use treecast_shm::shared_group::HostLoss;
use treecast_terms::{Keyed, MemberId};

/// The version of these messages. A daemon rejects clients with another version.
pub const VERSION: u32 = 14;

/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// The most members in one answer.
pub const MEMBERS_PER_ANSWER_MAX: usize = 4_096;

/// The most losses in one update.
pub const LOSSES_PER_UPDATE_MAX: usize = 512;

/// A message of a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ClientMessage {
    /// The first message. Answered by [`DaemonMessage::Welcome`].
    Hello {
        version: u32,
    },
    /// Create a group at its root. Answered by [`DaemonMessage::Entered`].
    CreateGroup {
        settings: SettingsMessage,
        /// The children of each member.
        children: Vec<Vec<MemberId>>,
        /// The session that the client has drawn: its application computes checksums under the
        /// session's keys.
        session: [u8; 16],
        place: Option<ProcessPlace>,
    },
    /// Become a member of the root's group. Answered by [`DaemonMessage::Entered`].
    JoinGroup {
        settings: SettingsMessage,
        place: Option<ProcessPlace>,
    },
    /// Asks for the next update. Answered by [`DaemonMessage::Update`].
    PollUpdate,
    /// The application has written or read in the memory of its groups. Not answered, as all that
    /// follow up to the query.
    Wake,
    /// The application's requests.
    Close {
        group: u32,
    },
    Leave {
        group: u32,
    },
    Evict {
        group: u32,
        member: u32,
    },
    Relieve {
        group: u32,
        member: u32,
    },
    Abort {
        group: u32,
        #[serde(default)]
        why: AbortMessage,
    },
    Forward {
        group: u32,
        upto: u32,
        child: Option<u32>,
    },
    /// The client contributes to an all-reduce: a [`treecast_proto::Contribution`] as on the wire.
    Contribute {
        group: u32,
        contribution: Vec<u8>,
    },
    /// The client waits until all members have what it has sent.
    Flush {
        group: u32,
    },
    /// A payload that the client has read is corrupt.
    Repair {
        group: u32,
        packet: u32,
    },
    /// The node closes: end the group.
    End {
        group: u32,
    },
    /// The client has unmapped the memory of a group, and has no descriptor of it.
    Unmapped {
        lease: u64,
    },
    /// Answered by [`DaemonMessage::Answer`].
    Query(Query),
}

/// An answer of the daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DaemonMessage {
    /// With two descriptors: the client's end of the wake-ups, and the socket by which the kernel's
    /// packet path wakes it, with datagrams that carry the nonce.
    Welcome {
        address: SocketAddr,
        has_kernel: bool,
        has_streams: bool,
        wake_nonce: u64,
    },
    /// A request is refused. After an invalid message, the last message.
    Refused {
        reason: String,
    },
    /// At the root with descriptors: slots, page, the places of its host's processes if they are
    /// several, and the root's socket, if there is one.
    Entered {
        memory: Option<MemoryLayout>,
    },
    /// The state of a group that has changed; none if no group has. `is_last` if no other group has
    /// changed.
    Update {
        update: Option<Box<GroupUpdate>>,
        is_last: bool,
    },
    Answer(Answer),
}

/// The settings of a group.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsMessage {
    members: Vec<SocketAddr>,
    settings: Vec<(String, String)>,
}

impl SettingsMessage {
    pub fn of(settings: &GroupSettings) -> Self {
        let values = settings.values().map(|(key, value)| (key.to_owned(), value.to_string())).collect();
        Self { members: settings.members.clone(), settings: values }
    }

    /// # Errors
    /// [`NodeError::Members`], for an invalid setting.
    pub fn read(self) -> Result<GroupSettings, NodeError> {
        let mut settings = GroupSettings::new(self.members);
        for (key, value) in &self.settings {
            settings.set_key(key, value).map_err(|error| NodeError::Members(error.to_string()))?;
        }
        Ok(settings)
    }
}

/// The layout of a group's memory, whose descriptors come with the message.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryLayout {
    pub slots: u32,
    pub slot_bytes: usize,
    pub payload_bytes_max: u16,
    /// The first packet.
    pub start: u32,
    /// The number of [`ClientMessage::Unmapped`], among those of the client; none if the kernel
    /// tells the daemon.
    pub lease: Option<u64>,
}

impl MemoryLayout {
    pub const fn start(&self) -> Sequence {
        Sequence(self.start)
    }
}

/// The state of a group. When the member has its place, the descriptors of its memory come with it:
/// slots, page, and the places of its host's processes if they are several.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupUpdate {
    pub group: u32,
    pub is_ready: bool,
    pub is_closed: bool,
    pub datagrams_too_long: bool,
    pub failure: Option<String>,
    pub placement: Option<PlacementMessage>,
    /// The losses since the last update.
    pub losses: Vec<HostLossMessage>,
    /// At the root: the result of the last all-reduce, as on the wire.
    pub reduced: Option<Vec<u8>>,
    pub ending: Option<EndingMessage>,
}

/// The place of a member in the tree.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacementMessage {
    pub member: u32,
    pub offload: String,
    /// The session, if what is in the slots is encrypted. The daemon does not need the key.
    pub encrypted_session: Option<[u8; 16]>,
    pub memory: MemoryLayout,
    /// Whether the memory is that of the root, which is a process of this host.
    pub is_at_root: bool,
}

/// A [`HostLoss`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostLossMessage {
    pub host: u32,
    pub reader: Option<u32>,
    pub loss: LossMessage,
}

impl From<HostLoss> for HostLossMessage {
    fn from(HostLoss { host, reader, loss }: HostLoss) -> Self {
        Self { host: host.0, reader, loss: loss.into() }
    }
}

impl From<HostLossMessage> for HostLoss {
    fn from(HostLossMessage { host, reader, loss }: HostLossMessage) -> Self {
        Self { host: MemberId(host), reader, loss: loss.into() }
    }
}

/// A [`MemberLoss`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossMessage {
    Unreachable(u64),
    Silent(u64),
    SilentAfterPause(u64),
    PathTooSmall(u32),
    AcceptsNothing(u64),
    Restarted,
    Left,
    Evicted,
}

impl From<MemberLoss> for LossMessage {
    fn from(loss: MemberLoss) -> Self {
        match loss {
            MemberLoss::Unreachable(span) => Self::Unreachable(span.0),
            MemberLoss::Silent(span) => Self::Silent(span.0),
            MemberLoss::SilentAfterPause(span) => Self::SilentAfterPause(span.0),
            MemberLoss::PathTooSmall { datagram_bytes } => Self::PathTooSmall(datagram_bytes),
            MemberLoss::AcceptsNothing(span) => Self::AcceptsNothing(span.0),
            MemberLoss::Restarted => Self::Restarted,
            MemberLoss::Left => Self::Left,
            MemberLoss::Evicted => Self::Evicted,
        }
    }
}

impl From<LossMessage> for MemberLoss {
    fn from(message: LossMessage) -> Self {
        match message {
            LossMessage::Unreachable(span) => Self::Unreachable(Nanoseconds(span)),
            LossMessage::Silent(span) => Self::Silent(Nanoseconds(span)),
            LossMessage::SilentAfterPause(span) => Self::SilentAfterPause(Nanoseconds(span)),
            LossMessage::PathTooSmall(datagram_bytes) => Self::PathTooSmall { datagram_bytes },
            LossMessage::AcceptsNothing(span) => Self::AcceptsNothing(Nanoseconds(span)),
            LossMessage::Restarted => Self::Restarted,
            LossMessage::Left => Self::Left,
            LossMessage::Evicted => Self::Evicted,
        }
    }
}

/// An [`Eviction`], by its code on the wire.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct EvictionMessage(pub Eviction);

impl TryFrom<u32> for EvictionMessage {
    type Error = String;

    fn try_from(code: u32) -> Result<Self, String> {
        Eviction::from_code(code).map(Self).ok_or_else(|| format!("no reason has the code {code}"))
    }
}

impl From<EvictionMessage> for u32 {
    fn from(EvictionMessage(why): EvictionMessage) -> Self {
        why.code()
    }
}

/// An [`AbortReason`], by the code of the eviction that it causes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct AbortMessage(pub AbortReason);

/// A client need not give a reason.
impl Default for AbortMessage {
    fn default() -> Self {
        Self(AbortReason::Application)
    }
}

impl TryFrom<u32> for AbortMessage {
    type Error = String;

    fn try_from(code: u32) -> Result<Self, String> {
        match Eviction::from_code(code) {
            Some(Eviction::Aborted(why)) => Ok(Self(why)),
            _ => Err(format!("no reason to abort has the code {code}")),
        }
    }
}

impl From<AbortMessage> for u32 {
    fn from(AbortMessage(why): AbortMessage) -> Self {
        Eviction::Aborted(why).code()
    }
}

/// An [`Ending`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndingMessage {
    Closed,
    Evicted(EvictionMessage),
    EvictedAfterPause(u64),
    RootSilent(u64),
    RootRestarted,
    Inconsistent(u32),
    ContradictoryTables,
    TooMuchMemory(u64, u64),
    Aborted,
}

impl From<Ending> for EndingMessage {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Closed => Self::Closed,
            Ending::Evicted(why) => Self::Evicted(EvictionMessage(why)),
            Ending::EvictedAfterPause(span) => Self::EvictedAfterPause(span.0),
            Ending::RootSilent(span) => Self::RootSilent(span.0),
            Ending::RootRestarted => Self::RootRestarted,
            Ending::Inconsistent(packet) => Self::Inconsistent(packet.0),
            Ending::ContradictoryTables => Self::ContradictoryTables,
            Ending::TooMuchMemory { asked_bytes, bytes_max } => Self::TooMuchMemory(asked_bytes, bytes_max),
            Ending::Aborted => Self::Aborted,
        }
    }
}

impl From<EndingMessage> for Ending {
    fn from(message: EndingMessage) -> Self {
        match message {
            EndingMessage::Closed => Self::Closed,
            EndingMessage::Evicted(EvictionMessage(why)) => Self::Evicted(why),
            EndingMessage::EvictedAfterPause(span) => Self::EvictedAfterPause(Nanoseconds(span)),
            EndingMessage::RootSilent(span) => Self::RootSilent(Nanoseconds(span)),
            EndingMessage::RootRestarted => Self::RootRestarted,
            EndingMessage::Inconsistent(packet) => Self::Inconsistent(Sequence(packet)),
            EndingMessage::ContradictoryTables => Self::ContradictoryTables,
            EndingMessage::TooMuchMemory(asked_bytes, bytes_max) => {
                Self::TooMuchMemory { asked_bytes, bytes_max }
            }
            EndingMessage::Aborted => Self::Aborted,
        }
    }
}

/// A wake-up of a client: five bytes, the kind and the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// The ring of a group has new packets, or room.
    Ring(u32),
    /// There is an update.
    Update,
}

impl Wakeup {
    pub fn write(self) -> [u8; 5] {
        let (kind, group) = match self {
            Self::Ring(group) => (0, group),
            Self::Update => (1, 0),
        };
        let [a, b, c, d] = group.to_be_bytes();
        [kind, a, b, c, d]
    }

    pub fn read(bytes: &[u8]) -> Self {
        match bytes {
            [0, a, b, c, d] => Self::Ring(u32::from_be_bytes([*a, *b, *c, *d])),
            _ => Self::Update,
        }
    }
}
