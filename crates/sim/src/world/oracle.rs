//! What the members of a group must see: a model of reliable multicast that fits on a page.
//!
//! The root's messages are a list. Every member reads the list from the place where it came in, one after the other, byte for
//! byte; who has neither crashed nor left nor been cut off reads it to the end.

use std::collections::{BTreeMap, BTreeSet};

use treecast_proto::{Ending, Loss, MemberId, Piece};

use super::host::Host;
use super::scenario::Scenario;

/// What all members have read, and what has become of them.
#[derive(Debug)]
pub struct Oracle {
    seed: u64,
    /// By group and host, and how often that host has been started.
    readers: BTreeMap<(u32, usize, u32), Reader>,
    /// Those that a root has said to be no members any more.
    lost: BTreeSet<(u32, usize)>,
    delivered_messages: u64,
}

/// How far a member has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reader {
    message: u32,
    offset: u64,
    ending: Option<Ending>,
}

impl Oracle {
    pub fn new(scenario: &Scenario) -> Self {
        Self { seed: scenario.seed, readers: BTreeMap::new(), lost: BTreeSet::new(), delivered_messages: 0 }
    }

    pub const fn delivered_messages(&self) -> u64 {
        self.delivered_messages
    }

    pub fn lost_members(&self) -> u64 {
        self.lost.len() as u64
    }

    /// What a byte of a message is.
    pub fn byte(&self, group: u32, message: u32, offset: u64) -> u8 {
        byte(self.seed, group, message, offset)
    }

    /// A member reads a piece.
    pub fn read(
        &mut self,
        scenario: &Scenario,
        group: u32,
        host: &Host,
        piece: &Piece,
        bytes: &[u8],
    ) -> Result<(), String> {
        let name = format!("host {} in group {group}", host.number);
        let first = Reader { message: piece.message, offset: 0, ending: None };
        let reader = self.readers.entry((group, host.number, host.life)).or_insert(first);
        if (piece.message, piece.offset) != (reader.message, reader.offset) {
            return Err(format!(
                "{name} reads message {} at {} and should read message {} at {}",
                piece.message, piece.offset, reader.message, reader.offset
            ));
        }
        let length = scenario.groups[group as usize].messages.get(piece.message as usize);
        if length != Some(&piece.message_length) {
            return Err(format!(
                "{name} reads message {} as of {} bytes",
                piece.message, piece.message_length
            ));
        }
        let is_same = |(place, &found): (usize, &u8)| {
            found == byte(self.seed, group, piece.message, piece.offset + place as u64)
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

    /// A root says that somebody is no longer a member.
    pub fn lose(
        &mut self,
        scenario: &Scenario,
        group: u32,
        member: MemberId,
        host: usize,
        loss: Loss,
    ) -> Result<(), String> {
        self.lost.insert((group, host));
        if loss != Loss::Left && !scenario.may_lose(host) && !scenario.may_lose(scenario.root_host(group)) {
            return Err(format!(
                "group {group} has lost member {member} at host {host} for no reason: {loss}"
            ));
        }
        Ok(())
    }

    /// A group is over at a host.
    pub fn end(
        &mut self,
        scenario: &Scenario,
        group: u32,
        host: &Host,
        ending: Ending,
    ) -> Result<(), String> {
        let first = Reader { message: 0, offset: 0, ending: None };
        let is_new = !self.readers.contains_key(&(group, host.number, host.life));
        let reader = self.readers.entry((group, host.number, host.life)).or_insert(first);
        reader.ending = Some(ending);
        let messages = scenario.groups[group as usize].messages.len();
        // Whoever came when everything had been sent has read nothing, and that is everything.
        let has_all =
            (reader.message as usize, reader.offset) == (messages, 0) || (is_new && host.came_late(group));
        if ending == Ending::Closed && host.number != scenario.root_host(group) && !has_all {
            return Err(format!(
                "host {} has ended group {group} after message {} of {messages}",
                host.number, reader.message
            ));
        }
        Ok(())
    }

    /// Nothing is left to happen: everybody has seen the end.
    pub fn at_end(&self, hosts: &[Host], scenario: &Scenario) -> Result<(), String> {
        for (group, setting) in scenario.groups.iter().enumerate() {
            let group = group as u32;
            let root = &hosts[scenario.root_host(group)];
            for &number in &setting.hosts {
                let host = &hosts[number];
                if !host.is_up() || host.life > 0 {
                    continue;
                }
                let ending = self.readers.get(&(group, number, 0)).and_then(|reader| reader.ending);
                let is_excused = self.lost.contains(&(group, number))
                    || host.has_left(group)
                    || !root.is_up()
                    || root.life > 0
                    || scenario.may_lose(number)
                    || scenario.may_lose(root.number);
                if ending.is_none() || (ending != Some(Ending::Closed) && !is_excused) {
                    return Err(format!("group {group} has ended at host {number} by {ending:?}"));
                }
            }
        }
        Ok(())
    }
}

/// What a byte of a message is: another one for each place, so that nothing can stand in for another.
fn byte(seed: u64, group: u32, message: u32, offset: u64) -> u8 {
    let place = seed ^ (u64::from(group) << 56) ^ (u64::from(message) << 32) ^ offset;
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Scenario {
    /// Where the root of a group is.
    pub fn root_host(&self, group: u32) -> usize {
        let group = &self.groups[group as usize];
        group.hosts[group.root.0 as usize]
    }
}
