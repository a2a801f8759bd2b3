use proptest::prelude::*;
use treecast_fabric::{Channel, Fabric, FabricSpec, HostId, LinkId, read};
use treecast_plan::{Arrangement, MemberId};

use super::*;
use crate::observer::Track;

/// One event as a reader of the file sees it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    /// Names from the root of the tree of tracks.
    track: Vec<String>,
    kind: EventType,
    at: u64,
    /// Name, then annotations.
    says: Vec<String>,
}

/// Reads a trace as trace processor does: descriptors and strings in the order of the file, then
/// events by timestamp.
fn read_back(bytes: &[u8]) -> Vec<Seen> {
    let mut tracks: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut interned: BTreeMap<(&str, u64), String> = BTreeMap::new();
    let mut seen = Vec::new();
    for packet in Packets::decode(bytes).unwrap().packet {
        if let Some(descriptor) = packet.track_descriptor {
            let parent = descriptor.parent_uuid.map_or(Vec::new(), |uuid| tracks[&uuid].clone());
            let path = [parent, vec![descriptor.name.unwrap()]].concat();
            assert!(!tracks.values().any(|other| *other == path), "{path:?} is described twice");
            assert_eq!(tracks.insert(descriptor.uuid.unwrap(), path), None);
        } else {
            assert_eq!(packet.trusted_packet_sequence_id, Some(1));
        }
        let data = packet.interned_data.unwrap_or_default();
        let names = data.event_names.into_iter().map(|name| ("name", name));
        let keys = data.debug_annotation_names.into_iter().map(|name| ("key", name));
        let strings = names.chain(keys).map(|(kind, name)| (kind, name.iid, name.name.unwrap()));
        let values = data.debug_annotation_string_values.into_iter();
        let values = values.map(|value| ("value", value.iid, String::from_utf8(value.str.unwrap()).unwrap()));
        for (kind, iid, string) in strings.chain(values) {
            assert_eq!(interned.insert((kind, iid.unwrap()), string), None);
        }
        let Some(event) = packet.track_event else { continue };
        let refers = event.name_iid.is_some() || !event.debug_annotations.is_empty();
        assert_eq!(packet.sequence_flags, refers.then_some(NEEDS_INCREMENTAL_STATE));
        assert_eq!(event.correlation_id, event.name_iid);
        let name = event.name.clone().or(event.name_iid.map(|iid| interned[&("name", iid)].clone()));
        let annotations = event.debug_annotations.iter().map(|annotation| {
            let value = match annotation.string_value_iid {
                Some(iid) => interned[&("value", iid)].clone(),
                None => annotation.uint_value.unwrap().to_string(),
            };
            format!("{} = {value}", interned[&("key", annotation.name_iid.unwrap())])
        });
        seen.push(Seen {
            track: tracks[&event.track_uuid.unwrap()].clone(),
            kind: event.r#type(),
            at: packet.timestamp.unwrap(),
            says: name.into_iter().chain(annotations).collect(),
        });
    }
    seen.sort_by_key(|seen| seen.at);
    seen
}

/// Slices as they are read back: track, from, to, name and annotations, in the order of their ends.
/// Events of a track must pair up without nesting.
fn slices(bytes: &[u8]) -> Vec<(Vec<String>, u64, u64, Vec<String>)> {
    let mut open: BTreeMap<Vec<String>, (u64, Vec<String>)> = BTreeMap::new();
    let mut slices = Vec::new();
    for Seen { track, kind, at, says } in read_back(bytes) {
        match kind {
            EventType::SliceBegin => assert_eq!(open.insert(track, (at, says)), None, "slices nest"),
            EventType::SliceEnd => {
                let (from, says) = open.remove(&track).expect("what ends has begun");
                slices.push((track, from, at, says));
            }
            EventType::Instant | EventType::Unspecified => {}
        }
    }
    assert_eq!(open, BTreeMap::new(), "all slices end");
    slices
}

fn fabric(spec: &str) -> Fabric {
    Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap()
}

fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

fn slice(track: Track, work: Work, from: u64, to: u64) -> Slice {
    Slice { track, work, multicast: 3, worm: 2, packet: 7, from: Cycles(from), to: Cycles(to) }
}

fn link(link: LinkId, virtual_channel: u8) -> Track {
    Track::Link(Channel { link, virtual_channel })
}

const NANOSECONDS_5: Picoseconds = Picoseconds(5000);

/// Work on the tracks of `star:4`, with gaps, those of one track in order and the tracks in any
/// order.
fn work() -> impl Strategy<Value = Vec<Slice>> {
    let piece = (0_usize..16, 0_usize..9, 0_u64..3, 0_u32..4, 0_u32..3, 0_u64..50, 1_u64..2000);
    proptest::collection::vec(piece, 0..200).prop_map(|pieces| {
        let mut until = [0; 16];
        let slices = pieces.into_iter().map(|(index, work, multicast, worm, packet, gap, length)| {
            let host = index as u32 % 4;
            let track = match index / 4 {
                0 => Track::Cpu(MemberId(host)),
                1 => Track::Nic(HostId(host)),
                2 => link(LinkId(host * 2), 0),
                _ => link(LinkId(host * 2 + 1), 0),
            };
            let from = until[index] + gap;
            until[index] = from + length;
            let work = Work::NAMES[work].1;
            Slice { track, work, multicast, worm, packet, from: Cycles(from), to: Cycles(from + length) }
        });
        slices.collect()
    })
}

fn recorded(work: &[Slice], cycle: Picoseconds, bytes_max: usize) -> (Vec<u8>, u64) {
    let fabric = fabric("star:4");
    let mut trace = Trace::new(fabric.topology(), &Placement::one_per_host(4), cycle, bytes_max);
    for slice in work {
        trace.record(slice);
    }
    let dropped = trace.dropped();
    (trace.finish(), dropped)
}

/// The expected result of [`slices`].
fn expected(work: &[Slice], cycle: Picoseconds) -> Vec<(Vec<String>, u64, u64, Vec<String>)> {
    let fabric = fabric("star:4");
    let topology = fabric.topology();
    let expected = work.iter().map(|slice| {
        let track = match slice.track {
            Track::Cpu(member) => vec!["hosts".into(), format!("h{member}"), "CPU".into()],
            Track::Bus(host) => vec!["hosts".into(), host.to_string(), "bus".into()],
            Track::Nic(host) => vec!["hosts".into(), host.to_string(), "NIC".into()],
            Track::NicReceive(host) => vec!["hosts".into(), host.to_string(), "NIC, receiving".into()],
            Track::Link(Channel { link, .. }) => match topology.link(link).from.host() {
                Some(host) => vec!["hosts".into(), host.to_string(), topology.link_name(link)],
                None => vec!["switches".into(), "s0".into(), topology.link_name(link)],
            },
        };
        let Slice { work, multicast, worm, packet, .. } = *slice;
        let work_name = Work::NAMES.iter().find(|(_, named)| *named == work).unwrap().0;
        let mut says = vec![format!("multicast {multicast} worm {worm}"), format!("multicast = {multicast}")];
        says.push(format!("worm = {worm}"));
        if !work.is_of_message() {
            says[0] += &format!(" packet {packet}");
            says.push(format!("packet = {packet}"));
        }
        says.push(format!("work = {work_name}"));
        (track, slice.from.0 * cycle.0 / 1000, slice.to.0 * cycle.0 / 1000, says)
    });
    expected.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn every_slice_is_there_with_its_times_and_names(
        work in work(),
        cycle in prop_oneof![Just(5000_u64), Just(1000), 1_u64..4000],
    ) {
        let (bytes, dropped) = recorded(&work, Picoseconds(cycle), Trace::BYTES_MAX);
        prop_assert_eq!(dropped, 0);
        let (mut found, mut expected) = (slices(&bytes), expected(&work, Picoseconds(cycle)));
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_trace_stays_within_its_bound_and_says_what_is_missing(work in work(), bytes_max in 0_usize..12_000) {
        let (bytes, dropped) = recorded(&work, NANOSECONDS_5, bytes_max);
        let bytes_max = bytes_max.max(Trace::BYTES_MIN);
        prop_assert!(bytes.len() <= bytes_max);
        let kept = work.len() - dropped as usize;
        let (mut found, mut expected) = (slices(&bytes), expected(&work[..kept], NANOSECONDS_5));
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
        let instants: Vec<Seen> =
            read_back(&bytes).into_iter().filter(|seen| seen.kind == EventType::Instant).collect();
        if dropped == 0 {
            prop_assert_eq!(instants, []);
            return Ok(());
        }
        let says = vec![format!("trace is full: {dropped} slices are missing")];
        let at = work[kept].from.0 * 5;
        prop_assert_eq!(instants, [Seen { track: strings(&["trace"]), kind: EventType::Instant, at, says }]);
        // A slice with all its tracks and names takes less than 300 bytes.
        prop_assert!(bytes.len() > bytes_max - 300 - NOTICE_BYTES, "{} of {bytes_max}", bytes.len());
    }
}

#[test]
fn the_notice_never_takes_more_than_what_is_kept_for_it() {
    let fabric = fabric("star:4");
    let mut trace = Trace::new(fabric.topology(), &Placement::one_per_host(4), NANOSECONDS_5, 0);
    trace.dropped = u64::MAX;
    trace.full_at = TIMESTAMP_MAX;
    let before = trace.bytes.len();
    let bytes = trace.finish();
    // The id of its track stands in both packets, of ten bytes at most: here it has one.
    let notice_bytes = bytes.len() - before + 2 * 9;
    assert!(notice_bytes <= NOTICE_BYTES, "{notice_bytes} bytes");
    assert!(bytes.len() < Trace::BYTES_MIN);
}

#[test]
fn tracks_stand_under_their_hosts_and_switches_in_order() {
    let text = r#"
        switch = [{ name = "leaf", ports = 4 }]
        host = [{ name = "n01", switch = "leaf" }, { switch = "leaf" }]
    "#;
    let topology = read::toml("lab.toml", text).unwrap().topology;
    let placement = Placement::new(2, 2, Arrangement::Cyclic).unwrap();
    let mut trace = Trace::new(&topology, &placement, NANOSECONDS_5, Trace::BYTES_MAX);
    let (out, back) = (topology.injection(HostId(1)), topology.ejection(HostId(0)));
    let cpu = |member| Track::Cpu(MemberId(member));
    let (bus, nic) = (Track::Bus(HostId(1)), Track::Nic(HostId(1)));
    for track in [link(back, 1), link(out, 0), nic, bus, cpu(3), cpu(1), cpu(2), link(back, 0)] {
        trace.record(&slice(track, Work::Transfer, 0, 10));
    }
    let bytes = trace.finish();

    let found = slices(&bytes);
    let paths: Vec<String> = found.into_iter().map(|(track, ..)| track.join(" / ")).collect();
    let under_leaf = ["switches / leaf (s0) / s0:0>h0 channel 1", "switches / leaf (s0) / s0:0>h0"];
    let under_hosts = [
        "hosts / h1 / h1>s0:1",
        "hosts / h1 / NIC",
        "hosts / h1 / bus",
        "hosts / h1 / CPU of member 3",
        "hosts / h1 / CPU of member 1",
        "hosts / n01 (h0) / CPU of member 2",
    ];
    assert_eq!(paths, [&under_leaf[..1], &under_hosts, &under_leaf[1..]].concat());

    let packets = Packets::decode(&bytes[..]).unwrap().packet;
    let mut descriptors: Vec<_> = packets.into_iter().filter_map(|packet| packet.track_descriptor).collect();
    for parent in descriptors.iter().filter_map(|descriptor| descriptor.parent_uuid) {
        let parent = descriptors.iter().find(|descriptor| descriptor.uuid == Some(parent)).unwrap();
        assert_eq!(parent.child_ordering(), ChildTracksOrdering::Explicit);
    }
    descriptors.sort_by_key(TrackDescriptor::sibling_order_rank);
    let names: Vec<&str> = descriptors.iter().map(TrackDescriptor::name).collect();
    let in_order = ["CPU of member 1", "CPU of member 3", "bus", "NIC", "h1>s0:1"];
    let places = in_order.map(|name| names.iter().position(|other| *other == name).unwrap());
    assert!(places.is_sorted(), "{names:?}");
}

#[test]
fn work_that_takes_no_time_is_left_out() {
    let (bytes, dropped) =
        recorded(&[slice(Track::Bus(HostId(0)), Work::BusToNic, 4, 4)], NANOSECONDS_5, Trace::BYTES_MAX);
    assert_eq!((slices(&bytes), dropped), (Vec::new(), 0));
}

#[test]
fn times_beyond_what_the_format_holds_count_as_its_end() {
    let late = slice(Track::Bus(HostId(0)), Work::BusToNic, u64::MAX - 1, u64::MAX);
    let (bytes, _) = recorded(&[late], Picoseconds(1 << 40), Trace::BYTES_MAX);
    let (_, from, to, _) = &slices(&bytes)[0];
    assert_eq!((*from, *to), (TIMESTAMP_MAX, TIMESTAMP_MAX));
}

#[test]
#[should_panic(expected = "it works since before 10 cycles")]
fn slices_of_one_track_that_overlap_are_refused() {
    let bus = Track::Bus(HostId(0));
    recorded(
        &[slice(bus, Work::BusToNic, 0, 10), slice(bus, Work::BusToNic, 9, 12)],
        NANOSECONDS_5,
        Trace::BYTES_MAX,
    );
}

#[test]
fn many_slices_of_one_name_take_some_sixty_bytes_each() {
    let bus = Track::Bus(HostId(0));
    let work: Vec<Slice> = (0..10_000).map(|at| slice(bus, Work::BusToNic, at * 97, at * 97 + 90)).collect();
    let (bytes, _) = recorded(&work, NANOSECONDS_5, Trace::BYTES_MAX);
    assert!(bytes.len() < 65 * work.len(), "{}", bytes.len());
}

/// The fields have these names in Perfetto's definitions: `python/tests/test_trace.py` reads whole
/// files with them.
#[test]
fn a_slice_is_these_bytes() {
    let fabric = fabric("star:4");
    let mut trace = Trace::new(fabric.topology(), &Placement::one_per_host(4), NANOSECONDS_5, 0);
    let start = trace.bytes.len();
    let nic = Track::Nic(HostId(1));
    trace.record(&slice(nic, Work::NicSend, 0, 1));
    let described = trace.bytes.len();
    trace.record(&slice(nic, Work::NicSend, 1, 2));
    let bytes = trace.finish();
    let packets = |bytes: &[u8]| Packets::decode(bytes).unwrap().packet.len();
    assert_eq!(packets(&bytes[start..described]), 5);
    let begin: [&[u8]; 10] = [
        &[0x0a, 42],             // Trace.packet
        &[0x40, 5],              // timestamp
        &[0x50, 1],              // trusted_packet_sequence_id
        &[0x5a, 34],             // track_event
        &[0x22, 4, 8, 1, 24, 3], // debug_annotations: name_iid, uint_value
        &[0x22, 4, 8, 2, 24, 2],
        &[0x22, 4, 8, 3, 24, 7],
        &[0x22, 5, 8, 4, 0x88, 1, 7], // debug_annotations: name_iid, string_value_iid
        &[0x48, 1, 0x50, 1, 0x58, 3, 0xa0, 3, 1], // type, name_iid, track_uuid, correlation_id
        &[0x68, 2],                   // sequence_flags
    ];
    let end: [&[u8]; 3] = [&[0x0a, 10, 0x40, 10, 0x50, 1], &[0x5a, 4], &[0x48, 2, 0x58, 3]];
    assert_eq!(bytes[described..], [begin.concat(), end.concat()].concat());
}
