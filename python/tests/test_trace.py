"""Files of traces are what Perfetto's own definitions say, and show the run."""

import re
from collections import Counter, defaultdict
from typing import NamedTuple

import pytest
from conftest import ROOT
from google.protobuf import text_format
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from treecast import Fabric, Group, load, plan, simulate

PAGE = (ROOT / "docs/traces.md").read_text("utf-8")


class Slice(NamedTuple):
    track: str
    begin: int
    end: int
    name: str
    arguments: dict


def parsed(path):
    """The trace in a file, of which every field is known."""
    trace = Trace.FromString(path.read_bytes())
    assert trace.SerializeToString() == path.read_bytes()
    assert not list(unknown_fields(trace))
    return trace


def unknown_fields(message):
    yield from UnknownFieldSet(message)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                yield from unknown_fields(part)


def slices(trace):
    """The slices of a trace, in the order of the file: each track has a name and does one thing after the other."""
    tracks, events, keys, values = {}, {}, {}, {}
    begun, until, found = {}, defaultdict(int), []
    assert trace.packet[0].sequence_flags == TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    for packet in trace.packet:
        interned = packet.interned_data
        events.update((event.iid, event.name) for event in interned.event_names)
        keys.update((key.iid, key.name) for key in interned.debug_annotation_names)
        values.update((value.iid, value.str.decode()) for value in interned.debug_annotation_string_values)
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.name and track.uuid and track.uuid not in tracks
            parent = f"{tracks[track.parent_uuid]} / " if track.parent_uuid else ""
            tracks[track.uuid] = parent + track.name
        elif packet.HasField("track_event"):
            event, at = packet.track_event, packet.timestamp
            assert until[event.track_uuid] <= at
            until[event.track_uuid] = at
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                arguments = {
                    keys[given.name_iid]: values[given.string_value_iid] if given.string_value_iid else given.uint_value
                    for given in event.debug_annotations
                }
                assert event.track_uuid not in begun
                begun[event.track_uuid] = at, events[event.name_iid], arguments
            else:
                assert event.type == TrackEvent.TYPE_SLICE_END
                begin, name, arguments = begun.pop(event.track_uuid)
                found.append(Slice(tracks[event.track_uuid], begin, at, name, arguments))
    assert not begun
    assert len(set(tracks.values())) == len(tracks)
    return found


@pytest.mark.parametrize(
    ("scheme", "offload", "message", "parameters"),
    [
        ("binomial", "host", 128, {}),
        ("k-binomial", "nic", 500, {"cycle_ns": 2}),
        ("tree-worm", "assisted", 300, {"adaptive": "random"}),
        ("path", "host", 200, {"switching": "wormhole", "buffer_flits": 4}),
    ],
)
def test_the_trace_of_a_multicast_has_a_slice_for_all_that_its_result_counts(
    scheme, offload, message, parameters, command, tmp_path
):
    path, same = tmp_path / "python.pftrace", tmp_path / "command.pftrace"
    fabric = Fabric("icpp98")
    packets = -(-message // 128)
    tree = plan(fabric, Group(fabric, destinations="random:9"), scheme, packets=packets)
    simulator = "cycle" if "switching" in parameters else "event"
    result = simulate(fabric, tree, offload, message, parameters, simulator=simulator, trace=path)
    settings = [f"--set={key}={value}" for key, value in parameters.items()]
    of_run = ["--fabric=icpp98", "--dests=random:9", f"--scheme={scheme}", f"--offload={offload}"]
    command("sim", *of_run, f"--message={message}", *settings, f"--trace={same}")
    assert same.read_bytes() == path.read_bytes()

    found = slices(parsed(path))
    counts = Counter(slice.arguments["work"] for slice in found)
    assert counts["host receive"] == len(result.deliveries) == 9
    assert counts["NIC receive"] == 9 * packets
    assert counts["NIC send"] == result.worms * packets
    assert counts["transfer"] == tree.analysis["link_visits"] * packets
    assert max(slice.end for slice in found) == result.latency_ns
    busy = Counter()
    for slice in found:
        if slice.track.endswith(" / CPU"):
            busy[int(slice.track.split(" / ")[1].removeprefix("h"))] += slice.end - slice.begin
    cycle_ns = result.parameters["cycle_ns"]
    assert busy == {row["host"]: row["cycles"] * cycle_ns for row in result.cpu_busy_cycles}


def test_the_trace_of_a_load_has_a_slice_for_all_that_its_result_counts(command, tmp_path):
    path, same = tmp_path / "python.pftrace", tmp_path / "command.pftrace"
    result = load(Fabric("icpp98"), "binomial", load=0.01, degree=3, cycles=40_000, trace=path)
    of_run = ["--fabric=icpp98", "--scheme=binomial", "--load=0.01", "--degree=3", "--cycles=40000"]
    command("sim", *of_run, f"--trace={same}")
    assert same.read_bytes() == path.read_bytes()

    found = slices(parsed(path))
    begin, end = (cycle * 5 for cycle in (result.warmup_cycles, result.end_cycle))
    received = sum(slice.arguments["work"] == "host receive" and begin <= slice.end < end for slice in found)
    assert received * 128 / ((result.end_cycle - result.warmup_cycles) * 32) == pytest.approx(result.accepted_load)
    busy = Counter()
    for slice in found:
        if slice.arguments["work"] == "transfer":
            busy[slice.track.split(" / ")[2]] += max(0, min(slice.end, end) - max(slice.begin, begin))
    (link, most), *_ = busy.most_common(1)
    assert most / (end - begin) == pytest.approx(result.link_utilization["max"])
    assert busy[result.link_utilization["link"]] == most


@pytest.fixture
def unicast(command, tmp_path):
    """The trace of the run that the page shows."""
    path = tmp_path / "run.pftrace"
    command("sim", "--fabric=star:2", "--scheme=separate", f"--trace={path}")
    return parsed(path)


def test_the_table_of_the_page_is_a_run(unicast):
    row = re.compile(r"^\| `(.*)` \| (\d+) \| (\d+) \| `(.*)` \| `(.*)` \|$", re.MULTILINE)
    shown = [(track, int(begin), int(end), name, work) for track, begin, end, name, work in row.findall(PAGE)]
    found = sorted(slices(unicast), key=lambda slice: slice.begin)
    assert shown == [(slice.track, slice.begin, slice.end, slice.name, slice.arguments["work"]) for slice in found]


def test_the_page_shows_how_a_file_begins(unicast):
    (shown,) = re.findall(r"^```text\n(packet .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    first, *others = unicast.packet
    strings = first.interned_data
    assert len(strings.debug_annotation_names) + len(strings.debug_annotation_string_values) == 13
    del strings.debug_annotation_names[1:], strings.debug_annotation_string_values[:]
    # Before the track of a CPU come its host and all hosts.
    assert list(text_format.Parse(shown, Trace()).packet) == [first, *others[2:5]]


def test_the_page_names_all_work(unicast):
    values = unicast.packet[0].interned_data.debug_annotation_string_values
    (names,) = re.findall(r"^\| `work` \| (.*) \|$", PAGE, re.MULTILINE)
    assert re.findall(r"`(.*?)`", names) == [value.str.decode() for value in values]
