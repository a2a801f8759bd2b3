//! A multicast prepared for simulation: its plan with the paths of its worms. Memory is
//! proportional to its group.

use std::ops::Range;

use treecast_fabric::{Fabric, HostId};
use treecast_plan::{Local, MemberId, PACKETS_MAX, Placement, Plan, Scheme, WormKind};
use treecast_terms::{Cycles, Flits};

use crate::error::SimError;
use crate::parameters::Parameters;
use crate::path::{PathFinder, WormPath};
use treecast_terms::Offload;

/// The parameters that distinguish a multicast from others in the same run, besides its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MulticastParameters {
    /// Counted from 0 in the order of the starts.
    pub number: u64,
    /// The cycle in which the root's process wants to send: the arrival of the multicast.
    pub start: Cycles,
    pub offload: Offload,
    pub message: Flits,
    /// Whether contributions of all members go up the tree first. They have one packet each.
    pub reduces: bool,
}

/// What a participant combines with its own values before it contributes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Awaited {
    /// Contributions that the process receives.
    pub at_host: u32,
    /// Contributions that the network interface combines, that of the participant included; 0 if
    /// all are combined by the process.
    pub at_nic: u32,
}

/// A worm of a multicast.
#[derive(Debug)]
pub(crate) struct RunningWorm {
    pub kind: WormKind,
    /// Its receivers among the participants. Receivers on the same host are adjacent.
    pub receivers: Range<u32>,
    pub path: WormPath,
}

/// A member that takes part in a multicast.
#[derive(Debug, Clone)]
struct Participant {
    member: MemberId,
    /// Its worms, in the order in which it sends them: a range of `sends`.
    sends: Range<u32>,
}

/// A multicast prepared for simulation. Participant 0 is the root; the receivers of each worm
/// follow.
#[derive(Debug)]
pub(crate) struct Multicast {
    pub parameters: MulticastParameters,
    pub packets: u32,
    /// Whether a packet that arrives at a host is transferred once for all its processes.
    pub shared_delivery: bool,
    /// The worms of the plan, then the contributions of all participants but the root, in their
    /// order.
    pub worms: Vec<RunningWorm>,
    /// What each participant awaits; empty unless contributions go up the tree.
    pub awaited: Vec<Awaited>,
    participants: Vec<Participant>,
    sends: Vec<u32>,
    packet_flits: Flits,
    placement: Placement,
}

impl Multicast {
    /// Prepares a plan.
    ///
    /// # Errors
    /// [`SimError`] for a message that cannot be cut into packets, and for contributions that have
    /// several.
    pub fn new(
        fabric: &Fabric,
        parameters: &Parameters,
        plan: &Plan,
        multicast: MulticastParameters,
    ) -> Result<Self, SimError> {
        let packets = packet_count(multicast.message, parameters.packet_flits)?;
        if multicast.reduces && packets > 1 {
            let (message, packet) = (multicast.message, parameters.packet_flits);
            return Err(SimError::ContributionTooLong { message, packet });
        }
        let placement = plan.placement().clone();
        let finder = PathFinder::new(fabric, plan, parameters, multicast.number);
        let mut participants = Vec::with_capacity(plan.destination_count() + 1);
        participants.push(Participant { member: plan.root(), sends: 0..0 });
        let mut worms = Vec::with_capacity(plan.worms().len());
        for worm in plan.worms() {
            let first = participants.len();
            participants.extend(worm.to.iter().map(|&member| Participant { member, sends: 0..0 }));
            participants[first..]
                .sort_unstable_by_key(|receiver| (placement.host_of(receiver.member), receiver.member));
            worms.push(RunningWorm {
                kind: worm.kind,
                receivers: first as u32..participants.len() as u32,
                path: finder.path(worm, worms.len() as u32),
            });
        }
        let mut by_member: Vec<(MemberId, u32)> =
            participants.iter().zip(0..).map(|(participant, index)| (participant.member, index)).collect();
        by_member.sort_unstable();
        if multicast.reduces {
            let number = |member: MemberId| {
                let found = by_member.binary_search_by_key(&member, |&(member, _)| member);
                by_member[found.expect("each contributor takes part")].1
            };
            let reduction = plan.reduction(fabric)?;
            let contributions = reduction.contributions().iter();
            let mut contributions: Vec<_> =
                contributions.map(|contribution| (number(contribution.from()), contribution)).collect();
            contributions.sort_unstable_by_key(|&(from, _)| from);
            for (_, contribution) in contributions {
                let to = number(contribution.to());
                let worm = &contribution.worm;
                let path = finder.path(worm, worms.len() as u32);
                worms.push(RunningWorm { kind: worm.kind, receivers: to..to + 1, path });
            }
        }
        let worms_by_position = plan.worms().iter().zip(0..);
        let mut sends: Vec<(MemberId, u32, u32)> =
            worms_by_position.map(|(worm, position)| (worm.from, worm.index, position)).collect();
        sends.sort_unstable();
        // Both are in the order of members.
        let mut senders = by_member.into_iter();
        let mut first = 0;
        for stretch in sends.chunk_by(|a, b| a.0 == b.0) {
            let sender = senders.find(|(member, _)| *member == stretch[0].0);
            let (_, sender) = sender.expect("each sender has the message");
            participants[sender as usize].sends = first..first + stretch.len() as u32;
            first += stretch.len() as u32;
        }
        let mut prepared = Self {
            parameters: multicast,
            packets,
            shared_delivery: matches!(plan.scheme(), Scheme::Leader { local: Local::Direct, .. }),
            worms,
            awaited: Vec::new(),
            participants,
            sends: sends.into_iter().map(|(.., position)| position).collect(),
            packet_flits: parameters.packet_flits,
            placement,
        };
        if multicast.reduces {
            prepared.awaited = prepared.all_awaited();
        }
        Ok(prepared)
    }

    /// What each participant awaits. A network interface combines the contributions from other
    /// hosts if the combined one also leaves the host; that of the root if other hosts are among
    /// its children.
    fn all_awaited(&self) -> Vec<Awaited> {
        let is_local = |worm: u32| self.worms[worm as usize].kind == WormKind::Local;
        let combines_at_nic = |participant: u32| {
            let goes_to_nic = match participant {
                Self::ROOT => self.sends_of(Self::ROOT).iter().any(|&worm| !is_local(worm)),
                _ => !is_local(self.contribution_of(participant)),
            };
            self.parameters.offload == Offload::Nic && goes_to_nic
        };
        let participants = 0..self.participant_count();
        let mut awaited: Vec<Awaited> = participants
            .clone()
            .map(|participant| Awaited { at_host: 0, at_nic: combines_at_nic(participant).into() })
            .collect();
        for participant in participants.skip(1) {
            let contribution = self.contribution_of(participant);
            let to = &mut awaited[self.worms[contribution as usize].receivers.start as usize];
            if to.at_nic > 0 && !is_local(contribution) {
                to.at_nic += 1;
            } else {
                to.at_host += 1;
            }
        }
        awaited
    }

    /// The root's index among the participants.
    pub const ROOT: u32 = 0;

    /// The number of members, the root included.
    pub fn participant_count(&self) -> u32 {
        self.participants.len() as u32
    }

    /// The number of receivers.
    pub fn destination_count(&self) -> u32 {
        self.participant_count() - 1
    }

    /// The number of members that receive the message: with contributions the root, too, receives
    /// the result.
    pub fn delivery_count(&self) -> u32 {
        self.destination_count() + u32::from(self.parameters.reduces)
    }

    /// Whether a worm is a contribution.
    pub fn is_contribution(&self, worm: u32) -> bool {
        self.parameters.reduces && worm as usize >= self.worms.len() - self.destination_count() as usize
    }

    /// The worm with which a participant contributes. That of the root stands for what it gives to
    /// its own network interface: its first worm that leaves the host.
    pub fn contribution_of(&self, participant: u32) -> u32 {
        if participant == Self::ROOT {
            let mut sends = self.sends_of(Self::ROOT).iter();
            let leaves = |&&worm: &&u32| self.worms[worm as usize].kind != WormKind::Local;
            return *sends.find(leaves).expect("only a root that sends to other hosts contributes");
        }
        self.worms.len() as u32 - self.destination_count() + participant - 1
    }

    /// Whether the network interface combines the contributions of a participant and its children.
    pub fn combines_at_nic(&self, participant: u32) -> bool {
        self.awaited.get(participant as usize).is_some_and(|awaited| awaited.at_nic > 0)
    }

    /// Whether a packet that a participant's process has moved to the network interface is combined
    /// there. Such a root sends nothing else: its network interface copies the result.
    pub fn is_combined_at_nic(&self, worm: u32, participant: u32) -> bool {
        self.combines_at_nic(participant) && (participant == Self::ROOT || self.is_contribution(worm))
    }

    /// The member that a participant is.
    pub fn member(&self, participant: u32) -> MemberId {
        self.participants[participant as usize].member
    }

    /// The host that a participant runs on.
    pub fn host(&self, participant: u32) -> HostId {
        self.placement.host_of(self.member(participant))
    }

    /// The worms that a participant sends, in its order.
    pub fn sends_of(&self, participant: u32) -> &[u32] {
        let Range { start, end } = self.participants[participant as usize].sends;
        &self.sends[start as usize..end as usize]
    }

    /// The receivers of a worm on a host.
    pub fn receivers_on(&self, worm: u32, host: HostId) -> Range<u32> {
        let RunningWorm { kind, receivers: Range { start, end }, .. } = self.worms[worm as usize];
        if kind == WormKind::Unicast {
            debug_assert_eq!(self.host(start), host, "a unicast worm reaches the host of its receivers only");
            return start..end;
        }
        let receivers = &self.participants[start as usize..end as usize];
        let host_of = |receiver: &Participant| self.placement.host_of(receiver.member);
        let first = receivers.partition_point(|receiver| host_of(receiver) < host);
        let last = receivers.partition_point(|receiver| host_of(receiver) <= host);
        start + first as u32..start + last as u32
    }

    /// The payload of a packet. The last packet of a message may be shorter.
    pub fn payload(&self, packet: u32) -> Flits {
        let sent = u64::from(packet) * self.packet_flits.0;
        Flits((self.parameters.message.0 - sent).min(self.packet_flits.0))
    }

    /// Payload and header of the longest packet at injection.
    pub fn longest_packet(&self) -> (Flits, Flits) {
        let header = self.worms.iter().map(|worm| worm.path.header).max().unwrap_or_default();
        (self.payload(0), header)
    }
}

/// The longest message.
pub const MESSAGE_MAX: Flits = Flits(1 << 40);

/// The length of what a barrier sends. It has no values, but there are no empty packets.
pub const BARRIER_MESSAGE: Flits = Flits(1);

/// The number of packets that a message is segmented into.
///
/// # Errors
/// [`SimError::EmptyMessage`], [`SimError::MessageTooLong`] beyond [`MESSAGE_MAX`],
/// [`SimError::TooManyPackets`] beyond [`PACKETS_MAX`].
pub fn packet_count(message: Flits, packet_flits: Flits) -> Result<u32, SimError> {
    if message == Flits::ZERO {
        return Err(SimError::EmptyMessage);
    }
    if message > MESSAGE_MAX {
        return Err(SimError::MessageTooLong { message, message_max: MESSAGE_MAX });
    }
    let packets = message.0.div_ceil(packet_flits.0.max(1));
    u32::try_from(packets)
        .ok()
        .filter(|&packets| packets <= PACKETS_MAX)
        .ok_or(SimError::TooManyPackets { packets, packets_max: PACKETS_MAX })
}
