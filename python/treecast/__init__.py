"""Multicast for clusters: plan, analyse, simulate and run it.

A fabric, a group on it and a scheme make a plan: who sends which copy to whom, in which order. The same plan is
drawn, analysed and simulated.

>>> import treecast
>>> fabric = treecast.Fabric("icpp98")
>>> group = treecast.Group(fabric, 0, [1, 2, 3])
>>> plan = treecast.plan(fabric, group, "binomial")
>>> treecast.simulate(fabric, plan, offload="nic").latency_cycles
6458

`load` simulates concurrent multicasts, `sweep` many runs on all cores or on a cluster,
and `Study` runs published experiments. `Node` connects the process to groups of real processes; `treecast.aio` has
the same for asyncio.

Tables of results are a `Table`, which pyarrow, polars and pandas use without copying. Invalid input raises
`TreecastError`, a `ValueError`, with a one-sentence message. Fabrics, groups, parameters, plans and results are immutable values: they
compare, and can be pickled.
"""

import atexit

from treecast._load import find_saturation, load
from treecast._points import grid
from treecast._sweep import SweepError, sweep
from treecast._treecast import (
    Fabric,
    Figure,
    Group,
    GroupEnded,
    LoadResult,
    LoadSetup,
    Lost,
    Node,
    NodeGroup,
    Parameters,
    Peeked,
    Plan,
    Result,
    SaturationResult,
    Study,
    Table,
    TreecastError,
    close_nodes,
    plan,
    read_members,
    simulate,
)
from treecast._types import Analysis, Deadlock, GroupSettings, LinkUtilization, LoadPoint, MulticastPoint, Wait

__all__ = [
    "Analysis",
    "Deadlock",
    "Fabric",
    "Figure",
    "Group",
    "GroupEnded",
    "GroupSettings",
    "LinkUtilization",
    "LoadPoint",
    "LoadResult",
    "LoadSetup",
    "Lost",
    "MulticastPoint",
    "Node",
    "NodeGroup",
    "Parameters",
    "Peeked",
    "Plan",
    "Result",
    "SaturationResult",
    "Study",
    "SweepError",
    "Table",
    "TreecastError",
    "Wait",
    "find_saturation",
    "grid",
    "load",
    "plan",
    "read_members",
    "simulate",
    "sweep",
]

# Closes groups in order at exit, so that this member's descendants still get the messages that they
# need.
atexit.register(close_nodes)
