import json

import pytest

from treecast import Fabric, LoadResult, Parameters, SaturationResult, TreecastError, find_saturation, load


@pytest.fixture(scope="module")
def fabric():
    return Fabric("icpp98")


@pytest.fixture(scope="module")
def result(fabric):
    keys = {"nic_overhead": 500, "cycle_ns": 2.5}
    return load(fabric, "binomial", load=0.01, degree=3, offload="nic", order="cco", cycles=100_000, parameters=keys)


# A setting that deadlocks at a high load.
CYCLIC = Fabric("icpp98", "shortest-path")
FAST = {"nic_overhead": 0, "host_overhead": 0, "bus_mb_per_s": 0}


def test_the_fields_are_those_of_the_json(result):
    document = json.loads(result.to_json())
    del document["format"]
    for name, value in document.items():
        found = getattr(result, name)
        assert (dict(found) if isinstance(found, Parameters) else found) == value, name
    assert LoadResult.from_json(result.to_json()) == result


def test_the_command_gives_the_same(fabric, command):
    given = ["sim", "--fabric=icpp98", "--scheme=tree-worm", "--degree=3", "--cycles=50000", "--format=json"]
    assert load(fabric, "tree-worm", load=0.01, degree=3, cycles=50_000).to_json() == command(*given, "--load=0.01")
    found = find_saturation(fabric, "tree-worm", degree=3, cycles=50_000, precision=0.1)
    assert found.to_json() == command(*given, "--find-saturation", "--precision=0.1")


def test_omitted_arguments_have_defaults(result):
    assert (result.warmup_cycles, result.backlog_max, result.message_flits) == (50_000, 64 * 32, 128)
    assert (result.arrivals, result.destination_sets, result.simulator, result.seed) == (
        "exponential",
        "random",
        "event",
        1,
    )


def test_a_sustained_load_is_accepted(result):
    assert result.status == "complete" and result.deadlock is None
    assert result.ejection_load == 3 * result.offered_load
    assert result.accepted_load == pytest.approx(result.ejection_load, rel=0.3)
    assert 0 < result.link_utilization["mean"] < result.link_utilization["max"] < 1
    assert result.latency_p50_cycles <= result.latency_p99_cycles <= result.latency_max_cycles


def test_both_simulators_measure_the_same(fabric):
    runs = [
        json.loads(load(fabric, "tree-worm", load=0.02, degree=3, cycles=20_000, simulator=simulator).to_json())
        for simulator in ("event", "cycle")
    ]
    assert [run.pop("simulator") for run in runs] == ["event", "cycle"]
    assert runs[0] == runs[1]


def test_a_deadlock_is_a_cycle_of_links_by_name():
    result = load(CYCLIC, "binomial", load=0.5, degree=8, offload="nic", cycles=100_000, parameters=FAST)
    assert result.status == "deadlocked"
    waits = result.deadlock["waits"]
    assert result.deadlock["stuck"] >= len(waits) > 1
    assert [wait["wants"] for wait in waits] == [wait["at"] for wait in waits[1:] + waits[:1]]
    assert {wait["at"] for wait in waits} <= set(CYCLIC.links.column("name"))
    assert LoadResult.from_json(result.to_json()) == result


def test_the_search_ends_between_a_load_that_is_sustained_and_one_that_is_not(fabric):
    found = find_saturation(fabric, "tree-worm", degree=3, precision=0.1, cycles=100_000)
    points = found.points.to_pylist()
    sustained = [point["offered_load"] for point in points if point["status"] == "complete"]
    others = [point["offered_load"] for point in points if point["status"] != "complete"]
    assert found.saturation_offered_load == max(sustained)
    assert found.saturation_ejection_load == 3 * max(sustained)
    assert min(others) <= max(sustained) * 1.1
    assert SaturationResult.from_json(found.to_json()) == found
    assert (found.precision, found.degree, found.scheme) == (0.1, 3, "tree-worm")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"load": 0.0}, "invalid load of 0 flits/host/cycle"),
        ({"load": float("nan")}, "invalid load of NaN"),
        (
            {"degree": 32},
            "invalid degree 32: expected at least 1 and less than the number of hosts, 32",
        ),
        ({"degree": -1}, "invalid value -1: expected"),
        ({"scheme": "binomal"}, "unknown scheme 'binomal': did you mean binomial"),
        ({"arrivals": "burst:size=0"}, "invalid value size=0"),
        ({"destination_sets": "near"}, "unknown destination sets 'near'"),
        ({"cycles": 0}, "invalid window: 0 cycles with a warm-up of 0 cycles"),
        ({"backlog_max": 0}, "invalid backlog_max: at least one multicast"),
        ({"simulator": "events"}, "unknown simulator 'events': did you mean event"),
    ],
)
def test_invalid_runs_are_rejected(fabric, arguments, sentence):
    with pytest.raises(TreecastError) as raised:
        load(**{"fabric": fabric, "scheme": "binomial", "load": 0.01, "degree": 3, **arguments})
    assert str(raised.value).startswith(sentence)


def test_a_precision_out_of_range_is_rejected(fabric):
    with pytest.raises(TreecastError, match="invalid precision 0: expected a share from 0.001 to 0.5"):
        find_saturation(fabric, "binomial", degree=3, precision=0)
