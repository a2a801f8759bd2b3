//! The streams between the hosts of a world: they keep the order and lose nothing until they
//! break, are slow, take a bounded number of packets, and break at any packet, so that each side
//! hears of it early, late or never.

use std::collections::{BTreeMap, VecDeque};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use treecast_proto::{Challenge, Nanoseconds};

use crate::scenario::{Scenario, StreamWeather, Weather};

/// All streams of a world.
#[derive(Debug)]
pub struct Streams {
    weather: StreamWeather,
    delay_min: Nanoseconds,
    delay_max: Nanoseconds,
    lost: f64,
    random: Pcg64,
    opened: u64,
    streams: BTreeMap<u64, Stream>,
    /// The stream that a child has opened last, by group and host.
    latest: BTreeMap<(u32, usize), u64>,
    pub records: u64,
}

/// A stream from a child to its parent.
#[derive(Debug)]
pub struct Stream {
    pub group: u32,
    /// The hosts, and the number of restarts of each.
    pub child: (usize, u32),
    pub parent: (usize, u32),
    pub challenge: Challenge,
    /// Whether the parent has taken it.
    pub is_attached: bool,
    /// Bytes that the parent has sent and the child has not received.
    records: VecDeque<Vec<u8>>,
    /// When the last of them arrives.
    last_arrival: Nanoseconds,
    pub is_full: bool,
    /// No more arrives.
    is_broken: bool,
}

/// A step in the life of a stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamStep {
    /// The challenge of the parent comes to the child.
    Challenge,
    /// The first packet of the child comes to the parent.
    Attach(Vec<u8>),
    /// A packet comes to the child.
    Record,
    /// The parent hears that the stream is closed.
    ClosedAtParent,
    /// The child hears that the stream is closed.
    ClosedAtChild,
}

/// A child waits for this time before it opens a stream again.
pub const REDIAL: Nanoseconds = Nanoseconds::from_ms(20);

/// A packet that TCP has lost comes later by this time at most.
const RETRANSMISSION_MAX: Nanoseconds = Nanoseconds::from_ms(20);

/// A side hears of the end of a stream after this time at most.
const END_DELAY_MAX: Nanoseconds = Nanoseconds::from_ms(100);

impl Streams {
    pub fn new(scenario: &Scenario) -> Self {
        let Weather { delay_min, delay_max, lost, .. } = scenario.weather;
        Self {
            weather: scenario.streams,
            delay_min,
            delay_max,
            lost,
            random: Pcg64::seed_from_u64(scenario.seed ^ 0x7374_7265_616d_7300),
            opened: 0,
            streams: BTreeMap::new(),
            latest: BTreeMap::new(),
            records: 0,
        }
    }

    /// The stream that a child has, or tries to open.
    pub fn of_child(&self, group: u32, child: usize) -> Option<(u64, &Stream)> {
        let id = *self.latest.get(&(group, child))?;
        Some((id, self.streams.get(&id)?))
    }

    pub fn get(&self, id: u64) -> Option<&Stream> {
        self.streams.get(&id)
    }

    /// A child opens a stream; returns its number, and when the challenge arrives.
    pub fn open(
        &mut self,
        now: Nanoseconds,
        group: u32,
        child: (usize, u32),
        parent: (usize, u32),
    ) -> (u64, Nanoseconds) {
        self.opened += 1;
        let stream = Stream {
            group,
            child,
            parent,
            challenge: Challenge(self.random.random()),
            is_attached: false,
            records: VecDeque::new(),
            last_arrival: now,
            is_full: false,
            is_broken: false,
        };
        self.streams.insert(self.opened, stream);
        self.latest.insert((group, child.0), self.opened);
        (self.opened, now + self.delay())
    }

    /// One way between two hosts.
    pub fn delay(&mut self) -> Nanoseconds {
        let delay = self.random.random_range(self.delay_min.0..=self.delay_max.0);
        let retransmission = if self.random.random_bool(self.lost) {
            self.random.random_range(0..=RETRANSMISSION_MAX.0)
        } else {
            0
        };
        Nanoseconds(delay + retransmission)
    }

    /// When a side hears of the end, if it does.
    pub fn end_at(&mut self, now: Nanoseconds) -> Option<Nanoseconds> {
        let is_heard = !self.random.random_bool(self.weather.unheard);
        is_heard.then(|| now + Nanoseconds(self.random.random_range(0..=END_DELAY_MAX.0)))
    }

    /// The parent has taken a stream. Returns the one that the child had before.
    pub fn attach(&mut self, id: u64) -> Option<u64> {
        let (group, child) = {
            let stream = self.streams.get_mut(&id)?;
            stream.is_attached = true;
            (stream.group, stream.child.0)
        };
        let is_of_child = |stream: &Stream| (stream.group, stream.child.0) == (group, child);
        self.streams
            .iter()
            .find(|(other, stream)| **other != id && is_of_child(stream))
            .map(|(&other, _)| other)
    }

    /// The number of the stream on which a parent sends to a child.
    pub fn attached(&self, group: u32, parent: usize, child: usize) -> Option<u64> {
        let is_it = |stream: &Stream| {
            stream.is_attached && (stream.group, stream.parent.0, stream.child.0) == (group, parent, child)
        };
        self.streams.iter().rev().find(|(_, stream)| is_it(stream)).map(|(&id, _)| id)
    }

    /// The parent sends a packet; returns when it arrives, and whether the stream breaks with it.
    pub fn send(&mut self, now: Nanoseconds, id: u64, bytes: Vec<u8>) -> Sent {
        self.records += 1;
        let delay = self.delay();
        let breaks = self.random.random_bool(self.weather.breaks);
        let packets_max = self.weather.packets_max;
        let Some(stream) = self.streams.get_mut(&id) else { return Sent::default() };
        let arrives_at = stream.last_arrival.max(now + delay);
        stream.last_arrival = arrives_at;
        if !stream.is_broken {
            stream.records.push_back(bytes);
        }
        if breaks && !stream.is_broken {
            stream.is_broken = true;
            // Some of what is on its way arrives.
            let left = self.random.random_range(0..=stream.records.len());
            stream.records.truncate(left);
        }
        let fills = !stream.is_full && stream.records.len() >= packets_max;
        stream.is_full |= fills;
        Sent { arrives_at, fills, breaks }
    }

    /// The next packet comes to the child; returns it, and whether the parent may send again.
    pub fn receive(&mut self, id: u64) -> Option<(Vec<u8>, bool)> {
        let packets_max = self.weather.packets_max;
        let stream = self.streams.get_mut(&id)?;
        let bytes = stream.records.pop_front()?;
        let is_writable = stream.is_full && stream.records.len() * 2 <= packets_max;
        stream.is_full &= !is_writable;
        Some((bytes, is_writable))
    }

    /// A side has closed a stream: nothing arrives any more.
    pub fn close(&mut self, id: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.is_broken = true;
            stream.records.clear();
        }
    }

    /// The child has no such stream any more. Its parent may still have it.
    pub fn forget(&mut self, id: u64) {
        self.close(id);
        self.latest.retain(|_, latest| *latest != id);
    }

    /// The parent has no such stream any more.
    pub fn remove(&mut self, id: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.is_attached = false;
        }
    }

    /// The streams of a host.
    pub fn of_host(&self, host: usize) -> Vec<u64> {
        let is_of = |stream: &Stream| stream.child.0 == host || stream.parent.0 == host;
        self.streams.iter().filter(|(_, stream)| is_of(stream)).map(|(&id, _)| id).collect()
    }
}

/// Where a packet is after it was sent.
#[derive(Debug, Default, Clone, Copy)]
pub struct Sent {
    pub arrives_at: Nanoseconds,
    /// The stream takes no more.
    pub fills: bool,
    /// The stream breaks.
    pub breaks: bool,
}
