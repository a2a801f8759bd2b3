"""Types that are dicts at run time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import SupportsIndex, TypedDict

from treecast._treecast import Fabric, Parameters, Plan


class Analysis(TypedDict):
    """The static analysis of a plan; docs/plans.md defines each figure."""

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
    """Link utilization: fractions of the measured cycles."""

    mean: float
    max: float
    link: str | None


class Wait(TypedDict):
    """A packet in a deadlock: it is in the buffer at the end of the link `at`, and waits for the link `wants`."""

    multicast: int
    worm: int
    packet: int
    at: str
    wants: str


class Deadlock(TypedDict):
    """A deadlock: packets that wait for one another in a cycle."""

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

    `fabric` and `scheme` are required. `fabric` is a `Fabric`, or a spec, with its `routing`. The other
    keys and their defaults are the arguments of `Group`, `plan` and `simulate`; `message` is in flits, None means one
    packet; `seed` also draws random destinations.
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

    `fabric`, `scheme`, `load` and `degree` are required. `fabric` is a `Fabric`, or a spec, with its
    `routing`. The other keys and their defaults are the arguments of `load`.
    """

    arrivals: str
    destination_sets: str
    cycles: SupportsIndex
    warmup: SupportsIndex | None
    backlog_max: SupportsIndex | None


class GroupSettings(TypedDict, total=False):
    """The settings of a group, the same at every member; docs/library.md has the defaults.

    `group`: the group's number. `root`: the root's index in the list of members. `member`: the number of this
    process, where several members share a node. `token`: the secret shared by all members. `insecure`: whether
    members on several hosts do without a token. `auth`: what is authenticated of data: header, or payload (the header too); by
    multicast payload if not given. `encrypt`: whether the root encrypts what it sends: on or off. `integrity`:
    when CRCs are verified: network or crc32c. `transport`: what carries data along the tree: packets or stream.
    `tcp_congestion`: the congestion control of streams, such as bbr, cubic or reno; by the system if not given.
    `retention`: who keeps packets on streams until all members have them, root (not given) or all. `scheme`: the
    scheme that builds the tree. `plan`: a plan to carry out, at the root. `fabric`: the fabric with the hosts
    of the members, at the root. `network`: the path of a file of `treecast tune`, at the root, by whose costs it
    chooses the tree where no scheme is given. `offload`: who forwards: host, assisted, nic or switch. `message_bytes`: the
    expected message size. `slots`: how many packets each member can hold; by the message size if not given. `mtu_bytes`: the MTU of the network.
    `admits`: whether hosts can join the running group. `bytes_per_s_max`: the rate limit of the root; None means no
    limit.
    """

    group: int
    root: int
    member: int | None
    token: str
    insecure: bool
    auth: str
    encrypt: str
    integrity: str
    transport: str
    tcp_congestion: str
    retention: str
    scheme: str
    plan: Plan | None
    fabric: Fabric | None
    network: str | os.PathLike[str] | None
    offload: str
    message_bytes: int
    slots: int
    mtu_bytes: int
    admits: bool
    bytes_per_s_max: int | None
