//! Traces of runs, for <https://ui.perfetto.dev>.
//!
//! A trace is written as it is recorded, in one sequence of packets: the two ends of a slice are
//! adjacent. The format does not require packets in the order of their timestamps: trace processor,
//! which reads the file for all of Perfetto's tools, sorts them, and keeps the order of the file
//! where timestamps are equal (`src/trace_processor/sorter/trace_sorter.h`). So on one track a
//! slice ends before the next one begins, even in the same nanosecond. Descriptions of tracks and
//! interned strings are read in the order of the file; each is written before its first use.

mod messages;
#[cfg(test)]
mod tests;
mod track_tree;

use std::collections::BTreeMap;

use prost::Message;
use treecast_fabric::Topology;
use treecast_plan::Placement;
use treecast_terms::{Cycles, Picoseconds};

use crate::observer::{Recorder, Slice, Work};
use messages::{
    ChildTracksOrdering, DebugAnnotation, EventType, INCREMENTAL_STATE_CLEARED, InternedData, InternedName,
    InternedString, NEEDS_INCREMENTAL_STATE, Packets, TracePacket, TrackDescriptor, TrackEvent,
};
use track_tree::TrackNode;

/// A trace is one sequence of packets.
const SEQUENCE: u32 = 1;

/// The names of debug annotations; the id of each is its position, from 1.
const ANNOTATIONS: [&str; 4] = ["multicast", "worm", "packet", "work"];

/// The greatest timestamp that trace processor takes, in nanoseconds: it counts in signed integers.
const TIMESTAMP_MAX: u64 = i64::MAX as u64;

/// A recorder of slices in Perfetto's protobuf format, in memory.
///
/// A slice is named `multicast 3 worm 2 packet 0`, and all slices of one name have the same
/// correlation id. Cycles become nanoseconds, both ends of a slice rounded down: exact where the
/// cycle is whole nanoseconds, and without new overlaps. Times saturate at 2^63 - 1 ns. A slice of
/// zero cycles is left out; one of less than a nanosecond may have zero length.
///
/// ```
/// use treecast_fabric::{Fabric, FabricSpec, HostId};
/// use treecast_terms::{Cycles, Picoseconds};
/// use treecast_plan::Placement;
/// use treecast_sim::{Recorder, Slice, Trace, Track, Work};
///
/// let fabric = Fabric::from_spec(&"star:4".parse::<FabricSpec>()?)?;
/// let placement = Placement::one_per_host(4);
/// let mut trace = Trace::new(fabric.topology(), &placement, Picoseconds(5000), Trace::BYTES_MAX);
/// let track = Track::Nic(HostId(0));
/// let (from, to) = (Cycles(1097), Cycles(2097));
/// trace.record(&Slice { track, work: Work::NicSend, multicast: 0, worm: 2, packet: 0, from, to });
/// assert_eq!(trace.dropped(), 0);
/// let bytes = trace.finish();
/// assert!(bytes.len() < 500);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Trace<'a> {
    topology: &'a Topology,
    placement: Placement,
    cycle: Picoseconds,
    bytes_max: usize,
    bytes: Vec<u8>,
    tracks: BTreeMap<TrackNode, TrackState>,
    names: BTreeMap<NameKey, u64>,
    dropped: u64,
    /// When the first dropped slice starts.
    full_at: u64,
}

/// A track whose description has been written.
#[derive(Debug, Clone, Copy)]
struct TrackState {
    uuid: u64,
    /// The end of its last slice.
    until: Cycles,
}

/// The name of a slice: multicast, worm, packet.
type NameKey = (u64, u32, Option<u32>);

impl<'a> Trace<'a> {
    /// The usual bound: 256 MiB, about four million slices.
    pub const BYTES_MAX: usize = 256 << 20;

    /// The minimum bound: room for the fixed part of a trace.
    pub const BYTES_MIN: usize = 1 << 12;

    /// An empty trace of runs on a topology. It is bounded by `bytes_max` bytes, or
    /// [`Trace::BYTES_MIN`] if that is more; memory is at most about four times that.
    pub fn new(topology: &'a Topology, placement: &Placement, cycle: Picoseconds, bytes_max: usize) -> Self {
        Self {
            topology,
            placement: placement.clone(),
            cycle,
            bytes_max: bytes_max.max(Self::BYTES_MIN),
            bytes: Packets { packet: vec![first_packet()] }.encode_to_vec(),
            tracks: BTreeMap::new(),
            names: BTreeMap::new(),
            dropped: 0,
            full_at: 0,
        }
    }

    /// The number of dropped slices.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The file. If slices were dropped, it ends with an instant that reports it, on a separate
    /// track, at the start of the first dropped slice.
    pub fn finish(mut self) -> Vec<u8> {
        if self.dropped > 0 {
            let mut packet = Vec::with_capacity(2);
            let uuid = self.describe(TrackNode::Notice, &mut packet);
            let name = format!("trace is full: {} slices are missing", self.dropped);
            let instant = TrackEvent { name: Some(name), ..event(EventType::Instant, uuid) };
            packet.push(event_packet(self.full_at, instant));
            self.bytes.extend(Packets { packet }.encode_to_vec());
        }
        self.bytes
    }

    /// The id of a track. Appends the packets that describe it and its parents, if they have not
    /// been written.
    fn describe(&mut self, node: TrackNode, packets: &mut Vec<TracePacket>) -> u64 {
        if let Some(state) = self.tracks.get(&node) {
            return state.uuid;
        }
        let parent = node.parent(self.topology, &self.placement);
        let parent_uuid = parent.map(|parent| self.describe(parent, packets));
        // 0 is the track of the whole trace.
        let uuid = self.tracks.len() as u64 + 1;
        self.tracks.insert(node, TrackState { uuid, until: Cycles::ZERO });
        let descriptor = TrackDescriptor {
            uuid: Some(uuid),
            name: Some(node.name(self.topology, &self.placement)),
            parent_uuid,
            child_ordering: node.has_children().then_some(ChildTracksOrdering::Explicit.into()),
            sibling_order_rank: parent.map(|_| node.rank(self.topology)),
        };
        packets.push(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() });
        uuid
    }

    /// Asserts that slices of a track do not overlap: trace processor would nest them.
    fn check_overlap(&mut self, slice: &Slice) {
        let state = self.tracks.get_mut(&TrackNode::Track(slice.track)).expect("it was just described");
        assert!(state.until <= slice.from, "it works since before {}: {slice:?}", state.until);
        state.until = slice.to;
    }

    /// The two events of a slice.
    fn ends(&mut self, slice: &Slice, uuid: u64) -> [TracePacket; 2] {
        let packet = (!slice.work.is_of_message()).then_some(slice.packet);
        let key = (slice.multicast, slice.worm, packet);
        let next = self.names.len() as u64 + 1;
        let iid = *self.names.entry(key).or_insert(next);
        let new_name = (iid == next).then(|| InternedData {
            event_names: vec![InternedName { iid: Some(iid), name: Some(name(key)) }],
            ..InternedData::default()
        });
        let begin = TrackEvent {
            debug_annotations: annotations(slice, packet),
            name_iid: Some(iid),
            correlation_id: Some(iid),
            ..event(EventType::SliceBegin, uuid)
        };
        let begin = TracePacket {
            interned_data: new_name,
            sequence_flags: Some(NEEDS_INCREMENTAL_STATE),
            ..event_packet(self.nanoseconds(slice.from), begin)
        };
        [begin, event_packet(self.nanoseconds(slice.to), event(EventType::SliceEnd, uuid))]
    }

    fn nanoseconds(&self, at: Cycles) -> u64 {
        let picoseconds = u128::from(at.0) * u128::from(self.cycle.0);
        u64::try_from(picoseconds / 1000).unwrap_or(TIMESTAMP_MAX).min(TIMESTAMP_MAX)
    }
}

/// Once a slice has no room, it and all later slices are dropped. Slices of one track that overlap
/// are a bug of the caller: it panics.
impl Recorder for Trace<'_> {
    fn record(&mut self, slice: &Slice) {
        assert!(slice.from <= slice.to, "work ends after it begins: {slice:?}");
        if slice.from == slice.to {
            return;
        }
        if self.dropped > 0 {
            self.dropped += 1;
            return;
        }
        let mut packet = Vec::with_capacity(2);
        let uuid = self.describe(TrackNode::Track(slice.track), &mut packet);
        self.check_overlap(slice);
        packet.extend(self.ends(slice, uuid));
        let packets = Packets { packet };
        if self.bytes.len() + packets.encoded_len() + NOTICE_BYTES > self.bytes_max {
            self.dropped = 1;
            self.full_at = self.nanoseconds(slice.from);
            return;
        }
        self.bytes.extend(packets.encode_to_vec());
    }
}

/// The maximum number of bytes of the notice of a full trace: a packet of two bytes each for tag
/// and length that describes its track, and one with the instant, of up to 20 digits.
const NOTICE_BYTES: usize = 128;

/// The strings that every trace uses.
fn first_packet() -> TracePacket {
    let annotations = ANNOTATIONS.iter().zip(1..);
    let works = Work::NAMES.iter().map(|&(name, work)| (name, work_iid(work)));
    let interned = InternedData {
        event_names: Vec::new(),
        debug_annotation_names: annotations
            .map(|(&name, iid)| InternedName { iid: Some(iid), name: Some(name.into()) })
            .collect(),
        debug_annotation_string_values: works
            .map(|(name, iid)| InternedString { iid: Some(iid), str: Some(name.into()) })
            .collect(),
    };
    TracePacket {
        trusted_packet_sequence_id: Some(SEQUENCE),
        interned_data: Some(interned),
        sequence_flags: Some(INCREMENTAL_STATE_CLEARED),
        ..TracePacket::default()
    }
}

fn name((multicast, worm, packet): NameKey) -> String {
    match packet {
        Some(packet) => format!("multicast {multicast} worm {worm} packet {packet}"),
        None => format!("multicast {multicast} worm {worm}"),
    }
}

fn work_iid(work: Work) -> u64 {
    work as u64 + 1
}

/// In the order of [`ANNOTATIONS`].
fn annotations(slice: &Slice, packet: Option<u32>) -> Vec<DebugAnnotation> {
    let numbers = [Some(slice.multicast), Some(u64::from(slice.worm)), packet.map(u64::from)];
    let mut annotations: Vec<DebugAnnotation> = (1..)
        .zip(numbers)
        .filter(|(_, number)| number.is_some())
        .map(|(iid, number)| DebugAnnotation {
            name_iid: Some(iid),
            uint_value: number,
            ..DebugAnnotation::default()
        })
        .collect();
    annotations.push(DebugAnnotation {
        name_iid: Some(ANNOTATIONS.len() as u64),
        string_value_iid: Some(work_iid(slice.work)),
        ..DebugAnnotation::default()
    });
    annotations
}

fn event(kind: EventType, uuid: u64) -> TrackEvent {
    TrackEvent { r#type: Some(kind.into()), track_uuid: Some(uuid), ..TrackEvent::default() }
}

fn event_packet(timestamp: u64, event: TrackEvent) -> TracePacket {
    TracePacket {
        timestamp: Some(timestamp),
        trusted_packet_sequence_id: Some(SEQUENCE),
        track_event: Some(event),
        ..TracePacket::default()
    }
}
