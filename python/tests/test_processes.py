"""Values go to other processes and back."""

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from treecast import Fabric, Group, Parameters, plan, simulate

FABRIC = Fabric("torus:k=4,n=2", "up-down")
GROUP = Group(FABRIC, 3, "random:9", processes=2, placement="cyclic")
PLAN = plan(FABRIC, GROUP, "binomial", order="random:seed=5", packets=2)
RESULT = simulate(FABRIC, PLAN, "nic", parameters={"adaptive": "random"}, seed=4)


@pytest.mark.parametrize(
    "value",
    [
        FABRIC,
        Fabric.from_networkx(FABRIC.to_networkx()),
        GROUP,
        Parameters(nic_overhead=5, headers="free"),
        PLAN,
        RESULT,
    ],
)
def test_a_pickle_gives_an_equal_value(value):
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value


def test_a_plan_from_a_pickle_runs_the_same():
    again = pickle.loads(pickle.dumps(PLAN))
    assert simulate(again.fabric, again, "nic", parameters={"adaptive": "random"}, seed=4) == RESULT


def run(job):
    made, seed = job
    return simulate(made.fabric, made, "nic", parameters={"adaptive": "random"}, seed=seed)


def test_a_process_pool_gives_the_same_results_in_the_same_order():
    jobs = [(PLAN, seed) for seed in range(4)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(run, jobs)) == [run(job) for job in jobs]
