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


def test_the_studies_that_come_along_are_those_of_the_repository():
    assert Study.known() == sorted(folder.name for folder in (ROOT / "papers").iterdir())


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


def test_progress_is_told_and_its_error_raised(study):
    told = []
    runs = len(study.run("fig7", quick=True, progress=lambda done, all: told.append((done, all))).rows)
    assert told == [(done, runs) for done in range(runs + 1)]
    with pytest.raises(ZeroDivisionError):
        study.run("fig7", quick=True, progress=lambda done, all: done / 0)


def test_progress_may_take_its_time(study):
    # Whoever sleeps lets other threads have Python, and these have runs to tell of.
    assert study.run("fig7", quick=True, threads=4, progress=lambda done, all: time.sleep(0.0001)).rows


# Runs a figure into a journal, and dies when so many runs are done.
DYING = """
import os, sys, treecast
treecast.Study("icpp98").run(
    "fig7", quick=True, resume=sys.argv[1], progress=lambda done, all: done < 100 or os._exit(9)
)
"""


def test_a_figure_that_was_interrupted_goes_on_from_what_is_done(study, tmp_path):
    path = tmp_path / "icpp98.journal"
    assert subprocess.run([sys.executable, "-c", DYING, path]).returncode == 9
    told = []
    figure = study.run("fig7", quick=True, resume=path, progress=lambda done, all: told.append(done))
    runs = len(figure.rows)
    # The head, those done before and, each once, those done after.
    assert told == list(range(100, runs + 1))
    assert len(set(path.read_text().splitlines())) == 1 + runs
    expected = study.run("fig7", quick=True)
    assert (figure.rows, figure.html()) == (expected.rows, expected.html())
    study.run("fig7", quick=True, resume=path, progress=lambda done, all: told.append(done))
    assert told[-2:] == [runs, runs]


def test_a_line_that_was_cut_short_does_not_count(study, tmp_path):
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
def test_a_journal_that_is_not_ours_is_left_alone(study, text, sentence, tmp_path):
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


def test_what_is_not_there_is_named(study, tmp_path):
    with pytest.raises(TreecastError, match="unknown study 'icpp89', and no folder: did you mean icpp98?"):
        Study("icpp89")
    with pytest.raises(TreecastError, match="unknown figure 'fig66'"):
        study.run("fig66")
    with pytest.raises(TreecastError, match="0 threads are not possible: give 1 to 1024"):
        study.run("fig7", threads=0)
    (tmp_path / "study.toml").write_text("name = 3")
    with pytest.raises(TreecastError, match=str(tmp_path)):
        Study(tmp_path)
