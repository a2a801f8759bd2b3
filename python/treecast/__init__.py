"""One message to many receivers: plan it, look at it, simulate it.

A fabric, a group on it and a scheme make a plan: who sends which copy to whom, and in what order. The same plan is
drawn, analysed and simulated.

>>> import treecast
>>> fabric = treecast.Fabric("icpp98")
>>> group = treecast.Group(fabric, 0, [1, 2, 3])
>>> plan = treecast.plan(fabric, group, "binomial")
>>> treecast.simulate(fabric, plan, offload="nic").latency_cycles
6458

`load` simulates many multicasts at once, `sweep` many runs on all cores or on a cluster,
and `Study` has published experiments. `Node` takes part in groups of real processes on a real network; `treecast.aio` has
the same for asyncio.

Rows come as `Table`, which pyarrow, polars and pandas take without copying. What was given wrong raises
`TreecastError`, a `ValueError`, in one sentence. Fabrics, groups, parameters, plans and results are values: they
compare, and go through pickle to other processes.
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

# Groups learn that the process ends, and members behind this one get what they still need.
atexit.register(close_nodes)
