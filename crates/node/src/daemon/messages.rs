//! What a daemon and its clients say to each other: one JSON value a message. The client asks; the daemon answers what has an
//! answer, and says nothing by itself but a byte or five on a socket of its own ([`Ring`]).

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use treecast_proto::{Ending, Eviction, MemberLoss, Nanoseconds, Sequence};
use treecast_terms::Keyed;

use crate::{GroupSettings, NodeError};

/// The version of all this: daemons and clients of different ones do not understand each other.
pub const VERSION: u32 = 1;

/// A longer message is none.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// As many members are named in one answer.
pub const MEMBERS_AT_ONCE: usize = 4_096;

/// As many losses are told at once.
pub const LOSSES_AT_ONCE: usize = 512;

/// What a client says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// The first word. Answered by [`Answer::Welcome`].
    Hello {
        version: u32,
    },
    /// To be the root of a group, or another member. Answered by [`Answer::Entered`].
    Lead {
        terms: Terms,
    },
    Follow {
        terms: Terms,
        asks: bool,
    },
    /// What is new. Answered by [`Answer::News`].
    Look,
    /// There is something to see in the memory of its groups.
    Kick,
    /// What the application asks of a group; not answered.
    Close {
        group: u32,
    },
    Leave {
        group: u32,
    },
    Abort {
        group: u32,
    },
    End {
        group: u32,
    },
    Forward {
        group: u32,
        upto: u32,
        child: Option<u32>,
    },
    /// Answered by [`Answer::Members`].
    Children {
        group: u32,
    },
    Awaited {
        group: u32,
    },
    /// Answered by [`Answer::Numbers`].
    Counters {
        group: u32,
    },
    KernelCounters {
        group: u32,
    },
    Strays,
}

/// What the daemon answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// With the client's end of what the daemon rings, and the socket by which the kernel's packet path wakes.
    Welcome {
        address: SocketAddr,
        has_kernel: bool,
    },
    /// The last word if the client does not belong here, and else about what was asked.
    Refused {
        why: String,
    },
    /// At the root with descriptors: slots, page, and the source, if there is one.
    Entered {
        memory: Option<Memory>,
    },
    News {
        news: Option<Box<News>>,
        is_all: bool,
    },
    Members {
        members: Vec<u32>,
    },
    Numbers {
        numbers: Option<Vec<u64>>,
    },
}

/// What a group is set to.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    members: Vec<SocketAddr>,
    settings: Vec<(String, String)>,
}

impl Terms {
    pub fn of(settings: &GroupSettings) -> Self {
        let values = settings.values().map(|(key, value)| (key.to_owned(), value)).collect();
        Self { members: settings.members.clone(), settings: values }
    }

    /// Of these settings what another member than the root needs.
    pub fn of_follower(settings: &GroupSettings, root: SocketAddr) -> Self {
        Self { members: vec![root], ..Self::of(&GroupSettings { root: 0, ..settings.clone() }) }
    }

    /// # Errors
    /// [`NodeError::Members`], for what are no settings.
    pub fn read(self) -> Result<GroupSettings, NodeError> {
        let mut settings = GroupSettings::new(self.members);
        for (key, value) in &self.settings {
            settings.set_key(key, value).map_err(|error| NodeError::Members(error.to_string()))?;
        }
        Ok(settings)
    }
}

/// A group's memory, whose descriptors come with it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    pub slots: u32,
    pub slot_bytes: usize,
    pub payload_bytes_max: u16,
    pub start: u32,
}

/// How a group stands, with descriptors of its memory when the member has got its place.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct News {
    pub group: u32,
    pub is_ready: bool,
    pub is_closed: bool,
    pub does_not_fit: bool,
    pub broken: Option<String>,
    pub placed: Option<PlacedWord>,
    /// Since the last news.
    pub losses: Vec<(u32, LossWord)>,
    pub ending: Option<EndingWord>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacedWord {
    pub member: u32,
    pub offload: String,
    pub memory: Memory,
}

/// A [`MemberLoss`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossWord {
    Unreachable(u64),
    Silent(u64),
    Restarted,
    Left,
}

impl From<MemberLoss> for LossWord {
    fn from(loss: MemberLoss) -> Self {
        match loss {
            MemberLoss::Unreachable(span) => Self::Unreachable(span.0),
            MemberLoss::Silent(span) => Self::Silent(span.0),
            MemberLoss::Restarted => Self::Restarted,
            MemberLoss::Left => Self::Left,
        }
    }
}

impl From<LossWord> for MemberLoss {
    fn from(word: LossWord) -> Self {
        match word {
            LossWord::Unreachable(span) => Self::Unreachable(Nanoseconds(span)),
            LossWord::Silent(span) => Self::Silent(Nanoseconds(span)),
            LossWord::Restarted => Self::Restarted,
            LossWord::Left => Self::Left,
        }
    }
}

/// An [`Ending`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndingWord {
    Closed,
    EvictedSilent,
    EvictedLeft,
    EvictedRefused,
    EvictedAborted,
    EvictedClosed,
    RootSilent(u64),
    TooMuchMemory(u64, u64),
    Aborted,
}

impl From<Ending> for EndingWord {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Closed => Self::Closed,
            Ending::Evicted(Eviction::Silent) => Self::EvictedSilent,
            Ending::Evicted(Eviction::Left) => Self::EvictedLeft,
            Ending::Evicted(Eviction::Refused) => Self::EvictedRefused,
            Ending::Evicted(Eviction::Aborted) => Self::EvictedAborted,
            Ending::Evicted(Eviction::Closed) => Self::EvictedClosed,
            Ending::RootSilent(span) => Self::RootSilent(span.0),
            Ending::TooMuchMemory { asked_bytes, bytes_max } => Self::TooMuchMemory(asked_bytes, bytes_max),
            Ending::Aborted => Self::Aborted,
        }
    }
}

impl From<EndingWord> for Ending {
    fn from(word: EndingWord) -> Self {
        match word {
            EndingWord::Closed => Self::Closed,
            EndingWord::EvictedSilent => Self::Evicted(Eviction::Silent),
            EndingWord::EvictedLeft => Self::Evicted(Eviction::Left),
            EndingWord::EvictedRefused => Self::Evicted(Eviction::Refused),
            EndingWord::EvictedAborted => Self::Evicted(Eviction::Aborted),
            EndingWord::EvictedClosed => Self::Evicted(Eviction::Closed),
            EndingWord::RootSilent(span) => Self::RootSilent(Nanoseconds(span)),
            EndingWord::TooMuchMemory(asked_bytes, bytes_max) => {
                Self::TooMuchMemory { asked_bytes, bytes_max }
            }
            EndingWord::Aborted => Self::Aborted,
        }
    }
}

/// What the daemon rings for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// There are packets, or there is room, in the memory of a group.
    Packets(u32),
    /// There is something to be looked at.
    News,
}

impl Ring {
    pub fn write(self) -> [u8; 5] {
        let (kind, group) = match self {
            Self::Packets(group) => (0, group),
            Self::News => (1, 0),
        };
        let [a, b, c, d] = group.to_be_bytes();
        [kind, a, b, c, d]
    }

    pub fn read(bytes: &[u8]) -> Self {
        match bytes {
            [0, a, b, c, d] => Self::Packets(u32::from_be_bytes([*a, *b, *c, *d])),
            _ => Self::News,
        }
    }
}

/// The first packet of a group's memory.
impl Memory {
    pub const fn start(&self) -> Sequence {
        Sequence(self.start)
    }
}
