//! The scenario of a world: its cluster, its traffic and its faults.

mod draw;

use treecast_proto::{
    Authentication, Contribution, Element, GroupId, GroupKey, MemberId, Nanoseconds, Offload, Operation,
    ReaderSet, Readers, Sequence, SessionId, Transport, Values,
};

/// A cluster, its traffic and its faults.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub hosts: usize,
    pub groups: Vec<GroupScenario>,
    pub weather: Weather,
    pub multicast: MulticastWeather,
    pub streams: StreamWeather,
    pub kernels: Kernels,
    pub attacks: Attacks,
    pub faults: Vec<(Nanoseconds, Fault)>,
}

/// The key of a group.
pub fn group_key(scenario: &Scenario, group: u32) -> GroupKey {
    GroupKey::new(&scenario.seed.to_string(), GroupId(group))
}

/// The session of a root that has been restarted this number of times.
pub fn session(life: u32) -> SessionId {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&life.to_be_bytes());
    SessionId(bytes)
}

/// What each process contributes to an all-reduce: 1 to the number of its host.
pub fn contribution(packet: Sequence, host: usize) -> Contribution {
    let numbers = (0..Scenario::HOSTS_MAX).map(|number| u32::from(number == host));
    let bytes = numbers.flat_map(u32::to_le_bytes).collect();
    let values = Values { operation: Operation::Sum, element: Element::U32, bytes };
    Contribution::of_process(packet, Some(values))
}

/// The length of the message with a result, in bytes.
pub const RESULT_BYTES: usize = 8 + 4 * Scenario::HOSTS_MAX;

/// A group and its traffic.
#[derive(Debug, Clone)]
pub struct GroupScenario {
    /// The hosts of its initial members, in order.
    pub hosts: Vec<usize>,
    pub root: MemberId,
    pub children: Vec<Vec<MemberId>>,
    pub slots: u32,
    pub payload_bytes_max: u16,
    pub offload: Offload,
    pub authentication: Authentication,
    pub transport: Transport,
    pub start: Sequence,
    pub admits: bool,
    pub bytes_per_s_max: Option<u64>,
    /// The lengths of the messages, in bytes.
    pub messages: Vec<u64>,
    /// Every message of this number and its multiples is the result of an all-reduce, 0 among them;
    /// 0: none.
    pub reduced_every: u32,
    /// The maximum pause of the root between messages.
    pub pause_max: Nanoseconds,
    /// The maximum pause of a reader between reads, and the maximum number of packets per read.
    pub read_pause_max: Nanoseconds,
    pub read_packets_max: u32,
    pub waiting: Waiting,
    /// The number of processes that share the node of each initial member: 0 (not shared), or 2 to
    /// 4.
    pub processes: Vec<u32>,
    /// Whether a root that is restarted creates the group again, and members of the old session
    /// join again.
    pub is_repeated: bool,
    /// Whether the messages of every session have the same lengths.
    pub has_equal_sessions: bool,
}

/// How the applications of a group wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// They check again and again.
    Checks,
    /// They sleep until their nodes wake them, so that a wake-up that is missing is a world that
    /// does not end.
    Sleeps,
}

/// The behaviour of attackers, who record all packets: probabilities from 0 to 1 for each packet
/// that is sent.
#[derive(Debug, Clone, Copy)]
pub struct Attacks {
    /// A packet is sent again.
    pub replayed: f64,
    /// A packet is sent with other bytes, from some address.
    pub forged: f64,
    /// Whether they have the token, so that what they forge is authentic.
    pub has_token: bool,
}

/// The impairments of the network: probabilities from 0 to 1, and delays.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    pub lost: f64,
    pub duplicated: f64,
    pub corrupted: f64,
    pub late: f64,
    pub delay_min: Nanoseconds,
    pub delay_max: Nanoseconds,
    pub late_max: Nanoseconds,
    /// Whether the datagrams of a path arrive in order.
    pub keeps_order: bool,
}

/// The impairments of streams.
#[derive(Debug, Clone, Copy)]
pub struct StreamWeather {
    /// A stream breaks with a packet: a probability from 0 to 1.
    pub breaks: f64,
    /// A side does not hear of the end of a stream: a probability from 0 to 1.
    pub unheard: f64,
    /// The most packets on a stream.
    pub packets_max: usize,
    /// A member that has nothing else to do forgets the payloads that it does not need itself: a
    /// probability from 0 to 1.
    pub forgets: f64,
}

/// The treatment of multicast by the network, beyond the weather. A bit of a set stands for a host.
#[derive(Debug, Clone)]
pub struct MulticastWeather {
    /// Packets are lost to all hosts of a set at once, on a link before a switch: a probability
    /// from 0 to 1.
    pub lossy_links: Vec<(u64, f64)>,
    /// Hosts that it does not reach, from when and until when.
    pub unreached: Vec<(u64, Nanoseconds, Nanoseconds)>,
}

/// The hosts that run groups in the kernel's packet path. A bit of a set stands for a host.
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    pub hosts: u64,
    /// A pause stops the node and its applications there, and not the kernel.
    pub running_through_pauses: u64,
    /// The probability that a group that may be handed off is handed off.
    pub handed_off: f64,
    /// The probability that the kernel leaves a packet to user space that it could handle.
    pub passed_up: f64,
    /// The longest time until user space gets what the kernel leaves to it.
    pub latency_max: Nanoseconds,
}

/// A time from its first to its last instant.
pub type Span = std::ops::RangeInclusive<Nanoseconds>;

fn overlaps(at: Nanoseconds, span: Nanoseconds, within: &Span) -> bool {
    at <= *within.end() && *within.start() <= at + span
}

/// A fault, or a change of membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A host crashes and loses its state.
    Crash(usize),
    /// A host restarts without state.
    Restart(usize),
    /// A host pauses for a while.
    Pause { host: usize, span: Nanoseconds },
    /// The readers of a host pause for a while.
    StopReading { host: usize, span: Nanoseconds },
    /// A partition for a while between the hosts whose bit is set and the others.
    Partition { side: u64, span: Nanoseconds },
    /// A broken path from one host to another for a while.
    BreakPath { from: usize, to: usize, span: Nanoseconds },
    /// Paths shrink for ever: longer datagrams do not arrive at a host, from one other host or from
    /// all.
    Shrink { from: Option<usize>, to: usize, datagram_bytes_max: usize },
    /// A member leaves.
    Leave { host: usize, group: u32 },
    /// The root makes a member a leaf.
    Relieve { group: u32, member: MemberId },
    /// A host that is not a member asks to join.
    Join { host: usize, group: u32 },
    /// A process that shares a member's node comes.
    Come { host: usize, group: u32, process: u32 },
    /// Such a process is killed.
    Kill { host: usize, group: u32, process: u32 },
}

impl Fault {
    /// The duration for which it pauses a host.
    fn pause_of(self, host: usize) -> Nanoseconds {
        match self {
            Self::Pause { host: paused, span } if paused == host => span,
            _ => Nanoseconds::ZERO,
        }
    }
}

impl Scenario {
    /// The maximum number of hosts.
    pub const HOSTS_MAX: usize = 12;

    /// The processes that share the node of an initial member, at a time; `None` if none do.
    pub fn readers(&self, group: u32, host: usize, now: Nanoseconds) -> Option<Readers> {
        let setting = &self.groups[group as usize];
        let member = setting.hosts.iter().position(|&member| member == host)?;
        let count = setting.processes[member];
        let mut readers = Readers { awaited: ReaderSet::first(count), lost: ReaderSet::default() };
        for process in 0..count {
            if self.has_happened(Fault::Come { host, group, process }, now) {
                readers.awaited.remove(process);
            }
            if self.has_happened(Fault::Kill { host, group, process }, now) {
                readers.lost.insert(process);
            }
        }
        (count > 0).then_some(readers)
    }

    /// The number of processes that share the node of an initial member; 0: none share it.
    pub fn processes(&self, group: u32, host: usize) -> u32 {
        let setting = &self.groups[group as usize];
        let member = setting.hosts.iter().position(|&member| member == host);
        member.map_or(0, |member| setting.processes[member])
    }

    /// Whether there was this fault by that time.
    pub fn has_happened(&self, fault: Fault, by: Nanoseconds) -> bool {
        self.faults.iter().any(|&(at, other)| other == fault && at <= by)
    }

    /// Whether a fault within a time may separate a host from a root for long enough that the root
    /// declares it lost.
    pub fn may_separate(&self, root: usize, host: usize, within: &Span) -> bool {
        // With packet loss, a pause or partition of a quarter of the peer timeout may exceed it.
        let is_long = |at, span| span > Nanoseconds::from_ms(200) && overlaps(at, span, within);
        self.is_down(host, within)
            || self.faults.iter().any(|&(at, fault)| match fault {
                Fault::Pause { host: paused, span } => paused == host && is_long(at, span),
                // The root repairs what is broken between two other hosts.
                Fault::Partition { side, span } => {
                    (side >> host & 1) != (side >> root & 1) && is_long(at, span)
                }
                Fault::BreakPath { from, to, span } => {
                    [(root, host), (host, root)].contains(&(from, to)) && is_long(at, span)
                }
                // What does not arrive from other hosts, the root sends itself.
                Fault::Shrink { from, to, .. } => {
                    to == host && from.is_none_or(|from| from == root) && at <= *within.end()
                }
                _ => false,
            })
    }

    /// Whether a host is down at some time within these.
    pub fn is_down(&self, host: usize, within: &Span) -> bool {
        self.faults.iter().any(|&(at, fault)| {
            let restarts = self.faults.iter().filter(|&&(_, fault)| fault == Fault::Restart(host));
            let restart = restarts.map(|&(restart, _)| restart).filter(|&restart| restart > at).min();
            let span = restart.unwrap_or(Nanoseconds(u64::MAX)).since(at);
            fault == Fault::Crash(host) && overlaps(at, span, within)
        })
    }

    /// Whether a root may seem dead to its members because of its pauses. Those shorter than the
    /// peer timeout have no effect on others, and a node detects its own pauses.
    pub fn may_silence(&self, root: usize, within: &Span) -> bool {
        let pauses = self.faults.iter().filter(|&&(at, fault)| overlaps(at, fault.pause_of(root), within));
        let paused_ns: u64 = pauses.map(|(_, fault)| fault.pause_of(root).0).sum();
        paused_ns > Nanoseconds::from_ms(1_000).0
    }

    /// The lengths of the messages of a group in a session, in bytes.
    pub fn messages(&self, group: u32, session: u32) -> impl ExactSizeIterator<Item = u64> + use<'_> {
        let setting = &self.groups[group as usize];
        let bytes = &setting.messages;
        (0..bytes.len()).map(move |message| {
            if setting.is_reduced(message as u32) {
                RESULT_BYTES as u64
            } else if session == 0 || setting.has_equal_sessions {
                bytes[message]
            } else {
                bytes[bytes.len() - 1 - message] / 2 + u64::from(session)
            }
        })
    }

    /// The message that begins with a packet, if it is the result of an all-reduce.
    pub fn reduced_at(&self, group: u32, session: u32, packet: Sequence) -> Option<u32> {
        let setting = &self.groups[group as usize];
        if setting.reduced_every == 0 {
            return None;
        }
        let mut first = setting.start;
        let stride = u64::from(setting.payload_bytes_max);
        for (message, bytes) in (0..).zip(self.messages(group, session)) {
            if first == packet {
                return setting.is_reduced(message).then_some(message);
            }
            first += bytes.div_ceil(stride).max(1) as u32;
        }
        None
    }

    /// Whether the host leaves the group.
    pub fn leaves(&self, host: usize, group: u32) -> bool {
        self.faults.iter().any(|&(_, fault)| fault == Fault::Leave { host, group })
    }
}

impl GroupScenario {
    /// Whether a message is the result of an all-reduce.
    pub const fn is_reduced(&self, message: u32) -> bool {
        self.reduced_every > 0 && message.is_multiple_of(self.reduced_every)
    }

    /// The members whose nodes several processes share, and their number.
    pub fn shared_nodes(&self) -> Vec<(MemberId, u32)> {
        (0..).map(MemberId).zip(self.processes.iter().copied()).filter(|&(_, count)| count > 0).collect()
    }
}
