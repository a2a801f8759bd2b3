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
and `Study` has published experiments.

Rows come as `Table`, which pyarrow, polars and pandas take without copying. What was given wrong raises
`TreecastError`, a `ValueError`, in one sentence. Fabrics, groups, parameters, plans and results are values: they
compare, and go through pickle to other processes.
"""

from treecast._load import find_saturation, load
from treecast._points import grid
from treecast._sweep import SweepError, sweep
from treecast._treecast import (
    Fabric,
    Figure,
    Group,
    LoadResult,
    LoadSetup,
    Parameters,
    Plan,
    Result,
    SaturationResult,
    Study,
    Table,
    TreecastError,
    plan,
    simulate,
)
from treecast._types import Analysis, Deadlock, LinkUtilization, LoadPoint, MulticastPoint, Wait

__all__ = [
    "Analysis",
    "Deadlock",
    "Fabric",
    "Figure",
    "Group",
    "LinkUtilization",
    "LoadPoint",
    "LoadResult",
    "LoadSetup",
    "MulticastPoint",
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
    "simulate",
    "sweep",
]
