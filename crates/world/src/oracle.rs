//! The reference model: reliable multicast as its users observe it, independent of the protocol.
//!
//! - The root's messages of a session are a sequence. A member reads those of one session in order, byte for byte: from the beginning,
//!   or, if it joined late, from some message on.
//! - A member is lost only if it has left, or if a fault at it or at the root lasts longer than the peer timeout.
//! - A group that the root closes ends as closed at every member that is not lost, after the member has read all messages.
//!
//! The protocol is correct if every world agrees with this, whatever its faults.

use std::collections::{BTreeMap, BTreeSet};

use treecast_proto::{Ending, MemberId, MemberLoss, Piece};

use crate::scenario::Scenario;

/// What all members have read, and how they ended.
#[derive(Debug)]
pub struct Oracle {
    seed: u64,
    readers: BTreeMap<ReaderId, Reader>,
    /// The hosts of members that joined late, by group and member number.
    newcomers: BTreeMap<(u32, MemberId), usize>,
    /// The readers whose node was a member.
    placed: BTreeSet<ReaderId>,
    /// The members that a root has reported as lost.
    lost: BTreeSet<(u32, usize)>,
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

/// What a host can say of a group at the end of a world.
#[derive(Debug, Clone, Copy)]
pub struct Participant {
    pub reader: ReaderId,
    /// Whether it asked to join after the group had been created.
    pub joined_late: bool,
    pub has_left: bool,
    /// Whether the root of its session has run without a crash until now.
    pub root_survived: bool,
}

/// How far a member has read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Reader {
    message: u32,
    offset: u64,
    ending: Option<Ending>,
}

impl Oracle {
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            seed: scenario.seed,
            readers: BTreeMap::new(),
            newcomers: BTreeMap::new(),
            placed: BTreeSet::new(),
            lost: BTreeSet::new(),
            delivered_messages: 0,
        }
    }

    pub const fn delivered_messages(&self) -> u64 {
        self.delivered_messages
    }

    pub fn lost_members(&self) -> u64 {
        self.lost.len() as u64
    }

    /// The content of a byte of a message.
    pub fn byte(&self, group: u32, session: u32, message: u32, offset: u64) -> u8 {
        byte(self.seed, group, session, message, offset)
    }

    /// A node has become a member.
    pub fn place(&mut self, reader: ReaderId, member: MemberId) {
        self.newcomers.insert((reader.group, member), reader.host);
        self.placed.insert(reader);
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
        if scenario.attacks.has_token {
            return Ok(());
        }
        let ReaderId { group, host, .. } = id;
        let name = format_args!("host {host} in group {group}");
        // A member that joined late may start at any message.
        let first = if begins_late { piece.message } else { 0 };
        let reader = self.readers.entry(id).or_insert(Reader { message: first, ..Reader::default() });
        if (piece.message, piece.offset) != (reader.message, reader.offset) {
            return Err(format!(
                "{name} reads message {} at {} and should read message {} at {}",
                piece.message, piece.offset, reader.message, reader.offset
            ));
        }
        let length = scenario.messages(group, session).get(piece.message as usize).copied();
        if length != Some(piece.message_length) {
            return Err(format!(
                "{name} reads message {} as of {} bytes",
                piece.message, piece.message_length
            ));
        }
        let is_same = |(place, &found): (usize, &u8)| {
            found == byte(self.seed, group, session, piece.message, piece.offset + place as u64)
        };
        if bytes.len() as u64 != u64::from(piece.length) || !bytes.iter().enumerate().all(is_same) {
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
        let members = &scenario.groups[group as usize].hosts;
        let newcomer = self.newcomers.get(&(group, member));
        let Some(&host) = members.get(member.0 as usize).or(newcomer) else {
            // A late member that never completed its join: it, or the root, had ended before.
            return Ok(());
        };
        self.lost.insert((group, host));
        let has_reason = if loss == MemberLoss::Left {
            scenario.leaves(host, group)
        } else {
            scenario.may_lose(host) || scenario.may_mislead(scenario.root_host(group))
        };
        // Members of an earlier session may not have joined again.
        if has_reason || session > 0 || scenario.attacks.has_token {
            Ok(())
        } else {
            Err(format!("group {group} has lost member {member} at host {host} for no reason: {loss}"))
        }
    }

    /// A group has ended at a host. If it ended as closed, the host must have read everything.
    pub fn end(
        &mut self,
        scenario: &Scenario,
        id: ReaderId,
        session: Option<u32>,
        begins_late: bool,
        ending: Ending,
    ) -> Result<(), String> {
        let ReaderId { group, host, .. } = id;
        let has_read = self.readers.contains_key(&id);
        let reader = self.readers.entry(id).or_default();
        reader.ending = Some(ending);
        let messages = scenario.messages(group, session.unwrap_or(0)).len();
        // A member that joined after the last message has nothing to read.
        let has_all =
            (reader.message as usize == messages && reader.offset == 0) || (!has_read && begins_late);
        let is_checked = host != scenario.root_host(group) && !scenario.attacks.has_token;
        if ending == Ending::Closed && is_checked && !has_all {
            return Err(format!(
                "host {host} has ended group {group} after message {} of {messages}",
                reader.message
            ));
        }
        Ok(())
    }

    /// The world has ended: every group has ended everywhere, and as closed at every host without a fault to excuse it.
    pub fn at_end(
        &self,
        scenario: &Scenario,
        participants: impl Iterator<Item = Participant>,
    ) -> Result<(), String> {
        for Participant { reader: id, joined_late, has_left, root_survived } in participants {
            let ReaderId { group, host, .. } = id;
            let ending = self.readers.get(&id).and_then(|reader| reader.ending);
            let is_excused = self.lost.contains(&(group, host))
                || has_left
                || !root_survived
                || scenario.attacks.has_token
                || scenario.may_lose(host)
                || scenario.may_lose(scenario.root_host(group))
                // The root refused it, or had ended the group when it asked.
                || (joined_late && !self.placed.contains(&id));
            if ending.is_none() || (ending != Some(Ending::Closed) && !is_excused) {
                return Err(format!("group {group} has ended at host {host} by {ending:?}"));
            }
        }
        Ok(())
    }
}

/// The content of a byte of a message. It depends on seed, group, session, message and offset, so that misplaced data is detected.
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
