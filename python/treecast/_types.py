"""Types that are dicts at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import SupportsIndex, TypedDict

from treecast._treecast import Fabric, Parameters


class Analysis(TypedDict):
    """What can be said of a plan without simulating it; docs/plans.md defines each."""

    steps: int
    depth: int
    phases: int
    worms: int
    max_fan_out: int
    link_visits: int
    links_used: int
    link_concentration: float
    link_concurrency: int
    contending_pairs: int
    id_rule: bool


class LinkUtilization(TypedDict):
    """How busy links were: shares of the measured cycles."""

    mean: float
    max: float
    link: str | None


class Wait(TypedDict):
    """A packet of a deadlock: it lies behind the link `at`, and waits for the link that it `wants`."""

    multicast: int
    worm: int
    packet: int
    at: str
    wants: str


class Deadlock(TypedDict):
    """Packets that wait for one another, so that none of them will ever go on."""

    cycle: int
    stuck: int
    waits: list[Wait]


class _Point(TypedDict):
    fabric: str | Fabric
    scheme: str


class _CommonKeys(_Point, total=False):
    routing: str
    order: str | None
    offload: str
    message: SupportsIndex | None
    parameters: Parameters | Mapping[str, int | float | str] | None
    seed: SupportsIndex
    simulator: str


class MulticastPoint(_CommonKeys, total=False):
    """A point of a sweep that is one multicast on an idle fabric.

    `fabric` and `scheme` it must have. `fabric` is a `Fabric`, or a line that names one, with its `routing`. The other
    keys and their defaults are the arguments of `Group`, `plan` and `simulate`; `message` is in flits, None is one
    packet; `seed` draws random destinations too.
    """

    root: SupportsIndex
    destinations: str | Iterable[SupportsIndex]
    processes: SupportsIndex
    placement: str


class _LoadPoint(_CommonKeys):
    load: float
    degree: SupportsIndex


class LoadPoint(_LoadPoint, total=False):
    """A point of a sweep that is a run under load.

    `fabric`, `scheme`, `load` and `degree` it must have. `fabric` is a `Fabric`, or a line that names one, with its
    `routing`. The other keys and their defaults are the arguments of `load`.
    """

    arrivals: str
    destination_sets: str
    cycles: SupportsIndex
    warmup: SupportsIndex | None
    backlog_max: SupportsIndex | None


class GroupSettings(TypedDict, total=False):
    """What a group of nodes is set to, the same at every member; docs/library.md has the defaults.

    `group`: its number. `root`: the root's place among the members. `token`: what all members know and others do not.
    `scheme`: how the tree is made. `offload`: who forwards: host, assisted or nic. `message_bytes`: how long messages are, more or
    less. `slots`: how many packets each member holds. `mtu_bytes`: the longest datagram that the network carries whole. `admits`:
    whether hosts that ask later become members. `bytes_per_s_max`: how fast the root sends at most; None: as fast as it arrives.
    """

    group: int
    root: int
    token: str
    scheme: str
    offload: str
    message_bytes: int
    slots: int
    mtu_bytes: int
    admits: bool
    bytes_per_s_max: int | None
