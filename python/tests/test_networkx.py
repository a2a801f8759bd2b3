import networkx
import pytest
from test_fabric import SPECS

from treecast import Fabric, TreecastError


@pytest.mark.parametrize(
    ("spec", "routing"), [(spec, "auto") for spec in SPECS] + [("torus:k=3,n=2", "up-down:root=4")]
)
def test_a_graph_gives_the_fabric_that_made_it(spec, routing):
    fabric = Fabric(spec, routing)
    back = Fabric.from_networkx(fabric.to_networkx())
    assert back == fabric
    assert back.links == fabric.links
    assert back.source == "networkx"


def test_names_survive(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text('[[switch]]\nname = "<leaf> & co"\nports = 4\n[[host]]\nname = "Zürich"\nswitch = "<leaf> & co"\n')
    fabric = Fabric.read(path)
    assert Fabric.from_networkx(fabric.to_networkx()) == fabric


@pytest.mark.parametrize("spec", SPECS)
def test_networkx_writes_graphml_that_reads_as_a_fabric(spec, tmp_path):
    fabric = Fabric(spec)
    path = tmp_path / "graph.graphml"
    networkx.write_graphml(fabric.to_networkx(), path)
    read = Fabric.read(path)
    assert (read.hosts.column("name"), read.grid) == (fabric.hosts.column("name"), fabric.grid)


def test_both_directions_of_a_link_are_one_undirected_edge():
    fabric = Fabric("icpp98")
    graph = fabric.to_networkx().to_undirected()
    assert graph.number_of_edges() == fabric.link_count // 2
    assert networkx.is_connected(graph)


def test_a_plain_graph_is_a_fabric_whose_leaves_are_hosts():
    graph = networkx.Graph([("leaf", "a"), ("leaf", "b"), ("leaf", "spine"), ("spine", "c")])
    fabric = Fabric.from_networkx(graph)
    assert fabric.hosts.column("name") == ["a", "b", "c"]
    assert fabric.switches.column("name") == ["leaf", "spine"]
    assert fabric.hosts.column("switch") == [0, 0, 1]


def test_links_are_numbered_by_link():
    graph = networkx.DiGraph()
    for number, host in enumerate(["c", "a", "b"]):
        graph.add_edge(host, "switch", link=9 - 2 * number)
        graph.add_edge("switch", host, link=10 - 2 * number)
    fabric = Fabric.from_networkx(graph)
    assert fabric.hosts.column("name") == ["c", "a", "b"]
    assert fabric.links.column("source")[0] == "h0"
    ports = [link["targetport"] for link in fabric.links if link["source"].startswith("h")]
    assert ports == [0, 1, 2]


def test_the_argument_overrules_the_routing_of_the_graph():
    graph = Fabric("torus:k=3,n=2", "up-down").to_networkx()
    assert Fabric.from_networkx(graph).routing == "up-down"
    assert Fabric.from_networkx(graph, routing="auto") == Fabric("torus:k=3,n=2")


def errors():
    two_hosts = networkx.Graph([("a", "b")])
    ports = networkx.MultiGraph()
    ports.add_edge("a", "switch", targetport=3)
    blank = networkx.Graph([(" a", "switch"), ("b", "switch")])
    kind = networkx.star_graph(3)
    kind.nodes[0]["kind"] = "router"
    grid = networkx.star_graph(3)
    grid.graph["grid"] = "torus:k=4,n=2"
    port = networkx.DiGraph([("a", "switch"), ("switch", "a")])
    port.edges["switch", "a"]["sourceport"] = "x"
    return [
        (two_hosts, "edge 'a', 'b': this edge links two hosts"),
        (ports, "edge 'a', 'switch': an undirected graph does not say at which end a port is"),
        (blank, "node ' a': its name ' a' has blanks around it"),
        (kind, "node 0: unknown kind of node 'router': expected host or switch"),
        (grid, "the graph: this is not torus:k=4,n=2: "),
        (port, "edge 'switch', 'a': sourceport='x' is not a whole number"),
        (networkx.Graph(), "the graph: the fabric has no hosts"),
    ]


@pytest.mark.parametrize(("graph", "sentence"), errors())
def test_an_invalid_graph_is_rejected_with_a_sentence(graph, sentence):
    with pytest.raises(TreecastError) as raised:
        Fabric.from_networkx(graph)
    assert str(raised.value).startswith(sentence)
