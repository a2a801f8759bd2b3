//! The network between the hosts of a world.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use treecast_proto::Nanoseconds;

use crate::attacker::{Attacker, Packet};
use crate::scenario::{MulticastWeather, Scenario, Weather};

/// The unreliable network.
#[derive(Debug)]
pub struct Network {
    weather: Weather,
    multicast: MulticastWeather,
    hosts: usize,
    random: Pcg64,
    /// Partitions between the hosts of a side and the others, and until when.
    partitions: Vec<(u64, Nanoseconds)>,
    /// Broken paths from one host to another, and until when.
    broken_paths: Vec<(usize, usize, Nanoseconds)>,
    /// Paths from one host or from all to another that have shrunk, and the longest datagrams there
    /// in bytes.
    shrunk_paths: Vec<(Option<usize>, usize, usize)>,
    /// Where paths keep the order: when the last datagram of each arrives.
    last_arrivals: BTreeMap<(usize, usize), Nanoseconds>,
    attacker: Attacker,
    pub datagrams: u64,
    /// The number of packets that attackers have sent.
    pub attacks: u64,
}

impl Network {
    pub fn new(scenario: &Scenario) -> Self {
        // A stream of its own, so that what happens to packets does not change what is drawn
        // elsewhere.
        let random = Pcg64::seed_from_u64(scenario.seed ^ 0x6e65_7477_6f72_6b00);
        Self {
            weather: scenario.weather,
            multicast: scenario.multicast.clone(),
            hosts: scenario.hosts,
            random,
            partitions: Vec::new(),
            broken_paths: Vec::new(),
            shrunk_paths: Vec::new(),
            last_arrivals: BTreeMap::new(),
            attacker: Attacker::new(scenario),
            datagrams: 0,
            attacks: 0,
        }
    }

    /// Partitions the hosts of a side from the others for a while.
    pub fn partition(&mut self, now: Nanoseconds, side: u64, span: Nanoseconds) {
        self.partitions.push((side, now + span));
    }

    /// Breaks the path from one host to another for a while.
    pub fn break_path(&mut self, now: Nanoseconds, from: usize, to: usize, span: Nanoseconds) {
        self.broken_paths.push((from, to, now + span));
    }

    /// Shrinks the path from one host, or those from all hosts, to another.
    pub fn shrink(&mut self, from: Option<usize>, to: usize, datagram_bytes_max: usize) {
        self.shrunk_paths.push((from, to, datagram_bytes_max));
    }

    /// Sends a datagram to a multicast address, at which all hosts listen; returns its copies as
    /// for one host.
    pub fn send_multicast(
        &mut self,
        now: Nanoseconds,
        from: usize,
        bytes: &[u8],
    ) -> Vec<(Nanoseconds, Packet)> {
        let MulticastWeather { lossy_links, unreached } = &self.multicast;
        let unreached = unreached.iter().filter(|(_, from, until)| (*from..*until).contains(&now));
        let mut without = unreached.fold(1 << from, |without, (side, ..)| without | side);
        for (side, lost) in lossy_links {
            if self.random.random_bool(*lost) {
                without |= side;
            }
        }
        let reached = (0..self.hosts).filter(|host| without >> host & 1 == 0);
        reached.flat_map(|to| self.send(now, from, to, bytes).collect::<Vec<_>>()).collect()
    }

    /// Sends a datagram; returns its copies, and what attackers make of it, with the times of their
    /// arrival.
    pub fn send(
        &mut self,
        now: Nanoseconds,
        from: usize,
        to: usize,
        bytes: &[u8],
    ) -> impl Iterator<Item = (Nanoseconds, Packet)> + use<> {
        self.datagrams += 1;
        self.partitions.retain(|(_, until)| now < *until);
        self.broken_paths.retain(|(.., until)| now < *until);
        let is_apart = self.partitions.iter().any(|(side, _)| (side >> from & 1) != (side >> to & 1))
            || self.broken_paths.iter().any(|&(speaker, listener, _)| (speaker, listener) == (from, to));
        let copies = if is_apart || !self.fits(from, to, bytes) {
            0
        } else {
            1 + usize::from(self.random.random_bool(self.weather.duplicated))
        };
        let arrivals: Vec<_> = (0..copies).filter_map(|_| self.copy(now, from, to, bytes)).collect();
        let attack = self
            .attacker
            .see(from, to, bytes)
            .filter(|(_, packet)| self.fits(packet.from, packet.to, &packet.bytes))
            .map(|(delay, packet)| (now + delay, packet));
        self.attacks += u64::from(attack.is_some());
        arrivals
            .into_iter()
            .map(move |(at, bytes)| (at, Packet { from, to, bytes, forged: None, is_passed_up: false }))
            .chain(attack)
    }

    /// Whether no stream between two hosts carries anything now: what breaks one direction breaks
    /// both.
    pub fn is_apart(&mut self, now: Nanoseconds, one: usize, other: usize) -> bool {
        self.partitions.retain(|(_, until)| now < *until);
        self.broken_paths.retain(|(.., until)| now < *until);
        self.partitions.iter().any(|(side, _)| (side >> one & 1) != (side >> other & 1))
            || self
                .broken_paths
                .iter()
                .any(|&(from, to, _)| (from, to) == (one, other) || (from, to) == (other, one))
    }

    /// Whether a datagram is short enough for the path between two hosts, whoever sends it.
    fn fits(&self, from: usize, to: usize, bytes: &[u8]) -> bool {
        self.shrunk_paths.iter().all(|&(sender, receiver, bytes_max)| {
            sender.is_some_and(|sender| sender != from) || receiver != to || bytes.len() <= bytes_max
        })
    }

    fn copy(
        &mut self,
        now: Nanoseconds,
        from: usize,
        to: usize,
        bytes: &[u8],
    ) -> Option<(Nanoseconds, Vec<u8>)> {
        let Weather { lost, corrupted, late, delay_min, delay_max, late_max, keeps_order, .. } = self.weather;
        if self.random.random_bool(lost) {
            return None;
        }
        let mut delay = self.random.random_range(delay_min.0..=delay_max.0);
        if self.random.random_bool(late) {
            delay += self.random.random_range(0..=late_max.0);
        }
        let mut bytes = bytes.to_vec();
        if self.random.random_bool(corrupted) {
            self.corrupt(&mut bytes);
        }
        let mut at = now + Nanoseconds(delay);
        if keeps_order {
            let last = self.last_arrivals.entry((from, to)).or_default();
            at = at.max(*last);
            *last = at;
        }
        Some((at, bytes))
    }

    /// Corrupts some bytes, or truncates the datagram.
    fn corrupt(&mut self, bytes: &mut Vec<u8>) {
        if self.random.random_bool(0.2) {
            let length = self.random.random_range(0..bytes.len());
            bytes.truncate(length);
            return;
        }
        for _ in 0..self.random.random_range(1..=4) {
            let place = self.random.random_range(0..bytes.len());
            bytes[place] ^= self.random.random_range(1..=255_u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::Attacks;

    use super::*;

    /// Otherwise a member would get a packet now and then, and its parent would never find that the
    /// path is too small.
    #[test]
    fn what_attackers_send_does_not_fit_through_a_shrunk_path_either() {
        let attacks = Attacks { replayed: 0.5, forged: 0.5, has_token: false };
        let mut network = Network::new(&Scenario { attacks, ..Scenario::random(1) });
        network.shrink(None, 1, 300);
        let arrivals = (0..1_000).flat_map(|_| network.send(Nanoseconds::ZERO, 0, 1, &[0; 512])).count();
        assert_eq!(arrivals, 0);
    }
}
