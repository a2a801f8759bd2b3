"""The notebook of the documentation runs, and shows what it did when it was written."""

import copy
import os

import nbformat
import pytest
from conftest import ROOT
from nbclient import NotebookClient

from treecast import Fabric, Group, TreecastError, find_saturation, load, plan, simulate

TOUR = ROOT / "docs/tour.ipynb"


def shown(cell):
    """What the cell shows, without what differs from run to run."""
    return [
        {key: output[key] for key in ("output_type", "data", "text", "name") if key in output}
        for output in cell.outputs
    ]


def test_the_tour_shows_what_it_did(tmp_path):
    """UPDATE_NOTEBOOK=1 renews what it shows."""
    kept = nbformat.read(TOUR, as_version=4)
    ran = copy.deepcopy(kept)
    NotebookClient(ran, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()
    cells = [cell for cell in ran.cells if cell.cell_type == "code"]
    assert any("image/svg+xml" in output.data for output in cells[0].outputs)
    if "UPDATE_NOTEBOOK" in os.environ:
        for cell in cells:
            cell.metadata = {}
        ran.metadata.pop("language_info", None)
        nbformat.write(ran, TOUR)
        return
    for before, now in zip((cell for cell in kept.cells if cell.cell_type == "code"), cells, strict=True):
        assert shown(now) == shown(before), before.source


def test_a_fabric_draws_itself_if_it_is_not_too_large():
    assert Fabric("star:4")._repr_svg_() == Fabric("star:4").svg()
    large = Fabric("star:1000")
    assert large._repr_svg_() is None
    assert large.svg().count("<circle") == 1000
    with pytest.raises(TreecastError, match="5001 hosts and switches are too many for a picture"):
        Fabric("star:5000").svg()


def test_a_table_shows_its_first_rows_and_escapes_texts():
    assert Fabric("star:2").hosts._repr_html_() == (
        "<table><thead><tr><th>name</th><th>switch</th></tr></thead><tbody>"
        "<tr><td>h0</td><td>0</td></tr><tr><td>h1</td><td>0</td></tr></tbody></table>"
    )
    html = Fabric("star:60").hosts._repr_html_()
    assert html.count("<td>0</td>") == 50 and html.endswith("<p>The first 50 of 60 rows.</p>")
    edges = plan(Fabric("star:3"), Group(Fabric("star:3")), "binomial").edges
    # A missing value is an empty cell.
    assert "&gt;" in edges._repr_html_() or "<td></td>" in edges._repr_html_()


def test_results_show_a_summary_and_a_table():
    fabric = Fabric("star:3")
    result = simulate(fabric, plan(fabric, Group(fabric), "separate"))
    assert result._repr_html_() == (
        "<p>complete after 5326 cycles: separate, offload host, 128 flits to 2 destinations</p>"
        + result.deliveries._repr_html_()
    )
    loaded = load(Fabric("icpp98"), "tree-worm", load=0.02, degree=3, cycles=100_000)
    html = loaded._repr_html_()
    assert html.startswith(
        "<p>complete: tree-worm, offload host, degree 3, offered load 0.02, mean latency 8530.6 cycles"
    )
    for cell in (loaded.offered_load, loaded.multicasts_measured, loaded.latency_p99_cycles):
        assert f"<td>{cell}</td>" in html
    found = find_saturation(Fabric("icpp98"), "tree-worm", degree=3, cycles=100_000, precision=0.2)
    html = found._repr_html_()
    assert html.startswith("<p>tree-worm, offload host, degree 3: sustains an offered load of 0.03125 after 7 runs</p>")
    assert found.points._repr_html_() in html
    for shown in (loaded, found):
        assert shown.warning is None or shown._repr_html_().endswith(f"<p>{shown.warning}</p>")


def test_a_result_without_measurements_has_empty_cells_and_its_warning():
    result = load(Fabric("icpp98"), "tree-worm", load=0.02, degree=3, cycles=2_000)
    assert result.latency_p50_cycles is None
    assert "<td></td>" in result._repr_html_()


def test_a_table_becomes_a_frame():
    table = Fabric("star:3").hosts
    assert table.to_polars().to_dicts() == table.to_pylist()
    assert table.to_pandas().to_dict("records") == table.to_pylist()
