import json
import xml.etree.ElementTree

import pytest

from treecast import Fabric, Group, Plan, TreecastError, plan

SCHEMES = [
    "separate",
    "binomial",
    "k-binomial:k=2",
    "postal:lambda=3.5",
    "hierarchical",
    "path",
    "tree-worm",
    "leader:over=binomial",
]


@pytest.fixture(scope="module")
def fabric():
    return Fabric("icpp98")


def test_groups_take_lists_ranges_and_texts(fabric):
    assert Group(fabric, 0, range(1, 4)) == Group(32, 0, "1-3") == Group(fabric, 0, iter([1, 2, 3]))
    assert Group(fabric).destinations == list(range(1, 32))
    assert len(Group(fabric)) == 32
    drawn = Group(fabric, 5, "random:7", seed=3)
    assert drawn == Group(fabric, 5, "random:7", seed=3) != Group(fabric, 5, "random:7", seed=4)
    assert len(drawn.destinations) == 7 and 5 not in drawn.destinations


def test_groups_number_processes_over_hosts():
    group = Group(4, 0, "all", processes=2, placement="cyclic")
    assert (group.host_count, group.processes, group.placement) == (4, 2, "cyclic")
    assert len(group) == 8


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((4, -1), "invalid value -1: expected a whole number from 0 to 4294967295"),
        ((4, 0, [1, 4]), "there is no host 4: the group has hosts 0 to 3"),
        ((4, 0, [1, 1]), "destination 1 is given twice"),
        ((4, 0, []), "the group has no destinations"),
        ((4, 0, "some"), "'some' is not a list of members"),
        ((4, 0, [2**70]), f"invalid value {2**70}: expected"),
    ],
)
def test_invalid_groups_are_rejected(arguments, sentence):
    with pytest.raises(TreecastError) as raised:
        Group(*arguments)
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize("wrong", [(4, "x"), ("icpp98",), (4, 0, [1.5]), (4, 0, 7)])
def test_groups_of_other_types_are_a_type_error(wrong):
    with pytest.raises(TypeError):
        Group(*wrong)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_member_receives_once_from_a_holder(fabric, scheme):
    group = Group(fabric, 3, "random:12")
    made = plan(fabric, group, scheme)
    holders = {made.root}
    for edge in made.edges:
        assert edge["sender"] in holders
        assert edge["receiver"] not in holders
        holders.add(edge["receiver"])
    assert holders == {3, *group.destinations}
    assert sorted(made.nodes.column("member")) == sorted(holders)
    assert made.nodes.column("step")[0] == 0
    assert len(set(made.edges.column("worm"))) == made.analysis["worms"]
    assert max(made.edges.column("order")) + 1 == made.analysis["max_fan_out"]
    assert max(made.nodes.column("step")) == made.analysis["phases"]


def test_routes_are_link_names_with_their_virtual_channels():
    torus = Fabric("torus:k=4,n=2,uni")
    made = plan(torus, Group(torus), "u-torus")
    names = set(torus.links.column("name"))
    channels = {channel for edge in made.edges for channel in edge["route"]}
    assert {channel.split("/")[0] for channel in channels} <= names
    assert any(channel.endswith("/1") for channel in channels)
    assert all(edge["route"][0].startswith(f"h{edge['sender']}>") for edge in made.edges)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_command_prints_the_same(fabric, scheme, command):
    made = plan(fabric, Group(fabric, 2, [3, 5, 9, 30]), scheme, packets=3)
    given = ["--fabric", "icpp98", "--root", "2", "--dests", "3,5,9,30", "--scheme", scheme, "--packets", "3"]
    assert str(made) + "\n" == command("plan", *given)
    assert made.to_json() == command("plan", *given, "--format", "json")
    assert made.svg() == command("plan", *given, "--format", "svg")
    assert made.dot() == command("plan", *given, "--format", "dot")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_json_reads_back(fabric, scheme):
    made = plan(fabric, Group(fabric, 0, "random:9"), scheme)
    read = Plan.from_json(made.to_json())
    assert read == made and hash(read) == hash(made)
    assert read.fabric == fabric
    assert json.loads(made.to_json())["analysis"] == made.analysis


def test_plans_are_equal_on_equal_fabrics_only(fabric):
    group = Group(fabric, 0, [1, 2, 3])
    made = plan(fabric, group, "binomial")
    assert made == plan(Fabric("icpp98"), group, "binomial")
    assert made != plan(Fabric("icpp98:seed=2"), group, "binomial")
    assert made != plan(fabric, group, "binomial", packets=2)
    assert made != plan(fabric, group, "separate")
    assert made != "binomial"


def test_a_plan_for_a_fabric_without_a_line_needs_it(fabric):
    drawn = Fabric.from_networkx(fabric.to_networkx())
    made = plan(drawn, Group(drawn), "binomial")
    with pytest.raises(TreecastError, match="pass the plan's fabric as an argument: unknown fabric 'networkx'"):
        Plan.from_json(made.to_json())
    assert Plan.from_json(made.to_json(), drawn) == made


def test_an_unsound_plan_is_rejected(fabric):
    document = json.loads(plan(fabric, Group(fabric, 0, [1, 2]), "separate").to_json())
    document["worms"][1]["to"] = [1]
    with pytest.raises(TreecastError, match="the plan is not sound: 1 receives twice"):
        Plan.from_json(json.dumps(document))


def test_an_unsupported_scheme_is_rejected(fabric):
    with pytest.raises(TreecastError, match="scheme u-torus needs a torus"):
        plan(fabric, Group(fabric), "u-torus")
    with pytest.raises(TreecastError, match="scheme tree-worm takes no order"):
        plan(fabric, Group(fabric), "tree-worm", order="cco")
    with pytest.raises(TreecastError, match="the group is placed on 16 hosts, the fabric has 32"):
        plan(fabric, Group(16), "binomial")
    with pytest.raises(TreecastError, match="a message has 1 to 1048576 packets, not 0"):
        plan(fabric, Group(fabric), "binomial", packets=0)


def test_a_notebook_shows_a_picture_or_the_text(fabric):
    made = plan(fabric, Group(fabric), "binomial")
    assert xml.etree.ElementTree.fromstring(made._repr_svg_()).tag.endswith("svg")
    star = Fabric("star:2001")
    large = plan(star, Group(star), "binomial")
    assert large._repr_svg_() is None
    with pytest.raises(TreecastError, match="a picture shows at most"):
        large.svg()
    assert "more worms not shown" in large.tree(limit=5)
