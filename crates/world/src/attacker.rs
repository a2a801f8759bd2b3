//! Attackers: they record all packets, send them again, and forge others.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use treecast_proto::{Authentication, GroupKey, Nanoseconds};
use treecast_wire::{Body, HEADER_BYTES, Malformed, View};

use crate::scenario::{Attacks, Scenario, group_key, session};

/// Attackers that see the whole network.
#[derive(Debug)]
pub struct Attacker {
    attacks: Attacks,
    random: Pcg64,
    hosts: usize,
    /// The keys of the groups, by their numbers.
    keys: Vec<(GroupKey, Authentication)>,
    /// Packets of any session, of which older ones are forgotten at random.
    recorded: Vec<Packet>,
}

/// A datagram between two hosts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Packet {
    pub from: usize,
    pub to: usize,
    pub bytes: Vec<u8>,
    /// The group of which it is authentic although no member has sent it.
    pub forged: Option<u32>,
    /// The kernel's packet path of the receiver has left it to user space.
    pub is_passed_up: bool,
}

/// The number of recorded packets.
const RECORDED_MAX: usize = 300;

/// The longest delay until an attack.
const DELAY_MAX: Nanoseconds = Nanoseconds::from_ms(300);

/// The bytes that a shifted polynomial of the CRC changes: 33 bits and up to 7.
const CRC_MULTIPLE_BYTES: usize = 5;

/// The number of sessions whose keys attackers with the token try.
const SESSIONS: u32 = 8;

impl Attacker {
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            attacks: scenario.attacks,
            random: Pcg64::seed_from_u64(scenario.seed ^ 0x6174_7461_636b_0000),
            hosts: scenario.hosts,
            keys: (0..)
                .zip(&scenario.groups)
                .map(|(group, setting)| (group_key(scenario, group), setting.authentication))
                .collect(),
            recorded: Vec::new(),
        }
    }

    /// Sees a packet; returns what the attackers send, and after what time.
    pub fn see(&mut self, from: usize, to: usize, bytes: &[u8]) -> Option<(Nanoseconds, Packet)> {
        let Attacks { replayed, forged, .. } = self.attacks;
        if replayed == 0.0 && forged == 0.0 {
            return None;
        }
        let packet = Packet { from, to, bytes: bytes.to_vec(), forged: None, is_passed_up: false };
        if self.recorded.len() < RECORDED_MAX {
            self.recorded.push(packet);
        } else {
            let place = self.random.random_range(0..RECORDED_MAX);
            self.recorded[place] = packet;
        }
        let attack = if self.random.random_bool(replayed) {
            self.any().clone()
        } else if self.random.random_bool(forged) {
            self.forge()
        } else {
            return None;
        };
        Some((Nanoseconds(self.random.random_range(1_000..=DELAY_MAX.0)), attack))
    }

    fn any(&mut self) -> &Packet {
        let place = self.random.random_range(0..self.recorded.len());
        &self.recorded[place]
    }

    /// A recorded packet with some bytes changed, from its sender, from another member, or from a
    /// stranger.
    fn forge(&mut self) -> Packet {
        let mut packet = self.any().clone();
        if self.has_code(&packet.bytes) && self.random.random_bool(0.3) {
            let payload = &mut packet.bytes[HEADER_BYTES..];
            let place = self.random.random_range(0..=payload.len() - CRC_MULTIPLE_BYTES);
            keep_crc(payload, place, self.random.random_range(0..8));
            return packet;
        }
        // Its group and keys, before it is changed.
        let group = View::new(&packet.bytes).ok().map(|view| view.group().0);
        let keys = if self.attacks.has_token { self.find_keys(&packet.bytes) } else { None };
        for _ in 0..self.random.random_range(1..=3) {
            let place = self.random.random_range(1..packet.bytes.len());
            packet.bytes[place] = self.random.random();
        }
        if self.random.random_bool(0.3) {
            packet.from = self.random.random_range(0..=self.hosts);
        }
        if let Some(keys) = keys {
            // The keys of another group do not fit.
            packet.forged = seal(&mut packet.bytes, &keys).filter(|&sealed| Some(sealed) == group);
        }
        packet
    }

    /// Whether it is data whose payload has a code, so that nobody without the token can change it.
    fn has_code(&self, bytes: &[u8]) -> bool {
        let Ok(view) = View::new(bytes) else { return false };
        let authentication =
            self.keys.get(view.group().0 as usize).map(|&(_, authentication)| authentication);
        let is_data = view.read().is_ok_and(|packet| matches!(packet.header.body, Body::Data(_)));
        is_data
            && authentication == Some(Authentication::Payload)
            && bytes.len() >= HEADER_BYTES + CRC_MULTIPLE_BYTES
    }

    /// The keys under which a packet is authentic.
    fn find_keys(&self, bytes: &[u8]) -> Option<treecast_wire::Keys> {
        let view = View::new(bytes).ok()?;
        let &(key, authentication) = self.keys.get(view.group().0 as usize)?;
        let sessions = (0..SESSIONS).map(|life| key.session_keys(session(life), authentication));
        let mut all = sessions.chain([key.handshake_keys()]);
        all.find(|keys| !matches!(view.check(keys), Err(Malformed::Mac)))
    }
}

/// Changes a payload from a byte on so that its CRC-32C stays the same: by the polynomial, shifted
/// by up to 7 bits, since a CRC is linear.
fn keep_crc(payload: &mut [u8], place: usize, shift: u32) {
    const POLYNOMIAL: u64 = 0x82f6_3b78 << 1 | 1;
    let multiple = (POLYNOMIAL << shift).to_le_bytes();
    for (byte, change) in payload[place..].iter_mut().zip(&multiple[..CRC_MULTIPLE_BYTES]) {
        *byte ^= change;
    }
}

/// Gives a packet the checksum and the code that it needs, as far as its kind has them; returns its
/// group if it is authentic then.
fn seal(bytes: &mut [u8], keys: &treecast_wire::Keys) -> Option<u32> {
    let write_code = |bytes: &mut [u8]| {
        let code = keys.header.mac(&bytes[..56]);
        bytes[56..HEADER_BYTES].copy_from_slice(&code.to_be_bytes());
    };
    if bytes.len() < HEADER_BYTES {
        return None;
    }
    write_code(bytes);
    if let Err(Malformed::Checksum { computed, .. }) = View::new(bytes).and_then(|view| view.check(keys)) {
        bytes[32..40].copy_from_slice(&computed.to_be_bytes());
        write_code(bytes);
    }
    let view = View::new(bytes).ok()?;
    view.check(keys).ok()?;
    Some(view.group().0)
}

#[cfg(test)]
mod tests {
    use treecast_proto::PayloadChecksum;

    use super::*;

    #[test]
    fn a_payload_is_changed_and_its_crc_is_not() {
        let payload: Vec<u8> = (0..20).collect();
        for (place, shift) in [(0, 0), (3, 5), (15, 7)] {
            let mut changed = payload.clone();
            keep_crc(&mut changed, place, shift);
            assert_ne!(changed, payload);
            assert_eq!(PayloadChecksum::crc(&changed), PayloadChecksum::crc(&payload), "{place} {shift}");
        }
    }
}
