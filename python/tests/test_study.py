import re
import subprocess
import sys
import time

import pyarrow
import pyarrow.parquet
import pytest
from conftest import ROOT

from treecast import Study, TreecastError


@pytest.fixture(scope="module")
def study():
    return Study("icpp98")


def test_included_studies_are_those_of_the_repository():
    assert Study.known() == sorted(directory.name for directory in (ROOT / "papers").iterdir())


def test_a_figure_is_that_of_the_command(study, command, tmp_path):
    command("paper", "run", "icpp98", "fig7", "--quick", f"--out={tmp_path}")
    figure = study.run("fig7", quick=True, threads=1)
    rows = pyarrow.table(figure.rows)
    assert rows.equals(pyarrow.parquet.read_table(tmp_path / "fig7.parquet"))
    assert figure.svg() == (tmp_path / "fig7.svg").read_text("utf-8")
    assert figure.html() == (tmp_path / "fig7.html").read_text("utf-8")
    assert figure.vega_lite()["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
    assert str(figure).splitlines()[-1].startswith("latency (cycles of 5 ns): mean")


def test_a_study_of_a_folder_is_the_same(study):
    read = Study(ROOT / "papers" / "icpp98")
    assert (read.name, read.figures, read.describe()) == (study.name, study.figures, study.describe())
    assert read.describe("fig6") == study.describe("fig6")


def test_progress_is_reported_and_its_error_raised(study):
    reported = []
    runs = len(study.run("fig7", quick=True, progress=lambda done, all: reported.append((done, all))).rows)
    assert reported == [(done, runs) for done in range(runs + 1)]
    with pytest.raises(ZeroDivisionError):
        study.run("fig7", quick=True, progress=lambda done, all: done / 0)


def test_progress_may_take_its_time(study):
    # Sleeping releases the GIL, and other threads report their runs.
    assert study.run("fig7", quick=True, threads=4, progress=lambda done, all: time.sleep(0.0001)).rows


# Runs a figure into a journal, and exits after a number of runs.
DYING = """
import os, sys, treecast
treecast.Study("icpp98").run(
    "fig7", quick=True, resume=sys.argv[1], progress=lambda done, all: done < 100 or os._exit(9)
)
"""


def test_an_interrupted_figure_resumes(study, tmp_path):
    path = tmp_path / "icpp98.journal"
    assert subprocess.run([sys.executable, "-c", DYING, path]).returncode == 9
    reported = []
    figure = study.run("fig7", quick=True, resume=path, progress=lambda done, all: reported.append(done))
    runs = len(figure.rows)
    # The head, the runs completed before, and each remaining run once.
    assert reported == list(range(100, runs + 1))
    assert len(set(path.read_text().splitlines())) == 1 + runs
    expected = study.run("fig7", quick=True)
    assert (figure.rows, figure.html()) == (expected.rows, expected.html())
    study.run("fig7", quick=True, resume=path, progress=lambda done, all: reported.append(done))
    assert reported[-2:] == [runs, runs]


def test_an_incomplete_line_is_ignored(study, tmp_path):
    path = tmp_path / "icpp98.journal"
    expected = study.run("fig7", quick=True, resume=path).rows
    whole = path.read_bytes()
    for kept in (0, 10, whole.index(b"\n"), len(whole) - 1):
        path.write_bytes(whole[:kept])
        assert study.run("fig7", quick=True, resume=path).rows == expected
        assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("treecast sweep 1, build 0.1.0 ab\n", "is no study"), ("treecast journal 1, program 0\n", "by another build")],
)
def test_a_foreign_journal_is_not_changed(study, text, sentence, tmp_path):
    path = tmp_path / "icpp98.journal"
    path.write_text(text)
    with pytest.raises(TreecastError, match=sentence):
        study.run("fig7", quick=True, resume=path)
    assert path.read_text() == text


def test_a_journal_that_cannot_be_used_is_named(study, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        study.run("fig7", quick=True, resume=tmp_path / "nowhere" / "icpp98.journal")
    path = tmp_path / "icpp98.journal"

    def progress(done, all):
        with pytest.raises(TreecastError, match="is in use"):
            study.run("fig7", resume=path)

    study.run("fig7", quick=True, progress=progress, resume=path)


def test_rows_of_a_testbed_are_in_bytes_and_microseconds(command, tmp_path):
    command("paper", "run", "gm", "multisend", "--quick", f"--out={tmp_path}")
    rows = pyarrow.table(Study("gm").run("multisend", quick=True).rows)
    assert rows.equals(pyarrow.parquet.read_table(tmp_path / "multisend.parquet"))
    assert set(rows["testbed"].to_pylist()) == {"lanai9"}
    assert set(rows["message_bytes"].to_pylist()) == {4, 128, 1024, 8192}
    assert all(latency > 0 for latency in rows["latency_us"].to_pylist())
    for simulated in ("message_flits", "latency_cycles", "latency_ns", "saturation_ejection_load", "precision"):
        assert rows[simulated].null_count == len(rows), simulated
    for row in rows.select(["destinations", "destination_count", "nic_busy_us", "flow"]).to_pylist():
        assert len(row["destinations"].split(",")) == row["destination_count"]
        assert (row["nic_busy_us"] > 0, row["flow"]) == (True, "none")


def test_a_deadlocked_run_has_the_waiting_packets():
    rows = pyarrow.table(Study("gm").run("flow-deadlock", quick=True).rows).to_pylist()
    for row in rows:
        deadlocked = row["status"] == "deadlocked"
        assert (row["latency_us"] is None, row["deadlock"] is not None) == (deadlocked, deadlocked)
    assert any("keeps a packet" in row["deadlock"] for row in rows if row["deadlock"])


STUDY = """
name = "mine"
title = "My cluster"
source = "ours"
summary = "A star of eight hosts."

[defaults]
testbed = "mine"
fabric = "star:8"
message = 64
"""
FIGURE = """
title = "Latency"
question = "How does it grow?"

[x]
vary = "destinations"
label = "destinations"
values = [1, 7]

[[series]]
name = "NIC"
description = "by the interfaces"
scheme = "postal"
offload = "nic"
"""
TESTBED = """
model = "myrinet"
[set]
hop_us = 0.5
"""


@pytest.fixture
def directory(tmp_path):
    for name, text in (("study", STUDY), ("latency", FIGURE), ("testbed-mine", TESTBED)):
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


def test_a_custom_testbed_runs_and_resumes(directory):
    rows = Study(directory).run("latency").rows
    assert pyarrow.table(rows)["hop_us"].to_pylist() == [0.5, 0.5]
    reported = []
    for _ in range(2):
        path = directory / "mine.journal"
        again = Study(directory).run("latency", resume=path, progress=lambda done, all: reported.append(done))
        assert again.rows == rows
    assert reported == [0, 1, 2, 2]


@pytest.mark.parametrize(
    ("testbed", "sentence"),
    [
        (
            TESTBED.replace("hop_us", "hopp_us"),
            "testbed-mine.toml:4: model myrinet has no key 'hopp_us': did you mean hop_us",
        ),
        (
            TESTBED.replace("0.5", "-1"),
            "testbed-mine.toml:4: invalid value hop_us=-1: expected a number of microseconds",
        ),
        (TESTBED.replace("myrinet", "myrnet"), "testbed-mine.toml:2: unknown model 'myrnet': did you mean myrinet?"),
        ("", "testbed-mine.toml:1: missing field `model`"),
        ("model = '\udcff'", "testbed-mine.toml could not be read: it is not valid UTF-8"),
    ],
)
def test_an_invalid_testbed_is_named_with_its_file(directory, testbed, sentence):
    (directory / "testbed-mine.toml").write_text(testbed, "utf-8", "surrogateescape")
    with pytest.raises(TreecastError, match=re.escape(sentence)):
        Study(directory)


def test_missing_files_and_names_are_reported(study, tmp_path):
    with pytest.raises(TreecastError, match="unknown study 'icpp89', and no directory: did you mean icpp98?"):
        Study("icpp89")
    with pytest.raises(TreecastError, match="unknown figure 'fig66'"):
        study.run("fig66")
    with pytest.raises(TreecastError, match="invalid value 0 for threads: expected 1 to 1024"):
        study.run("fig7", threads=0)
    (tmp_path / "study.toml").write_text("name = 3")
    with pytest.raises(TreecastError, match=str(tmp_path)):
        Study(tmp_path)
