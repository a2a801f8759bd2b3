import json
import sys
import threading
import time

import pytest

from treecast import Fabric, Group, Parameters, Plan, Result, TreecastError, load, plan, simulate


@pytest.fixture(scope="module")
def fabric():
    return Fabric("icpp98")


@pytest.fixture(scope="module")
def tree(fabric):
    return plan(fabric, Group(fabric, 2, [3, 5, 9, 30]), "binomial", order="given")


@pytest.mark.parametrize("offload", ["host", "assisted", "nic"])
def test_the_command_gives_the_same(fabric, tree, offload, command):
    settings = {"nic_overhead": 500, "adaptive": "random", "cycle_ns": 2.5}
    result = simulate(fabric, tree, offload, message=1000, parameters=settings, seed=7)
    settings = [f"--set={key}={value}" for key, value in settings.items()]
    given = ["--fabric=icpp98", "--root=2", "--dests=3,5,9,30", "--scheme=binomial", "--order=given"]
    run = [f"--offload={offload}", "--message=1000", "--seed=7", "--format=json"]
    assert result.to_json() == command("sim", *given, *settings, *run)


def test_the_result_has_the_deliveries(fabric, tree):
    result = simulate(fabric, tree)
    assert result.status == "complete"
    assert result.deliveries.column("member") == [3, 5, 9, 30]
    assert max(result.deliveries.column("cycle")) == result.latency_cycles
    assert result.latency_ns == result.latency_cycles * 5.0
    assert result.worms == 4
    # Four sends and four receipts of 1,000 cycles each.
    assert sum(result.cpu_busy_cycles.column("cycles")) == 8000
    assert Result.from_json(result.to_json()) == result


def test_a_message_has_the_packets_of_its_plan(fabric):
    of_three = plan(fabric, Group(fabric, 0, [1]), "binomial", packets=3)
    assert simulate(fabric, of_three) == simulate(fabric, of_three, message=3 * 128)
    assert '"message_flits": 30,' in simulate(fabric, of_three, parameters={"packet_flits": 10}).to_json()


def test_an_incomplete_run_says_so(fabric, tree):
    result = simulate(fabric, tree, parameters={"cycles_max": 5000})
    assert (result.status, result.latency_cycles, result.latency_ns) == ("incomplete", None, None)
    assert len(result.deliveries) < 4


def test_a_plan_that_was_read_runs_alike(fabric, tree):
    assert simulate(fabric, Plan.from_json(tree.to_json())).deliveries == simulate(fabric, tree).deliveries


def test_parameters_are_a_mapping_that_compares():
    parameters = Parameters(nic_overhead=500, cycle_ns=2.5, adaptive="lowest")
    assert dict(parameters)["cycle_ns"] == 2.5
    assert dict(parameters)["nic_send_overhead"] == 500
    assert Parameters(**dict(parameters)) == parameters != Parameters()
    assert hash(Parameters(**dict(parameters))) == hash(parameters)
    assert list(parameters) == parameters.keys() == Parameters.known().column("key")
    assert len(parameters) == len(parameters.keys())
    assert repr(Parameters()) == "Parameters()"
    with pytest.raises(KeyError, match="nic_overhed"):
        parameters["nic_overhed"]


def test_parameters_are_taken_as_dict_and_as_themselves(fabric, tree):
    settings = {"host_overhead": 10, "headers": "free"}
    assert simulate(fabric, tree, parameters=settings) == simulate(fabric, tree, parameters=Parameters(**settings))
    assert simulate(fabric, tree, parameters={}) == simulate(fabric, tree, parameters=None)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"offload": "hots"}, "unknown offload 'hots': known are host, assisted, nic, switch"),
        ({"message": 0}, "the message has 0 flits: it needs at least 1"),
        ({"message": -1}, "invalid value -1: expected a whole number from 0 to 18446744073709551615"),
        ({"parameters": {"nic_overhed": 1}}, "parameters has no key 'nic_overhed': did you mean nic_overhead"),
        ({"parameters": {"link_delay": -1}}, "invalid value link_delay=-1: expected a number of cycles"),
        ({"parameters": {"buffer_flits": 100}}, "a packet of 128 payload flits and 1 header flits does not fit"),
    ],
)
def test_invalid_runs_are_rejected(fabric, tree, arguments, sentence):
    with pytest.raises(TreecastError) as raised:
        simulate(fabric, tree, **arguments)
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize("parameters", [3, [1], {3: 4}])
def test_parameters_of_other_types_are_a_type_error(fabric, tree, parameters):
    with pytest.raises(TypeError):
        simulate(fabric, tree, parameters=parameters)


def test_both_simulators_give_the_same(fabric, tree):
    results = [simulate(fabric, tree, "nic", simulator=simulator) for simulator in ("event", "cycle")]
    assert results[0].deliveries == results[1].deliveries
    assert [result.simulator for result in results] == ["event", "cycle"]
    with pytest.raises(TreecastError, match="unknown simulator 'cycles': did you mean cycle"):
        simulate(fabric, tree, simulator="cycles")


def test_an_all_reduce_delivers_to_the_root_too(fabric, tree):
    broadcast = simulate(fabric, tree)
    all_reduce = simulate(fabric, tree, operation="all-reduce")
    assert len(all_reduce.deliveries) == len(broadcast.deliveries) + 1
    assert all_reduce.latency_cycles > broadcast.latency_cycles
    barrier = simulate(fabric, tree, operation="barrier")
    assert (barrier.operation, barrier.message_flits) == ("barrier", 1)
    assert ": barrier, " in repr(barrier)
    with pytest.raises(TreecastError, match="a barrier has no values"):
        simulate(fabric, tree, message=8, operation="barrier")
    with pytest.raises(TreecastError, match="invalid value reduce for operation: expected broadcast, all-reduce"):
        simulate(fabric, tree, operation="reduce")


def test_a_result_has_its_inputs(fabric, tree):
    result = simulate(fabric, tree, "nic", message=1000, parameters={"cycle_ns": 2.5}, seed=7)
    document = json.loads(result.to_json())
    names = "fabric routing scheme order root destinations operation offload message_flits seed simulator deadlock"
    for name in names.split():
        assert getattr(result, name) == document[name], name
    assert dict(result.parameters) == document["parameters"]


def test_a_trace_is_written_atomically(fabric, tree, tmp_path):
    path = tmp_path / "run.pftrace"
    path.write_bytes(b"before")
    with pytest.raises(TreecastError):
        simulate(fabric, tree, message=0, trace=path)
    assert path.read_bytes() == b"before"
    assert simulate(fabric, tree, trace=path) == simulate(fabric, tree)
    assert b"multicast 0 worm 3" in path.read_bytes()
    load(fabric, "binomial", load=0.01, degree=2, cycles=20_000, trace=str(tmp_path / "load.pftrace"))
    assert b"multicast 2 worm 1" in (tmp_path / "load.pftrace").read_bytes()
    with pytest.raises(FileNotFoundError):
        simulate(fabric, tree, trace=tmp_path / "nowhere" / "run.pftrace")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["load.pftrace", "run.pftrace"]


def test_a_plan_for_another_fabric_is_rejected(tree):
    with pytest.raises(TreecastError, match="the group is placed on 32 hosts, the fabric has 4"):
        simulate(Fabric("star:4"), tree)


@pytest.fixture
def other_thread():
    """Counts how often another thread came to run; it gives way at once, and the main thread never on its own."""
    turns, stop = [0], threading.Event()

    def run():
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=run)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    thread.start()
    yield turns
    stop.set()
    sys.setswitchinterval(interval)
    thread.join()


def test_other_threads_run_while_rust_works(other_thread):
    star = Fabric("star:20000")
    group = Group(star)
    made = plan(star, group, "binomial")

    def lets_others_run(call):
        # On a busy machine the other thread may miss some calls of a few milliseconds, but not
        # hundreds of them.
        before = other_thread[0]
        return any(call() and other_thread[0] > before for _ in range(1000))

    assert lets_others_run(lambda: plan(star, group, "binomial"))
    assert lets_others_run(lambda: simulate(star, made))
