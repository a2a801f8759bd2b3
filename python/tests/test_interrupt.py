"""Ctrl-C ends simulations that would run for minutes."""

import os
import signal
import threading
import time

import pytest

import treecast
from treecast import Fabric, Group, Study

# The CPU time of all threads is compared with this, so other load on the machine does not count.
SECONDS_MAX = 5.0
# A model checks before each event.
MODEL_SECONDS_MAX = 1.0
FABRIC = Fabric("fat-tree:k=8")
LONG_LOAD = {"degree": 4, "load": 0.005, "offload": "nic", "cycles": 10**12}


# A call that does not end ends the tests, by a signal without a handler.
SECONDS_UNTIL_KILLED = 300


@pytest.fixture(autouse=True)
def handlers():
    """Those of a process in the foreground: one that a shell has started in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(SECONDS_UNTIL_KILLED)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGINT, before)


def multicast(simulator):
    made = treecast.plan(FABRIC, Group(FABRIC), "separate", packets=60_000)
    return treecast.simulate(FABRIC, made, parameters={"cycles_max": 10**12}, simulator=simulator)


def traced(path):
    treecast.load(FABRIC, "binomial", **LONG_LOAD, trace=path)


CALLS = {
    "simulate": lambda _: multicast("event"),
    "simulate by cycles": lambda _: multicast("cycle"),
    "load": lambda _: treecast.load(FABRIC, "binomial", **LONG_LOAD),
    "load with a trace": lambda place: traced(place / "trace"),
    "search": lambda _: treecast.find_saturation(FABRIC, "binomial", degree=4, cycles=10**10),
    "sweep": lambda _: treecast.sweep([{"fabric": FABRIC, "scheme": "binomial", **LONG_LOAD}] * 4),
}


def interrupted(call):
    """Interrupts a call after a moment; returns how long it went on, in seconds of CPU time."""
    interrupted_at = []

    def interrupt():
        interrupted_at.append(time.process_time())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.3, interrupt)
    timer.start()
    has_ended = False
    with pytest.raises(KeyboardInterrupt):
        call()
        has_ended = True
        # The interrupt then ends this wait, and not another test.
        time.sleep(10)
    timer.join()
    assert not has_ended, "the call ended before it was interrupted"
    return time.process_time() - interrupted_at[0]


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_ends_simulations(name, tmp_path):
    assert interrupted(lambda: CALLS[name](tmp_path)) < SECONDS_MAX
    assert not list(tmp_path.iterdir())


def test_ctrl_c_ends_a_figure_whose_rows_are_kept(tmp_path):
    study = Study("icpp98")
    journal = tmp_path / "journal"
    assert interrupted(lambda: study.run("packet-length-load", threads=1, resume=journal)) < SECONDS_MAX
    assert journal.exists()


MODEL_STUDY = {
    "study.toml": """
name = "long"
title = "A long run of a model"
source = "ours"
summary = "A million multicasts in a row."

[defaults]
testbed = "gm"
fabric = "star:16"
destinations = 15
message = 64
""",
    "testbed-gm.toml": """
model = "myrinet"

[set]
broadcasts = 1000000
""",
    "row.toml": """
title = "A row"
question = "How long does a row of multicasts take?"

[x]
vary = "message"
label = "message (bytes)"
values = [64]

[[series]]
name = "host-based"
description = "by the hosts"
scheme = "binomial"
offload = "host"
""",
}


def test_ctrl_c_ends_a_run_of_a_model(tmp_path):
    for name, text in MODEL_STUDY.items():
        (tmp_path / name).write_text(text)
    study = Study(tmp_path)
    assert interrupted(lambda: study.run("row", threads=1)) < MODEL_SECONDS_MAX


def test_an_interrupted_call_can_be_repeated():
    run = {"degree": 2, "load": 0.01, "cycles": 50_000}
    before = treecast.load(FABRIC, "binomial", **run)
    interrupted(lambda: CALLS["load"](None))
    assert treecast.load(FABRIC, "binomial", **run) == before
