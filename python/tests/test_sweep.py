"""Sweeps on one machine: points, rows, and going on after an interruption."""

import os
import time
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context

import polars
import pyarrow
import pytest

from treecast import Fabric, Parameters, SweepError, TreecastError, grid, load, sweep

LOADS = grid(fabric="icpp98", scheme=["binomial", "tree-worm"], load=[0.005, 0.05], degree=3, cycles=30_000)
MULTICASTS = grid(fabric=["star:9", "torus:k=3,n=2"], scheme="binomial", destinations="random:5", seed=range(5))
POINTS = LOADS + MULTICASTS


class AtOnce(ThreadPoolExecutor):
    """Runs what it is given when it is given it."""

    def submit(self, function, /, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


@pytest.fixture(scope="module")
def serial():
    return sweep(POINTS, AtOnce())


def test_a_row_has_the_results_of_its_run(serial):
    rows = serial.to_pylist()
    assert len(rows) == len(POINTS)
    assert [row["scheme"] for row in rows[:4]] == ["binomial", "binomial", "tree-worm", "tree-worm"]
    result = load(Fabric("icpp98"), "binomial", load=0.05, degree=3, cycles=30_000)
    for name in ("status", "offered_load", "accepted_load", "latency_mean_cycles", "end_cycle", "fabric", "seed"):
        assert rows[1][name] == getattr(result, name)
    assert rows[1]["link_utilization_max"] == result.link_utilization["max"]
    assert rows[1]["worms"] is None
    assert (rows[4]["status"], rows[4]["destination_count"], rows[4]["degree"]) == ("complete", 5, None)
    assert [row["seed"] for row in rows[4:]] == [0, 1, 2, 3, 4] * 2


def test_types_do_not_depend_on_the_points(serial):
    schema = pyarrow.schema(serial)
    for points in ([], LOADS, MULTICASTS):
        assert pyarrow.schema(sweep(points)) == schema
    assert schema.field("latency_cycles").type == pyarrow.uint64()
    assert schema.field("cycle_ns").type == pyarrow.float64()
    assert polars.DataFrame(serial).to_dicts() == serial.to_pylist()


def test_threads_give_the_same_rows(serial):
    assert sweep(POINTS) == serial
    with ThreadPoolExecutor(3) as threads:
        assert sweep(iter(POINTS), threads) == serial


def test_a_process_pool_gives_the_same_rows(serial):
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert sweep(POINTS, pool) == serial


def test_short_points_are_batched_and_long_ones_are_not(monkeypatch):
    class Counting(AtOnce):
        batches = 0

        def submit(self, *arguments):
            self.batches += 1
            return super().submit(*arguments)

    counting = Counting()
    assert len(sweep(MULTICASTS * 200, counting)) == 2000
    assert counting.batches < 500
    # A clock on which every point takes a second.
    seconds = iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    slow = Counting()
    assert len(sweep(MULTICASTS, slow)) == slow.batches == len(MULTICASTS)


def test_points_that_a_slow_batch_returns_are_run_too(monkeypatch):
    # A clock that stands still for the first points, and then makes every point take two seconds.
    times = [0.0]

    def clock():
        times.append(times[-1] + (2.0 if len(times) > 300 else 0.0))
        return times[-1]

    points = MULTICASTS * 30
    expected = sweep(points)
    monkeypatch.setattr(time, "monotonic", clock)
    assert sweep(points, AtOnce()) == expected


def test_progress_is_reported_from_none_to_all():
    reported = []
    sweep(MULTICASTS, AtOnce(), progress=lambda done, all: reported.append((done, all)))
    assert reported[0] == (0, 10) and reported[-1] == (10, 10)
    assert reported == sorted(reported)


def test_fabrics_and_parameters_are_values_of_points_too():
    drawn = Fabric.from_networkx(Fabric("star:5").to_networkx())
    points = grid(fabric=[drawn, "star:5"], scheme="binomial", parameters=[Parameters(nic_overhead=5), {}])
    rows = sweep(points).to_pylist()
    assert [row["fabric"] for row in rows] == ["networkx", "networkx", "star:5", "star:5"]
    assert [row["nic_send_overhead"] for row in rows] == [5, 1000, 5, 1000]
    assert rows[0]["latency_cycles"] == rows[2]["latency_cycles"] < rows[3]["latency_cycles"]


def test_a_long_message_is_planned_in_its_packets():
    points = grid(fabric="icpp98", scheme="k-binomial", message=[128, 129, 1280], offload="nic")
    latencies = [row["latency_cycles"] for row in sweep(points)]
    assert latencies == sorted(set(latencies))


@pytest.mark.parametrize(
    ("point", "sentence"),
    [
        ({"fabric": "star:4"}, "point 1: its scheme is missing"),
        ({"fabric": "star:4", "scheme": "binomial", "load": 0.1}, "point 1: its degree is missing"),
        (
            {"fabric": "star:4", "scheme": "binomial", "degree": 2},
            "point 1: a multicast, as it has no load, has no key",
        ),
        (
            {"fabric": "star:4", "scheme": "binomial", "load": 0.1, "degree": 2, "root": 1},
            "point 1: a run under load has",
        ),
        ({"fabric": Fabric("star:4"), "routing": "auto", "scheme": "binomial"}, "point 1: a Fabric has its routing"),
        ({"fabric": "star:4", "scheme": "binomal"}, "point 1: unknown scheme 'binomal'"),
        ({"fabric": "star:4", "scheme": "binomial", "message": 0}, "point 1: the message has 0 flits"),
        ({"fabric": "star:4", "scheme": "binomial", "destinations": [7]}, "point 1: there is no host 7"),
    ],
)
def test_an_invalid_point_is_named(point, sentence):
    with pytest.raises(TreecastError) as raised:
        sweep([MULTICASTS[0], point])
    assert str(raised.value).startswith(sentence)


def test_a_point_of_other_types_is_a_type_error():
    with pytest.raises(TypeError, match="point 0 is a str, not a dict"):
        sweep(["binomial"])
    with pytest.raises(TypeError, match="point 0: "):
        sweep([{"fabric": "star:4", "scheme": 3}])


class Interrupt(Exception):
    pass


def interrupt_after(number):
    def progress(done, all):
        if done >= number:
            raise Interrupt

    return progress


def count_runs(points, **keys):
    reported = []
    table = sweep(points, AtOnce(), progress=lambda done, all: reported.append(done), **keys)
    return len(points) - reported[0], table


def test_an_interrupted_sweep_resumes(serial, tmp_path):
    path = tmp_path / "sweep.journal"
    with pytest.raises(Interrupt):
        sweep(POINTS, AtOnce(), progress=interrupt_after(3), resume=path)
    runs, table = count_runs(POINTS, resume=path)
    assert 0 < runs <= len(POINTS) - 3
    assert table == serial
    assert count_runs(POINTS, resume=path) == (0, serial)


def test_points_that_are_added_or_moved_are_told_from_those_done(serial, tmp_path):
    path = tmp_path / "sweep.journal"
    sweep(LOADS, resume=path)
    runs, table = count_runs(MULTICASTS + LOADS, resume=path)
    assert runs == len(MULTICASTS)
    rows = serial.to_pylist()
    assert table.to_pylist() == rows[len(LOADS) :] + rows[: len(LOADS)]


def test_an_incomplete_line_is_ignored(serial, tmp_path):
    path = tmp_path / "sweep.journal"
    sweep(POINTS, resume=path)
    whole = path.read_bytes()
    for kept in (0, 10, whole.index(b"\n"), len(whole) - 1):
        path.write_bytes(whole[:kept])
        assert sweep(POINTS, resume=path) == serial
        assert count_runs(POINTS, resume=path) == (0, serial)


@pytest.mark.parametrize("corrupt", ["{", "null", '{"point": 3}'])
def test_a_corrupt_line_is_named(corrupt, tmp_path):
    path = tmp_path / "sweep.journal"
    sweep(MULTICASTS, resume=path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], corrupt, *lines[2:]]) + "\n")
    for _ in range(2):
        with pytest.raises(TreecastError, match=f"line 3 of {path} is corrupt: remove the line"):
            sweep(MULTICASTS, resume=path)


def test_equal_points_of_other_types_are_the_same_point(tmp_path):
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "sweep.journal"
    made = grid(fabric="star:9", scheme="binomial", load=numpy.linspace(0.01, 0.02, 3), degree=numpy.arange(2, 4))
    plain = [{**point, "load": float(point["load"]), "degree": int(point["degree"])} for point in made]
    table = sweep([{**point, "cycles": 20_000} for point in made], resume=path)
    assert count_runs([{**point, "cycles": 20_000} for point in plain], resume=path) == (0, table)


def test_fabrics_that_are_called_alike_are_told_apart(tmp_path):
    path = tmp_path / "sweep.journal"
    fabrics = [Fabric.from_networkx(Fabric(f"star:{hosts}").to_networkx()) for hosts in (3, 9)]
    for fabric, hosts in zip(fabrics, (3, 9), strict=True):
        rows = sweep(grid(fabric=fabric, scheme="binomial"), resume=path).to_pylist()
        assert (rows[0]["fabric"], rows[0]["destination_count"]) == ("networkx", hosts - 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("fabric,scheme\n", "is no sweep"), ("treecast sweep 1, build 0.0.1 ab\n", "was started by another build")],
)
def test_a_foreign_file_is_not_changed(text, sentence, tmp_path):
    path = tmp_path / "sweep.journal"
    path.write_text(text)
    with pytest.raises(TreecastError, match=sentence):
        sweep(POINTS, resume=path)
    assert path.read_text() == text


def test_two_sweeps_do_not_share_a_file(tmp_path):
    path = tmp_path / "sweep.journal"

    def progress(done, all):
        with pytest.raises(TreecastError, match="is in use"):
            sweep(MULTICASTS, resume=path)

    sweep(MULTICASTS[:1], progress=progress, resume=path)


def test_rows_completed_before_an_executor_failed_are_kept():
    class Failing(AtOnce):
        left = 3

        def submit(self, *arguments):
            self.left -= 1
            if self.left < 0:
                raise BrokenExecutor("no workers")
            return super().submit(*arguments)

    with pytest.raises(SweepError, match=r"\(BrokenExecutor: no workers\): 3 of 10 points are done, 0 were") as raised:
        sweep(MULTICASTS, Failing())
    assert (raised.value.done, raised.value.lost) == ([0, 1, 2], [])


def test_a_broken_pool_reports_completed_and_lost_points(tmp_path):
    points = grid(fabric="icpp98", scheme="binomial", load=0.01, degree=3, cycles=400_000, seed=range(40))
    path = tmp_path / "sweep.journal"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:

        def kill_one(done, all):
            # The second point may come when the process has gone.
            if done:
                with suppress(ProcessLookupError):
                    os.kill(next(iter(pool._processes)), 9)

        with pytest.raises(
            SweepError, match=r"the executor failed \(BrokenProcessPool: .* are lost: .* to continue"
        ) as raised:
            sweep(points, pool, progress=kill_one, resume=path)
    error = raised.value
    assert error.done and error.lost and not set(error.done) & set(error.lost)
    runs, table = count_runs(points, resume=path)
    assert runs == len(points) - len(error.done)
    rows = table.to_pylist()
    assert error.table.to_pylist() == [rows[number] for number in error.done]
