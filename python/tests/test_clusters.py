"""Sweeps on a Dask cluster and on MPI, with the scripts of docs/python.md; and a worker that dies."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import polars
import pytest
from conftest import ROOT
from distributed import Client, LocalCluster

from treecast import grid, sweep

POINTS = grid(fabric="icpp98", scheme="binomial", load=[0.005, 0.01], degree=3, cycles=400_000, seed=range(15))


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield cluster


def script(name, directory):
    """A script as docs/python.md shows it, as a file; and the table that its points give here."""
    page = (ROOT / "docs/python.md").read_text("utf-8")
    code = re.search(rf"^```python\n(# {name}\n.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    (directory / name).write_text(code)
    names = {"__name__": "page"}
    exec(compile(code, name, "exec"), names)
    return polars.DataFrame(sweep(names["POINTS"]))


def run(directory, *command):
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_dask_cluster_gives_the_same_rows(cluster, tmp_path):
    expected = script("sweep_dask.py", tmp_path)
    run(tmp_path, sys.executable, "sweep_dask.py", cluster.scheduler_address)
    assert polars.read_parquet(tmp_path / "sweep.parquet").equals(expected)


def test_a_sweep_survives_the_death_of_a_dask_worker(cluster):
    with Client(cluster) as client:
        workers = list(client.run(os.getpid).values())

        def kill_one(done, all):
            if 0 < done < all and workers:
                os.kill(workers.pop(), signal.SIGKILL)
                workers.clear()

        table = sweep(POINTS, client.get_executor(retries=2), progress=kill_one)
    assert not workers
    assert table == sweep(POINTS)


def test_mpi_gives_the_same_rows(tmp_path):
    expected = script("sweep_mpi.py", tmp_path)
    mpiexec = Path(sys.executable).with_name("mpiexec")
    run(tmp_path, mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", "sweep_mpi.py")
    assert polars.read_parquet(tmp_path / "sweep.parquet").equals(expected)
