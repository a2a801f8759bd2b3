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
    assert told == [(done, runs) for done in range(1, runs + 1)]
    with pytest.raises(ZeroDivisionError):
        study.run("fig7", quick=True, progress=lambda done, all: done / 0)


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
