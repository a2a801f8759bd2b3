"""Fabrics from and to networkx graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from treecast._treecast import Fabric, TreecastError

if TYPE_CHECKING:
    import networkx

_NODE_DATA = ("kind", "type", "name", "label", "ports", "rank")
_EDGE_DATA = ("sourceport", "targetport")


def to_networkx(fabric: Fabric) -> networkx.MultiDiGraph[str]:
    """See `Fabric.to_networkx`."""
    import networkx

    graph: networkx.MultiDiGraph[str] = networkx.MultiDiGraph(routing=fabric.routing)
    if fabric.grid is not None:
        graph.graph["grid"] = fabric.grid
    for number, switch in enumerate(fabric.switches):
        rank = {} if switch["rank"] is None else {"rank": switch["rank"]}
        graph.add_node(f"s{number}", kind="switch", name=switch["name"], ports=switch["ports"], **rank)
    for number, host in enumerate(fabric.hosts):
        graph.add_node(f"h{number}", kind="host", name=host["name"])
    for number, link in enumerate(fabric.links):
        source, target, reverse = link.pop("source"), link.pop("target"), link.pop("reverse")
        key = number if reverse is None else min(number, reverse)
        graph.add_edge(source, target, key, link=number, **link)
    return graph


def from_networkx(graph: networkx.Graph[Any], routing: str | None) -> Fabric:
    """See `Fabric.from_networkx`."""
    if routing is None:
        routing = graph.graph.get("routing", "auto")
    text, places = _graphml(graph)
    try:
        return Fabric._from_text(text, "graphml", "networkx", routing)
    except TreecastError as error:
        if len(error.args) == 1:
            raise
        reason, line = error.args
        raise TreecastError(f"{places[line - 1]}: {reason}") from None


def _graphml(graph: networkx.Graph[Any]) -> tuple[str, list[str]]:
    """The graph in the format that has a reader, links in their order; and what stands on each line.

    networkx writes GraphML itself, but edges in an order of its own, and not all types of data.
    """
    root = ElementTree.Element("graphml")
    kind = "directed" if graph.is_directed() else "undirected"
    parent = ElementTree.SubElement(root, "graph", edgedefault=kind)
    grid = ElementTree.SubElement(parent, "data", key="grid")
    grid.text, grid.tail = str(graph.graph.get("grid", "")), "\n"
    places = ["the graph"]

    def add(place: str, tag: str, attributes: dict[str, str], data: dict[str, Any], keys: tuple[str, ...]) -> None:
        child = ElementTree.SubElement(parent, tag, attributes)
        child.tail = "\n"
        places.append(place)
        for key in keys:
            if key in data:
                ElementTree.SubElement(child, "data", key=key).text = _text(place, key, data[key])

    numbers = {node: f"n{number}" for number, node in enumerate(graph)}
    for node, data in graph.nodes(data=True):
        named = data if "name" in data or "label" in data else {"name": node, **data}
        add(f"node {node!r}", "node", {"id": numbers[node]}, named, _NODE_DATA)
    for source, target, data in _in_order(graph):
        place = f"edge {source!r}, {target!r}"
        if not graph.is_directed() and any(port in data for port in _EDGE_DATA):
            raise TreecastError(
                f"{place}: an undirected graph does not say at which end a port is: use a directed graph, or leave "
                "ports away"
            )
        add(place, "edge", {"source": numbers[source], "target": numbers[target]}, data, _EDGE_DATA)
    return ElementTree.tostring(root, encoding="unicode"), places


def _in_order(graph: networkx.Graph[Any]) -> list[tuple[Any, Any, dict[str, Any]]]:
    edges = list(graph.edges(data=True))
    if all(isinstance(data.get("link"), int) for *_, data in edges):
        edges.sort(key=lambda edge: edge[2]["link"])
    return edges


def _text(place: str, key: str, value: object) -> str:
    """A value as XML holds it, or an error: XML would lose blanks, and cannot hold every character."""
    text = str(value)
    if text != text.strip() or not text.isprintable():
        raise TreecastError(f"{place}: its {key} {text!r} has blanks around it, or characters that do not print")
    return text
