"""Settings of groups: which are taken, and plans, fabrics and networks from which a tree is made."""

import pytest

from treecast import Fabric, Group, Node, TreecastError, plan

# Longer than any operation here takes, so that a missing message fails a test and does not hang it.
PATIENCE = 30
ANY = "127.0.0.1:0"


def test_settings_are_those_of_the_library(pair):
    settings = {"scheme": "binomial", "offload": "host", "message_bytes": 5, "slots": 64, "mtu_bytes": 1_000}
    streams = {"transport": "stream", "tcp_congestion": "reno", "encrypt": "on"}
    root, member = pair(token="secret", admits=True, bytes_per_s_max=None, group=7, **settings, **streams)
    root.send(b"hello")
    assert member.receive(PATIENCE) == b"hello"
    assert "NodeGroup 7 at 127.0.0.1:" in repr(root)


def test_invalid_arguments_are_rejected_in_one_sentence(pair):
    with pytest.raises(TreecastError, match="^cannot resolve host nowhere: "):
        Node("nowhere")
    node = Node(ANY)
    taken = "choose another port, or 0 for a free one$"
    with pytest.raises(OSError, match=rf"cannot listen at {node.address}: Address already in use .*: {taken}"):
        Node(node.address)
    with pytest.raises(OSError, match="not an address of this machine$"):
        Node("192.0.2.1:0")
    loopback, outside = node.address, "192.0.2.1:7000"
    with pytest.raises(TreecastError, match=f"^{loopback} is reachable on its own host only, unlike {outside}"):
        node.group([loopback, outside])
    members = [loopback, "127.0.0.2:7000"]
    for settings, sentence in [
        ({"integrity": "none"}, "invalid value integrity=none: expected network or crc32c"),
        (
            {"tcp_congestion": "../reno"},
            "invalid value tcp_congestion=../reno: expected auto, or an algorithm of the kernel such as bbr, cubic or reno",
        ),
        ({"slots": 100}, "invalid value slots=100: expected auto, or a power of two from 4 to 65536"),
        ({"root": 2}, "the root is member 2 of 2: members are numbered from 0"),
        ({"offload": "router"}, "invalid value offload=router: expected auto, host, assisted, nic or switch"),
        ({"admits": 1}, "invalid value admits=1: expected true or false"),
        (
            {"scheme": None},
            "unknown scheme 'none': known are separate, serial, binary, binomial, k-binomial, postal, hierarchical, "
            "u-torus, s-torus, md-torus, mu-torus, path, tree-worm, leader, auto",
        ),
        ({"scheme": "k-binomial:n=2"}, "k-binomial has no key 'n': known are k"),
    ]:
        with pytest.raises(TreecastError) as refused:
            node.group(members, **settings)
        assert str(refused.value) == sentence
    with pytest.raises(TreecastError, match="^tcp_congestion=nonsense is not available: the kernel of this host has "):
        node.group(members, tcp_congestion="nonsense")
    with pytest.raises(
        TypeError, match="^unknown setting slotz of a group: known are group, root, member, token, insecure, auth, "
    ):
        node.group(members, slotz=4)
    with pytest.raises(TypeError):
        node.group(node.address)
    with pytest.raises(
        TreecastError,
        match=rf"^this node listens at {node.address}, which is not the address of a member: 127.0.0.2:7000$",
    ):
        node.group(["127.0.0.2:7000"])
    with pytest.raises(TreecastError, match="say which of them this process is"):
        node.group([node.address] * 2)
    group = node.group(members)
    with pytest.raises(TreecastError, match="^there is a group 1 at this node already$"):
        node.group(members)
    with pytest.raises(TreecastError, match="^member 0 is the root of group 1, and only other members receive$"):
        group.receive()
    _, member = pair()
    for call in (lambda: member.send(b""), member.flush):
        with pytest.raises(TreecastError, match="is not the root of group 1, and only the root sends$"):
            call()


def test_a_plan_is_carried_out():
    fabric = Fabric("star:3")
    chain = plan(fabric, Group(fabric, root=1), "serial")
    with Node("127.0.0.1:0") as one, Node("127.0.0.1:0") as two, Node("127.0.0.1:0") as three:
        members = [one.address, two.address, three.address]
        groups = [node.group(members, plan=chain) for node in (one, two, three)]
        groups[1].send(b"hello")
        assert [groups[0].receive(PATIENCE), groups[2].receive(PATIENCE)] == [b"hello", b"hello"]
        assert [group.counters["sent"] for group in groups] == [1, 1, 0]


def test_a_plan_for_other_members_is_refused():
    fabric = Fabric("star:3")
    chain = plan(fabric, Group(fabric), "serial")
    with Node("127.0.0.1:0") as node, pytest.raises(TreecastError, match="for 3 members, and the group has 1"):
        node.group([node.address], plan=chain)
    with Node("127.0.0.1:0") as node, pytest.raises(TypeError):
        node.group([node.address], plan="serial")


def test_the_tree_follows_the_racks_of_a_fabric(tmp_path):
    (tmp_path / "lab.inventory").write_text("127.0.0.[1-2] rack1\n127.0.0.[3-4] rack2\n")
    fabric = Fabric.read(tmp_path / "lab.inventory")
    nodes = [Node(f"127.0.0.{host}:0") for host in range(1, 5)]
    members = [node.address for node in nodes]
    groups = [node.group(members, fabric=fabric, token="secret") for node in nodes]
    groups[0].send(b"hello")
    assert [group.receive(PATIENCE) for group in groups[1:]] == [b"hello"] * 3
    assert groups[0].scheme.startswith("hierarchical:")
    assert groups[0].counters["sent"] == 2
    for node in nodes:
        node.close()


def test_a_member_that_the_fabric_does_not_have_is_named(tmp_path):
    (tmp_path / "lab.inventory").write_text("n1 rack1\n")
    fabric = Fabric.read(tmp_path / "lab.inventory")
    with (
        Node("127.0.0.1:0") as node,
        pytest.raises(TreecastError, match="member 0: the fabric has no host '127.0.0.1'"),
    ):
        node.group([node.address], fabric=fabric)
    with Node("127.0.0.1:0") as node, pytest.raises(TypeError):
        node.group([node.address], fabric="star:1")


def test_the_tree_follows_the_costs_of_the_network(tmp_path):
    costs = "format = 'treecast-network-1'\n[[way]]\nengine = 'user'\noffload = 'nic'\ntransport = 'stream'\n"
    relays_are_slow = tmp_path / "network.toml"
    relays_are_slow.write_text(costs + "[way.set]\nsend_us = 1\nwake_us = 500\n")
    members = [f"127.0.0.{host}:7000" for host in range(1, 9)]
    with Node(members[0], engine="user") as node:
        settings = {"token": "secret", "message_bytes": 1 << 16}
        schemes = [
            node.group(members, group=number, network=network, **settings).scheme
            for number, network in enumerate([None, relays_are_slow, str(relays_are_slow)])
        ]
        assert schemes == ["postal:lambda=2.2", "separate", "separate"]


def test_a_network_that_cannot_be_read_is_named(tmp_path):
    malformed = tmp_path / "network.toml"
    malformed.write_text("format = 'treecast-network-1'\n[[way]]\nengine = 'user'\noffload = 'router'\n")
    with Node(ANY) as node:

        def error(network):
            with pytest.raises(TreecastError) as raised:
                node.group([node.address], network=network)
            return str(raised.value)

        assert error("/no/network.toml") == (
            "network: /no/network.toml: could not be read: No such file or directory (os error 2)"
        )
        assert error(malformed) == f"network: {malformed}: line 2: missing field `transport`"
        with pytest.raises(TypeError):
            node.group([node.address], network=1)
