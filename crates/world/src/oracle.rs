//! The reference model: reliable multicast as its users observe it, independent of the protocol.
//!
//! - The root's messages of a session are a sequence. A member reads those of one session in order,
//!   byte for byte: from the beginning, or, if it joined late, from some message on.
//! - A root loses a member only if that has left, if its application is done with the group, or if
//!   a fault between the two in this session lasts longer than the peer timeout, or if the root's
//!   long datagrams do not arrive there any more.
//! - A group ends at a member as closed only after the member has read all messages, and otherwise
//!   only for a reason that lies in the past: a loss that the root has reported, a fault, or the
//!   root's restart.
//! - A group that the root closes ends as closed at every member that is not lost.
//! - The result of an all-reduce has the contribution of every process of every member that is not
//!   lost, and of no process twice.
//! - A group is ready when all processes that share nodes have come or are lost. A process is lost
//!   only if it is killed, or if its root has not learned of it within the join timeout. The root
//!   learns of each process that is killed before the root closes the group.
//!
//! Nothing of that is promised for a group after attackers with its token have sent a member an
//! authentic forgery, but an end. All other groups of the world, and this one before, are checked.
//!
//! The protocol is correct if every world agrees with this, whatever its faults.

mod reductions;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use treecast_proto::{Ending, MemberId, MemberLoss, Nanoseconds, Piece};
use treecast_wire::Eviction;

use crate::scenario::{Fault, Scenario};

/// The messages that all members have read, and how they ended.
#[derive(Debug, Clone)]
pub struct Oracle {
    seed: u64,
    /// The time of the current event.
    pub now: Nanoseconds,
    readers: BTreeMap<ReaderId, Reader>,
    /// When the root created each session of a group.
    sessions: BTreeMap<(u32, u32), Nanoseconds>,
    /// When the root's application closed each session of a group.
    closes: BTreeMap<(u32, u32), Nanoseconds>,
    /// Processes that roots have reported as lost: group, session, member number, process.
    lost_processes: BTreeSet<(u32, u32, MemberId, u32)>,
    /// The sessions of groups that have ended as closed at their roots.
    closed: BTreeSet<(u32, u32)>,
    /// The hosts that had a place, by group, session and member number.
    hosts: BTreeMap<(u32, u32, MemberId), usize>,
    /// When roots have reported members as lost, by group, session and number.
    lost: BTreeMap<(u32, u32, MemberId), Nanoseconds>,
    /// The hosts whose application does not join the group again.
    retired: BTreeSet<(u32, usize)>,
    /// The processes of each host that have contributed to an all-reduce: by group, session and
    /// message.
    contributed: BTreeMap<(u32, u32, u32), BTreeSet<(usize, u32)>>,
    /// The results of all-reduces, by group, session and message.
    results: BTreeMap<(u32, u32, u32), Vec<u8>>,
    /// The groups of which a node has received an authentic forgery.
    misled: BTreeSet<u32>,
    delivered_messages: u64,
}

/// The application of a group at one host, from one start of the host to its next crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReaderId {
    pub group: u32,
    pub host: usize,
    /// How many times the host had been restarted before.
    pub life: u32,
    /// How many times it had joined a session of the group since then.
    pub join: u32,
}

/// An application whose group has ended.
#[derive(Debug, Clone, Copy)]
pub struct EndedReader {
    pub id: ReaderId,
    /// Its session, if it had a place in one.
    pub session: Option<u32>,
    /// Whether it begins after the first packet.
    pub begins_late: bool,
    /// Whether it asked to join after the group had been created.
    pub joined_late: bool,
    pub has_left: bool,
}

/// How far a member has read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Reader {
    began_at: Nanoseconds,
    place: Option<(u32, MemberId)>,
    has_read: bool,
    message: u32,
    offset: u64,
    has_left: bool,
    ending: Option<Ending>,
}

impl Reader {
    fn has_all(&self, scenario: &Scenario, ended: &EndedReader) -> bool {
        let Some(session) = ended.session else { return false };
        let messages = scenario.messages(ended.id.group, session).len();
        // A member that joined after the last message has nothing to read.
        (self.message as usize == messages && self.offset == 0) || (!self.has_read && ended.begins_late)
    }
}

impl Oracle {
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            seed: scenario.seed,
            now: Nanoseconds::ZERO,
            readers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            closes: BTreeMap::new(),
            lost_processes: BTreeSet::new(),
            closed: BTreeSet::new(),
            hosts: BTreeMap::new(),
            lost: BTreeMap::new(),
            retired: BTreeSet::new(),
            contributed: BTreeMap::new(),
            results: BTreeMap::new(),
            misled: BTreeSet::new(),
            delivered_messages: 0,
        }
    }

    pub const fn delivered_messages(&self) -> u64 {
        self.delivered_messages
    }

    pub fn lost_members(&self) -> u64 {
        self.lost.len() as u64
    }

    pub fn misled_groups(&self) -> u64 {
        self.misled.len() as u64
    }

    /// The content of a message from `offset` on, with zeros after the end of a result.
    pub fn content(
        &self,
        group: u32,
        session: u32,
        message: u32,
        offset: u64,
    ) -> impl Iterator<Item = u8> + use<'_> {
        let result = self.results.get(&(group, session, message));
        (offset..).map(move |place| match result {
            Some(result) => result.get(place as usize).copied().unwrap_or_default(),
            None => byte(self.seed, group, session, message, place),
        })
    }

    /// A node has received an authentic packet of a group that no member has sent.
    pub fn mislead(&mut self, group: u32) {
        self.misled.insert(group);
    }

    /// Whether nothing is promised for a group any more but an end.
    pub fn is_misled(&self, group: u32) -> bool {
        self.misled.contains(&group)
    }

    /// A root creates a session of a group.
    pub fn create(&mut self, group: u32, session: u32) {
        self.sessions.insert((group, session), self.now);
    }

    /// An application asks to join a group, or creates it.
    pub fn begin(&mut self, id: ReaderId) {
        self.retired.remove(&(id.group, id.host));
        self.readers.insert(id, Reader { began_at: self.now, ..Reader::default() });
    }

    /// The application of a group at a host will not join it again.
    pub fn retire(&mut self, group: u32, host: usize) {
        self.retired.insert((group, host));
    }

    /// A node has become a member.
    pub fn place(&mut self, id: ReaderId, session: u32, member: MemberId) {
        self.hosts.insert((id.group, session, member), id.host);
        self.readers.entry(id).or_default().place = Some((session, member));
    }

    /// A member reads a piece. It must be the next piece, with the bytes that the root has sent.
    pub fn read(
        &mut self,
        scenario: &Scenario,
        id: ReaderId,
        session: u32,
        begins_late: bool,
        piece: &Piece,
        bytes: &[u8],
    ) -> Result<(), String> {
        let ReaderId { group, host, .. } = id;
        if self.is_misled(group) {
            return Ok(());
        }
        let content = self.content(group, session, piece.message, piece.offset);
        let is_same = bytes.iter().copied().eq(content.take(piece.length as usize));
        let name = format_args!("host {host} in group {group}");
        let reader = self.readers.entry(id).or_default();
        // A member that joined late may start at any message.
        if !reader.has_read && begins_late {
            reader.message = piece.message;
        }
        reader.has_read = true;
        if (piece.message, piece.offset) != (reader.message, reader.offset) {
            return Err(format!(
                "{name} reads message {} at {} and should read message {} at {}",
                piece.message, piece.offset, reader.message, reader.offset
            ));
        }
        let length = scenario.messages(group, session).nth(piece.message as usize);
        if length != Some(piece.message_length) {
            return Err(format!(
                "{name} reads message {} as of {} bytes",
                piece.message, piece.message_length
            ));
        }
        if !is_same {
            return Err(format!("{name} reads other bytes of message {} at {}", piece.message, piece.offset));
        }
        reader.offset += u64::from(piece.length);
        if piece.is_last() {
            (reader.message, reader.offset) = (reader.message + 1, 0);
            self.delivered_messages += 1;
        }
        Ok(())
    }

    /// A root reports a member as lost. There must be a reason.
    pub fn lose(
        &mut self,
        scenario: &Scenario,
        session: u32,
        group: u32,
        member: MemberId,
        loss: MemberLoss,
    ) -> Result<(), String> {
        let key = (group, session, member);
        let is_repeated = self.lost.insert(key, self.now).is_some();
        if is_repeated && !self.is_misled(group) {
            return Err(format!("group {group} has lost member {member} twice"));
        }
        let initial = scenario.groups[group as usize].hosts.get(member.index()).copied();
        let Some(host) = initial.or_else(|| self.hosts.get(&key).copied()) else {
            // A late member that never completed its join: it, or the root, had ended before.
            return Ok(());
        };
        let root = scenario.root_host(group);
        let began_at = self.sessions.get(&(group, session)).copied().unwrap_or_default();
        let has_reason = match loss {
            MemberLoss::Left => scenario.leaves(host, group),
            // The application has read all of an earlier session, was lost to it, or has left.
            MemberLoss::Unreachable(_) if self.retired.contains(&(group, host)) => true,
            _ => {
                let within = began_at..=self.now;
                scenario.may_separate(root, host, &within) || scenario.may_silence(root, &within)
            }
        };
        if has_reason || self.is_misled(group) {
            return Ok(());
        }
        Err(format!(
            "session {session} of group {group} has lost member {member} at host {host} for no reason: {loss}"
        ))
    }

    /// A root's application closes a session.
    pub fn close(&mut self, group: u32, session: u32) {
        self.closes.entry((group, session)).or_insert(self.now);
    }

    /// Processes that share the nodes of members that are not lost: host, member number, process.
    fn processes(
        &self,
        scenario: &Scenario,
        group: u32,
        session: u32,
    ) -> impl Iterator<Item = (usize, MemberId, u32)> {
        let setting = &scenario.groups[group as usize];
        let nodes = setting.shared_nodes().into_iter();
        let nodes = nodes.filter(move |&(member, _)| !self.lost.contains_key(&(group, session, member)));
        nodes.flat_map(|(member, count)| {
            let host = setting.hosts[member.index()];
            (0..count).map(move |process| (host, member, process))
        })
    }

    /// A root reports that a group is ready.
    pub fn ready(&self, scenario: &Scenario, session: u32, group: u32) -> Result<(), String> {
        let is_awaited = |&(host, member, process): &(usize, MemberId, u32)| {
            !scenario.has_happened(Fault::Come { host, group, process }, self.now)
                && !self.lost_processes.contains(&(group, session, member, process))
        };
        match self.processes(scenario, group, session).find(is_awaited) {
            Some((host, _, process)) if !self.is_misled(group) => {
                Err(format!("group {group} is ready before process {process} of host {host} has come"))
            }
            _ => Ok(()),
        }
    }

    /// A root reports a process that shares a member's node as lost. There must be a reason.
    pub fn lose_process(
        &mut self,
        scenario: &Scenario,
        session: u32,
        group: u32,
        (member, process): (MemberId, u32),
        loss: MemberLoss,
    ) -> Result<(), String> {
        let is_new = self.lost_processes.insert((group, session, member, process));
        let host = scenario.groups[group as usize].hosts[member.index()];
        let (root, began_at) = (scenario.root_host(group), self.sessions[&(group, session)]);
        let within = began_at..=self.now;
        let has_reason = match loss {
            MemberLoss::Left => scenario.has_happened(Fault::Kill { host, group, process }, self.now),
            MemberLoss::Unreachable(span) => {
                let has_come = scenario.has_happened(Fault::Come { host, group, process }, began_at + span);
                !has_come
                    || self.retired.contains(&(group, host))
                    || scenario.may_separate(root, host, &within)
                    || scenario.may_silence(root, &within)
            }
            _ => false,
        };
        if (is_new && has_reason) || self.is_misled(group) {
            return Ok(());
        }
        Err(format!("group {group} has lost process {process} of host {host} for no reason: {loss}"))
    }

    /// Checks at the end of a closed session that the root knows of each process that was killed
    /// before its application closed the group.
    fn check_processes(&self, scenario: &Scenario, group: u32, session: u32) -> Result<(), String> {
        let closed_at = self.closes.get(&(group, session)).copied().unwrap_or_default();
        let is_unknown = |&(host, member, process): &(usize, MemberId, u32)| {
            scenario.has_happened(Fault::Kill { host, group, process }, closed_at)
                && !self.lost_processes.contains(&(group, session, member, process))
        };
        match self.processes(scenario, group, session).find(is_unknown) {
            Some((host, _, process)) if !self.is_misled(group) => Err(format!(
                "the root of group {group} does not know that process {process} of host {host} was killed"
            )),
            _ => Ok(()),
        }
    }

    /// A group has ended at a host: as closed if the host has read everything, and otherwise for a
    /// reason.
    pub fn end(&mut self, scenario: &Scenario, ended: &EndedReader, ending: Ending) -> Result<(), String> {
        let EndedReader { id, session, has_left, .. } = *ended;
        let ReaderId { group, host, .. } = id;
        let is_root = host == scenario.root_host(group);
        let reader = self.readers.entry(id).or_default();
        (reader.ending, reader.has_left) = (Some(ending), has_left);
        let reader = *reader;
        if is_root && let Some(session) = session {
            self.closed.insert((group, session));
            if ending == Ending::Closed {
                self.check_processes(scenario, group, session)?;
            }
        }
        let has_reason = match ending {
            Ending::Closed => is_root || reader.has_all(scenario, ended),
            _ if is_root => false,
            Ending::RootRestarted => session.is_some_and(|session| Some(session) < self.last_session(group)),
            Ending::Aborted | Ending::Evicted(Eviction::Left) => has_left,
            Ending::Evicted(
                Eviction::Silent
                | Eviction::PathTooSmall
                | Eviction::AcceptsNothing
                | Eviction::StateLost
                | Eviction::Unacknowledged,
            )
            | Ending::EvictedAfterPause(_) => self.is_lost(scenario, id),
            Ending::Evicted(Eviction::Closed) => {
                self.is_lost(scenario, id)
                    || self.has_place_of_earlier_life(id)
                    || (reader.place.is_none() && ended.joined_late)
            }
            Ending::Evicted(Eviction::Refused | Eviction::Full | Eviction::Closing) => {
                reader.place.is_none() && (ended.joined_late || self.is_lost(scenario, id))
            }
            Ending::RootSilent(_) => self.may_miss_root(scenario, id, &reader),
            Ending::Evicted(Eviction::Aborted(_) | Eviction::DeclaredDead)
            | Ending::Inconsistent(_)
            | Ending::ContradictoryTables
            | Ending::TooMuchMemory { .. } => false,
        };
        if has_reason || self.is_misled(group) {
            return Ok(());
        }
        let messages = scenario.messages(group, session.unwrap_or(0)).len();
        Err(format!(
            "group {group} has ended at host {host} after message {} of {messages} for no reason: {ending}",
            reader.message
        ))
    }

    /// Whether a root has reported a host as lost. A host without a place may be lost to the
    /// session that it asked for, or to a later one: under a number that it had, or since it asked
    /// under one that no host has taken, because a root loses a late member that its table does not
    /// reach.
    fn is_lost(&self, scenario: &Scenario, id: ReaderId) -> bool {
        let ReaderId { group, host, .. } = id;
        let reader = self.readers.get(&id).copied().unwrap_or_default();
        if let Some((session, member)) = reader.place {
            return self.lost.contains_key(&(group, session, member));
        }
        let sessions = self.sessions.range((group, 0)..=(group, u32::MAX));
        let earlier = sessions.filter(|&(_, &created_at)| created_at <= reader.began_at);
        let first = earlier.map(|(&(_, session), _)| session).next_back().unwrap_or(0);
        let mut lost = self.lost.range((group, first, MemberId(0))..=(group, u32::MAX, MemberId(u32::MAX)));
        lost.any(|(key, &lost_at)| {
            let initial = scenario.groups[group as usize].hosts.get(key.2.index());
            match initial.or_else(|| self.hosts.get(key)) {
                Some(&of_member) => of_member == host,
                None => lost_at >= reader.began_at,
            }
        })
    }

    /// Whether a host was restarted and has the place that it had before (docs/protocol.md, "What
    /// is not guaranteed").
    fn has_place_of_earlier_life(&self, id: ReaderId) -> bool {
        let first = ReaderId { life: 0, join: 0, ..id };
        let earlier = self.readers.range(first..ReaderId { join: 0, ..id });
        let place = self.readers.get(&id).and_then(|reader| reader.place);
        let mut same = earlier.filter(|(other, _)| (other.group, other.host) == (id.group, id.host));
        place.is_some() && same.any(|(_, reader)| reader.place == place)
    }

    /// Whether a member may hear nothing from its root: because of a fault, since the root has lost
    /// it, or because there is no session.
    fn may_miss_root(&self, scenario: &Scenario, id: ReaderId, reader: &Reader) -> bool {
        let ReaderId { group, host, .. } = id;
        let root = scenario.root_host(group);
        let within = reader.began_at..=self.now;
        let last = self.last_session(group);
        let is_over = reader.place.is_none()
            && last.is_none_or(|session| {
                let created_at = self.sessions[&(group, session)];
                self.closed.contains(&(group, session)) || scenario.is_down(root, &(created_at..=self.now))
            });
        is_over
            || self.is_lost(scenario, id)
            || scenario.is_down(root, &within)
            || scenario.may_separate(root, host, &within)
            || scenario.may_silence(root, &within)
    }

    fn last_session(&self, group: u32) -> Option<u32> {
        let sessions = self.sessions.range((group, 0)..=(group, u32::MAX));
        sessions.map(|(&(_, session), _)| session).next_back()
    }

    /// The world has ended, and with it every group at every host that is up: as closed at all
    /// members of a session that is closed at its root but those that it has lost, or that have
    /// left.
    pub fn at_end(
        &self,
        scenario: &Scenario,
        participants: impl Iterator<Item = ReaderId>,
    ) -> Result<(), String> {
        for id in participants {
            let ReaderId { group, host, .. } = id;
            let reader = self.readers.get(&id).copied().unwrap_or_default();
            let is_served = reader.place.is_some_and(|(session, _)| self.closed.contains(&(group, session)))
                && !reader.has_left
                && !self.is_lost(scenario, id)
                && !self.has_place_of_earlier_life(id);
            let must_be_closed = is_served && !self.is_misled(group);
            if reader.ending.is_none() || (must_be_closed && reader.ending != Some(Ending::Closed)) {
                return Err(format!("group {group} has ended at host {host} by {:?}", reader.ending));
            }
        }
        Ok(())
    }
}

/// The content of a byte of a message. It depends on seed, group, session, message and offset, so
/// that misplaced data is detected.
fn byte(seed: u64, group: u32, session: u32, message: u32, offset: u64) -> u8 {
    let place =
        seed ^ (u64::from(group) << 56) ^ (u64::from(session) << 50) ^ (u64::from(message) << 32) ^ offset;
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Scenario {
    /// The host of a group's root.
    pub fn root_host(&self, group: u32) -> usize {
        let group = &self.groups[group as usize];
        group.hosts[group.root.0 as usize]
    }
}
